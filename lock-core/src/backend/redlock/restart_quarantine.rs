//! The rule that decides when a server may vote: it must have had its data for so long that all locks that it may have forgotten
//! have ended.
//!
//! A server that restarts without its data, or is flushed, has forgotten the locks for which it voted. Its vote, together with
//! those of servers that never had such a lock, would make a second majority. So it does not vote until every lease for which it
//! may have voted has ended. A lease lasts for at most `max_ttl`, and a request for one may have been in flight for as long.
//!
//! No server knows how long it has had its data: its uptime is the difference of two times of a settable clock. So
//! clients watch the server, each by its own boot clock, and write the watched time to a marker on the server itself.
//! The marker is lost with the data. It names the run of the server, so it does not count after a restart with old
//! data. A client continues from the time in the marker, so the watched times of short-lived processes add up, and a
//! client that finds a whole quarantine in the marker need not wait.
//!
//! Rejected: a marker that is written only by clients that watched all the time, because jobs that live for a second would
//! never get a lock again; and a marker that expires, or trust in a long uptime, because both follow the server's clock.

use std::{collections::HashMap, sync::Arc, time::Duration};

use crate::{moment::Moment, runtime::clock::Clock};

/// The clock by which servers are watched.
pub(super) const CLOCK: Clock = Clock::Boot;

/// The longest ttl of a lock on several servers, unless the builder sets another.
pub(crate) const DEFAULT_MAX_TTL: Duration = Duration::from_secs(60);

/// The margin beyond twice the longest ttl, for clocks, and for requests that wait in sockets.
const MARGIN: Duration = Duration::from_secs(5);

/// Returns how long a server that restarted does not vote.
pub(crate) fn needed_for(max_ttl: Duration) -> Duration {
    max_ttl.saturating_mul(2).saturating_add(MARGIN)
}

/// The knowledge of a client about a server since its last restart or loss of data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Watch {
    /// The beginning of the marker: the server's run id, which ends with a restart, and a random name, which is lost with the
    /// data.
    pub(crate) name: Arc<str>,
    /// The time by which the server will have been watched for the whole quarantine.
    pub(crate) votes_from: Moment,
}

impl Watch {
    /// Reads a server's marker, which was fetched before `now`, for this run of the server. Also returns how long the
    /// server has been watched. Continues from what was known before, because the marker may say less if nothing has been
    /// written to it since.
    pub(crate) fn read(
        marker: &str,
        run_id: &str,
        now: Moment,
        needed: Duration,
        known: Option<&Self>,
    ) -> Option<(Self, Duration)> {
        let (name, watched) = marker.split_at(marker.rfind(':')? + 1);
        let watched = Duration::from_millis(watched.parse().ok()?);
        name.strip_prefix(run_id)?.strip_prefix(':')?;
        let votes_from = now.after(needed).before(watched);
        let known = known.filter(|known| *known.name == *name);
        let votes_from = known.map_or(votes_from, |known| known.votes_from.min(votes_from));
        let name = name.into();
        Some((Self { name, votes_from }, watched))
    }

    /// Returns how long the server has been watched by `now`: at most a whole quarantine.
    pub(crate) fn watched(&self, now: Moment, needed: Duration) -> Duration {
        needed.saturating_sub(self.votes_from.since(now))
    }
}

/// Detects a server that is in the list twice: a server keeps one random name from its start to its end.
#[derive(Debug, Default)]
pub(crate) struct RunIds(HashMap<usize, Arc<str>>);

impl RunIds {
    /// Records the name that the server at this position of the list gave. Returns another position that has the same server.
    pub(crate) fn note(&mut self, place: usize, run_id: &Arc<str>) -> Option<usize> {
        let is_twin = |(other, name): &(&usize, &Arc<str>)| **other != place && *name == run_id;
        let twin = self.0.iter().find(is_twin).map(|(other, _)| *other);
        if twin.is_none() {
            self.0.insert(place, run_id.clone());
        }
        twin
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
    fn a_server_votes_after_it_was_watched_long_enough_whatever_the_marker_says() {
        let needed = needed_for(DEFAULT_MAX_TTL);
        assert_eq!(needed, SECOND * 125);
        let read = |marker: &str, now, known| Watch::read(marker, "run", now, needed, known);
        let (fresh, _) = read("run:name:0", at(1000), None).expect("whole");
        assert_eq!(fresh.votes_from, at(1125));
        assert_eq!(fresh.watched(at(1100), needed), SECOND * 100);
        assert_eq!(fresh.watched(at(2000), needed), needed);
        // Other clients wrote a shorter, or a longer, time than this one has watched.
        let (less, watched) = read("run:name:40000", at(1100), None).expect("whole");
        assert_eq!((less.votes_from, watched), (at(1185), SECOND * 40));
        let (less, _) = read("run:name:40000", at(1100), Some(&fresh)).expect("whole");
        assert_eq!(less, fresh);
        let (more, _) = read("run:name:125000", at(1100), Some(&fresh)).expect("whole");
        assert_eq!(more.votes_from, at(1100));
        // The client's machine was started after the server.
        let (old, _) = read("run:name:125000", at(7), None).expect("whole");
        assert_eq!(old.votes_from, at(7));
    }

    #[test]
    fn a_restart_or_a_loss_of_data_begins_a_quarantine() {
        let read = |marker: &str, known| Watch::read(marker, "run", at(10), SECOND, known);
        let (known, _) = read("run:name:1000", None).expect("whole");
        let (lost, _) = read("run:other:0", Some(&known)).expect("whole");
        assert_eq!(lost.votes_from, at(11));
        for odd in [
            "",
            "run",
            "run:name:",
            "run:name:x",
            "runs:name:9999",
            "before:name:9999",
        ] {
            assert_eq!(read(odd, None), None, "{odd}");
        }
    }

    #[test]
    fn a_server_is_known_by_its_name_and_by_nothing_else() {
        let mut names = RunIds::default();
        let (one, two): (Arc<str>, Arc<str>) = ("one".into(), "two".into());
        assert_eq!(names.note(0, &one), None);
        assert_eq!(names.note(0, &one), None);
        assert_eq!(names.note(1, &one), Some(0));
        assert_eq!(names.note(0, &two), None);
        assert_eq!(names.note(1, &one), None);
    }
}
