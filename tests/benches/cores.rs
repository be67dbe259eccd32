//! Gives one core to the server, and the others to everything else.
//!
//! Without this, the scheduler of a small machine sometimes puts a lone client on the server's core. A round trip takes a
//! third of the time there, so one contender is compared with a floor that the others do not have. In production a server is
//! on another machine.

use std::sync::OnceLock;

use lock_tests::{RedisServer, own_cores};
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// The core that is left to servers, if there are at least two cores.
static SERVERS: OnceLock<CpuSet> = OnceLock::new();

/// Keeps this process, and all processes that it starts later, off one core. To be called before it has other threads.
pub(crate) fn split() {
    let mut ours = sched_getaffinity(None).expect("a Linux system");
    let first = (0..CpuSet::MAX_CPU).find(|core| ours.is_set(*core));
    let first = first.expect("this process runs somewhere");
    if ours.count() < 2 {
        return;
    }
    let mut servers = CpuSet::new();
    servers.set(first);
    ours.unset(first);
    sched_setaffinity(None, &ours).expect("a part of what was allowed before");
    SERVERS.set(servers).expect("called once");
}

/// Starts a server, on its core if there is one.
pub(crate) fn start_server() -> RedisServer {
    let server = RedisServer::start();
    if let Some(core) = SERVERS.get() {
        let pid = i32::try_from(server.pid()).expect("a process id fits");
        let pid = Pid::from_raw(pid).expect("a process id is not zero");
        sched_setaffinity(Some(pid), core).expect("a core that was allowed before");
    }
    server
}

/// The cores of this process and of servers.
pub(crate) fn all_cores() -> Vec<usize> {
    let mut cores = own_cores();
    let servers = (0..CpuSet::MAX_CPU)
        .filter(|core| SERVERS.get().is_some_and(|servers| servers.is_set(*core)));
    cores.extend(servers);
    cores
}
