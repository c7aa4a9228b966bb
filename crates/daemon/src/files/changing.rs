//! Data and attributes of one file.

use super::tracker::{ChangeTracker, TrackedChange};
use super::{Call, ResolvedFile, shown};
use bytes::Bytes;
use weir_files::permission::WRITE;
use weir_files::{FileKind, SetTime, WriteAt};
use weir_front::files::{BeforeAfter, Change, Condition, FileError, FileId, SetAttributes, Stability};

/// The attributes as the file systems know them.
pub(super) fn stored(set: &SetAttributes) -> weir_files::SetAttributes {
    let time = |time: weir_front::files::SetTime| match time {
        weir_front::files::SetTime::Now => SetTime::Now,
        weir_front::files::SetTime::At(ns) => SetTime::At(ns),
    };
    weir_files::SetAttributes {
        mode: set.mode,
        uid: set.uid,
        gid: set.gid,
        size_bytes: set.size_bytes,
        atime: set.atime.map(time),
        mtime: set.mtime.map(time),
    }
}

/// A call that changes files. It registers each change, so that overlapping ones are known, and makes it stable.
pub(super) struct ChangingCall<'a> {
    pub(super) call: Call<'a>,
    pub(super) tracker: &'a ChangeTracker,
}

impl ChangingCall<'_> {
    /// Waits until all changes of the file's file system are on stable storage.
    pub(super) async fn make_stable(&self, found: &ResolvedFile) -> Result<(), FileError> {
        self.call.tree.sync(self.call.rq, found.node).await.map_err(shown)
    }

    /// Finds a file, and registers a change of it before its attributes are read.
    pub(super) async fn begin_change(&self, id: FileId) -> Result<(TrackedChange<'_>, ResolvedFile), FileError> {
        let change = self.tracker.begin(self.call.node(id)?);
        let found = self.call.resolve(id).await?;
        Ok((change, found))
    }

    /// The attributes before the change, and the current ones.
    pub(super) async fn before_after(&self, change: &TrackedChange<'_>, before: &ResolvedFile) -> BeforeAfter {
        let after = self.call.at(before.node).await.ok().map(|found| found.shown());
        BeforeAfter { before: change.was_exclusive().then(|| before.shown()), after }
    }

    pub(super) async fn set_attributes(
        &self,
        id: FileId,
        set: &SetAttributes,
        condition: Option<Condition<'_>>,
    ) -> Change<()> {
        match self.begin_change(id).await {
            Err(error) => Change { result: Err(error), file: BeforeAfter::default() },
            Ok((change, found)) => {
                let result = match condition.is_none_or(|holds| holds(&found.shown())) {
                    true => self.set(&found, set).await,
                    // A read-only file system is the reason that matters to the client.
                    false => self.call.require_writable(&found).await.and(Err(FileError::Changed)),
                };
                Change { result, file: self.before_after(&change, &found).await }
            }
        }
    }

    /// Sets attributes; stable on return.
    pub(super) async fn set(&self, found: &ResolvedFile, set: &SetAttributes) -> Result<(), FileError> {
        self.call.require_writable(found).await?;
        if set.is_empty() {
            return Ok(());
        }
        let now = |time: Option<weir_front::files::SetTime>| !matches!(time, Some(weir_front::files::SetTime::At(_)));
        let only_truncates = set.size_bytes.is_some()
            && (set.mode, set.uid, set.gid) == (None, None, None)
            && now(set.atime)
            && now(set.mtime);
        let cred = self.call.cred.clone();
        let cred = if only_truncates && self.call.is_owner(found) { cred.checked() } else { cred };
        self.call.tree.set_attributes(self.call.rq, &cred, found.node, &stored(set)).await.map_err(shown)?;
        self.make_stable(found).await
    }

    pub(super) async fn write(&self, id: FileId, offset: u64, data: Bytes, stability: Stability) -> Change<Stability> {
        match self.begin_change(id).await {
            Err(error) => Change { result: Err(error), file: BeforeAfter::default() },
            Ok((change, found)) => {
                let result = self.write_data(&found, offset, data, stability).await;
                Change { result, file: self.before_after(&change, &found).await }
            }
        }
    }

    /// Writes data and returns the stability that was reached.
    async fn write_data(
        &self,
        found: &ResolvedFile,
        offset: u64,
        data: Bytes,
        stability: Stability,
    ) -> Result<Stability, FileError> {
        match found.attributes.kind {
            FileKind::Regular => {}
            FileKind::Directory => return Err(FileError::IsDirectory),
            _ => return Err(FileError::Invalid { why: "not a regular file" }),
        }
        self.call.require_writable(found).await?;
        if !self.call.is_owner(found) {
            self.call.require(found, WRITE).await?;
        }
        if !data.is_empty() {
            let cred = self.call.cred.clone().checked();
            self.call
                .tree
                .write(self.call.rq, &cred, found.node, WriteAt::Offset(offset), data)
                .await
                .map_err(shown)?;
        }
        if stability == Stability::Stable {
            self.make_stable(found).await?;
        }
        Ok(stability)
    }

    pub(super) async fn commit(&self, id: FileId) -> Change<()> {
        match self.call.resolve(id).await {
            Err(error) => Change { result: Err(error), file: BeforeAfter::default() },
            Ok(found) => {
                // Also for file systems that have become read-only: earlier writes may not be stable yet.
                let result =
                    if self.call.may_write { self.make_stable(&found).await } else { Err(FileError::ReadOnly) };
                Change { result, file: BeforeAfter::unchanged(Some(found.shown())) }
            }
        }
    }
}
