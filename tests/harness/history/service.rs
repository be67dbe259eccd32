//! Measures for how long a wanted lock was not granted.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{History, Moment, Step, Window};

/// A span of time in which a key was wanted and not granted. It includes the time of the hold before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gap {
    /// The wanted key.
    pub key: String,
    /// Its beginning: the grant before, or the first later call if no attempt waited at that grant.
    pub from: Moment,
    /// Its end: the next grant, or when the last waiter gave up, or the end of the history.
    pub to: Moment,
}

/// The attempts that want a key.
#[derive(Debug, Default)]
struct Demand {
    wanting: usize,
    // `Some` while an attempt wants the key.
    unserved_since: Option<Moment>,
}

impl Gap {
    /// Returns how long it was.
    pub fn length(&self) -> Duration {
        self.to.since(self.from)
    }
}

impl History {
    /// Finds all gaps, in the order in which they ended. An attempt of a process that was killed in the wait never ends.
    pub fn gaps(&self) -> Vec<Gap> {
        let mut demands: BTreeMap<&str, Demand> = BTreeMap::new();
        let mut held = BTreeSet::new();
        let mut gaps = Vec::new();
        for event in &self.events {
            let demand = demands.entry(&event.key).or_default();
            let attempt = (event.process, event.attempt);
            match event.step {
                Step::Called(_) => {
                    demand.wanting += 1;
                    demand.unserved_since.get_or_insert(event.at);
                    continue;
                }
                Step::Acquired { .. } => {
                    held.insert(attempt);
                }
                // It failed while it held the lock: its wait had ended at the grant.
                Step::Failed if held.contains(&attempt) => continue,
                Step::Failed => {}
                Step::ReleaseCalled { .. } | Step::Released | Step::Lost => continue,
            }
            demand.wanting = demand.wanting.checked_sub(1).expect("a call before");
            let is_wanted = demand.wanting > 0;
            let got_it = event.step != Step::Failed;
            if got_it || !is_wanted {
                let from = demand.unserved_since.take().expect("a task wanted it");
                demand.unserved_since = is_wanted.then_some(event.at);
                gaps.push(Gap {
                    key: event.key.clone(),
                    from,
                    to: event.at,
                });
            }
        }
        gaps.extend(self.open_gaps(demands));
        gaps
    }

    /// Returns the longest time without service of any key that touches a window; zero if no key was wanted.
    pub fn without_service(&self, window: Window) -> Duration {
        let gaps = self.gaps();
        let touching = gaps.iter().filter(|gap| window.touches(gap.from, gap.to));
        touching.map(Gap::length).max().unwrap_or_default()
    }

    /// The gaps that are still open at the end of the history.
    fn open_gaps(&self, demands: BTreeMap<&str, Demand>) -> Vec<Gap> {
        let Some(last) = self.events.last() else {
            return Vec::new();
        };
        let demands = demands.into_iter();
        let open = demands.filter_map(|(key, demand)| {
            Some(Gap {
                key: key.to_owned(),
                from: demand.unserved_since?,
                to: last.at,
            })
        });
        open.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gaps(lines: &[&str]) -> Vec<(u64, u64)> {
        let events = lines.iter().map(|line| line.parse().expect(line));
        let gaps = History::of(events.collect()).gaps();
        let pairs = gaps.iter().map(|gap| (gap.from.0, gap.to.0));
        pairs.collect()
    }

    #[test]
    fn a_gap_lasts_from_grant_to_grant_while_a_task_waits() {
        let lines = [
            "1 1 1 k called - -",
            "2 1 1 k acquired 1 99",
            "5 2 1 k called - -",
            "6 2 2 k called - -",
            "10 1 1 k release-called - 99",
            "20 2 1 k acquired 2 99",
            "21 2 1 k release-called - 99",
            "50 2 2 k acquired 3 99",
            "60 2 2 k release-called - 99",
            "61 2 2 k lost - -",
        ];
        assert_eq!(gaps(&lines), [(1, 2), (5, 20), (20, 50)]);
    }

    #[test]
    fn a_task_that_gives_up_ends_a_gap_if_no_other_waits() {
        let lines = [
            "1 1 1 k called - -",
            "2 2 1 k called - -",
            "7 1 1 k failed - -",
            "9 2 1 k failed - -",
            "20 1 2 k called - -",
            "30 1 3 other called - -",
        ];
        assert_eq!(gaps(&lines), [(1, 9), (20, 30), (30, 30)]);
    }

    #[test]
    fn a_failure_of_a_holder_is_no_end_of_a_wait() {
        let lines = [
            "1 1 1 k called - -",
            "2 1 1 k acquired 1 99",
            "3 2 1 k called - -",
            "5 1 1 k failed - -",
            "9 2 1 k acquired 2 99",
        ];
        assert_eq!(gaps(&lines), [(1, 2), (3, 9)]);
    }

    #[test]
    fn the_time_without_service_is_the_longest_gap_that_touches_the_window() {
        let lines = [
            "1 1 1 k called - -",
            "1 1 2 k called - -",
            "1 1 3 k called - -",
            "3 1 1 k acquired 1 99",
            "30 1 2 k acquired 2 99",
            "90 1 3 k acquired 3 99",
        ];
        let events = lines.iter().map(|line| line.parse().unwrap());
        let history = History::of(events.collect());
        for (from, to, longest) in [(0, 2, 2), (0, 4, 27), (29, 30, 60), (95, 99, 0)] {
            let window = Window {
                from: Moment(from),
                to: Moment(to),
            };
            let found = history.without_service(window);
            assert_eq!(found, Duration::from_nanos(longest), "{window:?}");
        }
    }
}
