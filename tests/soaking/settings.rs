//! Reads the command line.

use std::{fmt, str::FromStr, time::Duration};

use crate::topology::Topology;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Settings {
    pub(crate) topology: Topology,
    /// The length of the soak with its faults.
    pub(crate) span: Duration,
    pub(crate) seed: u64,
    pub(crate) longest_ttl: Duration,
}

const USAGE: &str = "soak --topology one|sentinel|cluster|redlock|resp2|without-scripts [--minutes N | --seconds N] \
                     [--seed S] [--longest-ttl MS], or soak stall";

impl Settings {
    pub(crate) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut topology = None;
        let mut settings = Self {
            topology: Topology::One,
            span: Duration::from_secs(60),
            seed: 1,
            longest_ttl: Duration::MAX,
        };
        let (pairs, rest) = arguments.as_chunks::<2>();
        for [option, value] in pairs {
            match option.as_str() {
                "--topology" => topology = Some(word(value)?),
                "--minutes" => settings.span = Duration::from_secs(60 * word::<u64>(value)?),
                "--seconds" => settings.span = Duration::from_secs(word(value)?),
                "--seed" => settings.seed = word(value)?,
                "--longest-ttl" => settings.longest_ttl = Duration::from_millis(word(value)?),
                _ => return Err(USAGE.to_owned()),
            }
        }
        if !rest.is_empty() {
            return Err(USAGE.to_owned());
        }
        settings.topology = topology.ok_or(USAGE)?;
        settings.longest_ttl = settings.longest_ttl.min(settings.topology.longest_ttl());
        Ok(settings)
    }
}

fn word<T: FromStr>(word: &str) -> Result<T, String> {
    word.parse().map_err(|_| format!("`{word}`? {USAGE}"))
}

/// Shows the arguments that repeat the run.
impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "--topology {} --seconds {} --seed {} --longest-ttl {}",
            self.topology.name(),
            self.span.as_secs(),
            self.seed,
            self.longest_ttl.as_millis()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Settings, String> {
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        Settings::parse(&words)
    }

    #[test]
    fn what_is_shown_is_read_back() {
        let settings = parse("--minutes 2 --topology redlock --seed 9").expect("good");
        assert_eq!(settings.span, Duration::from_secs(120));
        assert_eq!(parse(&settings.to_string()), Ok(settings));
    }

    #[test]
    fn anything_else_is_answered_with_how_it_is_to_be() {
        for line in [
            "--minutes 2",
            "--topology",
            "--topology other",
            "--topology one --seed x",
            "one",
        ] {
            assert!(parse(line).expect_err(line).contains(USAGE));
        }
    }
}
