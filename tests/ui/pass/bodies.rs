//! Bodies that return no value, are not `Send`, or have attributes, lifetimes and macros of their own.

use lock_core::{LockError, distributed_lock};
use std::{cell::RefCell, convert::Infallible, rc::Rc, time::Duration};

#[distributed_lock(key = "n:{m}")]
async fn not_send(n: Rc<RefCell<String>>, m: u8) -> Result<Rc<u8>, LockError> {
    let shared = Rc::new(m);
    tokio::task::yield_now().await;
    n.borrow_mut().push('x');
    Ok(shared)
}

#[distributed_lock(key = "order:{id}", on_error = |error| panic!("{error}"))]
async fn without_a_value(id: u64) -> Infallible {
    unimplemented!("for {id}")
}

#[distributed_lock(key = "leader", on_error = |error| panic!("{error}"))]
async fn never_returns(pause: Duration) -> ! {
    loop {
        tokio::time::sleep(pause).await;
    }
}

#[distributed_lock(key = "order:{id}", on_error = |error| eprintln!("{error}"))]
#[allow(clippy::unused_unit)]
async fn returns_unit(id: u64) -> () {
    if id > 1 {
        return;
    }
    eprintln!("{id}");
}

#[cfg(not(any()))]
#[distributed_lock(key = "n:{n}")]
#[cfg(not(any()))]
async fn attributes_in_the_body(n: u8) -> Result<u8, LockError> {
    #![allow(unused_variables)]
    let x = 5;
    #[cfg(any())]
    {
        missing
    }
    #[cfg(not(any()))]
    let n = n + 1;
    Ok(n)
}

struct Reader<'a> {
    text: &'a str,
}
impl<'a> Reader<'a> {
    #[distributed_lock(key = "r:{other.text}")]
    async fn lifetimes_that_only_the_body_names<'b>(&self, other: &'b Reader<'a>) -> Result<&'b str, LockError>
    where
        'a: 'b,
    {
        let longer: &'b str = if other.text.len() > self.text.len() { other.text } else { self.text };
        Ok(longer)
    }
}

macro_rules! result {
    ($t:ty) => { Result<$t, LockError> };
}
macro_rules! bail {
    ($e:expr) => {
        return Err($e)
    };
}
#[distributed_lock(key = "n")]
async fn macros_in_the_body_and_the_type(n: u8) -> result!(u8) {
    if n > 1 {
        bail!(LockError::NotConfigured);
    }
    tokio::select! { () = tokio::task::yield_now() => Ok(n) }
}

#[distributed_lock(key = "n:{n}")]
async fn recursion(n: u64) -> Result<u64, LockError> {
    if n == 0 {
        return Ok(0);
    }
    Ok(1 + Box::pin(recursion(n - 1)).await?)
}
