//! The attribute of [`lock-core`](https://docs.rs/lock-core). Depend on `lock-core`, which re-exports it.

mod args;
mod expand;
mod item;
mod key;

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{Error, LitStr, ReturnType, Type};

use crate::{
    args::{Args, Key},
    expand::Model,
    item::{Item, Names, Shape, is_opaque},
    key::Template,
};

#[doc = include_str!("../docs/distributed_lock.md")]
#[proc_macro_attribute]
pub fn distributed_lock(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    attribute(args.into(), item.into()).into()
}

#[doc = include_str!("../docs/key.md")]
#[proc_macro]
pub fn key(template: proc_macro::TokenStream) -> proc_macro::TokenStream {
    if template.is_empty() {
        let reason = "`key!` takes a template, as in `key!(\"order:{order_id}\")`";
        return Error::new(Span::call_site(), reason)
            .to_compile_error()
            .into();
    }
    let template =
        syn::parse::<LitStr>(template).and_then(|literal| Template::parse(literal, None));
    let tokens = template.map(|template| template.tokens(&quote!(::lock_core::__private)));
    tokens
        .unwrap_or_else(|error| error.to_compile_error())
        .into()
}

fn attribute(arguments: TokenStream, tokens: TokenStream) -> TokenStream {
    let mut errors = Vec::new();
    let args = &Args::parse(arguments, &mut errors);
    let (item, names) = Item::parse(tokens.clone(), &mut errors);
    let template = match &args.key {
        Some(Key::Template(literal)) => {
            let template = Template::parse(literal.clone(), names.as_ref());
            template.map_err(|error| errors.push(error)).ok()
        }
        _ => None,
    };
    let names = &names.unwrap_or_default();
    let Some(item) = item else {
        let errors = errors.iter().map(Error::to_compile_error);
        return quote!(#(#errors)* #tokens);
    };
    check_lease(args, names, &mut errors);
    check_output(args, &item, &mut errors);
    let model = Model {
        args,
        template: template.as_ref(),
        names,
        item,
    };
    if errors.is_empty() {
        return model.locked();
    }
    let item = model.unlocked();
    let errors = errors.iter().map(Error::to_compile_error);
    quote!(#(#errors)* #item)
}

fn check_lease(args: &Args, names: &Names, errors: &mut Vec<Error>) {
    if let Some(lease) = args
        .lease
        .as_ref()
        .filter(|lease| names.find(lease).is_some())
    {
        let reason = format!(
            "`{lease}` is an argument of this function already: choose another name for the lease"
        );
        errors.push(Error::new(lease.span(), reason));
    }
}

/// Whether the function can tell its caller of a failed lock, as far as the words of its type say. The rest is a trait's.
fn check_output(args: &Args, item: &Item, errors: &mut Vec<Error>) {
    let name = &item.head.sig.ident;
    let (Some(output), None) = (item.output(), &args.on_error) else {
        return;
    };
    if let (Shape::Async(_), ReturnType::Default) = (&item.shape, &item.head.sig.output) {
        let reason = format!(
            "`{name}` returns nothing, so a failed lock would go unnoticed: return `Result<(), E>` where \
             `E: From<LockError>`, or write `on_error = |error| …`"
        );
        errors.push(Error::new(name.span(), reason));
    } else if matches!(output, Type::Never(_)) {
        let reason = "a function that never returns cannot report a failed lock: write `on_error = |error| …`";
        errors.push(Error::new_spanned(output, reason));
    } else if is_opaque(&output) {
        let reason = "a failed lock cannot become an `impl Trait`, whose type only the body knows: return \
                      `Result<impl Trait, E>` where `E: From<LockError>`, or write `on_error = |error| …`";
        errors.push(Error::new_spanned(output, reason));
    }
}
