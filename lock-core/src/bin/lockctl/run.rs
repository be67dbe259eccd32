//! `run`: runs a command while a lock is held.

use std::{
    ffi::OsString,
    fs,
    future::pending,
    io::{self, IsTerminal, Write},
    os::unix::process::ExitStatusExt,
    process::ExitStatus,
    time::Duration,
};

use clap::Args;
use lock_core::{Lease, LockError, LockManager, LockOptions};
use rustix::process::{Pid, Signal};
use tokio::{
    process::{Child, Command},
    signal::unix::{SignalKind, signal},
    time::{sleep, timeout},
};

use crate::{
    Failed, SOFTWARE,
    keeper::{Keeper, Target},
    start::{cannot_run, starter},
};

#[derive(Args)]
pub(crate) struct Run {
    /// The key to lock
    key: String,

    /// How long a crash blocks other holders; the lease is renewed while the command runs
    #[arg(long, default_value = "30s", value_parser = humantime::parse_duration)]
    ttl: Duration,

    /// How long to wait for a busy lock: for example `5s`, or `forever`
    #[arg(long, default_value = "0s", value_parser = wait)]
    wait: WaitArgument,

    /// Acquire the lock in shared mode
    #[arg(long, conflicts_with = "permits")]
    shared: bool,

    /// Acquire one of N permits
    #[arg(long, value_name = "N")]
    permits: Option<usize>,

    /// The name under which this holder or waiter is shown: 1 to 63 characters, instead of its host and process id
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,

    /// How long the command has between SIGTERM and SIGKILL, at most a third of the ttl
    #[arg(long, value_parser = humantime::parse_duration)]
    kill_after: Option<Duration>,

    /// The command and its arguments
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

#[derive(Clone, Copy)]
enum WaitArgument {
    For(Duration),
    Forever,
}

fn wait(text: &str) -> Result<WaitArgument, String> {
    if text == "forever" {
        return Ok(WaitArgument::Forever);
    }
    let span = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    Ok(WaitArgument::For(span))
}

/// The default of `--kill-after`.
const KILL_AFTER: Duration = Duration::from_secs(5);

/// The exit code that a shell reports for a command that a signal ended: this number plus that of the signal.
const BY_SIGNAL: i32 = 128;

/// Returns how long the command may take to end after SIGTERM.
fn kill_after(order: &Run) -> Result<Duration, Failed> {
    let most = order.ttl / 3;
    let kill_after = order.kill_after.unwrap_or(KILL_AFTER.min(most));
    if kill_after > most {
        return Err(Failed::usage(format!(
            "--kill-after {kill_after:?} is more than a third of the ttl of {:?}: the command could not be ended before its \
             lease does",
            order.ttl
        )));
    }
    Ok(kill_after)
}

pub(crate) async fn run(locks: &LockManager, order: Run) -> Result<u8, Failed> {
    let kill_after = kill_after(&order)?;
    // Installed before the lock is acquired, so that no signal is missed.
    let mut signals = Signals::new()?;
    let mut keeper = Keeper::start()?;
    let acquired = tokio::select! {
        acquired = locks.acquire(order.key.as_str(), options(&order)) => acquired.map_err(Failed::from),
        signal = signals.next() => Err(Failed {
            code: code_of_signal(signal.as_raw()),
            reason: String::new(),
        }),
    };
    let guard = match acquired {
        Ok(guard) => guard,
        Err(failed) => {
            dismiss(keeper);
            await_clean_up(locks, &mut signals).await;
            return Err(failed);
        }
    };
    let lease = guard.lease();
    let (mut child, target) = match spawn(&order, &lease, &mut keeper) {
        Ok(spawned) => spawned,
        Err(failed) => {
            dismiss(keeper);
            guard.release().await?;
            return Err(failed);
        }
    };
    let ended = attend(&mut child, target, &lease, &mut signals, kill_after).await;
    dismiss(keeper);
    let (status, is_lost) = ended?;
    let released = guard.release().await;
    let loss = match &released {
        Err(error @ LockError::Lost { .. }) => Some(error.to_string()),
        _ if is_lost => Some("the server did not answer in time to keep the lock".to_owned()),
        _ => None,
    };
    if let Some(loss) = loss {
        let what = if is_lost {
            ", so the command was ended"
        } else {
            " while the command ran, so another holder may have run concurrently"
        };
        return Err(Failed {
            code: SOFTWARE,
            reason: format!("the lock was lost{what}: {loss}"),
        });
    }
    if let Err(error) = released {
        // No reply says that the lock was lost, so the exit code is that of the command.
        drop(writeln!(
            io::stderr(),
            "lockctl: the lock was not released: {error}"
        ));
    }
    Ok(match status.signal() {
        Some(signal) => code_of_signal(signal),
        None => u8::try_from(status.code().unwrap_or(i32::from(SOFTWARE))).unwrap_or(SOFTWARE),
    })
}

/// Waits until the dropped acquire has been cleaned up on the server: its entry in the queue, or a lock that was granted in the
/// meantime. Bounded by two command time-outs, and ended by another signal.
async fn await_clean_up(locks: &LockManager, signals: &mut Signals) {
    tokio::select! {
        () = locks.shutdown(Duration::ZERO) => {}
        _ = signals.next() => {}
    }
}

fn dismiss(keeper: Option<Keeper>) {
    if let Some(keeper) = keeper {
        keeper.dismiss();
    }
}

fn code_of_signal(signal: i32) -> u8 {
    u8::try_from(BY_SIGNAL + signal).unwrap_or(SOFTWARE)
}

fn options(order: &Run) -> LockOptions {
    let options = LockOptions::new(order.ttl);
    let options = match order.wait {
        WaitArgument::Forever => options.wait_forever(),
        WaitArgument::For(Duration::ZERO) => options.no_wait(),
        WaitArgument::For(span) => options.wait(span),
    };
    match order.permits {
        Some(permits) => options.permits(permits),
        None if order.shared => options.shared(),
        None => options,
    }
}

/// Spawns the command. At a terminal, it stays in this program's process group, which controls the terminal. Elsewhere it joins
/// the group of the keeper, so that its children can be ended with it.
fn spawn(
    order: &Run,
    lease: &Lease,
    keeper: &mut Option<Keeper>,
) -> Result<(Child, Target), Failed> {
    let is_at_terminal = io::stdin().is_terminal();
    let mut command = Command::from(starter(&order.command));
    command
        .env("LOCK_KEY", &order.key)
        .env("LOCK_FENCING_TOKEN", lease.fencing_token().to_string());
    if let Some(permit) = lease.permit() {
        command.env("LOCK_PERMIT", permit.to_string());
    }
    let group = keeper.as_ref().map(|keeper| keeper.group);
    if !is_at_terminal {
        command.process_group(group.map_or(0, Pid::as_raw_pid));
    }
    let spawned = command.spawn();
    let child = spawned.map_err(|error| cannot_run(&order.command, &error))?;
    let pid = child.id().and_then(|id| i32::try_from(id).ok());
    let pid = pid.and_then(Pid::from_raw).ok_or_else(|| Failed {
        code: SOFTWARE,
        reason: "the command has no process id".to_owned(),
    })?;
    if !is_at_terminal {
        // Without a keeper, the command leads its group.
        return Ok((child, Target::Group(group.unwrap_or(pid))));
    }
    let target = Target::Process(pid);
    if let Some(Err(error)) = keeper.as_mut().map(|keeper| keeper.watch(pid)) {
        target.send(Signal::KILL);
        return Err(Failed {
            code: SOFTWARE,
            reason: format!(
                "the process that would end the command with this one is gone: {error}"
            ),
        });
    }
    Ok((child, target))
}

/// Waits for the command, forwards signals, and ends the command before the lease ends. Returns whether that was necessary.
async fn attend(
    child: &mut Child,
    target: Target,
    lease: &Lease,
    signals: &mut Signals,
    kill_after: Duration,
) -> Result<(ExitStatus, bool), Failed> {
    loop {
        tokio::select! {
            biased;
            status = child.wait() => return Ok((status?, false)),
            signal = signals.next() => {
                // At a terminal, the kernel also sends SIGINT and SIGHUP to the command.
                if matches!(target, Target::Group(_)) || signal == Signal::TERM {
                    target.send(signal);
                }
            }
            () = nearly_lost(lease, kill_after) => break,
        }
    }
    target.send(Signal::TERM);
    if let Ok(status) = timeout(kill_after, child.wait()).await {
        // Children of the command may still be running.
        if let Target::Group(_) = target {
            target.send(Signal::KILL);
        }
        return Ok((status?, true));
    }
    target.send(Signal::KILL);
    Ok((child.wait().await?, true))
}

/// Returns when the lease is lost, or when only `kill_after` is left of it because renewals failed.
async fn nearly_lost(lease: &Lease, kill_after: Duration) {
    let unrenewed = async {
        // A renewal moves the end, so each round sleeps until the end that is known now. The loop ends when no renewal succeeded
        // in the meantime.
        loop {
            match lease.remaining().checked_sub(kill_after) {
                Some(left) if !left.is_zero() => sleep(left).await,
                _ => return,
            }
        }
    };
    tokio::select! {
        _ = lease.lost() => {}
        () = unrenewed => {}
    }
}

/// The signals that end a program. A signal that this program was started to ignore, for example by `nohup`, is not among them,
/// because the command ignores it, too.
struct Signals([(Signal, Option<tokio::signal::unix::Signal>); 3]);

impl Signals {
    fn new() -> io::Result<Self> {
        Ok(Self([
            (Signal::TERM, unless_ignored(SignalKind::terminate())?),
            (Signal::INT, unless_ignored(SignalKind::interrupt())?),
            (Signal::HUP, unless_ignored(SignalKind::hangup())?),
        ]))
    }

    async fn next(&mut self) -> Signal {
        let [(term, terminates), (int, interrupts), (hup, hangs_up)] = &mut self.0;
        tokio::select! {
            () = comes(terminates) => *term,
            () = comes(interrupts) => *int,
            () = comes(hangs_up) => *hup,
        }
    }
}

/// Installs a handler, unless the signal is ignored: a handler would replace that setting, and the command would not inherit it.
fn unless_ignored(kind: SignalKind) -> io::Result<Option<tokio::signal::unix::Signal>> {
    // Without this file, for example on macOS, the signal is forwarded.
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if is_ignored(&status, kind.as_raw_value()) {
        return Ok(None);
    }
    signal(kind).map(Some)
}

fn is_ignored(status: &str, number: i32) -> bool {
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

async fn comes(signal: &mut Option<tokio::signal::unix::Signal>) {
    match signal {
        Some(signal) => drop(signal.recv().await),
        None => pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_a_bit_of_the_mask() {
        let status = "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000003\n";
        assert!(is_ignored(status, 1) && is_ignored(status, 2) && !is_ignored(status, 15));
        assert!(!is_ignored("", 1));
    }

    #[test]
    fn a_wait_is_a_duration_or_forever() {
        assert!(matches!(wait("forever"), Ok(WaitArgument::Forever)));
        assert!(
            matches!(wait("1m30s"), Ok(WaitArgument::For(span)) if span == Duration::from_secs(90))
        );
        assert!(wait("soon").is_err());
    }
}
