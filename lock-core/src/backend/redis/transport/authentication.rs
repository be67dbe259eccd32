//! The credentials of a connection: requested when it is made, and again before they expire.
//!
//! The open connection is reauthenticated by a timer in the task that watches it, so the timer ends with the connection.
//! Rejected: the re-authentication of the `redis` crate, which stops for good after one failure.

use std::{convert::Infallible, future::pending, time::Duration};

use redis::Value;
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    backend::redis::transport::{
        address::Address,
        command::{Arg::Text, command},
        connection::Connection,
        errors,
        handshake::login,
    },
    credentials::Credentials,
    failure::Failure,
};

/// The pause after a failure, and the shortest pause between two attempts.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest pause, even if credentials are valid for longer.
const LONGEST: Duration = Duration::from_secs(24 * 60 * 60);

/// Returns the credentials for a connection to this address, if it has any. The caller bounds the time.
pub(super) async fn credentials_for(address: &Address) -> Result<Option<Credentials>, Failure> {
    let Some(provider) = address.credentials().cloned() else {
        return Ok(None);
    };
    // Runs in a separate task, since the provider is the user's code and may panic. The task ends when this future is dropped.
    let mut asked = JoinSet::new();
    asked.spawn(async move { provider.credentials().await });
    let why = match asked.join_next().await {
        Some(Ok(Ok(credentials))) => return Ok(Some(credentials)),
        Some(Ok(Err(error))) => error.to_string(),
        _ => "their provider panicked".to_owned(),
    };
    Err(Failure::not_now(format!(
        "no credentials for {address}: {why}"
    )))
}

/// Reauthenticates an open connection whenever its credentials are about to expire. A failure changes nothing while the server
/// still accepts the connection. Never returns, so that it can run beside the watch until that ends.
pub(super) async fn keep_authenticated(
    connection: &Connection,
    address: &Address,
    transaction: &Mutex<()>,
    first: Option<Duration>,
    within: Duration,
) -> Infallible {
    let mut pause = first;
    // One attempt after each pause, which lasts at least a second.
    while let Some(span) = pause {
        sleep(span).await;
        // The driver of a user's own client may not notice the end.
        if connection.traffic.has_ended() {
            break;
        }
        let renewed = timeout(within, authenticate(connection, address, transaction)).await;
        let renewed = renewed.unwrap_or_else(|_| Err(errors::late(address, within)));
        pause = renewed.unwrap_or_else(|failure| {
            let server = address.shown();
            tracing::warn!(
                server,
                ?failure,
                "a connection could not be reauthenticated; trying again"
            );
            Some(PAUSE)
        });
    }
    pending().await
}

/// Returns the time until the next credentials are requested.
///
/// # Cancel safety
///
/// If the future is dropped after the command was sent, the connection may be authenticated or not, and the next attempt
/// authenticates it.
async fn authenticate(
    connection: &Connection,
    address: &Address,
    transaction: &Mutex<()>,
) -> Result<Option<Duration>, Failure> {
    let Some(credentials) = credentials_for(address).await? else {
        return Ok(None);
    };
    let _transaction = transaction.lock().await;
    let replies = connection
        .several(
            command(&[&[Text("AUTH")], &login(&credentials)]),
            None,
            None,
        )
        .await;
    let replies = replies.map_err(|none| errors::handshake(&none, address))?;
    match &replies[..] {
        [Value::Okay] => Ok(due(&credentials)),
        [Value::ServerError(error)] => Err(errors::refused(error, address)),
        // A transaction that was abandoned halfway is still open. The next connection logs in without one.
        [Value::SimpleString(word)] if word == "QUEUED" => {
            connection.traffic.retire();
            Ok(None)
        }
        _ => Err(errors::nonsense("AUTH")),
    }
}

/// Returns the time until the next credentials are requested.
pub(super) fn due(credentials: &Credentials) -> Option<Duration> {
    let valid_for = credentials.valid_for?;
    Some((valid_for / 5).saturating_mul(4).clamp(PAUSE, LONGEST))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, duplex};

    use super::*;
    use crate::backend::redis::transport::{
        address::{security::Security, url::ServerUrl},
        connection::Line,
        connection_events::RepliesOnly,
        session::Session,
        stream::Stream,
        traffic::{NoReply, Traffic},
    };

    /// Returns the result of an authentication to which a server sends this reply, and whether the connection was retired.
    async fn authenticated(reply: &str) -> (Result<Option<Duration>, Failure>, bool) {
        let (ours, mut server) = duplex(1 << 10);
        let traffic = Arc::<Traffic>::default();
        let stream = Stream::Fixed(Box::new(ours));
        let session = Session::start(stream, traffic.clone(), Arc::new(RepliesOnly));
        let connection = Connection::new(Line::Session(session), traffic);
        let url = ServerUrl::parse("redis://user:word@host").expect("whole");
        let address = Address::of(&url, &Security::default()).expect("whole");
        let transaction = Mutex::default();
        let server = async {
            let mut read = String::new();
            while !read.ends_with("word\r\n") {
                let byte = server.read_u8().await.expect("it is open");
                read.push(char::from(byte));
            }
            let sent = server.write_all(reply.as_bytes()).await;
            sent.expect("it is open");
        };
        let (done, ()) = tokio::join!(authenticate(&connection, &address, &transaction), server);
        let is_retired = connection.traffic.is_retired();
        connection.end(NoReply::Nonsense);
        (done, is_retired)
    }

    #[tokio::test]
    async fn a_connection_with_an_abandoned_transaction_is_replaced() {
        assert!(matches!(
            authenticated("+QUEUED\r\n").await,
            (Ok(None), true)
        ));
        assert!(matches!(authenticated("+OK\r\n").await, (Ok(None), false)));
    }

    #[tokio::test]
    async fn only_ok_counts_as_authenticated() {
        for reply in ["-WRONGPASS no\r\n", ":1\r\n", "$-1\r\n", "+PONG\r\n"] {
            let (done, is_retired) = authenticated(reply).await;
            assert!(done.is_err() && !is_retired, "{reply:?}");
        }
    }
}
