//! A release of a key while it is in flight, as the next acquire of the key in this process sees it.
//!
//! One connection keeps the order of its requests, so an acquire that is sent behind the release finds the key free. Sometimes it
//! is not known that both use one connection: several servers, no scripts, no connection yet. Then the acquire waits for the reply
//! to the release. The order can still break: a redirect, a broken connection, a script that the server forgot, replicas that must
//! acknowledge. Then the reply is "busy", and the acquire waits for the reply as well and is sent once more.
//!
//! Each acquire waits for one command time-out at most: the task that polls the release may have stopped polling it.
//!
//! Rejected: a state for a release in flight in the state machine of the key. It would decide nothing: an acquire that is sent
//! behind a release is only a request that takes longer.

use std::sync::{Arc, Weak};

use crate::{
    lock::context::Context,
    runtime::{catch_panic::catch_panic, clock::Moment, tally::Tally},
    store::{Acquire, AcquireOutcome, Acquired, Failure, QueueMode, WakeUpMode, owner::Owner},
};

/// A release in flight. The entry of its key keeps it until it has a reply.
pub(crate) struct ReleaseInFlight {
    owner: Arc<Owner>,
    listener: Weak<dyn ReleaseListener>,
    /// Open until the reply.
    reply: Tally,
}

/// The owner of the entries of the keys, which forgets a release that is over.
pub(crate) trait ReleaseListener: Send + Sync {
    /// Called when a release of this owner token has its result, or when none will come.
    fn released(&self, owner: &Owner, release: &Arc<ReleaseInFlight>);
}

/// A part of the release until its result is known. Its drop tells the listener, and the acquires that wait for the reply.
pub(crate) struct OpenRelease(Arc<ReleaseInFlight>);

impl ReleaseInFlight {
    pub(crate) fn begin(owner: &Arc<Owner>, listener: Weak<dyn ReleaseListener>) -> OpenRelease {
        OpenRelease(Arc::new(Self {
            owner: owner.clone(),
            listener,
            reply: Tally::of_one(),
        }))
    }

    pub(crate) fn has_reply(&self) -> bool {
        self.reply.count() == 0
    }

    /// Sends an acquire of the same key behind the release.
    pub(crate) async fn acquire_behind(
        self: Arc<Self>,
        context: Arc<Context>,
        owner: Arc<Owner>,
        mut request: Acquire,
    ) -> Result<Acquired, Failure> {
        let until = context.clock.now().after(context.timing.command_timeout);
        request.behind = self.owner.released_on.only_connection();
        if request.behind.is_none() {
            self.await_reply(&context, until).await;
        }
        let reply = context.store.acquire(request.clone()).await;
        let Ok(Acquired {
            outcome: AcquireOutcome::Busy(busy),
            ..
        }) = &reply
        else {
            return reply;
        };
        // With an entry in the queue, the release grants the key by a message.
        let is_queued =
            request.queue_mode != QueueMode::DoNotQueue && busy.wake_up == WakeUpMode::Push;
        if is_queued || busy.needs_new_token() || !self.await_reply(&context, until).await {
            return reply;
        }
        owner.note_reply(&reply);
        context.store.acquire(request).await
    }

    /// Waits for the reply, and returns whether it came.
    async fn await_reply(&self, context: &Context, until: Moment) -> bool {
        let left = until.since(context.clock.now());
        context.within(left, self.reply.emptied()).await
    }
}

impl OpenRelease {
    pub(crate) fn release(&self) -> &Arc<ReleaseInFlight> {
        &self.0
    }
}

impl Drop for OpenRelease {
    fn drop(&mut self) {
        let release = &self.0;
        if let Some(listener) = release.listener.upgrade() {
            listener.released(&release.owner, release);
        }
        // This wakes tasks of the user, and a waker may panic.
        catch_panic(|| release.reply.close_one());
    }
}
