//! Entering a lock: the place of an entry in the queue, which entry is next, whether the lock admits it, and its grant.

use std::time::Duration;

use crate::{
    fencing::FencingBlock,
    mode::{LockMode, Mode},
    store::{
        Acquire, Entry, Grant, PushedGrant,
        memory::lock_table::{EntryHolder, LockTable, Notice, Occupancy, QueuedEntry, TableUpdate},
        owner_token::OwnerToken,
    },
};

impl LockTable {
    /// The grant for a holder that asks again: the reply to an earlier request was lost, or the notice of a grant is not read.
    pub(super) fn grant_again(
        &mut self,
        request: &Acquire,
        update: &mut TableUpdate<'_>,
    ) -> Option<Grant> {
        let own = request.entry;
        let holder = self.holder_mut(|holder| holder.number == own.number)?;
        holder.extend(update.now.after(request.ttl));
        let seat = holder.seat;
        self.leave(own.number);
        self.advance(None, update);
        let tokens = match self.occupancy {
            Occupancy::Shared { phase, .. } => phase,
            _ => update.take_fencing(request.tokens),
        };
        Some(self.grant(own.mode, tokens, seat))
    }

    /// Lets the entries of the queue in that may enter now. The asking entry, if it is among them, gets its grant without a notice.
    pub(super) fn advance(
        &mut self,
        own: Option<&Acquire>,
        update: &mut TableUpdate<'_>,
    ) -> Option<Grant> {
        if matches!(self.occupancy, Occupancy::Exclusive(_)) {
            return None;
        }
        if self.queue.iter().all(QueuedEntry::is_shared) {
            self.cut = None;
        }
        let mut mine = None;
        // Bounded by the queue: each round takes an entry out.
        while let Some(at) = self.next_to_enter() {
            let QueuedEntry { entry, token, .. } = self.queue.remove(at);
            // The lease of the asking entry is as long as it asks for now.
            if let Some(own) = own.filter(|own| own.entry.number == entry.number) {
                mine = Some(self.enter(entry, token, own.ttl, own.tokens, update));
                continue;
            }
            let grant = self.enter(entry, token, entry.ttl, 1, update);
            let stamp = match entry.mode {
                Mode::Shared => update.take_fencing(1).last().into(),
                Mode::Exclusive | Mode::Permits(_) => grant.tokens.last().into(),
            };
            let pushed = PushedGrant { grant, stamp };
            update.notices.push(Notice::Granted(entry.number, pushed));
        }
        mine
    }

    /// The position of the next entry that may enter now.
    fn next_to_enter(&self) -> Option<usize> {
        let shared = self.queue.iter().position(QueuedEntry::is_shared);
        let other = self.queue.iter().position(|queued| !queued.is_shared());
        // Without a cut the last phase was an exclusive one, or no exclusive entry waits: all shared entries belong to the phase.
        let belongs = |at: &usize| self.cut.is_none_or(|cut| self.queue[*at].place < cut);
        match self.occupancy {
            Occupancy::Free => shared.filter(belongs).or(other),
            Occupancy::Exclusive(_) => None,
            Occupancy::Shared { .. } => shared.filter(belongs),
            Occupancy::Permits(_) => other.filter(|at| self.admits(self.queue[*at].entry.mode)),
        }
    }

    /// Whether the holders, if there are any, admit one more in this mode, apart from the queue.
    pub(super) fn admits(&self, mode: Mode) -> bool {
        match (&self.occupancy, mode) {
            (Occupancy::Free, _) | (Occupancy::Shared { .. }, Mode::Shared) => true,
            (Occupancy::Permits(holders), Mode::Permits(n)) => holders.len() < usize::from(n),
            _ => false,
        }
    }

    /// Makes a holder of an entry that may enter and is not in the queue.
    pub(super) fn enter(
        &mut self,
        entry: Entry,
        token: OwnerToken,
        ttl: Duration,
        count: u32,
        update: &mut TableUpdate<'_>,
    ) -> Grant {
        let seat = self.lowest_seat();
        let holder = EntryHolder {
            number: entry.number,
            token,
            expires: update.now.after(ttl),
            seat,
            is_kept: false,
        };
        let tokens = match self.occupancy {
            Occupancy::Shared { phase, .. } => phase,
            _ => update.take_fencing(count),
        };
        match (&mut self.occupancy, entry.mode) {
            (Occupancy::Shared { holders, .. }, _) => holders.push(holder),
            (Occupancy::Permits(holders), _) => holders.insert(usize::from(seat), holder),
            (free, Mode::Exclusive) => *free = Occupancy::Exclusive(holder),
            (free, Mode::Shared) => {
                *free = Occupancy::Shared {
                    phase: tokens,
                    holders: vec![holder],
                };
            }
            (free, Mode::Permits(_)) => *free = Occupancy::Permits(vec![holder]),
        }
        if entry.mode != Mode::Shared {
            self.cut = None;
        } else if self.is_contended(Mode::Shared) {
            // The cut is now: the other entries that belong to the phase are placed before it.
            self.cut.get_or_insert_with(|| update.counters.next_place());
        }
        self.grant(entry.mode, tokens, seat)
    }

    fn grant(&self, mode: Mode, tokens: FencingBlock, seat: u16) -> Grant {
        Grant {
            tokens,
            permit: (mode.kind() == LockMode::Permits).then_some(seat),
            is_contended: self.is_contended(mode),
            has_more: false,
        }
    }

    /// Puts an entry into the queue, if it is not there: at its place, if it has one. Returns its place.
    pub(super) fn join(
        &mut self,
        request: &Acquire,
        place: Option<u64>,
        update: &mut TableUpdate<'_>,
    ) -> u64 {
        let entry = request.entry;
        let mut queue = self.queue.iter();
        if let Some(queued) = queue.find(|queued| queued.entry.number == entry.number) {
            return queued.place;
        }
        let place = place.unwrap_or_else(|| update.counters.next_place());
        let at = self.queue.partition_point(|queued| queued.place < place);
        let token = request.token.clone();
        let queued = QueuedEntry {
            place,
            entry,
            token,
        };
        self.queue.insert(at, queued);
        if entry.mode == Mode::Exclusive && matches!(self.occupancy, Occupancy::Shared { .. }) {
            // The first exclusive entry ends the phase for shared ones that come behind it.
            self.cut.get_or_insert_with(|| update.counters.next_place());
        }
        place
    }

    /// The lowest seat that is free; the first one in modes without permits.
    fn lowest_seat(&self) -> u16 {
        let Occupancy::Permits(holders) = &self.occupancy else {
            return 0;
        };
        let mut seats = (0..).zip(holders);
        let gap = seats.find(|(seat, holder)| holder.seat != *seat);
        // The number fits: each holder was let in by a request for one of at most 1,000 permits.
        gap.map_or(
            u16::try_from(holders.len()).unwrap_or(u16::MAX),
            |(seat, _)| seat,
        )
    }
}
