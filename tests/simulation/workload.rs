//! The operations of the processes of a world.

use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll, time::Duration};

use lock_core::{Lease, LockError, LockGuard, LockManager, LockOptions, OnLost, OnceOptions};
use lock_tests::Mode;
use tokio::time::sleep;

use crate::{
    chance::Chance,
    network::Nanos,
    oracle::{Attempt, Held, Oracle},
    plan::{KeyMode, Plan},
    scheduler::ProcessId,
    world::World,
};

/// The shortest allowed ttl.
const SHORTEST: Duration = Duration::from_millis(100);

/// The longest `min_hold`.
const LONGEST_KEPT: Duration = Duration::from_millis(1500);

/// Some tasks, each of which holds a member. The crew is done when all members are dropped.
pub(crate) struct Crew(Arc<()>);

pub(crate) type Member = Arc<()>;

impl Crew {
    pub(crate) fn new() -> Self {
        Self(Arc::new(()))
    }

    pub(crate) fn join(&self) -> Member {
        self.0.clone()
    }

    pub(crate) fn is_done(&self) -> bool {
        Arc::strong_count(&self.0) == 1
    }
}

/// One task of a user.
pub(crate) struct User {
    pub(crate) world: Arc<World>,
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) plan: Arc<Plan>,
    pub(crate) process: ProcessId,
    pub(crate) chance: Chance,
}

/// Connects, and retries until that succeeds.
pub(crate) async fn connect(plan: &Plan) -> LockManager {
    let urls: Vec<String> = (0..plan.servers.len())
        .map(|host| format!("redis://s{host}/"))
        .collect();
    loop {
        let builder = LockManager::builder()
            .command_timeout(plan.command_timeout)
            .connect_timeout(plan.command_timeout * 2);
        let made = match &urls[..] {
            [one] => builder.connect(one).await,
            _ => {
                builder
                    .ttl(plan.longest_ttl)
                    .max_ttl(plan.longest_ttl)
                    .redlock(&urls)
                    .await
            }
        };
        match made {
            Ok(manager) => return manager,
            Err(LockError::Unavailable { .. }) => sleep(Duration::from_millis(100)).await,
            Err(error) => panic!("cannot connect: {error:?}"),
        }
    }
}

impl User {
    pub(crate) async fn work(mut self, manager: LockManager) {
        // The loop ends when everything is healed.
        while self.world.now() < self.plan.healed_at {
            self.act(&manager).await;
            self.nap().await;
        }
    }

    async fn act(&mut self, manager: &LockManager) {
        let key = self.plan.keys[self.chance.index(self.plan.keys.len())].clone();
        let forces = self.plan.processes[self.process].forces;
        if self.chance.permille(forces) {
            let begin = self.world.now();
            self.oracle
                .breaks(std::slice::from_ref(&key), 10_000_000_000);
            let done = manager.force_release(key.as_str()).await;
            // Otherwise a copy of the request may still arrive.
            if done.is_ok() {
                self.oracle.mends(&key, begin);
            }
            self.world
                .note(|| format!("force_release of {key}: {done:?}"));
            return;
        }
        let options = self.options();
        match self.chance.below(20) {
            0..8 => {
                self.acquire(manager, std::slice::from_ref(&key), options)
                    .await;
            }
            8..10 => self.try_acquire(manager, key, options).await,
            10..16 if self.runs_once(&key) => self.run_once(manager, key).await,
            10..16 => self.run(manager, key, options).await,
            16..19 => {
                let keys = self.plan.keys.clone();
                self.acquire(manager, &keys, options).await;
            }
            _ => {
                let seen = manager.inspect(key.as_str()).await;
                self.world.note(|| format!("inspect of {key}: {seen:?}"));
            }
        }
    }

    fn ttl(&mut self) -> Duration {
        let longest = self.plan.longest_ttl;
        self.chance
            .pick(&[longest, longest, longest / 2, longest / 4])
            .max(SHORTEST)
    }

    /// Draws a short span for a part of an operation.
    fn span(&mut self) -> Duration {
        self.ttl().min(Duration::from_secs(3))
    }

    fn options(&mut self) -> LockOptions {
        let ttl = self.ttl();
        let mut options = LockOptions::new(ttl);
        options = match self.chance.below(8) {
            0 => options.wait_forever(),
            1 => options.no_wait(),
            2 => options.wait(ttl / 2),
            3..5 => options.wait(ttl * 2),
            _ => options.wait(Duration::from_secs(10)),
        };
        let is_renewed = !self.chance.permille(150);
        if !is_renewed {
            options = options.without_renewal();
        }
        if self.chance.permille(100) {
            options = options.max_hold(if is_renewed { ttl * 2 } else { ttl });
        }
        if self.chance.permille(100) {
            options = options.min_hold((ttl / 2).clamp(SHORTEST, LONGEST_KEPT));
        }
        options
    }

    /// Draws the mode of an attempt.
    fn mode(&mut self, key: &str) -> Mode {
        match self.plan.mode_of(key) {
            KeyMode::Shared if self.chance.permille(self.plan.shares) => Mode::Shared,
            KeyMode::Shared | KeyMode::Exclusive => Mode::Exclusive,
            KeyMode::Permits => {
                let most = self.plan.most_permits(self.world.now());
                let fewer = self.chance.between(1, most);
                let permits = self.chance.pick(&[fewer, fewer, most]);
                Mode::Permits(u16::try_from(permits).expect("a few"))
            }
        }
    }

    async fn acquire(&mut self, manager: &LockManager, keys: &[String], options: LockOptions) {
        let mut wanted = Vec::new();
        for key in keys {
            wanted.push((key.as_str(), self.mode(key)));
        }
        let attempt = self.oracle.call(self.process, &wanted);
        let taken: Vec<_> = wanted
            .iter()
            .map(|(key, mode)| (*key, mode.of(options.clone())))
            .collect();
        let asked = async {
            match &taken[..] {
                [(key, options)] => manager.acquire(*key, options.clone()).await,
                _ => manager.acquire_all(taken.clone(), options).await,
            }
        };
        let cut = self.cut();
        match cut.run(asked).await {
            Some(Ok(guard)) => self.hold(attempt, guard).await,
            Some(Err(error)) => attempt.failed(&error),
            None => self.world.note(|| "an acquire is dropped".to_owned()),
        }
    }

    async fn try_acquire(&mut self, manager: &LockManager, key: String, options: LockOptions) {
        let mode = self.mode(&key);
        let attempt = self.oracle.call(self.process, &[(key.as_str(), mode)]);
        let cut = self.cut();
        let asked = manager.try_acquire(key.as_str(), mode.of(options));
        match cut.run(asked).await {
            Some(Ok(Some(guard))) => self.hold(attempt, guard).await,
            Some(Err(error)) => attempt.failed(&error),
            Some(Ok(None)) | None => {}
        }
    }

    async fn run(&mut self, manager: &LockManager, key: String, options: LockOptions) {
        let mode = self.mode(&key);
        let attempt = self.oracle.call(self.process, &[(key.as_str(), mode)]);
        let continues = self.chance.permille(100);
        let options = if continues {
            options.on_lost(OnLost::Continue)
        } else {
            options
        };
        // The key decides, so that no number is drawn.
        let options = if key.bytes().all(|byte| byte % 2 == 1) {
            options
        } else {
            options.release_in_background()
        };
        let cut = self.cut();
        let mut steps = Steps::of(self);
        let body = async move |lease: Lease| {
            let held = attempt.acquired(&lease);
            if continues {
                steps.go(&held).await;
            } else {
                held.watch(steps.go(&held)).await;
            }
        };
        let running = manager.run(key.as_str(), mode.of(options), body);
        let ran = cut.run(running).await;
        self.world.note(|| format!("a run of {key} ended: {ran:?}"));
        if let Some(Err(error)) = &ran
            && is_wrong(error)
        {
            self.oracle
                .report(format!("I1: a run of {key} is refused: {error:?}"));
        }
    }

    fn runs_once(&mut self, key: &str) -> bool {
        let is_alone = self.plan.mode_of(key) == KeyMode::Exclusive;
        is_alone && self.plan.has_results() && self.chance.permille(400)
    }

    /// Runs a body once, or gets the result of an earlier run. The value of a body is the number of its attempt.
    async fn run_once(&mut self, manager: &LockManager, key: String) {
        let attempt = self
            .oracle
            .call(self.process, &[(key.as_str(), Mode::Exclusive)]);
        let ttl = self.ttl();
        let keep = self.chance.pick(&[SHORTEST, ttl, ttl * 2, ttl * 4]);
        let keep = keep.min(Duration::from_secs(5));
        let wait = self.chance.pick(&[Duration::ZERO, ttl * 2, ttl * 8]);
        let options = OnceOptions::keep(keep).ttl(ttl).wait(wait);
        let cut = self.cut();
        let fails = self.chance.permille(150);
        let mut steps = Steps::of(self);
        let body = async move |lease: Lease| {
            let held = attempt.acquired(&lease);
            held.begins_run();
            held.watch(steps.go(&held)).await;
            if fails { Err(()) } else { Ok(held.ends_run()) }
        };
        let running = manager.run_once(key.as_str(), options, body);
        let ran = cut.run(running).await;
        self.world
            .note(|| format!("a run of {key}, once, ended: {ran:?}"));
        match ran {
            Some(Ok(Ok(value))) => self.oracle.answered(&key, value),
            Some(Err(error)) if is_wrong(&error) => {
                self.oracle
                    .report(format!("I1: {key} is refused: {error:?}"));
            }
            _ => {}
        }
    }

    async fn hold(&mut self, attempt: Attempt, guard: LockGuard) {
        let held = attempt.acquired(&guard.lease());
        let mut steps = Steps::of(self);
        match self.chance.below(10) {
            // The holder stops its body when its lease is lost.
            0..5 => tokio::select! {
                biased;
                _ = held.lease.lost() => {}
                () = steps.go(&held) => {}
            },
            5 => drop(guard.lease().verify().await),
            6 => drop(guard.lease().ensure(Duration::from_millis(10))),
            // The holder does not check its lease.
            _ => steps.go(&held).await,
        }
        drop(held);
        match self.chance.below(10) {
            0..6 => {
                let released = guard.release().await;
                self.world.note(|| format!("released: {released:?}"));
            }
            6 | 7 => {
                let polls = self.chance.below(3);
                let _done = Cut::AfterPolls(polls).run(guard.release()).await;
            }
            _ => drop(guard),
        }
    }

    /// Draws when a future is dropped.
    fn cut(&mut self) -> Cut {
        match self.chance.below(10) {
            0 => Cut::AfterPolls(self.chance.below(6)),
            1 => Cut::After(Duration::from_millis(self.chance.below(20))),
            2 => Cut::After(self.span()),
            _ => Cut::Never,
        }
    }

    async fn nap(&mut self) {
        if self.plan.hurries {
            return;
        }
        let ttl = self.span();
        let millis = self.chance.pick(&[0, 0, 1, 10, 100]);
        let span = if self.chance.permille(30) {
            ttl
        } else {
            Duration::from_millis(millis)
        };
        if !span.is_zero() {
            sleep(span).await;
        }
    }
}

/// Returns whether an error reports an invalid call. No call is invalid, except that a short ttl on a slow network is refused.
pub(crate) fn is_wrong(error: &LockError) -> bool {
    match error {
        LockError::NotConfigured | LockError::Repeated { .. } => true,
        LockError::Invalid { reason, .. } => !reason.contains("more than half of the ttl"),
        _ => false,
    }
}

/// The steps of a holder.
struct Steps {
    naps: Vec<Duration>,
}

impl Steps {
    fn of(user: &mut User) -> Self {
        let ttl = user.span();
        let some = [
            Duration::ZERO,
            Duration::from_millis(1),
            Duration::from_millis(20),
            ttl / 4,
            ttl / 2,
        ];
        let mut naps: Vec<Duration> = (0..user.chance.below(4))
            .map(|_| user.chance.pick(&some))
            .collect();
        if user.chance.permille(60) {
            naps.push(ttl * 3 / 2);
        }
        Self { naps }
    }

    async fn go(&mut self, held: &Held) {
        held.check_belief();
        for nap in self.naps.drain(..) {
            if nap.is_zero() {
                tokio::task::yield_now().await;
            } else {
                sleep(nap).await;
            }
            held.check_belief();
        }
    }
}

/// When a future is dropped.
enum Cut {
    Never,
    AfterPolls(u64),
    After(Duration),
}

impl Cut {
    /// Returns the output of a future, unless the future is dropped before.
    async fn run<T>(self, future: impl Future<Output = T>) -> Option<T> {
        match self {
            Self::Never => Some(future.await),
            Self::After(span) => tokio::time::timeout(span, future).await.ok(),
            Self::AfterPolls(mut left) => {
                let mut future = pin!(future);
                poll_fn(|context| {
                    if left == 0 {
                        return Poll::Ready(None);
                    }
                    left -= 1;
                    future.as_mut().poll(context).map(Some)
                })
                .await
            }
        }
    }
}

pub(crate) fn nanos(span: Duration) -> Nanos {
    u64::try_from(span.as_nanos()).expect("a short span")
}
