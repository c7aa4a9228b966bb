//! TLS: certificates, and encrypted halves of a connection.
//!
//! ```text
//!   session ─▶ Reader, Writer ─▶ rustls ─▶ Reader, Writer of the connection: progress, deadlines ─▶ TCP
//! ```
//!
//! The halves of the connection stay below, so the deadlines of the front end count the bytes on the wire. TLS 1.2 and 1.3;
//! with a certificate authority for clients, only clients with a certificate of it are served.

use crate::handshake::TlsMode;
use std::fmt;
use std::io;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use weir_front::tls::{PemFiles, TlsError, server_config};
use weir_front::{ConnectionHandle, Reader, Writer};
use weir_machine::Clock;

/// TLS of a server.
#[derive(Clone)]
pub struct Tls {
    acceptor: TlsAcceptor,
    is_required: bool,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tls({:?})", self.mode())
    }
}

impl Tls {
    /// Reads certificates and key. If `is_required`, clients without TLS are refused.
    ///
    /// # Errors
    /// If they cannot be read or used.
    pub fn new(files: PemFiles<'_>, is_required: bool, clock: &Clock) -> Result<Self, TlsError> {
        let config = server_config(files, clock)?;
        Ok(Tls { acceptor: TlsAcceptor::from(Arc::new(config)), is_required })
    }

    /// Mode of the handshake.
    pub fn mode(&self) -> TlsMode {
        if self.is_required { TlsMode::Required } else { TlsMode::Allowed }
    }

    /// Starts TLS with a client, and returns the halves over it.
    ///
    /// # Errors
    /// If the client disconnects, or its certificate is not accepted.
    pub(crate) async fn accept(
        &self,
        reader: Reader,
        writer: Writer,
        handle: &ConnectionHandle,
    ) -> io::Result<(Reader, Writer)> {
        let stream = self.acceptor.accept(tokio::io::join(reader, writer)).await?;
        let (reader, writer) = tokio::io::split(stream);
        Ok(handle.layer(Box::new(reader), Box::new(writer)))
    }
}
