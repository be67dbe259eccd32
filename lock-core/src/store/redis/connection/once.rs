//! A value that one task makes and several wait for: waiters are woken first come, first served.
//!
//! tokio's `watch` would do, but wakes its waiters in random order.

use std::{
    pin::pin,
    sync::{Arc, OnceLock},
};

use tokio::sync::Notify;

#[derive(Debug)]
pub(crate) struct Once<T> {
    /// `None` in it: the value will never exist.
    made: OnceLock<Option<T>>,
    there: Notify,
}

/// Makes it, or gives it up when dropped.
pub(crate) struct OnceSender<T>(Arc<Once<T>>);

impl<T: Clone> Once<T> {
    pub(crate) fn new() -> (OnceSender<T>, Arc<Self>) {
        let coming = Arc::new(Self {
            made: OnceLock::new(),
            there: Notify::new(),
        });
        (OnceSender(coming.clone()), coming)
    }

    /// Waits for it; `None` if it was given up.
    ///
    /// Dropping the future changes nothing.
    pub(crate) async fn wait(&self) -> Option<T> {
        let mut there = pin!(self.there.notified());
        loop {
            // Register before the check: the value may come between the two.
            there.as_mut().enable();
            if let Some(made) = self.made.get() {
                return made.clone();
            }
            there.as_mut().await;
            there.set(self.there.notified());
        }
    }
}

impl<T> OnceSender<T> {
    pub(crate) fn tell(self, made: T) {
        self.end(Some(made));
    }

    fn end(&self, made: Option<T>) {
        if self.0.made.set(made).is_ok() {
            self.0.there.notify_waiters();
        }
    }
}

impl<T> Drop for OnceSender<T> {
    fn drop(&mut self) {
        self.end(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn all_who_wait_get_it_and_so_do_those_who_come_later() {
        let (maker, coming) = Once::new();
        let (one, other, ()) = tokio::join!(coming.wait(), coming.wait(), async {
            maker.tell(7);
        });
        assert_eq!(
            (one, other, coming.wait().await),
            (Some(7), Some(7), Some(7))
        );
    }

    #[tokio::test]
    async fn who_waits_hears_that_it_was_given_up() {
        let (maker, coming) = Once::<u8>::new();
        let (waited, ()) = tokio::join!(coming.wait(), async { drop(maker) });
        assert_eq!((waited, coming.wait().await), (None, None));
    }
}
