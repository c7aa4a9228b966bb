//! TLS of a server: its certificate, and the authority of its clients.

use rustls::client::verify_server_name;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::{ParsedCertificate, WebPkiClientVerifier};
use rustls::time_provider::TimeProvider;
use rustls::{RootCertStore, ServerConfig};
use std::fmt;
use std::sync::Arc;
use std::time::UNIX_EPOCH;
use thiserror::Error;
use weir_machine::Clock;

/// Error of certificates that cannot be used.
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

/// Settings of TLS 1.2 and 1.3 with these certificates.
///
/// # Errors
/// If they cannot be read or used.
pub fn server_config(files: PemFiles<'_>, clock: &Clock) -> Result<ServerConfig, TlsError> {
    let chain = certificates("the certificate", files.certificate)?;
    let key = PrivateKeyDer::from_pem_slice(files.key)
        .map_err(|error| TlsError::Pem { what: "the key of the certificate", why: error.to_string() })?;
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let time = Arc::new(MachineTime(clock.clone()));
    let builder = ServerConfig::builder_with_details(provider.clone(), time).with_safe_default_protocol_versions()?;
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
    Ok(builder.with_single_cert(chain, key)?)
}

/// Names that a certificate is valid for.
#[derive(Clone)]
pub struct CertificateNames(CertificateDer<'static>);

impl CertificateNames {
    /// The names of the first certificate of a file in PEM.
    ///
    /// # Errors
    /// If there is none, or it is malformed.
    pub fn of(pem: &[u8]) -> Result<Self, TlsError> {
        let mut read = certificates("the certificate", pem)?;
        let first = read.swap_remove(0);
        ParsedCertificate::try_from(&first)?;
        Ok(CertificateNames(first))
    }

    /// Whether a client that calls the server by this name accepts the certificate for it.
    pub fn include(&self, name: &str) -> bool {
        let parsed = ParsedCertificate::try_from(&self.0);
        let name = ServerName::try_from(name);
        parsed.ok().zip(name.ok()).is_some_and(|(parsed, name)| verify_server_name(&parsed, &name).is_ok())
    }
}
