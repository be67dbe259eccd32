//! Makes the same checks on a history without an end: each event is judged once and forgotten soon after.
//!
//! Events come roughly in the order of time. If a process is stopped between the look at the clock and the write of the
//! line, the event is late by that time. So events are gathered, and judged up to a point in time before
//! which everything is known. By then all earlier events have been written, and all earlier faults have been reported.
//!
//! `checker` makes two of the checks on a whole history, for tests of minutes. It needs no ttl of each key, and shows all
//! events of both grants, which are forgotten here.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use super::{Event, Moment, Step, Window};
use crate::mode::Mode;

mod key;
mod tally;

use self::key::Key;
pub use self::tally::Tally;

/// The demands on the locks of one key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Demands {
    /// The longest ttl with which it is locked.
    pub ttl: Duration,
    /// The longest time that it may go without a grant while an attempt waits for it and nothing is broken.
    pub service: Duration,
    /// Whether only one task locks it, so that no other holder's death excuses a longer time.
    pub is_private: bool,
}

/// An invariant that a history can disprove; the numbers are those of the invariants of the project.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Invariant {
    /// I1: no two holders at a time, except those that share the lock in one phase, and those of different permits.
    Exclusion,
    /// I3: fencing tokens grow, those of permits for each permit; those that share a phase have one.
    GrowingTokens,
    /// I6: a waiter gets the lock, or an error that says why not.
    Service,
}

/// The longest time that an attempt may take while nothing is broken: the longest wait, and the steps that may follow it.
const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the demands on a key.
type Asked = dyn Fn(&str) -> Option<Demands> + Send;

/// Judges events as they come.
pub struct Running {
    demands: Box<Asked>,
    // The events that are not judged yet, in the order of time; equal times in the order of arrival.
    coming: BTreeMap<(Moment, u64), Item>,
    came: u64,
    judged: Moment,
    faults: Vec<Window>,
    excuses: Vec<Window>,
    other_clocks: Vec<Window>,
    wiped: Vec<Wiped>,
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

/// An attempt that was called and has not ended, as far as the history was judged.
#[derive(Debug)]
struct Attempt {
    key: String,
    mode: Mode,
    called: Moment,
    // The largest token that had been returned before.
    floors: key::Floors,
    is_held: bool,
}

/// A span of time in which locks were removed from the servers.
#[derive(Debug, Clone)]
struct Wiped {
    window: Window,
    // `None`: all keys.
    key: Option<String>,
}

/// The spans of time that are known when an event is judged.
#[derive(Debug, Clone, Copy)]
struct Known<'a> {
    faults: &'a [Window],
    excuses: &'a [Window],
    other_clocks: &'a [Window],
    wiped: &'a [Wiped],
}

impl Running {
    /// Begins, with the demands on each key. A key without demands cannot be judged, and is a mistake of the test.
    pub fn new(demands: impl Fn(&str) -> Option<Demands> + Send + 'static) -> Self {
        Self {
            demands: Box::new(demands),
            coming: BTreeMap::new(),
            came: 0,
            judged: Moment::from_nanos(0),
            faults: Vec::new(),
            excuses: Vec::new(),
            other_clocks: Vec::new(),
            wiped: Vec::new(),
            keys: BTreeMap::new(),
            attempts: BTreeMap::new(),
            stuck: BTreeSet::new(),
            tally: Tally::default(),
        }
    }

    /// Takes some events, to be judged later.
    pub fn take(&mut self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            self.add(event.at, Item::Event(event));
        }
    }

    /// Takes that a process was killed, so that no more events of it are expected.
    pub fn ended(&mut self, process: u32, at: Moment) {
        self.add(at, Item::End(process));
    }

    /// Takes that something was broken in this time. Service is demanded outside of such times only.
    pub fn broken(&mut self, window: Window) {
        self.faults.push(window);
    }

    /// Takes that exclusion is not promised in this time, nor for a ttl after it. Leases from before, which the servers no
    /// longer know, may last until then.
    pub fn excused(&mut self, window: Window) {
        self.excuses.push(window);
    }

    /// Takes that a key may have had two fencing clocks in this time: of two primaries, or since its clock was deleted. Two
    /// processes may then have got the same token.
    pub fn had_other_clocks(&mut self, window: Window) {
        self.other_clocks.push(window);
    }

    /// Takes that the locks of a key, or of all keys, were removed from all servers in this time. An earlier holder may rely on
    /// its lock for a ttl at most: a renewal never makes a missing lock anew.
    pub fn wiped(&mut self, window: Window, key: Option<String>) {
        self.wiped.push(Wiped { window, key });
    }

    /// Judges everything up to a point in time before which everything is known.
    pub fn judge(&mut self, until: Moment) {
        let later = self.coming.split_off(&(until, u64::MAX));
        let items = std::mem::replace(&mut self.coming, later);
        for ((at, _), item) in items {
            // A late event is still judged, as if it were in time.
            self.judged = self.judged.max(at);
            match item {
                Item::Event(event) => self.apply(&event),
                Item::End(process) => self.bury(process, at),
            }
        }
        self.judged = self.judged.max(until);
        self.look_for_stuck_attempts();
        for (key, state) in &mut self.keys {
            let demands = demands_of(&*self.demands, key);
            let known = Known {
                faults: &self.faults,
                excuses: &self.excuses,
                other_clocks: &self.other_clocks,
                wiped: &self.wiped,
            };
            state.look_at_open_gaps(until, demands, known, &mut self.tally);
        }
        self.forget();
    }

    /// Returns whether exclusion is not promised to a holder of the key in this time. An excused window touches it, or ended
    /// at most the key's ttl before it.
    pub fn is_excused(&self, key: &str, held: Window) -> bool {
        let demands = demands_of(&*self.demands, key);
        key::is_excused(held, demands, &self.excuses)
    }

    /// Returns what was found so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Returns how many events and attempts are kept.
    pub fn kept(&self) -> usize {
        let grants: usize = self.keys.values().map(Key::kept).sum();
        self.coming.len() + self.attempts.len() + grants
    }

    /// Returns up to when everything was judged.
    pub fn judged(&self) -> Moment {
        self.judged
    }

    fn add(&mut self, at: Moment, item: Item) {
        self.came += 1;
        self.coming.insert((at, self.came), item);
    }

    fn apply(&mut self, event: &Event) {
        let id = (event.process, event.attempt);
        let demands = demands_of(&*self.demands, &event.key);
        let known = Known {
            faults: &self.faults,
            excuses: &self.excuses,
            other_clocks: &self.other_clocks,
            wiped: &self.wiped,
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
        if let Step::Acquired {
            token,
            permit,
            valid_until,
        } = event.step
        {
            attempt.is_held = true;
            self.tally.waited(event.at.since(attempt.called), event);
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
            key.granted(grant, &attempt.floors, demands, known, &mut self.tally);
            key.served(attempt.mode, event.at, demands, known, &mut self.tally);
            return;
        }
        if attempt.is_held {
            key.let_go(event, demands, known, &mut self.tally);
        } else {
            self.tally.failures += 1;
            key.gave_up(attempt.mode, event.at, demands, known, &mut self.tally);
        }
        self.attempts.remove(&id);
        self.stuck.remove(&id);
    }

    /// Ends all attempts of a process that was killed.
    fn bury(&mut self, process: u32, at: Moment) {
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
            let calm = fault_free(attempt.called, self.judged, &self.faults);
            if attempt.is_held || calm < PATIENCE || !self.stuck.insert(id) {
                continue;
            }
            let (process, number) = id;
            let Attempt { key, called, .. } = attempt;
            let text = format!(
                "attempt {number} of process {process} at {key}, called at {called}, has no end after {calm:.1?} in which \
                 nothing was broken"
            );
            self.tally.offend(Invariant::Service, text);
        }
    }

    /// Forgets windows that can no longer excuse an event, and grants that no later event can contradict.
    fn forget(&mut self) {
        const KEPT: Duration = Duration::from_secs(120);
        let judged = self.judged;
        let is_recent = |window: &Window| judged.since(window.to) < KEPT;
        self.faults.retain(is_recent);
        self.excuses.retain(is_recent);
        self.other_clocks.retain(is_recent);
        self.wiped.retain(|wiped| is_recent(&wiped.window));
        for key in self.keys.values_mut() {
            key.forget(judged);
        }
        self.keys.retain(|name, key| {
            let is_private = (self.demands)(name).is_some_and(|demands| demands.is_private);
            !(is_private && key.is_silent_for(KEPT, judged))
        });
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("judged", &self.judged)
            .field("tally", &self.tally)
            .finish_non_exhaustive()
    }
}

fn demands_of(demands: &Asked, key: &str) -> Demands {
    demands(key).unwrap_or_else(|| panic!("no demands for {key}"))
}

/// The longest time between two points in which nothing was broken.
fn fault_free(from: Moment, to: Moment, faults: &[Window]) -> Duration {
    let mut touching: Vec<&Window> = faults
        .iter()
        .filter(|window| window.touches(from, to))
        .collect();
    touching.sort_by_key(|window| window.from);
    let (mut since, mut longest) = (from, Duration::ZERO);
    for window in touching {
        longest = longest.max(window.from.since(since));
        since = since.max(window.to);
    }
    longest.max(to.since(since))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn demands(key: &str) -> Option<Demands> {
        ["k", "own"].contains(&key).then_some(Demands {
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

    /// Judges lines with points in time in milliseconds, first all at once and then one by one: both must give the same result.
    fn judge(lines: &[&str], prepare: impl Fn(&mut Running)) -> BTreeMap<Invariant, u64> {
        let mut events: Vec<Event> = lines.iter().map(|line| in_nanos(line)).collect();
        events.sort_by_key(|event| event.at);
        let mut whole = Running::new(demands);
        prepare(&mut whole);
        whole.take(events.iter().cloned());
        let mut pieces = Running::new(demands);
        prepare(&mut pieces);
        for event in events {
            let at = event.at;
            pieces.take([event]);
            pieces.judge(at);
        }
        let end = Moment::from_nanos(100_000 * MS);
        for running in [&mut whole, &mut pieces] {
            running.judge(end);
        }
        assert_eq!(whole.tally().offences(), pieces.tally().offences());
        whole.tally().offences().clone()
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
    fn a_good_history_has_no_offence() {
        assert_eq!(judge(&GOOD, |_| {}), none());
    }

    #[test]
    fn two_holders_at_a_time_are_found_unless_one_of_them_is_excused() {
        let bad = GOOD.map(|line| line.replace("31 2 1 k acquired", "29 2 1 k acquired"));
        let bad = bad.each_ref().map(String::as_str);
        assert_eq!(judge(&bad, |_| {}), one(Invariant::Exclusion));
        assert_eq!(
            judge(&bad, |running| running.excused(window(0, 15))),
            none()
        );
        let over = |running: &mut Running| running.excused(window(31, 40));
        assert_eq!(judge(&bad, over), one(Invariant::Exclusion));
        // A window that ended longer ago than the ttl excuses no grant.
        let late = |running: &mut Running| running.excused(window(300, 400));
        assert_eq!(judge(&bad, late), one(Invariant::Exclusion));
    }

    #[test]
    fn a_lease_from_a_window_is_excused_for_as_long_as_it_lasts() {
        let mut running = Running::new(demands);
        running.excused(window(100, 200));
        assert!(running.is_excused("k", window(150, 5_000)));
        assert!(running.is_excused("k", window(290, 5_000)));
        assert!(!running.is_excused("k", window(310, 5_000)));
        assert!(!running.is_excused("k", window(50, 99)));
    }

    #[test]
    fn a_killed_holder_holds_until_the_end_of_its_lease_and_no_longer() {
        for (next, expected) in [(89, one(Invariant::Exclusion)), (90, none())] {
            let next = format!("{next} 2 1 k acquired 6 199");
            let lines = [
                "10 1 1 k called - -",
                "20 1 1 k acquired 5 90",
                "30 2 1 k called - -",
                &next,
                "120 2 1 k release-called - 199",
            ];
            let killed = |running: &mut Running| running.ended(1, Moment::from_nanos(50 * MS));
            assert_eq!(judge(&lines, killed), expected);
        }
    }

    #[test]
    fn a_holder_with_a_lease_that_the_servers_lost_is_found_after_a_ttl() {
        for (release, expected) in [(205, none()), (245, one(Invariant::Exclusion))] {
            let release = format!("{release} 1 1 k release-called - 300");
            let lines = ["10 1 1 k called - -", "20 1 1 k acquired 5 115", &release];
            let wiped = |key: Option<&str>| {
                let key = key.map(str::to_owned);
                move |running: &mut Running| running.wiped(window(100, 110), key.clone())
            };
            assert_eq!(judge(&lines, wiped(None)), expected);
            assert_eq!(judge(&lines, wiped(Some("k"))), expected);
            assert_eq!(judge(&lines, wiped(Some("own"))), none());
        }
    }

    #[test]
    fn a_token_that_falls_back_is_found_but_for_a_hand_on_of_a_lost_lease() {
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
        let excused = |running: &mut Running| running.excused(window(0, 3));
        let handed_on = fallen(1);
        let lines = handed_on.each_ref().map(String::as_str);
        assert_eq!(judge(&lines, |_| {}), one(Invariant::GrowingTokens));
        assert_eq!(judge(&lines, excused), none());
        let taken_anew = fallen(3);
        let lines = taken_anew.each_ref().map(String::as_str);
        assert_eq!(judge(&lines, excused), one(Invariant::GrowingTokens));
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
    fn the_same_token_twice_is_found_also_among_attempts_at_the_same_time() {
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
    fn the_same_token_twice_is_excused_to_other_processes_while_there_are_two_clocks() {
        let twice = |second: &str, by: Vec<Window>| {
            let lines = [
                "1 1 1 k called - -",
                "2 1 1 k acquired 5 90",
                "3 1 1 k release-called - 90",
                &format!("4 {second} 2 k called - -"),
                &format!("5 {second} 2 k acquired 5 90"),
                &format!("6 {second} 2 k release-called - 90"),
            ];
            let two_clocks = |running: &mut Running| {
                for window in &by {
                    running.had_other_clocks(*window);
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
    fn a_key_without_a_grant_is_found_once_whether_or_not_the_gap_ends() {
        let wait = [
            "1 1 1 k called - -",
            "350 1 1 k acquired 5 900",
            "360 1 1 k release-called - 900",
        ];
        assert_eq!(judge(&wait, |_| {}), one(Invariant::Service));
        // Neither part of the time alone is too long.
        assert_eq!(
            judge(&wait, |running| running.broken(window(200, 210))),
            none()
        );
        let early = |running: &mut Running| running.broken(window(0, 20));
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
    fn a_private_key_is_excused_by_a_fault_in_an_attempt_within_its_ttl_before() {
        let wait = [
            "3410 1 0 own called - -",
            "3420 1 0 own failed - -",
            "3500 1 1 own called - -",
            "3850 1 1 own acquired 5 3900",
            "3860 1 1 own release-called - 3900",
        ];
        assert_eq!(judge(&wait, |_| {}), one(Invariant::Service));
        let just_before = |running: &mut Running| running.broken(window(1300, 1450));
        assert_eq!(judge(&wait, just_before), none());
        let long_before = |running: &mut Running| running.broken(window(1300, 1400));
        assert_eq!(judge(&wait, long_before), one(Invariant::Service));
    }

    #[test]
    fn what_is_kept_does_not_grow_with_the_history() {
        let mut running = Running::new(demands);
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
            running.take([
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
            running.judge(Moment::from_nanos(at + 5));
            most = most.max(running.kept());
        }
        assert_eq!(running.tally().acquisitions(), 20_000);
        assert_eq!(running.tally().offences(), &none());
        assert!(most < 4_000, "{most}");
    }
}
