//! The combined result of the replies of several servers to one request.

use std::{cmp::Reverse, time::Duration};

use crate::{backend::redis::protocol::replies::SeenLock, failure::Failure};

/// The smallest number of servers that is more than half.
pub(crate) const fn majority(servers: usize) -> usize {
    servers / 2 + 1
}

/// Returns `true` if no other client can have had a majority, given how many servers have confirmed a lease, and how many have
/// lost their data too recently to have voted since. At least one has to confirm the lease, because the lock may have been
/// deleted everywhere.
pub(crate) const fn excludes_others(servers: usize, confirmed: usize, forgetful: usize) -> bool {
    confirmed > 0 && confirmed + forgetful >= majority(servers)
}

/// Returns the value that a majority reaches: the `majority`-th smallest of the known values, if enough are known.
pub(crate) fn reached_by_majority<T: Ord + Copy>(
    servers: usize,
    known: impl IntoIterator<Item = T>,
) -> Option<T> {
    let mut known: Vec<_> = known.into_iter().collect();
    known.sort_unstable();
    known.get(majority(servers) - 1).copied()
}

/// The last reply of each server to one request. A failure means no reply, or none that counts.
#[derive(Clone, Debug)]
pub(crate) struct Replies<T>(Vec<Option<Result<T, Failure>>>);

impl<T> Replies<T> {
    pub(crate) fn of(servers: usize) -> Self {
        Self((0..servers).map(|_| None).collect())
    }

    pub(crate) fn note(&mut self, server: usize, reply: Result<T, Failure>) {
        self.0[server] = Some(reply);
    }

    /// Returns the replies with the positions of their servers.
    pub(crate) fn each(&self) -> impl Iterator<Item = (usize, &Result<T, Failure>)> {
        let each = self.0.iter().enumerate();
        each.filter_map(|(server, reply)| Some((server, reply.as_ref()?)))
    }

    pub(crate) fn said(&self) -> impl Iterator<Item = &T> {
        self.each().filter_map(|(_, reply)| reply.as_ref().ok())
    }

    pub(crate) fn failures(&self) -> impl Iterator<Item = &Failure> {
        self.each().filter_map(|(_, reply)| reply.as_ref().err())
    }

    /// Returns the failure when too few servers replied, or when they replied differently.
    pub(crate) fn no_majority(&self) -> Failure {
        let mut reasons: Vec<_> = self.failures().map(Failure::text).collect();
        reasons.sort_unstable();
        reasons.dedup();
        let (count, reasons) = (self.0.len(), reasons.join("; "));
        self.failure(format!(
            "no majority of the {count} servers answered: {reasons}"
        ))
    }

    /// Returns the failure of a missing majority. It is `Invalid` only if a majority rejects the request as invalid,
    /// because a single server may be misconfigured. If each failure says that the request was not executed, a retry
    /// may succeed, unless all servers refuse it for good.
    pub(crate) fn failure(&self, text: String) -> Failure {
        let is_invalid = |failure: &&Failure| matches!(failure, Failure::Invalid(_));
        if self.failures().filter(is_invalid).count() >= self.majority() {
            Failure::Invalid(text.into())
        } else if self.failures().next().is_none() || !self.failures().all(Failure::is_definite) {
            Failure::no_reply(text)
        } else if self.failures().any(Failure::is_transient) {
            Failure::not_now(text)
        } else {
            Failure::refused(text)
        }
    }

    fn majority(&self) -> usize {
        majority(self.0.len())
    }
}

impl<T: Clone + PartialEq> Replies<T> {
    /// Returns the positions of the servers with this reply.
    pub(crate) fn who(&self, said: &T) -> impl Iterator<Item = usize> {
        let agrees = move |reply: &Result<T, Failure>| reply.as_ref().is_ok_and(|one| one == said);
        let those = self.each().filter(move |(_, reply)| agrees(reply));
        those.map(|(server, _)| server)
    }

    /// Returns the reply of a majority, or the failure if no majority can be reached any more. `None` while missing replies may
    /// decide.
    pub(crate) fn outcome(&self) -> Option<Result<T, Failure>> {
        let count = |said: &T| self.who(said).count();
        let most = self.said().max_by_key(|said| count(said));
        let agreed = most.map_or(0, count);
        if agreed >= self.majority() {
            return most.cloned().map(Ok);
        }
        let open = self.0.len() - self.each().count();
        (agreed + open < self.majority()).then(|| Err(self.no_majority()))
    }

    /// Like [`outcome`](Self::outcome), when no more replies arrive.
    pub(crate) fn result(&self) -> Result<T, Failure> {
        self.outcome().unwrap_or_else(|| Err(self.no_majority()))
    }
}

impl Replies<SeenLock> {
    /// Returns the holder of a lock, and how much longer it has a majority. `None` while more reports may decide, or if
    /// they never will: a silent server may have the same owner token.
    #[expect(
        clippy::option_option,
        reason = "undecided, or no holder has a majority"
    )]
    pub(crate) fn holder(&self) -> Option<Option<(&str, Option<Duration>)>> {
        let held = || self.said().flatten();
        // A missing expiry counts as longer than any other.
        let left_of = |holder: &str| {
            let with_it = held().filter(|(token, _)| token == holder);
            let left = with_it.map(|(_, left)| Reverse(left.unwrap_or(Duration::MAX)));
            left.collect::<Vec<_>>()
        };
        let most = held().max_by_key(|(token, _)| left_of(token).len());
        let left = most.map_or(Vec::new(), |(token, _)| left_of(token));
        let silent = self.0.len() - self.said().count();
        if left.len() + silent < self.majority() {
            return Some(None);
        }
        let Reverse(left) = reached_by_majority(self.0.len(), left)?;
        let left = Some(left).filter(|left| *left != Duration::MAX);
        most.map(|(token, _)| Some((token.as_str(), left)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn replies<T: Clone + PartialEq>(
        servers: usize,
        of: impl IntoIterator<Item = Result<T, Failure>>,
    ) -> Replies<T> {
        let mut replies = Replies::of(servers);
        let each = of.into_iter().enumerate();
        each.for_each(|(server, reply)| replies.note(server, reply));
        replies
    }

    /// Returns the combined result of the replies of five servers.
    fn outcome(yes: usize, no: usize, silent: usize) -> Option<Result<bool, ()>> {
        let all = [(Ok(true), yes), (Ok(false), no), (Err(()), silent)];
        let all = all.into_iter().flat_map(|(one, count)| vec![one; count]);
        let all = all.map(|reply| reply.map_err(|()| Failure::no_reply("silent")));
        let outcome = replies(5, all).outcome();
        outcome.map(|outcome| outcome.map_err(drop))
    }

    #[test]
    fn a_majority_decides_as_soon_as_it_exists() {
        assert_eq!(outcome(3, 0, 0), Some(Ok(true)));
        assert_eq!(outcome(3, 2, 0), Some(Ok(true)));
        assert_eq!(outcome(0, 3, 0), Some(Ok(false)));
        assert_eq!(outcome(2, 2, 0), None);
        assert_eq!(outcome(2, 0, 2), None);
    }

    #[test]
    fn a_lease_excludes_others_by_servers_that_confirm_it_and_those_that_do_not_vote() {
        // Of five servers: how many confirm it, and how many have lost their data. Any of the others may have voted for another
        // client.
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
    fn without_a_majority_the_outcome_is_a_failure() {
        assert_eq!(outcome(2, 2, 1), Some(Err(())));
        assert_eq!(outcome(0, 0, 3), Some(Err(())));
        assert_eq!(outcome(2, 0, 3), Some(Err(())));
    }

    #[test]
    fn a_missing_majority_is_as_certain_as_its_reasons() {
        let failure = |failures: &[fn(&'static str) -> Failure]| {
            let failures = failures.iter().map(|failure| Err(failure("why")));
            replies::<()>(3, failures).no_majority()
        };
        let all: [fn(&'static str) -> Failure; 4] = [
            Failure::no_reply,
            Failure::not_now,
            Failure::refused,
            Failure::invalid,
        ];
        let [late, away, refused, invalid] = all;
        for definite in [[away, away], [away, refused], [away, invalid]] {
            let failure = failure(&definite);
            assert!(matches!(failure, Failure::NotNow(_)), "{failure:?}");
            assert!(failure.text().contains("no majority of the 3"));
        }
        for unknown in [&[late, away][..], &[late, invalid], &[]] {
            let failure = failure(unknown);
            assert!(matches!(failure, Failure::NoReply(_)), "{failure:?}");
        }
        for for_good in [[refused, refused], [refused, invalid]] {
            let failure = failure(&for_good);
            assert!(matches!(failure, Failure::Refused(_)), "{failure:?}");
        }
        for wrong in [&[invalid, invalid][..], &[late, invalid, invalid]] {
            let failure = failure(wrong);
            assert!(matches!(failure, Failure::Invalid(_)), "{failure:?}");
            assert!(failure.text().contains("no majority of the 3"));
        }
    }

    #[test]
    fn the_slowest_of_the_fastest_majority_counts() {
        assert_eq!(reached_by_majority(5, [9, 1, 7, 3, 5]), Some(5));
        assert_eq!(reached_by_majority(5, [9, 1, 7]), Some(9));
        assert_eq!(reached_by_majority(5, [9, 1]), None);
    }

    #[test]
    fn a_lock_is_held_by_the_owner_token_of_a_majority_for_as_long_as_a_majority_has_it() {
        let of =
            |token: &str, seconds| Some((token.to_owned(), Some(Duration::from_secs(seconds))));
        let holder = |seen: &[SeenLock]| {
            let replies = replies(5, seen.iter().cloned().map(Ok));
            let holder = replies.holder()?;
            Some(holder.map(|(token, left)| (token.to_owned(), left)))
        };
        let seen = [of("a", 9), of("b", 5), of("a", 7), of("a", 8)];
        assert_eq!(holder(&seen), Some(of("a", 7)));
        assert_eq!(holder(&seen[..3]), None, "the silent ones may have it");
        assert_eq!(holder(&[None, of("b", 5), None]), None, "two to come");
        assert_eq!(holder(&[None, of("b", 5), None, None]), Some(None));
        let endless = Some(("a".to_owned(), None));
        let seen = [endless.clone(), endless.clone(), endless.clone()];
        assert_eq!(holder(&seen), Some(endless));
        let split = [of("a", 1), of("a", 1), of("b", 1), of("b", 1), None];
        assert_eq!(holder(&split), Some(None), "no token has a majority");
    }
}
