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
    item::{Item, is_opaque},
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
    let of_args = errors.len();
    let item = Item::parse(tokens.clone(), &mut errors);
    let can_be_locked = errors.len() == of_args;
    let mut template = None;
    if let Some(Key::Template(literal)) = &args.key {
        let parsed = Template::parse(literal.clone(), item.as_ref().map(|item| &item.names));
        template = parsed.map_err(|error| errors.push(error)).ok();
    }
    if let Some(item) = item.as_ref().filter(|_| can_be_locked) {
        check_lease(args, item, &mut errors);
        check_output(args, item, &mut errors);
    }
    let item = match item.map(|item| Model::new(args, template.as_ref(), item)) {
        Some(model) if errors.is_empty() => model.locked(),
        Some(model) => model.unlocked(),
        None => tokens,
    };
    let errors = errors.iter().map(Error::to_compile_error);
    // Behind the item, so that an editor finds it where it was.
    quote!(#item #(#errors)*)
}

fn check_lease(args: &Args, item: &Item, errors: &mut Vec<Error>) {
    if let Some(lease) = args
        .lease
        .as_ref()
        .filter(|lease| item.names.find(lease).is_some())
    {
        let reason = "is an argument of this function already: choose another name for the lease";
        errors.push(Error::new(lease.span(), format!("`{lease}` {reason}")));
    }
}

/// Whether the function can tell its caller of a failed lock, as far as the words of its type say. The rest is a trait's.
fn check_output(args: &Args, item: &Item, errors: &mut Vec<Error>) {
    let (name, output) = (&item.sig.ident, item.output());
    let reason = match (&output, &item.sig.output) {
        _ if args.on_error.is_some() || item.sig.asyncness.is_none() && !is_opaque(&output) => {
            return;
        }
        (_, ReturnType::Default) if item.sig.asyncness.is_some() => &format!(
            "`{name}` returns nothing, so a failed lock would go unnoticed: return `Result<(), E>` where \
             `E: From<LockError>`, or write `on_error = |error| …`"
        ),
        (Type::Never(_), _) => {
            "a function that never returns cannot report a failed lock: write `on_error = |error| …`"
        }
        _ if is_opaque(&output) => {
            "a failed lock cannot become an `impl Trait`, whose type only the body knows: return \
             `Result<impl Trait, E>` where `E: From<LockError>`, or write `on_error = |error| …`"
        }
        _ => return,
    };
    errors.push(Error::new_spanned(output, reason));
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _, path::Path, process};

    use super::*;

    /// The attribute's documentation shows the expansion, and a file keeps it.
    #[test]
    fn the_expansion_is_the_one_that_is_documented() {
        let expanded = attribute(
            quote!(key = "order:{order_id}", ttl = "10s"),
            quote! {
                async fn charge(order_id: u64, card: Card) -> Result<Receipt, ApiError> {
                    provider::charge(order_id, card).await
                }
            },
        );
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let golden = root.join("../tests/ui/expansion.rs");
        // With shorter paths than the real ones, or rustfmt gives up.
        let expanded = expanded
            .to_string()
            .replace(":: lock_core :: __private ::", "__private::");
        let expanded = formatted(&expanded.replace(":: core :: option :: Option ::", ""));
        if std::env::var_os("BLESS").is_some() {
            fs::write(&golden, &expanded).expect("the golden file can be written");
        }
        let expected = fs::read_to_string(golden).expect("tests/ui/expansion.rs is there");
        assert_eq!(expanded, expected, "set BLESS=1 to accept it");
        let docs = fs::read_to_string(root.join("docs/distributed_lock.md")).expect("the docs");
        assert!(
            docs.contains(&expanded),
            "docs/distributed_lock.md shows another expansion"
        );
    }

    fn formatted(tokens: &str) -> String {
        let mut rustfmt = process::Command::new("rustfmt");
        rustfmt.args(["--edition=2024", "--emit=stdout"]);
        rustfmt
            .stdin(process::Stdio::piped())
            .stdout(process::Stdio::piped());
        let mut child = rustfmt.spawn().expect("rustfmt starts");
        let mut input = child.stdin.take().expect("is piped");
        input.write_all(tokens.as_bytes()).expect("rustfmt reads");
        drop(input);
        let output = child.wait_with_output().expect("rustfmt ends");
        assert!(
            output.status.success(),
            "the expansion does not parse:\n{tokens}"
        );
        String::from_utf8(output.stdout).expect("text")
    }
}
