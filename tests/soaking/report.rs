//! The output during the soak, and at its end.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, IsTerminal, Write as _},
    time::{Duration, Instant},
};

use lock_tests::history::{Invariant, Tally};

use crate::{growth::Growth, nemesis::Ledger, secrets::Log};

/// A status line that is overwritten on a terminal; elsewhere a new line now and then.
#[derive(Debug)]
pub(crate) struct Progress {
    started: Instant,
    shown: Option<Instant>,
    acquisitions: u64,
}

impl Progress {
    pub(crate) fn start() -> Self {
        Self {
            started: Instant::now(),
            shown: None,
            acquisitions: 0,
        }
    }

    pub(crate) fn show(&mut self, tally: &Tally, ledger: &Ledger) -> io::Result<()> {
        let mut stdout = io::stdout();
        let is_watched = stdout.is_terminal();
        let pause = Duration::from_millis(if is_watched { 500 } else { 15_000 });
        let since = self.shown.map(|shown| shown.elapsed());
        if since.is_some_and(|since| since < pause) {
            return Ok(());
        }
        let new = tally.acquisitions() - self.acquisitions;
        let rate = u128::from(new) * 1000 / since.map_or(1000, |since| since.as_millis());
        let line = format!(
            "{:>6.1} s  {rate:>5} acquisitions/s  {:>4} faults  worst wait {:>5.2?}  {} offences  {}",
            self.started.elapsed().as_secs_f64(),
            ledger.counts().values().sum::<u64>(),
            tally.worst_wait(),
            tally.offences().values().sum::<u64>(),
            ledger.current(),
        );
        self.shown = Some(Instant::now());
        self.acquisitions = tally.acquisitions();
        if is_watched {
            write!(stdout, "\r\x1b[K{line}")?;
        } else {
            writeln!(stdout, "{line}")?;
        }
        stdout.flush()
    }
}

/// The offences of each invariant, by its number.
#[derive(Debug, Default)]
pub(crate) struct Verdict {
    offences: BTreeMap<u8, (u64, Vec<String>)>,
}

/// The number of offences of each invariant that are shown.
const SHOWN: usize = 5;

/// The invariants that are checked, with their numbers.
const INVARIANTS: [(u8, &str); 6] = [
    (1, "no two holders at a time"),
    (3, "fencing tokens grow"),
    (
        4,
        "guarded registers lose no increment, and take every holder's",
    ),
    (5, "nothing is left when all have gone"),
    (6, "every waiter is served, and none is stuck"),
    (7, "no secret in any output, and no growth"),
];

impl Verdict {
    /// Adds offences of the invariant with this number.
    pub(crate) fn add(&mut self, number: u8, lines: impl IntoIterator<Item = String>) {
        for line in lines {
            let (count, shown) = self.offences.entry(number).or_default();
            *count += 1;
            if shown.len() < SHOWN {
                shown.push(line);
            }
        }
    }

    /// Adds the offences that the history has shown.
    pub(crate) fn add_tally(&mut self, tally: &Tally) {
        for (invariant, number) in [
            (Invariant::Exclusion, 1),
            (Invariant::GrowingTokens, 3),
            (Invariant::Service, 6),
        ] {
            self.add(number, tally.shown(invariant).iter().cloned());
            let all = tally
                .offences()
                .get(&invariant)
                .copied()
                .unwrap_or_default();
            if let Some((count, shown)) = self.offences.get_mut(&number) {
                // The offences without text are counted, too.
                *count +=
                    all.saturating_sub(u64::try_from(shown.len()).unwrap_or(u64::MAX).min(all));
            }
        }
    }

    /// Returns the number of the first invariant that does not hold.
    pub(crate) fn first_offended(&self) -> Option<u8> {
        self.offences.keys().next().copied()
    }

    fn lines(&self) -> String {
        let mut lines = String::new();
        for (number, name) in INVARIANTS {
            let none = (0, Vec::new());
            let (count, shown) = self.offences.get(&number).unwrap_or(&none);
            writeln!(lines, "  I{number}  {count:>4} offences  {name}")
                .expect("a string takes everything");
            for line in shown {
                writeln!(lines, "        {line}").expect("a string takes everything");
            }
        }
        lines
    }
}

/// All results at the end.
pub(crate) struct Report<'a> {
    pub(crate) tally: &'a Tally,
    pub(crate) ledger: &'a Ledger,
    pub(crate) log: &'a Log,
    pub(crate) growth: &'a Growth,
    pub(crate) verdict: &'a Verdict,
    pub(crate) increments: (u64, u64),
    pub(crate) most_kept: usize,
}

impl Report<'_> {
    /// The text of the report.
    pub(crate) fn text(&self) -> String {
        let tally = self.tally;
        let (accepted, refused) = self.increments;
        let mut text = String::new();
        let mut line = |what: &str, value: String| {
            writeln!(text, "{what:<28}{value}").expect("a string takes everything");
        };
        line(
            "acquisitions",
            format!(
                "{} ({} from a holder in the same process), {} in vain",
                tally.acquisitions(),
                tally.local(),
                tally.failures
            ),
        );
        line(
            "waits",
            format!(
                "99 of 100 within {:.2?}, worst {:.2?} for {}",
                tally.p99_wait(),
                tally.worst_wait(),
                tally.worst_wait_for()
            ),
        );
        line(
            "longest without service",
            format!(
                "{:.2?}, and {:.2?} around faults",
                tally.longest_gap(),
                tally.longest_gap_in_faults()
            ),
        );
        line(
            "increments",
            format!("{accepted} accepted, {refused} refusals"),
        );
        line("losses", counts(self.log.losses()));
        line("failures", counts(self.log.failures()));
        let faults: BTreeMap<String, u64> = self
            .ledger
            .counts()
            .into_iter()
            .map(|(name, count)| (name.to_owned(), count))
            .collect();
        line("faults", counts(&faults));
        line("events kept at most", self.most_kept.to_string());
        line("lines of logs", self.log.lines().to_string());
        for growth in self.growth.lines() {
            line("growth", growth);
        }
        text + &self.verdict.lines()
    }
}

fn counts(counts: &BTreeMap<String, u64>) -> String {
    let each = counts
        .iter()
        .map(|(name, count)| format!("{count} × {name}"));
    let all: Vec<String> = each.collect();
    if all.is_empty() {
        "none".to_owned()
    } else {
        all.join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_invariant_that_does_not_hold_decides() {
        let mut verdict = Verdict::default();
        assert_eq!(verdict.first_offended(), None);
        verdict.add(7, (0..9).map(|number| format!("line {number}")));
        verdict.add(5, ["a key".to_owned()]);
        assert_eq!(verdict.first_offended(), Some(5));
        let lines = verdict.lines();
        assert!(
            lines.contains("   9 offences")
                && lines.contains("line 4")
                && !lines.contains("line 5"),
            "{lines}"
        );
    }
}
