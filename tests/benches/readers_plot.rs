//! Draws how long a writer waits among readers, and how often the readers have the lock.

use std::{
    fmt::{self, Write},
    fs,
    path::Path,
    time::Duration,
};

use crate::readers::{BOUND, Outcome};

/// Writes the picture to a file.
pub(crate) fn write(path: &Path, outcomes: &[Outcome]) {
    let picture = draw(outcomes).expect("text can be written to a string");
    fs::write(path, picture).expect("a folder that can be written");
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

fn draw(outcomes: &[Outcome]) -> Result<String, fmt::Error> {
    let mut svg = String::new();
    let bottom = (0..outcomes.len()).fold(TOP, |bottom, _| bottom + ROW);
    let height = bottom + 60.0;
    writeln!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 {height}" font-family="sans-serif" font-size="12">
<rect width="840" height="{height}" fill="#ffffff"/>
<text x="{LEFT}" y="28" font-weight="bold">wait of the writer</text>
<text x="{RATES_LEFT}" y="28" font-weight="bold">reads a second</text>"##
    )?;
    axis(&mut svg, bottom)?;
    let most = outcomes.iter().map(Outcome::reads).fold(1.0, f64::max);
    let mut middle = TOP + ROW / 2.0;
    for (outcome, colour) in outcomes.iter().zip(COLOURS) {
        writeln!(
            svg,
            r#"<text x="{}" y="{}" text-anchor="end">{}</text>"#,
            LEFT - 14.0,
            middle + 4.0,
            outcome.name
        )?;
        waits(&mut svg, outcome, middle, colour)?;
        let width = RATES_WIDTH * outcome.reads() / most;
        writeln!(
            svg,
            r#"<rect x="{RATES_LEFT}" y="{}" width="{width:.1}" height="16" fill="{colour}"/>
<text x="{:.1}" y="{}">{:.0}</text>"#,
            middle - 8.0,
            RATES_LEFT + width + 6.0,
            middle + 4.0,
            outcome.reads()
        )?;
        middle += ROW;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

fn axis(svg: &mut String, bottom: f64) -> fmt::Result {
    for (seconds, text) in [
        (1e-3, "1 ms"),
        (1e-2, "10 ms"),
        (1e-1, "100 ms"),
        (1.0, "1 s"),
    ] {
        let x = x(seconds);
        writeln!(
            svg,
            r##"<line x1="{x:.1}" y1="{TOP}" x2="{x:.1}" y2="{bottom}" stroke="#dddddd"/>
<text x="{x:.1}" y="{}" text-anchor="middle">{text}</text>"##,
            bottom + 18.0
        )?;
    }
    let bound = x(BOUND.as_secs_f64());
    writeln!(
        svg,
        r##"<line x1="{bound:.1}" y1="{TOP}" x2="{bound:.1}" y2="{bottom}" stroke="#888888" stroke-dasharray="4 3"/>
<text x="{:.1}" y="{}">gives up</text>
<text x="{LEFT}" y="{}">dots: median, 99 of 100, longest</text>"##,
        bound + 4.0,
        TOP - 6.0,
        bottom + 40.0
    )
}

/// Draws three dots on a line. A wait that was not granted within the bound ends in an arrow behind it.
fn waits(svg: &mut String, outcome: &Outcome, y: f64, colour: &str) -> fmt::Result {
    let beyond = x(LAST) - 8.0;
    let bound = x(BOUND.as_secs_f64());
    let wait = |percent, none| {
        let wait: Option<Duration> = outcome.quantile(percent);
        wait.map_or(none, |wait| x(wait.as_secs_f64()))
    };
    let (median, longest) = (wait(50, bound), wait(100, beyond));
    writeln!(
        svg,
        r#"<line x1="{median:.1}" y1="{y}" x2="{longest:.1}" y2="{y}" stroke="{colour}" stroke-width="3"/>"#
    )?;
    let granted = [50, 99, 100].map(|percent| outcome.quantile(percent));
    for wait in granted.into_iter().flatten() {
        let x = x(wait.as_secs_f64());
        writeln!(
            svg,
            r#"<circle cx="{x:.1}" cy="{y}" r="5" fill="{colour}"/>"#
        )?;
    }
    let refused = outcome.requests() - outcome.granted();
    if refused == 0 {
        return Ok(());
    }
    writeln!(
        svg,
        r#"<polygon points="{:.1},{} {:.1},{} {:.1},{y}" fill="{colour}"/>
<text x="{beyond:.1}" y="{}" text-anchor="end">{refused} of {} not granted</text>"#,
        beyond - 4.0,
        y - 7.0,
        beyond - 4.0,
        y + 7.0,
        beyond + 8.0,
        y - 12.0,
        outcome.requests()
    )
}

fn x(seconds: f64) -> f64 {
    let share = (seconds.max(FIRST) / FIRST).log10() / (LAST / FIRST).log10();
    LEFT + WIDTH * share
}
