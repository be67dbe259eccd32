//! The wall clock of a server, set by a test.

use std::{fs::File, os::unix::fs::FileExt, path::PathBuf, sync::Arc, time::Duration};

use crate::preload::Preload;

/// The name of the file with the current shift, or with the time at which the clock is stopped.
const FILE: &str = "clock";

/// The length of its text: `shifted_clock.c` has room for it, and reads no more.
const WIDTH: usize = 31;

/// A wall clock that is right, ahead, behind or stopped. Servers that are started with
/// [`RedisServerBuilder::clock`](crate::RedisServerBuilder::clock) read it. Clones are the same clock.
#[derive(Debug, Clone)]
pub struct ShiftedClock {
    preload: Arc<Preload>,
    file: Arc<File>,
}

impl ShiftedClock {
    /// Makes a clock that is right at first.
    #[expect(clippy::new_without_default, reason = "it compiles a library")]
    pub fn new() -> Self {
        let preload = Preload::compile("shifted_clock.c");
        let file = File::create(preload.file(FILE)).expect("a file in the temporary folder");
        let clock = Self {
            preload: Arc::new(preload),
            file: Arc::new(file),
        };
        clock.write_shift(0);
        clock
    }

    /// Sets it ahead of the right time by this much.
    pub fn set_ahead(&self, by: Duration) {
        self.write_shift(i128::try_from(by.as_micros()).expect("a span of time"));
    }

    /// Sets it behind the right time by this much.
    pub fn set_back(&self, by: Duration) {
        self.write_shift(-i128::try_from(by.as_micros()).expect("a span of time"));
    }

    /// Sets it right.
    pub fn set_right(&self) {
        self.write_shift(0);
    }

    /// Stops it at this time since 1970, until it is set again.
    pub fn stop_at(&self, since_epoch: Duration) {
        let micros = since_epoch.as_micros();
        self.write(&format!("={micros:0width$}", width = WIDTH - 1));
    }

    /// Returns the environment variables for a server that uses it.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("LD_PRELOAD", self.preload.library()),
            ("SHIFTED_CLOCK", self.preload.file(FILE)),
        ]
    }

    fn write_shift(&self, micros: i128) {
        self.write(&format!("{micros:+0WIDTH$}"));
    }

    /// All texts have the same length, and the file is never emptied, so the server always reads a whole one.
    fn write(&self, text: &str) {
        let written = self.file.write_all_at(text.as_bytes(), 0);
        written.expect("a file in the temporary folder");
    }
}
