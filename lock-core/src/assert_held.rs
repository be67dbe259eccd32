//! The macro `assert_held!`, and how it reads a literal.

use crate::{driver::reentry::holds, key::IntoLockKey};

/// Panics unless the running task is in a body that holds the key. Use it in functions that rely on their caller's lock.
///
/// A string literal is a template, as in the attribute and in `key!`, and may use any variable in scope. Any other
/// expression is the exact key, as for [`LockManager::acquire`](crate::manager::LockManager::acquire). A guard without a
/// body does not count, and neither does a lease that is lost.
///
/// Templates need the `macros` feature. Without it, a literal with braces does not compile.
///
/// # Panics
///
/// Panics if the key is not held.
///
/// # Examples
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

/// The function that the macro calls.
///
/// # Panics
///
/// Panics if the key is not held.
#[track_caller]
pub fn assert_holds(key: impl IntoLockKey) {
    let key = key.into_lock_key();
    assert!(holds(&key), "the lock `{key}` is not held by this task");
}

#[doc(hidden)]
pub use crate::__key_of_literal as key_of_literal;

/// Reads a literal as a template.
#[cfg(feature = "macros")]
#[doc(hidden)]
#[macro_export]
macro_rules! __key_of_literal {
    ($template:literal) => {
        $crate::key!(crate = $crate, $template)
    };
}

/// Reads a literal as plain text. Without the macro for templates, it must not contain braces.
#[cfg(not(feature = "macros"))]
#[doc(hidden)]
#[macro_export]
macro_rules! __key_of_literal {
    ($text:literal) => {{
        // The assertion is part of the expansion, so that the compiler points at the user's call.
        const _: () = assert!(
            $crate::__private::has_no_braces($text),
            "a literal with braces is a template, which needs the `macros` feature of lock-core"
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
