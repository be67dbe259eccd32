//! On error in every form.

use lock_core::{LockError, distributed_lock};

#[allow(clippy::needless_pass_by_value)]
fn path(error: LockError) -> u8 {
    u8::from(error.is_busy())
}
struct Api;
impl Api {
    #[allow(clippy::unused_self)]
    fn text(&self, error: &LockError) -> String {
        error.to_string()
    }
    #[allow(clippy::needless_pass_by_value)]
    fn of(_: LockError) -> Self {
        Self
    }
    #[distributed_lock(key = "n", on_error = |error| self.text(&error))]
    async fn with_self(&self) -> String {
        String::new()
    }
    #[distributed_lock(key = "n", on_error = Self::of)]
    async fn associated() -> Self {
        Self
    }
}
#[distributed_lock(key = "n", on_error = path)]
async fn by_path() -> u8 {
    1
}
#[distributed_lock(key = "n", on_error = |error: LockError| -> Result<u8, String> { Err(error.to_string()) })]
async fn annotated() -> Result<u8, String> {
    Ok(1)
}
#[distributed_lock(key = "n", on_error = |_| Box::new(1))]
async fn coerced() -> Box<dyn std::fmt::Debug> {
    Box::new("x")
}
#[distributed_lock(key = "n", on_error = LockError::into)]
async fn converted() -> Wrapped {
    Wrapped
}
struct Wrapped;
impl From<LockError> for Wrapped {
    fn from(_: LockError) -> Self {
        Self
    }
}
#[distributed_lock(key = "n", on_error = match 1 { 1 => path, _ => |_| 0 })]
async fn chosen() -> u8 {
    1
}
#[distributed_lock(key = "n", on_error = |_| fallback)]
async fn from_an_argument(fallback: u8) -> u8 {
    1
}
