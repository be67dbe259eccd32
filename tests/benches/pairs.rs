//! Acquire and release, with a key for each task: the cost of a lock without contention.

use std::{sync::Arc, time::Duration};

use lock_tests::Kind;
use tokio::runtime::{Builder, Runtime};

use crate::{
    cores::{self, Placement, start_server, start_server_of},
    load::{Contender, Keys, Load, take_turns},
    lockers::{DistributedLockRedis, InBackground, LockCore, Locker, RsLock},
    network::Network,
    raw::Raw,
    report::{
        self,
        Target::{AtLeast, AtMost},
    },
    sample::Samples,
    usage::Watch,
};

const OWN: &str = "lock-core";
/// The reference of all ratios.
const RAW: &str = "raw";
const RAW_AT_ONCE: &str = "raw, without Nagle's delay";
const RSLOCK: &str = "rslock";

const WINDOW: Duration = Duration::from_millis(400);
const ROUNDS: usize = 7;
/// For tables that have no target, or only one of processor time, which varies less.
const FEW_ROUNDS: usize = 5;

pub(crate) fn run(placements: &[Placement]) {
    for placement in placements {
        cores::place(*placement);
        on_many_threads(*placement);
        on_one_thread(*placement);
    }
    let placement = placements[0];
    cores::place(placement);
    through_a_network(placement);
    for (name, kind) in [("Redis 8.6", Kind::Redis86), ("Valkey 9", Kind::Valkey9)] {
        on_a_newer_server(name, kind, placement);
    }
}

fn on_many_threads(placement: Placement) {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let site = Site::with_workers(server.url());
    let contenders = [
        site.contender(OWN, LockCore::connect),
        site.contender("lock-core, in the background", InBackground::connect),
        site.contender(RAW, Raw::connect),
        site.contender(RAW_AT_ONCE, Raw::connect_to_send_at_once),
        site.contender(RSLOCK, async |url| RsLock::new(url)),
        site.contender("distributed-lock-redis", DistributedLockRedis::connect),
    ];
    for tasks in [1, 16, 64, 256] {
        let setting = format!("{tasks} tasks, {placement}");
        let all = measure(&setting, &contenders, tasks, ROUNDS, &mut watch);
        targets(tasks, placement, &all);
    }
}

fn on_one_thread(placement: Placement) {
    let server = start_server();
    let mut watch = Watch::new(&server);
    let mut builder = Builder::new_current_thread();
    let runtime = builder.enable_all().build().expect("a runtime");
    let site = Site::new(runtime, server.url());
    let contenders = [
        site.contender(OWN, LockCore::connect),
        site.contender(RAW, Raw::connect),
        site.contender(RSLOCK, async |url| RsLock::new(url)),
    ];
    for tasks in [1, 16, 64] {
        let setting = format!("{tasks} tasks, {placement}, current_thread runtime");
        measure(&setting, &contenders, tasks, FEW_ROUNDS, &mut watch);
    }
}

fn through_a_network(placement: Placement) {
    let server = start_server();
    let network = Network::start(&server);
    let mut watch = Watch::new(&server);
    let site = Site::with_workers(network.url().to_owned());
    let contenders = [
        site.contender(OWN, LockCore::connect),
        site.contender(RAW, Raw::connect),
        site.contender(RAW_AT_ONCE, Raw::connect_to_send_at_once),
        site.contender(RSLOCK, async |url| RsLock::new(url)),
    ];
    for tasks in [1, 16, 64] {
        let setting =
            format!("{tasks} tasks, {placement}, through a network with a round trip of 0.5 ms");
        measure(&setting, &contenders, tasks, FEW_ROUNDS, &mut watch);
    }
}

/// These servers have a command that compares and deletes. Raw uses its script on them, too.
fn on_a_newer_server(name: &str, kind: Kind, placement: Placement) {
    let server = start_server_of(kind);
    let mut watch = Watch::new(&server);
    let site = Site::with_workers(server.url());
    let contenders = [
        site.contender(OWN, LockCore::connect),
        site.contender(RAW, Raw::connect),
    ];
    let setting = format!("64 tasks, {placement}, {name}");
    let [own, raw] = measure(&setting, &contenders, 64, FEW_ROUNDS, &mut watch);
    let ratio = own.server_cpu() / raw.server_cpu();
    report::target("server CPU against raw", ratio, AtMost(1.3));
}

/// Lets the contenders take turns, and prints a row for each.
fn measure<const COUNT: usize>(
    setting: &str,
    contenders: &[Contender; COUNT],
    tasks: usize,
    rounds: usize,
    watch: &mut Watch,
) -> [Samples; COUNT] {
    let load = Load {
        tasks,
        keys: Keys::Own,
        window: WINDOW,
    };
    let all = take_turns(contenders, load, rounds, watch);
    let raw = contenders.iter().position(|one| one.name == RAW);
    let raw = &all[raw.expect("raw is in every table")];
    let title = format!("pairs, {setting}, a key each; ratios to raw");
    report::table(&title, "pairs", contenders, &all, raw);
    all
}

fn targets(tasks: usize, placement: Placement, all: &[Samples; 6]) {
    let [own, background, raw, raw_at_once, rslock, _] = all;
    let of = |pinned, free| match placement {
        Placement::Pinned => pinned,
        Placement::Free => free,
    };
    let rate = |bound| report::target("rate against raw", own.ratio_to(raw), AtLeast(bound));
    let ahead = || report::target("rate against rslock", own.ratio_to(rslock), AtLeast(1.0));
    match (tasks, placement) {
        (1, _) => {
            report::target("p50 against raw", own.p50_to(raw), AtMost(of(1.15, 1.2)));
            let ratio = background.p50_to(raw);
            report::target(
                "p50 in the background against raw",
                ratio,
                AtMost(of(0.7, 0.65)),
            );
        }
        (16, _) => rate(of(0.58, 0.7)),
        (64, Placement::Free) => {
            rate(0.95);
            ahead();
            let client = own.client_cpu() / raw.client_cpu();
            report::target("client CPU against raw", client, AtMost(1.15));
        }
        (64, Placement::Pinned) => {
            rate(1.0);
            ahead();
            let client = own.client_cpu() / raw.client_cpu();
            report::target("client CPU against raw", client, AtMost(1.0));
            let server = own.server_cpu() / raw.server_cpu();
            report::target("server CPU against raw", server, AtMost(0.75));
            let ratio = own.ratio_to(raw_at_once);
            report::target(
                "rate against raw without Nagle's delay",
                ratio,
                AtLeast(1.2),
            );
        }
        (256, _) => {
            rate(1.1);
            ahead();
        }
        _ => {}
    }
}

/// A runtime and the url of a server, for contenders that share them.
struct Site {
    runtime: Arc<Runtime>,
    url: String,
}

impl Site {
    fn new(runtime: Runtime, url: String) -> Self {
        let runtime = Arc::new(runtime);
        Self { runtime, url }
    }

    /// Makes a runtime with a worker for each core of the clients.
    fn with_workers(url: String) -> Self {
        Self::new(Runtime::new().expect("a runtime"), url)
    }

    fn contender<L: Locker>(
        &self,
        name: &'static str,
        connect: impl AsyncFnOnce(&str) -> L,
    ) -> Contender {
        let locker = self.runtime.block_on(connect(&self.url));
        Contender::new(name, &self.runtime, locker)
    }
}
