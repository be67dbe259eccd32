//! The attribute's options: from tokens to [`Args`].

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote};
use syn::{
    Error, Expr, ExprLit, Ident, Lit, LitStr, Path, Result, Token, ext::IdentExt as _,
    parse::ParseStream, parse::Parser as _,
};

/// Each option, a value to show, and what other libraries or a first guess call it.
const OPTIONS: &str = r#"
key = "order:{order_id}" # name resource id on lock lock_key lock_name path value keys
ttl = "10s"           # expire expires expiry expiration lease_time duration px ex validity
wait = "2s"           # timeout wait_time wait_timeout acquire_timeout block blocking retries retry
renew = false         # renewal extend auto_extend auto_renew refresh watchdog heartbeat keep_alive
max_hold = "5m"       # deadline max_time max_duration lock_at_most_for at_most max
min_hold = "1s"       # lock_at_least_for at_least min_time min_duration min
on_busy = skip        # if_busy on_contention on_conflict on_locked busy skip
on_lost = continue    # on_expired on_expire if_lost lost cancel
on_error = |error| …  # error err map_err on_err fallback on_fail on_failure
lease = lease         # guard as handle token fencing fencing_token bind var
locks = self.locks    # manager lock_manager client backend redis store pool with using source
crate = path::to::lock_core # krate crate_path crate_name
"#;

/// The attribute's options, checked as far as they can be without the function.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) key: Option<Key>,
    /// The setters of `LockOptions` to call, and their arguments.
    pub(crate) setters: Vec<(&'static str, TokenStream)>,
    pub(crate) skip_busy: bool,
    pub(crate) on_error: Option<Expr>,
    pub(crate) lease: Option<Ident>,
    pub(crate) locks: Option<Expr>,
    pub(crate) crate_path: Option<Path>,
    /// Each option's name as the user wrote it, known or not.
    pub(crate) names: Vec<Ident>,
    /// Whether something that was meant to be the key was seen, right or wrong.
    key_seen: bool,
}

pub(crate) enum Key {
    Template(LitStr),
    /// Any other expression: the key itself.
    Exact(Expr),
}

impl Args {
    /// Reads all options, and reports everything that is wrong with any of them.
    pub(crate) fn parse(tokens: TokenStream, errors: &mut Vec<Error>) -> Self {
        let mut args = Self::default();
        let parser = |input: ParseStream| {
            while !input.is_empty() {
                if let Err(error) = args.parse_option(input) {
                    errors.push(error);
                    while !at_end(input) {
                        input.parse::<TokenTree>()?;
                    }
                }
                input.parse::<Option<Token![,]>>()?;
            }
            Ok(())
        };
        let ended = parser.parse2(tokens);
        errors.extend(ended.err());
        if !args.key_seen {
            let reason = "no key: say what is locked, as in `key = \"order:{order_id}\"`";
            errors.push(Error::new(Span::call_site(), reason));
        }
        args
    }

    fn parse_option(&mut self, input: ParseStream) -> Result<()> {
        if input.peek(Lit) {
            self.key_seen = true;
            return Err(input.error("options have names: write `key = \"…\"`"));
        }
        let name = Ident::parse_any(input)?;
        let twice = self.names.contains(&name);
        self.names.push(name.clone());
        let text = name.to_string();
        let Some((option, example, _)) = options().find(|(option, ..)| *option == text) else {
            return Err(self.unknown(&name));
        };
        self.key_seen |= option == "key";
        let equals: Option<Token![=]> = input.parse()?;
        if equals.is_none() || at_end(input) {
            let at = equals.map_or(name.span(), |equals| equals.span);
            return refuse(
                at,
                format!("`{name}` has no value: write `{name} = {example}`"),
            );
        }
        if twice {
            return refuse(
                name.span(),
                format!("`{name}` is given twice: leave one out"),
            );
        }
        if option == "crate" {
            self.crate_path = Some(Path::parse_mod_style(input)?);
            return Ok(());
        }
        self.set(option, ungrouped(input.parse()?))?;
        if at_end(input) {
            return Ok(());
        }
        Err(input.error("expected a comma before the next option"))
    }

    fn set(&mut self, option: &'static str, value: Expr) -> Result<()> {
        match option {
            "key" => self.key = Some(key(value)?),
            "renew" => {
                if one_of(option, &value, ["true", "false"])? == "false" {
                    self.setters.push(("without_renewal", TokenStream::new()));
                }
            }
            "on_busy" => self.skip_busy = one_of(option, &value, ["error", "skip"])? == "skip",
            "on_lost" => {
                if one_of(option, &value, ["cancel", "continue"])? == "continue" {
                    self.setters.push((option, quote!(Continue)));
                }
            }
            "on_error" => self.on_error = Some(value),
            "lease" => self.lease = Some(binding(&value)?),
            "locks" => self.locks = Some(value),
            _ => self.setters.push((option, duration(option, value)?)),
        }
        Ok(())
    }

    fn unknown(&mut self, name: &Ident) -> Error {
        let text = name.to_string();
        let mut by_meaning =
            options().filter(|(.., others)| others.split(' ').any(|other| other == text));
        let names: Vec<_> = options().map(|(option, ..)| option).collect();
        let meant = by_meaning.next().map(|(option, ..)| option);
        let advice = match meant.or_else(|| nearest(&text, &names)) {
            Some(option) => {
                self.key_seen |= option == "key";
                format!("did you mean `{option}`?")
            }
            None => format!("there are `{}`", names.join("`, `")),
        };
        Error::new(
            name.span(),
            format!("there is no option `{name}`: {advice}"),
        )
    }
}

/// Name, example and other words of each option.
fn options() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    OPTIONS.lines().filter_map(|line| {
        let (shown, others) = line.split_once(" # ")?;
        let (name, example) = shown.split_once(" = ")?;
        Some((name, example.trim_end(), others))
    })
}

pub(crate) fn refuse<T>(at: Span, reason: impl std::fmt::Display) -> Result<T> {
    Err(Error::new(at, reason))
}

fn at_end(input: ParseStream) -> bool {
    input.is_empty() || input.peek(Token![,])
}

/// A literal that comes through `$key:literal` or `$key:expr` stands in an invisible group.
fn ungrouped(value: Expr) -> Expr {
    match value {
        Expr::Group(group) => ungrouped(*group.expr),
        other => other,
    }
}

/// The candidate that is closest to a word, if any is close at all.
pub(crate) fn nearest<'a>(word: &str, candidates: &[&'a str]) -> Option<&'a str> {
    let close = |edits| {
        candidates
            .iter()
            .find(|one| within(edits, word.as_bytes(), one.as_bytes()))
    };
    (0..=word.len().max(3) / 3).find_map(close).copied()
}

/// Whether so many edits make one word of another; swapping two neighbours is one.
fn within(edits: usize, one: &[u8], other: &[u8]) -> bool {
    match (one, other) {
        ([x, one @ ..], [y, other @ ..]) if x == y => within(edits, one, other),
        _ if edits == 0 || one.is_empty() || other.is_empty() => {
            one.len().max(other.len()) <= edits
        }
        ([x, y, one @ ..], [v, w, other @ ..]) if (x, y) == (w, v) => within(edits - 1, one, other),
        _ => {
            let replaced_or_lost = [(1, 1), (1, 0), (0, 1)];
            replaced_or_lost
                .iter()
                .any(|&(i, j)| within(edits - 1, &one[i..], &other[j..]))
        }
    }
}

fn key(value: Expr) -> Result<Key> {
    let at = value.to_token_stream();
    let reason = match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(literal),
            ..
        }) => return Ok(Key::Template(literal)),
        Expr::Lit(_) => "a key is text: write `key = \"order:42\"`, or an expression that is one",
        Expr::Array(_) => "several keys are not supported: write one, or stack two attributes",
        other => return Ok(Key::Exact(other)),
    };
    Err(Error::new_spanned(at, reason))
}

fn one_of(option: &str, value: &Expr, words: [&'static str; 2]) -> Result<&'static str> {
    let written = value.to_token_stream().to_string();
    words
        .into_iter()
        .find(|word| *word == written)
        .ok_or_else(|| {
            let [usual, other] = words;
            let reason =
                format!("`{option}` is `{usual}`, the default, or `{other}`, without quotes");
            Error::new_spanned(value, reason)
        })
}

fn binding(value: &Expr) -> Result<Ident> {
    let reason = "`lease` is the name that the body gives the lease: write `lease = lease`";
    syn::parse2(value.to_token_stream()).map_err(|_| Error::new_spanned(value, reason))
}

/// A duration literal, checked, or an expression, which is checked when it is run.
fn duration(option: &str, value: Expr) -> Result<TokenStream> {
    let Expr::Lit(ExprLit { lit, .. }) = value else {
        return Ok(value.into_token_stream());
    };
    let reason = match &lit {
        Lit::Str(text) => match milliseconds(&text.value()) {
            Ok(0) if option != "wait" => "it is zero, and the least is `\"100ms\"`".to_owned(),
            Ok(1..100) => "it is too short, and the least is `\"100ms\"`".to_owned(),
            Ok(86_400_001..) => "it is too long, and the most is `\"24h\"`".to_owned(),
            Ok(ms) => return Ok(quote!(::core::time::Duration::from_millis(#ms))),
            Err(reason) => reason,
        },
        Lit::Int(number) => format!("a number needs a unit: write `\"{number}s\"`"),
        _ => "write a text with a unit, as in `\"10s\"`".to_owned(),
    };
    refuse(
        lit.span(),
        format!("`{option}` is no usable duration: {reason}"),
    )
}

/// Reads `1h`, `1m30s` or `500ms`.
fn milliseconds(text: &str) -> std::result::Result<u64, String> {
    let split = |text: &'_ str, digits: bool| {
        let end = text.find(|c: char| c.is_ascii_digit() != digits);
        end.unwrap_or(text.len())
    };
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("it is empty: write a number and a unit, as in `\"10s\"`".to_owned());
    }
    let mut sum: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = rest.split_at(split(rest, true));
        let (unit, after) = after.split_at(split(after, false));
        let scale = match unit.trim() {
            _ if number.is_empty() => return Err(format!("`{unit}` does not begin with a number")),
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "" => {
                return Err(format!(
                    "`{number}` has no unit: write `\"{}s\"`",
                    text.trim()
                ));
            }
            "." => return Err("write a fraction in a smaller unit: `\"1s500ms\"`".to_owned()),
            unit => {
                return Err(format!(
                    "there is no unit `{unit}`: there are `h`, `m`, `s` and `ms`"
                ));
            }
        };
        let number = number.parse().unwrap_or(u64::MAX);
        sum = sum.saturating_add(number.saturating_mul(scale));
        rest = after;
    }
    Ok(sum)
}
