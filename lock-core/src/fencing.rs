//! Fencing tokens, which grow from one holder of a key to the next, and the largest of them that a process has seen.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

/// A number that grows with each exclusive acquisition of a key, to be handed to the store that the lock protects.
///
/// All holders of one shared phase have the same token. It is larger than that of the exclusive holder before them, and
/// smaller than that of the next one. With permits, the token also grows with each acquisition. Since several holders then
/// have the lock at a time, a store compares the tokens of each permit separately: see [`Fence::permit`].
///
/// A holder may be paused until its lease has ended, and then write. No lock alone can prevent that, but a store can: it
/// remembers the largest token it has seen, and refuses smaller ones. A refusal is final: never raise a token and try
/// again.
///
/// Tokens of different keys are not comparable, and locks that are taken at the same time may have equal ones.
///
/// A token is the time in milliseconds since 1970, multiplied by 2048, plus a number below 2048. It fits in 53 bits until
/// the year 2109, so JavaScript and JSON represent it exactly.
///
/// # Examples
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// # let manager = lock_core::LockManager::in_memory();
/// # let options = lock_core::LockOptions::default();
/// let guard = manager.acquire("report", options).await?;
/// let token: u64 = guard.lease().fencing_token().get();
/// // UPDATE report SET body = $1, fencing_token = $token WHERE fencing_token <= $token
/// # assert!(token > 0);
/// # guard.release().await
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

/// The number of tokens for each millisecond.
pub(crate) const PER_MILLI: u64 = 2048;

/// Above this number, a script cannot tell a number from its successor.
pub(crate) const LARGEST_TOKEN: u64 = 1 << 53;

/// Converts a span of time, or a time since 1970, to tokens.
pub(crate) fn in_tokens(span: Duration) -> u64 {
    let tokens = span.as_micros() * u128::from(PER_MILLI) / 1000;
    u64::try_from(tokens).unwrap_or(u64::MAX)
}

impl FencingToken {
    /// Returns the number to pass to a store, which is also `u64::from(token)`.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
}

/// The values that a holder passes to the store that the lock protects: see [`fenced`](crate::fenced).
///
/// [`Lease::fences`](crate::lease::Lease::fences) returns one for each key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Fence {
    /// The number that grows from one holder to the next. Holders of one shared phase have the same number.
    pub token: FencingToken,
    /// A random number that identifies the manager that holds the lease; 0 in a shared lease. Like a token, it is below
    /// 2^53.
    ///
    /// Two servers that both act as the primary can give out the same token. This number tells the two holders apart.
    pub holder: u64,
    /// The number of the holder's permit, as returned by [`Lease::permit`](crate::lease::Lease::permit).
    ///
    /// Tokens of different permits are not comparable, so a store remembers one fence for each permit.
    pub permit: Option<u16>,
}

/// Consecutive fencing tokens, prefetched for the tasks to which a lease will be handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FencingBlock {
    next: u64,
    left: u32,
}

impl FencingBlock {
    pub(crate) const EMPTY: Self = Self { next: 0, left: 0 };

    pub(crate) const fn new(first: u64, count: u32) -> Self {
        Self {
            next: first,
            left: count,
        }
    }

    pub(crate) const fn left(self) -> u32 {
        self.left
    }

    /// Takes the smallest token of the block.
    pub(crate) fn take(&mut self) -> Option<FencingToken> {
        self.left = self.left.checked_sub(1)?;
        let token = FencingToken(self.next);
        self.next += 1;
        Some(token)
    }

    /// Returns the largest token of the block. Every token that this process gets later must be larger.
    pub(crate) const fn last(self) -> FencingToken {
        FencingToken((self.next + self.left as u64).saturating_sub(1))
    }
}

/// The number of a key's fencing clock: the slot of the key in a cluster, and 0 otherwise.
pub(crate) type ClockIndex = u16;

/// The largest fencing token that a manager knows, for each fencing clock.
///
/// The clocks of different nodes differ. A single number for all of them would be ahead of the slower clocks, and each
/// acquire there would have to advance the clock first.
#[derive(Debug)]
pub(crate) struct KnownTokens(Box<[AtomicU64]>);

impl KnownTokens {
    pub(crate) fn of_clocks(count: u16) -> Self {
        Self((0..count).map(|_| AtomicU64::new(0)).collect())
    }

    /// Returns the largest known token of this clock, or 0 if none is known.
    pub(crate) fn of(&self, clock: ClockIndex) -> u64 {
        match self.0.get(usize::from(clock)) {
            Some(known) => known.load(Ordering::Acquire),
            None => 0,
        }
    }

    pub(crate) fn learn(&self, clock: ClockIndex, token: FencingToken) {
        if let Some(known) = self.0.get(usize::from(clock)) {
            known.fetch_max(token.into(), Ordering::AcqRel);
        }
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
