//! Durations, parsed from a literal with units into milliseconds.

use std::time::Duration;

use proc_macro2::Span;
use quote::ToTokens as _;
use syn::{Error, Expr, ExprLit, Ident, Lit, Result, spanned::Spanned as _};

use crate::{
    args::option_names::OptionName,
    bounds::{LONGEST_KEEP_MS, LONGEST_MS, SHORTEST_MS},
    diagnostics::refuse,
    item::Names,
};

const NO_TEXT: &str = "write a text with a unit, as in `\"10s\"`";

/// The value of `wait` that means no limit.
const FOREVER: &str = "forever";

/// The value of an option that is a duration.
pub(crate) enum DurationValue {
    Milliseconds(u64),
    /// A wait without a limit.
    Forever,
    /// An expression, which is checked at run time.
    Computed(Expr),
}

/// The durations of one attribute that are literals, so that they can be compared with each other.
#[derive(Default)]
pub(crate) struct Literals {
    found: Vec<(OptionName, Duration, Span)>,
    pub(crate) without_renewal: bool,
}

impl Literals {
    pub(crate) fn push(&mut self, option: OptionName, ms: u64, at: Span) {
        self.found.push((option, Duration::from_millis(ms), at));
    }

    fn get(&self, wanted: OptionName) -> Option<(Duration, Span)> {
        let mut found = self.found.iter();
        let found = found.find(|(option, ..)| *option == wanted);
        found.map(|(_, duration, at)| (*duration, *at))
    }

    /// Finds contradictions. lock-core reports the same for values that are only known at run time.
    pub(crate) fn check(&self) -> Vec<Error> {
        let get = |option| self.get(option);
        let mut errors = Vec::new();
        let Some((max, at_max)) = get(OptionName::MaxHold) else {
            return errors;
        };
        if let Some((min, at)) = get(OptionName::MinHold)
            && min > max
        {
            let reason = format!(
                "min_hold ({min:?}) is longer than max_hold ({max:?}): swap them, or leave one out"
            );
            errors.push(Error::new(at, reason));
        }
        if let Some((ttl, _)) = get(OptionName::Ttl)
            && self.without_renewal
            && max > ttl
        {
            let reason = format!(
                "renewal is off, so the lease ends at its ttl ({ttl:?}) and never reaches max_hold ({max:?}): leave max_hold out, or \
                 choose a longer ttl"
            );
            errors.push(Error::new(at_max, reason));
        }
        errors
    }
}

/// Reads a duration literal, which is checked here, or an expression, which is checked at run time. `arguments` are those of
/// the function.
pub(crate) fn duration(
    option: OptionName,
    value: Expr,
    arguments: Option<&Names>,
) -> Result<DurationValue> {
    if option == OptionName::Wait && is_bare_forever(&value, arguments) {
        let reason =
            "`wait` is not a usable duration: it needs quotation marks: write `\"forever\"`";
        return refuse(value.span(), reason);
    }
    let Expr::Lit(ExprLit { lit, .. }) = value else {
        return Ok(DurationValue::Computed(value));
    };
    let least = format!("`\"{SHORTEST_MS}ms\"`");
    let most = match option {
        OptionName::Keep => LONGEST_KEEP_MS,
        _ => LONGEST_MS,
    };
    let reason = match &lit {
        Lit::Str(text) if text.value().trim() == FOREVER => match option {
            OptionName::Wait => return Ok(DurationValue::Forever),
            OptionName::MaxHold => "to set no bound, leave it out".to_owned(),
            _ => "only `wait` can be `\"forever\"`".to_owned(),
        },
        Lit::Str(text) => match milliseconds(text.value().trim()) {
            Ok(0) if option != OptionName::Wait => {
                format!("it is zero, but must be at least {least}")
            }
            Ok(1..SHORTEST_MS) => format!("it is too short, and must be at least {least}"),
            Ok(ms) if ms > most => {
                let forever = match option {
                    OptionName::Wait => ", or `\"forever\"`",
                    _ => "",
                };
                format!(
                    "it is too long, and must be at most `\"{}h\"`{forever}",
                    most / 3_600_000
                )
            }
            Ok(ms) => return Ok(DurationValue::Milliseconds(ms)),
            Err(reason) => reason,
        },
        Lit::Int(number) if number.suffix().is_empty() => {
            format!("a number needs a unit: write `\"{number}s\"`")
        }
        Lit::Float(number) if number.suffix().is_empty() => NO_TEXT.to_owned(),
        // To the compiler, `10s` is a number with a suffix.
        Lit::Int(_) | Lit::Float(_) => {
            let text = lit.to_token_stream().to_string();
            match milliseconds(&text) {
                Ok(_) => format!("it needs quotation marks: write `\"{text}\"`"),
                Err(reason) => reason,
            }
        }
        _ => NO_TEXT.to_owned(),
    };
    let reason = format!("`{}` is not a usable duration: {reason}", option.text());
    refuse(lit.span(), reason)
}

/// Returns `true` if the value is the word without quotation marks, and not an argument of that name.
fn is_bare_forever(value: &Expr, arguments: Option<&Names>) -> bool {
    let Ok(name) = syn::parse2::<Ident>(value.to_token_stream()) else {
        return false;
    };
    name == FOREVER && arguments.is_none_or(|arguments| arguments.find(&name).is_none())
}

/// Reads a text such as `1h`, `1m30s` or `500ms`.
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
            "." => Err("instead of a fraction, use a smaller unit: `\"1s500ms\"`".to_owned()),
            unit => Err(format!("unknown unit `{unit}`: use `h`, `m`, `s` or `ms`")),
        };
        let number = number.parse().unwrap_or(u64::MAX);
        sum = sum.saturating_add(number.saturating_mul(scale?));
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
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
    }
}
