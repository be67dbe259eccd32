//! The attribute's options: their names, examples, and other words for them.

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
}

impl OptionName {
    pub(crate) const ALL: [Self; 15] = [
        Self::Key,
        Self::Ttl,
        Self::Wait,
        Self::Mode,
        Self::Permits,
        Self::Renew,
        Self::MaxHold,
        Self::MinHold,
        Self::OnBusy,
        Self::OnLost,
        Self::OnError,
        Self::Release,
        Self::Lease,
        Self::Locks,
        Self::Crate,
    ];

    pub(crate) fn text(self) -> &'static str {
        match self {
            Self::Key => "key",
            Self::Ttl => "ttl",
            Self::Wait => "wait",
            Self::Mode => "mode",
            Self::Permits => "permits",
            Self::Renew => "renew",
            Self::MaxHold => "max_hold",
            Self::MinHold => "min_hold",
            Self::OnBusy => "on_busy",
            Self::OnLost => "on_lost",
            Self::OnError => "on_error",
            Self::Release => "release",
            Self::Lease => "lease",
            Self::Locks => "locks",
            Self::Crate => "crate",
        }
    }

    /// An example of a value.
    pub(crate) fn example(self) -> &'static str {
        match self {
            Self::Key => r#""order:{order_id}""#,
            Self::Ttl => r#""10s""#,
            Self::Wait => r#""2s""#,
            Self::Mode => "shared",
            Self::Permits => "3",
            Self::Renew => "false",
            Self::MaxHold => r#""5m""#,
            Self::MinHold => r#""1s""#,
            Self::OnBusy => "skip",
            Self::OnLost => "continue",
            Self::OnError => "|error| …",
            Self::Release => "background",
            Self::Lease => "lease",
            Self::Locks => "self.locks",
            Self::Crate => "path::to::lock_core",
        }
    }

    /// The option that says the same in another way, so that only one of them can be given.
    pub(crate) fn excludes(self) -> Option<Self> {
        match self {
            Self::Mode => Some(Self::Permits),
            Self::Permits => Some(Self::Mode),
            _ => None,
        }
    }

    /// Whether other libraries use this word for the option, or a user is likely to guess the word.
    pub(crate) fn is_also_called(self, word: &str) -> bool {
        let words = match self {
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
        };
        words.split(' ').any(|other| other == word)
    }
}
