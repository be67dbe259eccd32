//! The options: their names, examples, alternative words for them, and the attributes that accept them.

/// The attributes of this crate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum AttributeName {
    #[default]
    DistributedLock,
    RunOnce,
}

impl AttributeName {
    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::DistributedLock => "distributed_lock",
            Self::RunOnce => "run_once",
        }
    }
}

/// An option of the attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OptionName {
    Key,
    Ttl,
    Wait,
    Mode,
    Permits,
    Renew,
    MaxHold,
    MinHold,
    OnBusy,
    OnLost,
    OnError,
    Release,
    Lease,
    Locks,
    Crate,
    OnDrop,
    Keep,
    Fingerprint,
}

impl OptionName {
    /// Each option with its text and an example of a value, in the order of the variants.
    const TEXTS: [(Self, &str, &str); 18] = [
        (Self::Key, "key", r#""order:{order_id}""#),
        (Self::Ttl, "ttl", r#""10s""#),
        (Self::Wait, "wait", r#""2s""#),
        (Self::Mode, "mode", "shared"),
        (Self::Permits, "permits", "3"),
        (Self::Renew, "renew", "false"),
        (Self::MaxHold, "max_hold", r#""5m""#),
        (Self::MinHold, "min_hold", r#""1s""#),
        (Self::OnBusy, "on_busy", "skip"),
        (Self::OnLost, "on_lost", "continue"),
        (Self::OnError, "on_error", "|error| …"),
        (Self::Release, "release", "background"),
        (Self::Lease, "lease", "lease"),
        (Self::Locks, "locks", "self.locks"),
        (Self::Crate, "crate", "path::to::lock_core"),
        (Self::OnDrop, "on_drop", "finish"),
        (Self::Keep, "keep", r#""24h""#),
        (Self::Fingerprint, "fingerprint", "body"),
    ];

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        Self::TEXTS.into_iter().map(|(option, ..)| option)
    }

    pub(crate) fn text(self) -> &'static str {
        Self::TEXTS[self as usize].1
    }

    /// Returns an example of a value.
    pub(crate) fn example(self) -> &'static str {
        Self::TEXTS[self as usize].2
    }

    /// Returns the option that excludes this one, because both set the same thing in different ways.
    pub(crate) fn excludes(self) -> Option<Self> {
        match self {
            Self::Mode => Some(Self::Permits),
            Self::Permits => Some(Self::Mode),
            _ => None,
        }
    }

    /// Returns the reason why an attribute does not accept the option, and what to write instead; `None` if it accepts it.
    pub(crate) fn refused_by(self, attribute: AttributeName) -> Option<&'static str> {
        if attribute == AttributeName::DistributedLock {
            return match self {
                Self::Keep => Some(
                    "it belongs to `run_once`, which keeps the result of the body for later callers: write `#[run_once(…)]`, or \
                     `min_hold` for the shortest time that the lock is held",
                ),
                Self::Fingerprint => Some(
                    "it belongs to `run_once`, which compares it with that of an earlier request: write `#[run_once(…)]`, or leave \
                     it out",
                ),
                _ => None,
            };
        }
        match self {
            Self::Mode => Some("one caller runs the body, and all get its result: leave it out"),
            Self::Permits => Some(
                "one caller runs the body, and all get its result: leave it out, or write a second attribute below, \
                 `#[distributed_lock(key = …, permits = …)]`",
            ),
            Self::Renew => Some(
                "the lease is renewed while the body runs: leave it out, or bound the time of the body with `max_hold`",
            ),
            Self::MinHold => Some("write `keep`, the time for which a repeat gets the result"),
            Self::OnBusy => Some(
                "a caller waits for the result of a body that runs elsewhere: write `wait = \"0s\"` to get `LockError::Busy` at once",
            ),
            Self::OnLost => Some(
                "without its lease, the body could run twice at the same time, so it is dropped: leave it out, or write a \
                 longer `ttl`",
            ),
            Self::Release => {
                Some("the result is stored by the release, so the release is awaited: leave it out")
            }
            _ => None,
        }
    }

    /// Returns `true` if other libraries use this word for the option, or a user is likely to guess the word.
    pub(crate) fn is_also_called(self, word: &str) -> bool {
        self.other_words().split(' ').any(|other| other == word)
    }

    pub(crate) fn other_words(self) -> &'static str {
        match self {
            Self::Key => "name resource id on lock lock_key lock_name path value keys",
            Self::Ttl => "expire expires expiry expiration lease_time duration px ex validity",
            Self::Wait => {
                "timeout wait_time wait_timeout acquire_timeout block blocking retries retry"
            }
            Self::Mode => {
                "modes kind access shared exclusive read write rw reader writer readers rwlock rw_lock read_only \
                 readonly lock_mode"
            }
            Self::Permits => {
                "permit semaphore max_concurrent max_concurrency max_parallel max_holders concurrency concurrent parallel \
                 parallelism limit slots seats tickets capacity count bulkhead"
            }
            Self::Renew => {
                "renewal extend auto_extend auto_renew refresh watchdog heartbeat keep_alive"
            }
            Self::MaxHold => "deadline max_time max_duration lock_at_most_for at_most max",
            Self::MinHold => "lock_at_least_for at_least min_time min_duration min",
            Self::OnBusy => "if_busy on_contention on_conflict on_locked busy skip",
            Self::OnLost => "on_expired on_expire if_lost lost cancel",
            Self::OnError => "error err map_err on_err fallback on_fail on_failure",
            Self::Release => {
                "unlock release_mode on_release background in_background release_in_background await_release"
            }
            Self::Lease => "guard as handle token fencing fencing_token bind var",
            Self::Locks => "manager lock_manager client backend redis store pool with using source",
            Self::Crate => "krate crate_path crate_name",
            Self::OnDrop => "on_cancel on_abort if_dropped finish detach detached spawn",
            Self::Keep => "keep_for retain retention remember remember_for cache cache_for",
            Self::Fingerprint => "hash payload request body digest checksum args arguments",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, fs, path::Path};

    use super::OptionName;

    #[test]
    fn each_option_has_its_own_texts() {
        for (place, (option, ..)) in OptionName::TEXTS.into_iter().enumerate() {
            assert_eq!(option as usize, place, "{option:?}");
        }
    }

    /// No constant can be named after the option `crate`.
    #[test]
    fn an_editor_knows_each_option() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lock-core/src/private/mod.rs");
        let source = fs::read_to_string(source).expect("lock-core is next to this crate");
        let constants = source
            .lines()
            .filter_map(|line| line.trim().strip_prefix("pub const "));
        let known: BTreeSet<_> = constants
            .filter_map(|constant| constant.strip_suffix(": () = ();"))
            .collect();
        let names = OptionName::all().filter(|option| *option != OptionName::Crate);
        let names: BTreeSet<_> = names.map(OptionName::text).collect();
        assert_eq!(known, names);
    }
}
