//! Commands, as the crate `redis` takes them.

use std::{io::Write, time::Duration};

use redis::{Cmd, Pipeline, RedisWrite, ToRedisArgs};

/// A word of a command.
#[derive(Clone, Copy)]
pub(crate) enum Arg<'a> {
    Text(&'a str),
    Bytes(&'a [u8]),
    /// One that is written without a copy of it. It may be a secret.
    Written(&'a dyn WriteWord),
    /// One word of two pieces.
    Joined(&'a str, &'a str),
    /// One word: a text, two numbers, and what follows them, with spaces between them.
    Spaced(&'a str, [u64; 2], Last),
    Number(u64),
}

/// The end of a word with spaces.
#[derive(Clone, Copy)]
pub(crate) enum Last {
    Letter(char),
    Number(u16),
}

/// Something that is a word of a command.
pub(crate) trait WriteWord: Sync {
    /// Writes the word. Writing to memory does not fail.
    fn write_to(&self, word: &mut dyn Write);
}

/// For how many bytes of a word there is room from the start. Longer commands grow.
const USUAL_WORD: usize = 32;

/// Makes a command of words in several lists.
pub(crate) fn command(words: &[&[Arg<'_>]]) -> Cmd {
    let count = words.iter().map(|list| list.len()).sum();
    let mut command = Cmd::with_capacity(count, count * USUAL_WORD);
    for word in words.iter().copied().flatten() {
        match *word {
            Arg::Text(text) => command.write_arg(text.as_bytes()),
            Arg::Bytes(bytes) => command.write_arg(bytes),
            Arg::Written(word) => word.write_to(&mut command.writer_for_next_arg()),
            Arg::Number(number) => number.write_redis_args(&mut command),
            // Writing to memory does not fail.
            Arg::Joined(front, back) => {
                let mut word = command.writer_for_next_arg();
                drop(word.write_all(front.as_bytes()));
                drop(word.write_all(back.as_bytes()));
            }
            Arg::Spaced(text, [one, other], last) => {
                let mut word = command.writer_for_next_arg();
                drop(match last {
                    Last::Letter(letter) => write!(word, "{text} {one} {other} {letter}"),
                    Last::Number(number) => write!(word, "{text} {one} {other} {number}"),
                });
            }
        }
    }
    command
}

/// Commands that leave in one message, with one reply each. Never to be shown: its `Debug` prints secrets.
pub(crate) fn in_one_message(commands: impl IntoIterator<Item = Cmd>) -> Pipeline {
    let commands = commands.into_iter();
    let mut pipeline = Pipeline::with_capacity(commands.size_hint().1.unwrap_or_default());
    for command in commands {
        pipeline.add_command(command);
    }
    pipeline
}

/// Whole milliseconds, rounded up: an expiry that is a little late is safe, but an expiry of zero would delete the key.
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
        let packed = command(&[&words[..1], &words[1..]]).get_packed_command();
        let expected = "*5\r\n$3\r\nSET\r\n$4\r\na\r\nb\r\n$8\r\nc 7 8 12\r\n$7\r\nc 7 8 x\r\n$20\r\n18446744073709551615\r\n";
        assert_eq!(String::from_utf8_lossy(&packed), expected);
    }

    #[test]
    fn a_part_of_a_millisecond_is_a_whole_one() {
        assert_eq!(millis(Duration::ZERO), 0);
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(7)), 7);
    }
}
