//! Holders believe in their locks only while the server keeps them, according to its own record of commands.

use std::time::Duration;

use lock_tests::{
    Direction, HANG, Holders, Load, Monitor, Process, Proxy, RedisServer, ServerHold, eventually,
    history::{Hold, Moment},
};

const TTL: Duration = Duration::from_secs(1);

/// Far more than the allowance for clocks, which is 12 ms for this ttl, so a holder that counted from the reply would be detected.
const ONE_WAY: Duration = Duration::from_millis(40);

/// A server behind a slow network, and the record of its commands.
struct Far {
    monitor: Monitor,
    proxy: Proxy,
    server: RedisServer,
}

impl Far {
    fn start() -> Self {
        let server = RedisServer::start();
        let proxy = Proxy::start(server.port());
        proxy.delay(Direction::Requests, ONE_WAY);
        proxy.delay(Direction::Replies, ONE_WAY);
        Self {
            monitor: Monitor::start(&server),
            proxy,
            server,
        }
    }

    fn holders(&self) -> Holders {
        let load = Load {
            keys: ["a", "b"].map(str::to_owned).into(),
            processes: 4,
            tasks: 2,
            ttl: TTL,
            // Longer than a third of the ttl, so that leases are renewed, too.
            hold: Duration::from_millis(600),
        };
        Holders::start(env!("CARGO_BIN_EXE_holder"), &self.proxy.url(), &load)
    }

    /// Waits until a lease of this process is renewed, and thus lasts for a while.
    async fn renews_a_lease_of(&self, process: &Process) {
        let owner = format!("/{}:", process.id());
        let mut before: [Option<(String, Duration)>; 2] = [None, None];
        eventually(HANG, "a lease is renewed", async || {
            let now =
                ["lock:a", "lock:b"].map(|key| self.server.get(key).zip(self.server.pttl(key)));
            let is_renewed = before
                .iter()
                .zip(&now)
                .any(|(before, now)| match (before, now) {
                    (Some((token, left)), Some((same, more))) => {
                        token == same && token.contains(&owner) && left < more
                    }
                    _ => false,
                });
            before = now;
            is_renewed
        })
        .await;
    }

    /// Waits until a process has no lease on the server.
    async fn ends_all_leases_of(&self, process: &Process) {
        let owner = format!("/{}:", process.id());
        let is_owned = |token: Option<String>| token.is_some_and(|token| token.contains(&owner));
        eventually(HANG, "its leases have ended", async || {
            !["lock:a", "lock:b"]
                .map(|key| self.server.get(key))
                .into_iter()
                .any(is_owned)
        })
        .await;
    }

    /// Ends all holders, and compares their records with that of the server. Returns both.
    fn compare(self, mut holders: Holders) -> (Vec<Hold>, Vec<ServerHold>) {
        let pids: Vec<u32> = holders.processes().iter().map(Process::id).collect();
        // They are killed, so that none releases after its record was read for the last time.
        for process in holders.processes() {
            process.kill9();
        }
        let believed = holders.history().holds();
        let said = self.monitor.finish(&self.server, "lock:");
        for hold in &believed {
            let owner = format!("/{}:", pids[usize::try_from(hold.process).expect("a few")]);
            let is_kept = said.iter().any(|word| {
                word.key == format!("lock:{}", hold.key)
                    && word.token.contains(&owner)
                    && word.held.from <= hold.held.from
                    && hold.held.to <= word.held.to
            });
            assert!(is_kept, "{hold:?} is not within any of {said:#?}");
        }
        (believed, said)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn contending_holders_believe_in_a_lock_no_longer_than_the_server_keeps_it() {
    let far = Far::start();
    let mut holders = far.holders();
    holders.all_get_it(1, Moment::from_nanos(0), HANG).await;
    // One process is killed with a renewed lease, which lasts longer than the ttl. Another one is stopped until its lease has ended.
    far.renews_a_lease_of(&holders.processes()[1]).await;
    holders.processes()[1].kill9();
    far.renews_a_lease_of(&holders.processes()[0]).await;
    holders.processes()[0].stop();
    far.ends_all_leases_of(&holders.processes()[0]).await;
    holders.processes()[0].cont();
    let since = Moment::now();
    eventually(HANG, "the others continue", async || {
        let history = holders.history();
        [0, 2, 3]
            .into_iter()
            .all(|process| history.grants(process, since) >= 1)
    })
    .await;
    let (believed, said) = far.compare(holders);
    assert!(believed.len() >= 8, "{believed:#?}");
    let lasted = |word: &ServerHold| word.held.to.since(word.held.from);
    let was_renewed = said.iter().any(|word| lasted(word) > TTL);
    assert!(was_renewed, "none was renewed: {said:#?}");
}
