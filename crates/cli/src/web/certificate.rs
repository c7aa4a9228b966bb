//! Certificate of the page: the one that the configuration names, or one that the daemon makes for itself.

use crate::directories;
use crate::failure::Failure;
use crate::state_file;
use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, SanType};
use std::fs;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use weir_daemon::CertificateNames;
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
/// Maximum number of addresses in an own certificate.
const MAX_ADDRESSES: usize = 64;
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
    let addresses = if ip.is_unspecified() { own_addresses() } else { vec![ip] };
    let names = fs::read(&files.certificate).ok().and_then(|text| CertificateNames::of(&text).ok());
    let has_all = names.is_some_and(|names| addresses.iter().all(|ip| names.include(&ip.to_string())));
    if age.is_none_or(|age| age > DAY * RENEWED_DAYS as u32) || !files.key.exists() || !has_all {
        let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let made = self_signed(host.trim(), &addresses, now);
        let (certificate, key) = made.map_err(|error| Failure::failed(error.to_string()))?;
        write(&files.key, &key, 0o600)?;
        write(&files.certificate, &certificate, 0o644)?;
        tracing::info!(
            "made {}, a certificate of this daemon's own: browsers ask once whether to trust it",
            files.certificate.display()
        );
    }
    Ok(files)
}

/// Addresses of this machine, those of loopback first; without addresses of single links, which differ by interface.
///
/// Source of IPv6's: Linux' `net/ipv6/addrconf.c` (`if6_seq_show`).
fn own_addresses() -> Vec<IpAddr> {
    let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let mut all = vec![IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv6Addr::LOCALHOST)];
    for ip in weir_web::local_v4(&text("/proc/net/fib_trie")).chain(local_v6(&text("/proc/net/if_inet6"))) {
        if !all.contains(&ip) && all.len() < MAX_ADDRESSES {
            all.push(ip);
        }
    }
    all
}

/// The first word of each line, in hexadecimal digits.
fn local_v6(text: &str) -> impl Iterator<Item = IpAddr> {
    text.lines().filter_map(|line| {
        let digits = line.split_whitespace().next().filter(|digits| digits.len() == 32)?;
        let address = Ipv6Addr::from(u128::from_str_radix(digits, 16).ok()?);
        (!address.is_unicast_link_local()).then_some(IpAddr::from(address))
    })
}

/// A certificate that no authority signed, for this host and its addresses, and its key, in PEM.
fn self_signed(host: &str, addresses: &[IpAddr], now: SystemTime) -> Result<(String, String), rcgen::Error> {
    let mut names = vec!["localhost".to_owned()];
    if !host.is_empty() {
        names.extend([host.to_owned(), format!("{host}.local")]);
    }
    let mut params = CertificateParams::new(names)?;
    params.subject_alt_names.extend(addresses.iter().map(|ip| SanType::IpAddress(*ip)));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, format!("Weir on {host}"));
    params.not_before = (now - DAY).into();
    params.not_after = (now + DAY * VALID_DAYS as u32).into();
    let key = KeyPair::generate()?;
    Ok((params.self_signed(&key)?.pem(), key.serialize_pem()))
}

/// Replaces a file of the state directory.
fn write(path: &Path, text: &str, mode: u32) -> Result<(), Failure> {
    let written = state_file::replace(path, text.as_bytes(), mode);
    written.map_err(|error| Failure::failed(format!("{}: {error}", path.display())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::UNIX_EPOCH;

    #[test]
    fn an_own_certificate_is_usable_and_named_after_the_host() {
        let now = UNIX_EPOCH + DAY * 20_000;
        let (certificate, key) = self_signed("nas", &["192.0.2.7".parse().unwrap()], now).unwrap();
        let names = CertificateNames::of(certificate.as_bytes()).unwrap();
        for name in ["nas", "nas.local", "localhost", "192.0.2.7"] {
            assert!(names.include(name), "{name}");
        }
        assert!(!names.include("192.0.2.8") && !names.include("other"));
        let clock = weir_linux::machine().unwrap().clock;
        assert!(WebTls::new(certificate.as_bytes(), key.as_bytes(), &clock).is_ok());
        let trie = "  +-- 0.0.0.0/0 3 0 5\n     |-- 127.0.0.0\n        /8 host LOCAL\n     |-- 192.0.2.9\n        /32 host LOCAL\n     |-- 192.0.2.255\n        /32 link BROADCAST\n";
        assert_eq!(weir_web::local_v4(trie).collect::<Vec<_>>(), ["192.0.2.9".parse::<IpAddr>().unwrap()]);
        let inet6 = "fd000000000000000000000000000002 04 40 00 82 eth0\nfe8000000000000000fc00fffe000001 04 40 20 80 eth0\nxyz\n";
        assert_eq!(local_v6(inet6).collect::<Vec<_>>(), ["fd00::2".parse::<IpAddr>().unwrap()]);
        assert!(own_addresses().contains(&IpAddr::from(Ipv4Addr::LOCALHOST)));
        let (_, other) = self_signed("nas", &["192.0.2.7".parse().unwrap()], now).unwrap();
        assert!(WebTls::new(certificate.as_bytes(), other.as_bytes(), &clock).is_err());
    }
}
