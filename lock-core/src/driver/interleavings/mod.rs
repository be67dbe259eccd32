//! Tests of the driver and the state machine under random interleavings of threads. Threads may be switched before each
//! lock of a mutex, and before each action is carried out.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};

use crate::{
    backend::{
        Backend, grants::Grants, memory::MemoryBackend, owner_token::OwnerTokens, timing::Timing,
    },
    driver::{
        context::Context,
        hold::{Admission, Hold},
        interleavings::served_backend::{Order, ServedBackend},
        lease_state::LeaseState,
        outage::Outage,
        registry::Registry,
        ticking::LiveEvent,
        waiting::WaitFuture,
    },
    engine::{
        event::Event,
        reply::{self, Renewed},
        terms::{Defaults, Terms},
        transition::Limits,
    },
    error::LeaseLost,
    fencing::FencingBlock,
    key::LockKey,
    mode::RequestKind,
    options::LockOptions,
    runtime::{
        clock::Clock,
        executor::Executor,
        mutex::interleaved::{explore, point},
    },
};

mod served_backend;

/// The number of random schedules for each test. There are fewer in a build without optimisations, which is slow.
const SCHEDULES: usize = if cfg!(debug_assertions) { 100 } else { 1500 };

/// One key, and the counters by which its holders detect each other.
#[derive(Clone)]
struct Contended {
    registry: Arc<Registry>,
    backend: Arc<MemoryBackend>,
    key: LockKey,
    inside: Arc<AtomicUsize>,
    readers: Arc<AtomicUsize>,
    last_token: Arc<AtomicU64>,
    /// `true` if a lease may end before its release: after a shutdown, or while a clock advances.
    may_end: bool,
}

impl Contended {
    fn new() -> Self {
        Self {
            may_end: false,
            ..Self::over(|memory| memory)
        }
    }

    fn over<S: Backend + 'static>(backend: impl FnOnce(Arc<MemoryBackend>) -> Arc<S>) -> Self {
        let clock = Clock::tokio();
        let grants = Arc::<Grants>::default();
        let memory = Arc::new(MemoryBackend::new(clock.clone(), grants.clone()));
        let context = Context::new(
            backend(memory.clone()),
            grants,
            OwnerTokens::of(None),
            Executor::Caller,
            clock,
            Timing::default(),
            Outage::new(None),
        );
        Self {
            registry: Registry::new(Arc::new(context), "lock:".to_owned(), Limits::default()),
            backend: memory,
            key: LockKey::new("k"),
            inside: Arc::default(),
            readers: Arc::default(),
            last_token: Arc::default(),
            may_end: true,
        }
    }

    fn event(&self, kind: RequestKind, event: LiveEvent<'_>) {
        self.registry.event(&self.key, kind, event);
    }

    fn join(&self, options: &LockOptions, waker: &Waker) -> Option<WaitFuture> {
        let terms = Terms::new(options, Defaults::default()).expect("valid");
        let now = self.registry.context.clock.now();
        WaitFuture::join(&self.registry, &self.key, terms, now, None, waker).ok()
    }

    /// Waits for the lock, and returns its hold. Returns `None` after a shutdown.
    fn acquire(&self) -> Option<Hold> {
        self.acquire_with(&patient())
    }

    fn acquire_with(&self, options: &LockOptions) -> Option<Hold> {
        let hold = shuttle::future::block_on(async {
            let wait = poll_fn(|task| Poll::Ready(self.join(options, task.waker()))).await?;
            wait.await.and_then(Admission::into_hold).ok()
        });
        assert!(self.may_end || hold.is_some(), "a wait was refused");
        hold
    }

    /// Polls the wait once, and drops it.
    fn give_up(&self) {
        if let Some(mut wait) = self.join(&patient(), Waker::noop()) {
            let mut task = TaskContext::from_waker(Waker::noop());
            if let Poll::Ready(Ok(Admission::Held(hold))) = Pin::new(&mut wait).poll(&mut task) {
                self.step_inside(&hold);
            }
        }
    }

    /// Takes a step under the lock, unless the lease has ended.
    fn step_inside(&self, hold: &Hold) {
        let lease = hold.leases().first();
        if self.has_ended(lease) {
            return;
        }
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
        assert_eq!(
            self.readers.load(Ordering::SeqCst),
            0,
            "a writer runs together with a reader"
        );
        let token = u64::from(lease.fencing);
        assert!(
            self.last_token.swap(token, Ordering::SeqCst) < token,
            "the token did not grow"
        );
        point();
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn has_ended(&self, lease: &LeaseState) -> bool {
        let ended = lease.ended();
        assert!(
            self.may_end || ended.is_none(),
            "a lease has ended: {ended:?}"
        );
        ended.is_some()
    }

    /// Releases a hold, which succeeds unless its lease has ended.
    fn release(&self, hold: Hold) {
        let released = shuttle::future::block_on(hold.release(None));
        assert!(self.may_end || released.is_ok(), "{released:?}");
    }

    fn acquire_and_release(&self) {
        if let Some(hold) = self.acquire() {
            self.step_inside(&hold);
            self.release(hold);
        }
    }

    /// Takes a step under a share of the lock, unless the lease has ended.
    fn read(&self, hold: &Hold) {
        if self.has_ended(hold.leases().first()) {
            return;
        }
        self.readers.fetch_add(1, Ordering::SeqCst);
        assert_eq!(
            self.inside.load(Ordering::SeqCst),
            0,
            "a reader runs together with a writer"
        );
        point();
        self.readers.fetch_sub(1, Ordering::SeqCst);
    }

    fn share_and_release(&self) {
        if let Some(hold) = self.acquire_with(&patient().shared()) {
            self.read(&hold);
            self.release(hold);
        }
    }

    fn nothing_is_left(&self) {
        // A task still has to finish a request that was dropped.
        for _ in 0..1000 {
            if self.registry.keys.is_empty() && self.backend.is_empty() {
                break;
            }
            shuttle::thread::yield_now();
        }
        assert_eq!(self.registry.keys.waiters(&self.key), (0, 0));
        assert!(self.registry.keys.is_empty(), "a state is left");
        assert_eq!(self.registry.context.held.count(), 0, "a lease is left");
        assert_eq!(self.registry.context.in_progress.count(), 0);
        assert!(self.backend.is_empty(), "a lock is left");
    }
}

fn patient() -> LockOptions {
    LockOptions::new(Duration::from_secs(60)).wait_forever()
}

fn in_threads(contended: &Contended, threads: &[fn(&Contended)]) {
    let spawn = |thread: &fn(&Contended)| {
        let (contended, thread) = (contended.clone(), *thread);
        shuttle::thread::spawn(move || thread(&contended))
    };
    let threads: Vec<_> = threads.iter().map(spawn).collect();
    for thread in threads {
        thread.join().expect("no panic");
    }
}

fn explored(test: fn()) {
    // The timers need a runtime, although they never elapse here.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    explore(SCHEDULES, test);
}

#[test]
fn tasks_that_come_and_go_exclude_each_other_and_leave_nothing_behind() {
    explored(|| {
        let contended = Contended::new();
        in_threads(
            &contended,
            &[
                |all| {
                    for _ in 0..2 {
                        all.acquire_and_release();
                    }
                },
                |all| {
                    all.give_up();
                    drop(all.acquire().inspect(|hold| all.step_inside(hold)));
                },
                |all| (0..2).for_each(|_| all.give_up()),
                |all| (0..2).for_each(|_| all.event(RequestKind::Exclusive, Event::Tick)),
            ],
        );
        contended.nothing_is_left();
    });
}

#[test]
fn a_shutdown_finds_each_waiter_and_each_holder() {
    explored(|| {
        let contended = Contended {
            may_end: true,
            ..Contended::new()
        };
        in_threads(
            &contended,
            &[
                Contended::acquire_and_release,
                Contended::acquire_and_release,
                |all| {
                    all.registry.close();
                    all.registry.lose_all(LeaseLost::Shutdown);
                    let context = &all.registry.context;
                    while context.held.count() + context.in_progress.count() > 0 {
                        point();
                    }
                    assert!(all.backend.is_empty(), "a shutdown returned too early");
                },
            ],
        );
        contended.nothing_is_left();
    });
}

/// Another thread may remove the key's entry before the release has begun. Random schedules rarely do this, because it
/// takes six switches between threads.
#[tokio::test]
async fn a_shutdown_waits_for_a_release_that_has_not_begun() {
    let all = Contended::new();
    let (registry, key) = (&all.registry, &all.key);
    let mut task = TaskContext::from_waker(Waker::noop());
    let mut waits = [(); 2].map(|()| all.join(&patient(), Waker::noop()).expect("open"));
    let [first, next] = waits.each_mut().map(|wait| Pin::new(wait).poll(&mut task));
    assert!(first.is_ready() && next.is_pending());
    // This grants the lock to the next task, which does not poll.
    drop(first);
    let (keys, now) = (registry.keys.of(key), registry.context.clock.now());
    let in_progress = &registry.context.in_progress;
    let before = in_progress.count();
    let lost = Event::LoseAll(LeaseLost::Shutdown);
    let stepped = registry.step(keys, key, RequestKind::Exclusive, now, lost);
    let (_, effects) = stepped.expect("the key is known");
    assert_eq!(
        in_progress.count(),
        before + 1,
        "a shutdown waits for the release"
    );
    effects.carry_out(&registry.context, key, RequestKind::Exclusive);
    drop(waits);
    all.nothing_is_left();
}

#[test]
fn shares_that_are_joined_and_closed_keep_readers_and_writers_apart() {
    explored(|| {
        let contended = Contended::new();
        in_threads(
            &contended,
            &[
                |all| (0..2).for_each(|_| all.share_and_release()),
                Contended::share_and_release,
                Contended::acquire_and_release,
                |all| (0..2).for_each(|_| all.event(RequestKind::Shared, Event::CloseShares)),
            ],
        );
        // The process keeps a share for a while after its last task has left.
        contended.event(RequestKind::Shared, Event::CloseShares);
        contended.nothing_is_left();
    });
}

/// A guard of two keys is released while the reply to a renewal of the first key is processed. The second key must not be
/// lost.
#[test]
fn a_renewal_during_the_release_of_several_keys_loses_none_of_them() {
    explored(|| {
        let first = Contended::new();
        let second = Contended {
            key: LockKey::new("other"),
            ..first.clone()
        };
        let holds = [&first, &second].map(|one| one.acquire().expect("free"));
        let hold = Hold::joined(&first.registry, holds.into());
        let lease = hold.leases().first().clone();
        let registry = first.registry.clone();
        let renewing = shuttle::thread::spawn(move || {
            let extended = Ok(Renewed::Extended {
                tokens: FencingBlock::EMPTY,
                contended: reply::Contended::NoneWaiting,
            });
            let now = registry.context.clock.now();
            registry.renewed(&lease, now, &extended, Duration::ZERO);
        });
        let released = shuttle::future::block_on(hold.release(None));
        released.expect("both were held until then");
        renewing.join().expect("no panic");
        first.nothing_is_left();
    });
}

/// How far the clock advances with each turn of the executor.
const TURN: Duration = Duration::from_millis(20);

/// Runs threads concurrently with a server thread and a thread of the executor, on which the clock advances.
fn with_a_server(order: Order, threads: &[fn(&Contended)]) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let runtime = Arc::new(runtime);
    let inside = runtime.enter();
    let mut made = None;
    let contended = Contended::over(|memory| {
        let backend = ServedBackend::new(memory, order);
        made = Some(backend.clone());
        Arc::new(backend)
    });
    let backend = made.expect("it was made");
    let is_over = Arc::new(AtomicBool::new(false));
    let server = shuttle::thread::spawn({
        let (backend, is_over) = (backend.clone(), is_over.clone());
        move || {
            while !is_over.load(Ordering::SeqCst) {
                backend.serve();
                point();
            }
        }
    });
    let executor = shuttle::thread::spawn({
        let (is_over, runtime) = (is_over.clone(), runtime.clone());
        move || {
            while !is_over.load(Ordering::SeqCst) {
                runtime.block_on(tokio::time::advance(TURN));
                point();
            }
        }
    });
    in_threads(&contended, threads);
    let context = &contended.registry.context;
    while context.held.count() + context.in_progress.count() > 0 {
        point();
    }
    is_over.store(true, Ordering::SeqCst);
    server.join().expect("no panic");
    executor.join().expect("no panic");
    contended.nothing_is_left();
    drop((contended, backend, inside));
}

/// The task that polls the request stops polling it, and the executor takes the request over for the other tasks.
#[test]
fn a_request_that_is_taken_over_is_finished_once() {
    explore(SCHEDULES, || {
        let threads: &[fn(&Contended)] = &[
            |all| {
                if let Some(mut wait) = all.join(&patient(), Waker::noop()) {
                    let mut task = TaskContext::from_waker(Waker::noop());
                    let is_pending = Pin::new(&mut wait).poll(&mut task).is_pending();
                    // The other tasks get the lock in the meantime.
                    (0..100).for_each(|_| point());
                    if is_pending && let Ok(Admission::Held(hold)) = shuttle::future::block_on(wait)
                    {
                        all.step_inside(&hold);
                    }
                }
            },
            |all| (0..2).for_each(|_| all.give_up()),
            |all| (0..2).for_each(|_| all.acquire_and_release()),
        ];
        with_a_server(Order::First, threads);
    });
}

/// No other process wants the lock, so a task that does not wait gets it even if the previous release is still in flight.
#[test]
fn a_try_after_a_release_in_flight_finds_the_lock_free() {
    let tries: fn(&Contended) = |all| {
        for _ in 0..3 {
            let tried = all.acquire_with(&patient().no_wait());
            let hold = tried.expect("only the task's own release could keep the key busy");
            all.step_inside(&hold);
            drop(hold);
        }
    };
    explore(SCHEDULES, move || with_a_server(Order::First, &[tries]));
    explore(SCHEDULES, move || with_a_server(Order::Last, &[tries]));
}
