//! The session: one message in, at most one reply out. No socket, no clock; what it waits for are the file systems.

use crate::access::Caller;
use crate::handle::Handles;
use crate::mount;
use crate::nfs3;
use crate::reply::Reply;
use crate::rpc::{self, Accept, Call, Message};
use weir_files::tree::Tree;
use weir_machine::{Request, Served};

/// How to serve.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// User and group 0 of clients become nobody.
    pub root_squash: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options { root_squash: true }
    }
}

/// Answers calls to MOUNT and NFS for one pool.
pub struct Server {
    tree: Tree,
    handles: Handles,
    options: Options,
    served: Served,
}

impl Server {
    /// Serves `tree`. `secret` keys the handles: see [`crate::handle`].
    pub fn new(tree: Tree, pool_guid: u64, secret: [u8; 32], options: Options) -> Self {
        Server { tree, handles: Handles::new(pool_guid, secret), options, served: Served::default() }
    }

    /// What was served so far.
    pub fn served(&self) -> &Served {
        &self.served
    }

    /// The tree.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Answers one message of `client`; `None` if it is nothing that could be answered.
    pub async fn answer(&self, client: &str, message: &[u8]) -> Option<Reply> {
        let call = match rpc::read(message) {
            Message::Call(call) => call,
            Message::Refused(reply) => return Some(Reply::of(reply)),
            Message::Noise => return None,
        };
        let operation = match call.program {
            nfs3::PROGRAM => nfs3::procedure_name(call.procedure).unwrap_or("unknown"),
            _ => mount::procedure_name(call.procedure),
        };
        let rq = Request::new(client, "nfs3", operation);
        let reply = self.dispatch(&call, &rq).await;
        self.served.book(&rq);
        Some(reply)
    }

    async fn dispatch(&self, call: &Call<'_>, rq: &Request) -> Reply {
        let xid = call.xid;
        let refused = |why| Reply::of(rpc::accepted(xid, why).bytes);
        let mismatch = |low, high| Reply::of(rpc::version_mismatch(xid, low, high).bytes);
        let caller = Caller::new(&call.credential, self.options.root_squash);
        let context = nfs3::Context { tree: &self.tree, handles: &self.handles, caller, rq };
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
