//! The in-memory backend with faults that [`Faults`](crate::testing::Faults) injects.
//!
//! A request is either refused, or executed when it arrives, and only its reply can be late. So requests are executed in
//! the order in which they were sent, whatever the delays, as on one connection.
//!
//! Faults last for a time instead of a number of requests, since the number of requests in a call may change. No setting
//! and no url enables them.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{
    backend::{
        Acquire, Answered, Backend, Operate, Page, PagePosition, Release, Renew, Reply, Traits,
        at_once, grants::Grants, in_flight::Order, memory::MemoryBackend, owner_token::sighting_of,
    },
    engine::reply::{AcquireOutcome, Busy, Expiry, ReleaseOutcome, Renewed, WakeUpMode},
    failure::Failure,
    fencing::KnownTokens,
    inspect::{Health, Sighting},
    mode::Mode,
    moment::Moment,
    runtime::{clock::Clock, mutex::Mutex},
};

/// The ttl of the holder elsewhere, which renews its lease unless an end was set.
const LEASE_ELSEWHERE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug)]
pub(crate) struct FaultyBackend {
    pub(super) memory: Arc<MemoryBackend>,
    clock: Clock,
    command_timeout: Duration,
    plan: Arc<Mutex<Plan>>,
}

/// The faults that are injected now.
#[derive(Debug, Default)]
struct Plan {
    unavailable_until: Option<Moment>,
    delay: Duration,
    /// The keys that are held elsewhere, and the ends of these leases.
    elsewhere: HashMap<Arc<str>, Moment>,
}

impl FaultyBackend {
    pub(crate) fn new(clock: Clock, command_timeout: Duration, grants: Arc<Grants>) -> Self {
        Self {
            memory: Arc::new(MemoryBackend::new(clock.clone(), grants)),
            clock,
            command_timeout,
            plan: Arc::default(),
        }
    }

    /// Ends the lease of the key's holder. Waiters get the key when the backend serves them, or with their next request.
    pub(crate) fn end_lease(&self, full_key: &Arc<str>) {
        self.plan.lock().elsewhere.remove(full_key);
        self.memory.evict(full_key, None);
    }

    /// Gives the key to a holder elsewhere, even if it is held.
    pub(crate) fn occupy(&self, full_key: &Arc<str>, span: Option<Duration>) {
        let until = self.end_of(span);
        self.plan.lock().elsewhere.insert(full_key.clone(), until);
        // The backend must know about that holder, too. Otherwise it would grant a lock that is released in the meantime to
        // its waiters.
        self.memory.evict(full_key, Some(until));
    }

    pub(crate) fn go_away(&self, span: Option<Duration>) {
        let until = self.end_of(span);
        self.plan.lock().unavailable_until = Some(until);
    }

    pub(crate) fn delay(&self, by: Duration) {
        self.plan.lock().delay = by;
    }

    pub(crate) fn heal(&self) {
        let plan = std::mem::take(&mut *self.plan.lock());
        for (full_key, until) in plan.elsewhere {
            if self.clock.now() < until {
                self.memory.evict(&full_key, None);
            }
            self.memory.serve(&full_key);
        }
    }

    fn end_of(&self, span: Option<Duration>) -> Moment {
        span.map_or(Moment::NEVER, |span| self.clock.now().after(span))
    }

    /// Returns how much longer a holder elsewhere has the key, as a server would report it now.
    fn elsewhere(&self, full_key: &str) -> Option<Duration> {
        let until = *self.plan.lock().elsewhere.get(full_key)?;
        let left = if until == Moment::NEVER {
            LEASE_ELSEWHERE
        } else {
            until.since(self.clock.now())
        };
        (!left.is_zero()).then_some(left)
    }

    fn try_acquire(&self, request: Acquire) -> Reply<Answered<AcquireOutcome>> {
        let Some(left) = self.elsewhere(&request.owner.full_key) else {
            return self.memory.acquire(request);
        };
        let result = self.memory.result_kept_for(&request.owner.full_key);
        if request.owner.mode == Mode::Once && result.is_some() {
            return self.memory.acquire(request);
        }
        request.owner.in_flight.note_sent_on(Order::LOCAL);
        // The waiter must poll, since the release of a holder elsewhere sends no message.
        let busy = Busy::without_queue(Expiry::In(left), WakeUpMode::Poll);
        at_once(Ok(Answered {
            outcome: AcquireOutcome::Busy(busy),
            order: Some(Order::LOCAL),
        }))
    }

    /// Sends the request unless the backend is unavailable, and delays its reply as planned.
    fn reply<T: Send + 'static>(
        &self,
        within: Duration,
        send: impl FnOnce() -> Reply<T>,
    ) -> Reply<T> {
        let now = self.clock.now();
        let plan = self.plan.lock();
        let delay = plan.delay;
        let is_away = plan.unavailable_until.is_some_and(|until| now < until);
        drop(plan);
        if is_away {
            let away = "the test made the backend unavailable";
            return at_once(Err(Failure::not_now(away)));
        }
        if delay.is_zero() {
            return send();
        }
        late(send(), delay, within)
    }
}

/// Delays a reply. As with a server, the caller waits for at most `within`.
fn late<T: Send + 'static>(reply: Reply<T>, delay: Duration, within: Duration) -> Reply<T> {
    Box::pin(async move {
        tokio::time::sleep(delay.min(within)).await;
        if delay >= within {
            return Err(Failure::no_reply("the test made the reply late"));
        }
        reply.await
    })
}

impl Backend for FaultyBackend {
    fn acquire(&self, request: Acquire) -> Reply<Answered<AcquireOutcome>> {
        self.reply(self.command_timeout, || self.try_acquire(request))
    }

    fn renew(&self, batch: Vec<Renew>, within: Duration) -> Reply<Vec<Result<Renewed, Failure>>> {
        self.reply(within, || self.memory.renew(batch, within))
    }

    fn release(&self, request: Release) -> Reply<Answered<ReleaseOutcome>> {
        self.reply(self.command_timeout, || self.memory.release(request))
    }

    fn traits(&self) -> Traits {
        Traits {
            round_trip: self.plan.lock().delay,
            ..Traits::default()
        }
    }
}

impl Operate for FaultyBackend {
    fn inspect(&self, full_key: Arc<str>) -> Reply<Option<Sighting>> {
        self.reply(self.command_timeout, || {
            let Some(left) = self.elsewhere(&full_key) else {
                return self.memory.inspect(full_key);
            };
            // Shown like a key of another library, whose value is not an owner token.
            let sighting = Sighting {
                result_kept_for: self.memory.result_kept_for(&full_key),
                ..sighting_of("", Some(left), 0)
            };
            at_once(Ok(Some(sighting)))
        })
    }

    fn list(&self, full_prefix: Arc<str>, from: PagePosition) -> Reply<Page> {
        self.reply(self.command_timeout, || self.memory.list(full_prefix, from))
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> Reply<()> {
        self.reply(self.command_timeout, || {
            self.plan.lock().elsewhere.remove(&full_key);
            self.memory.force_release(full_key, known_fencing)
        })
    }

    fn forget(&self, full_key: Arc<str>) -> Reply<()> {
        self.reply(self.command_timeout, || self.memory.forget(full_key))
    }

    fn check(&self, known_tokens: Arc<KnownTokens>) -> Reply<Health> {
        self.reply(self.command_timeout, || self.memory.check(known_tokens))
    }
}
