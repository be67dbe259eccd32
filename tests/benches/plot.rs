//! Draws the hand-offs a second and the worst wait against the number of processes.

use std::{
    fmt::{self, Write},
    fs,
    path::Path,
};

use crate::sample::Samples;

/// The curve of one contender.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    points: Vec<Point>,
}

struct Point {
    processes: u32,
    rate: f64,
    /// The worst wait, in milliseconds.
    worst: f64,
}

impl Curve {
    pub(crate) fn new(name: &'static str) -> Self {
        Self {
            name,
            points: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, processes: u32, samples: &Samples) {
        self.points.push(Point {
            processes,
            rate: samples.rate(),
            worst: samples.times().max().as_secs_f64() * 1e3,
        });
    }
}

/// Writes the picture to a file.
pub(crate) fn write(path: &Path, curves: &[Curve]) {
    let picture = draw(curves).expect("text can be written to a string");
    fs::write(path, picture).expect("a folder that can be written");
}

const COLOURS: [&str; 4] = ["#888888", "#1f5fbf", "#c2561a", "#3a8a3a"];
const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 260.0;
const TOP: f64 = 60.0;

/// One of the two diagrams, with logarithmic axes.
struct Panel {
    title: &'static str,
    left: f64,
    value: fn(&Point) -> f64,
    /// The powers of ten at the bottom and at the top.
    decades: (i32, i32),
    /// The number of times that the number of processes doubles from the left to the right.
    doublings: (f64, f64),
}

fn draw(curves: &[Curve]) -> Result<String, fmt::Error> {
    let mut svg = String::new();
    writeln!(
        svg,
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 840 380" font-family="sans-serif" font-size="12">
<rect width="840" height="380" fill="#ffffff"/>"##
    )?;
    let rate = Panel::new("hand-offs a second", 60.0, |point| point.rate, curves);
    rate.draw(&mut svg, curves)?;
    let worst = Panel::new("worst wait in ms", 480.0, |point| point.worst, curves);
    worst.draw(&mut svg, curves)?;
    let mut left = 60.0;
    for (curve, colour) in curves.iter().zip(COLOURS) {
        writeln!(
            svg,
            r#"<rect x="{left}" y="12" width="12" height="12" fill="{colour}"/><text x="{}" y="22">{}</text>"#,
            left + 18.0,
            curve.name
        )?;
        left += 190.0;
    }
    svg.push_str("</svg>\n");
    Ok(svg)
}

impl Panel {
    fn new(title: &'static str, left: f64, value: fn(&Point) -> f64, curves: &[Curve]) -> Self {
        let points = || curves.iter().flat_map(|curve| &curve.points);
        let logs = || points().map(|point| value(point).max(1.0).log10());
        let doublings = || points().map(|point| f64::from(point.processes).log2());
        Self {
            title,
            left,
            value,
            decades: (whole(least(logs()).floor()), whole(most(logs()).ceil())),
            doublings: (least(doublings()), most(doublings())),
        }
    }

    fn x(&self, processes: u32) -> f64 {
        let (first, last) = self.doublings;
        self.left + WIDTH * (f64::from(processes).log2() - first) / (last - first)
    }

    fn y(&self, value: f64) -> f64 {
        let (bottom, top) = self.decades;
        let share = (value.max(1.0).log10() - f64::from(bottom)) / f64::from(top - bottom);
        TOP + HEIGHT * (1.0 - share)
    }

    fn draw(&self, svg: &mut String, curves: &[Curve]) -> fmt::Result {
        let (left, right, bottom) = (self.left, self.left + WIDTH, TOP + HEIGHT);
        writeln!(
            svg,
            r#"<text x="{left}" y="48" font-weight="bold">{}</text>"#,
            self.title
        )?;
        for decade in self.decades.0..=self.decades.1 {
            let y = self.y(10f64.powi(decade));
            writeln!(
                svg,
                r##"<line x1="{left}" y1="{y:.1}" x2="{right}" y2="{y:.1}" stroke="#dddddd"/><text x="{}" y="{:.1}" text-anchor="end">{}</text>"##,
                left - 6.0,
                y + 4.0,
                10f64.powi(decade)
            )?;
        }
        for point in curves.iter().take(1).flat_map(|curve| &curve.points) {
            writeln!(
                svg,
                r#"<text x="{:.1}" y="{}" text-anchor="middle">{}</text>"#,
                self.x(point.processes),
                bottom + 18.0,
                point.processes
            )?;
        }
        writeln!(
            svg,
            r#"<text x="{}" y="{}" text-anchor="middle">processes that contend</text>"#,
            left + WIDTH / 2.0,
            bottom + 38.0
        )?;
        for (curve, colour) in curves.iter().zip(COLOURS) {
            let places = curve.points.iter();
            let places: Vec<_> = places
                .map(|point| (self.x(point.processes), self.y((self.value)(point))))
                .collect();
            write!(
                svg,
                r#"<polyline fill="none" stroke-width="2" stroke="{colour}" points=""#
            )?;
            for (x, y) in &places {
                write!(svg, "{x:.1},{y:.1} ")?;
            }
            writeln!(svg, r#""/>"#)?;
            for (x, y) in &places {
                writeln!(
                    svg,
                    r#"<circle cx="{x:.1}" cy="{y:.1}" r="3.5" fill="{colour}"/>"#
                )?;
            }
        }
        Ok(())
    }
}

fn least(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::INFINITY, f64::min)
}

fn most(values: impl Iterator<Item = f64>) -> f64 {
    values.fold(f64::NEG_INFINITY, f64::max)
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "the logarithm of a measurement is small"
)]
fn whole(value: f64) -> i32 {
    value as i32
}
