//! The arguments of each program, named and ordered as at the top of its file, and the keys that its call declares.
//!
//! A program may be called without its last arguments, and then skips the work that they are for: each argument costs the
//! server as much as a comparison.

use std::time::Duration;

use crate::{
    backend::{
        Acquire, Release, Renew,
        owner::Entry,
        owner_token::OwnerToken,
        redis::{
            protocol::scripts::Call,
            topology::{
                companions::Names, key_location::KeyLocation, sharded_subscription::GrantDelivery,
            },
            transport::command::{
                Arg::{self, Bytes, Number, Spaced, Text, Written},
                Last, millis,
            },
        },
    },
    engine::reply::QueueMode,
    mode::Mode,
};

/// The keys of a lock, in the order of `queue.lua`.
pub(super) struct LockKeys<'a> {
    all: [Arg<'a>; 8],
    /// The keys that exist for as long as a non-exclusive lease: the lock, the holders, and the permits.
    non_exclusive: [Arg<'a>; 3],
}

/// The number of keys except the mark of polling processes, which comes last.
const BUT_THE_MARK: usize = 7;

impl<'a> LockKeys<'a> {
    pub(super) fn new(location: &'a KeyLocation, full_key: &'a str) -> Self {
        let all = location.keys(full_key);
        let [lock, _, _, _, holders, permits, ..] = all;
        Self {
            all,
            non_exclusive: [lock, holders, permits],
        }
    }

    pub(super) fn but_the_mark(&self) -> &[Arg<'a>] {
        &self.all[..BUT_THE_MARK]
    }

    pub(super) fn lock(&self) -> &[Arg<'a>] {
        &self.all[..1]
    }

    /// Returns the keys that exist for as long as a request waits for an exclusive holder: the lock, the fencing clock, the
    /// queue and the beats. Empty if the mode needs more.
    fn of_a_place(&self, mode: Mode) -> &[Arg<'a>] {
        match mode {
            Mode::Exclusive => &self.all[..4],
            Mode::Shared | Mode::Permits(_) | Mode::Once => &[],
        }
    }

    /// Returns the keys that exist for as long as a lease.
    fn of_a_lease(&self, mode: Mode) -> &[Arg<'a>] {
        match mode {
            Mode::Exclusive | Mode::Once => &self.all[..1],
            Mode::Shared => &self.non_exclusive[..2],
            Mode::Permits(_) => &self.non_exclusive,
        }
    }
}

/// The arguments of a call, without those that are omitted.
pub(super) struct Arguments<'a> {
    words: [Arg<'a>; 7],
    count: usize,
}

impl<'a> Arguments<'a> {
    fn of<const N: usize>(words: [Arg<'a>; N], count: usize) -> Self {
        let mut all = [Text(""); 7];
        all[..N].copy_from_slice(&words);
        Self { words: all, count }
    }

    fn words(&self) -> &[Arg<'a>] {
        &self.words[..self.count]
    }
}

/// The arguments of `acquire.lua`.
pub(super) struct AcquireArguments<'a> {
    token: &'a OwnerToken,
    ttl: Duration,
    known: u64,
    tokens: u32,
    mode: QueueMode,
    entry: Arg<'a>,
    /// How long a mark tells holders that this process polls, if it does.
    polls_for: Option<Duration>,
}

impl<'a> AcquireArguments<'a> {
    pub(super) fn new(
        location: &'a KeyLocation,
        request: &'a Acquire,
        queue_mode: QueueMode,
        mark: Duration,
    ) -> Self {
        let polls = request.queue_mode != QueueMode::DoNotQueue
            && queue_mode == QueueMode::DoNotQueue
            && location.delivery() == GrantDelivery::Unsupported;
        Self {
            token: &request.owner.token,
            ttl: request.ttl,
            known: request.known_fencing,
            tokens: request.tokens,
            mode: queue_mode,
            entry: words_of(&location.names, request.entry()),
            polls_for: polls.then_some(mark),
        }
    }

    pub(super) fn words(&self) -> Arguments<'a> {
        let words = [
            Written(self.token),
            Number(millis(self.ttl)),
            Number(self.known),
            Number(self.tokens.into()),
            match self.mode {
                QueueMode::DoNotQueue => Text("try"),
                QueueMode::JoinQueue => Text("wait"),
                QueueMode::CheckPosition(place) => Number(place.map_or(0, u64::from)),
            },
            self.entry,
            Number(self.polls_for.map_or(0, millis)),
        ];
        Arguments::of(words, if self.polls_for.is_some() { 7 } else { 6 })
    }
}

/// Returns the call of `acquire.lua`. Only a polling request uses the mark.
pub(super) fn acquire_call<'a>(
    keys: &'a LockKeys<'a>,
    arguments: &'a Arguments<'a>,
    mode: Mode,
) -> Call<'a> {
    let polls = arguments.count == 7;
    let declared = if polls {
        &keys.all
    } else {
        keys.but_the_mark()
    };
    Call::of(declared, arguments.words()).with_few(keys.of_a_place(mode))
}

/// The arguments of `release.lua`.
pub(super) struct ReleaseArguments<'a> {
    token: &'a OwnerToken,
    known: u64,
    keep: Option<Duration>,
    /// The entry, if it may be in the queue or among the holders.
    entry: Option<Arg<'a>>,
    /// The result of a run, and how long it is stored.
    result: Option<(&'a [u8], Duration)>,
}

impl<'a> ReleaseArguments<'a> {
    pub(super) fn new(location: &'a KeyLocation, request: &'a Release) -> Self {
        let owner = &request.owner;
        let has_entry = request.may_be_queued || !owner.mode.is_alone() || request.result.is_some();
        let entry = || words_of(&location.names, owner.entry());
        let result = request.result.as_ref();
        Self {
            token: &owner.token,
            known: request.known_fencing,
            keep: request.keep,
            entry: has_entry.then(entry),
            result: result.map(|result| (&*result.bytes, result.keep)),
        }
    }

    /// A lock that was held alone needs only two.
    pub(super) fn words(&self) -> Arguments<'a> {
        let count = match (self.result, self.entry, self.keep) {
            (Some(_), ..) => 6,
            (None, Some(_), _) => 4,
            (None, None, Some(_)) => 3,
            (None, None, None) => 2,
        };
        let (result, kept_for) = self.result.unwrap_or_default();
        let words = [
            Written(self.token),
            Number(self.known),
            Number(self.keep.map_or(0, millis)),
            self.entry.unwrap_or(Text("")),
            Bytes(result),
            Number(millis(kept_for)),
        ];
        Arguments::of(words, count)
    }
}

/// Returns the call of `release.lua`.
pub(super) fn release_call<'a>(
    keys: &'a LockKeys<'a>,
    arguments: &'a Arguments<'a>,
    mode: Mode,
) -> Call<'a> {
    Call::of(keys.but_the_mark(), arguments.words()).with_few(keys.of_a_place(mode))
}

/// The arguments of `renew.lua`.
pub(super) struct RenewArguments<'a> {
    token: &'a OwnerToken,
    ttl: Duration,
    known: u64,
    tokens: u32,
    /// The entry, if the lease is not exclusive.
    entry: Option<Arg<'a>>,
}

impl<'a> RenewArguments<'a> {
    pub(super) fn new(location: &'a KeyLocation, request: &'a Renew) -> Self {
        let owner = &request.owner;
        let entry = || words_of(&location.names, owner.entry());
        Self {
            token: &owner.token,
            ttl: request.ttl,
            known: request.known_fencing,
            tokens: request.tokens,
            entry: (!owner.mode.is_alone()).then(entry),
        }
    }

    /// An exclusive lease without tokens needs only two.
    pub(super) fn words(&self) -> Arguments<'a> {
        let count = match (self.entry, self.tokens) {
            (Some(_), _) => 5,
            (None, 1..) => 4,
            (None, 0) => 2,
        };
        let words = [
            Written(self.token),
            Number(millis(self.ttl)),
            Number(self.known),
            Number(self.tokens.into()),
            self.entry.unwrap_or(Text("")),
        ];
        Arguments::of(words, count)
    }
}

/// Returns the call of `renew.lua`. With few keys, it takes no tokens and admits no waiters.
pub(super) fn renew_call<'a>(
    keys: &'a LockKeys<'a>,
    arguments: &'a Arguments<'a>,
    mode: Mode,
) -> Call<'a> {
    let few = keys.of_a_lease(mode);
    let declared = match arguments.count {
        2 => few,
        // The mark of polling processes is read only with tokens.
        4 => &keys.all,
        _ => keys.but_the_mark(),
    };
    Call::of(declared, arguments.words()).with_few(few)
}

/// Returns an entry of the queue, without the owner token.
fn words_of(names: &Names, entry: Entry) -> Arg<'_> {
    let kind = match entry.mode {
        Mode::Exclusive => Last::Letter('x'),
        Mode::Shared => Last::Letter('s'),
        Mode::Once => Last::Letter('o'),
        Mode::Permits(permits) => Last::Number(permits),
    };
    let numbers = [entry.number, millis(entry.ttl)];
    Spaced(&names.channel, numbers, kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A renewal that extends a lease while its slot moves must not fail because of a key that may be missing.
    #[test]
    fn the_few_keys_exist_as_long_as_the_lease() {
        let all = ["l", "c", "q", "b", "h", "p", "r", "a"].map(Text);
        let keys = LockKeys {
            all,
            non_exclusive: [all[0], all[4], all[5]],
        };
        let names = |keys: &[Arg<'_>]| -> String {
            let name = |key: &Arg<'_>| match key {
                Text(name) => (*name).to_owned(),
                _ => panic!("a text"),
            };
            keys.iter().map(name).collect()
        };
        assert_eq!(names(keys.of_a_lease(Mode::Exclusive)), "l");
        assert_eq!(names(keys.of_a_lease(Mode::Shared)), "lh");
        assert_eq!(names(keys.of_a_lease(Mode::Permits(2))), "lhp");
        assert_eq!(names(keys.of_a_place(Mode::Exclusive)), "lcqb");
        assert_eq!(names(keys.of_a_place(Mode::Shared)), "");
        assert_eq!(names(keys.but_the_mark()), "lcqbhpr");
    }
}
