//! Changes by transactions, for servers without a command that compares.

use std::{sync::Arc, time::Duration};

use redis::Value;
use tokio::sync::Mutex;

use crate::store::{
    Failure,
    redis::{
        connection::{
            CLOCK, errors, handshake::Purpose, reconnecting::ReconnectingConnection,
            wire::command::Arg::Text,
        },
        scripts::NodeRole,
        without_scripts::{
            change::{Change, Changed, Looked},
            message::{send_on, send_to},
        },
    },
};

/// How often a transaction is tried that other clients disturb.
pub(super) const MOST_TRIES: u32 = 8;

/// A connection for transactions, of which there is one at a time.
#[derive(Debug)]
pub(super) struct Transactions {
    connection: Arc<ReconnectingConnection>,
    turn: Mutex<()>,
}

impl Transactions {
    /// To the server of another connection. Connects with the first transaction.
    pub(super) fn to(connection: &ReconnectingConnection) -> Self {
        let another = connection.another(Purpose::OtherCommands, connection.timing());
        Self {
            connection: Arc::new(another),
            turn: Mutex::default(),
        }
    }

    pub(super) fn connection(&self) -> &Arc<ReconnectingConnection> {
        &self.connection
    }

    /// Changes keys of one slot, in one transaction if there can be one about all of them.
    pub(super) async fn change(
        &self,
        node_role: NodeRole,
        changes: &[Change<'_>],
        within: Duration,
    ) -> Result<Vec<Changed>, Failure> {
        let _turn = self.turn.lock().await;
        let started = CLOCK.now();
        if let Some(done) = self.together(node_role, changes, within).await? {
            return Ok(done);
        }
        let mut all = Vec::with_capacity(changes.len());
        for one in changes.chunks(1) {
            let left = within.saturating_sub(CLOCK.now().since(started));
            match self.together(node_role, one, left).await {
                Ok(done) => all.extend(done.into_iter().flatten()),
                Err(failure) => all.push(Err(failure)),
            }
        }
        Ok(all)
    }

    /// Called by the holder of the connection. `None` if one transaction cannot contain all the keys: some keys of their slot are
    /// being moved to another node.
    async fn together(
        &self,
        node_role: NodeRole,
        changes: &[Change<'_>],
        within: Duration,
    ) -> Result<Option<Vec<Changed>>, Failure> {
        for _ in 0..MOST_TRIES {
            // An earlier transaction may have been given up half way.
            let mut look = vec![vec![Text("DISCARD")], vec![Text("UNWATCH")]];
            let keys = changes.iter().map(|change| Text(change.key));
            look.push([Text("WATCH")].into_iter().chain(keys).collect());
            look.extend(changes.iter().flat_map(Change::look));
            look.push(vec![Text("MULTI")]);
            let (watching, mut answers) =
                send_to(&self.connection, node_role, &look, within).await?;
            let multi = answers.pop().unwrap_or(Value::Nil);
            let seen = answers.split_off(3);
            match answers.pop() {
                Some(Value::ServerError(error))
                    if error.code() == "TRYAGAIN" && changes.len() > 1 =>
                {
                    return Ok(None);
                }
                // A key that is not watched may get another holder before it is changed.
                watch => errors::of_value(watch.unwrap_or(Value::Nil))?,
            };
            let looked = Looked::read(changes, seen)?;
            // Outside a transaction, the next commands would act on any value.
            errors::of_value(multi)?;
            let due = looked.due(changes);
            if due.is_empty() {
                return Ok(Some(looked.done([])));
            }
            // A transaction that was begun with ASKING is about a slot in migration until its end.
            let mut commit: Vec<_> = due.iter().map(|change| change.watched()).collect();
            commit.push(vec![Text("EXEC")]);
            let answers = send_on(&self.connection, watching, &commit, within).await?;
            match answers.into_iter().next_back() {
                // A key that it watched was changed.
                Some(Value::Nil) => {}
                Some(Value::Array(answers)) => return Ok(Some(looked.done(answers))),
                Some(Value::ServerError(error)) => return Err(errors::answered(&error)),
                _ => return Err(errors::nonsense("a transaction")),
            }
        }
        Err(Failure::not_now("others changed the keys all the time"))
    }
}
