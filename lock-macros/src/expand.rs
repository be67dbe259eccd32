//! The output: from the model to tokens. Nothing can fail here.

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens as _, format_ident, quote, quote_spanned};
use syn::{Attribute, Expr, FnArg, Ident, Pat, Stmt, Type, spanned::Spanned as _};

use crate::{
    args::{Args, Key},
    item::{Item, Names, Shape, async_block, inferred, is_opaque},
    key::Template,
};

/// Attributes that the compiler itself understands: no other macro will read the signature.
const INERT: [&str; 22] = [
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

/// Lints are about the binding, which moves into the body, and so do they.
const LINTS: [&str; 5] = ["allow", "warn", "deny", "forbid", "expect"];

/// Everything that is known about the function and its lock.
pub(crate) struct Model {
    pub(crate) args: Args,
    pub(crate) item: Item,
    pub(crate) template: Option<Template>,
}

impl Model {
    /// Writes the function with its lock.
    pub(crate) fn expand(self) -> TokenStream {
        let Self {
            args,
            item,
            template,
        } = self;
        let private = private(&args);
        let locked = Locked {
            private: &private,
            args: &args,
            template: template.as_ref(),
            output: item.output(),
        };
        let Item {
            attrs,
            vis,
            mut sig,
            inner_attrs,
            shape,
            ..
        } = item;
        let body = match shape {
            Shape::Async { body } => {
                let bindings = rebind(&attrs, &mut sig.inputs);
                let call = locked.call(&quote!(#(#bindings)*), None, &body, Some(&quote!(move)));
                quote!({ #(#inner_attrs)* #call })
            }
            Shape::Block {
                mut block,
                bindings,
                body,
                receiver,
            } => {
                if let Some(hole) = async_block(&mut block) {
                    let body = quote!({ #(#body)* });
                    let capture = hole.capture.to_token_stream();
                    let call = locked.call(
                        &quote!(#(#bindings)*),
                        receiver.as_ref(),
                        &body,
                        Some(&capture),
                    );
                    hole.block.stmts = vec![Stmt::Expr(Expr::Verbatim(call), None)];
                }
                let stmts = block.stmts;
                quote!({ #(#inner_attrs)* #(#stmts)* })
            }
        };
        quote!(#(#attrs)* #vis #sig #body)
    }
}

/// The path of the runtime's private half.
fn private(args: &Args) -> TokenStream {
    match &args.crate_path {
        Some(path) => quote!(#path::__private),
        None => quote!(::lock_core::__private),
    }
}

struct Locked<'a> {
    private: &'a TokenStream,
    args: &'a Args,
    template: Option<&'a Template>,
    output: Option<Type>,
}

impl Locked<'_> {
    fn call(
        &self,
        bindings: &TokenStream,
        receiver: Option<&Ident>,
        body: &TokenStream,
        capture: Option<&TokenStream>,
    ) -> TokenStream {
        let private = self.private;
        let entry = Ident::new("entry", Span::mixed_site());
        let on_error = self.on_error();
        let return_type = self.return_type();
        let acquire = self.acquire(&entry, receiver);
        quote! {
            let #entry = #private::Entry::new();
            #private::locked(
                ::core::clone::Clone::clone(&#entry),
                #on_error,
                async #capture {
                    #return_type
                    #bindings
                    #acquire
                    // In parentheses: the compiler takes the braces of a short body for superfluous.
                    (#body)
                },
            )
            .await
        }
    }

    /// How a failure becomes the function's value.
    fn on_error(&self) -> TokenStream {
        let private = self.private;
        let output = self.output_tokens();
        let error = Ident::new("error", Span::mixed_site());
        let own = self
            .args
            .on_error
            .as_ref()
            .map(|convert| quote!(#private::convert::<#output>(#convert, #error)));
        let value = match (own, self.args.skip_busy) {
            (Some(own), true) => {
                quote!(if #error.is_busy() { <#output as #private::Skipped>::skipped() } else { #own })
            }
            (Some(own), false) => own,
            (None, true) => quote!(<#output as #private::SkipOrFail>::skip_or_fail(#error)),
            (None, false) => quote!(<#output as #private::FromLockError>::from_lock_error(#error)),
        };
        quote!(|#error| #value)
    }

    fn output_tokens(&self) -> TokenStream {
        let written = self
            .output
            .clone()
            .filter(|output| !matches!(output, Type::Never(_)));
        written
            .map(inferred)
            .map_or_else(|| quote!(_), |output| quote!(#output))
    }

    /// Tells the compiler the type of the body's value, as a signature would. Never returns anything.
    fn return_type(&self) -> Option<TokenStream> {
        let output = self
            .output
            .clone()
            .filter(|output| !is_opaque(output) && !matches!(output, Type::Never(_)))?;
        let (output, private) = (inferred(output), self.private);
        let value = Ident::new("value", Span::mixed_site());
        Some(quote! {
            if let ::core::option::Option::Some(#value) = #private::returns::<#output>() {
                return #value;
            }
        })
    }

    /// Builds the key and the options and waits for the lock. Each in a statement of its own, so that no borrow and no
    /// temporary of an expression lives on while the function waits.
    fn acquire(&self, entry: &Ident, receiver: Option<&Ident>) -> TokenStream {
        let Self { private, args, .. } = self;
        let named = |name: &str| Ident::new(name, Span::mixed_site());
        let (key, manager, options) = (named("key"), named("manager"), named("options"));
        let key_value = match (&args.key, self.template) {
            (_, Some(template)) => template.tokens(private),
            (Some(Key::Exact(expr)), None) => quote!(#private::exact_key(#expr)),
            (_, None) => TokenStream::new(),
        };
        let manager_value = match &args.locks {
            // The reference is at the expression, so that an error is, too.
            Some(locks) => {
                let source = quote_spanned!(own(locks.span())=> &#locks);
                quote!(#private::manager_of(#source))
            }
            None => quote!(#private::default_manager()),
        };
        let options_value = self.options();
        let bind = args.lease.as_ref().map(|lease| quote!(let #lease =));
        let editor = editor(args, self.template, private);
        let prologue = quote! {
            #editor
            let #key = #key_value;
            let #manager = #manager_value;
            let #options = #options_value;
        };
        let prologue = match receiver {
            Some(receiver) => renamed_self(prologue, receiver),
            None => prologue,
        };
        quote!(#prologue #bind #entry.acquire(#manager, #key, #options).await;)
    }

    fn options(&self) -> TokenStream {
        let Self { private, args, .. } = self;
        let mut options = quote!(#private::options());
        let durations = [
            ("ttl", &args.ttl),
            ("wait", &args.wait),
            ("max_hold", &args.max_hold),
            ("min_hold", &args.min_hold),
        ];
        for (name, value) in durations {
            if let Some(value) = value {
                let setter = Ident::new(name, Span::mixed_site());
                options.extend(quote!(.#setter(#value)));
            }
        }
        if args.without_renewal {
            options.extend(quote!(.without_renewal()));
        }
        if args.continue_when_lost {
            options.extend(quote!(.on_lost(#private::OnLost::Continue)));
        }
        options
    }
}

/// Moves every argument into the body, where it lives and dies as it would without a lock; returns the statements that do.
///
/// An argument with a name keeps it. A pattern is taken apart in the body, and the compiler's own name for such an argument
/// stands in the signature, unless another attribute is still to read the pattern.
fn rebind(
    attrs: &[Attribute],
    inputs: &mut syn::punctuated::Punctuated<FnArg, syn::Token![,]>,
) -> Vec<TokenStream> {
    let keep_patterns = !attrs.iter().all(is_inert);
    let mut bindings = Vec::new();
    for (position, input) in inputs.iter_mut().enumerate() {
        let typed = match input {
            FnArg::Typed(typed) => typed,
            FnArg::Receiver(receiver) => {
                let this = &receiver.self_token;
                bindings.push(quote!(let _ = &#this;));
                continue;
            }
        };
        let mut hidden = false;
        let name = match &mut *typed.pat {
            Pat::Ident(pat) if pat.by_ref.is_none() && pat.subpat.is_none() => {
                let mut name = pat.ident.clone();
                hidden = name.to_string().starts_with('_');
                if hidden && !keep_patterns {
                    name.set_span(own(name.span()));
                }
                name
            }
            _ if keep_patterns => continue,
            pat => format_ident!("__arg{position}", span = own(pat.span())),
        };
        let (lints, others): (Vec<_>, Vec<_>) = typed
            .attrs
            .drain(..)
            .partition(|attr| LINTS.iter().any(|lint| attr.path().is_ident(lint)));
        let conditions = others
            .iter()
            .filter(|attr| attr.path().is_ident("cfg") || attr.path().is_ident("cfg_attr"));
        let pat = std::mem::replace(&mut *typed.pat, syn::parse_quote!(#name));
        // Clippy lets an argument be called `_x`, but not a variable that is used or has no effect.
        let value = if hidden {
            quote!(::core::convert::identity(#name))
        } else {
            quote!(#name)
        };
        let allow =
            (hidden && keep_patterns).then(|| quote!(#[allow(clippy::used_underscore_binding)]));
        bindings.push(quote!(#(#conditions)* #allow #(#lints)* let #pat = #value;));
        typed.attrs = others;
    }
    bindings
}

/// Keeps the place and hides the name: nothing of the user's has it.
fn own(span: Span) -> Span {
    span.resolved_at(Span::mixed_site())
}

fn is_inert(attr: &Attribute) -> bool {
    attr.path()
        .segments
        .first()
        .is_some_and(|first| INERT.iter().any(|inert| first.ident == inert))
}

fn renamed_self(tokens: TokenStream, receiver: &Ident) -> TokenStream {
    tokens
        .into_iter()
        .map(|tree| match tree {
            TokenTree::Ident(ident) if ident == "self" => {
                let mut renamed = receiver.clone();
                renamed.set_span(receiver.span().located_at(ident.span()));
                TokenTree::Ident(renamed)
            }
            TokenTree::Group(group) => {
                let mut renamed = proc_macro2::Group::new(
                    group.delimiter(),
                    renamed_self(group.stream(), receiver),
                );
                renamed.set_span(group.span());
                TokenTree::Group(renamed)
            }
            other => other,
        })
        .collect()
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

/// The function as it was, after a mistake: with everything that keeps the mistake from causing others.
pub(crate) fn unlocked(args: &Args, item: Item, names: &Names) -> TokenStream {
    let private = private(args);
    let editor = editor(args, None, &private);
    let lease = args
        .lease
        .iter()
        .filter(|lease| names.find(lease).is_none());
    let (arguments, bound) = (&names.arguments, &names.bound);
    let used = quote!(#(let _ = &#arguments;)*);
    let prologue = quote!(#editor #(let _ = &#bound;)* #(let #lease = #private::lease();)*);
    let Item {
        attrs,
        vis,
        sig,
        inner_attrs,
        shape,
    } = item;
    let body = match shape {
        Shape::Async { body } => quote!(#used #prologue (#body)),
        Shape::Block {
            mut block,
            bindings,
            body,
            ..
        } => {
            if let Some(hole) = async_block(&mut block) {
                let stmts = quote!(#used #(#bindings)* #prologue ({ #(#body)* }));
                hole.block.stmts = vec![Stmt::Expr(Expr::Verbatim(stmts), None)];
            }
            let stmts = block.stmts;
            quote!(#(#stmts)*)
        }
    };
    quote!(#(#attrs)* #vis #sig { #(#inner_attrs)* #body })
}
