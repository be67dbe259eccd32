//! The attribute's options: from tokens to [`Args`].

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote};
use syn::{
    Error, Expr, Ident, Lit, Path, Result, Token,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
    spanned::Spanned as _,
};

use crate::{
    diagnostics::{nearest, refuse},
    duration::{DurationValue, Literals, duration},
    item::Names,
    key::{Keys, ungrouped},
    mode::{Mode, Modes, permits},
    options::OptionName,
};

/// The attribute's options, checked as far as macros can.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) key: Option<Result<Keys>>,
    /// The setters of `LockOptions` to call, and their arguments.
    pub(crate) setters: Vec<(&'static str, TokenStream)>,
    pub(crate) modes: Option<Modes>,
    pub(crate) skip_busy: bool,
    pub(crate) on_error: Option<Expr>,
    pub(crate) lease: Option<Ident>,
    pub(crate) locks: Option<Expr>,
    /// The path of the items that the output calls.
    pub(crate) private: TokenStream,
    /// Each option's name as the user wrote it, known or not.
    pub(crate) names: Vec<Ident>,
    /// The durations that are literals.
    literals: Literals,
    /// Whether an option that was meant to be the key was found, with or without a mistake.
    key_seen: bool,
}

impl Args {
    /// Reads all options, and reports every mistake in any of them. `arguments` are those of the function, if it could be read.
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
        errors.extend(args.literals.check());
        if let (Some(modes), Some(Ok(keys))) = (&args.modes, &args.key) {
            errors.extend(modes.check(keys).err());
        }
        // The mistake of the key comes after those of the other options, because it has the most lines.
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
        let mut known = OptionName::ALL.into_iter();
        let Some(option) = known.find(|option| name == option.text()) else {
            return self.unknown(&name);
        };
        self.key_seen |= option == OptionName::Key;
        let equals: Option<Token![=]> = input.parse()?;
        if equals.is_none() || at_end(input) {
            let at = equals.map_or(name.span(), |equals| equals.span);
            let reason = format!(
                "`{name}` has no value: write `{name} = {}`",
                option.example()
            );
            return refuse(at, reason);
        }
        if twice {
            let reason = format!("`{name}` is given twice: leave one out");
            return refuse(name.span(), reason);
        }
        if let Some(other) = option.excludes()
            && self.names.iter().any(|name| name == other.text())
        {
            let reason = format!(
                "`{name}` and `{}` exclude each other: write `mode` for one holder or any number of shared ones, or `permits` for so \
                 many at a time",
                other.text()
            );
            return refuse(name.span(), reason);
        }
        let value = ungrouped(input.parse()?);
        self.set(option, value, arguments)?;
        if at_end(input) {
            return Ok(());
        }
        Err(input.error("expected a comma before the next option"))
    }

    fn set(&mut self, option: OptionName, value: Expr, arguments: Option<&Names>) -> Result<()> {
        match option {
            OptionName::Key => self.key = Some(Keys::parse(value, arguments)),
            OptionName::Ttl | OptionName::Wait | OptionName::MaxHold | OptionName::MinHold => {
                self.set_duration(option, value, arguments)?;
            }
            OptionName::Mode => {
                let modes = Modes::parse(value)?;
                if matches!(modes, Modes::OfAll(Mode::Shared)) {
                    self.setters.push(("shared", TokenStream::new()));
                }
                self.modes = Some(modes);
            }
            OptionName::Permits => self.setters.push((option.text(), permits(value)?)),
            OptionName::Renew => {
                if is_other(option, &value, ["true", "false"])? {
                    self.literals.without_renewal = true;
                    self.setters.push(("without_renewal", TokenStream::new()));
                }
            }
            OptionName::OnBusy => self.skip_busy = is_other(option, &value, ["error", "skip"])?,
            OptionName::OnLost => {
                if is_other(option, &value, ["cancel", "continue"])? {
                    self.setters.push((option.text(), quote!(Continue)));
                }
            }
            OptionName::OnError => self.on_error = Some(value),
            OptionName::Release => {
                let is_background = is_other(option, &value, ["awaited", "background"])?;
                let setter = if is_background {
                    "release_in_background"
                } else {
                    "release_awaited"
                };
                self.setters.push((setter, TokenStream::new()));
            }
            OptionName::Lease => self.lease = Some(lease(&value, arguments)?),
            OptionName::Locks => self.locks = Some(value),
            OptionName::Crate => {
                let path = Path::parse_mod_style.parse2(value.into_token_stream())?;
                self.private = quote!(#path::__private);
            }
        }
        Ok(())
    }

    fn set_duration(
        &mut self,
        option: OptionName,
        value: Expr,
        arguments: Option<&Names>,
    ) -> Result<()> {
        let at = value.span();
        let setter = match duration(option, value, arguments)? {
            DurationValue::Forever => ("wait_forever", TokenStream::new()),
            DurationValue::Milliseconds(ms) => {
                self.literals.push(option, ms, at);
                (
                    option.text(),
                    quote!(::core::time::Duration::from_millis(#ms)),
                )
            }
            DurationValue::Computed(value) => (option.text(), value.into_token_stream()),
        };
        self.setters.push(setter);
        Ok(())
    }

    fn unknown(&mut self, name: &Ident) -> Result<()> {
        let text = name.to_string();
        let mut known = OptionName::ALL.into_iter();
        let meant = known.find(|option| option.is_also_called(&text));
        let names = OptionName::ALL.map(|option| option.text().to_owned());
        let advice = match meant
            .map(OptionName::text)
            .or_else(|| nearest(&text, &names))
        {
            Some(option) => {
                self.key_seen |= option == OptionName::Key.text();
                // `rw` says only that there are two modes.
                match Mode::meant_by(&text).filter(|_| text != "rw") {
                    Some(mode) if option == OptionName::Mode.text() => {
                        format!("write `mode = {}`", mode.text())
                    }
                    _ => format!("did you mean `{option}`?"),
                }
            }
            None => format!("there are `{}`", names.join("`, `")),
        };
        let reason = format!("there is no option `{name}`: {advice}");
        refuse(name.span(), reason)
    }
}

fn at_end(input: ParseStream) -> bool {
    input.is_empty() || input.peek(Token![,])
}

/// Whether the value is the second word, and not the first, which is the default.
fn is_other(option: OptionName, value: &Expr, [usual, other]: [&str; 2]) -> Result<bool> {
    let written = value.to_token_stream().to_string();
    if written == usual || written == other {
        return Ok(written == other);
    }
    let option = option.text();
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

#[cfg(test)]
mod tests {
    use proc_macro2::Literal;
    use proptest::prelude::*;

    use super::*;

    proptest! {
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
