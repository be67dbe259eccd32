//! Which server may vote: one that has been up for so long that all locks it may have forgotten have ended.
//!
//! A server that restarts without its data has forgotten in which locks it had a part. Its vote, with those of servers that never
//! had such a lock, would make a second majority. So it does not vote until every lease that it may have had a part in has ended:
//! one lasts for `max_ttl` at most, and a request for one may have been in flight for as long.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::runtime::clock::Moment;

/// The longest ttl of a lock on several servers, unless the builder says otherwise.
pub(crate) const DEFAULT_MAX_TTL: Duration = Duration::from_secs(60);

/// Beyond twice the longest ttl: for clocks, and for requests that wait in sockets.
const MARGIN: Duration = Duration::from_secs(5);

/// A server reports its uptime as the difference of two times in whole seconds.
const COARSE: Duration = Duration::from_secs(1);

/// For how long a server that restarted does not vote.
pub(crate) fn needed_for(max_ttl: Duration) -> Duration {
    max_ttl.saturating_mul(2).saturating_add(MARGIN)
}

/// The time from which a server votes that was up for `uptime` at this moment or later.
pub(crate) fn votes_from(now: Moment, uptime: Duration, needed: Duration) -> Moment {
    if needed.is_zero() {
        return now;
    }
    let certain = uptime.saturating_sub(COARSE);
    now.after(needed).before(certain).max(Moment::from_nanos(0))
}

/// Identifies servers by the random names that they have from start to end.
#[derive(Debug, Default)]
pub(crate) struct RunIds(HashMap<usize, Arc<str>>);

/// What a name shows about a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RunIdSeen {
    First,
    Again,
    /// It is another process than before.
    Restarted,
    /// It is the same as the one in this other place of the list.
    SameAs(usize),
}

impl RunIds {
    /// Notes the name that the server at this position of the list gave.
    pub(crate) fn note(&mut self, place: usize, run_id: &Arc<str>) -> RunIdSeen {
        let twin = self
            .0
            .iter()
            .find(|(other, name)| **other != place && *name == run_id);
        if let Some((twin, _)) = twin {
            return RunIdSeen::SameAs(*twin);
        }
        match self.0.insert(place, run_id.clone()) {
            None => RunIdSeen::First,
            Some(before) if before == *run_id => RunIdSeen::Again,
            Some(_) => RunIdSeen::Restarted,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Moment {
        Moment::from_nanos(0).after(SECOND * u32::try_from(seconds).expect("small"))
    }

    #[test]
    fn a_server_votes_when_it_has_certainly_been_up_for_long_enough() {
        let needed = needed_for(DEFAULT_MAX_TTL);
        assert_eq!(needed, SECOND * 125);
        assert_eq!(votes_from(at(1000), Duration::ZERO, needed), at(1125));
        assert_eq!(votes_from(at(1000), SECOND * 125, needed), at(1001));
        assert_eq!(votes_from(at(1000), SECOND * 126, needed), at(1000));
        assert_eq!(votes_from(at(1000), SECOND * 100_000, needed), at(0));
        assert_eq!(votes_from(at(7), Duration::ZERO, Duration::ZERO), at(7));
    }

    #[test]
    fn a_server_is_known_by_its_name_and_by_nothing_else() {
        let mut names = RunIds::default();
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        assert_eq!(names.note(0, &one), RunIdSeen::First);
        assert_eq!(names.note(0, &one), RunIdSeen::Again);
        assert_eq!(names.note(1, &one), RunIdSeen::SameAs(0));
        assert_eq!(names.note(0, &two), RunIdSeen::Restarted);
        assert_eq!(names.note(1, &one), RunIdSeen::First);
    }
}
