//! The attribute's options: from tokens to [`Args`].

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote};
use syn::{
    Error, Expr, ExprLit, Ident, Lit, Path, Result, Token,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
};

use crate::{
    diagnostics::{nearest, refuse, ungrouped},
    item::Names,
    key::Keys,
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

/// The attribute's options, checked as far as macros can.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) key: Option<Result<Keys>>,
    /// The setters of `LockOptions` to call, and their arguments.
    pub(crate) setters: Vec<(&'static str, TokenStream)>,
    pub(crate) skip_busy: bool,
    pub(crate) on_error: Option<Expr>,
    pub(crate) lease: Option<Ident>,
    pub(crate) locks: Option<Expr>,
    /// The path of what the output calls.
    pub(crate) private: TokenStream,
    /// Each option's name as the user wrote it, known or not.
    pub(crate) names: Vec<Ident>,
    /// Whether something that was meant to be the key was seen, right or wrong.
    key_seen: bool,
}

impl Args {
    /// Reads all options, and says everything that is wrong with any of them. `arguments` are the function's, if it
    /// could be read.
    pub(crate) fn parse(tokens: TokenStream, arguments: Option<&Names>) -> (Self, Vec<Error>) {
        let mut errors = Vec::new();
        let mut args = Self {
            private: quote!(::lock_core::__private),
            ..Self::default()
        };
        let parser = |input: ParseStream| {
            while !input.is_empty() {
                if let Err(error) = args.parse_option(input, arguments) {
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
        // Behind the other options' mistakes, because it takes most lines.
        if let Some(Err(error)) = &args.key {
            errors.push(error.clone());
        }
        if !args.key_seen {
            let reason = "no key: say what is locked, as in `key = \"order:{order_id}\"`";
            errors.push(Error::new(Span::call_site(), reason));
        }
        (args, errors)
    }

    fn parse_option(&mut self, input: ParseStream, arguments: Option<&Names>) -> Result<()> {
        if input.peek(Lit) {
            self.key_seen = true;
            return Err(input.error("options have names: write `key = \"…\"`"));
        }
        let name = Ident::parse_any(input)?;
        let twice = self.names.contains(&name);
        self.names.push(name.clone());
        let Some((option, example, _)) = options().find(|(option, ..)| name == option) else {
            return self.unknown(&name);
        };
        self.key_seen |= option == "key";
        let equals: Option<Token![=]> = input.parse()?;
        if equals.is_none() || at_end(input) {
            let at = equals.map_or(name.span(), |equals| equals.span);
            let reason = format!("`{name}` has no value: write `{name} = {example}`");
            return refuse(at, reason);
        }
        if twice {
            let reason = format!("`{name}` is given twice: leave one out");
            return refuse(name.span(), reason);
        }
        let value = ungrouped(input.parse()?);
        self.set(option, value, arguments)?;
        if at_end(input) {
            return Ok(());
        }
        Err(input.error("expected a comma before the next option"))
    }

    fn set(&mut self, option: &'static str, value: Expr, arguments: Option<&Names>) -> Result<()> {
        match option {
            "key" => self.key = Some(Keys::parse(value, arguments)),
            "renew" if is_other(option, &value, ["true", "false"])? => {
                self.setters.push(("without_renewal", TokenStream::new()));
            }
            "on_busy" => self.skip_busy = is_other(option, &value, ["error", "skip"])?,
            "on_lost" if is_other(option, &value, ["cancel", "continue"])? => {
                self.setters.push((option, quote!(Continue)));
            }
            "renew" | "on_lost" => {}
            "on_error" => self.on_error = Some(value),
            "lease" => self.lease = Some(lease(&value, arguments)?),
            "locks" => self.locks = Some(value),
            "crate" => {
                let path = Path::parse_mod_style.parse2(value.into_token_stream())?;
                self.private = quote!(#path::__private);
            }
            _ => self.setters.push((option, duration(option, value)?)),
        }
        Ok(())
    }

    fn unknown(&mut self, name: &Ident) -> Result<()> {
        let text = name.to_string();
        let meant = options().find(|(.., others)| others.split(' ').any(|other| other == text));
        let names: Vec<_> = options().map(|(option, ..)| option.to_owned()).collect();
        let meant = meant.map(|(option, ..)| option);
        let advice = match meant.or_else(|| nearest(&text, &names)) {
            Some(option) => {
                self.key_seen |= option == "key";
                format!("did you mean `{option}`?")
            }
            None => format!("there are `{}`", names.join("`, `")),
        };
        let reason = format!("there is no option `{name}`: {advice}");
        refuse(name.span(), reason)
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

fn at_end(input: ParseStream) -> bool {
    input.is_empty() || input.peek(Token![,])
}

/// Whether the second word stands there, and not the first, which is the default.
fn is_other(option: &str, value: &Expr, [usual, other]: [&str; 2]) -> Result<bool> {
    let written = value.to_token_stream().to_string();
    if written == usual || written == other {
        return Ok(written == other);
    }
    let reason = format!("`{option}` is `{usual}`, the default, or `{other}`, without quotes");
    Err(Error::new_spanned(value, reason))
}

fn lease(value: &Expr, arguments: Option<&Names>) -> Result<Ident> {
    let Ok(name) = syn::parse2::<Ident>(value.to_token_stream()) else {
        let reason = "`lease` is the name that the body gives the lease: write `lease = lease`";
        return Err(Error::new_spanned(value, reason));
    };
    if arguments.is_some_and(|arguments| arguments.find(&name).is_some()) {
        let reason = "is an argument of this function already: choose another name for the lease";
        return refuse(name.span(), format!("`{name}` {reason}"));
    }
    Ok(name)
}

/// A duration literal, checked, or an expression, which is checked when it is run.
fn duration(option: &str, value: Expr) -> Result<TokenStream> {
    let Expr::Lit(ExprLit { lit, .. }) = value else {
        return Ok(value.into_token_stream());
    };
    let reason = match &lit {
        Lit::Str(text) => match milliseconds(text.value().trim()) {
            Ok(0) if option != "wait" => "it is zero, and the least is `\"100ms\"`".to_owned(),
            Ok(1..100) => "it is too short, and the least is `\"100ms\"`".to_owned(),
            Ok(86_400_001..) => "it is too long, and the most is `\"24h\"`".to_owned(),
            Ok(ms) => return Ok(quote!(::core::time::Duration::from_millis(#ms))),
            Err(reason) => reason,
        },
        Lit::Int(number) => format!("a number needs a unit: write `\"{number}s\"`"),
        _ => "write a text with a unit, as in `\"10s\"`".to_owned(),
    };
    let reason = format!("`{option}` is no usable duration: {reason}");
    refuse(lit.span(), reason)
}

/// Reads `1h`, `1m30s` or `500ms`.
fn milliseconds(text: &str) -> std::result::Result<u64, String> {
    if text.is_empty() {
        return Err("it is empty: write a number and a unit, as in `\"10s\"`".to_owned());
    }
    let (mut rest, mut sum) = (text, 0_u64);
    while !rest.is_empty() {
        let after = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let number = &rest[..rest.len() - after.len()];
        rest = after.trim_start_matches(|c: char| !c.is_ascii_digit());
        let unit = &after[..after.len() - rest.len()];
        let scale = match unit.trim() {
            _ if number.is_empty() => Err(format!("`{unit}` does not begin with a number")),
            "ms" => Ok(1),
            "s" => Ok(1_000),
            "m" => Ok(60_000),
            "h" => Ok(3_600_000),
            "" => Err(format!("`{number}` has no unit: write `\"{text}s\"`")),
            "." => Err("write a fraction in a smaller unit: `\"1s500ms\"`".to_owned()),
            unit => Err(format!(
                "there is no unit `{unit}`: there are `h`, `m`, `s` and `ms`"
            )),
        };
        let number = number.parse().unwrap_or(u64::MAX);
        sum = sum.saturating_add(number.saturating_mul(scale?));
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use proc_macro2::Literal;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_duration_is_the_sum_of_its_parts(h in 0_u64..30, m in 0_u64..90, s in 0_u64..90, ms in 0_u64..2_000) {
            let sum = h * 3_600_000 + m * 60_000 + s * 1_000 + ms;
            prop_assert_eq!(milliseconds(&format!("{h}h{m}m{s}s{ms}ms")), Ok(sum));
            prop_assert_eq!(milliseconds(&format!("{h} h {m} m")), Ok(h * 3_600_000 + m * 60_000));
        }

        #[test]
        fn any_text_is_a_duration_or_says_what_is_wrong(text in r"[0-9hms. \-+e\PC]{0,24}") {
            if let Err(reason) = milliseconds(&text) {
                prop_assert!(!reason.is_empty());
            }
        }

        #[test]
        fn no_text_of_a_template_or_duration_panics(
            key in r"[a-z{}:.?!&*()\[\]0-9 %#\PC]{0,32}",
            ttl in r"[0-9hms.]{0,12}",
        ) {
            let (key, ttl) = (Literal::string(&key), Literal::string(&ttl));
            let (_, errors) = Args::parse(quote!(key = #key, ttl = #ttl), None);
            for error in errors {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn no_list_of_options_panics(options in r#"[a-z_=,"{}()\[\]:&|0-9 .]{0,48}"#) {
            if let Ok(tokens) = options.parse::<TokenStream>() {
                let (_, errors) = Args::parse(tokens, None);
                prop_assert!(errors.iter().all(|error| !error.to_string().is_empty()));
            }
        }
    }
}
