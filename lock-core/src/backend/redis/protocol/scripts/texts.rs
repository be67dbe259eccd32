//! The text of each program: its files, joined.
//!
//! The first file has the short paths of the program: most calls end there, and never define the functions in the later files.
//! The fewer calls need a file, the later it comes.

/// Joins files.
macro_rules! joined {
    ($($file:literal)+) => {
        concat!($(include_str!($file)),+)
    };
}

pub(crate) const ACQUIRE: &str = joined!(
    "acquire_short.lua" "grant.lua" "queue.lua" "acquire.lua" "holders.lua" "once.lua" "permits.lua" "phases.lua" "acquire_non_exclusive.lua"
);
pub(crate) const RELEASE: &str = joined!(
    "release_short.lua" "grant.lua" "queue.lua" "release.lua" "holders.lua" "release_non_exclusive.lua" "once.lua" "permits.lua" "phases.lua"
    "release_waiters.lua"
);
/// The usual release has a separate program: with fewer keys and arguments, it saves a tenth of a lock's cost to the server.
pub(crate) const RELEASE_UNCONTENDED: &str = joined!("release_uncontended.lua");
pub(crate) const FORCE_RELEASE: &str = joined!(
    "grant.lua" "queue.lua" "holders.lua" "once.lua" "permits.lua" "phases.lua" "force_release.lua"
);
pub(crate) const RENEW: &str = joined!(
    "renew_short.lua" "grant.lua" "queue.lua" "renew.lua" "holders.lua" "renew_non_exclusive.lua" "once.lua" "permits.lua" "phases.lua"
    "renew_waiters.lua"
);
pub(crate) const INSPECT: &str = joined!("grant.lua" "queue.lua" "holders.lua" "inspect.lua");
/// The program of a trial lock.
pub(crate) const TRIAL: &str = joined!("trial.lua");
/// Deletes the second key, at the server of the first one.
pub(crate) const FORGET: &str = "return redis.call('DEL', KEYS[2])";
/// A program for one of several servers.
pub(crate) const PROPOSE: &str = joined!("counter.lua" "propose.lua");
pub(crate) const MARK: &str = joined!("counter.lua" "mark.lua");
