//! Checks that from any state, without faults, all requests get the lock or a result, and only the clock and a result are left.

use super::{
    server_view::{CLOCK, RESULT},
    state::{At, Process, State, Step},
};

/// The number of rounds that suffices: in each, every process makes progress.
const ROUNDS: usize = 40;

pub(super) fn drain(mut state: State) -> Result<(), String> {
    state.faults = 0;
    for _ in 0..ROUNDS {
        for i in 0..state.processes.len() {
            while let Some(step) = next(&state, i) {
                let is_last = matches!(step, Step::Check(_) | Step::Acquire(_));
                state = state.after(&step)?;
                if is_last {
                    break;
                }
            }
        }
        let mut dead = state.view().all_holders();
        dead.retain(|holder| !state.is_alive(*holder));
        for holder in dead {
            state = state.after(&Step::LeaseEnds(holder))?;
        }
        // A beat passes, within which every waiter has checked.
        state.now += 1_100_000;
        if state.processes.iter().all(is_done) {
            return is_empty(&mut state);
        }
    }
    Err(format!(
        "without faults, some requests do not end: {:?}\n{:?}",
        state.processes,
        state.view()
    ))
}

fn is_done(process: &Process) -> bool {
    let is_over = process.at == At::Idle && process.acquisitions_left == 0;
    process.at == At::Gone || is_over
}

fn next(state: &State, i: usize) -> Option<Step> {
    let process = &state.processes[i];
    match process.at {
        At::Idle => (process.acquisitions_left > 0).then_some(Step::Acquire(i)),
        At::Waiting if !process.grants.is_empty() => Some(Step::Deliver(i, 0)),
        At::Waiting | At::Unknown => Some(Step::Check(i)),
        At::Held | At::Undoing | At::Leaving => Some(Step::Release(i)),
        At::Gone => None,
    }
}

fn is_empty(state: &mut State) -> Result<(), String> {
    for holder in state.view().all_holders() {
        state.end_lease(holder);
    }
    // Longer than the ttl of a queue without newcomers, and of the beats.
    state.now += 31_000_000;
    let left: Vec<String> = state
        .server
        .store
        .alive(state.now)
        .map(|(key, _)| String::from_utf8_lossy(key).into_owned())
        .filter(|key| key != CLOCK && key != RESULT)
        .collect();
    if left.is_empty() {
        Ok(())
    } else {
        Err(format!("the server still has {left:?}"))
    }
}
