use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "migrations:orders", wait = "forever")]
async fn migrate(database: &Database) -> Result<(), LockError> {
    // The version includes the steps that another replica has applied, so none is applied twice.
    for step in database.version().await..LATEST {
        database.apply(step).await;
    }
    Ok(())
}
