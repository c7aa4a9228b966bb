//! Fuzz target of whole NFS calls, and the servers in memory of it and of the tests.

use crate::files::TreeFiles;
use crate::shares::FileShares;
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use weir_files::FileKind;
use weir_files::tree::memory::{MemoryFiles, MemoryOpener};
use weir_files::tree::{Export, Node, Tree};
use weir_front::files::FileId;
use weir_front::{ExportRules, Hosts, IdentityMap, Squash};
use weir_machine::{Machine, MemoryStateFile};
use weir_nfs::handle::{HANDLE_BYTES, Handles};
use weir_nfs::server::reply_bytes;
use weir_nfs::wire::Encoder;
use weir_nfs::{LockManager, LockOptions, Peer, Secrets, Server, mount, nfs3};

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// Maximum size of a reply beyond its payload, in bytes.
const SHORT_REPLY_BYTES: usize = 1024;
const POOL: u64 = 0xabcd;
const SECRETS: Secrets = Secrets { handles: [7; 32], verifier: *b"verifier" };

/// All fuzz targets of this crate.
pub const TARGETS: &[Target] = &[("nfs_call", call_target)];

/// Fuzz targets of the properties of sharing.
pub const SHARE_TARGETS: &[Target] = weir_front::shares::TARGETS;

/// A server of this tree.
pub fn server_of(tree: Tree, secrets: Secrets, rules: ExportRules) -> Server {
    let shares = Arc::new(FileShares::everything(rules));
    Server::new(Arc::new(TreeFiles::new(Arc::new(tree), POOL, shares)), (POOL, "p"), secrets)
}

/// A server of a small read-only tree in memory, for the fuzz targets and the tests.
pub fn small_server(identity: IdentityMap) -> Server {
    small_tree_server(identity, false)
}

/// A server of the same tree in which everything except the snapshot is writable, for hosts of 127.0.0.0/8 and 10.0.0.0/8.
pub fn writable_server(identity: IdentityMap) -> Server {
    small_tree_server(identity, true)
}

fn small_tree_server(identity: IdentityMap, writable: bool) -> Server {
    let mut writers = Hosts::loopback();
    writers.add_network(IpAddr::V4(Ipv4Addr::new(10, 0, 0, 0)), 8);
    let rules = ExportRules { writers, identity };
    let (opener, exports) = small_tree(writable);
    server_of(Tree::new(opener, exports), SECRETS, rules)
}

/// A server of the writable tree in which no user is squashed, with a lock manager that keeps its record in `record`; and the
/// tree, so that it can be mounted, too.
pub fn lock_server(machine: &Machine, record: &MemoryStateFile) -> (Server, Arc<Tree>) {
    let (opener, exports) = small_tree(true);
    let tree = Arc::new(Tree::with_clock(opener, exports, machine.clock.clone()));
    let identity = IdentityMap { squash: Squash::None, ..IdentityMap::default() };
    let shares = Arc::new(FileShares::everything(ExportRules { writers: Hosts::all(), identity }));
    let files = Arc::new(TreeFiles::new(tree.clone(), POOL, shares));
    let options =
        LockOptions { record: Arc::new(record.clone()), grace: LockOptions::GRACE, host_name: "weir.example".into() };
    let locks = LockManager::new(files.clone(), machine, options);
    // A record in memory is read and stored at once.
    let started = locks.start().now_or_never();
    debug_assert!(matches!(started, Some(Ok(()))), "{started:?}");
    let server = Server::new(files, (POOL, "p"), SECRETS);
    (server.with_locks(locks).with_clock(&machine.clock), tree)
}

/// A valid handle of the file `file` of that server.
pub fn handle_of_file() -> [u8; HANDLE_BYTES] {
    Handles::new(POOL, SECRETS.handles).make(FileId { pool: POOL, export: 54, object: 101, generation: 7 })
}

fn small_tree(writable: bool) -> (Arc<MemoryOpener>, Vec<Export>) {
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
    (Arc::new(MemoryOpener(opener)), vec![export("p", 54), export("p/c", 60), export("p/c@s", 61)])
}

/// The first byte selects the procedure, the second whether a valid handle precedes the rest of the input.
fn call_target(data: &[u8]) {
    let Some((head, rest)) = data.split_first_chunk::<2>() else { return };
    let server = writable_server(IdentityMap { squash: Squash::None, ..IdentityMap::default() });
    let mut call = Encoder::default();
    let (program, procedure) =
        if head[0] & 0x80 == 0 { (nfs3::PROGRAM, head[0] % 23) } else { (mount::PROGRAM, head[0] % 7) };
    call.u32(1).u32(0).u32(2).u32(program).u32(3).u32(procedure.into());
    call.u32(0).u32(0).u32(0).u32(0);
    if head[1] & 1 == 1 {
        let handles = Handles::new(POOL, SECRETS.handles);
        let object = if head[1] & 2 == 0 { Node::ROOT } else { u64::from(head[1] >> 2) + 100 };
        call.opaque(&handles.make(FileId { pool: POOL, export: 54, object, generation: 7 }));
    }
    call.bytes.extend_from_slice(rest);
    let message = bytes::Bytes::from(call.bytes);
    let max_bytes = reply_bytes(&message) + SHORT_REPLY_BYTES;
    let host = if head[1] & 2 == 0 { Ipv4Addr::LOCALHOST } else { Ipv4Addr::new(192, 0, 2, 7) };
    let reply = server.answer(&Peer::new(IpAddr::V4(host)), &message).now_or_never();
    assert!(reply.flatten().is_some_and(|reply| reply.body().len() <= max_bytes));
}
