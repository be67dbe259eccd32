//! The buyers, and the one line that keeps the sale from being oversold.

use std::{
    ops::Range,
    time::{Duration, Instant},
};

use lock_core::{LockError, distributed_lock};
use tokio::task::JoinSet;

use crate::shop::{Shop, Side};

/// The number of buyers in all.
pub(crate) const BUYERS: u32 = 500;

/// The lock of the only item on sale.
pub(crate) const KEY: &str = "sale:ticket";

/// How long a payment takes. In that time other buyers read the same stock.
const PAYMENT: Duration = Duration::from_millis(40);

/// A buyer of one item.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Buyer {
    pub(crate) number: u32,
    pub(crate) side: Side,
    pub(crate) arrived: Instant,
}

/// Why a buyer got no response.
#[derive(Debug)]
enum BuyError {
    Lock(LockError),
    Database(sqlx::Error),
}

impl From<LockError> for BuyError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}

impl From<sqlx::Error> for BuyError {
    fn from(error: sqlx::Error) -> Self {
        Self::Database(error)
    }
}

/// Lets these buyers in, all at once and on both sides, and waits until each of them has a response.
pub(crate) async fn let_in(shop: &Shop, numbers: Range<u32>) -> Result<(), sqlx::Error> {
    let mut crowd = JoinSet::new();
    for number in numbers {
        for side in [Side::WithoutLock, Side::WithLock] {
            let arrived = Instant::now();
            let buyer = Buyer {
                number,
                side,
                arrived,
            };
            crowd.spawn(serve(shop.clone(), buyer));
        }
    }
    crowd.join_all().await.into_iter().collect()
}

async fn serve(shop: Shop, buyer: Buyer) -> Result<(), sqlx::Error> {
    let bought = match buyer.side {
        Side::WithoutLock => buy_one(&shop, buyer).await,
        Side::WithLock => buy(&shop, buyer, "ticket").await,
    };
    match bought {
        Ok(()) => Ok(()),
        Err(BuyError::Lock(error)) => shop.give_up(buyer, &error.to_string()).await,
        Err(BuyError::Database(error)) => Err(error),
    }
}

/// Buys one item under the lock: only one buyer at a time, across all processes, runs this body.
#[distributed_lock(key = "sale:{item}", ttl = "10s", wait = "2m")]
async fn buy(shop: &Shop, buyer: Buyer, item: &str) -> Result<(), BuyError> {
    buy_one(shop, buyer).await
}

/// Reads the stock, pays, and writes back. This is right for one buyer at a time, and wrong for two.
async fn buy_one(shop: &Shop, buyer: Buyer) -> Result<(), BuyError> {
    let stock = shop.enter(buyer).await?;
    if stock == 0 {
        return Ok(shop.turn_away(buyer).await?);
    }
    tokio::time::sleep(PAYMENT).await;
    Ok(shop.sell(buyer, stock - 1).await?)
}
