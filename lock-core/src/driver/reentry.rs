//! The leases that the running task holds, so that taking one of them again succeeds at once.
//!
//! The set follows the task, through `join!` and nested calls. It does not follow into a spawned task, nor into a task of a
//! `LocalSet` that is driven inside the body. It is a list from the innermost body outwards, as short as bodies are nested.
//!
//! Calls of one key by branches of one body (`join!`) have the key in turn. A call waits for the [turn](Turns) of the innermost
//! body that holds the key. A call inside a call finds the body of the outer call, which has a turn of its own, and continues at
//! once.
//!
//! A call for the key in shared mode needs only a part of the turn. Such calls run together, and not beside a call that asks for
//! the key exclusively. From then on its own body holds the key shared, even under an exclusive lease. An exclusive call inside
//! that body is refused: if its sibling did the same, each would wait for the other's part. So no call waits under a shared lease.
//!
//! Guards take no turn: a guard and then a call in the same branch would wait for itself. Rejected: to admit an exclusive call
//! under a shared call where the lease is exclusive. It would run beside its shared siblings.

use std::{
    cell::Cell,
    future::{Future, poll_fn},
    iter, mem,
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
    error::{HeldBy, KnownHolder, LockError},
    key::LockKey,
    mode::Mode,
    options::Wait,
    runtime::mutex::Mutex,
};

tokio::task_local! {
    static INNERMOST: Innermost;
}

/// The innermost body that is being polled.
struct Innermost {
    body: Arc<HeldByBody>,
    /// The task that polls the body now; `None` on a thread that blocks on the body. It is not always the task that polled it first:
    /// a future can be moved between two polls.
    task: Cell<Option<task::Id>>,
}

/// What one running body holds. Guards that take one of its keys again share the lease.
struct HeldByBody {
    leases: Leases,
    /// Those of its keys that the body took again in shared mode. The body holds these only shared, whatever the mode of the lease.
    shared: Vec<LockKey>,
    /// Those of its keys that calls inside the body took again. The calls get [`PARTS`] of the turn in the order in which they ask.
    turns: Mutex<Vec<(LockKey, Arc<Semaphore>)>>,
    outer: Option<Arc<HeldByBody>>,
}

/// The parts of a turn. An exclusive call takes them all, a shared one takes one. As many as a semaphore can give out at once.
const PARTS: u32 = u32::MAX >> 3;

/// The right of a call to have the keys that its body holds already. Other branches of the body wait until it is dropped.
#[derive(Default)]
pub(crate) struct Turns {
    /// Their drop lets the next calls run.
    held: Vec<OwnedSemaphorePermit>,
    /// The keys that the call takes shared, for its body.
    shared: Vec<LockKey>,
}

impl HeldByBody {
    fn lease_of(&self, key: &LockKey) -> Option<&Arc<LeaseState>> {
        self.leases.all().iter().find(|lease| lease.key == *key)
    }

    fn turns_of(&self, key: &LockKey) -> Arc<Semaphore> {
        let mut turns = self.turns.lock();
        if let Some((_, turns)) = turns.iter().find(|(other, _)| other == key) {
            return turns.clone();
        }
        let of_key = Arc::new(Semaphore::new(PARTS as usize));
        turns.push((key.clone(), of_key.clone()));
        of_key
    }

    /// The mode in which calls inside the body hold the key of this lease.
    fn mode_of(&self, lease: &LeaseState) -> Mode {
        if self.shared.contains(&lease.key) {
            Mode::Shared
        } else {
            lease.mode
        }
    }

    /// Whether the bodies outside of this one are those of a caller in another task.
    fn is_boundary(&self) -> bool {
        self.leases.all().is_empty()
    }
}

/// Runs `body` as one that holds the leases. It holds the shared keys of the turns only shared, whatever the mode of the lease.
// No `async fn`, which would store the body twice.
pub(crate) fn scope<T>(
    leases: &Leases,
    turns: &mut Turns,
    body: impl Future<Output = T>,
) -> impl Future<Output = T> {
    let shared = mem::take(&mut turns.shared);
    scope_in(innermost(), leases.clone(), shared, body)
}

/// Makes a task for the running task, which waits for it.
// No `async fn`: the bodies of the caller are noted by this call, and not by the first poll.
pub(crate) fn task_of_caller<T>(task: impl Future<Output = T>) -> impl Future<Output = T> {
    let caller = innermost();
    async move {
        match caller {
            Some(outer) => scope_in(Some(outer), Leases::None, Vec::new(), task).await,
            None => task.await,
        }
    }
}

async fn scope_in<T>(
    outer: Option<Arc<HeldByBody>>,
    leases: Leases,
    shared: Vec<LockKey>,
    body: impl Future<Output = T>,
) -> T {
    let innermost = Innermost {
        body: Arc::new(HeldByBody {
            leases,
            shared,
            turns: Mutex::default(),
            outer,
        }),
        task: Cell::new(None),
    };
    let mut body = pin!(body);
    let body = poll_fn(|context| {
        INNERMOST.with(|innermost| innermost.task.set(task::try_id()));
        body.as_mut().poll(context)
    });
    INNERMOST.scope(innermost, body).await
}

/// Waits, as long as the call may, until no other branch of the running body is in a call with one of these keys. Shared calls do
/// not wait for shared ones. Turns are acquired in the order of the bytes of their keys: branches with keys in common then do not
/// wait for each other in a circle.
///
/// If the body does not hold all of the keys, this does not wait. The keys are then waited for, or refused, as without a body.
///
/// The holder of a turn is a call under the same lease. That call ends with the lease at the latest, unless it is to continue.
///
/// # Cancel safety
///
/// Dropping the future leaves the queue, and releases the turns that the call has.
pub(crate) async fn acquire_turns(
    registry: &Arc<Registry>,
    keys: &[(LockKey, Mode)],
    wait: Wait,
) -> Result<Turns, LockError> {
    let mut order = Vec::new();
    for (key, wanted) in keys {
        let Some((lease, body)) = find_with_body(registry, key, *wanted)? else {
            return Ok(Turns::default());
        };
        order.push((key, *wanted == Mode::Shared, body.turns_of(key), lease));
    }
    order.sort_by_key(|(key, ..)| *key);
    // In a box, so that a call outside of a body stays small.
    Box::pin(async move {
        let deadline = deadline(wait, registry.context.clock.now());
        let mut acquired = Turns::default();
        for (key, is_shared, turns, lease) in order {
            let parts = if is_shared { 1 } else { PARTS };
            let permit = match turns.clone().try_acquire_many_owned(parts) {
                Err(_) if wait != Wait::No => {
                    let turn = turns.acquire_many_owned(parts);
                    let turn = registry.context.by(deadline, turn).await;
                    turn.and_then(Result::ok)
                }
                at_once => at_once.ok(),
            };
            let Some(permit) = permit else {
                let details = KnownHolder {
                    held_by: Some(HeldBy::ThisBody),
                    ..registry.keys.busy(key, registry.context.clock.now())
                };
                return Err(LockError::busy(key, Some(lease.remaining()), details));
            };
            acquired.held.push(permit);
            acquired.shared.extend(is_shared.then(|| key.clone()));
        }
        Ok(acquired)
    })
    .await
}

/// The lease by which the running task holds this key, for a call that asks for the key in this mode. Another manager's lease on the
/// same key is another lock.
pub(crate) fn find(
    registry: &Arc<Registry>,
    key: &LockKey,
    wanted: Mode,
) -> Result<Option<Arc<LeaseState>>, LockError> {
    let found = find_with_body(registry, key, wanted)?;
    Ok(found.map(|(lease, _)| lease))
}

/// A lease, and the innermost body that holds it.
type Found = (Arc<LeaseState>, Arc<HeldByBody>);

/// The lease and the innermost body by which the running task holds this key, for a call that asks for the key in this mode. Fails if
/// the mode does not allow it, or if the key is held by the caller of the task.
fn find_with_body(
    registry: &Arc<Registry>,
    key: &LockKey,
    wanted: Mode,
) -> Result<Option<Found>, LockError> {
    let mut is_callers = false;
    for held in chain() {
        is_callers |= held.is_boundary();
        let lease = held.lease_of(key).cloned();
        let Some(lease) = lease.filter(|lease| Arc::ptr_eq(&lease.context, &registry.context))
        else {
            continue;
        };
        if !is_callers {
            check_mode(held.mode_of(&lease), wanted).map_err(|error| error.about(key))?;
            return Ok(Some((lease, held)));
        }
        if lease.ended().is_none() {
            let reason = "a caller holds the key, and waits for this body, which `on_drop = finish` runs as a task of its own: each would \
                          wait for the other. Give one of the two another key, or write `on_drop = cancel`";
            return Err(LockError::invalid(reason).about(key));
        }
    }
    Ok(None)
}

/// Whether a task that holds a key in one mode may acquire it again in another.
fn check_mode(held: Mode, wanted: Mode) -> Result<(), LockError> {
    let reason = match (held, wanted) {
        (Mode::Exclusive | Mode::Once, Mode::Exclusive | Mode::Shared)
        | (Mode::Shared, Mode::Shared)
        | (Mode::Permits(_), Mode::Permits(_)) => return Ok(()),
        (Mode::Shared, Mode::Exclusive) => {
            "this task holds the key shared, and asks for it exclusively: it would wait for its own share without end. Take it \
             exclusively in the outer call, or end the outer call before this one"
                .to_owned()
        }
        (_, Mode::Once) => {
            "this task holds the key, and asks to run a body once under it: it would wait for itself without end. Call the function \
             outside of the body, or give it a key of its own"
                .to_owned()
        }
        (Mode::Permits(_), _) | (_, Mode::Permits(_)) => format!(
            "this task holds the key {held}, and asks for it {wanted}: a key is locked either with permits or without. Name the \
             same mode in both calls, or use another key for one of them"
        ),
    };
    Err(LockError::invalid(reason))
}

/// A key that the running task holds by this registry, by a body or a guard, other than those that it wants now. The error of a busy
/// lock names it.
pub(crate) fn held_beside(
    registry: &Arc<Registry>,
    is_wanted: impl Fn(&LockKey) -> bool,
) -> Option<LockKey> {
    let by_body = all().find_map(|held| {
        let ours = |lease: &&Arc<LeaseState>| Arc::ptr_eq(&lease.context, &registry.context);
        let mut others = held.leases.all().iter().filter(ours);
        let other = others.find(|lease| !is_wanted(&lease.key))?;
        held.leases.ended().is_none().then(|| other.key.clone())
    });
    by_body.or_else(|| registry.keys.held_beside(is_wanted))
}

/// The leases of the innermost body.
pub(crate) fn current() -> Option<Leases> {
    all().next().map(|held| held.leases.clone())
}

/// Whether the running task holds this key, by a lease of any manager.
pub(crate) fn holds(key: &LockKey) -> bool {
    all().any(|held| held.lease_of(key).is_some() && held.leases.ended().is_none())
}

/// The bodies that the running task is in, from the innermost outwards.
fn all() -> impl Iterator<Item = Arc<HeldByBody>> {
    chain().take_while(|held| !held.is_boundary())
}

/// The same, and behind a boundary those of the caller.
fn chain() -> impl Iterator<Item = Arc<HeldByBody>> {
    iter::successors(innermost(), |held| held.outer.clone())
}

fn innermost() -> Option<Arc<HeldByBody>> {
    let innermost = INNERMOST.try_with(|innermost| {
        // A task of a `LocalSet` is polled inside the body that drives the set, and has an id of its own.
        let is_another_task = task::try_id().is_some_and(|id| innermost.task.get() != Some(id));
        (!is_another_task).then(|| innermost.body.clone())
    });
    innermost.ok().flatten()
}
