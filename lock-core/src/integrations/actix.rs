//! The response to a failed lock in actix, and handlers that return `impl Responder`.

use std::{
    error::Error,
    pin::Pin,
    task::{Context, Poll},
};

use actix_web::{
    HttpRequest, HttpResponse, Responder, ResponseError,
    body::{BodySize, BoxBody, MessageBody},
    http::{
        Method, StatusCode,
        header::{CONTENT_TYPE, RETRY_AFTER},
    },
    web::{Bytes, Data},
};

use crate::{
    error::{FromLockError, LockError},
    guard::LockGuard,
    integrations::{
        kept_lock::warn_of_release, problem::Problem, response::SentLater, stream::Held,
    },
    key::LockKey,
    manager::{LockManager, default_manager::LockSource, run::Finished},
};

impl Problem {
    fn actix_status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).expect("each problem has a status code")
    }
}

/// Responds with 409 if the lock is busy, with 503 if it is lost or unavailable, with 400 if the key is too long, and with
/// 500 if the program has a mistake. The response has `Retry-After` if it is known when to retry, and a problem document
/// (RFC 9457) that does not name the key. Annotated functions can therefore return `actix_web::Result<T>`.
impl ResponseError for LockError {
    fn status_code(&self) -> StatusCode {
        Problem::of(self).actix_status()
    }

    fn error_response(&self) -> HttpResponse<BoxBody> {
        let problem = Problem::answering(self);
        let mut response = HttpResponse::build(problem.actix_status());
        response.insert_header((CONTENT_TYPE, Problem::MEDIA_TYPE));
        if let Some(seconds) = problem.retry_after_seconds() {
            response.insert_header((RETRY_AFTER, seconds));
        }
        response.body(problem.json())
    }
}

/// Lets annotated functions that handlers call return `Result<T, HttpResponse>`.
impl From<LockError> for HttpResponse {
    fn from(error: LockError) -> Self {
        error.error_response()
    }
}

/// Converts the failure to 409 if the lock is busy, to 503 if it is lost or unavailable, to 400 if the key is too long, and
/// to 500 if the program has a mistake. This is actix's own type, not that of the `http` crate.
impl From<LockError> for StatusCode {
    fn from(error: LockError) -> Self {
        Problem::answering(&error).actix_status()
    }
}

#[diagnostic::do_not_recommend]
impl FromLockError for HttpResponse {
    fn from_lock_error(error: LockError) -> Self {
        error.into()
    }
}

/// Converts the failure to a text for the client and the status, in the order that actix requires.
#[diagnostic::do_not_recommend]
impl FromLockError for (String, StatusCode) {
    fn from_lock_error(error: LockError) -> Self {
        let problem = Problem::answering(&error);
        (problem.detail.to_owned(), problem.actix_status())
    }
}

/// The return value of an annotated `-> impl Responder`: the responder of the body, or of a failed lock. It is not a
/// response yet, because a responder needs the request for that.
#[derive(Debug)]
pub enum Responding<R, F> {
    /// The responder of the body.
    Body(R),
    /// The responder of the body, with the guard, or with the key if the lock was released. If the response turns out to be
    /// a stream, the guard is kept until it has been sent, or if there is only a key, a warning is logged.
    Later(R, Result<LockGuard, LockKey>),
    /// The responder of a failed lock.
    Failed(F),
}

impl<R: Responder, F: Responder> Responder for Responding<R, F> {
    type Body = BoxBody;

    fn respond_to(self, request: &HttpRequest) -> HttpResponse {
        match self {
            Self::Body(responder) => responder.respond_to(request).map_into_boxed_body(),
            Self::Later(responder, lock) => {
                let response = responder.respond_to(request).map_into_boxed_body();
                // For `HEAD`, actix would read the whole body without sending it.
                if request.method() == Method::HEAD {
                    return held(response, None);
                }
                let (response, is_complete) = looked_at(response);
                match lock {
                    _ if is_complete => response,
                    Ok(guard) => held(response, Some(guard)),
                    Err(key) => {
                        warn_of_release(&key);
                        response
                    }
                }
            }
            Self::Failed(responder) => responder.respond_to(request).map_into_boxed_body(),
        }
    }
}

impl<R, F> SentLater for Responding<R, F> {
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>) {
        let Self::Body(responder) = self else {
            return (self, Some(lock.guard));
        };
        if lock.may_be_kept() {
            return (Self::Later(responder, Ok(lock.guard)), None);
        }
        let key = lock.guard.key().clone();
        (Self::Later(responder, Err(key)), Some(lock.guard))
    }
}

impl SentLater for HttpResponse {
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>) {
        let (response, is_complete) = looked_at(self);
        if is_complete {
            return (response, Some(lock.guard));
        }
        lock.until_end(response, |response, guard| held(response, Some(guard)))
    }
}

/// Returns the response unchanged, and `true` if its body is complete.
fn looked_at(response: HttpResponse) -> (HttpResponse, bool) {
    let (response, body) = response.into_parts();
    // An empty body is complete, and must not be wrapped in one that holds the lock, because actix drops it without
    // polling.
    if matches!(body.size(), BodySize::None | BodySize::Sized(0)) {
        return (response.set_body(body), true);
    }
    match body.try_into_bytes() {
        Ok(bytes) => (response.set_body(BoxBody::new(bytes)), true),
        Err(stream) => (response.set_body(stream), false),
    }
}

/// Makes the body keep the lock until it has ended. Without a guard, the body is dropped unread, and only its size remains.
fn held(response: HttpResponse, guard: Option<LockGuard>) -> HttpResponse {
    response.map_body(|_, body| {
        BoxBody::new(HeldMessage {
            size: body.size(),
            held: guard.map(|guard| Held::new(body, guard)),
        })
    })
}

/// Handles a response with a status, in the order that actix requires.
impl<R: SentLater> SentLater for (R, StatusCode) {
    fn until_sent(self, lock: Finished<'_>) -> (Self, Option<LockGuard>) {
        let (response, guard) = self.0.until_sent(lock);
        ((response, self.1), guard)
    }
}

/// The body of a response, which keeps a lock until the body has ended.
struct HeldMessage {
    /// The size of the whole body. It lets a client notice that the body ended early because the lease was lost.
    size: BodySize,
    /// `None` after the body has ended.
    held: Option<Held<BoxBody>>,
}

impl MessageBody for HeldMessage {
    type Error = Box<dyn Error>;

    fn size(&self) -> BodySize {
        self.size
    }

    fn poll_next(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Bytes, Self::Error>>> {
        let is_last = |piece: Option<&_>| !matches!(piece, Some(Ok(_)));
        Held::poll(&mut self.held, context, BoxBody::poll_next, is_last)
    }
}

/// Lets `locks = data` accept the application's shared state.
impl<T: LockSource + ?Sized> LockSource for Data<T> {
    fn lock_manager(&self) -> LockManager {
        (***self).lock_manager()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{error::KnownHolder, key::LockKey};

    #[test]
    fn every_conversion_to_a_type_of_actix_gives_a_failure_the_same_status() {
        let key = LockKey::new("secret-key");
        let busy = || LockError::busy(&key, None, KnownHolder::default());
        assert_eq!(StatusCode::from(busy()), StatusCode::CONFLICT);
        assert_eq!(busy().status_code(), StatusCode::CONFLICT);
        let response = HttpResponse::from(busy());
        assert_eq!(response.status(), StatusCode::CONFLICT);
        assert!(!response.headers().contains_key(RETRY_AFTER));
    }
}
