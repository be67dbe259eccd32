//! A diagram, written as SVG.

use std::{
    fmt::{Arguments, Write},
    fs,
    path::Path,
};

/// A position in the picture: from the left, and from the top.
pub(crate) type Place = (f64, f64);

/// The stroke of a thin line in the background.
pub(crate) const GUIDE: &str = "stroke='#dddddd'";

/// A picture on a white background.
pub(crate) struct Picture(String);

impl Picture {
    pub(crate) fn new(width: f64, height: f64) -> Self {
        let mut picture = Self(String::new());
        picture.add(format_args!(
            "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' font-family='sans-serif' font-size='12'>\n\
             <rect width='{width}' height='{height}' fill='#ffffff'/>"
        ));
        picture
    }

    /// Adds an element of SVG.
    pub(crate) fn add(&mut self, element: Arguments<'_>) {
        writeln!(self.0, "{element}").expect("text can be written to a string");
    }

    /// Adds a text; `anchor` is the part of it that is at the position: `start`, `middle` or `end`.
    pub(crate) fn text(&mut self, (x, y): Place, anchor: &str, text: &str) {
        self.add(format_args!(
            "<text x='{x:.1}' y='{y:.1}' text-anchor='{anchor}'>{text}</text>"
        ));
    }

    pub(crate) fn line(&mut self, (x1, y1): Place, (x2, y2): Place, stroke: &str) {
        self.add(format_args!(
            "<line x1='{x1:.1}' y1='{y1:.1}' x2='{x2:.1}' y2='{y2:.1}' {stroke}/>"
        ));
    }

    pub(crate) fn dot(&mut self, (x, y): Place, colour: &str) {
        self.add(format_args!(
            "<circle cx='{x:.1}' cy='{y:.1}' r='4' fill='{colour}'/>"
        ));
    }

    pub(crate) fn bar(&mut self, (x, y): Place, (width, height): (f64, f64), colour: &str) {
        self.add(format_args!(
            "<rect x='{x}' y='{y}' width='{width:.1}' height='{height}' fill='{colour}'/>"
        ));
    }

    /// Writes the picture to a file.
    pub(crate) fn write(mut self, path: &Path) {
        self.add(format_args!("</svg>"));
        fs::write(path, self.0).expect("a writable folder");
    }
}
