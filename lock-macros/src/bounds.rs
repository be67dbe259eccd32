//! The bounds of lock-core that a macro can check before the program runs. lock-core depends on this crate, not the other way
//! round, so these numbers are in both crates, and a test compares them.

/// The shortest time that a lease may last, in milliseconds.
pub(crate) const SHORTEST_MS: u64 = 100;

/// The longest time that a lease may last, in milliseconds.
pub(crate) const LONGEST_MS: u64 = 86_400_000;

/// The longest time for which a result may be kept, in milliseconds.
pub(crate) const LONGEST_KEEP_MS: u64 = 31_536_000_000;

/// The smallest and the largest number of permits.
pub(crate) const PERMITS: (u64, u64) = (1, 1_000);

/// The maximum number of bytes in a key.
pub(crate) const LONGEST_KEY: usize = 512;

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use syn::{Expr, Item, Lit};

    use super::*;

    /// Returns the values of a constant in lock-core's options: a number, a span in milliseconds, or several of them.
    fn values(expr: &Expr) -> Vec<u64> {
        match expr {
            Expr::Tuple(tuple) => tuple.elems.iter().flat_map(values).collect(),
            Expr::Binary(product) => {
                let factors = values(&product.left)
                    .into_iter()
                    .chain(values(&product.right));
                vec![factors.product()]
            }
            Expr::Call(call) => {
                let unit = match &*call.func {
                    Expr::Path(path) => {
                        path.path.segments.last().map(|last| last.ident.to_string())
                    }
                    _ => None,
                };
                let scale = match unit.as_deref() {
                    Some("from_millis") => 1,
                    Some("from_secs") => 1_000,
                    odd => panic!("{odd:?} is not a span that this test knows"),
                };
                let spans = call.args.iter().flat_map(values);
                spans.map(|span| span * scale).collect()
            }
            Expr::Lit(literal) => match &literal.lit {
                Lit::Int(number) => vec![number.base10_parse().expect("a number")],
                _ => panic!("a literal that is not a number"),
            },
            _ => panic!("an expression that this test does not know"),
        }
    }

    #[test]
    fn the_bounds_are_those_of_lock_core() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock-core/src");
        let items = ["options.rs", "once/mod.rs"].map(|file| {
            let text =
                fs::read_to_string(source.join(file)).expect("lock-core is next to this crate");
            syn::parse_file(&text).expect("it compiles").items
        });
        let value_of = |name: &str| {
            let mut constants = items.iter().flatten().filter_map(|item| match item {
                Item::Const(item) if item.ident == name => Some(values(&item.expr)),
                _ => None,
            });
            constants
                .next()
                .unwrap_or_else(|| panic!("lock-core has no {name} any more"))
        };
        assert_eq!(value_of("TTL_RANGE"), [SHORTEST_MS, LONGEST_MS]);
        assert_eq!(value_of("KEEP_RANGE"), [SHORTEST_MS, LONGEST_KEEP_MS]);
        assert_eq!(value_of("PERMITS_RANGE"), [PERMITS.0, PERMITS.1]);
        assert_eq!(value_of("LONGEST_KEY"), [LONGEST_KEY as u64]);
    }
}
