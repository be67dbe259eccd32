//! Tokio test and main below.

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = "a test", on_error = |error| panic!("{error}"))]
#[tokio::test]
async fn works() {
    assert_eq!(1 + 1, 2);
}

#[distributed_lock(key = "main")]
#[tokio::main]
async fn start() -> Result<(), LockError> {
    Ok(())
}
