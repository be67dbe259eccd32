//! Requests of several tasks that leave in one message, and share what a message costs.
//!
//! With many requests in flight, each one costs little beside what it takes to send it and to find its reply. So a request opens a
//! message, and the next ones join it. It leaves when the driver is polled (`mod.rs` says when), when it is full, or when another
//! request follows that leaves alone. What the message says is composed then, and its replies are distributed, by `gathered.rs` of
//! the protocol.
//!
//! What holds:
//!
//! - A message is put into the driver's queue under the mutex that requests join it under. So what a task sends after its request has
//!   joined arrives behind it, if the queue has room.
//! - A request whose future is dropped leaves with the others. If the futures of all of them are dropped before the driver took the
//!   message, it never leaves.
//! - The wakers of the tasks are called and dropped without a mutex of this file. Each panic is caught, so the other tasks are woken.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    ops::Range,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use redis::{RedisResult, Value};

use crate::{
    backend::redis::transport::command::WriteWord,
    runtime::{
        catch_panic::catch_panic,
        mutex::{Mutex, may_switch, this_thread},
    },
};

/// How many requests a message has at most. The server does nothing else while it runs a script for all of them: 0.2 ms.
pub(crate) const MOST: usize = 64;

/// With so many requests in flight, those that may join a message do. With fewer, each leaves alone: it waits for no other one.
/// With more, the queue of the driver may be full. A message that waits for room contains requests that were given up, too. Their
/// clean-ups could overtake it.
pub(crate) const CROWD: Range<usize> = 4..1 << 11;

/// One request of a message.
pub(crate) struct MessagePart {
    pub(crate) subject: Arc<dyn Subject>,
    pub(crate) change: Change,
}

/// A key, and the value that it has or is to have.
pub(crate) trait Subject: Send + Sync {
    fn key(&self) -> &str;

    fn value(&self) -> &dyn WriteWord;
}

/// What becomes of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is set for this long, if it does not exist.
    Set(Duration),
    /// It is deleted, if it has the value.
    Delete,
}

/// What the server says to one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PartReply {
    /// The reply to `SET`. For a deletion: 1 if the key is deleted, 0 if not, or an error.
    pub(crate) value: Value,
    /// The id that a stream gave behind it.
    pub(crate) id: Option<(u64, u64)>,
    /// Whether there is a queue, as far as the request looked.
    pub(crate) has_queue: Option<bool>,
}

/// The replies to each request of a message, in their order.
pub(crate) type PartReplies = RedisResult<Vec<PartReply>>;

/// The future of the replies. Its first poll puts the message into the queue of the driver.
pub(crate) type Sending = Pin<Box<dyn Future<Output = PartReplies> + Send>>;

/// Composes a message, once no further request joins it.
pub(crate) type Compose = Box<dyn FnOnce(Vec<MessagePart>) -> Sending + Send>;

#[derive(Default)]
pub(crate) struct Gathering {
    /// Whether there is a message that requests may join.
    is_open: AtomicBool,
    open: Mutex<Option<OpenMessage>>,
}

/// A message that has not left.
struct OpenMessage {
    message: Arc<SharedMessage>,
    parts: Vec<MessagePart>,
    compose: Compose,
}

struct SharedMessage {
    tasks: Arc<Tasks>,
    state: Mutex<MessageState>,
}

enum MessageState {
    Open,
    Sent(Sending),
    Replied(PartReplies),
}

/// The wakers of the tasks whose requests are in the message. Apart from it: the future of the replies holds them, and the message
/// holds that future.
#[derive(Default)]
struct Tasks(Mutex<Vec<Option<Waker>>>);

impl Wake for Tasks {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let wakers = std::mem::take(&mut *self.0.lock());
        for waker in wakers.into_iter().flatten() {
            catch_panic(|| waker.wake());
        }
    }
}

impl Tasks {
    /// Has the waker called for the request with this number. Not needed if the same one is to be called already.
    fn note(&self, number: usize, waker: &Waker) {
        let is_known = {
            let wakers = self.0.lock();
            let known = wakers.get(number).and_then(Option::as_ref);
            known.is_some_and(|known| known.will_wake(waker))
        };
        if is_known {
            return;
        }
        // A waker is the user's code: it is cloned and dropped while the mutex is free.
        let waker = waker.clone();
        let old = {
            let mut wakers = self.0.lock();
            if wakers.len() <= number {
                wakers.resize_with(number + 1, || None);
            }
            wakers[number].replace(waker)
        };
        catch_panic(|| drop(old));
    }
}

impl Gathering {
    /// Joins the open message, or opens one, and waits for the reply to this request.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped before its first poll, nothing leaves. If it is dropped later, the request leaves with the others.
    pub(crate) async fn join(
        &self,
        part: MessagePart,
        compose: impl FnOnce() -> Compose,
    ) -> RedisResult<PartReply> {
        let (mut joining, mut joined) = (Some((part, compose)), None);
        poll_fn(|context| {
            if let Some((part, compose)) = joining.take() {
                joined = Some(self.add(part, compose, context.waker()));
            } else if let Some((message, number)) = &joined {
                return SharedMessage::poll(message, *number, context);
            }
            Poll::Pending
        })
        .await
    }

    /// Returns the message, and the number of the request in it.
    fn add(
        &self,
        part: MessagePart,
        compose: impl FnOnce() -> Compose,
        waker: &Waker,
    ) -> (Arc<SharedMessage>, usize) {
        let waker = waker.clone();
        let mut slot = self.open.lock();
        let open = slot.get_or_insert_with(|| OpenMessage {
            message: Arc::new(SharedMessage {
                tasks: Arc::default(),
                state: Mutex::new(MessageState::Open),
            }),
            parts: Vec::new(),
            compose: compose(),
        });
        let (message, number) = (open.message.clone(), open.parts.len());
        open.parts.push(part);
        message.tasks.0.lock().push(Some(waker));
        self.is_open.store(true, SeqCst);
        if number + 1 == MOST {
            let left = self.leave_from(&mut slot);
            drop(slot);
            Self::end(left);
        }
        (message, number)
    }

    /// Has the open message leave, if there is one: puts it into the driver's queue.
    pub(crate) fn leave(&self) {
        may_switch();
        if self.is_open.load(SeqCst) {
            let left = self.leave_from(&mut self.open.lock());
            Self::end(left);
        }
    }

    /// Returns the message that has left, for [`end`](Self::end).
    fn leave_from(&self, slot: &mut Option<OpenMessage>) -> Option<Arc<SharedMessage>> {
        let OpenMessage {
            message,
            parts,
            compose,
        } = slot.take()?;
        let mut sending = compose(parts);
        let waker = Waker::from(message.tasks.clone());
        // Before the poll: another thread may read the reply behind it. A task that is woken then waits here for the new state.
        let mut state = message.state.lock();
        let first = {
            let _queueing = Queueing::begin();
            sending.as_mut().poll(&mut Context::from_waker(&waker))
        };
        // Not earlier: what follows a request of this message would not wait for the mutex.
        self.is_open.store(false, SeqCst);
        *state = match first {
            Poll::Pending => MessageState::Sent(sending),
            Poll::Ready(replies) => MessageState::Replied(replies),
        };
        drop(state);
        Some(message)
    }

    /// Wakes the tasks of a message that could not leave, since its connection has ended. Called without a mutex: if no task waits for
    /// the message, its wakers are dropped, which are the users' code.
    fn end(left: Option<Arc<SharedMessage>>) {
        let Some(message) = left else {
            return;
        };
        if matches!(*message.state.lock(), MessageState::Replied(_)) {
            message.tasks.wake_by_ref();
        }
        catch_panic(|| drop(message));
    }
}

impl SharedMessage {
    fn poll(
        self: &Arc<Self>,
        number: usize,
        context: &mut Context<'_>,
    ) -> Poll<RedisResult<PartReply>> {
        if let MessageState::Replied(replies) = &mut *self.state.lock() {
            return Poll::Ready(take(replies, number));
        }
        // Before the look: the reply may come in between.
        self.tasks.note(number, context.waker());
        let mut state = self.state.lock();
        if let MessageState::Sent(sending) = &mut *state {
            let waker = Waker::from(self.tasks.clone());
            if let Poll::Ready(replies) = sending.as_mut().poll(&mut Context::from_waker(&waker)) {
                *state = MessageState::Replied(replies);
            }
        }
        match &mut *state {
            MessageState::Replied(replies) => Poll::Ready(take(replies, number)),
            MessageState::Open | MessageState::Sent(_) => Poll::Pending,
        }
    }
}

thread_local! {
    /// This thread, while it puts a request into the queue of a driver which it polls itself; else zero. All threads of the explorer
    /// share this.
    static QUEUES: Cell<usize> = const { Cell::new(0) };
}

/// This thread puts a request into the queue of a driver, and polls the driver itself: that queue need not wake a reader. Its drop ends
/// that. So does the drop of one inside: behind a message, nothing else is queued.
pub(crate) struct Queueing(());

impl Queueing {
    pub(crate) fn begin() -> Self {
        QUEUES.set(this_thread());
        Self(())
    }

    pub(super) fn is_on_this_thread() -> bool {
        QUEUES.get() == this_thread()
    }
}

impl Drop for Queueing {
    fn drop(&mut self) {
        QUEUES.set(0);
    }
}

fn take(replies: &mut PartReplies, number: usize) -> RedisResult<PartReply> {
    let replies = replies.as_mut().map_err(|error| error.clone())?;
    let reply = replies.get_mut(number).map(std::mem::take);
    Ok(reply.unwrap_or_default())
}

/// A key with itself as its value.
#[cfg(test)]
impl Subject for String {
    fn key(&self) -> &str {
        self
    }

    fn value(&self) -> &dyn WriteWord {
        self
    }
}

#[cfg(test)]
impl WriteWord for String {
    fn write_to(&self, word: &mut dyn std::io::Write) {
        drop(word.write_all(self.as_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use redis::{ErrorKind, RedisError};

    use super::*;
    use crate::runtime::mutex::interleaved::{explore, point};

    type Joining<'a> = Pin<Box<dyn Future<Output = RedisResult<PartReply>> + 'a>>;

    /// Messages whose replies come when the test says so.
    #[derive(Default)]
    struct Messages {
        gathering: Gathering,
        /// The numbers of the requests in each message that has left.
        left: Arc<Mutex<Vec<Vec<u64>>>>,
        waker: Arc<Mutex<Option<Waker>>>,
        replies: Arc<Mutex<Option<RedisResult<()>>>>,
        /// How many futures of replies there are.
        kept: Arc<()>,
    }

    fn part(number: u64) -> MessagePart {
        MessagePart {
            subject: Arc::new(number.to_string()),
            change: Change::Delete,
        }
    }

    fn number_of(part: &MessagePart) -> u64 {
        part.subject.key().parse().expect("a number")
    }

    fn of(number: u64) -> PartReply {
        let value = Value::Int(number.try_into().expect("small"));
        PartReply {
            value,
            ..PartReply::default()
        }
    }

    impl Messages {
        fn compose(&self) -> Compose {
            let (left, waker) = (self.left.clone(), self.waker.clone());
            let (replies, kept) = (self.replies.clone(), self.kept.clone());
            Box::new(move |parts| {
                let numbers: Vec<_> = parts.iter().map(number_of).collect();
                left.lock().push(numbers.clone());
                Box::pin(poll_fn(move |context| {
                    assert!(Arc::strong_count(&kept) > 1, "those of the test");
                    // As the future of the crate: the waker first, then the look.
                    *waker.lock() = Some(context.waker().clone());
                    let Some(replies) = replies.lock().clone() else {
                        return Poll::Pending;
                    };
                    let each = numbers.iter().map(|number| of(*number));
                    Poll::Ready(replies.map(|()| each.collect()))
                }))
            })
        }

        /// A request that has joined.
        fn joined(&self, number: u64, waker: &Waker) -> Joining<'_> {
            let mut joining: Joining<'_> =
                Box::pin(self.gathering.join(part(number), || self.compose()));
            assert!(polled(&mut joining, waker).is_pending());
            joining
        }

        fn sizes(&self) -> Vec<usize> {
            self.left.lock().iter().map(Vec::len).collect()
        }

        fn reply(&self, replies: RedisResult<()>) {
            *self.replies.lock() = Some(replies);
            let waker = self.waker.lock().take();
            waker.expect("a message has left").wake();
        }
    }

    fn polled(joining: &mut Joining<'_>, waker: &Waker) -> Poll<RedisResult<PartReply>> {
        joining.as_mut().poll(&mut Context::from_waker(waker))
    }

    /// Counts its calls, and may panic.
    struct Counted {
        calls: AtomicUsize,
        panics: bool,
    }

    impl Counted {
        fn new(panics: bool) -> (Arc<Self>, Waker) {
            let calls = AtomicUsize::new(0);
            let counted = Arc::new(Self { calls, panics });
            (counted.clone(), Waker::from(counted))
        }

        fn calls(&self) -> usize {
            self.calls.load(SeqCst)
        }
    }

    impl Wake for Counted {
        fn wake(self: Arc<Self>) {
            self.calls.fetch_add(1, SeqCst);
            assert!(!self.panics, "as this executor does");
        }
    }

    #[test]
    fn a_message_leaves_when_it_is_full_or_when_the_driver_is_polled() {
        let (messages, waker) = (Messages::default(), Waker::noop());
        let most = MOST as u64;
        let joining: Vec<_> = (0..most + 3)
            .map(|number| messages.joined(number, waker))
            .collect();
        assert_eq!(messages.sizes(), [MOST], "the last three may be joined");
        messages.gathering.leave();
        messages.gathering.leave();
        assert_eq!(messages.sizes(), [MOST, 3]);
        drop(joining);
    }

    #[test]
    fn each_request_has_its_own_reply() {
        let messages = Messages::default();
        let mut joining: Vec<_> = (0..5)
            .map(|number| (messages.joined(number, Waker::noop()), Counted::new(false)))
            .collect();
        messages.gathering.leave();
        // The task that polls last is woken: an acquire may be continued by another task.
        for (joining, (_, waker)) in &mut joining {
            assert!(polled(joining, waker).is_pending());
        }
        messages.reply(Ok(()));
        for (number, (joining, (counted, waker))) in joining.iter_mut().enumerate().rev() {
            assert_eq!(counted.calls(), 1, "{number}");
            let Poll::Ready(Ok(reply)) = polled(joining, waker) else {
                panic!("no reply to {number}");
            };
            assert_eq!(reply, of(number as u64));
        }
    }

    #[test]
    fn the_end_of_the_connection_is_the_reply_to_each_request() {
        let messages = Messages::default();
        let waker = Waker::noop();
        let mut joining: Vec<_> = (0..3)
            .map(|number| messages.joined(number, waker))
            .collect();
        messages.gathering.leave();
        messages.reply(Err(RedisError::from((ErrorKind::Io, "it has ended"))));
        for joining in &mut joining {
            assert!(matches!(polled(joining, waker), Poll::Ready(Err(_))));
        }
    }

    #[test]
    fn a_waker_that_panics_costs_no_other_task_its_reply() {
        let messages = Messages::default();
        let (_, broken) = Counted::new(true);
        let (counted, waker) = Counted::new(false);
        let first = messages.joined(0, &broken);
        let mut second = messages.joined(1, &waker);
        messages.gathering.leave();
        messages.reply(Ok(()));
        assert_eq!(counted.calls(), 1);
        assert!(polled(&mut second, &waker).is_ready());
        drop(first);
    }

    #[test]
    fn a_request_whose_future_is_dropped_leaves_with_the_others() {
        let messages = Messages::default();
        let waker = Waker::noop();
        drop(messages.joined(0, waker));
        let mut second = messages.joined(1, waker);
        messages.gathering.leave();
        assert_eq!(*messages.left.lock(), [[0, 1]]);
        messages.reply(Ok(()));
        assert!(polled(&mut second, waker).is_ready());
    }

    #[test]
    fn a_message_that_no_task_waits_for_is_given_up() {
        let messages = Messages::default();
        let (first, second) = (
            messages.joined(0, Waker::noop()),
            messages.joined(1, Waker::noop()),
        );
        messages.gathering.leave();
        assert_eq!(Arc::strong_count(&messages.kept), 2);
        drop((first, second));
        assert_eq!(Arc::strong_count(&messages.kept), 1, "with its future");
    }

    /// A thread has a message leave, and another one reads its reply.
    #[test]
    fn a_reply_that_comes_while_its_message_leaves_wakes_the_task() {
        explore(5000, || {
            let messages = Arc::new(Messages::default());
            let (counted, waker) = Counted::new(false);
            let mut joining = messages.joined(0, &waker);
            let threads = [
                shuttle::thread::spawn({
                    let messages = messages.clone();
                    move || messages.gathering.leave()
                }),
                shuttle::thread::spawn({
                    let messages = messages.clone();
                    move || {
                        while messages.waker.lock().is_none() {}
                        messages.reply(Ok(()));
                    }
                }),
            ];
            let mut calls = 0;
            loop {
                point();
                let before = std::mem::replace(&mut calls, counted.calls());
                if before < calls && polled(&mut joining, &waker).is_ready() {
                    break;
                }
            }
            for thread in threads {
                thread.join().expect("no panic");
            }
        });
    }
}
