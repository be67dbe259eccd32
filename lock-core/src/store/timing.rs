//! Bounds on how long a store may take.

use std::time::Duration;

use crate::error::LockError;

/// Bounds on how long things take. See the setters of the builder.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Timing {
    pub(crate) connect_timeout: Duration,
    pub(crate) command_timeout: Duration,
    pub(crate) polling_pause: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            connect_timeout: Duration::from_secs(2),
            command_timeout: Duration::from_secs(1),
            polling_pause: Duration::from_millis(50),
        }
    }
}

impl Timing {
    pub(crate) fn check(self) -> Result<(), LockError> {
        let bounds = [
            (
                "connect_timeout",
                self.connect_timeout,
                Duration::from_millis(10),
            ),
            (
                "command_timeout",
                self.command_timeout,
                Duration::from_millis(10),
            ),
            (
                "polling_pause",
                self.polling_pause,
                Duration::from_millis(1),
            ),
        ];
        let most = Duration::from_secs(60);
        for (name, value, least) in bounds {
            if value < least || value > most {
                return Err(LockError::invalid(format!(
                    "{name} is {value:?}: choose between {least:?} and {most:?}"
                )));
            }
        }
        Ok(())
    }
}
