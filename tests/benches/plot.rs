//! Draws hand-offs per second and the worst wait against the number of processes.

use std::path::Path;

use crate::{
    sample::Samples,
    svg::{GUIDE, Picture, Place},
};

/// The curve of one contender.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    points: Vec<Point>,
}

struct Point {
    processes: u32,
    rate: f64,
    worst_wait_ms: f64,
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
            worst_wait_ms: samples.times().max().as_secs_f64() * 1e3,
        });
    }
}

const COLOURS: [&str; 4] = ["#888888", "#1f5fbf", "#c2561a", "#3a8a3a"];
const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 260.0;
const TOP: f64 = 60.0;

/// Writes the picture to a file: one panel for each of the two values, and the names of the contenders above them.
pub(crate) fn write(path: &Path, curves: &[Curve]) {
    let mut picture = Picture::new(840.0, 380.0);
    let named = curves.iter().zip(COLOURS);
    for ((curve, colour), left) in named.zip([60.0, 250.0, 440.0, 630.0]) {
        picture.bar((left, 12.0), (12.0, 12.0), colour);
        picture.text((left + 18.0, 22.0), "start", curve.name);
    }
    for (title, left, value) in [
        ("hand-offs per second", 60.0, rate as fn(&Point) -> f64),
        ("worst wait in ms", 480.0, worst_wait),
    ] {
        picture.text((left, 48.0), "start", title);
        panel(&mut picture, curves, left, value);
    }
    picture.write(path);
}

fn rate(point: &Point) -> f64 {
    point.rate
}

fn worst_wait(point: &Point) -> f64 {
    point.worst_wait_ms
}

/// Draws a panel with logarithmic axes.
fn panel(picture: &mut Picture, curves: &[Curve], left: f64, value: fn(&Point) -> f64) {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (bottom, top) = bounds(points().map(|point| value(point).max(1.0).log10()));
    let (bottom, top) = (bottom.floor(), top.ceil());
    let (first, last) = bounds(points().map(|point| f64::from(point.processes).log2()));
    let x = |processes: u32| left + WIDTH * (f64::from(processes).log2() - first) / (last - first);
    let y = |log: f64| TOP + HEIGHT * (top - log) / (top - bottom);

    let mut decade = bottom;
    while decade <= top {
        let (y, text) = (y(decade), 10f64.powf(decade).to_string());
        picture.line((left, y), (left + WIDTH, y), GUIDE);
        picture.text((left - 6.0, y + 4.0), "end", &text);
        decade += 1.0;
    }
    for point in &curves[0].points {
        let place = (x(point.processes), TOP + HEIGHT + 18.0);
        picture.text(place, "middle", &point.processes.to_string());
    }
    let below = (left + WIDTH / 2.0, TOP + HEIGHT + 38.0);
    picture.text(below, "middle", "contending processes");
    for (curve, colour) in curves.iter().zip(COLOURS) {
        let place = |point: &Point| (x(point.processes), y(value(point).max(1.0).log10()));
        let places: Vec<Place> = curve.points.iter().map(place).collect();
        for pair in places.windows(2) {
            let stroke = format!("stroke='{colour}' stroke-width='2'");
            picture.line(pair[0], pair[1], &stroke);
        }
        for place in places {
            picture.dot(place, colour);
        }
    }
}

/// Returns the smallest and the largest of some values.
fn bounds(values: impl Iterator<Item = f64>) -> (f64, f64) {
    values.fold(
        (f64::INFINITY, f64::NEG_INFINITY),
        |(least, most), value| (least.min(value), most.max(value)),
    )
}
