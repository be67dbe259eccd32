//! Bodies with each kind of statement.

use lock_core::{LockError, distributed_lock};
use std::cell::RefCell;
use std::rc::Rc;

// A body that is not send.
#[distributed_lock(key = "n:{m}")]
async fn a_body_that_is_not_send(n: Rc<RefCell<String>>, m: u8) -> Result<Rc<u8>, LockError> {
    let shared = Rc::new(m);
    tokio::task::yield_now().await;
    n.borrow_mut().push('x');
    Ok(shared)
}

// A body that is todo.
#[distributed_lock(key = "order:{id}")]
async fn later(id: u64) -> Result<String, LockError> {
    unimplemented!("for {id}")
}

// A body that is todo for a type without values.
#[distributed_lock(key = "order:{id}", on_error = |error| panic!("{error}"))]
async fn never(id: u64) -> std::convert::Infallible {
    unimplemented!("for {id}")
}

// A function that never returns.
#[distributed_lock(key = "leader", on_error = |error| panic!("{error}"))]
async fn lead(pause: std::time::Duration) -> ! {
    loop {
        tokio::time::sleep(pause).await;
    }
}

#[distributed_lock(key = "leader", on_error = |_| std::process::exit(1))]
async fn leave(code: i32) -> ! {
    std::process::exit(code)
}

// A function that returns nothing.
#[distributed_lock(key = "order:{id}", on_error = |error| eprintln!("{error}"))]
async fn silent(id: u64) {
    eprintln!("{id}");
}

#[distributed_lock(key = "order:{id}", on_error = drop)]
#[allow(clippy::unused_unit)]
async fn written(id: u64) -> () {
    if id > 1 {
        return;
    }
    eprintln!("{id}");
}

#[distributed_lock(key = "order", on_error = drop)]
async fn empty() {}

// Attributes under cfg attr.
#[cfg_attr(not(any()), distributed_lock(key = "n:{n}"))]
async fn on(n: u64) -> Result<u64, LockError> {
    Ok(n)
}

#[cfg_attr(any(), distributed_lock(key = "n:{n}"))]
async fn off(n: u64) -> Result<u64, LockError> {
    tokio::task::yield_now().await;
    Ok(n)
}

// Cfg on statements and the function.
#[cfg(not(any()))]
#[distributed_lock(key = "n:{n}")]
#[cfg(not(any()))]
async fn cfg_on_statements_and_the_function(n: u8) -> Result<u8, LockError> {
    #[cfg(any())]
    {
        missing
    }
    #[cfg(not(any()))]
    let n = n + 1;
    Ok(n)
}
#[cfg(any())]
#[distributed_lock(key = "n:{n}")]
async fn missing(n: Missing) {}

// Inner attributes.
#[distributed_lock(key = "n:{n}")]
async fn inner_attributes(n: u64) -> Result<u64, LockError> {
    #![allow(unused_variables)]
    let x = 5;
    Ok(n)
}

// Lifetimes that only the body knows.
struct Reader<'a> {
    text: &'a str,
}
impl<'a> Reader<'a> {
    #[distributed_lock(key = "r:{self.text}")]
    async fn rest(&mut self, from: usize) -> Result<&'a str, LockError> {
        self.text = &self.text[from..];
        Ok(self.text)
    }
    #[distributed_lock(key = "r:{other.text}")]
    async fn longer<'b>(&self, other: &'b Reader<'a>) -> Result<&'b str, LockError>
    where
        'a: 'b,
    {
        Ok(if other.text.len() > self.text.len() {
            other.text
        } else {
            self.text
        })
    }
}

// Loops with breaks and labels.
#[distributed_lock(key = "order:{id}")]
async fn search(id: u64) -> Result<u64, LockError> {
    let mut n = id;
    let found = 'outer: loop {
        while n < 10 {
            n += 1;
            if n == 7 {
                break 'outer n;
            }
        }
        for i in 0..n {
            if i == 3 {
                return Ok(i);
            }
        }
    };
    Ok(found)
}

// Macros in the body and in the type.
macro_rules! result { ($t:ty) => { Result<$t, LockError> } }
macro_rules! bail {
    ($e:expr) => {
        return Err($e)
    };
}
#[distributed_lock(key = "n")]
async fn macros_in_the_body_and_in_the_type(n: u8) -> result!(u8) {
    if n > 1 {
        bail!(LockError::NotConfigured);
    }
    tokio::select! { () = tokio::task::yield_now() => Ok(n) }
}

// Nested functions.
#[distributed_lock(key = "outer:{n}")]
async fn outer(n: u64) -> Result<u64, LockError> {
    const STEP: u64 = 2;
    #[distributed_lock(key = "inner:{n}")]
    async fn inner(n: u64) -> Result<u64, LockError> {
        fn innermost(n: u64) -> u64 {
            n + STEP
        }
        Ok(innermost(n))
    }
    inner(n).await
}

// Recursion.
#[distributed_lock(key = "n:{n}")]
async fn down(n: u64) -> Result<u64, LockError> {
    if n == 0 {
        return Ok(0);
    }
    Ok(1 + Box::pin(down(n - 1)).await?)
}

fn is_send<T: Send>(_: T) {}

#[distributed_lock(key = "n:{n}", on_error = |_| 0)]
fn boxed(n: u64) -> std::pin::Pin<Box<dyn Future<Output = u64> + Send>> {
    Box::pin(async move { if n == 0 { 0 } else { 1 + boxed(n - 1).await } })
}

// Unsafe blocks and async blocks in the body.
#[distributed_lock(key = "n")]
async fn unsafe_blocks_and_async_blocks_in_the_body(n: u8) -> Result<u8, LockError> {
    let inner = async {
        if n > 1 {
            return Err(LockError::NotConfigured);
        }
        Ok(n)
    };
    let closure = async |m: u8| {
        if m > 1 {
            return m;
        }
        m + 1
    };
    Ok(inner.await? + closure(n).await)
}
