//! A payment provider: it is slow, and charges as often as it is asked.

use std::time::Duration;

use sqlx::SqlitePool;

use crate::store::Order;

/// Stands for a service on the other side of the internet.
///
/// Its books are in the shop's database, so that all instances of the shop see the same.
#[derive(Debug, Clone)]
pub(crate) struct PaymentProvider {
    books: SqlitePool,
    latency: Duration,
}

impl PaymentProvider {
    pub(crate) fn new(books: SqlitePool, latency: Duration) -> Self {
        Self { books, latency }
    }

    pub(crate) async fn charge(&self, order: &Order) -> Result<(), sqlx::Error> {
        tokio::time::sleep(self.latency).await;
        let charge = sqlx::query("INSERT INTO charges (order_id, cents) VALUES (?, ?)");
        charge
            .bind(order.id)
            .bind(order.cents)
            .execute(&self.books)
            .await?;
        Ok(())
    }

    /// Counts how often an order was charged.
    pub(crate) async fn charges(&self, order_id: i64) -> Result<i64, sqlx::Error> {
        let count = sqlx::query_scalar("SELECT COUNT(*) FROM charges WHERE order_id = ?");
        count.bind(order_id).fetch_one(&self.books).await
    }
}
