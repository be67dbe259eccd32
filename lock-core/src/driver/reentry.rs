//! Reentry: a body that acquires a key that it already holds gets the same lease at once.
//!
//! The held leases follow the task through `join!` and nested calls, but not into a spawned task, nor into a task of a
//! `LocalSet` that is driven inside the body. They form a list from the innermost body outwards, which is as long as the
//! bodies are nested.
//!
//! If several branches of one body (`join!`) call for a key that the body holds, they take turns. Each call waits for its
//! [turn](Turn) in the innermost body that holds the key. A call inside such a call finds the body of the outer call, which
//! has separate turns, and continues at once.
//!
//! A call in shared mode needs only a part of the turn. Such calls run together, but never together with an exclusive call.
//! The call's own body then holds the key only shared, even under an exclusive lease. An exclusive call inside that body is
//! refused: if a sibling did the same, each would wait for the other's part. Therefore no exclusive call waits under a
//! shared one.
//!
//! Guards take no turn, because a branch that takes a guard and then makes a call would wait for itself. Rejected:
//! admitting an exclusive call inside a shared one if the lease is exclusive, since it would run at the same time as its
//! shared siblings.

use std::{
    collections::BTreeMap,
    future::{Future, poll_fn},
    iter,
    pin::pin,
    sync::Arc,
};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task,
};

use crate::{
    driver::{hold::Leases, lease_state::LeaseState, registry::Registry},
    engine::terms::deadline,
    error::{HeldBy, LockError},
    key::LockKey,
    mode::Mode,
    options::Wait,
    runtime::mutex::Mutex,
};

tokio::task_local! {
    /// The innermost body that is being polled, and the task that polls it now, or `None` on a thread that blocks on the
    /// body. A future can move to another task between two polls, so the task is set at each poll.
    static INNERMOST: (Arc<HeldByBody>, Option<task::Id>);
}

/// The keys that one running body holds. Guards that acquire one of them again share the lease.
pub(crate) struct HeldByBody {
    /// `None` for a task that its caller waits for. The outer bodies are then those of the caller.
    leases: Leases,
    /// The keys that the body's call acquired again in shared mode. The body holds these only shared, whatever the lease's
    /// mode.
    shared: Vec<LockKey>,
    /// The turns of the keys that calls inside the body acquired again, which are taken in the order in which the calls
    /// ask.
    turns: Mutex<BTreeMap<LockKey, Arc<Semaphore>>>,
    outer: Option<Arc<HeldByBody>>,
}

/// The number of parts of a turn. An exclusive call takes all of them, a shared call takes one. This is the largest
/// capacity of a semaphore on a 32-bit platform, and fits into the `u32` of one request.
const PARTS: u32 = u32::MAX >> 3;

/// The right of a call to use a key that its body already holds: the turn of that key, or one part of it. Other branches of
/// the body wait until it is dropped.
pub(crate) type Turn = (LockKey, OwnedSemaphorePermit);

impl HeldByBody {
    /// Returns the leases of this manager. Another manager's lease on an equal key belongs to another lock.
    fn leases_of(&self, registry: &Registry) -> impl Iterator<Item = &Arc<LeaseState>> {
        let is_ours = |lease: &&Arc<LeaseState>| Arc::ptr_eq(&lease.context, &registry.context);
        self.leases.all().iter().filter(is_ours)
    }

    fn turns_of(&self, key: &LockKey) -> Arc<Semaphore> {
        let new = || Arc::new(Semaphore::new(PARTS as usize));
        let mut turns = self.turns.lock();
        turns.entry(key.clone()).or_insert_with(new).clone()
    }
}

/// Runs `body` as one that holds the leases. If the call has a shared turn of a key, the body holds that key only shared,
/// whatever the mode of the lease. Without leases, the body is a task that the running one waits for.
// Not an `async fn`, because the caller's enclosing bodies must be captured by this call, and not by the first poll.
pub(crate) fn scope<T>(
    leases: Leases,
    turns: &[Turn],
    body: impl Future<Output = T>,
) -> impl Future<Output = T> {
    let shared = turns.iter().filter(|(_, turn)| turn.num_permits() == 1);
    let held = Arc::new(HeldByBody {
        leases,
        shared: shared.map(|(key, _)| key.clone()).collect(),
        turns: Mutex::default(),
        outer: innermost(),
    });
    async move {
        let mut body = pin!(body);
        poll_fn(|context| {
            let innermost = (held.clone(), task::try_id());
            INNERMOST.sync_scope(innermost, || body.as_mut().poll(context))
        })
        .await
    }
}

/// Waits, for as long as the call may, until no other branch of the running body is in a call with one of these keys.
/// Shared calls do not wait for shared ones. Turns are acquired in the order of the bytes of their keys, which prevents
/// deadlocks between branches that have keys in common.
///
/// If the body does not hold all of the keys, this returns at once. The keys are then acquired or refused as without a
/// body.
///
/// The holder of a turn is a call under the same lease. That call ends with the lease at the latest, unless it continues
/// after a loss.
///
/// # Cancel safety
///
/// Dropping the future leaves the queue, and releases the turns that the call already has.
pub(crate) async fn acquire_turns(
    registry: &Arc<Registry>,
    keys: &[(LockKey, Mode)],
    wait: Wait,
) -> Result<Vec<Turn>, LockError> {
    let mut order = BTreeMap::new();
    for (key, wanted) in keys {
        let Some((lease, body)) = find(registry, key, *wanted)? else {
            return Ok(Vec::new());
        };
        let parts = if *wanted == Mode::Shared { 1 } else { PARTS };
        order.insert(key, (parts, body.turns_of(key), lease));
    }
    // Boxed, so that the future of a call outside of a body stays small.
    Box::pin(async move {
        let deadline = deadline(wait, registry.context.clock.now());
        let mut acquired = Vec::new();
        for (key, (parts, turns, lease)) in order {
            let turn = if wait == Wait::No {
                turns.try_acquire_many_owned(parts).ok()
            } else {
                let turn = turns.acquire_many_owned(parts);
                let turn = registry.context.by(deadline, turn).await;
                turn.and_then(Result::ok)
            };
            let Some(turn) = turn else {
                let mut details = registry.keys.busy(key, registry.context.clock.now());
                details.held_by = Some(HeldBy::ThisBody);
                return Err(LockError::busy(key, Some(lease.remaining()), details));
            };
            acquired.push((key.clone(), turn));
        }
        Ok(acquired)
    })
    .await
}

/// A lease, and the innermost body that holds it.
pub(crate) type Found = (Arc<LeaseState>, Arc<HeldByBody>);

/// Returns the lease by which the running task holds this key, and the innermost body that holds it. Fails if a call may
/// not ask for the key in the mode `wanted`, or if the key is held by a caller that waits for this task.
pub(crate) fn find(
    registry: &Registry,
    key: &LockKey,
    wanted: Mode,
) -> Result<Option<Found>, LockError> {
    let lease_of = |body: &HeldByBody| {
        let mut leases = body.leases_of(registry);
        leases.find(|lease| lease.key == *key).cloned()
    };
    if let Some((lease, body)) = all().find_map(|body| Some((lease_of(&body)?, body))) {
        let is_shared = body.shared.contains(key);
        let held = if is_shared { Mode::Shared } else { lease.mode };
        check_mode(held, wanted).map_err(|error| error.about(key))?;
        return Ok(Some((lease, body)));
    }
    let mut callers = chain().filter_map(|body| lease_of(&body));
    if callers.any(|lease| lease.ended().is_none()) {
        let reason = "a caller holds the key and waits for this body, which `on_drop = finish` runs in a task of its own, so \
                      each would wait for the other: give one of the two another key, or write `on_drop = cancel`";
        return Err(LockError::invalid(reason).about(key));
    }
    Ok(None)
}

/// Checks whether a task that holds a key in one mode may acquire it again in another.
fn check_mode(held: Mode, wanted: Mode) -> Result<(), LockError> {
    let reason = match (held, wanted) {
        (Mode::Exclusive | Mode::Once, Mode::Exclusive | Mode::Shared)
        | (Mode::Shared, Mode::Shared)
        | (Mode::Permits(_), Mode::Permits(_)) => return Ok(()),
        (Mode::Shared, Mode::Exclusive) => {
            "it would wait for its own share forever. Acquire it exclusively in the outer call, or end the outer call before \
             this one"
        }
        (_, Mode::Once) => {
            "it would wait for itself forever. Call the function outside of the body, or give it a key of its own"
        }
        (Mode::Permits(_), _) | (_, Mode::Permits(_)) => {
            "a key is locked either with permits or without. Use the same mode in both calls, or another key for one of them"
        }
    };
    Err(LockError::invalid(format!(
        "this task holds the key {held}, but asks for it {wanted}: {reason}"
    )))
}

/// Returns a key of this registry that the running task holds, by a body or a guard, other than those that it wants now.
/// The error of a busy lock names that key.
pub(crate) fn also_held(
    registry: &Registry,
    is_wanted: impl Fn(&LockKey) -> bool,
) -> Option<LockKey> {
    let mut held = all().filter(|body| body.leases.ended().is_none());
    let by_body = held.find_map(|body| {
        let mut keys = body.leases_of(registry).map(|lease| &lease.key);
        keys.find(|key| !is_wanted(key)).cloned()
    });
    by_body.or_else(|| registry.keys.also_held(is_wanted))
}

/// Returns the leases of the innermost body.
pub(crate) fn current() -> Option<Leases> {
    all().next().map(|body| body.leases.clone())
}

/// Returns `true` if the running task holds this key, by a lease of any manager.
pub(crate) fn holds(key: &LockKey) -> bool {
    let mut held = all().filter(|body| body.leases.ended().is_none());
    held.any(|body| body.leases.all().iter().any(|lease| lease.key == *key))
}

/// Returns the bodies in which the task runs, from the innermost outwards.
fn all() -> impl Iterator<Item = Arc<HeldByBody>> {
    chain().take_while(|body| !matches!(body.leases, Leases::None))
}

/// Like [`all`], followed by the bodies of the caller that waits for this task.
fn chain() -> impl Iterator<Item = Arc<HeldByBody>> {
    iter::successors(innermost(), |body| body.outer.clone())
}

fn innermost() -> Option<Arc<HeldByBody>> {
    let (body, task) = INNERMOST.try_with(Clone::clone).ok()?;
    // A task of a `LocalSet` is polled inside the body that drives the set, but has its own id.
    let is_this_task = task::try_id().is_none_or(|id| task == Some(id));
    is_this_task.then_some(body)
}
