//! Explores all interleavings of a few requests for one key, with the shipped scripts on the modelled server, breadth first.
//!
//! A process follows the protocol: it sends a request, accepts a reply or a message, checks, renews, releases. A fault is a step,
//! too: a lost reply, a lost message, a late copy of a request, a crash, the end of a lease, silence. Only the number of faults
//! is bounded.
//!
//! Time is not explored. Each call is made a microsecond after the previous one, and no lease ends of itself: its end is a step,
//! and so is a silence of two beats. States that differ only in times are the same state.
//!
//! ```sh
//! cargo test -p lock-tests --test simulation explore
//! EXPLORE=large cargo test --profile simulation -p lock-tests --test simulation explore -- --nocapture
//! ```
//!
//! `state` has the steps, and `rules` the rules that must hold after each. `drain` checks that without faults all requests end.
//! `eviction` has tests of a server that evicts keys, which the exploration leaves out.

mod drain;
mod eviction;
mod rules;
mod server_view;
mod state;

use std::{
    collections::{HashSet, VecDeque},
    env,
    time::Instant,
};

use state::{
    Kind::{self, Exclusive, FastPath, Foreign, Once, Permits, Shared},
    State, Step,
};

/// From every seventh state, all requests are brought to an end.
const DRAINED: usize = 7;

/// A scenario: the processes, how often each of them acquires, and the number of faults.
struct Setup {
    kinds: &'static [Kind],
    faults: u8,
    acquisitions: u8,
    /// The size of a batch, if not the shipped one.
    part: Option<u8>,
    /// Set if the slot is moving all the time, so that exclusive requests declare only the few keys that exist.
    is_moving: bool,
}

const fn setup(kinds: &'static [Kind], faults: u8, acquisitions: u8) -> Setup {
    Setup {
        kinds,
        faults,
        acquisitions,
        part: None,
        is_moving: false,
    }
}

const fn moving(kinds: &'static [Kind], faults: u8, acquisitions: u8) -> Setup {
    Setup {
        is_moving: true,
        ..setup(kinds, faults, acquisitions)
    }
}

const fn in_parts(kinds: &'static [Kind], faults: u8, acquisitions: u8) -> Setup {
    Setup {
        part: Some(1),
        ..setup(kinds, faults, acquisitions)
    }
}

const XSS: &[Kind] = &[Exclusive, Shared, Shared];
const XXS: &[Kind] = &[Exclusive, Exclusive, Shared];
const XXSS: &[Kind] = &[Exclusive, Exclusive, Shared, Shared];
const XSSS: &[Kind] = &[Exclusive, Shared, Shared, Shared];
const XS_FOREIGN: &[Kind] = &[Exclusive, Shared, Foreign];
const XS_FAST: &[Kind] = &[FastPath, Exclusive, Shared];
const SS_FAST: &[Kind] = &[FastPath, Shared, Shared];
const FEW_PERMITS: &[Kind] = &[Permits(1), Permits(2), Permits(2)];
const PERMITS: &[Kind] = &[Permits(2), Permits(3), Permits(2), Permits(2)];

const OO: &[Kind] = &[Once, Once];
const OOX: &[Kind] = &[Once, Once, Exclusive];
const OOO: &[Kind] = &[Once, Once, Once];
const OS_FAST: &[Kind] = &[Once, FastPath, Shared];
const OO_FAST: &[Kind] = &[Once, Once, FastPath];
const OO_FOREIGN: &[Kind] = &[Once, Once, Foreign];

#[test]
fn no_body_runs_while_a_result_is_stored() {
    explore_all(
        &[
            setup(OO, 1, 2),
            setup(OOX, 1, 1),
            setup(OS_FAST, 1, 1),
            setup(OO_FAST, 0, 1),
            setup(OO_FOREIGN, 0, 1),
            in_parts(OOO, 0, 1),
        ],
        &[
            setup(OO, 2, 2),
            setup(OOX, 2, 1),
            setup(OOX, 1, 2),
            setup(OOO, 1, 2),
            setup(OS_FAST, 1, 2),
            setup(OO_FAST, 1, 1),
            setup(OO_FOREIGN, 1, 1),
            in_parts(OOO, 1, 1),
        ],
    );
}

#[test]
fn phases_are_exclusive_and_fair() {
    explore_all(
        &[setup(XSS, 1, 1), setup(XXS, 1, 1), setup(XXSS, 0, 1)],
        &[
            setup(XSS, 2, 1),
            setup(XSS, 1, 2),
            setup(XXS, 2, 1),
            setup(XXS, 1, 2),
            setup(XXSS, 1, 1),
            setup(XXSS, 0, 2),
            setup(XSSS, 0, 2),
        ],
    );
}

#[test]
fn a_batch_granted_in_parts_is_one_phase() {
    explore_all(
        &[in_parts(XSSS, 0, 1), in_parts(XXSS, 0, 1)],
        &[in_parts(XSSS, 1, 1), in_parts(XXSS, 1, 1)],
    );
}

#[test]
fn requests_that_bypass_the_queue_break_no_rule() {
    explore_all(
        &[
            setup(XS_FOREIGN, 1, 1),
            setup(XS_FAST, 1, 1),
            setup(SS_FAST, 1, 1),
        ],
        &[
            setup(XS_FOREIGN, 1, 2),
            setup(XS_FAST, 1, 2),
            setup(SS_FAST, 1, 2),
        ],
    );
}

#[test]
fn requests_with_few_keys_break_no_rule() {
    explore_all(
        &[moving(XSS, 1, 1), moving(XXS, 0, 1), moving(XS_FAST, 0, 1)],
        &[moving(XXS, 1, 1), moving(XXSS, 0, 1), moving(XS_FAST, 1, 1)],
    );
}

#[test]
fn permits_are_counted_and_numbered() {
    explore_all(
        &[setup(FEW_PERMITS, 1, 1), setup(PERMITS, 0, 1)],
        &[setup(FEW_PERMITS, 1, 2), in_parts(PERMITS, 1, 1)],
    );
}

fn explore_all(small: &[Setup], large: &[Setup]) {
    let is_large = env::var("EXPLORE").is_ok_and(|size| size == "large");
    for setup in if is_large { large } else { small } {
        setup.explore();
    }
}

/// The state and the step from which a state was reached.
struct Found {
    from: usize,
    step: Option<Step>,
}

impl Setup {
    #[expect(clippy::print_stdout, reason = "prints how much was explored")]
    fn explore(&self) {
        let start = Instant::now();
        let mut first = State::new(self.kinds, self.faults, self.acquisitions, self.part);
        first.is_moving = self.is_moving;
        let mut known = HashSet::from([first.canonical()]);
        let mut found = vec![Found {
            from: 0,
            step: None,
        }];
        let mut open = VecDeque::from([(0, first)]);
        let mut steps = 0;
        while let Some((at, state)) = open.pop_front() {
            if at % DRAINED == 0 {
                let drained = drain::drain(state.clone());
                drained.unwrap_or_else(|violation| self.fail(&found, at, None, &violation));
            }
            for step in state.steps() {
                steps += 1;
                let next = state
                    .after(&step)
                    .unwrap_or_else(|violation| self.fail(&found, at, Some(&step), &violation));
                if known.insert(next.canonical()) {
                    found.push(Found {
                        from: at,
                        step: Some(step),
                    });
                    open.push_back((found.len() - 1, next));
                }
            }
        }
        println!(
            "{:?}, {} faults, {} acquisitions each, parts {:?}, moving {}: {} states, {steps} steps, {:.1} s",
            self.kinds,
            self.faults,
            self.acquisitions,
            self.part,
            self.is_moving,
            found.len(),
            start.elapsed().as_secs_f64(),
        );
        assert!(found.len() > 100, "too few states");
    }

    fn fail(&self, found: &[Found], at: usize, last: Option<&Step>, violation: &str) -> ! {
        let mut path: Vec<String> = last.map(|step| format!("{step:?}")).into_iter().collect();
        let mut at = at;
        while let Some(step) = &found[at].step {
            path.push(format!("{step:?}"));
            at = found[at].from;
        }
        path.reverse();
        panic!(
            "{:?}, parts {:?}: {violation}\nafter {}",
            self.kinds,
            self.part,
            path.join(", ")
        );
    }
}
