//! Processes that fork: the children and their parent are independent of each other.

use std::{collections::BTreeSet, sync::Arc};

use lock_tests::{
    AskClients, Certificates, Cluster, Forks, HANG, Proxy, RedisServer, eventually,
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
    const LOCKS: usize = 10;
    let (server, forks) = (RedisServer::start(), Forks::new());
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("history");
    let mut follower = Follower::open(&path).expect("a new file");
    let path = path.to_str().expect("a path in UTF-8");
    let (children, locks) = (CHILDREN.to_string(), LOCKS.to_string());
    let process = forks.spawn(
        PROGRAM,
        &["children", &server.url(), path, &children, &locks],
    );
    eventually(HANG, "each child had it so many times", async || {
        let history = follower.history();
        (0..CHILDREN).all(|child| history.grants(child, Moment::from_nanos(0)) == LOCKS)
    })
    .await;
    // The channels are listed while the children run.
    let channels = channels(&server);
    server.cli(&["SET", "stop", "1"]);
    process.join();
    let history = follower.finish();
    let (overlaps, regressions) = (history.overlaps(&[]), history.regressions(&[]));
    assert!(overlaps.is_empty(), "{overlaps:#?}");
    assert!(regressions.is_empty(), "{regressions:#?}");
    let steps = || history.events().iter().map(|event| event.step);
    assert!(steps().all(|step| step != Step::Lost));
    let token = |step| match step {
        Step::Acquired { token, .. } => Some(token),
        _ => None,
    };
    let tokens: BTreeSet<u64> = steps().filter_map(token).collect();
    let all = CHILDREN as usize * LOCKS;
    assert_eq!(tokens.len(), all);
    let secrets = server.cli(&["SCARD", "secrets"]);
    assert_eq!(usize::from_redis_value(secrets).expect("a number"), all);
    // One channel of each child, and one of the parent.
    assert_eq!(channels.len(), CHILDREN as usize + 1, "{channels:?}");
}

/// The child ends with a failure if it uses anything that its parent had open.
fn an_inherited_manager_is_refused(url: &str, authority: &str, between: impl FnOnce()) {
    let forks = Forks::new();
    let mut process = forks.spawn(PROGRAM, &["inherited", url, authority]);
    assert_eq!(process.line(), "held");
    process.say("fork");
    assert_eq!(process.line(), "child ended");
    between();
    process.say("go on");
    process.join();
}

#[test]
fn an_inherited_manager_is_refused_at_once_and_the_parents_connection_left_alone() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    an_inherited_manager_is_refused(&proxy.url(), "", || {
        // Each manager has a connection of its own thread, and one of the runtime: three of the parent, and two of the child.
        assert_eq!(proxy.connections(), 2 * (3 + 2));
    });
    let made = proxy.connections();
    assert_eq!(made, 2 * (3 + 2), "the parent made no new one");
}

#[test]
fn an_inherited_manager_is_refused_through_tls() {
    let certificates = Arc::new(Certificates::new());
    let server = RedisServer::builder()
        .tls(&certificates, AskClients::Never)
        .start();
    let authority = certificates.authority();
    an_inherited_manager_is_refused(&server.tls_url(), &authority, || {});
}

#[test]
fn an_inherited_manager_of_a_cluster_is_refused() {
    let cluster = Cluster::start();
    an_inherited_manager_is_refused(&cluster.url(), "", || {});
}

#[test]
fn an_inherited_manager_of_several_servers_is_refused() {
    let servers = [(); 3].map(|()| RedisServer::start());
    let urls = servers.each_ref().map(RedisServer::url).join(",");
    an_inherited_manager_is_refused(&urls, "", || {});
}

#[test]
fn a_child_that_is_forked_inside_a_body_is_not_in_it() {
    let server = RedisServer::start();
    Forks::new().spawn(PROGRAM, &["body", &server.url()]).join();
}

#[test]
fn a_child_that_touches_what_it_inherited_is_noticed() {
    Forks::new().spawn(PROGRAM, &["touch"]).join();
}
