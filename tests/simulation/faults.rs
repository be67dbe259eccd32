//! Injects the faults of the plan, and heals them.

use std::{sync::Arc, time::Duration};

use crate::{
    model::Reply,
    network::{Breakage, Data, HostId, Nanos},
    oracle::Oracle,
    plan::{Fault, Plan},
    scheduler::ProcessId,
    world::World,
};

pub(crate) struct Breaker {
    pub(crate) world: Arc<World>,
    pub(crate) oracle: Arc<Oracle>,
    pub(crate) plan: Arc<Plan>,
    /// The process in which this code runs, which does not use lock-core.
    pub(crate) itself: ProcessId,
}

impl Breaker {
    pub(crate) async fn work(self) {
        let this = Arc::new(self);
        for (at, fault) in this.plan.faults.clone() {
            this.sleep_until(at).await;
            this.world.note(|| format!("FAULT {fault:?}"));
            let breaker = this.clone();
            this.world
                .start(this.itself, async move { breaker.breaks(fault).await });
        }
    }

    async fn sleep_until(&self, at: Nanos) {
        let left = at.saturating_sub(self.world.now());
        tokio::time::sleep(Duration::from_nanos(left)).await;
    }

    async fn wait(&self, span: Nanos) {
        self.sleep_until(self.world.now() + span).await;
    }

    async fn breaks(&self, fault: Fault) {
        let (world, now) = (&self.world, self.world.now());
        let processes = world.processes();
        match fault {
            Fault::Break(scope, breakage) => {
                world.network().break_connections(scope, breakage, now);
            }
            Fault::Hold(scope, held, span) => {
                world.network().hold(scope, processes, held, now + span);
            }
            Fault::BlackHole(scope, span) => {
                let mut network = world.network();
                network.break_connections(scope, Breakage::HalfOpen, now);
                network.silence(scope, processes, now + span);
            }
            Fault::Slow { scope, more, span } => {
                let mut network = world.network();
                network.slow_down(scope, processes, more, now + span);
            }
            Fault::Stall { host, span } => world.network().stall(host, now + span),
            Fault::Restart {
                host,
                data,
                span,
                sends_reset,
            } => self.restart(host, data, span, sends_reset).await,
            Fault::Flush { host } => {
                self.breaks_and_loses(&self.plan.keys, 0);
                world.network().hosts[host].server.store.clear();
            }
            Fault::Step { host, by_us } => {
                if by_us > 0 {
                    self.oracle.breaks(&self.plan.keys, 0);
                }
                world.network().hosts[host].ahead_us += by_us;
            }
            Fault::Delete { host, key } => {
                let key = &self.plan.keys[key];
                self.breaks_and_loses(std::slice::from_ref(key), 0);
                self.command(host, &["DEL", &format!("lock:{key}")]);
            }
            Fault::Foreign {
                host,
                key,
                span,
                expires,
            } => self.foreign(host, key, span, expires).await,
            Fault::Stop { process, span } => {
                world.scheduler.stop(process, true);
                self.wait(span).await;
                world.scheduler.stop(process, false);
            }
            Fault::Block { process, span } => {
                world.scheduler.block(process, true);
                self.wait(span).await;
                world.scheduler.block(process, false);
            }
            Fault::Kill { process } => world.kill(process),
        }
    }

    async fn restart(&self, host: HostId, data: Data, span: Nanos, sends_reset: bool) {
        let is_up = self.world.network().hosts[host].is_up;
        if !is_up {
            return;
        }
        // Of several servers, a minority may lose its data.
        match self.plan.servers.len() {
            _ if data == Data::Kept => {}
            1 => self.breaks_and_loses(&self.plan.keys, span),
            _ => self.oracle.forgets(host),
        }
        self.world
            .network()
            .take_down(host, sends_reset, self.world.now());
        self.wait(span).await;
        let now = self.world.now();
        self.world.network().bring_up(host, data, now);
    }

    fn breaks_and_loses(&self, keys: &[String], span: Nanos) {
        self.oracle.breaks(keys, span);
        // Of several servers, the others still hold the lock.
        if self.plan.servers.len() == 1 {
            self.oracle.loses(keys);
        }
    }

    async fn foreign(&self, host: HostId, key: usize, span: Nanos, expires: bool) {
        let key = format!("lock:{}", self.plan.keys[key]);
        let millis = (span / 1_000_000).max(1).to_string();
        let set = if expires {
            self.command(host, &["SET", &key, "foreign", "NX", "PX", &millis])
        } else {
            self.command(host, &["SET", &key, "foreign", "NX"])
        };
        if set == Reply::Status("OK") && !expires {
            self.wait(span).await;
            if self.command(host, &["GET", &key]) == Reply::text("foreign") {
                self.command(host, &["DEL", &key]);
            }
        }
    }

    fn command(&self, host: HostId, words: &[&str]) -> Reply {
        let mut network = self.world.network();
        let now_us = network.hosts[host].clock_us(self.world.now());
        network.hosts[host].server.command(words, now_us)
    }
}
