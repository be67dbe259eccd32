//! Which task runs now.

use std::thread::{self, ThreadId};

use tokio::task;

/// A task of tokio, or a thread that blocks on a future.
#[derive(PartialEq, Eq)]
pub(super) enum RunningTask {
    Task(task::Id),
    Thread(ThreadId),
}

impl RunningTask {
    pub(super) fn current() -> Self {
        match task::try_id() {
            Some(id) => Self::Task(id),
            None => Self::Thread(thread::current().id()),
        }
    }
}
