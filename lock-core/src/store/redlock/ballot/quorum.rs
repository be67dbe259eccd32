//! Counting the replies of several servers to one request.

use std::time::Duration;

use crate::store::{Failure, redis::voting_server::SeenLock};

/// The smallest number of servers that is more than half.
pub(crate) const fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// The replies to one request so far.
#[derive(Clone, Copy, Debug)]
pub(crate) struct VoteCount {
    servers: usize,
    yes: usize,
    no: usize,
    silent: usize,
}

/// What the replies add up to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// A majority said so.
    Yes,
    No,
    /// Neither can have a majority any more.
    Nobody,
}

impl VoteCount {
    pub(crate) fn of(servers: usize) -> Self {
        Self {
            servers,
            yes: 0,
            no: 0,
            silent: 0,
        }
    }

    /// A server said yes or no; a failure is no reply, or none that counts.
    pub(crate) fn count(&mut self, said: Result<bool, &Failure>) {
        match said {
            Ok(true) => self.yes += 1,
            Ok(false) => self.no += 1,
            Err(_) => self.silent += 1,
        }
    }

    /// `None` while missing replies may decide.
    pub(crate) fn verdict(&self) -> Option<Verdict> {
        let needed = majority(self.servers);
        let open = self.servers - self.yes - self.no - self.silent;
        if self.yes >= needed {
            Some(Verdict::Yes)
        } else if self.no >= needed {
            Some(Verdict::No)
        } else if self.yes + open < needed && self.no + open < needed {
            Some(Verdict::Nobody)
        } else {
            None
        }
    }
}

/// What a majority reaches: the `majority`-th smallest of what is known of each server, if so many are known.
pub(crate) fn reached_by_majority<T: Ord + Copy>(servers: usize, mut known: Vec<T>) -> Option<T> {
    known.sort_unstable();
    known.get(majority(servers) - 1).copied()
}

/// The holder of a lock by the reports in `seen`, and for how long a majority has it. `silent` servers gave no report. `None`
/// while more replies may decide, or if they never will.
#[expect(
    clippy::option_option,
    reason = "undecided, or no holder has a majority"
)]
pub(crate) fn whose(
    servers: usize,
    seen: &[SeenLock],
    silent: usize,
) -> Option<Option<(&str, Option<Duration>)>> {
    let needed = majority(servers);
    let open = servers - seen.len() - silent;
    let mut most = 0;
    for (token, _) in seen.iter().flatten() {
        let with_it = seen.iter().flatten().filter(|(other, _)| other == token);
        // No expiry counts as longer than all.
        let mut left: Vec<_> = with_it
            .map(|(_, left)| left.unwrap_or(Duration::MAX))
            .collect();
        most = most.max(left.len());
        if left.len() >= needed {
            left.sort_unstable();
            let left = left[left.len() - needed];
            return Some(Some((
                token,
                Some(left).filter(|left| *left != Duration::MAX),
            )));
        }
    }
    // The silent servers may have the same token, and so make a majority.
    (most + open + silent < needed).then_some(None)
}

/// The message if too few servers replied.
pub(crate) fn no_majority(servers: usize, failures: &[Failure]) -> String {
    let mut reasons: Vec<String> = failures.iter().map(reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    format!(
        "no majority of the {servers} servers answered: {}",
        reasons.join("; ")
    )
}

pub(crate) fn reason(failure: &Failure) -> String {
    match failure {
        Failure::NoAnswer(source) | Failure::NotNow(source) | Failure::Refused(source) => {
            source.to_string()
        }
        Failure::Invalid(reason) => reason.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(yes: usize, no: usize, silent: usize) -> Option<Verdict> {
        VoteCount {
            servers: 5,
            yes,
            no,
            silent,
        }
        .verdict()
    }

    #[test]
    fn a_majority_decides_as_soon_as_it_is_one() {
        assert_eq!(tally(3, 0, 0), Some(Verdict::Yes));
        assert_eq!(tally(3, 2, 0), Some(Verdict::Yes));
        assert_eq!(tally(0, 3, 0), Some(Verdict::No));
        assert_eq!(tally(2, 2, 0), None);
        assert_eq!(tally(2, 0, 2), None);
    }

    #[test]
    fn no_majority_is_no_word() {
        assert_eq!(tally(2, 2, 1), Some(Verdict::Nobody));
        assert_eq!(tally(0, 0, 3), Some(Verdict::Nobody));
        assert_eq!(tally(2, 0, 3), Some(Verdict::Nobody));
    }

    #[test]
    fn the_slowest_of_the_fastest_majority_counts() {
        assert_eq!(reached_by_majority(5, vec![9, 1, 7, 3, 5]), Some(5));
        assert_eq!(reached_by_majority(5, vec![9, 1, 7]), Some(9));
        assert_eq!(reached_by_majority(5, vec![9, 1]), None);
    }

    #[test]
    fn a_lock_is_whose_a_majority_has_it_for_as_long_as_a_majority_does() {
        let of =
            |token: &str, seconds| Some((token.to_owned(), Some(Duration::from_secs(seconds))));
        let seen = [of("a", 9), of("b", 5), of("a", 7), of("a", 8)];
        let third = Duration::from_secs(7);
        assert_eq!(whose(5, &seen, 0), Some(Some(("a", Some(third)))));
        assert_eq!(whose(5, &seen[..3], 2), None, "the silent ones may have it");
        assert_eq!(whose(5, &[None, of("b", 5), None], 0), None, "two to come");
        assert_eq!(whose(5, &[None, of("b", 5), None, None], 0), Some(None));
        let endless = Some(("a".to_owned(), None));
        let seen = [endless.clone(), endless.clone(), endless];
        assert_eq!(whose(5, &seen, 0), Some(Some(("a", None))));
        let split = [of("a", 1), of("a", 1), of("b", 1), of("b", 1), None];
        assert_eq!(whose(5, &split, 0), Some(None), "no token has a majority");
    }
}
