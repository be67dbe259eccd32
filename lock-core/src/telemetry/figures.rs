//! Figures for metrics recorders, through the facade of the crate `metrics`.
//!
//! Each figure has the template of the key and the mode as its labels. Templates are literals in the program. So each template has
//! at most three series of a figure, however many keys there are.

use std::{
    collections::BTreeMap,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use metrics::{Counter, Gauge, Histogram, Key, Level, Metadata, Unit};

use crate::{
    error::LockError, key::LockKey, mode::LockMode, telemetry::hand_off::HandOff,
    template::Template,
};

pub(super) const ARE_KEPT: bool = true;

const WAIT: &str = "lock_wait_seconds";

const HOLD: &str = "lock_hold_seconds";

const WAITING: &str = "lock_waiting";

const HELD: &str = "lock_held";

const ACQUIRED: &str = "lock_acquired_total";

const BUSY: &str = "lock_busy_total";

const UNAVAILABLE: &str = "lock_unavailable_total";

const ABANDONED: &str = "lock_abandoned_total";

const CONNECTED: &str = "lock_connected";

const HANDOFFS: &str = "lock_handoffs_total";

static METADATA: Metadata<'static> = Metadata::new("lock_core", Level::INFO, Some("lock_core"));

/// The template of keys that were not made from a template.
static OTHER: Template = Template::new("other");

pub(super) fn wait_begins(key: &LockKey, mode: LockMode) {
    gauge(WAITING, key, mode).increment(1.0);
}

pub(super) fn wait_ends(key: &LockKey, mode: LockMode, waited: Duration) {
    gauge(WAITING, key, mode).decrement(1.0);
    histogram(WAIT, key, mode).record(waited.as_secs_f64());
}

/// The call had its result without a wait, which counts as a wait of no length.
pub(super) fn refused_at_once(key: &LockKey, mode: LockMode) {
    histogram(WAIT, key, mode).record(0.0);
}

pub(super) fn hold_begins(key: &LockKey, mode: LockMode) {
    counter(ACQUIRED, key, mode).increment(1);
    gauge(HELD, key, mode).increment(1.0);
}

pub(super) fn hold_ends(key: &LockKey, mode: LockMode, held: Duration) {
    gauge(HELD, key, mode).decrement(1.0);
    histogram(HOLD, key, mode).record(held.as_secs_f64());
}

pub(super) fn refused(key: &LockKey, mode: LockMode, error: &LockError) {
    match error {
        LockError::Busy { .. } => counter(BUSY, key, mode).increment(1),
        LockError::Unavailable { .. } => counter(UNAVAILABLE, key, mode).increment(1),
        // The first two are mistakes in the program. The loss was counted when it happened, and a repeat after its wait.
        LockError::Invalid { .. }
        | LockError::NotConfigured
        | LockError::Lost { .. }
        | LockError::Repeated { .. } => {}
    }
}

pub(super) fn abandoned(key: &LockKey, mode: LockMode) {
    counter(ABANDONED, key, mode).increment(1);
}

pub(super) fn handed_on(key: &LockKey, mode: LockMode, how: HandOff) {
    let labels = &template(key).labels[mode as usize].handed_on[how as usize];
    counted(&Key::from_static_parts(HANDOFFS, labels)).increment(1);
}

pub(super) fn count(name: &'static str, key: &LockKey, labels: &[(&'static str, &'static str)]) {
    let of_key = ("key", template(key).text());
    let labels = [&[of_key], labels].concat();
    counted(&Key::from_parts(name, &labels)).increment(1);
}

/// Of how many connections to each server the log says that they cannot be made. The managers of a process share the gauge.
static OUT_OF_REACH: Mutex<BTreeMap<String, i64>> = Mutex::new(BTreeMap::new());

/// Sets the gauge of a server, to which so many `more` connections cannot be made.
pub(super) fn connected(server: &str, more: i64) {
    let labels = vec![metrics::Label::new("server", server.to_owned())];
    let key = Key::from_parts(CONNECTED, labels);
    let gauge = metrics::with_recorder(|recorder| recorder.register_gauge(&key, &METADATA));
    let mut is_reached = count_out_of_reach(server, more) == 0;
    // The recorder is called without the mutex. Another thread may set the gauge in between, so the last one looks again.
    loop {
        gauge.set(f64::from(u8::from(is_reached)));
        let now = count_out_of_reach(server, 0) == 0;
        if now == is_reached {
            return;
        }
        is_reached = now;
    }
}

/// Counts connections that cannot be made, and returns how many there are.
fn count_out_of_reach(server: &str, more: i64) -> i64 {
    let known = OUT_OF_REACH.lock();
    let mut known = known.unwrap_or_else(PoisonError::into_inner);
    let count = known.get(server).copied().unwrap_or(0) + more;
    if count == 0 {
        known.remove(server);
    } else {
        known.insert(server.to_owned(), count);
    }
    count
}

/// The figures and their descriptions. The end of a name says of which kind the figure is.
const DESCRIPTIONS: [(&str, &str); 12] = [
    (WAIT, "from asking for a lock to the reply, whichever it is"),
    (HOLD, "from the acquire of a lock to its release"),
    (WAITING, "tasks of this process that wait for a lock now"),
    (HELD, "locks that this process holds now"),
    (
        CONNECTED,
        "whether a server is reached: 1, or 0 while no connection can be made",
    ),
    (ACQUIRED, "locks that were acquired"),
    (BUSY, "waits that ended because another holder had the lock"),
    (
        UNAVAILABLE,
        "waits that ended because the backend did not answer, or the manager is closed or at a cap",
    ),
    (
        ABANDONED,
        "waits that ended because the caller stopped waiting",
    ),
    (
        "lock_once_total",
        "calls for bodies that run once: those that ran, and those that got or were refused the result of an earlier run",
    ),
    (
        "lock_lost_total",
        "leases that ended before they were released",
    ),
    (
        HANDOFFS,
        "locks that went from one holder to the next: inside the process (local), or from another one (remote)",
    ),
];

/// Describes the figures to the recorder, if one is installed already.
pub(crate) fn describe() {
    metrics::with_recorder(|recorder| {
        for (name, says) in DESCRIPTIONS {
            let says = says.into();
            if name.ends_with("_seconds") {
                recorder.describe_histogram(name.into(), Some(Unit::Seconds), says);
            } else if name.ends_with("_total") {
                recorder.describe_counter(name.into(), Some(Unit::Count), says);
            } else {
                recorder.describe_gauge(name.into(), Some(Unit::Count), says);
            }
        }
    });
}

fn template(key: &LockKey) -> &'static Template {
    key.made_from().unwrap_or(&OTHER)
}

fn of(name: &'static str, key: &LockKey, mode: LockMode) -> Key {
    Key::from_static_parts(name, &template(key).labels[mode as usize].alone)
}

// The counter is registered at each use: a recorder may be installed at any time, and each test has its own.
fn counter(name: &'static str, key: &LockKey, mode: LockMode) -> Counter {
    counted(&of(name, key, mode))
}

fn counted(key: &Key) -> Counter {
    metrics::with_recorder(|recorder| recorder.register_counter(key, &METADATA))
}

fn gauge(name: &'static str, key: &LockKey, mode: LockMode) -> Gauge {
    metrics::with_recorder(|recorder| recorder.register_gauge(&of(name, key, mode), &METADATA))
}

fn histogram(name: &'static str, key: &LockKey, mode: LockMode) -> Histogram {
    metrics::with_recorder(|recorder| recorder.register_histogram(&of(name, key, mode), &METADATA))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_reached_when_no_manager_misses_it() {
        let server = "redis://of-this-test";
        assert_eq!(count_out_of_reach(server, 0), 0);
        assert_eq!(count_out_of_reach(server, 1), 1);
        assert_eq!(count_out_of_reach(server, 1), 2);
        assert_eq!(count_out_of_reach("redis://another", 0), 0);
        assert_eq!(count_out_of_reach(server, -1), 1, "one was dropped");
        assert_eq!(count_out_of_reach(server, 0), 1);
        assert_eq!(count_out_of_reach(server, -1), 0);
    }
}
