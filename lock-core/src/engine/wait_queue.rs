//! The tasks of this process that wait for one key, in the order in which they arrived.

use std::collections::BTreeSet;

use crate::{
    engine::{few::Few, terms::Terms, transition::TaskId},
    moment::Moment,
    options::Wait,
};

/// One waiting task.
#[derive(Clone, Debug)]
pub(crate) struct LocalWaiter<W> {
    pub(crate) terms: Terms,
    pub(crate) deadline: Option<Moment>,
    /// `None` after the task was woken.
    pub(crate) waker: Option<W>,
}

/// The wait queue of one key. The cost of removing a waiter from any position grows with the logarithm of their number. The
/// waiters are boxed, because a node of the map has space for eleven of them.
#[derive(Clone, Debug)]
pub(crate) struct WaitQueue<W> {
    pub(crate) awake: Few<TaskId, Box<LocalWaiter<W>>>,
    /// The waiters that were woken and have not polled since. They keep their position, but nothing is granted to them or
    /// requested for them.
    pub(crate) asleep: Few<TaskId, Box<LocalWaiter<W>>>,
    deadlines: Few<(Moment, TaskId), ()>,
    /// The waiters that leave with the next reply from the server, because their deadline has passed, or because they
    /// may not wait.
    pub(crate) impatient: BTreeSet<TaskId>,
}

impl<W> Default for WaitQueue<W> {
    fn default() -> Self {
        Self {
            awake: Few::default(),
            asleep: Few::default(),
            deadlines: Few::default(),
            impatient: BTreeSet::new(),
        }
    }
}

impl<W> WaitQueue<W> {
    pub(crate) fn insert(&mut self, id: TaskId, waiter: Box<LocalWaiter<W>>) {
        match (waiter.terms.wait, waiter.deadline) {
            (Wait::No, _) => drop(self.impatient.insert(id)),
            (_, Some(deadline)) => self.deadlines.insert((deadline, id), ()),
            (_, None) => {}
        }
        self.awake.insert(id, waiter);
    }

    pub(crate) fn remove(&mut self, id: TaskId) -> Option<Box<LocalWaiter<W>>> {
        let waiter = self.awake.remove(&id).or_else(|| self.asleep.remove(&id))?;
        self.impatient.remove(&id);
        if let Some(deadline) = waiter.deadline {
            self.deadlines.remove(&(deadline, id));
        }
        Some(waiter)
    }

    fn get(&self, id: TaskId) -> Option<&LocalWaiter<W>> {
        let waiter = self.awake.get(&id).or_else(|| self.asleep.get(&id))?;
        Some(waiter)
    }

    pub(crate) fn get_mut(&mut self, id: TaskId) -> Option<&mut LocalWaiter<W>> {
        let awake = self.awake.get_mut(&id);
        let waiter = awake.or_else(|| self.asleep.get_mut(&id))?;
        Some(waiter)
    }

    /// Returns the next waiter to be served: the first one that polls when it is woken.
    pub(crate) fn head(&self) -> Option<(TaskId, &LocalWaiter<W>)> {
        let (id, waiter) = self.awake.first()?;
        Some((*id, waiter))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.awake.is_empty() && self.asleep.is_empty()
    }

    pub(crate) fn length(&self) -> usize {
        self.awake.len() + self.asleep.len()
    }

    /// Records that the task has polled.
    pub(crate) fn mark_awake(&mut self, id: TaskId) {
        if let Some(waiter) = self.asleep.remove(&id) {
            self.awake.insert(id, waiter);
        }
    }

    /// Marks all waiters as asleep, so that nothing is granted to a waiter before it polls. Returns all their wakers.
    pub(crate) fn put_all_to_sleep(&mut self) -> Vec<W> {
        self.asleep.append(&mut self.awake);
        self.take_wakers()
    }

    pub(crate) fn take_wakers(&mut self) -> Vec<W> {
        let both = self.awake.values_mut().chain(self.asleep.values_mut());
        both.filter_map(|waiter| waiter.waker.take()).collect()
    }

    pub(crate) fn first_deadline(&self) -> Option<Moment> {
        self.deadlines.first().map(|((deadline, _), ())| *deadline)
    }

    /// Removes a deadline that has passed, and makes its waiter impatient.
    pub(crate) fn pass_deadline(&mut self, now: Moment) -> Option<TaskId> {
        let ((deadline, id), ()) = self.deadlines.first()?;
        let (deadline, id) = (*deadline, *id);
        if now < deadline {
            return None;
        }
        self.deadlines.remove(&(deadline, id));
        self.impatient.insert(id);
        Some(id)
    }

    /// Removes the impatient waiters that `which` selects.
    pub(crate) fn remove_impatient(
        &mut self,
        which: impl Fn(&LocalWaiter<W>) -> bool,
    ) -> Vec<(TaskId, Box<LocalWaiter<W>>)> {
        let is_chosen = |id: &TaskId| self.get(*id).is_some_and(&which);
        let ids: Vec<_> = self.impatient.iter().copied().filter(is_chosen).collect();
        self.remove_all(&ids)
    }

    pub(crate) fn remove_those(
        &mut self,
        which: impl Fn(&LocalWaiter<W>) -> bool,
    ) -> Vec<(TaskId, Box<LocalWaiter<W>>)> {
        let chosen = self.iter().filter(|(_, waiter)| which(waiter));
        let ids: Vec<_> = chosen.map(|(id, _)| id).collect();
        self.remove_all(&ids)
    }

    /// Removes the waiters that arrived no later than this one.
    pub(crate) fn remove_up_to(
        &mut self,
        last: Option<TaskId>,
    ) -> Vec<(TaskId, Box<LocalWaiter<W>>)> {
        let ids = self.iter().map(|(id, _)| id);
        let ids: Vec<_> = ids.filter(|id| Some(*id) <= last).collect();
        self.remove_all(&ids)
    }

    /// Returns the waiters that are awake, in order of arrival.
    pub(crate) fn those_awake(&self, which: impl Fn(&LocalWaiter<W>) -> bool) -> Vec<TaskId> {
        let chosen = self.awake.iter().filter(|(_, waiter)| which(waiter));
        chosen.map(|(id, _)| *id).collect()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (TaskId, &LocalWaiter<W>)> {
        let both = self.awake.iter().chain(self.asleep.iter());
        both.map(|(id, waiter)| (*id, &**waiter))
    }

    fn remove_all(&mut self, ids: &[TaskId]) -> Vec<(TaskId, Box<LocalWaiter<W>>)> {
        let removed = ids.iter().filter_map(|id| Some((*id, self.remove(*id)?)));
        removed.collect()
    }
}
