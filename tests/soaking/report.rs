//! The report at the end of the soak.

use std::{collections::BTreeMap, fmt};

use lock_tests::history::{Invariant, Tally};

use crate::{growth::Growth, secrets::Log};

/// The invariants, as the report names them.
const INVARIANTS: [(Invariant, &str); 6] = [
    (Invariant::Exclusion, "no two holders at the same time"),
    (Invariant::GrowingTokens, "fencing tokens grow"),
    (
        Invariant::FencedStore,
        "registers lose no increment, and refuse no holder",
    ),
    (Invariant::NothingLeft, "no lock is left at the end"),
    (Invariant::Service, "every waiter is served"),
    (Invariant::NoLeak, "no secret in any output, and no growth"),
];

/// The results of a soak.
pub(crate) struct Report {
    pub(crate) tally: Tally,
    pub(crate) faults: BTreeMap<String, u64>,
    pub(crate) log: Log,
    pub(crate) growth: Vec<Growth>,
    /// The numbers of accepted increments and of refusals.
    pub(crate) increments: (u64, u64),
}

impl Report {
    /// Returns the number of the first invariant that does not hold.
    pub(crate) fn first_violated(&self) -> Option<u8> {
        let mut violations = self.tally.violations().keys();
        violations.next().map(|invariant| invariant.number())
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (tally, (accepted, refused)) = (&self.tally, self.increments);
        let growth: Vec<String> = self.growth.iter().map(ToString::to_string).collect();
        for (name, value) in [
            (
                "acquisitions",
                format!(
                    "{} ({} attempts failed)",
                    tally.acquisitions, tally.failures
                ),
            ),
            (
                "longest without a grant",
                format!(
                    "{:.2?}, and {:.2?} around faults",
                    tally.longest_gap(),
                    tally.longest_gap_in_faults()
                ),
            ),
            (
                "increments",
                format!("{accepted} accepted, {refused} refused"),
            ),
            ("losses", counts(&self.log.losses)),
            ("failures", counts(&self.log.failures)),
            ("faults", counts(&self.faults)),
            ("lines of logs", self.log.lines.to_string()),
            ("growth", growth.join(", ")),
        ] {
            writeln!(f, "{name:<28}{value}")?;
        }
        for (invariant, text) in INVARIANTS {
            let (number, count) = (invariant.number(), tally.violations().get(&invariant));
            let count = count.copied().unwrap_or_default();
            writeln!(f, "  I{number}  {count:>4} violations  {text}")?;
            for line in tally.shown(invariant) {
                writeln!(f, "        {line}")?;
            }
        }
        Ok(())
    }
}

fn counts(counts: &BTreeMap<String, u64>) -> String {
    let each = counts.iter();
    let each: Vec<String> = each
        .map(|(name, count)| format!("{count} × {name}"))
        .collect();
    each.join(", ")
}
