//! The output: from the model to tokens. Nothing can fail here.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{Attribute, Expr, FnArg, Ident, Pat, Type, parse_quote, spanned::Spanned as _};

use crate::{
    args::{Args, Key},
    item::{Item, inferred},
    key::Template,
};

/// The first words of attributes that the compiler itself understands, so that no other macro will read the signature.
const INERT: &str = "allow warn deny forbid expect doc cfg must_use inline cold deprecated track_caller no_mangle \
                     export_name link_section target_feature ignore should_panic rustfmt clippy rustdoc diagnostic";

/// Lints are about the name that an argument has in the body.
const LINTS: &str = "allow warn deny forbid expect";

/// Everything that is known about a function and its lock.
pub(crate) struct Model<'a> {
    args: &'a Args,
    template: Option<&'a Template>,
    item: Item,
    /// The path of what the output calls.
    private: TokenStream,
    /// Of the body's value; `_` where it is not written, or cannot be.
    output: Type,
}

impl<'a> Model<'a> {
    pub(crate) fn new(args: &'a Args, template: Option<&'a Template>, item: Item) -> Self {
        let private = args
            .crate_path
            .as_ref()
            .map(|path| quote!(#path::__private));
        let private = private.unwrap_or_else(|| quote!(::lock_core::__private));
        let output = match item.output() {
            Type::Never(_) => parse_quote!(_),
            other => inferred(other),
        };
        Self {
            args,
            template,
            item,
            private,
            output,
        }
    }

    /// Writes the function as it was, after a mistake, with what keeps the mistake from causing others.
    pub(crate) fn unlocked(self) -> TokenStream {
        let (args, item, private) = (self.args, &self.item, &self.private);
        let (arguments, bound) = (&item.names.arguments, &item.names.bound);
        let (options_seen, bindings, body) = (self.options_seen(), &item.bindings, &item.body);
        let lease = args
            .lease
            .iter()
            .filter(|lease| item.names.find(lease).is_none());
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
    pub(crate) fn locked(mut self) -> TokenStream {
        if self.item.sig.asyncness.is_some() {
            self.item.bindings = rebind(&mut self.item, self.args.on_error.as_ref());
        }
        let (args, item) = (self.args, &self.item);
        let (private, output) = (&self.private, &self.output);
        let [outside, inside, value] = ["outside", "inside", "value"].map(hidden);
        let (on_error, arguments) = (self.on_error(), ["manager", "key", "options"].map(hidden));
        // By a `return` that never happens the compiler learns the type of the block's value, as from a signature.
        let typed = (!matches!(output, Type::Infer(_))).then(|| {
            quote! {
                if let ::core::option::Option::Some(#value) = #private::returns::<#output>() {
                    return #value;
                }
            }
        });
        let mut prologue = self.prologue(&arguments);
        if let Some(receiver) = &item.receiver {
            prologue = rename_self(prologue, receiver);
        }
        let options_seen = self.options_seen();
        let lease = args.lease.as_ref().map(|lease| quote!(let #lease =));
        let (capture, bindings, body) = (&item.capture, &item.bindings, &item.body);
        item.with(quote! {
            #options_seen
            let (#outside, #inside) = #private::entry();
            #private::locked(#outside, #on_error, async #capture {
                #typed
                #bindings
                #prologue
                #lease #inside.acquire(#(#arguments),*).await;
                // In parentheses: the compiler takes the braces of a short body for superfluous.
                (#body)
            })
            .await
        })
    }

    /// Builds the key and the options, each in a statement of its own: no borrow and no temporary of an expression lives
    /// on while the function waits.
    fn prologue(&self, [manager, key, options]: &[Ident; 3]) -> TokenStream {
        let (args, private) = (self.args, &self.private);
        let key_seen = self.key_seen();
        let key_value = match (self.template, &args.key) {
            (Some(template), _) => template.tokens(private),
            (None, Some(Key::Exact(expr))) => quote!(#private::exact_key(#expr)),
            (None, _) => TokenStream::new(),
        };
        let manager_value = args.locks.as_ref().map(|locks| {
            // The reference stands at the expression, so that an error does, too.
            let source = quote_spanned!(locks.span().resolved_at(Span::mixed_site())=> &#locks);
            quote!(#private::manager_of(#source))
        });
        let manager_value = manager_value.unwrap_or_else(|| quote!(#private::default_manager()));
        let setters = args.setters.iter().map(|(option, value)| {
            let setter = hidden(option);
            let prefix = (*option == "on_lost").then(|| quote!(#private::OnLost::));
            quote!(.#setter(#prefix #value))
        });
        quote! {
            #key_seen
            let #key = #key_value;
            let #manager = #manager_value;
            let #options = #private::options() #(#setters)*;
        }
    }

    /// How a failure becomes the function's value.
    fn on_error(&self) -> TokenStream {
        let (private, output) = (&self.private, &self.output);
        let error = hidden("error");
        let value = match (&self.args.on_error, self.args.skip_busy) {
            (Some(own), skip) => {
                let busy =
                    quote!(if #error.is_busy() { <#output as #private::Skipped>::skipped() } else);
                let busy = skip.then_some(busy);
                quote!(#busy { #private::convert::<#output>(#own, #error) })
            }
            (None, true) => quote!(<#output as #private::SkipOrFail>::skip_or_fail(#error)),
            (None, false) => quote!(<#output as #private::FromLockError>::from_lock_error(#error)),
        };
        quote!(|#error| #value)
    }

    /// What only an editor sees of the options: each as a documented item. It is the first statement with and without
    /// mistakes, because an editor completes a name where it finds the same text before it.
    fn options_seen(&self) -> TokenStream {
        let private = &self.private;
        let names = self.args.names.iter().filter(|name| *name != "crate");
        quote!(#private::for_editor!(#(#private::option::#names),*);)
    }

    /// What only an editor sees of the key: a format string, or its expressions.
    fn key_seen(&self) -> Option<TokenStream> {
        let (private, template) = (&self.private, self.template?);
        let literal = &template.literal;
        let seen = if template.is_format_string() {
            quote!(::core::format_args!(#literal))
        } else {
            let values = template.values();
            quote!(#(&#values),*)
        };
        Some(quote!(#private::for_editor!(#seen);))
    }
}

/// A name that nothing of the user's can have.
fn hidden(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

/// Moves every argument into the body, where it lives and dies as it would without a lock; returns the statements.
///
/// An argument with a name keeps it. A pattern is taken apart in the body, and the signature has the compiler's own name
/// for such an argument instead, unless another attribute is still to read the pattern.
fn rebind(item: &mut Item, on_error: Option<&Expr>) -> TokenStream {
    let others_read = !item.attrs.iter().all(|attr| is_one_of(attr, INERT));
    let on_error = on_error.map(ToTokens::to_token_stream).unwrap_or_default();
    let mut bindings = TokenStream::new();
    for (position, input) in item.sig.inputs.iter_mut().enumerate() {
        let typed = match input {
            FnArg::Typed(typed) => typed,
            FnArg::Receiver(receiver) => {
                let this = &receiver.self_token;
                bindings.extend(quote!(let _ = &#this;));
                continue;
            }
        };
        let unseen = typed.pat.span().resolved_at(Span::mixed_site());
        let attrs = std::mem::take(&mut typed.attrs).into_iter();
        let (lints, others) = attrs.partition::<Vec<_>, _>(|attr| is_one_of(attr, LINTS));
        let conditions = others.iter().filter(|attr| is_one_of(attr, "cfg cfg_attr"));
        let attrs = quote!(#(#conditions)* #(#lints)*);
        typed.attrs.clone_from(&others);
        let pat = typed.pat.to_token_stream();
        bindings.extend(match &mut *typed.pat {
            Pat::Ident(named) if named.by_ref.is_none() && named.subpat.is_none() => {
                let mut name = named.ident.clone();
                named.mutability = None;
                if mentions(on_error.clone(), &name) {
                    quote!(#attrs let #pat = #name; #attrs let _ = &#name;)
                } else if !name.to_string().starts_with('_') {
                    quote!(#attrs let #pat = #name;)
                } else if others_read {
                    // Clippy lets an argument be called `_x`, but not a variable that is used or has no effect.
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
fn is_one_of(attr: &Attribute, words: &str) -> bool {
    let path = attr.path().to_token_stream().to_string();
    words
        .split(' ')
        .any(|word| path.split(' ').next() == Some(word))
}

fn mentions(tokens: TokenStream, name: &Ident) -> bool {
    tokens.into_iter().any(|tree| match tree {
        TokenTree::Ident(ident) => ident == *name,
        TokenTree::Group(group) => mentions(group.stream(), name),
        _ => false,
    })
}

fn rename_self(tokens: TokenStream, receiver: &Ident) -> TokenStream {
    let rename = |tree| match tree {
        TokenTree::Ident(ident) if ident == "self" => {
            let mut renamed = receiver.clone();
            renamed.set_span(receiver.span().located_at(ident.span()));
            TokenTree::Ident(renamed)
        }
        TokenTree::Group(group) => {
            let mut renamed = Group::new(group.delimiter(), rename_self(group.stream(), receiver));
            renamed.set_span(group.span());
            TokenTree::Group(renamed)
        }
        other => other,
    };
    tokens.into_iter().map(rename).collect()
}
