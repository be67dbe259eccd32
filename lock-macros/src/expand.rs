//! The output: from the model to tokens. Nothing can fail here.

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens, format_ident, quote, quote_spanned};
use syn::{Attribute, Expr, FnArg, Ident, Pat, Stmt, Type, parse_quote, spanned::Spanned as _};

use crate::{
    args::{Args, Key},
    item::{Head, Item, Names, Shape, async_block, inferred},
    key::Template,
};

/// The first words of attributes that the compiler itself understands, so that no other macro will read the signature.
const INERT: &str = "allow warn deny forbid expect doc cfg must_use inline cold deprecated track_caller no_mangle \
                     export_name link_section target_feature ignore should_panic rustfmt clippy rustdoc diagnostic";

/// Lints are about the name that an argument has in the body.
const LINTS: &str = "allow warn deny forbid expect";

/// Everything that is known about a function and its lock.
pub(crate) struct Model<'a> {
    pub(crate) args: &'a Args,
    pub(crate) template: Option<&'a Template>,
    pub(crate) names: &'a Names,
    pub(crate) item: Item,
}

impl Model<'_> {
    /// Writes the function with its lock.
    pub(crate) fn locked(self) -> TokenStream {
        let output = self
            .item
            .output()
            .filter(|output| !matches!(output, Type::Never(_)));
        let lock = Lock {
            private: private(self.args),
            args: self.args,
            template: self.template,
            output: output.map_or_else(|| parse_quote!(_), inferred),
        };
        let Item { mut head, shape } = self.item;
        let statements = match shape {
            Shape::Async(body) => {
                let bindings = rebind(&mut head, self.args.on_error.as_ref());
                lock.call(&quote!(move), &quote!(#(#bindings)*), None, &body)
            }
            Shape::Block {
                block,
                bindings,
                body,
                receiver,
            } => fill(block, |capture| {
                lock.call(
                    capture,
                    &quote!(#(#bindings)*),
                    receiver.as_ref(),
                    &quote!({ #(#body)* }),
                )
            }),
        };
        head.with(&statements)
    }

    /// Writes the function as it was, after a mistake, with what keeps the mistake from causing others.
    pub(crate) fn unlocked(self) -> TokenStream {
        let private = private(self.args);
        let editor = editor(self.args, None, &private);
        let Names {
            arguments, bound, ..
        } = self.names;
        let lease = self
            .args
            .lease
            .iter()
            .filter(|lease| self.names.find(lease).is_none());
        let used = quote!(#(let _ = &#arguments;)*);
        let prologue = quote!(#editor #(let _ = &#bound;)* #(let #lease = #private::lease();)*);
        let Item { head, shape } = self.item;
        let statements = match shape {
            Shape::Async(body) => quote!(#used #prologue (#body)),
            Shape::Block {
                block,
                bindings,
                body,
                ..
            } => fill(
                block,
                |_| quote!(#used #(#bindings)* #prologue ({ #(#body)* })),
            ),
        };
        head.with(&statements)
    }
}

/// Writes statements into the `async` block that a function returns.
fn fill(
    mut block: syn::Block,
    statements: impl FnOnce(&TokenStream) -> TokenStream,
) -> TokenStream {
    if let Some(hole) = async_block(&mut block) {
        let tokens = statements(&hole.capture.to_token_stream());
        hole.block.stmts = vec![Stmt::Expr(Expr::Verbatim(tokens), None)];
    }
    let stmts = block.stmts;
    quote!(#(#stmts)*)
}

/// The path of what the output calls.
fn private(args: &Args) -> TokenStream {
    match &args.crate_path {
        Some(path) => quote!(#path::__private),
        None => quote!(::lock_core::__private),
    }
}

/// What only an editor sees: each option as a documented item, and the key as a format string or as its expressions.
fn editor(args: &Args, template: Option<&Template>, private: &TokenStream) -> TokenStream {
    let names = args.names.iter().filter(|name| *name != "crate");
    let key = match template {
        Some(template) if template.is_format_string() => {
            let literal = &template.literal;
            quote!(let _ = ::core::format_args!(#literal);)
        }
        Some(template) => template
            .values()
            .map(|value| quote!(let _ = &#value;))
            .collect(),
        None => TokenStream::new(),
    };
    quote!(#private::for_editor! { #(let _ = #private::option::#names;)* #key })
}

/// A name that nothing of the user's can have.
fn hidden(name: &str) -> Ident {
    Ident::new(name, Span::mixed_site())
}

struct Lock<'a> {
    private: TokenStream,
    args: &'a Args,
    template: Option<&'a Template>,
    /// `_` where it is not written, or cannot be.
    output: Type,
}

impl Lock<'_> {
    fn call(
        &self,
        capture: &TokenStream,
        bindings: &TokenStream,
        receiver: Option<&Ident>,
        body: &TokenStream,
    ) -> TokenStream {
        let Self {
            private, output, ..
        } = self;
        let (entry, value) = (hidden("entry"), hidden("value"));
        let (key, manager, options) = (hidden("key"), hidden("manager"), hidden("options"));
        let on_error = self.on_error();
        // By a `return` that never happens the compiler learns the type of the block's value, as from a signature.
        let typed = (!matches!(output, Type::Infer(_))).then(|| {
            quote! {
                if let ::core::option::Option::Some(#value) = #private::returns::<#output>() {
                    return #value;
                }
            }
        });
        let mut prologue = self.prologue();
        if let Some(receiver) = receiver {
            prologue = rename_self(prologue, receiver);
        }
        let lease = self.args.lease.as_ref().map(|lease| quote!(let #lease =));
        quote! {
            let #entry = #private::Entry::new();
            #private::locked(::core::clone::Clone::clone(&#entry), #on_error, async #capture {
                #typed
                #bindings
                #prologue
                #lease #entry.acquire(#manager, #key, #options).await;
                // In parentheses: the compiler takes the braces of a short body for superfluous.
                (#body)
            })
            .await
        }
    }

    /// Builds the key and the options, each in a statement of its own: no borrow and no temporary of an expression lives
    /// on while the function waits.
    fn prologue(&self) -> TokenStream {
        let Self {
            private,
            args,
            template,
            ..
        } = self;
        let (key, manager, options) = (hidden("key"), hidden("manager"), hidden("options"));
        let editor = editor(args, *template, private);
        let key_value = match (template, &args.key) {
            (Some(template), _) => template.tokens(private),
            (None, Some(Key::Exact(expr))) => quote!(#private::exact_key(#expr)),
            (None, _) => TokenStream::new(),
        };
        let manager_value = match &args.locks {
            // The reference stands at the expression, so that an error does, too.
            Some(locks) => {
                let source = quote_spanned!(locks.span().resolved_at(Span::mixed_site())=> &#locks);
                quote!(#private::manager_of(#source))
            }
            None => quote!(#private::default_manager()),
        };
        let setters = args.options.iter().map(|(option, value)| {
            let setter = hidden(option);
            let prefix = (*option == "on_lost").then(|| quote!(#private::OnLost::));
            quote!(.#setter(#prefix #value))
        });
        quote! {
            #editor
            let #key = #key_value;
            let #manager = #manager_value;
            let #options = #private::options() #(#setters)*;
        }
    }

    /// How a failure becomes the function's value.
    fn on_error(&self) -> TokenStream {
        let Self {
            private,
            output,
            args,
            ..
        } = self;
        let error = hidden("error");
        let own = args
            .on_error
            .as_ref()
            .map(|convert| quote!(#private::convert::<#output>(#convert, #error)));
        let value = match (own, args.skip_busy) {
            (Some(own), true) => {
                quote!(if #error.is_busy() { <#output as #private::Skipped>::skipped() } else { #own })
            }
            (Some(own), false) => own,
            (None, true) => quote!(<#output as #private::SkipOrFail>::skip_or_fail(#error)),
            (None, false) => quote!(<#output as #private::FromLockError>::from_lock_error(#error)),
        };
        quote!(|#error| #value)
    }
}

/// Moves every argument into the body, where it lives and dies as it would without a lock; returns the statements.
///
/// An argument with a name keeps it. A pattern is taken apart in the body, and the signature has the compiler's own name
/// for such an argument instead, unless another attribute is still to read the pattern.
fn rebind(head: &mut Head, on_error: Option<&Expr>) -> Vec<TokenStream> {
    let others_read = !head.attrs.iter().all(|attr| is_one_of(attr, INERT));
    let on_error = on_error.map(ToTokens::to_token_stream).unwrap_or_default();
    let mut bindings = Vec::new();
    for (position, input) in head.sig.inputs.iter_mut().enumerate() {
        let typed = match input {
            FnArg::Typed(typed) => typed,
            FnArg::Receiver(receiver) => {
                let this = &receiver.self_token;
                bindings.push(quote!(let _ = &#this;));
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
        bindings.push(match &mut *typed.pat {
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
    let first = attr
        .path()
        .segments
        .first()
        .map(|first| first.ident.to_string());
    first.is_some_and(|first| words.split(' ').any(|word| first == word))
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
