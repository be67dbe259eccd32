//! The key, or several, parsed from the option's value into [`Keys`].

use std::collections::HashMap;

use proc_macro2::TokenStream;
use quote::{ToTokens as _, quote};
use syn::{Error, Expr, ExprArray, Ident, LitStr};

use crate::{
    diagnostics::{all, refuse},
    item::Names,
    key::template::{Part, Template},
};

mod template;

/// The key or keys to lock.
pub(crate) enum Keys {
    One(Key),
    List(Vec<Key>),
}

impl Keys {
    /// Reads the option's value. `names` are the names that it may use, or `None` if they are not known.
    pub(crate) fn parse(value: Expr, names: Option<&Names>) -> syn::Result<Self> {
        match value {
            Expr::Array(list) => Self::list(list, names),
            other => Key::parse(other, names).map(Self::One),
        }
    }

    /// Reads a list, and reports the mistakes of each key in it.
    fn list(list: ExprArray, names: Option<&Names>) -> syn::Result<Self> {
        if list.elems.is_empty() {
            let reason =
                "the list has no keys: name what is locked, as in `[\"from:{from}\", \"to:{to}\"]`";
            return Err(Error::new_spanned(list, reason));
        }
        let mut templates = Vec::new();
        let each = list.elems.into_iter().map(ungrouped);
        let mut keys = all(each.map(|value| Key::parse_another(value, names, &mut templates)))?;
        report_values_once(&mut keys);
        Ok(Self::List(keys))
    }
}

/// Gives a value that is in several keys of a list the position of its first use, so that the compiler reports a missing bound
/// once.
fn report_values_once(keys: &mut [Key]) {
    let mut first = HashMap::new();
    for key in keys {
        let Key::Template { parts, .. } = key else {
            continue;
        };
        for part in parts {
            if let Part::Value { value, at, .. } = part {
                let known = first.entry(value.to_string());
                (*value, *at) = known.or_insert((value.clone(), *at)).clone();
            }
        }
    }
}

/// Removes the invisible group around a literal that is passed through `$key:literal` or `$key:expr`.
pub(crate) fn ungrouped(mut value: Expr) -> Expr {
    while let Expr::Group(group) = value {
        value = *group.expr;
    }
    value
}

/// One key, as the call that builds it.
pub(crate) enum Key {
    Template {
        /// The template as it was written.
        text: String,
        parts: Vec<Part>,
        /// The tokens for an editor only.
        seen: TokenStream,
    },
    /// Any other expression, which is the key itself.
    Exact(Expr),
}

impl Key {
    fn parse(value: Expr, names: Option<&Names>) -> syn::Result<Self> {
        if let Ok(literal) = syn::parse2(value.to_token_stream()) {
            return Self::template(&literal, names);
        }
        let reason = match value {
            Expr::Lit(_) => {
                "a key must be text: write `key = \"order:42\"`, or an expression that is one"
            }
            Expr::Array(_) => "a list of keys must not contain lists: write all keys in one list",
            Expr::Repeat(_) => {
                "a list names its keys one by one: write `[\"from:{from}\", \"to:{to}\"]`"
            }
            _ => return Ok(Self::Exact(value)),
        };
        Err(Error::new_spanned(value, reason))
    }

    /// Reads a key that must differ from the others in its list.
    fn parse_another(
        value: Expr,
        names: Option<&Names>,
        templates: &mut Vec<String>,
    ) -> syn::Result<Self> {
        if let Ok(literal) = syn::parse2::<LitStr>(value.to_token_stream()) {
            let template = literal.value();
            if templates.contains(&template) {
                let reason =
                    "this key is already in the list: write the other one, or leave it out";
                return refuse(literal.span(), reason);
            }
            templates.push(template);
        }
        Self::parse(value, names)
    }

    /// Parses a template.
    pub(crate) fn template(literal: &LitStr, names: Option<&Names>) -> syn::Result<Self> {
        let Template { parts, values } = Template::parse(literal, names)?;
        // An editor sees a format string if `format_args!` reads the template the same way, and otherwise the expressions.
        let plain = |expr: &TokenStream| syn::parse2::<Ident>(expr.clone()).is_ok();
        let seen = if values.iter().all(plain) && !literal.value().contains("{r#") {
            quote!(::core::format_args!(#literal))
        } else {
            quote!(#(&#values),*)
        };
        Ok(Self::Template {
            text: literal.value(),
            parts,
            seen,
        })
    }

    /// Builds the key.
    pub(crate) fn tokens(&self, private: &TokenStream) -> TokenStream {
        match self {
            Self::Template { text, parts, .. } => {
                let parts = parts.iter().map(|part| part.tokens(private));
                quote!(#private::key(const { &#private::Template::new(#text) }, &[#(#parts),*]))
            }
            Self::Exact(expr) => quote!(#private::exact_key(#expr)),
        }
    }

    /// Returns the additional tokens for an editor only.
    pub(crate) fn seen(&self) -> Option<&TokenStream> {
        match self {
            Self::Template { seen, .. } => Some(seen),
            Self::Exact(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use proc_macro2::Span;
    use proptest::prelude::*;
    use syn::{Expr, parse_quote};

    use super::*;

    proptest! {
        /// Each template is parsed, or refused with a reason in one error. The parts are calls that a compiler can read.
        #[test]
        fn any_template_is_parsed_or_refused(text in r#"([{}:.\[\]()?*$<>#"' ]|::|\{\{|\}\}|r#|id|order|[a-z0-9é]){0,40}"#) {
            let literal = LitStr::new(&text, Span::call_site());
            match Key::template(&literal, None) {
                Ok(key) => {
                    let call = key.tokens(&parse_quote!(::lock_core::__private));
                    let read = syn::parse2::<Expr>(call);
                    prop_assert!(read.is_ok(), "{text:?}: {:?}", read.err());
                }
                Err(error) => prop_assert!(!error.to_string().is_empty()),
            }
        }

        /// Fixed text is taken as it is, with its braces doubled.
        #[test]
        fn text_without_values_is_itself(text in "[a-z:{}/ é]{1,40}") {
            let escaped = text.replace('{', "{{").replace('}', "}}");
            let literal = LitStr::new(&escaped, Span::call_site());
            let Ok(Key::Template { parts, .. }) = Key::template(&literal, None) else {
                return Err(TestCaseError::fail(format!("{escaped:?} is refused")));
            };
            let [Part::Text(only)] = &parts[..] else {
                return Err(TestCaseError::fail(format!("{escaped:?} has more than text")));
            };
            prop_assert_eq!(only, &text);
        }
    }
}
