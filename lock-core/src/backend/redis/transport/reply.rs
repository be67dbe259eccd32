//! Readers for the parts of replies that differ between the two versions of the protocol, and between servers.

use redis::Value;

/// Returns the bytes of a string, whatever its type.
pub(crate) fn bytes(value: &Value) -> Option<&[u8]> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text.as_bytes()),
        _ => None,
    }
}

/// Returns the text of a string, if it is valid UTF-8.
pub(crate) fn text(value: &Value) -> Option<&str> {
    std::str::from_utf8(bytes(value)?).ok()
}

/// Reads a list of numbers.
pub(crate) fn numbers(value: &Value) -> Option<Vec<i64>> {
    match value {
        Value::Array(parts) => numbers_of(parts),
        _ => None,
    }
}

/// Reads the parts of a list, if all of them are numbers.
pub(crate) fn numbers_of(parts: &[Value]) -> Option<Vec<i64>> {
    let number = |part: &Value| match part {
        Value::Int(number) => Some(*number),
        _ => None,
    };
    parts.iter().map(number).collect()
}

/// Returns the text of a reply to INFO.
pub(crate) fn info(value: &Value) -> Option<String> {
    Some(String::from_utf8_lossy(bytes(value)?).into_owned())
}

/// Returns the value of a field in the text of a reply to INFO.
pub(crate) fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    let value = |line: &'a str| line.strip_prefix(name)?.strip_prefix(':');
    info.lines().find_map(value).map(str::trim)
}

/// Returns the value of a field of a map, or of a list in which fields and values alternate.
pub(crate) fn field<'a>(value: &'a Value, wanted: &str) -> Option<&'a Value> {
    let is_wanted = |name: &Value| bytes(name) == Some(wanted.as_bytes());
    match value {
        Value::Map(fields) => fields
            .iter()
            .find_map(|(name, value)| is_wanted(name).then_some(value)),
        Value::Array(words) => words.chunks(2).find_map(|pair| match pair {
            [name, value] => is_wanted(name).then_some(value),
            _ => None,
        }),
        _ => None,
    }
}

/// Parses the error that a server sends by this line.
#[cfg(test)]
pub(crate) fn error(line: &str) -> redis::ServerError {
    match redis::parse_redis_value(format!("-{line}\r\n").as_bytes()) {
        Ok(Value::ServerError(error)) => error,
        other => panic!("{line}: {other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_found_in_both_versions_of_the_protocol() {
        let word = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let map = Value::Map(vec![(word("a"), Value::Int(1)), (word("b"), Value::Int(2))]);
        let list = Value::Array(vec![word("a"), Value::Int(1), word("b"), Value::Int(2)]);
        for value in [&map, &list] {
            assert_eq!(field(value, "b"), Some(&Value::Int(2)));
            assert_eq!(field(value, "c"), None);
        }
        assert_eq!(field(&Value::Array(vec![word("a")]), "a"), None);
        assert_eq!(field(&Value::Nil, "a"), None);
    }
}
