//! The services that the process gets from its machine: time, tasks and random numbers.

use std::{
    pin::Pin,
    task::{Context, Waker},
};

pub(crate) mod catch_panic;
pub(crate) mod clock;
pub(crate) mod executor;
pub(crate) mod io_thread;
pub(crate) mod jitter;
pub(crate) mod mutex;
#[cfg(feature = "simulation")]
pub(crate) mod simulation;
pub(crate) mod tally;
pub(crate) mod timer_queue;
pub(crate) mod together;

/// A unit of the manager's work. It outlives the call that started it, so dropping a user's future never stops it.
#[cfg_attr(
    not(feature = "simulation"),
    expect(unreachable_pub, reason = "used by a world of the simulation")
)]
pub type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Polls work once, and returns it if it is pending.
fn polled_once(mut work: Work) -> Option<Work> {
    let mut context = Context::from_waker(Waker::noop());
    work.as_mut()
        .poll(&mut context)
        .is_pending()
        .then_some(work)
}
