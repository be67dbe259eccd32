//! Holders believe in their locks only while the server keeps them, according to its own record of commands.

use std::time::Duration;

use lock_tests::{
    Direction, HANG, Holders, Load, Monitor, Process, Proxy, RedisServer, ServerHold, eventually,
    history::Moment,
};

const TTL: Duration = Duration::from_secs(1);

/// Far more than the allowance for clocks, which is 1 % of the ttl and 2 ms, so a holder that counted from the reply would be detected.
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

    /// Ends all holders, and asserts that the server's record has each hold of theirs. Returns that record.
    fn assert_within_the_servers_record(self, mut holders: Holders) -> Vec<ServerHold> {
        let pids: Vec<u32> = holders.processes().iter().map(Process::id).collect();
        // They are killed, so that none releases after its record was read for the last time.
        for process in holders.processes() {
            process.kill9();
        }
        let recorded = self.monitor.finish(&self.server, "lock:");
        for hold in holders.history().holds() {
            let owner = format!("/{}:", pids[usize::try_from(hold.process).expect("a few")]);
            let is_kept = recorded.iter().any(|record| {
                record.key == format!("lock:{}", hold.key)
                    && record.token.contains(&owner)
                    && record.held.from <= hold.held.from
                    && hold.held.to <= record.held.to
            });
            assert!(is_kept, "{hold:?} is not within any of {recorded:#?}");
        }
        recorded
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
    let recorded = far.assert_within_the_servers_record(holders);
    let lasted = |record: &ServerHold| record.held.to.since(record.held.from);
    let was_renewed = recorded.iter().any(|record| lasted(record) > TTL);
    assert!(was_renewed, "none was renewed: {recorded:#?}");
}
