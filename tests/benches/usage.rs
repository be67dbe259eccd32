//! The resources used by the server and this process.

use std::{fs, thread, time::Duration};

use lock_tests::RedisServer;

use crate::sample::float;

/// The work of a server since it started, or between two samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Usage {
    /// Commands, including those called by scripts.
    pub(crate) commands: u64,
    /// The number of reads from clients; one message may contain many commands.
    pub(crate) messages: u64,
    pub(crate) scripts: u64,
    pub(crate) cpu: Duration,
}

/// A connection that reads the counters of a server.
pub(crate) struct Watch {
    connection: redis::Connection,
}

impl Watch {
    pub(crate) fn new(server: &RedisServer) -> Self {
        let client = redis::Client::open(server.url()).expect("a url");
        let connection = client.get_connection().expect("a running server");
        Self { connection }
    }

    /// Returns the work of the server while `work` runs, without the cost of this measurement.
    pub(crate) fn during<T>(&mut self, work: impl FnOnce() -> T) -> (T, Usage) {
        let before = self.look();
        let result = work();
        let after = self.look();
        let usage = Usage {
            commands: after.commands - before.commands - 1,
            messages: after.messages - before.messages - 1,
            scripts: after.scripts - before.scripts,
            cpu: after.cpu.saturating_sub(before.cpu),
        };
        (result, usage)
    }

    fn look(&mut self) -> Usage {
        let info: String = redis::cmd("INFO")
            .arg("all")
            .query(&mut self.connection)
            .expect("a running server");
        let field = |name: &str| {
            let value = info.lines().find_map(|line| line.strip_prefix(name));
            value.unwrap_or("0")
        };
        let number = |name| field(name).parse().expect("a number");
        let seconds = |name| Duration::from_secs_f64(field(name).parse().expect("seconds"));
        let calls = |name| {
            let calls = field(name).split(',').next();
            calls.and_then(|calls| calls.parse::<u64>().ok())
        };
        Usage {
            commands: number("total_commands_processed:"),
            messages: number("total_reads_processed:"),
            scripts: calls("cmdstat_evalsha:calls=").unwrap_or(0)
                + calls("cmdstat_eval:calls=").unwrap_or(0),
            cpu: seconds("used_cpu_sys:") + seconds("used_cpu_user:"),
        }
    }
}

/// Measures the processor time of this process.
pub(crate) struct Cpu(Duration);

impl Cpu {
    pub(crate) fn start() -> Self {
        Self(total_cpu())
    }

    /// Returns the time used since the start, on all cores together.
    pub(crate) fn spent(&self) -> Duration {
        total_cpu().saturating_sub(self.0)
    }
}

fn total_cpu() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::try_from(time).expect("a positive time")
}

/// Returns the resident memory of this process, in bytes.
pub(crate) fn own_memory() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("a Linux system");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kibibytes = resident.and_then(|text| text.trim().strip_suffix(" kB"));
    let kibibytes: Option<u64> = kibibytes.and_then(|number| number.parse().ok());
    kibibytes.expect("a size in kB") * 1024
}

/// Returns the share of all cores that is busy while this process sleeps, because other programs use it.
pub(crate) fn taken_by_others() -> f64 {
    let (busy, all) = core_ticks();
    thread::sleep(Duration::from_millis(500));
    let (busy_then, all_then) = core_ticks();
    float(busy_then - busy) / float((all_then - all).max(1))
}

/// Returns the busy ticks of all cores since the system started, and all ticks.
fn core_ticks() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/stat").expect("a Linux system");
    let line = stat.lines().next().expect("the sum of all cores");
    let ticks = line.split_whitespace().skip(1);
    let ticks: Vec<u64> = ticks.filter_map(|tick| tick.parse().ok()).collect();
    let all = ticks.iter().sum();
    // The fourth and fifth numbers count idle ticks, and ticks spent waiting for a disk.
    (all - ticks[3] - ticks[4], all)
}
