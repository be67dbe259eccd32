//! No comma in a list of keys, or of modes; and modes in parentheses.
// error: expected a comma before the next key, as in `["from:{from}", "to:{to}"]`
// at: "to:{to}"
// error: expected a comma before the next mode, as in `[exclusive, shared]`
// at: shared
// error: write one mode for each key, in brackets: `mode = [exclusive, shared]`
// at: (exclusive, shared)

use lock_core::{LockError, distributed_lock};

#[distributed_lock(key = ["from:{from}" "to:{to}"])]
async fn keys(from: u64, to: u64) -> Result<u64, LockError> { Ok(from + to) }

#[distributed_lock(key = ["from:{from}", "to:{to}"], mode = [exclusive shared])]
async fn modes(from: u64, to: u64) -> Result<u64, LockError> { Ok(from + to) }

#[distributed_lock(key = ["from:{from}", "to:{to}"], mode = (exclusive, shared))]
async fn in_parentheses(from: u64, to: u64) -> Result<u64, LockError> { Ok(from + to) }
