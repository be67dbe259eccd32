//! Metrics, which are passed to recorders through the facade of the `metrics` crate.
//!
//! Each metric has the template of the key and the mode as its labels. Templates are literals in the program, so each
//! template has at most three series of a metric, however many keys there are.

use std::{collections::BTreeMap, time::Duration};

use metrics::{Counter, Gauge, Key, Level, Metadata, Unit};

use crate::{key::LockKey, mode::LockMode, runtime::mutex::Mutex, template::Template};

pub(super) const ARE_KEPT: bool = true;

static METADATA: Metadata<'static> = Metadata::new("lock_core", Level::INFO, Some("lock_core"));

/// The template under which all keys without a template are counted.
static OTHER: Template = Template::new("other");

/// Adds a task to a gauge.
pub(super) fn enter(name: &'static str, key: &LockKey, mode: LockMode) {
    gauge(&of(name, key, mode)).increment(1.0);
}

/// Removes a task from a gauge.
pub(super) fn leave(name: &'static str, key: &LockKey, mode: LockMode) {
    gauge(&of(name, key, mode)).decrement(1.0);
}

/// Adds a time to a histogram.
pub(super) fn took(name: &'static str, key: &LockKey, mode: LockMode, time: Duration) {
    let key = of(name, key, mode);
    let histogram = metrics::with_recorder(|recorder| recorder.register_histogram(&key, &METADATA));
    histogram.record(time.as_secs_f64());
}

/// Increments a counter.
pub(super) fn add(name: &'static str, key: &LockKey, mode: LockMode) {
    counter(&of(name, key, mode)).increment(1);
}

/// Increments a counter that has these labels in addition to the key's.
pub(super) fn count(name: &'static str, key: &LockKey, labels: &[(&'static str, &'static str)]) {
    let of_key = ("key", template(key).text());
    let labels = [&[of_key], labels].concat();
    counter(&Key::from_parts(name, &labels)).increment(1);
}

/// For each server, the number of connections that were reported as out of reach. All managers of a process share the
/// gauge.
static OUT_OF_REACH: Mutex<BTreeMap<String, i64>> = Mutex::new(BTreeMap::new());

/// Adds `more` to the number of connections to a server that are out of reach, and sets its gauge.
pub(super) fn connected(server: &str, more: i64) {
    let labels = vec![metrics::Label::new("server", server.to_owned())];
    let key = Key::from_parts("lock_connected", labels);
    let gauge = gauge(&key);
    let mut is_reached = count_out_of_reach(server, more) == 0;
    // The recorder is called without holding the mutex, so another thread may set the gauge in between. Therefore each
    // thread checks again after it has set the gauge.
    loop {
        gauge.set(f64::from(u8::from(is_reached)));
        let now = count_out_of_reach(server, 0) == 0;
        if now == is_reached {
            return;
        }
        is_reached = now;
    }
}

/// Adds to the number of connections that are out of reach, and returns the sum. The map has one entry for each
/// server, as there is one gauge for each.
fn count_out_of_reach(server: &str, more: i64) -> i64 {
    let mut known = OUT_OF_REACH.lock();
    let count = known.entry(server.to_owned()).or_default();
    *count += more;
    *count
}

/// One line for each metric, with its description. The suffix of the name determines the kind of the metric.
const DESCRIPTIONS: &str = "\
lock_wait_seconds: time from the request for a lock to the reply, whether it was acquired or not
lock_hold_seconds: time from the acquire of a lock to its release
lock_waiting: tasks of this process that wait for a lock now
lock_held: locks that this process holds now
lock_connected: 1 if a server can be reached, 0 while no connection can be made
lock_acquired_total: locks that were acquired
lock_busy_total: waits that ended because another holder had the lock
lock_unavailable_total: waits that ended because the backend did not reply, or the manager is closed or at a cap
lock_abandoned_total: waits that ended because the caller stopped waiting
lock_once_total: calls for bodies that run once, whether the body ran, or the result of an earlier run was returned or refused
lock_lost_total: leases that ended before they were released
lock_handoffs_total: locks that passed from one holder to the next, inside the process (local) or from another one (remote)";

/// Describes the metrics to the recorder, if one is already installed.
pub(crate) fn describe() {
    let each = DESCRIPTIONS
        .lines()
        .filter_map(|line| line.split_once(": "));
    metrics::with_recorder(|recorder| {
        for (name, says) in each {
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
    Key::from_static_parts(name, &template(key).labels[mode as usize])
}

// Metrics are registered at each use, because a recorder may be installed at any time, and each test has its own.
fn counter(key: &Key) -> Counter {
    metrics::with_recorder(|recorder| recorder.register_counter(key, &METADATA))
}

fn gauge(key: &Key) -> Gauge {
    metrics::with_recorder(|recorder| recorder.register_gauge(key, &METADATA))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_reached_again_when_every_manager_reaches_it() {
        let server = "redis://of-this-test";
        assert_eq!(count_out_of_reach(server, 0), 0);
        assert_eq!(count_out_of_reach(server, 1), 1);
        assert_eq!(count_out_of_reach(server, 1), 2);
        assert_eq!(count_out_of_reach("redis://another", 0), 0);
        assert_eq!(count_out_of_reach(server, -1), 1, "one manager was dropped");
        assert_eq!(count_out_of_reach(server, 0), 1);
        assert_eq!(count_out_of_reach(server, -1), 0);
    }
}
