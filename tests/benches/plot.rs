//! Draws the hand-offs a second and the worst wait against the number of processes.

use std::path::Path;

use crate::{
    sample::Samples,
    svg::{Anchor, Picture},
};

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
    let mut picture = Picture::new(840.0, 380.0);
    let rate = Panel::new("hand-offs a second", 60.0, |point| point.rate, curves);
    rate.draw(&mut picture, curves);
    let worst = Panel::new("worst wait in ms", 480.0, |point| point.worst, curves);
    worst.draw(&mut picture, curves);
    let mut left = 60.0;
    for (curve, colour) in curves.iter().zip(COLOURS) {
        picture.bar((left, 12.0), (12.0, 12.0), colour);
        picture.text((left + 18.0, 22.0), Anchor::Start, curve.name);
        left += 190.0;
    }
    picture.write(path);
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

    fn draw(&self, picture: &mut Picture, curves: &[Curve]) {
        let (left, right, bottom) = (self.left, self.left + WIDTH, TOP + HEIGHT);
        picture.title((left, 48.0), self.title);
        for decade in self.decades.0..=self.decades.1 {
            let value = 10f64.powi(decade);
            let y = self.y(value);
            picture.guide((left, y), (right, y));
            picture.text((left - 6.0, y + 4.0), Anchor::End, &value.to_string());
        }
        for point in curves.iter().take(1).flat_map(|curve| &curve.points) {
            let place = (self.x(point.processes), bottom + 18.0);
            picture.text(place, Anchor::Middle, &point.processes.to_string());
        }
        let below = (left + WIDTH / 2.0, bottom + 38.0);
        picture.text(below, Anchor::Middle, "processes that contend");
        for (curve, colour) in curves.iter().zip(COLOURS) {
            let points = curve.points.iter();
            let places: Vec<_> = points
                .map(|point| (self.x(point.processes), self.y((self.value)(point))))
                .collect();
            picture.curve(&places, colour);
            for place in places {
                picture.dot(place, 3.5, colour);
            }
        }
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
