//! Arguments of each kind, and the names that they may have.

use lock_core::{LockError, distributed_lock};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Display;
use std::rc::Rc;

// An unused lease with an underscore.
#[distributed_lock(key = "n", lease = _lease)]
async fn an_unused_lease_with_an_underscore() -> Result<(), LockError> {
    Ok(())
}

// Arguments moved in the body though used in the key.
#[distributed_lock(key = "user:{name}")]
async fn arguments_moved_in_the_body_though_used_in_the_key(name: String) -> Result<(), LockError> {
    drop(name);
    Ok(())
}

// Arguments named like the expansions own.
#[distributed_lock(key = "x:{key}:{entry}:{value}:{manager}:{options}", lease = own)]
#[allow(clippy::too_many_arguments)]
async fn arguments_named_like_the_expansions_own(
    key: u8,
    entry: u8,
    value: u8,
    manager: u8,
    options: u8,
    private: u8,
    lease: u8,
    __arg0: u8,
    (__arg1, _): (u8, u8),
) -> Result<u8, LockError> {
    let _ = own;
    Ok(key + entry + value + manager + options + private + lease + __arg0 + __arg1)
}

// Arguments that are mutable or ignored.
#[distributed_lock(key = "order:{id}")]
async fn arguments_that_are_mutable_or_ignored(mut id: u64, _: String, _unused: u8, mut text: String) -> Result<String, LockError> {
    id += 1;
    text.push_str(&id.to_string());
    Ok(text)
}

// Arguments used only in the key.
struct Order {
    id: u64,
}

#[distributed_lock(key = "order:{id}:{order.id}", locks = manager, ttl = ttl, wait = wait)]
async fn arguments_used_only_in_the_key(
    id: u64,
    order: Order,
    manager: lock_core::LockManager,
    ttl: std::time::Duration,
    wait: std::time::Duration,
) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = name)]
async fn arguments_used_only_in_the_key_g(name: &str) -> Result<(), LockError> {
    Ok(())
}

// Attributes on arguments.
#[distributed_lock(key = "n:{n}")]
async fn attributes_on_arguments(
    n: u64,
    #[allow(unused_variables)] left: u8,
    #[expect(unused_variables, reason = "to see that it is fulfilled once")] right: u8,
    #[cfg(any())] c: u8,
    #[cfg(not(any()))] d: u8,
    #[cfg_attr(not(any()), allow(unused_mut))] mut e: u8,
    #[cfg(any())] Some(g): Missing,
) -> Result<u64, LockError> {
    Ok(n + u64::from(d + e))
}

struct Path<T>(T);
#[distributed_lock(key = "n", on_error = |error| Err(format!("{n} {m}: {error}")))]
async fn seen_by_on_error(
    #[cfg(not(any()))] n: u64,
    #[cfg(not(any()))] Path(m): Path<u8>,
    #[cfg(any())] n: u8,
) -> Result<u64, String> {
    Ok(n)
}

// Borrowed arguments and results.
#[distributed_lock(key = "map:{key}")]
async fn entry<'m>(map: &'m mut HashMap<String, u64>, key: &str) -> Result<&'m mut u64, LockError> {
    Ok(map.entry(key.to_owned()).or_default())
}

#[distributed_lock(key = "text:{text}")]
async fn trimmed(text: &str) -> Result<Cow<'_, str>, LockError> {
    if text.is_empty() {
        return Ok("empty".into());
    }
    Ok(text.trim().into())
}

// Destructured arguments.
struct PathDestructuredArguments<T>(T);
struct Json<T> {
    value: T,
    extra: u8,
}
struct Body {
    n: u64,
    mut_me: String,
}

#[distributed_lock(key = "order:{id}:{n}")]
async fn handler(
    PathDestructuredArguments(id): PathDestructuredArguments<u64>,
    Json {
        value: Body { n, mut mut_me },
        ..
    }: Json<Body>,
) -> Result<String, LockError> {
    mut_me.push_str(&n.to_string());
    Ok(format!("{id}{mut_me}"))
}

#[distributed_lock(key = "pair:{a}:{b}")]
async fn pair((a, b): (u64, u64), [c, rest @ ..]: [u8; 3], &d: &u8) -> Result<u64, LockError> {
    Ok(a + b + u64::from(c) + u64::from(rest[0]) + u64::from(d))
}

// Raw identifiers.
#[distributed_lock(key = "x{type}:{r#match}", lease = r#loop)]
async fn r#fn(r#type: u8, r#match: &str) -> Result<u8, LockError> {
    let _ = (r#match, r#loop.fencing_token());
    Ok(r#type)
}

// Values of unsized and borrowed types.
#[distributed_lock(key = "a:{a}:{b}:{c}:{d}:{long}")]
async fn values_of_unsized_and_borrowed_types(
    a: &str,
    b: Box<dyn Display>,
    c: &dyn Display,
    d: Rc<str>,
    long: &&u8,
) -> Result<(), LockError> {
    let _ = (b, c, d);
    Ok(())
}
#[distributed_lock(key = "a:{a}")]
async fn values_of_unsized_and_borrowed_types_g<T: Display + ?Sized>(a: &T) -> Result<(), LockError> {
    Ok(())
}
