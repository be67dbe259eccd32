//! The macro `assert_held!`, and the way it reads a literal.

use crate::{driver::reentry::holds, key::IntoLockKey};

/// Panics unless the running task is in a body that holds the key. For functions that rely on their caller's lock.
///
/// A string literal is a template, as in the attribute and in `key!`: it may use each variable in scope. Any other expression
/// is the exact key, as for [`LockManager::acquire`](crate::manager::LockManager::acquire). Neither a guard without a body
/// counts, nor a lease that is lost.
///
/// Templates need the feature `macros`. Without it, a literal with braces does not compile.
///
/// # Panics
///
/// If the key is not held.
///
/// ```
/// # #[cfg(feature = "macros")]
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// # let manager = lock_core::LockManager::in_memory();
/// async fn write_balance(account: u64) {
///     lock_core::assert_held!("account:{account}");
///     // …
/// }
///
/// manager.run("account:7", lock_core::LockOptions::default(), |_| write_balance(7)).await?;
/// # Ok(())
/// # }
/// # #[cfg(not(feature = "macros"))]
/// # fn main() {}
/// ```
#[macro_export]
macro_rules! assert_held {
    ($template:literal $(,)?) => {
        $crate::__private::assert_holds($crate::__private::key_of_literal!($template))
    };
    ($key:expr $(,)?) => {
        $crate::__private::assert_holds($key)
    };
}

/// The expansion of the macro.
///
/// # Panics
///
/// If the key is not held.
#[track_caller]
pub fn assert_holds(key: impl IntoLockKey) {
    let key = key.into_lock_key();
    assert!(holds(&key), "the lock `{key}` is not held by this task");
}

#[doc(hidden)]
pub use crate::__key_of_literal as key_of_literal;

/// Reads a literal, which is a template everywhere.
#[cfg(feature = "macros")]
#[doc(hidden)]
#[macro_export]
macro_rules! __key_of_literal {
    ($template:literal) => {
        $crate::key!(crate = $crate, $template)
    };
}

/// Reads a literal. Without the macro that reads templates, it is a text without braces.
#[cfg(not(feature = "macros"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __key_of_literal {
    ($text:literal) => {{
        // The panic is here, so that the compiler points at the user's call.
        const _: () = assert!(
            $crate::__private::has_no_braces($text),
            "a literal with braces is a template, which needs the feature `macros` of lock-core"
        );
        $text
    }};
}

/// Returns `true` if a literal is not a template.
#[cfg(not(feature = "macros"))]
#[must_use]
pub const fn has_no_braces(text: &str) -> bool {
    let mut bytes = text.as_bytes();
    while let [first, rest @ ..] = bytes {
        if matches!(first, b'{' | b'}') {
            return false;
        }
        bytes = rest;
    }
    true
}
