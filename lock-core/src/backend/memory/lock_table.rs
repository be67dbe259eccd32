//! The holders and the queue of one key, as a table without I/O. Its input is an operation and the time; its output is a reply,
//! and notices to other entries.
//!
//! All requests come from one process, which has at most one acquire request in each of four kinds of mode. A key has permits
//! or the other three modes, so at most three entries wait, apart from those that the process is giving up. For so few, the
//! order of a server (`phases.lua`) becomes simple:
//!
//! - The holders are a single exclusive one, or shared ones, or those of permits.
//! - The queue is served first come, first served. A newcomer goes to its end.
//! - After an exclusive phase the shared entry is next, even if an exclusive one arrived before it.
//! - A shared phase has one fencing token.
//! - An entry for a body that is to run once is exclusive. While there is a result, the entry is answered and not granted.
//! - A permits entry for one of `n` enters if fewer than `n` permits are held, and takes the lowest one that is free. Permits
//!   and the other modes refuse each other.
//!
//! The mechanisms that a server needs because messages can be lost are absent here: an entry has no stored position and no beats,
//! and a batch is not granted in parts. An entry that its process gave up is released, and one that lost its owner without a
//! release is skipped.
//!
//! There is no timer. Each operation first removes the holders whose lease has ended, and admits the entries that may then
//! enter. A waiter checks when its holder's lease must have ended.

use std::{cmp::Reverse, sync::Arc, time::Duration};

use crate::{
    backend::{
        Acquire, OTHER_MODE, Release, Renew, RunResult,
        owner::{Entry, EntryNumber},
        owner_token::{OwnerToken, holder_of},
    },
    engine::reply::{
        AcquireOutcome, Busy, Contended, Expiry, Grant, Notice, PushedGrant, QueueMode,
        ReleaseOutcome, Renewed, WakeUpMode,
    },
    failure::Failure,
    fencing::{FencingBlock, in_tokens},
    inspect::{LeaseInfo, Sighting, Waiter},
    mode::{Mode, RequestKind},
    moment::Moment,
};

#[cfg(test)]
mod tests;

#[derive(Clone, Debug, Default)]
pub(crate) struct LockTable {
    /// In the order of their permits, which matters in permits mode only.
    pub(crate) holders: Vec<EntryHolder>,
    /// In the order in which they arrived.
    pub(crate) queue: Vec<QueuedEntry>,
    /// `true` if the last entry that entered was an exclusive one.
    pub(crate) is_shared_next: bool,
    /// The result of the body that ran once, and when it is forgotten.
    pub(crate) result: Option<(Arc<[u8]>, Moment)>,
}

/// The input of an operation apart from the table, and its output apart from its reply.
pub(crate) struct TableUpdate<'a> {
    pub(crate) now: Moment,
    /// The largest fencing token that the process knows.
    pub(crate) known_fencing: u64,
    pub(crate) wall_clock: fn() -> Duration,
    /// The last fencing token, or stamp, of any table.
    pub(crate) last_token: &'a mut u64,
    /// Returns `true` if an entry has an owner that could use a grant.
    pub(crate) is_alive: &'a dyn Fn(EntryNumber) -> bool,
    /// The notices, each with the number of its entry.
    pub(crate) notices: Vec<(EntryNumber, Notice)>,
}

#[derive(Clone, Debug)]
pub(crate) struct EntryHolder {
    /// `None` for a holder without an owner, which is kept for `min_hold` or is elsewhere. No request prolongs or ends its lease.
    pub(crate) number: Option<EntryNumber>,
    kind: RequestKind,
    token: OwnerToken,
    pub(crate) expires: Moment,
    /// The number of its permit.
    pub(crate) permit: u16,
    /// The fencing tokens that it got when it entered. Shared holders have the token of their phase.
    pub(crate) tokens: FencingBlock,
}

#[derive(Clone, Debug)]
pub(crate) struct QueuedEntry {
    pub(crate) entry: Entry,
    token: OwnerToken,
}

impl LockTable {
    pub(crate) fn acquire(
        &mut self,
        request: &Acquire,
        update: &mut TableUpdate<'_>,
    ) -> Result<AcquireOutcome, Failure> {
        self.sweep(update.now, update.is_alive);
        let (own, now) = (request.entry(), update.now);
        if own.mode == Mode::Once
            && let Some((result, _)) = &self.result
        {
            let result = result.clone();
            self.leave(own.number);
            self.advance(None, update);
            return Ok(AcquireOutcome::Done(result));
        }
        // The reply to an earlier request was lost, or the notice of a grant has not been read.
        if let Some(held) = self.holder_mut(own.number) {
            held.extend(now.after(request.ttl));
            let (tokens, permit) = (held.tokens, held.permit);
            self.advance(None, update);
            let tokens = match own.mode {
                Mode::Shared => tokens,
                _ => update.issue_tokens(request.tokens),
            };
            return Ok(AcquireOutcome::Granted(
                self.grant(own.mode, tokens, permit),
            ));
        }
        let mut granted = self.advance(Some(request), update);
        let mut queue = self.queue.iter();
        if granted.is_none() && !queue.any(|queued| queued.entry.number == own.number) {
            if self.is_in_other_mode_than(own.mode.kind()) {
                return Err(Failure::Invalid(OTHER_MODE.into()));
            }
            let token = request.owner.token.clone();
            self.queue.push(QueuedEntry { entry: own, token });
            granted = self.advance(Some(request), update);
        }
        if let Some(grant) = granted {
            return Ok(AcquireOutcome::Granted(grant));
        }
        if request.queue_mode == QueueMode::DoNotQueue {
            // It was the last entry, so no other waits after it.
            self.leave(own.number);
        }
        if own.mode.is_alone() {
            // Repeated with each check, as a server does.
            let shares = self.holders.iter();
            let shares = shares.filter(|holder| holder.kind == RequestKind::Shared);
            let contended = shares.filter_map(|holder| Some((holder.number?, Notice::Contended)));
            update.notices.extend(contended);
        }
        Ok(AcquireOutcome::Busy(Busy {
            expiry: self.expiry(now),
            position: None,
            wake_up: WakeUpMode::Push,
            is_next: true,
            stamp: Some(*update.last_token),
            // The holder is in this process, which knows the label.
            holder: None,
        }))
    }

    pub(crate) fn renew(&mut self, request: &Renew, update: &mut TableUpdate<'_>) -> Renewed {
        self.sweep(update.now, update.is_alive);
        let held = self.holder_mut(request.owner.number());
        let is_held = held.map(|holder| holder.extend(update.now.after(request.ttl)));
        self.advance(None, update);
        if is_held.is_none() {
            return Renewed::NotOurs;
        }
        let takes_tokens = request.tokens > 0;
        let is_contended = takes_tokens && !self.queue.is_empty();
        Renewed::Extended {
            tokens: if takes_tokens {
                update.issue_tokens(request.tokens)
            } else {
                FencingBlock::EMPTY
            },
            contended: if is_contended || self.is_contended(request.owner.mode) {
                Contended::OthersQueued
            } else {
                Contended::NoneWaiting
            },
        }
    }

    /// Also removes an entry from the queue.
    pub(crate) fn release(
        &mut self,
        request: &Release,
        update: &mut TableUpdate<'_>,
    ) -> ReleaseOutcome {
        self.sweep(update.now, update.is_alive);
        let number = request.owner.number();
        self.leave(number);
        let held = self.holder_mut(number);
        let outcome = held.map_or(ReleaseOutcome::NotOurs, |holder| {
            holder.number = None;
            holder.expires = update.now.after(request.keep.unwrap_or_default());
            ReleaseOutcome::Released
        });
        if outcome == ReleaseOutcome::Released
            && let Some(RunResult { bytes, keep }) = &request.result
        {
            self.result = Some((bytes.clone(), update.now.after(*keep)));
        }
        self.serve(update);
        outcome
    }

    /// Takes the lock from its holders, in any mode.
    pub(crate) fn force_release(&mut self, update: &mut TableUpdate<'_>) {
        self.holders.clear();
        self.serve(update);
    }

    pub(crate) fn inspect(&self, now: Moment, named: usize) -> Option<Sighting> {
        let holders = self.holders.iter();
        let mut alive: Vec<_> = holders.filter(|holder| holder.expires > now).collect();
        alive.sort_by_key(|holder| Reverse(holder.expires));
        let result_kept_for = self.kept_for(now);
        let Some(longest) = alive.first() else {
            return result_kept_for.map(Sighting::of_result);
        };
        let leases = alive.iter().map(|holder| LeaseInfo {
            process: holder_of(&holder.token.expose()),
            remaining: Some(holder.expires.since(now)),
            permit: (holder.kind == RequestKind::Permits).then_some(holder.permit),
        });
        let queue = self.queue.iter().map(|queued| Waiter {
            process: holder_of(&queued.token.expose()),
            mode: queued.entry.mode.kind().shown(),
        });
        Some(Sighting {
            remaining: Some(longest.expires.since(now)),
            mode: longest.kind.shown(),
            holders: alive.len(),
            waiting: self.queue.len(),
            leases: leases.take(named.max(1)).collect(),
            queue: queue.take(named).collect(),
            result_kept_for,
        })
    }

    /// Returns how much longer the result of a run is kept, if there is one.
    pub(crate) fn kept_for(&self, now: Moment) -> Option<Duration> {
        let (_, until) = self.result.as_ref()?;
        Some(until.since(now)).filter(|left| !left.is_zero())
    }

    /// Removes the holders whose lease has ended, the waiters that have no owner, and the result that is no longer kept. All
    /// operations begin with it.
    pub(crate) fn sweep(&mut self, now: Moment, is_alive: &dyn Fn(EntryNumber) -> bool) {
        self.result.take_if(|(_, until)| *until <= now);
        self.holders.retain(|holder| holder.expires > now);
        self.queue.retain(|queued| is_alive(queued.entry.number));
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.result.is_none()
    }

    /// Removes all holders. With `elsewhere_until`, a holder elsewhere has the lock until then. Admits no entry.
    #[cfg(feature = "testing")]
    pub(crate) fn evict(&mut self, elsewhere_until: Option<Moment>) {
        self.is_shared_next |= elsewhere_until.is_some();
        let elsewhere = elsewhere_until.map(|expires| EntryHolder {
            number: None,
            kind: RequestKind::Exclusive,
            token: OwnerToken::numbered(0),
            expires,
            permit: 0,
            tokens: FencingBlock::EMPTY,
        });
        self.holders = elsewhere.into_iter().collect();
    }

    /// Admits the entries that may enter now.
    pub(crate) fn serve(&mut self, update: &mut TableUpdate<'_>) {
        self.sweep(update.now, update.is_alive);
        self.advance(None, update);
    }

    /// Admits the entries of the queue that may enter now. The entry of this request, if it is among them, gets its grant
    /// without a notice.
    fn advance(&mut self, own: Option<&Acquire>, update: &mut TableUpdate<'_>) -> Option<Grant> {
        let mut mine = None;
        // Bounded by the queue, because each round removes an entry.
        while let Some(at) = self.next_to_enter() {
            let queued = self.queue.remove(at);
            let entry = queued.entry;
            if entry.mode == Mode::Once && self.result.is_some() {
                update.notices.push((entry.number, Notice::Hint));
                continue;
            }
            // The entry of this request gets a lease of the ttl that the request asks for now.
            if let Some(own) = own.filter(|own| own.owner.number() == entry.number) {
                mine = Some(self.enter(queued, own.ttl, own.tokens, update));
                continue;
            }
            let grant = self.enter(queued, entry.ttl, 1, update);
            let stamp = match entry.mode {
                Mode::Shared => update.issue_tokens(1).last().into(),
                Mode::Exclusive | Mode::Permits(_) | Mode::Once => grant.tokens.last().into(),
            };
            let granted = Notice::Granted(PushedGrant { grant, stamp });
            update.notices.push((entry.number, granted));
        }
        mine
    }

    /// Returns the position of the next entry, if the holders admit it.
    fn next_to_enter(&self) -> Option<usize> {
        let mut queue = self.queue.iter();
        let shared = queue.position(|queued| queued.entry.mode == Mode::Shared);
        let next = shared.filter(|_| self.is_shared_next).unwrap_or(0);
        let queued = self.queue.get(next)?;
        let mode = queued.entry.mode;
        let admits = match (self.holders.first().map(|holder| holder.kind), mode) {
            (None, _) | (Some(RequestKind::Shared), Mode::Shared) => true,
            (Some(RequestKind::Permits), Mode::Permits(n)) => self.holders.len() < usize::from(n),
            _ => false,
        };
        admits.then_some(next)
    }

    /// Turns an entry that may enter into a holder.
    fn enter(
        &mut self,
        queued: QueuedEntry,
        ttl: Duration,
        count: u32,
        update: &mut TableUpdate<'_>,
    ) -> Grant {
        let mode = queued.entry.mode;
        let phase = self.holders.first().filter(|_| mode == Mode::Shared);
        let tokens = phase.map(|first| first.tokens);
        let tokens = tokens.unwrap_or_else(|| update.issue_tokens(count));
        // The lowest permit that is free.
        let permits = (0..).zip(&self.holders);
        let permit = permits
            .take_while(|(permit, holder)| holder.permit == *permit)
            .count();
        let holder = EntryHolder {
            number: Some(queued.entry.number),
            kind: mode.kind(),
            token: queued.token,
            expires: update.now.after(ttl),
            // It fits, because each holder was admitted by a request for one of at most 1,000 permits, or is one of a few
            // shares.
            permit: u16::try_from(permit).unwrap_or(u16::MAX),
            tokens,
        };
        let grant = self.grant(mode, tokens, holder.permit);
        self.is_shared_next = mode.is_alone();
        self.holders.insert(permit, holder);
        grant
    }

    fn grant(&self, mode: Mode, tokens: FencingBlock, permit: u16) -> Grant {
        Grant {
            tokens,
            permit: (mode.kind() == RequestKind::Permits).then_some(permit),
            is_contended: self.is_contended(mode),
            has_more: false,
        }
    }

    /// Returns when a waiter should check again: at the end of the first permit, or of the last lease of the others.
    fn expiry(&self, now: Moment) -> Expiry {
        let ends = self.holders.iter().map(|holder| holder.expires);
        let end = match self.holders.first().map(|holder| holder.kind) {
            Some(RequestKind::Permits) => ends.min(),
            _ => ends.max(),
        };
        end.map_or(Expiry::Unknown, |end| Expiry::In(end.since(now)))
    }

    /// Returns `true` if a share may not admit any further task.
    fn is_contended(&self, mode: Mode) -> bool {
        let mut others = self.queue.iter();
        mode == Mode::Shared && others.any(|queued| queued.entry.mode != Mode::Shared)
    }

    /// Returns `true` if the key is held or waited for with permits, and this is another mode, or the reverse.
    fn is_in_other_mode_than(&self, own: RequestKind) -> bool {
        let held = self.holders.iter().map(|holder| holder.kind);
        let queued = self.queue.iter().map(|queued| queued.entry.mode.kind());
        let is_with_permits = own == RequestKind::Permits;
        let mut kinds = held.chain(queued);
        kinds.any(|kind| (kind == RequestKind::Permits) != is_with_permits)
    }

    fn holder_mut(&mut self, number: EntryNumber) -> Option<&mut EntryHolder> {
        let mut holders = self.holders.iter_mut();
        holders.find(|holder| holder.number == Some(number))
    }

    fn leave(&mut self, number: EntryNumber) {
        self.queue.retain(|queued| queued.entry.number != number);
    }
}

impl EntryHolder {
    /// Extends the lease, and never shortens it.
    fn extend(&mut self, expires: Moment) {
        self.expires = self.expires.max(expires);
    }
}

impl TableUpdate<'_> {
    /// Issues fencing tokens that are larger than all before, and than those that the process knows.
    ///
    /// They are on the scale of a server's, and as exact as the wall clock. They grow from one run of the program to the next,
    /// so a database that outlives the process accepts the tokens of the next run.
    fn issue_tokens(&mut self, count: u32) -> FencingBlock {
        let larger = 1 + self.known_fencing.max(*self.last_token);
        let first = in_tokens((self.wall_clock)()).max(larger);
        let block = FencingBlock::new(first, count);
        *self.last_token = block.last().into();
        block
    }
}
