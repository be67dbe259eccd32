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

/// What is wrong with a template, and where: a range of bytes of its text.
struct Refused {
    at: (usize, usize),
    reason: String,
}

fn refuse<T>(at: (usize, usize), reason: impl Into<String>) -> Result<T, Refused> {
    Err(Refused {
        at,
        reason: reason.into(),
    })
}

impl Template {
    /// Takes a template apart. `names` are the names that it may use; `None` if they are not known.
    pub(crate) fn parse(literal: LitStr, names: Option<&Names>) -> syn::Result<Self> {
        let text = literal.value();
        let span = literal.span();
        let mut scanner = Scanner {
            text: &text,
            at: 0,
            span,
            names,
            parts: Vec::new(),
        };
        match scanner.scan() {
            Ok(()) => Ok(Self {
                parts: scanner.parts,
                literal,
            }),
            Err(refused) => Err(syn::Error::new(span, refused.shown_in(&text))),
        }
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

impl Refused {
    /// Adds the text, with a caret below what the message is about.
    fn shown_in(&self, text: &str) -> String {
        let Self {
            at: (from, to),
            reason,
        } = self;
        let shown = text.replace(char::is_control, "�");
        let before = " ".repeat(text[..*from].chars().count());
        let carets = "^".repeat(text[*from..*to].chars().count());
        if carets.is_empty() {
            reason.clone()
        } else {
            format!("{reason}\n    {shown}\n    {before}{carets}")
        }
    }
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    span: Span,
    names: Option<&'a Names>,
    parts: Vec<Part>,
}

impl Scanner<'_> {
    fn scan(&mut self) -> Result<(), Refused> {
        let whole = (0, self.text.len());
        if self.text.is_empty() {
            let reason = "the key is empty: say what is locked, as in `\"order:{order_id}\"`";
            return refuse(whole, reason);
        }
        if let Some((at, c)) = self.text.char_indices().find(|(_, c)| c.is_control()) {
            let reason = format!("a key has no control characters, and this is {c:?}: write `:`");
            return refuse((at, at + c.len_utf8()), reason);
        }
        while let Some(c) = self.text[self.at..].chars().next() {
            let doubled = self.text[self.at + c.len_utf8()..].starts_with(c);
            match c {
                '{' | '}' if doubled => self.push(c, 2),
                '{' => self.value()?,
                '}' => {
                    let reason = "this `}` closes nothing: write `}}` for a brace in the key";
                    return refuse((self.at, self.at + 1), reason);
                }
                _ => self.push(c, c.len_utf8()),
            }
        }
        let texts = self.parts.iter().map(|part| {
            if let Part::Text(text) = part {
                text.len()
            } else {
                0
            }
        });
        match texts.sum() {
            0 => refuse(
                whole,
                "the key has no fixed text, so any other lock may have the same key: say what the value \
                 is, as in `\"order:{order_id}\"`",
            ),
            fixed @ LONGEST.. if fixed > LONGEST => refuse(
                (0, 0),
                format!("the fixed text has {fixed} bytes, and a key has at most {LONGEST}"),
            ),
            _ => Ok(()),
        }
    }

    fn push(&mut self, c: char, consumed: usize) {
        self.at += consumed;
        match self.parts.last_mut() {
            Some(Part::Text(text)) => text.push(c),
            _ => self.parts.push(Part::Text(c.into())),
        }
    }

    fn value(&mut self) -> Result<(), Refused> {
        let open = self.at;
        let inner = &self.text[open + 1..];
        let Some(length) = inner
            .find(['{', '}'])
            .filter(|&at| inner[at..].starts_with('}'))
        else {
            let reason = "this `{` is never closed: write `{{` for a brace in the key";
            return refuse((open, open + 1), reason);
        };
        let (inner, end) = (&inner[..length], open + length + 2);
        self.check_distance((open, end))?;
        // A single colon begins the spec.
        let colon = inner.replace("::", "..").find(':').unwrap_or(length);
        let (expr, spec) = inner.split_at(colon);
        if let Some(reason) = refused_spec(spec) {
            return refuse((open + 1 + colon, end - 1), reason);
        }
        let from = open + 1 + expr.len() - expr.trim_start().len();
        let expr = expr.trim();
        if expr.is_empty() {
            let reason =
                "an empty `{}` names no value: write the name of a parameter, as in `{order_id}`";
            return refuse((open, end), reason);
        }
        let tokens = self
            .expression(expr)
            .or_else(|reason| refuse((from, from + expr.len()), reason))?;
        self.parts.push(Part::Value(tokens, spec.to_owned()));
        self.at = end;
        Ok(())
    }

    /// Between two values stands what neither can contain, or `("ab", "c")` and `("a", "bc")` make one key.
    fn check_distance(&self, at: (usize, usize)) -> Result<(), Refused> {
        match self.parts.as_slice() {
            [.., Part::Value(..)] => refuse(
                at,
                "two values touch, so different ones could make one key: put a `:` between them",
            ),
            [.., Part::Value(..), Part::Text(text)]
                if text.chars().all(|c| c.is_alphanumeric() || c == '%') =>
            {
                let reason = format!(
                    "only `{text}` stands between two values, which a value could contain: put a `:` between them"
                );
                refuse((at.0 - text.len(), at.0), reason)
            }
            _ => Ok(()),
        }
    }

    fn expression(&self, text: &str) -> Result<TokenStream, String> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return Err(
                "values have names, not numbers: write the name of a parameter, as in `{order_id}`"
                    .into(),
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
                    "`{text}` is not a value: write the name of a parameter, a field or a call"
                ));
            }
        };
        Ok(self.located(expr))
    }

    fn check(&self, expr: &Expr, place: Place) -> Result<(), String> {
        let refused = match expr {
            Expr::Path(path) => match path.path.get_ident() {
                Some(ident) if place == Place::Value => return self.check_name(ident),
                _ => return Ok(()),
            },
            Expr::Field(field) => return self.check(&field.base, Place::Value),
            Expr::Index(index) => {
                self.check(&index.expr, Place::Value)?;
                return self.check(&index.index, Place::Argument);
            }
            Expr::MethodCall(call) => {
                self.check(&call.receiver, Place::Value)?;
                return call
                    .args
                    .iter()
                    .try_for_each(|argument| self.check(argument, Place::Argument));
            }
            Expr::Call(call) => {
                self.check(&call.func, Place::Function)?;
                return call
                    .args
                    .iter()
                    .try_for_each(|argument| self.check(argument, Place::Argument));
            }
            Expr::Paren(paren) => return self.check(&paren.expr, place),
            Expr::Lit(_) if place == Place::Argument => return Ok(()),
            Expr::Reference(reference) if place == Place::Argument => {
                return self.check(&reference.expr, Place::Value);
            }
            Expr::Lit(_) => return Err("a literal needs no braces: write it as fixed text".into()),
            Expr::Try(_) => "`?`",
            Expr::Await(_) => "`.await`",
            Expr::Macro(_) => "a macro",
            Expr::Binary(_)
            | Expr::Unary(_)
            | Expr::Reference(_)
            | Expr::Range(_)
            | Expr::Cast(_) => "an operator",
            _ => "more than a parameter, a path, a field, an index or a call",
        };
        Err(format!(
            "{refused} cannot stand in a key template: write `key = expression` instead"
        ))
    }

    fn check_name(&self, ident: &Ident) -> Result<(), String> {
        let text = ident.to_string();
        // A constant is as good as a parameter.
        let constant = text.starts_with(char::is_uppercase);
        let Some(names) = self
            .names
            .filter(|names| !constant && names.find(ident).is_none())
        else {
            return Ok(());
        };
        let known = names.texts();
        let advice = match nearest(&text, known.iter().map(String::as_str)) {
            _ if text == "self" => "the function has none".to_owned(),
            Some(name) => format!("did you mean `{name}`?"),
            None if known.is_empty() => "the function has none".to_owned(),
            None => format!("there is `{}`", known.join("`, `")),
        };
        Err(format!("no parameter is called `{text}`: {advice}"))
    }

    /// Gives tokens that were parsed from the literal's text the literal's place, and the hygiene of the arguments they name.
    fn located(&self, tokens: TokenStream) -> TokenStream {
        let locate = |mut tree: TokenTree| {
            match &mut tree {
                TokenTree::Group(group) => {
                    *group = Group::new(group.delimiter(), self.located(group.stream()))
                }
                TokenTree::Ident(ident) => {
                    if let Some(name) = self.names.and_then(|names| names.find(ident)) {
                        *ident = name.clone();
                        ident.set_span(name.span().located_at(self.span));
                        return tree;
                    }
                }
                _ => {}
            }
            tree.set_span(self.span);
            tree
        };
        tokens.into_iter().map(locate).collect()
    }
}

/// Where an expression stands decides what it may be.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Value,
    Function,
    Argument,
}

fn refused_spec(spec: &str) -> Option<&'static str> {
    let spec = spec.trim_start_matches(':').trim_end();
    let mut chars = spec.chars();
    // The fill character may be any.
    let filled = matches!(chars.nth(1), Some('<' | '^' | '>'));
    let rest = if filled { chars.as_str() } else { spec };
    match rest {
        _ if rest.ends_with('?') => Some(
            "`Debug` output may change with any release, and the key with it: use the `Display` form, `{x}`",
        ),
        _ if rest.ends_with('p') => {
            Some("an address differs in every process, and so would the key")
        }
        _ if rest.contains('$') || rest.contains(".*") => {
            Some("a width or precision in a key is a plain number")
        }
        _ => None,
    }
}
