//! The handlers of the shop.

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

/// The state that every handler needs.
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

/// Pays an order. Only one call per order runs at a time, across all instances of the shop.
///
/// A lock alone cannot stop an instance that was frozen for longer than its lease and then continues
/// where it was. The fencing token can: it grows with each holder of the lock, and every write carries
/// it. The database refuses a token that is smaller than the largest one that it has seen.
///
/// If the lock is busy, lost or unavailable, the client gets 409 or 503 and `Retry-After`, without any code for it here.
#[distributed_lock(key = "order:{order_id}", ttl = "10s", lease = lease)]
pub(crate) async fn pay(State(shop): State<Shop>, Path(order_id): Path<i64>) -> impl IntoResponse {
    let fencing_token = u64::from(lease.fencing_token());
    charge_if_open(&shop, order_id, fencing_token).await
}

/// Pays an order as [`pay`] does, but without the lock: two payments at the same time charge it twice.
pub(crate) async fn pay_without_lock(
    State(shop): State<Shop>,
    Path(order_id): Path<i64>,
) -> Result<Json<Order>, ApiError> {
    // Every call passes the smallest token, so the database refuses none.
    charge_if_open(&shop, order_id, 0).await
}

/// Charges an order that is not paid yet.
///
/// If the lease is lost or the client disconnects, this future may be dropped at any await, even between the
/// charge and the write. So give a real provider a key by which it recognises a repeated charge.
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
