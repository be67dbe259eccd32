//! Counting the replies of several servers to one request.

use std::time::Duration;

use crate::{backend::redis::protocol::replies::SeenLock, failure::Failure};

/// The smallest number of servers that is more than half.
pub(crate) const fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// Whether no other client can have had a majority while this many servers have confirmed a lease, and this many have lost their data
/// too lately to vote since then. At least one has to confirm it: the lock may have been deleted everywhere.
pub(crate) const fn excludes_others(servers: usize, confirmed: usize, forgetful: usize) -> bool {
    confirmed > 0 && confirmed + forgetful >= majority(servers)
}

/// The replies of several servers to one request so far.
#[derive(Clone, Debug)]
pub(crate) struct Replies<T> {
    servers: usize,
    said: Vec<T>,
    failures: Vec<Failure>,
}

impl<T: Copy + PartialEq> Replies<T> {
    pub(crate) fn of(servers: usize) -> Self {
        Self {
            servers,
            said: Vec::new(),
            failures: Vec::new(),
        }
    }

    /// A failure is no reply, or none that counts.
    pub(crate) fn count(&mut self, reply: Result<T, Failure>) {
        match reply {
            Ok(said) => self.said.push(said),
            Err(failure) => self.failures.push(failure),
        }
    }

    pub(crate) fn count_of(&self, is_meant: impl Fn(&T) -> bool) -> usize {
        self.said.iter().filter(|said| is_meant(said)).count()
    }

    /// What a majority said, or that nothing can be what a majority says. `None` while missing replies may decide.
    pub(crate) fn result(&self) -> Option<Result<T, Failure>> {
        let count = |one: &T| self.said.iter().filter(|other| *other == one).count();
        let most = self.said.iter().copied().max_by_key(count);
        let agreed = most.as_ref().map_or(0, count);
        let (needed, silent) = (majority(self.servers), self.failures.len());
        if agreed >= needed {
            return most.map(Ok);
        }
        let open = self.servers - self.said.len() - silent;
        (agreed + open < needed).then(|| Err(no_majority(self.servers, &self.failures)))
    }
}

/// The failure if too few servers replied. What one of them finds wrong with the request itself is more to the point. If each of them
/// said that it has not executed the request and may soon do so, a retry may succeed.
pub(crate) fn no_majority(servers: usize, failures: &[Failure]) -> Failure {
    let invalid = |failure: &&Failure| matches!(failure, Failure::Invalid(_));
    if let Some(invalid) = failures.iter().find(invalid) {
        return invalid.clone();
    }
    let text = no_majority_text(servers, failures);
    let is_not_now = |failure: &Failure| matches!(failure, Failure::NotNow(_));
    if !failures.is_empty() && failures.iter().all(is_not_now) {
        return Failure::not_now(text);
    }
    let is_refused = |failure: &Failure| matches!(failure, Failure::Refused(_));
    if !failures.is_empty() && failures.iter().all(is_refused) {
        return Failure::refused(text);
    }
    Failure::no_reply(text)
}

pub(crate) fn no_majority_text(servers: usize, failures: &[Failure]) -> String {
    let mut reasons: Vec<String> = failures.iter().map(Failure::text).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let reasons = reasons.join("; ");
    format!("no majority of the {servers} servers answered: {reasons}")
}

/// What a majority reaches: the `majority`-th smallest of what is known of each server, if so many are known.
pub(crate) fn reached_by_majority<T: Ord + Copy>(servers: usize, mut known: Vec<T>) -> Option<T> {
    known.sort_unstable();
    known.get(majority(servers) - 1).copied()
}

/// The holder of a lock by the reports in `seen`, and for how long a majority has it. `None` while more reports may decide, or if they
/// never will: a silent server may have the same owner token.
#[expect(
    clippy::option_option,
    reason = "undecided, or no holder has a majority"
)]
pub(crate) fn holder_of_majority(
    servers: usize,
    seen: &[SeenLock],
) -> Option<Option<(&str, Option<Duration>)>> {
    let needed = majority(servers);
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
            let left = Some(left[left.len() - needed]);
            return Some(Some((token, left.filter(|left| *left != Duration::MAX))));
        }
    }
    (most + servers - seen.len() < needed).then_some(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the replies of five servers add up to.
    fn result(yes: usize, no: usize, silent: usize) -> Option<Result<bool, ()>> {
        let mut replies = Replies::of(5);
        let said = [(true, yes), (false, no)].into_iter();
        for (said, count) in said {
            (0..count).for_each(|_| replies.count(Ok(said)));
        }
        (0..silent).for_each(|_| replies.count(Err(Failure::no_reply("silent"))));
        replies.result().map(|result| result.map_err(drop))
    }

    #[test]
    fn a_majority_decides_as_soon_as_it_is_one() {
        assert_eq!(result(3, 0, 0), Some(Ok(true)));
        assert_eq!(result(3, 2, 0), Some(Ok(true)));
        assert_eq!(result(0, 3, 0), Some(Ok(false)));
        assert_eq!(result(2, 2, 0), None);
        assert_eq!(result(2, 0, 2), None);
    }

    #[test]
    fn a_lease_excludes_others_by_servers_that_confirm_it_and_those_that_do_not_vote() {
        // Of five: how many confirm it and how many have lost their data. Of the others any may have voted for another client.
        for (confirmed, forgetful, excludes) in [
            (3, 0, true),
            (3, 2, true),
            (2, 1, true),
            (1, 2, true),
            (2, 0, false),
            (1, 1, false),
            (2, 3, true),
            (0, 5, false),
        ] {
            let given = format!("{confirmed}, {forgetful}");
            assert_eq!(
                excludes_others(5, confirmed, forgetful),
                excludes,
                "{given}"
            );
        }
    }

    #[test]
    fn no_majority_is_no_word() {
        assert_eq!(result(2, 2, 1), Some(Err(())));
        assert_eq!(result(0, 0, 3), Some(Err(())));
        assert_eq!(result(2, 0, 3), Some(Err(())));
    }

    #[test]
    fn no_majority_may_pass_if_no_server_has_executed_the_request() {
        let is_definite = |failures: &[fn(&'static str) -> Failure]| {
            let failures: Vec<_> = failures.iter().map(|failure| failure("why")).collect();
            no_majority(3, &failures).is_definite()
        };
        let (late, away) = (Failure::no_reply, Failure::not_now);
        assert!(is_definite(&[away, away]));
        assert!(!is_definite(&[late, away]) && !is_definite(&[]));
        let refused = ["why"; 2].map(Failure::refused);
        assert!(!no_majority(3, &refused).is_transient());
    }

    #[test]
    fn the_slowest_of_the_fastest_majority_counts() {
        assert_eq!(reached_by_majority(5, vec![9, 1, 7, 3, 5]), Some(5));
        assert_eq!(reached_by_majority(5, vec![9, 1, 7]), Some(9));
        assert_eq!(reached_by_majority(5, vec![9, 1]), None);
    }

    #[test]
    fn a_lock_is_held_by_the_owner_token_of_a_majority_for_as_long_as_a_majority_has_it() {
        let of =
            |token: &str, seconds| Some((token.to_owned(), Some(Duration::from_secs(seconds))));
        let seen = [of("a", 9), of("b", 5), of("a", 7), of("a", 8)];
        let third = Duration::from_secs(7);
        assert_eq!(holder_of_majority(5, &seen), Some(Some(("a", Some(third)))));
        assert_eq!(
            holder_of_majority(5, &seen[..3]),
            None,
            "the silent ones may have it"
        );
        assert_eq!(
            holder_of_majority(5, &[None, of("b", 5), None]),
            None,
            "two to come"
        );
        assert_eq!(
            holder_of_majority(5, &[None, of("b", 5), None, None]),
            Some(None)
        );
        let endless = Some(("a".to_owned(), None));
        let seen = [endless.clone(), endless.clone(), endless];
        assert_eq!(holder_of_majority(5, &seen), Some(Some(("a", None))));
        let split = [of("a", 1), of("a", 1), of("b", 1), of("b", 1), None];
        assert_eq!(
            holder_of_majority(5, &split),
            Some(None),
            "no token has a majority"
        );
    }
}
