//! The attribute of [`lock-core`](https://docs.rs/lock-core). Depend on `lock-core`, which re-exports it.

mod args;
mod expand;
mod item;
mod key;

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{LitStr, ReturnType, Type};

use crate::{
    args::{Args, Key},
    expand::{Model, unlocked},
    item::{Item, Names, Shape, carries_failure, is_opaque},
    key::Template,
};

/// Runs an async function under a distributed lock.
#[proc_macro_attribute]
pub fn distributed_lock(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    attribute(args.into(), item.into()).into()
}

/// Builds a [`LockKey`] from the template language of the attribute.
#[proc_macro]
pub fn key(template: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let private = quote!(::lock_core::__private);
    if template.is_empty() {
        let reason = "`key!` takes a template, as in `key!(\"order:{order_id}\")`";
        return syn::Error::new(Span::call_site(), reason)
            .to_compile_error()
            .into();
    }
    syn::parse::<LitStr>(template)
        .and_then(|literal| Template::parse(literal, None))
        .map_or_else(
            |error| error.to_compile_error(),
            |template| template.tokens(&private),
        )
        .into()
}

/// What is wrong, collected: all of it is reported in one build.
#[derive(Default)]
pub(crate) struct Mistakes {
    errors: Vec<syn::Error>,
    /// Whether one of them is about the key, so that a missing key is no mistake of its own.
    pub(crate) concern_key: bool,
}

impl Mistakes {
    pub(crate) fn push(&mut self, error: syn::Error) {
        self.errors.push(error);
    }
}

fn attribute(arguments: TokenStream, tokens: TokenStream) -> TokenStream {
    let mut mistakes = Mistakes::default();
    let args = Args::parse(arguments, &mut mistakes);
    let mut names = None;
    let item = Item::parse(tokens.clone(), &mut names);
    let template = template(&args, names.as_ref(), &mut mistakes);
    let item = match item {
        Ok(item) => {
            check_lease(&args, names.as_ref(), &mut mistakes);
            check_output(&args, &item, &mut mistakes);
            Some(item)
        }
        Err(errors) => {
            mistakes.errors.extend(errors);
            None
        }
    };
    let errors = mistakes.errors.iter().map(syn::Error::to_compile_error);
    match item {
        Some(item) if mistakes.errors.is_empty() => Model {
            args,
            item,
            template,
        }
        .expand(),
        Some(item) => {
            let item = unlocked(&args, item, &names.unwrap_or_default());
            quote!(#(#errors)* #item)
        }
        None => quote!(#(#errors)* #tokens),
    }
}

fn template(args: &Args, names: Option<&Names>, mistakes: &mut Mistakes) -> Option<Template> {
    let Some(Key::Template(literal)) = &args.key else {
        return None;
    };
    Template::parse(literal.clone(), names)
        .map_err(|error| mistakes.push(error))
        .ok()
}

fn check_lease(args: &Args, names: Option<&Names>, mistakes: &mut Mistakes) {
    if let Some(lease) = &args.lease
        && names.is_some_and(|names| names.find(lease).is_some())
    {
        mistakes.push(syn::Error::new(
            lease.span(),
            format!("`{lease}` is an argument of this function already: choose another name for the lease"),
        ));
    }
}

/// Whether the function can tell its caller of a failed lock, as far as the words of its type say. The rest is a trait's.
fn check_output(args: &Args, item: &Item, mistakes: &mut Mistakes) {
    if args.on_error.is_some() {
        return;
    }
    if let (Shape::Async { .. }, ReturnType::Default) = (&item.shape, &item.sig.output) {
        let name = &item.sig.ident;
        mistakes.push(syn::Error::new(
            name.span(),
            format!(
                "`{name}` returns nothing, so a failed lock would go unnoticed: return `Result<(), E>` where \
                 `E: From<LockError>`, or write `on_error = |error| …`"
            ),
        ));
        return;
    }
    let Some(output) = item.output() else { return };
    let reason = match &output {
        Type::Never(_) => {
            "a function that never returns cannot report a failed lock: write `on_error = |error| …`"
        }
        other if is_opaque(other) && !carries_failure(other) => {
            "a failed lock cannot become an `impl Trait`, whose type only the body knows: return `Result<impl Trait, E>` \
             where `E: From<LockError>`, or write `on_error = |error| …`"
        }
        _ => return,
    };
    mistakes.push(syn::Error::new_spanned(output, reason));
}
