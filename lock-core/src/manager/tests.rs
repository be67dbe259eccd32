//! Tests of shared locks and permits in memory, on a paused clock: the state machines of one process together.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    task::{JoinHandle, yield_now},
    time::{Instant, sleep},
};

use crate::{
    error::LockError,
    guard::LockGuard,
    inspect::LockInfo,
    manager::LockManager,
    mode::{LockMode, Mode},
    options::LockOptions,
};

const SECOND: Duration = Duration::from_secs(1);
const TTL: Duration = Duration::from_secs(10);

/// The mode in which a lock is held, and the mode in which the next task waits for it.
const HELD_AND_WAITED_IN: [(Mode, Mode); 3] = [
    (Mode::Exclusive, Mode::Shared),
    (Mode::Shared, Mode::Exclusive),
    (Mode::Permits(1), Mode::Permits(1)),
];

async fn take(
    manager: &LockManager,
    mode: Mode,
    options: LockOptions,
) -> Result<LockGuard, LockError> {
    let options = match mode {
        Mode::Exclusive => options,
        Mode::Shared => options.shared(),
        Mode::Permits(n) => options.permits(n.into()),
        Mode::Once => options.in_mode(mode),
    };
    manager.acquire("k", options).await
}

async fn wait_for(manager: &LockManager, mode: Mode) -> LockGuard {
    let options = LockOptions::new(TTL).wait_forever();
    take(manager, mode, options)
        .await
        .expect("waits for the lock")
}

/// Spawns a task that waits for the lock, and holds it for the time `for_long`. The task returns when it got the lock,
/// counted from `start`, and its fencing token.
fn hold(
    manager: &LockManager,
    mode: Mode,
    for_long: Duration,
    start: Instant,
) -> JoinHandle<(Duration, u64)> {
    let manager = manager.clone();
    tokio::spawn(async move {
        let guard = wait_for(&manager, mode).await;
        let seen = (start.elapsed(), guard.lease().fencing_token().into());
        sleep(for_long).await;
        guard.release().await.expect("held");
        seen
    })
}

/// Like [`hold`], but returns only after the task has begun to wait or has the lock.
async fn begin(
    manager: &LockManager,
    mode: Mode,
    for_long: Duration,
    start: Instant,
) -> JoinHandle<(Duration, u64)> {
    let task = hold(manager, mode, for_long, start);
    // The paused clock advances only after every task that can run has run.
    sleep(Duration::from_millis(1)).await;
    task
}

async fn seen(manager: &LockManager) -> Option<LockInfo> {
    manager.inspect("k").await.expect("in memory")
}

/// Checks that the next task gets a lock at once when it is taken away from its holder, in any mode.
async fn the_next_gets_what_is_taken_away(
    manager: &LockManager,
    (held_in, waited_in): (Mode, Mode),
    end_lease: impl AsyncFnOnce(&LockGuard),
) {
    let start = Instant::now();
    let held = wait_for(manager, held_in).await;
    let next = begin(manager, waited_in, SECOND, start).await;
    end_lease(&held).await;
    let (waited, _) = next.await.expect("no panic");
    assert!(
        waited < SECOND / 10,
        "{held_in:?}, {waited_in:?}: {waited:?}"
    );
    drop(held);
    is_free(manager).await;
}

async fn is_free(manager: &LockManager) {
    sleep(SECOND * 3).await;
    assert!(seen(manager).await.is_none(), "nobody holds it");
    assert!(
        manager.inner.registry.keys.is_empty(),
        "a state machine is left"
    );
}

/// Returns the second in which each task got the lock, and its fencing token.
async fn turns(tasks: Vec<JoinHandle<(Duration, u64)>>) -> Vec<(u64, u64)> {
    let mut turns = Vec::new();
    for task in tasks {
        let (at, token) = task.await.expect("no panic");
        turns.push((at.as_secs(), token));
    }
    turns
}

#[tokio::test(start_paused = true)]
async fn readers_and_writers_take_turns() {
    let manager = LockManager::in_memory();
    let start = Instant::now();
    let mut tasks = Vec::new();
    let modes = [
        Mode::Shared,
        Mode::Shared,
        Mode::Exclusive,
        Mode::Shared,
        Mode::Exclusive,
        Mode::Shared,
    ];
    for mode in modes {
        tasks.push(begin(&manager, mode, SECOND, start).await);
    }
    let found = seen(&manager).await.expect("held");
    assert_eq!((found.mode, found.holders), (LockMode::Shared, 1));
    assert_eq!(found.waiters, 4);
    let turns = turns(tasks).await;
    let seconds: Vec<_> = turns.iter().map(|(second, _)| *second).collect();
    // The second writer may get the lock from the first one within the process, or have its turn after the readers.
    assert_eq!((seconds[0], seconds[1], seconds[2]), (0, 0, 1), "{turns:?}");
    assert_eq!(
        (seconds[3], seconds[5]),
        (seconds[3], seconds[3]),
        "the last two readers share one phase: {turns:?}"
    );
    assert!(seconds[3] <= 3 && seconds[4] <= 3, "{turns:?}");
    let token = |at: usize| turns[at].1;
    assert_eq!(token(0), token(1), "a phase has one token");
    assert_eq!(token(3), token(5), "a phase has one token");
    assert!(token(0) < token(2) && token(2) < token(3), "{turns:?}");
    is_free(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn readers_that_never_pause_and_a_writer_do_not_starve_each_other() {
    let manager = LockManager::in_memory();
    let reads = Arc::new(AtomicUsize::new(0));
    let readers: Vec<_> = (0..8_u32)
        .map(|n| {
            let (manager, reads) = (manager.clone(), reads.clone());
            tokio::spawn(async move {
                loop {
                    let guard = wait_for(&manager, Mode::Shared).await;
                    reads.fetch_add(1, Ordering::Relaxed);
                    sleep(Duration::from_millis(10) + Duration::from_millis(1) * n).await;
                    guard.release().await.expect("held");
                }
            })
        })
        .collect();
    for _ in 0..20 {
        sleep(Duration::from_millis(33)).await;
        let (start, before) = (Instant::now(), reads.load(Ordering::Relaxed));
        assert!(before > 0);
        let guard = wait_for(&manager, Mode::Exclusive).await;
        // The longest body of a reader takes 17 ms.
        assert!(
            start.elapsed() <= Duration::from_millis(20),
            "{:?}",
            start.elapsed()
        );
        let during = reads.load(Ordering::Relaxed);
        sleep(Duration::from_millis(50)).await;
        assert_eq!(
            reads.load(Ordering::Relaxed),
            during,
            "a reader ran together with a writer"
        );
        guard.release().await.expect("held");
        yield_now().await;
        sleep(Duration::from_millis(1)).await;
        assert!(
            reads.load(Ordering::Relaxed) >= during + 8,
            "readers are still waiting"
        );
    }
    for reader in readers {
        reader.abort();
    }
    is_free(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn writers_of_one_process_hand_the_lock_to_its_readers_soon() {
    let manager = LockManager::in_memory();
    let writers: Vec<_> = (0..4)
        .map(|_| {
            let manager = manager.clone();
            tokio::spawn(async move {
                loop {
                    let guard = wait_for(&manager, Mode::Exclusive).await;
                    sleep(Duration::from_millis(1)).await;
                    guard.release().await.expect("held");
                }
            })
        })
        .collect();
    for _ in 0..20 {
        sleep(Duration::from_millis(33)).await;
        let start = Instant::now();
        let guard = wait_for(&manager, Mode::Shared).await;
        assert!(
            start.elapsed() <= Duration::from_millis(150),
            "{:?}",
            start.elapsed()
        );
        guard.release().await.expect("held");
    }
    for writer in writers {
        writer.abort();
    }
    is_free(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn a_writer_without_a_wait_is_refused_by_readers_but_not_by_an_idle_share() {
    let manager = LockManager::in_memory();
    let once = || LockOptions::new(TTL).no_wait();
    let reader = wait_for(&manager, Mode::Shared).await;
    let refused = take(&manager, Mode::Exclusive, once()).await;
    assert!(refused.is_err_and(|error| error.is_busy()));
    // The refused writer has closed the share, for the benefit of the next writer. It does not wait itself, so new readers
    // are still admitted.
    let other = take(&manager, Mode::Shared, once()).await.expect("shared");
    reader.release().await.expect("held");
    other.release().await.expect("held");
    let idle = wait_for(&manager, Mode::Shared).await;
    idle.release().await.expect("held");
    let writer = take(&manager, Mode::Exclusive, once()).await;
    writer
        .expect("no task uses the share")
        .release()
        .await
        .expect("held");
    is_free(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn readers_continue_when_the_writer_they_wait_for_gives_up() {
    let manager = LockManager::in_memory();
    let start = Instant::now();
    let first = begin(&manager, Mode::Shared, SECOND * 5, start).await;
    let writer = begin(&manager, Mode::Exclusive, SECOND, start).await;
    let second = begin(&manager, Mode::Shared, SECOND, start).await;
    sleep(SECOND * 2).await;
    assert_eq!(seen(&manager).await.expect("held").holders, 1);
    writer.abort();
    let turns = turns(vec![first, second]).await;
    assert_eq!((turns[0].0, turns[1].0), (0, 2));
    assert_eq!(turns[0].1, turns[1].1, "a phase has one token");
    is_free(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn permits_bound_the_holders_first_come_first_served() {
    let manager = LockManager::in_memory();
    let start = Instant::now();
    let mut tasks = Vec::new();
    for _ in 0..7 {
        tasks.push(begin(&manager, Mode::Permits(3), SECOND, start).await);
    }
    let found = seen(&manager).await.expect("held");
    assert_eq!((found.mode, found.holders), (LockMode::Permits, 3));
    assert_eq!(found.waiters, 4);
    let turns = turns(tasks).await;
    let seconds: Vec<_> = turns.iter().map(|(second, _)| *second).collect();
    assert_eq!(seconds, [0, 0, 0, 1, 1, 1, 2]);
    assert!(
        turns.windows(2).all(|pair| pair[0].1 < pair[1].1),
        "{turns:?}"
    );
    is_free(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn a_request_with_a_larger_number_of_permits_does_not_overtake_one_with_a_smaller_number() {
    let manager = LockManager::in_memory();
    let start = Instant::now();
    let mut tasks = Vec::new();
    for n in [4, 4, 2, 4] {
        tasks.push(begin(&manager, Mode::Permits(n), SECOND, start).await);
    }
    let turns = turns(tasks).await;
    let seconds: Vec<_> = turns.iter().map(|(second, _)| *second).collect();
    assert_eq!(seconds, [0, 0, 1, 1]);
    is_free(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn permits_with_a_min_hold_bound_the_starts_per_period() {
    let manager = LockManager::in_memory();
    let start = Instant::now();
    let mut starts = Vec::new();
    for _ in 0..10 {
        let options = LockOptions::new(TTL).wait_forever().min_hold(SECOND);
        let guard = take(&manager, Mode::Permits(5), options).await;
        starts.push(start.elapsed().as_secs());
        guard
            .expect("the wait is unbounded")
            .release()
            .await
            .expect("held");
    }
    assert_eq!(starts, [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]);
    is_free(&manager).await;
}

#[tokio::test(start_paused = true)]
async fn permits_and_the_other_modes_refuse_each_other_at_once() {
    let manager = LockManager::in_memory();
    let invalid = |refused: Result<LockGuard, LockError>| {
        let error = refused.expect_err("another mode");
        assert!(matches!(error, LockError::Invalid { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains("with permits everywhere, or nowhere"),
            "{error}"
        );
    };
    let options = || LockOptions::new(TTL).wait_forever();
    for mode in [Mode::Exclusive, Mode::Shared] {
        let held = wait_for(&manager, mode).await;
        invalid(take(&manager, Mode::Permits(2), options()).await);
        held.release().await.expect("held");
        sleep(SECOND * 2).await;
        let held = wait_for(&manager, Mode::Permits(2)).await;
        invalid(take(&manager, mode, options()).await);
        held.release().await.expect("held");
    }
    is_free(&manager).await;
}

/// In the lock table, a lease that has run out is removed only by the next request.
#[tokio::test(start_paused = true)]
async fn a_waiter_gets_a_lock_whose_lease_has_run_out_without_a_release() {
    for (held_in, waited_in) in HELD_AND_WAITED_IN {
        let manager = LockManager::in_memory();
        let start = Instant::now();
        let options = LockOptions::new(SECOND * 2).without_renewal();
        let held = take(&manager, held_in, options).await.expect("free");
        let next = wait_for(&manager, waited_in).await;
        let waited = start.elapsed();
        assert!(
            waited >= SECOND * 2 && waited < SECOND * 2 + SECOND / 20,
            "{held_in:?}, {waited_in:?}: {waited:?}"
        );
        next.release().await.expect("held");
        drop(held);
        is_free(&manager).await;
    }
}

#[tokio::test(start_paused = true)]
async fn leases_of_all_modes_are_renewed() {
    for mode in [Mode::Shared, Mode::Permits(2)] {
        let manager = LockManager::in_memory();
        let options = LockOptions::new(SECOND);
        let guard = take(&manager, mode, options).await.expect("free");
        sleep(SECOND * 60).await;
        assert!(guard.lease().verify().await.is_ok(), "{mode:?}");
        guard.release().await.expect("held");
        is_free(&manager).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_released_by_force_goes_to_the_next_waiter_in_any_mode() {
    for modes in HELD_AND_WAITED_IN {
        let manager = LockManager::in_memory();
        let by_force = async |_: &LockGuard| {
            manager.force_release("k").await.expect("in memory");
        };
        the_next_gets_what_is_taken_away(&manager, modes, by_force).await;
    }
}

#[cfg(feature = "testing")]
mod faults {
    use super::*;

    const MODES: [Mode; 3] = [Mode::Exclusive, Mode::Shared, Mode::Permits(2)];

    #[tokio::test(start_paused = true)]
    async fn a_holder_in_another_process_keeps_out_requests_in_all_modes() {
        for mode in MODES {
            let (manager, faults) = LockManager::in_memory_with_faults();
            let held = wait_for(&manager, mode).await;
            faults.busy("k");
            assert!(held.lease().is_lost(), "{mode:?}");
            for asks in MODES {
                let options = LockOptions::new(TTL).wait(SECOND);
                let refused = take(&manager, asks, options).await;
                assert!(refused.is_err_and(|error| error.is_busy()), "{asks:?}");
            }
            drop(held);
            faults.heal();
            wait_for(&manager, mode)
                .await
                .release()
                .await
                .expect("held");
            is_free(&manager).await;
        }
    }

    /// While another process holds the lock, a release, a renewal or a dropped waiter must not grant it.
    #[tokio::test(start_paused = true)]
    async fn a_holder_in_another_process_keeps_out_those_who_were_in_the_queue() {
        let (manager, faults) = LockManager::in_memory_with_faults();
        let start = Instant::now();
        let held = wait_for(&manager, Mode::Exclusive).await;
        let reader = begin(&manager, Mode::Shared, SECOND, start).await;
        let writer = begin(&manager, Mode::Exclusive, SECOND, start).await;
        faults.busy_for("k", SECOND * 5);
        drop(held);
        let gives_up = begin(&manager, Mode::Exclusive, SECOND, start).await;
        gives_up.abort();
        let turns = turns(vec![reader, writer]).await;
        assert!(turns.iter().all(|(second, _)| *second >= 5), "{turns:?}");
        assert!(turns.iter().all(|(second, _)| *second <= 7), "{turns:?}");
        assert_ne!(
            turns[0].0, turns[1].0,
            "a reader ran together with a writer: {turns:?}"
        );
        is_free(&manager).await;
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_acquired_during_a_fault_outlives_it() {
        for mode in MODES {
            let (manager, faults) = LockManager::in_memory_with_faults();
            faults.busy_for("k", SECOND);
            let held = wait_for(&manager, mode).await;
            faults.heal();
            assert!(held.lease().verify().await.is_ok(), "{mode:?}");
            held.release().await.expect("held");
            is_free(&manager).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_lost_goes_to_the_next_waiter_in_any_mode() {
        for modes in HELD_AND_WAITED_IN {
            let (manager, faults) = LockManager::in_memory_with_faults();
            let by_a_loss = async |held: &LockGuard| {
                faults.lose("k");
                assert!(held.lease().is_lost());
            };
            the_next_gets_what_is_taken_away(&manager, modes, by_a_loss).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn late_replies_admit_nobody_while_a_writer_holds_the_lock() {
        let (manager, faults) = LockManager::in_memory_with_faults();
        faults.delay(Duration::from_millis(300));
        let start = Instant::now();
        let modes = [Mode::Shared, Mode::Exclusive, Mode::Shared, Mode::Exclusive];
        let mut tasks = Vec::new();
        for mode in modes {
            tasks.push(begin(&manager, mode, SECOND * 2, start).await);
        }
        let mut turns = Vec::new();
        for (task, mode) in tasks.into_iter().zip(modes) {
            turns.push((task.await.expect("no panic").0, mode));
        }
        turns.sort_by_key(|(at, _)| *at);
        for pair in turns.windows(2) {
            let [(one, mode), (other, next)] = [pair[0], pair[1]];
            let are_apart = other.saturating_sub(one) >= SECOND * 2;
            assert!(
                are_apart || mode == next && mode == Mode::Shared,
                "{turns:?}"
            );
            assert!(other.saturating_sub(one) < SECOND * 3, "{turns:?}");
        }
        faults.heal();
        is_free(&manager).await;
    }
}
