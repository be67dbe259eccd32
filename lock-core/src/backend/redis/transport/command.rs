//! Commands, encoded in the form that a server reads.
//!
//! Rejected: `Cmd` and `Pipeline` of the `redis` crate. They allocate for each command and copy each word twice, which
//! accounts for a quarter of the allocations of a free lock. A handle of the crate, for a user's own client, gets the
//! words of the commands encoded here.

use std::{fmt, io::Write, time::Duration};

use redis::{Cmd, Pipeline};

use crate::backend::redis::transport::incoming::words_of;

/// A word of a command.
#[derive(Clone, Copy)]
pub(crate) enum Arg<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    /// A word that is written without being copied. It may be a secret.
    Written(&'a dyn WriteWord),
    /// One word, joined from two pieces.
    Joined(&'a str, &'a str),
    /// One word: a string, two numbers, and a letter or a number, with spaces between them.
    Spaced(&'a str, [u64; 2], Last),
    Number(u64),
}

/// The end of a word with spaces.
#[derive(Clone, Copy)]
pub(crate) enum Last {
    Letter(char),
    Number(u16),
}

/// A value that can be written as a word of a command.
pub(crate) trait WriteWord: Sync {
    /// Writes the word. Writing to memory does not fail.
    fn write_to(&self, word: &mut dyn Write);
}

/// Commands that leave in one message, with one reply each.
#[derive(Clone, Default)]
pub(crate) struct Commands {
    bytes: Vec<u8>,
    count: usize,
}

impl fmt::Debug for Commands {
    /// Shows no words, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Commands(..)")
    }
}

/// The bytes initially allocated for each word. The buffer grows for longer ones.
const USUAL_WORD: usize = 32;

/// Makes a command from the words of several lists.
pub(crate) fn command(words: &[&[Arg<'_>]]) -> Commands {
    let count: usize = words.iter().map(|list| list.len()).sum();
    let mut command = Commands {
        bytes: Vec::with_capacity(count * USUAL_WORD),
        count: 0,
    };
    command.add(words);
    command
}

/// Joins commands into one message.
pub(crate) fn in_one_message(commands: impl IntoIterator<Item = Commands>) -> Commands {
    let mut commands = commands.into_iter();
    let mut message = commands.next().unwrap_or_default();
    for command in commands {
        message.append(&command);
    }
    message
}

impl Commands {
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Removes all commands, and retains the allocation unless it is larger than this.
    pub(super) fn clear(&mut self, most_room: usize) {
        if self.bytes.capacity() > most_room {
            self.bytes = Vec::new();
        }
        self.bytes.clear();
        self.count = 0;
    }

    /// Adds other commands.
    pub(crate) fn append(&mut self, other: &Self) {
        self.bytes.extend_from_slice(&other.bytes);
        self.count += other.count;
    }

    /// Adds a command made from the words of several lists.
    pub(crate) fn add(&mut self, words: &[&[Arg<'_>]]) {
        self.begin(words.iter().map(|list| list.len()).sum());
        for word in words.iter().copied().flatten() {
            self.word(*word);
        }
    }

    /// Begins a command of this many words, which are then added by [`word`](Self::word).
    pub(crate) fn begin(&mut self, words: usize) {
        self.header(b'*', words);
        self.count += 1;
    }

    /// Adds a word to the last command.
    pub(crate) fn word(&mut self, word: Arg<'_>) {
        let start = self.bytes.len();
        // Writing to memory does not fail.
        match word {
            Arg::Text(text) => return self.text(text.as_bytes()),
            Arg::Bytes(bytes) => return self.text(bytes),
            Arg::Number(number) => drop(write!(self.bytes, "{number}")),
            Arg::Written(word) => word.write_to(&mut self.bytes),
            Arg::Joined(front, back) => {
                self.header(b'$', front.len() + back.len());
                self.bytes.extend_from_slice(front.as_bytes());
                self.bytes.extend_from_slice(back.as_bytes());
                return self.bytes.extend_from_slice(b"\r\n");
            }
            Arg::Spaced(text, [one, other], Last::Letter(last)) => {
                drop(write!(self.bytes, "{text} {one} {other} {last}"));
            }
            Arg::Spaced(text, [one, other], Last::Number(last)) => {
                drop(write!(self.bytes, "{text} {one} {other} {last}"));
            }
        }
        // The length of the word is known only now, so its header is moved in front of it.
        let end = self.bytes.len();
        self.header(b'$', end - start);
        let header = self.bytes.len() - end;
        self.bytes[start..].rotate_right(header);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn text(&mut self, text: &[u8]) {
        self.header(b'$', text.len());
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn header(&mut self, kind: u8, mut number: usize) {
        // The digits of the largest number, the kind and the end of the line.
        let (mut line, mut start) = ([0; 23], 21);
        line[21..].copy_from_slice(b"\r\n");
        loop {
            start -= 1;
            line[start] = b"0123456789"[number % 10];
            number /= 10;
            if number == 0 {
                break;
            }
        }
        line[start - 1] = kind;
        self.bytes.extend_from_slice(&line[start - 1..]);
    }

    /// Returns the commands for a handle of the `redis` crate, which encodes them again.
    pub(super) fn to_pipeline(&self) -> Pipeline {
        let mut pipeline = Pipeline::with_capacity(self.count);
        for words in words_of(&self.bytes) {
            let mut command = Cmd::new();
            for word in words {
                command.arg(word);
            }
            pipeline.add_command(command);
        }
        pipeline
    }
}

/// Returns whole milliseconds, rounded up: an expiry that is a little late is safe, but an expiry of zero would delete the key.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_one_argument_whatever_is_in_it() {
        let words = [
            Arg::Text("SET"),
            Arg::Joined("a\r\n", "b"),
            Arg::Spaced("c", [7, 8], Last::Number(12)),
            Arg::Spaced("c", [7, 8], Last::Letter('x')),
            Arg::Number(u64::MAX),
        ];
        let command = command(&[&words[..1], &words[1..]]);
        let expected = "*5\r\n$3\r\nSET\r\n$4\r\na\r\nb\r\n$8\r\nc 7 8 12\r\n$7\r\nc 7 8 x\r\n$20\r\n18446744073709551615\r\n";
        assert_eq!(String::from_utf8_lossy(command.bytes()), expected);
    }

    #[test]
    fn a_handle_of_the_crate_redis_sends_the_same_bytes() {
        let large = "x".repeat(12_345);
        let commands = in_one_message([
            command(&[&[Arg::Text("PING")]]),
            command(&[&[Arg::Text("SET"), Arg::Text(&large), Arg::Text("")]]),
            command(&[&[Arg::Bytes(&[0, 255, 13, 10]), Arg::Number(0)]]),
        ]);
        let pipeline = commands.to_pipeline();
        assert_eq!((commands.len(), pipeline.len()), (3, 3));
        assert!(pipeline.get_packed_pipeline() == commands.bytes());
    }

    #[test]
    fn a_fraction_of_a_millisecond_is_rounded_up() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(7)), 7);
    }
}
