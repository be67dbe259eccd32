//! Processes that lock in every possible way, on servers with every kind of fault, for any length of time.
//!
//! ```text
//! soak --topology one|sentinel|cluster|redlock|resp2|without-scripts [--minutes N | --seconds N] [--seed S] [--longest-ttl MS]
//! soak stall
//! ```
//!
//! With `stall`, one process holds 100,000 leases while the server is stopped, the connection is cut, and every core is busy. None
//! of the leases may be lost.
//!
//! The exit status is 0 if all promises are kept. Otherwise it is 10 plus the number of the first violated invariant, and the folder
//! with all logs is kept. The same seed makes the same faults in the same order.

mod attempt;
mod contend;
mod crew;
mod fault;
mod growth;
mod keys;
mod leftovers;
mod nemesis;
mod plan;
mod register;
mod report;
mod secrets;
mod settings;
mod soak;
mod topology;
mod ways;

use std::{
    env, fs,
    io::{self, Write},
    process::ExitCode,
};

use clap::Parser;
use lock_tests::{
    Process, RedisServer,
    stall::{hold_through_a_stall, lost_by_a_stall, own_cores},
};

use crate::{contend::Failure, settings::Settings};

/// Added to the number of an invariant, for the exit status.
const VIOLATED: u8 = 10;

/// The number of the invariant that only `stall` checks.
const NONE_LOST: u8 = 8;

fn main() -> Result<ExitCode, Failure> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["contend", ref rest @ ..] => {
            let runtime = tokio::runtime::Runtime::new()?;
            runtime.block_on(contend::contend(rest))?;
            Ok(ExitCode::SUCCESS)
        }
        ["hold", url] => {
            hold_through_a_stall(url);
            Ok(ExitCode::SUCCESS)
        }
        ["stall"] => stall(),
        _ => soak(&Settings::parse()),
    }
}

fn soak(settings: &Settings) -> Result<ExitCode, Failure> {
    let folder = tempfile::Builder::new().prefix("soak-").tempdir()?;
    let report = soak::soak(settings, folder.path())?;
    let mut stdout = io::stdout();
    writeln!(stdout, "\n{settings}\n{report}")?;
    let Some(number) = report.first_violated() else {
        return Ok(ExitCode::SUCCESS);
    };
    let folder = folder.keep();
    fs::write(folder.join("report"), report.to_string())?;
    writeln!(
        stdout,
        "I{number} is violated; the history, the faults and the logs are in {}",
        folder.display()
    )?;
    Ok(ExitCode::from(VIOLATED + number))
}

fn stall() -> Result<ExitCode, Failure> {
    let server = RedisServer::start();
    let program = env::current_exe()?;
    let program = program.to_str().ok_or("the path is not UTF-8")?;
    let holder = Process::spawn(program, &["hold", &server.url()], &[]);
    let lost = lost_by_a_stall(holder, &server, own_cores());
    writeln!(io::stdout(), "  I{NONE_LOST} {lost} of 100,000 leases lost")?;
    Ok(match lost {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(VIOLATED + NONE_LOST),
    })
}
