//! Items that cannot be locked.

use lock_core::{LockError, distributed_lock};

// error: a `const` item cannot wait for a lock
// at: const
#[distributed_lock(key = "order")]
const N: u8 = 1;

// error: `load` has no body to lock: annotate the functions that implement it
// at: load
#[allow(async_fn_in_trait)]
trait Loads {
    #[distributed_lock(key = "order")]
    async fn load(&self) -> Result<(), LockError>;
}

// error: only a function can be locked, not a module
// at: mod
#[distributed_lock(key = "order")]
mod m {}

// error: only a function can be locked, not a type
// at: struct
#[distributed_lock(key = "order")]
struct S;

// error: a function that is not `async` cannot wait for a lock: write `async fn`
// at: fn
#[distributed_lock(key = "order")]
fn a_sync_function() -> Result<(), LockError> { Ok(()) }

// error: the `async` block of this future is not visible
// at: impl Future<Output = Result<(), LockError>>
#[distributed_lock(key = "order")]
fn a_future_without_a_visible_block() -> impl Future<Output = Result<(), LockError>> { returned() }
async fn returned() -> Result<(), LockError> { Ok(()) }

// error: only a function can be locked, not a trait
// at: trait
#[distributed_lock(key = "order")]
trait T {}

// error: an `extern` function cannot wait for a lock
// at: extern
#[distributed_lock(key = "order")]
extern "C" fn an_extern_function() -> Result<(), LockError> { Ok(()) }

// error: only a function can be locked, not an impl block: put the attribute on each function inside
// at: impl
#[distributed_lock(key = "order")]
impl Order {
    async fn an_impl_block() {}
}
struct Order;

// error: an `unsafe` function cannot be locked
// at: unsafe
#[distributed_lock(key = "order")]
async unsafe fn an_unsafe_function() -> Result<(), LockError> { Ok(()) }

// error: put `#[distributed_lock]` above `#[tokio::main]`
// at: main
#[tokio::main]
#[distributed_lock(key = "order")]
async fn main() -> Result<(), LockError> { Ok(()) }
