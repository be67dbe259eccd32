//! Every error text that needs no server, with the situation that provokes it.
//!
//! Users search for these texts and alert on them, so a change of one should be reviewed next to the others. The texts that
//! need a server are in `refusals/server_texts.rs`, the lines of the log in `refusals/log_lines.rs`, the texts of `lockctl` in
//! `command_line/main.rs`, and the diagnostics of the attribute in `ui/`.

use std::{collections::BTreeMap, time::Duration};

use http_body_util::BodyExt as _;
use lock_core::{
    LockError, LockManager, LockOptions, OnceOptions, Tls, distributed_lock, with_locks,
};
use lock_tests::{
    AcquireFree as _, ReleaseHeld as _, SECOND,
    error_texts::{compare, refused, text},
    options, patient,
};
use tokio::{task::yield_now, time::sleep};

fn tries() -> LockOptions {
    options().no_wait()
}

#[tokio::test(start_paused = true)]
async fn keys_and_options_have_these_texts() {
    let locks = LockManager::in_memory();
    let key = async |key: &str| refused(locks.acquire(key, options()).await);
    let with = async |options: LockOptions| refused(locks.acquire("k", options).await);
    let day = SECOND * 86_400;
    compare(&[
        (
            "an empty key",
            key("").await,
            "the key is empty: name what is locked, as in `order:42`",
        ),
        (
            "a key of 513 bytes",
            key(&"k".repeat(513)).await.replace(&"k".repeat(128), "k"),
            "the lock `k…` cannot be used: the key has 513 bytes, but at most 512 are allowed: use a shorter key, or a hash of it",
        ),
        (
            "no manager",
            text(&LockError::NotConfigured),
            "no lock manager is configured: call `lock_core::set_global(manager)` once at startup, wrap the future in \
             `lock_core::with_locks(manager, …)`, or write `locks = …` in the attribute; `with_locks` does not reach into \
             `tokio::spawn`: wrap the spawned future, too",
        ),
        (
            "a ttl below 100 ms",
            with(options().ttl(Duration::ZERO)).await,
            "the lock `k` cannot be used: ttl is 0ns, but must be at least 100ms: below that, one slow round trip ends the lease",
        ),
        (
            "a ttl above 24 h",
            with(options().ttl(day * 2)).await,
            "the lock `k` cannot be used: ttl is 172800s, but must be at most 24 h: a lease is renewed while it is held, so \
             choose how long a crash may block others",
        ),
        (
            "a wait above 365 days",
            with(options().wait(day * 366)).await,
            "the lock `k` cannot be used: wait is 31622400s, but must be at most 365 days: write `.wait_forever()` to wait \
             indefinitely",
        ),
        (
            "min_hold above max_hold",
            with(options().min_hold(SECOND * 2).max_hold(SECOND)).await,
            "the lock `k` cannot be used: min_hold (2s) is longer than max_hold (1s): swap them, or leave one out",
        ),
        (
            "max_hold that is never reached",
            with(options().without_renewal().max_hold(SECOND * 60)).await,
            "the lock `k` cannot be used: renewal is off, so the lease ends at its ttl (10s) and never reaches max_hold (60s): \
             leave max_hold out, or choose a longer ttl",
        ),
        (
            "no permits",
            with(options().permits(0)).await,
            "the lock `k` cannot be used: permits is 0 or less, but must be at least 1: otherwise nobody could hold the lock, so \
             choose how many may hold it at a time",
        ),
        (
            "too many permits",
            with(options().permits(1_001)).await,
            "the lock `k` cannot be used: permits is 1001, but must be at most 1,000: split the lock into several keys with fewer \
             permits each",
        ),
    ]);
}

#[tokio::test]
async fn settings_of_a_manager_have_these_texts() {
    let with = |builder: lock_core::LockManagerBuilder| async move {
        refused(builder.connect("memory://").await)
    };
    let tls = |tls: Tls| async move {
        refused(
            LockManager::builder()
                .tls(tls)
                .connect("rediss://host")
                .await,
        )
    };
    let redlock = async |urls: &[&str]| refused(LockManager::redlock(urls).await);
    let builder = LockManager::builder;
    let (a, b, c, d) = ("redis://a", "redis://b", "redis://c", "redis://d");
    compare(&[
        (
            "a key prefix of 257 bytes",
            with(builder().key_prefix("x".repeat(257))).await,
            "the key prefix has 257 bytes, but at most 256 are allowed: choose a shorter one",
        ),
        (
            "a ttl above max_ttl",
            with(builder().ttl(SECOND * 60).max_ttl(SECOND * 30)).await,
            "ttl is 60s, but this manager allows at most 30s (max_ttl): a server that restarts must be kept out for as long as a \
             lease may last, so choose a shorter one",
        ),
        (
            "a time-out of zero",
            with(builder().command_timeout(Duration::ZERO)).await,
            "command_timeout is 0ns: choose between 10ms and 60s",
        ),
        (
            "an empty label",
            with(builder().label("")).await,
            "the label is empty: name this process, as in `10.0.3.7:8080`, or set none to use its host and process id",
        ),
        (
            "a label of 64 characters",
            with(builder().label("x".repeat(64))).await,
            "the label has 64 characters, but at most 63 are allowed: choose a shorter one",
        ),
        (
            "a label with a space",
            with(builder().label("web 1")).await,
            "the label has the character ' ': choose letters, digits and ASCII punctuation without spaces, quotation marks and \
             backslashes, as in `10.0.3.7:8080`",
        ),
        (
            "a reserved check_key",
            with(builder().key_prefix("").check_key("__lock_core__:k")).await,
            "the check_key cannot be used: keys that begin with `__lock_core__:` are reserved: choose another key or prefix",
        ),
        (
            "min_replicas_acked out of bounds",
            refused(builder().min_replicas_acked(0, SECOND).connect(a).await),
            "min_replicas_acked is 0 within 1s: choose at least one replica, and a time between 1ms and 60s",
        ),
        (
            "min_replicas_acked with several servers",
            refused(
                builder()
                    .min_replicas_acked(1, SECOND)
                    .redlock([a, b, c])
                    .await,
            ),
            "min_replicas_acked needs a primary with replicas, but independent servers have none",
        ),
        (
            "two servers that vote",
            redlock(&[a, b]).await,
            "Redlock needs at least three independent servers; got 2: list three or five, or connect to a single one",
        ),
        (
            "an even number of servers that vote",
            redlock(&[a, b, c, d]).await,
            "4 servers tolerate no more failures than 3; use an odd number",
        ),
        (
            "a server listed twice",
            redlock(&[a, b, a]).await,
            "a server is listed twice: list each server once, or its vote counts twice",
        ),
        (
            "memory in a list",
            refused(LockManager::connect("memory://,redis://a").await),
            "`memory://` cannot be one of several servers: use it alone",
        ),
        (
            "an authority that is not PEM",
            tls(Tls::new().authority("nonsense")).await,
            "the authority cannot be used: it is not a PEM certificate, or an unencrypted PEM private key in PKCS #8, PKCS #1 or \
             SEC 1",
        ),
        (
            "a host name with a space",
            tls(Tls::new().server_name("no name")).await,
            "no certificate can be issued for `no name`: write a host name or an IP address",
        ),
    ]);
}

#[tokio::test(start_paused = true)]
async fn busy_locks_have_these_texts() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let tried = async |key: &str| refused(locks.acquire(key, tries()).await);
    let held = locks.acquire_free("held", options()).await;
    let other = tokio::spawn({
        let locks = locks.clone();
        async move { locks.acquire_free("other", options()).await }
    });
    let _other = other.await.expect("no panic");
    faults.busy("elsewhere");
    sleep(SECOND * 2).await;
    let another_key = async |_| tried("other").await;
    let branches = async |_| {
        let inner = async || {
            locks
                .run("branch", tries(), async |_| sleep(SECOND).await)
                .await
        };
        tokio::join!(inner(), inner()).1
    };
    compare(&[
        (
            "held by the same task",
            tried("held").await,
            "the lock `held` is busy: this task has held it for 2.0s and cannot wait for itself: make the call inside the body \
             of `run` or of an annotated function, or release the guard first",
        ),
        (
            "held by another task, while this task holds another key",
            tried("other").await,
            "the lock `other` is busy: another task of this process has held it for 2.0s; this task already holds `held`: \
             acquire both in one call, with `acquire_all` or `key = [\"…\", \"…\"]`, or two tasks may wait for each other",
        ),
        (
            "held by an unknown process",
            tried("elsewhere").await.replace(
                "; this task already holds `held`: acquire both in one call, with `acquire_all` or `key = [\"…\", \"…\"]`, or \
                 two tasks may wait for each other",
                "",
            ),
            "the lock `elsewhere` is busy",
        ),
        (
            "held by another branch of the body",
            refused(locks.run("branch", tries(), branches).await.expect("free")),
            "the lock `branch` is busy: a call in another branch of the same body holds it",
        ),
        (
            "a second key inside a body",
            {
                held.release_held().await;
                locks.run("body", tries(), another_key).await.expect("free")
            },
            "the lock `other` is busy: another task of this process has held it for 3.0s; this task already holds `body`: \
             acquire both in one call, with `acquire_all` or `key = [\"…\", \"…\"]`, or two tasks may wait for each other",
        ),
    ]);
}

#[tokio::test(start_paused = true)]
async fn lost_leases_have_these_texts() {
    let (locks, faults) = LockManager::in_memory_with_faults();
    let hold = async |key: &str, options| locks.acquire_free(key, options).await;
    let expired = hold("expired", options()).await;
    faults.expire("expired");
    let taken = hold("taken", options()).await;
    faults.lose("taken");
    let bounded = hold("bounded", options().max_hold(SECOND)).await;
    let released = hold("released", options()).await;
    let of_released = released.lease();
    released.release_held().await;
    let listed = locks.acquire_all(["one", "two"], options()).await;
    let listed = listed.expect("free");
    faults.lose("two");
    sleep(SECOND * 2).await;
    let unreached = hold("unreached", options()).await;
    faults.unavailable();
    sleep(SECOND * 11).await;
    let unreached = refused(unreached.release().await);
    faults.heal();
    let too_long = hold("too long", options()).await;
    let too_long = refused(too_long.lease().ensure(SECOND * 6));
    let unsure = hold("unsure", options().without_renewal()).await;
    sleep(SECOND * 5).await;
    let unsure = refused(unsure.lease().ensure(SECOND * 8));
    let last = hold("last", options()).await;
    locks.shutdown(Duration::ZERO).await;
    compare(&[
        (
            "not renewed in time",
            refused(expired.release().await),
            "the lock `expired` was lost: its time ran out before it was renewed",
        ),
        (
            "not renewed during an outage",
            unreached,
            "the lock `unreached` was lost: its time ran out before it was renewed (the last failure: the test made the backend \
             unavailable)",
        ),
        (
            "deleted by an operator",
            refused(taken.release().await),
            "the lock `taken` was lost: the key is gone or has another holder",
        ),
        (
            "held for max_hold",
            refused(bounded.release().await),
            "the lock `bounded` was lost: it was held for as long as max_hold allows",
        ),
        (
            "another key of the list was lost",
            refused(listed.lease().ensure(SECOND)),
            "the lock `two` was lost: the key is gone or has another holder",
        ),
        (
            "observed after its release",
            refused(of_released.ensure(SECOND)),
            "the lock `released` was lost: it was released",
        ),
        (
            "still held at the deadline of a shutdown",
            refused(last.release().await),
            "the lock `last` was lost: the manager was shut down",
        ),
        (
            "asked to last longer than half of its ttl",
            too_long,
            "the lock `too long` cannot be used: a lease with a ttl of 10s cannot always be certain to last 6s longer: choose a \
             ttl of at least twice that time",
        ),
        (
            "asked to last longer than it is certain",
            unsure,
            "the lock `unsure` is unavailable: no usable reply from the backend: the lease is certain to last only 4.898s longer, \
             less than the requested 8s",
        ),
    ]);
}

#[tokio::test(start_paused = true)]
async fn errors_about_unavailable_backends_have_these_texts() {
    let builder = LockManager::builder;
    let caps = builder().max_leases(1).in_memory();
    let _held = caps.acquire_free("k", options()).await;
    let at_cap = refused(caps.acquire("another", options()).await);
    let caps = builder().max_waiting(1).in_memory();
    let _waited_for = caps.acquire_free("k", options()).await;
    let waits = tokio::spawn({
        let caps = caps.clone();
        async move { caps.acquire("k", patient()).await.map(drop) }
    });
    yield_now().await;
    let full = refused(caps.acquire("k", patient()).await);
    waits.abort();
    let (closed, _) = builder().in_memory_with_faults();
    closed.shutdown(SECOND).await;
    let fail_fast = builder().fail_fast_after(SECOND);
    let (locks, faults) = fail_fast.in_memory_with_faults();
    faults.unavailable();
    let down = refused(locks.acquire("k", options().wait(SECOND * 2)).await);
    let fast = refused(locks.acquire("k", options().wait(SECOND * 2)).await);
    faults.heal();
    let (slow, faults) = builder().in_memory_with_faults();
    faults.delay(SECOND * 2);
    let late = refused(slow.acquire("k", tries()).await);
    faults.heal();
    faults.delay(SECOND * 3 / 4);
    let too_slow = refused(
        slow.acquire("short", LockOptions::new(SECOND).wait_forever())
            .await,
    );
    compare(&[
        (
            "at max_leases",
            at_cap,
            "the lock `another` is unavailable: no usable reply from the backend: 1 leases are already held, which is the most \
             that this manager allows (max_leases)",
        ),
        (
            "at max_waiting",
            full,
            "the lock `k` is unavailable: no usable reply from the backend: 1 tasks already wait for locks, which is the most \
             that this manager allows (max_waiting)",
        ),
        (
            "after a shutdown",
            refused(closed.acquire("k", options()).await),
            "the lock `k` is unavailable: no usable reply from the backend: this lock manager has been shut down",
        ),
        (
            "a backend that refuses until the wait is over",
            down,
            "the lock `k` is unavailable: no usable reply from the backend: the test made the backend unavailable",
        ),
        (
            "an outage longer than fail_fast_after",
            fast,
            "the lock `k` is unavailable: no usable reply from the backend: the backend has not replied for 2.0s, so this request \
             does not wait (fail_fast_after): the test made the backend unavailable",
        ),
        (
            "a reply that is late",
            late,
            "the lock `k` is unavailable: no usable reply from the backend: the test made the reply late",
        ),
        (
            "a ttl that is too short for the backend",
            too_slow,
            "the lock `short` cannot be used: a round trip to the backend took 750ms, more than half of the ttl of 1s: choose a \
             longer ttl",
        ),
    ]);
}

#[distributed_lock(key = key, on_drop = finish)]
async fn finish(key: &'static str) -> Result<(), LockError> {
    Ok(())
}

#[distributed_lock(key = "outer", on_drop = finish)]
async fn ask(key: &'static str) -> Result<(), LockError> {
    annotated(key).await
}

#[distributed_lock(key = key)]
async fn annotated(key: &'static str) -> Result<(), LockError> {
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lists_of_keys_and_nested_locks_have_these_texts() {
    let locks = &LockManager::in_memory();
    let all =
        async |keys: Vec<(String, LockOptions)>| refused(locks.acquire_all(keys, options()).await);
    let key = |key: &str, options| (key.to_owned(), options);
    let inside = async |outer: LockOptions, inner: LockOptions| {
        let again = async |_| locks.run("k", inner, async |_| {}).await;
        refused(locks.run("k", outer, again).await.expect("free"))
    };
    let part = locks.run("a", options(), async |_| {
        refused(locks.acquire_all(["a", "b"], options()).await)
    });
    let finishing = locks.run("k", options(), async |_| {
        refused(with_locks(locks.clone(), finish("k")).await)
    });
    let caller = locks.run("k", options(), async |_| {
        refused(with_locks(locks.clone(), ask("k")).await)
    });
    let permits = locks.acquire_free("permits", options().permits(2)).await;
    let _held = permits;
    compare(&[
        (
            "an empty list",
            all(Vec::new()).await,
            "the list of keys is empty: name what is locked, as in `[\"account:4\", \"account:7\"]`",
        ),
        (
            "65 keys",
            all((0..65).map(|n| key(&n.to_string(), options())).collect()).await,
            "the list has more than 64 keys: lock something that they have in common",
        ),
        (
            "a key in two modes",
            all(vec![key("k", options()), key("k", options().shared())]).await,
            "the lock `k` cannot be used: the list names this key twice, once exclusively and once shared, so the task would wait \
             for itself: name it once",
        ),
        (
            "a key with a ttl of its own",
            all(vec![key("k", options().ttl(SECOND))]).await,
            "the lock `k` cannot be used: the options of this key set `ttl` to another value than those of the list: all keys are \
             held as one, so the options of one key may differ only in the mode",
        ),
        (
            "a list of which the body holds a part",
            part.await.expect("free"),
            "the lock `b` cannot be used: this task already holds other keys of the list, but not this one: a task that acquires \
             all of them at once could hold this one and wait for those forever. Acquire all of them where the first is acquired",
        ),
        (
            "exclusive inside shared",
            inside(options().shared(), options()).await,
            "the lock `k` cannot be used: this task holds the key shared, but asks for it exclusively: it would wait for its own \
             share forever. Acquire it exclusively in the outer call, or end the outer call before this one",
        ),
        (
            "permits inside exclusive",
            inside(options(), options().permits(3)).await,
            "the lock `k` cannot be used: this task holds the key exclusively, but asks for it with 3 permits: a key is locked \
             either with permits or without. Use the same mode in both calls, or another key for one of them",
        ),
        (
            "exclusive while another holder has a permit",
            refused(locks.acquire("permits", options()).await),
            "the lock `permits` cannot be used: it is held or waited for in another mode: lock a key with permits everywhere, or \
             nowhere",
        ),
        (
            "on_drop = finish for a key that the task holds",
            finishing.await.expect("free"),
            "the lock `k` cannot be used: this task already holds the key, but `on_drop = finish` runs the body in a task of its \
             own, which does not hold it, so the call would wait for itself: give one of the two another key, or write `on_drop = \
             cancel`",
        ),
        (
            "a key that the caller of an on_drop = finish body holds",
            caller.await.expect("free"),
            "the lock `k` cannot be used: a caller holds the key and waits for this body, which `on_drop = finish` runs in a task \
             of its own, so each would wait for the other: give one of the two another key, or write `on_drop = cancel`",
        ),
    ]);
}

#[test]
fn calls_outside_a_runtime_have_these_texts() {
    let locks = LockManager::in_memory();
    let call = |call| refused(futures_executor::block_on(call));
    let finishing = with_locks(locks.clone(), finish("k"));
    compare(&[
        (
            "locks in memory",
            call(
                Box::pin(async { locks.acquire("k", options()).await.map(drop) })
                    as std::pin::Pin<Box<dyn Future<Output = _>>>,
            ),
            "the in-memory backend runs on the caller's tokio runtime, but there is none: make the call inside one",
        ),
        (
            "on_drop = finish",
            call(Box::pin(finishing)),
            "`on_drop = finish` runs the body as a task of the caller's tokio runtime, but there is none: call the function \
             inside one, or write `on_drop = cancel`",
        ),
    ]);
}

#[tokio::test(start_paused = true)]
async fn errors_about_stored_results_have_these_texts() {
    let locks = &LockManager::in_memory();
    let once = || OnceOptions::keep(SECOND * 60);
    let text_of = async |key: &str, options: OnceOptions| {
        let body = async |_| Ok::<_, String>("value".to_owned());
        refused(locks.run_once(key, options, body).await)
    };
    let number_of = async |key: &str| {
        refused(
            locks
                .run_once(key, once(), async |_| Ok::<_, String>(7))
                .await,
        )
    };
    text_of("k", once().fingerprint(&"a request")).await;
    let long = async |_| Ok::<_, String>("x".repeat(70_000));
    locks
        .run_once("long", once(), long)
        .await
        .expect("free")
        .expect("runs");
    compare(&[
        (
            "a different request",
            text_of("k", once().fingerprint(&"another request")).await,
            "`k` has already been run, but its result belongs to a different request with the same key",
        ),
        (
            "a result of more than 64 KiB",
            text_of("long", once()).await,
            "`long` has already been run, but its result was not stored",
        ),
        (
            "a result of another type",
            number_of("k").await,
            "the lock `k` cannot be used: the stored result could not be decoded: invalid type: string \"value\", expected i32 at \
             line 1 column 7; if the type of the value has changed, use another key, or delete the result with `forget`",
        ),
        (
            "a keep of zero",
            text_of("new", OnceOptions::keep(Duration::ZERO)).await,
            "the lock `new` cannot be used: keep is 0ns, but must be 100ms to 365 days: choose how long repeats get the result",
        ),
        (
            "a fingerprint that JSON cannot express",
            text_of("new", once().fingerprint(&BTreeMap::from([(vec![1], 1)]))).await,
            "the lock `new` cannot be used: the fingerprint cannot be serialized as JSON: key must be a string",
        ),
    ]);
}

/// These texts name neither the key nor the backend.
#[tokio::test(start_paused = true)]
async fn responses_to_clients_have_these_texts() {
    let detail = async |error: LockError| {
        let response: axum::response::Response = axum::response::IntoResponse::into_response(error);
        let body = response.into_body().collect().await.expect("a body");
        let body: serde_json::Value = serde_json::from_slice(&body.to_bytes()).expect("JSON");
        format!(
            "{} {}",
            body["status"],
            body["detail"].as_str().expect("a text")
        )
    };
    let (locks, faults) = LockManager::in_memory_with_faults();
    let error = async |key: &str, options| {
        let refused = locks.acquire(key, options).await;
        refused.expect_err("refused")
    };
    let once = || OnceOptions::keep(SECOND * 60);
    let run = async |options| {
        let body = async |_| Ok::<_, String>("x".repeat(70_000));
        locks.run_once("once", options, body).await.map(drop)
    };
    run(once().fingerprint(&1)).await.expect("free");
    let lost = locks.acquire_free("lost", options()).await;
    faults.lose("lost");
    let lost = lost.release().await.expect_err("lost");
    let held = locks.acquire_free("held", options()).await;
    compare(&[
        (
            "busy",
            detail(error("held", tries()).await).await,
            "409 another request is working on the same thing: try again later",
        ),
        (
            "lost",
            detail(lost).await,
            "503 the request was interrupted, and may have been partly processed",
        ),
        (
            "unavailable",
            {
                faults.unavailable();
                detail(error("k", tries()).await).await
            },
            "503 a service that this one needs does not reply: try again later",
        ),
        (
            "a repeat with a different request",
            {
                faults.heal();
                detail(run(once().fingerprint(&2)).await.expect_err("refused")).await
            },
            "422 a different request has already been sent with this key",
        ),
        (
            "a repeat whose result was not stored",
            detail(run(once().fingerprint(&1)).await.expect_err("refused")).await,
            "409 the request has already been processed, but its response was not stored",
        ),
        (
            "a key that is too long",
            detail(error(&"k".repeat(513), tries()).await).await,
            "400 a name in the request is too long",
        ),
        (
            "any other invalid request",
            detail(error("", tries()).await).await,
            "500 the server could not process the request",
        ),
    ]);
    held.release_held().await;
}
