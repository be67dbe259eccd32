//! The header by which a client marks a request as a repetition.

use axum_core::{body::Body, extract::FromRequestParts, response::Response};
use http::{HeaderMap, request::Parts};

use crate::integrations::problem::Problem;

const NAME: &str = "idempotency-key";

/// The maximum number of characters in a key.
const LONGEST: usize = 255;

const NO_KEY: Problem = Problem {
    status: 400,
    detail: "send the header Idempotency-Key once, with 1 to 255 visible ASCII characters, such as a UUID: a new one for each \
             request, and the same one for each repeat of it",
    retry_after: None,
};

/// The header `Idempotency-Key` of a request, as an extractor of axum.
///
/// A client sends the same key again when it repeats a request. The syntax is that of the IETF's draft on this header: a
/// text between quotes, with a backslash before each quote or backslash in it. Since many clients omit the quotes, a text
/// without them is also accepted, and makes the same key. A key has 1 to 255 visible ASCII characters. Spaces are allowed
/// only between quotes.
///
/// Clients choose their keys, and two clients may choose the same one. Therefore put the caller's id into the key of
/// [`run_once`](crate::manager::LockManager::run_once), or one client may get the response of another.
///
/// # Errors
///
/// The response is 400 if the header is missing, occurs twice, or is empty, too long or malformed. Its body is a problem
/// document (RFC 9457) that says what to send.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use axum_core::response::{IntoResponse, Response};
/// use lock_core::{IdempotencyKey, LockError, LockManager, OnceOptions, key};
///
/// const DAY: Duration = Duration::from_secs(24 * 60 * 60);
///
/// async fn charge(
///     locks: LockManager, // `State` of axum
///     user_id: u64, // from the session
///     IdempotencyKey(key): IdempotencyKey,
/// ) -> Result<Response, LockError> {
///     let key = key!("charge:{user_id}:{key}");
///     let body = |_lease| async { "charged".into_response() };
///     locks.run_once(key, OnceOptions::keep(DAY), body).await
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdempotencyKey(pub String);

impl<S: Sync> FromRequestParts<S> for IdempotencyKey {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Response> {
        let key = key_of(&parts.headers).map(Self);
        key.ok_or_else(|| NO_KEY.response().map(Body::from))
    }
}

fn key_of(headers: &HeaderMap) -> Option<String> {
    let mut values = headers.get_all(NAME).iter();
    let (Some(value), None) = (values.next(), values.next()) else {
        return None;
    };
    let text = value.to_str().ok()?;
    let key = match text.strip_prefix('"') {
        Some(quoted) => unescaped(quoted.strip_suffix('"')?)?,
        None if text.contains(|char: char| !char.is_ascii_graphic() || char == '"') => return None,
        None => text.to_owned(),
    };
    (1..=LONGEST).contains(&key.len()).then_some(key)
}

/// Returns the text of an sf-string (RFC 8941), without its quotes.
fn unescaped(quoted: &str) -> Option<String> {
    let mut key = String::new();
    let mut chars = quoted.chars();
    while let Some(char) = chars.next() {
        key.push(match char {
            '\\' => chars.next().filter(|escaped| "\"\\".contains(*escaped))?,
            '"' => return None,
            ' '..='~' => char,
            _ => return None,
        });
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;
    use proptest::prelude::*;

    fn read(values: &[&[u8]]) -> Option<String> {
        let mut headers = HeaderMap::new();
        for value in values {
            let value = HeaderValue::from_bytes(value).expect("a value");
            headers.append(NAME, value);
        }
        key_of(&headers)
    }

    #[test]
    fn a_key_may_be_sent_with_or_without_quotes() {
        for (sent, key) in [
            ("8e03978e-40d5-43dd-bc93-6894a57f9324", None),
            (r#""8e03978e""#, Some("8e03978e")),
            (r#""a b""#, Some("a b")),
            (r#""a\"b\\c""#, Some(r#"a"b\c"#)),
            (r"a\b,c;d=e%3A", None),
            (&"x".repeat(255), None),
            (
                &format!("\"{}\"", r"\\".repeat(255)),
                Some(&r"\".repeat(255)),
            ),
        ] {
            let expected = key.unwrap_or(sent);
            assert_eq!(read(&[sent.as_bytes()]).as_deref(), Some(expected));
        }
    }

    #[test]
    fn malformed_keys_are_refused() {
        for sent in [
            "",
            r#""""#,
            r#"""#,
            "a b",
            "a\tb",
            " a",
            r#""a"#,
            r#"a""#,
            r#""a"b""#,
            r#""a\""#,
            r#""a\b""#,
            "\"a\tb\"",
            r#""a", "b""#,
            r#""a";b=c"#,
            "é",
            r#""é""#,
            &"x".repeat(256),
            &format!("\"{}\"", "x".repeat(256)),
        ] {
            assert_eq!(read(&[sent.as_bytes()]), None, "{sent}");
        }
        assert_eq!(read(&[]), None);
        assert_eq!(read(&[b"a", b"a"]), None, "the header occurs twice");
        assert_eq!(read(&[b"\xff"]), None);
    }

    #[test]
    fn the_response_says_what_to_send() {
        let response = NO_KEY.response();
        assert_eq!(response.status(), 400);
        let body = response.body();
        assert!(
            body.contains("send the header Idempotency-Key once"),
            "{body}"
        );
    }

    proptest! {
        #[test]
        fn no_value_causes_a_panic_and_every_text_can_be_quoted(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            text in "[ -~]{1,255}",
        ) {
            if HeaderValue::from_bytes(&bytes).is_ok() {
                read(&[&bytes]);
            }
            let quoted = format!("\"{}\"", text.replace('\\', r"\\").replace('"', "\\\""));
            prop_assert_eq!(read(&[quoted.as_bytes()]), Some(text));
        }
    }
}
