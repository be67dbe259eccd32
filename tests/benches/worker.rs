//! Worker processes: instances of this program, controlled by their arguments and then line by line.

use std::{
    env,
    io::{self, Write},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use lock_tests::Process;
use tokio::runtime::{Builder, Runtime};

use crate::{
    held,
    last_holder::LastHolder,
    load::{Window, alone, together},
    lockers::{DistributedLockRedis, LockCore, Locker, RsLock},
    network, queue,
    raw::Ping,
    readers,
    sample::{Times, Work},
    stall, storm,
    usage::Cpu,
};

/// The first argument of a process that is not the bench itself.
pub(crate) const MARK: &str = "worker";

/// Starts a worker that does `what` on the server at this url, and waits until it is ready.
pub(crate) fn start(what: &str, url: &str, more: &[&str]) -> Process {
    let program = env::current_exe().expect("this program's path");
    let program = program.to_str().expect("a path in UTF-8");
    let arguments = [&[MARK, what, url], more].concat();
    let mut process = Process::spawn(program, &arguments, &[]);
    assert_eq!(process.line(), "ready");
    process
}

/// Runs in a process that [`start`] started.
pub(crate) fn main(arguments: &[String]) {
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["storm", url] => storm::worker(url),
        ["held", url] => held::worker(url),
        ["stall", url] => stall::worker(url),
        ["queue", url] => queue::worker(url),
        ["network", port] => network::worker(port),
        ["readers", url, name] => readers::worker(url, name),
        [what, url, number, path] => {
            let number = number.parse().expect("a number");
            contender(what, url, &LastHolder::open(path.as_ref(), number));
        }
        _ => panic!("unknown worker: {arguments:?}"),
    }
}

fn contender(what: &str, url: &str, last: &LastHolder) {
    // One thread is enough for one task.
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    match what {
        "PING" => {
            let pings = runtime.block_on(Ping::connect(url));
            in_windows(&runtime, async |window| alone(&pings, "", window).await);
        }
        "lock-core" => contend(&runtime, &runtime.block_on(LockCore::connect(url)), last),
        "rslock" => contend(&runtime, &RsLock::new(url), last),
        "distributed-lock-redis" => {
            let locker = runtime.block_on(DistributedLockRedis::connect(url));
            contend(&runtime, &locker, last);
        }
        _ => panic!("unknown contender: {what}"),
    }
}

fn contend(runtime: &Runtime, locker: &impl Locker, last: &LastHolder) {
    let while_held = || async { last.pass_to_me() };
    in_windows(runtime, async |window| {
        together(locker, window, while_held).await
    });
}

/// Works in each window that arrives as a line.
pub(crate) fn in_windows(runtime: &Runtime, work: impl AsyncFn(Window) -> Work) {
    send("ready");
    loop {
        let line = received();
        if line.is_empty() {
            return;
        }
        let window = to_window(&line);
        let (start, cpu) = (Instant::now(), Cpu::start());
        let work = runtime.block_on(work(window));
        // The process also works before the window, at the same rate.
        let share = (window.end - window.start).div_duration_f64(start.elapsed());
        let cpu = cpu.spent().mul_f64(share.min(1.0));
        let times = work.times.to_text();
        send(&format!(
            "{};{};{};{times}",
            work.count,
            work.taken,
            cpu.as_nanos()
        ));
    }
}

/// Parses the report of a worker at the end of a window: its work and its processor time.
pub(crate) fn to_work(line: &str) -> (Work, Duration) {
    let fields: Vec<&str> = line.split(';').collect();
    let [count, taken, cpu, times] = fields.as_slice() else {
        panic!("not a report: {line}");
    };
    let number = |text: &str| text.parse().expect("a number");
    let work = Work {
        count: number(count),
        taken: number(taken),
        times: Times::from_text(times),
    };
    (work, Duration::from_nanos(number(cpu)))
}

/// Prints a line for the process that started this one.
pub(crate) fn send(line: &str) {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")
        .and_then(|()| stdout.flush())
        .expect("the parent reads");
}

/// Reads a line from the process that started this one; empty at the end of its output.
pub(crate) fn received() -> String {
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("text");
    line.truncate(line.trim_end().len());
    line
}

/// Returns a window that starts after a delay, as a line that all processes of the machine understand, and its start.
pub(crate) fn window_line(delay: Duration, length: Duration) -> (String, Instant) {
    let start = since_epoch() + delay;
    let line = format!("{} {}", start.as_micros(), length.as_micros());
    (line, Instant::now() + delay)
}

fn to_window(line: &str) -> Window {
    let (start, length) = line.split_once(' ').expect("start and length");
    let micros = |text: &str| Duration::from_micros(text.parse().expect("microseconds"));
    let ahead = micros(start).checked_sub(since_epoch());
    let start = Instant::now() + ahead.expect("a line ahead of its window: lengthen DELAY");
    Window {
        start,
        end: start + micros(length),
    }
}

fn since_epoch() -> Duration {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.expect("a clock after 1970")
}
