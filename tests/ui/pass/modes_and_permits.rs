//! Modes for all keys or for each, and numbers of permits.

use lock_core::{LockError, LockKey, distributed_lock};

#[distributed_lock(key = ["price:{a}", "price:{b}"], mode = shared)]
async fn one_mode_for_a_list(a: u64, b: u64) -> Result<u64, LockError> {
    Ok(a + b)
}

#[distributed_lock(
    mode = [shared, exclusive, shared, shared],
    key = ["prices", "order:{id}", customer.to_owned(), LockKey::new("stock")]
)]
async fn a_mode_for_each_key(id: u64, customer: &str) -> Result<String, LockError> {
    Ok(format!("{customer} ordered {id}"))
}

struct Settings {
    exports: usize,
    imports: u8,
}

#[distributed_lock(key = "exports", permits = 3_u16)]
async fn a_number_with_its_type() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = ["exports:{tenant}", "exports"], permits = settings.exports)]
async fn a_setting_for_a_list(settings: &Settings, tenant: u64) -> Result<u64, LockError> {
    Ok(tenant)
}

#[distributed_lock(key = "imports", permits = settings.imports + 1)]
async fn a_sum(settings: &Settings) -> Result<(), LockError> {
    Ok(())
}
