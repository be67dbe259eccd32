//! A hundred thousand locks of one process, a server that stands still, and a connection that is cut.

use std::{thread, time::Duration};

use tokio::runtime::Runtime;

use crate::{
    cores::{BusyCores, start_server},
    held::hold,
    lockers::LockCore,
    report::{self, Target::AtMost},
    worker,
};

const LEASES: usize = 100_000;
const STALL: Duration = Duration::from_secs(3);
/// The ttl of each lock, and some more: what is not renewed by then is lost.
const AFTERWARDS: Duration = Duration::from_secs(12);

pub(crate) fn run() {
    let server = start_server();
    let mut process = worker::start("stall", &server.url(), &[]);
    process.say("hold");
    assert_eq!(process.line(), "held");
    let busy = BusyCores::start();
    // The first renewals come after a third of the ttl.
    thread::sleep(Duration::from_secs(4));
    server.stop();
    thread::sleep(STALL);
    server.cont();
    server.cli(&["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"]);
    thread::sleep(AFTERWARDS);
    drop(busy);
    process.say("count");
    let lost: f64 = process.line().parse().expect("a number");
    process.join();
    report::title(
        "stall, 100,000 leases with a ttl of 10 s: the server stands still for 3 s, then the connection is cut, every core is busy",
    );
    report::target("leases lost", lost, AtMost(0.0));
}

pub(crate) fn worker(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let locker = runtime.block_on(LockCore::connect(url));
    worker::tell("ready");
    worker::told();
    let guards = runtime.block_on(hold(&locker, LEASES));
    worker::tell("held");
    worker::told();
    let lost = guards
        .iter()
        .filter(|guard| guard.lease().is_lost())
        .count();
    worker::tell(&lost.to_string());
}
