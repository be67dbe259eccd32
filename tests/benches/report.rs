//! Prints the results.

use std::time::Duration;

use crate::{
    load::Contender,
    readers::{BOUND, Outcome},
    sample::{Samples, float},
};

/// Prints a heading.
pub(crate) fn title(text: &str) {
    println!("\n{text}");
}

/// Prints a line for each contender, with a heading.
pub(crate) fn table(
    text: &str,
    operation: &str,
    contenders: &[Contender],
    all: &[Samples],
    baseline: &Samples,
) {
    title(text);
    header(operation);
    for (contender, samples) in contenders.iter().zip(all) {
        line(contender.name, samples, baseline);
    }
}

/// Prints the header of [`line`]s.
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

/// Prints the line of one contender: operations per second, acquisitions per second, and the time that an operation takes.
///
/// The next columns are the ratio of the most to the least favoured worker's share, and the server commands, messages and
/// processor time per operation. The last two are the rate and the median time, relative to the baseline, in the median round.
pub(crate) fn line(name: &str, samples: &Samples, baseline: &Samples) {
    let times = samples.times();
    let taken = float(samples.taken()) / float(samples.operations());
    println!(
        "  {:<30} {:>11} {:>9} {:>7} {:>7} {:>9} {:>7.3} {:>8.2} {:>8.2} {:>9.2} {:>9.2} {:>6.3} {:>6.3}",
        name,
        grouped(samples.rate()),
        grouped(samples.rate() * taken),
        micros(times.quantile(50)),
        micros(times.quantile(99)),
        micros(times.max()),
        samples.favour(),
        samples.commands(),
        samples.messages(),
        samples.server_cpu(),
        samples.client_cpu(),
        samples.ratio_to(baseline),
        samples.p50_to(baseline),
    );
}

/// Prints the header of [`waits`].
pub(crate) fn waits_header() {
    println!(
        "  {:<30} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9}",
        "", "requests", "granted", "p50 ms", "p99 ms", "max ms", "reads/s",
    );
}

/// Prints how long a writer waited, and how often the readers held the lock.
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

/// A bound for a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

/// Prints a measurement, its target, and whether it is reached.
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

/// Formats a number without a fraction, with a comma after every third digit.
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
