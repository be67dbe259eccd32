//! The checks of a history of any length: each event is judged once, and forgotten soon after.
//!
//! Events arrive roughly in the order of time. If a process is stopped between reading the clock and writing the line, the
//! event arrives late. So events are collected, and judged up to a point in time by which all earlier events have been written
//! and all earlier faults have been reported.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Event, Moment, Step, Window};
use crate::locking::Mode;

mod key;
mod tally;

use self::key::Key;
pub use self::tally::Tally;

/// The requirements for the locks of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Requirements {
    /// The longest ttl with which it is locked.
    pub ttl: Duration,
    /// The longest time without a grant while an attempt waits for it and nothing is broken.
    pub service: Duration,
    /// Set if only one task locks the key, so that the death of another holder excuses no delay.
    pub is_private: bool,
}

/// An invariant of the project. A history can disprove those that say so; the soak checks the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// No two holders hold a lock at the same time, except in one shared phase or with different permits. A history shows this.
    Exclusion = 1,
    /// Fencing tokens grow, for each permit by itself; a shared phase has one token. A history shows this.
    GrowingTokens = 3,
    /// A store that compares tokens loses no write, and refuses no holder of a valid lease. A history shows the latter.
    FencedStore = 4,
    /// No lock is left when all holders have ended.
    NothingLeft = 5,
    /// A waiter gets the lock, or an error that says why not. A history shows this.
    Service = 6,
    /// No output contains a secret, and the use of resources does not grow.
    NoLeak = 7,
}

impl Invariant {
    /// Returns the number under which the documentation lists it.
    pub const fn number(self) -> u8 {
        self as u8
    }
}

/// The longest time that an attempt may take while nothing is broken: the longest wait, and the steps after it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the requirements for a key.
type RequirementsOf = dyn Fn(&str) -> Option<Requirements> + Send;

/// Judges events as they arrive.
pub struct Checker {
    requirements: Box<RequirementsOf>,
    // The events that are not judged yet, ordered by time and then by arrival.
    pending: BTreeMap<(Moment, u64), Item>,
    arrived: u64,
    judged: Moment,
    windows: Windows,
    keys: BTreeMap<String, Key>,
    attempts: BTreeMap<(u32, u64), Attempt>,
    stuck: BTreeSet<(u32, u64)>,
    tally: Tally,
}

#[derive(Debug)]
enum Item {
    Event(Event),
    // The process was killed.
    End(u32),
}

/// An attempt that has not ended at the time up to which the history was judged.
#[derive(Debug)]
struct Attempt {
    key: String,
    mode: Mode,
    called: Moment,
    // The largest tokens that had been returned before the call.
    floors: key::Floors,
    is_held: bool,
}

/// A span of time in which locks were deleted from the servers.
#[derive(Debug, Clone)]
struct Wiped {
    window: Window,
    // `None`: all keys.
    key: Option<String>,
}

/// The windows that are known when an event is judged.
#[derive(Debug, Default)]
struct Windows {
    faults: Vec<Window>,
    excuses: Vec<Window>,
    other_clocks: Vec<Window>,
    wiped: Vec<Wiped>,
}

/// The context in which an event is judged, and the result.
struct Case<'a> {
    key: &'a str,
    requirements: Requirements,
    windows: &'a Windows,
    tally: &'a mut Tally,
}

impl Checker {
    /// Makes a checker with the requirements for each key. A key without requirements is a mistake of the test.
    pub fn new(requirements: impl Fn(&str) -> Option<Requirements> + Send + 'static) -> Self {
        Self {
            requirements: Box::new(requirements),
            pending: BTreeMap::new(),
            arrived: 0,
            judged: Moment::from_nanos(0),
            windows: Windows::default(),
            keys: BTreeMap::new(),
            attempts: BTreeMap::new(),
            stuck: BTreeSet::new(),
            tally: Tally::default(),
        }
    }

    /// Adds events, to be judged later.
    pub fn take(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.add(event.at, Item::Event(event));
        }
    }

    /// Adds that a process was killed, so that no more events of it are expected.
    pub fn ended(&mut self, process: u32, at: Moment) {
        self.add(at, Item::End(process));
    }

    /// Adds a window in which something was broken. Service is required only outside of such windows.
    pub fn broken(&mut self, window: Window) {
        self.windows.faults.push(window);
    }

    /// Adds a window in which exclusion is not promised. Neither is it for a ttl after the window, since leases that the servers
    /// have lost may last until then.
    pub fn excused(&mut self, window: Window) {
        self.windows.excuses.push(window);
    }

    /// Adds a window in which a key may have had two fencing clocks: those of two primaries, or one that replaced a deleted one.
    /// Two processes may then get the same token.
    pub fn had_other_clocks(&mut self, window: Window) {
        self.windows.other_clocks.push(window);
    }

    /// Adds a window in which the lock of a key, or all locks, were deleted from all servers. An earlier holder may rely on its
    /// lock for at most a ttl, since a renewal never recreates a missing lock.
    pub fn wiped(&mut self, window: Window, key: Option<String>) {
        self.windows.wiped.push(Wiped { window, key });
    }

    /// Adds a violation that the history does not show.
    pub fn report(&mut self, invariant: Invariant, text: String) {
        self.tally.report(invariant, text);
    }

    /// Judges everything up to a point in time before which everything is known.
    pub fn judge(&mut self, until: Moment) {
        let later = self.pending.split_off(&(until, u64::MAX));
        let items = std::mem::replace(&mut self.pending, later);
        for ((at, _), item) in items {
            // A late event is judged as if it were in time.
            self.judged = self.judged.max(at);
            match item {
                Item::Event(event) => self.apply(&event),
                Item::End(process) => self.end(process, at),
            }
        }
        self.judged = self.judged.max(until);
        self.look_for_stuck_attempts();
        for (key, state) in &mut self.keys {
            state.look_at_open_gaps(
                until,
                &mut Case {
                    key,
                    requirements: requirements_of(&*self.requirements, key),
                    windows: &self.windows,
                    tally: &mut self.tally,
                },
            );
        }
        self.forget();
    }

    /// Returns the result so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns the result.
    pub fn into_tally(self) -> Tally {
        self.tally
    }

    fn add(&mut self, at: Moment, item: Item) {
        self.arrived += 1;
        self.pending.insert((at, self.arrived), item);
    }

    fn apply(&mut self, event: &Event) {
        let id = (event.process, event.attempt);
        let case = &mut Case {
            key: &event.key,
            requirements: requirements_of(&*self.requirements, &event.key),
            windows: &self.windows,
            tally: &mut self.tally,
        };
        let key = self.keys.entry(event.key.clone()).or_default();
        if let Step::Called(mode) = event.step {
            key.wanted(mode, event.at);
            let attempt = Attempt {
                key: event.key.clone(),
                mode,
                called: event.at,
                floors: key.largest_returned(),
                is_held: false,
            };
            self.attempts.insert(id, attempt);
            return;
        }
        let Some(attempt) = self.attempts.get_mut(&id) else {
            // The attempt has released or lost the lock before.
            return;
        };
        if event.step == Step::Refused {
            key.refused(event, case);
            return;
        }
        if let Step::Acquired {
            token,
            permit,
            valid_until,
        } = event.step
        {
            attempt.is_held = true;
            case.tally.acquisitions += 1;
            let grant = key::Grant {
                from: event.at,
                valid_until,
                to: None,
                token,
                mode: attempt.mode,
                permit,
                process: event.process,
                attempt: event.attempt,
                called: attempt.called,
            };
            key.granted(grant, &attempt.floors, case);
            key.served(attempt.mode, event.at, case);
            return;
        }
        if attempt.is_held {
            key.ended(event, case);
        } else {
            case.tally.failures += 1;
            key.gave_up(attempt.mode, event.at, case);
        }
        self.attempts.remove(&id);
        self.stuck.remove(&id);
    }

    /// Ends all attempts of a process that was killed.
    fn end(&mut self, process: u32, at: Moment) {
        let all = self.attempts.range((process, 0)..=(process, u64::MAX));
        let ids: Vec<(u32, u64)> = all.map(|(&id, _)| id).collect();
        for (process, attempt) in ids {
            let key = self.attempts[&(process, attempt)].key.clone();
            self.apply(&Event {
                at,
                process,
                attempt,
                key,
                step: Step::Failed,
            });
        }
    }

    fn look_for_stuck_attempts(&mut self) {
        for (&id, attempt) in &self.attempts {
            let calm = calm_in_all(attempt.called, self.judged, &self.windows.faults);
            if attempt.is_held || calm < PATIENCE || !self.stuck.insert(id) {
                continue;
            }
            let (process, number) = id;
            let Attempt { key, called, .. } = attempt;
            let text = format!(
                "attempt {number} of process {process} to lock {key}, called at {called}, has not ended after {calm:.1?} in which \
                 nothing was broken"
            );
            self.tally.report(Invariant::Service, text);
        }
    }

    /// Forgets windows that can no longer excuse an event, and grants with which no later event can conflict.
    fn forget(&mut self) {
        const KEPT: Duration = Duration::from_secs(120);
        let judged = self.judged;
        let is_recent = |window: &Window| judged.since(window.to) < KEPT;
        self.windows.faults.retain(is_recent);
        self.windows.excuses.retain(is_recent);
        self.windows.other_clocks.retain(is_recent);
        self.windows.wiped.retain(|wiped| is_recent(&wiped.window));
        for key in self.keys.values_mut() {
            key.forget(judged);
        }
        self.keys.retain(|name, key| {
            let is_private =
                (self.requirements)(name).is_some_and(|requirements| requirements.is_private);
            !(is_private && key.is_silent_for(KEPT, judged))
        });
    }
}

impl std::fmt::Debug for Checker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Checker")
            .field("judged", &self.judged)
            .field("tally", &self.tally)
            .finish_non_exhaustive()
    }
}

fn requirements_of(requirements: &RequirementsOf, key: &str) -> Requirements {
    requirements(key).unwrap_or_else(|| panic!("no requirements for {key}"))
}

/// Returns the longest part of a span of time in which nothing was broken.
fn longest_calm(from: Moment, to: Moment, faults: &[Window]) -> Duration {
    let parts = calm_parts(from, to, faults).into_iter();
    parts.max().unwrap_or_default()
}

/// Returns for how long in all nothing was broken in a span of time.
fn calm_in_all(from: Moment, to: Moment, faults: &[Window]) -> Duration {
    calm_parts(from, to, faults).into_iter().sum()
}

/// Returns the lengths of the parts of a span of time in which nothing was broken.
fn calm_parts(from: Moment, to: Moment, faults: &[Window]) -> Vec<Duration> {
    let mut touching: Vec<&Window> = faults
        .iter()
        .filter(|window| window.touches(from, to))
        .collect();
    touching.sort_by_key(|window| window.from);
    let (mut since, mut parts) = (from, Vec::new());
    for window in touching {
        parts.push(window.from.since(since));
        since = since.max(window.to);
    }
    parts.push(to.since(since));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn requirements(key: &str) -> Option<Requirements> {
        ["k", "own"].contains(&key).then_some(Requirements {
            ttl: Duration::from_millis(100),
            service: Duration::from_millis(300),
            is_private: key == "own",
        })
    }

    /// Points in time are in milliseconds.
    fn window(from: u64, to: u64) -> Window {
        Window {
            from: Moment::from_nanos(from * MS),
            to: Moment::from_nanos(to * MS),
        }
    }

    /// Judges lines with points in time in milliseconds, both all at once and one by one, which must give the same result.
    fn judge(lines: &[&str], prepare: impl Fn(&mut Checker)) -> BTreeMap<Invariant, u64> {
        let mut events: Vec<Event> = lines.iter().map(|line| in_nanos(line)).collect();
        events.sort_by_key(|event| event.at);
        let mut whole = Checker::new(requirements);
        prepare(&mut whole);
        whole.take(events.iter().cloned());
        let mut pieces = Checker::new(requirements);
        prepare(&mut pieces);
        for event in events {
            let at = event.at;
            pieces.take([event]);
            pieces.judge(at);
        }
        let end = Moment::from_nanos(100_000 * MS);
        for checker in [&mut whole, &mut pieces] {
            checker.judge(end);
        }
        assert_eq!(whole.tally().violations(), pieces.tally().violations());
        whole.tally().violations().clone()
    }

    fn in_nanos(line: &str) -> Event {
        let words: Vec<&str> = line.split(' ').collect();
        let scaled = |word: &str| {
            word.parse::<u64>()
                .map_or_else(|_| word.to_owned(), |number| (number * MS).to_string())
        };
        let line = [
            &scaled(words[0]),
            words[1],
            words[2],
            words[3],
            words[4],
            words[5],
            &scaled(words[6]),
        ]
        .map(str::to_owned)
        .join(" ");
        line.parse().expect("an event")
    }

    fn none() -> BTreeMap<Invariant, u64> {
        BTreeMap::new()
    }

    fn one(invariant: Invariant) -> BTreeMap<Invariant, u64> {
        BTreeMap::from([(invariant, 1)])
    }

    const GOOD: [&str; 8] = [
        "10 1 1 k called - -",
        "11 2 1 k called - -",
        "20 1 1 k acquired 5 90",
        "30 1 1 k release-called - 95",
        "31 2 1 k acquired 6 99",
        "32 1 1 k released - -",
        "45 2 1 k release-called - 99",
        "46 2 1 k released - -",
    ];

    #[test]
    fn a_correct_history_has_no_violation() {
        assert_eq!(judge(&GOOD, |_| {}), none());
    }

    #[test]
    fn overlapping_holders_are_found_unless_the_overlap_is_excused() {
        let bad = GOOD.map(|line| line.replace("31 2 1 k acquired", "29 2 1 k acquired"));
        let bad = bad.each_ref().map(String::as_str);
        assert_eq!(judge(&bad, |_| {}), one(Invariant::Exclusion));
        assert_eq!(
            judge(&bad, |checker| checker.excused(window(0, 15))),
            none()
        );
        let over = |checker: &mut Checker| checker.excused(window(31, 40));
        assert_eq!(judge(&bad, over), one(Invariant::Exclusion));
        // A later window excuses no grant.
        let late = |checker: &mut Checker| checker.excused(window(300, 400));
        assert_eq!(judge(&bad, late), one(Invariant::Exclusion));
    }

    #[test]
    fn a_refusal_by_the_store_is_found_unless_the_hold_began_within_a_ttl_after_a_window() {
        let lines = [
            "250 1 1 k called - -",
            "290 1 1 k acquired 5 390",
            "295 1 1 k refused - -",
            "300 1 1 k release-called - 390",
        ];
        let within = |to: u64| judge(&lines, |checker| checker.excused(window(100, to)));
        assert_eq!(within(200), none());
        assert_eq!(within(180), one(Invariant::FencedStore));
    }

    #[test]
    fn a_killed_holder_holds_until_the_end_of_its_lease() {
        for (next, expected) in [(89, one(Invariant::Exclusion)), (90, none())] {
            let next = format!("{next} 2 1 k acquired 6 199");
            let lines = [
                "10 1 1 k called - -",
                "20 1 1 k acquired 5 90",
                "30 2 1 k called - -",
                &next,
                "120 2 1 k release-called - 199",
            ];
            let killed = |checker: &mut Checker| checker.ended(1, Moment::from_nanos(50 * MS));
            assert_eq!(judge(&lines, killed), expected);
        }
    }

    #[test]
    fn a_holder_of_a_wiped_lock_is_found_after_a_ttl() {
        for (release, expected) in [(205, none()), (245, one(Invariant::Exclusion))] {
            let release = format!("{release} 1 1 k release-called - 300");
            let lines = ["10 1 1 k called - -", "20 1 1 k acquired 5 115", &release];
            let wiped = |key: Option<&str>| {
                let key = key.map(str::to_owned);
                move |checker: &mut Checker| checker.wiped(window(100, 110), key.clone())
            };
            assert_eq!(judge(&lines, wiped(None)), expected);
            assert_eq!(judge(&lines, wiped(Some("k"))), expected);
            assert_eq!(judge(&lines, wiped(Some("own"))), none());
        }
    }

    #[test]
    fn a_smaller_token_is_found_unless_a_process_hands_over_a_lost_lease() {
        let fallen = |first: u32| {
            let first = first.to_string();
            [
                format!("1 {first} 1 k called - -"),
                format!("2 {first} 1 k acquired 5 90"),
                format!("3 {first} 1 k release-called - 90"),
                "4 2 1 k called - -".to_owned(),
                "5 2 1 k acquired 9 90".to_owned(),
                "6 2 1 k release-called - 90".to_owned(),
                "7 1 9 k called - -".to_owned(),
                "8 1 9 k acquired 6 90".to_owned(),
                "9 1 9 k release-called - 90".to_owned(),
            ]
        };
        let excused = |checker: &mut Checker| checker.excused(window(0, 3));
        let handed_over = fallen(1);
        let lines = handed_over.each_ref().map(String::as_str);
        assert_eq!(judge(&lines, |_| {}), one(Invariant::GrowingTokens));
        assert_eq!(judge(&lines, excused), none());
        let acquired_again = fallen(3);
        let lines = acquired_again.each_ref().map(String::as_str);
        assert_eq!(judge(&lines, excused), one(Invariant::GrowingTokens));
    }

    /// Both attempts were called before either got its token.
    #[test]
    fn a_token_that_goes_back_is_found_even_if_the_attempts_were_called_together() {
        for (valid_until, expected) in [(90, one(Invariant::GrowingTokens)), (4, none())] {
            let later = format!("5 2 1 k acquired 7 {valid_until}");
            let lines = [
                "1 1 1 k called - -",
                "1 2 1 k called - -",
                "2 1 1 k acquired 10 90",
                "3 1 1 k release-called - 90",
                &later,
                "6 2 1 k release-called - 90",
            ];
            assert_eq!(judge(&lines, |_| {}), expected);
        }
    }

    /// Each fault begins before an attempt could have waited for long enough without one.
    #[test]
    fn a_stuck_attempt_is_found_although_faults_are_frequent() {
        let lines = ["1 1 1 own called - -"];
        let faults = |checker: &mut Checker| {
            for begin in (5_000..95_000).step_by(5_000) {
                checker.broken(window(begin, begin + 1_000));
            }
        };
        assert_eq!(judge(&lines, faults), one(Invariant::Service));
    }

    #[test]
    fn tokens_of_permits_grow_for_each_permit_by_itself() {
        for (last, expected) in [(0, none()), (1, one(Invariant::GrowingTokens))] {
            let last = format!("5 3 1 k acquired 6#{last} 90");
            let lines = [
                "1 1 1 k called 2 -",
                "2 1 1 k acquired 5#0 90",
                "2 2 1 k called 2 -",
                "3 2 1 k acquired 7#1 90",
                "3 1 1 k release-called - 90",
                "3 2 1 k release-called - 90",
                "4 3 1 k called 2 -",
                &last,
                "6 3 1 k release-called - 90",
            ];
            assert_eq!(judge(&lines, |_| {}), expected);
        }
    }

    #[test]
    fn a_repeated_token_is_found_even_among_concurrent_attempts() {
        let lines = [
            "1 1 1 k called - -",
            "1 2 1 k called - -",
            "2 1 1 k acquired 5 90",
            "3 1 1 k release-called - 90",
            "4 2 1 k acquired 5 90",
            "5 2 1 k release-called - 90",
        ];
        assert_eq!(judge(&lines, |_| {}), one(Invariant::GrowingTokens));
    }

    #[test]
    fn another_process_may_repeat_a_token_while_there_are_two_clocks() {
        let twice = |second: &str, by: Vec<Window>| {
            let lines = [
                "1 1 1 k called - -",
                "2 1 1 k acquired 5 90",
                "3 1 1 k release-called - 90",
                &format!("4 {second} 2 k called - -"),
                &format!("5 {second} 2 k acquired 5 90"),
                &format!("6 {second} 2 k release-called - 90"),
            ];
            let two_clocks = |checker: &mut Checker| {
                for window in &by {
                    checker.had_other_clocks(*window);
                }
            };
            judge(&lines, two_clocks)
        };
        assert_eq!(twice("2", vec![window(2, 5)]), none());
        let apart = vec![window(0, 4), window(3, 9)];
        assert_eq!(twice("2", apart), one(Invariant::GrowingTokens));
        assert_eq!(
            twice("1", vec![window(2, 5)]),
            one(Invariant::GrowingTokens)
        );
    }

    #[test]
    fn a_key_without_a_grant_is_found_once_even_if_the_gap_never_ends() {
        let wait = [
            "1 1 1 k called - -",
            "350 1 1 k acquired 5 900",
            "360 1 1 k release-called - 900",
        ];
        assert_eq!(judge(&wait, |_| {}), one(Invariant::Service));
        // Neither part of the gap is too long by itself.
        assert_eq!(
            judge(&wait, |checker| checker.broken(window(200, 210))),
            none()
        );
        let early = |checker: &mut Checker| checker.broken(window(0, 20));
        assert_eq!(judge(&wait, early), one(Invariant::Service));
        let for_ever = [
            "1 1 1 k called - -",
            "2 1 1 k acquired 5 90",
            "3 1 1 k release-called - 90",
            "4 2 1 k called - -",
            "500 2 2 k called - -",
            "40000 2 2 k failed - -",
        ];
        // One key and one attempt.
        assert_eq!(
            judge(&for_ever, |_| {}),
            BTreeMap::from([(Invariant::Service, 2)])
        );
    }

    #[test]
    fn a_fault_excuses_a_private_key_for_a_ttl_after_the_attempt_that_it_hit() {
        let wait = [
            "3410 1 0 own called - -",
            "3420 1 0 own failed - -",
            "3500 1 1 own called - -",
            "3850 1 1 own acquired 5 3900",
            "3860 1 1 own release-called - 3900",
        ];
        assert_eq!(judge(&wait, |_| {}), one(Invariant::Service));
        let just_before = |checker: &mut Checker| checker.broken(window(1300, 1450));
        assert_eq!(judge(&wait, just_before), none());
        let long_before = |checker: &mut Checker| checker.broken(window(1300, 1400));
        assert_eq!(judge(&wait, long_before), one(Invariant::Service));
    }

    #[test]
    fn the_state_does_not_grow_with_the_history() {
        let mut checker = Checker::new(requirements);
        let mut most = 0;
        for round in 0..20_000_u64 {
            let at = round * 20 * MS;
            let event = |offset: u64, step: Step| Event {
                at: Moment::from_nanos(at + offset),
                process: 1,
                attempt: round,
                key: "k".to_owned(),
                step,
            };
            let valid_until = Moment::from_nanos(at + 100 * MS);
            let token = round + 1;
            checker.take([
                event(1, Step::Called(Mode::Exclusive)),
                event(
                    2,
                    Step::Acquired {
                        token,
                        permit: None,
                        valid_until,
                    },
                ),
                event(3, Step::ReleaseCalled { valid_until }),
                event(4, Step::Released),
            ]);
            checker.judge(Moment::from_nanos(at + 5));
            let grants: usize = checker.keys.values().map(Key::kept).sum();
            most = most.max(checker.pending.len() + checker.attempts.len() + grants);
        }
        assert_eq!(checker.tally().acquisitions, 20_000);
        assert_eq!(checker.tally().violations(), &none());
        assert!(most < 4_000, "{most}");
    }
}
