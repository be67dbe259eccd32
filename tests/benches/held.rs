//! Ten thousand locks that one process holds.

use std::{thread, time::Duration};

use lock_tests::stall::hold_many;
use tokio::runtime::Runtime;

use crate::{
    cores::start_server,
    report::{self, Target::AtMost},
    usage::{Cpu, own_memory},
    worker,
};

const LEASES: usize = 10_000;
/// As long as the ttl, so that each lock is renewed three times.
const WATCHED_FOR: Duration = Duration::from_secs(10);

pub(crate) fn run() {
    let server = start_server();
    let mut process = worker::start("held", &server.url(), &[]);
    process.say("hold");
    assert_eq!(process.line(), "held");
    // The first renewals come after a third of the ttl.
    thread::sleep(Duration::from_millis(3_300));
    process.say("watch");
    let cpu = process.line();
    let bytes = process.line();
    process.join();
    let cpu = cpu.parse::<f64>().expect("seconds") / WATCHED_FOR.as_secs_f64();

    report::title("held, 10,000 leases with a ttl of 10 s, watched for 10 s");
    report::target("per cent of a core", cpu * 100.0, AtMost(2.0));
    let bytes = bytes.parse::<f64>().expect("a number");
    report::target("bytes of memory per lease", bytes, AtMost(1200.0));
}

pub(crate) fn worker(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    worker::send("ready");
    worker::received();
    // Taking some locks allocates most of the connection, the scripts and the runtime, which are not counted.
    drop(runtime.block_on(hold_many(url, 128)));
    let before = own_memory();
    let guards = runtime.block_on(hold_many(url, LEASES));
    worker::send("held");
    worker::received();
    let cpu = Cpu::start();
    thread::sleep(WATCHED_FOR);
    let spent = cpu.spent();
    let lost = guards
        .iter()
        .filter(|guard| guard.lease().is_lost())
        .count();
    assert_eq!(lost, 0, "leases were lost");
    worker::send(&spent.as_secs_f64().to_string());
    let bytes = own_memory().saturating_sub(before) / guards.len() as u64;
    worker::send(&bytes.to_string());
    // The guards need not release their locks: the server ends now.
}
