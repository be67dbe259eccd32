//! The servers, and the connections to them. Bytes arrive in order and with a delay, and faults hit connections.
//!
//! The seed determines how bytes are split into pieces, how long each piece takes, and whether the system accepts a write as a
//! whole. Times are in nanoseconds since the world began.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    task::{Context, Poll, Waker},
};

use crate::{
    chance::Chance,
    model::{Dialect, Server},
    scheduler::ProcessId,
};

pub(crate) type HostId = usize;
pub(crate) type ConnId = u64;
pub(crate) type Nanos = u64;

pub(crate) const MILLI: Nanos = 1_000_000;
pub(crate) const SECOND: Nanos = 1_000_000_000;

/// The time at which the world began, in microseconds since the epoch.
pub(crate) const EPOCH_US: i64 = 1_800_000_000_000_000;

/// The time after which a server closes the connection of a silent client.
const KEEPALIVE: Nanos = 30 * SECOND;

pub(crate) struct Network {
    pub(crate) hosts: Vec<Host>,
    conns: BTreeMap<ConnId, Conn>,
    links: BTreeMap<(ProcessId, HostId), Link>,
    events: BTreeMap<(Nanos, u64), Event>,
    last_number: u64,
    chance: Chance,
    /// The shortest and the longest time that a message takes.
    latency: (Nanos, Nanos),
}

/// A machine with a server.
pub(crate) struct Host {
    pub(crate) server: Server,
    pub(crate) is_up: bool,
    /// Until this time, the server receives but does not reply.
    stalled_until: Nanos,
    /// How far its clock is ahead.
    pub(crate) ahead_us: i64,
    pub(crate) rate_ppm: i64,
}

/// The direction in which a link delays messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Held {
    Requests,
    Replies,
    Both,
}

/// The network between a process and a server.
#[derive(Default)]
struct Link {
    /// Nothing arrives at the server before this time.
    requests_held_until: Nanos,
    /// Nothing arrives at the process before this time.
    replies_held_until: Nanos,
    /// A connection attempt gets no response before this time.
    silent_until: Nanos,
    /// The additional time that each message takes, and until when.
    slow: (Nanos, Nanos),
}

struct Conn {
    process: ProcessId,
    host: HostId,
    is_established: bool,
    is_closed: bool,
    inbox: VecDeque<u8>,
    over: Option<Over>,
    is_clogged: bool,
    wakers: Vec<Waker>,
    to_server: Pipe,
    to_client: Pipe,
}

#[derive(Clone, Copy, Debug)]
enum Over {
    Closed,
    Reset,
    Refused,
}

/// One direction of a connection.
#[derive(Default)]
struct Pipe {
    /// The time at which the last piece arrives.
    last: Nanos,
    /// Set if everything that is written gets lost.
    is_lost: bool,
}

#[derive(Debug)]
enum Event {
    Knocks(ConnId),
    Established(ConnId),
    ToServer(ConnId, Vec<u8>),
    ToClient(ConnId, Vec<u8>),
    ClientGone(ConnId),
    ServerGone(ConnId, Over),
    Unclogged(ConnId),
}

/// The fate of a server's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Kept,
    Lost,
}

/// A fault of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breakage {
    /// Both ends see the reset.
    Reset,
    /// Only the client sees the reset, and the bytes that it wrote still arrive.
    ResetForTheClient,
    /// Neither end sees an error, but nothing arrives any more.
    HalfOpen,
    /// No reply arrives any more.
    NoReplies,
    /// No request arrives any more.
    NoRequests,
}

/// The connections that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    /// `None` means all processes.
    pub(crate) process: Option<ProcessId>,
    pub(crate) host: HostId,
}

impl Network {
    pub(crate) fn new(chance: Chance, latency: (Nanos, Nanos)) -> Self {
        Self {
            hosts: Vec::new(),
            conns: BTreeMap::new(),
            links: BTreeMap::new(),
            events: BTreeMap::new(),
            last_number: 0,
            chance,
            latency,
        }
    }

    pub(crate) fn add_host(&mut self, dialect: Dialect, ahead_us: i64, rate_ppm: i64) -> HostId {
        let mut server = Server::default();
        server.dialect = dialect;
        let mut host = Host {
            server,
            is_up: true,
            stalled_until: 0,
            ahead_us,
            rate_ppm,
        };
        // The server has been up for long enough to vote.
        let started_us = host.clock_us(0) - 1_000_000_000;
        let run_id = self.run_id();
        // For Redlock, it has been in use for as long.
        let marker = format!("{run_id}:long-ago:1000000");
        host.server.restart(run_id, started_us, Data::Lost);
        let words = ["__lock_core__:watched", &*marker].map(|word| word.as_bytes().to_vec());
        host.server.store.execute("SET", &words, started_us);
        self.hosts.push(host);
        self.hosts.len() - 1
    }

    fn run_id(&mut self) -> String {
        format!("{:016x}", self.chance.next())
    }

    // Methods for processes.

    pub(crate) fn connect(&mut self, process: ProcessId, host: HostId, now: Nanos) -> ConnId {
        self.last_number += 1;
        let id = self.last_number;
        let conn = Conn {
            process,
            host,
            is_established: false,
            is_closed: false,
            inbox: VecDeque::new(),
            over: None,
            is_clogged: false,
            wakers: Vec::new(),
            to_server: Pipe::default(),
            to_client: Pipe::default(),
        };
        self.conns.insert(id, conn);
        let link = self.links.entry((process, host)).or_default();
        if now >= link.silent_until {
            let at = self.arrival(id, now, true);
            self.plan(at, Event::Knocks(id));
        }
        id
    }

    pub(crate) fn poll_established(
        &mut self,
        id: ConnId,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_until(id, context, |conn| conn.is_established)
    }

    pub(crate) fn write(&mut self, id: ConnId, bytes: &[u8], now: Nanos) -> io::Result<usize> {
        let conn = self.conns.get_mut(&id).expect("its end is held");
        if let Some(over) = conn.over {
            return Err(over.error());
        }
        if conn.is_clogged {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        if self.chance.permille(4) {
            conn.is_clogged = true;
            let at = now + self.chance.between(MILLI / 10, 3 * MILLI);
            self.plan(at, Event::Unclogged(id));
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let is_lost = conn.to_server.is_lost;
        let taken = if bytes.len() > 1 && self.chance.permille(15) {
            self.chance.index(bytes.len() - 1) + 1
        } else {
            bytes.len()
        };
        if !is_lost {
            self.send(id, &bytes[..taken], now, true);
        }
        Ok(taken)
    }

    pub(crate) fn poll_writable(
        &mut self,
        id: ConnId,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        self.poll_until(id, context, |conn| !conn.is_clogged)
    }

    /// Waits until a connection meets the condition, or has ended.
    fn poll_until(
        &mut self,
        id: ConnId,
        context: &mut Context<'_>,
        is_so: impl FnOnce(&Conn) -> bool,
    ) -> Poll<io::Result<()>> {
        let conn = self.conns.get_mut(&id).expect("its end is held");
        match conn.over {
            Some(over) => Poll::Ready(Err(over.error())),
            None if is_so(conn) => Poll::Ready(Ok(())),
            None => {
                conn.wakers.push(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Reads at most this many of the bytes that have arrived; none at the end of the connection.
    pub(crate) fn poll_read(
        &mut self,
        id: ConnId,
        most: usize,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Vec<u8>>> {
        let conn = self.conns.get_mut(&id).expect("its end is held");
        if !conn.inbox.is_empty() {
            let count = conn.inbox.len().min(most);
            return Poll::Ready(Ok(conn.inbox.drain(..count).collect()));
        }
        match conn.over {
            Some(Over::Closed) => Poll::Ready(Ok(Vec::new())),
            Some(over) => Poll::Ready(Err(over.error())),
            None => {
                conn.wakers.push(context.waker().clone());
                Poll::Pending
            }
        }
    }

    pub(crate) fn close(&mut self, id: ConnId, now: Nanos) {
        let Some(conn) = self.conns.get_mut(&id) else {
            return;
        };
        conn.is_closed = true;
        conn.wakers.clear();
        let at = if conn.to_server.is_lost {
            now + KEEPALIVE
        } else {
            self.arrival(id, now, true)
        };
        self.plan(at, Event::ClientGone(id));
    }

    /// Returns the connections that their processes have not closed.
    pub(crate) fn open_connections(&self) -> Vec<(ConnId, ProcessId)> {
        let open = self.conns.iter().filter(|(_, conn)| !conn.is_closed);
        open.map(|(id, conn)| (*id, conn.process)).collect()
    }

    // Methods for faults.

    /// Ends the connections of a killed process. The bytes that it wrote still arrive.
    pub(crate) fn sever(&mut self, process: ProcessId) {
        for conn in self.conns.values_mut() {
            if conn.process == process {
                conn.end(Over::Reset);
            }
        }
    }

    pub(crate) fn break_connections(&mut self, scope: Scope, breakage: Breakage, now: Nanos) {
        let conns: Vec<ConnId> = self.within(scope);
        for id in conns {
            let conn = self.conns.get_mut(&id).expect("just listed");
            let host = conn.host;
            match breakage {
                Breakage::Reset => {
                    conn.end(Over::Reset);
                    self.hosts[host].server.disconnect(id);
                }
                Breakage::ResetForTheClient => {
                    conn.end(Over::Reset);
                    let at = self.arrival(id, now, true);
                    self.plan(at, Event::ClientGone(id));
                }
                Breakage::HalfOpen => {
                    (conn.to_server.is_lost, conn.to_client.is_lost) = (true, true);
                }
                Breakage::NoReplies => conn.to_client.is_lost = true,
                Breakage::NoRequests => conn.to_server.is_lost = true,
            }
        }
    }

    /// Delays all messages until `until`, in one direction or in both.
    pub(crate) fn hold(&mut self, scope: Scope, processes: usize, held: Held, until: Nanos) {
        self.each_link(scope, processes, |link| {
            if held != Held::Replies {
                link.requests_held_until = until.max(link.requests_held_until);
            }
            if held != Held::Requests {
                link.replies_held_until = until.max(link.replies_held_until);
            }
        });
    }

    /// Prevents new connections until `until`.
    pub(crate) fn silence(&mut self, scope: Scope, processes: usize, until: Nanos) {
        self.each_link(scope, processes, |link| {
            link.silent_until = until.max(link.silent_until);
        });
    }

    /// Makes each message take longer by `more`, until `until`.
    pub(crate) fn slow_down(&mut self, scope: Scope, processes: usize, more: Nanos, until: Nanos) {
        self.each_link(scope, processes, |link| link.slow = (more, until));
    }

    pub(crate) fn stall(&mut self, host: HostId, until: Nanos) {
        // A shorter stall must not end a longer one, or replies would be out of order.
        let stalled = &mut self.hosts[host].stalled_until;
        *stalled = until.max(*stalled);
    }

    /// Ends the server. Its clients see that only if `sends_reset` is set.
    pub(crate) fn take_down(&mut self, host: HostId, sends_reset: bool, now: Nanos) {
        self.hosts[host].is_up = false;
        for id in self.within(Scope {
            process: None,
            host,
        }) {
            let conn = self.conns.get_mut(&id).expect("just listed");
            if sends_reset {
                let over = self.chance.pick(&[Over::Closed, Over::Reset]);
                let at = self.arrival(id, now, false);
                self.plan(at, Event::ServerGone(id, over));
            } else {
                (conn.to_server.is_lost, conn.to_client.is_lost) = (true, true);
            }
        }
    }

    pub(crate) fn bring_up(&mut self, host: HostId, data: Data, now: Nanos) {
        let run_id = self.run_id();
        let host = &mut self.hosts[host];
        let now_us = host.clock_us(now);
        host.server.restart(run_id, now_us, data);
        host.is_up = true;
    }

    fn within(&self, scope: Scope) -> Vec<ConnId> {
        let conns = self.conns.iter();
        conns
            .filter(|(_, conn)| {
                conn.host == scope.host
                    && scope.process.is_none_or(|process| process == conn.process)
            })
            .map(|(id, _)| *id)
            .collect()
    }

    fn each_link(&mut self, scope: Scope, processes: usize, change: impl Fn(&mut Link)) {
        for process in 0..processes {
            if scope.process.is_none_or(|only| only == process) {
                change(self.links.entry((process, scope.host)).or_default());
            }
        }
    }

    // Methods for the passing of time.

    pub(crate) fn next_event(&self) -> Option<Nanos> {
        self.events.first_key_value().map(|((at, _), _)| *at)
    }

    /// Carries out the events that are due. Returns the lines for the trace.
    pub(crate) fn run_due(&mut self, now: Nanos, traced: bool) -> Vec<String> {
        let mut notes = Vec::new();
        while let Some(entry) = self.events.first_entry()
            && entry.key().0 <= now
        {
            let ((_, number), event) = entry.remove_entry();
            if let Some(later) = self.stalled(&event, now) {
                // The events keep their order.
                self.events.insert((later, number), event);
                continue;
            }
            if traced {
                notes.push(event.shown());
            }
            self.happens(event, now);
        }
        notes
    }

    fn stalled(&self, event: &Event, now: Nanos) -> Option<Nanos> {
        let (Event::Knocks(id) | Event::ToServer(id, _) | Event::ClientGone(id)) = event else {
            return None;
        };
        let host = &self.hosts[self.conns.get(id)?.host];
        (host.stalled_until > now).then_some(host.stalled_until)
    }

    fn happens(&mut self, event: Event, now: Nanos) {
        match event {
            Event::Knocks(id) => self.knocks(id, now),
            Event::Established(id) => self.with(id, |conn| conn.is_established = true),
            Event::ToServer(id, bytes) => self.arrive(id, &bytes, now),
            Event::ToClient(id, bytes) => self.with(id, |conn| {
                if conn.over.is_none() {
                    conn.inbox.extend(bytes);
                }
            }),
            Event::ClientGone(id) => {
                if let Some(conn) = self.conns.get(&id) {
                    self.hosts[conn.host].server.disconnect(id);
                    if conn.is_closed {
                        self.conns.remove(&id);
                    }
                }
            }
            Event::ServerGone(id, over) => {
                self.with(id, |conn| {
                    conn.over = conn.over.or(Some(over));
                });
            }
            Event::Unclogged(id) => self.with(id, |conn| conn.is_clogged = false),
        }
    }

    /// Changes a connection, and wakes the tasks that wait for it.
    fn with(&mut self, id: ConnId, change: impl FnOnce(&mut Conn)) {
        if let Some(conn) = self.conns.get_mut(&id) {
            change(conn);
            conn.wake();
        }
    }

    fn knocks(&mut self, id: ConnId, now: Nanos) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        if conn.is_closed {
            return;
        }
        let host = &mut self.hosts[conn.host];
        let reply = if host.is_up {
            host.server.connect(id);
            Event::Established(id)
        } else {
            Event::ServerGone(id, Over::Refused)
        };
        let at = self.arrival(id, now, false);
        self.plan(at, reply);
    }

    fn arrive(&mut self, id: ConnId, bytes: &[u8], now: Nanos) {
        let Some(conn) = self.conns.get(&id) else {
            return;
        };
        let host = &mut self.hosts[conn.host];
        if !host.is_up {
            return;
        }
        let now_us = host.clock_us(now);
        for (client, bytes) in host.server.receive(id, bytes, now_us) {
            let is_lost = self
                .conns
                .get(&client)
                .is_none_or(|conn| conn.to_client.is_lost);
            if !is_lost {
                self.send(client, &bytes, now, false);
            }
        }
    }

    /// Sends bytes, in one piece or in two.
    fn send(&mut self, id: ConnId, bytes: &[u8], now: Nanos, to_server: bool) {
        let cut = if bytes.len() > 1 && self.chance.permille(20) {
            self.chance.index(bytes.len())
        } else {
            0
        };
        for piece in [&bytes[..cut], &bytes[cut..]] {
            if !piece.is_empty() {
                let at = self.arrival(id, now, to_server);
                let piece = piece.to_vec();
                self.plan(
                    at,
                    if to_server {
                        Event::ToServer(id, piece)
                    } else {
                        Event::ToClient(id, piece)
                    },
                );
            }
        }
    }

    /// Returns the time at which a piece that is sent now arrives, after all earlier pieces.
    fn arrival(&mut self, id: ConnId, now: Nanos, to_server: bool) -> Nanos {
        let conn = self.conns.get_mut(&id).expect("just used");
        let link = self.links.entry((conn.process, conn.host)).or_default();
        let (least, most) = self.latency;
        let mut takes = self.chance.between(least, most);
        if self.chance.permille(10) {
            takes = (takes * self.chance.between(2, 20)).min(60 * MILLI);
        }
        if now < link.slow.1 {
            takes += link.slow.0;
        }
        let (pipe, held_until) = if to_server {
            (&mut conn.to_server, link.requests_held_until)
        } else {
            (&mut conn.to_client, link.replies_held_until)
        };
        pipe.last = pipe.last.max(now.max(held_until) + takes);
        pipe.last
    }

    fn plan(&mut self, at: Nanos, event: Event) {
        self.last_number += 1;
        self.events.insert((at, self.last_number), event);
    }
}

impl Host {
    /// Returns the time on the server's clock, in microseconds since the epoch.
    pub(crate) fn clock_us(&self, now: Nanos) -> i64 {
        let passed = i64::try_from(now / 1000).expect("a short simulation");
        EPOCH_US + passed + passed * self.rate_ppm / 1_000_000 + self.ahead_us
    }
}

impl Conn {
    fn end(&mut self, over: Over) {
        self.over = self.over.or(Some(over));
        self.inbox.clear();
        self.wake();
    }

    fn wake(&mut self) {
        for waker in self.wakers.drain(..) {
            waker.wake();
        }
    }
}

impl Over {
    fn error(self) -> io::Error {
        match self {
            Self::Closed => io::ErrorKind::BrokenPipe.into(),
            Self::Reset => io::ErrorKind::ConnectionReset.into(),
            Self::Refused => io::ErrorKind::ConnectionRefused.into(),
        }
    }
}

impl Event {
    /// Returns the text for the trace, without the texts of scripts.
    fn shown(&self) -> String {
        let text = |bytes: &[u8]| {
            let mut text = bytes.escape_ascii().to_string().replace("\\r\\n", " ");
            if text.len() > 400 {
                text.replace_range(200..text.len() - 200, " … ");
            }
            text
        };
        match self {
            Self::ToServer(id, bytes) => format!("c{id} -> {}", text(bytes)),
            Self::ToClient(id, bytes) => format!("c{id} <- {}", text(bytes)),
            other => format!("{other:?}"),
        }
    }
}
