//! The wall clock of a server, set by a test.

use std::{fs::File, os::unix::fs::FileExt, path::PathBuf, time::Duration};

use crate::preload::Preload;

/// The name of the file with the current shift.
const SHIFT: &str = "shift";

/// A wall clock that is right, ahead, behind or stopped. Servers that are started with
/// [`RedisServerBuilder::clock`](crate::RedisServerBuilder::clock) read it.
#[derive(Debug)]
pub struct ShiftedClock {
    preload: Preload,
    file: File,
}

impl ShiftedClock {
    /// Makes a clock that is right at first.
    #[expect(clippy::new_without_default, reason = "it compiles a library")]
    pub fn new() -> Self {
        let preload = Preload::compile("shifted_clock.c");
        let file = File::create(preload.file(SHIFT)).expect("a file in the temporary folder");
        let clock = Self { preload, file };
        clock.write(0);
        clock
    }

    /// Sets it ahead of the right time by this much.
    pub fn set_ahead(&self, by: Duration) {
        self.write(i128::try_from(by.as_micros()).expect("a span of time"));
    }

    /// Sets it behind the right time by this much.
    pub fn set_back(&self, by: Duration) {
        self.write(-i128::try_from(by.as_micros()).expect("a span of time"));
    }

    /// Sets it right.
    pub fn set_right(&self) {
        self.write(0);
    }

    /// Stops it at this time since 1970, until it is set again.
    pub fn stop_at(&self, since_epoch: Duration) {
        self.write_text(&format!("={:030}", since_epoch.as_micros()));
    }

    /// Returns the environment variables for a server that uses it.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("LD_PRELOAD", self.preload.library()),
            ("SHIFTED_CLOCK", self.preload.file(SHIFT)),
        ]
    }

    fn write(&self, micros: i128) {
        self.write_text(&format!("{micros:+031}"));
    }

    /// All texts have the same length, and the file is never emptied, so the server always reads a whole one.
    fn write_text(&self, text: &str) {
        let written = self.file.write_all_at(text.as_bytes(), 0);
        written.expect("a file in the temporary folder");
    }
}
