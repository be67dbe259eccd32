//! The invariants that must hold in every state.

use crate::{
    backend::memory::lock_table::EntryHolder,
    engine::{
        local_holders::HolderStage,
        model::{
            canonical::first_of,
            server::{OTHER, Reply, Request},
            world::{Found, Task, World},
        },
        request::RequestStep,
        server_lease::{RenewalPlan, ServerLease},
        transition::TaskId,
    },
    mode::Mode,
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
        self.check_request()?;
        self.check_leases()?;
        self.check_that_nothing_stays()
    }

    fn check_holders(&self) -> Found {
        let holds = |task: &&Task| matches!(task, Task::Holding { valid_until, has_ended: false, .. } if self.now < *valid_until);
        let inside = self.tasks.iter().filter(holds).count();
        let elsewhere = usize::from(self.server.has(OTHER));
        let may_be = match self.left.mode {
            Mode::Exclusive | Mode::Once => inside + elsewhere <= 1,
            Mode::Shared => inside == 0 || elsewhere == 0,
            Mode::Permits(permits) => inside + elsewhere <= usize::from(permits),
        };
        must(may_be, "two holders")?;
        let has_result = self.server.table.result.is_some();
        must(
            !has_result || inside == 0,
            "a body runs although there is a result",
        )?;
        self.tasks.iter().filter(holds).try_for_each(|task| {
            let Task::Holding {
                owner,
                token,
                permit,
                ..
            } = task
            else {
                return Ok(());
            };
            let is_known = |held: &EntryHolder| {
                permit.is_none_or(|permit| permit == held.permit) && first_of(held.tokens) <= *token
            };
            must(
                self.server.held(*owner).is_some_and(is_known),
                "a lease that the server does not know, or knows with another permit or an older token",
            )
        })?;
        // The state must know each lease that a task holds, unless the lease has ended.
        self.tasks.iter().filter(holds).try_for_each(|task| {
            let Task::Holding { id, .. } = task else {
                return Ok(());
            };
            must(
                self.has_taken(TaskId(*id)),
                "the state does not know a holder",
            )
        })
    }

    fn has_taken(&self, id: TaskId) -> bool {
        let mut holders = self.key.leases.iter().flat_map(|held| held.holders.iter());
        holders
            .any(|holder| holder.id == id && matches!(holder.stage, HolderStage::Accepted { .. }))
    }

    fn check_timer(&self) -> Found {
        let Some(due) = self.key.due() else {
            return Ok(());
        };
        let is_armed = self.timer.is_some_and(|timer| timer <= due);
        must(is_armed, "no timer is set although something will be due")
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
        let Some(waiting) = &self.key.waiting else {
            return Ok(());
        };
        for (id, waiter) in waiting.queue.iter() {
            must(self.is_alive(id), "a waiter whose task is gone")?;
            let can_be_woken = waiter.waker.is_some() || self.is_going_to_poll(id);
            must(can_be_woken, "a waiter that nothing can wake")?;
        }
        for (id, _) in waiting.queue.asleep.iter() {
            must(
                self.is_going_to_poll(*id),
                "a sleeping waiter that was not woken",
            )?;
        }
        for id in waiting.refused.keys() {
            must(
                self.is_going_to_poll(*id),
                "a refusal that is never delivered",
            )?;
        }
        Ok(())
    }

    /// Returns `true` if a request of this kind or its reply is in flight.
    fn is_in_flight(
        &self,
        owner: u64,
        request: impl Fn(&Request) -> bool,
        reply: impl Fn(&Reply) -> bool,
    ) -> bool {
        let mut up = self.up.iter();
        let mut down = self.down.iter();
        up.any(|one| one.is_awaited && one.request.owner() == owner && request(&one.request))
            || down.any(|one| one.owner() == owner && reply(one))
    }

    fn check_request(&self) -> Found {
        let Some(request) = self.key.request() else {
            let is_planned = match self.left.mode {
                Mode::Exclusive | Mode::Once => !self.key.leases.is_empty(),
                Mode::Shared | Mode::Permits(_) => false,
            };
            return must(
                self.key.head().is_none() || is_planned,
                "a waiter for which nothing is requested",
            );
        };
        let is_alone = !self.left.mode.is_alone() || self.key.leases.is_empty();
        must(is_alone, "a request next to an exclusive lease")?;
        match request.step {
            RequestStep::InFlight { .. } => {
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
                    "a request counts as in flight, but is not",
                )
            }
            RequestStep::Waiting { .. } => {
                must(self.key.head().is_some(), "a request without a waiter")
            }
        }
    }

    fn check_leases(&self) -> Found {
        let count = self.key.leases.len();
        must(
            !self.left.mode.is_alone() || count <= 1,
            "two exclusive leases",
        )?;
        self.key
            .leases
            .iter()
            .try_for_each(|held| self.check_lease(held))
    }

    fn check_lease(&self, held: &ServerLease<u64, u64, u64>) -> Found {
        let is_fetching = self.is_in_flight(
            held.owner,
            |one| matches!(one, Request::Renew(renewal, _) if renewal.tokens > 0),
            |one| matches!(one, Reply::Renewed(renewal, _) if renewal.tokens > 0),
        );
        let is_renewing = self.is_in_flight(
            held.owner,
            |one| matches!(one, Request::Renew(renewal, _) if renewal.tokens == 0),
            |one| matches!(one, Reply::Renewed(renewal, _) if renewal.tokens == 0),
        );
        let holders = held.holders.iter().count();
        let is_kept = held.share.is_some_and(|share| share.unused_until.is_some());
        let is_used = match self.left.mode {
            Mode::Exclusive => holders == 1 || (holders == 0 && is_fetching),
            Mode::Shared => (holders > 0) != is_kept,
            Mode::Permits(_) | Mode::Once => holders == 1,
        };
        must(is_used, "a lease without a task, or with too many")?;
        must(
            !held.is_prefetching || is_fetching,
            "a prefetch counts as in flight, but is not",
        )?;
        let is_planned = held.renewal != RenewalPlan::InFlight || is_renewing;
        must(is_planned, "a renewal counts as in flight, but is not")?;
        let is_open = held.share.is_some_and(|share| share.is_open);
        must(
            !is_open || self.is_notified_or_free(held.owner),
            "an open share keeps out an exclusive request",
        )?;
        held.holders.iter().try_for_each(|holder| {
            must(
                self.is_alive(holder.id),
                "a lease is held for a task that is gone",
            )
        })
    }

    /// Returns `true` if no exclusive request waits, or if a message about it is in flight to this share. If messages were
    /// lost, the next renewal reports the request.
    fn is_notified_or_free(&self, owner: u64) -> bool {
        let is_message = |reply: &Reply| matches!(reply, Reply::Contended(one) if *one == owner);
        !self.server.is_contended()
            || !self.server.has(owner)
            || self.has_lost_messages
            || self.down.iter().any(is_message)
    }

    fn check_that_nothing_stays(&self) -> Found {
        let is_quiet = self.up.is_empty()
            && self.down.is_empty()
            && self.late.is_empty()
            // A share without a task is kept for a bounded time.
            && self.key.leases.iter().all(|held| held.share.is_none())
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
        let mut holders = self.server.table.holders.iter();
        let is_left = holders.any(|held| held.number != Some(OTHER));
        must(!is_left, "the lock is left on the server")?;
        let mut entries = self.server.table.queue.iter();
        must(
            entries.all(|queued| queued.entry.number == OTHER),
            "an entry is left in the queue",
        )
    }
}
