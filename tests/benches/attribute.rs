//! The cost of the attribute, compared with a call of `run` by hand.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use lock_core::{LockError, LockManager, LockOptions, distributed_lock};
use tokio::runtime::Builder;

use crate::{
    report::{self, Target::AtMost},
    sample::median,
};

const ROUNDS: u32 = 15;
const CALLS: u32 = 20_000;

#[distributed_lock(key = "order:{id}", ttl = "10s", locks = locks)]
async fn annotated(locks: &LockManager, id: u32) -> Result<u32, LockError> {
    Ok(black_box(id))
}

async fn by_hand(locks: &LockManager, id: u32) -> Result<u32, LockError> {
    let key = lock_core::key!("order:{id}");
    let options = LockOptions::new(Duration::from_secs(10));
    locks
        .run(key, options, async |_lease| Ok(black_box(id)))
        .await?
}

pub(crate) fn run() {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = LockManager::in_memory();
        let (mut attribute, mut hand) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            attribute.push(nanos_per_call(async |id| annotated(&locks, id).await).await);
            hand.push(nanos_per_call(async |id| by_hand(&locks, id).await).await);
        }
        let (attribute, hand) = (median(attribute), median(hand));
        report::title("attribute, uncontended, locks in memory");
        report::target("additional ns per call", attribute - hand, AtMost(1000.0));
        report::note("ns per annotated call", attribute);
        report::note("ns per call by hand", hand);
    });
}

async fn nanos_per_call(call: impl AsyncFn(u32) -> Result<u32, LockError>) -> f64 {
    let start = Instant::now();
    for id in 0..CALLS {
        let result = call(id).await;
        assert_eq!(result.ok(), Some(id));
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}
