//! The task that drives a connection: it reads, dispatches the replies, and writes what no other task writes.

use std::time::Duration;

use tokio::{
    io::AsyncReadExt,
    time::{MissedTickBehavior, interval},
};

use crate::store::redis::connection::{
    CLOCK, Connection, Messages, NoReply, call, is,
    pub_sub::PubSubDispatch,
    wire::{
        resp::{self, Frame, Malformed, Value},
        socket::Reading,
    },
};

/// How much is read at a time.
const READ_SIZE: usize = 1 << 14;

/// What was received.
enum Received {
    Answer(Value),
    Message(Vec<Value>),
    Nothing,
}

impl Connection {
    /// Reads, writes what no other task writes, and fails the requests that are late, until the connection is over. Returns the
    /// reason. The caller then passes it to the pending requests, by [`end`](Self::end).
    ///
    /// `late` is called after handlers were told that nothing came within `patience`.
    pub(super) async fn drive(
        &self,
        mut reading: Reading,
        dispatch: PubSubDispatch,
        patience: Duration,
        late: impl Fn() + Send,
    ) -> NoReply {
        let mut tick = interval(patience / 8);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut buffer = Vec::with_capacity(READ_SIZE);
        loop {
            buffer.reserve(READ_SIZE);
            tokio::select! {
                biased;
                read = reading.read_buf(&mut buffer) => {
                    match read {
                        Ok(0) => break NoReply::Broken("the server closed the connection".into()),
                        Ok(_) => {}
                        Err(error) => break NoReply::of(&error),
                    }
                    self.hear();
                    if let Err(nonsense) = self.take_in(&mut buffer, &dispatch) {
                        break nonsense;
                    }
                    // What the handlers queued.
                    self.flush();
                }
                // After reading: the server's last messages come before its end.
                () = self.kick.notified() => match self.unwritable() {
                    Some(why) => break NoReply::Broken(why),
                    None => self.flush(),
                },
                writable = self.writing.writable(), if self.is_blocked() => {
                    if let Err(error) = writable {
                        break NoReply::Broken(error.to_string().into());
                    }
                    let mut flow = self.lock();
                    flow.is_blocked = false;
                    self.write_out(flow);
                }
                _ = tick.tick() => {
                    self.write_out(self.lock());
                    if self.tell_the_late() {
                        late();
                    }
                }
            }
            if self.is_over(patience) {
                break NoReply::Broken("the connection was given up".into());
            }
        }
    }

    /// Takes complete frames out of the buffer.
    ///
    /// First assigns each reply to its request, and only then calls the handlers: a handler may send a new request at once, and
    /// that request must not get a reply that was here before.
    fn take_in(&self, buffer: &mut Vec<u8>, dispatch: &PubSubDispatch) -> Result<(), NoReply> {
        let mut answers = Vec::new();
        let mut taken = 0;
        let result = loop {
            match resp::parse(&buffer[taken..]) {
                Ok(None) => break Ok(()),
                Err(Malformed) => break Err(NoReply::Nonsense),
                Ok(Some((frame, length))) => {
                    taken += length;
                    match self.sort(frame) {
                        Received::Answer(value) => answers.push(value),
                        Received::Message(words) => dispatch.take(&words),
                        Received::Nothing => {}
                    }
                }
            }
        };
        buffer.drain(..taken);
        let mut complete = Vec::new();
        let is_one_too_many = {
            let mut flow = self.lock();
            flow.is_giving = true;
            let mut answers = answers.into_iter();
            loop {
                let Some(answer) = answers.next() else {
                    break false;
                };
                // A reply without a request: then no later one can be trusted either.
                let Some(oldest) = flow.waiting.front_mut() else {
                    break true;
                };
                oldest.answers.push(answer);
                if oldest.answers.len() == oldest.count {
                    complete.extend(flow.waiting.pop_front());
                }
            }
        };
        for waiting in complete {
            if let Some(then) = waiting.then {
                call(then, Ok(waiting.answers));
            }
        }
        self.lock().is_giving = false;
        if is_one_too_many {
            return Err(NoReply::Nonsense);
        }
        result
    }

    fn sort(&self, frame: Frame) -> Received {
        match frame {
            // The reply to a subscription has the form of a message. A subscription that a node ends by itself is reported by a
            // message.
            Frame::Push(words) if is(&words, b"subscribe") || is(&words, b"ssubscribe") => {
                Received::Answer(Value::Array(words))
            }
            Frame::Push(words)
                if is(&words, b"message")
                    || is(&words, b"smessage")
                    || is(&words, b"sunsubscribe") =>
            {
                Received::Message(words)
            }
            Frame::Push(_) => Received::Nothing,
            Frame::Answer(Value::Array(words))
                if self.messages == Messages::Resp2Array && is(&words, b"message") =>
            {
                Received::Message(words)
            }
            Frame::Answer(value) => Received::Answer(value),
        }
    }

    /// Returns whether a handler was called.
    fn tell_the_late(&self) -> bool {
        let now = CLOCK.now();
        let mut late = Vec::new();
        for waiting in &mut self.lock().waiting {
            if waiting.until.is_some_and(|until| until <= now) {
                late.extend(waiting.then.take());
            }
        }
        let any = !late.is_empty();
        for then in late {
            call(then, Err(NoReply::Late));
        }
        any
    }

    fn is_over(&self, patience: Duration) -> bool {
        let flow = self.lock();
        flow.retired.is_some_and(|retired| {
            flow.waiting.is_empty() || CLOCK.now() >= retired.after(patience)
        })
    }
}
