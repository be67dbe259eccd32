//! Users and passwords for servers: fixed ones, or those of a provider that is asked for each connection.

use std::{any::Any, error::Error, fmt, future::Future, pin::Pin, time::Duration};

/// A user and a password for a server, and how long they are valid.
///
/// This type is itself a [`CredentialsProvider`], which always returns the same credentials.
///
/// # Examples
///
/// ```
/// # async fn f(locks: lock_core::LockManager) -> Result<(), lock_core::LockError> {
/// use lock_core::{LockManager, credentials::Credentials};
///
/// let password = std::env::var("REDIS_PASSWORD").expect("set by the deployment");
/// let locks = LockManager::builder()
///     .credentials(Credentials::new("locks", password))
///     .connect("redis://127.0.0.1")
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq)]
#[must_use = "credentials do nothing until they are given to a builder, or returned by a provider"]
pub struct Credentials {
    pub(crate) user: Option<String>,
    pub(crate) password: String,
    pub(crate) valid_for: Option<Duration>,
}

impl Credentials {
    /// Creates credentials from a user and a password or token; an empty name means the default user.
    pub fn new(user: impl Into<String>, password: impl Into<String>) -> Self {
        Self {
            user: Some(user.into()).filter(|user| !user.is_empty()),
            password: password.into(),
            valid_for: None,
        }
    }

    /// Sets how long the credentials are valid, counted from when the provider returns them.
    ///
    /// After four fifths of this time, an open connection is authenticated again, with the provider's next credentials. If
    /// the time is too short, the provider and the server are asked more often than necessary, but at most once a second.
    /// If it is too long, a server that enforces the expiry closes the connection, and a new one has to be made. Defaults
    /// to forever.
    pub fn valid_for(mut self, span: Duration) -> Self {
        self.valid_for = Some(span);
        self
    }
}

impl fmt::Debug for Credentials {
    /// Omits the password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials")
            .field("user", &self.user)
            .finish_non_exhaustive()
    }
}

/// The future of a [`CredentialsProvider`]'s reply.
pub type CredentialsFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Credentials, Box<dyn Error + Send + Sync>>> + Send + 'a>>;

/// Provides the credentials for each connection, such as passwords that rotate, or tokens of an identity service.
///
/// Implemented by closures that return a future of [`Credentials`], and by `Credentials` themselves, which never change.
///
/// The provider is asked for each connection, and again before the credentials of an open connection expire. It runs on the
/// manager's thread, inside a tokio runtime with timers and sockets, and must not block. Its time-out is that of a
/// connection (`connect_timeout`). If it does not reply in time, or replies with an error, the failure is logged, and the
/// provider is asked again. No lease is lost by this while the old connection works. Without a connection, locks are
/// [`LockError::Unavailable`](crate::error::LockError::Unavailable) until the provider replies.
///
/// A server may refuse the credentials, for example a token that has just expired. The provider is then asked again: up to
/// three times within a second, and with each later connection. In the meantime, acquires wait or return `Unavailable`.
/// With fixed [`Credentials`], a refusal while connecting is [`LockError::Invalid`](crate::error::LockError::Invalid).
///
/// # Examples
///
/// A provider of tokens from a cloud's identity service, such as AWS IAM or Azure Entra. The token comes from the service's
/// own crate, on which `lock-core` does not depend.
///
/// ```no_run
/// # async fn token_of_the_identity_service() -> Result<String, std::io::Error> { unimplemented!() }
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// use std::time::Duration;
/// use lock_core::{LockManager, credentials::Credentials};
///
/// let provider = || async {
///     let token = token_of_the_identity_service().await?;
///     Ok::<_, std::io::Error>(Credentials::new("my-service", token).valid_for(Duration::from_secs(15 * 60)))
/// };
/// let manager = LockManager::builder().credentials(provider).connect("rediss://cache.internal:6379").await?;
/// # drop(manager);
/// # Ok(())
/// # }
/// ```
pub trait CredentialsProvider: Any + Send + Sync {
    /// Returns the credentials for a connection that is being made, or the next ones for an open connection.
    ///
    /// # Errors
    ///
    /// Returns any error from the provider. It is logged, so it must not contain a secret.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped if it takes longer than `connect_timeout`, so it must be safe to cancel. The provider is then
    /// asked again.
    fn credentials(&self) -> CredentialsFuture<'_>;
}

impl CredentialsProvider for Credentials {
    fn credentials(&self) -> CredentialsFuture<'_> {
        Box::pin(async { Ok(self.clone()) })
    }
}

impl<P, F, E> CredentialsProvider for P
where
    P: Fn() -> F + Send + Sync + 'static,
    F: Future<Output = Result<Credentials, E>> + Send + 'static,
    E: Into<Box<dyn Error + Send + Sync>>,
{
    fn credentials(&self) -> CredentialsFuture<'_> {
        let reply = self();
        Box::pin(async move { reply.await.map_err(Into::into) })
    }
}

/// Returns `true` if the provider always returns the same credentials, which makes it useless to ask again after a refusal.
pub(crate) fn is_fixed(provider: &dyn CredentialsProvider) -> bool {
    (provider as &dyn Any).is::<Credentials>()
}

#[cfg(test)]
pub(crate) mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Returns the credentials of a provider that replies at its first poll.
    pub(crate) fn given(provider: &dyn CredentialsProvider) -> Credentials {
        let mut reply = provider.credentials();
        match reply.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(credentials)) => credentials,
            other => panic!("{other:?}"),
        }
    }
}
