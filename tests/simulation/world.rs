//! The world of one seed: time, processes and servers, as lock-core sees them.

use std::{
    fmt,
    future::poll_fn,
    io,
    pin::Pin,
    rc::Rc,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use lock_core::__simulation::{self as seams, Connecting, SimulatedStream, Thread, Work};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::Instant,
};

use crate::{
    chance::Chance,
    network::{ConnId, EPOCH_US, MILLI, Nanos, Network},
    scheduler::{Kind, LaneId, ProcessId, Scheduler, here},
};

/// The number of polls at one point in time that means an endless loop.
const BUSY: u32 = 100_000;

pub(crate) struct World {
    /// The time since the world began.
    now: AtomicU64,
    pub(crate) scheduler: Arc<Scheduler>,
    network: Mutex<Network>,
    /// Generates the random numbers of lock-core.
    chance: Mutex<Chance>,
    clocks: Mutex<Vec<ProcessClock>>,
    trace: Option<Mutex<Vec<String>>>,
}

/// The clocks of a process's machine, compared with the world's.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProcessClock {
    pub(crate) booted_before: Nanos,
    pub(crate) rate_ppm: i64,
    pub(crate) ahead_us: i64,
}

impl World {
    pub(crate) fn new(
        mut chance: Chance,
        network: impl FnOnce(Chance) -> Network,
        traced: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            now: AtomicU64::new(0),
            scheduler: Scheduler::new(chance.branch()),
            network: Mutex::new(network(chance.branch())),
            chance: Mutex::new(chance),
            clocks: Mutex::default(),
            trace: traced.then(Mutex::default),
        })
    }

    pub(crate) fn now(&self) -> Nanos {
        self.now.load(Ordering::Relaxed)
    }

    pub(crate) fn network(&self) -> MutexGuard<'_, Network> {
        lock(&self.network)
    }

    pub(crate) fn add_process(&self, clock: ProcessClock) -> ProcessId {
        lock(&self.clocks).push(clock);
        self.scheduler.add_process()
    }

    pub(crate) fn processes(&self) -> usize {
        lock(&self.clocks).len()
    }

    /// Starts a user's task in a process.
    pub(crate) fn start(
        &self,
        process: ProcessId,
        work: impl Future<Output = ()> + Send + 'static,
    ) {
        let lane = self.scheduler.add_lane(process, Kind::User);
        self.scheduler.spawn(lane, Box::pin(work));
    }

    pub(crate) fn kill(&self, process: ProcessId) {
        self.network().sever(process);
        self.scheduler.kill(process);
    }

    /// Converts a span of a process's clock to the world's time.
    pub(crate) fn in_the_world(&self, process: ProcessId, span: Duration) -> Nanos {
        let span = i64::try_from(span.as_nanos()).expect("a short simulation");
        let clock = self.clock_of(Some(process));
        u64::try_from(span - span / 1000 * clock.rate_ppm / 1000).unwrap_or(0)
    }

    pub(crate) fn note(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            let now = self.now();
            let place = here().map_or(String::new(), |place| format!("p{} ", place.process));
            lock(trace).push(format!(
                "{:6}.{:06} {place}{}",
                now / MILLI,
                now % MILLI,
                what()
            ));
        }
    }

    pub(crate) fn take_trace(&self) -> Vec<String> {
        let trace = self.trace.as_ref();
        trace.map_or(Vec::new(), |trace| std::mem::take(&mut lock(trace)))
    }

    /// Lets time pass until `is_over`, in a paused runtime that has just been started.
    pub(crate) async fn drive(&self, is_over: impl Fn() -> bool) {
        let origin = Instant::now();
        let mut polls = 0;
        loop {
            let now = u64::try_from(origin.elapsed().as_nanos()).expect("a short simulation");
            if self.now.swap(now, Ordering::Relaxed) != now {
                polls = 0;
            }
            for note in self.network().run_due(now, self.trace.is_some()) {
                self.note(|| note);
            }
            while let Some(place) = self.scheduler.run_one() {
                self.note(|| format!("polled p{} lane {}", place.process, place.lane));
                polls += 1;
                assert!(polls < BUSY, "an endless loop in process {}", place.process);
            }
            if is_over() {
                return;
            }
            self.pass_time(origin, now).await;
        }
    }

    /// Waits for the next event of the network, or for an earlier timer of a task.
    ///
    /// Timers count in milliseconds, and the network in nanoseconds.
    async fn pass_time(&self, origin: Instant, now: Nanos) {
        let next = self.network().next_event().unwrap_or(Nanos::MAX);
        if next <= now {
            return;
        }
        let whole = (next - now) / MILLI;
        if whole == 0 {
            tokio::time::advance(Duration::from_nanos(next - now)).await;
            return;
        }
        // A timer fires at the first whole millisecond that is not before its deadline.
        let tick = now / MILLI + whole.min(3_600_000);
        let mut timer = std::pin::pin!(tokio::time::sleep_until(
            origin + Duration::from_millis(tick)
        ));
        poll_fn(|context| {
            if self.scheduler.poll_ready(context).is_ready() {
                return Poll::Ready(());
            }
            timer.as_mut().poll(context)
        })
        .await;
    }

    fn clock_of(&self, process: Option<ProcessId>) -> ProcessClock {
        process.map_or(ProcessClock::default(), |process| {
            lock(&self.clocks)[process]
        })
    }

    fn elapsed(&self, clock: ProcessClock) -> i64 {
        let now = i64::try_from(self.now()).expect("a short simulation");
        now + now / 1000 * clock.rate_ppm / 1000
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl fmt::Debug for World {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("World").finish_non_exhaustive()
    }
}

/// The interface through which lock-core sees the world.
struct Seams(Arc<World>);

/// Makes this thread run in the world.
pub(crate) fn enter(world: &Arc<World>) -> seams::Entered {
    seams::enter(Rc::new(Seams(world.clone())))
}

fn process() -> Option<ProcessId> {
    here().map(|place| place.process)
}

impl seams::World for Seams {
    fn since_boot(&self) -> Duration {
        let clock = self.0.clock_of(process());
        let elapsed = u64::try_from(self.0.elapsed(clock)).unwrap_or(0);
        Duration::from_nanos(clock.booted_before + elapsed)
    }

    fn wall_clock(&self) -> Duration {
        let clock = self.0.clock_of(process());
        let time = EPOCH_US + self.0.elapsed(clock) / 1000 + clock.ahead_us;
        Duration::from_micros(u64::try_from(time).unwrap_or(0))
    }

    fn random(&self) -> u64 {
        lock(&self.0.chance).next()
    }

    fn label(&self) -> String {
        format!("sim/{}", process().unwrap_or_default())
    }

    fn start_thread(&self) -> Arc<dyn Thread> {
        let process = process().expect("managers are made in a process");
        Arc::new(Lane {
            id: self.0.scheduler.add_lane(process, Kind::Manager),
            scheduler: Arc::downgrade(&self.0.scheduler),
        })
    }

    fn spawn(&self, work: Work) {
        let lane = here().expect("tasks are started by a task").lane;
        self.0.scheduler.spawn(lane, work);
    }

    fn connect(&self, host: &str, _port: u16) -> Connecting {
        let process = process().expect("connections are opened by a process");
        let host = host.strip_prefix('s').and_then(|host| host.parse().ok());
        let host = host.expect("a host of the world");
        let world = Arc::downgrade(&self.0);
        Box::pin(async move {
            let id = {
                let world = world.upgrade().ok_or(io::ErrorKind::NotConnected)?;
                let mut network = world.network();
                network.connect(process, host, world.now())
            };
            let socket = Socket { id, world };
            poll_fn(|context| socket.world()?.network().poll_established(id, context)).await?;
            let stream: Box<dyn SimulatedStream> = Box::new(socket);
            Ok(stream)
        })
    }
}

#[derive(Debug)]
struct Lane {
    id: LaneId,
    scheduler: Weak<Scheduler>,
}

impl Thread for Lane {
    fn spawn(&self, work: Work) {
        if let Some(scheduler) = self.scheduler.upgrade() {
            scheduler.spawn(self.id, work);
        }
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        if let Some(scheduler) = self.scheduler.upgrade() {
            scheduler.end_lane(self.id);
        }
    }
}

/// A process's end of a connection, which is closed on drop. A killed process may leak it, so it must not keep the world alive.
#[derive(Debug)]
struct Socket {
    id: ConnId,
    world: Weak<World>,
}

impl Socket {
    fn world(&self) -> io::Result<Arc<World>> {
        self.world
            .upgrade()
            .ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if let Ok(world) = self.world() {
            world.network().close(self.id, world.now());
        }
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let world = self.world()?;
        let mut network = world.network();
        // The loop ends when the connection is not writable, or has accepted some bytes.
        loop {
            match network.write(self.id, bytes, world.now()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    ready!(network.poll_writable(self.id, context))?;
                }
                written => return Poll::Ready(written),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl AsyncRead for Socket {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = buffer.remaining();
        let read = self.world()?.network().poll_read(self.id, most, context);
        read.map_ok(|bytes| buffer.put_slice(&bytes))
    }
}
