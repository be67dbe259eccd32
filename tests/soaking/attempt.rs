//! An attempt to take a lock, and its record in the history.

use std::{error::Error, io, sync::Arc, time::Duration};

use lock_core::{Lease, LockError, LockManager, fenced::Fence};
use lock_tests::history::{Moment, Step};
use tokio::time::sleep;

use crate::{
    contend::{Contender, say},
    keys::Kept,
    register::Response,
};

/// The separator between a key and the number of a permit: each permit has a register of its own.
const PERMIT: char = '#';

/// An attempt to take one lock, or several together.
#[derive(Clone)]
pub(crate) struct Attempt {
    contender: Arc<Contender>,
    /// Each key has a number of its own in the history.
    keys: Vec<(Kept, u64)>,
}

impl Attempt {
    /// Records that the keys are requested.
    pub(crate) fn call(contender: &Arc<Contender>, keys: Vec<Kept>) -> io::Result<Self> {
        let call = |key: Kept| {
            let number = contender.next_attempt();
            let called = Step::Called(key.mode);
            contender.recorder.record(number, &key.name, called)?;
            Ok((key, number))
        };
        Ok(Self {
            contender: Arc::clone(contender),
            keys: keys.into_iter().map(call).collect::<io::Result<_>>()?,
        })
    }

    pub(crate) fn locks(&self) -> &LockManager {
        &self.contender.locks
    }

    /// Returns the names of the keys.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.keys.iter().map(|(key, _)| key.name.as_str())
    }

    /// Returns the name of the only key.
    pub(crate) fn name(&self) -> &str {
        &self.keys[0].0.name
    }

    /// Records a step for all keys.
    pub(crate) fn record(&self, step: Step) -> io::Result<()> {
        for (key, number) in &self.keys {
            self.contender.recorder.record(*number, &key.name, step)?;
        }
        Ok(())
    }

    /// Records that the keys are held, works under the locks, and records that they are about to be released.
    pub(crate) async fn hold(&self, lease: &Lease, span: Duration) -> io::Result<()> {
        self.begin(lease)?;
        self.count_up(lease).await?;
        if !span.is_zero() {
            sleep(span).await;
        }
        self.about_to_release(lease)
    }

    /// Records that the keys are held.
    pub(crate) fn begin(&self, lease: &Lease) -> io::Result<()> {
        let valid_until = Moment::end_of(lease);
        for (key, number) in &self.keys {
            let fence = fence_of(lease, key);
            let acquired = Step::Acquired {
                token: fence.token.into(),
                permit: fence.permit,
                valid_until,
            };
            self.contender
                .recorder
                .record(*number, &key.name, acquired)?;
        }
        Ok(())
    }

    /// Increments the register of each key.
    pub(crate) async fn count_up(&self, lease: &Lease) -> io::Result<()> {
        for (key, number) in &self.keys {
            let fence = fence_of(lease, key);
            let register = match fence.permit {
                Some(permit) => format!("{}{PERMIT}{permit}", key.name),
                None => key.name.clone(),
            };
            let counted = self.contender.register.count_up(&register, fence).await;
            let response = counted.map_err(io::Error::other)?;
            // If the lease is still valid now, the refusal was wrong.
            if response == Response::Refused && !lease.is_lost() {
                self.contender
                    .recorder
                    .record(*number, &key.name, Step::Refused)?;
            }
        }
        Ok(())
    }

    pub(crate) fn about_to_release(&self, lease: &Lease) -> io::Result<()> {
        let valid_until = Moment::end_of(lease);
        self.record(Step::ReleaseCalled { valid_until })
    }

    /// Records how the attempt ended. Returns whether the lock was held.
    pub(crate) fn end(&self, ended: Result<io::Result<()>, LockError>) -> io::Result<bool> {
        let step = match ended {
            Ok(done) => {
                done?;
                Step::Released
            }
            Err(LockError::Lost { reason, .. }) => {
                say(&format!("loss: {reason}"));
                Step::Lost
            }
            Err(error) => {
                if !error.is_busy() {
                    let source = error.source().map(ToString::to_string);
                    say(&format!("failure: {error}: {}", source.unwrap_or_default()));
                }
                Step::Failed
            }
        };
        self.record(step)?;
        Ok(step != Step::Failed)
    }
}

fn fence_of(lease: &Lease, key: &Kept) -> Fence {
    let fences = lease.fences();
    let mut fences = fences.iter();
    let fence = fences.find(|(name, _)| name.as_str() == key.name);
    fence.expect("each key has a fence").1
}
