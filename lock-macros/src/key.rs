//! The key template: from a string literal to [`Template`].

use proc_macro2::{Group, Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::{Expr, Ident, LitStr, ext::IdentExt as _, parse::Parser};

use crate::{args::nearest, item::Names};

/// The most bytes in a key.
const LONGEST: usize = 512;

/// A key with values in it.
pub(crate) struct Template {
    pub(crate) literal: LitStr,
    pub(crate) parts: Vec<Part>,
}

pub(crate) enum Part {
    Text(String),
    Value {
        expr: TokenStream,
        /// With its colon; empty if there is none.
        spec: String,
    },
}

/// What is wrong with a template, and where: a range of bytes of its text.
struct Refused {
    at: (usize, usize),
    reason: String,
}

type Step<T> = Result<T, Refused>;

fn refuse<T>(at: (usize, usize), reason: impl Into<String>) -> Step<T> {
    Err(Refused {
        at,
        reason: reason.into(),
    })
}

impl Template {
    /// Takes a template apart. `names` are the names that it may use; `None` if they cannot be known.
    pub(crate) fn parse(literal: LitStr, names: Option<&Names>) -> syn::Result<Self> {
        let text = literal.value();
        let mut scanner = Scanner {
            text: &text,
            at: 0,
            literal: &literal,
            names,
            parts: Vec::new(),
        };
        match scanner.scan() {
            Ok(()) => {
                let parts = scanner.parts;
                Ok(Self { literal, parts })
            }
            Err(Refused { at, reason }) => {
                let message = if text.is_empty() {
                    reason
                } else {
                    format!("{reason}\n{}", excerpt(&text, at))
                };
                Err(syn::Error::new(literal.span(), message))
            }
        }
    }

    /// Returns whether `format_args!` reads the template the same way.
    pub(crate) fn is_format_string(&self) -> bool {
        let plain = |expr: &TokenStream| syn::parse2::<Ident>(expr.clone()).is_ok();
        self.values().all(plain) && !self.literal.value().contains("{r#")
    }

    /// The values' expressions.
    pub(crate) fn values(&self) -> impl Iterator<Item = &TokenStream> {
        self.parts.iter().filter_map(|part| match part {
            Part::Text(_) => None,
            Part::Value { expr, .. } => Some(expr),
        })
    }

    /// Builds the key.
    pub(crate) fn tokens(&self, private: &TokenStream) -> TokenStream {
        // At the literal, so that an error is, too.
        let span = self.literal.span().resolved_at(Span::mixed_site());
        let parts = self.parts.iter().map(|part| match part {
            Part::Text(text) => quote!(#private::text(#text)),
            Part::Value { expr, spec } if spec.is_empty() => {
                quote_spanned!(span=> #private::value(&&#expr))
            }
            Part::Value { expr, spec } => {
                let format = LitStr::new(&format!("{{{spec}}}"), span);
                quote_spanned!(span=> #private::value(&&::core::format_args!(#format, #expr)))
            }
        });
        quote!(#private::key(&[#(#parts),*]))
    }
}

/// Shows the part of the text that a message is about, with a caret below it.
fn excerpt(text: &str, (from, to): (usize, usize)) -> String {
    let shown = |text: &str| {
        text.chars()
            .map(|c| if c.is_control() { '�' } else { c })
            .collect::<String>()
    };
    let before = text[..from].chars().count();
    let carets = text[from..to].chars().count().max(1);
    format!(
        "    {}\n    {}{}",
        shown(text),
        " ".repeat(before),
        "^".repeat(carets)
    )
}

struct Scanner<'a> {
    text: &'a str,
    at: usize,
    literal: &'a LitStr,
    names: Option<&'a Names>,
    parts: Vec<Part>,
}

impl Scanner<'_> {
    fn scan(&mut self) -> Step<()> {
        if self.text.is_empty() {
            return refuse(
                (0, 0),
                "the key is empty: say what is locked, as in `\"order:{order_id}\"`",
            );
        }
        if let Some((at, c)) = self.text.char_indices().find(|(_, c)| c.is_control()) {
            let reason = format!(
                "a key has no control characters, and this is {c:?}: use `:` between the parts of a key"
            );
            return refuse((at, at + c.len_utf8()), reason);
        }
        while let Some(c) = self.text[self.at..].chars().next() {
            match c {
                '{' if self.follows("{{") => self.push_text("{", 2),
                '}' if self.follows("}}") => self.push_text("}", 2),
                '{' => self.value()?,
                '}' => {
                    return refuse(
                        (self.at, self.at + 1),
                        "this `}` closes nothing: write `}}` for a brace in the key",
                    );
                }
                _ => self.push_text(&String::from(c), c.len_utf8()),
            }
        }
        let fixed: usize = self
            .parts
            .iter()
            .map(|part| {
                if let Part::Text(text) = part {
                    text.len()
                } else {
                    0
                }
            })
            .sum();
        if fixed == 0 {
            let reason = "the key has no fixed text, so any other lock may have the same key: say what the value is, as in \
                          `\"order:{order_id}\"`";
            return refuse((0, self.text.len()), reason);
        }
        if fixed > LONGEST {
            return refuse(
                (0, 0),
                format!("the fixed text has {fixed} bytes, and a key has at most {LONGEST}"),
            );
        }
        Ok(())
    }

    fn follows(&self, text: &str) -> bool {
        self.text[self.at..].starts_with(text)
    }

    fn push_text(&mut self, text: &str, consumed: usize) {
        self.at += consumed;
        if let Some(Part::Text(last)) = self.parts.last_mut() {
            last.push_str(text);
        } else {
            self.parts.push(Part::Text(text.to_owned()));
        }
    }

    fn value(&mut self) -> Step<()> {
        let open = self.at;
        let Some(length) = closing_brace(&self.text[open + 1..]) else {
            return refuse(
                (open, open + 1),
                "this `{` is never closed: write `{{` for a brace in the key",
            );
        };
        let close = open + 1 + length;
        self.check_distance((open, close + 1))?;
        let inner = &self.text[open + 1..close];
        let colon = spec_colon(inner).unwrap_or(inner.len());
        let (expr, spec) = inner.split_at(colon);
        check_spec(spec, (open + 1 + colon, close))?;
        let from = open + 1 + expr.len() - expr.trim_start().len();
        let at = (from, from + expr.trim().len());
        if expr.trim().is_empty() {
            return refuse(
                (open, close + 1),
                "an empty `{}` names no value: write the name of a parameter, as in `{order_id}`",
            );
        }
        let expr = self.expression(expr.trim(), at)?;
        self.parts.push(Part::Value {
            expr,
            spec: spec.to_owned(),
        });
        self.at = close + 1;
        Ok(())
    }

    /// Two values need a separator between them that neither can contain, or `("ab", "c")` and `("a", "bc")` make one key.
    fn check_distance(&self, at: (usize, usize)) -> Step<()> {
        let between = match self.parts.as_slice() {
            [.., Part::Value { .. }] => "",
            [.., Part::Value { .. }, Part::Text(text)] => text,
            _ => return Ok(()),
        };
        if between.is_empty() {
            return refuse(
                at,
                "two values touch, so different values could make the same key: put a `:` between them",
            );
        }
        if between.chars().all(|c| c.is_alphanumeric() || c == '%') {
            let reason = format!(
                "only `{between}` stands between two values, which a value could contain too: put a `:` between them"
            );
            return refuse((at.0 - between.len(), at.0), reason);
        }
        Ok(())
    }

    fn expression(&self, text: &str, at: (usize, usize)) -> Step<TokenStream> {
        if text.starts_with(|c: char| c.is_ascii_digit()) {
            return refuse(
                at,
                "values have names, not numbers: write the name of a parameter, as in `{order_id}`",
            );
        }
        // `type` alone is a keyword, and `{type}` still means `r#type`.
        if let Ok(ident) = Parser::parse_str(Ident::parse_any, text)
            && syn::parse_str::<Expr>(text).is_err()
            && self.names.is_none_or(|names| names.find(&ident).is_some())
        {
            return Ok(self.located(Ident::new_raw(text, ident.span()).into_token_stream()));
        }
        let Ok(expr) = syn::parse_str::<Expr>(text) else {
            return refuse(
                at,
                format!(
                    "`{text}` is not a value: write the name of a parameter, a field or a call"
                ),
            );
        };
        self.check(&expr, Place::Value)
            .or_else(|reason| refuse(at, reason))?;
        Ok(self.located(expr.into_token_stream()))
    }

    fn check(&self, expr: &Expr, place: Place) -> Result<(), String> {
        match expr {
            Expr::Path(path) => match path.path.get_ident() {
                Some(ident) if path.qself.is_none() && place == Place::Value => self.check_name(ident),
                _ => Ok(()),
            },
            Expr::Field(field) => self.check(&field.base, Place::Value),
            Expr::Index(index) => {
                self.check(&index.expr, Place::Value)?;
                self.check(&index.index, Place::Argument)
            }
            Expr::MethodCall(call) => {
                self.check(&call.receiver, Place::Value)?;
                call.args.iter().try_for_each(|argument| self.check(argument, Place::Argument))
            }
            Expr::Call(call) => {
                self.check(&call.func, Place::Function)?;
                call.args.iter().try_for_each(|argument| self.check(argument, Place::Argument))
            }
            Expr::Lit(_) if place == Place::Argument => Ok(()),
            Expr::Reference(reference) if place == Place::Argument => self.check(&reference.expr, Place::Value),
            Expr::Paren(paren) => self.check(&paren.expr, place),
            Expr::Lit(_) => Err("a literal needs no braces: write it as fixed text".to_owned()),
            Expr::Try(_) => Err("`?` cannot stand in a key: the key is built before anything can fail; take the value apart \
                                 first, or write `key = expression?`"
                .to_owned()),
            Expr::Await(_) => Err("`.await` cannot stand in a key template: write `key = expression.await`".to_owned()),
            Expr::Macro(_) => Err("a macro cannot stand in a key template: write `key = expression`".to_owned()),
            Expr::Binary(_) | Expr::Unary(_) | Expr::Reference(_) | Expr::Range(_) | Expr::Cast(_) | Expr::Assign(_) => {
                Err("an operator cannot stand in a key template: write `key = expression`, or call a function".to_owned())
            }
            _ => Err("only a parameter, a path, a field, an index or a call can stand in a key template: for more, write \
                      `key = expression`"
                .to_owned()),
        }
    }

    fn check_name(&self, ident: &Ident) -> Result<(), String> {
        let Some(names) = self.names else {
            return Ok(());
        };
        // A constant is as good as a parameter.
        if names.find(ident).is_some() || ident.to_string().starts_with(char::is_uppercase) {
            return Ok(());
        }
        if ident == "self" {
            return Err("there is no `self` in this function".to_owned());
        }
        let known: Vec<String> = names.texts();
        Err(
            match nearest(&ident.to_string(), known.iter().map(String::as_str)) {
                Some(name) => format!("no parameter is called `{ident}`: did you mean `{name}`?"),
                None if known.is_empty() => {
                    format!("no parameter is called `{ident}`: the function has none")
                }
                None => format!(
                    "no parameter is called `{ident}`: there is `{}`",
                    known.join("`, `")
                ),
            },
        )
    }

    /// Gives tokens that were parsed from the literal's text the literal's place, and the hygiene of the parameters they name.
    fn located(&self, tokens: TokenStream) -> TokenStream {
        let span = self.literal.span();
        tokens
            .into_iter()
            .map(|tree| match tree {
                TokenTree::Group(group) => {
                    let mut located = Group::new(group.delimiter(), self.located(group.stream()));
                    located.set_span(span);
                    TokenTree::Group(located)
                }
                TokenTree::Ident(ident) => {
                    let named = self.names.and_then(|names| names.find(&ident));
                    let mut located = named.cloned().unwrap_or(ident);
                    located.set_span(named.map_or(span, |name| name.span().located_at(span)));
                    TokenTree::Ident(located)
                }
                mut other => {
                    other.set_span(span);
                    other
                }
            })
            .collect()
    }
}

/// Where an expression stands decides what it may be.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    Value,
    Function,
    Argument,
}

/// How many bytes stand before the `}` that closes a value, if it is closed before the next one opens.
fn closing_brace(text: &str) -> Option<usize> {
    text.find(['{', '}'])
        .filter(|&at| text[at..].starts_with('}'))
}

/// Where the format spec begins: at the first single colon.
fn spec_colon(text: &str) -> Option<usize> {
    let mut after = 0;
    while let Some(found) = text[after..].find(':') {
        let at = after + found;
        if !text[at + 1..].starts_with(':') {
            return Some(at);
        }
        after = at + 2;
    }
    None
}

fn check_spec(spec: &str, at: (usize, usize)) -> Step<()> {
    let mut rest = spec.trim_start_matches(':');
    let mut chars = rest.chars();
    if let (Some(fill), Some('<' | '^' | '>')) = (chars.next(), chars.next()) {
        rest = &rest[fill.len_utf8() + 1..];
    }
    if rest.trim_end().ends_with('?') {
        return refuse(
            at,
            "`Debug` output may change with any release, and the key with it: use the `Display` form, `{x}`",
        );
    }
    if rest.ends_with('p') {
        return refuse(
            at,
            "an address differs in every process, and so would the key",
        );
    }
    if rest.contains('$') || rest.contains(".*") {
        return refuse(at, "a width or precision in a key is a plain number");
    }
    Ok(())
}
