//! The servers' protocol: commands to bytes, and bytes to replies, in its second and third version.
//!
//! After the [specification](https://redis.io/docs/latest/develop/reference/protocol-spec/). A server may be hostile, or no
//! server of this kind at all: what it sends is bounded in size, number and depth before it is kept.

use std::{fmt, time::Duration};

/// The longest reply that is kept. The longest expected one has some kilobytes.
pub(crate) const LONGEST_FRAME: usize = 1 << 20;

/// The most parts of one reply, and how deep they may be nested.
const MOST_PARTS: usize = 1 << 14;
const DEEPEST: usize = 8;

/// A reply of a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Nil,
    Int(i64),
    BulkString(Vec<u8>),
    SimpleString(String),
    ServerError(ServerError),
    /// Also a set, and a map as its keys and values in turn.
    Array(Vec<Value>),
}

/// An error reply of a server.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ServerError(Box<str>);

impl ServerError {
    pub(crate) fn new(line: impl Into<Box<str>>) -> Self {
        Self(line.into())
    }

    /// Its first word.
    pub(crate) fn code(&self) -> &str {
        self.0.split(' ').next().unwrap_or_default()
    }

    /// All but its first word.
    pub(crate) fn details(&self) -> &str {
        self.0.split_once(' ').map_or("", |(_, details)| details)
    }
}

impl fmt::Debug for ServerError {
    /// Without the details, which may quote what was sent.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ServerError").field(&self.code()).finish()
    }
}

/// A frame that came from a server.
#[derive(Debug, PartialEq)]
pub(crate) enum Frame {
    /// The reply to the oldest command that has none.
    Answer(Value),
    /// A message that is no reply to a command.
    Push(Vec<Value>),
}

/// These bytes are not the protocol, or more than is kept.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Reads the frame at the start of `bytes`, and says how long it is. `None`: it is not complete yet.
pub(crate) fn parse(bytes: &[u8]) -> Result<Option<(Frame, usize)>, Malformed> {
    let mut reader = Reader {
        bytes,
        at: 0,
        parts: 0,
    };
    match reader.frame() {
        Ok(frame) => Ok(Some((frame, reader.at))),
        Err(Stop::Incomplete) if bytes.len() < LONGEST_FRAME => Ok(None),
        Err(Stop::Incomplete | Stop::Malformed) => Err(Malformed),
    }
}

enum Stop {
    Incomplete,
    Malformed,
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    parts: usize,
}

impl<'a> Reader<'a> {
    fn frame(&mut self) -> Result<Frame, Stop> {
        if self.bytes.first() == Some(&b'>') {
            self.at = 1;
            let count = self.length()?.ok_or(Stop::Malformed)?;
            return Ok(Frame::Push(self.values(count, DEEPEST)?));
        }
        Ok(Frame::Answer(self.value(DEEPEST)?))
    }

    fn value(&mut self, depth: usize) -> Result<Value, Stop> {
        let depth = depth.checked_sub(1).ok_or(Stop::Malformed)?;
        self.parts += 1;
        if self.parts > MOST_PARTS {
            return Err(Stop::Malformed);
        }
        let kind = *self.bytes.get(self.at).ok_or(Stop::Incomplete)?;
        self.at += 1;
        match kind {
            b':' => Ok(Value::Int(number(self.line()?)?)),
            b'$' | b'=' => self.bulk(|bytes| Value::BulkString(bytes.to_vec())),
            b'!' => self.bulk(|bytes| Value::ServerError(ServerError::new(text(bytes)))),
            b'+' | b',' | b'(' => Ok(Value::SimpleString(text(self.line()?))),
            b'-' => Ok(Value::ServerError(ServerError::new(text(self.line()?)))),
            b'#' => match self.line()? {
                b"t" => Ok(Value::Int(1)),
                b"f" => Ok(Value::Int(0)),
                _ => Err(Stop::Malformed),
            },
            b'_' => self.line().map(|_| Value::Nil),
            b'*' | b'~' => self.array(1, depth),
            b'%' => self.array(2, depth),
            b'|' => {
                // An attribute stands before the value it belongs to; it is skipped.
                self.array(2, depth)?;
                self.value(depth)
            }
            _ => Err(Stop::Malformed),
        }
    }

    fn array(&mut self, values_each: usize, depth: usize) -> Result<Value, Stop> {
        match self.length()? {
            Some(count) => Ok(Value::Array(self.values(count * values_each, depth)?)),
            None => Ok(Value::Nil),
        }
    }

    fn values(&mut self, count: usize, depth: usize) -> Result<Vec<Value>, Stop> {
        // The count comes from the server: memory is allocated only for parts that have come.
        let mut values = Vec::with_capacity(count.min(8));
        for _ in 0..count {
            values.push(self.value(depth)?);
        }
        Ok(values)
    }

    fn bulk(&mut self, make: impl FnOnce(&[u8]) -> Value) -> Result<Value, Stop> {
        let Some(length) = self.length()? else {
            return Ok(Value::Nil);
        };
        let end = self.at + length;
        let (Some(bytes), Some(after)) =
            (self.bytes.get(self.at..end), self.bytes.get(end..end + 2))
        else {
            return Err(Stop::Incomplete);
        };
        if after != b"\r\n" {
            return Err(Stop::Malformed);
        }
        self.at = end + 2;
        Ok(make(bytes))
    }

    /// A length; `None` stands for a missing value.
    fn length(&mut self) -> Result<Option<usize>, Stop> {
        match number(self.line()?)? {
            -1 => Ok(None),
            length => match usize::try_from(length) {
                Ok(length) if length <= LONGEST_FRAME => Ok(Some(length)),
                _ => Err(Stop::Malformed),
            },
        }
    }

    fn line(&mut self) -> Result<&'a [u8], Stop> {
        let rest = &self.bytes[self.at..];
        let end = rest
            .iter()
            .position(|byte| *byte == b'\r')
            .ok_or(Stop::Incomplete)?;
        match rest.get(end + 1) {
            Some(b'\n') => {
                self.at += end + 2;
                Ok(&rest[..end])
            }
            Some(_) => Err(Stop::Malformed),
            None => Err(Stop::Incomplete),
        }
    }
}

fn number(line: &[u8]) -> Result<i64, Stop> {
    std::str::from_utf8(line)
        .ok()
        .and_then(|line| line.parse().ok())
        .ok_or(Stop::Malformed)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A word of a command.
#[derive(Clone, Copy)]
pub(crate) enum Arg<'a> {
    Text(&'a str),
    /// One word of two pieces.
    Joined(&'a str, &'a str),
    /// One word of a text and a number, with a space between.
    Numbered(&'a str, u64),
    Number(u64),
}

/// Appends a command, whose words are in several lists, to what is to be sent.
pub(crate) fn write_command(out: &mut Vec<u8>, words: &[&[Arg<'_>]]) {
    let count = words.iter().map(|words| words.len()).sum();
    write_length(out, b'*', count);
    for word in words.iter().copied().flatten() {
        match word {
            Arg::Text(text) => {
                write_length(out, b'$', text.len());
                out.extend_from_slice(text.as_bytes());
            }
            Arg::Joined(front, back) => {
                write_length(out, b'$', front.len() + back.len());
                out.extend_from_slice(front.as_bytes());
                out.extend_from_slice(back.as_bytes());
            }
            Arg::Numbered(text, number) => {
                let mut room = [0; 20];
                let digits = decimal(*number, &mut room);
                write_length(out, b'$', text.len() + 1 + digits.len());
                out.extend_from_slice(text.as_bytes());
                out.push(b' ');
                out.extend_from_slice(digits);
            }
            Arg::Number(number) => {
                let mut room = [0; 20];
                let digits = decimal(*number, &mut room);
                write_length(out, b'$', digits.len());
                out.extend_from_slice(digits);
            }
        }
        out.extend_from_slice(b"\r\n");
    }
}

fn write_length(out: &mut Vec<u8>, kind: u8, length: usize) {
    out.push(kind);
    out.extend_from_slice(decimal(length as u64, &mut [0; 20]));
    out.extend_from_slice(b"\r\n");
}

/// The digits of a number. Two dozen of them are in each command, so they are made by hand.
fn decimal(mut number: u64, room: &mut [u8; 20]) -> &[u8] {
    let mut at = room.len();
    while at > 0 {
        at -= 1;
        room[at] = b'0' + u8::try_from(number % 10).unwrap_or(0);
        number /= 10;
        if number == 0 {
            break;
        }
    }
    &room[at..]
}

/// Whole milliseconds, rounded up: an expiry that is a little late is safe, one of zero would delete the key.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn whole(bytes: &[u8]) -> Frame {
        match parse(bytes) {
            Ok(Some((frame, length))) if length == bytes.len() => frame,
            other => panic!("{}: {other:?}", bytes.escape_ascii()),
        }
    }

    fn simple(text: &str) -> Value {
        Value::SimpleString(text.to_owned())
    }

    fn bulk(text: &str) -> Value {
        Value::BulkString(text.into())
    }

    #[test]
    fn each_kind_of_answer_is_read() {
        let answers: [(&[u8], Value); 19] = [
            (b"+PONG\r\n", simple("PONG")),
            (b"+\r\n", simple("")),
            (b":-7\r\n", Value::Int(-7)),
            (b"$3\r\na\rb\r\n", bulk("a\rb")),
            (b"$0\r\n\r\n", bulk("")),
            (b"$-1\r\n", Value::Nil),
            (b"*-1\r\n", Value::Nil),
            (b"_\r\n", Value::Nil),
            (b"#t\r\n", Value::Int(1)),
            (b"#f\r\n", Value::Int(0)),
            (b",1.5\r\n", simple("1.5")),
            (
                b"(3492890328409238509324850943850943825024385\r\n",
                simple("3492890328409238509324850943850943825024385"),
            ),
            (b"=6\r\ntxt:ab\r\n", bulk("txt:ab")),
            (
                b"-ERR no\r\n",
                Value::ServerError(ServerError::new("ERR no")),
            ),
            (
                b"!6\r\nERR no\r\n",
                Value::ServerError(ServerError::new("ERR no")),
            ),
            (
                b"*2\r\n:1\r\n*1\r\n$-1\r\n",
                Value::Array(vec![Value::Int(1), Value::Array(vec![Value::Nil])]),
            ),
            (b"~1\r\n:1\r\n", Value::Array(vec![Value::Int(1)])),
            (
                b"%1\r\n+a\r\n:1\r\n",
                Value::Array(vec![simple("a"), Value::Int(1)]),
            ),
            (b"|1\r\n+a\r\n:1\r\n:5\r\n", Value::Int(5)),
        ];
        for (bytes, value) in answers {
            assert_eq!(whole(bytes), Frame::Answer(value));
        }
        let push = b">2\r\n+message\r\n:1\r\n";
        assert_eq!(
            whole(push),
            Frame::Push(vec![simple("message"), Value::Int(1)])
        );
    }

    #[test]
    fn what_is_not_complete_is_waited_for_and_what_follows_is_left() {
        let bytes = b"*3\r\n$2\r\nab\r\n:12\r\n%1\r\n+x\r\n-ERR no\r\n";
        for end in 0..bytes.len() {
            assert_eq!(parse(&bytes[..end]), Ok(None), "{end}");
        }
        let mut more = bytes.to_vec();
        more.extend_from_slice(b":1\r\n");
        assert_eq!(
            parse(&more).map(|parsed| parsed.map(|(_, length)| length)),
            Ok(Some(bytes.len()))
        );
    }

    #[test]
    fn what_is_no_answer_or_too_much_is_refused() {
        let deep = b"*1\r\n".repeat(DEEPEST + 1);
        let many = format!("*{}\r\n{}", MOST_PARTS + 1, ":1\r\n".repeat(MOST_PARTS + 1));
        let long = format!("${}\r\n", LONGEST_FRAME + 1);
        let endless = vec![b'+'; LONGEST_FRAME];
        let malformed: [&[u8]; 13] = [
            b"HTTP/1.1 400\r\n",
            b"\0\xff",
            b":x\r\n",
            b":\r\n",
            b":99999999999999999999\r\n",
            b"$-2\r\n",
            b"$1\r\nabc\r\n",
            b"+a\rb\r\n",
            b"#x\r\n",
            &deep,
            many.as_bytes(),
            long.as_bytes(),
            &endless,
        ];
        for bytes in malformed {
            let shown = bytes[..bytes.len().min(40)].escape_ascii();
            assert_eq!(parse(bytes), Err(Malformed), "{shown}");
        }
    }

    #[test]
    fn no_bytes_panic_or_take_more_than_there_are() {
        // Every byte of some valid replies, replaced by each byte that has a meaning.
        let honest: [&[u8]; 4] = [
            b"*3\r\n:1\r\n:1795151176455149\r\n:1\r\n",
            b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$3\r\n7 8\r\n",
            b"|1\r\n+a\r\n%1\r\n_\r\n#t\r\n!3\r\nERR\r\n",
            b"=7\r\ntxt:abc\r\n~1\r\n(12\r\n",
        ];
        for bytes in honest {
            for at in 0..bytes.len() {
                for byte in b"*$+-:,(#_!=%~>|\r\n0919\0\xff" {
                    let mut odd = bytes.to_vec();
                    odd[at] = *byte;
                    if let Ok(Some((_, length))) = parse(&odd) {
                        assert!(0 < length && length <= odd.len());
                    }
                }
            }
        }
    }

    proptest! {
        #[test]
        fn whatever_comes_is_read_alike_in_one_piece_and_in_two(
            bytes in prop::collection::vec(prop::sample::select(b"*$+-:,(#_!=%~>|\r\n0123abc".to_vec()), 0..48),
            cut in 0_usize..48,
        ) {
            let whole = parse(&bytes);
            let first = parse(&bytes[..cut.min(bytes.len())]);
            // A complete or malformed frame stays so, whatever follows it.
            match first {
                Ok(None) => {}
                known => prop_assert_eq!(known, whole),
            }
        }
    }

    #[test]
    fn a_command_is_its_words_with_their_lengths() {
        let mut out = b"before".to_vec();
        let words = [Arg::Text("SET"), Arg::Joined("queue:", "k\r\n")];
        write_command(
            &mut out,
            &[
                &words,
                &[
                    Arg::Numbered("c", 17),
                    Arg::Number(0),
                    Arg::Number(u64::MAX),
                ],
            ],
        );
        assert_eq!(
            String::from_utf8_lossy(&out),
            "before*5\r\n$3\r\nSET\r\n$9\r\nqueue:k\r\n\r\n$4\r\nc 17\r\n$1\r\n0\r\n$20\r\n18446744073709551615\r\n"
        );
    }

    #[test]
    fn an_error_has_a_code_and_details() {
        let error = ServerError::new("WRONGPASS invalid username-password pair");
        assert_eq!(error.code(), "WRONGPASS");
        assert_eq!(error.details(), "invalid username-password pair");
        assert_eq!(ServerError::new("ERR").details(), "");
        assert_eq!(format!("{error:?}"), "ServerError(\"WRONGPASS\")");
    }

    #[test]
    fn a_ttl_is_rounded_up_to_whole_milliseconds() {
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(100)), 100);
        assert_eq!(millis(Duration::from_micros(100_001)), 101);
    }
}
