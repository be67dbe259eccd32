//! The output: from the model to tokens. Nothing can fail here.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{Attribute, Expr, FnArg, Ident, Pat, Type, parse_quote, spanned::Spanned as _};

use crate::{
    args::Args,
    item::{Item, inferred, is_one_of, renamed},
    key::{Key, Keys},
    mode::{Mode, Modes},
    output::{Answer, answer_in_result},
};

/// The first words of attributes that the compiler itself understands. If there are no other attributes, no other macro reads the
/// signature.
const INERT: &[&str] = &[
    "allow",
    "warn",
    "deny",
    "forbid",
    "expect",
    "doc",
    "cfg",
    "must_use",
    "inline",
    "cold",
    "deprecated",
    "track_caller",
    "no_mangle",
    "export_name",
    "link_section",
    "target_feature",
    "ignore",
    "should_panic",
    "rustfmt",
    "clippy",
    "rustdoc",
    "diagnostic",
];

/// The attributes of lints. They move with an argument into the body, since lints are about its name there.
const LINTS: &[&str] = &["allow", "warn", "deny", "forbid", "expect"];

/// Writes the function without a lock, after a mistake. Further statements keep the mistake from causing other errors.
pub(crate) fn unlocked(args: &Args, item: &Item) -> TokenStream {
    let (private, lease) = (&args.private, args.lease.iter());
    let (arguments, bound) = (&item.names.arguments, &item.names.bound);
    let (options_seen, bindings, body) = (options_seen(args), &item.bindings, &item.body);
    item.with(quote! {
        #options_seen
        #(let _ = &#arguments;)*
        #bindings
        #(let _ = &#bound;)*
        #(let #lease = #private::lease();)*
        (#body)
    })
}

/// Writes the function with its lock.
pub(crate) fn locked(args: &Args, mut item: Item) -> TokenStream {
    if item.sig.asyncness.is_some() {
        item.bindings = rebind(&mut item, args.on_error.as_ref());
    }
    let private = &args.private;
    let written = item.output();
    // With `on_busy = skip`, the value that means "skipped" has the body's own type.
    let answer = Answer::of(&written).filter(|_| !args.skip_busy);
    // The type of the body's value; `_` if the type is not written, or cannot be.
    let output = match &written {
        Type::Never(_) => parse_quote!(_),
        other => inferred(other.clone()),
    };
    let [outside, inside, value] = ["outside", "inside", "value"].map(local);
    let options_seen = options_seen(args);
    let on_error = match &answer {
        Some(answer) => on_error_answers(args, answer),
        None => on_error(args, &output),
    };
    let typed = typed(args, &output, &value);
    let acquire_and_run = acquire_and_run(args, &item, &inside);
    let (capture, bindings) = (&item.capture, &item.bindings);
    let statements = quote!(#typed #bindings #acquire_and_run);
    // The span is that of the body, so that an error about all captures of the body points there.
    let at = item.braces.resolved_at(Span::mixed_site());
    let mut function = quote_spanned!(at=> async #capture { #statements });
    let in_result = answer_in_result(&written).filter(|_| !args.skip_busy);
    if let Some(answer) = answer.as_ref().or(in_result.as_ref()) {
        // The inner block has all `return`s of the body, and one type, like the function without the lock.
        let answered = match in_result {
            Some(_) => answered_in_result(args, answer, &value),
            None => answered(args, answer, &value),
        };
        function = quote!(async #capture { let #value = #function.await; #answered });
    }
    let lock = local("lock");
    // Only the compiler knows whether the type is a response, which an alias may hide.
    let is_known = !matches!(output, Type::Infer(_)) || answer.is_some();
    let call = if is_known && !is_unit(&output) {
        let finish = quote!(|#value, #lock| #private::sent_by(&#value).finish(#value, #lock));
        quote!(locked_until_sent(#outside, #on_error, #function, #finish))
    } else {
        quote!(locked(#outside, #on_error, #function))
    };
    item.with(quote! {
        #options_seen
        let (#outside, #inside) = #private::entry();
        #private::#call.await
    })
}

/// Writes the call that waits for the lease, and the body behind it.
fn acquire_and_run(args: &Args, item: &Item, inside: &Ident) -> TokenStream {
    let arguments = ["manager", "key", "options"].map(local);
    let mut prologue = prologue(args, &arguments);
    if let Some(receiver) = &item.receiver {
        prologue = renamed(prologue, &|name| (name == "self").then_some(receiver));
    }
    let lease = args.lease.as_ref().map(|lease| quote!(let #lease =));
    let acquire = hidden(match &args.key {
        Some(Ok(Keys::List(_))) => "acquire_all",
        _ => "acquire",
    });
    let body = &item.body;
    quote! {
        #prologue
        #lease #inside.#acquire(#(#arguments),*).await;
        // Without the parentheses, the compiler warns that the braces of a short body are superfluous.
        (#body)
    }
}

fn is_unit(ty: &Type) -> bool {
    matches!(ty, Type::Tuple(tuple) if tuple.elems.is_empty())
}

/// Writes a `return` that never runs. It tells the compiler the type of the block's value, as a signature would.
fn typed(args: &Args, output: &Type, value: &Ident) -> Option<TokenStream> {
    let private = &args.private;
    (!matches!(output, Type::Infer(_))).then(|| {
        quote! {
            if let ::core::option::Option::Some(#value) = #private::returns::<#output>() {
                return #value;
            }
        }
    })
}

/// Writes the conversion from the body's value to the value that the function returns as the `impl Trait` of a web framework.
fn answered(args: &Args, answer: &Answer<'_>, value: &Ident) -> TokenStream {
    let private = &args.private;
    // The span is that of the trait, so that the compiler points there if the value does not implement it.
    let at = answer.span().resolved_at(Span::mixed_site());
    let mut value = value.clone();
    value.set_span(at);
    match answer {
        Answer::IntoResponse(path) => quote_spanned!(at=> <_ as #path>::into_response(#value)),
        Answer::Responder(_) => quote_spanned!(at=> #private::responder(#value)),
    }
}

/// The same inside a `Result`.
fn answered_in_result(args: &Args, answer: &Answer<'_>, value: &Ident) -> TokenStream {
    let private = &args.private;
    let answered = match answer {
        Answer::IntoResponse(_) => answered(args, answer, value),
        Answer::Responder(_) => quote!(#private::responder_in_result(#value)),
    };
    quote!(#value.map(|#value| #answered))
}

/// Writes the conversion from a failure to such a value.
fn on_error_answers(args: &Args, answer: &Answer<'_>) -> TokenStream {
    let (private, error) = (&args.private, local("error"));
    let at = answer.span().resolved_at(Span::mixed_site());
    let value = match (&args.on_error, answer) {
        (Some(own), Answer::IntoResponse(path)) => {
            quote!(<_ as #path>::into_response(#private::convert::<_>(#own, #error)))
        }
        (Some(own), Answer::Responder(_)) => {
            quote!(#private::responder_on_error(#private::convert::<_>(#own, #error)))
        }
        (None, Answer::IntoResponse(_)) => {
            quote_spanned!(at=> <_ as #private::Answer>::answer(#error))
        }
        (None, Answer::Responder(_)) => {
            quote_spanned!(at=> <_ as #private::ActixAnswer>::answer(#error))
        }
    };
    quote!(|#error| #value)
}

/// Writes a statement for an editor only, with each option as a documented item. It is the first statement with and without
/// mistakes, because an editor completes a name where it finds the same text before it.
fn options_seen(args: &Args) -> TokenStream {
    let private = &args.private;
    let names = args.names.iter().filter(|name| *name != "crate");
    quote!(#private::for_editor!(#(#private::option::#names),*);)
}

/// Builds the key and the options, each in a statement of its own. So no borrow and no temporary of an expression lives on
/// while the function waits.
fn prologue(args: &Args, [manager, key, options]: &[Ident; 3]) -> TokenStream {
    let private = &args.private;
    let keys = args.key.iter().flatten();
    let keys = keys.map(|keys| bind_keys(keys, args.modes.as_ref(), key, private));
    let manager_value = if let Some(locks) = &args.locks {
        // The reference has the span of the expression, so that an error points there.
        let source = quote_spanned!(locks.span().resolved_at(Span::mixed_site())=> &#locks);
        quote!(manager_of(#source))
    } else {
        quote!(default_manager())
    };
    let setters = args.setters.iter().map(|(option, value)| {
        let setter = hidden(option);
        let prefix = (*option == "on_lost").then(|| quote!(#private::OnLost::));
        quote!(.#setter(#prefix #value))
    });
    quote! {
        #(#keys)*
        let #manager = #private::#manager_value;
        let #options = #private::options() #(#setters)*;
    }
}

/// Builds the key, or a list of them.
fn bind_keys(
    keys: &Keys,
    modes: Option<&Modes>,
    name: &Ident,
    private: &TokenStream,
) -> TokenStream {
    let bind = |key: &Key, name: &Ident| {
        let seen = key.seen().map(|seen| quote!(#private::for_editor!(#seen);));
        let value = key.tokens(private);
        quote!(#seen let #name = #value;)
    };
    match keys {
        Keys::One(key) => bind(key, name),
        Keys::List(keys) => {
            let names: Vec<_> = (1..=keys.len())
                .map(|n| local(&format!("key{n}")))
                .collect();
            let each = keys.iter().zip(&names).map(|(key, name)| bind(key, name));
            let modes = (0..keys.len()).map(|n| modes.and_then(|modes| modes.of(n)));
            let in_mode = modes.map(|mode| hidden(mode.map_or("exact_key", Mode::text)));
            quote!(#(#each)* let #name = [#(#private::#in_mode(#names)),*];)
        }
    }
}

/// Writes the conversion from a failure to the function's value. A closure is avoided where possible: clippy warns of a closure
/// with a large error, and not of an `async fn`.
fn on_error(args: &Args, output: &Type) -> TokenStream {
    let (private, error) = (&args.private, local("error"));
    match (&args.on_error, args.skip_busy) {
        (Some(own), skip) => {
            let busy =
                quote!(if #error.is_busy() { <#output as #private::Skipped>::skipped() } else);
            let busy = skip.then_some(busy);
            quote!(|#error| #busy { #private::convert::<#output>(#own, #error) })
        }
        (None, true) => quote!(<#output as #private::SkipOrFail>::__conversion()),
        (None, false) => quote!(<#output as #private::FromLockError>::__conversion()),
    }
}

/// The name of a variable, with underscores. Hygiene separates it from the user's variables, but not from a constant of that name
/// in a pattern. Nor does it separate it from the unit struct that a framework makes of a handler called `key` or `options`.
fn local(name: &str) -> Ident {
    hidden(&format!("__{name}"))
}

/// A name that no variable of the user's can have.
fn hidden(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// Moves every argument into the body, where it is dropped as it would be without a lock; returns the statements.
///
/// An argument with a name keeps it. A pattern is taken apart in the body, and the signature has a name like `__arg0` instead, as
/// the compiler's own. If another attribute has still to read the pattern, the signature keeps it.
fn rebind(item: &mut Item, on_error: Option<&Expr>) -> TokenStream {
    let others_read = !item.attrs.iter().all(|attr| begins(attr, INERT));
    // An argument may be used only in the key of another lock below this one.
    let below = item.attrs.iter().filter(|attr| is_a_lock(attr));
    let below: String = below
        .map(|attr| attr.to_token_stream().to_string())
        .collect();
    let on_error = on_error.map(ToTokens::to_token_stream).unwrap_or_default();
    let this = item.sig.receiver().map(|this| this.self_token).into_iter();
    let mut bindings = quote!(#(let _ = &#this;)*);
    for (position, input) in item.sig.inputs.iter_mut().enumerate() {
        let FnArg::Typed(typed) = input else {
            continue;
        };
        let unseen = typed.pat.span().resolved_at(Span::mixed_site());
        let attrs = &typed.attrs;
        let conditions = attrs
            .iter()
            .filter(|attr| begins(attr, &["cfg", "cfg_attr"]));
        let lints = attrs.iter().filter(|attr| begins(attr, LINTS));
        let attrs = quote!(#(#conditions)* #(#lints)*);
        typed.attrs.retain(|attr| !begins(attr, LINTS));
        let pat = typed.pat.to_token_stream();
        bindings.extend(match &mut *typed.pat {
            Pat::Ident(named) if named.by_ref.is_none() && named.subpat.is_none() => {
                let mut name = named.ident.clone();
                named.mutability = None;
                if mentions(on_error.clone(), &name) || has_word(&below, &name.to_string()) {
                    quote!(#attrs let #pat = #name; #attrs let _ = &#name;)
                } else if !name.to_string().starts_with('_') {
                    quote!(#attrs let #pat = #name;)
                } else if others_read {
                    // Clippy accepts the name `_x` for an argument, but not for a variable that is used or has no effect.
                    quote!(#[allow(clippy::used_underscore_binding)] #attrs let #pat = ::core::convert::identity(#name);)
                } else {
                    name.set_span(unseen);
                    named.ident = name.clone();
                    quote!(#attrs let #pat = ::core::convert::identity(#name);)
                }
            }
            _ if others_read => continue,
            other => {
                let name = format_ident!("__arg{position}", span = unseen);
                *other = parse_quote!(#name);
                quote!(#attrs let #name = #name; #attrs let #pat = #name;)
            }
        });
    }
    bindings
}

/// Whether the first word of an attribute is one of these.
fn begins(attr: &Attribute, words: &[&str]) -> bool {
    let first = attr.path().segments.first();
    first.is_some_and(|first| is_one_of(&first.ident, words))
}

fn is_a_lock(attr: &Attribute) -> bool {
    let last = attr.path().segments.last();
    last.is_some_and(|last| last.ident == "distributed_lock")
}

fn has_word(text: &str, word: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|other| other == word)
}

fn mentions(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|tree| match tree {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => mentions(group.stream(), name),
        _ => false,
    })
}
