//! The hold, which owns the leases of one guard.

use std::{
    future::{Future, poll_fn},
    mem,
    pin::pin,
    slice,
    sync::Arc,
    task::Poll,
    time::Duration,
};

use crate::{
    backend::RunResult,
    driver::{lease_state::LeaseState, registry::Registry},
    engine::{event::Event, transition::unasked_result},
    error::{LeaseLost, LockError},
    runtime::together::together,
    telemetry::{self, WatchedWait},
};

/// The leases of the keys that were acquired together, in the order in which the keys were written. If one is lost, all are
/// lost. `None` occurs only in a hold that gave its leases up, and at the beginning of a task.
#[derive(Clone)]
pub(crate) enum Leases {
    None,
    One(Arc<LeaseState>),
    Several(Arc<[Arc<LeaseState>]>),
}

/// A guard that is dropped unused within this time was probably dropped by mistake.
const AT_ONCE: Duration = Duration::from_millis(1);

/// The result of a wait.
pub(crate) enum Admission {
    /// The lock is held.
    Held(Hold),
    /// The body that was to run once has already run. This is its result.
    Done(Arc<[u8]>),
}

impl Admission {
    /// Returns the hold. Fails if a request that is not for a run was answered with a result.
    pub(crate) fn into_hold(self) -> Result<Hold, LockError> {
        match self {
            Self::Held(hold) => Ok(hold),
            Self::Done(_) => Err(unasked_result()),
        }
    }
}

/// Owns the leases of one guard, or its share of leases that were re-entered.
pub(crate) struct Hold {
    registry: Arc<Registry>,
    leases: Leases,
}

impl Leases {
    pub(crate) fn all(&self) -> &[Arc<LeaseState>] {
        match self {
            Self::None => &[],
            Self::One(lease) => slice::from_ref(lease),
            Self::Several(leases) => leases,
        }
    }

    pub(crate) fn first(&self) -> &Arc<LeaseState> {
        &self.all()[0]
    }

    /// Ties the leases together: if one is lost, all are lost.
    fn tied(leases: Arc<[Arc<LeaseState>]>) -> Self {
        for lease in &*leases {
            lease.tie(&leases);
        }
        Self::Several(leases)
    }

    /// Returns a lease that has ended, and how. A lease that ended by itself takes precedence over one that ended because
    /// of another.
    pub(crate) fn ended(&self) -> Option<(&LeaseState, LeaseLost)> {
        let mut with_another = None;
        for lease in self.all() {
            match lease.ended() {
                None => {}
                Some(LeaseLost::OtherKey) => with_another = Some((&**lease, LeaseLost::OtherKey)),
                Some(reason) => return Some((lease, reason)),
            }
        }
        with_another
    }

    /// Fails with the loss, if there is one.
    pub(crate) fn check(&self) -> Result<(), LockError> {
        match self.ended() {
            None => Ok(()),
            Some((lease, reason)) => Err(lease.lost_error(reason)),
        }
    }

    /// Waits until one of the leases has ended, and returns how.
    pub(crate) async fn lost(&self) -> LeaseLost {
        let [one] = self.all() else {
            return self.one_is_lost().await;
        };
        one.lost().await
    }

    async fn one_is_lost(&self) -> LeaseLost {
        let all = self.all().iter();
        let mut each: Vec<_> = all.map(|lease| Box::pin(lease.lost())).collect();
        let reason = poll_fn(|context| {
            each.iter_mut()
                .map(|lost| lost.as_mut().poll(context))
                .find(Poll::is_ready)
                .unwrap_or(Poll::Pending)
        })
        .await;
        self.ended().map_or(reason, |(_, reason)| reason)
    }

    /// Returns the time until the first of the leases ends.
    pub(crate) fn remaining(&self) -> Duration {
        let each = self.all().iter().map(|lease| lease.remaining());
        each.min().unwrap_or_default()
    }

    /// Like `remaining`, but does not record that a lease has ended. Used by the simulation.
    #[cfg(feature = "simulation")]
    pub(crate) fn certain_for(&self) -> Duration {
        let each = self.all().iter().map(|lease| lease.certain_for());
        each.min().unwrap_or_default()
    }
}

impl Hold {
    /// Creates the hold of a task that has just accepted its grant.
    pub(crate) fn first(registry: &Arc<Registry>, lease: Arc<LeaseState>) -> Self {
        Self {
            registry: registry.clone(),
            leases: Leases::One(lease),
        }
    }

    /// Combines several holds that have one lease each. Afterwards the caller must check whether a lease was lost before.
    pub(crate) fn joined(registry: &Arc<Registry>, holds: Vec<Self>) -> Self {
        // The combined hold takes over the share of each hold.
        let each = holds.into_iter().map(Self::into_leases);
        let leases = each.flat_map(|leases| leases.all().to_vec());
        Self {
            registry: registry.clone(),
            leases: Leases::tied(leases.collect()),
        }
    }

    /// Shares these leases with their guard. Returns `None` if one of them is no longer held.
    pub(crate) fn again(registry: &Arc<Registry>, leases: Vec<Arc<LeaseState>>) -> Option<Self> {
        let count = leases.len();
        let joined = leases.into_iter().take_while(|lease| lease.join());
        let hold = Self {
            registry: registry.clone(),
            leases: Leases::Several(joined.collect()),
        };
        (hold.leases.all().len() == count).then_some(hold)
    }

    pub(crate) fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Lets telemetry report the hold.
    pub(crate) fn watch(&self, wait: WatchedWait) {
        let lease = self.leases.first();
        lease.watch(wait.granted(lease.fencing));
    }

    /// Records that the task now has all the leases that it needs, and begins to run under them.
    pub(crate) fn begin(&self) {
        for lease in self.leases.all() {
            if let Some(bounds) = lease.begin() {
                let begin = Event::Begin(lease.id, bounds);
                self.registry.event(&lease.key, lease.kind(), begin);
            }
        }
    }

    /// Gives up the leases without releasing them.
    fn into_leases(mut self) -> Leases {
        mem::replace(&mut self.leases, Leases::None)
    }

    /// Releases the leases that no other guard shares, all at the same time, and waits for the replies. Dropping the future
    /// leaves the releases in flight.
    ///
    /// The release also stores the `result` of a run, which has only one lease.
    pub(crate) fn release(
        mut self,
        result: Option<RunResult>,
    ) -> impl Future<Output = Result<(), LockError>> {
        let one = match mem::replace(&mut self.leases, Leases::None) {
            Leases::One(lease) => Ok(self.registry.release(&lease, result)),
            // Boxed, so that the future of a single release stays small.
            several => Err(Box::pin(release_all(self.registry.clone(), several))),
        };
        async move {
            match one {
                Ok(Some(releasing)) => releasing.await,
                Ok(None) => Ok(()),
                Err(all) => all.await,
            }
        }
    }
}

impl Drop for Hold {
    /// Never blocks: the manager's executor finishes the releases, even if the user's runtime is gone or shutting down.
    fn drop(&mut self) {
        let first = self.leases.all().first();
        // Without a subscriber to events of this level, this is a single check.
        let at_once =
            first.filter(|lease| telemetry::details_are_logged() && lease.ends_unseen(AT_ONCE));
        for lease in self.leases.all() {
            drop(self.registry.release(lease, None));
        }
        if let Some(lease) = at_once {
            telemetry::released_at_once(&lease.key);
        }
    }
}

async fn release_all(registry: Arc<Registry>, leases: Leases) -> Result<(), LockError> {
    // Checked before the release, because the error must name the key that was lost, and not one that was lost with it.
    let mut result = leases.check();
    let each = leases.all().iter();
    let releasing = each.filter_map(|lease| registry.release(lease, None));
    for released in together(releasing).await {
        note(&mut result, released);
    }
    result
}

/// Keeps the result that matters most to the caller: a loss, or else the first failure.
fn note(result: &mut Result<(), LockError>, other: Result<(), LockError>) {
    let is_loss = |result: &Result<(), LockError>| matches!(result, Err(LockError::Lost { .. }));
    if result.is_ok() || (is_loss(&other) && !is_loss(result)) {
        *result = other;
    }
}

/// Runs a body while its leases are held. Fails with the loss if one of them ends first.
///
/// The clock is read before each poll of the body, so a process that was paused beyond the end of its lease takes no
/// further step. A plain `select!` would poll the body first in half of the cases. A pause in the middle of a step remains
/// possible, and only a fencing token can make it harmless.
pub(crate) async fn while_held<T>(
    leases: &Leases,
    body: impl Future<Output = T>,
) -> Result<T, LockError> {
    let mut body = pin!(body);
    let mut lost = pin!(leases.lost());
    poll_fn(|context| {
        // This check reads the clock at each poll, which `lost` does only at its first poll and after a signal.
        leases.check()?;
        if lost.as_mut().poll(context).is_ready() {
            leases.check()?;
        }
        body.as_mut().poll(context).map(Ok)
    })
    .await
}
