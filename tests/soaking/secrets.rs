//! Searches the log of the contenders for secrets, and for the reasons of lost leases.

use std::{collections::BTreeMap, io, path::Path};

use lock_tests::history::Tail;

use crate::topology::PASSWORD;

/// The number of bytes of the log that stay on the disk.
const KEPT: u64 = 64 << 20;

/// The most secrets that are kept for the report.
const MOST_FOUND: usize = 100;

/// The prefixes of owner tokens, and the length of their random part, which must not appear without a prefix either.
const SCHEMES: [&str; 2] = ["lc1:", "lc0:"];
const RANDOM_DIGITS: usize = 32;

/// The log of all contenders, as it is written.
#[derive(Debug)]
pub(crate) struct Log {
    tail: Tail,
    found: Vec<String>,
    lines: u64,
    losses: BTreeMap<String, u64>,
    failures: BTreeMap<String, u64>,
}

impl Log {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            tail: Tail::open(path)?,
            found: Vec::new(),
            lines: 0,
            losses: BTreeMap::new(),
            failures: BTreeMap::new(),
        })
    }

    /// Searches the new lines.
    pub(crate) fn look(&mut self) {
        for line in self.tail.lines().lines() {
            self.lines += 1;
            if has_secret(line) && self.found.len() < MOST_FOUND {
                self.found.push(line.to_owned());
            }
            if let Some(reason) = line.strip_prefix("loss: ") {
                *self.losses.entry(reason.to_owned()).or_default() += 1;
            }
            if let Some(failure) = line.strip_prefix("failure: ") {
                // The reason is kept without the key and without other words that differ from one failure to the next.
                let words = failure
                    .split_whitespace()
                    .filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
                let words: Vec<&str> = words.take(24).collect();
                *self.failures.entry(words.join(" ")).or_default() += 1;
            }
        }
        self.tail.prune(KEPT);
    }

    /// Returns the lines with a secret.
    pub(crate) fn found(&self) -> &[String] {
        &self.found
    }

    /// Returns how many lines there were.
    pub(crate) fn lines(&self) -> u64 {
        self.lines
    }

    /// Returns how often leases were lost, by reason.
    pub(crate) fn losses(&self) -> &BTreeMap<String, u64> {
        &self.losses
    }

    /// Returns how often an acquire failed although the lock was not busy, by reason.
    pub(crate) fn failures(&self) -> &BTreeMap<String, u64> {
        &self.failures
    }
}

fn has_secret(line: &str) -> bool {
    let words = line.split(|c: char| !c.is_ascii_hexdigit());
    line.contains(PASSWORD)
        || SCHEMES.iter().any(|scheme| line.contains(scheme))
        || words.into_iter().any(|word| word.len() == RANDOM_DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_and_tokens_are_found_and_fencing_tokens_are_none() {
        assert!(has_secret("redis://:correct-horse-battery@127.0.0.1"));
        assert!(has_secret("key holds lc1:host/7:"));
        assert!(has_secret("key holds lc0:host/7:"));
        assert!(has_secret("token=0123456789abcdef0123456789abcdef."));
        assert!(!has_secret(
            "fencing token 1795151176455149, lease lost key=hot-0"
        ));
    }
}
