//! Prints the results.

use std::time::Duration;

use crate::{
    readers::{BOUND, Outcome},
    sample::{Samples, float},
};

/// Prints a heading.
pub(crate) fn title(text: &str) {
    println!("\n{text}");
}

/// Prints the names of the columns of [`line`]s.
pub(crate) fn header(operation: &str) {
    println!(
        "  {:<30} {:>11} {:>9} {:>7} {:>7} {:>9} {:>7} {:>8} {:>8} {:>9} {:>9} {:>6} {:>6}",
        "",
        format!("{operation}/s"),
        "taken/s",
        "p50 µs",
        "p99 µs",
        "max µs",
        "favour",
        "commands",
        "messages",
        "server µs",
        "client µs",
        "rate ×",
        "p50 ×",
    );
}

/// Prints the line of one contender: operations a second, how often the lock was taken, and how long each operation took.
///
/// Then come the share of the most favoured worker against the least favoured one's, and an operation's server commands,
/// messages and processor time. The last are the rate and the median time as ratios to the floor's: the median round.
pub(crate) fn line(name: &str, samples: &Samples, floor: &Samples) {
    let times = samples.times();
    let (server, operations) = (samples.server(), float(samples.operations()));
    println!(
        "  {:<30} {:>11} {:>9} {:>7} {:>7} {:>9} {:>7.3} {:>8.2} {:>8.2} {:>9.2} {:>9.2} {:>6.3} {:>6.3}",
        name,
        grouped(samples.rate()),
        grouped(samples.rate() * float(samples.taken()) / operations),
        micros(times.quantile(0.5)),
        micros(times.quantile(0.99)),
        micros(times.max()),
        samples.favour(),
        float(server.commands) / operations,
        float(server.messages) / operations,
        samples.server_cpu(),
        samples.client_cpu(),
        samples.ratio_to(floor),
        samples.p50_to(floor),
    );
}

/// Prints the names of the columns of [`waits`].
pub(crate) fn waits_header() {
    println!(
        "  {:<30} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "requests", "granted", "p50 ms", "p99 ms", "max ms", "reads/s",
    );
}

/// Prints how long a writer waited, and how often the readers had the lock.
pub(crate) fn waits(outcome: &Outcome) {
    let wait = |percent| match outcome.quantile(percent) {
        Some(wait) => format!("{:.1}", wait.as_secs_f64() * 1e3),
        None => format!("> {}", BOUND.as_millis()),
    };
    println!(
        "  {:<30} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        outcome.name,
        outcome.requests(),
        outcome.granted(),
        wait(50),
        wait(99),
        wait(100),
        grouped(outcome.reads()),
    );
}

/// A bound that a measurement has to keep.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

/// Prints a measurement, its target, and whether it was reached.
pub(crate) fn target(what: &str, measured: f64, target: Target) {
    let (word, bound, reached) = match target {
        Target::AtMost(bound) => ("at most", bound, measured <= bound),
        Target::AtLeast(bound) => ("at least", bound, measured >= bound),
    };
    let verdict = if reached { "reached" } else { "not reached" };
    println!(
        "  -> {what}: {}, target {word} {}: {verdict}",
        number(measured),
        number(bound)
    );
}

/// Prints a measurement without a target.
pub(crate) fn note(what: &str, measured: f64) {
    println!("     {what}: {}", number(measured));
}

fn number(value: f64) -> String {
    if value >= 1000.0 {
        grouped(value)
    } else {
        format!("{value:.3}")
    }
}

fn micros(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    if micros < 10.0 {
        format!("{micros:.2}")
    } else {
        grouped(micros)
    }
}

/// A number without a fraction, with a comma at every third digit.
fn grouped(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
