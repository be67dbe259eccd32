//! The stored form of a response, and its conversion from and to the types of the `http` crate, which axum and poem use.
//!
//! The form resembles HTTP/1: a line with the version of the form and the status, a line for each header, an empty line,
//! and the body. A header's value never contains a line end.

use std::error::Error;

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use http_body::Body;
#[cfg(feature = "poem")]
use http_body_util::combinators::BoxBody;

#[cfg(feature = "poem")]
use crate::integrations::poem::response_of;
use crate::{
    integrations::held_body::Peeked,
    once::{LARGEST, Remember, Remembered},
};

/// The headers that describe the body, and are stored. All others, such as a cookie or a request id, belong to one request.
const KEPT: [&str; 8] = [
    "content-type",
    "content-language",
    "content-encoding",
    "location",
    "etag",
    "last-modified",
    "link",
    "cache-control",
];

const REPLAYED: &str = "idempotent-replayed";

const VERSION: &[u8] = b"1";

/// Remembers a response with a status below 400: the status, the body, and eight headers, which are `content-type`,
/// `content-language`, `content-encoding`, `location`, `etag`, `last-modified`, `link` and `cache-control`. No cookie is
/// therefore given to another caller. A replay has the header `Idempotent-Replayed: true`.
///
/// If the response is generated while it is sent, upgrades its connection (101), or has more than 64 KiB, only the fact
/// that it was a success is remembered.
#[cfg(feature = "axum")]
#[diagnostic::do_not_recommend]
impl Remember for axum_core::response::Response {
    fn remember(self) -> (Self, Remembered) {
        let (parts, body) = self.into_parts();
        let body = Peeked::of(body);
        let remembered = remembered(parts.status, &parts.headers, whole(&body));
        let body = axum_core::body::Body::new(body);
        (Self::from_parts(parts, body), remembered)
    }

    fn recall(bytes: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(recalled(bytes)?.map(axum_core::body::Body::from))
    }
}

/// Remembers a response with a status below 400: the status, the body, and eight headers, which are `content-type`,
/// `content-language`, `content-encoding`, `location`, `etag`, `last-modified`, `link` and `cache-control`. No cookie is
/// therefore given to another caller. A replay has the header `Idempotent-Replayed: true`.
///
/// If the response is generated while it is sent, upgrades its connection (101), or has more than 64 KiB, only the fact
/// that it was a success is remembered.
#[cfg(feature = "poem")]
#[diagnostic::do_not_recommend]
impl Remember for poem::Response {
    fn remember(self) -> (Self, Remembered) {
        let (parts, body) = self.into_parts();
        let body = Peeked::of(BoxBody::from(body));
        let remembered = remembered(parts.status, &parts.headers, whole(&body));
        (
            Self::from_parts(parts, BoxBody::new(body).into()),
            remembered,
        )
    }

    fn recall(bytes: &[u8]) -> Result<Self, Box<dyn Error + Send + Sync>> {
        Ok(response_of(recalled(bytes)?))
    }
}

/// Returns the bytes of the body if it is complete.
fn whole<B: Body<Data: AsRef<[u8]>>>(body: &Peeked<B>) -> Option<&[u8]> {
    match &body.first {
        Some(Ok(frame)) if body.is_complete => frame.data_ref().map(AsRef::as_ref),
        None if body.is_complete => Some(&[]),
        _ => None,
    }
}

/// Returns the part of a response that is remembered. `body` is `None` if the body is incomplete.
fn remembered(status: StatusCode, headers: &HeaderMap, body: Option<&[u8]>) -> Remembered {
    if status.as_u16() >= 400 {
        return Remembered::Nothing;
    }
    // A stored 101 would promise a later caller to upgrade its connection, which nothing would then serve.
    let is_upgrade = status == StatusCode::SWITCHING_PROTOCOLS;
    let Some(body) = body.filter(|body| body.len() <= LARGEST && !is_upgrade) else {
        return Remembered::Success;
    };
    let mut bytes = [VERSION, b" ", status.as_str().as_bytes(), b"\n"].concat();
    for name in KEPT {
        for value in headers.get_all(name) {
            for part in [name.as_bytes(), b":", value.as_bytes(), b"\n"] {
                bytes.extend(part);
            }
        }
    }
    bytes.push(b'\n');
    bytes.extend(body);
    Remembered::Bytes(bytes)
}

/// Rebuilds the response for a later caller.
fn recalled(bytes: &[u8]) -> Result<Response<Vec<u8>>, Box<dyn Error + Send + Sync>> {
    let (first, mut rest) = split(bytes, b'\n')?;
    let (VERSION, status) = split(first, b' ')? else {
        return Err(NO_RESPONSE.into());
    };
    let mut response = Response::new(Vec::new());
    *response.status_mut() = StatusCode::from_bytes(status)?;
    let headers = response.headers_mut();
    headers.insert(REPLAYED, HeaderValue::from_static("true"));
    loop {
        let (line, behind) = split(rest, b'\n')?;
        rest = behind;
        if line.is_empty() {
            *response.body_mut() = rest.to_vec();
            return Ok(response);
        }
        let (name, value) = split(line, b':')?;
        let name = HeaderName::from_bytes(name)?;
        headers.try_append(name, HeaderValue::from_bytes(value)?)?;
    }
}

const NO_RESPONSE: &str = "it is not a response, or was stored in another version";

/// Returns the bytes before and after the first mark.
fn split(bytes: &[u8], mark: u8) -> Result<(&[u8], &[u8]), &'static str> {
    let at = bytes.iter().position(|byte| *byte == mark);
    let (before, behind) = bytes.split_at(at.ok_or(NO_RESPONSE)?);
    Ok((before, &behind[1..]))
}

#[cfg(test)]
mod tests {
    use http::header::LINK;
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn replayed(status: StatusCode, headers: &HeaderMap, body: &[u8]) -> Response<Vec<u8>> {
        match remembered(status, headers, Some(body)) {
            Remembered::Bytes(bytes) => recalled(&bytes).expect("a stored response"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn only_headers_that_describe_the_body_are_kept_and_a_replay_is_marked() {
        let mut headers = HeaderMap::new();
        for name in KEPT.into_iter().chain(["set-cookie", "cookie", "date"]) {
            headers.insert(name, HeaderValue::from_static("a: value"));
        }
        let response = replayed(StatusCode::CREATED, &headers, b"");
        assert_eq!(response.status(), StatusCode::CREATED);
        assert_eq!(response.headers().len(), KEPT.len() + 1);
        assert_eq!(response.headers()[REPLAYED], "true");
        for name in KEPT {
            assert_eq!(response.headers()[name], "a: value");
        }
    }

    #[test]
    fn a_redirect_is_remembered_but_a_failure_is_not() {
        let of = |code| {
            let status = StatusCode::from_u16(code).expect("a status");
            remembered(status, &HeaderMap::new(), None)
        };
        assert_eq!(
            [399, 400].map(of),
            [Remembered::Success, Remembered::Nothing]
        );
        assert_eq!(of(599), Remembered::Nothing);
    }

    #[test]
    fn a_body_that_is_too_large_or_incomplete_is_remembered_as_a_success() {
        let of = |body| remembered(StatusCode::OK, &HeaderMap::new(), body);
        let body = vec![0; LARGEST + 1];
        assert_eq!(of(None), Remembered::Success);
        assert_eq!(of(Some(&body)), Remembered::Success);
        assert!(matches!(of(Some(&body[1..])), Remembered::Bytes(_)));
    }

    #[test]
    fn an_upgrade_of_a_connection_is_remembered_as_a_success() {
        let of = |status| remembered(status, &HeaderMap::new(), Some(b""));
        let upgrade = of(StatusCode::SWITCHING_PROTOCOLS);
        assert_eq!(upgrade, Remembered::Success);
        assert!(matches!(of(StatusCode::OK), Remembered::Bytes(_)));
    }

    #[test]
    fn malformed_bytes_are_an_error() {
        for bytes in [
            &b""[..],
            b"1 200",
            b"1 200\n",
            b"2 200\n\n",
            b"200\n\n",
            b"1 20\n\n",
            b"1 200\nno header\n\n",
            b"1 200\n:\n\n",
            b"1 200\na:\0\n\n",
            b"\"json\"",
        ] {
            assert!(recalled(bytes).is_err(), "{bytes:?}");
        }
        let too_many = (0..40_000).map(|number| format!("h{number}:\n"));
        let too_many = format!("1 200\n{}\n", too_many.collect::<String>());
        assert!(recalled(too_many.as_bytes()).is_err());
    }

    proptest! {
        #[test]
        fn a_response_is_read_as_it_was_written(
            code in 200_u16..400,
            values in vec("[ -~\u{80}-\u{ff}\t]{0,20}", 0..4),
            body: Vec<u8>,
        ) {
            let mut headers = HeaderMap::new();
            for value in &values {
                let value = HeaderValue::from_bytes(value.as_bytes()).expect("visible");
                headers.append(LINK, value);
            }
            let status = StatusCode::from_u16(code).expect("a status");
            let response = replayed(status, &headers, &body);
            prop_assert_eq!(response.status(), status);
            let links: Vec<_> = response.headers().get_all(LINK).iter().collect();
            let expected: Vec<_> = headers.get_all(LINK).iter().collect();
            prop_assert_eq!(links, expected);
            prop_assert_eq!(response.body(), &body);
        }

        #[test]
        fn no_bytes_cause_a_panic(
            begin in prop::sample::select(vec!["", "1 200\n", "1 200\nlink:"]),
            bytes: Vec<u8>,
        ) {
            recalled(&[begin.as_bytes(), &bytes].concat()).ok();
        }
    }
}
