//! Runs one seed.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Once},
    time::Duration,
};

use lock_core::LockOptions;
use lock_tests::Mode;
use tokio::time::sleep;

use crate::{
    chance::Chance,
    faults::Breaker,
    locks::Occupied,
    model::Value,
    network::{Nanos, Network, SECOND},
    oracle::Oracle,
    plan::{KeyMode, Plan},
    scheduler::{Kind, ProcessId},
    workload::{Crew, User, connect, nanos},
    world::{ProcessClock, World, enter},
};

/// The time after the last fault within which every wait ends.
const PATIENCE: u64 = 60 * SECOND;

#[derive(Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) violations: Vec<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) grants: u64,
}

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Records the panics of each thread, since lock-core catches those of wakers.
fn remember_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|panics| panics.push(info.to_string()));
            before(info);
        }));
    });
}

pub(crate) fn simulate(seed: u64, traced: bool) -> Outcome {
    remember_panics();
    let mut outcome = Outcome::default();
    let ended = catch_unwind(AssertUnwindSafe(|| live(seed, traced)));
    if let Ok(ended) = ended {
        outcome = ended;
    }
    outcome.violations.extend(PANICS.take());
    outcome
}

fn live(seed: u64, traced: bool) -> Outcome {
    let mut chance = Chance::new(seed);
    let plan = Arc::new(Plan::of(&mut chance));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    let latency = plan.latency;
    let world = World::new(
        chance.branch(),
        |chance| Network::new(chance, latency),
        traced,
    );
    world.note(|| format!("{plan:#?}"));
    let _entered = enter(&world);
    let oracle = Oracle::new(world.clone(), &plan);
    let scene = Scene {
        world: world.clone(),
        oracle: oracle.clone(),
        plan,
        chance,
    };
    let done = scene.begin();
    // Without tokio's cooperative budget for a task, since this task polls all tasks of the world.
    let driven = world.drive(|| done.is_done());
    runtime.block_on(tokio::task::unconstrained(driven));
    Outcome {
        violations: oracle.violations(),
        trace: world.take_trace(),
        grants: oracle.grants(),
    }
}

struct Scene {
    world: Arc<World>,
    oracle: Arc<Oracle>,
    plan: Arc<Plan>,
    chance: Chance,
}

impl Scene {
    /// Starts all processes. The returned crew is done after the last check.
    fn begin(mut self) -> Crew {
        for server in &self.plan.servers {
            let mut network = self.world.network();
            network.add_host(server.dialect, server.ahead_us, server.rate_ppm);
        }
        let crew = Crew::new();
        let plan = self.plan.clone();
        for process in &plan.processes {
            let id = self.world.add_process(process.clock);
            for _ in 0..process.managers {
                self.start_manager(id, process.tasks, &crew);
            }
        }
        let director = self.world.add_process(ProcessClock::default());
        let breaker = Breaker {
            world: self.world.clone(),
            oracle: self.oracle.clone(),
            plan: self.plan.clone(),
            itself: director,
        };
        self.world.start(director, breaker.work());
        let all = Crew::new();
        let last = all.join();
        let world = self.world.clone();
        world.start(director, async move {
            self.end(&crew).await;
            drop(last);
        });
        all
    }

    fn start_manager(&mut self, process: ProcessId, tasks: usize, crew: &Crew) {
        let users: Vec<_> = (0..tasks)
            .map(|_| {
                let user = User {
                    world: self.world.clone(),
                    oracle: self.oracle.clone(),
                    plan: self.plan.clone(),
                    process,
                    chance: self.chance.branch(),
                };
                (user, crew.join())
            })
            .collect();
        let (world, plan) = (self.world.clone(), self.plan.clone());
        self.world.start(process, async move {
            let manager = connect(&plan).await;
            for (user, member) in users {
                let manager = manager.clone();
                world.start(process, async move {
                    user.work(manager).await;
                    drop(member);
                });
            }
        });
    }

    /// Waits until all faults are healed and all tasks have ended, and checks the data that is left.
    async fn end(&self, crew: &Crew) {
        let healed_at = self.plan.healed_at;
        // Without faults, no waiter is passed over at any time.
        while self.plan.is_calm() && self.world.now() < healed_at {
            self.oracle.look_for_idle_locks(|key| self.occupied(key));
            sleep(Duration::from_millis(50)).await;
        }
        sleep(Duration::from_nanos(
            healed_at.saturating_sub(self.world.now()),
        ))
        .await;
        self.world.note(|| "HEALED".to_owned());
        let until = healed_at + PATIENCE + 4 * nanos(self.plan.longest_ttl);
        if !self.ends(crew, until).await {
            return;
        }
        self.probe(healed_at + self.plan.settling()).await;
        self.wait_for_the_end_of_managers().await;
        // The trial lock of a process that was killed lasts for a second, which a clock that was set back makes longer.
        let trial = Duration::from_secs(1) + self.plan.set_back();
        sleep(self.plan.longest_ttl + trial).await;
        self.look_at_what_is_left();
    }

    fn look(&self) {
        if self.world.now() >= self.plan.healed_at + self.plan.settling() {
            self.oracle.look_for_idle_locks(|key| self.occupied(key));
            self.oracle.look_for_forgotten_locks(|key| self.owners(key));
        }
    }

    /// Returns the processes for which some server holds a lock.
    fn owners(&self, key: &str) -> Vec<ProcessId> {
        let (network, now) = (self.world.network(), self.world.now());
        let hosts = network.hosts.iter();
        hosts
            .flat_map(|host| host.owners(&format!("lock:{key}"), now))
            .collect()
    }

    fn occupied(&self, key: &str) -> Occupied {
        let network = self.world.network();
        let now = self.world.now();
        let key = format!("lock:{key}");
        let hosts = network.hosts.iter();
        let all: Vec<Occupied> = hosts.map(|host| host.occupied(&key, now)).collect();
        if let [one] = all[..] {
            return one;
        }
        // On several servers, all locks are exclusive, and held by a majority.
        let free = all.iter().filter(|one| **one == Occupied::Free).count();
        if free > all.len() / 2 {
            Occupied::Free
        } else {
            Occupied::Exclusive
        }
    }

    /// Checks that a new process gets each lock once all servers vote again. Until then it watches the servers, which have no vote
    /// before that.
    async fn probe(&self, settled_at: Nanos) {
        let process = self.world.add_process(ProcessClock {
            booted_before: SECOND,
            ..ProcessClock::default()
        });
        let crew = Crew::new();
        let member = crew.join();
        let (world, plan, oracle) = (self.world.clone(), self.plan.clone(), self.oracle.clone());
        // A lock that was left behind excludes others for a ttl, and for another one if it is then granted to a dead waiter. A
        // clock that was set back extends both.
        let wait = plan.longest_ttl * 2 + plan.set_back() + Duration::from_secs(2);
        self.world.start(process, async move {
            let manager = connect(&plan).await;
            sleep(Duration::from_nanos(settled_at.saturating_sub(world.now()))).await;
            for key in &plan.keys {
                // One holder at most, whatever the mode of the key.
                let mode = match plan.mode_of(key) {
                    KeyMode::Permits => Mode::Permits(1),
                    KeyMode::Exclusive | KeyMode::Shared => Mode::Exclusive,
                };
                let attempt = oracle.call(process, &[(key.as_str(), mode)]);
                let options = LockOptions::new(plan.longest_ttl).wait(wait);
                match manager.acquire(key, mode.of(options)).await {
                    Ok(guard) => {
                        let held = attempt.acquired(&guard.lease());
                        held.check_belief();
                        drop(held);
                        if let Err(error) = guard.release().await {
                            oracle.report(format!("I6: {key} was not released: {error:?}"));
                        }
                    }
                    Err(error) => {
                        oracle.report(format!("I6: {key} cannot be acquired: {error:?}"));
                    }
                }
            }
            drop(member);
        });
        let keys = u32::try_from(self.plan.keys.len()).expect("few");
        let patience = PATIENCE + nanos(wait) * u64::from(keys);
        self.ends(&crew, settled_at + patience).await;
    }

    /// Watches the locks until all tasks of a crew have ended. Reports those that do not end until then, and returns `false`.
    async fn ends(&self, crew: &Crew, until: Nanos) -> bool {
        while !crew.is_done() {
            if self.world.now() > until {
                let waiting = self.oracle.waiting();
                self.oracle
                    .report(format!("I6: some tasks do not end; waiting: {waiting:?}"));
                return false;
            }
            self.look();
            sleep(Duration::from_millis(50)).await;
        }
        true
    }

    /// Waits for the managers' threads to end. Clean-ups may take until a lease must have ended.
    async fn wait_for_the_end_of_managers(&self) {
        let patience =
            self.plan.longest_ttl + self.plan.command_timeout * 8 + Duration::from_secs(2);
        let until = self.world.now() + nanos(patience);
        loop {
            let lanes = self.world.scheduler.lanes(Kind::Manager);
            let mut connections = self.world.network().open_connections();
            // The system closes the connections of a killed process.
            connections.retain(|(_, process)| !self.world.scheduler.is_dead(*process));
            if lanes == 0 && connections.is_empty() {
                return;
            }
            if self.world.now() > until {
                let left =
                    format!("I7: {lanes} managers are left, and connections {connections:?}");
                return self.oracle.report(left);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    fn look_at_what_is_left(&self) {
        let network = self.world.network();
        let now = self.world.now();
        let mut left = Vec::new();
        for host in &network.hosts {
            let now_us = host.clock_us(now);
            for (key, entry) in host.server.store.alive(now_us) {
                let name = String::from_utf8_lossy(key);
                let is_passing = entry
                    .until
                    .is_some_and(|until| until * 1000 - now_us <= 30_000_000);
                let is_right = match name.strip_prefix("__lock_core__:") {
                    Some("clock") => {
                        matches!(entry.value, Value::Stream(_)) && entry.until.is_none()
                    }
                    Some("fence" | "watched") => {
                        matches!(entry.value, Value::Text(_)) && entry.until.is_none()
                    }
                    // These keys expire with their lock.
                    Some(other) if other.starts_with("holders:") || other.starts_with("seats:") => {
                        false
                    }
                    Some(_) => is_passing,
                    None => false,
                };
                if !is_right {
                    left.push(format!("I5: {name} is left: {entry:?}"));
                }
            }
        }
        drop(network);
        for what in left {
            self.oracle.report(what);
        }
    }
}
