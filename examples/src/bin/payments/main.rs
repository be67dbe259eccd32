//! A card is charged once for each `Idempotency-Key`, however often the client sends its request.
//!
//! ```text
//! cargo run -p examples --bin payments -F payments
//! LOCK_URL=redis://127.0.0.1 PORT=3001 cargo run -p examples --bin payments -F payments
//! ```
//!
//! A client that timed out, or lost its connection, does not know whether it has paid, so it sends the request again with the same
//! key, to any instance. It gets the response to the one charge, with the header `Idempotent-Replayed: true`. A request with the
//! same key and another amount is refused with 422.
//!
//! The page of the service sends one request 20 times at once, and shows that the card is charged once.
//!
//! Set `LOCK_URL` to run more than one instance; without it, a single process keeps the responses in memory. `PORT` defaults to
//! 3000. `PAYMENT_MS` is how long the payment provider takes, and defaults to 500.
//!
//! This is not exactly once: if a process dies right after a charge, no response is stored, and the next request charges again. So
//! pass the key on to a real provider.
#![expect(clippy::print_stdout, reason = "an example shows what to try")]

use std::{
    collections::HashMap,
    env,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{
    Json, Router,
    extract::{Path, State},
    http::StatusCode,
    response::{Html, IntoResponse},
    routing::{get, post},
};
use examples::{shut_down_on_signal, shutdown_signal};
use lock_core::{IdempotencyKey, LockManager, run_once};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, time::sleep};

#[derive(Clone)]
struct App {
    locks: LockManager,
    provider: Arc<Provider>,
}

#[derive(Deserialize, Serialize)]
struct Charge {
    cents: u32,
}

/// Charges the user's card. The user is part of the key, so that no user gets the response of another. A real service takes the
/// user from the session. If the client hangs up, the body continues.
#[run_once(key = "charge:{user}:{key}", keep = "24h", fingerprint = body, locks = app.locks)]
async fn charge(
    State(app): State<App>,
    Path(user): Path<String>,
    IdempotencyKey(key): IdempotencyKey,
    Json(body): Json<Charge>,
) -> impl IntoResponse {
    let charges = app.provider.charge(&user).await;
    let text = format!("{user} pays {} cents: {charges}\n", body.cents);
    (StatusCode::CREATED, text)
}

/// How often this instance has charged the user.
async fn charges(State(app): State<App>, Path(user): Path<String>) -> String {
    format!("{user}: {}\n", app.provider.charges(&user))
}

/// Stands for a payment provider, and counts its charges.
struct Provider {
    takes: Duration,
    charges: Mutex<HashMap<String, u32>>,
}

impl Provider {
    async fn charge(&self, user: &str) -> String {
        sleep(self.takes).await;
        let mut all = self.charges.lock().expect("no panic in here");
        *all.entry(user.to_owned()).or_default() += 1;
        drop(all);
        let charges = self.charges(user);
        println!("{user} is {charges}");
        charges
    }

    fn charges(&self, user: &str) -> String {
        let all = self.charges.lock().expect("no panic in here");
        match all.get(user).copied().unwrap_or_default() {
            1 => "charged 1 time".to_owned(),
            times => format!("charged {times} times"),
        }
    }
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let number = |name, unset| env::var(name).map_or(Ok(unset), |text| text.parse());
    let lock_url = env::var("LOCK_URL").unwrap_or_else(|_| "memory://".to_owned());
    let app = App {
        locks: LockManager::connect(&lock_url).await?,
        provider: Arc::new(Provider {
            takes: Duration::from_millis(number("PAYMENT_MS", 500)?),
            charges: Mutex::default(),
        }),
    };
    let locks = app.locks.clone();
    let router = Router::new()
        .route("/", get(async || Html(include_str!("page.html"))))
        .route("/users/{user}/charges", post(charge).get(charges))
        .with_state(app);

    let port = number("PORT", 3000)?;
    let listener = TcpListener::bind(format!("127.0.0.1:{port}")).await?;
    let url = format!("http://{}", listener.local_addr()?);
    let signal = shutdown_signal();
    println!("payments on {url}");
    let json = r#"-H 'Content-Type: application/json' -d '{"cents":1999}'"#;
    println!("  open {url} in a browser, or");
    println!("  curl -i {url}/users/ada/charges -H 'Idempotency-Key: 7f3a' {json}");
    println!(
        "  seq 60 | xargs -P 60 -I{{}} curl -s {url}/users/ada/charges -H 'Idempotency-Key: 9c41' {json}"
    );
    println!("  curl {url}/users/ada/charges");

    // After the signal, no request is accepted and no lock granted. A charge that outlasts the grace period loses its lock.
    let server = axum::serve(listener, router).with_graceful_shutdown(signal);
    tokio::join!(server.into_future(), shut_down_on_signal(locks)).0?;
    Ok(())
}
