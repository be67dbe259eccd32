//! The data that the locks protect: a counter for each key, on a server of its own that no fault hits.
//!
//! A counter refuses late holders by their fencing tokens. An increment reads it and writes it back, so if two holders increment
//! it at the same time, one increment is missing in the end.

use lock_core::fenced::Fence;
use lock_tests::RedisServer;
use redis::{
    AsyncConnectionConfig, FromRedisValue, RedisResult, Script, aio::MultiplexedConnection,
};

/// Announces a holder and returns the counter, or nil if a later holder has announced itself. Two servers that both act as the
/// primary can give out one token twice, so of two holders with one token, the first is accepted.
const ANNOUNCE: &str = "
local token, holder, value = unpack(redis.call('HMGET', KEYS[1], 'token', 'holder', 'value'))
local is_late = token and tonumber(ARGV[1]) < tonumber(token)
if is_late or token == ARGV[1] and holder ~= ARGV[2] then
  redis.call('HINCRBY', KEYS[1], 'refused', 1)
  return false
end
redis.call('HSET', KEYS[1], 'token', ARGV[1], 'holder', ARGV[2])
return tonumber(value or 0)";

/// Writes the counter, unless another holder has announced itself since. Returns whether it was written.
const WRITE: &str = "
local token, holder = unpack(redis.call('HMGET', KEYS[1], 'token', 'holder'))
if token ~= ARGV[1] or holder ~= ARGV[2] then
  redis.call('HINCRBY', KEYS[1], 'refused', 1)
  return 0
end
redis.call('HINCRBY', KEYS[1], 'accepted', 1)
redis.call('HSET', KEYS[1], 'value', ARGV[3])
return 1";

/// The server of the counters.
#[derive(Debug)]
pub(crate) struct Registers(RedisServer);

impl Registers {
    pub(crate) fn start() -> Self {
        Self(RedisServer::start())
    }

    pub(crate) fn url(&self) -> String {
        self.0.url()
    }

    /// Returns the numbers of accepted increments and of refusals.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let cells = self.cells().into_iter();
        cells.fold((0, 0), |(accepted, refused), (_, cell)| {
            (accepted + cell[1], refused + cell[2])
        })
    }

    /// Returns a line for each counter with fewer increments than were accepted.
    pub(crate) fn missing(&self) -> Vec<String> {
        let cells = self.cells().into_iter();
        let missing = cells.filter(|(_, [value, accepted, _])| value != accepted);
        missing
            .map(|(key, [value, accepted, _])| {
                format!("the register of {key} is {value} after {accepted} increments")
            })
            .collect()
    }

    /// Returns the value, and the numbers of accepted and of refused holders, for each key.
    fn cells(&self) -> Vec<(String, [u64; 3])> {
        let cell = |key: String| {
            let fields = ["HMGET", &key, "value", "accepted", "refused"];
            let cell = <[Option<u64>; 3]>::from_redis_value(self.0.cli(&fields));
            (key, cell.expect("numbers").map(Option::unwrap_or_default))
        };
        self.0.keys("*").into_iter().map(cell).collect()
    }
}

/// The response to a holder.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Response {
    Accepted,
    Refused,
}

/// A contender's connection to the counters.
pub(crate) struct Register {
    connection: MultiplexedConnection,
    announce: Script,
    write: Script,
}

impl Register {
    pub(crate) async fn connect(url: &str) -> RedisResult<Self> {
        let client = redis::Client::open(url)?;
        // No time-out: the contender may be stopped for longer.
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        Ok(Self {
            connection: client
                .get_multiplexed_async_connection_with_config(&config)
                .await?,
            announce: Script::new(ANNOUNCE),
            write: Script::new(WRITE),
        })
    }

    /// Increments a counter. A shared holder only reads it, because others would write at the same time.
    pub(crate) async fn count_up(&self, key: &str, fence: Fence) -> RedisResult<Response> {
        let mut connection = self.connection.clone();
        let (token, holder) = (fence.token.get(), fence.holder);
        let mut announce = self.announce.key(key);
        let announce = announce.arg(token).arg(holder);
        let value: Option<u64> = announce.invoke_async(&mut connection).await?;
        let Some(value) = value else {
            return Ok(Response::Refused);
        };
        if holder == 0 {
            return Ok(Response::Accepted);
        }
        let mut write = self.write.key(key);
        let write = write.arg(token).arg(holder).arg(value + 1);
        let is_written: bool = write.invoke_async(&mut connection).await?;
        Ok(if is_written {
            Response::Accepted
        } else {
            Response::Refused
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn late_holders_are_refused_and_lost_increments_are_noticed() {
        let registers = Registers::start();
        let mut connection = redis::Client::open(registers.url())
            .and_then(|client| client.get_connection())
            .expect("a running server");
        let mut announce = |token: u64, holder: u64| -> Option<u64> {
            let call = Script::new(ANNOUNCE);
            let mut call = call.key("k");
            let reply = call.arg(token).arg(holder).invoke(&mut connection);
            reply.expect("a running server")
        };
        assert_eq!(announce(5, 1), Some(0));
        assert_eq!(announce(5, 2), None, "another holder with the same token");
        assert_eq!(announce(4, 1), None, "an earlier token");
        assert_eq!(announce(5, 1), Some(0));
        let mut write = |token: u64, holder: u64, value: u64| -> bool {
            let call = Script::new(WRITE);
            let mut call = call.key("k");
            let call = call.arg(token).arg(holder).arg(value);
            call.invoke(&mut connection).expect("a running server")
        };
        assert!(write(5, 1, 1));
        assert!(!write(5, 2, 2) && !write(4, 1, 2));
        assert_eq!(registers.counts(), (1, 4));
        assert!(registers.missing().is_empty());
        assert!(write(5, 1, 1), "an increment that overwrites another one");
        assert_eq!(registers.missing().len(), 1);
    }
}
