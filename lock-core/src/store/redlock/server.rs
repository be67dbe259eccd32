//! One of the servers, as this process knows it: its identity, since when it may vote, what its clock says.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use crate::{
    error::LockError,
    runtime::{
        clock::{Clock, Moment},
        mutex::Mutex,
    },
    store::{
        Failure,
        in_flight::ConnectionId,
        redis::{
            Named, RedisStore, Settings,
            voting_server::{Proposal, Vote},
        },
        redlock::{
            in_flight::ServerInFlight,
            restart_quarantine::{self, RunIdSeen, RunIds},
        },
        timing::Timing,
    },
};

const CLOCK: Clock = Clock::Boot;

#[derive(Debug)]
pub(super) struct RedlockServer {
    /// Its position in the list.
    place: usize,
    pub(super) node: RedisStore,
    timing: Timing,
    /// How long it must have been up.
    quarantine: Duration,
    run_ids: Arc<Mutex<RunIds>>,
    /// What it reported when it was last greeted, and on which connection.
    voting_right: Mutex<Option<VotingRight>>,
    /// How far its clock is ahead of this process's, in microseconds; `i64::MIN` if not known.
    ahead: AtomicI64,
}

#[derive(Clone, Copy, Debug)]
struct VotingRight {
    connection: ConnectionId,
    votes_from: Moment,
}

const UNKNOWN: i64 = i64::MIN;

impl RedlockServer {
    pub(super) fn new(
        place: usize,
        named: &Named,
        settings: &Settings,
        quarantine: Duration,
        run_ids: Arc<Mutex<RunIds>>,
    ) -> Result<Self, LockError> {
        Ok(Self {
            place,
            node: RedisStore::one_of_several(named, settings)?,
            timing: settings.timing,
            quarantine,
            run_ids,
            voting_right: Mutex::new(None),
            ahead: AtomicI64::new(UNKNOWN),
        })
    }

    /// Connects, if need be, and verifies which server it is; returns for how long it will not vote.
    pub(super) async fn greet(&self) -> Result<Duration, Failure> {
        let voting_right = self.ask_voting_right(self.patience()).await?;
        Ok(voting_right.votes_from.since(CLOCK.now()))
    }

    /// The same for the first time; also verifies that its user has the rights that locks need.
    pub(super) async fn connect(&self) -> Result<(), Failure> {
        let (started, within) = (CLOCK.now(), self.patience());
        let left = || within.saturating_sub(CLOCK.now().since(started));
        let reached = self.ask_voting_right(within).await.map(drop);
        self.node.try_out(reached, left()).await
    }

    fn patience(&self) -> Duration {
        self.timing.connect_timeout + self.timing.command_timeout
    }

    /// Has it vote, if its vote counts.
    ///
    /// A vote counts only on a connection on which the server reported, before or after, that it has been up for long enough: the
    /// process at the other end of a connection is the same from its begin to its end.
    ///
    /// # Cancel safety
    ///
    /// The in-flight record, if there is one, knows which requests may have been executed.
    pub(super) async fn vote(
        &self,
        proposal: &Proposal,
        within: Duration,
        record: Option<&ServerInFlight>,
    ) -> Result<Vote, Failure> {
        let started = CLOCK.now();
        let left = || within.saturating_sub(CLOCK.now().since(started));
        let known = *self.voting_right.lock();
        let voting_right = match known {
            Some(voting_right) => voting_right,
            None => self.ask_voting_right(within).await?,
        };
        self.require_vote(voting_right, CLOCK.now())?;
        let pending =
            match record {
                Some(record) => Some(record.begin_request().ok_or_else(|| {
                    Failure::no_answer("this request was taken back before it left")
                })?),
                None => None,
            };
        let sent = CLOCK.now();
        let in_flight = record.map(|record| &record.in_flight);
        let answer = self.node.propose(proposal, left(), in_flight).await;
        let (connection, vote) = match answer {
            Ok(answer) => answer,
            Err(failure) => {
                // The next connection is not the one that was greeted.
                if !failure.is_definite() {
                    self.forget_voting_right(voting_right);
                }
                return Err(failure);
            }
        };
        if let Some(pending) = pending {
            pending.answered(connection);
        }
        // A refusal may report a counter that is ahead of the clock.
        if let Vote::Accepted { clock, .. } = vote {
            self.set_clock(clock);
        }
        if connection != voting_right.connection {
            let voting_right = self.ask_voting_right(left()).await?;
            if connection != voting_right.connection {
                return Err(Failure::no_answer(format!(
                    "{} was connected to anew while it voted",
                    self.node.shown()
                )));
            }
            self.require_vote(voting_right, sent)?;
        }
        Ok(vote)
    }

    /// The current time of its clock, in microseconds, if that is known.
    pub(super) fn clock(&self) -> Option<u64> {
        own_micros().checked_add_signed(self.ahead()?)
    }

    /// How far its clock is ahead of this process's, if that is known.
    pub(super) fn ahead(&self) -> Option<i64> {
        Some(self.ahead.load(Ordering::Relaxed)).filter(|ahead| *ahead != UNKNOWN)
    }

    async fn ask_voting_right(&self, within: Duration) -> Result<VotingRight, Failure> {
        let asked = CLOCK.now();
        let greeting = self.node.identify(within).await?;
        if let Some(clock) = greeting.clock {
            self.set_clock(clock);
        }
        let votes_from =
            restart_quarantine::votes_from(CLOCK.now(), greeting.uptime, self.quarantine);
        let seen = self.run_ids.lock().note(self.place, &greeting.run_id);
        let waits = votes_from.since(asked);
        match seen {
            RunIdSeen::SameAs(twin) => {
                return Err(Failure::Invalid(
                    format!(
                        "{} is the same server as the one in place {} of the list: name each once, or its vote counts twice",
                        self.node.shown(),
                        twin + 1
                    )
                    .into(),
                ));
            }
            RunIdSeen::Again => {}
            RunIdSeen::First if waits.is_zero() => {}
            RunIdSeen::First | RunIdSeen::Restarted => tracing::warn!(
                server = self.node.shown(),
                "the server was started lately and may have forgotten locks; it votes in {waits:?}"
            ),
        }
        let voting_right = VotingRight {
            connection: greeting.connection,
            votes_from,
        };
        *self.voting_right.lock() = Some(voting_right);
        Ok(voting_right)
    }

    fn require_vote(&self, voting_right: VotingRight, at: Moment) -> Result<(), Failure> {
        if voting_right.votes_from <= at {
            return Ok(());
        }
        Err(Failure::not_now(format!(
            "{} was started lately and may have forgotten locks; it votes in {:?}",
            self.node.shown(),
            voting_right.votes_from.since(at)
        )))
    }

    /// Unless a newer one was learnt meanwhile.
    fn forget_voting_right(&self, old: VotingRight) {
        let mut voting_right = self.voting_right.lock();
        if voting_right.is_some_and(|voting_right| voting_right.connection == old.connection) {
            *voting_right = None;
        }
    }

    fn set_clock(&self, clock: u64) {
        let ahead = i128::from(clock) - i128::from(own_micros());
        let ahead = i64::try_from(ahead).unwrap_or(UNKNOWN);
        self.ahead.store(ahead, Ordering::Relaxed);
    }
}

fn own_micros() -> u64 {
    CLOCK.now().as_nanos() / 1000
}
