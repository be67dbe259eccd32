//! The faults of a proxy, and the requests that it received.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard},
    time::Duration,
};

use tokio::sync::watch;

use super::Request;

/// One of the two directions of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    Requests,
    /// From the server to the client.
    Replies,
}

/// The connections that a black hole swallows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Existing connections: new ones work.
    Existing,
    /// Existing and new connections.
    All,
}

/// The frames that a fault concerns.
///
/// A reply counts under the command it answers, a push message under `PUSH`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frames {
    command: Option<String>,
    nth: Option<u64>,
}

impl Frames {
    /// Every frame.
    pub fn every() -> Self {
        Self {
            command: None,
            nth: None,
        }
    }

    /// The `nth` frame from now on, counted from 1 over all connections.
    pub fn nth(nth: u64) -> Self {
        Self {
            command: None,
            nth: Some(nth),
        }
    }

    /// Every request with this command, or reply to it.
    pub fn of(command: &str) -> Self {
        Self {
            command: Some(command.to_uppercase()),
            nth: None,
        }
    }

    /// The `nth` request with this command from now on, or reply to it.
    pub fn nth_of(nth: u64, command: &str) -> Self {
        Self {
            nth: Some(nth),
            ..Self::of(command)
        }
    }
}

/// The fate of the frames after a lost frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AfterLoss {
    /// No later frame arrives in that direction of the connection, as if packets stopped arriving: TCP never skips bytes.
    Silence,
    /// The connection is reset.
    Reset,
    /// The later frames arrive. No network does this, only a faulty peer: a client takes each later reply for the reply to the
    /// previous request.
    Continue,
}

/// The decision about a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Verdict {
    Forward {
        delay: Duration,
    },
    Lose(AfterLoss),
    /// Only the first half arrives, and then the connection is closed.
    Cut,
}

/// The faults of one connection, in one value, so that the connection misses no change.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fate {
    pub(super) frozen: bool,
    pub(super) reset: bool,
    pub(super) half_closed: Option<Direction>,
    pub(super) flooded: bool,
}

/// The state that the proxy's methods and the tasks of its connections share.
#[derive(Debug, Default)]
pub(super) struct Faults {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    requests: Lane,
    replies: Lane,
    freeze_new: bool,
    accepted: u64,
    connections: BTreeMap<u64, Known>,
    log: Vec<Request>,
}

#[derive(Debug, Default)]
struct Lane {
    delay: Duration,
    loss: Option<Loss>,
}

#[derive(Debug)]
struct Loss {
    which: Frames,
    /// The decision about these frames.
    verdict: Verdict,
    // The number of frames so far that match `which.command`.
    seen: u64,
}

#[derive(Debug)]
struct Known {
    fate: watch::Sender<Fate>,
    lost_a_frame: bool,
}

impl Faults {
    pub(super) fn heal(&self) {
        let mut state = self.state();
        state.requests = Lane::default();
        state.replies = Lane::default();
        state.freeze_new = false;
        for known in state.connections.values() {
            known.fate.send_modify(|fate| {
                fate.frozen = false;
                fate.flooded = false;
                fate.reset |= known.lost_a_frame;
            });
        }
    }

    pub(super) fn set_delay(&self, direction: Direction, delay: Duration) {
        self.state().lane(direction).delay = delay;
    }

    pub(super) fn set_loss(&self, direction: Direction, which: Frames, verdict: Verdict) {
        self.state().lane(direction).loss = Some(Loss {
            which,
            verdict,
            seen: 0,
        });
    }

    pub(super) fn freeze(&self, scope: Scope) {
        let mut state = self.state();
        state.freeze_new |= scope == Scope::All;
        state.set_all(|fate| fate.frozen = true);
    }

    pub(super) fn flood(&self) {
        self.state().set_all(|fate| fate.flooded = true);
    }

    pub(super) fn reset(&self) {
        self.state().set_all(|fate| fate.reset = true);
    }

    pub(super) fn half_close(&self, direction: Direction) {
        self.state()
            .set_all(|fate| fate.half_closed = Some(direction));
    }

    /// Counts a new connection and returns its number and the receiver of its faults.
    pub(super) fn enter(&self) -> (u64, watch::Receiver<Fate>) {
        let mut state = self.state();
        state.accepted += 1;
        let number = state.accepted;
        let (fate, receiver) = watch::channel(Fate {
            frozen: state.freeze_new,
            ..Fate::default()
        });
        let known = Known {
            fate,
            lost_a_frame: false,
        };
        state.connections.insert(number, known);
        (number, receiver)
    }

    pub(super) fn leave(&self, connection: u64) {
        self.state().connections.remove(&connection);
    }

    pub(super) fn record(&self, request: Request) {
        self.state().log.push(request);
    }

    pub(super) fn judge(&self, connection: u64, direction: Direction, command: &str) -> Verdict {
        let mut state = self.state();
        let lane = state.lane(direction);
        let delay = lane.delay;
        let lost = lane.loss.as_mut().and_then(|loss| loss.strikes(command));
        let Some(verdict) = lost else {
            return Verdict::Forward { delay };
        };
        if let Some(known) = state.connections.get_mut(&connection) {
            known.lost_a_frame |= verdict == Verdict::Lose(AfterLoss::Silence);
        }
        verdict
    }

    pub(super) fn accepted(&self) -> u64 {
        self.state().accepted
    }

    pub(super) fn log(&self) -> Vec<Request> {
        self.state().log.clone()
    }

    pub(super) fn clear_log(&self) {
        self.state().log.clear();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while it is locked")
    }
}

impl State {
    fn lane(&mut self, direction: Direction) -> &mut Lane {
        match direction {
            Direction::Requests => &mut self.requests,
            Direction::Replies => &mut self.replies,
        }
    }

    fn set_all(&self, change: impl Fn(&mut Fate)) {
        for known in self.connections.values() {
            known.fate.send_modify(&change);
        }
    }
}

impl Loss {
    fn strikes(&mut self, command: &str) -> Option<Verdict> {
        if self
            .which
            .command
            .as_deref()
            .is_some_and(|own| own != command)
        {
            return None;
        }
        self.seen += 1;
        let struck = self.which.nth.is_none_or(|nth| nth == self.seen);
        struck.then_some(self.verdict)
    }
}
