//! TLS with third-party clients: libnbd and qemu where they are installed; openssl makes the certificates.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use weir_front::memory::{MemoryDevice, MemoryExports};
use weir_front::tls::PemFiles;
use weir_machine::Machine;
use weir_nbd::{Server, Tls, serve};

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Success and output of a program; `None`, with a line on stderr, if it is not installed.
fn run(program: &str, arguments: &[&str]) -> Option<(bool, String)> {
    match Command::new(program).args(arguments).output() {
        Ok(output) => {
            let text = [output.stdout, output.stderr].concat();
            Some((output.status.success(), String::from_utf8_lossy(&text).into_owned()))
        }
        Err(error) => {
            eprintln!("skipped {program}: {error}");
            None
        }
    }
}

/// An authority, and certificates of it for the server and a client, by the names that libnbd and qemu look for.
fn certificates(dir: &Path) -> bool {
    let at = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let authority = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=authority"];
    let key = at("ca-key.pem");
    let certificate = at("ca-cert.pem");
    let made = [&authority[..], &["-keyout", &key, "-out", &certificate]].concat();
    let Some((good, text)) = run("openssl", &made) else { return false };
    assert!(good, "{text}");
    for (name, addresses) in
        [("server", "subjectAltName=IP:127.0.0.1,DNS:localhost"), ("client", "subjectAltName=DNS:c")]
    {
        let [key, request, certificate, extensions] =
            ["key.pem", "request.pem", "cert.pem", "extensions"].map(|kind| at(&format!("{name}-{kind}")));
        std::fs::write(&extensions, addresses).unwrap();
        let subject = format!("/CN={name}");
        let ask = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", &subject, "-keyout", &key, "-out", &request];
        let (good, text) = run("openssl", &ask).unwrap();
        assert!(good, "{text}");
        let ca = at("ca-cert.pem");
        let ca_key = at("ca-key.pem");
        let by = ["-CA", &ca, "-CAkey", &ca_key, "-CAcreateserial", "-days", "2", "-extfile", &extensions];
        let sign = [&["x509", "-req", "-in", &request, "-out", &certificate][..], &by].concat();
        let (good, text) = run("openssl", &sign).unwrap();
        assert!(good, "{text}");
    }
    true
}

/// Serves a device with these certificates, and returns the port.
fn served(machine: &Machine, dir: &Path, checks_clients: bool, is_required: bool, bytes: &[u8]) -> u16 {
    let read = |name: &str| std::fs::read(dir.join(name)).unwrap();
    let certificate = read("server-cert.pem");
    let key = read("server-key.pem");
    let authority = read("ca-cert.pem");
    let client_authority = checks_clients.then_some(&authority[..]);
    let files = PemFiles { certificate: &certificate, key: &key, client_authority };
    let tls = Tls::new(files, is_required, &machine.clock).unwrap();
    let mut exports = MemoryExports::default();
    exports.0.insert("p/vol".into(), Arc::new(MemoryDevice::new(bytes.to_vec()).with_writing(true)));
    let server = Arc::new(Server::new(Arc::new(exports)).with_tls(Some(tls)));
    let (stop, stopped) = tokio::sync::watch::channel(false);
    // The servers run as long as the test.
    std::mem::forget(stop);
    machine.block_on(async {
        let listener = machine.net.listen(LOOPBACK).await.unwrap();
        let port = listener.address().port();
        drop(machine.tasks.spawn(serve(listener, server, machine.clone(), stopped)));
        port
    })
}

fn bytes() -> Vec<u8> {
    (0..9 << 20).map(|at: usize| (at.wrapping_mul(2_654_435_761) >> 9) as u8).collect()
}

#[test]
fn libnbd_and_qemu_use_tls() {
    let dir = tempfile::tempdir().unwrap();
    if !certificates(dir.path()) {
        return;
    }
    let machine = weir_linux::Production::default().build().unwrap();
    let bytes = bytes();
    let path = dir.path().to_str().unwrap();
    let required = served(&machine, dir.path(), true, true, &bytes);
    let uri = format!("nbds://127.0.0.1:{required}/p/vol?tls-certificates={path}");
    if let Some((good, text)) = run("nbdinfo", &[&uri]) {
        assert!(good && text.contains("export-size: 9437184") && text.contains("with TLS"), "{text}");
        let (good, text) = run("nbdinfo", &[&format!("nbd://127.0.0.1:{required}/p/vol")]).unwrap();
        assert!(!good, "TLS is required: {text}");
        let copy = dir.path().join("copy");
        let (good, text) = run("nbdcopy", &["--connections=4", &uri, copy.to_str().unwrap()]).unwrap();
        assert!(good && std::fs::read(&copy).unwrap() == bytes, "{text}");
    }
    let credentials = format!("tls-creds-x509,id=tls0,dir={path},endpoint=client");
    let image = format!("driver=nbd,host=127.0.0.1,port={required},export=p/vol,tls-creds=tls0");
    let io = ["-c", "write -P 7 1M 2M", "-c", "flush", "-c", "read -P 7 1M 2M", "-c", "read -v 5M 16"];
    if let Some((good, text)) = run("qemu-io", &[&["--object", &credentials, "--image-opts", &image][..], &io].concat())
    {
        assert!(good && !text.contains("failed"), "{text}");
        let line = bytes[5 << 20..][..16].iter().map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        assert!(text.contains(&line), "{line} in {text}");
    }
    // Without an authority for clients, and with clear text allowed.
    let allowed = served(&machine, dir.path(), false, false, &bytes);
    let own = dir.path().join("authority alone");
    std::fs::create_dir(&own).unwrap();
    std::fs::copy(dir.path().join("ca-cert.pem"), own.join("ca-cert.pem")).unwrap();
    let own = own.to_str().unwrap().replace(' ', "%20");
    for uri in
        [format!("nbds://127.0.0.1:{allowed}/p/vol?tls-certificates={own}"), format!("nbd://127.0.0.1:{allowed}/p/vol")]
    {
        if let Some((good, text)) = run("nbdinfo", &["--size", &uri]) {
            assert!(good && text.trim() == "9437184", "{uri}: {text}");
        }
    }
    // A client without a certificate of the authority is refused.
    if let Some((good, _)) =
        run("nbdinfo", &["--size", &format!("nbds://127.0.0.1:{required}/p/vol?tls-certificates={own}")])
    {
        assert!(!good, "no client certificate");
    }
}

#[test]
fn wrong_files_are_named() {
    let machine = weir_linux::Production::default().build().unwrap();
    let files = |certificate, key| PemFiles { certificate, key, client_authority: None };
    let error = Tls::new(files(b"nothing", b"nothing"), false, &machine.clock).unwrap_err();
    assert_eq!(error.to_string(), "the certificate: no certificate in PEM form");
    let dir = tempfile::tempdir().unwrap();
    if certificates(dir.path()) {
        let read = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
        let certificate = read("server-cert.pem");
        let other_key = read("client-key.pem");
        let error = Tls::new(files(&certificate, b"nothing"), false, &machine.clock).unwrap_err();
        assert!(error.to_string().starts_with("the key of the certificate: "), "{error}");
        let other = Tls::new(files(&certificate, &other_key), false, &machine.clock);
        assert!(other.is_err(), "the key is that of another certificate");
    }
}
