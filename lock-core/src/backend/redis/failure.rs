//! What the server's and the client's errors mean for whoever asked. None of them quotes an owner token or a password.

use std::{error::Error, sync::Arc};

use redis::{ErrorKind, RedisError, ServerError};

use crate::{
    backend::{Failure, Source, redis::address::Address},
    token::redact,
};

/// An error of the connection itself: nobody knows what became of the request.
pub(super) fn broken(error: &RedisError) -> Failure {
    Failure::no_answer(redact(&error.to_string()))
}

/// An error while connecting, when no request has left yet.
pub(super) fn connecting(error: &RedisError, address: &Address) -> Failure {
    let server = address.shown();
    match error.kind() {
        ErrorKind::Io => Failure::no_answer(format!("cannot connect to {server}: {error}")),
        ErrorKind::AuthenticationFailed => wrong_credentials(server),
        ErrorKind::Parse | ErrorKind::UnexpectedReturnType => no_redis(server),
        _ => match error.code() {
            Some("WRONGPASS" | "NOAUTH") => wrong_credentials(server),
            Some(code) if is_transient(code, error.detail().unwrap_or_default()) => {
                Failure::NotNow(source(format!("{server} refuses connections: {code}")))
            }
            _ => Failure::Invalid(
                format!(
                    "{server} refuses the connection: {}",
                    redact(&error.to_string())
                )
                .into(),
            ),
        },
    }
}

/// An error that the server answered to a command.
pub(super) fn answered(error: &ServerError) -> Failure {
    let (code, details) = (error.code(), error.details().unwrap_or_default());
    if code == "WRONGTYPE" {
        return Failure::Invalid(
            "the key holds something that is no lock: choose another key or prefix".into(),
        );
    }
    // The arguments of an unknown command are quoted back, and the owner token is one of them.
    let details = details
        .split(", with args beginning with")
        .next()
        .unwrap_or_default();
    let text = source(redact(&format!("{code} {details}")));
    if is_transient(code, details) {
        Failure::NotNow(text)
    } else {
        Failure::Refused(text)
    }
}

/// An answer of a form that no server of this kind gives.
pub(super) fn nonsense(what: &str) -> Failure {
    Failure::Refused(source(format!(
        "the server's answer to {what} has the wrong form"
    )))
}

pub(super) fn no_redis(server: &str) -> Failure {
    Failure::Invalid(
        format!("{server} does not speak the Redis protocol: is it the right port?").into(),
    )
}

pub(super) fn wrong_credentials(server: &str) -> Failure {
    Failure::Invalid(
        format!(
            "{server} refuses the user or password: put them into the url, as in `redis://user:password@host`, \
             percent-encoded"
        )
        .into(),
    )
}

/// Errors that pass by themselves: while loading, failing over, out of memory, or busy with a script.
fn is_transient(code: &str, details: &str) -> bool {
    matches!(
        code,
        "LOADING"
            | "BUSY"
            | "MASTERDOWN"
            | "READONLY"
            | "OOM"
            | "NOREPLICAS"
            | "TRYAGAIN"
            | "CLUSTERDOWN"
            | "MISCONF"
            | "UNBLOCKED"
    ) || details.contains("max number of clients reached")
}

fn source(message: String) -> Source {
    Arc::from(Box::<dyn Error + Send + Sync>::from(message))
}
