//! `lockctl`: locks from the command line, for scripts and operators.

use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use clap::{CommandFactory, Parser, Subcommand, error::ErrorKind};
use lock_core::{LockError, LockManager};

mod doctor;
mod force;
mod keeper;
mod look;
mod output;
mod run;
mod screen;
mod start;

/// Exit codes, as in sysexits.h.
const USAGE: u8 = 64;
const UNAVAILABLE: u8 = 69;
const SOFTWARE: u8 = 70;
const TEMPFAIL: u8 = 75;
/// The exit code that a shell reports for a command that SIGPIPE ended.
const PIPE: u8 = 128 + 13;

#[derive(Parser)]
#[command(name = "lockctl", version, about, disable_help_subcommand = true)]
/// Acquires and shows the locks of lock-core on Redis and Valkey.
struct Arguments {
    /// The url of the server, as for `LockManager::connect`
    #[arg(
        long,
        env = "LOCK_URL",
        global = true,
        hide_env_values = true,
        value_name = "URL"
    )]
    url: Option<String>,

    /// The manager's key prefix: the text before each key on the server
    #[arg(
        long,
        env = "LOCK_PREFIX",
        global = true,
        value_name = "TEXT",
        default_value = "lock:"
    )]
    prefix: String,

    /// Print JSON
    #[arg(long, global = true)]
    json: bool,

    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a command while a lock is held; exit code 75 if the lock is busy
    Run(run::Run),
    /// List the locks that are held, and how many processes wait for each, whatever the number of their tasks
    Ls {
        /// Only keys that begin with this
        #[arg(default_value = "", value_name = "PREFIX")]
        begin: String,
    },
    /// Show one lock: its holders with their permits and the remaining time of each lease, and the queue in order
    Show { key: String },
    /// Show a live table of the held locks, those with the most waiting processes first
    Watch {
        /// Only keys that begin with this
        #[arg(default_value = "", value_name = "PREFIX")]
        begin: String,
        /// The time between two updates
        #[arg(long, default_value = "1s", value_parser = humantime::parse_duration)]
        interval: Duration,
    },
    /// Release a lock on behalf of its holder, after confirmation
    Break(force::Break),
    /// Delete the result of a body that ran once, so that the next caller runs it again
    Forget { key: String },
    /// Check whether the server is suitable for locks, and say what to fix
    Doctor,
    /// Print a script that completes commands in a shell
    Completions { shell: clap_complete::Shell },
    /// Become the command of `run`
    #[cfg(target_os = "linux")]
    #[command(name = start::COMMAND, hide = true)]
    Exec(start::Exec),
}

/// The failure of a command.
struct Failed {
    code: u8,
    /// Printed, unless it is empty.
    reason: String,
}

impl From<LockError> for Failed {
    fn from(error: LockError) -> Self {
        let code = match &error {
            LockError::Busy { .. } => TEMPFAIL,
            LockError::Unavailable { .. } => UNAVAILABLE,
            LockError::Invalid { .. } => USAGE,
            _ => SOFTWARE,
        };
        let mut reason = error.to_string();
        let source = std::error::Error::source(&error).map(ToString::to_string);
        if let Some(source) = source.filter(|source| !reason.contains(source.as_str())) {
            reason = format!("{reason}: {source}");
        }
        Self { code, reason }
    }
}

impl From<io::Error> for Failed {
    fn from(error: io::Error) -> Self {
        // The reader, such as `head`, has closed the pipe. This exits as if SIGPIPE had ended the program.
        if error.kind() == io::ErrorKind::BrokenPipe {
            return Self {
                code: PIPE,
                reason: String::new(),
            };
        }
        Self {
            code: SOFTWARE,
            reason: error.to_string(),
        }
    }
}

impl Failed {
    fn usage(reason: impl Into<String>) -> Self {
        Self {
            code: USAGE,
            reason: reason.into(),
        }
    }
}

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => {
            drop(error.print());
            let is_asked = matches!(
                error.kind(),
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion
            );
            return ExitCode::from(if is_asked { 0 } else { USAGE });
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let ended = runtime
        .map_err(Failed::from)
        .and_then(|runtime| runtime.block_on(execute(arguments)));
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(Failed { code, reason }) => {
            // The reason may have several lines, but a message is one.
            let reason = reason.replace('\n', " ");
            if !reason.is_empty() {
                drop(writeln!(io::stderr(), "lockctl: {reason}"));
            }
            ExitCode::from(code)
        }
    }
}

async fn execute(arguments: Arguments) -> Result<u8, Failed> {
    let Arguments {
        url,
        prefix,
        json,
        command,
    } = arguments;
    let url = || {
        url.as_deref().ok_or_else(|| {
            Failed::usage("no server: pass --url, or set LOCK_URL, as in redis://127.0.0.1:6379")
        })
    };
    let prefix = prefix.as_str();
    let connect_as = async |label: Option<&str>| -> Result<LockManager, Failed> {
        let builder = LockManager::builder().key_prefix(prefix);
        let builder = match label {
            Some(label) => builder.label(label),
            None => builder,
        };
        Ok(builder.connect(url()?).await?)
    };
    let connect = async || connect_as(None).await;
    match command {
        Command::Run(run) => run::run(&connect_as(run.label.as_deref()).await?, run).await,
        Command::Ls { begin } => look::list(&connect().await?, &begin, json).await,
        Command::Show { key } => look::show(&connect().await?, &key, json).await,
        Command::Watch { begin, interval } => {
            look::watch(&connect().await?, &begin, interval).await
        }
        Command::Break(order) => force::force(&connect().await?, order, json).await,
        Command::Forget { key } => force::forget(&connect().await?, &key, json).await,
        Command::Doctor => doctor::examine(url()?, prefix, json).await,
        Command::Completions { shell } => complete(shell),
        #[cfg(target_os = "linux")]
        Command::Exec(order) => Err(start::become_command(&order)),
    }
}

fn complete(shell: clap_complete::Shell) -> Result<u8, Failed> {
    let mut command = Arguments::command();
    // Generated in memory first, because `generate` panics if it cannot write.
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "lockctl", &mut script);
    io::stdout().write_all(&script)?;
    Ok(0)
}
