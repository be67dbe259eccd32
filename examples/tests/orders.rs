//! The application as its users run it: real processes, a real Redis, one database file.
//!
//! The test is in this package, not beside those of the libraries, because cargo builds a binary only for
//! the integration tests of its own package, and passes its path only to them.

use std::{path::Path, process::Command, time::Duration};

use lock_tests::{HttpRequest, HttpResponse, Process, RedisServer, eventually};
use sqlx::{Connection as _, SqliteConnection};
use tempfile::TempDir;
use tokio::task::JoinSet;

/// A lock that was not released would be renewed, and would stay held for longer than this.
const SOON: Duration = Duration::from_secs(30);

/// One instance of the shop.
struct Instance {
    process: Process,
    url: String,
}

impl Instance {
    fn start(lock_url: &str, database: &Path, arguments: &[&str], payment_ms: &str) -> Self {
        let database_url = format!("sqlite:{}", database.display());
        let variables = [
            ("LOCK_URL", lock_url),
            ("DATABASE_URL", &database_url),
            ("PAYMENT_MS", payment_ms),
            ("PORT", "0"),
        ];
        let orders = env!("CARGO_BIN_EXE_orders");
        let mut process = Process::spawn(orders, arguments, &variables);
        let line = process.line();
        let url = line.strip_prefix("orders on ").expect("its address first");
        Self {
            process,
            url: url.to_owned(),
        }
    }

    async fn ask(&self, method: &str, path: &str, json: &str) -> HttpResponse {
        ask(method, &format!("{}{path}", self.url), json).await
    }

    async fn create_order(&self) {
        let response = self.ask("POST", "/orders", r#"{"cents": 4200}"#).await;
        assert_eq!(response.status, 201, "{response:?}");
        assert!(response.body.contains(r#""id":1,"#), "{response:?}");
    }

    async fn charges(&self) -> u32 {
        let response = self.ask("GET", "/orders/1", "").await;
        let (_, charges) = response.body.split_once(r#""charges":"#).expect("a count");
        let charges = charges.trim_end_matches('}');
        charges.parse().expect("a number")
    }
}

/// Two instances on one Redis and one database file, like two machines on one database.
struct Shop {
    first: Instance,
    second: Instance,
    redis: RedisServer,
    folder: TempDir,
}

impl Shop {
    fn open() -> Self {
        Self::open_with(&[], "200")
    }

    /// Opens a shop. In its first instance, the payment provider takes `payment_ms`.
    fn open_with(arguments: &[&str], payment_ms: &str) -> Self {
        let redis = RedisServer::start();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let database = folder.path().join("orders.db");
        Self {
            first: Instance::start(&redis.url(), &database, arguments, payment_ms),
            second: Instance::start(&redis.url(), &database, arguments, "200"),
            redis,
            folder,
        }
    }

    /// Sends a payment to the first instance, and waits until its body has announced itself to the database.
    async fn begin_payment(&self) -> HttpRequest {
        let url = format!("{}/orders/1/pay", self.first.url);
        let payment = HttpRequest::send("POST", &url, "").await.expect("sent");
        let database = self.folder.path().join("orders.db");
        let database = format!("sqlite:{}", database.display());
        let opened = SqliteConnection::connect(&database).await;
        let mut orders = opened.expect("the database of the shop");
        eventually(SOON, "the payment has the lock", async || {
            let claimed = sqlx::query_scalar("SELECT fencing_token FROM orders WHERE id = 1");
            let claimed: Result<i64, _> = claimed.fetch_one(&mut orders).await;
            claimed.is_ok_and(|token| token > 0)
        })
        .await;
        payment
    }

    /// Pays the one order two hundred times at once, at both instances in turn.
    async fn pay_two_hundred_times(&self) {
        let mut payments = JoinSet::new();
        for instance in [&self.first, &self.second].into_iter().cycle().take(200) {
            let url = format!("{}/orders/1/pay", instance.url);
            payments.spawn(async move { ask("POST", &url, "").await });
        }
        for response in payments.join_all().await {
            assert_eq!(response.status, 200, "{response:?}");
        }
    }
}

fn is_being_paid(redis: &RedisServer) -> bool {
    redis.get("lock:order:1").is_some()
}

async fn ask(method: &str, url: &str, json: &str) -> HttpResponse {
    let request = HttpRequest::send(method, url, json).await;
    let response = request.expect("a listening shop").response().await;
    response.expect("a response")
}

#[tokio::test]
async fn two_instances_charge_an_order_once_however_often_it_is_paid() {
    let shop = Shop::open();
    shop.first.create_order().await;
    shop.pay_two_hundred_times().await;
    assert_eq!(shop.second.charges().await, 1);
}

#[tokio::test]
async fn without_the_lock_they_charge_it_more_than_once() {
    let shop = Shop::open_with(&["--without-lock"], "200");
    shop.first.create_order().await;
    shop.pay_two_hundred_times().await;
    let charges = shop.second.charges().await;
    assert!(charges > 1, "charged {charges} times");
}

#[tokio::test]
async fn a_client_that_hangs_up_releases_the_lock_at_once() {
    // If the client stayed connected, the first instance would still hold the lock at the end of the test.
    let shop = Shop::open_with(&[], "600000");
    shop.first.create_order().await;
    let payment = shop.begin_payment().await;
    let end = shop.redis.expires_at("lock:order:1").expect("held");

    drop(payment);
    eventually(SOON, "the lock is free", async || {
        !is_being_paid(&shop.redis)
    })
    .await;
    assert!(
        shop.redis.time() < end,
        "it was not released, but has expired"
    );
    let response = shop.second.ask("POST", "/orders/1/pay", "").await;
    assert_eq!(response.status, 200, "{response:?}");
    assert_eq!(shop.second.charges().await, 1);
}

#[tokio::test]
async fn an_interrupted_shop_finishes_the_payment_under_way_and_releases_the_lock() {
    let shop = Shop::open_with(&[], "2000");
    shop.first.create_order().await;
    let payment = shop.begin_payment().await;

    shop.first.process.interrupt();
    let response = payment.response().await.expect("a response");
    assert_eq!(response.status, 200, "{response:?}");
    shop.first.process.join();
    assert!(!is_being_paid(&shop.redis));
    assert_eq!(shop.second.charges().await, 1);
}

#[tokio::test]
async fn an_interrupted_shop_gives_up_a_payment_that_outlasts_the_grace_period() {
    let shop = Shop::open_with(&[], "600000");
    shop.first.create_order().await;
    let payment = shop.begin_payment().await;

    shop.first.process.interrupt();
    let response = payment.response().await.expect("a response");
    assert_eq!(response.status, 503, "{response:?}");
    shop.first.process.join();
    assert!(!is_being_paid(&shop.redis));
    assert_eq!(shop.second.charges().await, 0);
}

#[tokio::test]
async fn an_order_that_does_not_exist_is_not_found() {
    let shop = Shop::open();
    for (method, path) in [("GET", "/orders/9"), ("POST", "/orders/9/pay")] {
        assert_eq!(shop.first.ask(method, path, "").await.status, 404);
    }
}

#[test]
fn a_shop_that_cannot_start_says_why_and_keeps_the_password_to_itself() {
    let refused = [
        (
            "LOCK_URL",
            "redis://me:s3cret@127.0.0.1:1",
            "Connection refused",
        ),
        ("LOCK_URL", "http://127.0.0.1", "not a scheme"),
        ("PORT", "70000", "PORT is not a valid number: `70000`"),
        (
            "DATABASE_URL",
            "sqlite:/nowhere/orders.db",
            "unable to open database file",
        ),
    ];
    for (variable, value, reason) in refused {
        let output = Command::new(env!("CARGO_BIN_EXE_orders"))
            .env(variable, value)
            .output()
            .expect("the binary");
        let message = String::from_utf8(output.stderr).expect("text");
        assert!(!output.status.success(), "{variable}={value}");
        assert!(message.contains(reason), "{message}");
        assert!(!message.contains("s3cret"), "{message}");
    }
}
