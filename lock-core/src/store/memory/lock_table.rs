//! One key: its holders and its queue, as a table without I/O. An operation and the time go in; a reply and notices to other entries
//! come out.
//!
//! It decides as `advance.lua` does on a server:
//!
//! - The holders are one exclusive one, or shared ones, or those of permits.
//! - A newcomer enters only if the queue is empty. So it overtakes no entry, whatever the modes are.
//! - Phases are fair. After an exclusive phase the shared entries enter, all at once. A shared phase has a cut, which is the time of
//!   its beginning, or that of the first exclusive entry that came later. Shared entries placed before the cut belong to the phase,
//!   also if it has no holder any more. Behind them an exclusive entry comes first.
//! - A shared phase has one fencing token.
//! - A permits entry for one of `n` enters if fewer than `n` permits are held, and takes the lowest seat that is free. The first entry
//!   is not overtaken, whatever its `n` is. Permits and the other modes refuse each other.
//!
//! What a server needs because messages can be lost is not here: entries have no beats, and a batch is not granted in parts. An
//! entry that its process gave up is released. An entry that lost its owner without a release is passed over.
//!
//! There is no timer. Each operation first takes out the holders with a lease that has ended, and lets the entries in that may
//! enter then. A waiter checks when its holder's lease must have ended.

use std::{cmp::Reverse, num::NonZeroU64, slice};

use crate::{
    fencing::FencingBlock,
    inspect::{LeaseInfo, Sighting, Waiter},
    mode::{LockMode, Mode},
    runtime::clock::Moment,
    store::{
        Acquire, AcquireOutcome, Busy, Contended, Entry, Expiry, Failure, OTHER_MODE, Prefetch,
        Prefetched, PushedGrant, QueueMode, Release, ReleaseOutcome, Renew, Renewed, WakeUpMode,
        grants::EntryNumber,
        memory::counters::MemoryCounters,
        owner_token::{OwnerToken, holder_of},
    },
};

/// The number of no entry.
#[cfg(feature = "testing")]
const ELSEWHERE: EntryNumber = 0;

#[derive(Debug, Default)]
pub(super) struct LockTable {
    occupancy: Occupancy,
    /// In the order of their places. Short: a process has one request for each kind of mode, and those that it is giving up.
    queue: Vec<QueuedEntry>,
    /// There if the last phase was a shared one, and an exclusive entry is queued.
    cut: Option<u64>,
}

/// What an operation reads besides the table, and what comes out of it besides its reply.
pub(super) struct TableUpdate<'a> {
    pub(super) now: Moment,
    /// The largest fencing token that the process knows.
    pub(super) known_fencing: u64,
    pub(super) counters: &'a mut MemoryCounters,
    /// Whether an entry has an owner that could use a grant.
    pub(super) is_alive: &'a dyn Fn(EntryNumber) -> bool,
    pub(super) notices: Vec<Notice>,
}

/// What is told to an entry; with a server, it comes by a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Notice {
    Granted(EntryNumber, PushedGrant),
    /// An exclusive request waits for the share of this entry.
    Contended(EntryNumber),
}

#[derive(Debug, Default)]
enum Occupancy {
    #[default]
    Free,
    Exclusive(EntryHolder),
    Shared {
        /// The fencing token of the phase.
        phase: FencingBlock,
        holders: Vec<EntryHolder>,
    },
    /// In the order of their seats.
    Permits(Vec<EntryHolder>),
}

#[derive(Debug)]
struct EntryHolder {
    number: EntryNumber,
    token: OwnerToken,
    expires: Moment,
    /// The number of its permit.
    seat: u16,
    /// For `min_hold`. The holder has no owner any more: a later renewal must not prolong it.
    is_kept: bool,
}

#[derive(Debug)]
struct QueuedEntry {
    place: u64,
    entry: Entry,
    token: OwnerToken,
}

impl LockTable {
    pub(super) fn acquire(
        &mut self,
        request: &Acquire,
        update: &mut TableUpdate<'_>,
    ) -> Result<AcquireOutcome, Failure> {
        self.sweep(update.now, update.is_alive);
        let own = request.entry;
        if let Some(grant) = self.grant_again(request, update) {
            return Ok(AcquireOutcome::Granted(grant));
        }
        if let QueueMode::CheckPosition(Some(place)) = request.queue_mode {
            // A grant that has ended may have taken the entry out of the queue. The entry is no newcomer.
            self.join(request, Some(place.get()), update);
        }
        let mut granted = self.advance(Some(request), update);
        if granted.is_none() && self.queue.is_empty() && self.admits(own.mode) {
            let token = request.token.clone();
            granted = Some(self.enter(own, token, request.ttl, request.tokens, update));
        }
        if let Some(grant) = granted {
            return Ok(AcquireOutcome::Granted(grant));
        }
        if self.is_in_other_mode_than(own) {
            self.leave(own.number);
            // The entries behind it may enter now.
            self.advance(None, update);
            return Err(Failure::Invalid(OTHER_MODE.into()));
        }
        Ok(AcquireOutcome::Busy(self.wait(request, update)))
    }

    pub(super) fn renew(&mut self, request: &Renew, update: &mut TableUpdate<'_>) -> Renewed {
        self.sweep(update.now, update.is_alive);
        let held = self.holder_mut(|holder| holder.number == request.entry.number);
        let is_held = held.map(|holder| holder.extend(update.now.after(request.ttl)));
        self.advance(None, update);
        match is_held {
            None => Renewed::NotOurs,
            Some(()) if self.is_contended(request.entry.mode) => Renewed::ExtendedAndContended,
            Some(()) => Renewed::Extended,
        }
    }

    /// Only exclusive leases prefetch.
    pub(super) fn prefetch(
        &mut self,
        request: &Prefetch,
        update: &mut TableUpdate<'_>,
    ) -> Prefetched {
        self.sweep(update.now, update.is_alive);
        let Some(holder) = self.holder_mut(|holder| holder.token == request.token) else {
            self.advance(None, update);
            return Prefetched::NotOurs;
        };
        holder.extend(update.now.after(request.ttl));
        Prefetched::Tokens {
            tokens: update.take_fencing(request.tokens),
            contended: if self.queue.is_empty() {
                Contended::NoneWaiting
            } else {
                Contended::OthersQueued
            },
        }
    }

    /// Takes an entry out of the queue, too.
    pub(super) fn release(
        &mut self,
        request: &Release,
        update: &mut TableUpdate<'_>,
    ) -> ReleaseOutcome {
        self.sweep(update.now, update.is_alive);
        let number = request.entry.number;
        self.leave(number);
        let outcome = match (
            self.holder_mut(|holder| holder.number == number),
            request.keep,
        ) {
            (None, _) => ReleaseOutcome::NotOurs,
            (Some(holder), Some(keep)) => {
                holder.expires = update.now.after(keep);
                holder.is_kept = true;
                ReleaseOutcome::Released
            }
            (Some(_), None) => {
                self.retain_holders(|holder| holder.number != number);
                ReleaseOutcome::Released
            }
        };
        self.advance(None, update);
        outcome
    }

    /// Takes the lock from its holders, in any mode.
    pub(super) fn force_release(&mut self, update: &mut TableUpdate<'_>) {
        self.occupancy = Occupancy::Free;
        self.sweep(update.now, update.is_alive);
        self.advance(None, update);
    }

    pub(super) fn inspect(&self, now: Moment, named: usize) -> Option<Sighting> {
        let holders = self.holders().iter();
        let mut alive: Vec<_> = holders.filter(|holder| holder.expires > now).collect();
        alive.sort_by_key(|holder| Reverse(holder.expires));
        let mode = self.mode()?;
        let leases = alive.iter().map(|holder| LeaseInfo {
            process: holder_of(holder.token.expose()),
            remaining: Some(holder.expires.since(now)),
            permit: (mode == LockMode::Permits).then_some(holder.seat),
        });
        let queue = self.queue.iter().map(|queued| Waiter {
            process: holder_of(queued.token.expose()),
            mode: queued.entry.mode.kind(),
        });
        Some(Sighting {
            remaining: Some(alive.first()?.expires.since(now)),
            mode,
            holders: alive.len(),
            waiting: self.queue.len(),
            leases: leases.take(named.max(1)).collect(),
            queue: queue.take(named).collect(),
        })
    }

    /// Takes out the holders with a lease that has ended, and the waiters that have no owner. All operations begin with it.
    pub(super) fn sweep(&mut self, now: Moment, is_alive: &dyn Fn(EntryNumber) -> bool) {
        self.retain_holders(|holder| holder.expires > now);
        self.queue.retain(|queued| is_alive(queued.entry.number));
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self.occupancy, Occupancy::Free) && self.queue.is_empty()
    }

    /// Takes out all holders. With `elsewhere_until`, a holder elsewhere has the lock until then. Lets no entry in.
    #[cfg(feature = "testing")]
    pub(super) fn evict(&mut self, elsewhere_until: Option<Moment>) {
        self.occupancy = elsewhere_until.map_or(Occupancy::Free, |expires| {
            self.cut = None;
            Occupancy::Exclusive(EntryHolder {
                number: ELSEWHERE,
                token: OwnerToken::of_none(),
                expires,
                seat: 0,
                is_kept: true,
            })
        });
    }

    /// Takes out a holder elsewhere, and lets the entries in that may enter now.
    #[cfg(feature = "testing")]
    pub(super) fn serve(&mut self, update: &mut TableUpdate<'_>) {
        self.sweep(update.now, update.is_alive);
        self.retain_holders(|holder| holder.number != ELSEWHERE);
        self.advance(None, update);
    }

    /// The lock is busy: the request takes or keeps a place in the queue, if it is to.
    fn wait(&mut self, request: &Acquire, update: &mut TableUpdate<'_>) -> Busy {
        let own = request.entry;
        let queues = request.queue_mode != QueueMode::DoNotQueue;
        let place = queues.then(|| self.join(request, None, update));
        let is_shared = own.mode == Mode::Shared;
        let mut alike = self.queue.iter();
        let first = alike.find(|queued| queued.is_shared() == is_shared);
        let is_next = !queues || first.is_some_and(|first| first.entry.number == own.number);
        if is_next
            && own.mode == Mode::Exclusive
            && let Occupancy::Shared { holders, .. } = &self.occupancy
        {
            // Repeated with each check, as by a server.
            let owned = holders.iter().filter(|holder| !holder.is_kept);
            let told = owned.map(|holder| Notice::Contended(holder.number));
            update.notices.extend(told);
        }
        Busy {
            expiry: self.expiry(update.now),
            position: place.and_then(NonZeroU64::new),
            wake_up: WakeUpMode::Push,
            is_next,
            stamp: Some(update.counters.last_token()),
            // The holder is in this process, which knows the label.
            holder: None,
        }
    }

    /// When a waiter is to look again: at the end of the first permit, or of the last lease of the others.
    fn expiry(&self, now: Moment) -> Expiry {
        let ends = self.holders().iter().map(|holder| holder.expires);
        let end = match self.occupancy {
            Occupancy::Permits(_) => ends.min(),
            _ => ends.max(),
        };
        end.map_or(Expiry::Unknown, |end| Expiry::In(end.since(now)))
    }

    /// Whether requests wait that a holder beside others has to know of: exclusive ones if it is shared, any if it has a permit.
    fn is_contended(&self, mode: Mode) -> bool {
        match mode {
            Mode::Exclusive => false,
            Mode::Shared => !self.queue.iter().all(QueuedEntry::is_shared),
            Mode::Permits(_) => !self.queue.is_empty(),
        }
    }

    /// Whether the key is held or waited for with permits, and this entry is for another mode, or the reverse.
    fn is_in_other_mode_than(&self, own: Entry) -> bool {
        let others = self.queue.iter().map(|queued| queued.entry);
        let others = others.filter(|entry| entry.number != own.number);
        let modes = others.map(|entry| entry.mode.kind()).chain(self.mode());
        let has_permits = |mode: LockMode| mode == LockMode::Permits;
        modes
            .map(has_permits)
            .any(|has| has != has_permits(own.mode.kind()))
    }

    fn mode(&self) -> Option<LockMode> {
        match self.occupancy {
            Occupancy::Free => None,
            Occupancy::Exclusive(_) => Some(LockMode::Exclusive),
            Occupancy::Shared { .. } => Some(LockMode::Shared),
            Occupancy::Permits(_) => Some(LockMode::Permits),
        }
    }

    fn holders(&self) -> &[EntryHolder] {
        match &self.occupancy {
            Occupancy::Free => &[],
            Occupancy::Exclusive(holder) => slice::from_ref(holder),
            Occupancy::Shared { holders, .. } | Occupancy::Permits(holders) => holders,
        }
    }

    /// A holder that has an owner.
    fn holder_mut(&mut self, is: impl Fn(&EntryHolder) -> bool) -> Option<&mut EntryHolder> {
        let holders = match &mut self.occupancy {
            Occupancy::Free => &mut [],
            Occupancy::Exclusive(holder) => slice::from_mut(holder),
            Occupancy::Shared { holders, .. } | Occupancy::Permits(holders) => &mut holders[..],
        };
        let mut owned = holders.iter_mut().filter(|holder| !holder.is_kept);
        owned.find(|holder| is(holder))
    }

    fn retain_holders(&mut self, stays: impl Fn(&EntryHolder) -> bool) {
        let is_held = match &mut self.occupancy {
            Occupancy::Free => false,
            Occupancy::Exclusive(holder) => stays(holder),
            Occupancy::Shared { holders, .. } | Occupancy::Permits(holders) => {
                holders.retain(stays);
                !holders.is_empty()
            }
        };
        if !is_held {
            self.occupancy = Occupancy::Free;
        }
    }

    fn leave(&mut self, number: EntryNumber) {
        self.queue.retain(|queued| queued.entry.number != number);
    }
}

impl EntryHolder {
    /// Never shortens.
    fn extend(&mut self, expires: Moment) {
        self.expires = self.expires.max(expires);
    }
}

impl QueuedEntry {
    fn is_shared(&self) -> bool {
        self.entry.mode == Mode::Shared
    }
}

impl TableUpdate<'_> {
    fn take_fencing(&mut self, count: u32) -> FencingBlock {
        self.counters.take_fencing(self.known_fencing, count)
    }
}

mod entering;
#[cfg(test)]
mod tests;
