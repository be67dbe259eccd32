//! The command line.

use std::{fmt, time::Duration};

use clap::{Parser, ValueEnum};

use crate::topology::Topology;

/// Locks in every possible way, on servers with every kind of fault, and checks every promise.
///
/// `soak stall` instead has one process hold 100,000 leases while the server is stopped, the connection is cut, and every core is
/// busy.
#[derive(Debug, Clone, Parser)]
pub(crate) struct Settings {
    #[arg(long)]
    pub(crate) topology: Topology,
    #[arg(long, conflicts_with = "seconds")]
    minutes: Option<u64>,
    #[arg(long, default_value = "60")]
    seconds: u64,
    /// The same seed makes the same faults in the same order.
    #[arg(long, default_value = "1")]
    pub(crate) seed: u64,
    /// The longest ttl of all locks, in milliseconds.
    #[arg(long)]
    longest_ttl: Option<u64>,
}

impl Settings {
    /// Returns the length of the soak.
    pub(crate) fn span(&self) -> Duration {
        Duration::from_secs(self.minutes.map_or(self.seconds, |minutes| 60 * minutes))
    }

    pub(crate) fn longest_ttl(&self) -> Duration {
        let longest = self.topology.longest_ttl();
        let asked = self.longest_ttl.map(Duration::from_millis);
        asked.map_or(longest, |asked| asked.min(longest))
    }
}

/// Shows the arguments that repeat the run.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let topology = self.topology.to_possible_value();
        write!(
            f,
            "--topology {} --seconds {} --seed {} --longest-ttl {}",
            topology.expect("all are listed").get_name(),
            self.span().as_secs(),
            self.seed,
            self.longest_ttl().as_millis()
        )
    }
}
