//! Whether a server is reached, as an operator reads it: one line when it is out of reach, and one when it is back.
//!
//! A connection that breaks is made anew at once. Only if that fails, the server counts as out of reach: servers and proxies close
//! idle connections, and that is no outage.

use std::{mem, time::Duration};

use crate::runtime::clock::Moment;

/// What is known of one server. Its events come from the only connection on the manager's thread to that server.
#[derive(Debug, Default)]
pub(crate) struct Reachability {
    /// When the last connection ended, and whether the log says so.
    lost: Option<(Moment, bool)>,
    /// Whether a task makes the next connection.
    is_returning: bool,
}

impl Reachability {
    /// A connection that was in use has ended. Returns whether a task is to make the next one: one does at a time.
    pub(crate) fn broke(&mut self, now: Moment) -> bool {
        self.lost.get_or_insert((now, false));
        !mem::replace(&mut self.is_returning, true)
    }

    /// That task has ended.
    pub(crate) fn returns_no_more(&mut self) {
        self.is_returning = false;
    }

    /// No new connection could be made. Returns whether the log is to say so: once for each outage.
    pub(crate) fn failed(&mut self) -> bool {
        let is_said = self.lost.as_mut().map(|(_, is_said)| is_said);
        is_said.is_some_and(|is_said| !mem::replace(is_said, true))
    }

    /// A connection was made. Returns for how long the server was out of reach, if the log said that it was.
    pub(crate) fn returned(&mut self, now: Moment) -> Option<Duration> {
        let (since, is_said) = self.lost.take()?;
        is_said.then(|| now.since(since))
    }

    /// Whether the log said that the server is out of reach, and not yet that it is back.
    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.lost.is_some_and(|(_, is_said)| is_said)
    }
}

/// What the reply to `INFO server` says of the time in which a server was out of reach. `uptime`: the field of that reply, if it is not
/// refused.
pub(crate) fn since_then(uptime: Option<&str>, away: Duration) -> &'static str {
    match uptime.and_then(|seconds| seconds.parse().ok()) {
        None => {
            "the server is reached again. Whether it was restarted, and has forgotten locks, is not known: `INFO` is refused"
        }
        // Rounded down by the server. A server that is older than the outage was there before it.
        Some(seconds) if Duration::from_secs(seconds) > away => {
            "the server is reached again: it was not restarted"
        }
        Some(_) => {
            "the server is reached again: it was restarted, or another one has its place. What it had not saved is forgotten, \
             locks too"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_secs(second))
    }

    #[test]
    fn an_outage_has_one_line_at_each_end() {
        let mut reachability = Reachability::default();
        assert!(!reachability.failed(), "it was never reached");
        reachability.broke(at(1));
        assert!(reachability.failed() && !reachability.failed());
        reachability.broke(at(5));
        assert_eq!(reachability.returned(at(21)), Some(Duration::from_secs(20)));
        assert_eq!(reachability.returned(at(22)), None);
    }

    #[test]
    fn a_connection_that_is_made_anew_at_once_is_no_outage() {
        let mut reachability = Reachability::default();
        reachability.broke(at(1));
        assert_eq!(reachability.returned(at(1)), None);
        assert!(!reachability.failed());
    }

    #[test]
    fn a_server_that_is_younger_than_the_outage_was_restarted() {
        let away = Duration::from_secs(20);
        for (uptime, says) in [
            (Some("20"), "it was restarted, or another one has its place"),
            (Some("21"), "it was not restarted"),
            (None, "is not known"),
        ] {
            let said = since_then(uptime, away);
            assert!(said.contains(says), "{uptime:?}: {said}");
        }
    }
}
