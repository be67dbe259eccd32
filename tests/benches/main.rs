//! Benchmarks of lock-core, other crates and their baselines, all in one run.
//!
//! ```text
//! cargo bench -p lock-tests [-- [pairs] [hot_key] [storm] [queue] [held] [stall] [modes] [once] [attribute] [telemetry] [scripts] [--plot <path>]
//!     [--plot-readers <path>] [--unpinned]]
//! ```
//!
//! Without names, all of them run, which takes about ten minutes, four of them for `pairs`. They run pinned: the server has a
//! core to itself, and everything else shares the others. `pairs` and `once` also run free, placed by the scheduler. With
//! `--unpinned`, all of them only run free. The last lines of `pairs` need the newer servers that `tests/fetch` downloads.
//! `docs/performance.md` explains the output.

#![expect(clippy::print_stdout, reason = "the results are read in a terminal")]

mod attribute;
mod cores;
mod held;
mod hot_key;
mod last_holder;
mod load;
mod lockers;
mod modes;
mod network;
mod once;
mod pairs;
mod plot;
mod queue;
mod raw;
mod readers;
mod report;
mod rw_locks;
mod sample;
mod scripts;
mod stall;
mod storm;
mod telemetry;
mod usage;
mod worker;

use std::{
    env,
    path::{Path, PathBuf},
};

use clap::{Parser, ValueEnum};

use crate::{cores::Placement, plot::Plot};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Benchmark {
    Pairs,
    HotKey,
    Storm,
    Queue,
    Held,
    Stall,
    Modes,
    Once,
    Attribute,
    Telemetry,
    Scripts,
}

#[derive(Debug, Parser)]
struct Arguments {
    /// The benchmarks to run; all of them by default.
    names: Vec<Benchmark>,
    /// Where to write the plot of `hot_key`.
    #[arg(long)]
    plot: Option<PathBuf>,
    /// Where to write the plot of `modes`.
    #[arg(long)]
    plot_readers: Option<PathBuf>,
    /// Leave the placement of the server and the clients to the scheduler.
    #[arg(long)]
    unpinned: bool,
    /// Passed by cargo to every benchmark.
    #[arg(long = "bench", hide = true)]
    _bench: bool,
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == worker::MARK) {
        return worker::main(&arguments[1..]);
    }
    let arguments = Arguments::parse();
    // `pairs` and `once` run in each of these placements, the other benchmarks in the first one.
    let placements: &[Placement] = if arguments.unpinned {
        &[Placement::Free]
    } else {
        &[Placement::Pinned, Placement::Free]
    };
    cores::place(placements[0]);
    report_other_load("the machine, before the first benchmark");
    let names = match &arguments.names[..] {
        [] => Benchmark::value_variants(),
        names => names,
    };
    for name in names {
        match name {
            Benchmark::Pairs => pairs::run(placements),
            Benchmark::HotKey => write(&hot_key::run(), arguments.plot.as_deref()),
            Benchmark::Storm => storm::run(),
            Benchmark::Queue => queue::run(),
            Benchmark::Held => held::run(),
            Benchmark::Stall => stall::run(),
            Benchmark::Modes => write(&modes::run(), arguments.plot_readers.as_deref()),
            Benchmark::Once => once::run(placements),
            Benchmark::Attribute => attribute::run(),
            Benchmark::Telemetry => telemetry::run(),
            Benchmark::Scripts => scripts::run(),
        }
    }
    report_other_load("the machine, after the last benchmark");
}

fn report_other_load(title: &str) {
    report::title(title);
    let share = usage::taken_by_others();
    report::note("per cent of it taken by other programs", share * 100.0);
}

/// Writes a plot, if there is a path. Cargo starts the benchmarks in the folder of the package, but users start cargo in the folder
/// above.
fn write(plot: &Plot, path: Option<&Path>) {
    if let Some(path) = path {
        plot.write(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path));
    }
}
