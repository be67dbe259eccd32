//! The tasks of this process that hold one server lease.

use crate::{
    engine::{few::Few, terms::HoldBounds, transition::TaskId, wait_queue::LocalWaiter},
    error::LeaseLost,
    fencing::FencingToken,
    moment::Moment,
};

#[derive(Clone, Debug)]
pub(crate) struct LocalHolder<W, L> {
    pub(crate) id: TaskId,
    pub(crate) fencing: FencingToken,
    /// The time at which a task that has stopped renewing loses its share, which is still renewed for other tasks.
    pub(crate) unrenewed_until: Option<Moment>,
    pub(crate) stage: HolderStage<W, L>,
}

#[derive(Clone, Debug)]
pub(crate) enum HolderStage<W, L> {
    /// The task was woken and has not polled yet. It loses the grant at `until`.
    Granted {
        until: Moment,
        waiter: Box<LocalWaiter<W>>,
    },
    /// The task has the lease. The bounds are empty until it begins to run under the lease.
    Accepted { lease: L, bounds: HoldBounds },
}

impl<W, L> LocalHolder<W, L> {
    /// Returns when this holder loses the lease for a reason that does not concern other holders: it has not polled, its
    /// `max_hold` has elapsed, or it has stopped renewing.
    pub(crate) fn ends_at(&self) -> Option<Moment> {
        match &self.stage {
            HolderStage::Granted { until, .. } => Some(*until),
            HolderStage::Accepted { bounds, .. } => {
                let ends = bounds.held_until.into_iter().chain(self.unrenewed_until);
                ends.min()
            }
        }
    }

    /// Returns the bounds by `max_hold` and `min_hold`, which are empty before the task has begun.
    pub(crate) fn bounds(&self) -> HoldBounds {
        match &self.stage {
            HolderStage::Granted { .. } => HoldBounds::default(),
            HolderStage::Accepted { bounds, .. } => *bounds,
        }
    }

    /// Returns the reason why a holder that has accepted the lease has lost it, while other holders may keep it.
    pub(crate) fn ends_by(&self, now: Moment) -> LeaseLost {
        if self.bounds().held_until.is_some_and(|end| end <= now) {
            LeaseLost::MaxHold
        } else {
            LeaseLost::Expired
        }
    }

    pub(crate) fn is_granted(&self) -> bool {
        matches!(self.stage, HolderStage::Granted { .. })
    }

    pub(crate) fn lease(&self) -> Option<&L> {
        match &self.stage {
            HolderStage::Accepted { lease, .. } => Some(lease),
            HolderStage::Granted { .. } => None,
        }
    }
}

/// The holders of one server lease. Only a share has more than one.
#[derive(Clone, Debug)]
pub(crate) struct LocalHolders<W, L> {
    all: Few<TaskId, LocalHolder<W, L>>,
    /// A lower bound of the end of any holder. Until `update_first_end` runs, it may be the end of a holder that has left.
    first_end: Option<Moment>,
}

impl<W, L> Default for LocalHolders<W, L> {
    fn default() -> Self {
        Self {
            all: Few::default(),
            first_end: None,
        }
    }
}

impl<W, L> LocalHolders<W, L> {
    pub(crate) fn insert(&mut self, holder: LocalHolder<W, L>) {
        self.note_end(holder.ends_at());
        self.all.insert(holder.id, holder);
    }

    pub(crate) fn remove(&mut self, id: TaskId) -> Option<LocalHolder<W, L>> {
        let removed = self.all.remove(&id)?;
        if self.all.len() <= 1 {
            self.update_first_end();
        }
        Some(removed)
    }

    pub(crate) fn get(&self, id: TaskId) -> Option<&LocalHolder<W, L>> {
        self.all.get(&id)
    }

    /// Changes a holder, and records its end, which may have changed.
    pub(crate) fn change<T>(
        &mut self,
        id: TaskId,
        change: impl FnOnce(&mut LocalHolder<W, L>) -> T,
    ) -> Option<T> {
        let holder = self.all.get_mut(&id)?;
        let changed = change(holder);
        let ends_at = holder.ends_at();
        if self.all.len() == 1 {
            self.first_end = ends_at;
        } else {
            self.note_end(ends_at);
        }
        Some(changed)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LocalHolder<W, L>> {
        self.all.iter().map(|(_, holder)| holder)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub(crate) fn into_each(self) -> impl Iterator<Item = LocalHolder<W, L>> {
        self.all.into_values()
    }

    /// Returns the earliest end, or a moment before it.
    pub(crate) fn first_end(&self) -> Option<Moment> {
        self.first_end
    }

    /// Returns the holders that have ended. This iterates over all holders, but at most once for each end that was
    /// recorded.
    pub(crate) fn ended(&mut self, now: Moment) -> Vec<TaskId> {
        if self.first_end.is_none_or(|end| now < end) {
            return Vec::new();
        }
        self.update_first_end();
        let ended = self
            .iter()
            .filter(|holder| holder.ends_at().is_some_and(|end| end <= now));
        ended.map(|holder| holder.id).collect()
    }

    fn update_first_end(&mut self) {
        self.first_end = self.iter().filter_map(LocalHolder::ends_at).min();
    }

    fn note_end(&mut self, end: Option<Moment>) {
        self.first_end = self.first_end.into_iter().chain(end).min();
    }
}
