//! The assignment of requests to messages, and of replies to requests. It is pure; `session.rs` does the I/O.
//!
//! Messages leave in the order in which their requests were queued, and replies arrive in the order of the messages. Two rules make
//! this fast under load:
//!
//! - Neighbouring requests share a message if they may, since most of the cost of a request is the overhead of its message.
//! - At most half of the requests in flight leave together, so that the server works on one half while the other is prepared.
//!
//! A peer that loses a reply but keeps the connection shifts all later ones: the `OK` to one `SET` is mistaken for that to
//! another. Only a time-out reveals this. After a time-out, a PING with a unique text is therefore sent, and replies are
//! withheld until its reply arrives in order. If the server was only slow, that reply arrives right after the late
//! ones.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::oneshot;

use crate::{
    backend::redis::transport::{
        command::{Arg, Commands, WriteWord},
        traffic::NoReply,
    },
    moment::Moment,
    runtime::catch_panic::catch_panic,
};

/// The largest number of requests in a message. The server does nothing else while it executes them, which takes 0.2 ms.
pub(crate) const MOST_IN_A_MESSAGE: usize = 64;

/// With fewer requests in flight, none waits for another one to share its message.
pub(super) const CROWD: usize = 4;

/// The largest allocation that is retained for the next message, in bytes.
const MOST_ROOM: usize = 1 << 16;

/// A request to send, and the destination of its replies.
pub(super) enum Request {
    /// Commands in a separate message.
    Alone {
        commands: Commands,
        answer: oneshot::Sender<Vec<Value>>,
    },
    /// A part of a message.
    Part(MessagePart, Arc<dyn Compose>),
    /// Verifies that replies match their requests.
    Probe,
}

/// A request that may share a message with others of the same kind.
pub(crate) struct MessagePart {
    pub(crate) subject: Arc<dyn Subject>,
    pub(crate) change: Change,
    answer: oneshot::Sender<PartReply>,
}

/// A key, and its present or future value.
pub(crate) trait Subject: Send + Sync {
    fn key(&self) -> &str;

    fn value(&self) -> &dyn WriteWord;
}

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Sets the key for this long, if it does not exist.
    Set(Duration),
    /// Deletes the key, if it has the value.
    Delete,
}

/// The server's reply to one part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PartReply {
    /// The reply to `SET`. For a deletion: 1 if the key is deleted, 0 if not, or an error.
    pub(crate) value: Value,
    /// The id that a stream gave afterwards.
    pub(crate) id: Option<(u64, u64)>,
    /// `true` if there is a queue; `None` if the request did not check.
    pub(crate) has_queue: Option<bool>,
}

/// Composes messages from neighbouring parts. Parts with the same composer may share a message.
pub(crate) trait Compose: Send + Sync {
    /// Adds the commands of a message, which has at least one part.
    fn compose(&self, parts: &[MessagePart], commands: &mut Commands);

    /// Gives each part of a message, in order, its own reply. Wakes the user's tasks.
    fn distribute(&self, parts: Vec<MessagePart>, replies: Vec<Value>);
}

/// The requests of one session, from when they are taken from its inbox until they are answered.
#[derive(Default)]
pub(super) struct Exchange {
    waiting: VecDeque<Request>,
    /// The number of requests that may leave together.
    at_a_time: usize,
    /// The bytes to send, and how many of them have been sent.
    output: Commands,
    written: usize,
    sent: VecDeque<Message>,
    /// The number of requests that have not been answered.
    in_flight: usize,
    /// The number of probes in flight.
    probes: usize,
    last_probe: u64,
    /// Messages that have all their replies, withheld until no probe is in flight.
    withheld: Vec<Message>,
}

/// A message, and the replies to it so far.
pub(super) struct Message {
    expects: usize,
    replies: Vec<Value>,
    sent: Moment,
    answers: Answers,
}

enum Answers {
    Alone(oneshot::Sender<Vec<Value>>),
    Gathered(Gathered),
    /// A probe, with the number in the text of its PING.
    Probe(u64),
}

struct Gathered {
    composer: Arc<dyn Compose>,
    parts: Vec<MessagePart>,
}

impl MessagePart {
    pub(crate) fn new(
        subject: Arc<dyn Subject>,
        change: Change,
    ) -> (Self, oneshot::Receiver<PartReply>) {
        let (answer, reply) = oneshot::channel();
        let part = Self {
            subject,
            change,
            answer,
        };
        (part, reply)
    }

    /// Sends the reply. Wakes a user's task, and may drop the last reference to a user's value.
    pub(crate) fn answer(self, reply: PartReply) {
        catch_panic(|| drop(self.answer.send(reply)));
        catch_panic(|| drop(self.subject));
    }
}

/// A push or a reply that arrived.
pub(super) enum Arrival {
    Push(PushInfo),
    Answers(Message),
}

impl Exchange {
    /// The number of requests that have not been answered.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn accept(&mut self, requests: Vec<Request>) {
        let is_probe = |request: &Request| matches!(request, Request::Probe);
        self.in_flight += requests.iter().filter(|request| !is_probe(request)).count();
        self.waiting.extend(requests);
        self.at_a_time = self.in_flight.div_ceil(2).clamp(CROWD, MOST_IN_A_MESSAGE);
    }

    /// Returns the bytes to send next. Composes further messages once all earlier ones have left.
    pub(super) fn output(&mut self, now: Moment) -> &[u8] {
        if self.written == self.output.bytes().len() && !self.waiting.is_empty() {
            self.output.clear(MOST_ROOM);
            self.written = 0;
            self.compose(now);
        }
        &self.output.bytes()[self.written..]
    }

    /// Notes that this many bytes of the output have left.
    pub(super) fn note_written(&mut self, count: usize) {
        self.written += count;
    }

    fn compose(&mut self, now: Moment) {
        let mut gathered: Option<Gathered> = None;
        for _ in 0..self.waiting.len().min(self.at_a_time) {
            let Some(request) = self.waiting.pop_front() else {
                break;
            };
            match request {
                Request::Part(part, composer) => {
                    let joins = |open: &Gathered| Arc::ptr_eq(&open.composer, &composer);
                    if !gathered.as_ref().is_some_and(joins) {
                        self.send_parts(gathered.take(), now);
                    }
                    let open = gathered.get_or_insert_with(|| Gathered {
                        composer,
                        parts: Vec::new(),
                    });
                    open.parts.push(part);
                }
                Request::Alone { commands, answer } => {
                    self.send_parts(gathered.take(), now);
                    self.output.append(&commands);
                    self.note_sent(commands.len(), Answers::Alone(answer), now);
                }
                Request::Probe => {
                    self.send_parts(gathered.take(), now);
                    self.send_probe(now);
                }
            }
        }
        self.send_parts(gathered, now);
    }

    fn send_parts(&mut self, parts: Option<Gathered>, now: Moment) {
        if let Some(parts) = parts {
            let before = self.output.len();
            parts.composer.compose(&parts.parts, &mut self.output);
            let expects = self.output.len() - before;
            self.note_sent(expects, Answers::Gathered(parts), now);
        }
    }

    /// One probe serves all requests that left before it.
    fn send_probe(&mut self, now: Moment) {
        let last = self.sent.back().map(|message| &message.answers);
        if matches!(last, Some(Answers::Probe(_))) {
            return;
        }
        self.probes += 1;
        self.last_probe += 1;
        let text = format!("{PROBE}{}", self.last_probe);
        self.output.add(&[&[Arg::Text("PING"), Arg::Text(&text)]]);
        self.note_sent(1, Answers::Probe(self.last_probe), now);
    }

    fn note_sent(&mut self, expects: usize, answers: Answers, sent: Moment) {
        self.sent.push_back(Message {
            expects,
            replies: Vec::with_capacity(expects),
            sent,
            answers,
        });
    }

    /// Assigns a value that arrived, and appends the messages that it completes. Returns how long a probe took, if it is the
    /// reply to one.
    ///
    /// # Errors
    /// Fails if replies do not match their requests.
    pub(super) fn read(
        &mut self,
        value: Value,
        now: Moment,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<Option<Duration>, NoReply> {
        let value = match value {
            // When a slot moves, the server ends the subscription by an unrequested push. The confirmation of a subscription is
            // a reply.
            Value::Push { kind, data }
                if !matches!(kind, PushKind::Subscribe | PushKind::SSubscribe) =>
            {
                arrivals.push(Arrival::Push(PushInfo { kind, data }));
                return Ok(None);
            }
            value => value,
        };
        let Some(message) = self.sent.front_mut() else {
            return Err(NoReply::Nonsense);
        };
        let expected = match message.answers {
            Answers::Probe(number) => Some(number),
            _ => None,
        };
        // The reply to a probe shows at once that others were lost, whatever position it arrives at. A server that refuses
        // commands for a while may refuse the probe, too.
        let is_refused = expected.is_some() && matches!(value, Value::ServerError(_));
        if self.probes > 0 && !is_refused && echoed(&value) != expected {
            return Err(NoReply::misplaced());
        }
        message.replies.push(value);
        if message.replies.len() < message.expects {
            return Ok(None);
        }
        let Some(message) = self.sent.pop_front() else {
            return Ok(None);
        };
        let mut probed = None;
        if expected.is_some() {
            self.probes -= 1;
            probed = Some(now.since(message.sent));
        } else {
            self.withheld.push(message);
        }
        // All withheld messages were sent before this probe, whichever other probes are in flight.
        if probed.is_some() || self.probes == 0 {
            for message in self.withheld.drain(..) {
                self.in_flight -= message.requests();
                arrivals.push(Arrival::Answers(message));
            }
        }
        Ok(probed)
    }

    /// Returns `true` if anything remains to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.written < self.output.bytes().len() || !self.waiting.is_empty()
    }

    /// Drops all requests. Each drop wakes one of the user's tasks.
    pub(super) fn end(self) {
        let messages = self.withheld.into_iter().chain(self.sent);
        for message in messages {
            message.drop_answers();
        }
        for request in self.waiting {
            catch_panic(|| drop(request));
        }
    }
}

impl Message {
    fn requests(&self) -> usize {
        match &self.answers {
            Answers::Alone(_) => 1,
            Answers::Gathered(parts) => parts.parts.len(),
            Answers::Probe(_) => 0,
        }
    }

    /// Gives each request its replies. Wakes tasks of the user.
    pub(super) fn answer(self) {
        match self.answers {
            Answers::Alone(answer) => catch_panic(|| drop(answer.send(self.replies))),
            Answers::Gathered(of) => of.composer.distribute(of.parts, self.replies),
            Answers::Probe(_) => {}
        }
    }

    fn drop_answers(self) {
        match self.answers {
            Answers::Alone(answer) => catch_panic(|| drop(answer)),
            Answers::Gathered(of) => {
                for part in of.parts {
                    catch_panic(|| drop(part.answer));
                    catch_panic(|| drop(part.subject));
                }
            }
            Answers::Probe(_) => {}
        }
    }
}

const PROBE: &str = "lock-core:probe:";

/// Returns the number of the probe to which this is the reply.
fn echoed(value: &Value) -> Option<u64> {
    let Value::BulkString(text) = value else {
        return None;
    };
    std::str::from_utf8(text.strip_prefix(PROBE.as_bytes())?)
        .ok()?
        .parse()
        .ok()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::backend::redis::transport::command::command;

    /// A step in the life of an exchange.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Step {
        Alone,
        Part,
        /// A part with another composer.
        OtherPart,
        Probe,
        Write,
        /// The server sends the next reply.
        Reply,
        /// The next reply is lost on the way.
        Lose,
    }

    const STEPS: [Step; 7] = [
        Step::Alone,
        Step::Part,
        Step::OtherPart,
        Step::Probe,
        Step::Write,
        Step::Reply,
        Step::Lose,
    ];

    /// A word that identifies a request.
    pub(in super::super) struct Number(pub(in super::super) u64);

    impl Subject for Number {
        fn key(&self) -> &'static str {
            ""
        }

        fn value(&self) -> &dyn WriteWord {
            self
        }
    }

    impl WriteWord for Number {
        fn write_to(&self, word: &mut dyn std::io::Write) {
            drop(write!(word, "{:03}", self.0));
        }
    }

    /// Sends a command for each part.
    pub(in super::super) struct Each;

    impl Compose for Each {
        fn compose(&self, parts: &[MessagePart], commands: &mut Commands) {
            for part in parts {
                commands.add(&[&[Arg::Written(part.subject.value())]]);
            }
        }

        fn distribute(&self, parts: Vec<MessagePart>, replies: Vec<Value>) {
            for (part, value) in parts.into_iter().zip(replies) {
                part.answer(PartReply {
                    value,
                    ..PartReply::default()
                });
            }
        }
    }

    enum Answer {
        Alone(oneshot::Receiver<Vec<Value>>),
        Part(oneshot::Receiver<PartReply>),
    }

    impl Answer {
        fn value(&mut self) -> Option<Value> {
            match self {
                Self::Alone(reply) => reply.try_recv().ok()?.pop(),
                Self::Part(reply) => Some(reply.try_recv().ok()?.value),
            }
        }
    }

    /// An exchange, its requests by their numbers, and the server.
    struct World {
        exchange: Exchange,
        composers: [Arc<dyn Compose>; 2],
        answers: Vec<Answer>,
        /// The replies that the server has yet to send.
        owed: VecDeque<Value>,
        /// The numbers of the requests that arrived.
        arrived: Vec<u64>,
        /// `None` until a reply is lost; then `true` if a probe has left since.
        lost: Option<bool>,
    }

    impl World {
        fn new() -> Self {
            Self {
                exchange: Exchange::default(),
                composers: [Arc::new(Each), Arc::new(Each)],
                answers: Vec::new(),
                owed: VecDeque::new(),
                arrived: Vec::new(),
                lost: None,
            }
        }

        fn queue_part(&mut self, composer: usize) {
            let subject = Arc::new(Number(self.answers.len() as u64));
            let (part, reply) = MessagePart::new(subject, Change::Delete);
            self.answers.push(Answer::Part(reply));
            let composer = self.composers[composer].clone();
            self.exchange.accept(vec![Request::Part(part, composer)]);
        }

        /// Returns `true` if the session continues.
        fn step(&mut self, step: Step) -> bool {
            match step {
                Step::Alone => {
                    let (answer, reply) = oneshot::channel();
                    let number = Number(self.answers.len() as u64);
                    self.answers.push(Answer::Alone(reply));
                    self.exchange.accept(vec![Request::Alone {
                        commands: command(&[&[Arg::Written(&number)]]),
                        answer,
                    }]);
                }
                Step::Part => self.queue_part(0),
                Step::OtherPart => self.queue_part(1),
                Step::Probe => self.exchange.accept(vec![Request::Probe]),
                Step::Write => self.write(),
                Step::Lose => {
                    if self.lost.is_none() && self.owed.pop_front().is_some() {
                        self.lost = Some(false);
                    }
                }
                Step::Reply => {
                    let Some(value) = self.owed.pop_front() else {
                        return true;
                    };
                    return self.read(value);
                }
            }
            true
        }

        fn write(&mut self) {
            // Bounded by the number of requests.
            loop {
                let output = self.exchange.output(Moment::from_nanos(0)).to_vec();
                if output.is_empty() {
                    return;
                }
                self.exchange.note_written(output.len());
                let sent = String::from_utf8(output).expect("text");
                let mut words = sent.lines().filter(|line| !line.starts_with(['*', '$']));
                while let Some(word) = words.next() {
                    if word == "PING" {
                        let text = words.next().expect("its text").into();
                        self.owed.push_back(Value::BulkString(text));
                        self.lost = self.lost.map(|_| true);
                    } else {
                        let number = word.parse().expect("a number");
                        self.arrived.push(number);
                        self.owed
                            .push_back(Value::Int(word.parse().expect("small")));
                    }
                }
            }
        }

        fn read(&mut self, value: Value) -> bool {
            let mut arrivals = Vec::new();
            let read = self
                .exchange
                .read(value, Moment::from_nanos(0), &mut arrivals);
            for arrival in arrivals {
                if let Arrival::Answers(message) = arrival {
                    message.answer();
                }
            }
            for (number, answer) in self.answers.iter_mut().enumerate() {
                let own = Value::Int(number.try_into().expect("small"));
                let is_own = answer.value().is_none_or(|value| value == own);
                assert!(is_own || self.lost == Some(false), "{number}");
            }
            read.is_ok()
        }
    }

    /// Returns all sequences of steps of this length.
    fn sequences(length: u32) -> impl Iterator<Item = Vec<Step>> {
        (0..STEPS.len().pow(length)).map(move |mut number| {
            let step = |_| {
                let step = STEPS[number % STEPS.len()];
                number /= STEPS.len();
                step
            };
            (0..length).map(step).collect()
        })
    }

    #[test]
    fn each_request_has_its_own_reply_or_none_whatever_happens() {
        for steps in sequences(6) {
            let mut world = World::new();
            let goes_on = steps.iter().all(|step| world.step(*step));
            world.write();
            let queued: Vec<u64> = (0..world.answers.len() as u64).collect();
            assert_eq!(world.arrived, queued, "{steps:?}");
            if !goes_on {
                assert!(
                    world.lost.is_some(),
                    "{steps:?}: the replies matched their requests"
                );
                continue;
            }
            while let Some(value) = world.owed.pop_front() {
                if !world.read(value) {
                    assert!(
                        world.lost.is_some(),
                        "{steps:?}: the replies matched their requests"
                    );
                    break;
                }
            }
            if world.lost.is_none() {
                assert_eq!(world.exchange.in_flight(), 0, "{steps:?}");
            }
        }
    }

    /// If round trips take longer than the pauses between time-outs, a probe is always in flight.
    #[test]
    fn a_probe_in_its_place_verifies_all_requests_sent_before_it() {
        let mut world = World::new();
        for step in [
            Step::Alone,
            Step::Probe,
            Step::Write,
            Step::Alone,
            Step::Probe,
            Step::Write,
        ] {
            assert!(world.step(step));
        }
        assert!(world.step(Step::Reply) && world.answers[0].value().is_none());
        let mut arrivals = Vec::new();
        let echo = world.owed.pop_front().expect("that to the probe");
        let read = world
            .exchange
            .read(echo, Moment::from_nanos(0), &mut arrivals);
        assert!(read.is_ok_and(|took| took.is_some()));
        assert!(matches!(arrivals[..], [Arrival::Answers(_)]));
        assert_eq!(world.exchange.in_flight(), 1);
    }

    #[test]
    fn neighbours_share_a_message_up_to_half_of_those_in_flight() {
        let mut world = World::new();
        (0..100).for_each(|_| world.queue_part(0));
        let mut messages = Vec::new();
        loop {
            let length = world.exchange.output(Moment::from_nanos(0)).len();
            if length == 0 {
                break;
            }
            world.exchange.note_written(length);
            messages = world.exchange.sent.iter().map(Message::requests).collect();
        }
        assert_eq!(messages, [50, 50]);
    }

    #[test]
    fn an_unrequested_reply_ends_the_session_and_a_push_does_not() {
        let (mut exchange, mut arrivals) = (Exchange::default(), Vec::new());
        let now = Moment::from_nanos(0);
        let push = |kind| Value::Push {
            kind,
            data: Vec::new(),
        };
        for kind in [PushKind::Message, PushKind::SUnsubscribe] {
            let read = exchange.read(push(kind), now, &mut arrivals);
            assert!(read.is_ok());
        }
        assert!(matches!(arrivals[..], [Arrival::Push(_), Arrival::Push(_)]));
        for value in [push(PushKind::SSubscribe), Value::Int(1)] {
            let read = exchange.read(value, now, &mut arrivals);
            assert!(matches!(read, Err(NoReply::Nonsense)));
        }
    }
}
