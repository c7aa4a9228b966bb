//! Fuzz targets: each must return for any input, in time and memory bounded by the input's length.

use crate::record::Assembler;
use crate::rpc;
use crate::server::{Peer, Secrets, Server, reply_bytes};
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_files::FileKind;
use weir_files::tree::memory::{MemoryFiles, MemoryOpener};
use weir_files::tree::{Export, Tree};
use weir_front::{ExportRules, Hosts, IdentityMap, Squash};

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// Maximum size of a reply beyond its payload, in bytes.
const SHORT_REPLY_BYTES: usize = 1024;
const SECRETS: Secrets = Secrets { handles: [7; 32], verifier: *b"verifier" };

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[("nfs_record", record_target), ("nfs_rpc", rpc_target), ("nfs_call", call_target)];

fn record_target(data: &[u8]) {
    let mut assembler = Assembler::default();
    for piece in data.chunks(7) {
        let mut input = piece;
        while let Ok(Some(message)) = assembler.take(&mut input) {
            assert!(message.len() <= data.len());
        }
    }
}

fn rpc_target(data: &[u8]) {
    let _ = rpc::read(data);
}

/// A server of a small read-only tree in memory, for the fuzz targets and the tests.
pub fn small_server(identity: IdentityMap) -> Server {
    server_of(identity, false)
}

/// A server of the same tree in which everything except the snapshot is writable.
pub fn writable_server(identity: IdentityMap) -> Server {
    server_of(identity, true)
}

fn server_of(identity: IdentityMap, writable: bool) -> Server {
    let rules = ExportRules { writers: Hosts::all(), identity };
    let mut root = MemoryFiles::new(0x11);
    root.writable = writable;
    root.add(34, b"file", FileKind::Regular, 0o644, b"hello, weir");
    root.add(34, b"secret", FileKind::Regular, 0o600, b"for root alone");
    root.add(34, b"link", FileKind::Symlink, 0o777, b"over/there");
    let dir = root.add(34, b"dir", FileKind::Directory, 0o755, b"");
    for i in 0..200 {
        root.add(dir, format!("entry-{i:03}").as_bytes(), FileKind::Regular, 0o644, b"");
    }
    root.add(34, b"closed", FileKind::Directory, 0o700, b"");
    let mut child = MemoryFiles::new(0x22);
    child.writable = writable;
    child.add(34, b"inside", FileKind::Regular, 0o644, b"child");
    let mut snapshot = MemoryFiles::new(0x33);
    snapshot.add(34, b"old", FileKind::Regular, 0o644, b"snapshot");
    let all = [("p", root), ("p/c", child), ("p/c@s", snapshot)];
    let opener: BTreeMap<_, _> = all.into_iter().map(|(name, files)| (name.to_string(), Arc::new(files))).collect();
    let export = |name: &str, id| Export { name: name.into(), id };
    let exports = vec![export("p", 54), export("p/c", 60), export("p/c@s", 61)];
    Server::new(Tree::new(Arc::new(MemoryOpener(opener)), exports), 0xabcd, SECRETS, rules)
}

/// The first byte selects the procedure, the second whether a valid handle precedes the rest of the input.
fn call_target(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<2>() else { return };
    let server = writable_server(IdentityMap { squash: Squash::None, ..IdentityMap::default() });
    let mut call = crate::wire::Encoder::default();
    let (program, procedure) =
        if head[0] & 0x80 == 0 { (crate::nfs3::PROGRAM, head[0] % 23) } else { (crate::mount::PROGRAM, head[0] % 7) };
    call.u32(1).u32(0).u32(2).u32(program).u32(3).u32(procedure.into());
    call.u32(0).u32(0).u32(0).u32(0);
    if head[1] & 1 == 1 {
        let handles = crate::handle::Handles::new(0xabcd, SECRETS.handles);
        let object = if head[1] & 2 == 0 { weir_files::tree::Node::ROOT } else { u64::from(head[1] >> 2) + 100 };
        call.opaque(&handles.make(crate::handle::FileId { export: 54, object, generation: 7 }));
    }
    call.bytes.extend_from_slice(rest);
    let message = bytes::Bytes::from(call.bytes);
    let max_bytes = reply_bytes(&message) + SHORT_REPLY_BYTES;
    let reply = server.answer(&Peer::new("fuzz", head[1] & 2 == 0), &message).now_or_never();
    assert!(reply.flatten().is_some_and(|reply| reply.body().len() <= max_bytes));
}
