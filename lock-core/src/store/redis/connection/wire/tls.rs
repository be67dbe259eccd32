//! TLS on a new stream, and what its errors mean.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll},
};

use rustls::{AlertDescription, CertificateError, Error};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::TcpStream,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use crate::tls::Trust;

/// Does the TLS handshake on a new stream. Its caller bounds the time.
///
/// # Errors
///
/// Of the kind `InvalidData` if a retry cannot succeed: the two do not accept each other, or the peer does not speak TLS.
///
/// # Cancel safety
///
/// Dropping the future closes the stream.
pub(crate) async fn shake_hands(
    stream: TcpStream,
    trust: &Trust,
    host: &str,
) -> io::Result<Explained> {
    let expected = trust
        .expected_at(host)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    let connector = TlsConnector::from(trust.config.clone());
    match connector.connect(expected, stream).await {
        Ok(stream) => Ok(Explained(stream)),
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "the server closed the connection while TLS was agreed on: is it a port for TLS?",
        )),
        Err(error) => Err(explained(error)),
    }
}

/// A stream through TLS whose errors say what to do.
pub(crate) struct Explained(TlsStream<TcpStream>);

impl AsyncRead for Explained {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = Pin::new(&mut self.0).poll_read(context, buffer);
        read.map_err(|error| match error.kind() {
            io::ErrorKind::UnexpectedEof => io::Error::new(
                io::ErrorKind::UnexpectedEof,
                "the connection was cut: it ended without the goodbye of TLS",
            ),
            _ => explained(error),
        })
    }
}

impl AsyncWrite for Explained {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}

/// With the fix in it, if TLS is the cause.
fn explained(error: io::Error) -> io::Error {
    let cause = error.get_ref();
    let Some(error) = cause.and_then(|cause| cause.downcast_ref::<Error>()) else {
        return error;
    };
    let kind = match error {
        // Only these alerts are known to be transient.
        Error::AlertReceived(AlertDescription::InternalError | AlertDescription::UserCanceled) => {
            io::ErrorKind::ConnectionAborted
        }
        _ => io::ErrorKind::InvalidData,
    };
    io::Error::new(kind, told(error))
}

fn told(error: &Error) -> String {
    match error {
        // The second one occurs if another authority has the same name: for example, if it was made anew.
        Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => {
            "its certificate was signed by nobody who is trusted here: if that is a private authority, give it by \
             `Tls::authority`"
                .to_owned()
        }
        Error::InvalidCertificate(why) => format!("its certificate is refused: {why}"),
        Error::AlertReceived(alert) if is_about_us(*alert) => {
            format!("it refuses our certificate, or that we show none (see `Tls::client_certificate`): {alert:?}")
        }
        Error::InvalidMessage(_) => {
            "what it sends is not TLS: is it a port for TLS? One without has a `redis://` url".to_owned()
        }
        other => format!("TLS failed: {other}"),
    }
}

/// The alerts of servers that do not accept a client's certificate: the last but one if it has none, in TLS 1.2, and the last one
/// if it is from another authority of the same name.
fn is_about_us(alert: AlertDescription) -> bool {
    matches!(
        alert,
        AlertDescription::CertificateRequired
            | AlertDescription::NoCertificate
            | AlertDescription::BadCertificate
            | AlertDescription::UnsupportedCertificate
            | AlertDescription::CertificateRevoked
            | AlertDescription::CertificateExpired
            | AlertDescription::CertificateUnknown
            | AlertDescription::UnknownCA
            | AlertDescription::AccessDenied
            | AlertDescription::HandshakeFailure
            | AlertDescription::DecryptError
    )
}
