//! When a fencing token may be counted up, instead of being taken from the server's time.
//!
//! Asking the server for its time, and comparing it, costs as much as all the rest of an acquire. One more than the counter
//! does as well, as long as the counter is at least as large as every token that was given out. A server that lost data may
//! have it behind. Who knows a token sees that when it is told one that is not larger. Who knows none of the last ones does
//! not, so counting is for a short while after a token that came from the time, on the connection that it came on: a
//! server that lost data was away, and then the connection broke; and behind a proxy that hides this, it was away for longer
//! than that while.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{clock::Moment, token::FencingToken, trail::ConnectionId};

/// For how long after a token from the time.
const WHILE: Duration = Duration::from_secs(1);

/// For how many slots of a cluster a server is remembered to have given a token.
const SLOTS_REMEMBERED: u16 = 256;

/// The last tokens that came from the server's time: of each counter the last one.
#[derive(Debug)]
pub(super) struct Counting(Box<[Mutex<Option<Last>>]>);

#[derive(Clone, Copy, Debug)]
pub(super) struct Last {
    slot: u16,
    connection: ConnectionId,
    /// Before it was asked for.
    sent: Moment,
    token: FencingToken,
}

impl Counting {
    /// For a server with one counter.
    pub(super) fn of_one_counter() -> Self {
        Self([Mutex::default()].into())
    }

    /// For a node of a cluster, which has one for each slot.
    pub(super) fn of_slots() -> Self {
        Self((0..SLOTS_REMEMBERED).map(|_| Mutex::default()).collect())
    }

    /// Notes a token that came from the time.
    pub(super) fn note(
        &self,
        slot: u16,
        connection: ConnectionId,
        sent: Moment,
        token: FencingToken,
    ) {
        *self.lock(slot) = Some(Last {
            slot,
            connection,
            sent,
            token,
        });
    }

    pub(super) fn last(&self, slot: u16) -> Option<Last> {
        self.lock(slot).filter(|last| last.slot == slot)
    }

    fn lock(&self, slot: u16) -> MutexGuard<'_, Option<Last>> {
        let last = &self.0[usize::from(slot) % self.0.len()];
        last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Last {
    pub(super) fn token(self) -> u64 {
        self.token.into()
    }

    /// Than what a token must be larger that is counted up on this connection now; `None`: it must come from the time.
    pub(super) fn floor(self, connection: ConnectionId, now: Moment) -> Option<u64> {
        let may_count = self.connection == connection && now.since(self.sent) < WHILE;
        may_count.then_some(self.token.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counting_is_for_a_short_while_and_for_one_connection() {
        let (one, other) = (ConnectionId::new(1), ConnectionId::new(2));
        let (sent, token) = (
            Moment::from_nanos(0).after(WHILE * 5),
            FencingToken::new(1_795_151_176_455_149),
        );
        let counting = Counting::of_one_counter();
        assert!(counting.last(0).is_none());
        counting.note(0, one, sent, token);
        let last = counting.last(0).expect("just noted");
        assert_eq!(last.floor(one, sent.after(WHILE / 2)), Some(token.into()));
        assert_eq!(last.floor(one, sent.after(WHILE)), None);
        assert_eq!(last.floor(other, sent), None);
    }

    #[test]
    fn a_token_of_one_slot_says_nothing_of_another() {
        let (connection, sent) = (ConnectionId::new(1), Moment::from_nanos(0));
        let counting = Counting::of_slots();
        let same_place = SLOTS_REMEMBERED + 7;
        counting.note(7, connection, sent, FencingToken::new(5));
        assert!(counting.last(7).is_some());
        assert!(counting.last(8).is_none() && counting.last(same_place).is_none());
        counting.note(same_place, connection, sent, FencingToken::new(6));
        assert!(counting.last(7).is_none() && counting.last(same_place).is_some());
    }
}
