//! The mode of a lock, or of each key of a list, and the number of permits.

use proc_macro2::TokenStream;
use quote::ToTokens as _;
use syn::{Error, Expr, ExprArray, ExprLit, ExprUnary, Lit, Result, UnOp};

use crate::{
    bounds::PERMITS,
    diagnostics::all,
    key::{Keys, ungrouped},
};

const OTHER_OPTION: &str = "; to limit the number of holders, write `permits = 3` instead";

/// The mode, which decides which other holders may have the lock at the same time.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    Exclusive,
    Shared,
}

/// The value of the option `mode`.
pub(crate) enum Modes {
    OfAll(Mode),
    OfEach(Vec<Mode>, ExprArray),
}

impl Mode {
    /// Returns the mode as it is written, which is also the name of the function that gives a key this mode.
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Exclusive => "exclusive",
            Self::Shared => "shared",
        }
    }

    /// Returns the mode that another library calls by this word, or that a user is likely to mean by it.
    pub(crate) fn meant_by(word: &str) -> Option<Self> {
        match word {
            "shared" | "share" | "read" | "reader" | "readers" | "read_only" | "readonly" | "r" => {
                Some(Self::Shared)
            }
            "exclusive" | "write" | "writer" | "writers" | "read_write" | "rw" | "w" | "mutex" => {
                Some(Self::Exclusive)
            }
            _ => None,
        }
    }

    fn parse(value: &Expr) -> Result<Self> {
        let written = value.to_token_stream().to_string();
        let known = [Self::Exclusive, Self::Shared];
        if let Some(mode) = known.into_iter().find(|mode| written == mode.text()) {
            return Ok(mode);
        }
        let word = written.trim_matches('"').to_lowercase();
        let advice = match (Self::meant_by(&word), word.as_str()) {
            (Some(Self::Shared), _) => ": write `shared`",
            (Some(Self::Exclusive), _) => ": write `exclusive`",
            (None, "permits" | "permit" | "semaphore") => OTHER_OPTION,
            (None, number) if number.parse::<u64>().is_ok() => OTHER_OPTION,
            (None, _) => "",
        };
        let reason =
            format!("`mode` must be `exclusive`, the default, or `shared`, without quotes{advice}");
        Err(Error::new_spanned(value, reason))
    }
}

impl Modes {
    /// Reads a mode, or a list of them.
    pub(crate) fn parse(value: Expr) -> Result<Self> {
        let list = match value {
            Expr::Array(list) => list,
            Expr::Tuple(_) => {
                let reason =
                    "write one mode for each key, in brackets: `mode = [exclusive, shared]`";
                return Err(Error::new_spanned(value, reason));
            }
            one => return Mode::parse(&one).map(Self::OfAll),
        };
        let each = list.elems.iter().cloned().map(ungrouped);
        let modes = all(each.map(|value| Mode::parse(&value)))?;
        Ok(Self::OfEach(modes, list))
    }

    /// Checks that each key has a mode.
    pub(crate) fn check(&self, keys: &Keys) -> Result<()> {
        let Self::OfEach(modes, list) = self else {
            return Ok(());
        };
        let reason = match keys {
            Keys::One(_) => {
                "there is one key, but a list of modes: write `mode = shared`, without brackets"
                    .to_owned()
            }
            Keys::List(keys) if keys.len() != modes.len() => format!(
                "the list of modes has length {}, but that of the keys has length {}: write one mode for each key, in the same \
                 order, or one without brackets for all",
                modes.len(),
                keys.len()
            ),
            Keys::List(_) => return Ok(()),
        };
        Err(Error::new_spanned(list, reason))
    }

    /// Returns the mode of a key in a list, if the key has its own.
    pub(crate) fn of(&self, position: usize) -> Option<Mode> {
        match self {
            Self::OfAll(_) => None,
            Self::OfEach(modes, _) => modes.get(position).copied(),
        }
    }
}

/// Reads a literal number of permits, which is checked here, or an expression, which is checked at run time.
pub(crate) fn permits(value: Expr) -> Result<TokenStream> {
    let (least, most) = PERMITS;
    let reason = match &value {
        Expr::Lit(ExprLit {
            lit: Lit::Int(number),
            ..
        }) => match number.base10_parse::<u64>().unwrap_or(u64::MAX) {
            n if n < least => format!("it is zero, but must be at least {least}"),
            n if n > most => format!("it is too large, and must be at most {most}"),
            // Written with a type suffix, since some crates forbid numbers without one.
            n => return Ok(n.into_token_stream()),
        },
        Expr::Lit(ExprLit {
            lit: Lit::Str(text),
            ..
        }) if text.value().parse::<u64>().is_ok() => {
            format!(
                "a number takes no quotes: write `permits = {}`",
                text.value()
            )
        }
        Expr::Unary(ExprUnary {
            op: UnOp::Neg(_),
            expr,
            ..
        }) if matches!(**expr, Expr::Lit(_)) => {
            format!("it is negative, but must be at least {least}")
        }
        Expr::Array(_) => {
            "all keys of a list have the same number: write it once, without brackets".to_owned()
        }
        Expr::Lit(_) => format!("write a number from {least} to {most}, as in `permits = 3`"),
        _ => return Ok(value.into_token_stream()),
    };
    let reason = format!("`permits` is not a usable number: {reason}");
    Err(Error::new_spanned(value, reason))
}
