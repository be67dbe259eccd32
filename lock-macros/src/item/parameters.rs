//! The arguments of the annotated function: moving them into the body, and making some of them visible to `on_error`.

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, format_ident, quote};
use syn::{
    Attribute, Expr, FieldPat, FnArg, Ident, Pat, parse_quote,
    spanned::Spanned as _,
    visit_mut::{self, VisitMut},
};

use crate::item::{Item, binds, is_one_of, mentions::Mentions};

/// The first words of attributes that the compiler itself understands. If there are no other attributes, no other macro reads
/// the signature.
const INERT: &str = "allow warn deny forbid expect doc cfg must_use inline cold deprecated \
     track_caller no_mangle export_name link_section target_feature ignore should_panic rustfmt clippy rustdoc diagnostic";

/// The attributes of lints. They move with an argument into the body, since lints are about its name there.
const LINTS: &str = "allow warn deny forbid expect";

/// The statements that move the arguments to where they are used.
#[derive(Default)]
pub(crate) struct Arguments {
    /// At the top of the body.
    pub(crate) bindings: TokenStream,
    /// Before the call: copies of the names in patterns that `on_error` uses.
    pub(crate) copies: TokenStream,
}

/// Moves every argument into the body, where it is dropped as it would be without a lock.
///
/// An argument with a name keeps it. A pattern is destructured in the body, and the signature has a name like `__arg0` instead,
/// as the compiler itself does. If another attribute still has to read the pattern, the signature keeps it.
pub(crate) fn rebind(item: &mut Item, on_error: Option<&Expr>) -> Arguments {
    let others_read = !item.attrs.iter().all(|attr| begins(attr, INERT));
    // An argument may be used only in the key of another lock below this one.
    let below = item.attrs.iter().filter(|attr| is_a_lock(attr));
    let below: String = below
        .map(|attr| attr.to_token_stream().to_string())
        .collect();
    let variables = on_error.map(Mentions::of).unwrap_or_default();
    let this = item.sig.receiver().map(|this| this.self_token).into_iter();
    let mut all = Arguments {
        bindings: quote!(#(let _ = &#this;)*),
        ..Arguments::default()
    };
    for (position, input) in item.sig.inputs.iter_mut().enumerate() {
        let FnArg::Typed(typed) = input else {
            continue;
        };
        let unseen = typed.pat.span().resolved_at(Span::mixed_site());
        let (conditions, attrs) = attributes_of_a_variable(&mut typed.attrs);
        let pat = typed.pat.to_token_stream();
        all.bindings.extend(match &mut *typed.pat {
            Pat::Ident(named) if named.by_ref.is_none() && named.subpat.is_none() => {
                let name = named.ident.clone();
                named.mutability = None;
                let in_on_error = variables.has(&name);
                if name.to_string().starts_with('_') {
                    if !in_on_error {
                        named.ident.set_span(underscored(&name, others_read));
                    }
                    let name = &named.ident;
                    quote!(#attrs let #pat = ::core::convert::identity(#name);)
                } else {
                    let is_used = in_on_error || has_word(&below, &name.to_string());
                    let used = is_used.then(|| quote!(#attrs let _ = &#name;));
                    quote!(#attrs #[allow(clippy::shadow_same)] let #pat = #name; #used)
                }
            }
            _ if others_read => continue,
            other => {
                let name = format_ident!("__arg{position}", span = unseen);
                let (copies, used) = copies(other.clone(), &name, &attrs, &variables);
                if !used.is_empty() {
                    all.copies.extend(copies);
                    // An error about a name that cannot be copied then points at the argument.
                    all.copies.extend(quote!(#conditions let #name = #name;));
                }
                *other = parse_quote!(#name);
                // The copies have the same names.
                let allow = (!used.is_empty()).then(|| quote!(#[allow(clippy::shadow_unrelated)]));
                quote!(#attrs let #name = #name; #attrs #allow let #pat = #name; #used)
            }
        });
    }
    all
}

/// Returns the attributes that a variable in the place of an argument needs: its conditions, and these together with its lints.
/// The lints are removed from the argument.
fn attributes_of_a_variable(of_argument: &mut Vec<Attribute>) -> (TokenStream, TokenStream) {
    let conditions = of_argument
        .iter()
        .filter(|attr| begins(attr, "cfg cfg_attr"));
    let conditions = quote!(#(#conditions)*);
    let lints = of_argument.iter().filter(|attr| begins(attr, LINTS));
    let attrs = quote!(#conditions #(#lints)*);
    of_argument.retain(|attr| !begins(attr, LINTS));
    (conditions, attrs)
}

/// Returns the span of an argument `_x` that only the body uses. Clippy accepts such a name for an argument, but not for a
/// variable that is used, unless a macro has written it. An `allow` would not work, because it is an error in a crate that
/// forbids the lint.
fn underscored(name: &Ident, others_read: bool) -> Span {
    if others_read {
        // Visible to the user's code, and to the output of other attributes.
        name.span().resolved_at(Span::call_site())
    } else {
        name.span().resolved_at(Span::mixed_site())
    }
}

/// Copies the names of a pattern that `on_error` uses, before the argument is moved into the body. Also returns statements that
/// count as a use of them in the body.
fn copies(
    mut pattern: Pat,
    argument: &Ident,
    attrs: &TokenStream,
    on_error: &Mentions,
) -> (TokenStream, TokenStream) {
    let mut kept = KeepUsed {
        on_error,
        names: Vec::new(),
    };
    kept.visit_pat_mut(&mut pattern);
    let names = kept.names;
    let used = quote!(#(#attrs let _ = &#names;)*);
    // Nothing is moved out of the argument if the copied parts are `Copy`.
    (quote!(#attrs let #pattern = #argument; #used), used)
}

/// Writes `_` for each name of a pattern that `on_error` does not use.
struct KeepUsed<'a> {
    on_error: &'a Mentions,
    names: Vec<Ident>,
}

impl VisitMut for KeepUsed<'_> {
    fn visit_pat_mut(&mut self, pat: &mut Pat) {
        match pat {
            Pat::Ident(named) if !binds(named) => {}
            Pat::Ident(named) if self.on_error.has(&named.ident) => {
                named.mutability = None;
                self.names.push(named.ident.clone());
                visit_mut::visit_pat_ident_mut(self, named);
            }
            Pat::Ident(named) => {
                let below = named.subpat.take().map(|(_, below)| *below);
                *pat = below.unwrap_or_else(|| parse_quote!(_));
                self.visit_pat_mut(pat);
            }
            other => visit_mut::visit_pat_mut(self, other),
        }
    }

    fn visit_field_pat_mut(&mut self, field: &mut FieldPat) {
        self.visit_pat_mut(&mut field.pat);
        if !matches!(*field.pat, Pat::Ident(_)) {
            // `Order { id, .. }` becomes `Order { id: _, .. }`.
            field.colon_token.get_or_insert_with(Default::default);
        }
    }
}

/// Returns `true` if the first word of an attribute is one of these.
fn begins(attr: &Attribute, words: &str) -> bool {
    let first = attr.path().segments.first();
    first.is_some_and(|first| is_one_of(&first.ident, words))
}

fn is_a_lock(attr: &Attribute) -> bool {
    let last = attr.path().segments.last();
    last.is_some_and(|last| is_one_of(&last.ident, "distributed_lock run_once"))
}

fn has_word(text: &str, word: &str) -> bool {
    let mut words = text.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.any(|other| other == word)
}
