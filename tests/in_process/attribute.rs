//! The behaviour of annotated functions at run time, on the memory backend.

use std::{
    cell::Cell,
    fmt,
    mem::size_of_val,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use lock_core::{
    LeaseLost, LockError, LockKey, LockManager, LockOptions, current_lease, distributed_lock, key,
    set_global, with_locks,
};
use lock_tests::{AcquireFree as _, ReleaseHeld as _, reason_of_loss};
use tokio::{
    task::yield_now,
    time::{Instant, sleep},
};

/// The key that the running body holds.
fn held() -> String {
    current_lease().expect("a lock is held").key().to_string()
}

fn memory() -> LockManager {
    LockManager::in_memory()
}

/// A manager on which every acquire answers `Unavailable`.
async fn closed() -> LockManager {
    let manager = memory();
    manager.shutdown(Duration::ZERO).await;
    manager
}

mod keys {
    use super::*;

    struct Order {
        id: u64,
        lines: Vec<(u8, &'static str)>,
    }

    impl Order {
        fn shard(&self, of: u64) -> u64 {
            self.id % of
        }
    }

    #[tokio::test]
    async fn a_template_encodes_the_separators_in_its_values() {
        #[distributed_lock(key = "order:{id}")]
        async fn plain(id: &str) -> Result<String, LockError> {
            Ok(held())
        }
        #[distributed_lock(key = "{{tag:{id}}}:{id:04}:{id:>3}:{{}}")]
        async fn tagged(id: u64) -> Result<String, LockError> {
            Ok(held())
        }
        #[distributed_lock(
            key = "{order.id}/{order.lines[0].1}/{order.shard(7)}/{u64::MAX}-{(order.lines[0].0)}"
        )]
        async fn reached(order: &Order) -> Result<String, LockError> {
            Ok(held())
        }
        #[distributed_lock(key = "no values, 100%")]
        async fn fixed() -> Result<String, LockError> {
            Ok(held())
        }
        let order = Order {
            id: 9,
            lines: vec![(1, "a/b-c d")],
        };
        with_locks(memory(), async {
            assert_eq!(plain("42").await.expect("not refused"), "order:42");
            assert_eq!(
                plain("a:b {c}%é\n").await.expect("not refused"),
                "order:a%3Ab%20%7Bc%7D%25é%0A"
            );
            assert_eq!(
                plain("a/b-c_d").await.expect("not refused"),
                "order:a/b-c_d",
                "they are not separators of this template"
            );
            assert_eq!(
                tagged(42).await.expect("not refused"),
                "{tag:42}:0042:%2042:{}"
            );
            assert_eq!(
                reached(&order).await.expect("not refused"),
                "9/a%2Fb%2Dc%20d/2/18446744073709551615-1"
            );
            assert_eq!(fixed().await.expect("not refused"), "no values, 100%");
        })
        .await;
    }

    #[tokio::test]
    async fn the_macro_key_makes_the_key_of_the_attribute() {
        #[distributed_lock(key = "a-{x}:{y:>4}/{n}")]
        async fn f(x: &str, y: &str, n: u64) -> Result<LockKey, LockError> {
            assert_eq!(
                current_lease().expect("not refused").key(),
                &key!("a-{x}:{y:>4}/{n}")
            );
            Ok(key!("a-{x}:{y:>4}/{n}"))
        }
        with_locks(memory(), async {
            let (x, y, n) = ("a-b:c", "/", 7);
            assert_eq!(
                f(x, y, n).await.expect("not refused"),
                key!("a-{x}:{y:>4}/{n}")
            );
            assert_eq!(
                key!("a-{x}:{y:>4}/{n}").as_str(),
                "a-a%2Db%3Ac:%20%20%20%2F/7"
            );
        })
        .await;
    }

    #[tokio::test]
    async fn an_expression_is_the_key_byte_for_byte() {
        #[distributed_lock(key = text)]
        async fn f(text: &str) -> Result<String, LockError> {
            Ok(held())
        }
        #[distributed_lock(key = LockKey::new(text))]
        async fn g(text: String) -> Result<String, LockError> {
            Ok(held())
        }
        with_locks(memory(), async {
            for text in ["a:b", "{x}", "%25", " a b ", "\n", "ü→"] {
                assert_eq!(f(text).await.expect("not refused"), text);
                assert_eq!(g(text.to_owned()).await.expect("not refused"), text);
            }
        })
        .await;
    }

    #[tokio::test]
    async fn the_key_is_built_once_and_before_the_body() {
        struct Counted(AtomicU64);
        impl fmt::Display for Counted {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0.fetch_add(1, SeqCst))
            }
        }
        #[distributed_lock(key = "n:{n}")]
        async fn f(n: Counted) -> Result<u64, LockError> {
            sleep(Duration::from_millis(1)).await;
            assert_eq!(held(), "n:0");
            n.0.fetch_add(10, SeqCst);
            Ok(n.0.into_inner())
        }
        assert_eq!(
            with_locks(memory(), f(Counted(AtomicU64::new(0))))
                .await
                .expect("not refused"),
            11
        );
    }

    #[tokio::test]
    async fn a_key_that_returns_early_locks_nothing() {
        async fn of(id: u64) -> Result<String, &'static str> {
            assert!(current_lease().is_none(), "the key is built under the lock");
            sleep(Duration::from_millis(1)).await;
            if id == 0 {
                Err("no such order")
            } else {
                Ok(format!("order:{id}"))
            }
        }
        #[distributed_lock(key = of(id).await?, on_error = |_| Err("lock"))]
        async fn f(id: u64) -> Result<String, &'static str> {
            Ok(held())
        }
        let manager = memory();
        with_locks(manager.clone(), async {
            assert_eq!(f(1).await, Ok("order:1".to_owned()));
            assert_eq!(f(0).await, Err("no such order"));
        })
        .await;
        assert_eq!(with_locks(closed().await, f(0)).await, Err("no such order"));
    }
}

mod managers {
    use super::*;

    #[distributed_lock(key = "k", wait = "0s", lease = lease)]
    async fn by_default() -> Result<u64, LockError> {
        Ok(lease.fencing_token().into())
    }

    #[distributed_lock(key = "k", wait = "0s", locks = manager)]
    async fn given(manager: &LockManager) -> Result<(), LockError> {
        Ok(())
    }

    /// This is one test, because the whole process has one global manager.
    #[tokio::test]
    async fn the_option_locks_precedes_the_tasks_manager_and_that_the_global_one() {
        assert!(matches!(by_default().await, Err(LockError::NotConfigured)));
        let [global, of_task, own] = [memory(), memory(), memory()];
        drop(set_global(global.clone()));
        let options = LockOptions::default;
        let guard = global.acquire("k", options()).await.expect("not refused");
        assert!(by_default().await.expect_err("refused").is_busy());
        with_locks(of_task.clone(), by_default())
            .await
            .expect("not refused");
        guard.release().await.expect("not refused");

        let guard = of_task.acquire("k", options()).await.expect("not refused");
        assert!(
            with_locks(of_task.clone(), by_default())
                .await
                .expect_err("refused")
                .is_busy()
        );
        by_default().await.expect("not refused");
        with_locks(of_task.clone(), given(&own))
            .await
            .expect("not refused");
        guard.release().await.expect("not refused");

        let _guard = own.acquire("k", options()).await.expect("not refused");
        assert!(
            with_locks(of_task, given(&own))
                .await
                .expect_err("refused")
                .is_busy()
        );
    }

    #[tokio::test]
    async fn the_option_locks_is_evaluated_once_per_call() {
        struct Service {
            locks: LockManager,
            asked: Cell<u32>,
        }
        impl Service {
            fn locks(&self) -> &LockManager {
                self.asked.set(self.asked.get() + 1);
                &self.locks
            }
            #[distributed_lock(key = "k", locks = self.locks())]
            async fn f(&mut self) -> Result<u32, LockError> {
                yield_now().await;
                Ok(self.asked.get())
            }
        }
        let mut service = Service {
            locks: memory(),
            asked: Cell::new(0),
        };
        assert_eq!(service.f().await.expect("not refused"), 1);
        assert_eq!(service.f().await.expect("not refused"), 2);
    }
}

mod lists {
    use super::*;

    /// The keys that the running body holds, in the order in which they are written.
    fn all_held() -> Vec<String> {
        let tokens = current_lease().expect("a lock is held").fencing_tokens();
        tokens.iter().map(|(key, _)| key.to_string()).collect()
    }

    #[tokio::test]
    async fn every_key_of_a_list_is_held() {
        async fn parent(account: u64) -> Option<String> {
            yield_now().await;
            assert!(
                current_lease().is_none(),
                "the keys are built under the lock"
            );
            (account != 0).then(|| format!("parent:{account}"))
        }
        #[distributed_lock(key = ["account:{from}", parent(to).await?, "account:{to:03}"], on_error = |_| None)]
        async fn f(from: u64, to: u64) -> Option<Vec<String>> {
            Some(all_held())
        }
        #[distributed_lock(key = ["only:{id}"])]
        async fn one(id: u64) -> Result<Vec<String>, LockError> {
            Ok(all_held())
        }
        with_locks(memory(), async {
            let held = f(7, 4).await.expect("not refused");
            assert_eq!(held, ["account:7", "parent:4", "account:004"]);
            assert_eq!(f(7, 0).await, None, "an early return of the second key");
            assert_eq!(one(3).await.expect("not refused"), ["only:3"]);
        })
        .await;
        assert_eq!(with_locks(closed().await, f(7, 4)).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn the_options_apply_to_all_keys_of_a_list() {
        #[distributed_lock(key = ["a", "b"], wait = "0s", ttl = "1s", min_hold = "1s", on_busy = skip)]
        async fn f() -> Result<Option<u8>, LockError> {
            Ok(Some(1))
        }
        let locks = memory();
        let b = locks.acquire_free("b", LockOptions::default()).await;
        assert_eq!(
            with_locks(locks.clone(), f()).await.expect("not an error"),
            None
        );
        b.release_held().await;
        assert_eq!(with_locks(locks.clone(), f()).await.expect("free"), Some(1));
        for key in ["a", "b"] {
            assert!(locks.inspect(key).await.expect("works").is_some(), "{key}");
        }
    }
}

mod failures {
    use super::*;

    #[tokio::test]
    async fn the_body_does_not_run_without_the_lock() {
        #[distributed_lock(key = "k", wait = "0s")]
        async fn f(reached: &AtomicBool) -> Result<(), LockError> {
            reached.store(true, SeqCst);
            Ok(())
        }
        let (manager, reached) = (memory(), AtomicBool::new(false));
        let _guard = manager
            .acquire("k", LockOptions::default())
            .await
            .expect("not refused");
        assert!(
            with_locks(manager, f(&reached))
                .await
                .expect_err("refused")
                .is_busy()
        );
        assert!(matches!(
            with_locks(closed().await, f(&reached)).await,
            Err(LockError::Unavailable { .. })
        ));
        assert!(!reached.load(SeqCst));
    }

    #[tokio::test]
    async fn skip_applies_to_busy_locks_alone() {
        #[distributed_lock(key = "k", wait = "0s", on_busy = skip)]
        async fn result() -> Result<Option<u8>, LockError> {
            Ok(Some(1))
        }
        #[distributed_lock(key = "k", wait = "0s", on_busy = skip)]
        async fn unit(ran: &AtomicBool) -> Result<(), LockError> {
            ran.store(true, SeqCst);
            Ok(())
        }
        #[distributed_lock(key = "k", wait = "0s", on_busy = skip, on_error = |error| panic!("{error}"))]
        async fn option() -> Option<u8> {
            Some(1)
        }
        #[distributed_lock(key = "k", wait = "0s", on_busy = skip, on_error = |_| failed.store(true, SeqCst))]
        async fn nothing(failed: &AtomicBool) {
            yield_now().await;
        }
        let manager = memory();
        let (ran, failed) = (AtomicBool::new(false), AtomicBool::new(false));
        with_locks(manager.clone(), async {
            assert_eq!(result().await.expect("not refused"), Some(1));
            let _guard = manager
                .acquire("k", LockOptions::default())
                .await
                .expect("not refused");
            assert_eq!(result().await.expect("not refused"), None);
            assert_eq!(option().await, None);
            unit(&ran).await.expect("not refused");
            nothing(&failed).await;
            assert!(!ran.load(SeqCst) && !failed.load(SeqCst));
        })
        .await;
        with_locks(closed().await, async {
            assert!(matches!(result().await, Err(LockError::Unavailable { .. })));
            assert!(matches!(
                unit(&ran).await,
                Err(LockError::Unavailable { .. })
            ));
            nothing(&failed).await;
            assert!(failed.load(SeqCst));
        })
        .await;
    }

    #[tokio::test]
    async fn a_busy_lock_inside_the_body_is_an_error_and_not_skipped() {
        #[distributed_lock(key = "inner", wait = "0s")]
        async fn inner() -> Result<(), LockError> {
            Ok(())
        }
        #[distributed_lock(key = "outer", on_busy = skip)]
        async fn outer() -> Result<(), LockError> {
            inner().await
        }
        let manager = memory();
        let _guard = manager
            .acquire("inner", LockOptions::default())
            .await
            .expect("not refused");
        assert!(
            with_locks(manager, outer())
                .await
                .expect_err("refused")
                .is_busy()
        );
    }

    #[tokio::test]
    async fn anyhow_contains_the_lock_error() {
        #[distributed_lock(key = "k", wait = "0s")]
        async fn f() -> anyhow::Result<()> {
            anyhow::bail!("the body's own")
        }
        let manager = memory();
        let guard = manager
            .acquire("k", LockOptions::default())
            .await
            .expect("not refused");
        let error = with_locks(manager.clone(), f()).await.expect_err("refused");
        assert!(
            error
                .downcast_ref::<LockError>()
                .expect("a lock error")
                .is_busy()
        );
        guard.release().await.expect("not refused");
        let error = with_locks(manager, f()).await.expect_err("refused");
        assert_eq!(error.to_string(), "the body's own");
    }

    #[tokio::test]
    async fn on_error_maps_failures_of_the_lock_and_not_errors_of_the_body() {
        #[distributed_lock(key = "k", wait = "0s", on_error = |error| Err(format!("lock: {error}")))]
        async fn f() -> Result<(), String> {
            Err("own".to_owned())
        }
        let manager = memory();
        assert_eq!(
            with_locks(manager.clone(), f()).await,
            Err("own".to_owned())
        );
        let _guard = manager
            .acquire("k", LockOptions::default())
            .await
            .expect("not refused");
        let busy = with_locks(manager, f()).await.expect_err("held");
        assert!(
            busy.starts_with("lock: the lock `k` is busy: this task"),
            "{busy}"
        );
    }
}

mod options {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_lost_lease_drops_the_body_and_its_arguments() {
        #[distributed_lock(key = "k", ttl = "1s", renew = false)]
        async fn f(_dropped: Arc<()>) -> Result<(), LockError> {
            sleep(Duration::from_secs(59)).await;
            unreachable!("continues without the lock")
        }
        let flag = Arc::new(());
        let dropped = Arc::downgrade(&flag);
        let error = with_locks(memory(), f(flag)).await.expect_err("refused");
        assert!(
            matches!(
                error,
                LockError::Lost {
                    reason: LeaseLost::Expired,
                    ..
                }
            ),
            "{error:?}"
        );
        assert_eq!(dropped.strong_count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_continues_after_a_loss_with_on_lost_continue() {
        #[distributed_lock(key = "k", ttl = "1s", renew = false, on_lost = continue, lease = lease)]
        async fn f() -> Result<bool, LockError> {
            sleep(Duration::from_secs(59)).await;
            Ok(lease.is_lost())
        }
        assert!(with_locks(memory(), f()).await.expect("not refused"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_option_release_decides_whether_a_call_waits_for_the_reply() {
        #[distributed_lock(key = "k")]
        async fn as_the_manager() -> Result<(), LockError> {
            Ok(())
        }
        #[distributed_lock(key = ["k", "l"], release = awaited)]
        async fn awaited() -> Result<(), LockError> {
            Ok(())
        }
        #[distributed_lock(key = ["k", "l"], release = background)]
        async fn in_background() -> Result<(), LockError> {
            Ok(())
        }
        const REPLY: Duration = Duration::from_millis(100);
        for (builder, of_the_manager) in [
            (LockManager::builder(), 2),
            (LockManager::builder().release_in_background(), 1),
        ] {
            let (locks, faults) = builder.in_memory_with_faults();
            faults.delay(REPLY);
            let took = async |call: Pin<Box<dyn Future<Output = Result<(), LockError>>>>| {
                let started = Instant::now();
                call.await.expect("free");
                let replies = started.elapsed().as_millis() / REPLY.as_millis();
                // The releases are answered before the next call.
                sleep(REPLY * 2).await;
                replies
            };
            with_locks(locks, async {
                // One reply for each acquire, and one for the releases, which are sent together.
                assert_eq!(took(Box::pin(as_the_manager())).await, of_the_manager);
                assert_eq!(took(Box::pin(awaited())).await, 3);
                assert_eq!(took(Box::pin(in_background())).await, 2);
            })
            .await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_until_max_hold() {
        #[distributed_lock(key = "k", ttl = "1s")]
        async fn renewed() -> Result<(), LockError> {
            sleep(Duration::from_secs(59)).await;
            Ok(())
        }
        #[distributed_lock(key = "k", ttl = "1s", max_hold = "5s")]
        async fn bounded() -> Result<(), LockError> {
            sleep(Duration::from_secs(59)).await;
            Ok(())
        }
        with_locks(memory(), async {
            renewed().await.expect("not refused");
            let began = Instant::now();
            let lost = reason_of_loss(bounded().await);
            assert_eq!((lost, began.elapsed().as_secs()), (LeaseLost::MaxHold, 5));
        })
        .await;
    }

    #[tokio::test(start_paused = true)]
    async fn min_hold_also_applies_after_an_error() {
        #[distributed_lock(key = "k", min_hold = "5s", on_error = |error| Err(error.to_string()))]
        async fn fails() -> Result<(), String> {
            Err("the job failed".to_owned())
        }
        #[distributed_lock(key = "k", wait = "0s", on_busy = skip)]
        async fn tries() -> Result<Option<()>, LockError> {
            Ok(Some(()))
        }
        with_locks(memory(), async {
            fails().await.expect_err("the body's own error");
            assert_eq!(tries().await.expect("not an error"), None);
            sleep(Duration::from_secs(5)).await;
            assert_eq!(tries().await.expect("free"), Some(()));
        })
        .await;
    }
}

mod signatures {
    use super::*;

    /// Records whether a lock was held when this value was dropped.
    struct Witness<'a>(&'a AtomicUsize);

    impl Drop for Witness<'_> {
        fn drop(&mut self) {
            self.0
                .fetch_add(usize::from(current_lease().is_some()), SeqCst);
        }
    }

    #[tokio::test]
    async fn every_argument_is_dropped_before_the_lock_is_released() {
        struct Pair<'a>(
            Witness<'a>,
            #[expect(dead_code, reason = "only dropped")] Witness<'a>,
        );
        #[distributed_lock(key = "k")]
        async fn f<'a>(
            #[expect(unused_variables, reason = "moved into the body nevertheless")]
            unused: Witness<'a>,
            _: Witness<'a>,
            _ignored: Witness<'a>,
            Pair(taken, _): Pair<'a>,
        ) -> Result<(), LockError> {
            drop(taken);
            yield_now().await;
            Ok(())
        }
        let count = AtomicUsize::new(0);
        let new = || Witness(&count);
        with_locks(memory(), f(new(), new(), new(), Pair(new(), new())))
            .await
            .expect("not refused");
        assert_eq!(count.load(SeqCst), 5);
    }

    #[tokio::test]
    async fn self_is_dropped_before_the_lock_is_released() {
        struct Owner<'a>(
            #[expect(dead_code, reason = "only dropped")] Witness<'a>,
            u8,
        );
        impl Owner<'_> {
            #[distributed_lock(key = "k")]
            async fn f(self) -> Result<u8, LockError> {
                Ok(self.1)
            }
        }
        let count = AtomicUsize::new(0);
        with_locks(memory(), Owner(Witness(&count), 1).f())
            .await
            .expect("not refused");
        assert_eq!(count.load(SeqCst), 1);
    }

    #[test]
    fn the_future_is_at_most_64_bytes_larger_than_its_arguments() {
        type Big = [u8; 256];
        struct Wrapper(
            Big,
            #[expect(dead_code, reason = "not moved by the pattern")] u8,
        );
        struct Owner(Big);
        impl Owner {
            #[distributed_lock(key = "k:{self.0[0]}")]
            async fn owned(self, other: Big) -> Result<u8, LockError> {
                yield_now().await;
                Ok(self.0[0] + other[0])
            }
        }
        #[distributed_lock(key = "k:{id}", ttl = "1s", wait = "1s", lease = lease)]
        async fn body(id: u64) -> Result<u64, LockError> {
            let large = [id; 512];
            yield_now().await;
            Ok(large[0] + u64::from(lease.fencing_token()))
        }
        #[distributed_lock(key = "k:{big[0]}")]
        async fn argument(mut big: Big) -> Result<u8, LockError> {
            yield_now().await;
            big[0] += 1;
            Ok(big[0])
        }
        #[distributed_lock(key = "k:{a[0]}")]
        async fn patterns(Wrapper(a, _): Wrapper, _: Big, _unused: Big) -> Result<u8, LockError> {
            yield_now().await;
            Ok(a[0])
        }
        #[distributed_lock(key = key(&a).await)]
        async fn awaiting(a: Big) -> Result<u8, LockError> {
            yield_now().await;
            Ok(a[0])
        }
        async fn key(a: &Big) -> String {
            yield_now().await;
            a[0].to_string()
        }
        #[distributed_lock(key = ["a:{a[0]}", key(&a).await, "b", "c:{a[1]}"], ttl = "1s", lease = lease)]
        async fn list(a: Big) -> Result<u8, LockError> {
            yield_now().await;
            Ok(a[lease.fencing_tokens().len()])
        }
        let big = size_of::<Big>();
        assert!(size_of_val(&list([0; 256])) <= big + 64);
        assert!(size_of_val(&body(1)) <= size_of::<u64>() + 64);
        assert!(size_of_val(&argument([0; 256])) <= big + 64);
        assert!(
            size_of_val(&patterns(Wrapper([0; 256], 1), [0; 256], [0; 256])) <= 3 * big + 1 + 64
        );
        assert!(size_of_val(&awaiting([0; 256])) <= big + 64);
        assert!(size_of_val(&Owner([0; 256]).owned([0; 256])) <= 2 * big + 64);
    }

    #[tokio::test]
    async fn async_trait_methods_are_locked() {
        #[async_trait::async_trait]
        trait Store: Send {
            async fn change(&mut self, pair: (u64, String)) -> Result<String, LockError>;
            #[distributed_lock(key = "default:{id}")]
            async fn by_default(&self, id: u64) -> Result<String, LockError>
            where
                Self: Sync,
            {
                Ok(format!("{id} under {}", held()))
            }
        }
        struct Memory {
            n: u64,
        }
        #[async_trait::async_trait]
        impl Store for Memory {
            #[distributed_lock(key = "{self.n}:{id}:{name}")]
            async fn change(&mut self, (id, mut name): (u64, String)) -> Result<String, LockError> {
                self.n += id;
                name.push('!');
                if id > 100 {
                    return Ok(name);
                }
                Ok(format!("{name} {} under {}", self.n, held()))
            }
        }
        with_locks(memory(), async {
            let mut store: Box<dyn Store + Sync> = Box::new(Memory { n: 1 });
            assert_eq!(
                store.change((2, "a".into())).await.expect("not refused"),
                "a! 3 under 1:2:a"
            );
            assert_eq!(
                store.change((101, "b".into())).await.expect("not refused"),
                "b!"
            );
            let memory = Memory { n: 1 };
            assert_eq!(
                memory.by_default(5).await.expect("not refused"),
                "5 under default:5"
            );
        })
        .await;
    }

    #[tokio::test]
    async fn returned_futures_are_locked() {
        #[distributed_lock(key = "f:{id}")]
        fn f(id: u64) -> impl Future<Output = Result<String, LockError>> + Send {
            assert!(current_lease().is_none(), "only the block is locked");
            async move { Ok(held()) }
        }
        #[distributed_lock(key = "g:{id}")]
        fn g(id: &u64) -> futures_util::future::BoxFuture<'_, Result<String, LockError>> {
            Box::pin(async move {
                if *id > 5 {
                    Ok(String::new())
                } else {
                    Ok(held())
                }
            })
        }
        with_locks(memory(), async {
            assert_eq!(f(1).await.expect("not refused"), "f:1");
            assert_eq!(g(&2).await.expect("not refused"), "g:2");
        })
        .await;
    }

    #[tokio::test]
    async fn two_stacked_locks_are_both_held() {
        #[distributed_lock(key = "a:{a}", lease = first)]
        #[distributed_lock(key = "b:{b}", lease = second)]
        async fn f((a, b): (u8, u8)) -> Result<(String, String), LockError> {
            Ok((first.key().to_string(), second.key().to_string()))
        }
        let keys = with_locks(memory(), f((1, 2))).await.expect("not refused");
        assert_eq!(keys, ("a:1".to_owned(), "b:2".to_owned()));
    }

    #[distributed_lock(key = "below", on_error = |error| panic!("{error}"), locks = LockManager::in_memory())]
    #[tokio::test]
    async fn a_test_can_be_locked() {
        assert_eq!(held(), "below");
    }
}
