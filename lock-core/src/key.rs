//! The key of a lock, and the rules by which values become part of one.

use std::{
    borrow::Cow,
    cmp::Ordering,
    fmt::{self, Display, Write as _},
    hash::{BuildHasher, Hash, Hasher},
    sync::{Arc, LazyLock},
};

use crate::template::Template;

/// The key of a lock: a short text, which is the same in every process that uses the lock.
///
/// Clones are cheap. Any text can be a `LockKey`, but only one of 1 to 512 bytes can be locked. The call that uses the key
/// checks this, and otherwise returns [`LockError::Invalid`](crate::error::LockError::Invalid).
///
/// # Examples
///
/// ```
/// use lock_core::LockKey;
///
/// let key = LockKey::new("order:42");
/// assert_eq!(key.as_str(), "order:42");
/// assert_eq!(key, LockKey::new(format!("order:{}", 42)));
/// ```
#[derive(Clone)]
pub struct LockKey(Arc<Made>);

/// The contents of a key. They are behind one thin pointer, because keys are part of errors, and of the futures of
/// thousands of waiters.
struct Made {
    text: Box<str>,
    /// The hash of the text, which is cached because a lock looks up its key several times.
    hash: u64,
    /// Used only by telemetry: keys with the same text are equal, whatever their templates.
    from: Option<&'static Template>,
}

impl LockKey {
    /// Creates a key from its exact text.
    ///
    /// To build a key from values, use [`key!`](crate::key), which encodes them so that different values make different
    /// keys.
    #[must_use]
    pub fn new(text: impl Into<Box<str>>) -> Self {
        Self::made(text.into(), None)
    }

    fn made(text: Box<str>, from: Option<&'static Template>) -> Self {
        let hash = hashed(&text);
        Self(Arc::new(Made { text, hash, from }))
    }

    /// Returns the text, without any manager's prefix.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0.text
    }

    /// Returns the template of a key that was made by the attribute or by [`key!`](crate::key), as in `"order:{order_id}"`.
    ///
    /// Returns `None` for a key that was made from a plain text. Metrics are labelled with the template instead of the key,
    /// because a program has few templates and any number of keys.
    #[must_use]
    pub fn template(&self) -> Option<&'static str> {
        self.0.from.map(Template::text)
    }

    /// Returns the text, preceded by a manager's prefix.
    pub(crate) fn with_prefix(&self, prefix: &str) -> Arc<str> {
        let (text, mut room) = (&self.0.text, [0; 128]);
        // A short text takes a single allocation.
        if let Some((front, rest)) = room.split_at_mut_checked(prefix.len())
            && let Some(back) = rest.get_mut(..text.len())
        {
            front.copy_from_slice(prefix.as_bytes());
            back.copy_from_slice(text.as_bytes());
            if let Ok(full) = std::str::from_utf8(&room[..prefix.len() + text.len()]) {
                return full.into();
            }
        }
        [prefix, text].concat().into()
    }

    /// Returns the hash of the text.
    pub(crate) fn hashed(&self) -> u64 {
        self.0.hash
    }

    /// Formats the text for one line of a log, escaped and truncated.
    pub(crate) fn shown(&self) -> Shown<'_> {
        Shown(self.as_str())
    }

    #[cfg(feature = "metrics")]
    pub(crate) fn made_from(&self) -> Option<&'static Template> {
        self.0.from
    }
}

/// Hashes are keyed by a secret of this process, so that no client can choose keys that collide.
#[cfg(not(feature = "simulation"))]
type Hashes = std::hash::RandomState;

/// In a simulation, the hashes are the same in every run.
#[cfg(feature = "simulation")]
type Hashes = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

fn hashed(text: &str) -> u64 {
    static HASHES: LazyLock<Hashes> = LazyLock::new(Hashes::default);
    HASHES.hash_one(text)
}

impl PartialEq for LockKey {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for LockKey {}

impl PartialOrd for LockKey {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for LockKey {
    fn cmp(&self, other: &Self) -> Ordering {
        self.as_str().cmp(other.as_str())
    }
}

impl Hash for LockKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.hashed());
    }
}

impl Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LockKey(\"{}\")", self.shown())
    }
}

/// A text from outside, formatted for one line of a log: control characters and line ends are escaped, and at most 128
/// characters are shown.
pub(crate) struct Shown<'a>(pub(crate) &'a str);

impl Shown<'_> {
    const MOST: usize = 128;
}

impl Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.chars();
        for c in rest.by_ref().take(Self::MOST) {
            write!(f, "{}", c.escape_debug())?;
        }
        if rest.next().is_some() {
            f.write_char('…')?;
        }
        Ok(())
    }
}

/// Turns a text into a [`LockKey`], byte for byte.
///
/// Implemented only for texts and keys, because a number alone does not say what it identifies.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a lock key",
    label = "expected a text or a `LockKey`",
    note = "build one with `lock_core::key!(\"order:{{order_id}}\")`, or pass a `&str`, a `String` or a `LockKey`"
)]
pub trait IntoLockKey {
    /// Converts the value into a key with exactly this text.
    fn into_lock_key(self) -> LockKey;
}

impl IntoLockKey for LockKey {
    fn into_lock_key(self) -> LockKey {
        self
    }
}

impl IntoLockKey for &LockKey {
    fn into_lock_key(self) -> LockKey {
        self.clone()
    }
}

impl IntoLockKey for &str {
    fn into_lock_key(self) -> LockKey {
        LockKey::new(self)
    }
}

impl IntoLockKey for String {
    fn into_lock_key(self) -> LockKey {
        LockKey::new(self)
    }
}

impl IntoLockKey for &String {
    fn into_lock_key(self) -> LockKey {
        LockKey::new(self.as_str())
    }
}

impl IntoLockKey for Cow<'_, str> {
    fn into_lock_key(self) -> LockKey {
        LockKey::new(self)
    }
}

impl IntoLockKey for Box<str> {
    fn into_lock_key(self) -> LockKey {
        LockKey::new(self)
    }
}

impl IntoLockKey for Arc<str> {
    fn into_lock_key(self) -> LockKey {
        LockKey::new(&*self)
    }
}

/// A value that may be part of a key template: everything that implements [`Display`].
///
/// The trait exists for its error message, and cannot be implemented by hand.
///
/// # Examples
///
/// ```
/// # #[cfg(feature = "macros")] {
/// use std::fmt;
///
/// struct OrderId(u64);
///
/// impl fmt::Display for OrderId {
///     fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
///         write!(f, "{:08}", self.0)
///     }
/// }
///
/// let id = OrderId(42);
/// assert_eq!(lock_core::key!("order:{id}").as_str(), "order:00000042");
/// # }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be part of a lock key",
    label = "this value has no single text form, because it does not implement `Display`",
    note = "for an `Option`, say what `None` means, before the function is called or in the key: `key = match id {{ Some(id) => lock_core::key!(\"order:{{id}}\"), None => lock_core::key!(\"orders\") }}`",
    note = "for a struct, name the field that identifies it: `{{order.id}}`",
    note = "for an extractor, write `Path(id): Path<u64>`, and `{{id}}` in the key"
)]
pub trait KeyPart: Display {}

#[diagnostic::do_not_recommend]
impl<T: Display + ?Sized> KeyPart for T {}

/// A piece of a key that is being built.
#[derive(Clone, Copy)]
#[expect(
    missing_debug_implementations,
    reason = "lives for one statement of the generated code"
)]
pub enum Part<'a> {
    /// Fixed text of the template, which is copied unchanged.
    Text(&'static str),
    /// A value, which is encoded.
    Value(&'a dyn Display),
}

/// Joins the parts of a template.
///
/// Different lists of values never make the same key. Between two values there is fixed text with at least one separator,
/// which is a character that is neither a letter nor a digit nor `%`; the attribute refuses templates without one.
/// [`Encoder`] escapes the template's separators within values, so the first occurrence of a separator marks the end of the
/// value before it. The encoded value can be decoded, since it contains `%` only in escapes.
pub(crate) fn join(template: &'static Template, parts: &[Part<'_>]) -> LockKey {
    let mut encoder = Encoder {
        parts,
        key: String::with_capacity(64),
    };
    for part in parts {
        match part {
            Part::Text(text) => encoder.key.push_str(text),
            // Panics as `ToString` does: a `Display` that fails is a bug in the value's type, and must not become a key.
            Part::Value(value) => {
                write!(encoder, "{value}")
                    .expect("a `Display` implementation returned an error unexpectedly");
            }
        }
    }
    LockKey::made(encoder.key.into(), Some(template))
}

/// Writes each byte of a character that could be mistaken for a part of the template as `%` and two hexadecimal digits.
struct Encoder<'a> {
    parts: &'a [Part<'a>],
    key: String,
}

impl Encoder<'_> {
    fn passes(&self, c: char) -> bool {
        c.is_alphanumeric()
            || !(matches!(c, '%' | ':' | '{' | '}')
                || c.is_whitespace()
                || c.is_control()
                || self.separates(c))
    }

    fn separates(&self, c: char) -> bool {
        self.parts
            .iter()
            .any(|part| matches!(part, Part::Text(text) if text.contains(c)))
    }
}

impl fmt::Write for Encoder<'_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if self.passes(c) {
                self.key.push(c);
            } else {
                for byte in c.encode_utf8(&mut [0; 4]).bytes() {
                    write!(self.key, "%{byte:02X}")?;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::Part::Text;
    use super::*;

    static OF_TESTS: Template = Template::new("of tests");

    /// Joins a template's texts, with a value between each two of them.
    fn keyed(texts: &[&'static str], values: &[&str]) -> LockKey {
        let mut parts = vec![Text(texts[0])];
        for (value, text) in values.iter().zip(&texts[1..]) {
            parts.extend([Part::Value(value), Text(text)]);
        }
        join(&OF_TESTS, &parts)
    }

    #[test]
    fn ambiguous_characters_are_encoded() {
        for (value, encoded) in [
            ("abc-42_x.y", "abc-42_x.y"),
            ("a:b", "a%3Ab"),
            ("100%", "100%25"),
            ("{x}", "%7Bx%7D"),
            ("a b\t\u{a0}", "a%20b%09%C2%A0"),
            ("\0\u{7f}\u{85}", "%00%7F%C2%85"),
            ("größe", "größe"),
            ("a→b", "a→b"),
            ("", ""),
        ] {
            assert_eq!(
                keyed(&["k:", ""], &[value]).as_str(),
                format!("k:{encoded}")
            );
        }
    }

    #[test]
    fn the_templates_own_separators_are_encoded_and_its_letters_are_not() {
        assert_eq!(
            keyed(&["a/b→", ""], &["b/a→c-d"]).as_str(),
            "a/b→b%2Fa%E2%86%92c-d"
        );
        assert_eq!(keyed(&["", "-", ""], &["x-y", "-"]).as_str(), "x%2Dy-%2D");
    }

    #[test]
    fn values_are_encoded_even_if_written_in_pieces() {
        struct Pieces;
        impl Display for Pieces {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a:")?;
                f.write_char(':')?;
                write!(f, "{}%", 5)
            }
        }
        assert_eq!(
            join(&OF_TESTS, &[Text("k:"), Part::Value(&Pieces)]).as_str(),
            "k:a%3A%3A5%25"
        );
    }

    #[test]
    fn no_two_lists_of_hostile_values_make_the_same_key() {
        const PIECES: [&str; 12] = ["", "a", "2", "5", "%", "%25", ":", "/", "3A", "é", "→", " "];
        let pairs = || {
            PIECES
                .iter()
                .flat_map(|a| PIECES.iter().map(move |b| format!("{a}{b}")))
        };
        let values: std::collections::BTreeSet<String> = pairs().collect();
        for texts in [
            ["", ":", ""],
            ["k:", "/", ""],
            ["", "%:", "%"],
            ["2", "5%→a", "25"],
            ["%", "a%25/2", "%2"],
            ["", "é ", "é"],
        ] {
            let mut seen = HashMap::new();
            for x in &values {
                for y in &values {
                    let clash = seen.insert(keyed(&texts, &[x, y]), (x, y));
                    assert_eq!(clash, None, "the same key as {:?} in {texts:?}", (x, y));
                }
            }
        }
    }

    /// Shows why the attribute refuses templates with only letters, digits or `%` between two values.
    #[test]
    fn weaker_separators_would_let_keys_collide() {
        assert_eq!(
            keyed(&["", "x", ""], &["a", "bxc"]),
            keyed(&["", "x", ""], &["axb", "c"])
        );
        let percent = |x, y| keyed(&["", "%", ""], &[x, y]);
        assert_eq!(percent("%5", "25"), percent("", "255%"));
    }

    #[test]
    fn a_key_is_shown_in_one_line_of_a_bounded_length() {
        let key = LockKey::new(format!("a\n\u{1b}[31m{}", "x".repeat(5000)));
        let shown = key.shown().to_string();
        assert!(shown.starts_with("a\\n\\u{1b}[31mxxx"), "{shown}");
        assert_eq!(shown.chars().rev().take_while(|c| *c == '…').count(), 1);
        assert!(
            shown.len() < 150 && format!("{key:?}").len() < 165,
            "{shown}"
        );
        assert_eq!(key.to_string(), key.as_str());
    }

    #[test]
    fn every_text_becomes_its_own_key() {
        let text = String::from("a:b {%}");
        let key = LockKey::new("a:b {%}");
        for made in [
            text.as_str().into_lock_key(),
            (&text).into_lock_key(),
            text.clone().into_lock_key(),
            Cow::Borrowed(text.as_str()).into_lock_key(),
            Box::<str>::from(text.as_str()).into_lock_key(),
            Arc::<str>::from(text.as_str()).into_lock_key(),
            (&key).into_lock_key(),
            key.clone().into_lock_key(),
        ] {
            assert_eq!(made, key);
        }
        assert_eq!(
            format!("{key} {key:?} {key:>9}"),
            "a:b {%} LockKey(\"a:b {%}\")   a:b {%}"
        );
    }
}
