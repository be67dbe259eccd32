//! TLS on a new stream, and the meaning of its errors.
//!
//! The TLS of the `redis` crate is not used: it accepts neither an expected server name nor a configuration of ours,
//! and any crate of the program can switch off its verification by a feature. Here, no setting switches verification
//! off, and nothing falls back to a plain connection.

use std::io;

use rustls::{AlertDescription, CertificateError, Error};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::{
    backend::redis::transport::socket::Socket,
    tls::{Trust, name_of},
};

/// Performs the TLS handshake on a new stream. The caller bounds the time.
///
/// # Errors
///
/// The error has the kind `InvalidData` if a retry cannot succeed: the two ends do not accept each other, or the peer does not
/// speak TLS.
///
/// # Cancel safety
///
/// Dropping the future closes the stream.
pub(crate) async fn shake_hands(
    stream: Socket,
    trust: &Trust,
    host: &str,
) -> io::Result<TlsStream<Socket>> {
    let expected = trust.server_name.clone().map_or_else(|| name_of(host), Ok);
    let expected = expected.map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))?;
    let connector = TlsConnector::from(trust.config.clone());
    let agreed = connector.connect(expected, stream).await;
    agreed.map_err(|error| match error.kind() {
        end @ io::ErrorKind::UnexpectedEof => {
            let why =
                "the server closed the connection during the TLS handshake: is it a port for TLS?";
            io::Error::new(end, why)
        }
        _ => explained(error),
    })
}

/// Adds the fix to an error of a stream, if TLS is the cause.
pub(super) fn explained(error: io::Error) -> io::Error {
    let cause = error.get_ref();
    let Some(cause) = cause.and_then(|cause| cause.downcast_ref::<Error>()) else {
        return error;
    };
    let mut kind = io::ErrorKind::InvalidData;
    let why = match cause {
        // `BadSignature` occurs if another authority has the same name: for example, after the authority was recreated.
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => {
            "its certificate is not signed by a trusted authority: if the authority is private, add it with `Tls::authority`"
                .to_owned()
        }
        Error::InvalidCertificate(why) => format!("its certificate is refused: {why}"),
        Error::AlertReceived(alert) if is_about_us(*alert) => {
            format!("it refuses the client's certificate, or requires one (see `Tls::client_certificate`): {alert:?}")
        }
        Error::InvalidMessage(_) => {
            "it sends bytes that are not TLS: is it a port for TLS? A port without TLS has a `redis://` url".to_owned()
        }
        other => {
            use AlertDescription::{InternalError, UserCanceled};
            // Only these alerts are known to be transient.
            if matches!(other, Error::AlertReceived(InternalError | UserCanceled)) {
                kind = io::ErrorKind::ConnectionAborted;
            }
            format!("TLS failed: {other}")
        }
    };
    io::Error::new(kind, why)
}

/// Returns `true` if a server sends this alert when it does not accept the client's certificate. In the order of their numbers in
/// RFC 8446 and 5246, these are `handshake_failure` (in TLS 1.2, if the client has no certificate), the six from `no_certificate`
/// to `certificate_unknown`, `unknown_ca`, `access_denied`, `decrypt_error` (for a certificate of another authority with the same
/// name), and `certificate_required`.
fn is_about_us(alert: AlertDescription) -> bool {
    matches!(u8::from(alert), 40 | 41..=46 | 48 | 49 | 51 | 116)
}

#[cfg(all(test, unix))]
mod tests {
    use std::sync::Arc;

    use rustls::{
        RootCertStore, ServerConfig, crypto::ring, pki_types::PrivateKeyDer,
        server::WebPkiClientVerifier,
    };
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        net::UnixStream,
    };
    use tokio_rustls::TlsAcceptor;

    use super::*;
    use crate::{backend::redis::transport::traffic::NoReply, tls::Tls};

    /// In TLS 1.3, our handshake has ended before the server checks our certificate, so its alert may arrive while we are
    /// writing.
    #[tokio::test]
    async fn the_alert_is_the_reason_even_if_a_write_after_it_failed() {
        let own = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("a name");
        let mut clients = RootCertStore::empty();
        clients.add(own.cert.der().clone()).expect("a certificate");
        let provider = Arc::new(ring::default_provider());
        let asks = WebPkiClientVerifier::builder_with_provider(clients.into(), provider.clone());
        let key = PrivateKeyDer::Pkcs8(own.signing_key.serialize_der().into());
        let server = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the defaults")
            .with_client_cert_verifier(asks.build().expect("one authority"))
            .with_single_cert(vec![own.cert.der().clone()], key)
            .expect("the key belongs to the certificate");
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let trust = Tls::new()
            .authority(own.cert.pem())
            .read()
            .expect("a certificate");
        let (ours, theirs) = tokio::join!(
            shake_hands(ours.into(), &trust, "localhost"),
            TlsAcceptor::from(Arc::new(server)).accept(theirs)
        );
        theirs.expect_err("there is no certificate");
        let mut ours = ours.expect("the refusal is not known yet");
        let written = ours.write_all(b"PING\r\n").await;
        written.expect("the reason is read first");
        let why = NoReply::of(ours.read_u8().await.expect_err("an alert came"));
        let NoReply::Unacceptable(why) = why else {
            panic!("{why:?}");
        };
        assert!(why.contains("refuses the client's certificate"), "{why}");
    }
}
