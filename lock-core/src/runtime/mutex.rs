//! A mutex that is never poisoned.

use std::sync::{MutexGuard, PoisonError, TryLockError};

/// A mutex that ignores poisoning. No code of this crate panics between two writes that belong together, and no user code
/// runs under a mutex, so the data of a poisoned one is consistent.
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

impl<T> Mutex<T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        #[cfg(test)]
        if let Some(guard) = interleaved::lock(&self.0) {
            return guard;
        }
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the mutex, or returns `None` if another thread has locked it.
    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        may_switch();
        match self.0.try_lock() {
            Ok(guard) => Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }
}

/// Marks a point at which the explorer of threads may run another thread, in code that shares data without a mutex.
#[inline]
pub(crate) fn may_switch() {
    #[cfg(test)]
    interleaved::point();
}

/// Support for tests in which another thread may run before each call that locks a mutex.
#[cfg(test)]
pub(crate) mod interleaved {
    use std::{
        cell::Cell,
        sync::{Mutex, MutexGuard, TryLockError},
    };

    thread_local! {
        // One value is enough, since all threads of the explorer run on one system thread.
        static EXPLORES: Cell<bool> = const { Cell::new(false) };
    }

    /// Runs a test under this many random schedules of its threads.
    pub(crate) fn explore(schedules: usize, test: impl Fn() + Send + Sync + Copy + 'static) {
        EXPLORES.set(true);
        shuttle::check_random(test, schedules);
        shuttle::check_pct(test, schedules, 3);
        EXPLORES.set(false);
    }

    /// Marks a point at which another thread may run.
    pub(crate) fn point() {
        if EXPLORES.get() {
            shuttle::thread::yield_now();
        }
    }

    /// Starts a task in the explorer. Outside of the explorer, returns the work.
    pub(crate) fn spawn(work: crate::runtime::Work) -> Option<crate::runtime::Work> {
        if !EXPLORES.get() {
            return Some(work);
        }
        drop(shuttle::future::spawn(work));
        None
    }

    /// Locks the mutex in the explorer. Outside of the explorer, returns `None`.
    pub(super) fn lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
        while EXPLORES.get() {
            shuttle::thread::yield_now();
            match mutex.try_lock() {
                Ok(guard) => return Some(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
                // The holder of the mutex continues when it is scheduled again.
                Err(TryLockError::WouldBlock) => {}
            }
        }
        None
    }
}
