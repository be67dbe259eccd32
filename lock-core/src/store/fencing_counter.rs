//! When a fencing token may be taken by incrementing the counter, instead of from the server's time.
//!
//! Asking the server for its time, and comparing it, costs as much as the rest of an acquire. The counter plus one is enough, as
//! long as the counter is at least as large as every token that was given out. On a server that lost data, it may be smaller. A
//! process that knows a recent token notices this, since the new one is not larger. A process that knows none does not notice. So
//! incrementing is allowed only for a short while after a token from the time, on the connection that it came on. A server that
//! lost data was away, and then the connection broke. Behind a proxy that hides this, it was away for longer than that while.
//!
//! That is not enough where an address can move to another server: DNS, a load balancer, sentinels, a cluster. The old server
//! can take writes after the new one does, on connections that stay. Both know the time, but the counter of the old one is
//! behind the tokens of the new one. No address tells that it cannot move. So incrementing is for unix sockets, and for
//! addresses of which the user promised it.

use std::{sync::MutexGuard, time::Duration};

use crate::runtime::mutex::Mutex;
use crate::{fencing::FencingToken, runtime::clock::Moment, store::in_flight::ConnectionId};

/// For how long incrementing is allowed after a token from the time.
const WHILE: Duration = Duration::from_secs(1);

/// Beyond it, a script cannot tell a number from the next one.
pub(crate) const LARGEST_TOKEN: u64 = 1 << 53;

/// The last token that came from the server's time; nothing if all tokens have to.
#[derive(Debug)]
pub(crate) struct FencingCounter(Option<Mutex<Option<LastToken>>>);

#[derive(Clone, Copy, Debug)]
pub(crate) struct LastToken {
    connection: ConnectionId,
    /// Before the request was sent.
    sent: Moment,
    token: FencingToken,
}

impl FencingCounter {
    /// For a server with an address that leads to no other server while it lives.
    pub(crate) fn while_connected() -> Self {
        Self(Some(Mutex::default()))
    }

    /// For a server that another one may replace behind the same address. For a moment both accept writes, and only the time is
    /// the same on both.
    pub(crate) fn never() -> Self {
        Self(None)
    }

    /// Whether incrementing can be allowed at all.
    pub(crate) fn is_allowed(&self) -> bool {
        self.0.is_some()
    }

    /// Notes a token that came from the time.
    pub(crate) fn note(&self, connection: ConnectionId, sent: Moment, token: FencingToken) {
        if let Some(mut last) = self.lock() {
            *last = Some(LastToken {
                connection,
                sent,
                token,
            });
        }
    }

    pub(crate) fn last(&self) -> Option<LastToken> {
        *self.lock()?
    }

    fn lock(&self) -> Option<MutexGuard<'_, Option<LastToken>>> {
        let last = self.0.as_ref()?;
        Some(last.lock())
    }
}

impl LastToken {
    pub(crate) fn token(self) -> u64 {
        self.token.into()
    }

    /// A token that is counted up on this connection now must be larger than this. `None`: the token must come from the time.
    pub(crate) fn floor(self, connection: ConnectionId, now: Moment) -> Option<u64> {
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
        let fencing_counter = FencingCounter::while_connected();
        assert!(fencing_counter.is_allowed() && fencing_counter.last().is_none());
        fencing_counter.note(one, sent, token);
        let last = fencing_counter.last().expect("just noted");
        assert_eq!(last.floor(one, sent.after(WHILE / 2)), Some(token.into()));
        assert_eq!(last.floor(one, sent.after(WHILE)), None);
        assert_eq!(last.floor(other, sent), None);
    }

    #[test]
    fn where_another_may_take_over_nothing_is_counted_from() {
        let fencing_counter = FencingCounter::never();
        fencing_counter.note(
            ConnectionId::new(1),
            Moment::from_nanos(0),
            FencingToken::new(5),
        );
        assert!(!fencing_counter.is_allowed() && fencing_counter.last().is_none());
    }
}
