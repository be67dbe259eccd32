//! From an address to a connection that is ready for use: who we are, which database, and where grants arrive.

use std::{sync::Arc, time::Duration};

use crate::backend::{
    Failure,
    redis::{
        address::{Address, Credentials},
        connection::{CLOCK, Connection, Messages},
        failure,
        link::{Current, Link},
        probe::{self, Ways},
        resp::{ServerError, Value, Word},
        socket,
    },
};

/// Opens a connection. Its caller bounds the time.
///
/// # Cancel safety
///
/// Dropping the future closes the connection.
pub(super) async fn open(link: &Arc<Link>) -> Result<Current, Failure> {
    let address = link.address();
    let opening = start(link, Messages::ByForm).await?;
    let pushes = address.pushes && greet_in_resp3(&opening, address).await?;
    if !pushes {
        authenticate(&opening, address).await?;
    }
    if address.database() != 0 {
        let select = [
            Word::Text("SELECT"),
            Word::Number(address.database().into()),
        ];
        expect_okay(&opening, address, &select).await?;
    }
    let (grants, beside) = if pushes {
        (subscribe(&opening, link).await?, None)
    } else {
        let beside = open_beside(link).await.unwrap_or_else(|failure| {
            // There are proxies that hang up on whoever subscribes.
            no_grants(address, &format!("{failure:?}"));
            None
        });
        (beside.is_some(), beside)
    };
    let ways = probe::ways(&opening, address, &link.mailbox().channel).await?;
    // From here on nothing can fail, and nobody waits: both are in use, or both are closed.
    let beside = beside.map(Opening::finish);
    if let Some(beside) = &beside {
        drop(tokio::spawn(watch(
            Arc::downgrade(link),
            beside.clone(),
            link.timing().command_timeout,
        )));
    }
    Ok(Current {
        connection: opening.finish(),
        ways,
        // Without scripts there is no queue.
        grants: grants && ways == Ways::Scripts,
        beside,
    })
}

/// In the second version of the protocol, messages need a connection of their own.
async fn open_beside(link: &Arc<Link>) -> Result<Option<Opening>, Failure> {
    let opening = start(link, Messages::ByWord).await?;
    authenticate(&opening, link.address()).await?;
    Ok(subscribe(&opening, link).await?.then_some(opening))
}

/// Nobody asks anything on a connection for messages, so nobody would notice that it is half-open.
async fn watch(link: std::sync::Weak<Link>, beside: Arc<Connection>, pause: Duration) {
    // Until the connection or the manager ends.
    while !beside.has_ended() {
        let asleep = CLOCK.now();
        tokio::time::sleep(pause).await;
        let Some(link) = link.upgrade() else { return };
        link.suspect(&beside, asleep, pause);
    }
}

/// A connection that closes unless its opening comes to its end.
pub(super) struct Opening(Option<Arc<Connection>>);

impl Opening {
    pub(super) async fn ask(
        &self,
        address: &Address,
        words: &[Word<'_>],
    ) -> Result<Value, Failure> {
        let Some(connection) = &self.0 else {
            return Err(Failure::no_answer("the connection is open already"));
        };
        let answer = connection.ask(words).await;
        answer.map_err(|none| failure::opening(&none, address))
    }

    fn finish(mut self) -> Arc<Connection> {
        self.0.take().expect("only this takes it, once")
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if let Some(connection) = self.0.take() {
            connection.retire();
        }
    }
}

/// Connects, and has the connection driven.
async fn start(link: &Arc<Link>, messages: Messages) -> Result<Opening, Failure> {
    let (address, patience) = (link.address(), link.timing().command_timeout);
    let (reading, writing) = socket::connect(address, patience)
        .await
        .map_err(|error| failure::unreachable(&error, address))?;
    let connection = Arc::new(Connection::new(
        link.next_id(),
        writing,
        messages,
        link.is_near(),
    ));
    let (driven, mailbox, link) = (
        connection.clone(),
        link.mailbox().clone(),
        Arc::downgrade(link),
    );
    drop(tokio::spawn(async move {
        let late = || {
            if let Some(link) = link.upgrade() {
                link.suspect(&driven, CLOCK.now().before(patience), patience);
            }
        };
        let why = driven.drive(reading, mailbox, patience, late).await;
        // Before anybody hears of the end, who may want to ask again at once.
        if let Some(link) = link.upgrade() {
            link.forget(driven.id);
        }
        driven.end(&why);
    }));
    Ok(Opening(Some(connection)))
}

/// Returns whether the server, and what may stand before it, speaks RESP3.
async fn greet_in_resp3(opening: &Opening, address: &Address) -> Result<bool, Failure> {
    let mut words = vec![Word::Text("HELLO"), Word::Text("3")];
    if let Some(Credentials { user, password }) = address.credentials() {
        let user = user.as_deref().unwrap_or("default");
        words.extend([Word::Text("AUTH"), Word::Text(user), Word::Text(password)]);
    }
    match opening.ask(address, &words).await? {
        Value::Array(_) => Ok(true),
        Value::ServerError(error) if knows_no_resp3(&error) => Ok(false),
        Value::ServerError(error) => Err(failure::refused(&error, address)),
        _ => Err(failure::no_redis(address.shown())),
    }
}

fn knows_no_resp3(error: &ServerError) -> bool {
    let details = error.details();
    error.code() == "NOPROTO"
        || details.contains("unknown command")
        || details.contains("protocol version")
}

async fn authenticate(opening: &Opening, address: &Address) -> Result<(), Failure> {
    let Some(Credentials { user, password }) = address.credentials() else {
        return Ok(());
    };
    let mut words = vec![Word::Text("AUTH")];
    words.extend(user.as_deref().map(Word::Text));
    words.push(Word::Text(password));
    expect_okay(opening, address, &words).await
}

async fn expect_okay(
    opening: &Opening,
    address: &Address,
    words: &[Word<'_>],
) -> Result<(), Failure> {
    match opening.ask(address, words).await? {
        Value::SimpleString(okay) if okay == "OK" => Ok(()),
        Value::ServerError(error) => Err(failure::refused(&error, address)),
        _ => Err(failure::no_redis(address.shown())),
    }
}

/// Confirmed before anybody can stand in a queue: a grant must not come before there is somebody to hear it. Returns
/// whether grants will arrive.
async fn subscribe(opening: &Opening, link: &Link) -> Result<bool, Failure> {
    let (address, channel) = (link.address(), &*link.mailbox().channel);
    let words = [Word::Text("SUBSCRIBE"), Word::Text(channel)];
    match opening.ask(address, &words).await? {
        Value::Array(_) => return Ok(true),
        Value::ServerError(error) => match failure::refused(&error, address) {
            Failure::NotNow(source) => return Err(Failure::NotNow(source)),
            _ => no_grants(address, error.code()),
        },
        _ => no_grants(address, "an answer of the wrong form"),
    }
    Ok(false)
}

fn no_grants(address: &Address, why: &str) {
    tracing::warn!(
        server = address.shown(),
        why,
        "this server, or this user, cannot be told when a lock is theirs: waiters ask again and again"
    );
}
