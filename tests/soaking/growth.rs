//! The resources in use, early and late.

use std::{collections::BTreeMap, fmt, fs};

use crate::topology::Servers;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Resource {
    Files,
    Threads,
    MemoryKib,
    Tasks,
    /// The clients of all servers together.
    Clients,
}

impl Resource {
    /// Returns the largest late number that does not count as growth.
    fn most(self, early: u64) -> u64 {
        match self {
            // New connections to servers that did not run before.
            Self::Files => early + 24,
            Self::Clients => early + 16,
            Self::Threads => early + 2,
            Self::Tasks => early + 40,
            // Pages that are touched for the first time, and guards that are leaked on purpose.
            Self::MemoryKib => early * 5 / 4 + (16 << 10),
        }
    }
}

/// The resources in use at one time, for each process by its number, or for all together.
#[derive(Debug)]
pub(crate) struct Usage(BTreeMap<(Option<u32>, Resource), u64>);

impl Usage {
    /// Measures these processes, given by number and id, and the servers. `tasks` is the number of tasks of one process.
    pub(crate) fn measure(processes: &[(u32, u32)], tasks: u64, servers: &Servers) -> Self {
        let mut usage = BTreeMap::new();
        usage.insert((None, Resource::Tasks), tasks);
        usage.insert((None, Resource::Clients), clients(servers));
        for &(number, id) in processes {
            for (resource, count) in of_process(id).into_iter().flatten() {
                usage.insert((Some(number), resource), count);
            }
        }
        Self(usage)
    }

    /// Compares it with a later measurement.
    pub(crate) fn growth(&self, late: &Self) -> Vec<Growth> {
        let early = self.0.iter();
        early
            .filter_map(|(&(process, resource), &early)| {
                Some(Growth {
                    process,
                    resource,
                    early,
                    late: *late.0.get(&(process, resource))?,
                })
            })
            .collect()
    }
}

/// The early and the late use of one resource.
#[derive(Debug)]
pub(crate) struct Growth {
    process: Option<u32>,
    resource: Resource,
    early: u64,
    late: u64,
}

impl Growth {
    pub(crate) fn is_excessive(&self) -> bool {
        self.late > self.resource.most(self.early)
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            process,
            resource,
            early,
            late,
        } = self;
        write!(f, "{resource:?} {early} -> {late}")?;
        match process {
            Some(process) => write!(f, " in process {process}"),
            None => Ok(()),
        }
    }
}

/// Returns the resources of a process, if it exists.
fn of_process(id: u32) -> Option<[(Resource, u64); 3]> {
    let status = fs::read_to_string(format!("/proc/{id}/status")).ok()?;
    let number = |name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse().ok()
    };
    let files = fs::read_dir(format!("/proc/{id}/fd")).ok()?.count();
    Some([
        (Resource::Files, u64::try_from(files).ok()?),
        (Resource::Threads, number("Threads:")?),
        (Resource::MemoryKib, number("VmRSS:")?),
    ])
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

    #[test]
    fn growth_of_a_process_beyond_its_bound_is_excessive() {
        let usage = |files| {
            let resources = of_process(std::process::id()).expect("this process exists");
            assert!(resources.iter().all(|(_, count)| *count > 0));
            Usage(BTreeMap::from([((Some(3), Resource::Files), files)]))
        };
        let is_excessive = |late| usage(20).growth(&usage(late))[0].is_excessive();
        assert!(!is_excessive(44) && is_excessive(45));
        let other = Usage(BTreeMap::from([((Some(4), Resource::Files), 99)]));
        assert!(usage(20).growth(&other).is_empty());
    }
}
