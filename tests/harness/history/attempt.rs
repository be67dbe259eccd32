//! Groups the events of a history by attempt, and finds the outcome of each.

use std::collections::BTreeMap;

use super::{Event, History, Moment, Step, Window};

/// An attempt that was granted.
#[derive(Debug, Clone)]
pub(super) struct Grant<'a> {
    pub(super) called: Moment,
    pub(super) token: u64,
    /// When the acquire returned, and the latest time at which the holder is known to have believed in the lock.
    pub(super) from: Moment,
    pub(super) to: Moment,
    pub(super) process: u32,
    pub(super) key: &'a str,
    pub(super) events: Vec<&'a Event>,
}

/// The time for which a process is known to have relied on a lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hold {
    /// The process.
    pub process: u32,
    /// The key that was locked.
    pub key: String,
    /// From when its acquire returned until it released the lock, lost the lease, or the lease ran out.
    pub held: Window,
}

impl History {
    /// Returns all holds, in the order in which they began.
    pub fn holds(&self) -> Vec<Hold> {
        let grants = self.all_grants().into_iter();
        grants
            .map(|grant| Hold {
                process: grant.process,
                key: grant.key.to_owned(),
                held: Window {
                    from: grant.from,
                    to: grant.to,
                },
            })
            .collect()
    }

    /// All grants, in the order in which the acquires returned.
    pub(super) fn all_grants(&self) -> Vec<Grant<'_>> {
        let mut attempts: BTreeMap<(u32, u64), Vec<&Event>> = BTreeMap::new();
        for event in &self.events {
            let attempt = (event.process, event.attempt);
            attempts.entry(attempt).or_default().push(event);
        }
        let mut grants: Vec<Grant> = attempts.into_values().filter_map(Grant::of).collect();
        grants.sort_by_key(|grant| grant.from);
        grants
    }
}

impl<'a> Grant<'a> {
    fn of(events: Vec<&'a Event>) -> Option<Self> {
        let called = events
            .first()
            .filter(|event| matches!(event.step, Step::Called(_)));
        let called = called.unwrap_or_else(|| panic!("it does not begin with a call: {events:?}"));
        let (from, token, valid_until) = events.iter().find_map(|event| match event.step {
            Step::Acquired {
                token, valid_until, ..
            } => Some((event.at, token, valid_until)),
            _ => None,
        })?;
        Some(Self {
            called: called.at,
            token,
            from,
            to: end(&events, valid_until),
            process: called.process,
            key: &called.key,
            events,
        })
    }
}

/// The end of a hold, never later than the truth. A lease that was still valid at its release was valid all the time. Of any
/// other lease only its first validity is known: a process that was killed or stopped recorded no end.
fn end(events: &[&Event], valid_until: Moment) -> Moment {
    let end = events.iter().find_map(|event| match event.step {
        Step::ReleaseCalled { valid_until } if valid_until > event.at => Some(event.at),
        Step::ReleaseCalled { .. } | Step::Lost => Some(event.at.min(valid_until)),
        _ => None,
    });
    end.unwrap_or(valid_until)
}
