//! Finds the end of a frame of the Redis protocol (RESP2 and RESP3), and the words of a request.

/// Bytes that are not the Redis protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed;

/// Returns the length of the first frame in `bytes`, or `None` while it is incomplete.
///
/// Streamed strings and aggregates (`$?`, `*?`) count as malformed: no server sends them.
pub(crate) fn frame_length(bytes: &[u8]) -> Result<Option<usize>, Malformed> {
    let mut end = 0;
    // The number of elements that are missing; an aggregate adds its own. A count instead of recursion keeps the stack small.
    let mut missing = 1_u64;
    while missing > 0 {
        let Some(line) = line(bytes, end) else {
            return Ok(None);
        };
        missing -= 1;
        let (&kind, rest) = line.split_first().ok_or(Malformed)?;
        end += line.len() + 2;
        match kind {
            b'+' | b'-' | b':' | b'_' | b'#' | b',' | b'(' => {}
            // A null string or array ends with its line.
            b'$' | b'*' if rest == b"-1" => {}
            b'$' | b'!' | b'=' => {
                let size = usize::try_from(number(rest)?).map_err(|_| Malformed)?;
                end = end.checked_add(size + 2).ok_or(Malformed)?;
            }
            b'*' | b'~' | b'>' => missing += number(rest)?,
            b'%' => missing += 2 * number(rest)?,
            // Attributes precede the value that they describe.
            b'|' => missing += 2 * number(rest)? + 1,
            _ => return Err(Malformed),
        }
        if end > bytes.len() {
            return Ok(None);
        }
    }
    Ok(Some(end))
}

/// Returns the words of a request, which is an array of strings.
pub(crate) fn words(frame: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
    let header = line(frame, 0).ok_or(Malformed)?;
    let count = number(header.strip_prefix(b"*").ok_or(Malformed)?)?;
    let mut at = header.len() + 2;
    let mut words = Vec::new();
    for _ in 0..count {
        let header = line(frame, at).ok_or(Malformed)?;
        let size = number(header.strip_prefix(b"$").ok_or(Malformed)?)?;
        at += header.len() + 2;
        let end = at + usize::try_from(size).map_err(|_| Malformed)?;
        words.push(frame.get(at..end).ok_or(Malformed)?.to_vec());
        at = end + 2;
    }
    Ok(words)
}

/// Removes the first frame from the buffer, if it is complete. Bytes of another protocol are returned as they were read.
pub(crate) fn take_frame(buffer: &mut Vec<u8>) -> Option<Vec<u8>> {
    let length = match frame_length(buffer) {
        Ok(length) => length?,
        Err(Malformed) => buffer.len(),
    };
    Some(buffer.drain(..length).collect())
}

/// Removes the first request from what a client sent, and returns its words; `None` while it is incomplete.
///
/// # Panics
///
/// If it is not a request.
pub fn take_request(input: &mut Vec<u8>) -> Option<Vec<Vec<u8>>> {
    let length = frame_length(input).expect("the Redis protocol")?;
    let frame: Vec<u8> = input.drain(..length).collect();
    Some(words(&frame).expect("an array of strings"))
}

/// Returns the whole frames at the beginning of what a server sent.
///
/// # Panics
///
/// If it is not the Redis protocol.
pub fn frames(mut bytes: &[u8]) -> Vec<&[u8]> {
    let mut frames = Vec::new();
    while let Some(length) = frame_length(bytes).expect("the Redis protocol") {
        let (frame, rest) = bytes.split_at(length);
        frames.push(frame);
        bytes = rest;
    }
    frames
}

/// The meaning of a frame for a client that waits for replies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// The reply to the oldest request without one.
    Reply,
    /// A message that answers no request.
    Push,
}

/// Tells replies from push messages, which RESP2 sends as plain arrays.
pub(crate) fn turn(frame: &[u8]) -> Turn {
    const MESSAGES: [&[u8]; 3] = [
        b"*3\r\n$7\r\nmessage\r\n",
        b"*4\r\n$8\r\npmessage\r\n",
        b"*3\r\n$8\r\nsmessage\r\n",
    ];
    let third = frame.split(|&byte| byte == b'\n').nth(2).unwrap_or(b"");
    if frame.first() == Some(&b'>') {
        // RESP3 confirms a subscription with one push for each channel, and sends no other reply.
        if third.ends_with(b"subscribe\r") {
            Turn::Reply
        } else {
            Turn::Push
        }
    } else if MESSAGES.iter().any(|message| frame.starts_with(message)) {
        Turn::Push
    } else {
        Turn::Reply
    }
}

/// Far larger than any string or aggregate of a server, so a sum of a few such lengths never overflows.
const LARGEST: u64 = 1 << 40;

fn number(digits: &[u8]) -> Result<u64, Malformed> {
    let text = std::str::from_utf8(digits).map_err(|_| Malformed)?;
    let number: u64 = text.parse().map_err(|_| Malformed)?;
    if number > LARGEST {
        return Err(Malformed);
    }
    Ok(number)
}

fn line(bytes: &[u8], start: usize) -> Option<&[u8]> {
    let rest = bytes.get(start..)?;
    let end = rest.windows(2).position(|pair| pair == b"\r\n")?;
    Some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_frame_ends_where_the_next_begins() {
        let frames: [&[u8]; 16] = [
            b"+OK\r\n",
            b"-ERR no\r\n",
            b":-7\r\n",
            b"$5\r\na\r\nbc\r\n",
            b"$0\r\n\r\n",
            b"$-1\r\n",
            b"*-1\r\n",
            b"*0\r\n",
            b"*2\r\n$1\r\na\r\n*1\r\n:1\r\n",
            b"_\r\n",
            b"#t\r\n",
            b",3.25\r\n",
            b"=7\r\ntxt:abc\r\n",
            b"%2\r\n+a\r\n:1\r\n+b\r\n*1\r\n_\r\n",
            b">2\r\n+message\r\n$1\r\nx\r\n",
            b"|1\r\n+ttl\r\n:9\r\n$1\r\nv\r\n",
        ];
        for frame in frames {
            let name = String::from_utf8_lossy(frame);
            let followed = [frame, b"+NEXT\r\n"].concat();
            assert_eq!(frame_length(&followed), Ok(Some(frame.len())), "{name:?}");
            for cut in 0..frame.len() {
                assert_eq!(
                    frame_length(&frame[..cut]),
                    Ok(None),
                    "{name:?} cut at {cut}"
                );
            }
        }
    }

    #[test]
    fn other_protocols_are_malformed() {
        let inputs: [&[u8]; 6] = [
            b"HTTP/1.1 400 Bad Request\r\n",
            b"$x\r\n",
            b"*?\r\n",
            b"$99999999999999999999\r\n",
            b"\r\n",
            b"*-2\r\n",
        ];
        for input in inputs {
            assert_eq!(frame_length(input), Err(Malformed), "{input:?}");
        }
    }

    #[test]
    fn messages_are_pushes_and_confirmations_are_replies_in_both_protocols() {
        assert_eq!(
            turn(b">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n"),
            Turn::Push
        );
        assert_eq!(
            turn(b"*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n"),
            Turn::Push
        );
        assert_eq!(
            turn(b">3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
            Turn::Reply
        );
        assert_eq!(
            turn(b"*3\r\n$9\r\nsubscribe\r\n$1\r\nc\r\n:1\r\n"),
            Turn::Reply
        );
        assert_eq!(turn(b":1\r\n"), Turn::Reply);
    }

    #[test]
    fn a_request_must_be_an_array_of_strings() {
        assert_eq!(words(b"PING\r\n"), Err(Malformed));
        assert_eq!(words(b"*1\r\n:1\r\n"), Err(Malformed));
    }
}
