//! The origin of the page: its scheme, and the names by which a browser may reach it.

use std::net::IpAddr;
use weir_front::tls::CertificateNames;

/// Scheme and names of a server.
pub(crate) struct Origin {
    /// Names of the certificate; `None` without TLS.
    names: Option<CertificateNames>,
}

impl Origin {
    pub(crate) fn new(names: Option<CertificateNames>) -> Self {
        Origin { names }
    }

    /// `https` or `http`.
    pub(crate) fn scheme(&self) -> &'static str {
        if self.is_secure() { "https" } else { "http" }
    }

    /// Whether connections are encrypted.
    pub(crate) fn is_secure(&self) -> bool {
        self.names.is_some()
    }

    /// Whether a `Host`, with any port, is this server: loopback, and with TLS also an IP address or a name of the certificate.
    /// Any other name may belong to a site that made it point here, to read answers as its own (DNS rebinding).
    pub(crate) fn has(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[') {
            Some(rest) => rest.split(']').next().unwrap_or_default(),
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        let ip = name.parse::<IpAddr>().ok();
        name.eq_ignore_ascii_case("localhost")
            || ip.is_some_and(|ip| ip.is_loopback() || self.is_secure())
            || self.names.as_ref().is_some_and(|names| names.include(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOREIGN: [&str; 5] = ["", "evil.example", "localhost.evil.example:1", "[", "127.0.0.1.evil"];

    #[test]
    fn hosts_of_loopback_are_own_ones() {
        let plain = Origin::new(None);
        for host in ["localhost:1", "LOCALHOST", "127.0.0.1:80", "127.8.9.1", "[::1]:9", "[::1]"] {
            assert!(plain.has(host), "{host}");
        }
        for host in FOREIGN.into_iter().chain(["192.168.0.1:1", "[::2]:1"]) {
            assert!(!plain.has(host), "{host}");
        }
    }

    #[test]
    fn with_tls_addresses_and_names_of_the_certificate_are_own_ones() {
        let names = vec!["nas.example".to_owned(), "*.storage.example".to_owned()];
        let made = rcgen::generate_simple_self_signed(names).unwrap();
        let origin = Origin::new(Some(CertificateNames::of(made.cert.pem().as_bytes()).unwrap()));
        for host in
            ["localhost", "192.168.0.1:8420", "[fd00::1]:1", "nas.example:8420", "NAS.example", "a.storage.example"]
        {
            assert!(origin.has(host), "{host}");
        }
        for host in FOREIGN.into_iter().chain(["example", "nas.example.evil", "a.b.storage.example"]) {
            assert!(!origin.has(host), "{host}");
        }
    }
}
