//! The credentials of a connection: asked for when it is made, and again before they end.
//!
//! The open connection is authenticated anew by a timer in the task that watches it, and so ends with it. Rejected: the
//! re-authentication of the crate `redis`, which ends for good after one failure.

use std::{convert::Infallible, future::pending, time::Duration};

use redis::Value;
use tokio::{
    sync::Mutex,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    backend::redis::transport::{address::Address, command::Arg, connection::Connection, errors},
    credentials::Credentials,
    failure::Failure,
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
    let why = match asked.join_next().await {
        Some(Ok(Ok(credentials))) => return Ok(Some(credentials)),
        Some(Ok(Err(error))) => error.to_string(),
        _ => "their provider panicked".to_owned(),
    };
    Err(Failure::not_now(format!(
        "no credentials for {address}: {why}"
    )))
}

/// The command that logs a user in.
pub(super) fn auth(credentials: &Credentials) -> Vec<Arg<'_>> {
    let mut words = vec![Arg::Text("AUTH")];
    words.extend(credentials.user.as_deref().map(Arg::Text));
    words.push(Arg::Text(&credentials.password));
    words
}

/// Authenticates an open connection anew whenever its credentials are about to end. A failure changes nothing while the server still
/// accepts the connection. Never ends, so that it can run beside the watch until that ends.
pub(super) async fn keep_authenticated(
    connection: &Connection,
    address: &Address,
    transaction: &Mutex<()>,
    first: Option<Duration>,
    within: Duration,
) -> Infallible {
    let mut pause = first;
    // One try after each pause, which lasts a second at least.
    while let Some(span) = pause {
        sleep(span).await;
        // The driver of a user's own client may not notice the end.
        if connection.traffic.has_ended() {
            break;
        }
        pause = match authenticate_again(connection, address, transaction, within).await {
            Ok(next) => next,
            Err(failure) => {
                tracing::warn!(
                    server = address.shown(),
                    ?failure,
                    "a connection was not authenticated anew; trying again"
                );
                Some(PAUSE)
            }
        };
    }
    pending().await
}

/// Returns the time until the next credentials are asked for.
async fn authenticate_again(
    connection: &Connection,
    address: &Address,
    transaction: &Mutex<()>,
    within: Duration,
) -> Result<Option<Duration>, Failure> {
    let late = |_| errors::late(address, within);
    let asked = timeout(within, credentials_for(address)).await;
    let Some(credentials) = asked.map_err(late)?? else {
        return Ok(None);
    };
    // The time-out of a transaction's requests bounds the wait.
    let _transaction = transaction.lock().await;
    let authenticated = timeout(within, authenticate(connection, address, &credentials)).await;
    authenticated.map_err(late)??;
    Ok(due(&credentials))
}

/// Called between transactions.
async fn authenticate(
    connection: &Connection,
    address: &Address,
    credentials: &Credentials,
) -> Result<(), Failure> {
    let auth = auth(credentials);
    let exec = [Arg::Text("EXEC")];
    let mut commands: Vec<&[Arg<'_>]> = vec![&auth];
    // Twice at most: a transaction that was given up half way is still open, and is ended first.
    loop {
        let replies = connection.ask_all(&commands).await;
        let replies = replies.map_err(|none| errors::handshake(&none, address))?;
        match replies.last() {
            Some(Value::Okay) => return Ok(()),
            Some(Value::ServerError(error)) => return Err(errors::refused(error, address)),
            Some(Value::SimpleString(word)) if word == "QUEUED" && commands.len() == 1 => {
                commands.insert(0, &exec);
            }
            _ => return Err(errors::nonsense("AUTH")),
        }
    }
}

/// The time until the next credentials are asked for.
pub(super) fn due(credentials: &Credentials) -> Option<Duration> {
    let valid_for = credentials.valid_for?;
    Some((valid_for / 5).saturating_mul(4).clamp(PAUSE, LONGEST))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

    use super::*;
    use crate::backend::redis::transport::{
        address::{security::Security, url::ServerUrl},
        connection_events::RepliesOnly,
        session::Session,
        stream::Stream,
        traffic::{NoReply, Traffic},
    };

    /// Reads until the password has come, then sends these replies.
    async fn reply(server: &mut DuplexStream, replies: &str) -> String {
        let mut read = String::new();
        while !read.ends_with("word\r\n") {
            let byte = server.read_u8().await.expect("it is open");
            read.push(char::from(byte));
        }
        let sent = server.write_all(replies.as_bytes()).await;
        sent.expect("it is open");
        read
    }

    /// The result of an authentication to which a server replies so, message by message, and the last message that came.
    async fn authenticated(replies: &[&str]) -> (Result<(), Failure>, String) {
        let (ours, mut server) = duplex(1 << 10);
        let traffic = Arc::<Traffic>::default();
        let stream = Stream::Fixed(Box::new(ours));
        let session = Session::start(stream, traffic.clone(), Arc::new(RepliesOnly));
        let connection = Connection::of_session(session, traffic);
        let url = ServerUrl::parse("redis://host").expect("whole");
        let address = Address::of(&url, &Security::default()).expect("whole");
        let credentials = Credentials::new("user", "word");
        let replies = async {
            let mut last = String::new();
            for replies in replies {
                last = reply(&mut server, replies).await;
            }
            last
        };
        let both = tokio::join!(authenticate(&connection, &address, &credentials), replies);
        connection.end(NoReply::Nonsense);
        both
    }

    #[tokio::test]
    async fn a_transaction_that_was_given_up_is_ended_before_its_connection_is_authenticated() {
        let (done, last) = authenticated(&["+QUEUED\r\n", "+OK\r\n+OK\r\n"]).await;
        done.expect("authenticated");
        assert!(last.contains("EXEC"), "{last:?}");
        let (done, last) = authenticated(&["+OK\r\n"]).await;
        done.expect("authenticated");
        assert!(!last.contains("EXEC"), "{last:?}");
    }

    #[tokio::test]
    async fn only_ok_is_authenticated() {
        for replies in [
            &["+QUEUED\r\n", "+OK\r\n+QUEUED\r\n"][..],
            &["+QUEUED\r\n", "-ERR no\r\n-WRONGPASS no\r\n"],
            &["-WRONGPASS no\r\n"],
            &[":1\r\n"],
            &["$-1\r\n"],
        ] {
            let (done, _) = authenticated(replies).await;
            assert!(done.is_err(), "{replies:?}");
        }
    }
}
