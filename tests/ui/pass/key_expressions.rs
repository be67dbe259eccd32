//! Key expressions.

use lock_core::{LockError, distributed_lock};

use lock_core::{LockKey, key};
use std::{borrow::Cow, sync::Arc};
const NAME: &str = "name";
struct Order {
    id: u64,
}
impl Order {
    fn key(&self) -> LockKey {
        key!("order:{self.id}")
    }
    async fn later(&self) -> Result<String, LockError> {
        tokio::task::yield_now().await;
        Ok(self.id.to_string())
    }
}
#[distributed_lock(key = NAME)]
async fn constant() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = concat!("a", "b"))]
async fn macro_call() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = format!("order:{}", order.id))]
async fn formatted(order: Order) -> Result<Order, LockError> {
    Ok(order)
}
#[distributed_lock(key = order.key())]
async fn method(order: &mut Order) -> Result<&mut Order, LockError> {
    Ok(order)
}
#[distributed_lock(key = order.later().await?)]
async fn awaited(order: Order) -> Result<Order, LockError> {
    Ok(order)
}
#[distributed_lock(key = match order.id { 0 => return Ok(order), id => key!("order:{id}") })]
async fn returning(order: Order) -> Result<Order, LockError> {
    Ok(order)
}
#[distributed_lock(key = { let id = order.id; format!("o{id}") })]
async fn block(order: Order) -> Result<Order, LockError> {
    Ok(order)
}
#[distributed_lock(key = text)]
async fn moved(text: Arc<str>) -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = text.clone())]
async fn cloned(text: Cow<'_, str>) -> Result<usize, LockError> {
    Ok(text.len())
}
#[distributed_lock(key = key!("order:{id:>5}"))]
async fn by_macro(id: u64) -> Result<u64, LockError> {
    Ok(id)
}
