//! The session: maps one call message to at most one reply. It uses no sockets and awaits only file system
//! operations.

use crate::drc::{self, DrcDecision, DuplicateRequestCache, Key};
use crate::handle::Handles;
use crate::mount;
use crate::nfs3;
use crate::reply::Reply;
use crate::rpc::{self, Accept, Call, Message};
use bytes::Bytes;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use weir_front::{Caller, Files, Host};
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
    /// Address and source port.
    pub host: Host,
    /// The client in the accounts, from its first call on. A clone that is made before looks it up again.
    client: OnceLock<Client>,
}

impl Peer {
    /// A client with this address; the port is 0.
    pub fn new(address: IpAddr) -> Self {
        Peer { name: address.to_string().into(), host: Host { address, port: 0 }, client: OnceLock::new() }
    }

    /// Sets the source port.
    pub fn from_port(self, port: u16) -> Self {
        Peer { host: Host { port, ..self.host }, ..self }
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

/// Serves MOUNT and NFS calls for one pool.
pub struct Server {
    files: Arc<dyn Files>,
    handles: Handles,
    verifier: [u8; 8],
    accounts: Arc<Accounts>,
    drc: DuplicateRequestCache,
    clock: Option<Clock>,
}

impl Server {
    /// Serves these files.
    pub fn new(files: Arc<dyn Files>, pool_guid: u64, secrets: Secrets) -> Self {
        Server {
            files,
            handles: Handles::new(pool_guid, secrets.handles),
            verifier: secrets.verifier,
            accounts: Arc::default(),
            drc: DuplicateRequestCache::default(),
            clock: None,
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
        match self.drc.begin(Key::new(&peer.name, peer.host.port, message), self.now()) {
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
        let caller = Caller { host: peer.host, credentials: call.credentials.clone() };
        let context =
            nfs3::Context { files: &*self.files, handles: &self.handles, caller, rq, verifier: self.verifier, message };
        let out = rpc::accepted(xid, Accept::Success);
        match (call.program, call.version) {
            (nfs3::PROGRAM, nfs3::VERSION) if nfs3::operation(call.procedure).is_none() => {
                refused(Accept::ProcedureUnavailable)
            }
            (nfs3::PROGRAM, nfs3::VERSION) => match nfs3::run(&context, call.procedure, call.arguments, out).await {
                Some(results) => results.finish(),
                None => refused(Accept::GarbageArguments),
            },
            (nfs3::PROGRAM, _) => mismatch(nfs3::VERSION, nfs3::VERSION),
            (mount::PROGRAM, version) if (mount::VERSIONS.0..=mount::VERSIONS.1).contains(&version) => {
                match mount::run(&context, version, call.procedure, call.arguments, out).await {
                    mount::Answer::Results(results) => results.finish(),
                    mount::Answer::GarbageArguments => refused(Accept::GarbageArguments),
                    mount::Answer::ProcedureUnavailable => refused(Accept::ProcedureUnavailable),
                }
            }
            (mount::PROGRAM, _) => mismatch(mount::VERSIONS.0, mount::VERSIONS.1),
            _ => refused(Accept::ProgramUnavailable),
        }
    }
}
