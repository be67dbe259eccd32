//! Two types in an impl into response.

use axum::response::IntoResponse;
#[cfg(not(plain))]
use lock_core::distributed_lock;

#[cfg_attr(not(plain), distributed_lock(key = "order"))]
async fn two(first: bool) -> impl IntoResponse {
    if first {
        return "first";
    }
    1_u8.to_string()
}
