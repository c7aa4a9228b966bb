//! Certificate of the page: the one that the configuration names, or one that the daemon makes for itself.

use crate::directories;
use crate::failure::Failure;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use std::fs::{self, File};
use std::io::{self, Write};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weir_machine::{Clock, Machine};
use weir_web::WebTls;

/// Name of the daemon's own certificate in the state directory.
const CERTIFICATE_FILE: &str = "web.crt";
/// Name of its key.
const KEY_FILE: &str = "web.key";
/// Days for which an own certificate is valid: systems of Apple accept no longer time.
const VALID_DAYS: u64 = 825;
/// Days after which it is made anew at the daemon's start.
const RENEWED_DAYS: u64 = VALID_DAYS - 60;
const DAY: Duration = Duration::from_secs(86_400);

/// Files of a certificate and its key, in PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The certificate, with those up to its authority.
    pub certificate: PathBuf,
    /// The key of the certificate.
    pub key: PathBuf,
}

/// Address of the page beyond its port, and its certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageAddress {
    /// Address to listen on.
    pub ip: IpAddr,
    /// The certificate that the configuration names.
    pub certificate: Option<CertificateFiles>,
}

impl PageAddress {
    /// TLS of the page; `None` on loopback without a certificate. Makes a certificate if the page is on a network and has none.
    ///
    /// # Errors
    /// If a file cannot be read, written or used.
    pub fn tls(&self, machine: &Machine) -> Result<Option<WebTls>, Failure> {
        let files = match &self.certificate {
            Some(files) => files.clone(),
            None if self.ip.is_loopback() => return Ok(None),
            None => own_files(self.ip, machine)?,
        };
        files.tls(&machine.clock).map(Some)
    }
}

impl CertificateFiles {
    /// Reads the files.
    ///
    /// # Errors
    /// If they cannot be read or used.
    pub fn tls(&self, clock: &Clock) -> Result<WebTls, Failure> {
        let read =
            |path: &Path| fs::read(path).map_err(|error| Failure::failed(format!("{}: {error}", path.display())));
        let tls = WebTls::new(&read(&self.certificate)?, &read(&self.key)?, clock);
        tls.map_err(|error| Failure::failed(format!("TLS of the page, {}: {error}", self.certificate.display())))
    }
}

/// The daemon's own certificate; made if there is none, or it ends soon.
fn own_files(ip: IpAddr, machine: &Machine) -> Result<CertificateFiles, Failure> {
    let in_state =
        |name| directories::in_state(name).ok_or_else(|| Failure::failed("there is no state directory: set HOME"));
    let files = CertificateFiles { certificate: in_state(CERTIFICATE_FILE)?, key: in_state(KEY_FILE)? };
    let now = machine.clock.wall();
    let made = fs::metadata(&files.certificate).and_then(|about| about.modified()).ok();
    let age = made.and_then(|made| now.duration_since(made).ok());
    if age.is_none_or(|age| age > DAY * RENEWED_DAYS as u32) || !files.key.exists() {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let (certificate, key) =
            self_signed(host.trim(), ip, now).map_err(|error| Failure::failed(error.to_string()))?;
        write(&files.key, &key, 0o600)?;
        write(&files.certificate, &certificate, 0o644)?;
        tracing::info!(
            "made {}, a certificate of this daemon's own: browsers ask once whether to trust it",
            files.certificate.display()
        );
    }
    Ok(files)
}

/// A certificate that no authority signed, for this host and address, and its key, in PEM.
fn self_signed(host: &str, ip: IpAddr, now: SystemTime) -> Result<(String, String), rcgen::Error> {
    let mut names = vec!["localhost".to_owned()];
    if !host.is_empty() {
        names.extend([host.to_owned(), format!("{host}.local")]);
    }
    let mut params = CertificateParams::new(names)?;
    if !ip.is_unspecified() {
        params.subject_alt_names.push(SanType::IpAddress(ip));
    }
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Weir on {host}"));
    params.not_before = (now - DAY).into();
    params.not_after = (now + DAY * VALID_DAYS as u32).into();
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Replaces a file at once, so that a crash leaves the old or the new one.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let new = path.with_extension("new");
    let written = || -> io::Result<()> {
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = File::options().create_new(true).write(true).mode(mode).open(&new)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, path)
    };
    written().map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn an_own_certificate_is_usable_and_named_after_the_host() {
        let now = UNIX_EPOCH + DAY * 20_000;
        let (certificate, key) = self_signed("nas", "192.0.2.7".parse().unwrap(), now).unwrap();
        let names = weir_daemon::CertificateNames::of(certificate.as_bytes()).unwrap();
        for name in ["nas", "nas.local", "localhost", "192.0.2.7"] {
            assert!(names.include(name), "{name}");
        }
        assert!(!names.include("192.0.2.8") && !names.include("other"));
        let clock = weir_linux::machine().unwrap().clock;
        assert!(WebTls::new(certificate.as_bytes(), key.as_bytes(), &clock).is_ok());
        let (_, other) = self_signed("nas", "192.0.2.7".parse().unwrap(), now).unwrap();
        assert!(WebTls::new(certificate.as_bytes(), other.as_bytes(), &clock).is_err());
    }
}
