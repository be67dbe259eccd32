//! A server's wall clock that a test can set.

use std::{fs, path::PathBuf, time::Duration};

use crate::preload::Preload;

/// The time by which the wall clock of a server is ahead or behind; see
/// [`RedisServerBuilder::clock`](crate::RedisServerBuilder::clock).
#[derive(Debug)]
pub struct ShiftedClock {
    preload: Preload,
}

impl ShiftedClock {
    /// Makes one that is right, for now.
    #[expect(clippy::new_without_default, reason = "it compiles a library")]
    pub fn new() -> Self {
        let clock = Self {
            preload: Preload::compile("clock/shift.c"),
        };
        clock.write(0);
        clock
    }

    /// Sets it ahead of the right time.
    pub fn set_ahead(&self, by: Duration) {
        self.write(i128::try_from(by.as_micros()).expect("a span of time"));
    }

    /// Sets it behind the right time.
    pub fn set_back(&self, by: Duration) {
        self.write(-i128::try_from(by.as_micros()).expect("a span of time"));
    }

    /// Sets it right.
    pub fn set_right(&self) {
        self.write(0);
    }

    /// The environment variables that a server is to be started with.
    pub(crate) fn environment(&self) -> [(&'static str, PathBuf); 2] {
        [
            ("LD_PRELOAD", self.preload.library()),
            ("SHIFTED_CLOCK", self.file()),
        ]
    }

    fn write(&self, micros: i128) {
        // Each text has the length of the longest one, so that the server never reads half a number.
        fs::write(self.file(), format!("{micros:+031}")).expect("a file in the temporary folder");
    }

    fn file(&self) -> PathBuf {
        self.preload.file("shift")
    }
}
