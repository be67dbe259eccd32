//! Return types, and the values that convert into them.

use lock_core::{FromLockError, LockError, distributed_lock};
use std::{cell::Cell, fmt::Display, num::ParseIntError, sync::Arc};
use tokio::net::TcpStream;

// Futures that are `Send`.
#[distributed_lock(key = "n:{n}:{text:>3}:{n:02}", wait = "1s")]
async fn with_a_template(n: Arc<u8>, text: &str, cell: Cell<u8>) -> Result<u8, LockError> {
    tokio::task::yield_now().await;
    Ok(*n + cell.get() + u8::from(text.is_empty()))
}

#[distributed_lock(key = later(n).await?, ttl = std::time::Duration::from_secs(1))]
async fn with_an_await(n: u8) -> Result<u8, LockError> {
    Ok(n)
}

async fn later(n: u8) -> Result<String, LockError> {
    tokio::task::yield_now().await;
    Ok(n.to_string())
}

fn spawn() {
    tokio::spawn(with_an_await(1));
    tokio::spawn(async move {
        let text = String::from("x");
        with_a_template(Arc::new(1), &text, Cell::new(1)).await
    });
}

// Errors.
enum ApiError {
    Lock(LockError),
    Parse(ParseIntError),
}
impl From<LockError> for ApiError {
    fn from(error: LockError) -> Self {
        Self::Lock(error)
    }
}
impl From<ParseIntError> for ApiError {
    fn from(error: ParseIntError) -> Self {
        Self::Parse(error)
    }
}

#[distributed_lock(key = "n:{text}")]
async fn question_marks(text: &str) -> Result<u64, ApiError> {
    let number: u64 = text.parse()?;
    Ok(number + text.parse::<u64>()?)
}

type Done = Result<(), Box<dyn std::error::Error + Send + Sync>>;
#[distributed_lock(key = "n")]
async fn an_alias() -> Done {
    Err("x")?
}
#[distributed_lock(key = "n")]
async fn anyhow() -> anyhow::Result<u8> {
    anyhow::bail!("no")
}
#[distributed_lock(key = "n")]
async fn a_generic_error<E: From<LockError>>() -> Result<u8, E> {
    Ok(1)
}
#[distributed_lock(key = "connect:{port}")]
async fn a_connection_called_stream(port: u16) -> std::io::Result<TcpStream> {
    TcpStream::connect(("127.0.0.1", port)).await
}

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
async fn a_type_of_the_users(n: u8) -> Answer {
    if n > 1 {
        return Answer::Busy;
    }
    Answer::Fine(n)
}

// Coercions at each return.
trait Shape {}
impl Shape for u8 {}
impl Shape for u16 {}

#[distributed_lock(key = "shape:{n}")]
async fn trait_objects(n: u8) -> Result<Box<dyn Shape>, LockError> {
    if n > 1 {
        return Ok(Box::new(n));
    }
    Ok(Box::new(1_u16))
}

#[distributed_lock(key = "function:{n}", on_error = |_| |x| x)]
async fn functions(n: u8) -> fn(u8) -> u8 {
    if n > 1 {
        return |x| x + 2;
    }
    |x| x + 1
}

#[distributed_lock(key = "text:{text}", on_error = |_| panic!("no lock"))]
async fn a_reborrow(text: &mut String) -> &str {
    if text.is_empty() {
        return text;
    }
    text.push('x');
    text
}

// `impl Trait`.
#[distributed_lock(key = "of:{id}", on_error = |error| error.to_string())]
async fn impl_trait(id: u64) -> impl Display {
    if id > 2 {
        return String::new();
    }
    id.to_string()
}

#[distributed_lock(key = "of:{id}")]
async fn impl_trait_in_a_result(id: u64) -> Result<impl Iterator<Item = u64> + use<>, LockError> {
    Ok(0..id)
}

// Types with a value that means "skipped".
#[distributed_lock(key = "n", on_busy = skip)]
async fn skipped_unit_in_a_result() -> Result<(), LockError> {
    Ok(())
}
#[distributed_lock(key = "n", on_busy = skip)]
async fn skipped_option_in_a_result() -> Result<Option<impl Sized>, LockError> {
    Ok(Some(1))
}
#[distributed_lock(key = "n", on_busy = skip, on_error = |_| None)]
async fn skipped_option() -> Option<u8> {
    Some(1)
}
#[distributed_lock(key = "n", on_busy = skip, on_error = |error| eprintln!("{error}"))]
async fn skipped_unit() {}

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
