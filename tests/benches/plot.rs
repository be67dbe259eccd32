//! Draws the results of several contenders as SVG.

use std::{fs, path::Path};

/// A picture of two panels, side by side.
pub(crate) struct Plot {
    pub(crate) contenders: Vec<&'static str>,
    pub(crate) panels: [Panel; 2],
}

/// The values of the contenders on a logarithmic axis.
pub(crate) struct Panel {
    pub(crate) title: &'static str,
    /// The labels of the horizontal axis.
    pub(crate) labels: Vec<String>,
    /// For each contender, a value at each label.
    pub(crate) values: Vec<Vec<f64>>,
}

const COLOURS: [&str; 4] = ["#1f5fbf", "#c2561a", "#3a8a3a", "#888888"];
const WIDTH: f64 = 320.0;
const HEIGHT: f64 = 260.0;
const TOP: f64 = 60.0;

impl Plot {
    /// Writes the picture to a file.
    pub(crate) fn write(&self, path: &Path) {
        let mut svg = "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 840 360' font-family='sans-serif' font-size='12'>\n\
                       <rect width='840' height='360' fill='#ffffff'/>\n"
            .to_owned();
        let lefts = [60.0, 250.0, 440.0, 630.0];
        for ((contender, colour), left) in self.contenders.iter().zip(COLOURS).zip(lefts) {
            svg += &dot(left, 18.0, colour);
            svg += &text(left + 10.0, 22.0, "start", contender);
        }
        for (panel, left) in self.panels.iter().zip([60.0, 480.0]) {
            panel.draw(&mut svg, left);
        }
        fs::write(path, svg + "</svg>\n").expect("a writable folder");
    }
}

impl Panel {
    fn draw(&self, svg: &mut String, left: f64) {
        let logs = || {
            let values = self.values.iter().flatten();
            values.map(|value| value.max(1.0).log10())
        };
        let bottom = logs().fold(f64::INFINITY, f64::min).floor();
        let top = logs().fold(f64::NEG_INFINITY, f64::max).ceil();
        let y = |log: f64| TOP + HEIGHT * (top - log) / (top - bottom).max(1.0);
        let step = WIDTH / f64::from(u32::try_from(self.labels.len()).expect("a few"));
        let xs = || std::iter::successors(Some(left + step / 2.0), |x| Some(x + step));

        *svg += &text(left, 48.0, "start", self.title);
        let mut decade = bottom;
        while decade <= top {
            let y = y(decade);
            *svg += &line((left, y), (left + WIDTH, y), "#dddddd");
            *svg += &text(left - 6.0, y + 4.0, "end", &10f64.powf(decade).to_string());
            decade += 1.0;
        }
        for (label, x) in self.labels.iter().zip(xs()) {
            *svg += &text(x, TOP + HEIGHT + 20.0, "middle", label);
        }
        for (values, colour) in self.values.iter().zip(COLOURS) {
            let ys = values.iter().map(|value| y(value.max(1.0).log10()));
            let places: Vec<(f64, f64)> = xs().zip(ys).collect();
            for pair in places.windows(2) {
                *svg += &line(pair[0], pair[1], colour);
            }
            for (x, y) in places {
                *svg += &dot(x, y, colour);
            }
        }
    }
}

fn text(x: f64, y: f64, anchor: &str, text: &str) -> String {
    format!("<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{text}</text>\n")
}

fn line((x1, y1): (f64, f64), (x2, y2): (f64, f64), colour: &str) -> String {
    format!("<path d='M{x1:.1} {y1:.1} L{x2:.1} {y2:.1}' stroke='{colour}' stroke-width='2'/>\n")
}

fn dot(x: f64, y: f64, colour: &str) -> String {
    format!("<circle cx='{x:.1}' cy='{y:.1}' r='4' fill='{colour}'/>\n")
}
