//! What a holder believes lies within what the server says: by the server's own account of the commands it executed.

use std::time::Duration;

use lock_tests::{
    Direction, Holders, Load, Monitor, Process, Proxy, RedisServer, ServerHold, eventually,
    history::Moment,
};

const HANG: Duration = Duration::from_secs(60);
const TTL: Duration = Duration::from_secs(1);

/// Far more than the allowance for clocks, which is 12 ms for this ttl: whoever counted from the answer would be found out.
const ONE_WAY: Duration = Duration::from_millis(30);

#[tokio::test(flavor = "multi_thread")]
async fn no_holder_believes_in_a_lease_for_longer_than_the_server_keeps_it() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    proxy.delay(Direction::Requests, ONE_WAY);
    proxy.delay(Direction::Replies, ONE_WAY);
    let monitor = Monitor::start(&server);
    let load = Load {
        keys: vec!["a".to_owned(), "b".to_owned()],
        processes: 4,
        tasks: 2,
        ttl: TTL,
        // Longer than a third of the ttl, so that leases are renewed, too.
        hold: Duration::from_millis(400),
    };
    let mut holders = Holders::start(env!("CARGO_BIN_EXE_holder"), &proxy.url(), &load);
    let pids: Vec<u32> = holders.processes().iter().map(Process::id).collect();
    holders.all_get_it(2, Moment::from_nanos(0), HANG).await;
    // One stops for longer than its leases last, and one never comes back.
    holders.processes()[0].stop();
    holders.processes()[1].kill9();
    tokio::time::sleep(TTL * 2).await;
    holders.processes()[0].cont();
    let since = Moment::now();
    eventually(HANG, "the others go on", async || {
        let history = holders.history();
        [0, 2, 3]
            .into_iter()
            .all(|process| history.grants(process, since) >= 2)
    })
    .await;
    // All at once, so that nobody lets go after the last look at what they wrote.
    for process in holders.processes() {
        process.kill9();
    }
    let believed = holders.history().holds();
    let said = monitor.finish(&server, "lock:");
    assert!(believed.len() >= 10, "{believed:#?}");
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
    let lasted = |word: &ServerHold| word.held.to.since(word.held.from);
    assert!(
        said.iter().any(|word| lasted(word) > TTL),
        "none was renewed: {said:#?}"
    );
}
