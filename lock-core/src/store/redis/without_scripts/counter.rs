//! Fencing tokens: the counter plus one, moved to the server's time where it may be behind.

use redis::Value;

use crate::{
    fencing::FencingToken,
    store::{
        Failure,
        fencing_counter::{FencingCounter, LARGEST_TOKEN},
        in_flight::ConnectionId,
        redis::{
            connection::{
                CLOCK,
                capabilities::Compare,
                errors,
                wire::command::Arg::{self, Number, Text},
            },
            without_scripts::{
                Commands,
                change::{Becomes, Change},
                message::send,
                transaction::MOST_TRIES,
            },
        },
    },
};

/// A token that no honest process knows lies more than this ahead of the server's clock.
const LARGEST_LEAD: u64 = 3_600_000_000;

/// A fencing counter, and the last token of it that came from the server's time.
#[derive(Clone, Copy)]
pub(crate) struct Counter<'a> {
    pub(crate) fence: &'a str,
    pub(crate) fencing_counter: &'a FencingCounter,
}

/// The counter's value after it was incremented.
pub(super) struct CountedToken {
    pub(super) value: Value,
    pub(super) connection: ConnectionId,
}

impl Counter<'_> {
    /// Whether it may ever be incremented for a token.
    pub(super) fn may_be_incremented(&self) -> bool {
        self.fencing_counter.is_allowed()
    }

    /// The token must be larger than this if the counter is incremented now.
    fn floor(&self, connection: ConnectionId) -> Option<u64> {
        self.fencing_counter.last()?.floor(connection, CLOCK.now())
    }

    /// Whether the counter's value is as good as a token from the server's time.
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

impl Commands {
    /// The fencing token of a lock that was just taken: the counter's value, unless it may be behind.
    pub(super) async fn fencing(
        &self,
        by: Compare,
        counter: Counter<'_>,
        said: Option<CountedToken>,
        known: u64,
    ) -> Result<u64, Failure> {
        let said = match said {
            None if counter.may_be_incremented() => Some(self.count(counter.fence).await?),
            said => said,
        };
        if let Some(said) = &said
            && let Some(token) = counter.admits(said, known)?
        {
            return Ok(token);
        }
        // This client has the key already. A token that comes when less than half of the ttl is left has the grant confirmed, or
        // given up. If this ends here, the release of the dropped acquire gives the key back.
        let _turn = self.raising.lock().await;
        // If another request has moved the counter meanwhile, one more increment will do.
        if let Some(said) = &said
            && counter.floor(said.connection).is_some()
        {
            let said = self.count(counter.fence).await?;
            if let Some(token) = counter.admits(&said, known)? {
                return Ok(token);
            }
        }
        let now = CLOCK.now();
        let token = self.raise(by, counter.fence, known).await?;
        if let Some(said) = said {
            counter
                .fencing_counter
                .note(said.connection, now, FencingToken::new(token));
        }
        Ok(token)
    }

    /// Increments the counter, on the connection where locks are taken.
    async fn count(&self, fence: &str) -> Result<CountedToken, Failure> {
        let count: [&[Arg<'_>]; 1] = [&[Text("INCR"), Text(fence)]];
        let (connection, answers) =
            send(&self.holding, &count, self.connection.reply_within(), None).await?;
        let value = answers.into_iter().next().unwrap_or(Value::Nil);
        Ok(CountedToken { value, connection })
    }

    /// Moves the counter to the server's time, or beyond it where the counter or the process is ahead.
    async fn raise(&self, by: Compare, fence: &str, known: u64) -> Result<u64, Failure> {
        for _ in 0..MOST_TRIES {
            let look: [&[Arg<'_>]; 2] = [&[Text("TIME")], &[Text("GET"), Text(fence)]];
            let answers = self.ask(&look).await?;
            let answers: Result<Vec<_>, _> = answers.into_iter().map(errors::of_value).collect();
            let [time, Value::BulkString(before)] = &answers?[..] else {
                // It was lost since it was incremented: the same as if it had been changed meanwhile.
                self.count(fence).await?;
                continue;
            };
            let now = read_micros(time).ok_or_else(|| errors::nonsense("the time"))?;
            let before = String::from_utf8_lossy(before);
            let counter = before.parse().unwrap_or(0);
            let next = now
                .max(u64::saturating_add(counter, 1))
                .max(known.saturating_add(1));
            if known > now.max(counter).saturating_add(LARGEST_LEAD) || next >= LARGEST_TOKEN {
                return Err(errors::out_of_bounds());
            }
            let change = Change {
                key: fence,
                holds: &before,
                becomes: Becomes::Other(Number(next), None),
            };
            if self.change(by, &change).await? {
                return Ok(next);
            }
        }
        Err(Failure::not_now(
            "others changed the fencing counter all the time",
        ))
    }
}

/// Reads the reply to TIME.
pub(crate) fn read_micros(time: &Value) -> Option<u64> {
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
