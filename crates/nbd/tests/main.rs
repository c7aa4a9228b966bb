//! Third-party clients with devices in memory: libnbd and qemu where they are installed.

#![allow(clippy::disallowed_methods, reason = "tests bound real time")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_front::memory::{MemoryDevice, MemoryExports};
use weir_nbd::fuzz::TARGETS;
use weir_nbd::{Server, serve};

/// Output of a program; `None`, with a line on stderr, if it is not installed.
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

/// Any free port of this machine.
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[test]
fn libnbd_and_qemu_read_devices() {
    let mut bytes = vec![0u8; 70 << 20];
    for (at, byte) in bytes.iter_mut().enumerate().skip(3 << 20).take(40 << 20) {
        *byte = (at.wrapping_mul(2_654_435_761) >> 9) as u8;
    }
    let mut exports = MemoryExports::default();
    exports.0.insert("p/vol".into(), Arc::new(MemoryDevice::new(bytes.clone())));
    exports.0.insert("p/vol@s".into(), Arc::new(MemoryDevice::new(vec![7; 4096])));
    let machine = weir_linux::Production::default().build().unwrap();
    let tasks = machine.tasks.clone();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let server = Arc::new(Server::new(Arc::new(exports)));
    let (port, serving) = machine.tasks.block_on({
        let machine = machine.clone();
        let server = Arc::clone(&server);
        async move {
            let listener = machine.net.listen(LOOPBACK).await.unwrap();
            let port = listener.address().port();
            (port, tasks.spawn(serve(listener, server, machine.clone(), stopped)))
        }
    });
    let uri = format!("nbd://127.0.0.1:{port}/p/vol");
    if let Some((good, text)) = run("nbdinfo", &[&uri]) {
        assert!(good, "{text}");
        for line in ["export-size: 73400320", "is_read_only: true", "can_multi_conn: true", "can_df: true"] {
            assert!(text.contains(line), "{line} in {text}");
        }
        let (good, text) = run("nbdinfo", &["--list", &format!("nbd://127.0.0.1:{port}")]).unwrap();
        assert!(good && text.contains("export=\"p/vol@s\""), "{text}");
        let (good, text) = run("nbdinfo", &["--map", &uri]).unwrap();
        let map: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().take(3).collect()).collect();
        assert!(good);
        assert_eq!(map, [["0", "3145728", "3"], ["3145728", "41943040", "0"], ["45088768", "28311552", "3"]]);
    }
    let dir = tempfile::tempdir().unwrap();
    for (name, extra) in [("one", "--connections=1"), ("four", "--connections=4")] {
        let copy = dir.path().join(name);
        if let Some((good, text)) = run("nbdcopy", &[extra, &uri, copy.to_str().unwrap()]) {
            assert!(good, "{text}");
            assert!(std::fs::read(&copy).unwrap() == bytes, "nbdcopy {extra}");
        }
    }
    let copy = dir.path().join("qemu");
    let convert = ["convert", "-f", "raw", "-O", "raw", &uri, copy.to_str().unwrap()];
    if let Some((good, text)) = run("qemu-img", &convert) {
        assert!(good, "{text}");
        assert!(std::fs::read(&copy).unwrap() == bytes, "qemu-img");
    }
    if let Some((good, text)) = run("qemu-io", &["-f", "raw", "-c", "write 0 4096", &uri]) {
        assert!(!good || text.contains("read-only") || text.contains("not permitted"), "{text}");
    }
    stop.send(true).unwrap();
    machine.tasks.block_on(serving).unwrap();
    assert!(server.served().requests > 0);
}

#[test]
fn libnbd_and_qemu_write_devices() {
    let device = Arc::new(MemoryDevice::new(vec![0x55; 24 << 20]).with_writing(true));
    let mut exports = MemoryExports::default();
    exports.0.insert("p/vol".into(), Arc::clone(&device));
    let machine = weir_linux::Production::default().build().unwrap();
    let tasks = machine.tasks.clone();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let server = Arc::new(Server::new(Arc::new(exports)));
    let serving_machine = machine.clone();
    let (port, serving) = machine.tasks.block_on(async move {
        let machine = serving_machine;
        let listener = machine.net.listen(LOOPBACK).await.unwrap();
        let port = listener.address().port();
        (port, tasks.spawn(serve(listener, server, machine.clone(), stopped)))
    });
    let uri = format!("nbd://127.0.0.1:{port}/p/vol");
    if let Some((good, text)) = run("nbdinfo", &[&uri]) {
        assert!(good, "{text}");
        for line in ["is_read_only: false", "can_fua: true", "can_trim: true", "can_zero: true", "can_fast_zero: true"]
        {
            assert!(text.contains(line), "{line} in {text}");
        }
    }
    let mut bytes: Vec<u8> = (0..24usize << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    bytes[5 << 20..9 << 20].fill(0);
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::write(&source, &bytes).unwrap();
    if let Some((good, text)) = run("nbdcopy", &["--flush", "--connections=4", source.to_str().unwrap(), &uri]) {
        assert!(good, "{text}");
        assert!(device.bytes() == bytes && device.flushed() == bytes, "nbdcopy");
    }
    let commands = ["-f", "raw", "-c", "write -P 0xaa 4096 8192", "-c", "write -z -u 1M 64k", "-c", "discard 2M 1M"];
    let more = ["-c", "write -f -P 0xbb 3145728 512", "-c", "flush", &uri];
    if let Some((good, text)) = run("qemu-io", &[&commands[..], &more[..]].concat()) {
        assert!(good, "{text}");
        let held = device.flushed();
        assert!(held[4096..12_288].iter().all(|byte| *byte == 0xaa));
        assert!(held[1 << 20..(1 << 20) + 65_536].iter().all(|byte| *byte == 0), "zeroed");
        assert!(held[2 << 20..3 << 20].iter().all(|byte| *byte == 0), "discarded");
        assert!(held[3 << 20..(3 << 20) + 512].iter().all(|byte| *byte == 0xbb));
    }
    stop.send(true).unwrap();
    machine.tasks.block_on(serving).unwrap();
}

#[test]
fn a_client_stalled_in_a_write_does_not_block_shutdown() {
    let mut exports = MemoryExports::default();
    exports.0.insert("v".into(), Arc::new(MemoryDevice::new(vec![0; 1 << 20]).with_writing(true)));
    let machine = weir_linux::Production::default().build().unwrap();
    let tasks = machine.tasks.clone();
    let (stop, stopped) = tokio::sync::watch::channel(false);
    let server = Arc::new(Server::new(Arc::new(exports)));
    let serving_machine = machine.clone();
    machine.tasks.block_on(async move {
        let machine = serving_machine;
        let listener = machine.net.listen(LOOPBACK).await.unwrap();
        let address = listener.address();
        let serving = tasks.spawn(serve(listener, server, machine.clone(), stopped));
        let mut client = tokio::net::TcpStream::connect(address).await.unwrap();
        client.read_exact(&mut [0; 18]).await.unwrap();
        // Fixed newstyle without zeroes, the export "v", and only the header of a 4 KiB WRITE.
        client.write_all(b"\0\0\0\x03IHAVEOPT\0\0\0\x01\0\0\0\x01v").await.unwrap();
        client.read_exact(&mut [0; 10]).await.unwrap();
        client.write_all(b"\x25\x60\x95\x13\0\0\0\x01cookie..\0\0\0\0\0\0\0\0\0\0\x10\0").await.unwrap();
        tokio::time::timeout(Duration::from_millis(200), client.read_u8()).await.unwrap_err();
        stop.send(true).unwrap();
        let limit = weir_nbd::serve::LIMITS.shutdown + Duration::from_secs(20);
        tokio::time::timeout(limit, serving).await.expect("the server must not wait for its client").unwrap();
        drop(client);
    });
}

#[test]
fn malformed_input_does_not_panic() {
    let mut seed = 0x2545_f491_4f6c_dd1du64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for (_, target) in TARGETS {
        for _ in 0..300 {
            let len = random() as usize % 200;
            let bytes: Vec<u8> = (0..len).map(|_| if random() % 3 == 0 { 0 } else { random() as u8 }).collect();
            target(&bytes);
        }
    }
}
