//! The session: maps one call message to at most one reply. It uses no sockets and awaits only file system
//! operations.

use crate::drc::{self, DrcDecision, DuplicateRequestCache, Key};
use crate::handle::Handles;
use crate::mount;
use crate::nfs3;
use crate::nlm::{self, LockManager};
use crate::nsm;
use crate::reply::Reply;
use crate::rpc::{self, Accept, Call, Message};
use bytes::Bytes;
use std::sync::{Arc, OnceLock};
use weir_front::{Caller, ExportRules, Files};
use weir_machine::{Accounts, Client, Clock, Nanos, Operation, Protocol, Request, RequestTotals};

/// Secret key and boot verifier of a server.
#[derive(Clone, Copy)]
pub struct Secrets {
    /// MAC key of the handles, see [`crate::handle`]. If it changes between starts, clients' handles become stale.
    pub handles: [u8; 32],
    /// Verifier of unstable writes; it must differ at each start.
    pub verifier: [u8; 8],
}

/// A client.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Address of the client, which identifies the client across connections.
    pub name: Arc<str>,
    /// Source port.
    pub port: u16,
    /// Whether it may modify files.
    pub may_write: bool,
    /// The client in the accounts, from its first call on. A clone that is made before looks it up again.
    client: OnceLock<Client>,
}

impl Peer {
    /// A client with this address; the port is 0.
    pub fn new(name: &str, may_write: bool) -> Self {
        Peer { name: name.into(), port: 0, may_write, client: OnceLock::new() }
    }

    /// Sets the source port.
    pub fn from_port(self, port: u16) -> Self {
        Peer { port, ..self }
    }
}

/// Maximum payload of the reply to a message in bytes, from the count that the call requests; 0 for procedures with
/// short replies.
pub fn reply_bytes(message: &[u8]) -> usize {
    match rpc::read(message) {
        Message::Call(call) if call.program == nfs3::PROGRAM => nfs3::reply_bytes(call.procedure, call.arguments),
        Message::Call(call) if call.program == mount::PROGRAM => mount::reply_bytes(call.procedure),
        _ => 0,
    }
}

/// Whether a message is a call of the lock manager or the status monitor.
pub(crate) fn is_about_locks(message: &[u8]) -> bool {
    matches!(rpc::read(message), Message::Call(call) if matches!(call.program, nlm::PROGRAM | nsm::PROGRAM))
}

/// Serves MOUNT, NFS and lock calls for one pool.
pub struct Server {
    files: Arc<dyn Files>,
    handles: Handles,
    verifier: [u8; 8],
    rules: ExportRules,
    accounts: Arc<Accounts>,
    drc: DuplicateRequestCache,
    clock: Option<Clock>,
    locks: Option<Arc<LockManager>>,
    mounts: mount::Mounts,
}

impl Server {
    /// Serves these files by these rules.
    pub fn new(files: Arc<dyn Files>, pool_guid: u64, secrets: Secrets, rules: ExportRules) -> Self {
        Server {
            files,
            handles: Handles::new(pool_guid, secrets.handles),
            verifier: secrets.verifier,
            rules,
            accounts: Arc::default(),
            drc: DuplicateRequestCache::default(),
            clock: None,
            locks: None,
            mounts: mount::Mounts::default(),
        }
    }

    /// Records calls in the pool's accounts instead of in accounts of the server.
    pub fn with_accounts(self, accounts: &Arc<Accounts>) -> Self {
        Server { accounts: accounts.clone(), ..self }
    }

    /// Sets the clock by which the duplicate request cache forgets replies; without one it keeps them until it is full.
    pub fn with_clock(self, clock: &Clock) -> Self {
        Server { clock: Some(clock.clone()), ..self }
    }

    /// Serves locks with this manager; without one, its programs are unavailable.
    pub fn with_locks(self, locks: Arc<LockManager>) -> Self {
        Server { locks: Some(locks), ..self }
    }

    /// Whether it serves locks.
    pub fn has_locks(&self) -> bool {
        self.locks.is_some()
    }

    /// Rules of the exports.
    pub fn rules(&self) -> &ExportRules {
        &self.rules
    }

    fn now(&self) -> Nanos {
        self.clock.as_ref().map_or(Nanos::default(), Clock::now)
    }

    /// Totals of all calls so far.
    pub fn served(&self) -> RequestTotals {
        self.accounts.protocol(Protocol::Nfs3)
    }

    /// Answers one message of a client; `None` if the message is not an RPC call.
    pub async fn answer(&self, peer: &Peer, message: &Bytes) -> Option<Reply> {
        let call = match rpc::read(message) {
            Message::Call(call) => call,
            Message::Refused(reply) => return Some(Reply::of(reply)),
            Message::NotACall => return None,
        };
        if call.program != nfs3::PROGRAM || !nfs3::is_non_idempotent(call.procedure) {
            return Some(self.answer_and_account(peer, &call, message).await);
        }
        match self.drc.begin(Key::new(&peer.name, peer.port, message), self.now()) {
            DrcDecision::Wait(answer) => drc::wait(answer).await,
            DrcDecision::Execute(reservation) => {
                let reply = self.answer_and_account(peer, &call, message).await;
                reservation.complete(&reply, self.now());
                Some(reply)
            }
        }
    }

    async fn answer_and_account(&self, peer: &Peer, call: &Call<'_>, message: &Bytes) -> Reply {
        let operation = match call.program {
            nfs3::PROGRAM => nfs3::operation(call.procedure).unwrap_or(Operation::Unknown),
            nlm::PROGRAM | nsm::PROGRAM => Operation::Lock,
            _ => Operation::Mount,
        };
        let accounts = &self.accounts;
        let client = peer.client.get_or_init(|| accounts.client(Protocol::Nfs3, &peer.name));
        let rq = accounts.begin(client, operation);
        let reply = self.dispatch(peer, call, message, &rq).await;
        accounts.record(&rq);
        reply
    }

    async fn dispatch(&self, peer: &Peer, call: &Call<'_>, message: &Bytes, rq: &Request) -> Reply {
        let xid = call.xid;
        let refused = |status| Reply::of(rpc::accepted(xid, status).bytes);
        let mismatch = |low, high| Reply::of(rpc::version_mismatch(xid, low, high).bytes);
        let credentials = self.rules.identity.map(call.credentials.as_ref());
        let caller = Caller { credentials, may_write: peer.may_write };
        let context =
            nfs3::Context { files: &*self.files, handles: &self.handles, caller, rq, verifier: self.verifier, message };
        let out = rpc::accepted(xid, Accept::Success);
        let answered = |answer| match answer {
            mount::Answer::Results(results) => results.finish(),
            mount::Answer::GarbageArguments => refused(Accept::GarbageArguments),
            mount::Answer::ProcedureUnavailable => refused(Accept::ProcedureUnavailable),
        };
        match (call.program, call.version) {
            (nfs3::PROGRAM, nfs3::VERSION) if nfs3::operation(call.procedure).is_none() => {
                refused(Accept::ProcedureUnavailable)
            }
            (nfs3::PROGRAM, nfs3::VERSION) => match nfs3::run(&context, call.procedure, call.arguments, out).await {
                Some(results) => results.finish(),
                None => refused(Accept::GarbageArguments),
            },
            (nfs3::PROGRAM, _) => mismatch(nfs3::VERSION, nfs3::VERSION),
            (mount::PROGRAM, version) if (mount::VERSIONS.0..=mount::VERSIONS.1).contains(&version) => answered(
                mount::run(&context, (&self.mounts, &peer.name), version, call.procedure, call.arguments, out).await,
            ),
            (mount::PROGRAM, _) => mismatch(mount::VERSIONS.0, mount::VERSIONS.1),
            (nlm::PROGRAM | nsm::PROGRAM, version) => match (&self.locks, call.program, version) {
                (Some(locks), nlm::PROGRAM, nlm::VERSION) => {
                    answered(nlm::run(locks, &context, &peer.name, call.procedure, call.arguments, out).await)
                }
                (Some(locks), nsm::PROGRAM, nsm::VERSION) => {
                    answered(nsm::run(locks, &peer.name, call.procedure, call.arguments, out).await)
                }
                (Some(_), nlm::PROGRAM, _) => mismatch(nlm::VERSION, nlm::VERSION),
                (Some(_), ..) => mismatch(nsm::VERSION, nsm::VERSION),
                (None, ..) => refused(Accept::ProgramUnavailable),
            },
            _ => refused(Accept::ProgramUnavailable),
        }
    }
}
