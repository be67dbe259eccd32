//! How a lease ended, and the tasks that wait for that.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

use tokio::sync::Notify;

use crate::{error::LeaseLost, runtime::catch_panic::catch_panic};

/// Most leases end unobserved, so the end is a number, and nothing is signalled unless a task has begun to wait.
#[derive(Debug, Default)]
pub(super) struct LeaseEnd {
    /// Zero until the end; then the number of the reason. Set once, by the first caller that notices the end.
    reason: AtomicU8,
    /// Whether a task has waited for the end. A task sets this before it looks at the reason, and the end is set before this is
    /// looked at. So one of the two sees the other.
    is_observed: AtomicBool,
    ends: Notify,
}

const REASONS: [LeaseLost; 7] = [
    LeaseLost::Expired,
    LeaseLost::TakenAway,
    LeaseLost::MaxHold,
    LeaseLost::Shutdown,
    LeaseLost::OtherKey,
    LeaseLost::Forked,
    LeaseLost::Released,
];

fn number(reason: LeaseLost) -> u8 {
    match reason {
        LeaseLost::Expired => 1,
        LeaseLost::TakenAway => 2,
        LeaseLost::MaxHold => 3,
        LeaseLost::Shutdown => 4,
        LeaseLost::OtherKey => 5,
        LeaseLost::Forked => 6,
        LeaseLost::Released => 7,
    }
}

fn reason_of(number: u8) -> Option<LeaseLost> {
    REASONS.get(usize::from(number).checked_sub(1)?).copied()
}

impl LeaseEnd {
    pub(super) fn get(&self) -> Option<LeaseLost> {
        reason_of(self.reason.load(SeqCst))
    }

    /// Sets the reason, and wakes the tasks that wait. If there is an earlier one, returns that.
    pub(super) fn set(&self, reason: LeaseLost) -> Result<(), LeaseLost> {
        let set = self
            .reason
            .compare_exchange(0, number(reason), SeqCst, SeqCst);
        match set {
            Ok(_) => {
                self.rouse();
                Ok(())
            }
            Err(earlier) => Err(reason_of(earlier).unwrap_or(reason)),
        }
    }

    /// Wakes all tasks that wait for the end, so that they look again.
    pub(super) fn rouse(&self) {
        if self.is_observed.load(SeqCst) {
            catch_panic(|| self.ends.notify_waiters());
        }
    }

    /// Waits until `look` returns something. It is called first, and after each signal.
    pub(super) async fn observe<T>(&self, mut look: impl FnMut() -> Option<T>) -> T {
        let mut ends = std::pin::pin!(self.ends.notified());
        self.is_observed.store(true, SeqCst);
        // Bounded by the signals.
        loop {
            // Listens before it looks: in the other order an end between the two would be missed.
            ends.as_mut().enable();
            if let Some(seen) = look() {
                return seen;
            }
            ends.as_mut().await;
            ends.set(self.ends.notified());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_a_number_of_its_own() {
        for reason in REASONS {
            let end = LeaseEnd::default();
            assert_eq!(end.get(), None);
            assert_eq!(end.set(reason), Ok(()));
            assert_eq!(end.set(LeaseLost::Released), Err(reason));
            assert_eq!(end.get(), Some(reason));
        }
    }
}
