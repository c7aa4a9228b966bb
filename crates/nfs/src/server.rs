//! The session: one message in, at most one reply out. No socket; what it waits for are the file systems.

use crate::access::{NOBODY, Squash, caller};
use crate::duplicates::{self, Duplicates, Key, Turn};
use crate::handle::Handles;
use crate::mount;
use crate::nfs3::{self, Changes};
use crate::reply::Reply;
use crate::rpc::{self, Accept, Call, Message};
use bytes::Bytes;
use std::sync::Arc;
use tokio::time::Instant;
use weir_files::tree::Tree;
use weir_machine::{Request, Served};

/// How to serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Who becomes nobody.
    pub squash: Squash,
    /// The user that nobody is.
    pub anon_uid: u32,
    /// The group that nobody is in.
    pub anon_gid: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options { squash: Squash::Root, anon_uid: NOBODY, anon_gid: NOBODY }
    }
}

/// What a server knows that its clients must not be able to guess, or must be able to see change.
#[derive(Clone, Copy)]
pub struct Secrets {
    /// Keys the handles: see [`crate::handle`]. The same at each start, or handles of an earlier run are stale.
    pub handles: [u8; 32],
    /// The verifier of unstable writes: another one at each start.
    pub verifier: [u8; 8],
}

/// A client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address: what it is known by, over all its connections.
    pub name: Arc<str>,
    /// The port that it sends from.
    pub port: u16,
    /// Whether it may change anything.
    pub may_write: bool,
}

impl Peer {
    /// The client of that name.
    pub fn new(name: &str, may_write: bool) -> Self {
        Peer { name: name.into(), port: 0, may_write }
    }

    /// The same, sending from that port.
    pub fn from_port(self, port: u16) -> Self {
        Peer { port, ..self }
    }
}

/// How many bytes the reply to a message may hold, by what it asks for; 0 for the many that are short.
pub fn reply_bytes(message: &[u8]) -> usize {
    match rpc::read(message) {
        Message::Call(call) if call.program == nfs3::PROGRAM => nfs3::reply_bytes(call.procedure, call.arguments),
        Message::Call(call) if call.program == mount::PROGRAM => mount::reply_bytes(call.procedure),
        _ => 0,
    }
}

/// Answers calls to MOUNT and NFS for one pool.
pub struct Server {
    tree: Arc<Tree>,
    handles: Handles,
    verifier: [u8; 8],
    options: Options,
    changes: Changes,
    duplicates: Duplicates,
    served: Served,
}

impl Server {
    /// Serves `tree`.
    pub fn new(tree: impl Into<Arc<Tree>>, pool_guid: u64, secrets: Secrets, options: Options) -> Self {
        Server {
            tree: tree.into(),
            handles: Handles::new(pool_guid, secrets.handles),
            verifier: secrets.verifier,
            options,
            changes: Changes::default(),
            duplicates: Duplicates::default(),
            served: Served::default(),
        }
    }

    /// What was served so far.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Answers one message of a client; `None` if it is nothing that could be answered.
    pub async fn answer(&self, peer: &Peer, message: &Bytes) -> Option<Reply> {
        let call = match rpc::read(message) {
            Message::Call(call) => call,
            Message::Refused(reply) => return Some(Reply::of(reply)),
            Message::Noise => return None,
        };
        if call.program != nfs3::PROGRAM || !nfs3::changes_something(call.procedure) {
            return Some(self.booked(peer, &call, message).await);
        }
        match self.duplicates.begin(Key::new(&peer.name, peer.port, message), Instant::now()) {
            Turn::Wait(answer) => duplicates::wait(answer).await,
            Turn::Do(ticket) => {
                let reply = self.booked(peer, &call, message).await;
                ticket.keep(&reply, Instant::now());
                Some(reply)
            }
        }
    }

    async fn booked(&self, peer: &Peer, call: &Call<'_>, message: &Bytes) -> Reply {
        let operation = match call.program {
            nfs3::PROGRAM => nfs3::procedure_name(call.procedure).unwrap_or("unknown"),
            _ => mount::procedure_name(call.procedure),
        };
        let rq = Request::new(&*peer.name, "nfs3", operation);
        let reply = self.dispatch(peer, call, message, &rq).await;
        self.served.book(&rq);
        reply
    }

    async fn dispatch(&self, peer: &Peer, call: &Call<'_>, message: &Bytes, rq: &Request) -> Reply {
        let xid = call.xid;
        let refused = |why| Reply::of(rpc::accepted(xid, why).bytes);
        let mismatch = |low, high| Reply::of(rpc::version_mismatch(xid, low, high).bytes);
        let context = nfs3::Context {
            tree: &self.tree,
            handles: &self.handles,
            caller: caller(&call.credential, &self.options),
            rq,
            may_write: peer.may_write,
            changes: &self.changes,
            verifier: self.verifier,
            message,
        };
        let out = rpc::accepted(xid, Accept::Success);
        match (call.program, call.version) {
            (nfs3::PROGRAM, nfs3::VERSION) if nfs3::procedure_name(call.procedure).is_none() => {
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
