//! Waiting until replicas have a lock.
//!
//! `WAIT` counts the replicas that have all writes of its own connection, and blocks that connection in the meantime. So locks
//! are taken on a separate connection, where a `WAIT` may delay replies. Renewals and releases use another connection.
//!
//! A grant was written on another connection, so it is only a reason to ask, and the acquire that follows waits for the
//! replicas.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redis::Value;
use tokio::sync::Mutex;

use crate::{
    backend::{
        in_flight::ConnectionId,
        redis::{
            topology::Replicas,
            transport::{
                command::{
                    Arg::{Number, Text},
                    millis,
                },
                errors,
                handshake::Purpose,
                reconnecting::ReconnectingConnection,
            },
        },
    },
    failure::Failure,
};

#[derive(Debug)]
pub(crate) struct ReplicaAcks {
    /// The connection on which locks are taken.
    pub(crate) connection: Arc<ReconnectingConnection>,
    least: u32,
    within: Duration,
    /// The number of rounds that have begun.
    begun: AtomicU64,
    /// The last completed round, by its number, which is one `WAIT` for everything that was written before it.
    last: Mutex<(u64, Result<Acks, Failure>)>,
}

/// The number of replicas, and the connection: a count says nothing about writes on another connection.
type Acks = (ConnectionId, u64);

impl ReplicaAcks {
    pub(crate) fn new(connection: &ReconnectingConnection, replicas: Replicas) -> Self {
        let mut timing = connection.timing();
        timing.command_timeout += replicas.within;
        Self {
            connection: Arc::new(connection.another(Purpose::LocksOnly, timing)),
            least: replicas.least,
            within: replicas.within,
            begun: AtomicU64::new(0),
            last: Mutex::new((0, Err(Failure::not_now("no replica was asked yet")))),
        }
    }

    /// Waits until enough replicas have everything that was written on this connection up to now.
    ///
    /// One `WAIT` at a time serves all callers: with one each, the calls of all callers would run in turn, and each would last for
    /// the whole time-out while a replica is down. So this takes at most two time-outs: the round that has begun, and the next one.
    pub(crate) async fn gather(&self, order: Option<ConnectionId>) -> Result<(), Failure> {
        // A round that has already begun may not cover the latest writes.
        let needed = self.begun.load(Ordering::Acquire) + 1;
        let mut last = self.last.lock().await;
        if last.0 < needed {
            let number = self.begun.fetch_add(1, Ordering::AcqRel) + 1;
            *last = (number, self.wait().await);
        }
        let acks = last.1.clone();
        drop(last);
        match acks? {
            (asked, _) if Some(asked) != order => Err(Failure::no_reply(
                "the connection broke before the replicas were asked",
            )),
            (_, count) if count >= u64::from(self.least) => Ok(()),
            // The key is set, so the caller releases the lock, or asks again.
            (_, count) => Err(Failure::no_reply(format!(
                "{count} of {} replicas have the lock after {:?} (min_replicas_acked)",
                self.least, self.within
            ))),
        }
    }

    /// Checks that the server knows `WAIT`, and that this user may run it. A replica refuses it for another reason, which
    /// proves nothing about the rights on its primary.
    pub(crate) async fn try_out(&self) -> Result<(), Failure> {
        let words = [Text("WAIT"), Number(0), Number(1)];
        let within = self.connection.timing().command_timeout;
        let (_, reply) = self.connection.send(&[&words], within, None).await?;
        match reply {
            Value::ServerError(error) if error.code() == "NOPERM" => Err(errors::answered(&error)),
            Value::ServerError(error) if errors::is_unknown_command(&error) => {
                Err(Failure::invalid(format!(
                    "{} cannot wait for replicas (min_replicas_acked): it does not support `WAIT`",
                    self.connection.address().shown()
                )))
            }
            _ => Ok(()),
        }
    }

    async fn wait(&self) -> Result<Acks, Failure> {
        let (least, wait) = (self.least.into(), millis(self.within));
        let words = [Text("WAIT"), Number(least), Number(wait)];
        let within = self.connection.timing().command_timeout;
        let (connection, reply) = self.connection.send(&[&words], within, None).await?;
        match errors::of_value(reply).map_err(Failure::executed_in_part)? {
            Value::Int(count) => Ok((connection, u64::try_from(count).unwrap_or(0))),
            _ => Err(errors::nonsense("WAIT")),
        }
    }
}
