//! Generating the output from the model. Nothing can fail here.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::{Expr, Ident, Type, parse_quote, spanned::Spanned as _};

use crate::{
    args::{Args, mode::Modes, option_names::AttributeName},
    item::{
        Item, inferred,
        parameters::rebind,
        renamed,
        return_type::{Answer, JsonInResult, answer_in_result, is_response_in_result, is_result},
    },
    key::{Key, Keys},
};

/// Writes the function without a lock, after a mistake. Additional statements prevent the mistake from causing further errors.
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
    let mut copies = TokenStream::new();
    if item.sig.asyncness.is_some() {
        let arguments = rebind(&mut item, args.on_error.as_ref());
        item.bindings = arguments.bindings;
        copies = arguments.copies;
    }
    let private = &args.private;
    let written = item.output();
    // With `on_busy = skip`, the value that means "skipped" has the body's own type.
    let answer = Answer::of(&written).filter(|_| !args.skip_busy);
    // The type of the body's value, or `_` if the type is not written, or cannot be.
    let output = match &written {
        Type::Never(_) => parse_quote!(_),
        other => inferred(other.clone()),
    };
    let [outside, inside, value] = ["outside", "inside", "value"].map(local);
    let options_seen = options_seen(args);
    let mut on_error = match &answer {
        Some(answer) => on_error_answers(args, answer),
        None => on_error(args, &output),
    };
    let typed = typed(args, &output, &value);
    let acquire_and_run = acquire_and_run(args, &item, &inside);
    let (capture, bindings) = (&item.capture, &item.bindings);
    let statements = quote!(#typed #bindings #acquire_and_run);
    // The span is that of the body, so that an error about everything that the body captures points there.
    let at = item.braces.resolved_at(Span::mixed_site());
    let mut function = quote_spanned!(at=> async #capture { #statements });
    let in_result = answer_in_result(&written).filter(|_| !args.skip_busy);
    if let Some(answer) = answer.as_ref().or(in_result.as_ref()) {
        // The inner block contains all `return`s of the body, and has one type, like the function without the lock.
        let answered = match in_result {
            Some(_) => answered_in_result(args, answer, &value),
            None => answered(args, answer, &value),
        };
        function = quote!(async #capture { let #value = #function.await; #answered });
    }
    let (lock, error) = (local("lock"), local("error"));
    let is_once = args.attribute == AttributeName::RunOnce;
    let in_result = is_once && is_response_in_result(&written);
    if in_result {
        function = quote!(async #capture { #private::InResult(#function.await) });
        on_error = quote!(|#error| #private::InResult((#on_error)(#error)));
    }
    // The value is stored without the framework's `Json` around it, which is added again for every caller.
    let json = JsonInResult::of(&written).filter(|_| is_once);
    if let Some(JsonInResult { json, .. }) = &json {
        let taken_out = quote!(map(|#json(#value)| #value));
        function = quote!(async #capture { #function.await.#taken_out });
        on_error = quote!(|#error| (#on_error)(#error).#taken_out);
    }
    // Only the compiler knows whether the type is a response, because an alias may hide it.
    let is_known = !matches!(output, Type::Infer(_)) || answer.is_some();
    let is_sent = is_known && !is_unit(&output);
    let then = if is_sent && !is_once {
        quote!(|#value, #lock| #private::sent_by(&#value).finish(#value, #lock))
    } else {
        quote!(#private::release_now)
    };
    let call = hidden(if args.finishes { "finishing" } else { "locked" });
    // Written with `return`, as clippy's `implicit_return` requires, except after a value that never arrives, where it would be
    // unreachable.
    let returned = (!matches!(written, Type::Never(_))).then(|| quote!(return));
    let kept = json.as_ref().map(|json| inferred(json.plain.clone()));
    let mut stored = stored(args, kept.as_ref().unwrap_or(&output), in_result);
    if is_once && args.on_error.is_none() && answer.is_none() && !is_result(&written) {
        let both = local("both");
        copies.extend(quote!(let #both = #private::remembered_or_failed::<#output>();));
        (stored, on_error) = (quote!(#both.0), quote!(#both.1));
    }
    let unwrapped = match &json {
        Some(JsonInResult { json, .. }) => Some(quote!(.map(#json))),
        None => in_result.then(|| quote!(.0)),
    };
    item.with(quote! {
        #options_seen
        let (#outside, #inside) = #private::entry();
        #copies
        #returned #private::#call(#outside, #stored, #function, #on_error, #then).await #unwrapped
    })
}

/// Writes the argument that says whether the value is stored for later calls, and proves to the compiler that it can be.
fn stored(args: &Args, output: &Type, in_result: bool) -> TokenStream {
    let private = &args.private;
    match args.attribute {
        AttributeName::DistributedLock => quote!(()),
        AttributeName::RunOnce if in_result => {
            quote!(#private::remembered::<#private::InResult<_, _>>())
        }
        AttributeName::RunOnce => quote!(#private::remembered::<#output>()),
    }
}

/// Writes the call that waits for the lease, followed by the body.
fn acquire_and_run(args: &Args, item: &Item, inside: &Ident) -> TokenStream {
    let arguments = ["manager", "key", "options"].map(local);
    let mut prologue = prologue(args, &arguments);
    if let Some(receiver) = &item.receiver {
        prologue = renamed(prologue, &|name, _| {
            (name == "self").then(|| receiver.clone())
        });
    }
    let lease = args.lease.as_ref().map(|lease| quote!(let #lease =));
    let acquire = hidden(match (args.attribute, &args.key) {
        (AttributeName::RunOnce, _) => "acquire_once",
        (AttributeName::DistributedLock, Some(Ok(Keys::List(_)))) => "acquire_all",
        (AttributeName::DistributedLock, _) => "acquire",
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

/// Like [`answered`], inside a `Result`.
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

/// Writes a statement for an editor only, with each option as a documented item. With or without mistakes, it is the first
/// statement, because an editor completes a name only where it finds the same text before it.
fn options_seen(args: &Args) -> TokenStream {
    let private = &args.private;
    let names = args.names.iter().filter(|name| *name != "crate");
    quote!(#private::for_editor!(#(#private::option::#names),*);)
}

/// Builds the key and the options, each in a separate statement, so that no borrow or temporary of an expression lives on while the
/// function waits.
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
        let value = match *option {
            "on_lost" => quote!(#private::OnLost::#value),
            // Converts from any integer type.
            "permits" => quote!(#private::permits(#value)),
            _ => value.clone(),
        };
        quote!(.#setter(#value))
    });
    let made = if let Some(keep) = &args.keep {
        quote!(OnceOptions::keep(#keep))
    } else if args.awaits_release {
        quote!(options_awaited())
    } else {
        quote!(options())
    };
    quote! {
        #(#keys)*
        let #manager = #private::#manager_value;
        let #options = #private::#made #(#setters)*;
    }
}

/// Writes the head of a closure that replaces the user's expression, from its first token to its last, so that an error about
/// its captures points at the expression.
fn closure_at(own: &Expr, argument: &Ident) -> TokenStream {
    let tokens: Vec<_> = own.to_token_stream().into_iter().collect();
    let end = |token: Option<&TokenTree>| {
        let span = token.map_or_else(Span::call_site, TokenTree::span);
        quote_spanned!(span.resolved_at(Span::mixed_site())=> |)
    };
    let (first, last) = (end(tokens.first()), end(tokens.last()));
    quote!(#first #argument #last)
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
            let in_modes = names.iter().enumerate().map(|(n, key)| {
                match modes.and_then(|modes| modes.of(n)) {
                    Some(mode) => {
                        let in_mode = hidden(mode.text());
                        quote!(#private::#in_mode(#key))
                    }
                    None => key.to_token_stream(),
                }
            });
            quote!(#(#each)* let #name = [#(#in_modes),*];)
        }
    }
}

/// Writes the conversion from a failure to the function's value. A closure is avoided where possible, because clippy warns
/// about a closure with a large error, but not about an `async fn`.
fn on_error(args: &Args, output: &Type) -> TokenStream {
    let (private, error) = (&args.private, local("error"));
    match (&args.on_error, args.skip_busy) {
        (Some(own), skip) => {
            let busy =
                quote!(if #error.is_busy() { <#output as #private::Skipped>::skipped() } else);
            let busy = skip.then_some(busy);
            let head = closure_at(own, &error);
            quote!(#head #busy { #private::convert::<#output>(#own, #error) })
        }
        (None, true) => quote!(<#output as #private::SkipOrFail>::__conversion()),
        (None, false) => quote!(<#output as #private::FromLockError>::__conversion()),
    }
}

/// Returns the name of a variable, with underscores. Hygiene separates it from the user's variables, but not from a constant of
/// that name in a pattern, nor from the unit struct that a framework makes of a handler called `key` or `options`.
fn local(name: &str) -> Ident {
    hidden(&format!("__{name}"))
}

/// Returns a name that no variable of the user can have.
fn hidden(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}
