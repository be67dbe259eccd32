//! Template expressions.

use lock_core::{LockError, distributed_lock};

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
async fn f(order: &Order, byte: u8, i: usize) -> Result<u64, LockError> {
    Ok(order.id)
}
