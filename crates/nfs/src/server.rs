//! The session: maps one call message to at most one reply. It uses no sockets and awaits only file system
//! operations.

use crate::drc::{self, DrcDecision, DuplicateRequestCache, Key};
use crate::handle::Handles;
use crate::mount;
use crate::nfs3;
use crate::pools::{PoolTable, PoolUses};
use crate::reply::Reply;
use crate::rpc::{self, Accept, Call, Message};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::sync::{Arc, OnceLock};
use weir_front::{Caller, ClientConnection, ExportRules, Files, FrontEnd};
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
    /// Source port.
    pub port: u16,
    /// Whether it may modify files.
    pub may_write: bool,
    /// The pools that the client uses.
    pub(crate) uses: PoolUses,
}

impl Peer {
    /// A client with this address; the port is 0.
    pub fn new(name: &str, may_write: bool) -> Self {
        Peer { name: name.into(), port: 0, may_write, uses: PoolUses::default() }
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

/// Whether a message is a call.
pub(crate) fn is_call(message: &[u8]) -> bool {
    matches!(rpc::read(message), Message::Call(_))
}

/// Properties of a call that its pool determines.
struct PoolContext<'a> {
    handles: &'a Handles,
    verifier: [u8; 8],
}

/// Serves MOUNT and NFS calls for pools.
pub struct Server {
    files: Arc<dyn Files>,
    pools: PoolTable,
    rules: ExportRules,
    /// Accounts of calls that concern no pool.
    accounts: Arc<Accounts>,
    drc: DuplicateRequestCache,
    clock: Option<Clock>,
    /// Set while [`crate::serve`] runs.
    front: OnceLock<Arc<FrontEnd>>,
}

impl Server {
    /// Serves these files of one pool by these rules.
    pub fn new(files: Arc<dyn Files>, pool: (u64, &str), secrets: Secrets, rules: ExportRules) -> Self {
        let server = Server::of_pools(files, rules);
        server.add_pool(pool, secrets, &server.accounts);
        server
    }

    /// Serves these files by these rules, after [`Server::add_pool`] for each of their pools.
    pub fn of_pools(files: Arc<dyn Files>, rules: ExportRules) -> Self {
        Server {
            files,
            pools: PoolTable::default(),
            rules,
            accounts: Arc::default(),
            drc: DuplicateRequestCache::default(),
            clock: None,
            front: OnceLock::new(),
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

    /// Rules of the exports.
    pub fn rules(&self) -> &ExportRules {
        &self.rules
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
        let credentials = self.rules.identity.map(call.credentials.as_ref());
        let caller = Caller { credentials, may_write: peer.may_write };
        let PoolContext { handles, verifier } = *pool;
        let context = nfs3::Context { files: &*self.files, handles, caller, rq, verifier, message };
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
