//! A process that forks, started with the library of [`Forks`](lock_tests::Forks).
//!
//! ```text
//! forker <lock url> <history> <children> <acquisitions>
//! ```
//!
//! Acquires and releases a lock, and forks. Each child makes a manager of its own, acquires the key `k` `acquisitions` times, and ends
//! when the key `stop` exists.
//! The thread that forks is not in a runtime, since the child would share it.

use std::{env, error::Error, path::Path, process::exit, thread};

use lock_core::{LockError, LockManager, LockOptions};
use lock_tests::{
    Child, HANG, Mode, eventually, fork,
    history::{Moment, Recorder, Step},
    patient,
};
use redis::Commands;
use tokio::runtime::{Builder, Runtime};

type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str = "forker <lock url> <history> <children> <acquisitions>";

/// The exit status of a child that hangs.
const HANGS: i32 = 98;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [url, history, children, acquisitions] => {
            let (children, acquisitions) = (children.parse()?, acquisitions.parse()?);
            fork_after_locking(url, Path::new(history), children, acquisitions)
        }
        _ => Err(USAGE.into()),
    }
}

/// Waits for a child that must succeed.
fn expect_success(child: Child) -> Result<(), Failure> {
    match child.wait() {
        Some(0) => Ok(()),
        Some(HANGS) => Err("a child hangs".into()),
        status => Err(format!("a child failed: {status:?}").into()),
    }
}

/// Ends this process in bounded time, with success if the work does not panic.
fn end_with(work: impl FnOnce()) -> ! {
    thread::spawn(|| {
        thread::sleep(HANG * 2);
        exit(HANGS);
    });
    // A panic ends the process with a different status.
    work();
    exit(0)
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

fn fork_after_locking(
    url: &str,
    history: &Path,
    children: u32,
    acquisitions: u64,
) -> Result<(), Failure> {
    // The parent draws random values before the fork. If it kept some for later, all children would have the same ones.
    let runtime = runtime();
    let own = runtime.block_on(async {
        let own = LockManager::connect(url).await?;
        let guard = own.acquire("own", LockOptions::default()).await?;
        guard.release().await?;
        Ok::<_, LockError>(own)
    })?;
    drop(runtime);
    let mut started = Vec::new();
    for number in 0..children {
        match fork() {
            Some(child) => started.push(child),
            None => end_with(|| contend(url, history, number, children, acquisitions)),
        }
    }
    for child in started {
        expect_success(child)?;
    }
    // Keeps the parent subscribed until here, since the test counts its channel.
    drop(own);
    Ok(())
}

/// Acquires the key this many times, and panics at any failure.
fn contend(url: &str, history: &Path, number: u32, children: u32, acquisitions: u64) {
    let client = redis::Client::open(url).expect("a url of Redis");
    let mut server = client.get_connection().expect("a server");
    let recorder = Recorder::open(history, number).expect("the history");
    runtime().block_on(async {
        let own = LockManager::connect(url).await.expect("a server");
        let () = server.incr("ready", 1).expect("a number");
        eventually(HANG, "all children are ready", async || {
            let ready: u32 = server.get("ready").expect("a number");
            ready == children
        })
        .await;
        for attempt in 0..acquisitions {
            let record = |step| recorder.record(attempt, "k", step).expect("the history");
            record(Step::Called(Mode::Exclusive));
            let guard = own.acquire("k", patient()).await.expect("my turn");
            let lease = guard.lease();
            record(Step::Acquired {
                token: lease.fencing_token().into(),
                permit: None,
                valid_until: Moment::end_of(&lease),
            });
            // The random part of the owner token, which no other process may have.
            let token: Option<String> = server.get("lock:k").expect("an owner token");
            let random = token.as_deref().and_then(|token| token.rsplit(':').next());
            let () = server.sadd("owner-tokens", random).expect("a set");
            record(Step::ReleaseCalled {
                valid_until: Moment::end_of(&lease),
            });
            let released = guard.release().await;
            record(released.map_or(Step::Lost, |()| Step::Released));
        }
        eventually!(HANG, "the test is done" => server.exists("stop").expect("a reply"));
    });
}
