//! The attribute's options: from tokens to [`Args`].

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote};
use syn::{
    Error, Expr, ExprLit, Ident, Lit, LitStr, Path, Result, Token, ext::IdentExt as _,
    parse::ParseStream, parse::Parser as _,
};

/// Each option: its name, a value to show, and what other libraries or a first guess call it.
const OPTIONS: [(&str, &str, &str); 12] = [
    (
        "key",
        r#""order:{order_id}""#,
        "name resource id on lock lock_key lock_name path value keys",
    ),
    (
        "ttl",
        r#""10s""#,
        "expire expires expiry expiration lease_time duration px ex validity",
    ),
    (
        "wait",
        r#""2s""#,
        "timeout wait_time wait_timeout acquire_timeout block blocking retries retry",
    ),
    (
        "renew",
        "false",
        "renewal extend auto_extend auto_renew refresh watchdog heartbeat keep_alive",
    ),
    (
        "max_hold",
        r#""5m""#,
        "deadline max_time max_duration lock_at_most_for at_most max",
    ),
    (
        "min_hold",
        r#""1s""#,
        "lock_at_least_for at_least min_time min_duration min",
    ),
    (
        "on_busy",
        "skip",
        "if_busy on_contention on_conflict on_locked busy skip",
    ),
    (
        "on_lost",
        "continue",
        "on_expired on_expire if_lost lost cancel",
    ),
    (
        "on_error",
        "|error| …",
        "error err map_err on_err fallback on_fail on_failure",
    ),
    (
        "lease",
        "lease",
        "guard as handle token fencing fencing_token bind var",
    ),
    (
        "locks",
        "self.locks",
        "manager lock_manager client backend redis store pool with using source",
    ),
    (
        "crate",
        "path::to::lock_core",
        "krate crate_path crate_name",
    ),
];

/// The attribute's options, checked as far as they can be without the function.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) key: Option<Key>,
    /// The setters of `LockOptions` to call, and their arguments.
    pub(crate) options: Vec<(&'static str, TokenStream)>,
    pub(crate) skip_busy: bool,
    pub(crate) on_error: Option<Expr>,
    pub(crate) lease: Option<Ident>,
    pub(crate) locks: Option<Expr>,
    pub(crate) crate_path: Option<Path>,
    /// Each option's name as the user wrote it, known or not.
    pub(crate) names: Vec<Ident>,
    /// Whether something that was meant to be the key was reported already.
    key_is_wrong: bool,
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
                    while !input.is_empty() && !input.peek(Token![,]) {
                        input.parse::<TokenTree>()?;
                    }
                }
                if !input.is_empty() {
                    input.parse::<Token![,]>()?;
                }
            }
            Ok(())
        };
        let ended = parser.parse2(tokens);
        errors.extend(ended.err());
        if args.key.is_none() && !args.key_is_wrong {
            let reason = "no key: say what is locked, as in `key = \"order:{order_id}\"`";
            errors.push(Error::new(Span::call_site(), reason));
        }
        args
    }

    fn parse_option(&mut self, input: ParseStream) -> Result<()> {
        if input.peek(Lit) {
            self.key_is_wrong = true;
            return Err(input.error("options have names: write `key = \"…\"`"));
        }
        let name = Ident::parse_any(input)?;
        let twice = self.names.contains(&name);
        self.names.push(name.clone());
        let Some((option, example, _)) = OPTIONS.iter().find(|(option, ..)| name == option) else {
            return Err(self.unknown(&name));
        };
        self.key_is_wrong |= name == "key";
        let missing = || format!("`{name}` has no value: write `{name} = {example}`");
        let equals = input
            .parse::<Token![=]>()
            .map_err(|_| Error::new(name.span(), missing()))?;
        if input.is_empty() || input.peek(Token![,]) {
            return Err(Error::new(equals.span, missing()));
        }
        if twice {
            return Err(Error::new(
                name.span(),
                format!("`{name}` is given twice: leave one out"),
            ));
        }
        if name == "crate" {
            self.crate_path = Some(Path::parse_mod_style(input)?);
            return Ok(());
        }
        let value = ungrouped(input.parse()?);
        self.set(option, value)?;
        if input.is_empty() || input.peek(Token![,]) {
            return Ok(());
        }
        Err(input.error("expected a comma before the next option"))
    }

    fn set(&mut self, option: &'static str, value: Expr) -> Result<()> {
        match option {
            "key" => self.key = Some(key(value)?),
            "renew" if one_of(option, &value, ["true", "false"])? == "false" => {
                self.options.push(("without_renewal", TokenStream::new()));
            }
            "renew" => {}
            "on_busy" => self.skip_busy = one_of(option, &value, ["error", "skip"])? == "skip",
            "on_lost" => {
                let word = one_of(option, &value, ["cancel", "continue"])?;
                let variant = if word == "cancel" {
                    quote!(Cancel)
                } else {
                    quote!(Continue)
                };
                self.options.push((option, variant));
            }
            "on_error" => self.on_error = Some(value),
            "lease" => self.lease = Some(binding(&value)?),
            "locks" => self.locks = Some(value),
            _ => self.options.push((option, duration(option, value)?)),
        }
        Ok(())
    }

    fn unknown(&mut self, name: &Ident) -> Error {
        let text = name.to_string();
        let meant = OPTIONS
            .iter()
            .find(|(.., others)| others.split(' ').any(|other| other == text));
        let names = OPTIONS.map(|(option, ..)| option);
        let suggestion = meant
            .map(|(option, ..)| *option)
            .or_else(|| nearest(&text, names));
        self.key_is_wrong |= suggestion == Some("key");
        let advice = match suggestion {
            Some(option) => format!("did you mean `{option}`?"),
            None => format!("there are `{}`", names.join("`, `")),
        };
        Error::new(
            name.span(),
            format!("there is no option `{name}`: {advice}"),
        )
    }
}

/// A literal that comes through `$key:literal` or `$key:expr` stands in an invisible group.
fn ungrouped(value: Expr) -> Expr {
    match value {
        Expr::Group(group) => ungrouped(*group.expr),
        other => other,
    }
}

/// The candidate that is closest to `word`, if any is close at all.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let allowed = word.chars().count().max(3) / 3;
    let rated = candidates
        .into_iter()
        .map(|candidate| (distance(word, candidate), candidate));
    let best = rated.min_by_key(|(distance, _)| *distance);
    best.filter(|(distance, _)| *distance <= allowed)
        .map(|(_, candidate)| candidate)
}

/// Levenshtein's distance, where swapping two neighbours also costs one.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut table = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            if i == 0 || j == 0 {
                table[i][j] = i + j;
                continue;
            }
            let replaced = table[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            table[i][j] = replaced.min(table[i - 1][j] + 1).min(table[i][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                table[i][j] = table[i][j].min(table[i - 2][j - 2] + 1);
            }
        }
    }
    table[a.len()][b.len()]
}

fn key(value: Expr) -> Result<Key> {
    match value {
        Expr::Lit(ExprLit {
            lit: Lit::Str(literal),
            ..
        }) => Ok(Key::Template(literal)),
        Expr::Lit(ExprLit { lit, .. }) => Err(Error::new(
            lit.span(),
            "a key is text: write `key = \"order:42\"`, or an expression that is one",
        )),
        Expr::Array(array) => Err(Error::new_spanned(
            array,
            "several keys are not supported here: write one key, or stack two attributes",
        )),
        other => Ok(Key::Exact(other)),
    }
}

fn one_of(option: &str, value: &Expr, words: [&'static str; 2]) -> Result<&'static str> {
    let written = value.to_token_stream().to_string();
    words
        .into_iter()
        .find(|word| *word == written)
        .ok_or_else(|| {
            let [default, other] = words;
            let reason =
                format!("`{option}` is `{default}`, the default, or `{other}`, without quotes");
            Error::new_spanned(value, reason)
        })
}

fn binding(value: &Expr) -> Result<Ident> {
    syn::parse2(value.to_token_stream()).map_err(|_| {
        let reason = "`lease` is the name that the body gives the lease: write `lease = lease`";
        Error::new_spanned(value, reason)
    })
}

/// A duration literal, checked, or an expression, which is checked when it is run.
fn duration(option: &str, value: Expr) -> Result<TokenStream> {
    let Expr::Lit(ExprLit { lit, .. }) = value else {
        return Ok(value.into_token_stream());
    };
    let checked = match &lit {
        Lit::Str(text) => milliseconds(&text.value()).and_then(|ms| match ms {
            0 if option == "wait" => Ok(ms),
            0 => Err("it is zero, and the least is `\"100ms\"`".to_owned()),
            1..100 => Err("it is too short, and the least is `\"100ms\"`".to_owned()),
            100..=86_400_000 => Ok(ms),
            _ => Err("it is too long, and the most is `\"24h\"`".to_owned()),
        }),
        Lit::Int(number) => Err(format!(
            "a number needs a unit: write `\"{}s\"`",
            number.base10_digits()
        )),
        _ => Err("write a text with a unit, as in `\"10s\"`".to_owned()),
    };
    match checked {
        Ok(ms) => Ok(quote!(::core::time::Duration::from_millis(#ms))),
        Err(reason) => Err(Error::new(
            lit.span(),
            format!("`{option}` is no usable duration: {reason}"),
        )),
    }
}

/// Reads `1h`, `1m30s` or `500ms`.
fn milliseconds(text: &str) -> std::result::Result<u64, String> {
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err("it is empty: write a number and a unit, as in `\"10s\"`".to_owned());
    }
    let mut sum: u64 = 0;
    while !rest.is_empty() {
        let (number, after) = split(rest, |c| c.is_ascii_digit());
        let (unit, after) = split(after, |c| !c.is_ascii_digit());
        let unit = unit.trim();
        let scale = match unit {
            _ if number.is_empty() => {
                return Err(format!(
                    "`{unit}` does not begin with a number: write `\"1m30s\"`"
                ));
            }
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
            _ => {
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

fn split(text: &str, belongs: impl Fn(char) -> bool) -> (&str, &str) {
    text.split_at(text.find(|c| !belongs(c)).unwrap_or(text.len()))
}
