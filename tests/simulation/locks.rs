//! Reads the locks from the data of a server.

use lock_tests::Mode;

use crate::{
    model::Value,
    network::{Host, Nanos},
    scheduler::ProcessId,
};

/// The holders of a lock on a server, in any process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Occupied {
    Free,
    Exclusive,
    Shared,
    /// This many permits are held.
    Permits(u16),
}

/// A holder of a shared lock or of a permit, with the end of its lease in milliseconds since the epoch.
struct NonExclusiveHolder {
    process: Option<ProcessId>,
    until: i64,
    permit: Option<i64>,
}

impl Host {
    pub(crate) fn occupied(&self, key: &str, now: Nanos) -> Occupied {
        match self.text(key, now) {
            None => Occupied::Free,
            Some(text) if text.starts_with("lc1+s:") => Occupied::Shared,
            Some(text) if text.starts_with("lc1+p:") => {
                let held = self.non_exclusive_holders(key, now).len();
                Occupied::Permits(u16::try_from(held).expect("a few"))
            }
            Some(_) => Occupied::Exclusive,
        }
    }

    /// Returns whether the server stores the result of a body that ran once.
    pub(crate) fn has_result(&self, key: &str, now: Nanos) -> bool {
        let name = format!("__lock_core__:result:lock:{key}");
        let now_us = self.clock_us(now);
        self.server.store.entry(name.as_bytes(), now_us).is_some()
    }

    /// Returns the processes for which the server holds a lock.
    pub(crate) fn owners(&self, key: &str, now: Nanos) -> Vec<ProcessId> {
        match self.occupied(key, now) {
            Occupied::Free => Vec::new(),
            Occupied::Exclusive => self.owner(key, now).into_iter().collect(),
            Occupied::Shared | Occupied::Permits(_) => {
                let holders = self.non_exclusive_holders(key, now).into_iter();
                holders.filter_map(|holder| holder.process).collect()
            }
        }
    }

    /// Returns how long, in the world's time, the server will hold the lock for this process, in this mode and with this
    /// permit.
    pub(crate) fn holds(
        &self,
        key: &str,
        process: ProcessId,
        mode: Mode,
        permit: Option<u16>,
        now: Nanos,
    ) -> Option<Nanos> {
        let now_us = self.clock_us(now);
        let entry = self.server.store.entry(key.as_bytes(), now_us)?;
        // A lease ends with the lock. That of a shared lock or of a permit also ends with its entry among the holders.
        let lock_until = entry.until.unwrap_or(i64::MAX / 1_000_000);
        let until = match (self.occupied(key, now), mode) {
            (Occupied::Exclusive, Mode::Exclusive) => {
                (self.owner(key, now) == Some(process)).then_some(lock_until)
            }
            (Occupied::Shared, Mode::Shared) | (Occupied::Permits(_), Mode::Permits(_)) => {
                let holders = self.non_exclusive_holders(key, now).into_iter();
                let of_it = holders.filter(|holder| {
                    holder.process == Some(process) && holder.permit == permit.map(i64::from)
                });
                let until = of_it.map(|holder| holder.until).max();
                until.map(|until| until.min(lock_until))
            }
            _ => None,
        }?;
        let left_us = until * 1000 - now_us;
        let left_us = left_us - left_us / 1000 * self.rate_ppm / 1000;
        u64::try_from(left_us * 1000).ok()
    }

    fn text(&self, key: &str, now: Nanos) -> Option<&str> {
        let now_us = self.clock_us(now);
        match &self.server.store.entry(key.as_bytes(), now_us)?.value {
            Value::Text(text) => Some(std::str::from_utf8(text).expect("an owner token")),
            _ => panic!("{key} is not a lock"),
        }
    }

    fn owner(&self, key: &str, now: Nanos) -> Option<ProcessId> {
        process_of(self.text(key, now)?)
    }

    fn non_exclusive_holders(&self, key: &str, now: Nanos) -> Vec<NonExclusiveHolder> {
        let now_us = self.clock_us(now);
        let of_all = |name: &str| {
            let name = format!("__lock_core__:{name}:{key}");
            match self.server.store.entry(name.as_bytes(), now_us) {
                Some(entry) => match &entry.value {
                    Value::Sorted(all) => all.clone(),
                    _ => panic!("{name} is not a set"),
                },
                None => Vec::new(),
            }
        };
        let permits = of_all("seats");
        let holders = of_all("holders").into_iter();
        let alive = holders.filter(|(until, member)| *until > now_us / 1000 && member != b"#");
        let shown = alive.map(|(until, member)| {
            let mut permits = permits.iter();
            let permit = permits.find(|(_, other)| *other == member);
            let entry = String::from_utf8(member).expect("an entry");
            NonExclusiveHolder {
                // The words are: channel, number, ttl, kind, owner token.
                process: entry.split(' ').nth(4).and_then(process_of),
                until,
                permit: permit.map(|(permit, _)| *permit),
            }
        });
        shown.collect()
    }
}

/// Returns the process of an owner token.
fn process_of(token: &str) -> Option<ProcessId> {
    // The second scheme is that of locks without scripts.
    let mut schemes = ["lc1:sim/", "lc0:sim/"].into_iter();
    let text = schemes.find_map(|scheme| token.strip_prefix(scheme))?;
    text.split(':').next()?.parse().ok()
}
