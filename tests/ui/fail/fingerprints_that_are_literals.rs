//! Fingerprints that are literals, and thus the same for each request.
// error: a fingerprint must be a value: write `fingerprint = card.number`
// at: "card {{}} {card.number:>8}"
// error: a fingerprint must be a value: write `fingerprint = (&user, &cents)`
// at: "{user}:{cents}"
// error: a fingerprint must be a value: this one is the same for every request: write a value that describes the request, as in `fingerprint = body`
// at: "cents"
// error: a fingerprint must be a value: this one is the same for every request
// at: 7
use lock_core::{LockError, run_once};

pub struct Card {
    number: u64,
}

#[run_once(key = "k", keep = "1h", fingerprint = "card {{}} {card.number:>8}")]
pub async fn field(card: Card) -> Result<u64, LockError> {
    Ok(card.number)
}

#[run_once(key = "k", keep = "1h", fingerprint = "{user}:{cents}")]
pub async fn two(user: u64, cents: u64) -> Result<u64, LockError> {
    Ok(user + cents)
}

#[run_once(key = "k", keep = "1h", fingerprint = "cents")]
pub async fn none(cents: u64) -> Result<u64, LockError> {
    Ok(cents)
}

#[run_once(key = "k", keep = "1h", fingerprint = 7)]
pub async fn number(cents: u64) -> Result<u64, LockError> {
    Ok(cents)
}
