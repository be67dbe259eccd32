//! The names that an expression uses, as far as its tokens show.

use std::collections::HashSet;

use proc_macro2::{Literal, TokenStream, TokenTree};
use quote::ToTokens as _;
use syn::{
    Expr, ExprPath, Ident, LitStr, Macro, PatIdent,
    ext::IdentExt as _,
    visit::{self, Visit},
};

/// The names of variables that an expression may use and does not bind itself.
#[derive(Default)]
pub(crate) struct Mentions {
    used: HashSet<String>,
    bound: HashSet<String>,
}

impl Mentions {
    pub(crate) fn of(expr: &Expr) -> Self {
        let mut mentions = Self::default();
        mentions.visit_expr(expr);
        mentions
    }

    /// Returns `true` if the expression may use the variable. `false` if the expression itself binds a variable of that name.
    pub(crate) fn has(&self, name: &Ident) -> bool {
        let name = name.unraw().to_string();
        self.used.contains(&name) && !self.bound.contains(&name)
    }

    /// Reads the arguments of a macro. A name after a dot is a field or a method.
    fn read(&mut self, tokens: TokenStream) {
        let mut follows_dot = false;
        for tree in tokens {
            let is_member = std::mem::replace(&mut follows_dot, false);
            match tree {
                TokenTree::Punct(punct) => follows_dot = punct.as_char() == '.',
                TokenTree::Ident(name) if !is_member => {
                    self.used.insert(name.unraw().to_string());
                }
                TokenTree::Ident(_) => {}
                TokenTree::Group(group) => self.read(group.stream()),
                TokenTree::Literal(literal) => self.used.extend(captured(&literal)),
            }
        }
    }
}

impl<'ast> Visit<'ast> for Mentions {
    fn visit_expr_path(&mut self, path: &'ast ExprPath) {
        if let Some(name) = path.path.get_ident() {
            self.used.insert(name.unraw().to_string());
        }
        visit::visit_expr_path(self, path);
    }

    fn visit_pat_ident(&mut self, pat: &'ast PatIdent) {
        self.bound.insert(pat.ident.unraw().to_string());
        visit::visit_pat_ident(self, pat);
    }

    fn visit_macro(&mut self, found: &'ast Macro) {
        self.read(found.tokens.clone());
    }
}

/// Returns the words in the braces of a text. Each may be a value, or the width or precision of one.
fn captured(literal: &Literal) -> impl Iterator<Item = String> + use<> {
    let text: Option<LitStr> = syn::parse2(literal.to_token_stream()).ok();
    let text = text.map(|text| text.value()).unwrap_or_default();
    let in_braces = text.split('{').skip(1);
    let in_braces = in_braces.filter_map(|part| part.split_once('}'));
    let words: Vec<_> = in_braces
        .flat_map(|(inner, _)| inner.split(|c: char| !c.is_alphanumeric() && c != '_'))
        .map(str::to_owned)
        .collect();
    words.into_iter()
}

#[cfg(test)]
mod tests {
    use syn::parse_quote;

    use super::*;

    #[test]
    fn names_are_found_where_they_are_variables() {
        let mentions = |expr: Expr, name: Ident| Mentions::of(&expr).has(&name);
        for expr in [
            parse_quote!(|e| f(id, e)),
            parse_quote!(|e| Err(format!("{id}: {e}"))),
            parse_quote!(|e| Err(format!("{e:id$}"))),
            parse_quote!(|e| Err(format!("{}: {e}", order[id]))),
            parse_quote!(|e| id.report(e)),
            parse_quote!(|e| Failed { id, e }),
        ] {
            assert!(mentions(expr, parse_quote!(id)));
        }
        for expr in [
            parse_quote!(|id| Err(id)),
            parse_quote!(|e| e.id()),
            parse_quote!(|e| e.id),
            parse_quote!(|e| Failed { id: 3, e }),
            parse_quote!(|e| format!("id {}", e.id)),
            parse_quote!(ids::id),
            parse_quote!(|e| {
                let id = e.key();
                f(id)
            }),
        ] {
            assert!(!mentions(expr, parse_quote!(id)));
        }
        assert!(mentions(
            parse_quote!(|e| format!("{type}")),
            parse_quote!(r#type)
        ));
    }
}
