use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "migrations:orders", wait = "forever")]
async fn migrate(database: &Database) -> Result<(), LockError> {
    // What another replica has applied is in the version, and is not applied again.
    for step in database.version().await..LATEST {
        database.apply(step).await;
    }
    Ok(())
}
