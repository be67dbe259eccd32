//! The attribute's options: from tokens to [`Args`].

use proc_macro2::{Span, TokenStream};
use quote::quote;
use syn::{
    Expr, ExprLit, Ident, Lit, LitStr, Path, Token,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
};

use crate::Mistakes;

/// Every option, in the order in which a message lists them.
const OPTIONS: [&str; 12] = [
    "key", "ttl", "wait", "renew", "max_hold", "min_hold", "on_busy", "on_lost", "on_error",
    "lease", "locks", "crate",
];

/// What other libraries call it, and what somebody might try first.
const MEANINGS: [(&str, &[&str]); 12] = [
    (
        "key",
        &[
            "name",
            "resource",
            "id",
            "on",
            "lock",
            "lock_key",
            "lock_name",
            "path",
            "value",
            "keys",
        ],
    ),
    (
        "ttl",
        &[
            "expire",
            "expires",
            "expiry",
            "expiration",
            "lease_time",
            "duration",
            "px",
            "ex",
            "validity",
        ],
    ),
    (
        "wait",
        &[
            "timeout",
            "wait_time",
            "wait_timeout",
            "acquire_timeout",
            "block",
            "blocking",
            "retries",
            "retry",
        ],
    ),
    (
        "renew",
        &[
            "renewal",
            "extend",
            "auto_extend",
            "auto_renew",
            "refresh",
            "watchdog",
            "heartbeat",
            "keep_alive",
        ],
    ),
    (
        "max_hold",
        &[
            "deadline",
            "max_time",
            "max_duration",
            "lock_at_most_for",
            "at_most",
            "max",
        ],
    ),
    (
        "min_hold",
        &[
            "lock_at_least_for",
            "at_least",
            "min_time",
            "min_duration",
            "min",
        ],
    ),
    (
        "on_busy",
        &[
            "if_busy",
            "on_contention",
            "on_conflict",
            "on_locked",
            "busy",
            "skip",
        ],
    ),
    (
        "on_lost",
        &["on_expired", "on_expire", "if_lost", "lost", "cancel"],
    ),
    (
        "on_error",
        &[
            "error",
            "err",
            "map_err",
            "on_err",
            "fallback",
            "on_fail",
            "on_failure",
        ],
    ),
    (
        "lease",
        &[
            "guard",
            "as",
            "handle",
            "token",
            "fencing",
            "fencing_token",
            "bind",
            "var",
        ],
    ),
    (
        "locks",
        &[
            "manager",
            "lock_manager",
            "client",
            "backend",
            "redis",
            "store",
            "pool",
            "with",
            "using",
            "source",
        ],
    ),
    ("crate", &["krate", "crate_path", "crate_name"]),
];

/// The attribute's options, checked as far as they can be without the function.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) key: Option<Key>,
    pub(crate) ttl: Option<TokenStream>,
    pub(crate) wait: Option<TokenStream>,
    pub(crate) max_hold: Option<TokenStream>,
    pub(crate) min_hold: Option<TokenStream>,
    pub(crate) without_renewal: bool,
    pub(crate) skip_busy: bool,
    pub(crate) continue_when_lost: bool,
    pub(crate) on_error: Option<Expr>,
    pub(crate) lease: Option<Ident>,
    pub(crate) locks: Option<Expr>,
    pub(crate) crate_path: Option<Path>,
    /// Each option's name as the user wrote it, known or not.
    pub(crate) names: Vec<Ident>,
}

pub(crate) enum Key {
    Template(LitStr),
    /// Any other expression: the key itself.
    Exact(Expr),
}

impl Args {
    /// Reads all options, and reports everything that is wrong with any of them.
    pub(crate) fn parse(tokens: TokenStream, mistakes: &mut Mistakes) -> Self {
        let mut args = Self::default();
        let parser = |input: ParseStream| {
            while !input.is_empty() {
                if let Err(error) = args.parse_option(input, mistakes) {
                    mistakes.push(error);
                    skip_to_comma(input)?;
                }
                if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
            }
            Ok(())
        };
        if let Err(error) = parser.parse2(tokens) {
            mistakes.push(error);
        }
        if !args.names.iter().any(|name| name == "key") && !mistakes.concern_key {
            mistakes.push(syn::Error::new(
                Span::call_site(),
                "no key: say what is locked, as in `key = \"order:{order_id}\"`",
            ));
        }
        args
    }

    fn parse_option(&mut self, input: ParseStream, mistakes: &mut Mistakes) -> syn::Result<()> {
        if input.peek(Lit) {
            let literal: Lit = input.parse()?;
            mistakes.concern_key = true;
            return Err(syn::Error::new(
                literal.span(),
                "options have names: write `key = \"…\"`",
            ));
        }
        let name = Ident::parse_any(input)?;
        self.names.push(name.clone());
        let known = OPTIONS.iter().any(|option| name == option);
        if !known {
            let error = unknown_option(&name, mistakes);
            skip_to_comma(input)?;
            return Err(error);
        }
        if !input.peek(Token![=]) {
            mistakes.concern_key |= name == "key";
            return Err(syn::Error::new(
                name.span(),
                format!("`{name}` has no value: write `{name} = {}`", example(&name)),
            ));
        }
        let equals: Token![=] = input.parse()?;
        if input.is_empty() || input.peek(Token![,]) {
            return Err(syn::Error::new(
                equals.span,
                format!("`{name}` has no value: write `{name} = {}`", example(&name)),
            ));
        }
        if self.names.iter().filter(|other| **other == name).count() > 1 {
            skip_to_comma(input)?;
            return Err(syn::Error::new(
                name.span(),
                format!("`{name}` is given twice: leave one out"),
            ));
        }
        if name == "crate" {
            self.crate_path = Some(Path::parse_mod_style(input)?);
            return Ok(());
        }
        let value = ungrouped(input.parse()?);
        if !input.is_empty() && !input.peek(Token![,]) {
            return Err(input.error("expected a comma before the next option"));
        }
        self.set(&name, value)
    }

    fn set(&mut self, name: &Ident, value: Expr) -> syn::Result<()> {
        match name.to_string().as_str() {
            "key" => self.key = Some(key(value)?),
            "ttl" => self.ttl = Some(duration(name, value, Zero::Refused)?),
            "wait" => self.wait = Some(duration(name, value, Zero::Allowed)?),
            "max_hold" => self.max_hold = Some(duration(name, value, Zero::Refused)?),
            "min_hold" => self.min_hold = Some(duration(name, value, Zero::Refused)?),
            "renew" => self.without_renewal = one_of(name, &value, ["true", "false"])? == "false",
            "on_busy" => self.skip_busy = one_of(name, &value, ["error", "skip"])? == "skip",
            "on_lost" => {
                self.continue_when_lost =
                    one_of(name, &value, ["cancel", "continue"])? == "continue"
            }
            "on_error" => self.on_error = Some(value),
            "lease" => self.lease = Some(binding(&value)?),
            _ => self.locks = Some(value),
        }
        Ok(())
    }
}

/// A literal that comes through `$key:literal` or `$key:expr` stands in an invisible group.
fn ungrouped(value: Expr) -> Expr {
    match value {
        Expr::Group(group) if group.attrs.is_empty() => ungrouped(*group.expr),
        other => other,
    }
}

fn skip_to_comma(input: ParseStream) -> syn::Result<()> {
    while !input.is_empty() && !input.peek(Token![,]) {
        input.parse::<proc_macro2::TokenTree>()?;
    }
    Ok(())
}

fn example(option: &Ident) -> &'static str {
    match option.to_string().as_str() {
        "key" => "\"order:{order_id}\"",
        "ttl" => "\"10s\"",
        "wait" => "\"2s\"",
        "max_hold" => "\"5m\"",
        "min_hold" => "\"1s\"",
        "renew" => "false",
        "on_busy" => "skip",
        "on_lost" => "continue",
        "on_error" => "|error| …",
        "lease" => "lease",
        "locks" => "self.locks",
        _ => "path::to::lock_core",
    }
}

fn unknown_option(name: &Ident, mistakes: &mut Mistakes) -> syn::Error {
    let text = name.to_string();
    let by_meaning = MEANINGS
        .iter()
        .find(|(_, others)| others.contains(&text.as_str()))
        .map(|(option, _)| *option);
    let suggestion = by_meaning.or_else(|| nearest(&text, OPTIONS));
    mistakes.concern_key |= suggestion == Some("key");
    let message = match suggestion {
        Some(option) => format!("there is no option `{name}`: did you mean `{option}`?"),
        None => format!("there is no option `{name}`: there are {}", quoted(OPTIONS)),
    };
    syn::Error::new(name.span(), message)
}

fn quoted(words: impl IntoIterator<Item = &'static str>) -> String {
    words
        .into_iter()
        .map(|word| format!("`{word}`"))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The candidate that is closest to `word`, if any is close at all.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let allowed = word.chars().count().max(3) / 3;
    candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance, where swapping two neighbours also costs one.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            table[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let least = replaced.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                if swapped {
                    least.min(table[i - 2][j - 2] + 1)
                } else {
                    least
                }
            };
        }
    }
    table[a.len()][b.len()]
}

fn key(value: Expr) -> syn::Result<Key> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(literal),
            ..
        }) => Ok(Key::Template(literal)),
        Expr::Lit(ExprLit { lit, .. }) => Err(syn::Error::new(
            lit.span(),
            "a key is text: write `key = \"order:42\"`, or an expression that is one",
        )),
        Expr::Array(array) => Err(syn::Error::new_spanned(
            array,
            "several keys are not supported here: write one key, or stack two attributes",
        )),
        other => Ok(Key::Exact(other)),
    }
}

fn one_of(
    name: &Ident,
    value: &Expr,
    [default, other]: [&'static str; 2],
) -> syn::Result<&'static str> {
    let written = quote!(#value).to_string();
    [default, other]
        .into_iter()
        .find(|word| *word == written)
        .ok_or_else(|| {
            syn::Error::new_spanned(
                value,
                format!("`{name}` is `{default}`, the default, or `{other}`, without quotes"),
            )
        })
}

fn binding(value: &Expr) -> syn::Result<Ident> {
    match value {
        Expr::Path(path) if path.attrs.is_empty() => path.path.get_ident().cloned(),
        _ => None,
    }
    .filter(|ident| ident != "self")
    .ok_or_else(|| {
        syn::Error::new_spanned(
            value,
            "`lease` is the name that the body gives the lease: write `lease = lease`",
        )
    })
}

#[derive(Clone, Copy, PartialEq)]
enum Zero {
    Allowed,
    Refused,
}

/// A duration literal, checked, or an expression, which is checked when it is run.
fn duration(name: &Ident, value: Expr, zero: Zero) -> syn::Result<TokenStream> {
    let lit = match value {
        Expr::Lit(ExprLit { lit, .. }) => lit,
        other => return Ok(quote!(#other)),
    };
    let checked = match &lit {
        Lit::Str(text) => milliseconds(&text.value()).and_then(|ms| in_range(ms, zero)),
        Lit::Int(number) => Err(format!(
            "a number needs a unit: write `\"{}s\"`",
            number.base10_digits()
        )),
        _ => Err("write a text with a unit, as in `\"10s\"`".to_owned()),
    };
    match checked {
        Ok(ms) => Ok(quote!(::core::time::Duration::from_millis(#ms))),
        Err(reason) => Err(syn::Error::new(
            lit.span(),
            format!("`{name}` is no usable duration: {reason}"),
        )),
    }
}

fn in_range(ms: u64, zero: Zero) -> Result<u64, String> {
    match ms {
        0 if zero == Zero::Allowed => Ok(ms),
        0 => Err("it is zero, and the least is `\"100ms\"`".to_owned()),
        1..100 => Err("it is too short, and the least is `\"100ms\"`".to_owned()),
        100..=86_400_000 => Ok(ms),
        _ => Err("it is too long, and the most is `\"24h\"`".to_owned()),
    }
}

/// Reads `1h`, `1m30s` or `500ms`.
fn milliseconds(text: &str) -> Result<u64, String> {
    let mut rest = text;
    let mut sum: u64 = 0;
    if rest.trim().is_empty() {
        return Err("it is empty: write a number and a unit, as in `\"10s\"`".to_owned());
    }
    while !rest.is_empty() {
        let (digits, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| !c.is_ascii_digit());
        let number: Option<u64> = digits.parse().ok();
        let scale = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "" => return Err(format!("`{digits}` has no unit: write `\"{text}s\"`")),
            _ if digits.is_empty() => {
                return Err(format!(
                    "`{}` does not begin with a number: write it like `\"1m30s\"`",
                    unit.trim()
                ));
            }
            _ if unit.starts_with('.') => {
                return Err(
                    "write a part of a unit in the next smaller one, as in `\"1s500ms\"`"
                        .to_owned(),
                );
            }
            _ => {
                return Err(format!(
                    "there is no unit `{}`: there are `h`, `m`, `s` and `ms`",
                    unit.trim()
                ));
            }
        };
        let Some(part) = number.and_then(|number| number.checked_mul(scale)) else {
            return Err(if digits.is_empty() {
                format!("`{unit}` does not follow a number: write it like `\"1m30s\"`")
            } else {
                "it is too long, and the most is `\"24h\"`".to_owned()
            });
        };
        sum = sum.saturating_add(part);
        rest = after;
    }
    Ok(sum)
}

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}
