//! The checks of a history as far as it was read, all at once, and the holds in it.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Checker, Event, History, Invariant, Requirements, Step, Tally, Window};

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
    /// Asserts that no two holders overlap, and that fencing tokens grow.
    #[track_caller]
    pub fn assert_in_order(&self) {
        let (overlaps, regressions) = (self.overlaps(&[]), self.regressions(&[]));
        assert!(overlaps.is_empty(), "{overlaps:#?}");
        assert!(regressions.is_empty(), "{regressions:#?}");
    }

    /// Finds holders that held a key at the same time, outside of these windows, in which exclusion is not promised. Returns
    /// the first five.
    ///
    /// A holder counts from when its acquire returned until it called release, lost the lease, or the lease ran out.
    pub fn overlaps(&self, outside: &[Window]) -> Vec<String> {
        self.violations(Invariant::Exclusion, outside)
    }

    /// Finds fencing tokens that do not grow: one that equals an earlier token, or is smaller than a token that was returned
    /// before the call. Returns the first five.
    ///
    /// Nothing can prevent one case, which is left out: in one of these windows, a process may pass a lease that the server has
    /// lost among its own tasks, with prefetched tokens.
    pub fn regressions(&self, outside: &[Window]) -> Vec<String> {
        self.violations(Invariant::GrowingTokens, outside)
    }

    /// Returns the longest time that overlaps with a window and in which a requested key was not granted; zero if no key was
    /// requested. It includes the preceding hold.
    pub fn without_service(&self, window: Window) -> Duration {
        self.judged(|checker| checker.broken(window))
            .longest_gap_in_faults()
    }

    /// Returns all holds, in the order in which the acquires returned.
    pub fn holds(&self) -> Vec<Hold> {
        let mut attempts: BTreeMap<(u32, u64), Vec<&Event>> = BTreeMap::new();
        for event in &self.events {
            let attempt = (event.process, event.attempt);
            attempts.entry(attempt).or_default().push(event);
        }
        let mut holds: Vec<Hold> = attempts.values().filter_map(|it| hold(it)).collect();
        holds.sort_by_key(|hold| hold.held.from);
        holds
    }

    fn violations(&self, invariant: Invariant, outside: &[Window]) -> Vec<String> {
        let tally = self.judged(|checker| {
            for window in outside {
                checker.excused(*window);
            }
        });
        tally.shown(invariant).to_vec()
    }

    fn judged(&self, prepare: impl FnOnce(&mut Checker)) -> Tally {
        // The windows already include the time for which a lost lease may last.
        let mut checker = Checker::new(|_| {
            Some(Requirements {
                ttl: Duration::ZERO,
                service: Duration::MAX,
                is_private: false,
            })
        });
        prepare(&mut checker);
        checker.take(self.events.iter().cloned());
        let processes: BTreeSet<u32> = self.events.iter().map(|event| event.process).collect();
        if let Some(last) = self.events.last() {
            for process in processes {
                checker.ended(process, last.at);
            }
            checker.judge(last.at);
        }
        checker.into_tally()
    }
}

/// Returns the hold of an attempt that was granted. The hold never ends later than it really did. A lease that was
/// valid at its release was valid all the time. Of any other lease only the first validity is known: a killed or
/// stopped process records no end.
fn hold(events: &[&Event]) -> Option<Hold> {
    let (grant, valid_until) = events.iter().find_map(|event| match event.step {
        Step::Acquired { valid_until, .. } => Some((event, valid_until)),
        _ => None,
    })?;
    let end = events.iter().find_map(|event| match event.step {
        Step::ReleaseCalled { valid_until } if valid_until > event.at => Some(event.at),
        Step::ReleaseCalled { .. } | Step::Lost => Some(event.at.min(valid_until)),
        _ => None,
    });
    Some(Hold {
        process: grant.process,
        key: grant.key.clone(),
        held: Window {
            from: grant.at,
            to: end.unwrap_or(valid_until),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Moment;

    /// Makes a history of these lines, with small numbers as points in time.
    fn history(lines: &[&str]) -> History {
        let events = lines.iter().map(|line| line.parse().expect(line));
        History::of(events.collect())
    }

    fn window(from: u64, to: u64) -> Window {
        Window {
            from: Moment::from_nanos(from),
            to: Moment::from_nanos(to),
        }
    }

    #[test]
    fn a_hold_lasts_until_its_release_its_loss_or_the_end_of_its_lease() {
        let overlaps_from = |end: &[&str], next: u64| {
            let next = format!("{next} 2 1 k acquired 6 99");
            let mut lines = vec![
                "1 1 1 k called - -",
                "2 2 1 k called - -",
                "3 1 1 k acquired 5 50",
                &next,
            ];
            lines.extend(end);
            let history = history(&lines);
            assert_eq!(history.holds()[0].held.from, Moment::from_nanos(3));
            (history.holds()[0].held.to, history.overlaps(&[]).len())
        };
        for (name, end, last) in [
            ("killed", &[][..], 50),
            (
                "renewed, and released",
                &["70 1 1 k release-called - 80"],
                70,
            ),
            ("released early", &["20 1 1 k release-called - 80"], 20),
            ("lost early", &["20 1 1 k lost - -"], 20),
            ("noticed the loss late", &["70 1 1 k lost - -"], 50),
            ("released late", &["70 1 1 k release-called - 70"], 50),
        ] {
            let to = Moment::from_nanos(last);
            assert_eq!(overlaps_from(end, last - 1), (to, 1), "{name}");
            assert_eq!(overlaps_from(end, last), (to, 0), "{name}");
        }
    }

    #[test]
    fn an_overlap_in_a_window_is_excused_and_hides_no_other() {
        let bad = history(&[
            "1 1 1 k called - -",
            "2 1 1 k acquired 1 100",
            "3 2 1 k called - -",
            "20 2 1 k acquired 2 30",
            "31 3 1 k called - -",
            "35 3 1 k acquired 3 40",
        ]);
        assert_eq!(bad.overlaps(&[]).len(), 2);
        assert_eq!(bad.overlaps(&[window(10, 20)]).len(), 1);
        assert_eq!(bad.overlaps(&[window(10, 35)]).len(), 0);
        assert_eq!(bad.overlaps(&[window(101, 102)]).len(), 2);
    }

    #[test]
    fn the_time_without_service_is_the_longest_gap_that_overlaps_with_the_window() {
        let history = history(&[
            "1 1 1 k called - -",
            "1 1 2 k called - -",
            "1 1 3 k called - -",
            "3 1 1 k acquired 1 99",
            "30 1 2 k acquired 2 99",
            "90 1 3 k acquired 3 99",
        ]);
        for (from, to, longest) in [(0, 2, 2), (0, 4, 27), (29, 30, 60), (95, 99, 0)] {
            let found = history.without_service(window(from, to));
            assert_eq!(found, Duration::from_nanos(longest), "{from} to {to}");
        }
    }
}
