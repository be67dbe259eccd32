//! A record of what the tasks of several processes did with some keys, and when.
//!
//! All processes append to one file, with one line per event and one write per line. So the lines of a killed process are kept,
//! and lines are never interleaved.
//!
//! [`Checker`] judges events as they arrive. [`History`] applies the same checks to a whole file.

use std::{
    fmt,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    str::FromStr,
    time::Duration,
};

use lock_core::Lease;
use rustix::time::{ClockId, clock_gettime};

use crate::locking::Mode;

mod checker;
mod tail;
mod whole;

pub use self::{
    checker::{Checker, Invariant, Requirements, Tally},
    tail::Tail,
    whole::Hold,
};

/// A point in time in nanoseconds, on the clock that all processes of the machine share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Moment(u64);

impl Moment {
    /// Reads the clock.
    pub fn now() -> Self {
        let time = clock_gettime(ClockId::Monotonic);
        let seconds = u64::try_from(time.tv_sec).expect("a machine that was started in the past");
        let nanos = u64::try_from(time.tv_nsec).expect("less than a second");
        Self(seconds * 1_000_000_000 + nanos)
    }

    /// Makes a point in time from nanoseconds.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// Returns the end of a lease's validity. It is never too late, since the clock is read first.
    pub fn end_of(lease: &Lease) -> Self {
        let now = Self::now();
        now.after(lease.remaining())
    }

    /// Returns the point in time that is later by `span`.
    #[must_use]
    pub fn after(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).expect("a span of a test");
        Self(self.0 + nanos)
    }

    /// Returns the point in time that is earlier by `span`.
    #[must_use]
    pub fn before(self, span: Duration) -> Self {
        let nanos = u64::try_from(span.as_nanos()).expect("a span of a test");
        Self(self.0.saturating_sub(nanos))
    }

    /// Returns the time since an earlier point; zero if `earlier` is later than this point.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A span of time in which something was broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Its beginning.
    pub from: Moment,
    /// Its end, included.
    pub to: Moment,
}

impl Window {
    /// Returns whether it overlaps with the time from `from` to `to`.
    pub(crate) fn touches(&self, from: Moment, to: Moment) -> bool {
        from <= self.to && self.from <= to
    }
}

/// A step of one attempt to take a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// The lock was requested.
    Called(Mode),
    /// The lock was granted, and the caller knows it.
    Acquired {
        /// The fencing token.
        token: u64,
        /// The number of the permit, in the mode with permits.
        permit: Option<u16>,
        /// The end of the time for which the lease was certain to last unless renewed.
        valid_until: Moment,
    },
    /// The store that the lock protects refused the holder, although the lease was valid after the refusal.
    Refused,
    /// The holder has done its work, and is about to release the lock.
    ReleaseCalled {
        /// The end of the time for which the lease was certain to last at this point.
        valid_until: Moment,
    },
    /// The lock was released.
    Released,
    /// The lease was lost.
    Lost,
    /// The lock was not granted, or the result is unknown.
    Failed,
}

/// One line of a history.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The time of the step.
    pub at: Moment,
    /// The number of the process.
    pub process: u32,
    /// The number of the attempt in that process, across all its tasks and keys.
    pub attempt: u64,
    /// The key, which contains no white space.
    pub key: String,
    /// The step.
    pub step: Step,
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            at,
            process,
            attempt,
            key,
            step,
        } = self;
        write!(f, "{at} {process} {attempt} {key} ")?;
        match step {
            Step::Called(Mode::Exclusive) => f.write_str("called - -"),
            Step::Called(Mode::Shared) => f.write_str("called shared -"),
            Step::Called(Mode::Permits(permits)) => write!(f, "called {permits} -"),
            Step::Acquired {
                token,
                permit,
                valid_until,
            } => {
                write!(f, "acquired {token}")?;
                if let Some(permit) = permit {
                    write!(f, "#{permit}")?;
                }
                write!(f, " {valid_until}")
            }
            Step::Refused => f.write_str("refused - -"),
            Step::ReleaseCalled { valid_until } => write!(f, "release-called - {valid_until}"),
            Step::Released => f.write_str("released - -"),
            Step::Lost => f.write_str("lost - -"),
            Step::Failed => f.write_str("failed - -"),
        }
    }
}

/// A line that is not an [`Event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed;

impl FromStr for Event {
    type Err = Malformed;

    fn from_str(line: &str) -> Result<Self, Malformed> {
        let words: Vec<&str> = line.split(' ').collect();
        let [at, process, attempt, key, step, token, valid_until] = *words else {
            return Err(Malformed);
        };
        let step = match step {
            "called" => Step::Called(match token {
                "-" => Mode::Exclusive,
                "shared" => Mode::Shared,
                permits => Mode::Permits(number(permits)?),
            }),
            "acquired" => {
                let (token, permit) = match token.split_once('#') {
                    Some((token, permit)) => (token, Some(number(permit)?)),
                    None => (token, None),
                };
                Step::Acquired {
                    token: number(token)?,
                    permit,
                    valid_until: Moment(number(valid_until)?),
                }
            }
            "refused" => Step::Refused,
            "release-called" => Step::ReleaseCalled {
                valid_until: Moment(number(valid_until)?),
            },
            "released" => Step::Released,
            "lost" => Step::Lost,
            "failed" => Step::Failed,
            _ => return Err(Malformed),
        };
        Ok(Self {
            at: Moment(number(at)?),
            process: number(process)?,
            attempt: number(attempt)?,
            key: key.to_owned(),
            step,
        })
    }
}

fn number<T: FromStr>(word: &str) -> Result<T, Malformed> {
    word.parse().map_err(|_| Malformed)
}

/// Records the events of one process, for all its tasks.
#[derive(Debug)]
pub struct Recorder {
    file: File,
    process: u32,
}

impl Recorder {
    /// Appends to the file at `path`, as process number `process`.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn open(path: &Path, process: u32) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        Ok(Self { file, process })
    }

    /// Records a step that happens now, and returns the time.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn record(&self, attempt: u64, key: &str, step: Step) -> io::Result<Moment> {
        assert!(
            !key.contains(char::is_whitespace),
            "white space in the key {key:?}"
        );
        let at = Moment::now();
        let event = Event {
            at,
            process: self.process,
            attempt,
            key: key.to_owned(),
            step,
        };
        // A single write to a file that is open for appending is not interleaved with others.
        let line = format!("{event}\n");
        let written = (&self.file).write(line.as_bytes())?;
        assert_eq!(written, line.len(), "a line was written in part");
        Ok(at)
    }
}

/// Reads the lines of [`Recorder`]s as they are written.
#[derive(Debug)]
pub struct Follower {
    tail: Tail,
    history: History,
}

impl Follower {
    /// Starts at the first event of the file at `path`, which is created if it does not exist.
    ///
    /// # Errors
    ///
    /// If the folder does not exist.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            tail: Tail::open(path)?,
            history: History::default(),
        })
    }

    /// Returns the events that have been written so far.
    pub fn history(&mut self) -> &History {
        self.history.extend(events(&self.tail.lines()));
        &self.history
    }

    /// Returns all events. To be called when all writers have ended.
    pub fn finish(mut self) -> History {
        self.history();
        self.history
    }
}

/// Parses the lines of [`Recorder`]s.
pub fn events(lines: &str) -> impl Iterator<Item = Event> {
    lines.lines().map(|line| {
        line.parse()
            .unwrap_or_else(|Malformed| panic!("not an event: {line:?}"))
    })
}

/// All events of all processes, ordered by time.
#[derive(Debug, Default)]
pub struct History {
    events: Vec<Event>,
}

impl History {
    /// Makes a history of these events, which may be in any order.
    pub fn of(events: Vec<Event>) -> Self {
        let mut history = Self::default();
        history.extend(events);
        history
    }

    /// Returns the events, ordered by time.
    pub fn events(&self) -> &[Event] {
        &self.events
    }

    /// Returns how many locks a process was granted after a point in time.
    pub fn grants(&self, process: u32, after: Moment) -> usize {
        let events = self.events.iter();
        events
            .filter(|event| event.process == process && event.at > after)
            .filter(|event| matches!(event.step, Step::Acquired { .. }))
            .count()
    }

    fn extend(&mut self, events: impl IntoIterator<Item = Event>) {
        self.events.extend(events);
        // The sort is stable, so simultaneous events of one process keep their order.
        self.events.sort_by_key(|event| event.at);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_step_is_parsed_as_it_was_written() {
        let (token, valid_until) = (7, Moment(9));
        for step in [
            Step::Called(Mode::Exclusive),
            Step::Called(Mode::Shared),
            Step::Called(Mode::Permits(3)),
            Step::Acquired {
                token,
                permit: None,
                valid_until,
            },
            Step::Acquired {
                token,
                permit: Some(2),
                valid_until,
            },
            Step::Refused,
            Step::ReleaseCalled { valid_until },
            Step::Released,
            Step::Lost,
            Step::Failed,
        ] {
            let event = Event {
                at: Moment(1),
                process: 2,
                attempt: 3,
                key: "k".to_owned(),
                step,
            };
            assert_eq!(event.to_string().parse(), Ok(event));
        }
        for line in [
            "",
            "1 2 3 k called -",
            "1 2 3 k acquired - 9",
            "1 2 3 k acquired 5# 9",
            "1 2 3 k called x -",
            "1 2 3 k held - -",
            "x 2 3 k lost - -",
        ] {
            assert_eq!(line.parse::<Event>(), Err(Malformed), "{line:?}");
        }
    }

    #[test]
    fn recorders_that_share_a_file_lose_no_event_and_the_follower_orders_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        std::thread::scope(|scope| {
            for process in 0..4 {
                let path = &path;
                scope.spawn(move || {
                    let recorder = Recorder::open(path, process).unwrap();
                    for attempt in 0..1000 {
                        recorder
                            .record(attempt, "k", Step::Called(Mode::Exclusive))
                            .unwrap();
                    }
                });
            }
        });
        let mut follower = Follower::open(&path).unwrap();
        let history = follower.history();
        assert_eq!(history.events().len(), 4000);
        assert!(history.events().is_sorted_by_key(|event| event.at));
    }

    #[test]
    fn a_follower_leaves_an_incomplete_line_for_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("history");
        let mut follower = Follower::open(&path).unwrap();
        assert!(follower.history().events().is_empty());
        let mut file = OpenOptions::new().append(true).open(&path).unwrap();
        for (text, events) in [
            ("5 0 0 k called - -\n2 0 0 k cal", 1),
            ("led - -", 1),
            ("\n", 2),
            ("", 2),
        ] {
            file.write_all(text.as_bytes()).unwrap();
            assert_eq!(follower.history().events().len(), events, "{text:?}");
        }
        assert_eq!(follower.history().events()[0].at, Moment(2));
    }
}
