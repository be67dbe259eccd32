//! The orders, in a database that refuses a write by an earlier holder of the lock.

use std::{str::FromStr, time::Duration};

use serde::Serialize;
use sqlx::{
    FromRow, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode},
};

use crate::error::ApiError;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS orders (
        id INTEGER PRIMARY KEY,
        cents INTEGER NOT NULL,
        paid INTEGER NOT NULL DEFAULT FALSE,
        fencing_token INTEGER NOT NULL DEFAULT 0
    );
    CREATE TABLE IF NOT EXISTS charges (
        order_id INTEGER NOT NULL,
        cents INTEGER NOT NULL
    );";

/// An order of the shop.
#[derive(Debug, Serialize, FromRow)]
pub(crate) struct Order {
    pub(crate) id: i64,
    pub(crate) cents: i64,
    pub(crate) paid: bool,
}

/// The table of orders.
#[derive(Debug, Clone)]
pub(crate) struct Orders {
    database: SqlitePool,
}

/// Opens the database, and creates the file and the tables that are missing.
pub(crate) async fn open(url: &str) -> Result<SqlitePool, sqlx::Error> {
    let options = SqliteConnectOptions::from_str(url)?
        .create_if_missing(true)
        // Several instances share the file. In this mode readers do not wait for a writer, and writers wait for each other.
        .journal_mode(SqliteJournalMode::Wal)
        .busy_timeout(Duration::from_secs(10));
    let database = SqlitePool::connect_with(options).await?;
    sqlx::raw_sql(SCHEMA).execute(&database).await?;
    Ok(database)
}

impl Orders {
    pub(crate) fn new(database: SqlitePool) -> Self {
        Self { database }
    }

    pub(crate) async fn create(&self, cents: i64) -> Result<Order, ApiError> {
        let insert = "INSERT INTO orders (cents) VALUES (?) RETURNING id, cents, paid";
        let order = sqlx::query_as(insert).bind(cents);
        Ok(order.fetch_one(&self.database).await?)
    }

    pub(crate) async fn find(&self, id: i64) -> Result<Order, ApiError> {
        let order = sqlx::query_as("SELECT id, cents, paid FROM orders WHERE id = ?").bind(id);
        let order = order.fetch_optional(&self.database).await?;
        order.ok_or(ApiError::NoSuchOrder)
    }

    /// Reads an order, and announces the holder that is going to write it.
    ///
    /// From then on, the database refuses every earlier holder, so only this holder or a later one can
    /// change the order that was read.
    pub(crate) async fn claim(&self, id: i64, fencing_token: u64) -> Result<Order, ApiError> {
        let update = "UPDATE orders SET fencing_token = ?2 WHERE id = ?1 AND fencing_token <= ?2
            RETURNING id, cents, paid";
        self.fenced(update, id, fencing_token).await
    }

    /// Writes that an order is paid, unless a later holder has announced itself.
    pub(crate) async fn mark_paid(&self, id: i64, fencing_token: u64) -> Result<Order, ApiError> {
        let update = "UPDATE orders SET paid = TRUE WHERE id = ?1 AND fencing_token <= ?2
            RETURNING id, cents, paid";
        self.fenced(update, id, fencing_token).await
    }

    async fn fenced(
        &self,
        update: &'static str,
        id: i64,
        fencing_token: u64,
    ) -> Result<Order, ApiError> {
        let token = i64::try_from(fencing_token).expect("a fencing token fits in 53 bits");
        let order = sqlx::query_as(update).bind(id).bind(token);
        match order.fetch_optional(&self.database).await? {
            Some(order) => Ok(order),
            // No row was changed: either no order has this id, or its token is larger.
            None => self.find(id).await.and(Err(ApiError::Overtaken)),
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    async fn no_orders() -> (Orders, TempDir) {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite:{}", folder.path().join("orders.db").display());
        (Orders::new(open(&url).await.unwrap()), folder)
    }

    #[tokio::test]
    async fn an_earlier_holder_is_refused_once_a_later_one_has_read() {
        let (orders, _folder) = no_orders().await;
        let id = orders.create(4_200).await.unwrap().id;

        orders.claim(id, 7).await.unwrap();
        orders.claim(id, 8).await.unwrap();
        for refused in [orders.claim(id, 7).await, orders.mark_paid(id, 7).await] {
            assert!(matches!(refused, Err(ApiError::Overtaken)), "{refused:?}");
        }
        assert!(!orders.find(id).await.unwrap().paid);
        assert!(orders.mark_paid(id, 8).await.unwrap().paid);
    }

    #[tokio::test]
    async fn a_missing_order_is_not_reported_as_overtaken() {
        let (orders, _folder) = no_orders().await;
        let missing = orders.claim(1, 7).await;
        assert!(matches!(missing, Err(ApiError::NoSuchOrder)), "{missing:?}");
    }
}
