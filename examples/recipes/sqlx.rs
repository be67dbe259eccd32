//! A lock and a transaction of sqlx: the lock begins first and ends last.

use std::time::Duration;

use lock_core::{Lease, LockManager, distributed_lock};
use sqlx::SqlitePool;

#[distributed_lock(key = "stock:{item}", wait = "5s", lease = lease)]
async fn order(database: &SqlitePool, item: i64) -> anyhow::Result<()> {
    // Begun only under the lock, so that no task occupies a connection of the pool while it waits for a lock.
    let mut transaction = database.begin().await?;
    let left = sqlx::query_scalar("SELECT amount FROM stock WHERE item = ?").bind(item);
    let left: i64 = left.fetch_one(&mut *transaction).await?;
    if left == 0 {
        anyhow::bail!("sold out");
    }
    let update = sqlx::query("UPDATE stock SET amount = ? WHERE item = ?");
    update
        .bind(left - 1)
        .bind(item)
        .execute(&mut *transaction)
        .await?;
    commit(transaction, &lease).await
}

/// Commits while the lease lasts and before the lock is released, so the next holder reads the changes of this one.
async fn commit(
    transaction: sqlx::Transaction<'_, sqlx::Sqlite>,
    lease: &Lease,
) -> anyhow::Result<()> {
    lease.ensure(Duration::from_secs(1))?;
    Ok(transaction.commit().await?)
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    lock_core::set_global(LockManager::connect("redis://127.0.0.1").await?);
    let database = SqlitePool::connect("sqlite:stock.db").await?;
    order(&database, 1).await
}

#[cfg(test)]
mod tests {
    use lock_core::with_locks;

    use super::*;

    #[tokio::test]
    async fn two_orders_of_the_last_item_sell_it_once() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("stock.db");
        let url = format!("sqlite:{}?mode=rwc", file.display());
        let database = SqlitePool::connect(&url).await.unwrap();
        let schema =
            "CREATE TABLE stock (item INTEGER, amount INTEGER); INSERT INTO stock VALUES (1, 1)";
        sqlx::raw_sql(schema).execute(&database).await.unwrap();
        let locks = LockManager::in_memory();
        let orders = async { tokio::join!(order(&database, 1), order(&database, 1)) };
        let (one, two) = with_locks(locks, orders).await;
        assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
        let refused = one.and(two).unwrap_err();
        assert_eq!(refused.to_string(), "sold out");
    }
}
