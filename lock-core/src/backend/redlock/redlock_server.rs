//! One of the servers, as this process knows it: its identity, the time from which it may vote, and its clock.

use std::{sync::Arc, time::Duration};

use tokio::time::timeout;

use crate::{
    backend::{
        in_flight::ConnectionId,
        redis::{
            protocol::{
                redis_store::{RedisStore, Settings},
                voting_server::{Proposal, Vote},
            },
            transport::address::Named,
        },
        redlock::{
            at_servers::AtServer,
            restart_quarantine::{CLOCK, RunIds, Watch},
        },
    },
    error::LockError,
    failure::Failure,
    fencing::{PER_MILLI, in_tokens},
    moment::Moment,
    runtime::mutex::Mutex,
};

/// A server that may not vote yet is asked about it at most this often, because other processes may have watched it for longer.
const CHECK_AGAIN: Duration = Duration::from_secs(1);

#[derive(Debug)]
pub(super) struct RedlockServer {
    /// Its position in the list.
    place: usize,
    pub(super) node: RedisStore,
    /// How long the server must have been watched before it votes.
    quarantine: Duration,
    run_ids: Arc<Mutex<RunIds>>,
    known: Mutex<Known>,
}

/// The facts that it reported last.
#[derive(Debug, Default)]
struct Known {
    voting_right: Option<VotingRight>,
    /// How far its clock is ahead of this process's, in tokens.
    ahead: Option<i64>,
    /// How far its fencing counter was ahead of its clock, in tokens.
    counter_ahead: u64,
}

#[derive(Clone, Debug)]
struct VotingRight {
    /// The connection on which it was found.
    connection: ConnectionId,
    watch: Watch,
    /// When the server has to be checked again; never, if its marker says that it may vote.
    check_again: Moment,
    /// When another run or marker was found than before.
    lost_data: Option<Moment>,
}

/// How far from its clock a server accepts a number; see `counter.lua`.
const WINDOW: Duration = Duration::from_secs(1);

impl RedlockServer {
    pub(super) fn new(
        place: usize,
        named: &Named,
        settings: &Settings,
        quarantine: Duration,
        run_ids: &Arc<Mutex<RunIds>>,
    ) -> Result<Self, LockError> {
        Ok(Self {
            place,
            node: RedisStore::one_of_several(named, settings)?,
            quarantine,
            run_ids: run_ids.clone(),
            known: Mutex::default(),
        })
    }

    /// Connects if necessary, and verifies which server it is. Returns how much longer the server will not vote.
    pub(super) async fn greet(&self) -> Result<Duration, Failure> {
        let voting_right = self.fetch_voting_right(self.patience()).await?;
        Ok(left(voting_right.watch.votes_from))
    }

    /// Like [`greet`](Self::greet), for the first time. Also verifies that its user has the rights that locks need.
    pub(super) async fn connect(&self) -> Result<(), Failure> {
        let until = self.patience();
        let reached = self.fetch_voting_right(until).await.map(drop);
        self.node.try_out(reached, until).await
    }

    /// Returns until when a new connection and its first reply may take.
    fn patience(&self) -> Moment {
        let timing = &self.node.0.timing;
        let within = timing.connect_timeout + timing.command_timeout;
        CLOCK.now().after(within)
    }

    /// Asks the server to vote, if its vote counts.
    ///
    /// A vote counts only on a connection on which the server was identified before as one that may vote. A connection leads to
    /// the same process from its beginning to its end. The vote itself tells whether the server still has its data.
    ///
    /// # Cancel safety
    ///
    /// The record of the lock on this server knows which requests may have been executed.
    pub(super) async fn vote(
        &self,
        proposal: &Proposal,
        number: u64,
        within: Duration,
        at: &AtServer,
    ) -> Result<Vote, Failure> {
        let until = CLOCK.now().after(within);
        let voting_right = self.voting_right(until).await?;
        let waits = left(voting_right.watch.votes_from);
        if !waits.is_zero() {
            return Err(Failure::not_now(self.forgetful(waits)));
        }
        let no_turn = |_| Err(Failure::no_reply("an earlier request has no reply yet"));
        let mut turn = (timeout(left(until), at.turn()).await).unwrap_or_else(no_turn)?;
        let (marker, within) = (&voting_right.watch.name, left(until));
        let asked = (self.node).propose(proposal, number, marker, within, turn.in_flight());
        let (connection, vote) = asked.await?;
        turn.note_answer(connection, matches!(vote, Some(Vote::Accepted { .. })));
        drop(turn);
        let Some(vote) = vote else {
            if let Some(known) = &mut self.known.lock().voting_right {
                known.check_again = CLOCK.now();
            }
            let lost = "has lost its data and may have forgotten locks";
            return Err(Failure::not_now(self.text(lost)));
        };
        match vote {
            Vote::Accepted { clock, .. } => self.set_clock(clock, number),
            Vote::Refused { least, clock } => self.set_clock(clock, least),
            // It is unknown whether `least` is the clock or the counter.
            Vote::Held { .. } => {}
        }
        if connection != voting_right.connection {
            let anew = "was reconnected while it voted";
            return Err(Failure::no_reply(self.text(anew)));
        }
        Ok(vote)
    }

    /// Returns when this process found that the server had lost its data. `None` if it did not, or if the server may vote sooner
    /// than `within` from now. With a quarantine of zero, it votes at once, at the user's own risk, and the time is returned anyway.
    pub(super) async fn lost_data(&self, within: Duration) -> Option<Moment> {
        let until = CLOCK.now().after(within);
        let voting_right = self.fetch_voting_right(until).await.ok()?;
        let votes_soon = left(voting_right.watch.votes_from) <= within;
        let lost_data = voting_right.lost_data?;
        (!votes_soon || self.quarantine.is_zero()).then_some(lost_data)
    }

    /// Returns the known voting right, if it is still valid.
    async fn voting_right(&self, until: Moment) -> Result<VotingRight, Failure> {
        let known = self.known.lock().voting_right.clone();
        let is_valid = |known: &VotingRight| {
            CLOCK.now() < known.check_again && self.node.is_connected_by(known.connection)
        };
        match known.filter(is_valid) {
            Some(known) => Ok(known),
            None => self.fetch_voting_right(until).await,
        }
    }

    async fn fetch_voting_right(&self, until: Moment) -> Result<VotingRight, Failure> {
        let greeting = self.node.identify(left(until)).await?;
        if let Some(clock) = greeting.clock {
            self.set_clock(clock, greeting.counter.unwrap_or(0));
        }
        if let Some(twin) = self.run_ids.lock().note(self.place, &greeting.run_id) {
            return Err(Failure::invalid(format!(
                "{} is the same server as number {} of the list: list each server once, or its vote counts twice",
                self.node.shown(),
                twin + 1
            )));
        }
        let (watch, check_again) = self.continue_watching(&greeting.run_id, until).await?;
        let waits = left(watch.votes_from);
        let mut known = self.known.lock();
        let (lost_data, is_new) = match &known.voting_right {
            Some(before) if before.watch.name == watch.name => (before.lost_data, false),
            Some(_) => (Some(CLOCK.now()), true),
            None => (None, true),
        };
        let voting_right = VotingRight {
            connection: greeting.connection,
            watch,
            check_again,
            lost_data,
        };
        known.voting_right = Some(voting_right.clone());
        drop(known);
        if is_new && !waits.is_zero() {
            tracing::warn!(server = self.node.shown(), "{}", self.forgetful(waits));
        }
        Ok(voting_right)
    }

    /// Continues watching the server. Returns the updated watch, and when to check again.
    async fn continue_watching(
        &self,
        run_id: &str,
        until: Moment,
    ) -> Result<(Watch, Moment), Failure> {
        let sent = CLOCK.now();
        let known = self.known.lock().voting_right.clone();
        let known = known.as_ref().map(|known| &known.watch);
        let name = known.map_or("", |known| &known.name);
        let watched = known.map_or(Duration::ZERO, |known| known.watched(sent, self.quarantine));
        let marker = self.node.mark(run_id, name, watched, left(until)).await?;
        let now = CLOCK.now();
        let read = Watch::read(&marker, run_id, now, self.quarantine, known);
        let Some((watch, watched)) = read else {
            let none = "may have forgotten locks, and accepts no marker that would show it";
            return Err(Failure::not_now(self.text(none)));
        };
        let check_again = if watched >= self.quarantine {
            Moment::NEVER
        } else {
            now.after(CHECK_AGAIN).min(watch.votes_from)
        };
        Ok((watch, check_again))
    }

    /// Returns the current time of its clock, in tokens, if that is known.
    pub(super) fn clock(&self) -> Option<u64> {
        own_time().checked_add_signed(self.known.lock().ahead?)
    }

    /// Returns the message that the server does not vote for this long.
    pub(super) fn forgetful(&self, waits: Duration) -> String {
        self.text(&format!(
            "was started recently or has lost its data, and may have forgotten locks; it votes after it has been watched for \
             another {waits:?}, by this process or others"
        ))
    }

    fn text(&self, what: &str) -> String {
        format!("{} {what}", self.node.shown())
    }

    /// Returns the reason why it accepts no number, if its clock was set back: each number has to be above the counter, and
    /// near the clock.
    pub(super) fn clock_warning(&self) -> Option<String> {
        let ahead = Duration::from_millis(self.known.lock().counter_ahead / PER_MILLI);
        let until = ahead.checked_sub(WINDOW).filter(|until| !until.is_zero())?;
        Some(format!(
            "the clock of {} is {ahead:?} behind its last fencing token, so it was set back: it votes in {until:?}, or when its \
             clock is right again",
            self.node.shown()
        ))
    }

    fn set_clock(&self, clock: u64, counter: u64) {
        let mut known = self.known.lock();
        known.counter_ahead = counter.saturating_sub(clock);
        known.ahead = Some(clock.cast_signed().wrapping_sub(own_time().cast_signed()));
    }
}

fn left(until: Moment) -> Duration {
    until.since(CLOCK.now())
}

/// Returns the time of this process's clock, in tokens.
fn own_time() -> u64 {
    in_tokens(Duration::from_nanos(CLOCK.now().as_nanos()))
}
