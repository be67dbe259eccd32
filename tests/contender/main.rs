//! A process that contends for a lock.
//!
//! ```text
//! contender <lock url> <counter url> <name> <tasks> <increments> locked|both|unlocked [<key prefix> <pause in ms>]
//! ```
//!
//! Each task increments the counter `name` this many times: it reads the counter and then writes it back. That loses increments unless
//! the lock excludes the tasks of all processes. With `both`, there are two counters, `name:0` and `name:1`. Of four tasks, one locks and
//! increments the first and then the second, one the second and then the first, and the others only one of them.
//!
//! The process prints `ready` when it is connected, and begins at the next line of input. With a pause, each task pauses after each
//! increment. Clients that poll have no place in the queue, and get their turn only then.

use std::{
    env,
    error::Error,
    io::{self, Write},
    time::Duration,
};

use lock_core::{LockManager, distributed_lock};
use redis::{AsyncCommands, AsyncConnectionConfig, aio::MultiplexedConnection};
use tokio::{task::JoinSet, time::sleep};

type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str = "contender <lock url> <counter url> <name> <tasks> <increments> locked|both|unlocked \
                     [<key prefix> <pause in ms>]";

#[derive(Clone, Copy)]
enum Mode {
    Locked,
    Both,
    Unlocked,
}

/// The counters of a task, in the order in which it names them.
const PAIRS: [[u8; 2]; 4] = [[0, 1], [1, 0], [0, 0], [1, 1]];

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [
        lock_url,
        counter_url,
        name,
        tasks,
        increments,
        mode,
        options @ ..,
    ] = arguments.as_slice()
    else {
        return Err(USAGE.into());
    };
    let (tasks, increments): (u32, u32) = (tasks.parse()?, increments.parse()?);
    let mode = match mode.as_str() {
        "locked" => Mode::Locked,
        "both" => Mode::Both,
        "unlocked" => Mode::Unlocked,
        _ => return Err(USAGE.into()),
    };

    let (locks, pause) = match options {
        [] => (LockManager::builder(), Duration::ZERO),
        [prefix, ms] => (
            LockManager::builder().key_prefix(prefix),
            Duration::from_millis(ms.parse()?),
        ),
        _ => return Err(USAGE.into()),
    };

    // Otherwise several servers, which have just been started for the test, would grant nothing at first.
    let locks = locks.quarantine(Duration::ZERO);
    lock_core::set_global(locks.connect(lock_url).await?);
    // By default, a reply that takes half a second on a busy machine is an error.
    let patient = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let counter = redis::Client::open(counter_url.as_str())?
        .get_multiplexed_async_connection_with_config(&patient)
        .await?;
    wait_for_the_others()?;

    let mut running = JoinSet::new();
    for task in 0..tasks {
        let (counter, name) = (counter.clone(), name.clone());
        running.spawn(async move {
            for _ in 0..increments {
                match mode {
                    Mode::Locked => increment_locked(counter.clone(), &name).await?,
                    Mode::Both => {
                        let [one, other] = PAIRS[task as usize % PAIRS.len()];
                        increment_both(counter.clone(), &name, one, other).await?;
                    }
                    Mode::Unlocked => increment(counter.clone(), &name).await?,
                }
                if !pause.is_zero() {
                    sleep(pause).await;
                }
            }
            Ok::<_, Failure>(())
        });
    }
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    Ok(())
}

/// The wait is long enough for a queue of thousands, so that only a stuck waiter reaches its end.
#[distributed_lock(key = "contender:{name}", ttl = "60s", wait = "120s")]
async fn increment_locked(counter: MultiplexedConnection, name: &str) -> Result<(), Failure> {
    increment(counter, name).await
}

#[distributed_lock(
    key = ["contender:{name}:{one}", "contender:{name}:{other}"],
    ttl = "60s",
    wait = "120s",
)]
async fn increment_both(
    counter: MultiplexedConnection,
    name: &str,
    one: u8,
    other: u8,
) -> Result<(), Failure> {
    increment(counter.clone(), &format!("{name}:{one}")).await?;
    if one != other {
        increment(counter, &format!("{name}:{other}")).await?;
    }
    Ok(())
}

async fn increment(mut counter: MultiplexedConnection, name: &str) -> Result<(), Failure> {
    let value: Option<u64> = counter.get(name).await?;
    let () = counter.set(name, value.unwrap_or(0) + 1).await?;
    Ok(())
}

/// Waits for a line of input. It may block the thread, since no task runs yet.
fn wait_for_the_others() -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "ready")?;
    stdout.flush()?;
    io::stdin().read_line(&mut String::new()).map(drop)
}
