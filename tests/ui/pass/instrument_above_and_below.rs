//! `#[instrument]` above and below.

use lock_core::{LockError, distributed_lock};

use tracing::instrument;

struct State(u8);
struct Path<T>(T);

#[instrument(skip(secret))]
#[distributed_lock(key = "n:{n}")]
async fn above(n: u64, secret: State) -> Result<u64, LockError> {
    Ok(n + u64::from(secret.0))
}

#[distributed_lock(key = "n:{n}")]
#[instrument(skip(secret), fields(m = n + 1), err(Debug))]
async fn below(n: u64, secret: State) -> Result<u64, LockError> {
    if n > 3 {
        return Ok(n);
    }
    Ok(u64::from(secret.0))
}

#[distributed_lock(key = "n:{n}")]
#[instrument(skip(id))]
async fn below_with_patterns(
    Path(n): Path<u64>,
    Path(mut id): Path<State>,
) -> Result<u64, LockError> {
    id.0 += 1;
    Ok(n + u64::from(id.0))
}
