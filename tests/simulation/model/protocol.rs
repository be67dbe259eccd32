//! Replies in the Redis protocol.

/// The reply to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Status(&'static str),
    /// A code and details, as in `WRONGTYPE Operation against …`.
    Error(String),
    Int(i64),
    Bulk(Vec<u8>),
    Nil,
    Array(Vec<Self>),
    /// Pairs, which are an array in RESP2.
    Map(Vec<(Self, Self)>),
    /// A message, or the confirmation of a subscription.
    Push(Vec<Self>),
}

impl Reply {
    pub(crate) fn text(text: &str) -> Self {
        Self::Bulk(text.into())
    }

    pub(crate) fn error(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }

    pub(crate) fn write(&self, out: &mut Vec<u8>, resp3: bool) {
        match self {
            Self::Status(text) => line(out, '+', text),
            Self::Error(text) => line(out, '-', &text.replace(['\r', '\n'], " ")),
            Self::Int(number) => line(out, ':', &number.to_string()),
            Self::Bulk(bytes) => {
                line(out, '$', &bytes.len().to_string());
                out.extend_from_slice(bytes);
                out.extend_from_slice(b"\r\n");
            }
            Self::Nil if resp3 => out.extend_from_slice(b"_\r\n"),
            Self::Nil => out.extend_from_slice(b"$-1\r\n"),
            Self::Array(parts) => all(out, '*', parts, resp3),
            Self::Push(parts) => all(out, if resp3 { '>' } else { '*' }, parts, resp3),
            Self::Map(pairs) => {
                let (mark, count) = if resp3 {
                    ('%', pairs.len())
                } else {
                    ('*', pairs.len() * 2)
                };
                line(out, mark, &count.to_string());
                for (name, value) in pairs {
                    name.write(out, resp3);
                    value.write(out, resp3);
                }
            }
        }
    }
}

fn line(out: &mut Vec<u8>, mark: char, text: &str) {
    out.extend_from_slice(format!("{mark}{text}\r\n").as_bytes());
}

fn all(out: &mut Vec<u8>, mark: char, parts: &[Reply], resp3: bool) {
    line(out, mark, &parts.len().to_string());
    for part in parts {
        part.write(out, resp3);
    }
}
