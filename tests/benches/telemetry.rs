//! The cost of telemetry with a subscriber, and without one.

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
    let round = || runtime.block_on(nanos_a_lock(&locks));
    let listening = |level| {
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(level)
            .with_writer(io::sink)
            .finish();
        tracing::subscriber::with_default(subscriber, round)
    };
    let (mut no_recorder, mut warnings, mut everything, mut figures) =
        (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        no_recorder.push(round());
        warnings.push(listening(Level::INFO));
        everything.push(listening(Level::DEBUG));
        let recorder = DebuggingRecorder::new();
        figures.push(metrics::with_local_recorder(&recorder, round));
    }
    let with = if cfg!(feature = "metrics") {
        "with"
    } else {
        "without"
    };
    report::title(&format!(
        "telemetry, uncontended, locks in memory, {with} the feature `metrics`"
    ));
    report::note("ns a lock, no subscriber", median(no_recorder));
    report::note("ns a lock, a log of warnings", median(warnings));
    report::note("ns a lock, a log of everything", median(everything));
    report::note("ns a lock, a collector of figures", median(figures));
}

async fn nanos_a_lock(locks: &LockManager) -> f64 {
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
