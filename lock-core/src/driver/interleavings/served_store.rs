//! A store with a server thread: requests are executed some time after they left, and then have their replies.

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
        Acquire, Acquired, Page, PagePosition, Renew, Store, StoreFuture, in_flight::ConnectionId,
        memory::MemoryStore, until_certain::CertainRelease,
    },
    engine::reply::{ReleaseOutcome, Renewed},
    failure::Failure,
    fencing::KnownTokens,
    inspect::{Health, Sighting},
    runtime::mutex::Mutex,
};

type Request = Box<dyn FnOnce(&MemoryStore) + Send>;

/// In which order requests are executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Order {
    /// As they left: on one connection, as the in-flight record says.
    First,
    /// The last one first. It is not known on which connection a release left.
    Last,
}

#[derive(Clone)]
pub(super) struct ServedStore {
    memory: Arc<MemoryStore>,
    order: Order,
    /// What has left and was not executed yet.
    sent: Arc<Mutex<VecDeque<Request>>>,
}

impl ServedStore {
    pub(super) fn new(memory: Arc<MemoryStore>, order: Order) -> Self {
        Self {
            memory,
            order,
            sent: Arc::default(),
        }
    }

    /// Executes a request, if one has left.
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

    /// A request leaves with the first poll of its future. If that is dropped later, the request is executed all the same.
    fn send<T: Send + 'static>(
        &self,
        request: impl FnOnce(&MemoryStore) -> StoreFuture<T> + Send + 'static,
    ) -> StoreFuture<T> {
        let sent = self.sent.clone();
        Box::pin(async move {
            let (sender, reply) = oneshot::channel();
            sent.lock().push_back(Box::new(move |memory| {
                let mut reply = request(memory);
                let mut task = TaskContext::from_waker(Waker::noop());
                // The receiver is missing if the future was dropped.
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

impl fmt::Debug for ServedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServedStore").finish_non_exhaustive()
    }
}

impl Store for ServedStore {
    fn acquire(&self, request: Acquire) -> StoreFuture<Acquired> {
        request.owner.in_flight.note_sent_on(ConnectionId::LOCAL);
        self.send(move |memory| memory.acquire(request))
    }

    fn renew(
        &self,
        batch: Vec<Renew>,
        within: Duration,
    ) -> StoreFuture<Vec<Result<Renewed, Failure>>> {
        self.send(move |memory| memory.renew(batch, within))
    }

    fn release(&self, release: CertainRelease) -> StoreFuture<ReleaseOutcome> {
        if self.order == Order::First {
            let in_flight = release.request.in_flight();
            in_flight.note_sent_on(ConnectionId::LOCAL);
        }
        self.send(move |memory| memory.release(release))
    }

    fn inspect(&self, full_key: Arc<str>) -> StoreFuture<Option<Sighting>> {
        self.send(move |memory| memory.inspect(full_key))
    }

    fn list(&self, full_prefix: Arc<str>, from: PagePosition) -> StoreFuture<Page> {
        self.send(move |memory| memory.list(full_prefix, from))
    }

    fn forget(&self, full_key: Arc<str>) -> StoreFuture<()> {
        self.send(move |memory| memory.forget(full_key))
    }

    fn force_release(&self, full_key: Arc<str>, known_fencing: u64) -> StoreFuture<()> {
        self.send(move |memory| memory.force_release(full_key, known_fencing))
    }

    fn check(&self, known_tokens: Arc<KnownTokens>) -> StoreFuture<Health> {
        self.send(move |memory| memory.check(known_tokens))
    }

    fn round_trip(&self) -> Duration {
        Duration::ZERO
    }
}
