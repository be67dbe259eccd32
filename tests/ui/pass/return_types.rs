//! Return types, and what converts into them.

use lock_core::{FromLockError, LockError, distributed_lock};
use std::cell::Cell;
use std::fmt::Display;
use std::sync::Arc;

// A future that is send.
#[distributed_lock(key = "n:{n}:{text:>3}:{n:02}", wait = "1s")]
async fn a_future_that_is_send(n: Arc<u8>, text: &str, cell: Cell<u8>) -> Result<u8, LockError> {
    tokio::task::yield_now().await;
    Ok(*n + cell.get() + u8::from(text.is_empty()))
}

#[distributed_lock(key = text(n).await?, ttl = std::time::Duration::from_secs(1))]
async fn a_future_that_is_send_g(n: u8) -> Result<u8, LockError> {
    Ok(n)
}

async fn text(n: u8) -> Result<String, LockError> {
    tokio::task::yield_now().await;
    Ok(n.to_string())
}

fn is_send<T: Send>(_: T) {}
fn check() {
    is_send(a_future_that_is_send(Arc::new(1), "x", Cell::new(1)));
    is_send(a_future_that_is_send_g(1));
}

// A question mark converts the error.
enum ApiError {
    Lock(LockError),
    Parse(std::num::ParseIntError),
}
impl From<LockError> for ApiError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}
impl From<std::num::ParseIntError> for ApiError {
    fn from(error: std::num::ParseIntError) -> Self {
        Self::Parse(error)
    }
}

#[distributed_lock(key = "n:{text}")]
async fn parse(text: &str) -> Result<u64, ApiError> {
    let number: u64 = text.parse()?;
    Ok(number + text.parse::<u64>()?)
}

// A return type of the users own.
enum Answer {
    Busy,
    Fine(u8),
}
impl FromLockError for Answer {
    fn from_lock_error(_: LockError) -> Self {
        Self::Busy
    }
}
#[distributed_lock(key = "n")]
async fn a_return_type_of_the_users_own(n: u8) -> Answer {
    if n > 1 {
        return Answer::Busy;
    }
    Answer::Fine(n)
}

// An early return coerces to a trait object.
trait Shape {}
impl Shape for u8 {}
impl Shape for u16 {}

#[distributed_lock(key = "shape:{n}")]
async fn shape(n: u8) -> Result<Box<dyn Shape>, LockError> {
    if n > 1 {
        return Ok(Box::new(n));
    }
    Ok(Box::new(1_u16))
}

#[distributed_lock(key = "shape:{n}", on_error = |_| Box::new(0_u8))]
async fn bare(n: u8) -> Box<dyn Shape> {
    if n > 1 {
        return Box::new(n);
    }
    Box::new(1_u16)
}

// Error types of all kinds.
type Aliased<T> = Result<T, LockError>;
type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;
#[distributed_lock(key = "n")]
async fn alias() -> Aliased<u8> {
    Ok(1)
}
#[distributed_lock(key = "n")]
async fn boxed() -> Done {
    Err("x")?
}
#[distributed_lock(key = "n")]
async fn anyhow() -> anyhow::Result<u8> {
    anyhow::bail!("no")
}
#[distributed_lock(key = "n")]
async fn generic<E: From<LockError>>() -> Result<u8, E> {
    Ok(1)
}
#[distributed_lock(key = "n")]
async fn std_result() -> std::result::Result<u8, Box<dyn std::error::Error>> {
    Ok("1".parse()?)
}

// Impl trait as a whole with on error.
#[distributed_lock(key = "of:{id}", on_error = |error| error.to_string())]
async fn impl_trait_as_a_whole_with_on_error(id: u64) -> impl Display {
    if id > 2 {
        return String::new();
    }
    id.to_string()
}

// Impl trait inside the result.
#[distributed_lock(key = "of:{id}")]
async fn impl_trait_inside_the_result(id: u64) -> Result<impl Display, LockError> {
    if id > 2 {
        return Ok(id);
    }
    Ok(1)
}

#[distributed_lock(key = "of:{id}")]
async fn impl_trait_inside_the_result_g(id: u64) -> Result<impl Iterator<Item = u64> + use<>, LockError> {
    Ok(0..id)
}

// Other coercions happen at every return.
fn same(x: u8) -> u8 {
    x
}

#[distributed_lock(key = "slice:{n}", on_error = |_| &[])]
async fn slice(n: u8) -> &'static [u8] {
    if n > 1 {
        return &[1, 2];
    }
    &[1]
}

#[distributed_lock(key = "function:{n}", on_error = |_| same)]
async fn function(n: u8) -> fn(u8) -> u8 {
    if n > 1 {
        return same;
    }
    |x| x + 1
}

#[distributed_lock(key = "text:{text}", on_error = |_| panic!("no lock"))]
async fn shorter(text: &mut String) -> &str {
    if text.is_empty() {
        return text;
    }
    text.push('x');
    text
}

#[distributed_lock(key = "all", on_error = |_| Vec::new())]
async fn closures(n: u8) -> Vec<Box<dyn Fn(u8) -> u8 + Send>> {
    if n > 1 {
        return vec![Box::new(|x| x), Box::new(move |_| n)];
    }
    vec![Box::new(|x| x)]
}

// Skip on every type with a value that means skipped.
#[distributed_lock(key = "n", on_busy = skip)]
async fn result_of_unit() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = "n", on_busy = skip)]
async fn result_of_option() -> Result<Option<u8>, LockError> {
    Ok(Some(1))
}
#[distributed_lock(key = "n", on_busy = skip, on_error = |_| None)]
async fn option() -> Option<u8> {
    Some(1)
}
#[distributed_lock(key = "n", on_busy = skip, on_error = |error| eprintln!("{error}"))]
async fn unit() {}
#[distributed_lock(key = "n", on_busy = skip)]
async fn opaque() -> Result<Option<impl Sized>, LockError> {
    Ok(Some(1))
}

// The return type guides inference.
#[distributed_lock(key = "n", on_error = |_| 0)]
async fn parsed() -> u64 {
    "5".parse().unwrap_or_default()
}

#[distributed_lock(key = "n")]
async fn collected(texts: Vec<String>) -> Result<Vec<u8>, LockError> {
    let numbers = texts
        .iter()
        .map(|text| text.parse::<u8>().map_err(|_| LockError::NotConfigured));
    numbers.collect()
}

#[distributed_lock(key = "n", on_error = |_| Default::default())]
async fn default<T: Default>() -> T {
    Default::default()
}
