//! Options that the attribute does not have, and options without a name, a value or a comma.

use lock_core::{LockError, distributed_lock, run_once};

// error: `ttl` is given twice: leave one out
// at: ttl
#[distributed_lock(key = "order", ttl = "1s", ttl = "2s")]
async fn a_duplicate_option(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: options have names: write `key =
// at: "order:{order_id}"
#[distributed_lock("order:{order_id}")]
async fn a_key_without_a_name(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: a number needs a unit
// at: 1
// error: a function that is not `async`
// at: fn
#[distributed_lock(key = "order", ttl = 1)]
fn a_mistake_in_the_options_and_in_the_item() -> Result<(), LockError> { Ok(()) }

// error: a body runs once for a single key: write one key with all values, as in `"transfer:{from}:{to}"`
// at: ["from:{from}", "to:{to}"]
#[run_once(key = ["from:{from}", "to:{to}"], keep = "1h")]
pub async fn a_run_of_a_list_of_keys(from: u8, to: u8) -> Result<u8, LockError> { Ok(from + to) }

// error: missing `keep`: set how long repeats get the result, as in `keep = "24h"`
// at: #[lock_core::run_once(key = "k")]
#[lock_core::run_once(key = "k")]
pub async fn a_run_without_keep() -> Result<u8, LockError> { Ok(1) }

// error: `key` has no value: write `key = "order:{order_id}"`
// at: =
#[distributed_lock(key =)]
async fn an_empty_option(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `ttl` has no value: write `ttl = "10s"`
// at: ttl
#[distributed_lock(key = "order", ttl("10s"))]
async fn an_option_with_a_value_in_parentheses(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: unknown option `retention`: did you mean `keep`?
// at: retention
// error: unknown option `semaphore`: the options are `key`, `ttl`, `wait`, `max_hold`, `on_error`, `lease`, `locks`, `crate`, `on_drop`, `keep`, `fingerprint`
// at: semaphore
// error: unknown option `fingerprnt`: did you mean `fingerprint`?
// at: fingerprnt
#[run_once(key = "k", retention = "1h", semaphore = 3, fingerprnt = id)]
pub async fn an_unknown_option_of_a_run(id: u8) -> Result<u8, LockError> { Ok(id) }

// error: unknown option `colour`: the options are `key`, `ttl`, `wait`, `mode`, `permits`, `renew`, `max_hold`, `min_hold`, `on_busy`, `on_lost`, `on_error`, `release`, `lease`, `locks`, `crate`, `on_drop`
// at: colour
#[distributed_lock(key = "order", colour = 1)]
async fn an_unknown_option_that_resembles_none(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: unknown option `lcoks`: did you mean `locks`?
// at: lcoks
#[distributed_lock(key = "order", lcoks = x)]
async fn an_unknown_option_with_swapped_letters(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: expected a comma before the next option
// at: ttl
#[distributed_lock(key = "order" ttl = "1s")]
async fn no_comma_between_options(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// No comma in a list of keys, or of modes; and modes in parentheses.
// error: expected a comma before the next key, as in `["from:{from}", "to:{to}"]`
// at: "to:{to}"
// error: expected a comma before the next mode, as in `[exclusive, shared]`
// at: shared
// error: write one mode for each key, in brackets: `mode = [exclusive, shared]`
// at: (exclusive, shared)
#[distributed_lock(key = ["from:{from}" "to:{to}"])]
async fn keys(from: u64, to: u64) -> Result<u64, LockError> { Ok(from + to) }
#[distributed_lock(key = ["from:{from}", "to:{to}"], mode = [exclusive shared])]
async fn modes(from: u64, to: u64) -> Result<u64, LockError> { Ok(from + to) }
#[distributed_lock(key = ["from:{from}", "to:{to}"], mode = (exclusive, shared))]
async fn in_parentheses(from: u64, to: u64) -> Result<u64, LockError> { Ok(from + to) }

// error: missing `key`: name what is locked, as in `key = "order:{order_id}"`
// at: #[distributed_lock]
#[distributed_lock]
async fn no_parentheses() -> Result<(), LockError> { Ok(()) }

// error: `mode` is not an option of `run_once`: one caller runs the body, and all get its result: leave it out
// at: mode
// error: `permits` is not an option of `run_once`: one caller runs the body, and all get its result: leave it out, or write a second attribute below, `#[distributed_lock(key = …, permits = …)]`
// at: permits
// error: `renew` is not an option of `run_once`: the lease is renewed while the body runs: leave it out, or bound the time of the body with `max_hold`
// at: renew
// error: `min_hold` is not an option of `run_once`: write `keep`, the time for which a repeat gets the result
// at: min_hold
// error: `on_busy` is not an option of `run_once`: a caller waits for the result of a body that runs elsewhere: write `wait = "0s"` to get `LockError::Busy` at once
// at: on_busy
// error: `on_lost` is not an option of `run_once`: without its lease, the body could run twice at the same time, so it is dropped: leave it out, or write a longer `ttl`
// at: on_lost
// error: `release` is not an option of `run_once`: the result is stored by the release, so the release is awaited: leave it out
// at: release
#[run_once(
    key = "k",
    keep = "1h",
    mode = shared,
    permits = 3,
    renew = false,
    min_hold = "1s",
    on_busy = skip,
    on_lost = continue,
    release = background
)]
pub async fn options_that_a_run_does_not_have() -> Result<u8, LockError> { Ok(1) }

// error: `keep` is not an option of `distributed_lock`: it belongs to `run_once`, which keeps the result of the body for later callers: write `#[run_once(…)]`, or `min_hold` for the shortest time that the lock is held
// at: keep
// error: `fingerprint` is not an option of `distributed_lock`: it belongs to `run_once`, which compares it with that of an earlier request: write `#[run_once(…)]`, or leave it out
// at: fingerprint
#[distributed_lock(key = "k", keep = "1h", fingerprint = id)]
pub async fn options_that_only_a_run_has(id: u8) -> Result<u8, LockError> { Ok(id) }

// error: missing `key`: name what is locked, as in `key = "order:{order_id}"`
// at: #[distributed_lock(ttl = "10s")]
#[distributed_lock(ttl = "10s")]
async fn options_without_a_key(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }
