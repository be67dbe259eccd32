//! The prefixes that other libraries put before their keys.

/// The key prefixes of other libraries, for [`LockManagerBuilder::key_prefix`](crate::LockManagerBuilder::key_prefix).
///
/// A lock of this crate is a string with an expiry. It is set if the key does not exist, and deleted if the value is still the
/// same. These libraries do the same. So two services exclude each other during a migration, if both spell the key alike.
///
/// | library | the lock `orders` is the key | note |
/// | --- | --- | --- |
/// | [`RedisPy`](Self::RedisPy): `redis.lock.Lock`, Python | `orders` | without `timeout` it has no expiry |
/// | [`RedlockPy`](Self::RedlockPy): `redlock-py`, Python | `orders` | |
/// | [`PypiRedlock`](Self::PypiRedlock): `redlock` on `PyPI`, Python | `orders` | |
/// | [`NpmRedlock`](Self::NpmRedlock): `redlock` on npm, Node | `orders` | |
/// | [`Redsync`](Self::Redsync): `redsync`, Go | `orders` | |
/// | [`Rslock`](Self::Rslock): `rslock`, Rust | `orders` | |
/// | [`Pottery`](Self::Pottery): `pottery.Redlock`, Python | `redlock:orders` | |
/// | [`PythonRedisLock`](Self::PythonRedisLock): `python-redis-lock` | `lock:orders` | a release of ours does not wake its waiters |
///
/// Some libraries have no fixed prefix: Laravel's is in its configuration, and `ShedLock`'s contains the environment. Redisson's
/// locks are hashes, and a string cannot exclude a hash: each library reports an error for the other's key.
///
/// ```
/// use lock_core::{KeysOf, LockManager};
///
/// let builder = LockManager::builder().key_prefix(KeysOf::Pottery);
/// # let _ = builder;
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum KeysOf {
    /// No prefix.
    RedisPy,
    /// No prefix.
    RedlockPy,
    /// No prefix.
    PypiRedlock,
    /// No prefix.
    NpmRedlock,
    /// No prefix.
    Redsync,
    /// No prefix.
    Rslock,
    /// The prefix `redlock:`.
    Pottery,
    /// The prefix `lock:`, which is also the default.
    PythonRedisLock,
}

impl From<KeysOf> for String {
    fn from(library: KeysOf) -> Self {
        let prefix = match library {
            KeysOf::RedisPy
            | KeysOf::RedlockPy
            | KeysOf::PypiRedlock
            | KeysOf::NpmRedlock
            | KeysOf::Redsync
            | KeysOf::Rslock => "",
            KeysOf::Pottery => "redlock:",
            KeysOf::PythonRedisLock => "lock:",
        };
        prefix.to_owned()
    }
}
