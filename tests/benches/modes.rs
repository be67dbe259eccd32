//! Shared locks and permits.

use std::{sync::Arc, time::Duration};

use tokio::runtime::Runtime;

use crate::{
    cores::start_server,
    load::{Contender, Keys, Load, take_turns},
    lockers::{LockCore, TokioRwLock, TokioSemaphore},
    plot::Plot,
    readers,
    report::{self, Target::AtLeast},
    usage::Watch,
};

const ROUNDS: usize = 5;
const WINDOW: Duration = Duration::from_secs(1);

/// Returns the plot of a writer among readers.
pub(crate) fn run() -> Plot {
    shared_in_one_process();
    let plot = readers::run();
    permits();
    plot
}

fn shared_in_one_process() {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let own = runtime.block_on(LockCore::connect_to_share(&server.url()));
    let contenders = [
        Contender::new("lock-core, shared", &runtime, own),
        Contender::new(
            "tokio::sync::RwLock, read",
            &runtime,
            TokioRwLock::default(),
        ),
    ];
    let load = Load {
        tasks: 16,
        keys: Keys::Together,
        window: WINDOW,
    };
    let all = take_turns(&contenders, load, ROUNDS, &mut watch);
    let [own, floor] = &all;
    let title = "shared key, 16 tasks in one process; ratio to readers of tokio::sync::RwLock";
    report::table(title, "holds", &contenders, &all, floor);
    report::target(
        "rate against readers of tokio::sync::RwLock",
        own.ratio_to(floor),
        AtLeast(0.2),
    );
}

fn permits() {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let own = runtime.block_on(LockCore::connect_to_take_one_of(4, &server.url()));
    let contenders = [
        Contender::new("lock-core, 4 permits", &runtime, own),
        Contender::new("tokio::sync::Semaphore", &runtime, TokioSemaphore::new(4)),
    ];
    let load = Load {
        tasks: 64,
        keys: Keys::Together,
        window: WINDOW,
    };
    let all = take_turns(&contenders, load, ROUNDS, &mut watch);
    let [own, floor] = &all;
    let title = "4 permits, 64 tasks in one process; ratio to tokio::sync::Semaphore";
    report::table(title, "holds", &contenders, &all, floor);
    report::note("most to least favoured task", own.favour());
}
