//! Draws how long a writer waits among readers, and how often the readers hold the lock.

use std::path::Path;

use crate::{
    readers::{BOUND, Outcome},
    svg::{GUIDE, Picture},
};

const COLOURS: [&str; 3] = ["#1f5fbf", "#c2561a", "#3a8a3a"];
const LEFT: f64 = 180.0;
const WIDTH: f64 = 320.0;
const RATES_LEFT: f64 = 600.0;
const RATES_WIDTH: f64 = 160.0;
const TOP: f64 = 60.0;
const ROW: f64 = 50.0;
const BOTTOM: f64 = TOP + 3.0 * ROW;

/// The ends of the logarithmic axis, in seconds. A wait that exceeds the bound is drawn at the last one.
const FIRST: f64 = 1e-3;
const LAST: f64 = 1e1;

/// Writes the picture to a file.
pub(crate) fn write(path: &Path, outcomes: &[Outcome]) {
    let mut picture = Picture::new(840.0, BOTTOM + 60.0);
    picture.text((LEFT, 28.0), "start", "wait of the writer");
    picture.text((RATES_LEFT, 28.0), "start", "reads per second");
    axis(&mut picture);
    let most = outcomes.iter().map(Outcome::reads).fold(1.0, f64::max);
    let mut middle = TOP + ROW / 2.0;
    for (outcome, colour) in outcomes.iter().zip(COLOURS) {
        picture.text((LEFT - 14.0, middle + 4.0), "end", outcome.name);
        waits(&mut picture, outcome, middle, colour);
        let width = RATES_WIDTH * outcome.reads() / most;
        picture.bar((RATES_LEFT, middle - 8.0), (width, 16.0), colour);
        let (end, reads) = (RATES_LEFT + width + 6.0, format!("{:.0}", outcome.reads()));
        picture.text((end, middle + 4.0), "start", &reads);
        middle += ROW;
    }
    picture.write(path);
}

fn axis(picture: &mut Picture) {
    let decades = [1e-3, 1e-2, 1e-1, 1.0].map(x);
    for (x, text) in decades.into_iter().zip(["1 ms", "10 ms", "100 ms", "1 s"]) {
        picture.line((x, TOP), (x, BOTTOM), GUIDE);
        picture.text((x, BOTTOM + 18.0), "middle", text);
    }
    let bound = x(BOUND.as_secs_f64());
    let dashes = "stroke='#888888' stroke-dasharray='4 3'";
    picture.line((bound, TOP), (bound, BOTTOM), dashes);
    picture.text((bound + 4.0, TOP - 6.0), "start", "gives up");
    let legend = "dots: median, 99 of 100, longest; at the right end if not granted";
    picture.text((LEFT, BOTTOM + 40.0), "start", legend);
}

/// Draws three dots on a line, and how many requests were not granted within the bound.
fn waits(picture: &mut Picture, outcome: &Outcome, y: f64, colour: &str) {
    let dots = [50, 99, 100].map(|percent| {
        let wait = outcome.quantile(percent);
        (wait.map_or(x(LAST), |wait| x(wait.as_secs_f64())), y)
    });
    let stroke = format!("stroke='{colour}' stroke-width='3'");
    picture.line(dots[0], dots[2], &stroke);
    for dot in dots {
        picture.dot(dot, colour);
    }
    let refused = outcome.requests() - outcome.granted();
    if refused > 0 {
        let text = format!("{refused} of {} not granted", outcome.requests());
        picture.text((x(LAST), y - 12.0), "end", &text);
    }
}

fn x(seconds: f64) -> f64 {
    let share = (seconds.max(FIRST) / FIRST).log10() / (LAST / FIRST).log10();
    LEFT + WIDTH * share
}
