//! What must hold in every state.

use super::{
    server::{OTHER, Reply, Request},
    world::{Found, Task, World},
};
use crate::lock::key_state::{
    Phase, TaskId,
    request::RequestStep,
    server_lease::{HolderStage, RenewalPlan},
};

fn must(holds: bool, otherwise: &str) -> Found {
    if holds {
        Ok(())
    } else {
        Err(otherwise.to_owned())
    }
}

impl World {
    pub(super) fn check(&self) -> Found {
        self.check_holders()?;
        self.check_timer()?;
        self.check_waiters()?;
        self.check_phase()?;
        self.check_that_nothing_stays()
    }

    fn check_holders(&self) -> Found {
        let holds = |task: &&Task| matches!(task, Task::Holding { valid_until, has_ended: false, .. } if self.now < *valid_until);
        let inside = self.tasks.iter().filter(holds).count();
        let elsewhere = matches!(self.server.holder, Some((OTHER, at)) if self.now < at);
        must(inside + usize::from(elsewhere) <= 1, "two holders")?;
        // What a task holds is in the state, which plans for it, or has ended.
        self.tasks.iter().filter(holds).try_for_each(|task| {
            let Task::Holding { id, .. } = task else {
                return Ok(());
            };
            must(
                self.has_taken(TaskId(*id)),
                "a holder that is not planned for",
            )
        })
    }

    fn has_taken(&self, id: TaskId) -> bool {
        let Phase::Held(held) = &self.key.phase else {
            return false;
        };
        let mut holders = held.holders.iter();
        holders.any(|holder| holder.id == id && matches!(holder.stage, HolderStage::Taken { .. }))
    }

    fn check_timer(&self) -> Found {
        let Some(due) = self.key.due() else {
            return Ok(());
        };
        let is_armed = self.timer.is_some_and(|timer| timer <= due);
        must(is_armed, "something is due, and no timer is set")
    }

    fn is_alive(&self, one: TaskId) -> bool {
        self.tasks.iter().any(|task| {
            matches!(task, Task::Waiting { id, .. } | Task::Holding { id, .. } if *id == one.0)
        })
    }

    fn is_going_to_poll(&self, one: TaskId) -> bool {
        let woken =
            |task: &Task| matches!(task, Task::Waiting { id, is_woken: true } if *id == one.0);
        self.tasks.iter().any(woken)
    }

    fn check_waiters(&self) -> Found {
        for (id, waiter) in self.key.queue.iter() {
            must(self.is_alive(id), "a waiter that is gone")?;
            let can_be_woken = waiter.waker.is_some() || self.is_going_to_poll(id);
            must(can_be_woken, "a waiter without a waker")?;
        }
        for id in self.key.queue.asleep.keys() {
            must(
                self.is_going_to_poll(*id),
                "a sleeping waiter that was not woken",
            )?;
        }
        for id in self.key.refused.keys() {
            must(
                self.is_going_to_poll(*id),
                "a refusal that nothing delivers",
            )?;
        }
        Ok(())
    }

    /// Whether a request of this kind is in flight, or its reply.
    fn is_in_flight(
        &self,
        owner: u64,
        request: impl Fn(&Request) -> bool,
        reply: impl Fn(&Reply) -> bool,
    ) -> bool {
        let mut up = self.up.iter();
        let mut down = self.down.iter();
        up.any(|one| one.owner() == owner && request(one))
            || down.any(|one| one.owner() == owner && reply(one))
    }

    fn check_phase(&self) -> Found {
        match &self.key.phase {
            Phase::Idle => must(
                !self.key.queue.has_head(),
                "a waiter for which nothing is asked",
            ),
            Phase::Acquiring(request) => match request.step {
                RequestStep::Asking { .. } => {
                    let owner = request.owner;
                    let has_arrived = self
                        .polled
                        .as_ref()
                        .is_some_and(|polled| polled.owner == owner && polled.arrived.is_some());
                    let is_in_flight = self.is_in_flight(
                        owner,
                        |one| matches!(one, Request::Acquire(_)),
                        |one| matches!(one, Reply::Acquired(..)),
                    );
                    must(
                        is_in_flight || has_arrived,
                        "a request that is not in flight",
                    )
                }
                RequestStep::Confirming { .. } => {
                    let is_in_flight = self.is_in_flight(
                        request.owner,
                        |one| matches!(one, Request::Confirm(_)),
                        |one| matches!(one, Reply::Confirmed(..)),
                    );
                    must(is_in_flight, "a confirmation that is not in flight")
                }
                RequestStep::Waiting { .. } => {
                    must(self.key.queue.has_head(), "a request for no waiter")
                }
            },
            Phase::Held(held) => {
                let is_fetching = self.is_in_flight(
                    held.owner,
                    |one| matches!(one, Request::Prefetch(_)),
                    |one| matches!(one, Reply::Prefetched(..)),
                );
                let is_renewing = self.is_in_flight(
                    held.owner,
                    |one| matches!(one, Request::Renew(..)),
                    |one| matches!(one, Reply::Renewed(..)),
                );
                must(
                    !held.holders.is_empty() || is_fetching,
                    "a lease of no task",
                )?;
                must(
                    held.prefetch.is_none() || is_fetching,
                    "a prefetch that is not in flight",
                )?;
                let is_planned = held.renewal != RenewalPlan::InFlight || is_renewing;
                must(is_planned, "a renewal that is not in flight")?;
                held.holders.iter().try_for_each(|holder| {
                    must(self.is_alive(holder.id), "held for a task that is gone")
                })
            }
        }
    }

    fn check_that_nothing_stays(&self) -> Found {
        let is_quiet = self.up.is_empty()
            && self.down.is_empty()
            && self.late.is_empty()
            && self.tasks.iter().all(|task| matches!(task, Task::Away));
        if !is_quiet {
            return Ok(());
        }
        must(self.key.is_over(), "something is left in the state")?;
        must(self.timer.is_none(), "a timer is left")?;
        must(self.polled.is_none(), "a request is left")?;
        if !self.astray.is_empty() {
            return Ok(());
        }
        let holder = self.server.holder.filter(|(holder, _)| *holder != OTHER);
        must(holder.is_none(), "the lock is left on the server")?;
        let mut entries = self.server.queue.iter();
        must(
            entries.all(|one| *one == OTHER),
            "an entry is left in the queue",
        )
    }
}
