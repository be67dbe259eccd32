//! Gives one core to the server, and the others to everything else; or leaves all cores to all.
//!
//! Without a core of its own for the server, the scheduler of a small machine sometimes puts a lone client on the server's
//! core. A round trip takes a third of the time there, so one contender is compared with a floor that the others do not have.
//! In production a server is on another machine.

use std::{
    fmt,
    sync::{Mutex, OnceLock},
};

use lock_tests::{Kind, RedisServer};
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_getaffinity, sched_setaffinity},
};

/// Where the server and everything else run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// Servers have a core of their own if there are at least two, and everything else has the others.
    Pinned,
    /// Wherever the scheduler puts them.
    Free,
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pinned => "pinned",
            Self::Free => "free",
        })
    }
}

static PLACEMENT: Mutex<Placement> = Mutex::new(Placement::Free);

/// Places this thread and all threads that it starts later, and the servers that are started later.
///
/// Other processes that are started later stay where the first call puts them.
pub(crate) fn place(placement: Placement) {
    *PLACEMENT.lock().expect("no poison") = placement;
    let (_, others) = cores(placement);
    sched_setaffinity(None, &others).expect("a part of what was allowed before");
}

/// Starts a server, on its core if it has one.
pub(crate) fn start_server() -> RedisServer {
    start_server_of(Kind::default())
}

/// Starts a server of this kind, on its core if it has one.
pub(crate) fn start_server_of(kind: Kind) -> RedisServer {
    let server = RedisServer::builder().kind(kind).start();
    put_with_servers(server.pid());
    server
}

/// Moves a process to where the servers are.
pub(crate) fn put_with_servers(process: u32) {
    let pid = i32::try_from(process).expect("a process id fits");
    let pid = Pid::from_raw(pid).expect("a process id is not zero");
    let (servers, _) = cores(*PLACEMENT.lock().expect("no poison"));
    sched_setaffinity(Some(pid), &servers).expect("a core that was allowed before");
}

/// The cores of this process and of servers.
pub(crate) fn all_cores() -> Vec<usize> {
    numbers(&all()).collect()
}

/// The cores of servers, and those of everything else.
fn cores(placement: Placement) -> (CpuSet, CpuSet) {
    let all = all();
    if placement == Placement::Free || all.count() < 2 {
        return (all, all);
    }
    let first = numbers(&all).next().expect("this process runs somewhere");
    let (mut servers, mut others) = (CpuSet::new(), all);
    servers.set(first);
    others.unset(first);
    (servers, others)
}

/// The cores that this process had when it started.
fn all() -> CpuSet {
    static ALL: OnceLock<CpuSet> = OnceLock::new();
    *ALL.get_or_init(|| sched_getaffinity(None).expect("a Linux system"))
}

fn numbers(cores: &CpuSet) -> impl Iterator<Item = usize> {
    (0..CpuSet::MAX_CPU).filter(|core| cores.is_set(*core))
}
