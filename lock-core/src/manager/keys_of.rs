//! What other libraries put before their keys.

/// The key prefixes of other libraries, for [`LockManagerBuilder::key_prefix`](crate::LockManagerBuilder::key_prefix).
///
/// A lock of ours is a string that is set if there is none, with an expiry, and deleted after comparing. These libraries
/// do the same, so that two services exclude each other while one is moved over, if both spell the key alike.
///
/// | of | the lock `orders` is the key | mind |
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
/// Some have no prefix of their own: Laravel's is in its configuration, `ShedLock`'s names an environment. Redisson's locks
/// are hashes, which no string can exclude in good order: to it and to us the other's key is an error.
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
    /// Nothing stands before the key.
    RedisPy,
    /// Nothing stands before the key.
    RedlockPy,
    /// Nothing stands before the key.
    PypiRedlock,
    /// Nothing stands before the key.
    NpmRedlock,
    /// Nothing stands before the key.
    Redsync,
    /// Nothing stands before the key.
    Rslock,
    /// `redlock:` does.
    Pottery,
    /// `lock:` does, which is also the default.
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
