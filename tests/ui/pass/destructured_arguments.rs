//! Destructured arguments.

use lock_core::{LockError, distributed_lock};

struct Path<T>(T);
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
async fn pair((a, b): (u64, u64), [c, rest @ ..]: [u8; 3], &d: &u8) -> Result<u64, LockError> {
    Ok(a + b + u64::from(c) + u64::from(rest[0]) + u64::from(d))
}
