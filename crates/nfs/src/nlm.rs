//! The network lock manager (NLM, program 100021, version 4): advisory locks of NFS version 3 clients.
//!
//! ```text
//!   LOCK ─▶ wire ─▶ manager: grace period? recorded by the status monitor? ─▶ weir_front::FileLocks ─▶ granted, denied
//!                     │                                                           │ or waits
//!                     └◀── callback when it is granted ◀──────────────────────────┘
//!                     └──▶ GRANTED to the client's lock manager, found through its rpcbind
//! ```
//!
//! **Waiting.** A LOCK that waits is answered with BLOCKED. When the lock is granted, the client holds it at once, and the
//! server calls GRANTED until the client has accepted or refused it. Clients also repeat the LOCK from time to time, which is
//! answered with GRANTED then. A client that can be reached neither way loses the lock again after
//! [`manager::GRANT_ATTEMPTS`] attempts.
//!
//! **Messages.** In the `_MSG` form of a procedure the reply is empty, and the result is sent by a call of the `_RES` form to
//! the client; macOS and older BSD clients use it.
//!
//! **Restart of the server.** Locks are in memory. After a restart, the status monitor ([`crate::nsm`]) notifies
//! the clients that held some, and they reclaim theirs in the grace period, in which no other locks are granted. If no client
//! was recorded, there is no grace period. Locks of FUSE mounts end with the process, and are not held back in the grace period.
//!
//! **Limits.** Clients must offer their lock manager over TCP: the server does not call over UDP. A client that never
//! returns keeps its locks, as on other NFS servers.

mod grants;
pub mod manager;
pub mod wire;

pub use manager::{LockManager, LockOptions};

use crate::mount::Answer;
use crate::nfs3::Context;
use crate::reply::Results;
use crate::rpc_client::Procedure;
use crate::wire::{Decoder, Encoder};
use manager::LockCaller;
use std::sync::Arc;
use wire::{LockArguments, LockResult, ShareArguments};

/// RPC program number.
pub const PROGRAM: u32 = 100_021;
/// The only supported version: the one of NFS version 3.
pub const VERSION: u32 = 4;
/// Distance from the message form of a procedure to its result form.
const MESSAGE_TO_RESULT: u32 = 5;
/// Procedure by which the server tells a client that it holds a lock.
const GRANTED: u32 = 5;
/// Message form of [`GRANTED`].
const GRANTED_MESSAGE: u32 = 10;

/// Answers a call of the host at this address.
pub(crate) async fn run(
    manager: &Arc<LockManager>,
    context: &Context<'_>,
    peer: &Arc<str>,
    procedure: u32,
    arguments: &[u8],
    out: Encoder,
) -> Answer {
    let mut input = Decoder::new(arguments);
    let mut results = Results::new(out);
    let is_message = (6..=9).contains(&procedure);
    let caller = LockCaller { context, peer, uses_messages: is_message };
    let result = match procedure {
        0 => return Answer::Results(results),
        1 | 6 => match LockArguments::of_test(&mut input) {
            Some(arguments) => manager.test(&caller, &arguments).await,
            None => return Answer::GarbageArguments,
        },
        2 | 7 | 22 => match LockArguments::of_lock(&mut input) {
            Some(arguments) => manager.lock(&caller, &arguments, procedure != 22).await,
            None => return Answer::GarbageArguments,
        },
        3 | 8 => match LockArguments::of_cancel(&mut input) {
            Some(arguments) => manager.cancel(&caller, &arguments),
            None => return Answer::GarbageArguments,
        },
        4 | 9 => match LockArguments::of_unlock(&mut input) {
            Some(arguments) => manager.unlock(&caller, &arguments),
            None => return Answer::GarbageArguments,
        },
        20 | 21 => match ShareArguments::read(&mut input) {
            Some(arguments) => manager.share(&caller, &arguments, procedure == 20).await,
            None => return Answer::GarbageArguments,
        },
        _ => return other(manager, peer, procedure, input, results),
    };
    if is_message {
        send_result(manager, peer, procedure + MESSAGE_TO_RESULT, result);
    } else {
        result.put(results.encoder());
    }
    Answer::Results(results)
}

/// Procedures without a result: results of the server's own calls, FREE_ALL, and those that only clients get.
fn other(
    manager: &Arc<LockManager>,
    peer: &Arc<str>,
    procedure: u32,
    mut input: Decoder<'_>,
    mut results: Results,
) -> Answer {
    match procedure {
        // This server waits for no locks, so it is granted none.
        GRANTED | GRANTED_MESSAGE => match LockArguments::of_test(&mut input) {
            Some(arguments) => {
                let result = LockResult::new(arguments.cookie, wire::Status::Denied);
                match procedure {
                    GRANTED => result.put(results.encoder()),
                    _ => send_result(manager, peer, GRANTED_MESSAGE + MESSAGE_TO_RESULT, result),
                }
            }
            None => return Answer::GarbageArguments,
        },
        // Results of calls that this server does not make.
        11..=14 => {}
        15 => match wire::result(&mut input) {
            Some((cookie, status)) => manager.granted_result(peer, cookie, status),
            None => return Answer::GarbageArguments,
        },
        23 => match wire::name_and_state(&mut input) {
            Some(_) => manager.client_restarted(peer),
            None => return Answer::GarbageArguments,
        },
        _ => return Answer::ProcedureUnavailable,
    }
    Answer::Results(results)
}

/// Sends the result of a message to the client that sent it.
fn send_result(manager: &Arc<LockManager>, peer: &Arc<str>, number: u32, result: LockResult) {
    let mut arguments = Encoder::default();
    result.put(&mut arguments);
    manager.send(peer, Procedure { program: PROGRAM, version: VERSION, number }, arguments);
}
