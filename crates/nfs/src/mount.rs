//! The MOUNT protocol (RFC 1813, appendix I): from the path of an export to the first handle.
//!
//! Each shared file system is an export under its full name, `/pool` and `/pool/child`, and under its mount point; a longer
//! path mounts that directory, for example `/pool/child/.zfs/snapshot/monday`. EXPORT lists what is shared with the caller's
//! host. DUMP lists the mounts of this start that were not undone by UMNT or UMNTALL: clients that were switched off stay in
//! it, as the protocol says. In versions 1 and 2, which old `showmount` uses, MNT fails: their 32-byte
//! handles are shorter than ours, and NFS version 2 is not supported.

use crate::nfs3::Context;
use crate::reply::Results;
use crate::rpc::Call;
use crate::status::Status;
use crate::wire::{Decoder, Encoder};
use std::collections::BTreeSet;
use std::sync::Arc;
use weir_machine::lock::{Mutex, MutexGuard};

/// RPC program number.
pub const PROGRAM: u32 = 100_005;
/// Supported versions, first and last.
pub const VERSIONS: (u32, u32) = (1, 3);
/// Longest path in the protocol, in bytes.
pub(crate) const MAX_PATH_BYTES: usize = 1024;
/// Maximum number of exports in a listing, because clients hold the whole list in memory.
const MAX_EXPORTS: usize = 10_000;
/// Maximum size of one export in bytes: two words and its path (length, `/`, and a name of 255 bytes).
const EXPORT_BYTES: usize = 8 + 4 + 256;
/// Maximum size of one mount in bytes: three words, an address, and a path.
const MOUNT_BYTES: usize = 12 + 64 + MAX_PATH_BYTES;
/// Maximum number of mounts in the list of DUMP; later ones are not listed.
const MAX_MOUNTS: usize = 1024;
const AUTH_SYS: u32 = 1;
const AUTH_NONE: u32 = 0;

/// The mounts of clients: address and path.
#[derive(Debug, Default)]
pub(crate) struct Mounts(Mutex<BTreeSet<(Arc<str>, Vec<u8>)>>);

impl Mounts {
    fn list(&self) -> MutexGuard<'_, BTreeSet<(Arc<str>, Vec<u8>)>> {
        self.0.lock()
    }

    fn add(&self, peer: &Arc<str>, path: &[u8]) {
        let mut list = self.list();
        if list.len() < MAX_MOUNTS {
            list.insert((peer.clone(), path.to_vec()));
        }
        debug_assert!(list.len() <= MAX_MOUNTS, "the list of mounts is too long");
    }

    fn remove(&self, peer: &Arc<str>, path: &[u8]) {
        self.list().remove(&(peer.clone(), path.to_vec()));
    }

    fn remove_all(&self, peer: &Arc<str>) {
        self.list().retain(|(of, _)| of != peer);
    }

    fn put(&self, out: &mut Encoder) {
        for (peer, path) in &*self.list() {
            out.bool(true).opaque(peer.as_bytes()).opaque(path);
        }
        out.bool(false);
    }
}

/// Result of a MOUNT call.
pub(crate) enum Answer {
    Results(Results),
    GarbageArguments,
    ProcedureUnavailable,
}

/// Maximum payload of the reply in bytes; 0 for procedures with short replies.
pub(crate) fn reply_bytes(procedure: u32) -> usize {
    match procedure {
        2 => MAX_MOUNTS * MOUNT_BYTES,
        5 => MAX_EXPORTS * EXPORT_BYTES,
        _ => 0,
    }
}

/// Paths that a client says it has unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unmounted {
    /// The path of the call.
    Path,
    /// All paths.
    All,
}

/// Whether a call says that its client has unmounted something.
pub(crate) fn unmounted(call: &Call<'_>) -> Option<Unmounted> {
    match (call.program, call.procedure) {
        (PROGRAM, 3) => Some(Unmounted::Path),
        (PROGRAM, 4) => Some(Unmounted::All),
        _ => None,
    }
}

/// Answers a call.
pub(crate) async fn run(
    context: &Context<'_>,
    (mounts, peer): (&Mounts, &Arc<str>),
    version: u32,
    procedure: u32,
    arguments: &[u8],
    out: Encoder,
) -> Answer {
    let mut results = Results::new(out);
    let mut input = Decoder::new(arguments);
    match procedure {
        0 => {}
        1 => {
            let Some(path) = input.opaque(MAX_PATH_BYTES) else { return Answer::GarbageArguments };
            if version == 3 {
                if mount(context, path, &mut results).await {
                    mounts.add(peer, path);
                }
            } else {
                results.status(Status::Acces);
            }
        }
        2 => mounts.put(results.encoder()),
        3 => match input.opaque(MAX_PATH_BYTES) {
            Some(path) => mounts.remove(peer, path),
            None => return Answer::GarbageArguments,
        },
        4 => mounts.remove_all(peer),
        5 => exports(context, results.encoder()),
        _ => return Answer::ProcedureUnavailable,
    }
    Answer::Results(results)
}

/// Whether the path was mounted.
async fn mount(context: &Context<'_>, path: &[u8], out: &mut Results) -> bool {
    match context.files.open_path(context.rq, &context.caller, path).await {
        Ok(found) => {
            let handle = context.handles.make(found.id);
            out.status(Status::Ok).opaque(&handle).u32(2).u32(AUTH_SYS).u32(AUTH_NONE);
            true
        }
        Err(failure) => {
            out.status(context.report(&failure.error));
            false
        }
    }
}

fn exports(context: &Context<'_>, out: &mut Encoder) {
    let names = context.files.file_systems(&context.caller).into_iter();
    for name in names.take(MAX_EXPORTS) {
        // One export: its path and an empty group list. The caller's host has access to it; others are not disclosed.
        out.bool(true).opaque(format!("/{name}").as_bytes()).bool(false);
    }
    out.bool(false);
}
