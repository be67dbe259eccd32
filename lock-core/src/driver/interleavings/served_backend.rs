//! A backend with a server thread, which executes and answers requests some time after they were sent.

use std::{
    collections::VecDeque,
    fmt,
    sync::Arc,
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    backend::{
        Acquire, Answered, Backend, Operate, Page, PagePosition, Release, Renew, Reply, Traits,
        in_flight, memory::MemoryBackend,
    },
    engine::reply::{AcquireOutcome, ReleaseOutcome, Renewed},
    failure::Failure,
    fencing::KnownTokens,
    inspect::{Health, Sighting},
    runtime::mutex::Mutex,
};

type Request = Box<dyn FnOnce(&MemoryBackend) + Send>;

/// The order in which requests are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// In the order in which they were sent, on the one connection that the in-flight record names.
    First,
    /// The last one first, as may happen if it is unknown on which connection a release was sent.
    Last,
}

#[derive(Clone)]
pub(super) struct ServedBackend {
    memory: Arc<MemoryBackend>,
    order: Order,
    /// The requests that have been sent and not executed yet.
    sent: Arc<Mutex<VecDeque<Request>>>,
}

impl ServedBackend {
    pub(super) fn new(memory: Arc<MemoryBackend>, order: Order) -> Self {
        Self {
            memory,
            order,
            sent: Arc::default(),
        }
    }

    /// Executes one request that has been sent, if there is one.
    pub(super) fn serve(&self) {
        let mut sent = self.sent.lock();
        let request = match self.order {
            Order::First => sent.pop_front(),
            Order::Last => sent.pop_back(),
        };
        drop(sent);
        if let Some(request) = request {
            request(&self.memory);
        }
    }

    /// Returns a future whose first poll sends the request. Dropping the future later does not cancel the request.
    fn send<T: Send + 'static>(
        &self,
        request: impl FnOnce(&MemoryBackend) -> Reply<T> + Send + 'static,
    ) -> Reply<T> {
        let sent = self.sent.clone();
        Box::pin(async move {
            let (sender, reply) = oneshot::channel();
            sent.lock().push_back(Box::new(move |memory| {
                let mut reply = request(memory);
                let mut task = TaskContext::from_waker(Waker::noop());
                // The receiver is gone if the future was dropped.
                if let Poll::Ready(reply) = reply.as_mut().poll(&mut task) {
                    drop(sender.send(reply));
                }
            }));
            reply
                .await
                .unwrap_or_else(|_| Err(Failure::no_reply("the test has ended")))
        })
    }
}

impl fmt::Debug for ServedBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedBackend").finish_non_exhaustive()
    }
}

impl Backend for ServedBackend {
    fn acquire(&self, request: Acquire) -> Reply<Answered<AcquireOutcome>> {
        request
            .owner
            .in_flight
            .note_sent_on(in_flight::Order::LOCAL);
        self.send(move |memory| memory.acquire(request))
    }

    fn renew(&self, batch: Vec<Renew>, within: Duration) -> Reply<Vec<Result<Renewed, Failure>>> {
        self.send(move |memory| memory.renew(batch, within))
    }

    fn release(&self, request: Release) -> Reply<Answered<ReleaseOutcome>> {
        if self.order == Order::First {
            let released_on = &request.owner.released_on;
            released_on.note_sent_on(in_flight::Order::LOCAL);
        }
        self.send(move |memory| memory.release(request))
    }

    fn traits(&self) -> Traits {
        Traits::default()
    }
}

impl Operate for ServedBackend {
    fn inspect(&self, full_key: Arc<str>) -> Reply<Option<Sighting>> {
        self.send(move |memory| memory.inspect(full_key))
    }

    fn list(&self, full_prefix: Arc<str>, from: PagePosition) -> Reply<Page> {
        self.send(move |memory| memory.list(full_prefix, from))
    }

    fn forget(&self, full_key: Arc<str>) -> Reply<()> {
        self.send(move |memory| memory.forget(full_key))
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> Reply<()> {
        self.send(move |memory| memory.force_release(full_key, known_fencing))
    }

    fn check(&self, known_tokens: Arc<KnownTokens>) -> Reply<Health> {
        self.send(move |memory| memory.check(known_tokens))
    }
}
