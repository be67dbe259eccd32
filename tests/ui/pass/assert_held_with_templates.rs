//! `assert_held!` with templates and with keys.

use lock_core::{LockKey, assert_held, key};

const KEY: &str = "order:42";

macro_rules! through_a_macro {
    ($template:literal, $key:expr) => {
        assert_held!($template);
        assert_held!($key);
    };
}

/// Asserts.
pub fn f(id: u64, name: &str) {
    assert_held!("order:{id}");
    assert_held!("order:{id:04}:{name}",);
    assert_held!("order:{{}}");
    assert_held!(KEY);
    assert_held!(name);
    assert_held!(format!("order:{id}"));
    assert_held!(key!("order:{id}"));
    assert_held!(LockKey::new("order"));
    through_a_macro!("order:{id}", "event:{id}");
}
