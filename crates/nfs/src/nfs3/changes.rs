//! Changes of one file: SETATTR, WRITE, COMMIT.
//!
//! **Stable is stable.** A WRITE that asks for DATA_SYNC or FILE_SYNC, and each COMMIT, is answered when the file system's
//! log is on stable storage ([`weir_files::tree::Tree::sync`]), and so is everything else that changes anything, as the
//! protocol demands. An UNSTABLE WRITE is answered when it can be read back. The verifier in the answers is made anew at
//! each start of the server: a client that sees it change writes what it has not committed again.
//!
//! **The owner may write.** A client checked permissions when the file was opened; POSIX lets it go on writing though the
//! mode was changed since. So the owner of a file may always write and cut it.

use super::arguments::{self, Stable};
use super::weak::{Change, Weak};
use super::{Context, Found, Status, WRITE_MAX_BYTES, handle_argument, nfs_time};
use crate::reply::Results;
use crate::wire::Decoder;
use weir_files::permission::WRITE;
use weir_files::{Cred, FileKind, SetAttributes, SetTime, WriteAt};
use weir_machine::lean;

impl Context<'_> {
    /// Begins a change of the file of a handle, and looks at it.
    pub(super) async fn changing(&self, handle: &[u8]) -> Result<(Change<'_>, Found), Status> {
        let (node, generation) = self.node(handle)?;
        let change = self.changes.begin(node);
        let found = self.resolve_node(node, generation).await?;
        Ok((change, found))
    }

    /// A file after a change that began when it was as `before` says.
    pub(super) async fn weak(&self, change: &Change<'_>, before: Found) -> Weak {
        let after = self.at(before.node).await.ok();
        Weak { before: change.was_alone().then_some(before), after }
    }

    /// An error unless this client may change the file system of a file, and it can be changed at all.
    pub(super) async fn may_change(&self, found: &Found) -> Result<(), Status> {
        let writable = self.tree.is_writable(self.rq, found.node).await.map_err(|e| self.report(&e))?;
        if self.may_write && writable { Ok(()) } else { Err(Status::Rofs) }
    }

    /// Waits until what was done is on stable storage.
    pub(super) async fn make_stable(&self, found: &Found) -> Result<(), Status> {
        self.tree.sync(self.rq, found.node).await.map_err(|e| self.report(&e))
    }

    /// Who acts, as file systems know it.
    pub(super) fn cred(&self) -> Cred {
        self.caller.clone()
    }

    pub(super) async fn setattr(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let set = arguments::attributes(&mut input)?;
        let guard = arguments::guard(&mut input)?;
        let (status, weak) = match self.changing(handle).await {
            Err(status) => (status, Weak::default()),
            Ok((change, found)) => {
                let done = self.set(&found, &set, guard).await;
                (done.err().unwrap_or(Status::Ok), self.weak(&change, found).await)
            }
        };
        weak.put(out.status(status));
        Some(())
    }

    /// Sets attributes, stable when it returns.
    pub(super) async fn set(
        &self,
        found: &Found,
        set: &SetAttributes,
        guard: Option<(u32, u32)>,
    ) -> Result<(), Status> {
        self.may_change(found).await?;
        if guard.is_some_and(|guard| guard != nfs_time(found.attributes.ctime_ns)) {
            return Err(Status::NotSync);
        }
        if set.is_empty() {
            return Ok(());
        }
        let now = |time: Option<SetTime>| !matches!(time, Some(SetTime::At(_)));
        let cuts_alone = set.size_bytes.is_some()
            && (set.mode, set.uid, set.gid) == (None, None, None)
            && now(set.atime)
            && now(set.mtime);
        let cred = if cuts_alone && self.is_owner(found) { self.cred().checked() } else { self.cred() };
        let done = self.tree.set_attributes(self.rq, &cred, found.node, set).await;
        done.map_err(|e| self.report(&e))?;
        self.make_stable(found).await
    }

    fn is_owner(&self, found: &Found) -> bool {
        self.caller.uid == found.attributes.uid
    }

    pub(super) async fn write(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let (offset, count) = (input.u64()?, input.u32()?);
        let stable = Stable::read(&mut input)?;
        let data = input.opaque(WRITE_MAX_BYTES as usize)?.get(..count as usize)?;
        let (done, weak) = match self.changing(handle).await {
            Err(status) => (Err(status), Weak::default()),
            Ok((change, found)) => {
                let done = self.put_bytes(&found, offset, data, stable).await;
                (done, self.weak(&change, found).await)
            }
        };
        let out = out.status(done.err().unwrap_or(Status::Ok));
        weak.put(out);
        if let Ok(committed) = done {
            out.u32(count).u32(committed as u32).fixed(&self.verifier);
        }
        Some(())
    }

    /// Writes; says how stable it is.
    async fn put_bytes(&self, found: &Found, offset: u64, data: &[u8], stable: Stable) -> Result<Stable, Status> {
        match found.attributes.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Status::IsDir),
            _ => return Err(Status::Inval),
        }
        self.may_change(found).await?;
        if !self.is_owner(found) {
            self.require(found, WRITE).await?;
        }
        if !data.is_empty() {
            // It is held until it is synced; the message may be longer than it has to be.
            let data = lean(self.message.slice_ref(data), self.message.len());
            let cred = self.cred().checked();
            let done = self.tree.write(self.rq, &cred, found.node, WriteAt::Offset(offset), data).await;
            done.map_err(|e| self.report(&e))?;
        }
        if stable == Stable::Unstable {
            return Ok(Stable::Unstable);
        }
        self.make_stable(found).await?;
        Ok(Stable::FileSync)
    }

    pub(super) async fn commit(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let (_offset, _count) = (input.u64()?, input.u32()?);
        let committed = async {
            let found = self.resolve(handle).await.map_err(|status| (status, None))?;
            // Also where nothing may change any more: what was written before may not be stable yet.
            let done = if self.may_write { self.make_stable(&found).await } else { Err(Status::Rofs) };
            done.map(|()| found.clone()).map_err(|status| (status, Some(found)))
        };
        match committed.await {
            Ok(found) => {
                let out = out.status(Status::Ok);
                Weak::unchanged(Some(found)).put(out);
                out.fixed(&self.verifier);
            }
            Err((status, found)) => Weak::unchanged(found).put(out.status(status)),
        }
        Some(())
    }
}
