//! Certificates and trust: how a server and this process authenticate each other over TLS.

use std::{fmt, sync::Arc};

use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, pem::PemObject},
};

use crate::error::LockError;

const NO_AUTHORITIES: &str = "this system has no trusted certificate authorities: install them (on Debian, the package \
                             `ca-certificates`), or pass one to `Tls::authority`";

const NO_PEM: &str =
    "it is not a PEM certificate, or an unencrypted PEM private key in PKCS #8, PKCS #1 or SEC 1";

/// Configures which servers are trusted over TLS, and the certificate of this process, for `rediss://` and `valkeys://` urls.
///
/// Those urls need it only if the defaults do not fit. By default, the system's authorities are trusted, the server must be the
/// host in the url, and this process has no certificate. The protocol is TLS 1.2 or 1.3, with certificates that are verified.
/// The verification cannot be switched off, and there is no fallback to a connection without TLS. Everything is passed as PEM
/// in memory, wherever it is stored.
///
/// Certificates are read when the manager connects, and not again: after they have been replaced, create another manager. If
/// the server or this process does not accept the other's certificate, the error is [`LockError::Invalid`], with the reason.
///
/// # Examples
///
/// ```no_run
/// # async fn connect() -> Result<(), Box<dyn std::error::Error>> {
/// use lock_core::{LockManager, Tls};
///
/// let tls = Tls::new()
///     .authority(std::fs::read("/etc/redis/ca.pem")?)
///     .client_certificate(std::fs::read("/etc/redis/client.pem")?, std::fs::read("/etc/redis/client.key")?);
/// let manager = LockManager::builder().tls(tls).connect("rediss://redis.internal:6380").await?;
/// # drop(manager);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
#[must_use = "it does nothing until it is given to `LockManagerBuilder::tls`"]
pub struct Tls {
    /// The authorities as PEM. If empty, those of the system.
    authorities: Vec<Vec<u8>>,
    /// The chain and the key of this process's certificate.
    client: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
}

impl Tls {
    /// Starts with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in this PEM, one or more, instead of those of the system. May be called several times.
    ///
    /// Defaults to the system's authorities. A private authority admits only servers with a certificate that you signed. A new
    /// authority has to reach every process, so pass both the old and the new one during the change.
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(pem.into());
        self
    }

    /// Sends this certificate to servers that ask for one. Defaults to none.
    ///
    /// It takes the PEM of the chain, with the certificate of this process first, and the PEM of its private key. The key must
    /// not be encrypted, and is PKCS #8, PKCS #1 or SEC 1. With a certificate, a stolen password alone gives no access, but
    /// when the certificate expires, no connection can be made.
    pub fn client_certificate(
        mut self,
        chain_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.client = Some((chain_pem.into(), key_pem.into()));
        self
    }

    /// Expects every server's certificate to be for this name or IP address, whatever address the server is reached by.
    ///
    /// Defaults to the host in the url. It is for servers that are reached by an address that is not in their certificate, or
    /// through a tunnel. With it, a certificate for this name is accepted from every server.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Reads the certificates, the key and the name. Error messages quote only the name, because a key may have been passed in
    /// the place of a certificate.
    pub(crate) fn read(&self) -> Result<Trust, LockError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring has what TLS 1.2 and 1.3 need")
            .with_root_certificates(self.roots()?);
        let config = match &self.client {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates(chain, "the client certificate")?;
                let key = PrivateKeyDer::from_pem_slice(key);
                let key = key.map_err(|_| unusable("the client certificate's key", NO_PEM))?;
                let config = builder.with_client_auth_cert(chain, key);
                config.map_err(|error| unusable("the client certificate", error))?
            }
        };
        let server_name = self.server_name.as_deref().map(name_of).transpose();
        Ok(Trust {
            config: Arc::new(config),
            server_name: server_name.map_err(LockError::invalid)?,
        })
    }

    fn roots(&self) -> Result<RootCertStore, LockError> {
        let mut roots = RootCertStore::empty();
        for pem in &self.authorities {
            for certificate in certificates(pem, "the authority")? {
                let added = roots.add(certificate);
                added.map_err(|error| unusable("the authority", error))?;
            }
        }
        if self.authorities.is_empty() {
            // A certificate that cannot be read does not affect the others.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        if roots.is_empty() {
            return Err(LockError::invalid(NO_AUTHORITIES));
        }
        Ok(roots)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls")
            .field("authorities", &self.authorities.len())
            .field("client_certificate", &self.client.is_some())
            .field("server_name", &self.server_name)
            .finish()
    }
}

/// The contents of a [`Tls`], read and checked.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    pub(crate) config: Arc<ClientConfig>,
    /// Replaces the host in the url.
    pub(crate) server_name: Option<ServerName<'static>>,
}

/// Parses the name of a host for which a certificate can be valid.
pub(crate) fn name_of(host: &str) -> Result<ServerName<'static>, String> {
    ServerName::try_from(host.to_owned()).map_err(|_| {
        let host = host.escape_debug();
        format!("no certificate can be issued for `{host}`: write a host name or an IP address")
    })
}

fn certificates(pem: &[u8], what: &str) -> Result<Vec<CertificateDer<'static>>, LockError> {
    let read = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let read = read.ok().filter(|certificates| !certificates.is_empty());
    read.ok_or_else(|| unusable(what, NO_PEM))
}

fn unusable(what: &str, why: impl fmt::Display) -> LockError {
    LockError::invalid(format!("{what} cannot be used: {why}"))
}
