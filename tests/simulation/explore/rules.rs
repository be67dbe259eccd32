//! The rules that must hold after each call.

use super::{
    server_view::{Lock, Queued, Request, ServerView},
    state::{At, Kind, Process, State},
};
use crate::model::Reply;

/// A call of a script.
#[derive(Clone, Copy)]
pub(super) enum Call {
    Acquire { by: usize, is_newcomer: bool },
    Release,
    Renew,
}

/// The messages that a call sends.
#[derive(Default)]
pub(super) struct Deliveries {
    /// The fencing tokens of the grants.
    pub(super) tokens: Vec<i64>,
    /// The processes that are asked to yield.
    pub(super) to_yield: Vec<usize>,
}

/// The kind of the last phase.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Last {
    #[default]
    None,
    Exclusive,
    Shared,
    Permits,
    /// The lock was held by a request that did not queue, while others waited.
    Past,
}

/// The phases so far.
#[derive(Clone, Debug, Default)]
pub(super) struct History {
    last: Last,
    /// Set while the last phase is shared and an exclusive request waits. Shared requests before the cut belong to the phase.
    pub(super) cut: Option<i64>,
    /// Set after a request took the lock without queueing. The beats may then contain the cut of an earlier phase, left there by an
    /// exclusive hand-over.
    has_stale_cut: bool,
    /// Set if any release declared few keys. Such a release leaves it to the next check of a shared request that it may enter.
    pub(super) released_with_few_keys: bool,
    /// The largest fencing token.
    pub(super) largest: i64,
}

/// The numbers of phases for which a request has waited, and their bounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Waited {
    exclusive: u8,
    shared: u8,
    most_exclusive: u8,
    most_shared: u8,
}

impl History {
    pub(super) fn canonical(&self) -> impl std::fmt::Debug + use<> {
        (
            self.last,
            self.cut.is_some(),
            self.has_stale_cut,
            self.released_with_few_keys,
        )
    }

    /// Records that a client that does not queue has taken or released the lock.
    pub(super) fn past_the_queue(&mut self, before: &ServerView, after: &ServerView) {
        self.has_stale_cut |= before.cut.is_some();
        if after.lock != Lock::Free {
            let last = if before.queue.is_empty() {
                Last::Exclusive
            } else {
                Last::Past
            };
            self.last = last;
            self.cut = None;
        } else if !before.queue.is_empty() {
            self.last = Last::Past;
        }
    }
}

/// Removes the bounds for the current waiters.
pub(super) fn excuse_all(processes: &mut [Process]) {
    for process in processes {
        process.waited = None;
    }
}

/// A call, and its effects.
pub(super) struct Effects<'a> {
    pub(super) call: Call,
    pub(super) reply: &'a Reply,
    pub(super) before: ServerView,
    pub(super) after: ServerView,
    pub(super) deliveries: Deliveries,
}

pub(super) fn check(state: &mut State, effects: &Effects<'_>) -> Result<(), String> {
    let Effects { before, after, .. } = effects;
    let granted: Vec<Request> = after
        .all_holders()
        .into_iter()
        .filter(|request| !before.holds(*request))
        .collect();
    let was_shared = state.history.last == Last::Shared;
    let result = representation(after)
        .and_then(|()| no_run_while_a_result_is_stored(state, effects, &granted))
        .and_then(|()| no_barging(effects, &granted))
        .and_then(|()| first_come_first_served(effects, &granted))
        .and_then(|()| match phases_alternate(state, effects, &granted) {
            Err(_) if state.history.released_with_few_keys => Ok(()),
            result => result,
        })
        .and_then(|()| permits(state, effects, &granted))
        .and_then(|()| tokens(state, effects))
        .and_then(|()| nothing_is_left_waiting(state, effects))
        .and_then(|()| holders_are_notified(state, effects));
    if let Err(violation) = result {
        return Err(format!("{violation}\nbefore {before:?}\nafter {after:?}"));
    }
    for (process, number) in &granted {
        let process = &mut state.processes[*process];
        if process.number == *number {
            process.waited = None;
        }
    }
    match count_phases(state, effects, was_shared) {
        Err(_) if state.history.released_with_few_keys => Ok(()),
        result => result,
    }
}

/// I3: no body of a run once is granted the lock while a result is stored. I2: no result replaces another one.
fn no_run_while_a_result_is_stored(
    state: &State,
    Effects { before, after, .. }: &Effects<'_>,
    granted: &[Request],
) -> Result<(), String> {
    let runs = |(process, _): &&Request| state.processes[*process].kind == Kind::Once;
    if let (Some(_), Some(request)) = (&after.result, granted.iter().find(runs)) {
        return Err(format!(
            "I3: {request:?} is granted although a result is stored"
        ));
    }
    if before.result.is_some() && before.result != after.result {
        return Err("I2: a result is replaced".to_owned());
    }
    Ok(())
}

/// Checks that the marker, the sets of holders and permits, and the cut are consistent.
fn representation(after: &ServerView) -> Result<(), String> {
    let is_non_exclusive = matches!(after.lock, Lock::Shared(_) | Lock::Permits);
    if is_non_exclusive && (after.holders.is_empty() || !after.has_first_member) {
        return Err("a marker without holders".to_owned());
    }
    if after.lock == Lock::Permits {
        let mut counted: Vec<Request> = after.permits.iter().map(|(request, _)| *request).collect();
        let mut holders = after.holders.clone();
        counted.sort_unstable();
        holders.sort_unstable();
        if counted != holders {
            return Err("permits and holders differ".to_owned());
        }
    }
    Ok(())
}

/// S2: a newcomer enters directly only if no request waits any more.
fn no_barging(
    Effects {
        call,
        before,
        after,
        ..
    }: &Effects<'_>,
    granted: &[Request],
) -> Result<(), String> {
    let Call::Acquire {
        by,
        is_newcomer: true,
    } = call
    else {
        return Ok(());
    };
    let entered = granted.iter().find(|(process, _)| process == by);
    let is_overtaking =
        entered.is_some_and(|own| before.queued(*own).is_none() && !after.queue.is_empty());
    if is_overtaking {
        return Err(format!("S2: process {by} overtook the queue"));
    }
    Ok(())
}

fn first_come_first_served(
    Effects { before, after, .. }: &Effects<'_>,
    granted: &[Request],
) -> Result<(), String> {
    for request in granted {
        let Some(entered) = before.queued(*request) else {
            continue;
        };
        let overtaken = after.queue.iter().find(|queued| {
            queued.is_shared == entered.is_shared
                && queued.place < entered.place
                && before.queued(queued.request).is_some()
        });
        if let Some(overtaken) = overtaken {
            return Err(format!("{request:?} overtook {:?}", overtaken.request));
        }
    }
    Ok(())
}

/// Returns the requests that wait both before a call and after it.
fn still<'a>(
    before: &'a ServerView,
    after: &'a ServerView,
) -> impl Iterator<Item = &'a Queued> + use<'a> {
    let queue = after.queue.iter();
    queue.filter(|queued| !queued.is_silent && before.queued(queued.request).is_some())
}

/// S3: requests after its cut do not enter a shared phase, and the waiting shared requests follow an exclusive phase.
fn phases_alternate(
    state: &mut State,
    Effects { before, after, .. }: &Effects<'_>,
    granted: &[Request],
) -> Result<(), String> {
    let now = state.now;
    let history = &mut state.history;
    let waits = after.queue.iter().any(|queued| !queued.is_shared);
    let is_old = |queued: &Queued| !queued.is_shared && before.queued(queued.request).is_some();
    let is_exclusive = matches!(after.lock, Lock::Exclusive(_));
    if !is_exclusive && !after.queue.iter().any(is_old) {
        // The exclusive requests that caused the cut have left, or were removed as silent, before a newcomer came.
        history.cut = None;
    }
    match &after.lock {
        Lock::Shared(token) => {
            let is_new = before.lock != Lock::Shared(*token);
            if history.last == Last::Shared {
                for request in granted {
                    let place = match before.queued(*request) {
                        Some(queued) => queued.place,
                        // The request returns to its place, or is new.
                        None => Some(state.processes[request.0].place)
                            .filter(|place| *place > 0)
                            .unwrap_or(now),
                    };
                    if history.cut.is_some_and(|cut| place >= cut) {
                        return Err(format!("S3: {request:?} entered after the cut"));
                    }
                }
            } else if is_new {
                history.cut = waits.then_some(now);
            }
            if history.cut.is_none() {
                history.cut = waits.then_some(now);
            }
            history.last = Last::Shared;
        }
        Lock::Exclusive(_) if before.lock != after.lock => {
            let overtaken = still(before, after).find(|queued| {
                queued.is_shared
                    && match history.last {
                        Last::Exclusive => true,
                        Last::Shared => history.cut.is_some_and(|cut| queued.place < cut),
                        _ => false,
                    }
            });
            if let Some(overtaken) = overtaken {
                return Err(format!(
                    "S3: the shared {:?} should have come first",
                    overtaken.request
                ));
            }
            history.last = Last::Exclusive;
            history.cut = None;
        }
        Lock::Permits => history.last = Last::Permits,
        _ => {}
    }
    history.has_stale_cut &= after.cut.is_some();
    let is_given = is_exclusive && before.lock != after.lock;
    if after.cut.is_some() && is_given && !history.has_stale_cut {
        return Err("a cut while an exclusive lock is granted".to_owned());
    }
    Ok(())
}

fn permits(
    state: &State,
    Effects { before, after, .. }: &Effects<'_>,
    granted: &[Request],
) -> Result<(), String> {
    if after.lock != Lock::Permits {
        return Ok(());
    }
    let mut taken: Vec<i64> = after.permits.iter().map(|(_, permit)| *permit).collect();
    taken.sort_unstable();
    if taken.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(format!("a permit is held twice: {taken:?}"));
    }
    // In the order of entry: by place, with the calling process last.
    let mut entered = granted.to_vec();
    entered.sort_by_key(|request| before.queued(*request).map_or(i64::MAX, |it| it.place));
    let permit_of = |request: &Request| {
        let permit = after.permits.iter().find(|(other, _)| other == request);
        permit.map(|(_, permit)| *permit)
    };
    let mut held: Vec<i64> = after
        .holders
        .iter()
        .filter(|holder| !granted.contains(holder))
        .filter_map(permit_of)
        .collect();
    for request in &entered {
        let Kind::Permits(n) = state.processes[request.0].kind else {
            return Err("not a request for a permit".to_owned());
        };
        let permit = permit_of(request).expect("it is a holder");
        let count = i64::try_from(held.len()).expect("a few");
        let lowest = (0..=count).find(|permit| !held.contains(permit));
        if count >= n || permit >= n || Some(permit) != lowest {
            return Err(format!(
                "{request:?}, for one of {n}, got permit {permit} while others hold {held:?}"
            ));
        }
        held.push(permit);
    }
    Ok(())
}

/// S5: the tokens of exclusive requests and of permits grow, and a shared phase has one token.
fn tokens(state: &mut State, effects: &Effects<'_>) -> Result<(), String> {
    let Effects { before, after, .. } = effects;
    let deliveries = &effects.deliveries;
    let largest = state.history.largest;
    let mut given = Vec::new();
    match &after.lock {
        Lock::Shared(token) => {
            if before.lock != after.lock {
                given.push(*token);
            }
            if deliveries.tokens.iter().any(|other| other != token) {
                return Err(format!(
                    "S5: other tokens than {token}: {:?}",
                    deliveries.tokens
                ));
            }
        }
        Lock::Free | Lock::Foreign(_) => {}
        Lock::Exclusive(_) | Lock::Permits => {
            if let Reply::Array(words) = effects.reply
                && let [Reply::Int(1), Reply::Int(token), Reply::Int(_), ..] = &words[..]
            {
                given.push(*token);
            }
            given.extend(&deliveries.tokens);
        }
    }
    if let Some(token) = given.iter().find(|token| **token <= largest) {
        return Err(format!(
            "S5: the fencing token {token} is not larger than {largest}"
        ));
    }
    let new_exclusive =
        matches!(after.lock, Lock::Exclusive(_)) && after.lock != before.lock && given.is_empty();
    if new_exclusive {
        return Err("S5: an exclusive lock without a new fencing token".to_owned());
    }
    state.history.largest = given.into_iter().max().unwrap_or(0).max(largest);
    Ok(())
}

/// Checks that a call that releases the lock or leaves the queue lets in the requests that may enter now.
fn nothing_is_left_waiting(
    state: &State,
    Effects { call, after, .. }: &Effects<'_>,
) -> Result<(), String> {
    if !matches!(call, Call::Release) || state.scripts.is_in_parts || state.had_few_keys {
        return Ok(());
    }
    let is_there =
        |queued: &&Queued| !queued.is_silent && state.processes[queued.request.0].at != At::Gone;
    let mut alive = after.queue.iter().filter(is_there);
    let waits_for_exclusive = after.queue.iter().any(|queued| !queued.is_shared);
    let left = match after.lock {
        Lock::Free => alive.next(),
        Lock::Shared(_) if !waits_for_exclusive => alive.next(),
        Lock::Permits => alive.next().filter(|queued| {
            let count = i64::try_from(after.holders.len()).expect("a few");
            queued.permits.is_some_and(|n| count < n)
                && after.queue.first().is_some_and(|first| first == *queued)
        }),
        _ => None,
    };
    match left {
        Some(queued) => Err(format!("{:?} was left waiting", queued.request)),
        None => Ok(()),
    }
}

/// Checks that the first exclusive waiter asks all holders of a shared phase to yield.
fn holders_are_notified(state: &State, effects: &Effects<'_>) -> Result<(), String> {
    let Effects { before, after, .. } = effects;
    let (Call::Acquire { by, .. }, Lock::Shared(_)) = (&effects.call, &after.lock) else {
        return Ok(());
    };
    let own = state.request(*by);
    let first = after.queue.iter().find(|queued| !queued.is_shared);
    if first.is_none_or(|first| first.request != own) || after.holds(own) {
        return Ok(());
    }
    let unnotified = after.holders.iter().find(|holder| {
        before.holds(**holder)
            && state.processes[holder.0].at != At::Gone
            && !effects.deliveries.to_yield.contains(&holder.0)
    });
    match unnotified {
        // With batches, notifying a part of the holders is enough.
        Some(holder) if !state.scripts.is_in_parts && !state.had_few_keys => {
            Err(format!("{holder:?} was not asked to yield"))
        }
        _ => Ok(()),
    }
}

/// S4: a shared request waits for at most one phase of each kind. An exclusive request waits for earlier exclusive requests, and
/// for the shared phases between them.
fn count_phases(
    state: &mut State,
    Effects { before, after, .. }: &Effects<'_>,
    was_shared: bool,
) -> Result<(), String> {
    let is_new_exclusive = matches!(after.lock, Lock::Exclusive(_)) && before.lock != after.lock;
    let is_new_shared = matches!(after.lock, Lock::Shared(_))
        && !matches!(before.lock, Lock::Shared(_))
        // After the first part of a batch has ended, the rest of the batch belongs to the same phase.
        && !was_shared;
    let cut = state.history.cut;
    let mut ahead = 0;
    let is_back =
        |queued: &Queued| before.queued(queued.request).is_none() && queued.place != state.now;
    if after.queue.iter().any(is_back) {
        // A request that was removed as silent keeps its place, and overtakes others when it returns.
        excuse_all(&mut state.processes);
    }
    for queued in &after.queue {
        let (process, number) = queued.request;
        let process = &mut state.processes[process];
        let is_current =
            process.number == number && matches!(process.at, At::Waiting | At::Unknown);
        if before.queued(queued.request).is_none() {
            let (exclusive, shared) = match after.lock {
                Lock::Exclusive(_) => (1, 0),
                Lock::Shared(_) => (0, 1),
                _ => (0, 0),
            };
            if is_current && !process.was_silent {
                process.waited = Some(Waited {
                    exclusive,
                    shared,
                    most_exclusive: if queued.is_shared {
                        1
                    } else {
                        ahead + exclusive
                    },
                    most_shared: if queued.is_shared {
                        1
                    } else {
                        ahead + exclusive + 1
                    },
                });
            }
        } else if let Some(waited) = &mut process.waited
            && is_current
        {
            waited.exclusive += u8::from(is_new_exclusive);
            let is_without_it = !queued.is_shared || cut.is_some_and(|cut| queued.place >= cut);
            waited.shared += u8::from(is_new_shared && is_without_it);
            if waited.exclusive > waited.most_exclusive || waited.shared > waited.most_shared {
                return Err(format!(
                    "S4: {:?} waits too long: {waited:?}",
                    queued.request
                ));
            }
        }
        ahead += u8::from(!queued.is_shared);
    }
    Ok(())
}
