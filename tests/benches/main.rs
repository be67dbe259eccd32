//! Measures lock-core beside the floors under it, and the other crates, all in one run.
//!
//! ```text
//! cargo bench -p lock-tests [-- [pairs] [hot_key] [storm] [queue] [held] [stall] [modes] [once] [attribute] [telemetry] [scripts] [--plot <path>]
//!     [--plot-readers <path>] [--unpinned]]
//! ```
//!
//! Without names, all of them run, in about ten minutes, of which `pairs` takes four. They run pinned: the server has a
//! core of its own, and everything else has the others. `pairs` and `once` also run free: the scheduler puts everything where it wants.
//! With `--unpinned`, all benches run only so. The last lines of `pairs` need the newer servers that `tests/fetch` gets.
//! `docs/performance.md` explains the lines.

#![expect(clippy::print_stdout, reason = "a bench is read in a terminal")]

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
mod readers_plot;
mod report;
mod rw_locks;
mod sample;
mod scripts;
mod stall;
mod storm;
mod svg;
mod telemetry;
mod usage;
mod worker;

use std::{
    env,
    path::{Path, PathBuf},
};

use crate::cores::Placement;

const NAMES: [&str; 11] = [
    "pairs",
    "hot_key",
    "storm",
    "queue",
    "held",
    "stall",
    "modes",
    "once",
    "attribute",
    "telemetry",
    "scripts",
];

fn main() -> Result<(), String> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == worker::MARK) {
        worker::main(&arguments[1..]);
        return Ok(());
    }
    let orders = Orders::read(arguments.into_iter())?;
    cores::place(orders.placements[0]);
    report::title("the machine, before anything starts");
    report::note(
        "per cent of it taken by others",
        usage::taken_by_others() * 100.0,
    );
    for name in &orders.names {
        match *name {
            "pairs" => pairs::run(orders.placements),
            "hot_key" => {
                let curves = hot_key::run();
                if let Some(path) = &orders.plot {
                    plot::write(path, &curves);
                }
            }
            "storm" => storm::run(),
            "queue" => queue::run(),
            "held" => held::run(),
            "stall" => stall::run(),
            "modes" => {
                let outcomes = modes::run();
                if let Some(path) = &orders.plot_readers {
                    readers_plot::write(path, &outcomes);
                }
            }
            "once" => once::run(orders.placements),
            "attribute" => attribute::run(),
            "telemetry" => telemetry::run(),
            _ => scripts::run(),
        }
    }
    report::title("the machine, after everything has ended");
    report::note(
        "per cent of it taken by others",
        usage::taken_by_others() * 100.0,
    );
    Ok(())
}

/// The orders in the arguments.
struct Orders {
    names: Vec<&'static str>,
    /// The path for the plot of `hot_key`.
    plot: Option<PathBuf>,
    /// The path for the plot of `modes`.
    plot_readers: Option<PathBuf>,
    /// Where everything runs. `pairs` and `once` are measured in each of them, the other benches in the first.
    placements: &'static [Placement],
}

impl Orders {
    fn read(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut orders = Self {
            names: Vec::new(),
            plot: None,
            plot_readers: None,
            placements: &[Placement::Pinned, Placement::Free],
        };
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                // Cargo passes this to every bench.
                "--bench" => {}
                "--unpinned" => orders.placements = &[Placement::Free],
                "--plot" => orders.plot = Some(path(&mut arguments)?),
                "--plot-readers" => orders.plot_readers = Some(path(&mut arguments)?),
                name => {
                    let known = NAMES.into_iter().find(|known| *known == name);
                    orders.names.push(known.ok_or_else(|| {
                        format!("`{name}` is none of {NAMES:?}, --plot <path>, --plot-readers <path>, --unpinned")
                    })?);
                }
            }
        }
        if orders.names.is_empty() {
            orders.names = NAMES.into();
        }
        for (plot, name) in [(&orders.plot, "hot_key"), (&orders.plot_readers, "modes")] {
            if plot.is_some() && !orders.names.contains(&name) {
                return Err(format!("the plot shows what `{name}` measures"));
            }
        }
        Ok(orders)
    }
}

/// The path of a picture. Cargo starts the bench in the folder of the package, and the user starts cargo above it.
fn path(arguments: &mut impl Iterator<Item = String>) -> Result<PathBuf, String> {
    let path = arguments.next().ok_or("a plot needs a path")?;
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path))
}
