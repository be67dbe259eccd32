//! Which requests leave in which message, and which reply belongs to whom. Pure: `session.rs` moves the bytes.
//!
//! Messages leave in the order in which their requests were queued, and replies arrive in the order of the messages. Two rules make
//! this fast under load:
//!
//! - Neighbours that may share a message do: most of the cost of a request is the overhead of its message.
//! - At most half of the requests that are in flight leave together, so that the server works on one half while the other is made.
//!
//! A peer that loses a reply, and keeps the connection, shifts all later ones: the `OK` to one `SET` is taken for that to another. Only a
//! time-out shows it. So after one, a PING with a text of its own follows, and replies are withheld until its reply is in its place. If
//! the server was only slow, that reply arrives right after the late ones.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use redis::{Cmd, Pipeline, PushInfo, PushKind, Value};
use tokio::sync::oneshot;

use crate::{
    backend::redis::transport::{
        command::{Arg, WriteWord, command},
        traffic::NoReply,
    },
    moment::Moment,
    runtime::catch_panic::catch_panic,
};

/// How many requests a message has at most. The server does nothing else while it executes them: 0.2 ms.
pub(crate) const MOST_IN_A_MESSAGE: usize = 64;

/// With fewer requests in flight, none waits for another one to share a message with.
pub(super) const CROWD: usize = 4;

/// How much room is kept for the next message, in bytes.
const MOST_ROOM: usize = 1 << 16;

/// What is to be sent, and where the replies go.
pub(super) enum Request {
    /// Commands in a message of their own.
    Alone {
        packed: Vec<u8>,
        replies: usize,
        answer: oneshot::Sender<Vec<Value>>,
    },
    /// A part of a message.
    Part {
        part: MessagePart,
        composer: Arc<dyn Compose>,
        answer: oneshot::Sender<PartReply>,
    },
    /// Verifies that replies are in their places.
    Probe,
}

/// A request that may share a message with others of its kind.
pub(crate) struct MessagePart {
    pub(crate) subject: Arc<dyn Subject>,
    pub(crate) change: Change,
}

/// A key, and the value that it has or is to have.
pub(crate) trait Subject: Send + Sync {
    fn key(&self) -> &str;

    fn value(&self) -> &dyn WriteWord;
}

/// A change of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// It is set for this long, if it does not exist.
    Set(Duration),
    /// It is deleted, if it has the value.
    Delete,
}

/// The server's reply to one part.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PartReply {
    /// The reply to `SET`. For a deletion: 1 if the key is deleted, 0 if not, or an error.
    pub(crate) value: Value,
    /// The id that a stream gave afterwards.
    pub(crate) id: Option<(u64, u64)>,
    /// Whether there is a queue, as far as the request looked.
    pub(crate) has_queue: Option<bool>,
}

/// Composes messages of neighbouring parts. Parts with the same composer may share one.
pub(crate) trait Compose: Send + Sync {
    /// The commands of a message, which has at least one part.
    fn commands(&self, parts: &[MessagePart]) -> Pipeline;

    /// What the replies to a message mean for each of its parts, in their order.
    fn distribute(&self, parts: &[MessagePart], replies: Vec<Value>) -> Vec<PartReply>;
}

/// The requests of one session, from when they are taken from its inbox until they are answered.
#[derive(Default)]
pub(super) struct Exchange {
    waiting: VecDeque<Request>,
    /// How many requests may leave together.
    at_a_time: usize,
    /// The bytes that are to be sent, and how many of them have been.
    output: Vec<u8>,
    written: usize,
    sent: VecDeque<Message>,
    /// How many requests have not been answered.
    in_flight: usize,
    /// How many probes are in flight.
    probes: usize,
    last_probe: u64,
    /// Messages with all replies, until no probe is in flight.
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
    /// The number in the text of the PING.
    Probe(u64),
}

struct Gathered {
    composer: Arc<dyn Compose>,
    parts: Vec<MessagePart>,
    answers: Vec<oneshot::Sender<PartReply>>,
}

/// Something that arrived.
pub(super) enum Arrival {
    Push(PushInfo),
    Answers(Message),
}

impl Exchange {
    /// How many requests have not been answered.
    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn accept(&mut self, requests: Vec<Request>) {
        let is_probe = |request: &Request| matches!(request, Request::Probe);
        self.in_flight += requests.iter().filter(|request| !is_probe(request)).count();
        self.waiting.extend(requests);
        self.at_a_time = self.in_flight.div_ceil(2).clamp(CROWD, MOST_IN_A_MESSAGE);
    }

    /// The bytes that are to be sent next. Composes further messages when all earlier ones have left.
    pub(super) fn output(&mut self, now: Moment) -> &[u8] {
        if self.written == self.output.len() && !self.waiting.is_empty() {
            // A large content is not to keep its room for ever.
            if self.output.capacity() > MOST_ROOM {
                self.output = Vec::new();
            }
            self.output.clear();
            self.written = 0;
            self.compose(now);
        }
        &self.output[self.written..]
    }

    /// Notes that so many bytes of the output have left.
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
                Request::Part {
                    part,
                    composer,
                    answer,
                } => {
                    let joins = |open: &Gathered| Arc::ptr_eq(&open.composer, &composer);
                    if !gathered.as_ref().is_some_and(joins) {
                        self.send_parts(gathered.take(), now);
                    }
                    let open = gathered.get_or_insert_with(|| Gathered {
                        composer,
                        parts: Vec::new(),
                        answers: Vec::new(),
                    });
                    open.parts.push(part);
                    open.answers.push(answer);
                }
                Request::Alone {
                    packed,
                    replies,
                    answer,
                } => {
                    self.send_parts(gathered.take(), now);
                    self.send(&packed, replies, Answers::Alone(answer), now);
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
            let commands = parts.composer.commands(&parts.parts);
            let packed = commands.get_packed_pipeline();
            self.send(&packed, commands.len(), Answers::Gathered(parts), now);
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
        let packed = ping(self.last_probe).get_packed_command();
        self.send(&packed, 1, Answers::Probe(self.last_probe), now);
    }

    fn send(&mut self, packed: &[u8], expects: usize, answers: Answers, sent: Moment) {
        self.output.extend_from_slice(packed);
        self.sent.push_back(Message {
            expects,
            replies: Vec::with_capacity(expects),
            sent,
            answers,
        });
    }

    /// Assigns a value that arrived, and appends what is complete now. Returns how long a probe took, if it is the reply to one.
    ///
    /// # Errors
    ///
    /// If replies are not in their places.
    pub(super) fn read(
        &mut self,
        value: Value,
        now: Moment,
        arrivals: &mut Vec<Arrival>,
    ) -> Result<Option<Duration>, NoReply> {
        let value = match value {
            // A server ends a subscription by itself when its slot moves. The confirmation of a subscription is a reply.
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
        // The reply to a probe shows at once that others were lost, whichever slot it is in.
        // A server that refuses commands for a while may refuse the probe, too.
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
        // All that is withheld was sent before this probe, whichever others are in flight.
        if probed.is_some() || self.probes == 0 {
            for message in self.withheld.drain(..) {
                self.in_flight -= message.requests();
                arrivals.push(Arrival::Answers(message));
            }
        }
        Ok(probed)
    }

    /// Whether something has yet to be sent.
    pub(super) fn has_unsent(&self) -> bool {
        self.written < self.output.len() || !self.waiting.is_empty()
    }

    /// Drops all requests. Each drop wakes a task of the user.
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
            Answers::Gathered(of) => {
                let replies = of.composer.distribute(&of.parts, self.replies);
                for (answer, reply) in of.answers.into_iter().zip(replies) {
                    catch_panic(|| drop(answer.send(reply)));
                }
                // Each may be the last owner of something of the user's.
                for part in of.parts {
                    catch_panic(|| drop(part));
                }
            }
            Answers::Probe(_) => {}
        }
    }

    fn drop_answers(self) {
        match self.answers {
            Answers::Alone(answer) => catch_panic(|| drop(answer)),
            Answers::Gathered(of) => {
                for answer in of.answers {
                    catch_panic(|| drop(answer));
                }
                for part in of.parts {
                    catch_panic(|| drop(part));
                }
            }
            Answers::Probe(_) => {}
        }
    }
}

fn ping(number: u64) -> Cmd {
    command(&[&[Arg::Text("PING"), Arg::Text(&probe_text(number))]])
}

const PROBE: &str = "lock-core:probe:";

fn probe_text(number: u64) -> String {
    format!("{PROBE}{number}")
}

/// The number of the probe to which this is the reply.
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
mod tests {
    use super::*;

    /// What happens to an exchange.
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

    struct Number(u64);

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
            drop(write!(word, "{}", self.0));
        }
    }

    struct Each;

    impl Compose for Each {
        fn commands(&self, parts: &[MessagePart]) -> Pipeline {
            let mut pipeline = Pipeline::new();
            for part in parts {
                pipeline.add_command(command(&[&[Arg::Written(part.subject.value())]]));
            }
            pipeline
        }

        fn distribute(&self, _: &[MessagePart], replies: Vec<Value>) -> Vec<PartReply> {
            let reply = |value| PartReply {
                value,
                ..PartReply::default()
            };
            replies.into_iter().map(reply).collect()
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
        /// The replies that the server has to send.
        owed: VecDeque<Value>,
        /// The numbers of the requests that arrived.
        arrived: Vec<u64>,
        /// Whether a reply was lost, and whether a probe left since.
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
            let (answer, reply) = oneshot::channel();
            let subject = Arc::new(Number(self.answers.len() as u64));
            let part = MessagePart {
                subject,
                change: Change::Delete,
            };
            self.answers.push(Answer::Part(reply));
            self.exchange.accept(vec![Request::Part {
                part,
                composer: self.composers[composer].clone(),
                answer,
            }]);
        }

        /// Returns whether the session goes on.
        fn step(&mut self, step: Step) -> bool {
            match step {
                Step::Alone => {
                    let (answer, reply) = oneshot::channel();
                    let number = Number(self.answers.len() as u64);
                    self.answers.push(Answer::Alone(reply));
                    self.exchange.accept(vec![Request::Alone {
                        packed: command(&[&[Arg::Written(&number)]]).get_packed_command(),
                        replies: 1,
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
            // Bounded by the requests.
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

    /// All sequences of steps of this length.
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
                    "{steps:?}: replies were in their places"
                );
                continue;
            }
            while let Some(value) = world.owed.pop_front() {
                if !world.read(value) {
                    assert!(
                        world.lost.is_some(),
                        "{steps:?}: replies were in their places"
                    );
                    break;
                }
            }
            if world.lost.is_none() {
                assert_eq!(world.exchange.in_flight(), 0, "{steps:?}");
            }
        }
    }

    /// With round trips that are longer than the pauses between time-outs, there is always a probe in flight.
    #[test]
    fn a_probe_in_its_place_verifies_what_was_sent_before_it_whatever_follows() {
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
    fn a_message_that_nobody_asked_for_ends_the_session_and_a_push_does_not() {
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
