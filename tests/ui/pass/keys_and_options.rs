//! Keys, templates and options in each form.

use lock_core::{LockError, LockKey, distributed_lock, key};
use std::time::Duration;

// Durations in every form.
const TTL: Duration = Duration::from_secs(3);
struct Config {
    ttl: Duration,
}
#[distributed_lock(key = "n", ttl = TTL, wait = config.ttl, max_hold = Duration::from_secs(9), min_hold = TTL / 2)]
async fn durations_in_every_form(config: &Config) -> Result<(), LockError> {
    let _ = config;
    Ok(())
}
#[distributed_lock(key = "n", ttl = "100ms", wait = "24h", max_hold = "1h59m59s999ms")]
async fn durations_in_every_form_g() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = "n", ttl = std::env::var("TTL").ok().and_then(|s| s.parse().ok()).map_or(TTL, Duration::from_secs))]
async fn durations_in_every_form_h() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = "n", wait = "forever", ttl = "10s", max_hold = "10s", min_hold = "10s", renew = false)]
async fn i() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = "n", wait = forever)]
async fn j(forever: Duration) -> Result<(), LockError> {
    Ok(())
}

// Every option at once.
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
async fn every_option_at_once(order_id: u64, manager: &lock_core::LockManager) -> Result<u64, String> {
    Ok(order_id + u64::from(lease.fencing_token()))
}

// Template expressions.
mod config {
    pub(crate) const REGION: &str = "eu";
}
const TENANT: &str = "acme";
struct Line {
    id: u64,
    tags: Vec<String>,
}
struct Order {
    id: u64,
    lines: Vec<Line>,
    pair: (u64, (u64, u64)),
}
impl Order {
    fn number(&self) -> u64 {
        self.id
    }
    fn with(&self, n: u64, s: &str) -> String {
        format!("{n}{s}{}", self.id)
    }
}
fn shard(id: u64) -> u64 {
    id % 16
}

#[distributed_lock(
    key = "{TENANT}:{config::REGION}:{order.id}:{order.lines[0].tags[i]}:{order.pair.1.0}:{order.number()}:{shard(order.id)}:{order.with(1, &order.lines[0].tags[0])}:{u64::from(byte)}:{ byte :03}:{str::len(\"a\")}"
)]
async fn template_expressions(order: &Order, byte: u8, i: usize) -> Result<u64, LockError> {
    Ok(order.id)
}

// Templates with braces and specs.
#[distributed_lock(key = "{{order:{id}}}:{id:08}:{id:>4}:{name:*<10.3}:{id:x}:{{}}")]
async fn templates_with_braces_and_specs(id: u64, name: &str) -> Result<u64, LockError> {
    Ok(id + name.len() as u64)
}
#[distributed_lock(key = r#"a "quoted" key {id}"#)]
async fn raw(id: u64) -> Result<u64, LockError> {
    Ok(id)
}
#[distributed_lock(key = "größe:{id}→{id}")]
async fn unicode(id: u64) -> Result<u64, LockError> {
    Ok(id)
}

// The macro key.
fn keys(id: u64, order: &(u64, String), r#type: u8) -> [LockKey; 5] {
    let other = id + 1;
    [
        key!("order:{id}"),
        key!("order:{order.1}:{other:03}"),
        key!("fixed"),
        key!("t:{type}:{u64::MAX}"),
        key!("{{x}}:{order.0}"),
    ]
}

/// No temporary value of the macro lives on while the statement around it awaits.
fn spawned(locks: lock_core::LockManager, id: u64) {
    tokio::spawn(async move {
        let guard = locks.acquire(key!("order:{id}"), lock_core::LockOptions::default()).await;
        drop(guard);
    });
}

// Tokio test and main below.
#[distributed_lock(key = "a test", on_error = |error| panic!("{error}"))]
#[tokio::test]
async fn works() {
    assert_eq!(1 + 1, 2);
}

#[distributed_lock(key = "main")]
#[tokio::main]
async fn start() -> Result<(), LockError> {
    Ok(())
}

// Turbofish and literals in the arguments of a call.
#[distributed_lock(
    key = "n:{text.split('-').collect::<Vec<_>>()[0]}:{i64::from_str_radix(&text, 16).unwrap_or(1)}"
)]
async fn turbofish_and_literals_in_the_arguments_of_a_call(text: String) -> Result<String, LockError> {
    Ok(text)
}

// Two locks stacked.
#[distributed_lock(key = "account:{from}", lease = first)]
#[distributed_lock(key = "account:{to}", lease = second)]
async fn transfer(from: u64, to: u64, mut amount: u64) -> Result<u64, LockError> {
    amount += u64::from(first.fencing_token()) + u64::from(second.fencing_token());
    Ok(from + to + amount)
}

#[distributed_lock(key = "account:{a}")]
#[distributed_lock(key = "account:{b}")]
async fn extractors((a, b): (u64, u64)) -> Result<u64, LockError> {
    Ok(a + b)
}
