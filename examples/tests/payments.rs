//! The example of charges that run once, as two processes on one Redis.

#[path = "flash_sale/browser.rs"]
#[expect(dead_code, reason = "the other page needs more of it")]
mod browser;

use std::time::Duration;

use browser::Browser;
use lock_tests::{HttpRequest, HttpResponse, Process, RedisServer, eventually};
use tokio::task::JoinSet;

/// Longer than a charge takes, even on a machine that is busy with a build.
const SOON: Duration = Duration::from_secs(30);

struct Instance {
    _process: Process,
    url: String,
}

impl Instance {
    /// Starts an instance whose payment provider takes `payment_ms`.
    fn start(lock_url: &str, payment_ms: &str) -> Self {
        let variables = [
            ("LOCK_URL", lock_url),
            ("PAYMENT_MS", payment_ms),
            ("PORT", "0"),
        ];
        let program = env!("CARGO_BIN_EXE_payments");
        let mut process = Process::spawn(program, &[], &variables);
        let line = process.line();
        let url = line
            .strip_prefix("payments on ")
            .expect("its address first");
        Self {
            url: url.to_owned(),
            _process: process,
        }
    }

    fn charges(&self, user: &str) -> String {
        format!("{}/users/{user}/charges", self.url)
    }

    async fn send(&self, user: &str, key: &str, cents: u32) -> HttpRequest {
        send(&self.charges(user), key, cents).await
    }

    async fn charge(&self, user: &str, key: &str, cents: u32) -> HttpResponse {
        let response = self.send(user, key, cents).await.response().await;
        response.expect("a response")
    }

    async fn count(&self, user: &str) -> u32 {
        let sent = HttpRequest::send("GET", &self.charges(user), "").await;
        let response = sent.expect("a listening server").response().await;
        let body = response.expect("a response").body;
        let count = body.split(' ').nth(2).expect("a count");
        count.parse().expect("a number")
    }
}

async fn send(url: &str, key: &str, cents: u32) -> HttpRequest {
    let key = format!("Idempotency-Key: {key}");
    let json = format!(r#"{{"cents": {cents}}}"#);
    let sent = HttpRequest::send_with("POST", url, &[&key], &json).await;
    sent.expect("a listening server")
}

/// Two instances with one Redis.
struct Service {
    instances: [Instance; 2],
    redis: RedisServer,
}

impl Service {
    fn start(payment_ms: &str) -> Self {
        let redis = RedisServer::start();
        Self {
            instances: [(); 2].map(|()| Instance::start(&redis.url(), payment_ms)),
            redis,
        }
    }

    /// How often both instances have charged a user.
    async fn count(&self, user: &str) -> u32 {
        let [one, other] = &self.instances;
        one.count(user).await + other.count(user).await
    }
}

fn is_replayed(response: &HttpResponse) -> bool {
    response.head.contains("idempotent-replayed: true")
}

#[tokio::test]
async fn sixty_requests_to_two_instances_charge_a_card_once_and_get_one_response() {
    let service = Service::start("300");
    let mut requests = JoinSet::new();
    for instance in service.instances.iter().cycle().take(60) {
        let url = instance.charges("ada");
        requests.spawn(async move { send(&url, "7f3a", 1999).await.response().await });
    }
    let mut first = 0;
    for response in requests.join_all().await {
        let response = response.expect("a response");
        let expected = "ada pays 1999 cents: charged 1 time";
        assert_eq!((response.status, response.body.trim()), (201, expected));
        first += u32::from(!is_replayed(&response));
    }
    assert_eq!(first, 1, "all others are marked as replayed");
    assert_eq!(service.count("ada").await, 1);
}

#[tokio::test]
async fn a_key_is_for_one_request_of_one_user() {
    let service = Service::start("1");
    let [one, other] = &service.instances;
    let paid = one.charge("ada", "7f3a", 1999).await;
    assert_eq!(paid.status, 201, "{paid:?}");
    let changed = other.charge("ada", "7f3a", 2).await;
    assert_eq!(changed.status, 422, "{changed:?}");
    assert_eq!(service.count("ada").await, 1);

    let own = other.charge("bob", "7f3a", 1999).await;
    assert_eq!(own.status, 201, "{own:?}");
    assert!(!is_replayed(&own), "{own:?}");
    assert_eq!(service.count("bob").await, 1);
    let next = other.charge("ada", "9c41", 2).await;
    assert_eq!(next.status, 201, "{next:?}");
    assert_eq!(service.count("ada").await, 2);

    let without = HttpRequest::send("POST", &one.charges("ada"), "{}").await;
    let response = without.expect("a listening server").response().await;
    assert_eq!(response.expect("a response").status, 400);
}

#[tokio::test]
async fn a_client_that_hangs_up_and_sends_again_is_charged_once() {
    // Long enough to be observed, even on a machine that is busy with a build.
    let service = Service::start("2000");
    let [one, other] = &service.instances;
    let request = one.send("ada", "7f3a", 1999).await;
    eventually(SOON, "the charge is under way", async || {
        service.redis.get("lock:charge:ada:7f3a").is_some()
    })
    .await;
    drop(request);
    let response = other.charge("ada", "7f3a", 1999).await;
    assert_eq!(response.status, 201, "{response:?}");
    assert_eq!(service.count("ada").await, 1);
}

#[tokio::test]
async fn one_instance_needs_no_server() {
    let instance = Instance::start("memory://", "1");
    let first = instance.charge("ada", "\"7f3a\"", 5).await;
    assert!(!is_replayed(&first), "{first:?}");
    let repeat = instance.charge("ada", "7f3a", 5).await;
    assert!(is_replayed(&repeat), "{repeat:?}");
    assert_eq!((repeat.status, repeat.body), (201, first.body));
}

#[tokio::test]
async fn the_page_shows_one_charge_for_twenty_requests() {
    let browser = Browser::start().await;
    let instance = Instance::start("memory://", "300");
    browser.open(&instance.url).await;
    let shows = async |selector: &str, text: &str| {
        eventually(SOON, text, async || browser.text(selector).await == text).await;
    };
    shows("#status", "Ready.").await;
    browser.click("#pay").await;
    shows("#status", "Done.").await;
    for (selector, text) in [
        ("#requests", "20"),
        ("#answers", "1"),
        ("#replayed", "19"),
        ("#refused", "0"),
        ("#charged", "charged 1 time"),
    ] {
        assert_eq!(browser.text(selector).await, text, "{selector}");
    }
    browser.click("#other").await;
    shows("#refused", "1").await;
    assert_eq!(browser.text("#charged").await, "charged 1 time");
}
