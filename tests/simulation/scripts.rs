//! The shipped scripts, concatenated as lock-core does it.

/// The texts of these files, concatenated.
macro_rules! scripts {
    ($($file:literal),+) => {
        concat!($(include_str!(concat!("../../lock-core/src/backend/redis/protocol/scripts/", $file))),+)
    };
}
pub(crate) use scripts;

pub(crate) const ACQUIRE: &str = scripts!(
    "acquire_short.lua",
    "queue.lua",
    "advance.lua",
    "acquire.lua"
);
pub(crate) const RELEASE: &str = scripts!(
    "release_short.lua",
    "queue.lua",
    "advance.lua",
    "release.lua"
);
pub(crate) const RELEASE_UNCONTENDED: &str = scripts!("release_uncontended.lua");
pub(crate) const FORCE_RELEASE: &str = scripts!("queue.lua", "advance.lua", "force_release.lua");
pub(crate) const RENEW: &str = scripts!("renew_short.lua", "queue.lua", "advance.lua", "renew.lua");
pub(crate) const INSPECT: &str = scripts!("queue.lua", "inspect.lua");
