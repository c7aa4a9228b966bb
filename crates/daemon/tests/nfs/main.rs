//! The server with hand-made calls: first without a socket, then over loopback.

#![allow(clippy::disallowed_methods, reason = "tests bound real time")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod harness;
mod locks;
mod locks_mounted;
mod rpcbind;
mod sessions;
mod writing;

use bytes::Bytes;
use futures_util::FutureExt;
use harness::*;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use weir_daemon::fuzz::{TARGETS, server_of, small_server};
use weir_files::FileKind;
use weir_files::tree::memory::{MemoryFiles, MemoryOpener};
use weir_files::tree::{Export, Tree};
use weir_front::{ExportRules, IdentityMap, Squash};
use weir_nfs::wire::{Decoder, Encoder};
use weir_nfs::{Secrets, Server};

fn server() -> (Server, Vec<u8>) {
    let server = small_server(IdentityMap::default());
    let root = mount(&server, "/p").unwrap();
    (server, root)
}

fn fsid_and_number(server: &Server, handle: &[u8]) -> (u64, u64) {
    let results = ask(server, 1, 0, &args(handle));
    assert_eq!(results.len(), 4 + FATTR);
    let mut input = Decoder::new(&results[4 + 44..]);
    (input.u64().unwrap(), input.u64().unwrap())
}

#[test]
fn mount_resolves_exports_and_paths_below_them() {
    let (server, root) = server();
    assert_eq!(mount(&server, "p").as_ref(), Ok(&root));
    assert_eq!(mount(&server, "//p/").as_ref(), Ok(&root));
    let child = mount(&server, "/p/c").unwrap();
    assert_eq!(lookup(&server, &root, b"c"), Ok(child.clone()));
    assert_eq!(lookup(&server, &child, b".."), Ok(root.clone()));
    assert_eq!(lookup(&server, &root, b".."), Ok(root.clone()));
    assert_eq!(lookup(&server, &root, b"."), Ok(root.clone()));
    let snapshot = mount(&server, "/p/c/.zfs/snapshot/s").unwrap();
    let ids = [&root, &child, &snapshot].map(|handle| fsid_and_number(&server, handle));
    assert_eq!(ids, [(0x11, 34), (0x22, 34), (0x33, 34)]);
    assert_eq!(mount(&server, "/q"), Err(2));
    assert_eq!(mount(&server, ""), Err(2));
    assert_eq!(mount(&server, "/p/nothing"), Err(2));
    assert_eq!(mount(&server, "/p/file"), Err(20));
    assert_eq!(mount(&server, "/p/../p"), Err(13));
    let exports = answer(&server, &call(MOUNT, 3, 5, 0, &Encoder::default()));
    let mut wanted = Encoder::default();
    wanted.u32(1).opaque(b"/p").u32(0).u32(1).opaque(b"/p/c").u32(0).u32(0);
    assert_eq!(exports[24..], wanted.bytes);
    let mounts = || answer(&server, &call(MOUNT, 3, 2, 0, &Encoder::default()))[24..].to_vec();
    let mut wanted = Encoder::default();
    for path in [&b"//p/"[..], b"/p", b"/p/c", b"/p/c/.zfs/snapshot/s", b"p"] {
        wanted.u32(1).opaque(b"127.0.0.1").opaque(path);
    }
    wanted.u32(0);
    assert_eq!(mounts(), wanted.bytes, "what was mounted");
    answer(&server, &call(MOUNT, 3, 3, 0, Encoder::default().opaque(b"//p/")));
    assert_eq!(mounts(), wanted.bytes[4 + 16 + 8..], "without what was unmounted");
    answer(&server, &call(MOUNT, 3, 4, 0, &Encoder::default()));
    assert_eq!(mounts(), [0; 4]);
    assert_eq!(answer(&server, &call(MOUNT, 1, 1, 0, Encoder::default().opaque(b"/p")))[24..], [0, 0, 0, 13]);
}

#[test]
fn malformed_calls_get_the_right_error() {
    let (server, root) = server();
    let status = |message: &[u8]| accept_status(&answer(&server, message));
    assert_eq!(status(&call(100_000, 2, 0, 0, &Encoder::default())), 1, "no such program");
    assert_eq!(status(&call(NFS, 4, 0, 0, &Encoder::default())), 2, "no such version");
    assert_eq!(status(&call(NFS, 3, 22, 0, &Encoder::default())), 3, "no such procedure");
    assert_eq!(status(&call(NFS, 3, 1, 0, &Encoder::default())), 4, "no arguments");
    assert_eq!(status(&call(NFS, 3, 0, 0, &Encoder::default())), 0, "null");
    let mut old = call(NFS, 3, 0, 0, &Encoder::default());
    old[11] = 3;
    assert_eq!(answer(&server, &old)[8..], [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 2]);
    let mut other_auth = call(NFS, 3, 0, 0, &Encoder::default());
    other_auth[27] = 6;
    assert_eq!(answer(&server, &other_auth)[8..], [0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert!(server.answer(&local_peer(), &Bytes::from_static(b"garbage")).now_or_never().unwrap().is_none());
    for len in [0, 3, 51, 53, 64] {
        let results = ask(&server, 1, 0, &args(&vec![1; len]));
        assert_eq!(results, 10_001u32.to_be_bytes(), "a handle of {len} bytes");
    }
    let mut altered = root;
    altered[20] ^= 1;
    assert_eq!(ask(&server, 1, 0, &args(&altered)), 70u32.to_be_bytes());
    assert_eq!(accept_status(&answer(&server, &call(NFS, 3, 1, 0, &args(&[0; 65])))), 4);
}

#[test]
fn lookup_returns_files_or_the_right_error() {
    let (server, root) = server();
    assert_eq!(lookup(&server, &root, b"nothing"), Err(2));
    assert_eq!(lookup(&server, &root, b""), Err(2));
    assert_eq!(lookup(&server, &root, &[b'n'; 256]), Err(63));
    let file = lookup(&server, &root, b"file").unwrap();
    assert_eq!(lookup(&server, &file, b"x"), Err(20));
    let closed = lookup(&server, &root, b"closed").unwrap();
    assert_eq!(lookup(&server, &closed, b"x"), Err(13));
    let link = lookup(&server, &root, b"link").unwrap();
    let results = ask(&server, 5, 1000, &args(&link));
    assert_eq!(results[8 + FATTR..], [&[0, 0, 0, 10][..], b"over/there", &[0, 0]].concat());
    let results = ask(&server, 5, 1000, &args(&file));
    assert_eq!((results.len(), &results[..8]), (8 + FATTR, &[0, 0, 0, 22, 0, 0, 0, 1][..]));
}

fn read(server: &Server, handle: &[u8], offset: u64, count: u32, uid: u32) -> Result<(Vec<u8>, bool), u32> {
    let results = ask(server, 6, uid, args(handle).u64(offset).u32(count));
    assert_eq!(results.len() % 4, 0, "padded");
    let mut input = Decoder::new(&results);
    let status = input.u32().unwrap();
    assert_eq!(input.u32(), Some(1), "post_op_attr");
    input.fixed(FATTR).unwrap();
    if status != 0 {
        assert!(input.rest().is_empty());
        return Err(status);
    }
    let count = input.u32().unwrap();
    let eof = input.u32().unwrap();
    let data = input.opaque(1 << 20).unwrap().to_vec();
    assert_eq!(data.len(), count as usize);
    assert!(input.rest().is_empty());
    Ok((data, eof == 1))
}

#[test]
fn reads_end_at_end_of_file() {
    let (server, root) = server();
    let file = lookup(&server, &root, b"file").unwrap();
    for (offset, count, data, eof) in [
        (0, 11, &b"hello, weir"[..], true),
        (0, 100, b"hello, weir", true),
        (0, 10, b"hello, wei", false),
        (7, 4, b"weir", true),
        (7, 1, b"w", false),
        (11, 5, b"", true),
        (3, 0, b"", false),
        (u64::MAX, u32::MAX, b"", true),
    ] {
        assert_eq!(read(&server, &file, offset, count, 1000), Ok((data.to_vec(), eof)), "{count} at {offset}");
    }
    assert_eq!(read(&server, &root, 0, 1, 1000), Err(21));
    let secret = lookup(&server, &root, b"secret").unwrap();
    assert_eq!(read(&server, &secret, 0, 100, 1000), Err(13));
    assert_eq!(read(&server, &secret, 0, 100, 0), Err(13), "root is squashed");
    let trusting = small_server(IdentityMap { squash: Squash::None, ..IdentityMap::default() });
    assert!(read(&trusting, &secret, 0, 100, 0).is_ok());
}

#[test]
fn access_grants_only_reading_on_a_read_only_tree() {
    let (server, root) = server();
    let access = |name: &[u8], uid, wanted: u32| {
        let handle = if name.is_empty() { root.clone() } else { lookup(&server, &root, name).unwrap() };
        let results = ask(&server, 4, uid, args(&handle).u32(wanted));
        assert_eq!(results.len(), 8 + FATTR + 4);
        u32::from_be_bytes(results[8 + FATTR..].try_into().unwrap())
    };
    assert_eq!(access(b"", 1000, 0x3f), 0x03);
    assert_eq!(access(b"file", 1000, 0x3f), 0x01);
    assert_eq!(access(b"file", 1000, 0x3e), 0x00);
    assert_eq!(access(b"secret", 1000, 0x3f), 0x00);
    assert_eq!(access(b"closed", 1000, 0x3f), 0x00);
}

type Entry = (String, u64, bool);

/// One page: entries with cookie and whether they carry a handle, end, verifier, bytes of the results.
fn page(
    server: &Server,
    dir: &[u8],
    plus: bool,
    at: (u64, u64),
    sizes: (u32, u32),
) -> Result<(Vec<Entry>, bool, u64, usize), u32> {
    let mut arguments = args(dir);
    arguments.u64(at.0).u64(at.1);
    if plus {
        arguments.u32(sizes.0);
    }
    let results = ask(server, if plus { 17 } else { 16 }, 1000, arguments.u32(sizes.1));
    let mut input = Decoder::new(&results);
    let status = input.u32().unwrap();
    assert_eq!(input.u32(), Some(1));
    input.fixed(FATTR).unwrap();
    if status != 0 {
        assert!(input.rest().is_empty());
        return Err(status);
    }
    let verifier = input.u64().unwrap();
    let mut entries = Vec::new();
    while input.u32().unwrap() == 1 {
        input.u64().unwrap();
        let name = String::from_utf8(input.opaque(255).unwrap().to_vec()).unwrap();
        let cookie = input.u64().unwrap();
        let mut handle = false;
        if plus {
            if input.u32() == Some(1) {
                input.fixed(FATTR).unwrap();
            }
            handle = input.u32() == Some(1);
            if handle {
                input.opaque(64).unwrap();
            }
        }
        entries.push((name, cookie, handle));
    }
    let eof = input.u32().unwrap() == 1;
    assert!(input.rest().is_empty());
    Ok((entries, eof, verifier, results.len()))
}

#[test]
fn listings_respect_byte_limits_and_resume_at_any_cookie() {
    let (server, root) = server();
    let dir = lookup(&server, &root, b"dir").unwrap();
    let mut wanted = vec![".".to_string(), "..".to_string()];
    wanted.extend((0..200).map(|i| format!("entry-{i:03}")));
    for plus in [false, true] {
        let smallest = if plus { 112 + 24 + 8 + FATTR as u32 + 56 + 12 } else { 112 + 24 + 12 };
        for size in [smallest, smallest + 300, 4096, 1 << 16, u32::MAX] {
            let mut names = Vec::new();
            let mut at = (0, 0);
            loop {
                let (entries, eof, verifier, bytes) = page(&server, &dir, plus, at, (size, size)).unwrap();
                assert!(bytes <= size as usize, "{bytes} of {size}");
                assert!(!entries.is_empty() || eof);
                at = (entries.last().map(|entry| entry.1).unwrap_or(0), verifier);
                names.extend(entries.into_iter().map(|entry| entry.0));
                if eof {
                    break;
                }
            }
            assert_eq!(names, wanted, "plus {plus}, {size} bytes");
        }
        assert_eq!(page(&server, &dir, plus, (0, 0), (1 << 16, 111)), Err(10_005));
        assert_eq!(page(&server, &dir, plus, (0, 0), (1 << 16, 120)), Err(10_005));
        let (entries, _, verifier, _) = page(&server, &dir, plus, (0, 0), (1 << 16, 1 << 16)).unwrap();
        assert_eq!(page(&server, &dir, plus, (entries[5].1, verifier ^ 1), (4096, 4096)), Err(10_003));
        let file = lookup(&server, &root, b"file").unwrap();
        assert_eq!(page(&server, &file, plus, (0, 0), (4096, 4096)), Err(20));
        let closed = lookup(&server, &root, b"closed").unwrap();
        assert_eq!(page(&server, &closed, plus, (0, 0), (4096, 4096)), Err(13));
    }
    // dircount bounds only names and cookies: three entries of 28 or 32 bytes.
    let (entries, eof, ..) = page(&server, &dir, true, (0, 0), (24 + 24 + 32, 1 << 16)).unwrap();
    assert_eq!((entries.len(), eof), (3, false));
    // Child file systems are listed without a handle, `.zfs` is not listed.
    let (entries, ..) = page(&server, &root, true, (0, 0), (1 << 16, 1 << 16)).unwrap();
    let shown: Vec<_> = entries.iter().map(|(name, _, handle)| (name.as_str(), *handle)).collect();
    let wanted =
        [(".", true), ("..", true), ("c", false), ("closed", true), ("dir", true), ("file", true), ("link", true)];
    assert_eq!(shown[..7], wanted);
}

#[test]
fn fsstat_fsinfo_and_pathconf() {
    let (server, root) = server();
    let fsinfo = ask(&server, 19, 1000, &args(&root));
    assert_eq!(fsinfo.len(), 8 + FATTR + 7 * 4 + 8 + 8 + 4);
    let mut input = Decoder::new(&fsinfo[8 + FATTR..]);
    let mut word = || input.u32().unwrap();
    let sizes = [word(), word(), word(), word(), word(), word(), word()];
    assert_eq!(sizes, [1 << 20, 1 << 20, 4096, 1 << 20, 1 << 20, 4096, 1 << 16]);
    assert_eq!(fsinfo[fsinfo.len() - 4..], [0, 0, 0, 0x0b]);
    assert_eq!(ask(&server, 18, 1000, &args(&root)).len(), 8 + FATTR + 6 * 8 + 4);
    let pathconf = ask(&server, 20, 1000, &args(&root));
    let mut wanted = Encoder::default();
    wanted.u32(u32::MAX).u32(255).u32(1).u32(1).u32(0).u32(1);
    assert_eq!(pathconf[8 + FATTR..], wanted.bytes);
    for procedure in [18, 19, 20] {
        let mut altered = root.clone();
        altered[51] ^= 1;
        assert_eq!(ask(&server, procedure, 0, &args(&altered)), [0, 0, 0, 70, 0, 0, 0, 0]);
    }
}

#[test]
fn malformed_input_does_not_panic() {
    let mut seed = 0x9e37_79b9_7f4a_7c15u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    for (_, target) in TARGETS.iter().chain(weir_nfs::fuzz::TARGETS) {
        for _ in 0..300 {
            let len = random() as usize % 300;
            let bytes: Vec<u8> = (0..len).map(|_| if random() % 3 == 0 { 0 } else { random() as u8 }).collect();
            target(&bytes);
        }
    }
    // Every truncation and every altered byte of a valid call.
    let (server, root) = server();
    let good = call(NFS, 3, 17, 1000, args(&root).u64(0).u64(0).u32(4096).u32(4096));
    for at in 0..good.len() {
        let peer = local_peer();
        let _ = server.answer(&peer, &Bytes::copy_from_slice(&good[..at])).now_or_never().unwrap();
        let mut changed = good.clone();
        changed[at] ^= 0xff;
        let _ = server.answer(&peer, &changed.into()).now_or_never().unwrap();
    }
}

/// Any free port of this machine.
const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Connects from another of this machine's addresses, as another host does.
async fn connect_from(from: [u8; 4], to: SocketAddr) -> tokio::net::TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::new(from.into(), 0)).unwrap();
    socket.connect(to).await.unwrap()
}

#[test]
fn pipelined_calls_are_all_answered_over_tcp() {
    let machine = weir_linux::Production::default().build().unwrap();
    let tasks = machine.tasks.clone();
    let serving_machine = machine.clone();
    machine.tasks.block_on(async move {
        let machine = serving_machine;
        let listener = machine.net.listen(LOOPBACK).await.unwrap();
        let address = listener.address();
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let server = Arc::new(small_server(IdentityMap::default()));
        let root = mount(&server, "/p").unwrap();
        let file = lookup(&server, &root, b"file").unwrap();
        let serving = tasks.spawn(weir_nfs::serve(listener, Arc::clone(&server), machine.clone(), stopped));
        let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
        let mut sent = Vec::new();
        for xid in 0..500u32 {
            let mut message = call(NFS, 3, 6, 1000, args(&file).u64(0).u32(100));
            message[..4].copy_from_slice(&xid.to_be_bytes());
            // Each in two fragments.
            sent.extend_from_slice(&8u32.to_be_bytes());
            sent.extend_from_slice(&message[..8]);
            sent.extend_from_slice(&(1 << 31 | (message.len() as u32 - 8)).to_be_bytes());
            sent.extend_from_slice(&message[8..]);
        }
        stream.write_all(&sent).await.unwrap();
        let mut seen = vec![false; 500];
        for _ in 0..500 {
            let mark = stream.read_u32().await.unwrap();
            assert_ne!(mark & 1 << 31, 0);
            let mut body = vec![0; (mark & !(1 << 31)) as usize];
            stream.read_exact(&mut body).await.unwrap();
            assert!(body.ends_with(b"hello, weir\0"));
            let xid = u32::from_be_bytes(body[..4].try_into().unwrap()) as usize;
            assert!(!std::mem::replace(&mut seen[xid], true));
        }
        // A malformed record ends only this connection.
        let mut other = tokio::net::TcpStream::connect(address).await.unwrap();
        other.write_all(&[0xff; 64]).await.unwrap();
        assert_eq!(other.read(&mut [0; 1]).await.unwrap_or(0), 0);
        stop.send(true).unwrap();
        serving.await.unwrap();
        assert_eq!(stream.read(&mut [0; 1]).await.unwrap_or(0), 0);
        assert!(server.served().requests >= 502);
    });
}

/// A short reply that the client has not read yet does not pin the cached block.
#[test]
fn short_replies_are_copied() {
    let mut files = MemoryFiles::new(1);
    files.add(34, b"big", FileKind::Regular, 0o644, &vec![7; 1 << 20]);
    let opener = MemoryOpener(BTreeMap::from([("p".to_string(), Arc::new(files))]));
    let tree = Tree::new(Arc::new(opener), vec![Export { name: "p".into(), id: 1 }]);
    let secrets = Secrets { handles: [7; 32], verifier: [0; 8] };
    let server = server_of(tree, secrets, ExportRules::default());
    let file = lookup(&server, &mount(&server, "/p").unwrap(), b"big").unwrap();
    for (count, is_copy) in [(100, true), (1 << 16, false), (1 << 20, false)] {
        let message = Bytes::from(call(NFS, 3, 6, 1000, args(&file).u64(0).u32(count)));
        let reply = server.answer(&local_peer(), &message).now_or_never().unwrap().unwrap();
        assert_eq!(reply.pieces[1].is_unique(), is_copy, "{count} bytes");
    }
}

/// Clients that request much and read nothing: the server reads no more of their calls than have reply memory, and
/// serves other clients.
#[test]
fn unread_replies_are_bounded() {
    const CLIENTS: u64 = 3;
    let machine = weir_linux::Production::default().build().unwrap();
    let tasks = machine.tasks.clone();
    let serving_machine = machine.clone();
    machine.tasks.block_on(async move {
        let machine = serving_machine;
        let mut files = MemoryFiles::new(1);
        files.add(34, b"big", FileKind::Regular, 0o644, &vec![7; 1 << 20]);
        let opener = MemoryOpener(BTreeMap::from([("p".to_string(), Arc::new(files))]));
        let tree = Tree::new(Arc::new(opener), vec![Export { name: "p".into(), id: 1 }]);
        let secrets = Secrets { handles: [7; 32], verifier: [0; 8] };
        let server = Arc::new(server_of(tree, secrets, ExportRules::default()));
        let file = lookup(&server, &mount(&server, "/p").unwrap(), b"big").unwrap();
        let listener = machine.net.listen(LOOPBACK).await.unwrap();
        let address = listener.address();
        let (stop, stopped) = tokio::sync::watch::channel(false);
        let serving = tasks.spawn(weir_nfs::serve(listener, Arc::clone(&server), machine.clone(), stopped));
        let read = |count| {
            let message = call(NFS, 3, 6, 1000, args(&file).u64(0).u32(count));
            [&(1 << 31 | message.len() as u32).to_be_bytes()[..], &message].concat()
        };
        let before = server.served().requests;
        let mut greedy = Vec::new();
        for _ in 0..CLIENTS {
            let mut stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.write_all(&read(1 << 20).repeat(64)).await.unwrap();
            greedy.push(stream);
        }
        tokio::time::timeout(Duration::from_millis(500), std::future::pending::<()>()).await.unwrap_err();
        // Replies in socket buffers count as sent.
        let done = server.served().requests - before;
        assert!((20..CLIENTS * 40).contains(&done), "{done}");
        // The share of another host is free.
        let mut honest = connect_from([127, 0, 0, 2], address).await;
        honest.write_all(&read(1 << 20)).await.unwrap();
        let mark = honest.read_u32().await.unwrap() & !(1 << 31);
        honest.read_exact(&mut vec![0; mark as usize]).await.unwrap();
        // Clients that read late still get all replies.
        let late = greedy.iter_mut().map(|stream| async move {
            for _ in 0..64 {
                let mark = stream.read_u32().await.unwrap() & !(1 << 31);
                assert!(mark > 1 << 20);
                stream.read_exact(&mut vec![0; mark as usize]).await.unwrap();
            }
        });
        futures_util::future::join_all(late).await;
        stop.send(true).unwrap();
        serving.await.unwrap();
    });
}
