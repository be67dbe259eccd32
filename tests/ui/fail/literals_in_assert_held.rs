//! Literals that `assert_held!` refuses.
// error: two values touch
// at: "order:{id}{id}"
// error: expected string literal
// at: 42

use lock_core::assert_held;

fn f(id: u64) {
    assert_held!("order:{id}{id}");
    assert_held!(42);
}
