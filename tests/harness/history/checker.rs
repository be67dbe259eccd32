//! Checks a history for two holders at a time, and for fencing tokens that do not grow.

use std::{collections::BTreeMap, fmt};

use super::{Event, History, Window, attempt::Grant};

/// Two grants of a key that contradict each other.
#[derive(Clone, PartialEq, Eq)]
pub struct Offence {
    // All events of both grants.
    events: Vec<Event>,
}

/// Shows the lines of both grants, in the order of time.
impl fmt::Debug for Offence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("offence:")?;
        for event in &self.events {
            write!(f, "\n  {event}")?;
        }
        Ok(())
    }
}

impl History {
    /// Finds the holders of a key that held it while another holder did.
    ///
    /// Exclusion is not promised in these windows: a holder that held the key at any time of one of them is left out.
    ///
    /// A holder counts from when its acquire returned until it called release, lost the lease, or the lease ran out.
    pub fn overlaps(&self, outside: &[Window]) -> Vec<Offence> {
        let mut offences = Vec::new();
        for grants in by_key(self.all_grants()).values() {
            let mut longest: Option<&Grant> = None;
            let held = grants.iter().filter(|grant| !grant.is_in(outside));
            for grant in held {
                if let Some(other) = longest.filter(|other| other.to > grant.from) {
                    offences.push(Offence::of(other, grant));
                }
                if longest.is_none_or(|other| other.to < grant.to) {
                    longest = Some(grant);
                }
            }
        }
        offences
    }

    /// Finds the grants of a key with a fencing token that does not grow.
    ///
    /// Such a token is equal to another grant's, or smaller than that of a grant that had returned before the call.
    ///
    /// One case is left out, since nothing can prevent it. In one of these windows, a process may pass a lease that the server no
    /// longer knows among its own tasks, with prefetched tokens.
    pub fn regressions(&self, outside: &[Window]) -> Vec<Offence> {
        let mut offences = Vec::new();
        for grants in by_key(self.all_grants()).values() {
            let mut by_token: Vec<&Grant> = grants.iter().collect();
            by_token.sort_by_key(|grant| grant.token);
            for pair in by_token.windows(2) {
                if pair[0].token == pair[1].token {
                    offences.push(Offence::of(pair[0], pair[1]));
                }
            }
            let is_handed_on = |grant: &Grant| {
                let place = by_token.partition_point(|other| other.token < grant.token);
                let before = place.checked_sub(1).map(|place| by_token[place]);
                before.is_some_and(|before| before.process == grant.process)
            };
            offences.extend(
                fallen_back(grants)
                    .into_iter()
                    .filter(|(_, grant)| !(grant.is_in(outside) && is_handed_on(grant)))
                    .map(|(other, grant)| Offence::of(other, grant)),
            );
        }
        offences
    }
}

impl Grant<'_> {
    fn is_in(&self, windows: &[Window]) -> bool {
        let mut windows = windows.iter();
        windows.any(|window| window.touches(self.from, self.to))
    }
}

impl Offence {
    fn of(one: &Grant<'_>, other: &Grant<'_>) -> Self {
        let events = one.events.iter().chain(&other.events);
        let mut events: Vec<Event> = events.map(|&event| event.clone()).collect();
        events.sort_by_key(|event| event.at);
        Self { events }
    }
}

fn by_key(grants: Vec<Grant<'_>>) -> BTreeMap<&str, Vec<Grant<'_>>> {
    let mut keys: BTreeMap<&str, Vec<Grant>> = BTreeMap::new();
    for grant in grants {
        keys.entry(grant.key).or_default().push(grant);
    }
    keys
}

/// The grants with a smaller token than a grant that had returned before their call. Each is paired with the grant that had
/// the largest of those tokens.
fn fallen_back<'a>(returned: &'a [Grant<'a>]) -> Vec<(&'a Grant<'a>, &'a Grant<'a>)> {
    let mut called: Vec<&Grant> = returned.iter().collect();
    called.sort_by_key(|grant| grant.called);
    let mut returned = returned.iter().peekable();
    let mut largest: Option<&Grant> = None;
    let mut found = Vec::new();
    for grant in called {
        while let Some(earlier) = returned.next_if(|earlier| earlier.from < grant.called) {
            if largest.is_none_or(|largest| largest.token < earlier.token) {
                largest = Some(earlier);
            }
        }
        if let Some(largest) = largest.filter(|largest| largest.token > grant.token) {
            found.push((largest, grant));
        }
    }
    found
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

    const NOTHING: [Offence; 0] = [];

    fn window(from: u64, to: u64) -> Window {
        Window {
            from: Moment::from_nanos(from),
            to: Moment::from_nanos(to),
        }
    }

    const GOOD: [&str; 10] = [
        "10 1 1 k called - -",
        "11 2 1 k called - -",
        "20 1 1 k acquired 5 90",
        "30 1 1 k release-called - 95",
        "31 2 1 k acquired 6 99",
        "32 1 1 k released - -",
        "40 1 2 k called - -",
        "45 2 1 k release-called - 99",
        "46 2 1 k released - -",
        "50 1 2 k failed - -",
    ];

    #[test]
    fn a_good_history_has_no_offence() {
        assert_eq!(history(&GOOD).overlaps(&[]), NOTHING);
        assert_eq!(history(&GOOD).regressions(&[]), NOTHING);
    }

    #[test]
    fn two_holders_at_a_time_are_found_with_all_their_lines() {
        let bad = GOOD.map(|line| line.replace("31 2 1 k acquired", "29 2 1 k acquired"));
        let offences = history(&bad.each_ref().map(String::as_str)).overlaps(&[]);
        assert_eq!(offences.len(), 1);
        let shown = format!("{offences:?}");
        for line in &bad[..6] {
            assert!(shown.contains(line.as_str()), "{line} in {shown}");
        }
        assert!(!shown.contains("failed"), "{shown}");
    }

    #[test]
    fn a_long_hold_overlaps_with_all_that_begin_meanwhile() {
        let bad = history(&[
            "1 1 1 k called - -",
            "2 1 1 k acquired 1 100",
            "3 2 1 k called - -",
            "4 2 1 k acquired 2 100",
            "5 2 1 k release-called - 100",
            "6 2 2 k called - -",
            "7 2 2 k acquired 3 100",
            "8 2 2 k release-called - 100",
            "9 1 1 k release-called - 100",
        ]);
        assert_eq!(bad.overlaps(&[]).len(), 2);
    }

    #[test]
    fn a_holder_ends_when_it_lets_go_loses_or_runs_out() {
        let with = |end: &[&str], next: u64| {
            let next = format!("{next} 2 1 k acquired 6 99");
            let mut lines = vec![
                "1 1 1 k called - -",
                "2 2 1 k called - -",
                "3 1 1 k acquired 5 50",
                &next,
            ];
            lines.extend(end);
            history(&lines).overlaps(&[]).len()
        };
        for (name, end, last) in [
            ("killed", &[][..], 50),
            ("renewed, and let go", &["70 1 1 k release-called - 80"], 70),
            ("let go early", &["20 1 1 k release-called - 80"], 20),
            ("lost early", &["20 1 1 k lost - -"], 20),
            (
                "found out late that it was lost",
                &["70 1 1 k lost - -"],
                50,
            ),
            ("let go late", &["70 1 1 k release-called - 70"], 50),
        ] {
            assert_eq!(with(end, last - 1), 1, "{name}");
            assert_eq!(with(end, last), 0, "{name}");
        }
    }

    #[test]
    fn holders_of_other_keys_and_failed_acquires_do_not_overlap() {
        let good = history(&[
            "1 1 1 k called - -",
            "2 1 1 k acquired 5 50",
            "3 2 1 other called - -",
            "4 2 1 other acquired 4 50",
            "5 2 2 k called - -",
            "6 2 2 k failed - -",
        ]);
        assert_eq!(good.overlaps(&[]), NOTHING);
        assert_eq!(good.regressions(&[]), NOTHING);
    }

    #[test]
    fn a_holder_in_a_window_is_left_out_and_hides_no_other() {
        let bad = history(&[
            "1 1 1 k called - -",
            "2 1 1 k acquired 1 100",
            "3 2 1 k called - -",
            "20 2 1 k acquired 2 30",
            "21 3 1 k called - -",
            "25 3 1 k acquired 3 30",
        ]);
        assert_eq!(bad.overlaps(&[]).len(), 2);
        // The first is left out, and the other two still overlap.
        assert_eq!(bad.overlaps(&[window(10, 11)]).len(), 1);
        assert_eq!(bad.overlaps(&[window(10, 20)]), NOTHING);
        assert_eq!(bad.overlaps(&[window(101, 102)]).len(), 2);
    }

    #[test]
    fn a_token_that_falls_back_is_found() {
        let bad = GOOD.map(|line| line.replace("acquired 6", "acquired 4"));
        let bad = bad.each_ref().map(String::as_str);
        // The second was called before the first returned: no order is promised.
        assert_eq!(history(&bad).regressions(&[]), NOTHING);
        let bad = bad.map(|line| line.replace("11 2 1 k called", "21 2 1 k called"));
        let offences = history(&bad.each_ref().map(String::as_str)).regressions(&[]);
        assert_eq!(offences.len(), 1, "{offences:?}");
        assert!(format!("{offences:?}").contains("31 2 1 k acquired 4 99"));
    }

    #[test]
    fn a_token_that_comes_twice_is_found() {
        let bad = GOOD.map(|line| line.replace("acquired 6", "acquired 5"));
        let offences = history(&bad.each_ref().map(String::as_str)).regressions(&[]);
        assert_eq!(offences.len(), 1, "{offences:?}");
    }

    #[test]
    fn only_a_hand_off_inside_a_process_in_a_window_may_have_an_older_token() {
        let lines = [
            "1 1 1 k called - -",
            "2 1 1 k acquired 5 50",
            "3 1 1 k release-called - 50",
            "4 2 1 k called - -",
            "5 2 1 k acquired 9 50",
            "6 1 2 k called - -",
            "7 1 2 k acquired 6 50",
            "8 1 2 k release-called - 50",
        ];
        let handed_on = history(&lines);
        assert_eq!(handed_on.regressions(&[]).len(), 1);
        assert_eq!(handed_on.regressions(&[window(4, 8)]), NOTHING);
        assert_eq!(handed_on.regressions(&[window(9, 10)]).len(), 1);
        let by_another = lines.map(|line| line.replace(" 1 2 k", " 3 1 k"));
        let by_another = history(&by_another.each_ref().map(String::as_str));
        assert_eq!(by_another.regressions(&[window(4, 8)]).len(), 1);
    }
}
