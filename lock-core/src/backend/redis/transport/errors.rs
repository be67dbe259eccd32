//! The meaning of server and connection errors for the caller of a request. No failure quotes a secret.

use std::{error::Error, fmt, io, sync::Arc, time::Duration};

use redis::{ErrorKind, RedisError, ServerError, Value};

use crate::{
    backend::{
        redacted::redact,
        redis::transport::{
            address::{Address, security::Transport},
            redirect::Redirect,
            traffic::NoReply,
        },
    },
    credentials::is_fixed,
    failure::Failure,
};

impl Failure {
    pub(crate) fn invalid(message: impl Into<Arc<str>>) -> Self {
        Self::Invalid(message.into())
    }
}

/// Returns the node to try instead, if the failure is a redirect.
pub(crate) fn redirect(failure: &Failure) -> Option<&Redirect> {
    match failure {
        Failure::NotNow(source) => source.downcast_ref(),
        _ => None,
    }
}

/// A refusal to which this process reacts.
#[derive(Debug)]
enum Denial {
    /// The user lacks a right.
    OfRights(String),
    /// The server does not accept what a provider returned.
    OfCredentials(String),
}

impl fmt::Display for Denial {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::OfRights(reason) | Self::OfCredentials(reason)) = self;
        f.write_str(reason)
    }
}

impl Error for Denial {}

/// Returns the failure for lack of a right.
pub(crate) fn denied(reason: String) -> Failure {
    Failure::Refused(Arc::new(Denial::OfRights(reason)))
}

/// Returns the server's refusal, if the failure is for lack of a right.
pub(crate) fn lack_of_rights(failure: &Failure) -> Option<&str> {
    match failure {
        Failure::NoReply(source) | Failure::NotNow(source) | Failure::Refused(source) => {
            match source.downcast_ref()? {
                Denial::OfRights(reason) => Some(reason),
                Denial::OfCredentials(_) => None,
            }
        }
        Failure::LostVote(_) | Failure::Invalid(_) => None,
    }
}

pub(crate) fn of_a_cluster(address: &Address) -> Failure {
    Failure::invalid(format!(
        "{address} is a node of a cluster: write `redis+cluster://host:port,host2:port`"
    ))
}

/// Returns the failure of a command without a reply. Unless it never left, it is unknown whether it was executed.
pub(crate) fn no_value(none: &NoReply, address: &Address, within: Duration) -> Failure {
    match none {
        NoReply::Broken(why) | NoReply::Cut(why) | NoReply::Unacceptable(why) => {
            Failure::no_reply(format!("the connection to {address} broke: {why}"))
        }
        NoReply::Nonsense => Failure::no_reply(format!(
            "{address} sent bytes that are not the Redis protocol"
        )),
        NoReply::Late => late(address, within),
        NoReply::NotSent => Failure::not_now("nothing more can be sent on this connection"),
    }
}

pub(crate) fn late(address: &Address, within: Duration) -> Failure {
    Failure::no_reply(format!("no reply from {address} within {within:?}"))
}

/// Returns the failure of a connection that was not made in time.
pub(crate) fn unconnected(address: &Address, within: Duration) -> Failure {
    let hint = match address.transport {
        // A server without TLS mistakes the TLS bytes for a command, and may wait for its end.
        #[cfg(feature = "tls")]
        Transport::Tls(_) => ": is it a port for TLS?",
        _ => "",
    };
    Failure::no_reply(format!(
        "no connection to {address} within {within:?}{hint}"
    ))
}

pub(crate) fn unreachable(error: &io::Error, address: &Address) -> Failure {
    let text = format!("cannot connect to {address}: {error}");
    match error.kind() {
        // Only TLS has errors of this kind.
        io::ErrorKind::InvalidData => Failure::invalid(text),
        _ => Failure::no_reply(text),
    }
}

/// Returns the failure of a handshake without a reply. No request has left yet.
pub(crate) fn handshake(none: &NoReply, address: &Address) -> Failure {
    match none {
        NoReply::Broken(why) | NoReply::Cut(why) => {
            let hint = match (&address.transport, address.place()) {
                // A server with TLS closes a connection without TLS.
                (Transport::Plain, Some(_)) if !address.has_spoken() => {
                    "; a port for TLS has a `rediss://` url"
                }
                _ => "",
            };
            Failure::no_reply(format!("cannot connect to {address}: {why}{hint}"))
        }
        NoReply::Unacceptable(why) => {
            Failure::invalid(format!("cannot connect to {address}: {why}"))
        }
        NoReply::Nonsense => garbled(address),
        NoReply::Late | NoReply::NotSent => {
            Failure::no_reply(format!("cannot connect to {address}: no reply"))
        }
    }
}

/// Returns the failure of a handshake that the server refuses. The error's details may quote the password.
pub(crate) fn refused(error: &ServerError, address: &Address) -> Failure {
    refused_for(error.code(), details_of(error), address)
}

/// Returns the failure of a greeting sent by a user's own client, like [`refused`].
pub(crate) fn ungreeted(error: &RedisError, address: &Address) -> Failure {
    let none = match (error.kind(), error.code()) {
        (_, Some(code)) => {
            return refused_for(code, error.detail().unwrap_or_default(), address);
        }
        (ErrorKind::Parse, None) => NoReply::Nonsense,
        (_, None) => NoReply::Broken(error.to_string().into()),
    };
    handshake(&none, address)
}

fn refused_for(code: &str, details: &str, address: &Address) -> Failure {
    let details = shown_details(details);
    match code {
        "WRONGPASS" | "NOAUTH" => wrong_credentials(address),
        // The words of Envoy.
        "ERR" if details == "invalid password" => wrong_credentials(address),
        "NOPERM" => denied(format!(
            "{address} refuses the connection: {code} {details}"
        )),
        _ if details.contains("without any password configured") => Failure::invalid(format!(
            "{address} has no password, but the url gives one: remove it from the url"
        )),
        _ if is_transient(code, &details) || is_out_of_reach(code, &details) => {
            Failure::not_now(format!("{address} refuses connections: {code} {details}"))
        }
        _ => Failure::invalid(format!(
            "{address} refuses the connection: {code} {details}"
        )),
    }
}

/// Returns the failure for an error reply from the server to a command.
pub(crate) fn answered(error: &ServerError) -> Failure {
    if let Some(redirect) = Redirect::read(error) {
        return Failure::NotNow(Arc::new(redirect));
    }
    let (code, details) = (code_of(error), shown_details(details_of(error)));
    let text = format!("{code} {details}");
    match code {
        "NOPERM" => denied(text),
        // A transaction whose `EXEC` is refused.
        "EXECABORT" if details.contains("NOPERM") => denied(text),
        "CROSSSLOT" => several_shards(&text),
        _ if is_transient(code, &details) => Failure::not_now(text),
        // The server sends these errors before it executes anything. Any other error may come from a proxy, or from the middle of a
        // script.
        "NOAUTH" | "NOSCRIPT" => Failure::refused(text),
        _ if is_unknown_command(error) => Failure::refused(text),
        _ => Failure::no_reply(text),
    }
}

/// Turns an error reply from the server into a failure.
pub(crate) fn of_value(value: Value) -> Result<Value, Failure> {
    match value {
        Value::ServerError(error) => Err(answered(&error)),
        value => Ok(value),
    }
}

/// Returns an error's code. Redis 6 wraps the error of a command inside a script in an error of the script.
pub(crate) fn code_of(error: &ServerError) -> &str {
    let details = details_of(error);
    if !details.starts_with("Error running script") {
        return error.code();
    }
    let (_, inner) = details.rsplit_once(": ").unwrap_or(("", details));
    let inner = inner.trim_start_matches('-');
    let (code, _) = inner.split_once(' ').unwrap_or((inner, ""));
    let is_code = code.len() > 1 && code.bytes().all(|byte| byte.is_ascii_uppercase());
    if is_code { code } else { error.code() }
}

/// Returns the text of an error after its code.
pub(crate) fn details_of(error: &ServerError) -> &str {
    error.details().unwrap_or_default()
}

/// Returns `true` if the server, or a proxy before it, does not know the command.
pub(crate) fn is_unknown_command(error: &ServerError) -> bool {
    let details = details_of(error);
    details.to_lowercase().contains("unknown command")
}

/// Returns `true` if this user cannot run the command at all, whatever its arguments.
pub(crate) fn is_unavailable_command(error: &ServerError) -> bool {
    let details = details_of(error).to_lowercase();
    let words = ["unsupported", "not supported", "not allowed", "disabled"];
    is_unknown_command(error)
        || error.code() == "ERR" && words.iter().any(|word| details.contains(word))
        || error.code() == "NOPERM" && !is_about_keys(details_of(error))
}

/// Returns `true` if these are the words of a server or proxy that does not have the command. Each proxy has its own words; a server that
/// has the command begins its reply with a specific code.
pub(crate) fn is_refused_by_proxy(error: &ServerError) -> bool {
    let code = error.code();
    is_unknown_command(error) || code == "ERR" || code.bytes().any(|byte| byte.is_ascii_lowercase())
}

/// Returns the failure for a server without commands that issue fencing tokens.
pub(crate) fn no_streams(server: impl fmt::Display) -> Failure {
    Failure::invalid(format!(
        "{server} has no streams (`XADD`), which fencing tokens are taken from: use Redis 6.2 or later, Valkey, or a server that has \
         streams"
    ))
}

/// Returns the failure for an endpoint that spreads the keys of one lock over several servers.
fn several_shards(text: &str) -> Failure {
    Failure::invalid(format!(
        "this server is an endpoint in front of several shards ({text}): add `?sharded=true` to its url, unless it is there already, or switch \
         its database to the OSS cluster policy and write `redis+cluster://`"
    ))
}

/// Returns `true` if the server would run the command with another key or script: it knows the command, and the user may use it.
pub(crate) fn is_for_its_key_or_script(error: &ServerError) -> bool {
    let code = error.code();
    Redirect::read(error).is_some()
        || matches!(code, "NOSCRIPT" | "CLUSTERDOWN" | "TRYAGAIN")
        || code == "NOPERM" && is_about_keys(details_of(error))
}

/// Returns `true` if a `NOPERM` is about keys, and not about the command.
pub(crate) fn is_about_keys(details: &str) -> bool {
    details.contains("access") && details.contains("key")
}

/// Returns the part of an error's details that may be shown. The error for an unknown command quotes its arguments, which may
/// include secrets.
pub(crate) fn shown_details(details: &str) -> String {
    let quoted = details.find(", with args beginning with");
    redact(&details[..quoted.unwrap_or(details.len())])
}

/// A reply whose form does not fit its request.
#[derive(Debug)]
struct WrongForm(String);

impl fmt::Display for WrongForm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the server's reply to {} has the wrong form", self.0)
    }
}

impl Error for WrongForm {}

/// Returns the failure for a reply of a form that no server of this kind sends. It is unknown what was executed.
pub(crate) fn nonsense(what: &str) -> Failure {
    Failure::NoReply(Arc::new(WrongForm(what.to_owned())))
}

/// Returns `true` if the failure is a reply of the wrong form.
pub(crate) fn is_nonsense(failure: &Failure) -> bool {
    matches!(failure, Failure::NoReply(source) if source.is::<WrongForm>())
}

/// Returns the failure for bytes that are not the Redis protocol. It is final if no server at this address ever spoke the
/// protocol. Otherwise it is temporary: a reply was damaged, or a proxy answered in place of the server.
fn garbled(address: &Address) -> Failure {
    if address.has_spoken() {
        return Failure::not_now(format!(
            "{address} does not speak the Redis protocol at the moment, although it did before"
        ));
    }
    no_redis(address)
}

/// Returns the failure for a reply of a form that no Redis server sends.
pub(crate) fn no_redis(server: impl fmt::Display) -> Failure {
    Failure::invalid(format!(
        "{server} does not speak the Redis protocol: is it the right port?"
    ))
}

/// Returns the failure for credentials that the server refuses. A provider may return different ones the next time: a token may
/// have just expired, or the server may not have known it yet.
pub(crate) fn wrong_credentials(address: &Address) -> Failure {
    let provider = address.credentials();
    if provider.is_some_and(|provider| !is_fixed(&**provider)) {
        let reason = format!(
            "{address} refuses the user or password that the credentials provider returned; the provider will be asked again"
        );
        return Failure::NotNow(Arc::new(Denial::OfCredentials(reason)));
    }
    Failure::invalid(format!(
        "{address} refuses the user or password: put them into the url, as in `redis://user:password@host`, \
         percent-encoded"
    ))
}

/// Returns `true` if the provider may return different credentials if it is asked again.
pub(crate) fn is_for_credentials(failure: &Failure) -> bool {
    matches!(failure, Failure::NotNow(source)
        if matches!(source.downcast_ref(), Some(Denial::OfCredentials(_))))
}

/// Returns `true` if the error goes away by itself: the server is loading, failing over, out of memory, or busy with a script.
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

/// Returns `true` if a proxy cannot reach the server. It is then unknown whether a command that changes something was executed.
fn is_out_of_reach(code: &str, details: &str) -> bool {
    let words = ["upstream", "Connection refused", "Connection timed out"];
    words
        .iter()
        .any(|word| code == *word || details.contains(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::redis::transport::{redirect::NodeRole, reply::error};

    #[test]
    fn an_error_inside_a_script_keeps_its_code_even_on_an_old_server() {
        let wrapped = "ERR Error running script (call to f_0123): @user_script:25: @user_script: 25: -OOM command not allowed \
                       when used memory > 'maxmemory'.";
        assert_eq!(code_of(&error(wrapped)), "OOM");
        assert!(matches!(answered(&error(wrapped)), Failure::NotNow(_)));
        assert!(matches!(
            answered(&error("OOM command not allowed")),
            Failure::NotNow(_)
        ));
        let lua = "ERR Error running script (call to f_0123): @user_script:1: user_script:1: attempt to index a nil value";
        assert!(matches!(answered(&error(lua)), Failure::NoReply(_)));
    }

    #[test]
    fn a_redirect_is_read_and_a_malformed_one_is_an_ordinary_error() {
        let slot = answered(&error("MOVED 3999 ::1:6381"));
        let expected = Redirect {
            slot: 3999,
            host: "::1".to_owned(),
            port: 6381,
            node_role: NodeRole::ServesSlot,
        };
        assert_eq!(redirect(&slot), Some(&expected));
        let request = answered(&error("ASK 0 :1"));
        let request = redirect(&request).expect("whole");
        assert_eq!(
            (&*request.host, request.node_role),
            ("", NodeRole::MigrationTarget)
        );
        for odd in [
            "MOVED",
            "MOVED 1",
            "MOVED x a:1",
            "MOVED 16384 a:1",
            "ASK 1 a:b",
            "ERR 1 a:1",
        ] {
            assert!(redirect(&answered(&error(odd))).is_none(), "{odd}");
        }
    }

    #[test]
    fn a_failure_is_definite_only_if_nothing_was_executed() {
        for line in [
            "NOPERM no",
            "NOAUTH no",
            "ERR unknown command 'EVALSHA', with args",
            "LOADING wait",
            "READONLY no",
        ] {
            assert!(answered(&error(line)).is_definite(), "{line}");
        }
        for line in ["ERR upstream failure", "ERR anything"] {
            assert!(!answered(&error(line)).is_definite(), "{line}");
        }
        assert!(!nonsense("an acquire").is_definite());
    }

    #[test]
    fn quoted_arguments_are_not_shown() {
        let quoting =
            "ERR unknown command 'HELLO', with args beginning with: '3' 'AUTH' 'default' 'hunter2'";
        let failure = format!("{:?}", answered(&error(quoting)));
        assert!(!failure.contains("hunter2"), "{failure}");
    }
}
