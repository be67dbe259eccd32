//! A crate that shadows the prelude.

use lock_core as _;

#[allow(non_camel_case_types, non_snake_case, missing_docs)]
mod shadowed {
    use lock_core::{LockError, distributed_lock};
    struct Result;
    struct Option;
    struct Box;
    struct Some;
    struct None;
    struct Ok;
    struct Err;
    struct String;
    struct Vec;
    struct Default;
    struct Clone;
    struct From;
    struct Into;
    struct str;
    struct u64;
    mod core {}
    mod std {}
    mod lock_core_ {}
    #[allow(unused_macros)]
    macro_rules! format_args {
        () => {};
    }

    #[distributed_lock(key = "n:{n}:{n:04}", ttl = "1s", wait = "0s", lease = lease, on_lost = continue, renew = false)]
    async fn f(n: u8) -> ::core::result::Result<u8, LockError> {
        let _ = lease;
        ::core::result::Result::Ok(n)
    }
}
