//! The texts of the scripts that lock-core runs on a server.

#[path = "../../lock-core/src/backend/redis/protocol/scripts/texts.rs"]
mod texts;

/// `acquire.lua` with the files that it needs.
pub const ACQUIRE: &str = texts::ACQUIRE;
/// `release.lua` with the files that it needs.
pub const RELEASE: &str = texts::RELEASE;
/// `release_uncontended.lua`.
pub const RELEASE_UNCONTENDED: &str = texts::RELEASE_UNCONTENDED;
/// `force_release.lua` with the files that it needs.
pub const FORCE_RELEASE: &str = texts::FORCE_RELEASE;
/// `renew.lua` with the files that it needs.
pub const RENEW: &str = texts::RENEW;
/// `inspect.lua` with the files that it needs.
pub const INSPECT: &str = texts::INSPECT;
/// `propose.lua` with the files that it needs.
pub const PROPOSE: &str = texts::PROPOSE;
/// `mark.lua` with the files that it needs.
pub const MARK: &str = texts::MARK;

/// The key of the script by which a new connection tries whether it may run scripts.
pub const PROBED: &str = "__lock_core__:check";

/// All scripts, with their names.
pub const ALL: [(&str, &str); 10] = [
    ("acquire", ACQUIRE),
    ("release", RELEASE),
    ("release_uncontended", RELEASE_UNCONTENDED),
    ("force_release", FORCE_RELEASE),
    ("renew", RENEW),
    ("inspect", INSPECT),
    ("trial", texts::TRIAL),
    ("forget", texts::FORGET),
    ("propose", PROPOSE),
    ("mark", MARK),
];
