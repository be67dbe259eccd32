//! Arguments of each kind, and the names that they may have.

use lock_core::{LockError, LockManager, distributed_lock};
use std::{collections::HashMap, fmt::Display, rc::Rc, time::Duration};

#[distributed_lock(key = "x:{key}:{entry}:{value}:{manager}:{options}", lease = own)]
#[allow(clippy::too_many_arguments)]
async fn names_of_the_expansion(
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

#[distributed_lock(key = "order:{id}")]
async fn mutable_or_ignored(mut id: u64, _: String, _unused: u8, mut text: String) -> Result<String, LockError> {
    id += 1;
    text.push_str(&id.to_string());
    Ok(text)
}

struct Order {
    id: u64,
}

#[distributed_lock(key = "order:{id}:{order.id}", locks = manager, ttl = ttl, wait = wait)]
async fn used_only_in_options(
    id: u64,
    order: Order,
    manager: LockManager,
    ttl: Duration,
    wait: Duration,
) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "n:{n}")]
async fn with_attributes(
    n: u64,
    #[allow(unused_variables)] left: u8,
    #[expect(unused_variables, reason = "it must be fulfilled exactly once")] right: u8,
    #[cfg(any())] c: u8,
    #[cfg(not(any()))] d: u8,
    #[cfg_attr(not(any()), allow(unused_mut))] mut e: u8,
    #[cfg(any())] Some(g): Missing,
) -> Result<u64, LockError> {
    Ok(n + u64::from(d + e))
}

struct Path<T>(T);
struct Json<T> {
    value: T,
    extra: u8,
}
struct Body {
    n: u64,
    mut_me: String,
}

#[distributed_lock(key = "n", on_error = |error| Err(format!("{n} {m}: {error}")))]
async fn with_conditions_and_seen_by_on_error(
    #[cfg(not(any()))] n: u64,
    #[cfg(not(any()))] Path(m): Path<u8>,
    #[cfg(any())] n: u8,
) -> Result<u64, String> {
    Ok(n)
}

#[distributed_lock(key = "map:{key}")]
async fn borrowed<'m>(map: &'m mut HashMap<String, u64>, key: &str) -> Result<&'m mut u64, LockError> {
    Ok(map.entry(key.to_owned()).or_default())
}

#[distributed_lock(key = "order:{id}:{n}")]
async fn destructured_structs(
    Path(id): Path<u64>,
    Json {
        value: Body { n, mut mut_me },
        ..
    }: Json<Body>,
) -> Result<String, LockError> {
    mut_me.push_str(&n.to_string());
    Ok(format!("{id}{mut_me}"))
}

#[distributed_lock(key = "pair:{a}:{b}")]
async fn destructured((a, b): (u64, u64), [c, rest @ ..]: [u8; 3], &d: &u8) -> Result<u64, LockError> {
    Ok(a + b + u64::from(c) + u64::from(rest[0]) + u64::from(d))
}

#[distributed_lock(key = "x{type}:{r#match}", lease = r#loop)]
async fn r#fn(r#type: u8, r#match: &str) -> Result<u8, LockError> {
    let _ = (r#match, r#loop.fencing_token());
    Ok(r#type)
}

#[distributed_lock(key = "a:{text}:{boxed}:{object}:{shared}:{twice}:{any}")]
async fn unsized_and_borrowed_in_the_key<T: Display + ?Sized>(
    text: &str,
    boxed: Box<dyn Display>,
    object: &dyn Display,
    shared: Rc<str>,
    twice: &&u8,
    any: &T,
) -> Result<(), LockError> {
    let _ = (boxed, object, shared);
    Ok(())
}
