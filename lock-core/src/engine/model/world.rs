//! The world of the model: the tasks, the connection, the server and the timer, and every step that can follow.

use std::{
    cell::Cell,
    collections::{BTreeMap, BTreeSet, VecDeque},
    time::Duration,
};

use crate::{
    engine::{
        event::{AfterRelease, Event, Outcome},
        key_state::KeyState,
        model::server::{
            NoReply, OTHER, OTHER_TTL, Renewal, Reply, Request, Sent, Server, Stores, TTL,
        },
        reply::{AcquireOutcome, QueueMode},
        request::AcquireReply,
        server_lease::RenewalReply,
        terms::{Terms, deadline},
        transition::{Action, Host, Limits, NewLease, TaskId, Transition},
    },
    error::LeaseLost,
    failure::Failure,
    mode::Mode,
    moment::Moment,
    options::{AutoRenew, OnLost, ReleaseMode, Wait},
};

const GRID_NANOS: u64 = 500_000_000;

type Key = KeyState<u64, u64, u64>;
pub(super) type Found = Result<(), String>;

/// The owner token, the fencing token and the permit of a lease, and the moment until which it is certain.
type Made = (u64, u64, Option<u16>, Moment);

/// A scenario, which determines how often each event may happen.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Scenario {
    /// The mode in which the tasks acquire the key.
    pub(super) mode: Mode,
    /// `true` if the second task does not wait. In exclusive mode and for runs, both cases are always explored.
    pub(super) does_not_wait: bool,
    /// How often time may advance; `None` if it advances whenever something is due.
    pub(super) moments: Option<u8>,
    /// The number of acquires of each task.
    pub(super) rounds: u8,
    /// The number of acquires of the other process.
    pub(super) other_rounds: u8,
    /// The number of connections that break.
    pub(super) faults: u8,
    /// The number of requests that time out while the connection continues.
    pub(super) time_outs: u8,
    /// The number of requests that the server refuses without executing them.
    pub(super) refusals: u8,
    /// The number of messages that are lost or arrive twice while the connection continues.
    pub(super) odd_messages: u8,
    /// `true` if the second task asks for a longer ttl.
    pub(super) has_two_ttls: bool,
    /// The number of leases whose task stops renewing them.
    pub(super) unrenewed: u8,
    /// The number of exclusive requests of this process that close the shares of the key.
    pub(super) closings: u8,
    /// The number of times that the process is stopped for longer than a ttl.
    pub(super) stalls: u8,
    /// The number of times that another key to which a lease is tied is lost.
    pub(super) ties: u8,
    /// The number of shutdowns of the manager, which first refuses all waiters, and then ends all leases.
    pub(super) shutdowns: u8,
    /// The maximum number of hand-overs while the other process waits.
    pub(super) handoffs: u32,
}

#[derive(Clone, Debug)]
pub(super) enum Task {
    Away,
    /// `is_woken` is `true` if the task is going to be polled.
    Waiting {
        id: u64,
        is_woken: bool,
    },
    Holding {
        id: u64,
        owner: u64,
        token: u64,
        permit: Option<u16>,
        valid_until: Moment,
        has_ended: bool,
    },
}

/// The request that a task polls.
#[derive(Clone, Debug)]
pub(super) struct PolledRequest {
    pub(super) owner: u64,
    pub(super) by: u64,
    pub(super) arrived: Option<Result<AcquireOutcome, NoReply>>,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: Moment,
    /// The state of the key, as the registry stores it.
    pub(super) key: Key,
    pub(super) tasks: [Task; 2],
    pub(super) rounds: [u8; 2],
    pub(super) left: Scenario,
    pub(super) server: Server,
    pub(super) up: VecDeque<Sent>,
    pub(super) down: VecDeque<Reply>,
    /// Requests of a broken connection, which are executed later or never.
    pub(super) late: Vec<Request>,
    pub(super) polled: Option<PolledRequest>,
    pub(super) timer: Option<Moment>,
    /// Owner tokens that had a request on a broken connection.
    pub(super) astray: BTreeSet<u64>,
    pub(super) known: u64,
    pub(super) largest_taken: u64,
    /// The largest token of each permit.
    pub(super) largest_of_permits: BTreeMap<u16, u64>,
    pub(super) is_closing: bool,
    pub(super) has_lost_messages: bool,
    next_owner: u64,
    next_id: u64,
}

impl World {
    pub(super) fn start(scenario: Scenario) -> Self {
        Self {
            now: Moment::from_nanos(1_000_000_000_000),
            key: Key::new(scenario.mode.kind()),
            tasks: [Task::Away, Task::Away],
            rounds: [scenario.rounds; 2],
            left: scenario,
            server: Server::new(scenario.mode),
            up: VecDeque::new(),
            down: VecDeque::new(),
            late: Vec::new(),
            polled: None,
            timer: None,
            astray: BTreeSet::new(),
            known: 0,
            largest_taken: 0,
            largest_of_permits: BTreeMap::new(),
            is_closing: false,
            has_lost_messages: false,
            next_owner: 1,
            next_id: 1,
        }
    }

    /// Adds every state that can follow. Fails if one of them breaks an invariant.
    pub(super) fn next(&self, reached: &mut Vec<Self>) -> Found {
        let first = reached.len();
        for index in 0..2 {
            self.task_steps(index, reached)?;
        }
        self.network_steps(reached);
        self.fault_steps(reached);
        self.time_steps(reached);
        self.close_steps(reached);
        self.shutdown_steps(reached);
        self.other_steps(reached);
        reached[first..].iter().try_for_each(|world| {
            let broken = |broken| format!("{broken}: {world:?}");
            world.check().map_err(broken)
        })
    }

    fn fork(&self, reached: &mut Vec<Self>, step: impl FnOnce(&mut Self)) {
        let mut world = self.clone();
        step(&mut world);
        reached.push(world);
    }

    fn shutdown_steps(&self, reached: &mut Vec<Self>) {
        if self.left.shutdowns > 0 {
            self.fork(reached, |world| {
                world.left.shutdowns -= 1;
                world.rounds = [0, 0];
                world.is_closing = true;
                world.event(Event::Close);
            });
        }
        if self.is_closing {
            self.fork(reached, |world| {
                world.is_closing = false;
                world.event(Event::LoseAll(LeaseLost::Shutdown));
            });
        }
    }

    fn close_steps(&self, reached: &mut Vec<Self>) {
        if self.left.closings > 0 && !self.key.leases.is_empty() {
            self.fork(reached, |world| {
                world.left.closings -= 1;
                world.event(Event::CloseShares);
            });
        }
    }

    fn task_steps(&self, index: usize, reached: &mut Vec<Self>) -> Found {
        match &self.tasks[index] {
            Task::Away if self.rounds[index] > 0 => {
                // The first task waits indefinitely, and the second for less than a ttl, or not at all.
                let waits = [
                    Wait::Forever,
                    Wait::For(Duration::from_millis(1500)),
                    Wait::No,
                ];
                let waits = match (index, self.left.mode) {
                    (0, _) => &waits[..1],
                    (_, Mode::Exclusive | Mode::Once) => &waits[1..],
                    (_, _) if self.left.does_not_wait => &waits[2..],
                    (_, _) => &waits[1..2],
                };
                for wait in waits {
                    let mut world = self.clone();
                    world.begin_to_wait(index, *wait)?;
                    reached.push(world);
                }
            }
            Task::Away => {}
            Task::Waiting { id, is_woken } => {
                if *is_woken {
                    let mut world = self.clone();
                    world.poll(index)?;
                    reached.push(world);
                }
                let id = *id;
                self.fork(reached, |world| {
                    world.event(Event::Leave(TaskId(id)));
                    world.tasks[index] = Task::Away;
                    world.continue_elsewhere(id);
                });
            }
            Task::Holding { id, owner, .. } => {
                let (id, owner) = (*id, *owner);
                // The body of a run may fail.
                let results: &[_] = match self.left.mode {
                    Mode::Once => &[Stores::Result, Stores::Nothing],
                    _ => &[Stores::Nothing],
                };
                for stores in results {
                    let mut world = self.clone();
                    let after = world.event(Event::Release(TaskId(id), &owner));
                    if !matches!(after, Outcome::Released(AfterRelease::Passed)) {
                        world.send(Request::Release(owner, *stores));
                    } else if *stores == Stores::Result {
                        return Err("a result is not stored".to_owned());
                    }
                    world.tasks[index] = Task::Away;
                    reached.push(world);
                }
                if self.left.unrenewed > 0 {
                    self.fork(reached, |world| {
                        world.left.unrenewed -= 1;
                        world.event(Event::StopRenewing(TaskId(id)));
                    });
                }
                if self.left.ties > 0 {
                    self.fork(reached, |world| {
                        world.left.ties -= 1;
                        world.end(id);
                        world.event(Event::Lose(TaskId(id), LeaseLost::OtherKey));
                    });
                }
            }
        }
        Ok(())
    }

    fn network_steps(&self, reached: &mut Vec<Self>) {
        if !self.up.is_empty() {
            self.fork(reached, |world| {
                if let Some(sent) = world.up.pop_front() {
                    world.execute(&sent);
                }
            });
        }
        for index in 0..self.late.len() {
            self.fork(reached, |world| {
                let request = world.late.remove(index);
                world.execute(&Sent {
                    request,
                    is_awaited: false,
                });
            });
        }
        if !self.down.is_empty() {
            self.fork(reached, |world| {
                if let Some(reply) = world.down.pop_front() {
                    world.deliver(reply);
                }
            });
        }
    }

    fn fault_steps(&self, reached: &mut Vec<Self>) {
        if self.left.faults > 0 && !(self.up.is_empty() && self.down.is_empty()) {
            for are_late in [false, true] {
                self.fork(reached, |world| {
                    world.left.faults -= 1;
                    world.break_connection(are_late);
                });
            }
        }
        for index in 0..self.up.len() {
            let sent = &self.up[index];
            if self.left.time_outs > 0
                && sent.is_awaited
                && let Some(lost) = sent.request.without_outcome(NoReply::Lost)
            {
                self.fork(reached, |world| {
                    world.left.time_outs -= 1;
                    world.up[index].is_awaited = false;
                    world.deliver(lost);
                });
            }
        }
        if let Some(sent) = self.up.front()
            && self.left.refusals > 0
            && let Some(refused) = sent.request.without_outcome(NoReply::Refused)
        {
            let is_awaited = sent.is_awaited;
            self.fork(reached, |world| {
                world.left.refusals -= 1;
                world.up.pop_front();
                world.down.extend(is_awaited.then_some(refused));
            });
        }
        for index in 0..self.down.len() {
            if self.down[index].is_message() {
                if self.left.odd_messages > 0 {
                    self.fork(reached, |world| {
                        world.left.odd_messages -= 1;
                        world.has_lost_messages = true;
                        world.down.remove(index);
                    });
                    self.fork(reached, |world| {
                        world.left.odd_messages -= 1;
                        world.down.push_back(world.down[index].clone());
                    });
                }
            } else if self.left.time_outs > 0 {
                self.fork(reached, |world| {
                    world.left.time_outs -= 1;
                    let late = world.down.remove(index).and_then(Reply::lost);
                    if let Some(late) = late {
                        world.deliver(late);
                    }
                });
            }
        }
    }

    /// Makes the server execute a request. If the reply is not awaited, it is dropped, but the messages that the request
    /// causes are not.
    fn execute(&mut self, sent: &Sent) {
        let replies = self.server.execute(&sent.request, self.known, self.now);
        let replies = replies.into_iter();
        self.down
            .extend(replies.filter(|reply| sent.is_awaited || reply.is_message()));
    }

    fn send(&mut self, request: Request) {
        self.up.push_back(Sent {
            request,
            is_awaited: true,
        });
    }

    fn time_steps(&self, reached: &mut Vec<Self>) {
        let is_due = self.timer.is_some_and(|timer| timer <= self.now);
        // The timer may fire at any time, because an early or stale event changes nothing.
        if is_due || self.left.moments.is_none() {
            self.fork(reached, |world| {
                world.timer = None;
                world.event(Event::Tick);
            });
        }
        let ends = self.server.table.holders.iter().map(|held| held.expires);
        let next = self
            .timer
            .into_iter()
            .chain(ends)
            .filter(|at| *at > self.now)
            .min();
        if let Some(next) = next
            && !is_due
            && self.left.moments != Some(0)
        {
            self.fork(reached, |world| {
                world.left.moments = world.left.moments.map(|moments| moments - 1);
                world.now = Moment::from_nanos(next.as_nanos().div_ceil(GRID_NANOS) * GRID_NANOS);
                world.server.expire(world.now);
            });
        }
        if self.left.stalls > 0 {
            self.fork(reached, |world| {
                world.left.stalls -= 1;
                world.now = world.now.after(Duration::from_millis(2500));
                world.server.expire(world.now);
            });
        }
    }

    fn other_steps(&self, reached: &mut Vec<Self>) {
        let holds = self.server.has(OTHER);
        let waits = self.server.is_queued(OTHER);
        if holds {
            self.fork(reached, |world| {
                let stores = match world.left.mode {
                    Mode::Once => Stores::Result,
                    _ => Stores::Nothing,
                };
                let release = Request::Release(OTHER, stores);
                let messages = world.server.execute(&release, 0, world.now);
                world.down.extend(messages);
            });
        } else if waits && self.server.table.holders.is_empty() {
            // The other process checks its entry.
            self.fork(reached, |world| {
                world.other_asks(QueueMode::CheckPosition(None));
            });
        } else if !waits && self.left.other_rounds > 0 {
            self.fork(reached, |world| {
                world.left.other_rounds -= 1;
                world.other_asks(QueueMode::JoinQueue);
            });
        }
    }

    fn other_asks(&mut self, queue_mode: QueueMode) {
        let messages = self.server.acquire_for_other(queue_mode, self.now);
        self.down.extend(messages);
    }

    /// Applies an event, and carries out its actions.
    fn event(&mut self, event: Event<'_, u64, u64>) -> Outcome<u64, u64> {
        self.event_of_task(event).0
    }

    /// Like `event`, for a task that may get a lease. Also returns the lease that was created for it.
    fn event_of_task(&mut self, event: Event<'_, u64, u64>) -> (Outcome<u64, u64>, Option<Made>) {
        let host = Hosting {
            next_owner: Cell::new(self.next_owner),
            known: self.known,
            made: Cell::new(None),
        };
        let mut cx = Transition {
            now: self.now,
            limits: Limits {
                handoffs_before_queue: self.left.handoffs,
                handoffs_before_polls: self.left.handoffs,
                ..Limits::default()
            },
            polling_pause: Duration::from_millis(500),
            host: &host,
            actions: Vec::new(),
        };
        let outcome = self.key.apply(event, &mut cx);
        let actions = cx.actions;
        self.next_owner = host.next_owner.get();
        // A new timer replaces the earlier one, as in the registry.
        for action in &actions {
            if let Action::Arm(at) = action {
                self.timer = Some(*at);
            }
        }
        if self.key.is_over() {
            self.key = Key::new(self.left.mode.kind());
            self.timer = None;
        }
        for action in actions {
            self.act(action);
        }
        (outcome, host.made.take())
    }

    fn act(&mut self, action: Action<u64, u64, u64>) {
        match action {
            Action::Wake(waker) => self.wake(waker),
            Action::Drop(_)
            | Action::HandedOverLocally
            | Action::HandedOverRemotely
            | Action::Arm(_) => {}
            Action::Acquire(acquire) => {
                if let Some(by) = acquire.polled_by {
                    self.polled = Some(PolledRequest {
                        owner: acquire.owner,
                        by: by.0,
                        arrived: None,
                    });
                }
                self.send(Request::Acquire(acquire));
            }
            Action::FinishRequest => {
                if let Some(polled) = &self.polled {
                    self.continue_elsewhere(polled.by);
                }
            }
            Action::Renew {
                owner, ttl, tokens, ..
            } => {
                let renewal = Renewal {
                    owner,
                    sent: self.now,
                    // Enough for the hand-overs of two tasks.
                    tokens: tokens.min(2),
                };
                self.send(Request::Renew(renewal, ttl));
            }
            Action::Release(release) => {
                self.send(Request::Release(release.owner, Stores::Nothing));
            }
            Action::Extend {
                lease,
                valid_until: later,
            } => {
                for task in &mut self.tasks {
                    if let Task::Holding {
                        id, valid_until, ..
                    } = task
                        && *id == lease
                    {
                        *valid_until = later.max(*valid_until);
                    }
                }
            }
            Action::End { lease, .. } => self.end(lease),
            Action::Learn(_, fencing) => self.known = self.known.max(fencing.into()),
        }
    }

    fn wake(&mut self, woken: u64) {
        for task in &mut self.tasks {
            if let Task::Waiting { id, is_woken } = task {
                *is_woken |= *id == woken;
            }
        }
    }

    fn end(&mut self, ended: u64) {
        for task in &mut self.tasks {
            if let Task::Holding { id, has_ended, .. } = task {
                *has_ended |= *id == ended;
            }
        }
    }

    fn begin_to_wait(&mut self, index: usize, wait: Wait) -> Found {
        self.rounds[index] -= 1;
        let id = self.next_id;
        self.next_id += 1;
        let terms = Terms {
            ttl: if index == 1 && self.left.has_two_ttls {
                OTHER_TTL
            } else {
                TTL
            },
            wait,
            renew: AutoRenew::On,
            max_hold: None,
            min_hold: None,
            on_lost: OnLost::Cancel,
            release: ReleaseMode::Awaited,
            mode: self.left.mode,
        };
        let deadline = deadline(wait, self.now);
        // The task registers its waker, and its request has no reply yet.
        self.tasks[index] = Task::Waiting {
            id,
            is_woken: false,
        };
        let (outcome, made) = self.event_of_task(Event::Wait {
            id: TaskId(id),
            terms: &terms,
            deadline,
            waker: &mut Some(id),
        });
        match (outcome, made) {
            (Outcome::Acquired(_), Some(made)) => self.hold(index, id, made)?,
            (Outcome::Refused(_), _) => self.tasks[index] = Task::Away,
            _ => {}
        }
        Ok(())
    }

    /// Records that the task holds the lease that was created for it. Fails if the fencing token is too old.
    fn hold(&mut self, index: usize, id: u64, (owner, token, permit, valid_until): Made) -> Found {
        let is_new = match self.left.mode {
            Mode::Exclusive | Mode::Once => token > self.largest_taken,
            Mode::Shared => token >= self.largest_taken,
            // A task may accept its grant later than another task with a newer grant of another permit.
            Mode::Permits(_) => {
                let permit = permit.ok_or("a holder without a permit")?;
                let largest = self.largest_of_permits.insert(permit, token);
                largest.is_none_or(|largest| token > largest) && token != self.largest_taken
            }
        };
        if !is_new {
            return Err(format!(
                "token {token} was granted after {}",
                self.largest_taken
            ));
        }
        self.largest_taken = self.largest_taken.max(token);
        self.tasks[index] = Task::Holding {
            id,
            owner,
            token,
            permit,
            valid_until,
            has_ended: false,
        };
        Ok(())
    }

    fn poll(&mut self, index: usize) -> Found {
        let Task::Waiting { id, .. } = self.tasks[index] else {
            return Ok(());
        };
        self.tasks[index] = Task::Waiting {
            id,
            is_woken: false,
        };
        let reply = self.take_arrived(id);
        let reply = reply.as_ref().map(|(owner, reply)| (owner, reply.clone()));
        let polled = self.event_of_task(Event::Poll {
            id: TaskId(id),
            waker: &mut Some(id),
            reply,
        });
        match polled {
            (Outcome::Acquired(_), Some(made)) => {
                self.hold(index, id, made)?;
                self.continue_elsewhere(id);
            }
            (Outcome::Acquired(_), None) => return Err("a grant without a lease".to_owned()),
            (Outcome::Refused(_), _) => {
                self.tasks[index] = Task::Away;
                self.continue_elsewhere(id);
            }
            // The task may have been woken by its own poll.
            _ => {}
        }
        Ok(())
    }

    /// Takes the reply that has arrived for this task.
    fn take_arrived(&mut self, id: u64) -> Option<(u64, AcquireReply)> {
        let polled = self
            .polled
            .take_if(|polled| polled.by == id && polled.arrived.is_some())?;
        let outcome = polled.arrived?;
        Some((polled.owner, self.read(polled.owner, outcome)))
    }

    /// Records that the task no longer polls its request. A reply that has already arrived is delivered without the task.
    fn continue_elsewhere(&mut self, id: u64) {
        if let Some(polled) = self.polled.take_if(|polled| polled.by == id)
            && let Some(outcome) = polled.arrived
        {
            self.deliver(Reply::Acquired(polled.owner, outcome));
        }
    }

    fn read(&self, owner: u64, outcome: Result<AcquireOutcome, NoReply>) -> AcquireReply {
        let is_astray = self.astray.contains(&owner);
        AcquireReply {
            is_settled: !is_astray && outcome.is_ok(),
            result: outcome.map_err(Failure::from),
            has_not_left: false,
            is_astray,
        }
    }

    fn deliver(&mut self, reply: Reply) {
        match reply {
            Reply::Acquired(owner, outcome) => {
                if let Some(polled) = &mut self.polled
                    && polled.owner == owner
                {
                    polled.arrived = Some(outcome);
                    let by = polled.by;
                    return self.wake(by);
                }
                let reply = self.read(owner, outcome);
                self.event(Event::Acquired(&owner, reply));
            }
            Reply::Renewed(renewal, result) => {
                let reply = RenewalReply {
                    sent: renewal.sent,
                    tokens: renewal.tokens,
                    result: &result.map_err(Failure::from),
                    retry_in: Duration::from_millis(200),
                };
                self.event(Event::Renewed(&renewal.owner, reply));
            }
            Reply::Pushed(owner, pushed) => {
                self.event(Event::Pushed(&owner, pushed));
            }
            Reply::Contended(owner) => {
                self.event(Event::Contended(&owner));
            }
            // The driver turns the hint into the event of a new connection.
            Reply::Done(_) => {
                let now = self.now;
                self.event(Event::Reconnected(now));
            }
        }
    }

    /// Breaks the connection. Requests in flight are executed later or never, and get no reply. Replies in flight are lost.
    fn break_connection(&mut self, are_late: bool) {
        self.has_lost_messages = true;
        let mut lost_replies: Vec<Reply> = self.down.drain(..).filter_map(Reply::lost).collect();
        let requests: Vec<_> = self.up.drain(..).collect();
        for sent in requests {
            let Some(lost) = sent.request.without_outcome(NoReply::Lost) else {
                self.up.push_back(sent);
                continue;
            };
            lost_replies.extend(sent.is_awaited.then_some(lost));
            if are_late {
                let request = sent.request;
                self.astray
                    .extend(matches!(request, Request::Acquire(_)).then(|| request.owner()));
                self.late.push(request);
            }
        }
        for reply in lost_replies {
            self.deliver(reply);
        }
        let now = self.now;
        self.event(Event::Reconnected(now));
    }
}

/// The host of the state machine in the model, where owner tokens are numbers, and a lease is the id of its task.
struct Hosting {
    next_owner: Cell<u64>,
    known: u64,
    made: Cell<Option<Made>>,
}

impl Host<u64, u64, u64> for Hosting {
    fn new_owner(&self, _: Mode) -> u64 {
        self.next_owner.set(self.next_owner.get() + 1);
        self.next_owner.get()
    }

    fn new_lease(&self, new: NewLease<'_, u64>) -> u64 {
        let fencing = new.fencing.into();
        let made = (*new.owner, fencing, new.permit, new.valid_until);
        self.made.set(Some(made));
        new.id.0
    }

    fn known_fencing(&self, _: &u64) -> u64 {
        self.known
    }

    fn jitter(&self, span: Duration) -> Duration {
        span
    }
}

impl From<NoReply> for Failure {
    fn from(why: NoReply) -> Self {
        match why {
            NoReply::Lost => Self::no_reply("the connection broke"),
            NoReply::Refused => Self::not_now("the server is loading"),
        }
    }
}
