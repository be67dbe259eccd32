//! What makes the keys of the attribute and of `key!`.

use std::fmt::Display;

use crate::{
    key::{IntoLockKey, KeyPart, LockKey, Part, join},
    options::LockOptions,
    template::Template,
};

/// A key expression, taken as it is.
pub fn exact_key(key: impl IntoLockKey) -> LockKey {
    key.into_lock_key()
}

/// A key of a list with a mode for each.
pub fn shared(key: LockKey) -> (LockKey, LockOptions) {
    (key, LockOptions::default().shared())
}

/// As [`shared`].
pub fn exclusive(key: LockKey) -> (LockKey, LockOptions) {
    (key, LockOptions::default())
}

/// A key template, taken apart.
#[must_use]
pub fn key(template: &'static Template, parts: &[Part<'_>]) -> LockKey {
    join(template, parts)
}

/// Fixed text of a template.
#[must_use]
pub const fn text(text: &'static str) -> Part<'static> {
    Part::Text(text)
}

/// A value in a template with a spec of `Display`: it has the same bound as without a spec.
pub fn formatted<'a, T: KeyPart + ?Sized>(value: &'a &'a T) -> &'a dyn Display {
    value
}

/// A value in a template. Two references, because only a sized type can become a `dyn Display`.
pub fn value<'a, T: KeyPart + ?Sized>(value: &'a &'a T) -> Part<'a> {
    Part::Value(value)
}
