//! The resources of the machine that a contender uses, early and late.

use std::{collections::BTreeMap, fs};

use crate::topology::Servers;

/// The resources of one process at one time, as the kernel counts them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sample {
    pub(crate) files: u64,
    pub(crate) threads: u64,
    pub(crate) memory_kib: u64,
}

/// An early sample of some processes, and a late one.
#[derive(Debug, Default)]
pub(crate) struct Growth {
    early: BTreeMap<u32, Sample>,
    late: BTreeMap<u32, Sample>,
    clients: [Option<u64>; 2],
    tasks: [Option<u64>; 2],
}

/// Which of the two samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum When {
    Early,
    Late,
}

// The growth that is allowed: new connections to the registers, and to servers that were not there before.
const MORE_FILES: u64 = 24;
const MORE_THREADS: u64 = 2;
const MORE_TASKS: u64 = 40;
const MORE_CLIENTS: u64 = 16;
/// The growth of memory that is allowed: pages that are touched for the first time, and the guards that are leaked on purpose.
const MORE_MEMORY_KIB: u64 = 16 << 10;

impl Sample {
    /// The sample of a process, if it exists.
    pub(crate) fn of(id: u32) -> Option<Self> {
        let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
        let number = |name: &str| {
            let line = status.lines().find(|line| line.starts_with(name))?;
            line.split_whitespace().nth(1)?.parse().ok()
        };
        let files = fs::read_dir(format!("/proc/{id}/fd")).ok()?.count();
        Some(Self {
            files: u64::try_from(files).ok()?,
            threads: number("Threads:")?,
            memory_kib: number("VmRSS:")?,
        })
    }

    /// Returns a line for each resource that has grown beyond its bound.
    fn excess(self, early: Self) -> Vec<String> {
        let bounds = [
            ("files", early.files + MORE_FILES, early.files, self.files),
            (
                "threads",
                early.threads + MORE_THREADS,
                early.threads,
                self.threads,
            ),
            (
                "KiB of memory",
                early.memory_kib * 5 / 4 + MORE_MEMORY_KIB,
                early.memory_kib,
                self.memory_kib,
            ),
        ];
        let exceeded = bounds.into_iter().filter(|(_, most, _, now)| now > most);
        exceeded
            .map(|(what, most, before, now)| {
                format!("{before} {what} became {now}, at most {most} were expected")
            })
            .collect()
    }
}

impl Growth {
    /// Takes a sample of these processes, by number and id, and of the servers' clients.
    pub(crate) fn look(
        &mut self,
        when: When,
        processes: &[(u32, u32)],
        tasks: u64,
        servers: &Servers,
    ) {
        let samples = match when {
            When::Early => &mut self.early,
            When::Late => &mut self.late,
        };
        for &(number, id) in processes {
            if let Some(sample) = Sample::of(id) {
                samples.insert(number, sample);
            }
        }
        let place = usize::from(when == When::Late);
        self.clients[place] = Some(clients(servers));
        self.tasks[place] = Some(tasks);
    }

    /// Returns a line for each resource of any process that has grown beyond its bound.
    pub(crate) fn excesses(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (number, early, late) in self.pairs() {
            let excess = late.excess(early).into_iter();
            found.extend(excess.map(|excess| format!("process {number}: {excess}")));
        }
        for (what, [early, late], more) in [
            ("clients of the servers", self.clients, MORE_CLIENTS),
            ("tasks of a process", self.tasks, MORE_TASKS),
        ] {
            if let (Some(early), Some(late)) = (early, late)
                && late > early + more
            {
                found.push(format!("{early} {what} became {late}"));
            }
        }
        found
    }

    /// The lines for the report.
    pub(crate) fn lines(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .pairs()
            .map(|(number, early, late)| {
                format!(
                    "process {number}: {} -> {} KiB, {} -> {} files, {} -> {} threads",
                    early.memory_kib,
                    late.memory_kib,
                    early.files,
                    late.files,
                    early.threads,
                    late.threads
                )
            })
            .collect();
        if let ([Some(early), Some(late)], [Some(tasks), Some(tasks_late)]) =
            (self.clients, self.tasks)
        {
            lines.push(format!(
                "clients {early} -> {late}, tasks of one process {tasks} -> {tasks_late}"
            ));
        }
        lines
    }

    fn pairs(&self) -> impl Iterator<Item = (u32, Sample, Sample)> {
        let late = |number: &u32| self.late.get(number).copied();
        let early = self.early.iter();
        early.filter_map(move |(&number, &sample)| Some((number, sample, late(&number)?)))
    }
}

fn clients(servers: &Servers) -> u64 {
    let primaries = servers.primaries().into_iter();
    let clients = primaries.filter_map(|server| {
        let info = server.info("clients");
        let line = info
            .lines()
            .find_map(|line| line.strip_prefix("connected_clients:"));
        line?.trim().parse::<u64>().ok()
    });
    clients.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const EARLY: Sample = Sample {
        files: 20,
        threads: 4,
        memory_kib: 10_000,
    };

    #[test]
    fn this_process_can_be_looked_at() {
        let sample = Sample::of(std::process::id()).expect("it is there");
        assert!(
            sample.files > 2 && sample.threads > 0 && sample.memory_kib > 100,
            "{sample:?}"
        );
        assert_eq!(Sample::of(u32::MAX), None);
    }

    #[test]
    fn each_bound_is_kept_and_exceeded_by_itself() {
        assert!(EARLY.excess(EARLY).is_empty());
        for late in [
            Sample { files: 45, ..EARLY },
            Sample {
                threads: 7,
                ..EARLY
            },
            Sample {
                memory_kib: 30_000,
                ..EARLY
            },
        ] {
            assert_eq!(late.excess(EARLY).len(), 1, "{late:?}");
        }
        let mut growth = Growth {
            clients: [Some(8), Some(25)],
            tasks: [Some(10), Some(50)],
            ..Growth::default()
        };
        assert_eq!(growth.excesses().len(), 1);
        growth.early.insert(3, EARLY);
        growth.late.insert(3, Sample { files: 90, ..EARLY });
        assert_eq!(growth.excesses().len(), 2);
    }
}
