//! Runs the operations of a mount: the caller, its credentials, its request, and the reply.

use crate::callers::Caller;
use crate::changes::Create;
use crate::fuse_ops::FuseOps;
use crate::inner::{Entry, Inner};
use fuser::{Errno, Generation, INodeNo, ReplyEmpty, ReplyEntry, Request as KernelRequest};
use std::ffi::OsStr;
use std::future::Future;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use weir_files::{Cred, NewKind, acl_xdr};
use weir_machine::{Operation, Request};

impl FuseOps {
    /// Runs one operation: on this thread until it first waits, then as a task.
    pub(crate) fn run<F>(
        &self,
        from: &KernelRequest,
        operation: Operation,
        work: impl FnOnce(Arc<Inner>, Arc<Request>) -> F + Send + 'static,
    ) where
        F: Future<Output = ()> + Send + 'static,
    {
        let caller = Caller::of(from);
        let inner = Arc::clone(&self.inner);
        let known = inner.known_client(caller);
        let is_known = known.is_some();
        let operation = async move {
            let client = match known {
                Some(client) => client,
                None => inner.find_client(caller).await,
            };
            let rq = Arc::new(inner.tree.accounts().begin(&client, operation).with_user(caller.uid()));
            work(Arc::clone(&inner), Arc::clone(&rq)).await;
            inner.tree.accounts().record(&rq);
            drop(rq);
        };
        match is_known {
            true => self.tasks.start(operation),
            // The file server may have to be asked, which can block this thread and needs the runtime.
            false => drop(self.tasks.spawn(operation)),
        }
    }

    /// Credentials for operations on names and on files that are not open.
    pub(crate) fn cred(&self, from: &KernelRequest) -> Cred {
        self.inner.cred(Caller::of(from))
    }

    /// Credentials for a change of an extended attribute. The kernel checks those of other namespaces, not the ACL.
    pub(crate) fn xattr_cred(&self, from: &KernelRequest, name: &OsStr) -> Cred {
        match name.as_bytes() {
            acl_xdr::NAME if self.inner.server.is_none() => Caller::of(from).cred(),
            _ => self.cred(from),
        }
    }

    /// Runs one operation whose reply is only success or an error.
    pub(crate) fn run_empty<F>(
        &self,
        from: &KernelRequest,
        operation: Operation,
        reply: ReplyEmpty,
        work: impl FnOnce(Arc<Inner>, Arc<Request>, Cred) -> F + Send + 'static,
    ) where
        F: Future<Output = Result<(), Errno>> + Send + 'static,
    {
        let cred = self.cred(from);
        self.run(from, operation, move |inner, rq| {
            let work = work(inner, rq, cred);
            async move {
                match work.await {
                    Ok(()) => reply.ok(),
                    Err(errno) => reply.error(errno),
                }
            }
        });
    }

    /// Creates a file of any kind; the pair is its mode and the caller's umask.
    #[allow(clippy::too_many_arguments, reason = "parameters of the FUSE request")]
    pub(crate) fn run_create(
        &self,
        from: &KernelRequest,
        operation: Operation,
        parent: INodeNo,
        name: &OsStr,
        kind: NewKind,
        (mode, umask): (u32, u32),
        reply: ReplyEntry,
    ) {
        let name = name.as_bytes().to_vec();
        let cred = self.cred(from);
        self.run(from, operation, move |inner, rq| async move {
            let made = inner.create(&rq, &cred, Create { parent, name: &name, kind, mode, umask }).await;
            reply_entry(&inner, reply, made);
        });
    }
}

/// Credentials for operations on an open file, whose permissions were checked when it was opened.
pub(crate) fn opened_cred(from: &KernelRequest) -> Cred {
    Caller::of(from).opened_cred()
}

pub(crate) fn reply_entry(inner: &Inner, reply: ReplyEntry, entry: Result<Entry, Errno>) {
    match entry {
        Ok(Entry { attributes, generation, entry_ttl }) => {
            reply.entry_with_ttls(&inner.attr_ttl, &entry_ttl, &attributes, Generation(generation));
        }
        Err(errno) => reply.error(errno),
    }
}
