//! The recipes of `docs/recipes.md` as printed there, and the claims of that page.

use std::{
    io::Write as _,
    net::TcpListener,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering::SeqCst},
        mpsc,
    },
    thread,
};

use lock_core::{LockError, LockManager, with_locks};
use lock_tests::{SECOND, options, patient};
use tokio::{
    io::AsyncReadExt as _,
    net::TcpStream,
    sync::Semaphore,
    task::{JoinSet, yield_now},
    time::sleep,
};

#[test]
fn the_page_prints_the_recipes_that_are_tested_here() {
    let page = include_str!("../../docs/recipes.md");
    for recipe in [
        include_str!("recipes/daily.rs"),
        include_str!("recipes/stampede.rs"),
        include_str!("recipes/migrations.rs"),
        include_str!("recipes/redelivery.rs"),
    ] {
        assert!(page.contains(recipe), "{recipe}");
    }
}

/// Makes the same call on three replicas at a time.
async fn on_three_replicas<F>(locks: &LockManager, call: impl Fn() -> F)
where
    F: Future<Output = Result<(), LockError>> + Send + 'static,
{
    let mut replicas = JoinSet::new();
    for _ in 0..3 {
        replicas.spawn(with_locks(locks.clone(), call()));
    }
    for ended in replicas.join_all().await {
        ended.expect("done, by this replica or by another one");
    }
}

mod daily {
    use super::{LockManager, Mutex, SECOND, on_three_replicas, sleep, with_locks};

    include!("recipes/daily.rs");

    static STARTED: Mutex<Vec<String>> = Mutex::new(Vec::new());

    /// Fails on the first run for the day `fails`.
    async fn send_report(day: &str) -> Result<(), LockError> {
        STARTED.lock().expect("no panic").push(day.to_owned());
        sleep(SECOND).await;
        if day == "fails" && starts(day) == 1 {
            return Err(LockError::NotConfigured);
        }
        Ok(())
    }

    fn starts(day: &str) -> usize {
        let started = STARTED.lock().expect("no panic");
        started.iter().filter(|other| *other == day).count()
    }

    #[tokio::test(start_paused = true)]
    async fn one_replica_sends_the_report() {
        let locks = LockManager::in_memory();
        let day = || daily_report("2026-11-25".to_owned());
        on_three_replicas(&locks, day).await;
        // A replica whose clock is an hour late.
        sleep(SECOND * 3_600).await;
        with_locks(locks, day()).await.expect("sent already");
        assert_eq!(starts("2026-11-25"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn another_replica_sends_the_report_after_a_failure() {
        let locks = LockManager::in_memory();
        let day = || daily_report("fails".to_owned());
        let failed = with_locks(locks.clone(), day()).await;
        assert!(failed.is_err());
        on_three_replicas(&locks, day).await;
        assert_eq!(starts("fails"), 2);
    }
}

mod stampede {
    use super::{Arc, AtomicU32, JoinSet, LockManager, Mutex, SECOND, SeqCst, sleep, with_locks};

    include!("recipes/stampede.rs");

    #[derive(Default)]
    struct Cache(Mutex<Option<u64>>);

    impl Cache {
        async fn get(&self, _id: u64) -> Option<u64> {
            sleep(SECOND / 1_000).await;
            *self.0.lock().expect("no panic")
        }

        async fn put(&self, _id: u64, price: u64) {
            sleep(SECOND / 1_000).await;
            *self.0.lock().expect("no panic") = Some(price);
        }
    }

    static COMPUTATIONS: AtomicU32 = AtomicU32::new(0);

    async fn compute(id: u64) -> u64 {
        COMPUTATIONS.fetch_add(1, SeqCst);
        sleep(SECOND).await;
        id * 100
    }

    #[tokio::test(start_paused = true)]
    async fn fifty_callers_of_an_empty_cache_make_one_computation() {
        let (locks, cache) = (LockManager::in_memory(), Arc::new(Cache::default()));
        let mut callers = JoinSet::new();
        for _ in 0..50 {
            let cache = cache.clone();
            callers.spawn(with_locks(
                locks.clone(),
                async move { price(7, &cache).await },
            ));
        }
        for price in callers.join_all().await {
            assert_eq!(price.expect("in time"), 700);
        }
        assert_eq!(COMPUTATIONS.load(SeqCst), 1);
    }
}

mod migrations {
    use super::{Arc, LockManager, Mutex, SECOND, on_three_replicas, sleep};

    include!("recipes/migrations.rs");

    const LATEST: usize = 4;

    #[derive(Default)]
    struct Database(Mutex<Vec<usize>>);

    impl Database {
        async fn version(&self) -> usize {
            sleep(SECOND / 1_000).await;
            self.0.lock().expect("no panic").len()
        }

        async fn apply(&self, step: usize) {
            sleep(SECOND).await;
            self.0.lock().expect("no panic").push(step);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn three_replicas_that_start_together_apply_each_step_once() {
        let (locks, database) = (LockManager::in_memory(), Arc::new(Database::default()));
        let migrated = || {
            let database = database.clone();
            async move { migrate(&database).await }
        };
        on_three_replicas(&locks, migrated).await;
        assert_eq!(*database.0.lock().expect("no panic"), [0, 1, 2, 3]);
    }
}

mod redelivery {
    use super::{AtomicBool, LockManager, Mutex, Semaphore, SeqCst, with_locks, yield_now};

    include!("recipes/redelivery.rs");

    static SHIPPED: Mutex<Vec<String>> = Mutex::new(Vec::new());
    /// Closed when the handlers may end.
    static MAY_END: Semaphore = Semaphore::const_new(0);
    static HAS_FAILED: AtomicBool = AtomicBool::new(false);

    async fn ship(text: &str) -> Result<(), LockError> {
        if text == "slow" {
            assert!(MAY_END.acquire().await.is_err());
        }
        if text == "fails once" && !HAS_FAILED.swap(true, SeqCst) {
            return Err(LockError::NotConfigured);
        }
        SHIPPED.lock().expect("no panic").push(text.to_owned());
        Ok(())
    }

    fn shipments(text: &str) -> usize {
        let shipped = SHIPPED.lock().expect("no panic");
        shipped.iter().filter(|other| *other == text).count()
    }

    #[tokio::test(start_paused = true)]
    async fn a_second_delivery_is_returned_during_the_first_and_acknowledged_after_it() {
        let deliveries = async {
            let first = async { deliver("m1", "slow").await };
            let second = async {
                yield_now().await;
                let during = deliver("m1", "slow").await;
                assert!(matches!(during, Delivery::Return));
                MAY_END.close();
            };
            let (first, ()) = tokio::join!(first, second);
            assert!(matches!(first, Delivery::Acknowledge));
            let later = deliver("m1", "slow").await;
            assert!(matches!(later, Delivery::Acknowledge));
        };
        with_locks(LockManager::in_memory(), deliveries).await;
        assert_eq!(shipments("slow"), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_whose_handler_failed_is_handled_by_its_next_delivery() {
        let deliveries = async {
            let failed = deliver("m2", "fails once").await;
            assert!(matches!(failed, Delivery::Return));
            let again = deliver("m2", "fails once").await;
            assert!(matches!(again, Delivery::Acknowledge));
        };
        with_locks(LockManager::in_memory(), deliveries).await;
        assert_eq!(shipments("fails once"), 1);
    }
}

/// Connects to a store on another thread, which replies when the returned sender is used.
async fn connect() -> (TcpStream, mpsc::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("an address");
    let (reply, may_reply) = mpsc::channel();
    thread::spawn(move || {
        let (mut connection, _) = listener.accept().expect("one client");
        if may_reply.recv().is_ok() {
            connection.write_all(b"!").expect("a client that reads");
        }
    });
    let connection = TcpStream::connect(address).await;
    (connection.expect("a listener"), reply)
}

/// A paused clock jumps ahead while the runtime only waits for the socket.
#[tokio::test(start_paused = true)]
async fn on_a_paused_clock_a_wait_ends_while_a_body_waits_for_a_real_store() {
    let locks = LockManager::in_memory();
    let (mut connection, reply) = connect().await;
    let body = async |_lease| connection.read_u8().await.expect("a reply");
    let waiter = async {
        let refused = locks.acquire("k", options().wait(SECOND * 3_600)).await;
        assert!(refused.is_err_and(|error| error.is_busy()));
        reply.send(()).expect("the store's thread");
    };
    let (ran, ()) = tokio::join!(locks.run("k", options(), body), waiter);
    ran.expect("renewed, since the lease follows the same clock");
}

/// One caller takes the connection first, the other the lock.
#[tokio::test(start_paused = true)]
async fn locks_and_pooled_connections_in_two_orders_wait_for_each_other() {
    let (locks, pool) = (LockManager::in_memory(), Semaphore::new(1));
    let connection_first = async {
        let _connection = pool.acquire().await.expect("open");
        yield_now().await;
        locks.run("k", options().wait(SECOND), async |_| ()).await
    };
    let lock_first = locks.run("k", patient(), async |_| {
        let _connection = pool.acquire().await.expect("open");
    });
    let (refused, ran) = tokio::join!(connection_first, lock_first);
    assert!(refused.is_err_and(|error| error.is_busy()));
    ran.expect("it continues after the other has given up");
}
