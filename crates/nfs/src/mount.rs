//! The MOUNT protocol (RFC 1813, appendix I): from the path of an export to the first handle.
//!
//! Each file system of the pool is an export under its full name, `/pool` and `/pool/child`; a longer path mounts
//! that directory, for example `/pool/child/.zfs/snapshot/monday`. The server does not record mounts: DUMP returns an
//! empty list; UMNT tells only that the client does not use a pool any more. In versions 1 and 2, which old `showmount` uses, MNT fails: their 32-byte
//! handles are shorter than ours, and NFS version 2 is not supported.

use crate::nfs3::Context;
use crate::reply::Results;
use crate::rpc::Call;
use crate::status::Status;
use crate::wire::{Decoder, Encoder};

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
const AUTH_SYS: u32 = 1;
const AUTH_NONE: u32 = 0;

/// Result of a MOUNT call.
pub(crate) enum Answer {
    Results(Results),
    GarbageArguments,
    ProcedureUnavailable,
}

/// Maximum payload of the reply in bytes; 0 for procedures with short replies.
pub(crate) fn reply_bytes(procedure: u32) -> usize {
    if procedure == 5 { MAX_EXPORTS * EXPORT_BYTES } else { 0 }
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
pub(crate) async fn run(context: &Context<'_>, version: u32, procedure: u32, arguments: &[u8], out: Encoder) -> Answer {
    let mut results = Results::new(out);
    let mut input = Decoder::new(arguments);
    match procedure {
        0 | 4 => {}
        1 => {
            let Some(path) = input.opaque(MAX_PATH_BYTES) else { return Answer::GarbageArguments };
            if version == 3 {
                mount(context, path, &mut results).await;
            } else {
                results.status(Status::Acces);
            }
        }
        // An empty list: no entry follows.
        2 => drop(results.encoder().bool(false)),
        3 => {
            if input.opaque(MAX_PATH_BYTES).is_none() {
                return Answer::GarbageArguments;
            }
        }
        5 => exports(context, results.encoder()),
        _ => return Answer::ProcedureUnavailable,
    }
    Answer::Results(results)
}

async fn mount(context: &Context<'_>, path: &[u8], out: &mut Results) {
    match context.files.open_path(context.rq, path).await {
        Ok(found) => {
            let handle = context.handles.make(found.id);
            out.status(Status::Ok).opaque(&handle).u32(2).u32(AUTH_SYS).u32(AUTH_NONE);
        }
        Err(failure) => drop(out.status(context.report(&failure.error))),
    }
}

fn exports(context: &Context<'_>, out: &mut Encoder) {
    let names = context.files.file_systems().into_iter();
    for name in names.take(MAX_EXPORTS) {
        // One export: its path and an empty group list, which means everyone.
        out.bool(true).opaque(format!("/{name}").as_bytes()).bool(false);
    }
    out.bool(false);
}
