//! The error texts of connections, and of what servers answer, with the situations that provoke them.
//!
//! `in_process/texts.rs` says what these tables are for. ADDRESS stands for the address of the server.

use std::time::Duration;

use lock_core::{LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, Cluster, FakeServer, HANG, Quirk, RedisServer, Reply, SECOND, StandIn,
    connect,
    error_texts::{compare, refused},
    options,
};
use tokio::time::timeout;

/// Returns the text of the error with which connecting fails.
async fn connecting(url: &str) -> String {
    connecting_within(HANG, url).await
}

/// Like [`connecting`], for a server that is waited for until the time-out.
async fn connecting_within(patience: Duration, url: &str) -> String {
    let connecting = LockManager::builder()
        .connect_timeout(patience)
        .command_timeout(patience)
        .connect(url);
    let text = refused(timeout(HANG * 2, connecting).await.expect("no hang"));
    text.replace(address(url), "ADDRESS")
}

/// Returns the host and the port of a url.
fn address(url: &str) -> &str {
    let (_, rest) = url.split_once("://").expect("a url");
    let address = rest.split('/').next().expect("an address");
    address.rsplit('@').next().expect("an address")
}

/// Returns the text for a server that answers everything with this error.
async fn refusing(error: &'static str) -> String {
    let server = FakeServer::start(move |_| Reply::line(&format!("-{error}")));
    connecting(&server.url()).await
}

/// Returns the text for a server without RESP3 that gives this answer to scripts.
async fn refusing_scripts(answer: &'static str) -> String {
    let server = FakeServer::with_handshake(move |request| match request[0].as_str() {
        "EVALSHA" => Reply::line(answer),
        _ => Reply::line("+OK"),
    });
    connecting(&server.url()).await
}

#[tokio::test]
async fn refused_connections_have_these_texts() {
    let gone = RedisServer::start();
    let nobody = gone.url();
    drop(gone);
    let protected = RedisServer::builder().password("correct").start();
    let server = RedisServer::start();
    compare(&[
        (
            "a port on which nobody listens",
            connecting(&nobody).await,
            "the lock backend is unavailable: cannot connect to redis://ADDRESS: Connection refused (os error 111)",
        ),
        (
            "a server that never answers",
            connecting_within(SECOND / 2, &FakeServer::silent().url()).await,
            "the lock backend is unavailable: no connection to redis://ADDRESS within 500ms",
        ),
        (
            "a server that closes the connection",
            connecting(&FakeServer::start(|_| Reply::HangUp).url()).await,
            "the lock backend is unavailable: cannot connect to redis://ADDRESS: the server closed the connection; a port \
             for TLS has a `rediss://` url",
        ),
        (
            "a server of another protocol",
            connecting(&FakeServer::http().url()).await,
            "redis://ADDRESS does not speak the Redis protocol: is it the right port?",
        ),
        (
            "a missing password",
            connecting(&format!("redis://127.0.0.1:{}", protected.port())).await,
            "redis://ADDRESS refuses the user or password: put them into the url, as in `redis://user:password@host`, \
             percent-encoded",
        ),
        (
            "a password for a server without one",
            refusing(
                "ERR AUTH <password> called without any password configured for the default user",
            )
            .await,
            "redis://ADDRESS has no password, but the url gives one: remove it from the url",
        ),
        (
            "a database that does not exist",
            connecting(&format!("redis://127.0.0.1:{}/99", server.port())).await,
            "redis://ADDRESS/99 refuses the connection: ERR DB index is out of range",
        ),
        (
            "a server that loads its data",
            refusing("LOADING Redis is loading the dataset in memory").await,
            "the lock backend is unavailable: redis://ADDRESS refuses connections: LOADING Redis is loading the dataset in \
             memory",
        ),
        (
            "a user without rights",
            refusing("NOPERM this user has no permissions to run the 'hello' command").await,
            "this user of redis://ADDRESS lacks rights that locks need (without `+eval +evalsha`: redis://ADDRESS refuses the \
             connection: NOPERM this user has no permissions to run the 'hello' command): grant it the rights that the \
             section \"Rights\" of the operations guide lists (`lock_core::guide::operations`)",
        ),
    ]);
}

#[tokio::test]
async fn servers_that_cannot_store_locks_have_these_texts() {
    let cluster = Cluster::start();
    let replica = RedisServer::start();
    replica.cli(&["REPLICAOF", "127.0.0.1", "1"]);
    let server = RedisServer::start();
    let shards = StandIn::start(server.port(), Quirk::OtherSlots);
    let active = StandIn::start(server.port(), Quirk::ActiveReplica);
    compare(&[
        (
            "a node of a cluster",
            connecting(&cluster.nodes()[0].url()).await,
            "redis://ADDRESS is a node of a cluster: write `redis+cluster://host:port,host2:port`",
        ),
        (
            "a replica",
            connecting_within(SECOND / 2, &replica.url()).await,
            "the lock backend is unavailable: redis://ADDRESS is a replica of 127.0.0.1:1: connect to the primary, or to \
             sentinels by `redis+sentinel://`",
        ),
        (
            "an active replica",
            connecting(&active.url()).await,
            "redis://ADDRESS is an active replica: two servers accept writes, and the last one wins, so two clients can hold \
             one lock; use a server without `active-replica`",
        ),
        (
            "several shards behind one endpoint",
            connecting(&shards.url()).await,
            "this server is an endpoint in front of several shards (CROSSSLOT Keys in request don't hash to the same \
             slot): add `?sharded=true` to its url, unless it is there already, or switch its database to the OSS cluster \
             policy and write `redis+cluster://`",
        ),
        (
            "a server in the place of a sentinel",
            connecting(&format!("redis+sentinel://127.0.0.1:{}/service", server.port())).await,
            "redis://ADDRESS is not a sentinel, because it does not know the command SENTINEL: name the sentinels (port 26379 by \
             default), or write a `redis://` url for a server without sentinels",
        ),
        (
            "a server in the place of a cluster node",
            connecting(&format!("redis+cluster://127.0.0.1:{}", server.port())).await,
            "redis://ADDRESS is not a node of a cluster: use a `redis://` url",
        ),
        (
            "a server without streams",
            refusing_scripts("*2\r\n$4\r\nXADD\r\n+Unknown Redis command called from script").await,
            "redis://ADDRESS has no streams (`XADD`), which fencing tokens are taken from: use Redis 6.2 or later, Valkey, \
             or a server that has streams",
        ),
        (
            "a server without a command of the scripts",
            refusing_scripts("*2\r\n$7\r\nZPOPMIN\r\n+Unknown Redis command called from script").await,
            "redis://ADDRESS cannot keep locks: it has no `ZPOPMIN` (Unknown Redis command called from script); use Redis \
             6.2 or later, or Valkey",
        ),
        (
            "a user without a right of the scripts",
            refusing_scripts(
                "*2\r\n$7\r\nPUBLISH\r\n+ACL failure in script: User alice has no permissions to run the 'publish' \
                 command",
            )
            .await,
            "this user of redis://ADDRESS lacks rights that locks need (scripts need `+publish &__lock_core__:grants:*`: ACL \
             failure in script: User alice has no permissions to run the 'publish' command): grant it the rights that the \
             section \"Rights\" of the operations guide lists (`lock_core::guide::operations`)",
        ),
    ]);
}

#[tokio::test]
async fn refused_requests_have_these_texts() {
    let server = RedisServer::start();
    server.cli(&["RPUSH", "lock:list", "precious"]);
    let other = LockManager::builder().label("web-1");
    let other = other.connect(&server.url()).await.expect("up");
    let _held = other.acquire_free("held", options()).await;
    let _permit = other.acquire_free("permits", options().permits(2)).await;
    let locks = connect(&server.url()).await;
    let tried = async |key: &str, options: LockOptions| {
        refused(locks.acquire(key, options.no_wait()).await)
    };
    let list = tried("list", options()).await;
    let mode = tried("permits", options().shared()).await;
    server.cli(&["SET", "__lock_core__:clock", "mine"]);
    let clock = tried("clock", options()).await;
    server.cli(&["DEL", "__lock_core__:clock"]);
    server.cli(&["CONFIG", "SET", "maxmemory", "1"]);
    let full = tried("full", options()).await;
    server.cli(&["CONFIG", "SET", "maxmemory", "0"]);
    let odd = FakeServer::start(|request| match request[0].as_str() {
        "PING" => Reply::pong(request),
        "HELLO" => Reply::line("-ERR unknown command 'HELLO'"),
        _ => Reply::line("+nonsense"),
    });
    let odd = connect(&odd.url()).await;
    let odd = refused(odd.acquire("odd", options().no_wait()).await);
    server.cli(&["SET", "lock:foreign", "theirs"]);
    let dead = [1, 2, 3].map(|port| format!("redis://127.0.0.1:{port}"));
    let voting = LockManager::builder().connect_lazily().redlock(dead).await;
    let voting = voting.expect("lazily");
    compare(&[
        (
            "held by another process",
            tried("held", options()).await,
            "the lock `held` is busy: the process web-1 holds it",
        ),
        (
            "taken by another client without an expiry",
            tried("foreign", options()).await,
            "the lock `foreign` is busy and has no expiry, because another client took it without one; `force_release` frees it",
        ),
        (
            "a shared lock on servers that vote",
            refused(voting.acquire("k", options().shared()).await),
            "the lock `k` cannot be used: the lock is requested shared: several independent servers (Redlock) can agree only on a \
             single holder of a lock, not on several or on the result of a run: acquire it exclusively, or use a manager on one \
             primary, sentinels or a cluster for this lock",
        ),
        (
            "a list of the locks on servers that vote",
            refused(voting.list("").next().await.expect("an error")),
            "the locks of several independent servers cannot be listed together: connect to one of them, and list its locks",
        ),
        (
            "a key of another type",
            list,
            "the lock `list` cannot be used: the key holds something that is not a lock: choose another key or prefix",
        ),
        (
            "a lock in another mode",
            mode,
            "the lock `permits` cannot be used: it is held or waited for in another mode: lock a key with permits \
             everywhere, or nowhere",
        ),
        (
            "a key of another type in the place of the fencing clock",
            clock,
            "the lock `clock` is unavailable: no usable reply from the backend: ERR no fencing token can be issued: \
             __lock_core__:clock is not a fencing clock, so another client must have written it. Run: DEL \
             __lock_core__:clock",
        ),
        (
            "a full server",
            full,
            "the lock `full` is unavailable: no usable reply from the backend: OOM command not allowed when used memory > \
             'maxmemory'.",
        ),
        (
            "a reply that does not fit the request",
            odd,
            "the lock `odd` is unavailable: no usable reply from the backend: the server's reply to an acquire has the \
             wrong form",
        ),
    ]);
}
