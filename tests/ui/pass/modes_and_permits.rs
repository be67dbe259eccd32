//! A mode for all keys or for each, and permits in every form.

use lock_core::{LockError, LockKey, distributed_lock};

/// The settings that a service reads from its configuration.
#[derive(Debug)]
struct Settings {
    /// The type of most settings.
    exports: usize,
    /// A smaller type.
    imports: u8,
}

const CALLS: u32 = 7;

/// One.
#[distributed_lock(key = "price:{id}", mode = shared)]
async fn read(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

/// The default, written out.
#[distributed_lock(mode = exclusive, key = "price:{id}")]
async fn write(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

/// All of a list.
#[distributed_lock(key = ["price:{a}", "price:{b}"], mode = shared)]
async fn read_both(a: u64, b: u64) -> Result<u64, LockError> {
    Ok(a + b)
}

/// Each of a list.
#[distributed_lock(mode = [shared, exclusive, shared], key = ["prices", "order:{id}", customer.to_owned()])]
async fn order(id: u64, customer: &str) -> Result<String, LockError> {
    Ok(format!("{customer} ordered {id}"))
}

/// Expressions and templates, each in its mode.
#[distributed_lock(key = ["prices", LockKey::new("stock"), "exports"], mode = [shared, shared, exclusive], lease = lease)]
async fn of_expressions() -> Result<usize, LockError> {
    Ok(lease.fencing_tokens().len())
}

/// A number.
#[distributed_lock(key = "exports", permits = 3, min_hold = "1s")]
async fn three() -> Result<(), LockError> {
    Ok(())
}

/// A number with a type.
#[distributed_lock(key = "exports", permits = 3_u16)]
async fn three_of_a_type() -> Result<(), LockError> {
    Ok(())
}

/// A constant.
#[distributed_lock(key = "calls", permits = CALLS)]
async fn a_constant() -> Result<(), LockError> {
    Ok(())
}

/// Settings, for all keys of a list.
#[distributed_lock(key = ["exports:{tenant}", "exports"], permits = settings.exports)]
async fn from_settings(settings: &Settings, tenant: u64) -> Result<u64, LockError> {
    Ok(tenant)
}

/// A sum, of a smaller type.
#[distributed_lock(key = "imports", permits = settings.imports + 1)]
async fn a_sum(settings: &Settings) -> Result<(), LockError> {
    Ok(())
}
