//! Processes that lock in every way there is, on servers that break in every way there is, for as long as one likes.
//!
//! ```text
//! soak --topology one|sentinel|cluster|redlock|resp2|without-scripts [--minutes N | --seconds N] [--seed S] [--longest-ttl MS]
//! ```
//!
//! Its exit status is 0 if all that is promised was kept, and else 10 and the number of the first invariant that was not; the
//! folder with all that is known is then kept and named. The same seed makes the same faults in the same order.

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
    io::{self, Write},
    process::ExitCode,
};

use crate::{contend::Failure, settings::Settings};

/// Added to the number of an invariant.
const OFFENDED: u8 = 10;

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
