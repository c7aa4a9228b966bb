//! The session: maps one call message to at most one reply. It uses no sockets and awaits only file system
//! operations.

use crate::drc::{self, DrcDecision, DuplicateRequestCache, Key};
use crate::handle::Handles;
use crate::mount;
use crate::nfs3;
use crate::nlm::{self, LockManager};
use crate::nsm;
use crate::pools::{PoolTable, PoolUses};
use crate::reply::Reply;
use crate::rpc::{self, Accept, Call, Message};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use weir_front::{Caller, ClientConnection, Files, FrontEnd, Host};
use weir_machine::{Accounts, Clock, Nanos, Operation, Protocol, Request, RequestTotals};

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
    /// The pools that the client uses.
    pub(crate) uses: PoolUses,
}

impl Peer {
    /// A client with this address; the port is 0.
    pub fn new(address: IpAddr) -> Self {
        let host = Host { address, port: 0 };
        Peer { name: address.to_string().into(), host, uses: PoolUses::default() }
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

/// Whether a message is a call.
pub(crate) fn is_call(message: &[u8]) -> bool {
    matches!(rpc::read(message), Message::Call(_))
}

/// Whether a message is a call of the lock manager or the status monitor.
pub(crate) fn is_about_locks(message: &[u8]) -> bool {
    matches!(rpc::read(message), Message::Call(call) if matches!(call.program, nlm::PROGRAM | nsm::PROGRAM))
}

/// Properties of a call that its pool determines.
struct PoolContext<'a> {
    handles: &'a Handles,
    verifier: [u8; 8],
}

/// Serves MOUNT, NFS and lock calls for pools.
pub struct Server {
    files: Arc<dyn Files>,
    pools: PoolTable,
    /// Accounts of calls that concern no pool.
    accounts: Arc<Accounts>,
    drc: DuplicateRequestCache,
    clock: Option<Clock>,
    /// Set while [`crate::serve`] runs.
    front: OnceLock<Arc<FrontEnd>>,
    locks: Option<Arc<LockManager>>,
    mounts: mount::Mounts,
}

impl Server {
    /// Serves these files of one pool.
    pub fn new(files: Arc<dyn Files>, pool: (u64, &str), secrets: Secrets) -> Self {
        let server = Server::of_pools(files);
        server.add_pool(pool, secrets, &server.accounts);
        server
    }

    /// Serves these files, after [`Server::add_pool`] for each of their pools.
    pub fn of_pools(files: Arc<dyn Files>) -> Self {
        Server {
            files,
            pools: PoolTable::default(),
            accounts: Arc::default(),
            drc: DuplicateRequestCache::default(),
            clock: None,
            front: OnceLock::new(),
            locks: None,
            mounts: mount::Mounts::default(),
        }
    }

    /// Adds a pool, given by its GUID and name, whose calls are recorded in these accounts. A pool that is added again needs
    /// the same handle key, so that clients keep their handles, and another verifier.
    pub fn add_pool(&self, (guid, name): (u64, &str), secrets: Secrets, accounts: &Arc<Accounts>) {
        self.pools.add(guid, name, secrets, accounts);
    }

    /// Removes a pool: its handles are stale from now on.
    pub fn remove_pool(&self, guid: u64) {
        self.pools.remove(guid);
    }

    /// Sets the pools that will be added later, by GUID: clients that use them get the error "try again".
    pub fn expect_pools(&self, guids: BTreeSet<u64>) {
        self.pools.expect(guids);
    }

    /// Totals of the calls so far that concern no pool.
    pub fn served_beside_pools(&self) -> RequestTotals {
        self.accounts.protocol(Protocol::Nfs3)
    }

    /// Addresses of the clients that use a pool: their connections have used it, and they have not unmounted it.
    pub fn users(&self, guid: u64) -> Vec<String> {
        self.pools.users(guid)
    }

    /// The open connections.
    pub fn connections(&self) -> Vec<ClientConnection> {
        self.front.get().map(|front| front.shown()).unwrap_or_default()
    }

    /// Sets the front end whose connections [`Server::connections`] shows; only the first call has an effect.
    pub(crate) fn set_front(&self, front: &Arc<FrontEnd>) {
        // A server is served once.
        let _ = self.front.set(front.clone());
    }

    /// Records the client of a new connection, for [`Server::users`].
    pub(crate) fn connected(&self, peer: &Arc<Peer>) {
        self.pools.connected(peer);
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

    fn now(&self) -> Nanos {
        self.clock.as_ref().map_or(Nanos::default(), Clock::now)
    }

    /// Totals of the calls so far on the pools that are served now, and of the calls that concern no pool.
    pub fn served(&self) -> RequestTotals {
        let pools = self.pools.now();
        let mut all: Vec<&Arc<Accounts>> = pools.accounts().collect();
        all.push(&self.accounts);
        all.dedup_by(|one, other| Arc::ptr_eq(one, other));
        all.into_iter().fold(RequestTotals::default(), |sum, accounts| sum + accounts.protocol(Protocol::Nfs3))
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
            nlm::PROGRAM | nsm::PROGRAM => Operation::Lock,
            _ => Operation::Mount,
        };
        let pools = self.pools.now();
        let guid = pools.pool_of(call);
        let pool = guid.and_then(|guid| Some((guid, pools.get(guid)?)));
        let accounts = pool.map_or(&self.accounts, |(_, pool)| &pool.accounts);
        let client = match pool {
            Some((guid, _)) if call.program == nfs3::PROGRAM => peer.uses.client(guid, accounts, &peer.name),
            _ => accounts.client(Protocol::Nfs3, &peer.name),
        };
        if let Some(unmounted) = mount::unmounted(call) {
            self.pools.unmounted(&peer.name, guid.filter(|_| unmounted == mount::Unmounted::Path));
        }
        let rq = accounts.begin(&client, operation);
        let verifier = pool.map_or([0; 8], |(_, pool)| pool.verifier);
        let context = PoolContext { handles: &pools.handles, verifier };
        let reply = self.dispatch(peer, call, message, &rq, &context).await;
        accounts.record(&rq);
        drop(rq);
        reply
    }

    async fn dispatch(
        &self,
        peer: &Peer,
        call: &Call<'_>,
        message: &Bytes,
        rq: &Request,
        pool: &PoolContext<'_>,
    ) -> Reply {
        let xid = call.xid;
        let refused = |status| Reply::of(rpc::accepted(xid, status).bytes);
        let mismatch = |low, high| Reply::of(rpc::version_mismatch(xid, low, high).bytes);
        let caller = Caller { host: peer.host, credentials: call.credentials.clone() };
        let PoolContext { handles, verifier } = *pool;
        let context = nfs3::Context { files: &*self.files, handles, caller, rq, verifier, message };
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
