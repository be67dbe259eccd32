//! The leases that the running task holds, so that taking one of them again succeeds at once.
//!
//! The set follows the task: through `join!` and nested calls, not into a spawned task, nor into a task of a `LocalSet` that is
//! driven inside the body. It is a list from the innermost body outwards, as short as bodies are nested.
//!
//! Calls of one key by branches of one body (`join!`) have the key in turn: a call waits for the [`Turn`] of the innermost body that
//! holds the key. A call inside a call finds the body of the outer call, which has a turn of its own, and goes on at once.

use std::{future::Future, iter, ptr, sync::Arc};

use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task,
};

use crate::{
    error::{HeldBy, LockError},
    key::{Busy, IntoLockKey, LockKey},
    lock::{hold::Leases, lease_state::LeaseState, registry::Registry},
    options::Wait,
    runtime::{clock::Moment, mutex::Mutex},
};

tokio::task_local! {
    static INNERMOST: Arc<HeldByBody>;
}

/// What one of the bodies that run holds. Guards that take a key of it again share its lease.
struct HeldByBody {
    leases: Leases,
    /// Of its keys, those that calls inside the body took again: one call at a time has the permit, first come, first served.
    turns: Mutex<Vec<(LockKey, Arc<Semaphore>)>>,
    /// The task that runs it; `None` on a thread that blocks on the body.
    task: Option<task::Id>,
    outer: Option<Arc<HeldByBody>>,
}

/// The right of a call to have a key that its body holds already. Other branches of the body wait until it is dropped.
pub(crate) struct Turn(
    #[expect(dead_code, reason = "its drop lets the next call run")] OwnedSemaphorePermit,
);

impl HeldByBody {
    fn lease_of(&self, key: &LockKey) -> Option<&Arc<LeaseState>> {
        self.leases.all().iter().find(|lease| lease.key == *key)
    }

    fn turns_of(&self, key: &LockKey) -> Arc<Semaphore> {
        let mut turns = self.turns.lock();
        if let Some((_, turns)) = turns.iter().find(|(other, _)| other == key) {
            return turns.clone();
        }
        let of_key = Arc::new(Semaphore::new(1));
        turns.push((key.clone(), of_key.clone()));
        of_key
    }
}

/// Runs `body` as one that holds the leases.
pub(crate) async fn scope<T>(leases: &Leases, body: impl Future<Output = T>) -> T {
    let held = Arc::new(HeldByBody {
        leases: leases.clone(),
        turns: Mutex::default(),
        task: task::try_id(),
        outer: innermost(),
    });
    INNERMOST.scope(held, body).await
}

/// Waits until no other branch of the running body is in a call with one of these keys, as long as the call may wait. The keys are
/// taken in the order of their bytes, so that branches with keys in common do not wait for each other in a circle.
///
/// The holder of a turn is a call under the same lease. It ends with the lease at the latest, unless it is told to continue.
///
/// # Cancel safety
///
/// Dropping the future leaves the queue, and gives back the turns that it has.
pub(crate) async fn take_turns(
    registry: &Arc<Registry>,
    keys: &[LockKey],
    wait: Wait,
    deadline: Option<Moment>,
) -> Result<Vec<Turn>, LockError> {
    let mut order: Vec<_> = keys
        .iter()
        .filter_map(|key| Some((key, turns_of(registry, key)?)))
        .collect();
    order.sort_by_key(|(key, _)| *key);
    let mut taken = Vec::with_capacity(order.len());
    for (key, turns) in order {
        let permit = match turns.clone().try_acquire_owned() {
            Err(_) if wait != Wait::No => {
                let turn = turns.acquire_owned();
                registry
                    .context
                    .by(deadline, turn)
                    .await
                    .and_then(Result::ok)
            }
            at_once => at_once.ok(),
        };
        let Some(permit) = permit else {
            let left = find(registry, key).map(|lease| lease.remaining());
            let busy = Busy {
                held_by: Some(HeldBy::ThisBody),
                ..registry.busy(key, registry.context.clock.now())
            };
            return Err(LockError::busy(key, left, busy));
        };
        taken.push(Turn(permit));
    }
    Ok(taken)
}

fn turns_of(registry: &Arc<Registry>, key: &LockKey) -> Option<Arc<Semaphore>> {
    let (_, held) = find_with_body(registry, key)?;
    Some(held.turns_of(key))
}

/// The lease by which the running task holds this key. Another manager's lease on the same key is another lock.
pub(crate) fn find(registry: &Arc<Registry>, key: &LockKey) -> Option<Arc<LeaseState>> {
    Some(find_with_body(registry, key)?.0)
}

fn find_with_body(
    registry: &Arc<Registry>,
    key: &LockKey,
) -> Option<(Arc<LeaseState>, Arc<HeldByBody>)> {
    let found = all().filter_map(|held| Some((held.lease_of(key)?.clone(), held)));
    let is_of_this =
        |lease: &LeaseState| ptr::eq(&raw const *lease.registry, Arc::as_ptr(registry));
    let mut ours = found.filter(|(lease, _)| is_of_this(lease));
    ours.next()
}

/// The leases of the innermost body.
pub(crate) fn current() -> Option<Leases> {
    innermost().map(|held| held.leases.clone())
}

/// Panics unless the running task is in a body that holds the key: for functions that rely on their caller's lock.
///
/// Takes what [`LockManager::acquire`](crate::LockManager::acquire) takes as a key. A guard without a body does not count,
/// and a lease that is lost does not either.
///
/// # Panics
///
/// If the key is not held.
///
/// ```
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), lock_core::LockError> {
/// # let manager = lock_core::LockManager::in_memory();
/// async fn write_balance(account: u64) {
///     lock_core::assert_held!(format!("account:{account}"));
///     // …
/// }
///
/// manager.run("account:7", lock_core::LockOptions::default(), |_| write_balance(7)).await?;
/// # Ok(())
/// # }
/// ```
#[macro_export]
macro_rules! assert_held {
    ($key:expr $(,)?) => {
        $crate::__private::assert_holds($key)
    };
}

/// What [`assert_held!`](crate::assert_held) expands to.
///
/// # Panics
///
/// If the key is not held.
#[track_caller]
pub fn assert_holds(key: impl IntoLockKey) {
    let key = key.into_lock_key();
    assert!(holds(&key), "the lock `{key}` is not held by this task");
}

/// Whether the running task holds this key, of whatever manager.
fn holds(key: &LockKey) -> bool {
    all().any(|held| held.lease_of(key).is_some() && held.leases.ended().is_none())
}

/// From the innermost outwards.
fn all() -> impl Iterator<Item = Arc<HeldByBody>> {
    iter::successors(innermost(), |held| held.outer.clone())
}

fn innermost() -> Option<Arc<HeldByBody>> {
    let innermost = INNERMOST.try_with(Arc::clone).ok()?;
    // A task of a `LocalSet` is polled inside the body that drives the set, and has an id of its own.
    let is_another_task = task::try_id().is_some_and(|id| innermost.task != Some(id));
    (!is_another_task).then_some(innermost)
}
