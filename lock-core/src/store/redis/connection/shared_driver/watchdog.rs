//! The part of a shared driver that runs on the manager's thread: it reads when no task does, and watches the one that does.

use std::{
    future::poll_fn,
    sync::{Arc, atomic::Ordering::SeqCst},
    task::{Context, Poll},
    time::Duration,
};

use crate::{
    runtime::catch_panic::catch_panic,
    store::redis::connection::{
        shared_driver::{MANAGER, SharedDriver},
        wire::shared_socket::Polling,
    },
};

/// How often the watchdog looks while the connection is in use.
const LOOK: Duration = Duration::from_millis(3);

/// After so many looks that find no new poll of the driver, the connection counts as unused, and the watchdog sleeps: 50 ms. The next
/// request then wakes it. A manager that is used once a second looks a few times for each request, and not all the time.
const MOST_IDLE_LOOKS: u32 = 16;

impl SharedDriver {
    /// Reads when no task of a user does, and looks whether the one that does works. Runs on the manager's thread, until the
    /// connection is over. When the future is dropped, the connection ends.
    pub(crate) async fn watch(self: Arc<Self>, in_flight: impl Fn() -> usize + Send) {
        let this = Ending(self);
        let mut looks = Looks::default();
        // Until the connection ends.
        while !this.0.has_ended.load(SeqCst) {
            let is_watched = this.0.is_watched.load(SeqCst);
            tokio::select! {
                biased;
                () = poll_fn(|context| this.0.read_here(context)) => {}
                () = this.0.called.notified() => {}
                () = tokio::time::sleep(LOOK), if is_watched => this.0.look(&mut looks, &in_flight),
            }
        }
    }

    /// Reads, if the manager's thread is the reader. Never ready before the connection is over.
    fn read_here(&self, context: &mut Context<'_>) -> Poll<()> {
        if self.reader_number.load(SeqCst) != MANAGER {
            return Poll::Pending;
        }
        let mut reader = self.reader.lock();
        if reader.number != MANAGER {
            return Poll::Pending;
        }
        // A reader without a waker has just become it: the current registration is that of an earlier one.
        if reader.waker.is_none() {
            match self.socket.register_here() {
                Ok(registration) => self.socket.replace(registration),
                Err(_) => self.has_ended.store(true, SeqCst),
            }
        }
        let (known, waker) = (reader.waker.as_ref(), context.waker());
        let is_known = known.is_some_and(|known| known.will_wake(waker));
        let old = (!is_known).then(|| self.wake_with(&mut reader, waker));
        drop(reader);
        drop(old);
        self.poll(Polling::Reads);
        if self.has_ended.load(SeqCst) {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }

    /// Polls the driver if its reader does not, and reads from then on.
    fn look(&self, looks: &mut Looks, in_flight: &impl Fn() -> usize) {
        let polls = self.polls.load(SeqCst);
        let is_idle = polls == looks.polls;
        looks.polls = polls;
        if in_flight() == 0 {
            looks.idle = if is_idle { looks.idle + 1 } else { 0 };
            if looks.idle > MOST_IDLE_LOOKS {
                looks.idle = 0;
                self.is_watched.store(false, SeqCst);
                // A request that began meanwhile has seen that the connection is watched.
                self.is_watched.store(in_flight() > 0, SeqCst);
            }
            return;
        }
        // A request that waited for room wakes the reader alone, and so does a thread that has polled for the last time in a row.
        let is_wanted = || self.is_seen_to.load(SeqCst) || self.again.load(SeqCst);
        if is_idle && (is_wanted() || self.socket.has_work()) {
            let number = self.reader_number.load(SeqCst);
            self.poll(Polling::WithoutReactor);
            if number > MANAGER {
                self.read_on_the_manager(number);
            }
            looks.polls = self.polls.load(SeqCst);
        }
    }
}

/// What the watchdog saw last.
#[derive(Default)]
struct Looks {
    polls: u64,
    idle: u32,
}

/// Drops the driver, and so ends the requests in flight. Closes the connection.
pub(super) struct Ending(pub(super) Arc<SharedDriver>);

impl Drop for Ending {
    fn drop(&mut self) {
        // A thread that keeps the driver may stand still. What the driver has taken must not leave when the thread goes on: no clean-up
        // would be sent behind it any more.
        self.0.socket.close();
        // Such a thread drops the driver when it has polled it.
        let driver = self
            .0
            .driver
            .try_lock()
            .and_then(|mut driver| driver.take());
        catch_panic(|| drop(driver));
        self.0.has_ended.store(true, SeqCst);
        // Its task ends with the next poll. Without one it would stay in its runtime.
        self.0.wake_reader();
    }
}
