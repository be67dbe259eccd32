//! A holder that sleeps through the end of its lease wakes up and writes, and the database refuses the write.
//!
//!     cargo run -p examples --bin fencing -F fencing
//!
//! No lock can stop a process that was paused in the middle of a step from making its next write. The store can refuse that write
//! by the fencing token. With `-- --unfenced` it does not, and the sleeper overwrites the change of the next holder.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::time::Duration;

use lock_core::{LockManager, LockOptions, fenced::Fence, key};
use sqlx::SqlitePool;

/// How long a lease lasts; there is no renewal.
const TTL: Duration = Duration::from_secs(1);

/// One account, as one holder of its lock sees it.
struct Account {
    holder: &'static str,
    pool: SqlitePool,
    sleeps: Duration,
    fenced: bool,
}

/// The three statements of a fenced change. Each is a transaction of its own, so that other holders see the announcement at once.
impl Account {
    /// Remembers the fence. Returns whether it is the latest so far.
    async fn announce(&self, fence: Fence) -> Result<bool, sqlx::Error> {
        let sql = "UPDATE account SET fencing_token = $1, fencing_holder = $2 \
                   WHERE fencing_token < $1 OR fencing_token = $1 AND fencing_holder = $2";
        let announce = sqlx::query(sql)
            .bind(number(fence.token.into()))
            .bind(number(fence.holder));
        let done = announce.execute(&self.pool).await?;
        Ok(done.rows_affected() > 0)
    }

    async fn read(&self) -> Result<i64, sqlx::Error> {
        let sql = "SELECT balance FROM account";
        let balance = sqlx::query_scalar(sql).fetch_one(&self.pool).await?;
        if !self.sleeps.is_zero() {
            let (holder, sleeps) = (self.holder, self.sleeps);
            println!(
                "{holder}: has read {balance} cents, and now sleeps for {sleeps:?}; its lease lasts {TTL:?}"
            );
            // This stands for a pause of the whole process: the holder can notice nothing, since no timer of its own runs.
            std::thread::sleep(sleeps);
            println!("{holder}: wakes up and writes");
        }
        Ok(balance)
    }

    /// Writes the balance, if no later holder was announced. Returns whether it did.
    async fn write(&self, fence: Fence, balance: i64) -> Result<bool, sqlx::Error> {
        let fenced =
            "UPDATE account SET balance = $3 WHERE fencing_token = $1 AND fencing_holder = $2";
        let unfenced = "UPDATE account SET balance = $3 WHERE $1 > 0 AND $2 > 0";
        let sql = if self.fenced { fenced } else { unfenced };
        let write = sqlx::query(sql)
            .bind(number(fence.token.into()))
            .bind(number(fence.holder));
        let done = write.bind(balance).execute(&self.pool).await?;
        Ok(done.rows_affected() > 0)
    }

    /// Adds to the balance. Returns whether it did: a later holder may have been announced.
    async fn add(&self, fence: Fence, cents: i64) -> Result<bool, sqlx::Error> {
        if !self.announce(fence).await? {
            return Ok(false);
        }
        let balance = self.read().await?;
        self.write(fence, balance + cents).await
    }
}

/// Fencing tokens and holder numbers fit in 53 bits, so they fit in a `BIGINT` column.
fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Adds to the account under its lock.
async fn deposit(locks: LockManager, account: Account, cents: i64) -> anyhow::Result<()> {
    let options = LockOptions::new(TTL).without_renewal();
    let guard = locks.acquire(key!("account"), options).await?;
    let fence = guard.lease().fence();
    let (holder, token) = (account.holder, fence.token);
    println!("{holder}: has the lock, with fencing token {token}");
    if account.add(fence, cents).await? {
        println!("{holder}: {cents} cents added");
    } else {
        println!(
            "{holder}: {cents} cents refused, since the database knows a later holder than {token}"
        );
    }
    Ok(())
}

#[tokio::main(worker_threads = 2)]
async fn main() -> anyhow::Result<()> {
    let fenced = std::env::args().all(|argument| argument != "--unfenced");
    let file = tempfile::NamedTempFile::new()?;
    let pool = SqlitePool::connect(&format!("sqlite://{}", file.path().display())).await?;
    let table = "CREATE TABLE account (balance BIGINT NOT NULL, \
                 fencing_token BIGINT NOT NULL DEFAULT 0, fencing_holder BIGINT NOT NULL DEFAULT 0)";
    sqlx::raw_sql(table).execute(&pool).await?;
    sqlx::raw_sql("INSERT INTO account (balance) VALUES (0)")
        .execute(&pool)
        .await?;
    let account = |holder, sleeps| Account {
        holder,
        pool: pool.clone(),
        sleeps,
        fenced,
    };

    let locks = LockManager::in_memory();
    let sleeper = account("sleeper", Duration::from_secs(4));
    let sleeper = tokio::spawn(deposit(locks.clone(), sleeper, 100));
    while locks.inspect("account").await?.is_none() {
        tokio::task::yield_now().await;
    }
    // The successor gets the lock when the sleeper's lease has ended, and is done before the sleeper wakes up.
    deposit(locks, account("successor", Duration::ZERO), 25).await?;
    sleeper.await??;
    let balance: i64 = sqlx::query_scalar("SELECT balance FROM account")
        .fetch_one(&pool)
        .await?;
    println!("balance: {balance} cents");
    Ok(())
}
