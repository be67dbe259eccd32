//! The stock and the visits of the buyers, in a SQLite file that both processes use.

use std::{path::Path, time::Duration};

use sqlx::{
    FromRow, SqliteExecutor, SqlitePool,
    sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous},
};

use crate::buyers::Buyer;

/// The number of items on each side.
pub(crate) const STOCK: u32 = 100;

const SCHEMA: &str = "
    CREATE TABLE IF NOT EXISTS stock (side INTEGER PRIMARY KEY, items INTEGER NOT NULL);
    CREATE TABLE IF NOT EXISTS visits (
        side INTEGER NOT NULL,
        buyer INTEGER NOT NULL,
        process TEXT NOT NULL,
        inside INTEGER NOT NULL DEFAULT 0,
        outcome TEXT,
        reason TEXT,
        waited_ms INTEGER,
        place INTEGER,
        PRIMARY KEY (side, buyer)
    );";

/// One of the two sales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::Type)]
#[repr(i32)]
pub(crate) enum Side {
    WithoutLock,
    WithLock,
}

/// The response to a buyer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, sqlx::Type)]
#[serde(rename_all = "snake_case")]
#[sqlx(rename_all = "snake_case")]
pub(crate) enum Outcome {
    Sold,
    SoldOut,
    GaveUp,
}

/// The visit of a buyer that has read the stock, or gave up before.
#[derive(Debug, FromRow)]
pub(crate) struct Visit {
    pub(crate) buyer: u32,
    pub(crate) process: String,
    /// How many buyers were between reading and writing when this one arrived, this one included.
    pub(crate) inside: u32,
    /// `None` as long as the buyer is inside.
    pub(crate) outcome: Option<Outcome>,
    pub(crate) reason: Option<String>,
    pub(crate) waited_ms: Option<u32>,
}

/// The shop, as one process sees it.
#[derive(Debug, Clone)]
pub(crate) struct Shop {
    database: SqlitePool,
    process: char,
}

impl Shop {
    pub(crate) async fn open(file: &Path, process: char) -> Result<Self, sqlx::Error> {
        let options = SqliteConnectOptions::new()
            .filename(file)
            .create_if_missing(true)
            .journal_mode(SqliteJournalMode::Wal)
            // The sale need not survive a power cut.
            .synchronous(SqliteSynchronous::Off)
            .busy_timeout(Duration::from_secs(30));
        // One connection for each process: SQLite has one writer at a time, and the pool is the fairer queue.
        let pool = SqlitePoolOptions::new()
            .max_connections(1)
            .acquire_timeout(Duration::from_mins(2));
        let database = pool.connect_with(options).await?;
        sqlx::raw_sql(SCHEMA).execute(&database).await?;
        Ok(Self { database, process })
    }

    /// Fills the stock of both sides, and deletes the visits.
    pub(crate) async fn refill(&self) -> Result<(), sqlx::Error> {
        sqlx::raw_sql("DELETE FROM visits; DELETE FROM stock")
            .execute(&self.database)
            .await?;
        let insert = sqlx::query("INSERT INTO stock VALUES (?1, ?3), (?2, ?3)");
        let sides = insert.bind(Side::WithoutLock).bind(Side::WithLock);
        sides.bind(STOCK).execute(&self.database).await?;
        Ok(())
    }

    /// Lets a buyer in, and reads the stock.
    pub(crate) async fn enter(&self, buyer: Buyer) -> Result<u32, sqlx::Error> {
        let visit = "INSERT INTO visits (side, buyer, process, inside)
            SELECT ?1, ?2, ?3, 1 + COUNT(*) FROM visits WHERE side = ?1 AND outcome IS NULL
            RETURNING (SELECT items FROM stock WHERE side = ?1)";
        let visit = sqlx::query_scalar(visit).bind(buyer.side);
        let visit = visit.bind(buyer.number).bind(self.process.to_string());
        visit.fetch_one(&self.database).await
    }

    /// Sells an item, and writes back the new stock: both or none.
    pub(crate) async fn sell(&self, buyer: Buyer, left: u32) -> Result<(), sqlx::Error> {
        let mut both = self.database.begin().await?;
        let write = sqlx::query("UPDATE stock SET items = ? WHERE side = ?");
        let write = write.bind(left).bind(buyer.side);
        write.execute(&mut *both).await?;
        response(&mut *both, buyer, Outcome::Sold).await?;
        both.commit().await
    }

    pub(crate) async fn turn_away(&self, buyer: Buyer) -> Result<(), sqlx::Error> {
        response(&self.database, buyer, Outcome::SoldOut).await
    }

    /// Notes that a buyer did not get the lock, or lost it.
    pub(crate) async fn give_up(&self, buyer: Buyer, reason: &str) -> Result<(), sqlx::Error> {
        let visit = "INSERT INTO visits (side, buyer, process, outcome, reason, waited_ms, place)
            SELECT ?1, ?2, ?3, ?4, ?5, ?6, COUNT(outcome) FROM visits WHERE side = ?1
            ON CONFLICT DO UPDATE SET
                outcome = ?4, reason = ?5, waited_ms = ?6, place = excluded.place";
        let visit = sqlx::query(visit).bind(buyer.side).bind(buyer.number);
        let visit = visit.bind(self.process.to_string()).bind(Outcome::GaveUp);
        let visit = visit.bind(reason).bind(waited_ms(buyer));
        visit.execute(&self.database).await?;
        Ok(())
    }

    pub(crate) async fn stock(&self, side: Side) -> Result<u32, sqlx::Error> {
        let stock = sqlx::query_scalar("SELECT items FROM stock WHERE side = ?").bind(side);
        stock.fetch_one(&self.database).await
    }

    /// Returns all visits, in the order of the responses.
    pub(crate) async fn visits(&self, side: Side) -> Result<Vec<Visit>, sqlx::Error> {
        let visits = sqlx::query_as("SELECT * FROM visits WHERE side = ? ORDER BY place");
        visits.bind(side).fetch_all(&self.database).await
    }
}

async fn response(
    database: impl SqliteExecutor<'_>,
    buyer: Buyer,
    outcome: Outcome,
) -> Result<(), sqlx::Error> {
    let response = "UPDATE visits SET outcome = ?3, waited_ms = ?4,
        place = (SELECT COUNT(outcome) FROM visits WHERE side = ?1)
        WHERE side = ?1 AND buyer = ?2";
    let response = sqlx::query(response).bind(buyer.side).bind(buyer.number);
    let response = response.bind(outcome).bind(waited_ms(buyer));
    response.execute(database).await?;
    Ok(())
}

fn waited_ms(buyer: Buyer) -> u32 {
    u32::try_from(buyer.arrived.elapsed().as_millis()).unwrap_or(u32::MAX)
}
