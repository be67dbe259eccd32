//! The parser for the template of a key.

use std::ops::Range;

use proc_macro2::{Span, TokenStream};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::{Expr, Ident, LitStr, Token, ext::IdentExt as _, punctuated::Punctuated};

use crate::{
    bounds::LONGEST_KEY,
    diagnostics::{nearest, refuse},
    item::{Names, renamed},
};

/// A parsed template.
pub(crate) struct Template {
    pub(crate) parts: Vec<Part>,
    /// The expressions in the braces.
    pub(crate) values: Vec<TokenStream>,
}

/// A part of a key.
pub(crate) enum Part {
    /// Fixed text.
    Text(String),
    Value {
        value: TokenStream,
        /// The spec, with its colon. Empty if there is none.
        spec: String,
        at: Span,
    },
}

impl Part {
    /// Returns the call that makes the part.
    pub(crate) fn tokens(&self, private: &TokenStream) -> TokenStream {
        let (value, spec, at) = match self {
            Self::Text(text) => return quote!(#private::text(#text)),
            Self::Value { value, spec, at } => (value, spec, *at),
        };
        if spec.is_empty() {
            return quote_spanned!(at=> #private::value(&&#value));
        }
        let format = LitStr::new(&format!("{{{spec}}}"), at);
        // A value has the same bound with and without a spec, so that the compiler suggests a missing bound only once.
        let value = if spec.ends_with(char::is_alphabetic) {
            value.clone()
        } else {
            quote_spanned!(at=> #private::formatted(&&#value))
        };
        quote_spanned!(at=> #private::value(&&::core::format_args!(#format, #value)))
    }
}

impl Template {
    /// Reads a template. `names` are the names that it may use, or `None` if they are not known.
    pub(crate) fn parse(literal: &LitStr, names: Option<&Names>) -> syn::Result<Self> {
        let mut scanner = Scanner {
            text: &literal.value(),
            at: literal.span(),
            names,
            pending: String::new(),
            parts: Vec::new(),
            values: Vec::new(),
        };
        scanner.scan()?;
        let Scanner { parts, values, .. } = scanner;
        Ok(Self { parts, values })
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: Span,
    names: Option<&'a Names>,
    /// The fixed text after the last value.
    pending: String,
    parts: Vec<Part>,
    values: Vec<TokenStream>,
}

impl Scanner<'_> {
    fn scan(&mut self) -> syn::Result<()> {
        let (text, mut at, mut fixed) = (self.text, 0, 0);
        if text.is_empty() {
            let reason = "the key is empty: name what is locked, as in `\"order:{order_id}\"`";
            return self.refuse(0..0, reason);
        }
        if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_control()) {
            let reason =
                format!("a key must not contain control characters, but this is {c:?}: write `:`");
            return self.refuse(at..at + c.len_utf8(), &reason);
        }
        while let Some(c) = text[at..].chars().next() {
            at += c.len_utf8();
            match c {
                '{' | '}' if text[at..].starts_with(c) => at += 1,
                '{' => {
                    at = self.value(at - 1)?;
                    continue;
                }
                '}' => {
                    let reason = "this `}` closes nothing: write `}}` for a brace in the key";
                    return self.refuse(at - 1..at, reason);
                }
                _ => {}
            }
            fixed += c.len_utf8();
            self.pending.push(c);
        }
        self.end_of_text();
        if fixed == 0 {
            let reason =
                "the key has no fixed text, so it does not say what is locked: write `order:{id}`";
            return self.refuse(0..text.len(), reason);
        }
        if fixed > LONGEST_KEY {
            let reason = format!(
                "the fixed text has {fixed} bytes, but a key may have at most {LONGEST_KEY}"
            );
            return self.refuse(0..0, &reason);
        }
        Ok(())
    }

    /// Reads a value, starting at its brace, and returns where it ends.
    fn value(&mut self, open: usize) -> syn::Result<usize> {
        let inner = &self.text[open + 1..];
        let length = inner.find(['{', '}']).unwrap_or(inner.len());
        if !inner[length..].starts_with('}') {
            let reason = "this `{` is never closed: write `{{` for a brace in the key";
            return self.refuse(open..open + 1, reason);
        }
        let (inner, end) = (&inner[..length], open + length + 2);
        self.check_distance(open, end)?;
        // A single colon begins the spec.
        let colon = inner.replace("::", "..").find(':').unwrap_or(length);
        let (expr, spec) = inner.split_at(colon);
        check_spec(spec).or_else(|reason| self.refuse(open + 1 + colon..end - 1, &reason))?;
        let from = open + 1 + expr.len() - expr.trim_start().len();
        let expr = expr.trim();
        if expr.is_empty() {
            let reason = "an empty `{}` names no value: write a parameter, as in `{order_id}`";
            return self.refuse(open..end, reason);
        }
        let value = self.expression(expr);
        let value = value.or_else(|reason| self.refuse(from..from + expr.len(), &reason))?;
        self.end_of_text();
        self.parts.push(Part::Value {
            value: value.clone(),
            spec: spec.to_owned(),
            // The span is that of the literal, so that an error points there.
            at: self.at.resolved_at(Span::mixed_site()),
        });
        self.values.push(value);
        Ok(end)
    }

    fn end_of_text(&mut self) {
        let text = std::mem::take(&mut self.pending);
        if !text.is_empty() {
            self.parts.push(Part::Text(text));
        }
    }

    /// Two values need fixed text between them that neither can contain. Otherwise `("ab", "c")` and `("a", "bc")` would make
    /// one key.
    fn check_distance(&self, open: usize, end: usize) -> syn::Result<()> {
        let between = &self.pending;
        let parts = |c: char| !c.is_alphanumeric() && c != '%';
        if self.values.is_empty() || between.contains(parts) {
            return Ok(());
        }
        let why = "so different ones could make the same key: put a `:` between them";
        if between.is_empty() {
            return self.refuse(open..end, &format!("two values touch, {why}"));
        }
        let reason = format!("only `{between}` separates two values, {why}");
        self.refuse(open - between.len()..open, &reason)
    }

    fn expression(&self, text: &str) -> Result<TokenStream, String> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            let reason = "values have names, not numbers: write a parameter, as in `{order_id}`";
            return Err(reason.to_owned());
        }
        let literal = LitStr::new(text, self.at);
        let expr = literal.parse().or_else(|_| {
            // `type` alone is a keyword, and `{type}` means the argument `r#type`.
            let word = literal.parse_with(Ident::parse_any)?;
            syn::parse2(Ident::new_raw(text, word.span()).into_token_stream())
        });
        let Ok(expr) = expr else {
            let reason = "is not a value: write a parameter, a field or a call";
            return Err(format!("`{text}` {reason}"));
        };
        self.check(&expr, Place::Value)?;
        Ok(renamed(expr.into_token_stream(), &|name, is_member| {
            if !is_member {
                return self.names?.find(name).cloned();
            }
            // All fields and methods have the span of the whole template. Without a mark as generated, a compiler that knows a
            // better name would offer to replace the whole template with it.
            let mut marked = name.clone();
            marked.set_span(name.span().resolved_at(Span::mixed_site()));
            Some(marked)
        }))
    }

    fn check(&self, expr: &Expr, place: Place) -> Result<(), String> {
        let refused = match (expr, place) {
            (Expr::Path(path), Place::Value) => return self.check_name(path.path.get_ident()),
            (Expr::Path(_), _) | (Expr::Lit(_), Place::Argument) => return Ok(()),
            (Expr::Field(field), _) => return self.check(&field.base, Place::Value),
            (Expr::Index(index), _) => {
                self.check(&index.expr, Place::Value)?;
                return self.check(&index.index, Place::Argument);
            }
            (Expr::MethodCall(call), _) => {
                self.check(&call.receiver, Place::Value)?;
                return self.check_arguments(&call.args);
            }
            (Expr::Call(call), _) => {
                self.check(&call.func, Place::Function)?;
                return self.check_arguments(&call.args);
            }
            (Expr::Paren(paren), _) => return self.check(&paren.expr, place),
            (Expr::Reference(borrow), Place::Argument) => return self.check(&borrow.expr, place),
            (Expr::Lit(_), _) => {
                return Err("a literal needs no braces: write it as fixed text".into());
            }
            (Expr::Try(_), _) => "`?`",
            (Expr::Await(_), _) => "`.await`",
            (Expr::Macro(_), _) => "a macro",
            (Expr::Binary(_) | Expr::Unary(_) | Expr::Range(_) | Expr::Cast(_), _) => "an operator",
            _ => "more than a parameter, a path, a field, an index or a call",
        };
        let reason = "cannot be used in a key template: write `key = expression` instead";
        Err(format!("{refused} {reason}"))
    }

    fn check_arguments(&self, arguments: &Punctuated<Expr, Token![,]>) -> Result<(), String> {
        let mut arguments = arguments.iter();
        arguments.try_for_each(|one| self.check(one, Place::Argument))
    }

    fn check_name(&self, name: Option<&Ident>) -> Result<(), String> {
        let (Some(names), Some(name)) = (self.names, name) else {
            return Ok(());
        };
        let text = name.unraw().to_string();
        // A constant may be used instead of an argument.
        if names.find(name).is_some() || text.starts_with(char::is_uppercase) {
            return Ok(());
        }
        let known = names.texts();
        let advice = match nearest(&text, &known) {
            Some(name) if text != "self" => format!("did you mean `{name}`?"),
            None if known.iter().any(|name| name.starts_with("__arg")) => {
                "another attribute has renamed some: put `#[distributed_lock]` above it".to_owned()
            }
            None if !known.is_empty() => format!("the function has `{}`", known.join("`, `")),
            _ => "the function has none".to_owned(),
        };
        Err(format!("no parameter is called `{text}`: {advice}"))
    }

    /// Reports an error in a range of the text's bytes, and shows them.
    fn refuse<T>(&self, wrong: Range<usize>, reason: &str) -> syn::Result<T> {
        if wrong.is_empty() {
            return refuse(self.at, reason);
        }
        let shown = self.text.replace(char::is_control, "�");
        let before = " ".repeat(self.text[..wrong.start].chars().count());
        let carets = "^".repeat(self.text[wrong].chars().count());
        let reason = format!("{reason}\n    {shown}\n    {before}{carets}");
        refuse(self.at, reason)
    }
}

/// The position of an expression, which determines its allowed forms.
#[derive(Clone, Copy)]
enum Place {
    Value,
    Function,
    Argument,
}

fn check_spec(spec: &str) -> Result<(), String> {
    let spec = spec.trim_start_matches(':').trim_end();
    let mut chars = spec.chars();
    // Any character may be the fill.
    let filled = matches!(chars.nth(1), Some('<' | '^' | '>'));
    let rest = if filled { chars.as_str() } else { spec };
    let reason = if rest.ends_with('?') {
        "`Debug` output may change with any release, and the key with it: use `Display`"
    } else if rest.ends_with('p') {
        "an address differs in every process, and so would the key"
    } else if rest.contains('$') || rest.contains(".*") {
        "a width or precision in a key must be a plain number"
    } else if !has_format_trait(rest) {
        return Err(format!(
            "unknown format `{spec}`: a width, a precision and `x`, `X`, `o`, `b`, `e` or `E` may follow the colon, as in \
             `{{id:08x}}`"
        ));
    } else {
        return Ok(());
    };
    Err(reason.to_owned())
}

/// Returns `true` if the compiler knows a format spec, which is passed without its fill. The compiler itself would report an
/// unknown spec at a wrong place, since it takes the template for the format string.
fn has_format_trait(rest: &str) -> bool {
    let rest = rest.trim_start_matches(['<', '^', '>']);
    let rest = rest.strip_prefix(['+', '-']).unwrap_or(rest);
    let rest = rest.strip_prefix('#').unwrap_or(rest);
    let digit = |c: char| c.is_ascii_digit();
    let rest = rest.trim_start_matches(digit);
    let precise = rest.strip_prefix('.').map(|rest| {
        let after = rest.trim_start_matches(digit);
        (after.len() < rest.len()).then_some(after)
    });
    let ty = precise.unwrap_or(Some(rest));
    matches!(ty, Some("" | "x" | "X" | "o" | "b" | "e" | "E"))
}
