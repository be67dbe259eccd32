//! What the shop answers.

use axum::{
    Json,
    extract::{Path, State},
    http::StatusCode,
    response::IntoResponse,
};
use lock_core::distributed_lock;
use serde::{Deserialize, Serialize};

use crate::{
    error::ApiError,
    payment::PaymentProvider,
    store::{Order, Orders},
};

/// What every handler needs.
#[derive(Debug, Clone)]
pub(crate) struct Shop {
    pub(crate) orders: Orders,
    pub(crate) provider: PaymentProvider,
}

#[derive(Debug, Deserialize)]
pub(crate) struct NewOrder {
    cents: i64,
}

#[derive(Debug, Serialize)]
pub(crate) struct OrderAndCharges {
    #[serde(flatten)]
    order: Order,
    charges: i64,
}

pub(crate) async fn create(
    State(shop): State<Shop>,
    Json(new): Json<NewOrder>,
) -> Result<(StatusCode, Json<Order>), ApiError> {
    let order = shop.orders.create(new.cents).await?;
    Ok((StatusCode::CREATED, Json(order)))
}

pub(crate) async fn show(
    State(shop): State<Shop>,
    Path(order_id): Path<i64>,
) -> Result<Json<OrderAndCharges>, ApiError> {
    let order = shop.orders.find(order_id).await?;
    let charges = shop.provider.charges(order_id).await?;
    Ok(Json(OrderAndCharges { order, charges }))
}

/// Pays an order. All instances of the shop together run this once at a time for each order.
///
/// A lock alone cannot stop an instance that was frozen for longer than its lease and then goes on
/// where it was. The fencing token can: it grows with each holder of the lock, goes along with each
/// write, and the database refuses one that is smaller than what it has seen.
///
/// Nothing here answers for a lock that is busy, lost or unavailable: the client is told 409 or 503, and when to come back.
#[distributed_lock(key = "order:{order_id}", ttl = "10s", lease = lease)]
pub(crate) async fn pay(State(shop): State<Shop>, Path(order_id): Path<i64>) -> impl IntoResponse {
    let fencing_token = u64::from(lease.fencing_token());
    charge_if_open(&shop, order_id, fencing_token).await
}

/// Pays an order as [`pay`] does, but for the lock: two at the same time charge it twice.
pub(crate) async fn pay_without_lock(
    State(shop): State<Shop>,
    Path(order_id): Path<i64>,
) -> Result<Json<Order>, ApiError> {
    // The smallest token there is, so the database has nothing to compare.
    charge_if_open(&shop, order_id, 0).await
}

/// A lost lease, or a client that hangs up, drops this wherever it waits, even between the charge and
/// the write. So a real provider is also given a key by which it knows a charge that it made before.
async fn charge_if_open(
    shop: &Shop,
    order_id: i64,
    fencing_token: u64,
) -> Result<Json<Order>, ApiError> {
    let order = shop.orders.claim(order_id, fencing_token).await?;
    if order.paid {
        return Ok(Json(order));
    }
    shop.provider.charge(&order).await?;
    let order = shop.orders.mark_paid(order_id, fencing_token).await?;
    Ok(Json(order))
}
