//! Arguments that `on_error` would use after they have moved.

use lock_core::{LockError, distributed_lock};

// A name of a pattern that is not `Copy`, and that `on_error` uses.
// error: use of partially moved value
// at: Path
// note: value partially moved here
struct Path<T>(T);
#[distributed_lock(key = "order:{name}", on_error = |e| Err(format!("{name}: {e}")))]
async fn a_part_of_a_pattern_in_use_by_on_error(Path(name): Path<String>) -> Result<(), String> { Ok(()) }

// A pattern that another attribute has taken apart.
// error: no parameter is called `a`: another attribute has renamed some: put `#[distributed_lock]` above it
// at: "order:{a}"
macro_rules! renaming {
    ($(#[$attr:meta])*) => {
        $(#[$attr])*
        async fn a_pattern_below_another_attribute(__arg0: (u64, u64)) -> Result<u64, LockError> {
            let (a, b) = __arg0;
            Ok(a + b)
        }
    };
}
renaming! {
    #[distributed_lock(key = "order:{a}")]
}

// An argument that the key moves, while `on_error` uses it: the error is at the closure, not at the argument.
// error: borrow of moved value: `name`
// at: |e| Err(format!("{name}: {e}"))
// note: value borrowed here after move
#[distributed_lock(key = name, on_error = |e| Err(format!("{name}: {e}")))]
async fn an_argument_in_use_by_on_error(name: String) -> Result<(), String> { Ok(()) }

// An argument that the key needs, and that `on_error` moves.
// error: use of moved value: `name`
// at: move |error| { drop(name); Err(error) }
#[distributed_lock(key = "order:{name}", on_error = move |error| { drop(name); Err(error) })]
async fn an_argument_that_on_error_moves(name: String) -> Result<(), LockError> { Ok(()) }
