//! Borrowed arguments of a body that continues without its caller.
// error: this argument borrows from the caller, but with `on_drop = finish` the body continues without the caller: take it by value, as a `String` or an `Arc`, or write `on_drop = cancel`
// at: name: &str
// error: this argument borrows from the caller
// at: count: &mut u8
// error: this argument borrows from the caller
// at: other: Option<&str>
// error: this argument borrows from the caller
// at: view: View<'_>
// error: `self` is borrowed from the caller, but with `on_drop = finish` the body continues without the caller: take it by value, or write `on_drop = cancel`
// at: &self
// error: `self` is borrowed from the caller
// at: self: &mut Self
use lock_core::{LockError, distributed_lock, run_once};

pub struct View<'a>(&'a str);

#[run_once(key = "k", keep = "1h")]
pub async fn run(
    name: &str,
    count: &mut u8,
    other: Option<&str>,
    view: View<'_>,
    fixed: &'static str,
    make: fn(&str) -> u8,
) -> Result<u8, LockError> {
    Ok(*count + make(name) + make(fixed) + make(view.0) + make(other.unwrap_or_default()))
}

impl View<'_> {
    #[run_once(key = "k", keep = "1h")]
    pub async fn run(&self) -> Result<u8, LockError> {
        Ok(1)
    }

    #[distributed_lock(key = "k", on_drop = finish)]
    pub async fn lock(self: &mut Self) -> Result<u8, LockError> {
        Ok(1)
    }
}
