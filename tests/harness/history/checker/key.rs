//! The state of one key: its possible holders, its latest tokens, and the time since which attempts wait in vain.

use std::{collections::BTreeMap, time::Duration};

use super::{Case, Invariant, Windows, longest_calm};
use crate::{
    history::{Event, Moment, Step, Window},
    locking::Mode,
};

/// How long tokens are remembered, to find a repeated token and the process that had it before.
const TOKENS_KEPT: Duration = Duration::from_secs(60);

/// The largest tokens that were returned. Tokens grow for each permit by itself, since holders of other permits are not replaced.
pub(super) type Floors = BTreeMap<Option<u16>, u64>;

#[derive(Debug, Default)]
pub(super) struct Key {
    // The grants without a known end, and the ended grants that may still be found to overlap with one of them.
    open: Vec<Grant>,
    closed: Vec<Grant>,
    // For each token, the process that got it, when it was returned, and the mode.
    tokens: BTreeMap<u64, (u32, Moment, Mode)>,
    largest: Floors,
    // Separate from `others`, since neither of the two may starve.
    shared: Demand,
    others: Demand,
    last_event: Option<Moment>,
    // For a private key: when an attempt ended that may have left the lock on the server for a ttl, because something was broken
    // during the attempt or just before.
    left_behind: Option<Moment>,
}

/// The attempts to lock a key in shared mode, or those in the other modes.
#[derive(Debug, Default)]
struct Demand {
    wanting: u64,
    unserved_since: Option<Moment>,
    // Set if the open gap has been reported.
    is_reported: bool,
}

/// The time that reconnecting may take after a fault is healed.
const RECONNECTED: Duration = Duration::from_secs(2);

#[derive(Debug, Clone)]
pub(super) struct Grant {
    pub(super) from: Moment,
    pub(super) valid_until: Moment,
    /// `None` while it is not known.
    pub(super) to: Option<Moment>,
    pub(super) token: u64,
    pub(super) mode: Mode,
    pub(super) permit: Option<u16>,
    pub(super) process: u32,
    pub(super) attempt: u64,
    pub(super) called: Moment,
}

impl Key {
    pub(super) fn largest_returned(&self) -> Floors {
        self.largest.clone()
    }

    #[cfg(test)]
    pub(super) fn kept(&self) -> usize {
        self.open.len() + self.closed.len() + self.tokens.len()
    }

    pub(super) fn wanted(&mut self, mode: Mode, at: Moment) {
        self.last_event = Some(at);
        let demand = self.demand(mode);
        demand.wanting += 1;
        demand.unserved_since.get_or_insert(at);
    }

    fn demand(&mut self, mode: Mode) -> &mut Demand {
        match mode {
            Mode::Shared => &mut self.shared,
            Mode::Exclusive | Mode::Permits(_) => &mut self.others,
        }
    }

    pub(super) fn granted(&mut self, grant: Grant, floors: &Floors, case: &mut Case<'_>) {
        self.judge_token(&grant, floors, case);
        if let Mode::Permits(permits) = grant.mode
            && grant.permit.is_none_or(|permit| permit >= permits)
        {
            let text = format!("{grant} has none of the {permits} permits");
            case.tally.report(Invariant::Exclusion, text);
        }
        let known_as = (grant.process, grant.from, grant.mode);
        self.tokens.insert(grant.token, known_as);
        let largest = self.largest.entry(grant.permit).or_default();
        *largest = grant.token.max(*largest);
        self.open.push(grant);
    }

    fn judge_token(&self, grant: &Grant, floors: &Floors, case: &mut Case<'_>) {
        let is_shared = grant.mode == Mode::Shared;
        if let Some((process, at, mode)) = self.tokens.get(&grant.token)
            && !(is_shared && *mode == Mode::Shared)
        {
            let mut windows = case.windows.other_clocks.iter();
            let is_excused = *process != grant.process
                && windows.any(|window| window.from <= *at && grant.from <= window.to);
            if !is_excused {
                let text = format!("{grant} has the token that process {process} got at {at}");
                case.tally.report(Invariant::GrowingTokens, text);
            }
            return;
        }
        let held = Window {
            from: grant.from,
            to: grant.valid_until,
        };
        let larger = self.largest.get(&grant.permit);
        let larger = larger.filter(|&&larger| larger > grant.token);
        if let Some(larger) = larger
            && grant.valid_until > grant.from
            && !case.is_excused(held)
        {
            // A lease that is still valid when it is returned is later than all leases that were returned before.
            let text = format!("{grant} was returned after {larger}, with a valid lease");
            case.tally.report(Invariant::GrowingTokens, text);
            return;
        }
        let floor = floors.get(&grant.permit);
        let Some(floor) = floor.filter(|&&floor| floor > grant.token) else {
            return;
        };
        let mut before = self.tokens.range(..grant.token);
        let before = before.next_back();
        // The process passes a lease that the server has lost among its own tasks, with a prefetched token.
        let is_handed_over = before.is_some_and(|(_, (process, ..))| *process == grant.process);
        // A process keeps a share until it learns that it is lost.
        if !((is_handed_over || is_shared) && case.is_excused(held)) {
            let text = format!("{grant} was called after {floor} had been returned");
            case.tally.report(Invariant::GrowingTokens, text);
        }
    }

    /// Judges a refusal by the store, which must take every holder of a valid lease.
    pub(super) fn refused(&self, event: &Event, case: &mut Case<'_>) {
        let attempt = (event.process, event.attempt);
        let mut open = self.open.iter();
        let Some(grant) = open.find(|grant| (grant.process, grant.attempt) == attempt) else {
            return;
        };
        let held = Window {
            from: grant.from,
            to: event.at,
        };
        if !case.is_excused(held) {
            let text = format!("{grant} was refused at {}, with a valid lease", event.at);
            case.tally.report(Invariant::FencedStore, text);
        }
    }

    /// Judges the end of a hold. A killed process counts as a holder until the first validity of its lease ends, since it has
    /// recorded no later one.
    pub(super) fn ended(&mut self, event: &Event, case: &mut Case<'_>) {
        let place = self
            .open
            .iter()
            .position(|grant| (grant.process, grant.attempt) == (event.process, event.attempt));
        let Some(place) = place else { return };
        let mut grant = self.open.swap_remove(place);
        let end = match event.step {
            Step::ReleaseCalled { valid_until } if valid_until > event.at => event.at,
            // The hold has ended before, at an unknown time, usually because the lease was lost.
            Step::ReleaseCalled { .. } | Step::Lost => event.at.min(grant.valid_until),
            _ => grant.valid_until,
        };
        grant.to = Some(end);
        let lost = case.windows.wiped.iter().find(|wiped| {
            wiped.key.as_ref().is_none_or(|key| *key == event.key)
                && grant.from < wiped.window.from
                && wiped.window.to.after(case.requirements.ttl) < end
        });
        if let Some(wiped) = lost {
            let since = wiped.window.from;
            let text = format!("{grant} relied on a lock that the servers had lost since {since}");
            case.tally.report(Invariant::Exclusion, text);
        }
        for other in &self.closed {
            let Some(until) = other.to else { continue };
            let overlaps = other.from < end && grant.from < until;
            let both = Window {
                from: other.from.max(grant.from),
                to: until.min(end),
            };
            if overlaps && !grant.is_compatible_with(other) && !case.is_excused(both) {
                let text = format!("{other} and {grant} held it at the same time");
                case.tally.report(Invariant::Exclusion, text);
            }
        }
        self.note_faults(event.at, case.windows);
        if let Step::ReleaseCalled { .. } = event.step {
            self.note_success(&grant, event.at, case.windows);
        }
        self.closed.push(grant);
        self.last_event = Some(event.at);
    }

    pub(super) fn served(&mut self, mode: Mode, at: Moment, case: &mut Case<'_>) {
        self.demand(mode).end_one();
        self.close_gap(mode, at, case);
    }

    pub(super) fn gave_up(&mut self, mode: Mode, at: Moment, case: &mut Case<'_>) {
        let is_last = self.demand(mode).end_one();
        self.note_faults(at, case.windows);
        if is_last {
            self.close_gap(mode, at, case);
        }
    }

    /// Records the end of an attempt during which, or just before which, something was broken.
    fn note_faults(&mut self, at: Moment, windows: &Windows) {
        let since = self.others.unserved_since.unwrap_or(at);
        let mut faults = windows.faults.iter().map(|fault| Window {
            from: fault.from,
            to: fault.to.after(RECONNECTED),
        });
        if faults.any(|fault| fault.touches(since, at)) {
            self.left_behind = Some(at);
        }
    }

    /// Records a success without a fault, which shows that no earlier attempt left the lock behind.
    fn note_success(&mut self, grant: &Grant, at: Moment, windows: &Windows) {
        let mut faults = windows.faults.iter();
        if !faults.any(|fault| fault.touches(grant.called, at)) {
            self.left_behind = None;
        }
    }

    fn close_gap(&mut self, mode: Mode, at: Moment, case: &mut Case<'_>) {
        self.last_event = Some(at);
        let left_behind = self.left_behind;
        let demand = self.demand(mode);
        demand.look_at_open_gap(left_behind, at, case);
        if let Some(since) = demand.unserved_since.take() {
            let is_broken = case
                .windows
                .faults
                .iter()
                .any(|fault| fault.touches(since, at));
            case.tally.gap(at.since(since), is_broken);
        }
        demand.is_reported = false;
        if demand.wanting > 0 {
            demand.unserved_since = Some(at);
        }
    }

    pub(super) fn look_at_open_gaps(&mut self, until: Moment, case: &mut Case<'_>) {
        for demand in [&mut self.shared, &mut self.others] {
            demand.look_at_open_gap(self.left_behind, until, case);
        }
    }

    pub(super) fn forget(&mut self, judged: Moment) {
        let oldest = self.open.iter().map(|grant| grant.from).min();
        let oldest = oldest.map_or(judged, |oldest| oldest.min(judged));
        self.closed
            .retain(|grant| grant.to.is_none_or(|to| to > oldest));
        self.tokens
            .retain(|_, (_, at, _)| judged.since(*at) < TOKENS_KEPT);
    }

    pub(super) fn is_silent_for(&self, span: Duration, judged: Moment) -> bool {
        let wanting = self.shared.wanting + self.others.wanting;
        let is_idle = wanting == 0 && self.open.is_empty();
        is_idle && self.last_event.is_none_or(|at| judged.since(at) > span)
    }
}

impl Demand {
    /// Removes one attempt. Returns whether it was the last.
    fn end_one(&mut self) -> bool {
        self.wanting = self.wanting.saturating_sub(1);
        self.wanting == 0
    }

    fn look_at_open_gap(
        &mut self,
        left_behind: Option<Moment>,
        until: Moment,
        case: &mut Case<'_>,
    ) {
        let Some(since) = self.unserved_since.filter(|_| !self.is_reported) else {
            return;
        };
        let calm = if case.requirements.is_private {
            let is_excused = left_behind.is_some_and(|at| since <= at.after(case.requirements.ttl))
                || case
                    .windows
                    .faults
                    .iter()
                    .any(|fault| fault.touches(since, until));
            if is_excused {
                return;
            }
            until.since(since)
        } else {
            longest_calm(since, until, &case.windows.faults)
        };
        if calm > case.requirements.service {
            self.is_reported = true;
            let text = format!(
                "{} was not granted since {since}, of which nothing was broken for {calm:.2?}; noticed at {until}, while {} waited",
                case.key, self.wanting
            );
            case.tally.report(Invariant::Service, text);
        }
    }
}

impl Grant {
    /// Returns whether both may hold the lock at the same time: in one shared phase, or with different permits.
    fn is_compatible_with(&self, other: &Self) -> bool {
        match (self.mode, other.mode) {
            (Mode::Shared, Mode::Shared) => self.token == other.token,
            (Mode::Permits(_), Mode::Permits(_)) => self.permit != other.permit,
            _ => false,
        }
    }
}

impl Case<'_> {
    /// Returns whether exclusion is not promised at some time of a hold: in a window, or within a ttl after it. A holder relies
    /// on a lease that the servers lost in a window until its validity ends, unless the servers report the loss before.
    fn is_excused(&self, held: Window) -> bool {
        let mut windows = self.windows.excuses.iter().map(|window| Window {
            from: window.from,
            to: window.to.after(self.requirements.ttl),
        });
        windows.any(|window| window.touches(held.from, held.to))
    }
}

impl std::fmt::Display for Grant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            from,
            valid_until,
            to,
            token,
            mode,
            permit,
            process,
            attempt,
            called,
        } = self;
        write!(
            f,
            "attempt {attempt} of process {process} ({mode:?} {permit:?}, token {token}, called {called}, acquired {from}, first valid until \
             {valid_until}"
        )?;
        match to {
            Some(to) => write!(f, ", held until {to})"),
            None => f.write_str(")"),
        }
    }
}
