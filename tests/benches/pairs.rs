//! Acquire and release, each task its own key: what a lock costs that nobody else wants.

use std::{sync::Arc, time::Duration};

use tokio::runtime::Runtime;

use crate::{
    cores::start_server,
    load::{Contender, Keys, Load},
    lockers::{DistributedLockRedis, DrivenPings, Floor, LockCore, Pings, RsLock},
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
    let contenders = [
        Contender::new(
            "lock-core",
            &runtime,
            runtime.block_on(LockCore::connect(&url)),
        ),
        Contender::new(
            "SET NX PX, compare and delete",
            &runtime,
            runtime.block_on(Floor::connect(&url)),
        ),
        Contender::new("2 PINGs", &runtime, runtime.block_on(Pings::connect(&url))),
        Contender::new(
            "2 PINGs, thread of their own",
            &runtime,
            runtime.block_on(DrivenPings::connect(&url)),
        ),
        Contender::new("rslock", &runtime, RsLock::new(&url)),
        Contender::new(
            "distributed-lock-redis",
            &runtime,
            runtime.block_on(DistributedLockRedis::connect(&url)),
        ),
    ];
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
        let [own, floor, pings, driven, rslock, peer] = &all;
        report::title(&format!(
            "pairs, {tasks} tasks, a key each; ratio to SET NX PX, compare and delete"
        ));
        report::header("pairs");
        for (contender, samples) in contenders.iter().zip(&all) {
            report::line(contender.name, samples, floor);
        }
        match tasks {
            1 => report::target(
                "time against 2 PINGs driven the same way",
                driven.ratio_to(own),
                AtMost(1.10),
            ),
            64 => {
                let ratio = own.ratio_to(floor);
                report::target("rate against the floor", ratio, AtLeast(0.8));
                let ratio = own.ratio_to(peer);
                let name = "rate against distributed-lock-redis";
                report::target(name, ratio, AtLeast(1.0));
            }
            _ => {}
        }
        report::note(
            "time against 2 PINGs in the user's runtime",
            pings.ratio_to(own),
        );
        report::note("rate against rslock", own.ratio_to(rslock));
    }
}
