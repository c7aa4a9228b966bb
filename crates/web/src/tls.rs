//! TLS of the page, and the answer to a client that comes without it.

use futures_util::future::{Either, select};
use std::io;
use std::io::Cursor;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_rustls::TlsAcceptor;
use weir_front::tls::{CertificateNames, PemFiles, TlsError, server_config};
use weir_machine::Clock;

/// First byte of a connection with TLS: a record with a handshake (RFC 8446, 5.1).
const HANDSHAKE: u8 = 22;
/// Answer to a request in clear text. It names no address: the client's request, which has it, is not read.
const NEEDS_TLS: &[u8] = b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n\
    this port takes TLS only: use https:// for it\n";

/// Certificate and key of a server.
#[derive(Clone)]
pub struct WebTls {
    acceptor: TlsAcceptor,
    names: CertificateNames,
}

impl WebTls {
    /// Reads a certificate (with those up to its authority) and its key, in PEM.
    ///
    /// # Errors
    /// If they cannot be read or used.
    pub fn new(certificate: &[u8], key: &[u8], clock: &Clock) -> Result<Self, TlsError> {
        let names = CertificateNames::of(certificate)?;
        let mut config = server_config(PemFiles { certificate, key, client_authority: None }, clock)?;
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(WebTls { acceptor: TlsAcceptor::from(Arc::new(config)), names })
    }

    pub(crate) fn names(&self) -> CertificateNames {
        self.names.clone()
    }

    /// Starts TLS with a client; `None` after the answer to one that sends clear text, or sends nothing.
    ///
    /// # Errors
    /// If the client is gone, does not agree, or takes longer than `limit`.
    pub(crate) async fn accept<S>(
        &self,
        mut stream: S,
        clock: &Clock,
        limit: Duration,
    ) -> io::Result<Option<impl AsyncRead + AsyncWrite + Unpin + Send + use<S>>>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send,
    {
        let handshake = async {
            let mut first = [0];
            if stream.read(&mut first).await? == 0 {
                return Ok(None);
            }
            if first != [HANDSHAKE] {
                stream.write_all(NEEDS_TLS).await?;
                stream.shutdown().await?;
                return Ok(None);
            }
            let (reader, writer) = tokio::io::split(stream);
            let stream = tokio::io::join(Cursor::new(first).chain(reader), writer);
            self.acceptor.accept(stream).await.map(Some)
        };
        match select(pin!(handshake), pin!(clock.sleep(limit))).await {
            Either::Left((done, _)) => done,
            Either::Right(_) => Err(io::ErrorKind::TimedOut.into()),
        }
    }
}
