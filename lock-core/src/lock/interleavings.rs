//! The driver and the state machine under the interleavings of threads. Another thread may run before each lock of a mutex, and
//! before each action is carried out.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};

use crate::{
    error::LeaseLost,
    key::LockKey,
    lock::{
        context::{
            Context,
            outage::Outage,
            terms::{Defaults, Terms},
        },
        hold::Hold,
        key_state::Limits,
        registry::Registry,
        waiting::WaitFuture,
    },
    mode::LockMode,
    options::LockOptions,
    runtime::{
        clock::Clock,
        executor::Executor,
        mutex::interleaved::{explore, point},
        timer::Timer,
    },
    store::{grants::Grants, memory::MemoryStore, timing::Timing},
};

const SCHEDULES: usize = 1500;

/// One key, and what its holders see of each other.
#[derive(Clone)]
struct Contended {
    registry: Arc<Registry>,
    store: Arc<MemoryStore>,
    key: LockKey,
    inside: Arc<AtomicUsize>,
    last_token: Arc<AtomicU64>,
}

impl Contended {
    fn new() -> Self {
        let clock = Clock::tokio();
        let grants = Arc::<Grants>::default();
        let store = Arc::new(MemoryStore::new(clock.clone(), grants.clone()));
        let context = Context::new(
            store.clone(),
            grants,
            Executor::Caller,
            clock.clone(),
            Timer::of_the_caller(clock),
            Timing::default(),
            Outage::new(None),
        );
        Self {
            registry: Registry::new(Arc::new(context), "lock:".to_owned(), Limits::default()),
            store,
            key: LockKey::new("k"),
            inside: Arc::default(),
            last_token: Arc::default(),
        }
    }

    fn join(&self, waker: &Waker) -> Option<WaitFuture> {
        let options = LockOptions::new(Duration::from_secs(60)).wait_forever();
        let terms = Terms::new(&options, Defaults::default()).expect("valid");
        let now = self.registry.context.clock.now();
        WaitFuture::join(&self.registry, &self.key, terms, now, None, waker).ok()
    }

    /// Waits for the lock, and holds it.
    fn acquire(&self) -> Option<Hold> {
        shuttle::future::block_on(async {
            let wait = poll_fn(|task| Poll::Ready(self.join(task.waker()))).await?;
            wait.await.ok()
        })
    }

    /// Polls once, and leaves.
    fn give_up(&self) {
        if let Some(mut wait) = self.join(Waker::noop()) {
            let mut task = TaskContext::from_waker(Waker::noop());
            if let Poll::Ready(Ok(hold)) = Pin::new(&mut wait).poll(&mut task) {
                self.step_inside(&hold);
            }
        }
    }

    /// A step under the lock, unless the lease has ended.
    fn step_inside(&self, hold: &Hold) {
        let lease = hold.leases().first();
        if lease.ended().is_some() {
            return;
        }
        assert_eq!(self.inside.fetch_add(1, Ordering::SeqCst), 0, "two holders");
        let token = u64::from(lease.fencing);
        assert!(
            self.last_token.swap(token, Ordering::SeqCst) < token,
            "an older token"
        );
        point();
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn acquire_and_release(&self) {
        if let Some(hold) = self.acquire() {
            self.step_inside(&hold);
            // The release of a lost lease fails, which is expected here.
            drop(shuttle::future::block_on(hold.release()));
        }
    }

    fn nothing_is_left(&self) {
        assert_eq!(self.registry.waiters(&self.key), (0, 0));
        assert!(self.registry.is_empty(), "a state is left");
        assert_eq!(self.registry.context.held.count(), 0, "a lease is left");
        assert_eq!(self.registry.context.in_progress.count(), 0);
        assert!(self.store.is_empty(), "a lock is left");
    }
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
    // The task of the timers is started on this runtime, and never polled.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime");
    let _inside = runtime.enter();
    explore(SCHEDULES, test);
}

#[test]
fn tasks_that_acquire_release_and_leave_exclude_each_other_and_leave_nothing() {
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
                |all| (0..2).for_each(|_| all.registry.tick(&all.key, LockMode::Exclusive)),
            ],
        );
        contended.nothing_is_left();
    });
}

#[test]
fn a_shutdown_finds_each_waiter_and_each_holder() {
    explored(|| {
        let contended = Contended::new();
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
                    assert!(all.store.is_empty(), "a shutdown returned too early");
                },
            ],
        );
        contended.nothing_is_left();
    });
}
