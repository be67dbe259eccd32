//! Other libraries and hand-written locks exclude a manager on the same key, and the reverse.
//!
//! Each is a process that follows commands, line by line; see `neighbours/client.py`.

use lock_core::{LeaseLost, LockError, LockGuard, LockManager, LockOptions};
use lock_tests::{
    AcquireFree as _, HANG, Process, Proxy, RedisServer, ReleaseHeld as _, assert_fails,
    eventually, fetched, key_prefix_in_docs,
};

/// The key that a contender derives from the name of its counter.
const KEY: &str = "contender:counter";

const WORKERS: u32 = 2;
const INCREMENTS: u32 = 25;

/// Another library, or a hand-written lock.
#[derive(Debug, Clone, Copy)]
struct Neighbour {
    program: Program,
    name: &'static str,
    /// Its row in the table of docs/migrating.md. A hand-written lock has none, and uses the key as given.
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
                async fn each_client_blocks_the_other_until_its_release() {
                    super::each_client_blocks_the_other_until_its_release(NEIGHBOUR).await;
                }

                #[tokio::test]
                #[ignore = "fetched by `tests/run --all`"]
                async fn neither_client_deletes_the_key_of_the_other() {
                    super::neither_client_deletes_the_key_of_the_other(NEIGHBOUR).await;
                }

                #[test]
                #[ignore = "fetched by `tests/run --all`"]
                fn both_clients_together_lose_no_increment() {
                    super::both_clients_together_lose_no_increment(NEIGHBOUR);
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
    /// Returns a hand-written lock, which uses the key as given.
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
                let python = fetched("python/bin/python", "Python with other libraries");
                // Two packages have a module called redlock, so this one is in a separate folder.
                let libraries = match self.name {
                    "redlock" => fetched("python-redlock", "the Python library redlock"),
                    _ => String::new(),
                };
                (python, "client.py", ("PYTHONPATH", libraries))
            }
            Program::Node => {
                let libraries = fetched("node/node_modules", "the Node library redlock");
                ("node".to_owned(), "client.js", ("NODE_PATH", libraries))
            }
        };
        let script = format!("{}/neighbours/{script}", env!("CARGO_MANIFEST_DIR"));
        let mut arguments = vec![&*script, self.name, url, KEY];
        arguments.extend(more);
        // Python must not write compiled files beside the sources.
        let variables = [
            (libraries.0, &*libraries.1),
            ("PYTHONDONTWRITEBYTECODE", "1"),
        ];
        let mut client = Client(Process::spawn(&program, &arguments, &variables));
        assert_eq!(client.0.line(), "ready");
        client
    }

    fn prefix(self) -> &'static str {
        self.row.map_or("", key_prefix_in_docs)
    }

    /// Returns the key of its lock on the server.
    fn full_key(self) -> String {
        self.prefix().to_owned() + KEY
    }

    /// Returns a manager with the same keys.
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

/// Options with a ttl that outlasts any wait, so that no expiry is mistaken for a release.
fn options() -> LockOptions {
    LockOptions::new(HANG * 10).wait(HANG)
}

async fn is_free(locks: &LockManager) -> bool {
    let tried = locks.try_acquire(KEY, options()).await;
    tried.expect("a reply").is_some()
}

async fn acquire(locks: &LockManager) -> LockGuard {
    locks.acquire_free(KEY, options()).await
}

async fn each_client_blocks_the_other_until_its_release(neighbour: Neighbour) {
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
        "it is still theirs"
    );
    assert_eq!(theirs.ask("release"), "released");
    let guard = waiting.await.expect("granted");

    assert_eq!(theirs.ask("try"), "busy");
    theirs.0.say("acquire");
    let asked = proxy.log().len();
    // One attempt of the other library sends at most four commands.
    eventually!(HANG, "theirs waits, and asks again" => proxy.log().len() > asked + 4);
    guard.lease().verify().await.expect("it is still ours");
    guard.release_held().await;
    assert_eq!(theirs.0.line(), "held");
    assert!(!is_free(&locks).await);
    assert_eq!(theirs.ask("release"), "released");
    assert_eq!(server.get(&key), None);
    // A share is kept for a moment after its release, so it comes last.
    for options in [options().permits(2), options().shared()] {
        let guard = locks.acquire(KEY, options).await.expect("free");
        assert_eq!(theirs.ask("try"), "busy");
        guard.release_held().await;
    }
}

async fn neither_client_deletes_the_key_of_the_other(neighbour: Neighbour) {
    let server = RedisServer::start();
    let locks = neighbour.manager(&server).await;
    let mut theirs = neighbour.start(&server.url(), &[]);
    let key = neighbour.full_key();

    // As if their lease had expired unnoticed.
    assert_eq!(theirs.ask("try"), "held");
    server.cli(&["DEL", &key]);
    let guard = acquire(&locks).await;
    theirs.ask("release");
    guard.lease().verify().await.expect("it is still ours");

    // And the reverse.
    server.cli(&["DEL", &key]);
    assert_eq!(theirs.ask("try"), "held");
    let value = server.get(&key).expect("their key");
    let released = guard.release().await;
    assert_fails!(released, LockError::Lost { .. });
    assert_eq!(
        server.get(&key).as_ref(),
        Some(&value),
        "it is still theirs"
    );
    assert_eq!(theirs.ask("release"), "released");
}

/// Lets all processes count at the same time. Returns the final value of the counter.
fn count(server: &RedisServer, neighbour: Neighbour) -> u32 {
    let (url, prefix) = (server.url(), neighbour.prefix());
    let increments = INCREMENTS.to_string();
    let arguments = [
        &*url,
        &*url,
        "counter",
        "1",
        &*increments,
        "locked",
        prefix,
        // The pauses are long enough that clients that poll get the lock in between.
        "5",
    ];
    let mut ours: Vec<Process> = (0..WORKERS)
        .map(|_| Process::spawn(env!("CARGO_BIN_EXE_contender"), &arguments, &[]))
        .collect();
    let mut theirs: Vec<Client> = (0..WORKERS).map(|_| neighbour.start(&url, &[])).collect();
    // All are connected before the first begins, so that they really contend.
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

fn both_clients_together_lose_no_increment(neighbour: Neighbour) {
    let server = RedisServer::start();
    assert_eq!(count(&server, neighbour), 2 * WORKERS * INCREMENTS);
    assert_eq!(server.get(&neighbour.full_key()), None, "all released");
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
    assert_fails!(
        busy,
        LockError::Busy {
            retry_after: None,
            ..
        }
    );
    locks.force_release(KEY).await.expect("a reply");
    assert!(is_free(&locks).await);
}

/// The recipe with time stamps as values, which are taken over by `GETSET` after they have passed, cannot be supported.
mod time_stamps {
    use super::{LeaseLost, Neighbour, RedisServer, acquire};

    const NEIGHBOUR: Neighbour = Neighbour::recipe("time-stamps");

    #[tokio::test]
    #[ignore = "fetched by `tests/run --all`"]
    async fn the_recipe_takes_our_lock_whatever_its_clock() {
        let server = RedisServer::start();
        let locks = NEIGHBOUR.manager(&server).await;
        let guard = acquire(&locks).await;
        let mut theirs = NEIGHBOUR.start(&server.url(), &[]);
        assert_eq!(theirs.ask("try"), "held", "an owner token is not a number");
        guard.lease().verify().await.expect_err("it is gone");
        assert_eq!(guard.lease().lost().await, LeaseLost::TakenAway);
    }

    #[tokio::test]
    #[ignore = "fetched by `tests/run --all`"]
    async fn our_locks_never_take_the_key_of_the_recipe() {
        let server = RedisServer::start();
        let locks = NEIGHBOUR.manager(&server).await;
        let mut theirs = NEIGHBOUR.start(&server.url(), &["-3600"]);
        assert_eq!(theirs.ask("try"), "held", "and expired for an hour");
        assert!(!super::is_free(&locks).await);
        theirs.0.kill9();
        assert!(!super::is_free(&locks).await, "there is no expiry");
    }
}
