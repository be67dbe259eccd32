//! The credentials of a connection: asked for when it is made, and again before they end.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    credentials::Credentials,
    runtime::executor::spawn_beside,
    store::{
        Failure,
        redis::{
            address::Address,
            connection::{Connection, errors, wire::command::Arg},
        },
    },
};

/// The pause after a failure, and the shortest pause between two tries.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause, even if credentials are valid for longer.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// The credentials for a connection to this address, if it has any. Its caller bounds the time.
pub(super) async fn credentials_for(address: &Address) -> Result<Option<Credentials>, Failure> {
    let Some(provider) = address.credentials().cloned() else {
        return Ok(None);
    };
    // A task of its own, since the provider is code of the user and may panic. The task ends when this future is dropped.
    let mut asked = JoinSet::new();
    asked.spawn(async move { provider.credentials().await });
    let server = address.shown();
    let why = match asked.join_next().await {
        Some(Ok(Ok(credentials))) => return Ok(Some(credentials)),
        Some(Ok(Err(error))) => error.to_string(),
        _ => "their provider panicked".to_owned(),
    };
    Err(Failure::not_now(format!(
        "no credentials for {server}: {why}"
    )))
}

/// The command that logs a user in.
pub(super) fn auth(credentials: &Credentials) -> Vec<Arg<'_>> {
    let mut words = vec![Arg::Text("AUTH")];
    words.extend(credentials.user.as_deref().map(Arg::Text));
    words.push(Arg::Text(&credentials.password));
    words
}

/// Authenticates an open connection anew whenever its credentials are about to end, until the connection ends. A failure changes
/// nothing while the server still accepts the connection.
pub(super) fn keep_authenticated(
    connection: &Arc<Connection>,
    address: &Address,
    credentials: &Credentials,
    within: Duration,
) {
    let Some(mut pause) = due(credentials) else {
        return;
    };
    let (connection, address) = (connection.clone(), address.clone());
    spawn_beside(async move {
        // One try after each pause, which lasts a second at least.
        loop {
            sleep(pause).await;
            if connection.has_ended() {
                return;
            }
            let again = timeout(within, authenticate_again(&connection, &address)).await;
            let late = || Err(errors::late(&address, within));
            match again.unwrap_or_else(|_| late()) {
                Ok(Some(next)) => pause = next,
                Ok(None) => return,
                Err(_) if connection.has_ended() => return,
                Err(failure) => {
                    tracing::warn!(
                        server = address.shown(),
                        ?failure,
                        "a connection was not authenticated anew; trying again"
                    );
                    pause = PAUSE;
                }
            }
        }
    });
}

/// Returns the time until the next credentials are asked for.
async fn authenticate_again(
    connection: &Connection,
    address: &Address,
) -> Result<Option<Duration>, Failure> {
    let Some(credentials) = credentials_for(address).await? else {
        return Ok(None);
    };
    let answers = connection.ask_all(&[&auth(&credentials)]).await;
    match &answers.map_err(|none| errors::handshake(&none, address))?[..] {
        [Value::ServerError(error)] => Err(errors::refused(error, address)),
        _ => Ok(due(&credentials)),
    }
}

/// The time until the next credentials are asked for.
fn due(credentials: &Credentials) -> Option<Duration> {
    let valid_for = credentials.valid_for?;
    Some((valid_for / 5).saturating_mul(4).clamp(PAUSE, LONGEST))
}
