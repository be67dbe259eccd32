//! The processes and the server, and the effect of each step.

use std::rc::Rc;

use lock_tests::scripts;

use super::{
    rules::{self, Call, Deliveries, Effects, History},
    server_view::{
        BEATS, CLOCK, HOLDERS, KEYS, LOCK, Lock, PERMITS, QUEUE, Request, SILENT, ServerView,
        request_of, sorted,
    },
};
use crate::model::{Reply, Server};

type Bytes = Vec<u8>;

/// A ttl that is longer than any exploration.
const TTL_MS: &str = "600000";
const EPOCH_US: i64 = 1_700_000_000_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Exclusive,
    Shared,
    Permits(i64),
    /// Exclusive; tries plain commands first.
    FastPath,
    /// A client of another library, which never queues.
    Foreign,
    /// Exclusive; runs a body once.
    Once,
}

impl Kind {
    pub(super) fn is_plain(self) -> bool {
        self == Self::FastPath
    }

    pub(super) fn is_non_exclusive(self) -> bool {
        matches!(self, Self::Shared | Self::Permits(_))
    }

    fn word(self) -> String {
        match self {
            Self::Shared => "s".to_owned(),
            Self::Permits(n) => n.to_string(),
            Self::Once => "o".to_owned(),
            _ => "x".to_owned(),
        }
    }
}

/// The hash and the text of a script.
#[derive(Debug)]
struct Script(String, Bytes);

#[derive(Debug)]
pub(super) struct Scripts {
    acquire: Script,
    release: Script,
    release_uncontended: Script,
    renew: Script,
    pub(super) is_in_parts: bool,
}

impl Scripts {
    fn new(part: Option<u8>) -> Self {
        let script = |text: &str| {
            let mut text = text.to_owned();
            if let Some(part) = part {
                let shipped = "local PART = 64";
                text = text.replace(shipped, &format!("local PART = {part}"));
            }
            Script(
                sha1_smol::Sha1::from(&text).digest().to_string(),
                text.into(),
            )
        };
        assert!(scripts::ACQUIRE.contains("local PART = 64"));
        Self {
            acquire: script(scripts::ACQUIRE),
            release: script(scripts::RELEASE),
            release_uncontended: script(scripts::RELEASE_UNCONTENDED),
            renew: script(scripts::RENEW),
            is_in_parts: part.is_some(),
        }
    }
}

/// The state of a request, as its process sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum At {
    Idle,
    Waiting,
    /// The reply to its acquire was lost.
    Unknown,
    Held,
    /// It took the lock without queueing, and has to return it.
    Undoing,
    /// The reply to its release was lost.
    Leaving,
    Gone,
}

/// A grant that was published and has not arrived yet.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    fencing: i64,
    stamp: i64,
    /// Set if the lease has ended since, counted from the last request.
    is_over: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Process {
    pub(super) kind: Kind,
    pub(super) at: At,
    /// The number of its request. Each request has an owner token of its own.
    pub(super) number: u32,
    pub(super) acquisitions_left: u8,
    pub(super) has_tried: bool,
    /// Its place in the queue, as the server replied.
    pub(super) place: i64,
    /// The stamp of the last reply.
    stamp: i64,
    pub(super) grants: Vec<Grant>,
    /// The fencing token of its last lease.
    pub(super) granted: i64,
    /// Set if it was silent during this request, so that others may have overtaken it.
    pub(super) was_silent: bool,
    pub(super) is_silent: bool,
    /// The phases for which it has waited.
    pub(super) waited: Option<rules::Waited>,
}

/// One event for one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Acquire(usize),
    AcquireWithoutReply(usize),
    Try(usize),
    Check(usize),
    Deliver(usize, usize),
    Lose(usize, usize),
    Release(usize),
    ReleaseWithoutReply(usize),
    /// The body of a run once fails.
    Fail(usize),
    /// A copy of a release that stores a result arrives late.
    CopyOfRelease(usize),
    Renew(usize),
    Cancel(usize),
    /// A copy of the first message of the last request arrives late.
    Copy(usize),
    /// A copy of a renewal arrives late.
    CopyOfRenewal(usize),
    Crash(usize),
    LeaseEnds(Request),
    Silence(usize),
}

#[derive(Clone)]
pub(super) struct State {
    pub(super) scripts: Rc<Scripts>,
    pub(super) server: Server,
    pub(super) now: i64,
    pub(super) faults: u8,
    /// Set if nothing so far can have left a free lock to the next check of a waiter.
    is_served: bool,
    /// Set if the slot is moving, so that exclusive requests declare only the few keys that exist.
    pub(super) is_moving: bool,
    /// Set if the last call did so.
    pub(super) had_few_keys: bool,
    pub(super) processes: Vec<Process>,
    pub(super) history: History,
}

impl State {
    /// `part` is the size of the batches, if not the shipped one.
    pub(super) fn new(kinds: &[Kind], faults: u8, acquisitions: u8, part: Option<u8>) -> Self {
        let mut server = Server::default();
        for process in 0..kinds.len() {
            server.listen(process as u64, channel_of(process).as_bytes());
        }
        let process = |kind: &Kind| Process {
            kind: *kind,
            at: At::Idle,
            number: 0,
            acquisitions_left: acquisitions,
            has_tried: false,
            place: 0,
            stamp: 0,
            grants: Vec::new(),
            granted: 0,
            was_silent: false,
            is_silent: false,
            waited: None,
        };
        Self {
            scripts: Rc::new(Scripts::new(part)),
            server,
            now: EPOCH_US,
            faults,
            // The waiters for a result are notified in parts, and a check of one part notifies the next.
            is_served: !kinds.contains(&Kind::Foreign) && !kinds.contains(&Kind::Once),
            is_moving: false,
            had_few_keys: false,
            processes: kinds.iter().map(process).collect(),
            history: History::default(),
        }
    }

    pub(super) fn view(&self) -> ServerView {
        ServerView::new(&self.server, self.now)
    }

    pub(super) fn request(&self, process: usize) -> Request {
        (process, self.processes[process].number)
    }

    /// Returns all steps that are possible next.
    pub(super) fn steps(&self) -> Vec<Step> {
        let view = self.view();
        let mut steps = Vec::new();
        for (i, process) in self.processes.iter().enumerate() {
            let queues = process.kind != Kind::Foreign;
            match process.at {
                At::Idle => {
                    if process.acquisitions_left > 0 {
                        steps.push(Step::Acquire(i));
                        if self.faults > 0 && queues {
                            steps.push(Step::AcquireWithoutReply(i));
                        }
                        if !process.has_tried && queues && !process.kind.is_plain() {
                            steps.push(Step::Try(i));
                        }
                    }
                }
                At::Waiting => {
                    steps.extend([Step::Check(i), Step::Cancel(i)]);
                    for grant in 0..process.grants.len() {
                        steps.push(Step::Deliver(i, grant));
                        if self.faults > 0 {
                            steps.push(Step::Lose(i, grant));
                        }
                    }
                    if self.faults > 0 {
                        steps.push(Step::Crash(i));
                        if view.queued((i, process.number)).is_some() && !process.is_silent {
                            steps.push(Step::Silence(i));
                        }
                    }
                }
                At::Unknown => steps.extend([Step::Check(i), Step::Cancel(i)]),
                At::Held => {
                    steps.push(Step::Release(i));
                    if process.kind == Kind::Once {
                        steps.push(Step::Fail(i));
                    }
                    if process.kind.is_non_exclusive() {
                        steps.push(Step::Renew(i));
                    }
                    if self.faults > 0 {
                        steps.push(Step::Crash(i));
                        if queues {
                            steps.extend([Step::ReleaseWithoutReply(i), Step::Copy(i)]);
                        }
                    }
                }
                At::Undoing | At::Leaving => steps.push(Step::Release(i)),
                At::Gone => {}
            }
            let is_over = matches!(process.at, At::Idle | At::Leaving | At::Gone);
            if is_over && process.number > 0 && queues && self.faults > 0 {
                steps.push(Step::Copy(i));
                if process.kind.is_non_exclusive() {
                    steps.push(Step::CopyOfRenewal(i));
                }
                if process.kind == Kind::Once {
                    steps.push(Step::CopyOfRelease(i));
                }
            }
        }
        for holder in view.all_holders() {
            if self.faults > 0 || !self.is_alive(holder) {
                steps.push(Step::LeaseEnds(holder));
            }
        }
        steps
    }

    /// Returns whether a process would still renew the lease.
    pub(super) fn is_alive(&self, (process, number): Request) -> bool {
        let process = &self.processes[process];
        number == process.number && !matches!(process.at, At::Idle | At::Leaving | At::Gone)
    }

    /// Returns the state after a step, or the rule that the step breaks.
    pub(super) fn after(&self, step: &Step) -> Result<Self, String> {
        let mut next = self.clone();
        next.now += 1;
        next.take(step)?;
        next.is_served &= next.faults == self.faults && !self.is_moving;
        next.check_beliefs()?;
        next.check_waiters()?;
        Ok(next)
    }

    fn take(&mut self, step: &Step) -> Result<(), String> {
        match *step {
            Step::Acquire(i) => {
                self.begin(i);
                self.acquire(i, true)
            }
            Step::AcquireWithoutReply(i) => {
                self.faults -= 1;
                self.begin(i);
                self.acquire(i, false)
            }
            Step::Try(i) => {
                self.begin(i);
                self.processes[i].has_tried = true;
                let reply = self.send_acquire(i, "try")?;
                if !self.accept_reply(i, &reply)? {
                    self.processes[i].at = At::Idle;
                }
                Ok(())
            }
            Step::Check(i) => {
                let process = &mut self.processes[i];
                process.is_silent = false;
                let place = process.place.to_string();
                let reply = self.send_acquire(i, &place)?;
                self.accept_reply(i, &reply).map(drop)
            }
            Step::Deliver(i, grant) => self.deliver(i, grant),
            Step::Lose(i, grant) => {
                self.faults -= 1;
                self.processes[i].grants.remove(grant);
                Ok(())
            }
            Step::Release(i) => {
                self.release(i)?;
                self.end_released(i)
            }
            Step::ReleaseWithoutReply(i) => {
                self.faults -= 1;
                if self.processes[i].at == At::Held {
                    self.release(i)?;
                }
                self.end(i);
                self.processes[i].at = At::Leaving;
                Ok(())
            }
            Step::CopyOfRelease(i) => {
                self.faults -= 1;
                self.send_result(i).map(drop)
            }
            Step::Renew(i) => self.renew(i),
            Step::Cancel(i) | Step::Fail(i) => {
                self.send_release(i, true)?;
                self.end_released(i)
            }
            Step::Copy(i) => {
                self.faults -= 1;
                self.send_acquire(i, "wait").map(drop)
            }
            Step::CopyOfRenewal(i) => {
                self.faults -= 1;
                let before = self.view();
                self.send_renew(i)?;
                let after = self.view();
                let request = self.request(i);
                if after.holds(request) && !before.holds(request) {
                    return Err("a late renewal adds a holder".to_owned());
                }
                Ok(())
            }
            Step::Crash(i) => {
                self.faults -= 1;
                self.end(i);
                self.processes[i].at = At::Gone;
                self.server.disconnect(i as u64);
                Ok(())
            }
            Step::LeaseEnds(request) => {
                self.end_lease(request);
                Ok(())
            }
            Step::Silence(i) => {
                self.faults -= 1;
                self.be_silent(i);
                Ok(())
            }
        }
    }

    fn begin(&mut self, i: usize) {
        let process = &mut self.processes[i];
        process.number += 1;
        process.place = 0;
        process.stamp = 0;
        process.granted = 0;
        process.was_silent = false;
        process.waited = None;
        process.at = At::Waiting;
    }

    /// Ends the request of a process, whatever its outcome.
    fn end(&mut self, i: usize) {
        let process = &mut self.processes[i];
        process.at = At::Idle;
        process.grants.clear();
        process.is_silent = false;
        process.waited = None;
    }

    /// Ends the request of a process that has just released it. Fails if the server still has it.
    fn end_released(&mut self, i: usize) -> Result<(), String> {
        let (view, request) = (self.view(), self.request(i));
        if view.holds(request) || view.queued(request).is_some() {
            return Err(format!("the release of {request:?} leaves it: {view:?}"));
        }
        self.end(i);
        Ok(())
    }

    fn acquire(&mut self, i: usize, has_reply: bool) -> Result<(), String> {
        let kind = self.processes[i].kind;
        if kind == Kind::Foreign || kind.is_plain() && !self.processes[i].has_tried {
            // The process learns that others wait, and its next acquire uses the script.
            self.processes[i].has_tried = true;
            let before = self.view();
            if before.lock == Lock::Free {
                return self.take_past_the_queue(i, &before, has_reply);
            }
            if kind == Kind::Foreign {
                // It may try again later.
                self.processes[i].at = At::Idle;
                return Ok(());
            }
        }
        let reply = self.send_acquire(i, "wait")?;
        if has_reply {
            return self.accept_reply(i, &reply).map(drop);
        }
        self.processes[i].at = At::Unknown;
        Ok(())
    }

    /// Sends `SET NX`, `XADD` and `EXISTS` in one step.
    fn take_past_the_queue(
        &mut self,
        i: usize,
        before: &ServerView,
        has_reply: bool,
    ) -> Result<(), String> {
        let kind = self.processes[i].kind;
        let token = self.token(i);
        let now = self.now;
        self.server
            .command(&["SET", LOCK, &token, "NX", "PX", TTL_MS], now);
        let mut at = At::Held;
        if kind.is_plain() {
            let next_id = ["XADD", CLOCK, "MAXLEN", "0", "*", "", ""];
            let token = token_of(&self.server.command(&next_id, now))?;
            self.processes[i].granted = token;
            if !before.queue.is_empty() {
                at = At::Undoing;
            } else if token <= self.history.largest {
                return Err(format!("the fencing token {token} is not larger"));
            }
            self.history.largest = token;
        }
        let is_held = at == At::Held;
        self.processes[i].at = if has_reply { at } else { At::Unknown };
        if is_held && has_reply {
            self.processes[i].acquisitions_left -= 1;
        }
        let after = self.view();
        self.history.past_the_queue(before, &after);
        if !before.queue.is_empty() {
            rules::excuse_all(&mut self.processes);
        }
        Ok(())
    }

    fn send_acquire(&mut self, i: usize, mode: &str) -> Result<Reply, String> {
        let arguments = [&self.token(i), TTL_MS, "0", "1", mode, &self.entry(i)];
        let is_newcomer = matches!(mode, "wait" | "try");
        let call = Call::Acquire { by: i, is_newcomer };
        self.call(call, self.keys(i), &arguments)
    }

    /// Returns the keys that an acquire or a release declares. None of these requests polls.
    fn keys(&self, i: usize) -> &'static [&'static str] {
        let is_exclusive = matches!(self.processes[i].kind, Kind::Exclusive | Kind::FastPath);
        let exists = |key: &&str| self.server.store.entry(key.as_bytes(), self.now).is_some();
        if self.is_moving && is_exclusive && KEYS[..4].iter().all(exists) {
            &KEYS[..4]
        } else {
            &KEYS[..7]
        }
    }

    fn release(&mut self, i: usize) -> Result<(), String> {
        let process = &self.processes[i];
        if process.kind == Kind::Foreign {
            let before = self.view();
            if before.lock == Lock::Foreign(self.request(i)) {
                let now = self.now;
                self.server.command(&["DEL", LOCK], now);
                let after = self.view();
                self.history.past_the_queue(&before, &after);
            }
            return Ok(());
        }
        let must_hold = process.at == At::Held;
        let with_entry = process.at == At::Leaving;
        let kind = process.kind;
        let is_fast = kind == Kind::FastPath && !with_entry;
        let reply = match kind {
            Kind::Once => self.send_result(i)?,
            _ if is_fast && self.release_uncontended(i)? => Reply::Int(1),
            _ => self.send_release(i, with_entry)?,
        };
        if must_hold && reply != Reply::Int(1) {
            return Err(format!("process {i} held nothing to release: {reply:?}"));
        }
        Ok(())
    }

    fn send_release(&mut self, i: usize, with_entry: bool) -> Result<Reply, String> {
        let (token, entry) = (self.token(i), self.entry(i));
        let is_non_exclusive = self.processes[i].kind.is_non_exclusive();
        let arguments = [token.as_str(), "0", "0", &entry];
        // A plain release has only the required arguments.
        let count = if is_non_exclusive || with_entry { 4 } else { 2 };
        self.call(Call::Release, self.keys(i), &arguments[..count])
    }

    /// Releases the lock if no request waits. Returns whether it did.
    fn release_uncontended(&mut self, i: usize) -> Result<bool, String> {
        let (before, token) = (self.view(), self.token(i));
        let Script(hash, text) = &self.scripts.release_uncontended;
        let keys = [LOCK, QUEUE].map(Bytes::from);
        let (reply, messages) =
            self.server
                .run_script((hash, text), &keys, &[token.into()], self.now);
        let after = self.view();
        match reply {
            _ if !messages.is_empty() => Err("a short release notifies a process".to_owned()),
            Reply::Array(each)
                if each == [Reply::Int(0)]
                    && (&before.lock, &before.queue) == (&after.lock, &after.queue) =>
            {
                Ok(false)
            }
            Reply::Int(1) => {
                let effects = Effects {
                    call: Call::Release,
                    reply: &reply,
                    before,
                    after,
                    deliveries: Deliveries::default(),
                };
                rules::check(self, &effects).map(|()| true)
            }
            reply => Err(format!("the reply to a short release: {reply:?}")),
        }
    }

    /// Releases the lock and stores a result, which is the owner token.
    fn send_result(&mut self, i: usize) -> Result<Reply, String> {
        let (token, entry) = (self.token(i), self.entry(i));
        let arguments = [token.as_str(), "0", "0", &entry, &token, TTL_MS];
        let before = self.view();
        let reply = self.call(Call::Release, &KEYS[..7], &arguments)?;
        let result = self.view().result;
        let held = before.lock == Lock::Exclusive(self.request(i));
        let expected = if held { Some(token) } else { before.result };
        if result != expected {
            return Err(format!("I2: the result is {result:?}, not {expected:?}"));
        }
        Ok(reply)
    }

    fn renew(&mut self, i: usize) -> Result<(), String> {
        match self.send_renew(i)? {
            Reply::Array(reply) if reply.first() == Some(&Reply::Int(1)) => Ok(()),
            Reply::Int(1) => Ok(()),
            reply => Err(format!("process {i} held nothing to renew: {reply:?}")),
        }
    }

    /// Renews a share or a permit.
    fn send_renew(&mut self, i: usize) -> Result<Reply, String> {
        let (token, entry) = (self.token(i), self.entry(i));
        let arguments = [&token, TTL_MS, "0", "0", &entry];
        self.call(Call::Renew, &KEYS, &arguments)
    }

    /// Runs a script, sends its messages, and checks its effects.
    fn call(&mut self, call: Call, keys: &[&str], arguments: &[&str]) -> Result<Reply, String> {
        let before = self.view();
        self.had_few_keys = keys.len() < 7;
        self.history.released_with_few_keys |= self.had_few_keys && matches!(call, Call::Release);
        let bytes = |words: &[&str]| words.iter().map(|word| Bytes::from(*word)).collect();
        let (keys, arguments): (Vec<Bytes>, Vec<Bytes>) = (bytes(keys), bytes(arguments));
        let Script(hash, text) = match call {
            Call::Acquire { .. } => &self.scripts.acquire,
            Call::Release => &self.scripts.release,
            Call::Renew => &self.scripts.renew,
        };
        let (reply, messages) = self
            .server
            .run_script((hash, text), &keys, &arguments, self.now);
        if let Reply::Error(error) = &reply {
            return Err(format!("a script failed: {error}"));
        }
        let mut deliveries = Deliveries::default();
        for (to, bytes) in messages {
            for message in String::from_utf8_lossy(&bytes).split("*3\r\n").skip(1) {
                let text = message.split("\r\n").nth(5).expect("a message");
                self.send(to, text, &mut deliveries)?;
            }
        }
        let effects = Effects {
            call,
            reply: &reply,
            before,
            after: self.view(),
            deliveries,
        };
        rules::check(self, &effects)?;
        Ok(reply)
    }

    /// Adds a message to those in flight to its process.
    fn send(&mut self, to: u64, text: &str, deliveries: &mut Deliveries) -> Result<(), String> {
        let to = usize::try_from(to).expect("a few");
        let (rest, proof) = text.rsplit_once(' ').expect("a proof");
        let (number, body) = rest.split_once(' ').expect("a number");
        let number: u32 = number.parse().expect("a number");
        let proven = format!("{} {body}", owner_token(Kind::Shared, to, number));
        if sha1_smol::Sha1::from(proven).digest().to_string() != proof {
            return Err(format!("a message without a proof: {text}"));
        }
        if body.starts_with("yield ") {
            deliveries.to_yield.push(to);
            return Ok(());
        }
        if body.starts_with("done ") {
            // A hint, and its process may check at any time.
            return Ok(());
        }
        let words: Vec<i64> = body
            .split(' ')
            .map(|word| word.parse().expect("a number"))
            .collect();
        deliveries.tokens.push(words[0]);
        let process = &mut self.processes[to];
        if number == process.number {
            process.granted = words[0];
            if matches!(process.at, At::Waiting | At::Unknown) {
                process.grants.push(Grant {
                    fencing: words[0],
                    stamp: words.get(1).copied().unwrap_or(words[0]),
                    is_over: false,
                });
            }
        }
        Ok(())
    }

    /// Accepts a reply. Returns whether it is a grant.
    fn accept_reply(&mut self, i: usize, reply: &Reply) -> Result<bool, String> {
        if let Reply::Array(words) = reply
            && let [Reply::Int(2), Reply::Bulk(result)] = &words[..]
        {
            return self.answered(i, result).map(|()| false);
        }
        let process = &mut self.processes[i];
        let numbers: Vec<i64> = match reply {
            Reply::Array(words) => words
                .iter()
                .filter_map(|word| match word {
                    Reply::Int(number) => Some(*number),
                    _ => None,
                })
                .collect(),
            _ => return Err(format!("an unknown reply: {reply:?}")),
        };
        if numbers[0] == 1 {
            process.granted = numbers[1];
            return self.hold(i, numbers[1]).map(|()| true);
        }
        process.at = At::Waiting;
        if numbers[2] > 0 {
            process.place = numbers[2];
        }
        // The first reply has no stamp.
        if let Some(stamp) = numbers.get(5) {
            process.stamp = process.stamp.max(*stamp);
            // A process counts a lease from its last request with such a reply. So it can no longer tell from the time that the
            // lease of an earlier grant has ended.
            for grant in &mut process.grants {
                grant.is_over = false;
            }
        }
        Ok(false)
    }

    /// Checks and accepts the result of another run.
    fn answered(&mut self, i: usize, result: &[u8]) -> Result<(), String> {
        let view = self.view();
        if view.result.as_deref().map(str::as_bytes) != Some(result) {
            return Err(format!("I1: the result of process {i} is not the server's"));
        }
        let request = self.request(i);
        if view.holds(request) || view.queued(request).is_some() {
            return Err(format!(
                "I5: the request of process {i} outlives its result"
            ));
        }
        self.end(i);
        self.processes[i].acquisitions_left -= 1;
        Ok(())
    }

    fn deliver(&mut self, i: usize, grant: usize) -> Result<(), String> {
        let process = &mut self.processes[i];
        let grant = process.grants.remove(grant);
        process.is_silent = false;
        if grant.is_over || grant.stamp <= process.stamp {
            // The message is older than the last reply.
            return Ok(());
        }
        self.hold(i, grant.fencing)
    }

    fn hold(&mut self, i: usize, fencing: i64) -> Result<(), String> {
        let lock = self.view().lock;
        let process = &mut self.processes[i];
        process.at = At::Held;
        process.grants.clear();
        process.is_silent = false;
        process.waited = None;
        process.acquisitions_left -= 1;
        if fencing < process.granted {
            return Err(format!(
                "process {i} holds with {fencing}, but the lock was granted with {} since",
                process.granted
            ));
        }
        match lock {
            Lock::Shared(token) if process.kind == Kind::Shared && token != fencing => Err(
                format!("process {i} holds with {fencing} in a phase of {token}"),
            ),
            _ => Ok(()),
        }
    }

    /// Checks that each process that relies on its lock is a holder on the server.
    fn check_beliefs(&self) -> Result<(), String> {
        let view = self.view();
        for (i, process) in self.processes.iter().enumerate() {
            if process.at == At::Held && !view.holds((i, process.number)) {
                return Err(format!(
                    "process {i} relies on its lock, but the server has {view:?}"
                ));
            }
        }
        Ok(())
    }

    /// Checks that the lock is not free while a request waits.
    fn check_waiters(&self) -> Result<(), String> {
        let view = self.view();
        let is_left = view.lock == Lock::Free && !view.queue.is_empty();
        if self.is_served && is_left {
            return Err(format!("the lock is free, but requests wait: {view:?}"));
        }
        Ok(())
    }

    /// Ends a lease, while the others are renewed.
    pub(super) fn end_lease(&mut self, request: Request) {
        if self.is_alive(request) {
            self.faults -= 1;
            let process = &mut self.processes[request.0];
            for grant in &mut process.grants {
                grant.is_over = true;
            }
            if matches!(process.at, At::Held | At::Undoing) {
                self.end(request.0);
            }
        }
        let now = self.now;
        let view = self.view();
        let is_last = view.all_holders() == [request];
        if is_last {
            self.server.command(&["DEL", LOCK, HOLDERS, PERMITS], now);
        } else {
            let ended = (now / 1000 - 1).to_string();
            for (_, member) in sorted(&self.server, HOLDERS, now) {
                if request_of(&member) == request && member != "#" {
                    self.server
                        .command(&["ZADD", HOLDERS, &ended, &member], now);
                }
            }
        }
    }

    /// Lets two beats pass, in which all other waiters check that are not silent yet.
    fn be_silent(&mut self, i: usize) {
        let process = &mut self.processes[i];
        process.is_silent = true;
        process.was_silent = true;
        let span = SILENT + 1000;
        let now = self.now + span;
        let now_text = now.to_string();
        let mut is_checked = false;
        for (_, entry) in sorted(&self.server, QUEUE, self.now) {
            let (other, number) = request_of(&entry);
            let process = &self.processes[other];
            let waits = matches!(process.at, At::Waiting | At::Unknown);
            if waits && number == process.number && !process.is_silent {
                self.server
                    .command(&["ZADD", BEATS, &now_text, &entry], self.now);
                is_checked = true;
            }
        }
        if is_checked {
            self.server.command(&["PEXPIRE", BEATS, "4400"], self.now);
        }
        self.server.command(&["PEXPIRE", QUEUE, "30000"], self.now);
        self.now = now;
        self.server.command(&["PEXPIRE", BEATS, "2200"], now);
        // If the silent process returns to its place, it overtakes others.
        rules::excuse_all(&mut self.processes);
    }

    fn token(&self, i: usize) -> String {
        let process = &self.processes[i];
        owner_token(process.kind, i, process.number)
    }

    fn entry(&self, i: usize) -> String {
        let process = &self.processes[i];
        let channel = format!("c{i}");
        format!(
            "{channel} {} {TTL_MS} {}",
            process.number,
            process.kind.word()
        )
    }

    /// Returns a text that is equal for states that differ only in times, in ended requests, or in the order of equal processes.
    pub(super) fn canonical(&self) -> Bytes {
        let view = self.view();
        let mut records: Vec<String> = (0..self.processes.len())
            .map(|i| self.canonical_process(i, &view))
            .collect();
        records.sort_unstable();
        let lock = match view.lock {
            Lock::Free => "-",
            Lock::Exclusive(_) => "x",
            Lock::Shared(_) => "s",
            Lock::Permits => "p",
            Lock::Foreign(_) => "f",
        };
        format!(
            "{lock}{}{:?}{}{}{} {}",
            u8::from(view.has_first_member),
            self.history.canonical(),
            u8::from(view.cut.is_some()),
            u8::from(view.result.is_some()),
            self.faults,
            records.join(" ")
        )
        .into()
    }

    fn canonical_process(&self, i: usize, view: &ServerView) -> String {
        let process = &self.processes[i];
        let mut numbers: Vec<u32> = view
            .queue
            .iter()
            .map(|queued| queued.request)
            .chain(view.all_holders())
            .chain(view.permits.iter().map(|(request, _)| *request))
            .filter(|(other, _)| *other == i)
            .map(|(_, number)| number)
            .chain([process.number])
            .collect();
        numbers.sort_unstable_by(|one, other| other.cmp(one));
        numbers.dedup();
        let there: Vec<_> = numbers
            .iter()
            .map(|number| {
                let request = (i, *number);
                let queued = view.queue.iter().position(|it| it.request == request);
                let is_before = |cut: Option<i64>| {
                    queued.is_some_and(|at| cut.is_some_and(|cut| view.queue[at].place < cut))
                };
                let permit = view.permits.iter().find(|(other, _)| *other == request);
                (
                    *number == process.number,
                    queued,
                    queued.is_some_and(|at| view.queue[at].is_silent),
                    is_before(view.cut),
                    is_before(self.history.cut),
                    view.holds(request),
                    permit.map(|(_, permit)| *permit),
                )
            })
            .collect();
        let grants: Vec<_> = process
            .grants
            .iter()
            .map(|grant| {
                (
                    grant.is_over,
                    grant.stamp > process.stamp,
                    grant.fencing >= process.granted,
                    view.lock == Lock::Shared(grant.fencing),
                )
            })
            .collect();
        let would_return = view
            .queue
            .iter()
            .filter(|queued| queued.place < process.place)
            .count();
        let is_waiting = matches!(process.at, At::Waiting | At::Unknown);
        format!(
            "{:?}",
            (
                (process.kind, process.at, process.number > 0),
                (process.acquisitions_left, process.has_tried),
                (is_waiting && process.place > 0).then_some(would_return),
                grants,
                (process.was_silent, process.is_silent),
                self.is_served,
                process.waited,
                there,
            )
        )
    }
}

fn channel_of(process: usize) -> String {
    format!("__lock_core__:grants:c{process}")
}

/// Converts an id of the clock to a fencing token.
fn token_of(id: &Reply) -> Result<i64, String> {
    let none = || format!("not an id: {id:?}");
    let Reply::Bulk(text) = id else {
        return Err(none());
    };
    let text = String::from_utf8_lossy(text);
    let (millis, sequence) = text.split_once('-').ok_or_else(none)?;
    let number = |text: &str| text.parse::<i64>().map_err(|_| none());
    Ok(number(millis)? * 2048 + number(sequence)?)
}

fn owner_token(kind: Kind, process: usize, number: u32) -> String {
    let front = if kind == Kind::Foreign {
        "other"
    } else {
        "lc1"
    };
    format!("{front}:h:{process}:{number}")
}
