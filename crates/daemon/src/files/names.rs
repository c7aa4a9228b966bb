//! Entries of directories: create, remove, rename, link.
//!
//! The file system checks permissions; this module implements the create modes, and reports every directory involved before
//! and after.

use super::changing::{ChangingCall, stored};
use super::tracker::TrackedChange;
use super::{ResolvedFile, shown};
use weir_files::DirName;
use weir_files::{FileKind, NewKind, RenameMode};
use weir_front::files::{
    BeforeAfter, Change, CreateMode, Failure, File, FileError, FileId, Link, New, Rename, SetAttributes, SetTime,
};

/// Maximum attempts of a creation whose name is concurrently created and removed.
const MAX_CREATE_ATTEMPTS: u32 = 8;
const SECOND_NS: i128 = 1_000_000_000;

/// Encodes the verifier of an exclusive creation as access and modification time in nanoseconds. The file keeps them until
/// the client sets its attributes. Whole seconds below 2^31, which every client can represent.
fn verifier_times(verifier: [u8; 8]) -> (i128, i128) {
    let [a, b, c, d, e, f, g, h] = verifier;
    let seconds = |word: [u8; 4]| i128::from(u32::from_be_bytes(word) & 0x7fff_ffff) * SECOND_NS;
    (seconds([a, b, c, d]), seconds([e, f, g, h]))
}

impl ChangingCall<'_> {
    /// Finds a writable directory and registers a change of it.
    async fn begin_directory_change(&self, id: FileId) -> Result<(TrackedChange<'_>, ResolvedFile), Failure> {
        let (change, dir) = self.begin_change(id).await?;
        let allowed = match dir.attributes.kind {
            FileKind::Directory => self.call.require_writable(&dir).await,
            _ => Err(FileError::NotDirectory),
        };
        match allowed {
            Ok(()) => Ok((change, dir)),
            Err(error) => Err(Failure { error, file: Some(dir.shown()) }),
        }
    }

    pub(super) async fn create(&self, dir: FileId, name: &[u8], new: New, set: SetAttributes) -> Change<File> {
        let (change, dir) = match self.begin_directory_change(dir).await {
            Ok(begun) => begun,
            Err(Failure { error, file }) => return Change { result: Err(error), file: BeforeAfter::unchanged(file) },
        };
        let made = match new {
            New::Regular(mode) => self.create_file(&dir, name, mode, set).await,
            other => self.create_other(&dir, name, other, set).await,
        };
        let result = match made {
            Ok(made) => self.make_stable(&dir).await.and_then(|()| self.call.file(&made)),
            Err(error) => Err(error),
        };
        Change { result, file: self.before_after(&change, &dir).await }
    }

    /// A new file with the attributes that the client requested, as far as they are permitted.
    fn new_file(&self, kind: NewKind, set: SetAttributes) -> weir_files::New {
        // A new file is empty, so a size of 0 changes nothing.
        let size_bytes = set.size_bytes.filter(|size| *size != 0 && kind == NewKind::Regular);
        let superuser = self.call.cred.uid == 0;
        let uid = set.uid.filter(|_| superuser);
        let gid = set.gid.filter(|gid| superuser || self.call.cred.in_group(*gid));
        let mode = set.mode.unwrap_or(0);
        let set = stored(&SetAttributes { mode: None, size_bytes, uid, gid, ..set });
        weir_files::New { set, ..weir_files::New::of(kind, mode) }
    }

    async fn create_other(
        &self,
        dir: &ResolvedFile,
        name: &[u8],
        new: New,
        set: SetAttributes,
    ) -> Result<ResolvedFile, FileError> {
        let kind = match new {
            New::Regular(_) => NewKind::Regular,
            New::Directory => NewKind::Directory,
            New::Symlink(target) => NewKind::Symlink(target),
            New::BlockDevice(major, minor) => NewKind::BlockDevice(major, minor),
            New::CharDevice(major, minor) => NewKind::CharDevice(major, minor),
            New::Fifo => NewKind::Fifo,
            New::Socket => NewKind::Socket,
        };
        if matches!(kind, NewKind::BlockDevice(..) | NewKind::CharDevice(..)) && self.call.cred.uid != 0 {
            return Err(FileError::NotPermitted);
        }
        let new = self.new_file(kind, set);
        let (node, attributes) =
            self.call.tree.create(self.call.rq, &self.call.cred, dir.node, name, &new).await.map_err(shown)?;
        Ok(ResolvedFile { node, attributes, fsid: dir.fsid })
    }

    async fn create_file(
        &self,
        dir: &ResolvedFile,
        name: &[u8],
        mode: CreateMode,
        set: SetAttributes,
    ) -> Result<ResolvedFile, FileError> {
        let set = match mode {
            CreateMode::Unchecked | CreateMode::Guarded => set,
            CreateMode::Exclusive(verifier) => {
                let (atime, mtime) = verifier_times(verifier);
                let atime = Some(SetTime::At(atime));
                let mtime = Some(SetTime::At(mtime));
                SetAttributes { atime, mtime, ..SetAttributes::default() }
            }
        };
        let new = self.new_file(NewKind::Regular, set);
        for _ in 0..MAX_CREATE_ATTEMPTS {
            match self.call.tree.create(self.call.rq, &self.call.cred, dir.node, name, &new).await {
                Ok((node, attributes)) => return Ok(ResolvedFile { node, attributes, fsid: dir.fsid }),
                Err(weir_files::FileError::Exists) if mode != CreateMode::Guarded => {}
                Err(error) => return Err(shown(error)),
            }
            match self.existing(dir, name, mode, set.size_bytes).await {
                // It existed and was removed since: try to create it again.
                Err(FileError::NotFound) => {}
                other => return other,
            }
        }
        Err(FileError::TryAgain)
    }

    /// The existing file with this name, if the create mode allows it.
    async fn existing(
        &self,
        dir: &ResolvedFile,
        name: &[u8],
        mode: CreateMode,
        size_bytes: Option<u64>,
    ) -> Result<ResolvedFile, FileError> {
        let node = self.call.tree.lookup(self.call.rq, dir.node, name).await.map_err(shown)?;
        let found = self.call.at(node).await?;
        if found.attributes.kind != FileKind::Regular {
            return Err(FileError::Exists);
        }
        match mode {
            CreateMode::Exclusive(verifier) => {
                let times = (found.attributes.atime_ns, found.attributes.mtime_ns);
                let ours = times == verifier_times(verifier) && found.attributes.size_bytes == 0;
                if ours { Ok(found) } else { Err(FileError::Exists) }
            }
            // Only the size of an existing file is set.
            CreateMode::Unchecked if size_bytes.is_some() => {
                self.set(&found, &SetAttributes { size_bytes, ..SetAttributes::default() }).await?;
                self.call.at(node).await
            }
            CreateMode::Unchecked => Ok(found),
            CreateMode::Guarded => Err(FileError::Exists),
        }
    }

    pub(super) async fn remove(&self, dir: FileId, name: &[u8], is_dir: bool) -> Change<()> {
        match self.begin_directory_change(dir).await {
            Err(Failure { error, file }) => Change { result: Err(error), file: BeforeAfter::unchanged(file) },
            Ok((change, dir)) => {
                let done = match is_dir {
                    true => self.call.tree.remove_dir(self.call.rq, &self.call.cred, dir.node, name).await,
                    false => self.call.tree.remove(self.call.rq, &self.call.cred, dir.node, name).await,
                };
                let result = match done {
                    Ok(()) => self.make_stable(&dir).await,
                    Err(error) => Err(shown(error)),
                };
                Change { result, file: self.before_after(&change, &dir).await }
            }
        }
    }

    pub(super) async fn rename(&self, from: (FileId, &[u8]), to: (FileId, &[u8])) -> Rename {
        let (change, dir) = match self.begin_directory_change(from.0).await {
            Ok(begun) => begun,
            Err(Failure { error, file }) => {
                return Rename { result: Err(error), from: BeforeAfter::unchanged(file), to: BeforeAfter::default() };
            }
        };
        // A rename within one directory is one change, not two overlapping ones.
        let other = if to.0 == from.0 { None } else { Some(self.begin_directory_change(to.0).await) };
        let (other_change, other) = match other {
            None => (None, dir.clone()),
            Some(Ok((change, other))) => (Some(change), other),
            Some(Err(Failure { error, file })) => {
                let from = self.before_after(&change, &dir).await;
                return Rename { result: Err(error), from, to: BeforeAfter::unchanged(file) };
            }
        };
        let old = DirName { dir: dir.node, name: from.1 };
        let new = DirName { dir: other.node, name: to.1 };
        let done = self.call.tree.rename(self.call.rq, &self.call.cred, old, new, RenameMode::Replace).await;
        let result = match done {
            Ok(()) => self.make_stable(&dir).await,
            Err(error) => Err(shown(error)),
        };
        let to = self.before_after(other_change.as_ref().unwrap_or(&change), &other).await;
        let from = self.before_after(&change, &dir).await;
        Rename { result, from, to }
    }

    pub(super) async fn link(&self, file: FileId, dir: FileId, name: &[u8]) -> Link {
        // The file changes too: its link count.
        let (_file_change, file) = match self.begin_change(file).await {
            Ok(begun) => begun,
            Err(error) => return Link { result: Err(error), file: None, dir: BeforeAfter::default() },
        };
        let (change, dir) = match self.begin_directory_change(dir).await {
            Ok(begun) => begun,
            Err(Failure { error, file: dir }) => {
                return Link { result: Err(error), file: Some(file.shown()), dir: BeforeAfter::unchanged(dir) };
            }
        };
        let result = match self.call.tree.link(self.call.rq, &self.call.cred, file.node, dir.node, name).await {
            Ok(_) => self.make_stable(&dir).await,
            Err(error) => Err(shown(error)),
        };
        let file = self.call.at(file.node).await.ok().map(|found| found.shown());
        Link { result, file, dir: self.before_after(&change, &dir).await }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verifiers_map_to_distinct_times_below_2_to_the_31() {
        let (atime, mtime) = verifier_times([0xff; 8]);
        assert_eq!((atime, mtime), (0x7fff_ffff * SECOND_NS, 0x7fff_ffff * SECOND_NS));
        assert_ne!(verifier_times([0, 0, 0, 1, 0, 0, 0, 0]), verifier_times([0, 0, 0, 0, 0, 0, 0, 1]));
    }
}
