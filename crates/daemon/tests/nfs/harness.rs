//! Encodes calls and decodes their replies.

use bytes::Bytes;
use futures_util::FutureExt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use weir_nfs::wire::{Decoder, Encoder};
use weir_nfs::{Peer, Server};

pub const MOUNT: u32 = 100_005;
pub const NFS: u32 = 100_003;
pub const FATTR: usize = 84;

pub fn call(program: u32, version: u32, procedure: u32, uid: u32, arguments: &Encoder) -> Vec<u8> {
    // A new xid for each call, so that none is a duplicate.
    static XID: AtomicU32 = AtomicU32::new(1);
    let mut out = Encoder::default();
    for word in [XID.fetch_add(1, Ordering::Relaxed), 0, 2, program, version, procedure] {
        out.u32(word);
    }
    let mut credential = Encoder::default();
    credential.u32(0).opaque(b"test").u32(uid).u32(uid).u32(0);
    out.u32(1).opaque(&credential.bytes).u32(0).u32(0);
    out.bytes.extend_from_slice(&arguments.bytes);
    out.bytes
}

/// The results of an accepted call, after the accept status.
pub fn ask(server: &Server, procedure: u32, uid: u32, arguments: &Encoder) -> Vec<u8> {
    let reply = answer(server, &call(NFS, 3, procedure, uid, arguments));
    assert_eq!(accept_status(&reply), 0, "accepted");
    reply[24..].to_vec()
}

/// A client with this address.
pub fn peer(address: [u8; 4]) -> Peer {
    Peer::new(IpAddr::from(address))
}

/// A client on this machine, which may write.
pub fn local_peer() -> Peer {
    peer([127, 0, 0, 1])
}

pub fn answer(server: &Server, message: &[u8]) -> Vec<u8> {
    answer_to(server, &local_peer(), message)
}

/// Answers a message of this client.
pub fn answer_to(server: &Server, peer: &Peer, message: &[u8]) -> Vec<u8> {
    let message = Bytes::copy_from_slice(message);
    server.answer(peer, &message).now_or_never().expect("a tree in memory never waits").expect("a reply").body()
}

pub fn accept_status(reply: &[u8]) -> u32 {
    let mut input = Decoder::new(reply);
    input.u32().unwrap();
    assert_eq!((input.u32(), input.u32()), (Some(1), Some(0)), "an accepted reply");
    (input.u32(), input.u32()).0.unwrap();
    input.u32().unwrap()
}

pub fn mount(server: &Server, path: &str) -> Result<Vec<u8>, u32> {
    let mut arguments = Encoder::default();
    arguments.opaque(path.as_bytes());
    let reply = answer(server, &call(MOUNT, 3, 1, 0, &arguments));
    let mut input = Decoder::new(&reply[24..]);
    match input.u32().unwrap() {
        0 => Ok(input.opaque(64).unwrap().to_vec()),
        status => Err(status),
    }
}

pub fn args(handle: &[u8]) -> Encoder {
    let mut arguments = Encoder::default();
    arguments.opaque(handle);
    arguments
}

pub fn lookup(server: &Server, dir: &[u8], name: &[u8]) -> Result<Vec<u8>, u32> {
    let results = ask(server, 3, 1000, args(dir).opaque(name));
    let mut input = Decoder::new(&results);
    match input.u32().unwrap() {
        0 => Ok(input.opaque(64).unwrap().to_vec()),
        status => {
            assert_eq!(input.u32(), Some(if status == 70 || status == 10_001 { 0 } else { 1 }), "post_op_attr");
            Err(status)
        }
    }
}
