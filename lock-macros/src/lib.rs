//! The attribute of [`lock-core`](https://docs.rs/lock-core). Depend on `lock-core`, which re-exports it.

mod args;
mod expand;
mod item;
mod key;

use proc_macro2::TokenStream;
use quote::quote;
use syn::LitStr;

use crate::{
    args::{Args, Key},
    expand::{Model, unlocked},
    item::{Item, carries_failure, is_opaque},
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
    let mut args = Args::parse(arguments, &mut mistakes);
    let item = match Item::parse(tokens.clone()) {
        Ok(item) => Some(item),
        Err(errors) => {
            mistakes.errors.extend(errors);
            None
        }
    };
    let template = template(&mut args, item.as_ref(), &mut mistakes);
    if let Some(item) = &item {
        check_together(&args, item, &mut mistakes);
    }
    match item {
        Some(item) if mistakes.errors.is_empty() => Model {
            args,
            item,
            template,
        }
        .expand(),
        item => {
            let errors = mistakes.errors.iter().map(syn::Error::to_compile_error);
            let item = unlocked(&args, tokens, item.as_ref());
            quote!(#(#errors)* #item)
        }
    }
}

fn template(args: &mut Args, item: Option<&Item>, mistakes: &mut Mistakes) -> Option<Template> {
    let Some(Key::Template(literal)) = &args.key else {
        return None;
    };
    Template::parse(literal.clone(), item.map(|item| &item.names))
        .map_err(|error| mistakes.push(error))
        .ok()
}

/// What only the options and the function together show to be wrong.
fn check_together(args: &Args, item: &Item, mistakes: &mut Mistakes) {
    if let Some(lease) = &args.lease
        && item.names.find(lease).is_some()
    {
        mistakes.push(syn::Error::new(
            lease.span(),
            format!("`{lease}` is an argument of this function already: choose another name for the lease"),
        ));
    }
    let output = item.output();
    if args.on_error.is_some() {
        return;
    }
    match &output {
        Some(output) if is_opaque(output) && !carries_failure(output) => mistakes.push(syn::Error::new_spanned(
            output,
            "a failed lock cannot become an `impl Trait`, whose type only the body knows: return \
             `Result<impl Trait, E>` where `E: From<LockError>`, or write `on_error = |error| …`",
        )),
        _ => {}
    }
}
