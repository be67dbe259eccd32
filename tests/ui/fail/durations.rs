//! Durations, and the relations between them, that the parser refuses.

use lock_core::{LockError, distributed_lock, run_once};

// error: `max_hold` is not a usable duration: unknown unit `d`: use `h`, `m`, `s` or `ms`
// at: "1d"
#[distributed_lock(key = "order", max_hold = "1d")]
async fn a_duration_of_days(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `ttl` is not a usable duration: it is zero, but must be at least `"100ms"`
// at: "0s"
#[distributed_lock(key = "order", ttl = "0s")]
async fn a_duration_of_zero(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `keep` is not a usable duration: it is too long, and must be at most `"8760h"`
// at: "8761h"
#[run_once(key = "k", keep = "8761h")]
async fn a_keep_of_more_than_a_year() -> Result<u8, LockError> { Ok(1) }

// error: `ttl` is not a usable duration: it is too long, and must be at most `"24h"`
// at: "24h1ms"
#[distributed_lock(key = "order", ttl = "24h1ms")]
async fn a_duration_over_24_h(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `wait` is not a usable duration: write a text with a unit, as in `"10s"`
// at: 1.5
#[distributed_lock(key = "order", wait = 1.5)]
async fn a_duration_that_is_a_fraction(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: a number needs a unit: write `"10s"`
// at: 10
#[distributed_lock(key = "order", ttl = 10)]
async fn a_duration_that_is_a_number(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: it is empty: write a number and a unit
// at: ""
#[distributed_lock(key = "order", ttl = "")]
async fn a_duration_that_is_empty(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: does not begin with a number
// at: "-1s"
#[distributed_lock(key = "order", ttl = "-1s")]
async fn a_duration_that_is_negative(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: it is too long
// at: "99999999999999999999h"
#[distributed_lock(key = "order", ttl = "99999999999999999999h")]
async fn a_duration_that_overflows(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `min_hold` is not a usable duration: it is too short, and must be at least `"100ms"`
// at: "99ms"
#[distributed_lock(key = "order", min_hold = "99ms")]
async fn a_duration_under_100_ms(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `ttl` is not a usable duration: instead of a fraction, use a smaller unit: `"1s500ms"`
// at: "1.5s"
#[distributed_lock(key = "order", ttl = "1.5s")]
async fn a_duration_with_a_decimal_point(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: `ttl` is not a usable duration: `10` has no unit: write `"10s"`
// at: "10"
#[distributed_lock(key = "order", ttl = "10")]
async fn a_duration_without_a_unit(order_id: u64, name: String) -> Result<u64, LockError> { Ok(order_id + name.len() as u64) }

// error: it needs quotation marks: write `"10s"`
// at: 10s
#[distributed_lock(key = "order", ttl = 10s)]
async fn a_duration_without_quotation_marks() -> Result<(), LockError> { Ok(()) }

// A `min_hold` that is longer than `max_hold`.
// error: min_hold (60s) is longer than max_hold (10s): swap them, or leave one out
// at: "1m"
#[distributed_lock(key = "order", min_hold = "1m", max_hold = "10s")]
async fn a_min_hold_beyond_the_max_hold() -> Result<(), LockError> { Ok(()) }

// A `max_hold` that a lease without renewal never reaches.
// error: renewal is off, so the lease ends at its ttl (10s) and never reaches max_hold (60s): leave max_hold out, or choose a longer ttl
// at: "1m"
#[distributed_lock(key = "order", max_hold = "1m", renew = false, ttl = "10s")]
async fn a_max_hold_that_the_ttl_never_reaches() -> Result<(), LockError> { Ok(()) }

// Only a wait can have no end.
// error: `ttl` is not a usable duration: only `wait` can be `"forever"`
// at: "forever"
// error: `max_hold` is not a usable duration: to set no bound, leave it out
// at: "forever"
#[distributed_lock(key = "order", ttl = "forever", max_hold = "forever")]
async fn a_ttl_that_lasts_forever() -> Result<(), LockError> { Ok(()) }

// A wait without end, without quotation marks.
// error: `wait` is not a usable duration: it needs quotation marks: write `"forever"`
// at: forever
#[distributed_lock(key = "order", wait = forever)]
async fn a_wait_forever_without_quotation_marks() -> Result<(), LockError> { Ok(()) }
