//! Draws how long a writer waits among readers, and how often the readers have the lock.

use std::{path::Path, time::Duration};

use crate::{
    readers::{BOUND, Outcome},
    svg::{Anchor, Picture},
};

/// Writes the picture to a file.
pub(crate) fn write(path: &Path, outcomes: &[Outcome]) {
    let bottom = (0..outcomes.len()).fold(TOP, |bottom, _| bottom + ROW);
    let mut picture = Picture::new(840.0, bottom + 60.0);
    picture.title((LEFT, 28.0), "wait of the writer");
    picture.title((RATES_LEFT, 28.0), "reads a second");
    axis(&mut picture, bottom);
    let most = outcomes.iter().map(Outcome::reads).fold(1.0, f64::max);
    let mut middle = TOP + ROW / 2.0;
    for (outcome, colour) in outcomes.iter().zip(COLOURS) {
        picture.text((LEFT - 14.0, middle + 4.0), Anchor::End, outcome.name);
        waits(&mut picture, outcome, middle, colour);
        let width = RATES_WIDTH * outcome.reads() / most;
        picture.bar((RATES_LEFT, middle - 8.0), (width, 16.0), colour);
        let reads = format!("{:.0}", outcome.reads());
        picture.text(
            (RATES_LEFT + width + 6.0, middle + 4.0),
            Anchor::Start,
            &reads,
        );
        middle += ROW;
    }
    picture.write(path);
}

const LEFT: f64 = 180.0;
const WIDTH: f64 = 320.0;
const RATES_LEFT: f64 = 600.0;
const RATES_WIDTH: f64 = 160.0;
const TOP: f64 = 60.0;
const ROW: f64 = 50.0;

/// The beginning and the end of the logarithmic axis, in seconds. The bound is between them.
const FIRST: f64 = 1e-3;
const LAST: f64 = 1e1;

const COLOURS: [&str; 3] = ["#1f5fbf", "#c2561a", "#3a8a3a"];

fn axis(picture: &mut Picture, bottom: f64) {
    for (seconds, text) in [
        (1e-3, "1 ms"),
        (1e-2, "10 ms"),
        (1e-1, "100 ms"),
        (1.0, "1 s"),
    ] {
        let x = x(seconds);
        picture.guide((x, TOP), (x, bottom));
        picture.text((x, bottom + 18.0), Anchor::Middle, text);
    }
    let bound = x(BOUND.as_secs_f64());
    picture.dashes((bound, TOP), (bound, bottom));
    picture.text((bound + 4.0, TOP - 6.0), Anchor::Start, "gives up");
    let legend = "dots: median, 99 of 100, longest";
    picture.text((LEFT, bottom + 40.0), Anchor::Start, legend);
}

/// Draws three dots on a line. A wait that was not granted within the bound ends in an arrow behind it.
fn waits(picture: &mut Picture, outcome: &Outcome, y: f64, colour: &str) {
    let beyond = x(LAST) - 8.0;
    let bound = x(BOUND.as_secs_f64());
    let wait = |percent, none| {
        let wait: Option<Duration> = outcome.quantile(percent);
        wait.map_or(none, |wait| x(wait.as_secs_f64()))
    };
    picture.span((wait(50, bound), y), (wait(100, beyond), y), colour);
    let granted = [50, 99, 100].map(|percent| outcome.quantile(percent));
    for wait in granted.into_iter().flatten() {
        picture.dot((x(wait.as_secs_f64()), y), 5.0, colour);
    }
    let refused = outcome.requests() - outcome.granted();
    if refused == 0 {
        return;
    }
    let back = beyond - 4.0;
    picture.shape(
        &[(back, y - 7.0), (back, y + 7.0), (beyond + 8.0, y)],
        colour,
    );
    let text = format!("{refused} of {} not granted", outcome.requests());
    picture.text((beyond, y - 12.0), Anchor::End, &text);
}

fn x(seconds: f64) -> f64 {
    let share = (seconds.max(FIRST) / FIRST).log10() / (LAST / FIRST).log10();
    LEFT + WIDTH * share
}
