//! The attribute's options: from tokens to [`Args`].

use proc_macro2::{Span, TokenStream, TokenTree};
use quote::{ToTokens as _, quote, quote_spanned};
use syn::{
    Error, Expr, ExprLit, Ident, Lit, Path, Result, Token, bracketed,
    ext::IdentExt as _,
    parse::{ParseStream, Parser as _},
    spanned::Spanned as _,
    token::Bracket,
};

use crate::{
    args::{
        duration::{DurationValue, Literals, duration},
        mode::{Mode, Modes, permits},
        option_names::{AttributeName, OptionName},
    },
    diagnostics::{nearest, refuse},
    item::Names,
    key::{Keys, ungrouped},
};

pub(crate) mod duration;
pub(crate) mod mode;
pub(crate) mod option_names;

/// The attribute's options, checked as far as a macro can.
#[derive(Default)]
pub(crate) struct Args {
    pub(crate) attribute: AttributeName,
    pub(crate) key: Option<Result<Keys>>,
    /// How long a result is kept.
    pub(crate) keep: Option<TokenStream>,
    /// `true` if the body continues when its caller is dropped.
    pub(crate) finishes: bool,
    /// The setters of the options to call, and their arguments.
    pub(crate) setters: Vec<(&'static str, TokenStream)>,
    /// `true` if the reply to the release is awaited, whatever the manager's default.
    pub(crate) awaits_release: bool,
    pub(crate) modes: Option<Modes>,
    pub(crate) skip_busy: bool,
    pub(crate) on_error: Option<Expr>,
    pub(crate) lease: Option<Ident>,
    pub(crate) locks: Option<Expr>,
    /// The path of the items that the output uses.
    pub(crate) private: TokenStream,
    /// Each option's name as the user wrote it, known or not.
    pub(crate) names: Vec<Ident>,
    /// The durations that are literals.
    literals: Literals,
    /// The required options that are still missing. One that was found does not count as missing, even if it had a mistake or was
    /// written as another word.
    missing: Vec<OptionName>,
}

impl Args {
    /// Reads all options, and reports every mistake in any of them. `arguments` are those of the function, if it could be read.
    pub(crate) fn parse(
        attribute: AttributeName,
        tokens: TokenStream,
        arguments: Option<&Names>,
    ) -> (Self, Vec<Error>) {
        let mut errors = Vec::new();
        let is_once = attribute == AttributeName::RunOnce;
        let mut args = Self {
            attribute,
            finishes: is_once,
            missing: if is_once {
                vec![OptionName::Key, OptionName::Keep]
            } else {
                vec![OptionName::Key]
            },
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
        // The error about the key follows those about other options, because it has the most lines.
        if let Some(Err(error)) = &args.key {
            errors.push(error.clone());
        }
        for missing in &args.missing {
            let reason = match missing {
                OptionName::Keep => {
                    "missing `keep`: set how long repeats get the result, as in `keep = \"24h\"`"
                }
                _ => "missing `key`: name what is locked, as in `key = \"order:{order_id}\"`",
            };
            errors.push(Error::new(Span::call_site(), reason));
        }
        (args, errors)
    }

    fn parse_option(&mut self, input: ParseStream, arguments: Option<&Names>) -> Result<()> {
        if input.peek(Lit) {
            self.note(OptionName::Key);
            return Err(input.error("options have names: write `key = \"…\"`"));
        }
        let name = Ident::parse_any(input)?;
        let twice = self.names.contains(&name);
        self.names.push(name.clone());
        let mut known = OptionName::all();
        let Some(option) = known.find(|option| name == option.text()) else {
            return self.unknown(&name);
        };
        self.note(option);
        if let Some(reason) = option.refused_by(self.attribute) {
            let attribute = self.attribute.text();
            let reason = format!("`{name}` is not an option of `{attribute}`: {reason}");
            return refuse(name.span(), reason);
        }
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
                "`{name}` and `{}` exclude each other: write `mode` for one holder or any number of shared ones, or `permits` \
                 for a limited number",
                other.text()
            );
            return refuse(name.span(), reason);
        }
        check_list(&input.fork(), option)?;
        let value = ungrouped(input.parse()?);
        self.set(option, value, arguments)?;
        if at_end(input) {
            return Ok(());
        }
        Err(input.error("expected a comma before the next option"))
    }

    fn set(&mut self, option: OptionName, value: Expr, arguments: Option<&Names>) -> Result<()> {
        match option {
            OptionName::Key => self.key = Some(self.keys(value, arguments)),
            OptionName::Keep
            | OptionName::Ttl
            | OptionName::Wait
            | OptionName::MaxHold
            | OptionName::MinHold => {
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
            OptionName::OnDrop => {
                let [cancel, finish] = ["cancel", "finish"];
                self.finishes = match self.attribute {
                    AttributeName::DistributedLock => is_other(option, &value, [cancel, finish])?,
                    AttributeName::RunOnce => !is_other(option, &value, [finish, cancel])?,
                };
            }
            OptionName::Fingerprint => {
                refuse_text(&value)?;
                // The reference has the span of the expression, so that an error points there.
                let at = value.span().resolved_at(Span::mixed_site());
                self.setters
                    .push((option.text(), quote_spanned!(at=> &#value)));
            }
            OptionName::OnError => self.on_error = Some(value),
            OptionName::Release => {
                if is_other(option, &value, ["awaited", "background"])? {
                    let setter = "release_in_background";
                    self.setters.push((setter, TokenStream::new()));
                } else {
                    self.awaits_release = true;
                }
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

    fn keys(&self, value: Expr, arguments: Option<&Names>) -> Result<Keys> {
        if self.attribute == AttributeName::RunOnce && matches!(value, Expr::Array(_)) {
            let reason = "a body runs once for a single key: write one key with all values, as in `\"transfer:{from}:{to}\"`";
            return Err(Error::new_spanned(value, reason));
        }
        Keys::parse(value, arguments)
    }

    /// Records that an option was found, or was meant by another word.
    fn note(&mut self, found: OptionName) {
        self.missing.retain(|option| *option != found);
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
        if option == OptionName::Keep {
            self.keep = Some(setter.1);
        } else {
            self.setters.push(setter);
        }
        Ok(())
    }

    fn unknown(&mut self, name: &Ident) -> Result<()> {
        let text = name.to_string();
        let ours = |option: &OptionName| option.refused_by(self.attribute).is_none();
        let known: Vec<_> = OptionName::all().filter(ours).collect();
        let names: Vec<_> = known.iter().map(|one| one.text().to_owned()).collect();
        let meant = known.iter().find(|option| option.is_also_called(&text));
        let nearest = || {
            let nearest = nearest(&text, &names);
            known.iter().find(|option| nearest == Some(option.text()))
        };
        let advice = match meant.or_else(nearest).copied() {
            Some(meant) => {
                self.note(meant);
                let option = meant.text();
                // `rw` does not say which of the two modes is meant.
                match Mode::meant_by(&text).filter(|_| text != "rw") {
                    Some(mode) if meant == OptionName::Mode => {
                        format!("write `mode = {}`", mode.text())
                    }
                    _ => format!("did you mean `{option}`?"),
                }
            }
            None => format!("the options are `{}`", names.join("`, `")),
        };
        let reason = format!("unknown option `{name}`: {advice}");
        refuse(name.span(), reason)
    }
}

/// Reports the expected item where a list lacks a comma, since the parser of expressions names only the comma.
fn check_list(ahead: ParseStream, option: OptionName) -> Result<()> {
    if !ahead.peek(Bracket) {
        return Ok(());
    }
    let list;
    bracketed!(list in ahead);
    loop {
        if list.is_empty() || list.parse::<Expr>().is_err() || list.peek(Token![;]) {
            return Ok(());
        }
        if !at_end(&list) {
            let expected = match option {
                OptionName::Key => r#"the next key, as in `["from:{from}", "to:{to}"]`"#,
                OptionName::Mode => "the next mode, as in `[exclusive, shared]`",
                _ => "the next value",
            };
            return Err(list.error(format!("expected a comma before {expected}")));
        }
        list.parse::<Option<Token![,]>>()?;
    }
}

fn at_end(input: ParseStream) -> bool {
    input.is_empty() || input.peek(Token![,])
}

/// Returns `true` if the value is the second word, and not the first, which is the default.
fn is_other(option: OptionName, value: &Expr, [usual, other]: [&str; 2]) -> Result<bool> {
    let written = value.to_token_stream().to_string();
    if written == usual || written == other {
        return Ok(written == other);
    }
    let option = option.text();
    let reason = format!("`{option}` must be `{usual}`, the default, or `{other}`, without quotes");
    Err(Error::new_spanned(value, reason))
}

/// Refuses a literal as a fingerprint, because it would be the same for every request. The user may have meant a template, as
/// for the key, so the error names the values in its braces.
fn refuse_text(value: &Expr) -> Result<()> {
    let Expr::Lit(ExprLit { lit, .. }) = value else {
        return Ok(());
    };
    let names = match lit {
        Lit::Str(text) => names_in_braces(&text.value()),
        _ => Vec::new(),
    };
    let advice = match &names[..] {
        [] => "this one is the same for every request: write a value that describes the request, as in \
               `fingerprint = body`"
            .to_owned(),
        [name] => format!("write `fingerprint = {name}`"),
        names => format!("write `fingerprint = (&{})`", names.join(", &")),
    };
    refuse(
        lit.span(),
        format!("a fingerprint must be a value: {advice}"),
    )
}

/// Returns the values of a template, as they are written between its braces.
fn names_in_braces(text: &str) -> Vec<String> {
    let text = text.replace("{{", "").replace("}}", "");
    let inner = text.split('{').skip(1);
    let inner = inner.filter_map(|part| part.split_once('}'));
    let values = inner.map(|(value, _)| {
        // A single colon begins the format spec.
        let end = value.replace("::", "..").find(':');
        value[..end.unwrap_or(value.len())].trim().to_owned()
    });
    values.filter(|value| !value.is_empty()).collect()
}

fn lease(value: &Expr, arguments: Option<&Names>) -> Result<Ident> {
    let Ok(name) = syn::parse2::<Ident>(value.to_token_stream()) else {
        let reason = "`lease` takes the name of the lease in the body: write `lease = lease`";
        return Err(Error::new_spanned(value, reason));
    };
    if arguments.is_some_and(|arguments| arguments.find(&name).is_some()) {
        let reason = "is already an argument of this function: choose another name for the lease";
        return refuse(name.span(), format!("`{name}` {reason}"));
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use proc_macro2::Literal;
    use proptest::prelude::*;

    use super::*;

    /// Returns the errors of `#[distributed_lock(…)]` with these options.
    fn errors(options: &str) -> Vec<String> {
        let options = options.parse().expect("tokens");
        let (_, errors) = Args::parse(AttributeName::DistributedLock, options, None);
        errors.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_word_of_another_library_gets_the_option_as_advice() {
        for (word, option) in [
            ("concurrency", "permits"),
            ("expire", "ttl"),
            ("guard", "lease"),
            ("lease_time", "ttl"),
            ("limit", "permits"),
            ("lock_at_least_for", "min_hold"),
            ("lock_at_most_for", "max_hold"),
            ("manager", "locks"),
            ("map_err", "on_error"),
            ("max_concurrent", "permits"),
            ("on_cancel", "on_drop"),
            ("on_conflict", "on_busy"),
            ("on_expired", "on_lost"),
            ("release_in_background", "release"),
            ("rw", "mode"),
            ("semaphore", "permits"),
            ("slots", "permits"),
            ("timeout", "wait"),
            ("watchdog", "renew"),
        ] {
            let advice = format!("unknown option `{word}`: did you mean `{option}`?");
            assert_eq!(errors(&format!("key = \"k\", {word} = 3")), [advice]);
        }
        let advice = "unknown option `name`: did you mean `key`?";
        assert_eq!(errors("name = \"k\""), [advice], "the key is not missing");
    }

    #[test]
    fn a_word_for_a_mode_gets_the_mode_as_advice() {
        for (word, mode) in [
            ("exclusive", "exclusive"),
            ("read", "shared"),
            ("reader", "shared"),
            ("shared", "shared"),
            ("writer", "exclusive"),
        ] {
            let advice = format!("unknown option `{word}`: write `mode = {mode}`");
            assert_eq!(errors(&format!("key = \"k\", {word} = true")), [advice]);
        }
        for (word, mode) in [("read", "shared"), ("write", "exclusive")] {
            let known = "`mode` must be `exclusive`, the default, or `shared`, without quotes";
            let advice = format!("{known}: write `{mode}`");
            assert_eq!(errors(&format!("key = \"k\", mode = {word}")), [advice]);
        }
    }

    #[test]
    fn each_word_of_another_library_stands_for_one_option_of_an_attribute() {
        for attribute in [AttributeName::DistributedLock, AttributeName::RunOnce] {
            let ours = |option: &OptionName| option.refused_by(attribute).is_none();
            let known: Vec<_> = OptionName::all().filter(ours).collect();
            let mut seen = std::collections::HashMap::new();
            for option in known {
                for word in option.other_words().split(' ') {
                    let other = seen.insert(word, option);
                    assert_eq!(other, None, "`{word}` also means `{}`", option.text());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn parsing_a_template_or_duration_never_panics(
            key in r"[a-z{}:.?!&*()\[\]0-9 %#\PC]{0,32}",
            ttl in r"[0-9hms.]{0,12}",
        ) {
            let (key, ttl) = (Literal::string(&key), Literal::string(&ttl));
            let (_, errors) = Args::parse(
                AttributeName::DistributedLock,
                quote!(key = #key, ttl = #ttl),
                None,
            );
            for error in errors {
                prop_assert!(!error.to_string().is_empty());
            }
        }

        #[test]
        fn parsing_a_list_of_options_never_panics(options in r#"[a-z_=,"{}()\[\]:&|0-9 .]{0,48}"#) {
            if let Ok(tokens) = options.parse::<TokenStream>() {
                for attribute in [AttributeName::DistributedLock, AttributeName::RunOnce] {
                    let (_, errors) = Args::parse(attribute, tokens.clone(), None);
                    prop_assert!(errors.iter().all(|error| !error.to_string().is_empty()));
                }
            }
        }
    }
}
