//! Random operations on one table, and the promises for all of them, which are checked on what is visible from outside:
//! replies, notices and time.
//!
//! At any time, at most one live entry waits in each kind of mode, as in one process. Entries that the process gave up
//! may remain without a release.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use proptest::prelude::{Just, ProptestConfig, Strategy, prop_oneof, proptest};

use crate::backend::memory::lock_table::*;
use crate::{backend::owner::Owner, engine::reply::Grant, inspect::NAMED};

const MILLI: Duration = Duration::from_millis(1);
const TTLS: [Duration; 3] = [
    Duration::from_millis(100),
    Duration::from_millis(250),
    Duration::from_secs(1),
];

/// An operation of an actor.
#[derive(Clone, Copy, Debug)]
enum Op {
    /// Asks, checks or asks again, in any state.
    Acquire(usize, Wait, usize),
    Renew(usize, usize),
    Release(usize, Keep),
    /// Ends without a release.
    Die(usize),
    Pass(u64),
    ForceRelease,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wait {
    No,
    Yes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keep {
    No,
    Yes,
}

fn any_op(actors: usize) -> impl Strategy<Value = Op> {
    let wait = || prop_oneof![1 => Just(Wait::No), 4 => Just(Wait::Yes)];
    let keep = || prop_oneof![5 => Just(Keep::No), 1 => Just(Keep::Yes)];
    let ttls = TTLS.len();
    prop_oneof![
        8 => (0..actors, wait(), 0..ttls).prop_map(|(actor, wait, ttl)| Op::Acquire(actor, wait, ttl)),
        2 => (0..actors, 0..ttls).prop_map(|(actor, ttl)| Op::Renew(actor, ttl)),
        6 => (0..actors, keep()).prop_map(|(actor, keep)| Op::Release(actor, keep)),
        1 => (0..actors).prop_map(Op::Die),
        3 => (1..150_u64).prop_map(Op::Pass),
        1 => Just(Op::ForceRelease),
    ]
}

struct Actor {
    mode: Mode,
    owner: Option<Asking>,
}

#[derive(Clone)]
struct Asking {
    entry: Entry,
    /// `true` if it has asked to wait.
    has_joined: bool,
}

/// The knowledge of an observer about a holder.
#[derive(Clone, Copy, Debug)]
struct Seen {
    number: EntryNumber,
    mode: Mode,
    permit: Option<u16>,
    fencing: u64,
    expires: Moment,
    is_kept: bool,
}

/// The knowledge of an observer about a waiter.
#[derive(Clone, Copy, Debug)]
struct Waits {
    entry: Entry,
    /// The number of phases that were over when it joined: exclusive ones, shared ones.
    phases: (u32, u32),
    /// The number of exclusive ones that held the lock or waited then: each kind of them has one request.
    exclusive_before: u32,
}

struct World {
    table: LockTable,
    last_token: u64,
    now: Moment,
    actors: Vec<Actor>,
    last_number: EntryNumber,
    alive: BTreeSet<EntryNumber>,
    held: Vec<Seen>,
    /// In the order in which they arrived.
    queue: Vec<Waits>,
    /// The number of phases that began: exclusive ones, shared ones.
    phases: (u32, u32),
    largest_token: u64,
    /// The stamp of the last reply to each entry.
    stamps: BTreeMap<EntryNumber, u64>,
}

fn has_permits(mode: Mode) -> bool {
    mode.kind() == RequestKind::Permits
}

impl World {
    fn new(modes: &[Mode]) -> Self {
        let actor = |mode: &Mode| Actor {
            mode: *mode,
            owner: None,
        };
        Self {
            table: LockTable::default(),
            last_token: 0,
            now: Moment::from_nanos(0),
            actors: modes.iter().map(actor).collect(),
            last_number: 0,
            alive: BTreeSet::new(),
            held: Vec::new(),
            queue: Vec::new(),
            phases: (0, 0),
            largest_token: 0,
            stamps: BTreeMap::new(),
        }
    }

    fn update<T>(
        &mut self,
        operation: impl FnOnce(&mut LockTable, &mut TableUpdate<'_>) -> T,
    ) -> (T, Vec<(EntryNumber, Notice)>) {
        let alive = &self.alive;
        let mut update = TableUpdate {
            now: self.now,
            known_fencing: self.largest_token,
            wall_clock: || Duration::ZERO,
            last_token: &mut self.last_token,
            is_alive: &|number| alive.contains(&number),
            notices: Vec::new(),
        };
        let result = operation(&mut self.table, &mut update);
        (result, update.notices)
    }

    fn owner(&mut self, actor: usize, ttl: Duration) -> Asking {
        let mode = self.actors[actor].mode;
        if self.actors[actor].owner.is_none() {
            self.last_number += 1;
            self.alive.insert(self.last_number);
        }
        let number = self.last_number;
        let new = || Asking {
            entry: Entry { number, ttl, mode },
            has_joined: false,
        };
        self.actors[actor].owner.get_or_insert_with(new).clone()
    }

    fn step(&mut self, op: Op) {
        self.held.retain(|seen| seen.expires > self.now);
        match op {
            Op::Acquire(actor, wait, ttl) => self.acquire(actor, wait, TTLS[ttl]),
            Op::Renew(actor, ttl) => self.renew(actor, TTLS[ttl]),
            Op::Release(actor, keep) => self.release(actor, keep),
            Op::Die(actor) => {
                if let Some(owner) = self.actors[actor].owner.take() {
                    self.alive.remove(&owner.entry.number);
                    self.left(owner.entry.number);
                }
            }
            Op::Pass(millis) => {
                self.now = self
                    .now
                    .after(MILLI * u32::try_from(millis).expect("small"));
            }
            Op::ForceRelease => {
                self.held.clear();
                let ((), notices) = self.update(LockTable::force_release);
                self.read(&notices, None);
                self.nothing_waits_in_vain();
            }
        }
        self.held.retain(|seen| seen.expires > self.now);
        self.holders_exclude_each_other();
        self.is_seen_as_it_is();
    }

    fn acquire(&mut self, actor: usize, wait: Wait, ttl: Duration) {
        let owner = self.owner(actor, ttl);
        let own = owner.entry;
        let was_held = self.holder(own.number);
        let mut queue = self.queue.iter();
        let was_queued = queue.any(|waits| waits.entry.number == own.number);
        if was_held.is_none() && !was_queued && self.waits(own.mode.kind()) {
            return;
        }
        let queue_mode = match (wait, owner.has_joined) {
            (_, true) => QueueMode::CheckPosition(None),
            (Wait::Yes, false) => QueueMode::JoinQueue,
            (Wait::No, false) => QueueMode::DoNotQueue,
        };
        // An entry that returns after its grant has ended is a newcomer, too.
        let was_newcomer = !was_queued && was_held.is_none();
        let request = Acquire {
            owner: Owner::of_entry(own),
            ttl,
            known_fencing: self.largest_token,
            tokens: 1,
            queue_mode,
            queued_ttl: None,
            after: None,
        };
        let (reply, notices) = self.update(|table, update| table.acquire(&request, update));
        let mine = match &reply {
            Ok(AcquireOutcome::Granted(grant)) => Some((own, *grant, ttl, was_held)),
            _ => None,
        };
        if let Err(failure) = &reply {
            assert!(matches!(failure, Failure::Invalid(reason) if **reason == *OTHER_MODE));
            assert!(!was_queued, "refused while it waits");
            assert!(self.is_in_other_mode(own.mode), "refused for no reason");
        }
        self.read(&notices, mine);
        match reply {
            Ok(AcquireOutcome::Granted(_)) if was_newcomer => {
                assert!(
                    self.queue.is_empty(),
                    "S2: a newcomer overtook {:?}",
                    self.queue
                );
            }
            Ok(AcquireOutcome::Granted(_)) | Err(_) => {}
            Ok(AcquireOutcome::Busy(busy)) => self.is_busy(actor, queue_mode, &busy, &notices),
            Ok(AcquireOutcome::Undo) => panic!("memory never grants half of a lock"),
            Ok(AcquireOutcome::Done(_)) => panic!("no result was stored"),
        }
        self.nothing_waits_in_vain();
    }

    fn is_busy(
        &mut self,
        actor: usize,
        queue_mode: QueueMode,
        busy: &Busy,
        notices: &[(EntryNumber, Notice)],
    ) {
        let own = self.actors[actor].owner.as_ref().expect("has asked").entry;
        assert!(
            !self.is_in_other_mode(own.mode),
            "not refused in {:?}",
            own.mode
        );
        assert!(!self.held.is_empty(), "nothing holds it");
        let ends = self.held.iter().map(|seen| seen.expires);
        let end = if has_permits(own.mode) {
            ends.min()
        } else {
            ends.max()
        };
        let left = end.expect("held").since(self.now);
        assert_eq!(busy.expiry, Expiry::In(left));
        self.stamps.insert(own.number, busy.stamp.expect("a stamp"));
        if queue_mode == QueueMode::DoNotQueue {
            self.actors[actor].owner = None;
        } else {
            self.queued(own);
            self.actors[actor].owner.as_mut().expect("asks").has_joined = true;
        }
        let notified = notices.iter().filter_map(|(number, notice)| match notice {
            Notice::Contended => Some(*number),
            Notice::Granted(_) | Notice::Hint => None,
        });
        let notified: BTreeSet<_> = notified.collect();
        let mut shares: BTreeSet<_> = BTreeSet::new();
        if own.mode.is_alone() {
            let owned = self
                .held
                .iter()
                .filter(|seen| seen.mode == Mode::Shared && !seen.is_kept);
            shares.extend(owned.map(|seen| seen.number));
        }
        assert_eq!(notified, shares, "an exclusive request ends the shares");
    }

    fn renew(&mut self, actor: usize, ttl: Duration) {
        let Some(owner) = self.actors[actor].owner.clone() else {
            return;
        };
        let request = Renew::without_tokens(&Owner::of_entry(owner.entry), ttl);
        let is_held = self.holder(owner.entry.number).is_some();
        let (renewed, notices) = self.update(|table, update| table.renew(&request, update));
        if is_held {
            let expires = self.now.after(ttl);
            let seen = self
                .held
                .iter_mut()
                .find(|seen| seen.number == owner.entry.number);
            let seen = seen.expect("held");
            seen.expires = seen.expires.max(expires);
        }
        self.read(&notices, None);
        let expected = if is_held {
            Renewed::Extended {
                tokens: FencingBlock::EMPTY,
                contended: if self.is_contended(owner.entry.mode) {
                    Contended::OthersQueued
                } else {
                    Contended::NoneWaiting
                },
            }
        } else {
            Renewed::NotOurs
        };
        assert_eq!(renewed, expected);
        self.nothing_waits_in_vain();
    }

    fn release(&mut self, actor: usize, keep: Keep) {
        let Some(owner) = self.actors[actor].owner.take() else {
            return;
        };
        let number = owner.entry.number;
        let request = Release {
            owner: Owner::of_entry(owner.entry),
            result: None,
            keep: (keep == Keep::Yes).then_some(TTLS[1]),
            known_fencing: self.largest_token,
            may_be_queued: true,
            valid_until: Moment::NEVER,
        };
        let is_held = self.holder(number).is_some();
        self.left(number);
        let end = self.now.after(TTLS[1]);
        match keep {
            Keep::No => self
                .held
                .retain(|seen| seen.number != number || seen.is_kept),
            Keep::Yes => {
                for seen in self.held.iter_mut().filter(|seen| seen.number == number) {
                    (seen.expires, seen.is_kept) = (end, true);
                }
            }
        }
        let (outcome, notices) = self.update(|table, update| table.release(&request, update));
        assert_eq!(outcome == ReleaseOutcome::Released, is_held);
        self.alive.remove(&number);
        self.read(&notices, None);
        self.nothing_waits_in_vain();
    }

    /// Checks that grants come in the order in which the entries enter. The grant of the entry of this request, which has no
    /// notice, is among them.
    fn read(
        &mut self,
        notices: &[(EntryNumber, Notice)],
        mine: Option<(Entry, Grant, Duration, Option<Seen>)>,
    ) {
        let mut grants = Vec::new();
        for (number, notice) in notices {
            if let Notice::Granted(pushed) = notice {
                let waits = self
                    .queue
                    .iter()
                    .find(|waits| waits.entry.number == *number);
                let entry = waits.expect("only a waiter is granted the lock").entry;
                assert!(
                    self.alive.contains(number),
                    "a grant for an entry that is gone"
                );
                let replied = self.stamps.get(number).copied().unwrap_or(0);
                assert!(pushed.stamp > replied, "a grant looks older than a reply");
                grants.push((entry, pushed.grant, entry.ttl, None));
            }
        }
        grants.extend(mine);
        for (entry, grant, ttl, was_held) in grants {
            self.granted(entry, grant, ttl, was_held);
        }
    }

    /// Checks a grant. `was_held` is the state of the entry if it already held the lock and asked again.
    fn granted(&mut self, entry: Entry, grant: Grant, ttl: Duration, was_held: Option<Seen>) {
        let fencing = u64::from(grant.tokens.last());
        let expires = self.now.after(ttl);
        if let Some(before) = was_held {
            assert_eq!(grant.permit, before.permit);
            if entry.mode == Mode::Shared {
                assert_eq!(fencing, before.fencing, "S5: one token per phase");
            } else {
                assert!(fencing > self.largest_token, "S5: tokens grow");
            }
            self.largest_token = self.largest_token.max(fencing);
            let mut held = self.held.iter_mut();
            let seen = held.find(|seen| seen.number == entry.number).expect("held");
            seen.expires = seen.expires.max(expires);
            return;
        }
        self.is_in_turn(entry);
        self.left(entry.number);
        let joins = self.held.iter().find(|seen| seen.mode == Mode::Shared);
        match (entry.mode, joins) {
            (Mode::Shared, Some(other)) => {
                assert_eq!(fencing, other.fencing, "S5: one token per phase");
            }
            _ => assert!(fencing > self.largest_token, "S5: tokens grow"),
        }
        match (entry.mode, joins) {
            (Mode::Exclusive | Mode::Once, _) => self.phases.0 += 1,
            (Mode::Shared, None) => self.phases.1 += 1,
            (Mode::Shared, Some(_)) => {}
            (Mode::Permits(n), _) => {
                let taken = |permit| self.held.iter().any(|seen| seen.permit == Some(permit));
                let lowest = (0..n).find(|permit| !taken(*permit));
                assert!(self.held.len() < usize::from(n), "fewer than n are held");
                assert_eq!(grant.permit, lowest, "the lowest permit that is free");
            }
        }
        self.largest_token = self.largest_token.max(fencing);
        self.held.push(Seen {
            number: entry.number,
            mode: entry.mode,
            permit: grant.permit,
            fencing,
            expires,
            is_kept: false,
        });
        assert_eq!(grant.is_contended, self.is_contended(entry.mode));
    }

    /// Checks S2 to S4 for an entry that waited.
    fn is_in_turn(&self, entry: Entry) {
        let mut queue = self.queue.iter();
        let Some(own) = queue.find(|waits| waits.entry == entry) else {
            return;
        };
        if let Some(other) = self.first(entry.mode != Mode::Shared)
            && entry.mode == Mode::Shared
            && self.held.iter().any(|seen| seen.mode == Mode::Shared)
        {
            // It joins a phase whose end an exclusive entry awaits.
            let mut queue = self.queue.iter().map(|waits| waits.entry);
            let first = queue.find(|one| [entry, other.entry].contains(one));
            assert_eq!(
                first,
                Some(entry),
                "S3: it arrived later, but entered first"
            );
        }
        let exclusive = self.phases.0 - own.phases.0;
        let shared = self.phases.1 - own.phases.1;
        let before = own.exclusive_before;
        match entry.mode {
            Mode::Shared => assert!(exclusive <= 1 && shared <= 1, "S4: {exclusive}, {shared}"),
            Mode::Exclusive | Mode::Once => assert!(
                exclusive <= before && shared <= before + 1,
                "S4: {exclusive}, {shared} with {before} before it"
            ),
            Mode::Permits(_) => {}
        }
    }

    fn nothing_waits_in_vain(&self) {
        let (shared, other) = (self.first(true), self.first(false));
        let can_enter = match (self.held.first().map(|seen| seen.mode), other) {
            (None, _) => shared.or(other).is_some(),
            (Some(Mode::Shared), _) => {
                let first = self.queue.first();
                first.is_some_and(|waits| waits.entry.mode == Mode::Shared)
            }
            (Some(Mode::Permits(_)), Some(Waits { entry, .. })) => {
                matches!(entry.mode, Mode::Permits(n) if self.held.len() < usize::from(n))
            }
            _ => false,
        };
        assert!(!can_enter, "{:?} wait for {:?}", self.queue, self.held);
    }

    /// Checks S1.
    fn holders_exclude_each_other(&self) {
        let of = |kind| {
            let alike = self.held.iter().filter(|seen| seen.mode.kind() == kind);
            alike.count()
        };
        let [exclusive, shared, permits, once] = RequestKind::ALL.map(of);
        let exclusive = exclusive + once;
        assert!(
            exclusive <= 1
                && [exclusive, shared, permits]
                    .iter()
                    .filter(|held| **held > 0)
                    .count()
                    <= 1,
            "S1: {:?}",
            self.held
        );
        let taken: BTreeSet<_> = self.held.iter().filter_map(|seen| seen.permit).collect();
        assert_eq!(
            taken.len(),
            permits,
            "one holder per permit: {:?}",
            self.held
        );
    }

    fn is_seen_as_it_is(&self) {
        let sighting = self.table.inspect(self.now, NAMED);
        if let Some(sighting) = &sighting {
            assert_eq!(sighting.leases.len(), sighting.holders);
            let taken = self.held.iter().filter_map(|seen| seen.permit);
            let shown = sighting.leases.iter().filter_map(|lease| lease.permit);
            assert_eq!(
                shown.collect::<BTreeSet<_>>(),
                taken.collect::<BTreeSet<_>>()
            );
            // Dead actors stay until the next operation.
            let mut seen = sighting.queue.iter();
            let mut queue = self.queue.iter();
            let is_in_order = queue
                .all(|waits| seen.any(|waiter| waiter.mode == waits.entry.mode.kind().shown()));
            assert!(is_in_order, "{:?}, {:?}", self.queue, sighting.queue);
        }
        let seen = sighting.map(|sighting| (sighting.mode, sighting.holders, sighting.remaining));
        let longest = self.held.iter().max_by_key(|seen| seen.expires);
        let expected = longest.map(|longest| {
            let remaining = longest.expires.since(self.now);
            let mode = longest.mode.kind().shown();
            (mode, self.held.len(), Some(remaining))
        });
        assert_eq!(seen, expected);
    }

    fn holder(&self, number: EntryNumber) -> Option<Seen> {
        let mut held = self.held.iter();
        held.find(|seen| seen.number == number && !seen.is_kept)
            .copied()
    }

    fn first(&self, is_shared: bool) -> Option<&Waits> {
        let mut queue = self.queue.iter();
        queue.find(|waits| (waits.entry.mode == Mode::Shared) == is_shared)
    }

    fn waits(&self, kind: RequestKind) -> bool {
        let mut queue = self.queue.iter();
        queue.any(|waits| waits.entry.mode.kind() == kind)
    }

    fn is_contended(&self, mode: Mode) -> bool {
        mode == Mode::Shared && self.first(false).is_some()
    }

    fn is_in_other_mode(&self, mode: Mode) -> bool {
        let held = self.held.iter().map(|seen| seen.mode);
        let mut modes = held.chain(self.queue.iter().map(|waits| waits.entry.mode));
        modes.any(|other| has_permits(other) != has_permits(mode))
    }

    fn queued(&mut self, entry: Entry) {
        if self.queue.iter().any(|waits| waits.entry == entry) {
            return;
        }
        let running = self.held.first().map(|seen| seen.mode.kind());
        let is_exclusive = u32::from(running.is_some_and(RequestKind::is_alone));
        let is_shared = u32::from(running == Some(RequestKind::Shared));
        let waiting = self.queue.iter().map(|waits| waits.entry.mode);
        let waiting = waiting.map(|mode| u32::from(mode.is_alone()));
        let exclusive_before = is_exclusive + waiting.sum::<u32>();
        let (exclusive, shared) = self.phases;
        self.queue.push(Waits {
            entry,
            phases: (exclusive - is_exclusive, shared - is_shared),
            exclusive_before,
        });
    }

    fn left(&mut self, number: EntryNumber) {
        self.queue.retain(|waits| waits.entry.number != number);
    }

    /// Makes all actors give up.
    fn end(&mut self) {
        for actor in 0..self.actors.len() {
            self.step(Op::Release(actor, Keep::No));
        }
        self.now = self.now.after(TTLS[2] * 2);
        let (alive, now) = (&self.alive, self.now);
        self.table.sweep(now, &|number| alive.contains(&number));
        assert!(self.table.is_empty(), "left: {:?}", self.table);
    }
}

fn run(modes: &[Mode], ops: &[Op]) {
    let mut world = World::new(modes);
    for op in ops {
        world.step(*op);
    }
    world.end();
}

const X: Mode = Mode::Exclusive;
const S: Mode = Mode::Shared;
/// Requests that run a body once are exclusive as long as there is no result.
const WITH_EXCLUSIVE_AND_SHARED: [Mode; 7] = [X, X, Mode::Once, S, S, S, S];
const WITH_PERMITS: [Mode; 7] = [
    Mode::Permits(1),
    Mode::Permits(2),
    Mode::Permits(2),
    Mode::Permits(3),
    Mode::Permits(3),
    Mode::Permits(4),
    Mode::Permits(4),
];
const WITH_ALL: [Mode; 6] = [
    X,
    S,
    S,
    Mode::Permits(2),
    Mode::Permits(2),
    Mode::Permits(3),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn exclusive_and_shared_requests_take_turns(ops in proptest::collection::vec(any_op(7), 0..80)) {
        run(&WITH_EXCLUSIVE_AND_SHARED, &ops);
    }

    #[test]
    fn the_number_of_held_permits_is_bounded(ops in proptest::collection::vec(any_op(7), 0..80)) {
        run(&WITH_PERMITS, &ops);
    }

    #[test]
    fn permits_and_the_other_modes_refuse_each_other(ops in proptest::collection::vec(any_op(6), 0..80)) {
        run(&WITH_ALL, &ops);
    }
}
