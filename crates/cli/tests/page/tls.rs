//! The page beyond loopback: over TLS only, with a certificate of the daemon's own or the one that is configured.

use super::Site;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;

/// Port of the page on loopback.
fn port(site: &Site) -> u16 {
    let status: Value = serde_json::from_str(&site.ok("daemon status -j")).unwrap();
    let page = status["http"]["page"].as_str().unwrap().to_owned();
    let port = page.strip_prefix("https://127.0.0.1:").and_then(|rest| rest.strip_suffix('/'));
    port.unwrap_or_else(|| panic!("{page}")).parse().unwrap()
}

/// The answer to a request of a client that trusts this certificate and calls the server by this name.
fn get(site: &Site, certificate: &Path, name: &'static str, path: &str) -> Result<String, String> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificate).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = Arc::new(builder.with_root_certificates(roots).with_no_client_auth());
    let tls = ClientConnection::new(config, ServerName::try_from(name).unwrap()).unwrap();
    let mut stream = StreamOwned::new(tls, TcpStream::connect(("127.0.0.1", port(site))).unwrap());
    let token = std::fs::read_to_string(site.path("state/web.token")).unwrap();
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: {name}\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        token.trim()
    );
    stream.write_all(request.as_bytes()).map_err(|error| error.to_string())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).map_err(|error| error.to_string())?;
    Ok(answer)
}

#[test]
fn on_a_network_the_page_has_tls_with_a_certificate_of_its_own() {
    let site = Site::new(0, "http_listen = \"0.0.0.0\"\n");
    let certificate = site.path("state/web.crt");
    let answer = get(&site, &certificate, "localhost", "/api/v1/pools").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200") && answer.ends_with("[]"), "{answer}");
    let key = std::fs::metadata(site.path("state/web.key")).unwrap().permissions().mode();
    assert_eq!(key & 0o777, 0o600);
    // The token's cookie goes over TLS only.
    let token = std::fs::read_to_string(site.path("state/web.token")).unwrap();
    let answer = get(&site, &certificate, "localhost", &format!("/?token={}", token.trim())).unwrap();
    assert!(answer.contains("HttpOnly; SameSite=Strict; Path=/; Secure"), "{answer}");
    // Clear text gets a line that says so, and never an answer.
    let mut plain = TcpStream::connect(("127.0.0.1", port(&site))).unwrap();
    plain.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
    let mut answer = String::new();
    let _reset_after_the_answer = plain.read_to_string(&mut answer);
    assert!(answer.starts_with("HTTP/1.1 400") && answer.ends_with("use https:// for it\n"), "{answer}");
    let log = std::fs::read_to_string(site.path("log")).unwrap();
    assert!(log.contains("and all other addresses of this host") && !log.contains(token.trim()), "{log}");
}

#[test]
fn a_configured_certificate_is_used_and_its_names_are_the_servers() {
    let dir = tempfile::tempdir().unwrap();
    let [key, certificate] = ["page.key", "page.crt"].map(|name| dir.path().join(name));
    let names = ["nas.example", "other.example"].map(str::to_owned).to_vec();
    let made = rcgen::generate_simple_self_signed(names).unwrap();
    std::fs::write(&certificate, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let lines = |certificate: &Path| {
        format!("http_tls_cert = \"{}\"\nhttp_tls_key = \"{}\"\n", certificate.display(), key.display())
    };
    let site = Site::new(0, &lines(&certificate));
    for name in ["nas.example", "other.example"] {
        let answer = get(&site, &certificate, name, "/api/v1/pools").unwrap();
        assert!(answer.starts_with("HTTP/1.1 200"), "{name}: {answer}");
    }
    assert!(get(&site, &certificate, "third.example", "/api/v1/pools").unwrap_err().contains("certificate"));
    // A configuration that cannot be used is refused, and the daemon goes on with the one that it has.
    std::fs::write(site.path("conf/weir.toml"), lines(&dir.path().join("absent.crt"))).unwrap();
    assert!(site.fails("daemon reload").contains("absent.crt: No such file"));
    std::fs::write(site.path("conf/weir.toml"), "http_tls_key = \"/k\"\n").unwrap();
    assert!(site.fails("daemon reload").contains("needs both http_tls_cert and http_tls_key"));
    assert!(get(&site, &certificate, "nas.example", "/api/v1/pools").is_ok());
}
