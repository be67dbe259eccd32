//! The cost of telemetry, with and without a subscriber.

use std::{
    hint::black_box,
    io,
    time::{Duration, Instant},
};

use lock_core::{LockManager, LockOptions};
use metrics_util::debugging::DebuggingRecorder;
use tokio::runtime::Builder;
use tracing::Level;

use crate::{report, sample::median};

const ROUNDS: u32 = 15;
const CALLS: u32 = 20_000;

pub(crate) fn run() {
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let locks = LockManager::in_memory();
    let round = || runtime.block_on(nanos_per_lock(&locks));
    let listening = |level| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(io::sink)
            .finish();
        tracing::subscriber::with_default(subscriber, round)
    };
    let (mut plain, mut warnings, mut everything, mut with_recorder) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        plain.push(round());
        warnings.push(listening(Level::INFO));
        everything.push(listening(Level::DEBUG));
        let recorder = DebuggingRecorder::new();
        with_recorder.push(metrics::with_local_recorder(&recorder, round));
    }
    let with = if cfg!(feature = "metrics") {
        "with"
    } else {
        "without"
    };
    report::title(&format!(
        "telemetry, uncontended, locks in memory, {with} the `metrics` feature"
    ));
    report::note("ns per lock, without a subscriber", median(plain));
    report::note("ns per lock, with a log of warnings", median(warnings));
    report::note("ns per lock, with a log of everything", median(everything));
    report::note(
        "ns per lock, with a recorder of metrics",
        median(with_recorder),
    );
}

async fn nanos_per_lock(locks: &LockManager) -> f64 {
    let start = Instant::now();
    for id in 0..CALLS {
        let key = lock_core::key!("order:{id}");
        let options = LockOptions::new(Duration::from_secs(10));
        let guard = locks.acquire(key, options).await.expect("free");
        black_box(&guard);
        guard.release().await.expect("held");
    }
    start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
}
