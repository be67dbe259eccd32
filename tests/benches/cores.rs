//! Pins the server to a core of its own, or leaves the placement to the scheduler.
//!
//! On a small machine, the scheduler sometimes puts a lone client on the server's core. A round trip takes a third of the time
//! there, which would favour one contender over the others. In production, the server is on another machine.

use std::{
    fmt, slice,
    sync::{Mutex, OnceLock},
};

use lock_tests::{Kind, RedisServer, stall::own_cores};
use rustix::{
    process::Pid,
    thread::{CpuSet, sched_setaffinity},
};

/// The cores on which the server and everything else run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Placement {
    /// If there are at least two cores, servers have one to themselves, and everything else shares the others.
    Pinned,
    /// The scheduler decides.
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

/// Places this thread, and the threads and servers that it starts later.
///
/// Other processes keep the placement of the first call.
pub(crate) fn place(placement: Placement) {
    *PLACEMENT.lock().expect("no poison") = placement;
    let (_, others) = cores(placement);
    sched_setaffinity(None, &others).expect("a subset of the allowed cores");
}

/// Starts a server on the cores of servers.
pub(crate) fn start_server() -> RedisServer {
    start_server_of(Kind::default())
}

/// Starts a server of this kind on the cores of servers.
pub(crate) fn start_server_of(kind: Kind) -> RedisServer {
    let server = RedisServer::builder().kind(kind).start();
    put_with_servers(server.pid());
    server
}

/// Moves a process to the cores of servers.
pub(crate) fn put_with_servers(process: u32) {
    let pid = i32::try_from(process).expect("a process id fits");
    let pid = Pid::from_raw(pid).expect("a process id is not zero");
    let (servers, _) = cores(*PLACEMENT.lock().expect("no poison"));
    sched_setaffinity(Some(pid), &servers).expect("a subset of the allowed cores");
}

/// Returns the cores that this process was started with.
pub(crate) fn all_cores() -> &'static [usize] {
    static ALL: OnceLock<Vec<usize>> = OnceLock::new();
    ALL.get_or_init(own_cores)
}

/// Returns the cores of servers, and those of everything else.
fn cores(placement: Placement) -> (CpuSet, CpuSet) {
    let all = all_cores();
    match (placement, all.split_first()) {
        (Placement::Pinned, Some((first, others))) if !others.is_empty() => {
            (set_of(slice::from_ref(first)), set_of(others))
        }
        _ => (set_of(all), set_of(all)),
    }
}

fn set_of(cores: &[usize]) -> CpuSet {
    let mut set = CpuSet::new();
    for &core in cores {
        set.set(core);
    }
    set
}
