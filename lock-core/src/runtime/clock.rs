//! The clock of a manager. The real clock continues to run while the machine sleeps. The clock of tests follows tokio's
//! virtual time.
//!
//! Which clock continues to run during suspend depends on the system:
//!
//! | system | clock | runs while the machine sleeps |
//! | --- | --- | --- |
//! | Linux, Android | `CLOCK_BOOTTIME` | yes; `CLOCK_MONOTONIC` does not |
//! | macOS, iOS, OpenBSD | `CLOCK_MONOTONIC` | yes; `CLOCK_UPTIME_RAW`, which std uses on Apple's systems, does not |
//! | Windows | std's `Instant`, the performance counter | yes, according to its documentation |
//! | FreeBSD and others | `CLOCK_MONOTONIC`, or std's `Instant` | not guaranteed; FreeBSD has no clock that does |
//!
//! If the clock stops, a process notices a suspend only at its next renewal, to which the server replies "not yours". Until
//! then its body may take steps. This concerns laptops, since servers are not suspended. If the host stops a virtual
//! machine, no clock in that machine shows it.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::moment::Moment;

/// The source of a manager's time.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// The machine's clock since boot. It includes suspended time, so a process notices if its lease ended during suspend.
    Boot,
    /// The clock of tokio, which tests can pause and advance.
    Tokio(tokio::time::Instant),
}

impl Clock {
    pub(crate) fn tokio() -> Self {
        Self::Tokio(tokio::time::Instant::now())
    }

    pub(crate) fn now(&self) -> Moment {
        match self {
            Self::Boot => {
                #[cfg(feature = "simulation")]
                if let Some(time) = crate::runtime::simulation::ask(|world| world.since_boot()) {
                    return Moment::from_origin(time);
                }
                Moment::from_nanos(since_boot())
            }
            Self::Tokio(origin) => Moment::from_origin(origin.elapsed()),
        }
    }

    /// Waits until `moment` on the runtime that polls the future, which must have a timer.
    ///
    /// tokio's timer stops while the machine is suspended. Therefore a long sleep is divided into slices, so that a jump of
    /// the clock is noticed within one slice after the suspend.
    pub(crate) async fn sleep_until(&self, moment: Moment) {
        const SLICE: Duration = Duration::from_millis(250);
        loop {
            let left = moment.since(self.now());
            if left.is_zero() {
                return;
            }
            let nap = match self {
                Self::Boot => left.min(SLICE),
                Self::Tokio(_) => left,
            };
            tokio::time::sleep(nap).await;
        }
    }
}

/// Returns the time since the Unix epoch, by the machine's wall clock, which can be set.
pub(crate) fn wall_clock() -> Duration {
    #[cfg(feature = "simulation")]
    if let Some(time) = crate::runtime::simulation::ask(|world| world.wall_clock()) {
        return time;
    }
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
}

#[cfg(unix)]
fn since_boot() -> u64 {
    use rustix::time::{ClockId, clock_gettime};

    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::Boottime;
    // On Apple's systems and OpenBSD, this clock continues during suspend. Other systems have no better clock.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u64::try_from(time.tv_nsec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Reads the clock of the standard library, which on Windows is the performance counter.
#[cfg(not(unix))]
fn since_boot() -> u64 {
    static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    Moment::from_origin(ORIGIN.get_or_init(std::time::Instant::now).elapsed()).as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_boot_clock_advances() {
        let first = Clock::Boot.now();
        while Clock::Boot.now() == first {
            std::hint::spin_loop();
        }
        assert!(Clock::Boot.now() > first);
    }

    #[tokio::test(start_paused = true)]
    async fn the_tokio_clock_is_virtual_time() {
        let clock = Clock::tokio();
        let start = clock.now();
        clock
            .sleep_until(start.after(Duration::from_secs(3600)))
            .await;
        assert_eq!(clock.now().since(start), Duration::from_secs(3600));
    }
}
