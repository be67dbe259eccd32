//! A hundred thousand leases of one process, a server that is stopped, and a connection that is cut.

use lock_tests::stall::{hold_through_a_stall, lost_by_a_stall};

use crate::{
    cores::{all_cores, start_server},
    report::{self, Target::AtMost},
    sample::float,
    worker,
};

pub(crate) fn run() {
    let server = start_server();
    let holder = worker::start("stall", &server.url(), &[]);
    let lost = lost_by_a_stall(holder, &server, all_cores().iter().copied());
    report::title(
        "stall, 100,000 leases with a ttl of 10 s: the server is stopped for 3 s, then the connection is cut, every core is busy",
    );
    report::target("leases lost", float(lost), AtMost(0.0));
}

pub(crate) fn worker(url: &str) {
    worker::send("ready");
    hold_through_a_stall(url);
}
