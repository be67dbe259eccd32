//! Processes that fork, and whose children each make their own manager.

use std::collections::BTreeSet;

use lock_tests::{
    Forks, HANG, RedisServer, eventually,
    history::{Follower, Moment, Step},
};
use redis::FromRedisValue;

const PROGRAM: &str = env!("CARGO_BIN_EXE_forker");

fn channels(server: &RedisServer) -> BTreeSet<String> {
    let channels = server.cli(&["PUBSUB", "CHANNELS", "__lock_core__:grants:*"]);
    FromRedisValue::from_redis_value(channels).expect("names")
}

#[tokio::test]
async fn children_that_each_make_a_manager_exclude_each_other_with_growing_tokens() {
    const CHILDREN: u32 = 8;
    const ACQUISITIONS: usize = 10;
    let (server, forks) = (RedisServer::start(), Forks::new());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("history");
    let mut follower = Follower::open(&path).expect("a new file");
    let path = path.to_str().expect("a path in UTF-8");
    let (children, acquisitions) = (CHILDREN.to_string(), ACQUISITIONS.to_string());
    let process = forks.spawn(PROGRAM, &[&server.url(), path, &children, &acquisitions]);
    eventually(HANG, "each child had the lock ten times", async || {
        let history = follower.history();
        (0..CHILDREN).all(|child| history.grants(child, Moment::from_nanos(0)) == ACQUISITIONS)
    })
    .await;
    // The children run until `stop` is set, since a channel exists only while its process runs.
    let channels = channels(&server);
    server.cli(&["SET", "stop", "1"]);
    process.join();
    let history = follower.finish();
    history.assert_in_order();
    let mut steps = history.events().iter().map(|event| event.step);
    assert!(steps.all(|step| step != Step::Lost));
    let all = CHILDREN as usize * ACQUISITIONS;
    let owners = server.cli(&["SCARD", "owner-tokens"]);
    let owners = usize::from_redis_value(owners).expect("a number");
    assert_eq!(owners, all, "every acquisition has its own owner token");
    // One channel of each child, and one of the parent.
    assert_eq!(channels.len(), CHILDREN as usize + 1, "{channels:?}");
}
