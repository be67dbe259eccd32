//! Locks for users who may not run scripts.
//!
//! There is no queue: whoever waits asks again and again. An acquire is one message of several commands, which is not
//! atomic: the lock first, and then the counter, since the other order would hand out tokens that go back. Changing a key
//! that is ours takes a command that compares, or a transaction on a connection of its own, one after the other: two round
//! trips for each release, and for each batch of renewals.

use std::{sync::Arc, time::Duration};

use tokio::sync::Mutex;

use crate::{
    fencing::{FencingBlock, FencingToken},
    inspect::Sighting,
    store::{
        Acquire, AcquireOutcome, Acquired, Busy, Contended, Expiry, Failure, Prefetch, Prefetched,
        QueueMode, Release, ReleaseOutcome, Released, Renew, Renewed, WakeUpMode,
        in_flight::{ConnectionId, InFlight},
        owner_token::OwnerToken,
        redis::{
            connection::{
                CLOCK,
                capabilities::Compare,
                errors,
                fencing_counter::{FencingCounter, LARGEST_TOKEN},
                handshake::Purpose,
                reconnecting::ReconnectingConnection,
                wire::resp::{
                    self,
                    Arg::{self, Joined, Number, Text},
                    Value, millis,
                },
            },
            scripts::NodeRole,
        },
    },
};

/// How often a transaction is tried that others disturb.
const MOST_TRIES: u32 = 8;

/// A token that no honest process knows lies more than this ahead of the server's clock.
const LARGEST_LEAD: u64 = 3_600_000_000;

#[derive(Debug)]
pub(super) struct Commands {
    connection: Arc<ReconnectingConnection>,
    /// Where locks are taken.
    holding: Arc<ReconnectingConnection>,
    /// For transactions.
    transactions: Arc<ReconnectingConnection>,
    /// Of which there is one at a time.
    turn: Mutex<()>,
    within: Duration,
}

/// A fencing counter, and the last token of it that came from the server's time.
#[derive(Clone, Copy)]
pub(super) struct Counter<'a> {
    pub(super) fence: &'a str,
    pub(super) fencing_counter: &'a FencingCounter,
}

impl Counter<'_> {
    /// Than what a token must be larger that is counted up now.
    fn floor(&self, connection: ConnectionId) -> Option<u64> {
        self.fencing_counter.last()?.floor(connection, CLOCK.now())
    }

    /// Whether what was said is as good as a token from the server's time.
    fn admits(&self, said: &CountedToken, known: u64) -> Result<Option<u64>, Failure> {
        let value = match errors::of_value(said.value.clone())? {
            Value::Int(value) => u64::try_from(value).unwrap_or(0),
            _ => return Err(errors::nonsense("a fencing counter")),
        };
        let floor = self.floor(said.connection);
        let is_token = |floor: u64| value > floor.max(known) && value < LARGEST_TOKEN;
        Ok(floor.and_then(|floor| is_token(floor).then_some(value)))
    }
}

/// What the counter said when it was counted one further.
struct CountedToken {
    value: Value,
    connection: ConnectionId,
}

impl Commands {
    pub(super) fn new(
        connection: Arc<ReconnectingConnection>,
        holding: Arc<ReconnectingConnection>,
    ) -> Self {
        Self {
            within: connection.timing().command_timeout,
            transactions: Arc::new(connection.another(Purpose::OtherCommands, connection.timing())),
            turn: Mutex::default(),
            connection,
            holding,
        }
    }

    pub(super) fn transactions(&self) -> &Arc<ReconnectingConnection> {
        &self.transactions
    }

    pub(super) async fn acquire(
        &self,
        by: Compare,
        counter: Counter<'_>,
        request: &Acquire,
    ) -> Result<Acquired, Failure> {
        let (key, token) = (&*request.full_key, request.token.expose());
        let set_if_free = set_if_free(request);
        let commands: [&[Arg<'_>]; 4] = [
            &set_if_free,
            &[Text("GET"), Text(key)],
            &[Text("PTTL"), Text(key)],
            &[Text("INCR"), Text(counter.fence)],
        ];
        // Whoever asks again found it busy, and will mostly do so again. All that wait would keep the counter from standing
        // still, which it has to for a moment when somebody moves it to the server's time.
        let counts = !matches!(request.queue_mode, QueueMode::CheckPosition(_));
        let commands = &commands[..3 + usize::from(counts)];
        let within = self.holding.timing().command_timeout;
        let in_flight = Some(&*request.in_flight);
        let (connection, answers) = send(&self.holding, commands, within, in_flight).await?;
        let mut answers = answers.into_iter();
        let (Some(set), Some(holder), Some(remaining)) =
            (answers.next(), answers.next(), answers.next())
        else {
            return Err(errors::nonsense("an acquire"));
        };
        let said = answers
            .next()
            .map(|value| CountedToken { value, connection });
        let set = errors::of_answer(set, connection, &request.in_flight)?;
        let is_set = set != Value::Nil;
        let holder = errors::of_value(holder).map_err(|failure| {
            if is_set {
                failure.executed_in_part()
            } else {
                failure
            }
        })?;
        let is_ours = matches!(&holder, Value::BulkString(holder) if **holder == *token.as_bytes());
        let busy = |expiry| {
            let (position, wake_up) = (None, WakeUpMode::Poll);
            let busy = Busy {
                expiry,
                position,
                wake_up,
                counter: None,
            };
            Ok(Acquired {
                outcome: AcquireOutcome::Busy(busy),
                connection,
            })
        };
        if !is_ours {
            return match remaining {
                Value::Int(-1) => busy(Expiry::Never),
                Value::Int(left) => {
                    let left = u64::try_from(left).unwrap_or(0);
                    busy(Expiry::In(Duration::from_millis(left)))
                }
                _ => Err(errors::nonsense("an acquire")),
            };
        }
        // Set by an earlier request whose answer was lost: then its time counts from there.
        if set == Value::Nil {
            let renewed = self.renew_one(by, &request.full_key, &request.token, request.ttl);
            if renewed.await? == Renewed::NotOurs {
                return busy(Expiry::In(Duration::ZERO));
            }
        }
        let token = self
            .fencing(by, counter, said, request.known_fencing)
            .await
            .map_err(Failure::executed_in_part)?;
        Ok(Acquired {
            outcome: AcquireOutcome::Granted(FencingBlock::new(token, 1)),
            connection,
        })
    }

    pub(super) async fn prefetch(
        &self,
        by: Compare,
        counter: Counter<'_>,
        request: &Prefetch,
    ) -> Result<Prefetched, Failure> {
        let renewed = self.renew_one(by, &request.full_key, &request.token, request.ttl);
        if renewed.await? == Renewed::NotOurs {
            return Ok(Prefetched::NotOurs);
        }
        let token = self
            .fencing(by, counter, None, request.known_fencing)
            .await?;
        Ok(Prefetched::Tokens {
            tokens: FencingBlock::new(token, 1),
            // Nobody can know.
            contended: Contended::OthersWaiting,
        })
    }

    /// All in two messages, however many they are.
    pub(super) async fn renew(
        &self,
        by: Compare,
        node_role: NodeRole,
        batch: &[Renew],
        within: Duration,
    ) -> Result<Vec<Result<Renewed, Failure>>, Failure> {
        if by == Compare::Watch {
            return self.renew_in_a_transaction(node_role, batch, within).await;
        }
        let looks: Vec<_> = batch.iter().flat_map(look_at).collect();
        let (_, answers) = send_all(&self.connection, node_role, &looks, within).await?;
        let mut renewed = read_looks(batch, answers)?;
        let due: Vec<usize> = due(batch, &renewed).collect();
        let changes: Vec<_> = due
            .iter()
            .map(|index| {
                let Renew {
                    full_key,
                    token,
                    ttl,
                    ..
                } = &batch[*index];
                expire_if(full_key, token.expose(), millis(*ttl))
            })
            .collect();
        if !changes.is_empty() {
            let (_, answers) = send_all(&self.connection, node_role, &changes, within).await?;
            for (index, answer) in due.into_iter().zip(answers) {
                renewed[index] = is_done(Some(answer)).map(|done| done.then_some(u64::MAX));
            }
        }
        Ok(renewed.into_iter().map(is_renewed).collect())
    }

    async fn renew_in_a_transaction(
        &self,
        node_role: NodeRole,
        batch: &[Renew],
        within: Duration,
    ) -> Result<Vec<Result<Renewed, Failure>>, Failure> {
        let (_turn, connection) = (self.turn.lock().await, &self.transactions);
        if let Some(renewed) = transact(connection, node_role, batch, within).await? {
            return Ok(renewed);
        }
        let started = CLOCK.now();
        let mut all = Vec::with_capacity(batch.len());
        for one in batch.chunks(1) {
            let left = within.saturating_sub(CLOCK.now().since(started));
            match transact(connection, node_role, one, left).await {
                Ok(renewed) => all.extend(renewed.into_iter().flatten()),
                Err(failure) => all.push(Err(failure)),
            }
        }
        Ok(all)
    }

    pub(super) async fn release(
        &self,
        by: Compare,
        connection: &Arc<ReconnectingConnection>,
        request: &Release,
    ) -> Result<Released, Failure> {
        let within = connection.timing().command_timeout;
        let (key, token) = (&*request.full_key, request.token.expose());
        let keep = request.keep.map_or(0, millis);
        let in_flight = Some(&*request.in_flight);
        let command = match (by, request.keep) {
            (Compare::Watch, keep) => {
                // A transaction is on another connection, and must not overtake the acquire.
                let (connection, _) =
                    send(connection, &[&[Text("PING")]], within, in_flight).await?;
                let change = keep.map_or(Change::Delete, Change::Expire);
                let outcome = self.change(key, token, change).await?;
                return Ok(released(outcome, connection));
            }
            // It is nobody's any more: a renewal that comes behind must not prolong it.
            (_, Some(_)) => set_if(key, token, Joined(token, "."), keep),
            (Compare::Delex, None) => vec![Text("DELEX"), Text(key), Text("IFEQ"), Text(token)],
            (Compare::Delifeq, None) => vec![Text("DELIFEQ"), Text(key), Text(token)],
        };
        let (connection, answers) = send(connection, &[&command], within, in_flight).await?;
        Ok(released(is_done(answers.into_iter().next())?, connection))
    }

    pub(super) async fn inspect(&self, full_key: &str) -> Result<Option<Sighting>, Failure> {
        let look: [&[Arg<'_>]; 2] = [
            &[Text("GET"), Text(full_key)],
            &[Text("PTTL"), Text(full_key)],
        ];
        let (_, answers) = self.send(&look, None).await?;
        let mut answers = answers.into_iter().map(errors::of_value);
        match (answers.next(), answers.next()) {
            (Some(Ok(Value::Nil)), _) => Ok(None),
            (Some(Ok(Value::BulkString(token))), Some(Ok(Value::Int(left)))) => {
                let token = String::from_utf8_lossy(&token);
                let left = u64::try_from(left).ok().map(Duration::from_millis);
                Ok(Some(Sighting::new(&token, left, 0)))
            }
            (Some(Err(failure)), _) | (_, Some(Err(failure))) => Err(failure),
            _ => Err(errors::nonsense("an inspection")),
        }
    }

    pub(super) async fn force_release(&self, full_key: &str) -> Result<(), Failure> {
        // A key of another type is no lock, and stays: reading it fails.
        if self.inspect(full_key).await?.is_some() {
            let (_, answers) = self.send(&[&[Text("DEL"), Text(full_key)]], None).await?;
            errors::of_value(answers.into_iter().next().unwrap_or(Value::Nil))?;
        }
        Ok(())
    }

    async fn renew_one(
        &self,
        by: Compare,
        full_key: &Arc<str>,
        token: &OwnerToken,
        ttl: Duration,
    ) -> Result<Renewed, Failure> {
        let request = Renew {
            full_key: full_key.clone(),
            token: token.clone(),
            ttl,
            acquire_in_flight: Arc::default(),
        };
        let renewed = self
            .renew(by, NodeRole::SlotOwner, &[request], self.within)
            .await?;
        let none = || Err(errors::nonsense("a renewal"));
        renewed.into_iter().next().unwrap_or_else(none)
    }

    /// Changes a key in a transaction, if it holds the token; returns whether it does.
    async fn change(&self, key: &str, token: &str, change: Change) -> Result<bool, Failure> {
        let (_turn, connection) = (self.turn.lock().await, &self.transactions);
        for _ in 0..MOST_TRIES {
            // An earlier transaction may have been given up half way.
            let look: [&[Arg<'_>]; 6] = [
                &[Text("DISCARD")],
                &[Text("UNWATCH")],
                &[Text("WATCH"), Text(key)],
                &[Text("GET"), Text(key)],
                &[Text("PTTL"), Text(key)],
                &[Text("MULTI")],
            ];
            let (watching, mut answers) = send(connection, &look, self.within, None).await?;
            let multi = answers.pop().unwrap_or(Value::Nil);
            if read_look(answers.split_off(3), token)?.is_none() {
                return Ok(false);
            }
            // Unwatched, or outside a transaction, the next command would act on whatever is there.
            errors::of_value(answers.pop().unwrap_or(Value::Nil))?;
            errors::of_value(multi)?;
            let command = match change {
                Change::Expire(ttl) => vec![Text("PEXPIRE"), Text(key), Number(millis(ttl))],
                Change::Delete => vec![Text("DEL"), Text(key)],
            };
            let commit: [&[Arg<'_>]; 2] = [&command, &[Text("EXEC")]];
            let answers = commit_on(connection, watching, &commit, self.within).await?;
            if committed(answers)?.is_some() {
                return Ok(true);
            }
        }
        Err(Failure::not_now("others changed the key all the time"))
    }

    /// The fencing token of a lock that was just taken: what the counter said, unless it may be behind.
    async fn fencing(
        &self,
        by: Compare,
        counter: Counter<'_>,
        said: Option<CountedToken>,
        known: u64,
    ) -> Result<u64, Failure> {
        let said = match said {
            Some(said) => said,
            None => self.count(counter.fence).await?,
        };
        if let Some(token) = counter.admits(&said, known)? {
            return Ok(token);
        }
        let connection = said.connection;
        // The key is ours already. Each message of whoever has the turn is bounded by a command time-out. A token that comes
        // when less than half of the ttl is left has the grant confirmed, or given up; and whatever ends this here, the attempt
        // is armed and takes the key back.
        let _turn = self.turn.lock().await;
        // Whoever had the turn before has moved it, then one more will do.
        if counter.floor(connection).is_some() {
            let said = self.count(counter.fence).await?;
            if let Some(token) = counter.admits(&said, known)? {
                return Ok(token);
            }
        }
        let now = CLOCK.now();
        let token = self.raise(by, counter.fence, known).await?;
        counter
            .fencing_counter
            .note(connection, now, FencingToken::new(token));
        Ok(token)
    }

    /// Counts one further, where locks are taken.
    async fn count(&self, fence: &str) -> Result<CountedToken, Failure> {
        let count: [&[Arg<'_>]; 1] = [&[Text("INCR"), Text(fence)]];
        let (connection, answers) = send(&self.holding, &count, self.within, None).await?;
        let value = answers.into_iter().next().unwrap_or(Value::Nil);
        Ok(CountedToken { value, connection })
    }

    /// Moves the counter to the server's time, or beyond it where it or the process is ahead. For whoever has the turn.
    async fn raise(&self, by: Compare, fence: &str, known: u64) -> Result<u64, Failure> {
        for _ in 0..MOST_TRIES {
            let Some((watching, now, before)) = self.look(by, fence).await? else {
                // It was lost since it was counted up: as if somebody had changed it.
                self.send(&[&[Text("INCR"), Text(fence)]], None).await?;
                continue;
            };
            let counter = before.parse().unwrap_or(0);
            let next = now
                .max(u64::saturating_add(counter, 1))
                .max(known.saturating_add(1));
            if known > now.max(counter).saturating_add(LARGEST_LEAD) || next >= LARGEST_TOKEN {
                return Err(errors::out_of_bounds());
            }
            if self.swap(by, watching, fence, &before, next).await? {
                return Ok(next);
            }
        }
        Err(Failure::not_now(
            "others changed the fencing counter all the time",
        ))
    }

    /// The server's time and the counter, which is watched from here on, on this connection, if nothing compares; `None` if
    /// there is no counter.
    async fn look(
        &self,
        by: Compare,
        fence: &str,
    ) -> Result<Option<(ConnectionId, u64, String)>, Failure> {
        let watch: [&[Arg<'_>]; 5] = [
            &[Text("DISCARD")],
            &[Text("UNWATCH")],
            &[Text("WATCH"), Text(fence)],
            &[Text("TIME")],
            &[Text("GET"), Text(fence)],
        ];
        let (watching, mut answers) = if by == Compare::Watch {
            send(&self.transactions, &watch, self.within, None).await?
        } else {
            self.send(&watch[3..], None).await?
        };
        let (counter, time) = (answers.pop(), answers.pop());
        let (Some(time), Some(counter)) = (time, counter) else {
            return Err(errors::nonsense("a fencing counter"));
        };
        let now =
            read_micros(&errors::of_value(time)?).ok_or_else(|| errors::nonsense("the time"))?;
        // Without a watch, what is committed would not notice that others counted.
        if let Some(watched) = answers.pop() {
            errors::of_value(watched)?;
        }
        let Value::BulkString(counter) = errors::of_value(counter)? else {
            return Ok(None);
        };
        let counter = String::from_utf8_lossy(&counter).into_owned();
        Ok(Some((watching, now, counter)))
    }

    /// Sets the counter if it is still what it was when it was looked at.
    async fn swap(
        &self,
        by: Compare,
        watching: ConnectionId,
        fence: &str,
        before: &str,
        next: u64,
    ) -> Result<bool, Failure> {
        if by != Compare::Watch {
            let swap = [
                Text("SET"),
                Text(fence),
                Number(next),
                Text("IFEQ"),
                Text(before),
            ];
            let (_, answers) = self.send(&[&swap], None).await?;
            return is_done(answers.into_iter().next());
        }
        let commit: [&[Arg<'_>]; 3] = [
            &[Text("MULTI")],
            &[Text("SET"), Text(fence), Number(next)],
            &[Text("EXEC")],
        ];
        let answers = commit_on(&self.transactions, watching, &commit, self.within).await?;
        match answers.into_iter().next_back() {
            Some(Value::ServerError(error)) => Err(errors::answered(&error)),
            exec => Ok(matches!(exec, Some(Value::Array(_)))),
        }
    }

    async fn send(
        &self,
        commands: &[&[Arg<'_>]],
        in_flight: Option<&InFlight>,
    ) -> Result<(ConnectionId, Vec<Value>), Failure> {
        send(&self.connection, commands, self.within, in_flight).await
    }
}

pub(super) fn set_if_free(request: &Acquire) -> [Arg<'_>; 6] {
    [
        Text("SET"),
        Text(&request.full_key),
        Text(request.token.expose()),
        Text("NX"),
        Text("PX"),
        Number(millis(request.ttl)),
    ]
}

/// What is to become of a key.
#[derive(Clone, Copy)]
enum Change {
    Delete,
    Expire(Duration),
}

async fn send(
    connection: &Arc<ReconnectingConnection>,
    commands: &[&[Arg<'_>]],
    within: Duration,
    in_flight: Option<&InFlight>,
) -> Result<(ConnectionId, Vec<Value>), Failure> {
    let write = |out: &mut Vec<u8>| write_all(out, commands);
    connection
        .send_all(commands.len(), write, within, in_flight)
        .await
}

/// Sends what ends a transaction, on the connection that watches: on a new one, after a lock has changed hands meanwhile,
/// nothing would keep it from the next holder's.
async fn commit_on(
    connection: &Arc<ReconnectingConnection>,
    watching: ConnectionId,
    commands: &[&[Arg<'_>]],
    within: Duration,
) -> Result<Vec<Value>, Failure> {
    let write = |out: &mut Vec<u8>| write_all(out, commands);
    connection
        .send_all_on(watching, commands.len(), write, within)
        .await
}

fn write_all(out: &mut Vec<u8>, commands: &[&[Arg<'_>]]) {
    for words in commands {
        resp::write_command(out, &[words]);
    }
}

/// Renews all in one transaction. `None` if no transaction can be about several of them: some keys of their slot are on their
/// way to another node.
async fn transact(
    connection: &Arc<ReconnectingConnection>,
    node_role: NodeRole,
    batch: &[Renew],
    within: Duration,
) -> Result<Option<Vec<Result<Renewed, Failure>>>, Failure> {
    for _ in 0..MOST_TRIES {
        let mut looks = vec![vec![Text("DISCARD")], vec![Text("UNWATCH")]];
        let keys = batch.iter().map(|request| Text(&request.full_key));
        looks.push([Text("WATCH")].into_iter().chain(keys).collect());
        looks.extend(batch.iter().flat_map(look_at));
        looks.push(vec![Text("MULTI")]);
        let (watching, mut answers) = send_all(connection, node_role, &looks, within).await?;
        let multi = answers.pop().unwrap_or(Value::Nil);
        let left = answers.split_off(3);
        match answers.pop() {
            Some(Value::ServerError(error)) if error.code() == "TRYAGAIN" && batch.len() > 1 => {
                return Ok(None);
            }
            // What is not watched may change hands before it is changed.
            watch => errors::of_value(watch.unwrap_or(Value::Nil))?,
        };
        let mut renewed = read_looks(batch, left)?;
        errors::of_value(multi)?;
        let due: Vec<usize> = due(batch, &renewed).collect();
        let mut changes: Vec<_> = due
            .iter()
            .map(|index| {
                let Renew { full_key, ttl, .. } = &batch[*index];
                vec![Text("PEXPIRE"), Text(full_key), Number(millis(*ttl))]
            })
            .collect();
        changes.push(vec![Text("EXEC")]);
        // A transaction that was begun for a guest is about one until its end.
        let changes: Vec<&[Arg<'_>]> = changes.iter().map(Vec::as_slice).collect();
        let answers = commit_on(connection, watching, &changes, within).await?;
        if let Some(done) = committed(answers)? {
            for (index, answer) in due.into_iter().zip(done) {
                renewed[index] = is_done(Some(answer)).map(|done| done.then_some(u64::MAX));
            }
            return Ok(Some(renewed.into_iter().map(is_renewed).collect()));
        }
    }
    Err(Failure::not_now("others changed the keys all the time"))
}

async fn send_all(
    connection: &Arc<ReconnectingConnection>,
    node_role: NodeRole,
    commands: &[Vec<Arg<'_>>],
    within: Duration,
) -> Result<(ConnectionId, Vec<Value>), Failure> {
    let mut commands: Vec<&[Arg<'_>]> = commands.iter().map(Vec::as_slice).collect();
    if node_role == NodeRole::SlotOwner {
        return send(connection, &commands, within, None).await;
    }
    // Each is about the one after it.
    commands = commands
        .into_iter()
        .flat_map(|command| [&[Text("ASKING")][..], command])
        .collect();
    let (id, answers) = send(connection, &commands, within, None).await?;
    Ok((id, answers.into_iter().skip(1).step_by(2).collect()))
}

fn look_at(request: &Renew) -> [Vec<Arg<'_>>; 2] {
    let key = Text(&request.full_key);
    [vec![Text("GET"), key], vec![Text("PTTL"), key]]
}

/// How many milliseconds each key has left, if it holds its token.
type TimeLeft = Result<Option<u64>, Failure>;

fn read_looks(batch: &[Renew], answers: Vec<Value>) -> Result<Vec<TimeLeft>, Failure> {
    if answers.len() != batch.len() * 2 {
        return Err(errors::nonsense("a look at some keys"));
    }
    let mut answers = answers.into_iter();
    let read = |request: &Renew| {
        let pair = answers.by_ref().take(2).collect();
        read_look(pair, request.token.expose())
    };
    Ok(batch.iter().map(read).collect())
}

/// Those whose time is to be extended. Never shortens: a check asks for the shortest time there is.
fn due<'a>(batch: &'a [Renew], left: &'a [TimeLeft]) -> impl Iterator<Item = usize> + 'a {
    let pairs = batch.iter().zip(left).enumerate();
    pairs.filter_map(|(index, (request, left))| match left {
        Ok(Some(left)) if *left < millis(request.ttl) => Some(index),
        _ => None,
    })
}

fn is_renewed(left: TimeLeft) -> Result<Renewed, Failure> {
    left.map(|left| match left {
        Some(_) => Renewed::Extended,
        None => Renewed::NotOurs,
    })
}

fn expire_if<'a>(key: &'a str, token: &'a str, ttl_ms: u64) -> Vec<Arg<'a>> {
    set_if(key, token, Text(token), ttl_ms)
}

fn set_if<'a>(key: &'a str, token: &'a str, value: Arg<'a>, ttl_ms: u64) -> Vec<Arg<'a>> {
    vec![
        Text("SET"),
        Text(key),
        value,
        Text("IFEQ"),
        Text(token),
        Text("PX"),
        Number(ttl_ms),
    ]
}

/// What a transaction did, by its last answer; `None`: nothing, since somebody changed what it watched.
fn committed(answers: Vec<Value>) -> Result<Option<Vec<Value>>, Failure> {
    match answers.into_iter().next_back() {
        Some(Value::Nil) => Ok(None),
        Some(Value::Array(done)) => Ok(Some(done)),
        Some(Value::ServerError(error)) => Err(errors::answered(&error)),
        _ => Err(errors::nonsense("a transaction")),
    }
}

/// Whether a command that compares found what it looked for.
fn is_done(answer: Option<Value>) -> Result<bool, Failure> {
    match answer {
        Some(Value::Int(1)) => Ok(true),
        Some(Value::SimpleString(okay)) if okay == "OK" => Ok(true),
        Some(Value::Int(0) | Value::Nil) => Ok(false),
        // A key of another type is another's, too.
        Some(Value::ServerError(error)) if errors::code_of(&error) == "WRONGTYPE" => Ok(false),
        Some(Value::ServerError(error)) => Err(errors::answered(&error)),
        _ => Err(errors::nonsense("a comparison")),
    }
}

/// Reads what GET and PTTL say: how many milliseconds the key has left, if it holds the token.
fn read_look(answers: Vec<Value>, token: &str) -> Result<Option<u64>, Failure> {
    let [holder, left] =
        <[Value; 2]>::try_from(answers).map_err(|_| errors::nonsense("a look at a key"))?;
    match (holder, left) {
        (Value::BulkString(holder), Value::Int(left)) if *holder == *token.as_bytes() => {
            // Without an expiry, somebody took it away: it gets one again.
            Ok(Some(u64::try_from(left).unwrap_or(0)))
        }
        (Value::BulkString(_) | Value::Nil, Value::Int(_)) => Ok(None),
        (Value::ServerError(error), _) if errors::code_of(&error) == "WRONGTYPE" => Ok(None),
        (Value::ServerError(error), _) | (_, Value::ServerError(error)) => {
            Err(errors::answered(&error))
        }
        _ => Err(errors::nonsense("a look at a key")),
    }
}

pub(super) fn read_micros(time: &Value) -> Option<u64> {
    let Value::Array(parts) = time else {
        return None;
    };
    let [Value::BulkString(seconds), Value::BulkString(micros)] = &parts[..] else {
        return None;
    };
    let number = |text: &[u8]| std::str::from_utf8(text).ok()?.parse::<u64>().ok();
    number(seconds)?
        .checked_mul(1_000_000)?
        .checked_add(number(micros)?)
}

fn released(done: bool, connection: ConnectionId) -> Released {
    Released {
        outcome: if done {
            ReleaseOutcome::Released
        } else {
            ReleaseOutcome::NotOurs
        },
        connection,
    }
}
