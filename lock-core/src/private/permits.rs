//! The number of permits in the attribute: an expression of any integer type.

/// A number of permits: any integer. Whether it is in range is checked when a lock is acquired.
///
/// The trait exists for its error message, and cannot be implemented by hand.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no number of permits",
    label = "expected an integer from 1 to 1,000"
)]
pub trait PermitCount: TryInto<i64> {}

#[diagnostic::do_not_recommend]
impl<T: TryInto<i64>> PermitCount for T {}

/// Replaces a number that does not fit by one that is refused where options are checked.
pub fn permits(n: impl PermitCount) -> usize {
    // A number that does not fit counts as too many: only an `i128` can be below the range of an `i64`.
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
