//! Acquire and release, each task its own key: the cost of a lock without contention.

use std::{sync::Arc, time::Duration};

use tokio::runtime::Runtime;

use crate::{
    cores::start_server,
    load::{Contender, Keys, Load},
    lockers::{
        DistributedLockRedis, DrivenPings, Floor, InBackground, LockCore, Pings, RsLock,
        UnawaitedFloor,
    },
    report::{
        self,
        Target::{AtLeast, AtMost},
    },
    sample::Samples,
    usage::Watch,
};

const ROUNDS: usize = 7;
const WINDOW: Duration = Duration::from_millis(400);

pub(crate) fn run() {
    let server = start_server();
    let url = server.url();
    let mut watch = Watch::new(&server);
    let runtime = Arc::new(Runtime::new().expect("a runtime"));
    let contenders = contenders(&url, &runtime);
    for tasks in [1, 64, 256] {
        let load = Load {
            tasks,
            keys: Keys::Own,
            window: WINDOW,
        };
        let mut all = contenders.each_ref().map(|_| Samples::default());
        for _ in 0..ROUNDS {
            for (contender, samples) in contenders.iter().zip(&mut all) {
                samples.push(contender.run(load, &mut watch));
            }
        }
        let [own, background, floor, unawaited, pings, _, rslock, peer] = &all;
        report::title(&format!(
            "pairs, {tasks} tasks, a key each; ratio to SET NX PX, compare and delete"
        ));
        report::header("pairs");
        for (contender, samples) in contenders.iter().zip(&all) {
            report::line(contender.name, samples, floor);
        }
        match tasks {
            1 => {
                let name = "time in the background against the floor";
                report::target(name, floor.ratio_to(background), AtMost(0.75));
                let name = "time against 2 PINGs";
                report::target(name, pings.ratio_to(own), AtMost(1.25));
            }
            64 => {
                let name = "rate against the floor";
                report::target(name, own.ratio_to(floor), AtLeast(1.0));
                let name = "client CPU against the floor's";
                report::target(name, own.client_cpu() / floor.client_cpu(), AtMost(1.2));
                let name = "rate against distributed-lock-redis";
                report::target(name, own.ratio_to(peer), AtLeast(1.0));
            }
            _ => {}
        }
        report::note("rate against the floor", own.ratio_to(floor));
        report::note(
            "rate in the background against the floor not awaited",
            background.ratio_to(unawaited),
        );
        report::note(
            "time against 2 PINGs in the user's runtime",
            pings.ratio_to(own),
        );
        report::note("rate against rslock", own.ratio_to(rslock));
    }
}

fn contenders(url: &str, runtime: &Arc<Runtime>) -> [Contender; 8] {
    [
        Contender::new(
            "lock-core",
            runtime,
            runtime.block_on(LockCore::connect(url)),
        ),
        Contender::new(
            "the same, in the background",
            runtime,
            runtime.block_on(InBackground::connect(url)),
        ),
        Contender::new(
            "SET NX PX, compare and delete",
            runtime,
            runtime.block_on(Floor::connect(url)),
        ),
        Contender::new(
            "the same, not awaited",
            runtime,
            runtime.block_on(UnawaitedFloor::connect(url)),
        ),
        Contender::new("2 PINGs", runtime, runtime.block_on(Pings::connect(url))),
        Contender::new(
            "2 PINGs, thread of their own",
            runtime,
            runtime.block_on(DrivenPings::connect(url)),
        ),
        Contender::new("rslock", runtime, RsLock::new(url)),
        Contender::new(
            "distributed-lock-redis",
            runtime,
            runtime.block_on(DistributedLockRedis::connect(url)),
        ),
    ]
}
