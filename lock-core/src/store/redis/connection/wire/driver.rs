//! The driver of a connection: the future of the crate `redis` that reads and writes.

use std::{
    future::{Future, poll_fn},
    pin::Pin,
    task::Poll,
};

use crate::runtime::catch_panic::catch_panic;

/// The driver ends after more than this many panics in a row. Even a broken executor has fewer such wakers.
const MOST_PANICS: u32 = 100;

/// It ends with its connection.
pub(crate) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls the driver, which wakes tasks of users' executors. If a waker panics, the driver goes on with the next reply. After more
/// than `MOST_PANICS` panics in a row, the connection ends.
pub(crate) async fn shielded(driver: &mut Driver) {
    let mut panics = 0;
    poll_fn(|context| {
        let mut polled = None;
        catch_panic(|| polled = Some(driver.as_mut().poll(context)));
        panics = if polled.is_some() { 0 } else { panics + 1 };
        match polled {
            Some(polled) => polled,
            None if panics > MOST_PANICS => Poll::Ready(()),
            None => {
                context.waker().wake_by_ref();
                Poll::Pending
            }
        }
    })
    .await;
}
