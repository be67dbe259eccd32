//! The key template: from a string literal to [`Template`].

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::{Expr, Ident, LitStr, ext::IdentExt as _, parse::Parser as _};

use crate::{args::nearest, item::Names};

/// The most bytes in a key.
const LONGEST: usize = 512;

/// A key with values in it.
pub(crate) struct Template {
    pub(crate) literal: LitStr,
    parts: Vec<Part>,
}

enum Part {
    Text(String),
    /// An expression and its format spec, with its colon; empty if there is none.
    Value(TokenStream, String),
}

/// A range of bytes of the template, and what is wrong there.
type Refused = (usize, usize, String);

impl Template {
    /// Takes a template apart. `names` are those that it may use; `None` if they are not known.
    pub(crate) fn parse(literal: LitStr, names: Option<&Names>) -> syn::Result<Self> {
        let (text, at) = (literal.value(), literal.span());
        let mut scanner = Scanner {
            text: &text,
            names,
            at,
            parts: Vec::new(),
        };
        let Err((from, to, reason)) = scanner.scan() else {
            return Ok(Self {
                parts: scanner.parts,
                literal,
            });
        };
        let shown = text.replace(char::is_control, "�");
        let before = " ".repeat(text[..from].chars().count());
        let carets = "^".repeat(text[from..to].chars().count());
        let excerpt = format!("\n    {shown}\n    {before}{carets}");
        let excerpt = if carets.is_empty() { "" } else { &excerpt };
        Err(syn::Error::new(at, reason + excerpt))
    }

    /// The values' expressions.
    pub(crate) fn values(&self) -> impl Iterator<Item = &TokenStream> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Value(expr, _) => Some(expr),
        })
    }

    /// Returns whether `format_args!` reads the template the same way.
    pub(crate) fn is_format_string(&self) -> bool {
        let plain = |expr: &TokenStream| syn::parse2::<Ident>(expr.clone()).is_ok();
        self.values().all(plain) && !self.literal.value().contains("{r#")
    }

    /// Builds the key.
    pub(crate) fn tokens(&self, private: &TokenStream) -> TokenStream {
        // At the literal, so that an error is, too.
        let span = self.literal.span().resolved_at(Span::mixed_site());
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => quote!(#private::text(#text)),
            Part::Value(expr, spec) if spec.is_empty() => {
                quote_spanned!(span=> #private::value(&&#expr))
            }
            Part::Value(expr, spec) => {
                let format = LitStr::new(&format!("{{{spec}}}"), span);
                quote_spanned!(span=> #private::value(&&::core::format_args!(#format, #expr)))
            }
        });
        quote!(#private::key(&[#(#parts),*]))
    }
}

struct Scanner<'a> {
    text: &'a str,
    names: Option<&'a Names>,
    at: Span,
    parts: Vec<Part>,
}

impl Scanner<'_> {
    fn scan(&mut self) -> Result<(), Refused> {
        let (text, mut at, mut fixed) = (self.text, 0, 0);
        let whole = |reason: &str| Err((0, text.len(), reason.to_owned()));
        if text.is_empty() {
            return whole("the key is empty: say what is locked, as in `\"order:{order_id}\"`");
        }
        if let Some((at, c)) = text.char_indices().find(|(_, c)| c.is_control()) {
            let reason = format!("a key has no control characters, and this is {c:?}: write `:`");
            return Err((at, at + c.len_utf8(), reason));
        }
        while let Some(c) = text[at..].chars().next() {
            let doubled = text[at + c.len_utf8()..].starts_with(c);
            match c {
                '{' if !doubled => at = self.value(at)?,
                '}' if !doubled => {
                    let reason = "this `}` closes nothing: write `}}` for a brace in the key";
                    return Err((at, at + 1, reason.to_owned()));
                }
                _ => {
                    at += if matches!(c, '{' | '}') {
                        2
                    } else {
                        c.len_utf8()
                    };
                    fixed += c.len_utf8();
                    match self.parts.last_mut() {
                        Some(Part::Text(text)) => text.push(c),
                        _ => self.parts.push(Part::Text(c.into())),
                    }
                }
            }
        }
        if fixed == 0 {
            return whole(
                "the key has no fixed text, and says nothing of what it is: write `order:{id}`",
            );
        }
        if fixed > LONGEST {
            let reason =
                format!("the fixed text has {fixed} bytes, and a key has at most {LONGEST}");
            return Err((0, 0, reason));
        }
        Ok(())
    }

    /// Reads a value, from its brace on; returns where it ends.
    fn value(&mut self, open: usize) -> Result<usize, Refused> {
        let inner = &self.text[open + 1..];
        let Some(length) = inner
            .find(['{', '}'])
            .filter(|&at| inner[at..].starts_with('}'))
        else {
            let reason = "this `{` is never closed: write `{{` for a brace in the key";
            return Err((open, open + 1, reason.to_owned()));
        };
        let (inner, end) = (&inner[..length], open + length + 2);
        self.check_distance(open, end)?;
        // A single colon begins the spec.
        let colon = inner.replace("::", "..").find(':').unwrap_or(length);
        let (expr, spec) = inner.split_at(colon);
        check_spec(spec).map_err(|reason| (open + 1 + colon, end - 1, reason.to_owned()))?;
        let from = open + 1 + expr.len() - expr.trim_start().len();
        let expr = expr.trim();
        if expr.is_empty() {
            let reason = "an empty `{}` names no value: write a parameter, as in `{order_id}`";
            return Err((open, end, reason.to_owned()));
        }
        let tokens = self
            .expression(expr)
            .map_err(|reason| (from, from + expr.len(), reason))?;
        self.parts.push(Part::Value(tokens, spec.to_owned()));
        Ok(end)
    }

    /// Between two values stands what neither can contain, or `("ab", "c")` and `("a", "bc")` make one key.
    fn check_distance(&self, open: usize, end: usize) -> Result<(), Refused> {
        let cannot_part = |text: &str| text.chars().all(|c| c.is_alphanumeric() || c == '%');
        let (from, to, what) = match self.parts.as_slice() {
            [.., Part::Value(..)] => (open, end, "two values touch".to_owned()),
            [.., Part::Value(..), Part::Text(text)] if cannot_part(text) => (
                open - text.len(),
                open,
                format!("only `{text}` stands between two values"),
            ),
            _ => return Ok(()),
        };
        Err((
            from,
            to,
            what + ", so different ones could make the same key: put a `:` between them",
        ))
    }

    fn expression(&self, text: &str) -> Result<TokenStream, String> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(
                "values have names, not numbers: write a parameter, as in `{order_id}`".into(),
            );
        }
        let expr = match (
            syn::parse_str::<Expr>(text),
            Ident::parse_any.parse_str(text),
        ) {
            (Ok(expr), _) => {
                self.check(&expr, Place::Value)?;
                expr.into_token_stream()
            }
            // `type` alone is a keyword, and `{type}` means the argument `r#type`.
            (Err(_), Ok(word)) if self.names.is_none_or(|names| names.find(&word).is_some()) => {
                Ident::new_raw(text, word.span()).into_token_stream()
            }
            _ => {
                return Err(format!(
                    "`{text}` is not a value: write a parameter, a field or a call"
                ));
            }
        };
        Ok(self.located(expr))
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
                return call
                    .args
                    .iter()
                    .try_for_each(|one| self.check(one, Place::Argument));
            }
            (Expr::Call(call), _) => {
                self.check(&call.func, Place::Function)?;
                return call
                    .args
                    .iter()
                    .try_for_each(|one| self.check(one, Place::Argument));
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
        Err(format!(
            "{refused} cannot stand in a key template: write `key = expression` instead"
        ))
    }

    fn check_name(&self, name: Option<&Ident>) -> Result<(), String> {
        let (Some(names), Some(name)) = (self.names, name) else {
            return Ok(());
        };
        let text = name.to_string();
        // A constant is as good as an argument.
        if names.find(name).is_some() || text.starts_with(char::is_uppercase) {
            return Ok(());
        }
        let known = names.texts();
        let known: Vec<&str> = known.iter().map(String::as_str).collect();
        let advice = match nearest(&text, &known) {
            Some(name) if text != "self" => format!("did you mean `{name}`?"),
            None if !known.is_empty() => format!("there is `{}`", known.join("`, `")),
            _ => "the function has none".to_owned(),
        };
        Err(format!("no parameter is called `{text}`: {advice}"))
    }

    /// Gives tokens from the literal's text the literal's place, and the hygiene of the arguments they name.
    fn located(&self, tokens: TokenStream) -> TokenStream {
        let locate = |mut tree: TokenTree| {
            let mut span = self.at;
            if let TokenTree::Group(group) = &tree {
                tree = Group::new(group.delimiter(), self.located(group.stream())).into();
            } else if let TokenTree::Ident(ident) = &tree
                && let Some(name) = self.names.and_then(|names| names.find(ident))
            {
                span = name.span().located_at(span);
                tree = name.clone().into();
            }
            tree.set_span(span);
            tree
        };
        tokens.into_iter().map(locate).collect()
    }
}

/// Where an expression stands decides what it may be.
#[derive(Clone, Copy)]
enum Place {
    Value,
    Function,
    Argument,
}

fn check_spec(spec: &str) -> Result<(), &'static str> {
    let spec = spec.trim_start_matches(':').trim_end();
    let mut chars = spec.chars();
    // The fill character may be any.
    let filled = matches!(chars.nth(1), Some('<' | '^' | '>'));
    let rest = if filled { chars.as_str() } else { spec };
    if rest.ends_with('?') {
        return Err(
            "`Debug` output may change with any release, and the key with it: use `Display`",
        );
    }
    if rest.ends_with('p') {
        return Err("an address differs in every process, and so would the key");
    }
    if rest.contains('$') || rest.contains(".*") {
        return Err("a width or precision in a key is a plain number");
    }
    Ok(())
}
