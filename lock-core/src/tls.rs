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

/// Configures which servers are trusted over TLS, and the certificate of this process, for `rediss://` and `valkeys://`
/// urls.
///
/// These urls need it only if the defaults do not fit. By default, the system's authorities are trusted, the server's
/// certificate must be for the host in the url, and this process has no certificate. The protocol is TLS 1.2 or 1.3.
/// Verification cannot be switched off, and there is no fallback to a connection without TLS. Certificates and keys are
/// passed as PEM in memory, so they can be stored anywhere.
///
/// Certificates are read once, when the manager connects: after they have been replaced, create another manager. If either
/// side rejects the other's certificate, the error is [`LockError::Invalid`], with the reason.
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
#[must_use = "a `Tls` does nothing until it is given to `LockManagerBuilder::tls`"]
pub struct Tls {
    /// The authorities as PEM. If there are none, those of the system are trusted.
    authorities: Vec<Vec<u8>>,
    /// The chain and the key of this process's certificate.
    client: Option<(Vec<u8>, Vec<u8>)>,
    server_name: Option<String>,
}

impl Tls {
    /// Creates a configuration with the defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the authorities in this PEM, one or more, instead of those of the system. May be called several times.
    ///
    /// With a private authority, only servers with a certificate that you signed are accepted. When the authority changes,
    /// the new one has to reach every process, so pass both the old and the new one during the change. Defaults to the
    /// system's authorities.
    pub fn authority(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.authorities.push(pem.into());
        self
    }

    /// Sends this certificate to servers that ask for one.
    ///
    /// The arguments are the PEM of the chain, beginning with the certificate of this process, and the PEM of its private
    /// key, which must be unencrypted PKCS #8, PKCS #1 or SEC 1. With a certificate, a stolen password alone gives no
    /// access, but no connection can be made after the certificate has expired. Defaults to no certificate.
    pub fn client_certificate(
        mut self,
        chain_pem: impl Into<Vec<u8>>,
        key_pem: impl Into<Vec<u8>>,
    ) -> Self {
        self.client = Some((chain_pem.into(), key_pem.into()));
        self
    }

    /// Expects every server's certificate to be for this name or IP address, by whatever address the server is reached.
    ///
    /// Use it for servers behind a tunnel, or behind an address that is not in their certificate. A certificate for this
    /// name is then accepted from every server, so a server with such a certificate can pose as any other. Defaults to the
    /// host in the url.
    pub fn server_name(mut self, name: impl Into<String>) -> Self {
        self.server_name = Some(name.into());
        self
    }

    /// Reads the certificates, the key and the name. Error messages quote only the name, because a key may have been passed
    /// by mistake instead of a certificate.
    pub(crate) fn read(&self) -> Result<Trust, LockError> {
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("ring supports TLS 1.2 and 1.3")
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
            // A certificate that cannot be read must not keep the others from being used.
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

/// Parses a host name or an IP address for which a certificate can be issued.
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
