//! Functions with the attribute `run_once`.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use lock_core::{
    LockError, LockManager, LockOptions, Remember, Remembered, Repeat, run_once, with_locks,
};
use lock_tests::{AcquireFree as _, ReleaseHeld as _, SECOND};
use tokio::time::{sleep, timeout};

/// Counts the bodies that ran.
#[derive(Clone, Default)]
struct Bodies(Arc<AtomicUsize>);

impl Bodies {
    fn count(&self) -> usize {
        self.0.load(SeqCst)
    }

    async fn run(&self) -> usize {
        let number = self.0.fetch_add(1, SeqCst) + 1;
        sleep(SECOND).await;
        number
    }
}

#[derive(Debug, PartialEq)]
enum Failed {
    Declined,
    Busy,
    OtherRequest,
    Other(String),
}

impl From<LockError> for Failed {
    fn from(error: LockError) -> Self {
        match error {
            LockError::Busy { .. } => Self::Busy,
            LockError::Repeated {
                reason: Repeat::OtherRequest,
                ..
            } => Self::OtherRequest,
            other => Self::Other(other.to_string()),
        }
    }
}

#[run_once(key = "charge:{user}:{key}", keep = "1h", fingerprint = cents)]
async fn charge(user: u64, key: String, cents: u64, bodies: Bodies) -> Result<String, Failed> {
    let number = bodies.run().await;
    if cents == 0 {
        return Err(Failed::Declined);
    }
    Ok(format!("{user}: {cents} by {key}, {number}"))
}

#[tokio::test(start_paused = true)]
async fn a_body_outlives_its_caller_and_a_repeat_gets_its_value() {
    let bodies = Bodies::default();
    with_locks(LockManager::in_memory(), async {
        let call = || charge(7, "a".to_owned(), 100, bodies.clone());
        assert!(
            timeout(SECOND / 2, call()).await.is_err(),
            "it takes longer"
        );
        assert_eq!(call().await.as_deref(), Ok("7: 100 by a, 1"));
    })
    .await;
    assert_eq!(bodies.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_body_ends_with_its_caller_if_on_drop_is_cancel() {
    #[run_once(key = "k", keep = "1h", on_drop = cancel)]
    async fn number(bodies: &Bodies) -> Result<usize, Failed> {
        Ok(bodies.run().await)
    }

    let bodies = Bodies::default();
    with_locks(LockManager::in_memory(), async {
        assert!(
            timeout(SECOND / 2, number(&bodies)).await.is_err(),
            "it takes longer"
        );
        assert_eq!(number(&bodies).await, Ok(2));
        assert_eq!(number(&bodies).await, Ok(2));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn every_option_has_its_effect() {
    #[run_once(
        key = format!("k{}", 1),
        keep = SECOND * 60,
        fingerprint = (&name, 3),
        ttl = "5s",
        wait = "0s",
        max_hold = "2s",
        on_error = |error| Err(error.to_string()),
        lease = lease,
        locks = locks,
    )]
    async fn named(locks: LockManager, name: String, takes: Duration) -> Result<String, String> {
        sleep(takes).await;
        assert!(lease.remaining() <= SECOND * 2, "bounded by `max_hold`");
        Ok(name)
    }

    let locks = LockManager::in_memory();
    let call = |name: &str, takes| named(locks.clone(), name.to_owned(), takes);
    let (first, second) = tokio::join!(call("a", SECOND), call("a", SECOND));
    assert_eq!(first.as_deref(), Ok("a"));
    let busy = second.expect_err("no wait");
    assert!(busy.contains("busy"), "{busy}");
    let other = call("b", SECOND).await.expect_err("another request");
    assert!(other.contains("a different request"), "{other}");
    sleep(SECOND * 61).await;
    let hung = call("b", SECOND * 3).await.expect_err("it hangs");
    assert!(hung.contains("max_hold"), "{hung}");
}

/// Like the response of a web framework, remembered without serde, and only if it is not a failure.
#[derive(Debug, PartialEq)]
struct Response(u8);

impl Remember for Response {
    fn remember(self) -> (Self, Remembered) {
        let remembered = match self.0 {
            0 => Remembered::Nothing,
            status => Remembered::Bytes(vec![status]),
        };
        (self, remembered)
    }

    fn recall(bytes: &[u8]) -> Result<Self, Box<dyn std::error::Error + Send + Sync>> {
        Ok(Self(bytes[0] + 100))
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_is_remembered_by_the_type_inside_it() {
    #[run_once(key = "k", keep = "1h")]
    async fn respond(bodies: Bodies) -> Result<Response, Failed> {
        match bodies.run().await {
            1 => Ok(Response(0)),
            2 => Err(Failed::Declined),
            _ => Ok(Response(3)),
        }
    }

    let bodies = Bodies::default();
    with_locks(LockManager::in_memory(), async {
        let expected = [
            Ok(Response(0)),
            Err(Failed::Declined),
            Ok(Response(3)),
            Ok(Response(103)),
        ];
        for expected in expected {
            assert_eq!(respond(bodies.clone()).await, expected);
        }
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_value_of_a_frameworks_json_is_remembered() {
    #[run_once(key = "axum", keep = "1h")]
    async fn axum(bodies: Bodies) -> Result<axum::Json<usize>, Failed> {
        match bodies.run().await {
            1 => Err(Failed::Declined),
            number => Ok(axum::Json(number)),
        }
    }
    #[run_once(key = "poem", keep = "1h", on_drop = cancel)]
    async fn poem(bodies: Bodies) -> poem::Result<poem::web::Json<Vec<usize>>> {
        Ok(poem::web::Json(vec![bodies.run().await]))
    }
    #[run_once(key = "actix", keep = "1h", on_error = |error| Err(error.to_string()))]
    async fn actix(bodies: Bodies) -> Result<actix_web::web::Json<String>, String> {
        Ok(actix_web::web::Json(bodies.run().await.to_string()))
    }

    let bodies = Bodies::default();
    with_locks(LockManager::in_memory(), async {
        assert_eq!(axum(bodies.clone()).await.err(), Some(Failed::Declined));
        for _ in 0..2 {
            assert_eq!(axum(bodies.clone()).await.map(|json| json.0), Ok(2));
        }
        for _ in 0..2 {
            let json = poem(bodies.clone()).await.expect("a value");
            assert_eq!(json.0, [3]);
        }
        for _ in 0..2 {
            let json = actix(bodies.clone()).await.expect("a value");
            assert_eq!(*json, "4");
        }
    })
    .await;
    assert_eq!(bodies.count(), 4);

    let other = LockManager::in_memory();
    let held = other.acquire_free("actix", LockOptions::default()).await;
    let failed = with_locks(other, actix(bodies)).await;
    assert!(failed.is_err_and(|error| error.contains("actix")));
    held.release_held().await;
}
