//! Processes that lock in every possible way, on servers with every kind of fault, for any length of time.
//!
//! ```text
//! soak --topology one|sentinel|cluster|redlock|resp2|without-scripts [--minutes N | --seconds N] [--seed S] [--longest-ttl MS]
//! soak stall
//! ```
//!
//! `stall` does one thing instead: one process holds 100,000 locks, while the server stands still, the connection is cut and every
//! core is busy. None of them may be lost.
//!
//! Its exit status is 0 if all promises were kept. Otherwise it is 10 plus the number of the first invariant that was broken,
//! and the folder with all logs is kept and named. The same seed makes the same faults in the same order.

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
    env,
    io::{self, Write},
    process::ExitCode,
};

use lock_tests::{Process, RedisServer, hold_through_a_stall, lost_by_a_stall, own_cores};

use crate::{contend::Failure, settings::Settings};

/// Added to the number of an invariant, for the exit status.
const OFFENDED: u8 = 10;

/// The number of the invariant that `stall` checks; the others are judged by a history.
const NONE_LOST: u8 = 8;

fn main() -> Result<ExitCode, Failure> {
    let arguments = contend::arguments();
    if let Some(("contend", rest)) = arguments
        .split_first()
        .map(|(first, rest)| (first.as_str(), rest))
    {
        let runtime = tokio::runtime::Runtime::new()?;
        runtime.block_on(contend::contend(rest))?;
        return Ok(ExitCode::SUCCESS);
    }
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["stall"] => return stall(),
        ["hold", url] => {
            hold_through_a_stall(url);
            return Ok(ExitCode::SUCCESS);
        }
        _ => {}
    }
    let settings = Settings::parse(&arguments)?;
    let folder = tempfile::Builder::new().prefix("soak-").tempdir()?;
    let (verdict, text) = soak::soak(&settings, folder.path())?;
    let mut stdout = io::stdout();
    writeln!(stdout, "\n{settings}\n{text}")?;
    let Some(number) = verdict.first_offended() else {
        return Ok(ExitCode::SUCCESS);
    };
    let folder = folder.keep();
    std::fs::write(folder.join("report"), text)?;
    writeln!(
        stdout,
        "I{number} does not hold; all that is known is in {}",
        folder.display()
    )?;
    Ok(ExitCode::from(OFFENDED + number))
}

fn stall() -> Result<ExitCode, Failure> {
    let server = RedisServer::start();
    let program = env::current_exe()?;
    let program = program.to_str().ok_or("a path in UTF-8")?;
    let holder = Process::spawn(program, &["hold", &server.url()], &[]);
    let lost = lost_by_a_stall(holder, &server, own_cores());
    writeln!(io::stdout(), "  I{NONE_LOST} {lost} of 100,000 leases lost")?;
    Ok(match lost {
        0 => ExitCode::SUCCESS,
        _ => ExitCode::from(OFFENDED + NONE_LOST),
    })
}
