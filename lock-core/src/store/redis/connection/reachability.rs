//! Whether a server is reached, as an operator reads it: one line when it is out of reach, and one when it is back.
//!
//! A connection that breaks is made anew at once. Only if that fails, the server counts as out of reach: servers and proxies close
//! idle connections, and that is no outage.

use std::time::Duration;

use crate::runtime::clock::Moment;

/// What is known of one server. Its events come from the only connection on the manager's thread to that server.
#[derive(Debug, Default)]
pub(crate) struct Reachability {
    /// When the last connection ended, and whether the log says so.
    lost: Option<(Moment, bool)>,
}

impl Reachability {
    /// A connection that was in use has ended.
    pub(crate) fn broke(&mut self, now: Moment) {
        self.lost.get_or_insert((now, false));
    }

    /// No new connection could be made. Returns whether the log is to say so: once for each outage.
    pub(crate) fn failed(&mut self) -> bool {
        let is_said = self.lost.as_mut().map(|(_, is_said)| is_said);
        is_said.is_some_and(|is_said| !std::mem::replace(is_said, true))
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

/// What a server that is back says of the time in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Between {
    /// It is the same process.
    Ran,
    /// It was restarted, or another server has its place.
    Replaced,
    /// `INFO` is refused.
    Unknown,
}

impl Between {
    /// Reads the reply to `INFO server`.
    pub(crate) fn of(uptime: Option<&str>, away: Duration) -> Self {
        match uptime.and_then(|seconds| seconds.parse::<u64>().ok()) {
            None => Self::Unknown,
            // Rounded down by the server. A server that is older than the outage was there before it.
            Some(seconds) if Duration::from_secs(seconds) > away => Self::Ran,
            Some(_) => Self::Replaced,
        }
    }

    pub(crate) fn says(self) -> &'static str {
        match self {
            Self::Ran => "the server is reached again: it was not restarted",
            Self::Replaced => {
                "the server is reached again: it was restarted, or another one has its place. What it had not saved is forgotten, \
                 locks too"
            }
            Self::Unknown => {
                "the server is reached again. Whether it was restarted, and has forgotten locks, is not known: `INFO` is refused"
            }
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
        assert_eq!(Between::of(Some("20"), away), Between::Replaced);
        assert_eq!(Between::of(Some("21"), away), Between::Ran);
        assert_eq!(Between::of(None, away), Between::Unknown);
    }
}
