//! TLS: certificates, and encrypted halves of a connection.
//!
//! ```text
//!   session ─▶ Reader, Writer ─▶ rustls ─▶ Reader, Writer of the connection: progress, deadlines ─▶ TCP
//! ```
//!
//! The halves of the connection stay below, so the deadlines of the front end count the bytes on the wire. TLS 1.2 and 1.3;
//! with a certificate authority for clients, only clients with a certificate of it are served.

use crate::handshake::TlsMode;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::WebPkiClientVerifier;
use rustls::time_provider::TimeProvider;
use rustls::{RootCertStore, ServerConfig};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use thiserror::Error;
use tokio_rustls::TlsAcceptor;
use weir_front::{ConnectionHandle, Reader, Writer};
use weir_machine::Clock;

/// Why certificates cannot be used.
#[derive(Debug, Error)]
pub enum TlsError {
    /// A file has no certificate, or a malformed one.
    #[error("{what}: {why}")]
    Pem {
        /// Which of the files.
        what: &'static str,
        /// The cause.
        why: String,
    },
    /// The certificate and the key do not fit together, or their kind is not supported.
    #[error("the certificate and its key: {0}")]
    Certificate(#[from] rustls::Error),
    /// The certificate authority cannot be used.
    #[error("the certificate authority of clients: {0}")]
    Authority(#[from] rustls::server::VerifierBuilderError),
}

/// Contents of the files of a configuration, in PEM.
#[derive(Clone, Copy)]
pub struct PemFiles<'a> {
    /// The certificate of the server, and those up to its authority.
    pub certificate: &'a [u8],
    /// The key of the certificate.
    pub key: &'a [u8],
    /// Authority that client certificates must be of; without one, clients need none.
    pub client_authority: Option<&'a [u8]>,
}

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

/// The machine's wall clock, by which certificates expire.
struct MachineTime(Clock);

impl fmt::Debug for MachineTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("MachineTime")
    }
}

impl TimeProvider for MachineTime {
    fn current_time(&self) -> Option<UnixTime> {
        self.0.wall().duration_since(UNIX_EPOCH).ok().map(UnixTime::since_unix_epoch)
    }
}

fn certificates(what: &'static str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let read = read.map_err(|error| TlsError::Pem { what, why: error.to_string() })?;
    if read.is_empty() {
        return Err(TlsError::Pem { what, why: "no certificate in PEM form".into() });
    }
    Ok(read)
}

impl Tls {
    /// Reads certificates and key. If `is_required`, clients without TLS are refused.
    ///
    /// # Errors
    /// If they cannot be read or used.
    pub fn new(files: PemFiles<'_>, is_required: bool, clock: &Clock) -> Result<Self, TlsError> {
        let chain = certificates("the certificate", files.certificate)?;
        let key = PrivateKeyDer::from_pem_slice(files.key)
            .map_err(|error| TlsError::Pem { what: "the key of the certificate", why: error.to_string() })?;
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let time = Arc::new(MachineTime(clock.clone()));
        let builder =
            ServerConfig::builder_with_details(provider.clone(), time).with_safe_default_protocol_versions()?;
        let builder = match files.client_authority {
            None => builder.with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in certificates("the certificate authority of clients", pem)? {
                    roots.add(certificate)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider).build()?;
                builder.with_client_cert_verifier(verifier)
            }
        };
        let config = builder.with_single_cert(chain, key)?;
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
