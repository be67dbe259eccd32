//! A template in `assert_held!`, with a `lock-core` that lacks the feature to read it.
// features: none
// error: evaluation panicked: a literal with braces is a template, which needs the `macros` feature of lock-core
// at: lock_core::assert_held!("order:{id}")

fn f() {
    lock_core::assert_held!("order");
    lock_core::assert_held!("order:{id}");
}
