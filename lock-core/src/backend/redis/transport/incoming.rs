//! Replies and pushes, read from a stream: the Redis protocol, versions 2 and 3.
//!
//! Rejected: `Parser::parse_value` of the `redis` crate. It clears 8 KiB before each read and allocates for each value,
//! which accounts for a third of the instructions of a free lock. The crate still parses rare values: errors, and the
//! scalars of version 3.

use std::{
    mem,
    pin::Pin,
    task::{Context, Poll, ready},
};

use redis::{PushKind, Value};
use tokio::io::{AsyncRead, ReadBuf};

use crate::backend::redis::transport::{reply, traffic::NoReply};

/// The longest reply, in bytes. A hostile server may announce one of any length. The longest expected one has 8 MiB: the map of
/// a cluster in which each slot is a separate range.
const LONGEST: usize = 64 << 20;

/// The longest line: a header, or an error.
const LONGEST_LINE: usize = 1 << 16;

/// The least number of bytes of memory that each value uses in addition to its content. They count as a part of a reply.
const OF_A_VALUE: usize = 64;

/// The deepest nesting of collections. The map of a cluster has four levels.
const DEEPEST: usize = 16;

/// The size of the read buffer, in bytes, unless one value needs more.
const ROOM: usize = 8 << 10;

/// The bytes that have been read from a stream, up to the next complete value.
#[derive(Default)]
pub(super) struct Incoming {
    /// The bytes from `start` to `end` were read and are not part of a value yet.
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// The collections with missing elements, the outermost first.
    open: Vec<Collection>,
    /// The size in bytes of the elements already in `open`.
    length: usize,
}

/// A collection that has arrived in part.
struct Collection {
    kind: u8,
    missing: usize,
    elements: Vec<Value>,
}

impl Incoming {
    /// Reads the next value. Returns `Pending` if more has to arrive; the task of the context is woken when it does.
    ///
    /// # Errors
    ///
    /// Fails if the stream has ended, the bytes are not the Redis protocol, or a value is too long.
    pub(super) fn poll_value(
        &mut self,
        mut stream: Pin<&mut (impl AsyncRead + ?Sized)>,
        context: &mut Context<'_>,
    ) -> Poll<Result<Value, NoReply>> {
        loop {
            match self.next() {
                Ok(value) => return Poll::Ready(Ok(value)),
                Err(NoValue::Nonsense) => return Poll::Ready(Err(NoReply::Nonsense)),
                Err(NoValue::Partial) => {}
            }
            self.make_room();
            let mut room = ReadBuf::new(&mut self.buffer[self.end..]);
            let read = ready!(stream.as_mut().poll_read(context, &mut room));
            let count = room.filled().len();
            let broken = match read {
                Err(error) => NoReply::of(error),
                Ok(()) if count == 0 => NoReply::Broken("the server closed the connection".into()),
                Ok(()) => {
                    self.end += count;
                    continue;
                }
            };
            let is_inside = self.start < self.end || !self.open.is_empty();
            return Poll::Ready(Err(match broken {
                NoReply::Broken(why) if is_inside => NoReply::Cut(why),
                why => why,
            }));
        }
    }

    /// Makes room after the bytes that were read, which are moved to the front.
    fn make_room(&mut self) {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        if self.end == 0 && self.buffer.len() > ROOM {
            // The allocation for a long value must not be retained forever.
            self.buffer = Vec::new();
        }
        if self.end == self.buffer.len() {
            self.buffer.resize((self.end * 2).max(ROOM), 0);
        }
    }

    /// Takes the next value from the bytes that were read.
    fn next(&mut self) -> Result<Value, NoValue> {
        loop {
            let rest = &self.buffer[self.start..self.end];
            if self.length + rest.len() > LONGEST {
                return Err(NoValue::Nonsense);
            }
            let (item, size) = item(rest)?;
            self.start += size;
            self.length += size + OF_A_VALUE;
            let value = match item {
                Item::Value(value) => value,
                Item::Collection(kind, 0) => collect(kind, Vec::new())?,
                Item::Collection(kind, missing) => {
                    if self.open.len() == DEEPEST {
                        return Err(NoValue::Nonsense);
                    }
                    self.open.push(Collection {
                        kind,
                        missing,
                        // A length announced by a server must not allocate memory.
                        elements: Vec::with_capacity(missing.min(8)),
                    });
                    continue;
                }
            };
            if let Some(value) = self.close(value)? {
                self.length = 0;
                return Ok(value);
            }
        }
    }

    /// Puts a value into the collection that it belongs to. Returns the outermost value if it is complete.
    fn close(&mut self, mut value: Value) -> Result<Option<Value>, NoValue> {
        while let Some(innermost) = self.open.last_mut() {
            innermost.elements.push(value);
            innermost.missing -= 1;
            if innermost.missing > 0 {
                return Ok(None);
            }
            let elements = mem::take(&mut innermost.elements);
            value = collect(innermost.kind, elements)?;
            self.open.pop();
        }
        Ok(Some(value))
    }
}

/// The reason why there is no value.
enum NoValue {
    /// The value has not arrived completely.
    Partial,
    /// The bytes are not the Redis protocol.
    Nonsense,
}

/// A value without elements, or the header of a collection with its count of elements.
enum Item {
    Value(Value),
    Collection(u8, usize),
}

/// Returns the first item of these bytes, and its size.
fn item(bytes: &[u8]) -> Result<(Item, usize), NoValue> {
    // The text of an error may have line feeds of its own.
    let is_end = |end: &usize| bytes[*end] == b'\n' && *end > 0 && bytes[*end - 1] == b'\r';
    let Some(end) = (0..bytes.len()).find(is_end) else {
        return Err(if bytes.len() > LONGEST_LINE {
            NoValue::Nonsense
        } else {
            NoValue::Partial
        });
    };
    let (line, rest) = bytes.split_at(end + 1);
    let (kind, text) = (line.strip_suffix(b"\r\n"))
        .and_then(<[u8]>::split_first)
        .ok_or(NoValue::Nonsense)?;
    let value = match kind {
        b'+' if text == b"OK" => Value::Okay,
        b'+' => Value::SimpleString(utf8(text)?.to_owned()),
        b':' => Value::Int(number(text)?),
        b'$' | b'*' if text == b"-1" => Value::Nil,
        b'$' | b'=' | b'!' => {
            let size = count(text)? + 2;
            let content = rest.get(..size).ok_or(NoValue::Partial)?;
            let whole = &bytes[..line.len() + size];
            let value = match (kind, content.strip_suffix(b"\r\n")) {
                (b'$', Some(content)) => Value::BulkString(content.to_vec()),
                (_, Some(_)) => rare(whole)?,
                (_, None) => return Err(NoValue::Nonsense),
            };
            return Ok((Item::Value(value), whole.len()));
        }
        b'*' | b'~' | b'>' => return Ok((Item::Collection(*kind, count(text)?), line.len())),
        b'%' => return Ok((Item::Collection(*kind, count(text)? * 2), line.len())),
        // A server may truncate the words that an error quotes in the middle of a character.
        b'-' => rare(String::from_utf8_lossy(line).as_bytes())?,
        _ => rare(line)?,
    };
    Ok((Item::Value(value), line.len()))
}

/// Returns the words of each of these commands.
pub(super) fn words_of(commands: &[u8]) -> Vec<Vec<Vec<u8>>> {
    let (mut commands, mut all) = (commands, Vec::<Vec<_>>::new());
    while let Ok((item, size)) = item(commands) {
        commands = &commands[size..];
        match (item, all.last_mut()) {
            (Item::Value(Value::BulkString(word)), Some(command)) => command.push(word),
            _ => all.push(Vec::new()),
        }
    }
    all
}

/// Parses a value of a rare kind with the `redis` crate.
fn rare(bytes: &[u8]) -> Result<Value, NoValue> {
    redis::parse_redis_value(bytes).map_err(|_| NoValue::Nonsense)
}

/// Parses a number of bytes or elements.
fn count(text: &[u8]) -> Result<usize, NoValue> {
    (number(text)?.try_into().ok())
        .filter(|count| *count <= LONGEST)
        .ok_or(NoValue::Nonsense)
}

fn number(text: &[u8]) -> Result<i64, NoValue> {
    utf8(text)?.parse().map_err(|_| NoValue::Nonsense)
}

fn utf8(text: &[u8]) -> Result<&str, NoValue> {
    std::str::from_utf8(text).map_err(|_| NoValue::Nonsense)
}

/// Makes a collection from its elements.
fn collect(kind: u8, elements: Vec<Value>) -> Result<Value, NoValue> {
    let mut rest = elements.into_iter();
    Ok(match kind {
        b'%' => {
            let mut pairs = Vec::with_capacity(rest.len() / 2);
            while let (Some(name), Some(value)) = (rest.next(), rest.next()) {
                pairs.push((name, value));
            }
            Value::Map(pairs)
        }
        b'>' => Value::Push {
            kind: push_kind(&rest.next().ok_or(NoValue::Nonsense)?)?,
            data: rest.collect(),
        },
        b'~' => Value::Set(rest.collect()),
        _ => Value::Array(rest.collect()),
    })
}

fn push_kind(name: &Value) -> Result<PushKind, NoValue> {
    let name = reply::text(name).ok_or(NoValue::Nonsense)?;
    Ok(match name {
        "message" => PushKind::Message,
        "smessage" => PushKind::SMessage,
        "subscribe" => PushKind::Subscribe,
        "ssubscribe" => PushKind::SSubscribe,
        "unsubscribe" => PushKind::Unsubscribe,
        "sunsubscribe" => PushKind::SUnsubscribe,
        other => PushKind::Other(other.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use std::task::Waker;

    use tokio::io::AsyncWriteExt;

    use super::*;

    const VALUES: [&str; 23] = [
        "+OK\r\n",
        "+PONG\r\n",
        "+\r\n",
        "-ERR unknown command\r\n",
        "-ERR two\nlines\r\n",
        "-MOVED 1234 127.0.0.1:6379\r\n",
        ":-12\r\n",
        "$-1\r\n",
        "$0\r\n\r\n",
        "$7\r\na\r\nb\r\nc\r\n",
        "*-1\r\n",
        "*0\r\n",
        "*3\r\n:1\r\n*2\r\n$1\r\na\r\n*0\r\n+b\r\n",
        "_\r\n",
        "#t\r\n",
        ",1.5\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
        "=5\r\ntxt:a\r\n",
        "!7\r\nERR a b\r\n",
        "~2\r\n:1\r\n:2\r\n",
        "%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n",
        ">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nb\r\n",
        ">2\r\n+other\r\n:1\r\n",
    ];

    /// Feeds the pieces one after another, and reads all values that are complete after each.
    fn read(pieces: &[&[u8]]) -> Vec<Result<Value, NoReply>> {
        let (mut incoming, mut values) = (Incoming::default(), Vec::new());
        for piece in pieces {
            let (mut server, mut client) = tokio::io::duplex(LONGEST_LINE * 4);
            let mut context = Context::from_waker(Waker::noop());
            let written = pin_poll(server.write_all(piece), &mut context);
            assert!(matches!(written, Poll::Ready(Ok(()))));
            while let Poll::Ready(value) = incoming.poll_value(Pin::new(&mut client), &mut context)
            {
                let has_ended = value.is_err();
                values.push(value);
                if has_ended {
                    return values;
                }
            }
        }
        values
    }

    fn pin_poll<F: Future>(future: F, context: &mut Context<'_>) -> Poll<F::Output> {
        std::pin::pin!(future).poll(context)
    }

    fn whole(values: Vec<Result<Value, NoReply>>) -> Vec<Value> {
        let values = values.into_iter().collect::<Result<_, _>>();
        values.expect("the protocol")
    }

    #[test]
    fn each_value_equals_that_of_the_crate_redis_wherever_it_is_split() {
        for text in VALUES {
            let expected = redis::parse_redis_value(text.as_bytes()).expect(text);
            for cut in 0..text.len() {
                let (front, back) = text.as_bytes().split_at(cut);
                assert_eq!(
                    whole(read(&[front, back])),
                    std::slice::from_ref(&expected),
                    "{text:?} {cut}"
                );
            }
        }
    }

    #[test]
    fn values_that_arrive_together_are_read_separately() {
        let expected = VALUES.map(|text| redis::parse_redis_value(text.as_bytes()).expect(text));
        assert_eq!(whole(read(&[VALUES.concat().as_bytes()])), expected);
    }

    #[test]
    fn a_value_may_exceed_the_buffer_and_the_next_one_is_still_read() {
        let long = format!("${}\r\n{}\r\n", ROOM * 5, "x".repeat(ROOM * 5));
        let both = format!("{long}:1\r\n");
        for size in [1, 100, ROOM - 1, ROOM, both.len()] {
            let pieces: Vec<_> = both.as_bytes().chunks(size).collect();
            let read = whole(read(&pieces));
            assert_eq!(read.len(), 2, "{size}");
            assert_eq!(read[0], Value::BulkString(vec![b'x'; ROOM * 5]));
            assert_eq!(read[1], Value::Int(1));
        }
    }

    #[test]
    fn bytes_that_are_not_the_protocol_are_refused_without_waiting_for_more() {
        let endless = "+".repeat(LONGEST_LINE + 1);
        let deep = "*1\r\n".repeat(DEEPEST + 1);
        let refused = [
            "HTTP/1.1 400 Bad Request\r\n",
            "\r\n",
            ":\r\n",
            ":1x\r\n",
            "$-2\r\n",
            "$1\r\nab\r\n",
            "$99999999999999999999\r\n",
            "$67108865\r\n",
            "*67108865\r\n",
            "*-2\r\n",
            ">0\r\n",
            ">1\r\n:1\r\n",
            &endless,
            &deep,
        ];
        for text in refused {
            let read = read(&[text.as_bytes()]);
            assert!(
                matches!(&read[..], [Err(NoReply::Nonsense)]),
                "{text:.40?}: {read:?}"
            );
        }
    }

    #[test]
    fn an_error_that_is_cut_within_a_character_is_read() {
        let read = whole(read(&[b"-ERR unknown command '\xc3', with\r\n"]));
        assert!(matches!(&read[..], [Value::ServerError(error)] if error.code() == "ERR"));
    }

    #[test]
    fn an_endless_series_of_small_values_is_refused() {
        let many = "_\r\n".repeat(1 << 16);
        let mut pieces = vec![&b"*67108864\r\n"[..]];
        pieces.extend(std::iter::repeat_n(many.as_bytes(), 20));
        assert!(matches!(&read(&pieces)[..], [Err(NoReply::Nonsense)]));
    }

    #[test]
    fn a_collection_that_exceeds_the_longest_reply_is_refused() {
        let piece = format!("${}\r\n{}\r\n", LONGEST_LINE, "x".repeat(LONGEST_LINE));
        let mut pieces = vec![&b"*2000\r\n"[..]];
        pieces.extend(std::iter::repeat_n(
            piece.as_bytes(),
            LONGEST / LONGEST_LINE,
        ));
        assert!(matches!(&read(&pieces)[..], [Err(NoReply::Nonsense)]));
    }

    #[test]
    fn a_stream_that_ends_inside_a_value_differs_from_one_that_ends_after_it() {
        for (text, is_cut) in [
            (":1\r\n", false),
            (":1\r\n:", true),
            (":1\r\n*2\r\n:1\r\n", true),
        ] {
            let mut stream = text.as_bytes();
            let (mut incoming, mut context) =
                (Incoming::default(), Context::from_waker(Waker::noop()));
            let mut next = || incoming.poll_value(Pin::new(&mut stream), &mut context);
            assert!(matches!(next(), Poll::Ready(Ok(Value::Int(1)))));
            match next() {
                Poll::Ready(Err(NoReply::Cut(_))) => assert!(is_cut, "{text:?}"),
                Poll::Ready(Err(NoReply::Broken(_))) => assert!(!is_cut, "{text:?}"),
                other => panic!("{text:?}: {other:?}"),
            }
        }
    }
}
