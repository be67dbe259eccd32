//! The attributes of [`lock-core`](https://docs.rs/lock-core). Depend on `lock-core`, which re-exports them.

mod args;
mod bounds;
mod diagnostics;
mod expand;
mod guide;
mod item;
mod key;

use std::env;

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{
    Error, Ident, Lit, LitStr, Path, Result, Token,
    parse::{ParseStream, Parser as _},
    parse_quote,
};

use crate::{
    args::{Args, option_names::AttributeName},
    diagnostics::refuse,
    item::{Item, borrowed, return_type},
    key::Key,
};

#[doc = include_str!("../docs/distributed_lock.md")]
#[doc(alias = "mutex")]
#[doc(alias = "cron")]
#[proc_macro_attribute]
pub fn distributed_lock(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    attribute(AttributeName::DistributedLock, args.into(), item.into()).into()
}

#[doc = include_str!("../docs/run_once.md")]
#[doc(alias = "idempotency")]
#[doc(alias = "single flight")]
#[doc(alias = "cron")]
#[proc_macro_attribute]
pub fn run_once(
    args: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    attribute(AttributeName::RunOnce, args.into(), item.into()).into()
}

/// Stands in for `run_once` if lock-core is built without the feature that it needs. Not for users.
#[doc(hidden)]
#[proc_macro_attribute]
pub fn __without_once(
    _: proc_macro::TokenStream,
    item: proc_macro::TokenStream,
) -> proc_macro::TokenStream {
    let reason = "`run_once` needs the `once` feature of `lock-core`: add it to `features` of `lock-core` in your `Cargo.toml`";
    let error = Error::new(Span::call_site(), reason).into_compile_error();
    let item = TokenStream::from(item);
    // The item is kept, so that its callers cause no further errors.
    quote!(#item #error).into()
}

#[doc = include_str!("../docs/key.md")]
#[proc_macro]
pub fn key(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let read = |input: ParseStream| {
        if input.is_empty() {
            let reason = "`key!` takes a template, as in `key!(\"order:{order_id}\")`";
            return refuse(input.span(), reason);
        }
        let path = path_option(input)?;
        let key = Key::template(&text(input)?, None)?;
        input.parse::<Option<Token![,]>>()?;
        let tokens = key.tokens(&quote!(#path::__private));
        // The separate block ends the borrows of the values here, not after an `.await` in the surrounding statement.
        let key = Ident::new("__key", Span::mixed_site());
        Ok(quote!({ let #key = #tokens; #key }))
    };
    let tokens = read.parse(input);
    tokens.unwrap_or_else(Error::into_compile_error).into()
}

/// Returns the text of a page of lock-core, for the documentation of lock-core. Not for users.
#[doc(hidden)]
#[proc_macro]
pub fn __guide(input: proc_macro::TokenStream) -> proc_macro::TokenStream {
    let read = |input: ParseStream| {
        let file = input.parse::<LitStr>()?;
        let package = env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default();
        let made = guide::page(package.as_ref(), &file.value());
        made.map_err(|error| Error::new(file.span(), error))
    };
    let made = read.parse(input).map(|text| quote!(#text));
    made.unwrap_or_else(Error::into_compile_error).into()
}

/// Reads a text. An error about another literal points at the literal, even if it is passed through `$key:literal`.
fn text(input: ParseStream) -> Result<LitStr> {
    if !input.peek(Lit) {
        return input.parse();
    }
    match input.parse()? {
        Lit::Str(text) => Ok(text),
        other => refuse(other.span(), "expected string literal"),
    }
}

/// Reads `crate = path,` in front of the template of `key!`, which is the path of lock-core.
fn path_option(input: ParseStream) -> Result<Path> {
    if !(input.peek(Token![crate]) && input.peek2(Token![=])) {
        return Ok(parse_quote!(::lock_core));
    }
    input.parse::<Token![crate]>()?;
    input.parse::<Token![=]>()?;
    let path = input.call(Path::parse_mod_style)?;
    input.parse::<Token![,]>()?;
    Ok(path)
}

fn attribute(attribute: AttributeName, arguments: TokenStream, tokens: TokenStream) -> TokenStream {
    let (item, mut of_item) = Item::parse(attribute, tokens.clone());
    let names = item.as_ref().map(|item| &item.names);
    let (args, mut errors) = Args::parse(attribute, arguments, names);
    if let Some(item) = &item
        && of_item.is_empty()
    {
        errors.extend(return_type::check(item, &args).err());
        if args.finishes {
            errors.append(&mut borrowed::refused(&item.sig));
        }
    }
    errors.append(&mut of_item);
    let item = match item {
        Some(item) if errors.is_empty() => expand::locked(&args, item),
        Some(item) => expand::unlocked(&args, &item),
        None => tokens,
    };
    let errors = errors.iter().map(Error::to_compile_error);
    // The errors follow the item, so that an editor finds the item where it was.
    quote!(#item #(#errors)*)
}

#[cfg(test)]
mod tests {
    use std::{env, fs, io::Write as _, path, process};

    use super::*;

    /// The documentation of an attribute shows the expansion, and a file stores it.
    #[test]
    fn the_expansion_is_the_one_that_is_documented() {
        let expanded = expanded_as_in(
            AttributeName::DistributedLock,
            "expansion.rs",
            quote!(key = "order:{order_id}", ttl = "10s"),
            quote! {
                async fn charge(order_id: u64, card: Card) -> Result<Receipt, ApiError> {
                    provider::charge(order_id, card).await
                }
            },
        );
        documented_in("distributed_lock.md", &expanded);
        let expanded = expanded_as_in(
            AttributeName::RunOnce,
            "expansion_of_a_run.rs",
            quote!(
                key = "charge:{user.id}:{key}",
                keep = "24h",
                fingerprint = card
            ),
            quote! {
                async fn charge(user: User, key: String, card: Card) -> Result<Receipt, ApiError> {
                    provider::charge(user, card).await
                }
            },
        );
        documented_in("run_once.md", &expanded);
    }

    fn documented_in(file: &str, expanded: &str) {
        let docs = path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs");
        let docs = fs::read_to_string(docs.join(file)).expect("the docs");
        assert!(
            docs.contains(expanded),
            "docs/{file} shows a different expansion"
        );
    }

    #[test]
    fn the_expansion_of_a_list_is_the_one_on_file() {
        expanded_as_in(
            AttributeName::DistributedLock,
            "expansion_of_a_list.rs",
            quote!(key = ["account:{from}", owner(to).await?], lease = lease),
            quote! {
                async fn transfer(from: u64, to: u64) -> Result<(), ApiError> {
                    bank::transfer(from, to, lease.fencing_tokens()).await
                }
            },
        );
    }

    /// Expands the attribute, and compares the result with a file.
    fn expanded_as_in(
        name: AttributeName,
        file: &str,
        arguments: TokenStream,
        item: TokenStream,
    ) -> String {
        let expanded = attribute(name, arguments, item);
        let golden = path::Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/ui")
            .join(file);
        // The paths are shortened, since rustfmt does not format code with the long ones.
        let expanded = expanded
            .to_string()
            .replace(":: lock_core :: __private ::", "__private::");
        let expanded = formatted(&expanded.replace(":: core :: option :: Option ::", ""));
        if env::var_os("BLESS").is_some() {
            fs::write(&golden, &expanded).expect("the golden file can be written");
        }
        let expected = fs::read_to_string(golden).expect("the golden file is there");
        assert_eq!(expanded, expected, "set BLESS=1 to accept it");
        expanded
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
