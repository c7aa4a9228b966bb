//! The status monitor (NSM, program 100024): the server and its clients tell each other when they have restarted, because
//! locks are lost or have to be reclaimed then.
//!
//! ```text
//!   client locks ─▶ its address and name are recorded on stable storage, before the lock is granted
//!   server restarts ─▶ state number + 2 ─▶ NOTIFY to each recorded client ─▶ grace period: clients reclaim
//!   client restarts ─▶ NOTIFY from its address ─▶ its locks are released
//! ```
//!
//! Clients are identified by their addresses: only a NOTIFY from the address that took the locks releases them. The server
//! sends its address as its name, and its host name, because clients know it by what they mounted.
//!
//! Linux and BSD clients announce their restart over UDP, so this service is also on UDP; the server itself calls over TCP,
//! on which every client's monitor listens, too.
//!
//! MON, UNMON and SIMU_CRASH fail: they would let another lock manager of this machine use this monitor. A machine that is an
//! NFS client itself needs its own `rpc.statd`.

pub(crate) mod record;

use crate::mount::Answer;
use crate::nlm::LockManager;
use crate::nlm::wire::name_and_state;
use crate::reply::Results;
use crate::wire::{Decoder, Encoder};
use std::sync::Arc;

/// RPC program number.
pub const PROGRAM: u32 = 100_024;
/// The only version.
pub const VERSION: u32 = 1;
/// Procedure by which a host announces its restart.
pub const NOTIFY: u32 = 6;
/// `res_stat` of a request that fails.
const STAT_FAIL: u32 = 1;
/// Maximum length of a name in bytes.
const MAX_NAME_BYTES: usize = 1024;

/// Answers a call of the host at this address.
pub(crate) async fn run(
    manager: &Arc<LockManager>,
    peer: &str,
    procedure: u32,
    arguments: &[u8],
    out: Encoder,
) -> Answer {
    let mut results = Results::new(out);
    let mut input = Decoder::new(arguments);
    match procedure {
        0 | 5 => {}
        // STAT and MON: the result and the state of this host.
        1 | 2 => {
            if input.opaque(MAX_NAME_BYTES).is_none() {
                return Answer::GarbageArguments;
            }
            results.encoder().u32(STAT_FAIL).u32(manager.state().await);
        }
        3 | 4 => drop(results.encoder().u32(manager.state().await)),
        NOTIFY => {
            let Some((name, state)) = name_and_state(&mut input) else { return Answer::GarbageArguments };
            tracing::info!(client = peer, name = %String::from_utf8_lossy(name), state, "the client has restarted");
            manager.client_restarted(peer);
        }
        _ => return Answer::ProcedureUnavailable,
    }
    Answer::Results(results)
}
