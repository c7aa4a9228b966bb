//! Modification of one file: SETATTR, WRITE, COMMIT.
//!
//! **Stability.** A WRITE with DATA_SYNC or FILE_SYNC, a COMMIT, and every other modifying call is answered after the
//! file system's intent log is on stable storage ([`weir_files::tree::Tree::sync`]), as the protocol demands. An
//! UNSTABLE WRITE is answered as soon as the data can be read back. The verifier in the replies is new at each start
//! of the server: a client that sees it change rewrites its uncommitted data.
//!
//! **The owner may write.** A client checked permissions when it opened the file; POSIX allows it to continue writing
//! after the mode was changed. So the owner of a file may always write and truncate it.

use super::arguments::{self, StableHow};
use super::wcc::{TrackedChange, WccData};
use super::{Context, ResolvedFile, Status, WRITE_MAX_BYTES, handle_argument, nfs_time};
use crate::reply::Results;
use crate::wire::Decoder;
use weir_files::permission::WRITE;
use weir_files::{Cred, FileKind, SetAttributes, SetTime, WriteAt};
use weir_machine::compact;

impl Context<'_> {
    /// Resolves a handle and registers a change of its file before its attributes are read.
    pub(super) async fn begin_change(&self, handle: &[u8]) -> Result<(TrackedChange<'_>, ResolvedFile), Status> {
        let (node, generation) = self.node(handle)?;
        let change = self.wcc_tracker.begin(node);
        let found = self.resolve_node(node, generation).await?;
        Ok((change, found))
    }

    /// Builds `wcc_data` from the attributes before the change and the current ones.
    pub(super) async fn wcc(&self, change: &TrackedChange<'_>, before: ResolvedFile) -> WccData {
        let after = self.at(before.node).await.ok();
        WccData { before: change.was_exclusive().then_some(before), after }
    }

    /// Fails with NFS3ERR_ROFS unless this client may write and the file's file system is writable.
    pub(super) async fn require_writable(&self, found: &ResolvedFile) -> Result<(), Status> {
        let writable = self.tree.is_writable(self.rq, found.node).await.map_err(|e| self.report(&e))?;
        if self.may_write && writable { Ok(()) } else { Err(Status::Rofs) }
    }

    /// Waits until all changes of the file's file system are on stable storage.
    pub(super) async fn make_stable(&self, found: &ResolvedFile) -> Result<(), Status> {
        self.tree.sync(self.rq, found.node).await.map_err(|e| self.report(&e))
    }

    /// Credentials of the caller.
    pub(super) fn cred(&self) -> Cred {
        self.caller.clone()
    }

    pub(super) async fn setattr(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let set = arguments::attributes(&mut input)?;
        let guard = arguments::guard(&mut input)?;
        let (status, wcc) = match self.begin_change(handle).await {
            Err(status) => (status, WccData::default()),
            Ok((change, found)) => {
                let done = self.set(&found, &set, guard).await;
                (done.err().unwrap_or(Status::Ok), self.wcc(&change, found).await)
            }
        };
        wcc.put(out.status(status));
        Some(())
    }

    /// Sets attributes; stable on return.
    pub(super) async fn set(
        &self,
        found: &ResolvedFile,
        set: &SetAttributes,
        guard: Option<(u32, u32)>,
    ) -> Result<(), Status> {
        self.require_writable(found).await?;
        if guard.is_some_and(|guard| guard != nfs_time(found.attributes.ctime_ns)) {
            return Err(Status::NotSync);
        }
        if set.is_empty() {
            return Ok(());
        }
        let now = |time: Option<SetTime>| !matches!(time, Some(SetTime::At(_)));
        let only_truncates = set.size_bytes.is_some()
            && (set.mode, set.uid, set.gid) == (None, None, None)
            && now(set.atime)
            && now(set.mtime);
        let cred = if only_truncates && self.is_owner(found) { self.cred().checked() } else { self.cred() };
        let done = self.tree.set_attributes(self.rq, &cred, found.node, set).await;
        done.map_err(|e| self.report(&e))?;
        self.make_stable(found).await
    }

    fn is_owner(&self, found: &ResolvedFile) -> bool {
        self.caller.uid == found.attributes.uid
    }

    pub(super) async fn write(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let offset = input.u64()?;
        let count = input.u32()?;
        let stable = StableHow::read(&mut input)?;
        let data = input.opaque(WRITE_MAX_BYTES as usize)?.get(..count as usize)?;
        let (done, wcc) = match self.begin_change(handle).await {
            Err(status) => (Err(status), WccData::default()),
            Ok((change, found)) => {
                let done = self.write_data(&found, offset, data, stable).await;
                (done, self.wcc(&change, found).await)
            }
        };
        let out = out.status(done.err().unwrap_or(Status::Ok));
        wcc.put(out);
        if let Ok(committed) = done {
            out.u32(count).u32(committed as u32).fixed(&self.verifier);
        }
        Some(())
    }

    /// Writes data and returns the stability that was reached.
    async fn write_data(
        &self,
        found: &ResolvedFile,
        offset: u64,
        data: &[u8],
        stable: StableHow,
    ) -> Result<StableHow, Status> {
        match found.attributes.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(Status::IsDir),
            _ => return Err(Status::Inval),
        }
        self.require_writable(found).await?;
        if !self.is_owner(found) {
            self.require(found, WRITE).await?;
        }
        if !data.is_empty() {
            // The data stay in memory until they are synced; copy them if the message's buffer is much larger.
            let data = compact(self.message.slice_ref(data), self.message.len());
            let cred = self.cred().checked();
            let done = self.tree.write(self.rq, &cred, found.node, WriteAt::Offset(offset), data).await;
            done.map_err(|e| self.report(&e))?;
        }
        if stable == StableHow::Unstable {
            return Ok(StableHow::Unstable);
        }
        self.make_stable(found).await?;
        Ok(StableHow::FileSync)
    }

    pub(super) async fn commit(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let _offset = input.u64()?;
        let _count = input.u32()?;
        let committed = async {
            let found = self.resolve(handle).await.map_err(|status| (status, None))?;
            // Also for file systems that have become read-only: earlier writes may not be stable yet.
            let done = if self.may_write { self.make_stable(&found).await } else { Err(Status::Rofs) };
            done.map(|()| found.clone()).map_err(|status| (status, Some(found)))
        };
        match committed.await {
            Ok(found) => {
                let out = out.status(Status::Ok);
                WccData::unchanged(Some(found)).put(out);
                out.fixed(&self.verifier);
            }
            Err((status, found)) => WccData::unchanged(found).put(out.status(status)),
        }
        Some(())
    }
}
