//! The canonical text of a state, which is the same for states that differ only in the time and in names.

use std::{collections::BTreeSet, fmt};

use crate::{
    engine::{
        local_holders::HolderStage,
        model::{
            server::{OTHER, OTHER_TTL, Renewal, Reply, Request},
            world::{Task, World},
        },
        reply::{AcquireOutcome, PushedGrant, Renewed},
        request::{MOST_LATE_GRANTS, Meanwhile, RequestStep},
        server_lease::{RenewalPlan, ServerLease},
    },
    fencing::FencingBlock,
    moment::Moment,
};

/// Replaces owner tokens, fencing tokens and task ids with their ranks.
struct Names {
    owners: BTreeSet<u64>,
    tokens: BTreeSet<u64>,
    tasks: BTreeSet<u64>,
    now: Moment,
}

impl Names {
    fn owner(&self, owner: u64) -> usize {
        self.owners.range(..owner).count()
    }

    /// Returns the rank of a fencing token or a stamp. A gap between two of them counts as at most two.
    fn token(&self, token: u64) -> u64 {
        rank(&self.tokens, token)
    }

    fn pushed(&self, pushed: PushedGrant) -> (u64, u64, Option<u16>, bool) {
        let (grant, stamp) = (pushed.grant, self.token(pushed.stamp));
        let token = self.token(first_of(grant.tokens));
        (token, stamp, grant.permit, grant.is_contended)
    }

    fn task(&self, id: u64) -> usize {
        self.tasks.range(..id).count()
    }

    /// Returns the milliseconds until this moment. All moments that are more than the longest ttl in the past are equal.
    fn at(&self, moment: Moment) -> i64 {
        let ahead = i64::try_from(moment.since(self.now).as_millis());
        let past = i64::try_from(self.now.since(moment).as_millis());
        let longest = i64::try_from(OTHER_TTL.as_millis());
        (ahead.unwrap_or(i64::MAX) - past.unwrap_or(i64::MAX)).max(-longest.unwrap_or(i64::MAX))
    }

    /// Returns the milliseconds until this moment. All moments that are due are equal.
    fn due(&self, moment: Moment) -> i64 {
        self.at(moment).max(0)
    }

    fn batch(&self, block: FencingBlock) -> (u64, u32) {
        let left = block.left();
        (
            if left > 0 {
                self.token(first_of(block))
            } else {
                0
            },
            left,
        )
    }
}

fn rank(names: &BTreeSet<u64>, name: u64) -> u64 {
    let mut rank = 0;
    let mut last = None;
    for one in names.range(..=name) {
        rank += last.map_or(0, |last: u64| (one - last).min(2));
        last = Some(*one);
    }
    rank
}

pub(super) fn first_of(block: FencingBlock) -> u64 {
    u64::from(block.last()) + 1 - u64::from(block.left())
}

/// The further course of a request in flight.
#[derive(Debug)]
enum Course {
    Awaited,
    GivenUp,
    Late,
}

impl World {
    fn requests(&self) -> impl Iterator<Item = (&Request, Course)> {
        let up = self.up.iter().map(|sent| {
            let course = if sent.is_awaited {
                Course::Awaited
            } else {
                Course::GivenUp
            };
            (&sent.request, course)
        });
        up.chain(self.late.iter().map(|request| (request, Course::Late)))
    }

    pub(super) fn write_canonically(&self, text: &mut impl fmt::Write) -> fmt::Result {
        let names = self.names();
        self.write_surroundings(&names, text)?;
        self.write_network(&names, text)?;
        self.write_waiters(&names, text)?;
        self.write_phase(&names, text)
    }

    fn names(&self) -> Names {
        let mut owners = BTreeSet::from([OTHER]);
        let mut tokens = BTreeSet::from([self.server.last_token(), self.known, self.largest_taken]);
        tokens.extend(self.largest_of_permits.values());
        let mut tasks = BTreeSet::new();
        let table = &self.server.table;
        owners.extend(table.queue.iter().map(|queued| queued.entry.number));
        owners.extend(table.holders.iter().filter_map(|held| held.number));
        tokens.extend(table.holders.iter().map(|held| first_of(held.tokens)));
        owners.extend(self.requests().map(|(request, _)| request.owner()));
        owners.extend(self.down.iter().map(Reply::owner));
        owners.extend(self.polled.iter().map(|polled| polled.owner));
        for task in &self.tasks {
            match task {
                Task::Away => {}
                Task::Waiting { id, .. } => drop(tasks.insert(*id)),
                Task::Holding {
                    id, owner, token, ..
                } => {
                    tasks.insert(*id);
                    owners.insert(*owner);
                    tokens.insert(*token);
                }
            }
        }
        if let Some(request) = self.key.request() {
            owners.insert(request.owner);
            tokens.insert(request.known_since);
            if let Meanwhile::Granted(pushed) = request.meanwhile {
                tokens.insert(first_of(pushed.grant.tokens));
                tokens.insert(pushed.stamp);
            }
        }
        for held in &self.key.leases {
            owners.insert(held.owner);
            tokens.extend([first_of(held.tokens), first_of(held.next_tokens)]);
            tokens.extend(held.holders.iter().map(|holder| u64::from(holder.fencing)));
        }
        for (request, _) in self.requests() {
            if let Request::Acquire(acquire) = request {
                tokens.insert(acquire.known_fencing);
            }
        }
        for reply in &self.down {
            match reply {
                Reply::Acquired(_, Ok(AcquireOutcome::Granted(grant))) => {
                    tokens.insert(first_of(grant.tokens));
                }
                Reply::Renewed(renewal, Ok(Renewed::Extended { tokens: block, .. }))
                    if renewal.tokens > 0 =>
                {
                    tokens.insert(first_of(*block));
                }
                Reply::Acquired(_, Ok(AcquireOutcome::Busy(busy))) => tokens.extend(busy.stamp),
                Reply::Pushed(_, pushed) => {
                    tokens.insert(first_of(pushed.grant.tokens));
                    tokens.insert(pushed.stamp);
                }
                _ => {}
            }
        }
        match self.polled.as_ref().map(|polled| &polled.arrived) {
            Some(Some(Ok(AcquireOutcome::Granted(grant)))) => {
                tokens.insert(first_of(grant.tokens));
            }
            Some(Some(Ok(AcquireOutcome::Busy(busy)))) => tokens.extend(busy.stamp),
            _ => {}
        }
        Names {
            owners,
            tokens,
            tasks,
            now: self.now,
        }
    }

    fn write_surroundings(&self, names: &Names, text: &mut impl fmt::Write) -> fmt::Result {
        let tokens = [self.server.last_token(), self.known, self.largest_taken];
        let table = &self.server.table;
        let holders = table.holders.iter();
        let holder: Vec<_> = holders
            .map(|held| {
                let owner = names.owner(held.number.unwrap_or(OTHER));
                let first = names.token(first_of(held.tokens));
                (owner, names.due(held.expires), held.permit, first)
            })
            .collect();
        let queue: Vec<_> = table
            .queue
            .iter()
            .map(|queued| (names.owner(queued.entry.number), queued.entry.ttl))
            .collect();
        let astray = self
            .astray
            .iter()
            .filter(|owner| names.owners.contains(owner));
        let astray: Vec<_> = astray.map(|owner| names.owner(*owner)).collect();
        let of_permits = self.largest_of_permits.iter();
        let of_permits: Vec<_> = of_permits
            .map(|(permit, token)| (permit, names.token(*token)))
            .collect();
        write!(
            text,
            "{:?} {of_permits:?} {holder:?} {queue:?} {astray:?} {} {} {} {} {} {:?} {:?} {:?}",
            tokens.map(|token| names.token(token)),
            table.is_shared_next,
            table.result.is_some(),
            self.has_lost_messages,
            !self.astray.is_empty(),
            self.is_closing,
            self.rounds,
            self.left,
            self.timer.map(|at| names.due(at)),
        )?;
        for task in &self.tasks {
            match task {
                Task::Away => write!(text, "A "),
                Task::Waiting { id, is_woken } => write!(text, "W{}{is_woken} ", names.task(*id)),
                Task::Holding {
                    id,
                    owner,
                    token,
                    permit,
                    valid_until,
                    has_ended,
                } => write!(
                    text,
                    "H{} {} {} {} {permit:?}{has_ended} ",
                    names.task(*id),
                    names.owner(*owner),
                    names.token(*token),
                    names.due(*valid_until)
                ),
            }?;
        }
        Ok(())
    }

    fn write_network(&self, names: &Names, text: &mut impl fmt::Write) -> fmt::Result {
        for (request, is_late) in self.requests() {
            let owner = names.owner(request.owner());
            match request {
                Request::Acquire(one) => write!(
                    text,
                    "a{owner}{is_late:?}{:?}{:?}{:?}{}{} ",
                    one.queue_mode,
                    one.ttl,
                    one.queued_ttl,
                    one.tokens,
                    names.token(one.known_fencing)
                ),
                Request::Renew(Renewal { sent, tokens, .. }, ttl) => {
                    write!(
                        text,
                        "r{owner}{tokens}{is_late:?}{ttl:?}{} ",
                        names.at(*sent)
                    )
                }
                Request::Release(_, stores) => write!(text, "x{owner}{is_late:?}{stores:?} "),
            }?;
        }
        for reply in &self.down {
            let owner = names.owner(reply.owner());
            match reply {
                Reply::Acquired(_, Ok(outcome)) => {
                    write!(text, "A{owner}{} ", outcome_text(names, outcome))
                }
                Reply::Acquired(_, Err(why)) => write!(text, "E{owner}{why:?} "),
                Reply::Renewed(renewal, result) => {
                    let (sent, wanted) = (names.at(renewal.sent), renewal.tokens);
                    match result {
                        Ok(Renewed::Extended { tokens, contended }) => {
                            let tokens = names.batch(*tokens);
                            write!(text, "R{owner}{wanted}{sent}{tokens:?}{contended:?} ")
                        }
                        other => write!(text, "R{owner}{wanted}{sent}{other:?} "),
                    }
                }
                Reply::Pushed(_, pushed) => write!(text, "m{owner}{:?} ", names.pushed(*pushed)),
                Reply::Contended(_) => write!(text, "y{owner} "),
                Reply::Done(_) => write!(text, "d{owner} "),
            }?;
        }
        if let Some(polled) = &self.polled {
            let outcome = match &polled.arrived {
                None => "-".to_owned(),
                Some(Ok(outcome)) => outcome_text(names, outcome),
                Some(Err(why)) => format!("E{why:?}"),
            };
            write!(
                text,
                "s{}{}{outcome} ",
                names.owner(polled.owner),
                names.task(polled.by)
            )?;
        }
        Ok(())
    }

    fn write_waiters(&self, names: &Names, text: &mut impl fmt::Write) -> fmt::Result {
        let Some(waiting) = &self.key.waiting else {
            return Ok(());
        };
        for (id, waiter) in waiting.queue.iter() {
            write!(
                text,
                "w{}{:?}{:?}{}{}{} ",
                names.task(id.0),
                waiter.terms.ttl,
                waiter.deadline.map(|at| names.due(at)),
                waiting.queue.impatient.contains(&id),
                waiting.queue.awake.get(&id).is_some(),
                waiter.waker.is_some()
            )?;
        }
        for id in waiting.refused.keys() {
            write!(text, "f{} ", names.task(id.0))?;
        }
        write!(
            text,
            "f{:?} ",
            waiting.acquires_from.map(|at| names.due(at))
        )
    }

    fn write_phase(&self, names: &Names, text: &mut impl fmt::Write) -> fmt::Result {
        if let Some(request) = self.key.request() {
            write!(
                text,
                "Q{} {:?} {:?} {:?} {} {} {} {} {} {} {} {} {} ",
                names.owner(request.owner),
                request.queue_mode,
                request.ttl,
                request.queued_ttl,
                request.may_hold,
                request.is_contended,
                request.is_astray,
                request.rivals as u8,
                request.failures.min(3),
                request.late_grants.min(MOST_LATE_GRANTS),
                names.token(request.known_since),
                match request.meanwhile {
                    Meanwhile::Nothing => "-".to_owned(),
                    Meanwhile::Reconnected => "r".to_owned(),
                    Meanwhile::Granted(pushed) => format!("{:?}", names.pushed(pushed)),
                },
                request.last_reply.is_some(),
            )?;
            write!(text, "{} ", names.at(request.waits_since))?;
            match &request.step {
                RequestStep::InFlight {
                    sent,
                    queue_mode,
                    before,
                    answers_up_to,
                    polled_by,
                    ..
                } => write!(
                    text,
                    "?{}{queue_mode:?}{before:?}{:?}{:?}",
                    names.at(*sent),
                    answers_up_to.map(|id| names.task(id.0)),
                    polled_by.map(|id| names.task(id.0))
                ),
                RequestStep::Waiting { until, wake_ups } => {
                    write!(text, ".{}{wake_ups:?}", names.due(*until))
                }
            }?;
        }
        for held in &self.key.leases {
            write_lease(names, held, text)?;
        }
        write!(text, " m{:?}", self.key.armed.map(|at| names.due(at)))
    }
}

fn write_lease(
    names: &Names,
    held: &ServerLease<u64, u64, u64>,
    text: &mut impl fmt::Write,
) -> fmt::Result {
    write!(
        text,
        "L{} {:?} {:?} {} {:?} {:?} {} {} {} {:?} {} {} {} ",
        names.owner(held.owner),
        held.ttl,
        held.permit,
        names.due(held.valid_until),
        names.batch(held.tokens),
        names.batch(held.next_tokens),
        held.is_prefetching,
        held.batch.passed,
        names.at(held.batch.since).max(-40),
        held.batch.contended,
        names.at(held.batch.replied_at).max(-40),
        held.batch.asks_at,
        held.is_astray,
    )?;
    match held.renewal {
        RenewalPlan::At(at) => write!(text, "@{} ", names.due(at)),
        other => write!(text, "{other:?} "),
    }?;
    if let Some(share) = &held.share {
        let unused = share.unused_until.map(|at| names.due(at));
        write!(text, "S{}{unused:?}", share.is_open)?;
    }
    for holder in held.holders.iter() {
        write!(
            text,
            "h{} {} {:?} ",
            names.task(holder.id.0),
            names.token(holder.fencing.into()),
            holder.unrenewed_until.map(|at| names.due(at))
        )?;
        match &holder.stage {
            HolderStage::Granted { until, waiter } => write!(
                text,
                "G{}{:?}",
                names.due(*until),
                waiter.deadline.map(|at| names.due(at))
            ),
            HolderStage::Accepted { .. } => write!(text, "T"),
        }?;
    }
    Ok(())
}

fn outcome_text(names: &Names, outcome: &AcquireOutcome) -> String {
    match outcome {
        AcquireOutcome::Granted(grant) => {
            let (tokens, permit) = (names.batch(grant.tokens), grant.permit);
            format!("g{tokens:?}{permit:?}{}", grant.is_contended)
        }
        AcquireOutcome::Busy(busy) => format!(
            "b{:?}{:?}{:?}",
            busy.expiry,
            busy.wake_up,
            busy.stamp.map(|stamp| names.token(stamp))
        ),
        AcquireOutcome::Done(_) => "d".to_owned(),
        AcquireOutcome::Undo => "u".to_owned(),
    }
}
