//! A process that forks, started with the library of [`Forks`](lock_tests::Forks).
//!
//! ```text
//! forker children <lock url> <history> <children> <locks>
//! forker inherited <lock url> <authority, in PEM>
//! forker body <lock url>
//! forker touch
//! ```
//!
//! - `children`: takes a lock, and forks. Each child makes a manager and takes one key this many times, with a wait. It stays
//!   until the key `stop` exists.
//! - `inherited`: holds locks and has calls in flight, prints `held`, and forks at the next line of input. The child tries
//!   everything that it inherited, and then a manager of its own. Then the parent prints `child ended`, and goes on at the
//!   next line of input.
//! - `body`: forks inside a body. The child must not count as inside the body.
//! - `touch`: the child writes to a file that its parent opened, which must be noticed.
//!
//! The thread that forks is in no runtime, since the child would share the runtime.

use std::{
    env,
    error::Error,
    fs::File,
    future::{Future, pending, poll_fn},
    io::{self, Write},
    mem,
    path::Path,
    pin::{Pin, pin},
    process::exit,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::Duration,
};

use lock_core::{
    Lease, LeaseLost, LockError, LockGuard, LockManager, LockManagerBuilder, LockOptions, Tls,
    distributed_lock,
};
use lock_tests::{
    Child, HANG, Mode, eventually, eventually_blocking, fork,
    history::{Moment, Recorder, Step},
};
use redis::Commands;
use tokio::{
    runtime::{Builder, Runtime},
    task::coop,
    time::timeout,
};

type Failure = Box<dyn Error + Send + Sync>;

const USAGE: &str = "forker children <lock url> <history> <children> <locks>
forker inherited <lock url> <authority, in PEM>
forker body <lock url>
forker touch";

/// The longest time that an immediate refusal may take on a busy machine. Every wait is longer.
const AT_ONCE: Duration = Duration::from_secs(20);

/// A child that hangs ends with this status.
const HANGS: i32 = 98;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["children", url, history, children, locks] => {
            children_of_a_locker(url, Path::new(history), children.parse()?, locks.parse()?)
        }
        ["inherited", url, authority] => inherited(url, authority),
        ["body", url] => body(url),
        ["touch"] => touch(),
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

/// Ends this process in bounded time, with success if the work succeeds.
fn end_with(work: impl FnOnce()) -> ! {
    thread::spawn(|| {
        thread::sleep(HANG * 2);
        exit(HANGS);
    });
    // A panic ends the process with another status.
    work();
    exit(0)
}

fn runtime() -> Runtime {
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime")
}

fn println(line: &str) -> io::Result<()> {
    let mut stdout = io::stdout();
    writeln!(stdout, "{line}")?;
    stdout.flush()
}

fn await_a_line() -> io::Result<()> {
    io::stdin().read_line(&mut String::new()).map(drop)
}

fn children_of_a_locker(
    url: &str,
    history: &Path,
    children: u32,
    locks: u64,
) -> Result<(), Failure> {
    // This lets the thread draw random values before the fork, of which it may keep some for later.
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
            None => end_with(|| contend(url, history, number, children, locks)),
        }
    }
    for child in started {
        expect_success(child)?;
    }
    drop(own);
    Ok(())
}

/// Takes the key `locks` times; any failure is a panic.
fn contend(url: &str, history: &Path, number: u32, children: u32, locks: u64) {
    let client = redis::Client::open(url).expect("a url of Redis");
    let mut server = client.get_connection().expect("a server");
    let recorder = Recorder::open(history, number).expect("the history");
    runtime().block_on(async {
        let own = LockManager::connect(url).await.expect("a server");
        let () = server.incr("ready", 1).expect("a number");
        eventually_blocking(HANG, "all children are ready", || {
            let ready: u32 = server.get("ready").expect("a number");
            ready == children
        });
        for attempt in 0..locks {
            let record = |step| recorder.record(attempt, "k", step).expect("the history");
            record(Step::Called(Mode::Exclusive));
            let options = LockOptions::new(Duration::from_secs(2)).wait(HANG);
            let guard = own.acquire("k", options).await.expect("my turn");
            let lease = guard.lease();
            let valid_until = |lease: &Lease| Moment::now().after(lease.remaining());
            record(Step::Acquired {
                token: lease.fencing_token().into(),
                permit: None,
                valid_until: valid_until(&lease),
            });
            // Other processes run meanwhile, and could take the lock.
            let token: Option<String> = server.get("lock:k").expect("an owner token");
            let secret = token.as_deref().and_then(|token| token.rsplit(':').next());
            let () = server.sadd("secrets", secret).expect("a set");
            record(Step::ReleaseCalled {
                valid_until: valid_until(&lease),
            });
            let released = guard.release().await;
            record(released.map_or(Step::Lost, |()| Step::Released));
        }
        eventually_blocking(HANG, "the test is done", || {
            server.exists("stop").expect("a reply")
        });
    });
}

/// The objects that a parent has when it forks, and that its child has a copy of.
struct Inherited {
    locks: LockManager,
    /// A manager without calls in flight, so that the child drops the last reference to it.
    idle: LockManager,
    memory: LockManager,
    in_memory: LockGuard,
    /// The guard that the parent keeps after the fork.
    kept: LockGuard,
    kept_also: LockGuard,
    several: LockGuard,
    waiting: Vec<Call<LockGuard>>,
    looking: Vec<Call<()>>,
    bodies: Vec<Call<()>>,
    releasing: Vec<Call<()>>,
}

/// A call in flight.
type Call<T> = Pin<Box<dyn Future<Output = Result<T, LockError>>>>;

const KEYS: [&str; 2] = ["one", "other"];

fn options() -> LockOptions {
    LockOptions::new(HANG).wait(HANG * 10)
}

/// Options for the locks that the parent keeps after the fork: the ttl is so short that some renewals happen.
fn renewed() -> LockOptions {
    LockOptions::new(Duration::from_secs(2)).wait(HANG * 10)
}

fn builder(authority: &str) -> LockManagerBuilder {
    let builder = LockManager::builder().quarantine(Duration::ZERO);
    if authority.is_empty() {
        return builder;
    }
    builder.tls(Tls::new().authority(authority))
}

/// Polls a call once, and checks that it does not end.
async fn poll_once<T>(call: &mut Call<T>) {
    let polled = poll_fn(|context| Poll::Ready(call.as_mut().poll(context).is_pending()));
    assert!(polled.await, "it was over at once");
}

/// Sends a call's request, and does not read the reply: tokio's channels are not ready once the task's budget is used up.
async fn begin<T>(call: &mut Call<T>) {
    poll_fn(|context| {
        while let Poll::Ready(budget) = coop::poll_proceed(context) {
            budget.made_progress();
        }
        Poll::Ready(())
    })
    .await;
    poll_once(call).await;
}

impl Inherited {
    async fn new(url: &str, authority: &str) -> Result<(Self, LockGuard), LockError> {
        let locks = builder(authority).connect(url).await?;
        lock_core::set_global(locks.clone());
        // This manager stands for another process.
        let elsewhere = builder(authority).connect(url).await?;
        let elsewhere = elsewhere.acquire("elsewhere", options()).await?;
        let acquire = || -> Call<LockGuard> {
            let locks = locks.clone();
            Box::pin(async move { locks.acquire("elsewhere", options()).await })
        };
        let bodies = Arc::new(AtomicU32::new(0));
        let body = |key: &'static str| -> Call<()> {
            let (locks, bodies) = (locks.clone(), bodies.clone());
            let body = async move |_| {
                bodies.fetch_add(1, Ordering::Relaxed);
                pending::<()>().await;
            };
            Box::pin(async move { locks.run(key, options(), body).await })
        };
        let look = || -> Call<()> {
            let locks = locks.clone();
            Box::pin(async move { locks.inspect("kept").await.map(drop) })
        };
        let memory = LockManager::in_memory();
        let mut here = Self {
            idle: builder(authority).connect(url).await?,
            in_memory: memory.acquire("k", options()).await?,
            memory,
            kept: locks.acquire("kept", renewed()).await?,
            kept_also: locks.acquire("kept also", renewed()).await?,
            several: locks.acquire_all(KEYS, renewed()).await?,
            waiting: vec![acquire(), acquire()],
            bodies: vec![body("a body"), body("another body")],
            looking: vec![look(), look()],
            releasing: Vec::new(),
            locks,
        };
        for key in ["a release", "another release"] {
            let guard = here.locks.acquire(key, options()).await?;
            here.releasing.push(Box::pin(guard.release()));
        }
        for waiting in &mut here.waiting {
            // The first poll asks for the key, and the second poll sends the request.
            poll_once(waiting).await;
            poll_once(waiting).await;
        }
        eventually(HANG, "both bodies run", async || {
            for body in &mut here.bodies {
                poll_once(body).await;
            }
            bodies.load(Ordering::Relaxed) == 2
        })
        .await;
        for looking in &mut here.looking {
            begin(looking).await;
        }
        for releasing in &mut here.releasing {
            begin(releasing).await;
        }
        Ok((here, elsewhere))
    }
}

fn inherited(url: &str, authority: &str) -> Result<(), Failure> {
    let runtime = runtime();
    let (here, elsewhere) = runtime.block_on(Inherited::new(url, authority))?;
    drop(runtime);
    println("held")?;
    await_a_line()?;
    let Some(child) = fork() else {
        end_with(|| {
            use_what_is_inherited(here);
            drop(elsewhere);
            use_an_own_manager(url, authority);
        });
    };
    expect_success(child)?;
    println("child ended")?;
    await_a_line()?;
    self::runtime().block_on(go_on(here, elsewhere))
}

/// Goes on in the parent, as if it had not forked.
async fn go_on(here: Inherited, elsewhere: LockGuard) -> Result<(), Failure> {
    let Inherited {
        locks,
        idle,
        memory,
        in_memory,
        kept,
        kept_also,
        several,
        mut waiting,
        looking,
        bodies,
        releasing,
    } = here;
    for guard in [&kept, &kept_also, &several] {
        let lease = guard.lease();
        lease.verify().await?;
        for _ in 0..2 {
            let mut last = lease.remaining();
            eventually(HANG, "it is renewed", async || {
                let before = mem::replace(&mut last, lease.remaining());
                last > before
            })
            .await;
        }
    }
    for looking in looking {
        looking.await?;
    }
    for releasing in releasing {
        releasing.await?;
    }
    drop(bodies);
    let wanted = waiting.remove(0);
    elsewhere.release().await?;
    timeout(HANG, wanted).await??.release().await?;
    let wanted = waiting.remove(0);
    timeout(HANG, wanted).await??.release().await?;
    for guard in [kept, kept_also, several] {
        guard.release().await?;
    }
    for key in [
        "kept",
        "kept also",
        "one",
        "other",
        "a body",
        "another body",
    ] {
        let guard = timeout(HANG, locks.acquire(key, options())).await??;
        guard.release().await?;
    }
    locks.check().await?;
    idle.acquire("idle", options()).await?.release().await?;
    in_memory.release().await?;
    memory.acquire("k", options()).await?.release().await?;
    Ok(())
}

/// Expects an immediate error that names the fork.
async fn refused<T>(what: &str, call: impl Future<Output = Result<T, LockError>>) {
    let reply = timeout(AT_ONCE, call).await;
    let reply = reply.unwrap_or_else(|_| panic!("{what} takes its time"));
    match reply.map(drop) {
        Err(error @ LockError::Unavailable { .. }) => {
            let source = error.source().expect("a cause").to_string();
            assert!(source.contains("after the fork"), "{what}: {source}");
        }
        other => panic!("{what}: {other:?}"),
    }
}

fn expect_lost<T>(what: &str, reply: Result<T, LockError>) {
    let reason = match reply.map(drop) {
        Err(LockError::Lost { reason, .. }) => reason,
        other => panic!("{what}: {other:?}"),
    };
    assert_eq!(reason, LeaseLost::Forked, "{what}");
}

#[distributed_lock(key = "free")]
async fn annotated() -> Result<(), LockError> {
    panic!("this is another process")
}

/// Uses everything that the child inherited.
fn use_what_is_inherited(here: Inherited) {
    let Inherited {
        locks,
        idle,
        memory,
        in_memory,
        kept,
        kept_also,
        several,
        mut waiting,
        mut looking,
        mut bodies,
        mut releasing,
    } = here;
    let lease = kept.lease();
    runtime().block_on(async {
        for key in ["free", "kept", "elsewhere", "a body"] {
            refused("acquire", locks.acquire(key, options())).await;
            refused("try_acquire", locks.try_acquire(key, options())).await;
            let body = |_| async { panic!("this is another process") };
            refused("run", locks.run(key, options(), body)).await;
            refused("run_all", locks.run_all([key, "more"], options(), body)).await;
            let all = [key, "more"];
            refused("acquire_all", locks.acquire_all(all, options())).await;
            refused("inspect", locks.inspect(key)).await;
            refused("force_release", locks.force_release(key)).await;
        }
        refused("check", locks.check()).await;
        refused("acquire in memory", memory.acquire("free", options())).await;
        refused("release in memory", in_memory.release()).await;
        refused("an annotated function", annotated()).await;
        let shutdown = timeout(AT_ONCE, locks.shutdown(HANG * 10)).await;
        shutdown.expect("there is nothing to wait for");

        refused("verify", lease.verify()).await;
        refused("verify", several.lease().verify()).await;
        refused("release", kept.release()).await;
        for lease in [&lease, &several.lease()] {
            assert!(lease.is_lost());
            assert_eq!(lease.remaining(), Duration::ZERO);
            expect_lost("ensure", lease.ensure(Duration::from_millis(1)));
            let lost = timeout(AT_ONCE, lease.lost()).await;
            assert_eq!(lost.expect("it is lost"), LeaseLost::Forked);
        }

        refused("an acquire that was under way", waiting.remove(0)).await;
        refused("a look that was under way", looking.remove(0)).await;
        refused("a release that was under way", releasing.remove(0)).await;
        let body = timeout(AT_ONCE, bodies.remove(0)).await;
        expect_lost("a body", body.expect("the body ended"));
    });
    drop(idle);
    drop(memory);
    drop(kept_also);
    drop(several);
    drop(waiting);
    drop(looking);
    drop(bodies);
    drop(releasing);
    drop(lease);
    drop(locks);
}

fn use_an_own_manager(url: &str, authority: &str) {
    runtime().block_on(async {
        let own = builder(authority).connect(url).await.expect("a server");
        // This drops the last of the parent's managers.
        drop(lock_core::set_global(own.clone()));
        for key in [
            "kept",
            "kept also",
            "one",
            "other",
            "a body",
            "another body",
        ] {
            let taken = own.try_acquire(key, options()).await.expect("a reply");
            assert!(taken.is_none(), "{key} is the parent's");
        }
        let another = builder(authority).connect(url).await.expect("a server");
        let guard = own.acquire("own", options()).await.expect("free");
        let mut waiting = pin!(another.acquire("own", options()));
        let early = timeout(Duration::from_millis(300), &mut waiting).await;
        assert!(early.is_err(), "it is held");
        guard.lease().verify().await.expect("held");
        guard.release().await.expect("held");
        let guard = timeout(HANG, waiting).await.expect("no hang");
        guard.expect("its turn").release().await.expect("held");
        own.check().await.expect("a server that is fit");
        own.shutdown(HANG).await;
    });
}

/// Runs a future on this thread, without a runtime that a child would share.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    struct Unpark(Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let mut future = pin!(future);
    loop {
        if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return value;
        }
        thread::park();
    }
}

fn body(url: &str) -> Result<(), Failure> {
    let locks = block_on(LockManager::connect(url))?;
    let result = block_on(locks.run("k", options(), async |lease: Lease| {
        if let Some(child) = fork() {
            expect_success(child)?;
            lease.verify().await?;
            return Ok(());
        }
        assert!(lease.is_lost(), "it is the parent's");
        for key in ["k", "other"] {
            let mut again = pin!(locks.acquire(key, options()));
            let polled = again.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            let refused = matches!(polled, Poll::Ready(Err(LockError::Unavailable { .. })));
            assert!(refused, "{polled:?}");
        }
        tokio::task::yield_now().await;
        panic!("the lock is the parent's")
    }));
    match result {
        Err(LockError::Lost {
            reason: LeaseLost::Forked,
            ..
        }) => exit(0),
        other => other?,
    }
}

fn touch() -> Result<(), Failure> {
    let mut file = File::options().write(true).open("/dev/null")?;
    let Some(child) = fork() else {
        end_with(|| file.write_all(b"x").expect("a file"));
    };
    match child.wait() {
        Some(lock_tests::TOUCHED) => Ok(()),
        status => Err(format!("the use was not noticed: {status:?}").into()),
    }
}
