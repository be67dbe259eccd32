//! The shapes of a diagram, written as SVG.

use std::{
    fmt::{Arguments, Write},
    fs,
    path::Path,
};

/// A place in the picture: from the left, and from the top.
pub(crate) type Place = (f64, f64);

/// The side of a text that is at its place.
#[derive(Clone, Copy)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A picture with a white ground.
pub(crate) struct Picture(String);

impl Picture {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        let mut picture = Self(String::new());
        picture.add(format_args!(
            r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">
<rect width="{width}" height="{height}" fill="#ffffff"/>"##
        ));
        picture
    }

    pub(crate) fn title(&mut self, (x, y): Place, text: &str) {
        self.add(format_args!(
            r#"<text x="{x}" y="{y}" font-weight="bold">{text}</text>"#
        ));
    }

    pub(crate) fn text(&mut self, (x, y): Place, anchor: Anchor, text: &str) {
        let anchor = match anchor {
            Anchor::Start => "",
            Anchor::Middle => r#" text-anchor="middle""#,
            Anchor::End => r#" text-anchor="end""#,
        };
        self.add(format_args!(
            r#"<text x="{x:.1}" y="{y:.1}"{anchor}>{text}</text>"#
        ));
    }

    /// A thin line behind the data.
    pub(crate) fn guide(&mut self, from: Place, to: Place) {
        self.line(from, to, r##"stroke="#dddddd""##);
    }

    pub(crate) fn dashes(&mut self, from: Place, to: Place) {
        self.line(from, to, r##"stroke="#888888" stroke-dasharray="4 3""##);
    }

    pub(crate) fn span(&mut self, from: Place, to: Place, colour: &str) {
        self.line(from, to, &format!(r#"stroke="{colour}" stroke-width="3""#));
    }

    /// Lines from place to place.
    pub(crate) fn curve(&mut self, places: &[Place], colour: &str) {
        let places = list(places);
        self.add(format_args!(
            r#"<polyline fill="none" stroke-width="2" stroke="{colour}" points="{places}"/>"#
        ));
    }

    pub(crate) fn shape(&mut self, places: &[Place], colour: &str) {
        let places = list(places);
        self.add(format_args!(
            r#"<polygon points="{places}" fill="{colour}"/>"#
        ));
    }

    pub(crate) fn dot(&mut self, (x, y): Place, radius: f64, colour: &str) {
        self.add(format_args!(
            r#"<circle cx="{x:.1}" cy="{y:.1}" r="{radius}" fill="{colour}"/>"#
        ));
    }

    pub(crate) fn bar(&mut self, (x, y): Place, (width, height): (f64, f64), colour: &str) {
        self.add(format_args!(
            r#"<rect x="{x}" y="{y}" width="{width:.1}" height="{height}" fill="{colour}"/>"#
        ));
    }

    /// Writes the picture to a file.
    pub(crate) fn write(mut self, path: &Path) {
        self.add(format_args!("</svg>"));
        fs::write(path, self.0).expect("a folder that can be written");
    }

    fn line(&mut self, from: Place, to: Place, stroke: &str) {
        self.add(format_args!(
            r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" {stroke}/>"#,
            from.0, from.1, to.0, to.1
        ));
    }

    fn add(&mut self, shape: Arguments<'_>) {
        writeln!(self.0, "{shape}").expect("text can be written to a string");
    }
}

fn list(places: &[Place]) -> String {
    let places = places.iter().map(|(x, y)| format!("{x:.1},{y:.1} "));
    places.collect()
}
