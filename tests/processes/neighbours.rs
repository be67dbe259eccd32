//! Other libraries, and hand-written locks, beside a manager: on the same key they exclude each other.
//!
//! Each is a process that obeys lines; see `neighbours/client.py`.

use lock_core::{LeaseLost, LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{
    HANG, Process, Proxy, RedisServer, ReleaseHeld as _, assert_fails, documented_prefix,
    eventually, tool,
};
use tokio::time::timeout;

/// The key that the contender derives from the counter's name.
const KEY: &str = "contender:counter";

const WORKERS: u32 = 2;
const INCREMENTS: u32 = 25;

/// Another library, or a hand-written lock.
#[derive(Debug, Clone, Copy)]
struct Neighbour {
    program: Program,
    name: &'static str,
    /// Its row in the table of docs/migrating.md; `None` of a hand-written lock, which takes the key as it is given.
    row: Option<&'static str>,
}

#[derive(Debug, Clone, Copy)]
enum Program {
    Python,
    Node,
}

/// Makes the tests of each neighbour.
macro_rules! neighbours {
    ($($module:ident: $program:ident $name:literal, $row:expr;)*) => {
        $(
            mod $module {
                use super::{Neighbour, Program};

                const NEIGHBOUR: Neighbour = Neighbour {
                    program: Program::$program,
                    name: $name,
                    row: $row,
                };

                #[tokio::test]
                #[ignore = "fetched by `tests/run --all`"]
                async fn each_blocks_the_other_until_its_release() {
                    super::each_blocks_the_other_until_its_release(NEIGHBOUR).await;
                }

                #[tokio::test]
                #[ignore = "fetched by `tests/run --all`"]
                async fn neither_deletes_the_others_key() {
                    super::neither_deletes_the_others_key(NEIGHBOUR).await;
                }

                #[tokio::test]
                #[ignore = "fetched by `tests/run --all`"]
                async fn a_lock_that_is_not_exclusive_is_busy_for_the_other() {
                    super::a_lock_that_is_not_exclusive_is_busy_for_the_other(NEIGHBOUR).await;
                }

                #[test]
                #[ignore = "fetched by `tests/run --all`"]
                fn together_they_lose_no_increment() {
                    super::together_they_lose_no_increment(NEIGHBOUR);
                }
            }
        )*
    };
}

neighbours! {
    redis_py: Python "redis-py", Some("redis-py, `Lock`");
    redlock_py: Python "redlock-py", Some("redlock-py");
    pypi_redlock: Python "redlock", Some("redlock (PyPI)");
    pottery: Python "pottery", Some("pottery, `Redlock`");
    python_redis_lock: Python "python-redis-lock", Some("python-redis-lock");
    npm_redlock: Node "redlock", Some("redlock (npm)");
    setnx_without_expiry: Python "setnx-without-expiry", None;
    setnx_then_expire: Python "setnx-then-expire", None;
    setnx_and_expire_in_a_script: Python "setnx-and-expire-in-a-script", None;
    set_nx_px: Python "set-nx-px", None;
}

impl Neighbour {
    /// A hand-written lock, which takes the key as it is given.
    const fn recipe(name: &'static str) -> Self {
        Self {
            program: Program::Python,
            name,
            row: None,
        }
    }

    /// Starts a client for the lock of [`KEY`].
    fn start(self, url: &str, more: &[&str]) -> Client {
        let (program, script, libraries) = match self.program {
            Program::Python => {
                let python = tool("python/bin/python", "Python with other libraries");
                // Two packages have a module called redlock, so this one is in a folder of its own.
                let libraries = match self.name {
                    "redlock" => tool("python-redlock", "the Python library redlock"),
                    _ => String::new(),
                };
                (python, "client.py", ("PYTHONPATH", libraries))
            }
            Program::Node => {
                let libraries = tool("node/node_modules", "the Node library redlock");
                ("node".to_owned(), "client.js", ("NODE_PATH", libraries))
            }
        };
        let script = format!("{}/neighbours/{script}", env!("CARGO_MANIFEST_DIR"));
        let mut arguments = vec![&*script, self.name, url, KEY];
        arguments.extend(more);
        // Python must write no compiled files beside the sources.
        let variables = [
            (libraries.0, &*libraries.1),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        ];
        let mut client = Client(Process::spawn(&program, &arguments, &variables));
        assert_eq!(client.0.line(), "ready");
        client
    }

    fn prefix(self) -> &'static str {
        self.row.map_or("", documented_prefix)
    }

    /// The key of its lock on the server.
    fn full_key(self) -> String {
        self.prefix().to_owned() + KEY
    }

    /// A manager with the same keys.
    async fn manager(self, server: &RedisServer) -> LockManager {
        let builder = LockManager::builder().key_prefix(self.prefix());
        let connected = builder.connect(&server.url()).await;
        connected.expect("the server is up")
    }
}

/// A process with another lock.
struct Client(Process);

impl Client {
    /// Sends a command to the client, and returns its reply.
    fn ask(&mut self, words: &str) -> String {
        self.0.say(words);
        self.0.line()
    }
}

/// Options with a lease that outlasts any wait, so that no expiry is taken for a release.
fn options() -> LockOptions {
    LockOptions::new(HANG * 10).wait(HANG)
}

async fn is_free(locks: &LockManager) -> bool {
    let tried = locks.try_acquire(KEY, options()).await;
    tried.expect("a reply").is_some()
}

async fn acquire(locks: &LockManager) -> LockGuard {
    let acquired = timeout(HANG, locks.acquire(KEY, options())).await;
    acquired.expect("no hang").expect("free, or soon")
}

async fn each_blocks_the_other_until_its_release(neighbour: Neighbour) {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let locks = neighbour.manager(&server).await;
    let mut theirs = neighbour.start(&proxy.url(), &[]);
    let key = neighbour.full_key();

    assert_eq!(theirs.ask("try"), "held");
    let value = server.get(&key).expect("their key");
    assert!(!is_free(&locks).await);
    let waiting = tokio::spawn({
        let locks = locks.clone();
        async move { acquire(&locks).await }
    });
    eventually!(HANG, "ours waits" => !server.keys("__lock_core__:waiters:*").is_empty());
    assert_eq!(
        server.get(&key).as_ref(),
        Some(&value),
        "it is theirs still"
    );
    assert_eq!(theirs.ask("release"), "released");
    let guard = waiting.await.expect("granted");

    assert_eq!(theirs.ask("try"), "busy");
    theirs.0.say("acquire");
    let asked = proxy.log().len();
    // An attempt of the other library has at most four commands.
    eventually!(HANG, "theirs waits, and asks again" => proxy.log().len() > asked + 4);
    guard.lease().verify().await.expect("it is ours still");
    guard.release_held().await;
    assert_eq!(theirs.0.line(), "held");
    assert!(!is_free(&locks).await);
    assert_eq!(theirs.ask("release"), "released");
    assert_eq!(server.get(&key), None);
}

/// Checks a shared lock, and one with permits.
async fn a_lock_that_is_not_exclusive_is_busy_for_the_other(neighbour: Neighbour) {
    let server = RedisServer::start();
    let locks = neighbour.manager(&server).await;
    let mut theirs = neighbour.start(&server.url(), &[]);
    let key = neighbour.full_key();
    for options in [options().shared(), options().permits(2)] {
        assert_eq!(theirs.ask("try"), "held");
        let busy = locks.try_acquire(KEY, options.clone()).await;
        assert!(busy.expect("a reply").is_none());
        let waiting = tokio::spawn({
            let (locks, options) = (locks.clone(), options.clone());
            async move { locks.acquire(KEY, options).await.expect("free, or soon") }
        });
        assert_eq!(theirs.ask("release"), "released");
        let guard = timeout(HANG, waiting).await.expect("no hang");
        let guard = guard.expect("no panic");
        assert_eq!(theirs.ask("try"), "busy");
        guard.lease().verify().await.expect("it is ours still");

        // As if their lease had run out, and they did not notice.
        server.cli(&["DEL", &key]);
        assert_eq!(theirs.ask("try"), "held");
        let lost = guard.lease().verify().await;
        assert_fails!(lost, LockError::Lost { .. });
        server.cli(&["DEL", &key]);
        let next = locks.acquire(KEY, options).await;
        let next = next.expect("free, or soon");
        theirs.ask("release");
        next.lease().verify().await.expect("it is ours still");
        drop((guard, next));
        locks.force_release(KEY).await.expect("a reply");
    }
}

async fn neither_deletes_the_others_key(neighbour: Neighbour) {
    let server = RedisServer::start();
    let locks = neighbour.manager(&server).await;
    let mut theirs = neighbour.start(&server.url(), &[]);
    let key = neighbour.full_key();

    // As if their lease had run out, and they did not notice.
    assert_eq!(theirs.ask("try"), "held");
    server.cli(&["DEL", &key]);
    let guard = acquire(&locks).await;
    theirs.ask("release");
    guard.lease().verify().await.expect("it is ours still");

    // The same the other way round.
    server.cli(&["DEL", &key]);
    assert_eq!(theirs.ask("try"), "held");
    let value = server.get(&key).expect("their key");
    let released = guard.release().await;
    assert_fails!(released, LockError::Lost { .. });
    assert_eq!(
        server.get(&key).as_ref(),
        Some(&value),
        "it is theirs still"
    );
    assert_eq!(theirs.ask("release"), "released");
}

/// Lets all processes count at the same time; returns the end value of the counter.
fn count(server: &RedisServer, neighbour: Neighbour, mode: &str) -> u32 {
    let (url, prefix) = (server.url(), neighbour.prefix());
    let increments = INCREMENTS.to_string();
    let arguments = [
        &*url,
        &*url,
        "counter",
        "1",
        &*increments,
        mode,
        prefix,
        // The pauses are long enough for clients that poll to get the lock in between.
        "5",
    ];
    let mut ours: Vec<Process> = (0..WORKERS)
        .map(|_| Process::spawn(env!("CARGO_BIN_EXE_contender"), &arguments, &[]))
        .collect();
    let mut theirs: Vec<Client> = (0..WORKERS).map(|_| neighbour.start(&url, &[])).collect();
    // All are connected before the first begins, so that they really compete.
    for process in &mut ours {
        assert_eq!(process.line(), "ready");
    }
    for process in ours
        .iter_mut()
        .chain(theirs.iter_mut().map(|client| &mut client.0))
    {
        process.say(&format!("count {increments}"));
    }
    for client in &mut theirs {
        assert_eq!(client.0.line(), "counted");
    }
    for process in ours {
        process.join();
    }
    let end = server.get("counter").expect("a process counted");
    end.parse().expect("a number")
}

fn together_they_lose_no_increment(neighbour: Neighbour) {
    let server = RedisServer::start();
    assert_eq!(
        count(&server, neighbour, "locked"),
        2 * WORKERS * INCREMENTS
    );
    assert_eq!(server.get(&neighbour.full_key()), None, "all let go");
}

#[test]
#[ignore = "fetched by `tests/run --all`"]
fn without_locks_they_lose_some() {
    let server = RedisServer::start();
    let end = count(&server, Neighbour::recipe("no-lock"), "unlocked");
    assert!(end < 2 * WORKERS * INCREMENTS, "{end}");
}

#[tokio::test]
#[ignore = "fetched by `tests/run --all`"]
async fn a_lock_without_expiry_outlives_its_process_until_it_is_forced() {
    let server = RedisServer::start();
    let neighbour = Neighbour::recipe("setnx-without-expiry");
    let locks = neighbour.manager(&server).await;
    let mut theirs = neighbour.start(&server.url(), &[]);
    assert_eq!(theirs.ask("try"), "held");
    theirs.0.kill9();
    let busy = locks.acquire(KEY, options().no_wait()).await;
    assert!(
        matches!(
            busy,
            Err(LockError::Busy {
                retry_after: None,
                ..
            })
        ),
        "{busy:?}"
    );
    locks.force_release(KEY).await.expect("a reply");
    assert!(is_free(&locks).await);
}

/// Shows why the recipe with time stamps as values, taken over by `GETSET` when they are over, cannot be supported.
mod time_stamps {
    use super::{Client, LeaseLost, Neighbour, RedisServer, acquire};

    const NEIGHBOUR: Neighbour = Neighbour::recipe("time-stamps");

    /// More than its time-out of sixty seconds.
    const AHEAD: &str = "90";

    /// Two clients, of which the second has a clock that is ahead.
    fn two_clients(server: &RedisServer) -> (Client, Client) {
        let url = server.url();
        (NEIGHBOUR.start(&url, &[]), NEIGHBOUR.start(&url, &[AHEAD]))
    }

    #[test]
    #[ignore = "fetched by `tests/run --all`"]
    fn two_clocks_make_two_holders_and_lose_an_increment() {
        let server = RedisServer::start();
        let (mut one, mut other) = two_clients(&server);
        assert_eq!(one.ask("try"), "held");
        assert_eq!(one.ask("read"), "0");
        let mut in_step = NEIGHBOUR.start(&server.url(), &[]);
        assert_eq!(in_step.ask("try"), "busy", "by the same clock");
        assert_eq!(other.ask("try"), "held", "at the same time");
        assert_eq!(other.ask("read"), "0");
        assert_eq!(one.ask("write"), "written");
        assert_eq!(other.ask("write"), "written");
        assert_eq!(server.get("counter").as_deref(), Some("1"), "of two");
    }

    #[test]
    #[ignore = "fetched by `tests/run --all`"]
    fn a_release_deletes_the_key_of_another() {
        let server = RedisServer::start();
        let (mut one, mut other) = two_clients(&server);
        assert_eq!(one.ask("try"), "held");
        assert_eq!(other.ask("try"), "held");
        assert_eq!(one.ask("release"), "released");
        assert_eq!(server.get(super::KEY), None, "the other one has it still");
    }

    #[tokio::test]
    #[ignore = "fetched by `tests/run --all`"]
    async fn it_takes_a_lock_of_ours_whatever_the_clock() {
        let server = RedisServer::start();
        let locks = NEIGHBOUR.manager(&server).await;
        let guard = acquire(&locks).await;
        let mut theirs = NEIGHBOUR.start(&server.url(), &[]);
        assert_eq!(theirs.ask("try"), "held", "an owner token is no number");
        guard.lease().verify().await.expect_err("it is gone");
        assert_eq!(guard.lease().lost().await, LeaseLost::TakenAway);
    }

    #[tokio::test]
    #[ignore = "fetched by `tests/run --all`"]
    async fn ours_never_takes_its_key() {
        let server = RedisServer::start();
        let locks = NEIGHBOUR.manager(&server).await;
        let mut theirs = NEIGHBOUR.start(&server.url(), &["-3600"]);
        assert_eq!(theirs.ask("try"), "held", "and over for an hour");
        assert!(!super::is_free(&locks).await);
        theirs.0.kill9();
        assert!(!super::is_free(&locks).await, "there is no expiry");
    }
}
