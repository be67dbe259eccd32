//! The server's data for a key, in the form that the rules need.

use crate::model::{Server, Value};

pub(super) const LOCK: &str = "lock";
pub(super) const CLOCK: &str = "clock";
pub(super) const QUEUE: &str = "waiters:lock";
pub(super) const BEATS: &str = "beats";
pub(super) const HOLDERS: &str = "holders";
pub(super) const PERMITS: &str = "seats";
pub(super) const RESULT: &str = "result:lock";
/// The mark of processes that poll, which no request of the explorer does.
const ASKED: &str = "asked";
pub(super) const KEYS: [&str; 8] = [LOCK, CLOCK, QUEUE, BEATS, HOLDERS, PERMITS, RESULT, ASKED];

pub(super) const BAND: i64 = 4_500_000_000_000_000;
pub(super) const SILENT: i64 = 2_200_000;
const LAST: i64 = 9_007_199_254_740_991;

/// A request: its process, and its number in that process.
pub(super) type Request = (usize, u32);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lock {
    Free,
    Exclusive(Request),
    /// A shared phase, with its fencing token.
    Shared(i64),
    Permits,
    Foreign(Request),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Queued {
    pub(super) request: Request,
    pub(super) place: i64,
    pub(super) is_shared: bool,
    pub(super) is_silent: bool,
    pub(super) permits: Option<i64>,
}

#[derive(Clone, Debug)]
pub(super) struct ServerView {
    pub(super) lock: Lock,
    /// The waiting requests, in the order of the queue.
    pub(super) queue: Vec<Queued>,
    /// The holders whose leases have not ended, while the marker exists.
    pub(super) holders: Vec<Request>,
    pub(super) has_first_member: bool,
    pub(super) permits: Vec<(Request, i64)>,
    /// The cut in the beats.
    pub(super) cut: Option<i64>,
    /// The result of a body that ran once.
    pub(super) result: Option<String>,
}

impl ServerView {
    pub(super) fn new(server: &Server, now: i64) -> Self {
        let lock = match server.store.entry(LOCK.as_bytes(), now) {
            None => Lock::Free,
            Some(entry) => read_lock(&entry.value),
        };
        let beats = sorted(server, BEATS, now);
        let is_non_exclusive = matches!(lock, Lock::Shared(_) | Lock::Permits);
        let members = sorted(server, HOLDERS, now);
        let permits = sorted(server, PERMITS, now);
        let alive = |(ends, member): &(i64, String)| {
            (is_non_exclusive && *ends != LAST && *ends > now / 1000).then(|| request_of(member))
        };
        let queue = sorted(server, QUEUE, now).into_iter();
        Self {
            queue: queue
                .map(|(score, entry)| {
                    let kind = entry.split(' ').nth(3).expect("a kind");
                    let place = if score < BAND { score } else { score - BAND };
                    let last_beat = beats.iter().find(|(_, other)| *other == entry);
                    let last_beat = last_beat.map_or(place, |(beat, _)| place.max(*beat));
                    Queued {
                        request: request_of(&entry),
                        place,
                        is_shared: kind == "s",
                        is_silent: last_beat <= now - SILENT,
                        permits: kind.parse().ok(),
                    }
                })
                .collect(),
            holders: members.iter().filter_map(alive).collect(),
            has_first_member: members.iter().any(|(_, member)| member == "#"),
            permits: permits
                .iter()
                .map(|(permit, member)| (request_of(member), *permit))
                .collect(),
            cut: beats
                .iter()
                .find(|(_, member)| member == "#")
                .map(|(score, _)| score - BAND),
            result: server
                .store
                .entry(RESULT.as_bytes(), now)
                .map(|entry| match &entry.value {
                    Value::Text(text) => String::from_utf8_lossy(text).into_owned(),
                    _ => panic!("the result is not a string"),
                }),
            lock,
        }
    }

    pub(super) fn queued(&self, request: Request) -> Option<&Queued> {
        self.queue.iter().find(|queued| queued.request == request)
    }

    /// Returns whether the request is a holder for the server.
    pub(super) fn holds(&self, request: Request) -> bool {
        match self.lock {
            Lock::Exclusive(holder) | Lock::Foreign(holder) => holder == request,
            _ => self.holders.contains(&request),
        }
    }

    pub(super) fn all_holders(&self) -> Vec<Request> {
        match self.lock {
            Lock::Exclusive(holder) | Lock::Foreign(holder) => vec![holder],
            _ => self.holders.clone(),
        }
    }
}

pub(super) fn sorted(server: &Server, key: &str, now: i64) -> Vec<(i64, String)> {
    match server.store.entry(key.as_bytes(), now).map(|it| &it.value) {
        Some(Value::Sorted(all)) => all
            .iter()
            .map(|(score, member)| (*score, String::from_utf8_lossy(member).into_owned()))
            .collect(),
        _ => Vec::new(),
    }
}

fn read_lock(value: &Value) -> Lock {
    let Value::Text(text) = value else {
        panic!("the lock is not a string");
    };
    let text = String::from_utf8_lossy(text);
    if text == "lc1+p:" {
        Lock::Permits
    } else if let Some(token) = text.strip_prefix("lc1+s:") {
        let token = token.strip_suffix(':').expect("a marker");
        Lock::Shared(token.parse().expect("a fencing token"))
    } else if text.starts_with("lc1:") {
        Lock::Exclusive(request_of(&text))
    } else {
        Lock::Foreign(request_of(&text))
    }
}

/// Parses the end of an owner token, "…:process:number".
pub(super) fn request_of(text: &str) -> Request {
    let mut words = text.rsplit(':');
    let mut next = || words.next().and_then(|word| word.parse().ok());
    let number = next().unwrap_or(u32::MAX);
    let process = next().unwrap_or(u32::MAX);
    (process as usize, number)
}
