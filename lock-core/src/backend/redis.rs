//! Locks on one Redis or Valkey primary. The only place that builds a Redis command.

use std::{fmt, sync::Arc, time::Duration};

use redis::Value;

use crate::{
    backend::{
        AcquireOutcome, AcquireRequest, Acquired, Answer, Backend, Failure, ReleaseOutcome,
        ReleaseRequest, Released, RenewRequest, Renewed,
    },
    engine::Timing,
    error::LockError,
    inspect::{Health, Sighting},
    options::RESERVED,
    token::FencingToken,
};

mod address;
mod connection;
mod failure;
mod health;
mod lua;

use address::Address;
use connection::Link;
use lua::{ACQUIRE, Call, FORCE_RELEASE, INSPECT, RELEASE, RENEW};

#[derive(Clone)]
pub(crate) struct RedisBackend {
    link: Arc<Link>,
    /// One for the whole database, without an expiry: nothing grows with the number of locks, and eviction policies for
    /// expiring keys spare it.
    fence: Arc<str>,
    within: Duration,
}

impl RedisBackend {
    /// Connects with the first request.
    pub(crate) fn new(url: &str, timing: Timing) -> Result<Self, LockError> {
        let address = Address::parse(url, timing.command_timeout)?;
        Ok(Self {
            link: Arc::new(Link::new(address, timing)),
            fence: format!("{RESERVED}fence").into(),
            within: timing.command_timeout,
        })
    }

    /// Makes the first connection, and makes sure of whom it talks to.
    pub(crate) async fn greet(&self) -> Result<(), Failure> {
        let timing = self.link.timing();
        let within = timing.connect_timeout + timing.command_timeout;
        match self.link.send(&redis::cmd("PING"), within, None).await? {
            (_, Value::SimpleString(pong)) if pong == "PONG" => Ok(()),
            (_, Value::ServerError(error)) => match error.code() {
                "NOAUTH" => Err(failure::wrong_credentials(self.link.address().shown())),
                _ => Err(failure::answered(&error)),
            },
            _ => Err(failure::no_redis(self.link.address().shown())),
        }
    }
}

impl fmt::Debug for RedisBackend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.link.address().fmt(f)
    }
}

impl Backend for RedisBackend {
    fn acquire(&self, request: AcquireRequest) -> Answer<Acquired> {
        let (link, fence, within) = (self.link.clone(), self.fence.clone(), self.within);
        Box::pin(async move {
            let call = Call {
                keys: vec![request.full_key, fence],
                arguments: vec![
                    request.token.expose().to_owned(),
                    millis(request.ttl).to_string(),
                    request.floor.to_string(),
                ],
            };
            let (connection, answer) = ACQUIRE
                .run(&link, call, within, Some(&request.trail))
                .await?;
            let outcome = read_acquired(&answer).ok_or_else(|| failure::nonsense("an acquire"))?;
            Ok(Acquired {
                outcome,
                connection,
            })
        })
    }

    fn renew(
        &self,
        batch: Vec<RenewRequest>,
        within: Duration,
    ) -> Answer<Vec<Result<Renewed, Failure>>> {
        let link = self.link.clone();
        Box::pin(async move {
            let calls: Vec<_> = batch
                .into_iter()
                .map(|request| Call {
                    keys: vec![request.full_key],
                    arguments: vec![
                        request.token.expose().to_owned(),
                        millis(request.ttl).to_string(),
                    ],
                })
                .collect();
            let answers = RENEW.run_all(&link, &calls, within).await?;
            Ok(answers.iter().map(read_renewed).collect())
        })
    }

    fn release(&self, request: ReleaseRequest) -> Answer<Released> {
        let (link, within) = (self.link.clone(), self.within);
        Box::pin(async move {
            let keep = request.keep.map_or(0, millis);
            let call = Call {
                keys: vec![request.full_key],
                arguments: vec![request.token.expose().to_owned(), keep.to_string()],
            };
            let (connection, answer) = RELEASE.run(&link, call, within, None).await?;
            let outcome = match answer {
                Value::Int(1) => ReleaseOutcome::Done,
                Value::Int(0) => ReleaseOutcome::NotOurs,
                _ => return Err(failure::nonsense("a release")),
            };
            Ok(Released {
                outcome,
                connection,
            })
        })
    }

    fn inspect(&self, full_key: Arc<str>) -> Answer<Option<Sighting>> {
        let (link, within) = (self.link.clone(), self.within);
        Box::pin(async move {
            let (_, answer) = INSPECT.run(&link, on_key(full_key), within, None).await?;
            read_sighting(&answer)
        })
    }

    fn force_release(&self, full_key: Arc<str>) -> Answer<()> {
        let (link, within) = (self.link.clone(), self.within);
        Box::pin(async move {
            FORCE_RELEASE
                .run(&link, on_key(full_key), within, None)
                .await?;
            Ok(())
        })
    }

    fn check(&self) -> Answer<Health> {
        let backend = self.clone();
        Box::pin(async move { health::check(&backend).await })
    }

    fn round_trip(&self) -> Duration {
        self.link.round_trip()
    }
}

fn on_key(full_key: Arc<str>) -> Call {
    Call {
        keys: vec![full_key],
        arguments: Vec::new(),
    }
}

/// Whole milliseconds, rounded up: an expiry that is a little late is safe, one of zero would delete the key.
fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Redis tells a missing expiry by a negative number.
fn remaining(millis: i64) -> Option<Duration> {
    u64::try_from(millis).ok().map(Duration::from_millis)
}

fn read_acquired(answer: &Value) -> Option<AcquireOutcome> {
    let Value::Array(parts) = answer else {
        return None;
    };
    match parts[..] {
        [Value::Int(1), Value::Int(token)] => Some(AcquireOutcome::Granted(FencingToken::new(
            u64::try_from(token).ok()?,
        ))),
        [Value::Int(0), Value::Int(millis)] => Some(AcquireOutcome::Busy {
            remaining: remaining(millis),
        }),
        _ => None,
    }
}

fn read_renewed(answer: &Value) -> Result<Renewed, Failure> {
    match answer {
        Value::Int(1) => Ok(Renewed::Yes),
        Value::Int(0) => Ok(Renewed::NotOurs),
        Value::ServerError(error) => Err(failure::answered(error)),
        _ => Err(failure::nonsense("a renewal")),
    }
}

fn read_sighting(answer: &Value) -> Result<Option<Sighting>, Failure> {
    let Value::Array(parts) = answer else {
        return Err(failure::nonsense("an inspection"));
    };
    match &parts[..] {
        [] => Ok(None),
        [Value::BulkString(token), Value::Int(millis)] => {
            let token = String::from_utf8_lossy(token);
            Ok(Some(Sighting::new(&token, remaining(*millis))))
        }
        _ => Err(failure::nonsense("an inspection")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_rounded_up_to_whole_milliseconds() {
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(100)), 100);
        assert_eq!(millis(Duration::from_micros(100_001)), 101);
    }

    #[test]
    fn an_answer_of_the_wrong_form_is_not_taken_for_one() {
        let odd = [
            Value::Nil,
            Value::Int(1),
            Value::Array(vec![]),
            Value::Array(vec![Value::Int(1)]),
            Value::Array(vec![Value::Int(1), Value::Int(-1)]),
            Value::Array(vec![Value::Int(2), Value::Int(1)]),
            Value::Array(vec![Value::Int(1), Value::Nil]),
        ];
        for answer in odd {
            assert!(read_acquired(&answer).is_none(), "{answer:?}");
        }
        assert!(read_renewed(&Value::Okay).is_err());
        assert!(read_sighting(&Value::Array(vec![Value::Int(1)])).is_err());
    }
}
