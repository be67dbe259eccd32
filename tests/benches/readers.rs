//! One that wants a lock alone, among readers that never pause: of this library, and of others that have readers and writers.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use distributed_lock_core::traits::{DistributedReaderWriterLock as _, LockHandle as _};
use distributed_lock_redis::{RedisDistributedReaderWriterLock, RedisLockProvider};
use lock_core::{LockManager, LockOptions};
use lock_tests::Process;
use rlock::async_lock::RLock;
use tokio::{
    runtime::Runtime,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    cores::start_server,
    plot::{self, Waits},
    report::{self, Target::AtMost},
    sample::Times,
    worker,
};

const PROCESSES: usize = 8;
const READERS_EACH: usize = 8;
const BODY: Duration = Duration::from_millis(5);
const ROUNDS: usize = 3;
const REQUESTS: usize = 20;
/// A request that was not granted by then gives up.
const BOUND: Duration = Duration::from_secs(2);
const TTL: Duration = Duration::from_secs(10);
const KEY: &str = "hot";

/// A library with readers and writers.
trait ReadWrite: Clone + Send + Sync + 'static {
    const NAME: &str;

    fn connect(url: &str) -> impl Future<Output = Self>;

    /// Shares the lock for the time of a body.
    fn read(&self) -> impl Future<Output = ()> + Send;

    /// Has the lock alone for a moment, and returns how long it waited; `None`: longer than [`BOUND`].
    fn write(&self) -> impl Future<Output = Option<Duration>>;
}

#[derive(Clone)]
struct LockCore(LockManager);

impl ReadWrite for LockCore {
    const NAME: &str = "lock-core";

    async fn connect(url: &str) -> Self {
        Self(LockManager::connect(url).await.expect("a running server"))
    }

    async fn read(&self) {
        let options = LockOptions::new(TTL).wait_forever().shared();
        let guard = self.0.acquire(KEY, options).await.expect("a grant");
        sleep(BODY).await;
        guard
            .release()
            .await
            .expect("a lock that is held for a moment");
    }

    async fn write(&self) -> Option<Duration> {
        let asked = Instant::now();
        let options = LockOptions::new(TTL).wait(BOUND);
        let guard = self.0.acquire(KEY, options).await.ok()?;
        let waited = asked.elapsed();
        guard
            .release()
            .await
            .expect("a lock that is held for a moment");
        Some(waited)
    }
}

/// With its defaults: it asks ten times a second.
#[derive(Clone)]
struct Rlock(Arc<RLock>);

impl ReadWrite for Rlock {
    const NAME: &str = "rlock";

    async fn connect(url: &str) -> Self {
        Self(Arc::new(RLock::new(url).await.expect("a running server")))
    }

    async fn read(&self) {
        let mut guard = self.0.acquire_read(KEY).await.expect("a grant");
        sleep(BODY).await;
        guard
            .release()
            .await
            .expect("a lock that is held for a moment");
    }

    async fn write(&self) -> Option<Duration> {
        let asked = Instant::now();
        let taken = timeout(BOUND, self.0.acquire_write(KEY)).await.ok()?;
        let waited = asked.elapsed();
        let mut guard = taken.expect("an answer");
        guard
            .release()
            .await
            .expect("a lock that is held for a moment");
        Some(waited)
    }
}

#[derive(Clone)]
struct DistributedLockRedis(Arc<RedisDistributedReaderWriterLock>);

impl ReadWrite for DistributedLockRedis {
    const NAME: &str = "distributed-lock-redis";

    async fn connect(url: &str) -> Self {
        use distributed_lock_core::traits::ReaderWriterLockProvider as _;

        let provider = RedisLockProvider::new(url).await;
        let provider = provider.expect("a running server");
        Self(Arc::new(provider.create_reader_writer_lock(KEY)))
    }

    async fn read(&self) {
        let handle = self.0.acquire_read(None).await.expect("a grant");
        sleep(BODY).await;
        handle
            .release()
            .await
            .expect("a lock that is held for a moment");
    }

    async fn write(&self) -> Option<Duration> {
        let asked = Instant::now();
        let handle = self.0.acquire_write(Some(BOUND)).await.ok()?;
        let waited = asked.elapsed();
        handle
            .release()
            .await
            .expect("a lock that is held for a moment");
        Some(waited)
    }
}

/// What was measured of one library.
#[derive(Default)]
struct Measured {
    waits: Vec<Duration>,
    given_up: usize,
    reads: u64,
    span: Duration,
}

/// Measures all libraries in turns, and draws the waits if there is a path.
pub(crate) fn run(picture: Option<&Path>) {
    let mut own = Measured::default();
    let mut rlock = Measured::default();
    let mut distributed = Measured::default();
    for _ in 0..ROUNDS {
        measure::<LockCore>(&mut own);
        measure::<Rlock>(&mut rlock);
        measure::<DistributedLockRedis>(&mut distributed);
    }
    report::title(
        "one that wants a lock alone, among 64 readers in 8 processes that never pause, 5 ms a body",
    );
    let all = [
        (LockCore::NAME, &own),
        (Rlock::NAME, &rlock),
        (DistributedLockRedis::NAME, &distributed),
    ];
    for (name, measured) in all {
        println!("  {name}");
        measured.show();
    }
    report::target(
        "lock-core: its wait in bodies of the readers, median",
        bodies(own.times().quantile(0.5)),
        AtMost(2.0),
    );
    if let Some(path) = picture {
        let rows = all.map(|(name, measured)| Waits {
            name,
            waits: &measured.waits,
            given_up: measured.given_up,
            reads: measured.rate(),
        });
        plot::write_waits(path, &rows, BOUND);
    }
}

impl Measured {
    fn times(&self) -> Times {
        let mut times = Times::default();
        for wait in &self.waits {
            times.record(*wait);
        }
        times
    }

    /// Reads a second.
    fn rate(&self) -> f64 {
        crate::sample::float(self.reads) / self.span.as_secs_f64()
    }

    fn show(&self) {
        let times = self.times();
        let requests = ROUNDS * REQUESTS;
        println!(
            "     requests that gave up after {BOUND:?}: {} of {requests}",
            self.given_up
        );
        if !self.waits.is_empty() {
            report::note(
                "wait of the others in bodies, median",
                bodies(times.quantile(0.5)),
            );
            report::note("99 of 100", bodies(times.quantile(0.99)));
            report::note("the longest", bodies(times.max()));
        }
        report::note("reads a second", self.rate());
    }
}

fn bodies(wait: Duration) -> f64 {
    wait.div_duration_f64(BODY)
}

fn measure<L: ReadWrite>(measured: &mut Measured) {
    let server = start_server();
    let start = |_| worker::start("readers", &server.url(), &[L::NAME]);
    let mut readers: Vec<Process> = (0..PROCESSES).map(start).collect();
    for process in &mut readers {
        process.say("read");
    }
    for process in &mut readers {
        assert_eq!(process.line(), "reading");
    }
    let since = Instant::now();
    let runtime = Runtime::new().expect("a runtime");
    runtime.block_on(async {
        let writer = L::connect(&server.url()).await;
        for _ in 0..REQUESTS {
            sleep(BODY * 4).await;
            match writer.write().await {
                Some(wait) => measured.waits.push(wait),
                None => measured.given_up += 1,
            }
        }
    });
    measured.span += since.elapsed();
    for process in &mut readers {
        process.say("enough");
    }
    for mut process in readers {
        let reads: u64 = process.line().parse().expect("a number");
        measured.reads += reads;
        process.join();
    }
}

/// What a process of readers does.
pub(crate) fn work(url: &str, name: &str) {
    match name {
        LockCore::NAME => read_on::<LockCore>(url),
        Rlock::NAME => read_on::<Rlock>(url),
        _ => read_on::<DistributedLockRedis>(url),
    }
}

/// The readers take the lock again as soon as they have released it.
fn read_on<L: ReadWrite>(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let locker = runtime.block_on(L::connect(url));
    worker::tell("ready");
    worker::told();
    let reads = Arc::new(AtomicU64::new(0));
    let mut tasks = JoinSet::new();
    for _ in 0..READERS_EACH {
        let (locker, reads) = (locker.clone(), reads.clone());
        let work = async move {
            loop {
                locker.read().await;
                reads.fetch_add(1, Ordering::Relaxed);
            }
        };
        tasks.spawn_on(work, runtime.handle());
    }
    worker::tell("reading");
    worker::told();
    worker::tell(&reads.load(Ordering::Relaxed).to_string());
    std::process::exit(0);
}
