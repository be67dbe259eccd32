//! A log in memory, for a test to read.

use std::{
    io::{self, Write},
    sync::{Arc, LazyLock, Mutex, PoisonError},
};

use tracing_subscriber::fmt::format::FmtSpan;

use crate::RedisServer;

/// A writer that keeps everything in memory. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    /// Returns the log of the whole process since the first call, at all levels and from all threads. Each manager has a thread of
    /// its own.
    ///
    /// # Panics
    ///
    /// If the process already has another subscriber.
    pub fn of_the_process() -> &'static Self {
        static LOG: LazyLock<Log> = LazyLock::new(|| {
            let log = Log::default();
            let writer = log.clone();
            tracing_subscriber::fmt()
                .with_max_level(tracing::Level::TRACE)
                .with_span_events(FmtSpan::CLOSE)
                .with_ansi(false)
                .with_writer(move || writer.clone())
                .init();
            log
        });
        &LOG
    }

    /// Returns the text that was written so far.
    pub fn text(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8(bytes.clone()).expect("text")
    }

    /// Returns the lines of a level, such as `WARN`, that name a server by its address.
    pub fn lines_about(&self, server: &RedisServer, level: &str) -> String {
        let address = format!("127.0.0.1:{}", server.port());
        let (text, level) = (self.text(), format!(" {level} "));
        let lines = text.lines();
        let lines = lines.filter(|line| line.contains(&address) && line.contains(&level));
        lines.fold(String::new(), |text, line| text + line + "\n")
    }
}

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
