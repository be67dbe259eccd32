//! Searches the log of the contenders for secrets, and counts the reasons of losses and failures.

use std::{collections::BTreeMap, io, path::Path};

use lock_tests::history::Tail;

use crate::topology::PASSWORD;

/// The number of bytes of the log that stay on the disk.
const KEPT: u64 = 64 << 20;

/// The prefixes of owner tokens, and the length of their random part, which must not appear without a prefix either.
const SCHEMES: [&str; 2] = ["lc1:", "lc0:"];
const RANDOM_DIGITS: usize = 32;

/// The log of all contenders, read as it is written.
#[derive(Debug)]
pub(crate) struct Log {
    tail: Tail,
    pub(crate) lines: u64,
    /// The number of lost leases, by reason.
    pub(crate) losses: BTreeMap<String, u64>,
    /// The number of acquires that failed although the lock was not busy, by reason.
    pub(crate) failures: BTreeMap<String, u64>,
}

impl Log {
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        Ok(Self {
            tail: Tail::open(path)?,
            lines: 0,
            losses: BTreeMap::new(),
            failures: BTreeMap::new(),
        })
    }

    /// Searches the new lines. Returns those with a secret.
    pub(crate) fn look(&mut self) -> Vec<String> {
        let mut found = Vec::new();
        for line in self.tail.lines().lines() {
            self.lines += 1;
            if has_secret(line) {
                found.push(line.to_owned());
            }
            if let Some(reason) = line.strip_prefix("loss: ") {
                *self.losses.entry(reason.to_owned()).or_default() += 1;
            }
            if let Some(failure) = line.strip_prefix("failure: ") {
                // Without the key, and without numbers, which differ from one failure to the next.
                let words = failure
                    .split_whitespace()
                    .filter(|word| !word.contains(|c: char| c.is_ascii_digit()));
                let words: Vec<&str> = words.take(24).collect();
                *self.failures.entry(words.join(" ")).or_default() += 1;
            }
        }
        self.tail.prune(KEPT);
        found
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
    fn passwords_and_owner_tokens_are_secrets_but_fencing_tokens_are_not() {
        assert!(has_secret("redis://:correct-horse-battery@127.0.0.1"));
        assert!(has_secret("key holds lc1:host/7:"));
        assert!(has_secret("key holds lc0:host/7:"));
        assert!(has_secret("token=0123456789abcdef0123456789abcdef."));
        assert!(!has_secret(
            "fencing token 1795151176455149, lease lost key=hot-0"
        ));
    }
}
