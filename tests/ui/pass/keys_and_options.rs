//! Keys, templates and options in each form.

use lock_core::{LockError, LockKey, LockManager, LockOptions, distributed_lock, key};
use std::{borrow::Cow, sync::Arc, time::Duration};

// Durations.
const TTL: Duration = Duration::from_secs(3);
struct Config {
    ttl: Duration,
}

#[distributed_lock(key = "n", ttl = TTL, wait = config.ttl, max_hold = Duration::from_secs(9), min_hold = TTL / 2)]
async fn computed_durations(config: &Config) -> Result<(), LockError> {
    let _ = config;
    Ok(())
}

#[distributed_lock(key = "n", ttl = "100ms", wait = "24h", max_hold = "1h59m59s999ms")]
async fn literal_durations() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "n", wait = "forever", ttl = "10s", max_hold = "10s", min_hold = "10s", renew = false)]
async fn equal_durations() -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "n", wait = forever)]
async fn a_duration_called_forever(forever: Duration) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(
    key = "order:{order_id}",
    ttl = "1m30s",
    wait = "0s",
    renew = true,
    max_hold = "1h",
    min_hold = "100ms",
    on_busy = error,
    on_lost = cancel,
    on_error = |error| Err(error.to_string()),
    release = background,
    lease = lease,
    locks = manager,
    crate = ::lock_core,
    on_drop = cancel,
    mode = exclusive,
)]
async fn every_option_at_once(order_id: u64, manager: &LockManager) -> Result<u64, String> {
    Ok(order_id + u64::from(lease.fencing_token()))
}

// Templates.
mod config {
    pub(crate) const REGION: &str = "eu";
}
const TENANT: &str = "acme";
struct Line {
    tags: Vec<String>,
}
struct Order {
    id: u64,
    lines: Vec<Line>,
    pair: (u64, (u64, u64)),
}
impl Order {
    fn with(&self, n: u64, s: &str) -> String {
        format!("{n}{s}{}", self.id)
    }
    fn key(&self) -> LockKey {
        key!("order:{self.id}")
    }
    async fn later(&self) -> Result<String, LockError> {
        tokio::task::yield_now().await;
        Ok(self.id.to_string())
    }
}
fn shard(id: u64) -> u64 {
    id % 16
}

#[distributed_lock(
    key = "{TENANT}:{config::REGION}:{order.id}:{order.lines[0].tags[i]}:{order.pair.1.0}:{shard(order.id)}:{order.with(1, &order.lines[0].tags[0])}:{u64::from(byte)}:{ byte :03}:{str::len(\"a\")}"
)]
async fn values_of_each_form(order: &Order, byte: u8, i: usize) -> Result<u64, LockError> {
    Ok(order.id)
}

#[distributed_lock(
    key = "n:{text.split('-').collect::<Vec<_>>()[0]}:{i64::from_str_radix(&text, 16).unwrap_or(1)}"
)]
async fn calls_with_a_turbofish(text: String) -> Result<String, LockError> {
    Ok(text)
}

#[distributed_lock(key = r#"größe "{{order:{id}}}":{id:08}:{id:>4}:{name:*<10.3}:{id:x}:{{}}"#)]
async fn braces_and_specs(id: u64, name: &str) -> Result<u64, LockError> {
    Ok(id + name.len() as u64)
}

// Expressions.
#[distributed_lock(key = order.key())]
async fn a_call(order: &mut Order) -> Result<&mut Order, LockError> {
    Ok(order)
}

#[distributed_lock(key = order.later().await?)]
async fn an_await(order: Order) -> Result<Order, LockError> {
    Ok(order)
}

#[distributed_lock(key = match order.id { 0 => return Ok(order), id => key!("order:{id}") })]
async fn a_return(order: Order) -> Result<Order, LockError> {
    Ok(order)
}

#[distributed_lock(key = text)]
async fn a_moved_argument(text: Arc<str>) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = text.clone())]
async fn a_borrow(text: Cow<'_, str>) -> Result<usize, LockError> {
    Ok(text.len())
}

// The macro `key!`.
fn keys(id: u64, order: &(u64, String), r#type: u8) -> [LockKey; 4] {
    [
        key!("order:{id}"),
        key!("fixed"),
        key!("t:{type}:{u64::MAX}"),
        key!("{{x}}:{order.1}:{id:03}"),
    ]
}

/// No temporary value of the macro outlives the `await` of its statement.
fn spawned(locks: LockManager, id: u64) {
    tokio::spawn(async move {
        let guard = locks.acquire(key!("order:{id}"), LockOptions::default()).await;
        drop(guard);
    });
}
