//! The functions that make keys for the attribute and `key!`, and that convert the number of permits.

use std::fmt::Display;

use crate::{
    key::{IntoLockKey, KeyPart, LockKey, Part, join},
    options::LockOptions,
    template::Template,
};

/// Returns the key of an expression that is not a template.
pub fn exact_key(key: impl IntoLockKey) -> LockKey {
    key.into_lock_key()
}

/// Returns a key in shared mode, for a list with a mode for each key.
pub fn shared(key: LockKey) -> (LockKey, LockOptions) {
    (key, LockOptions::default().shared())
}

/// Like [`shared`], in exclusive mode.
pub fn exclusive(key: LockKey) -> (LockKey, LockOptions) {
    (key, LockOptions::default())
}

/// Returns the key of a template and its parts.
pub fn key(template: &'static Template, parts: &[Part<'_>]) -> LockKey {
    join(template, parts)
}

/// Returns a fixed text of a template.
pub const fn text(text: &'static str) -> Part<'static> {
    Part::Text(text)
}

/// Returns a value in a template that has a format spec. It has the same bound as a value without one.
pub fn formatted<'a, T: KeyPart + ?Sized>(value: &'a &'a T) -> &'a dyn Display {
    value
}

/// Returns a value in a template. There are two references, because only a sized type can become a `dyn Display`.
pub fn value<'a, T: KeyPart + ?Sized>(value: &'a &'a T) -> Part<'a> {
    Part::Value(value)
}

/// A number of permits, which may be any integer type. Its range is checked when a lock is acquired.
///
/// The trait exists for its error message, and cannot be implemented by hand.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a number of permits",
    label = "expected an integer from 1 to 1,000"
)]
pub trait PermitCount: TryInto<i64> {}

#[diagnostic::do_not_recommend]
impl<T: TryInto<i64>> PermitCount for T {}

/// Converts a number of permits. A number outside of the range of an `i64` becomes one that the check of the
/// options refuses.
pub fn permits(n: impl PermitCount) -> usize {
    // A number that does not fit counts as too large, because only an `i128` can be below the range of an `i64`.
    let n = n.try_into().unwrap_or(i64::MAX).max(0);
    usize::try_from(n).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::permits;

    #[test]
    fn a_number_keeps_its_value_or_is_out_of_range() {
        assert_eq!((permits(0), permits(-1), permits(i64::MIN)), (0, 0, 0));
        assert_eq!((permits(7_u8), permits(1_000_i128)), (7, 1_000));
        for many in [permits(u64::MAX), permits(u128::MAX), permits(i64::MAX)] {
            assert!(many > 1_000_000, "{many}");
        }
    }
}
