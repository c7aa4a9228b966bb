//! Modification of directories: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.
//!
//! Each is stable when it is answered. The file system checks permissions; this module implements the protocol: the
//! three create modes, and `wcc_data` of every directory involved.

use super::arguments::{self, CreateHow, SpecialFile};
use super::wcc::{TrackedChange, WccData};
use super::{Context, Failed, ResolvedFile, Status, attributes, handle_argument, name_argument, post_op};
use crate::reply::Results;
use crate::wire::Decoder;
use weir_files::{FileError, FileKind, New, NewKind, RenameMode, SetAttributes, SetTime};

/// Maximum attempts of a CREATE whose name is concurrently created and removed.
const MAX_CREATE_ATTEMPTS: u32 = 8;

/// The kind of entry to create.
enum NewEntry {
    /// A regular file, with its create mode.
    File(CreateHow),
    /// Any other kind.
    Other(New),
    /// A kind that MKNOD cannot create.
    Unsupported,
}

impl Context<'_> {
    /// A new file with the attributes that the client requested. Only the superuser may set the owner; others may set
    /// a group that they are a member of; only regular files get a size. Attributes that are not permitted are
    /// ignored, as in Linux.
    fn new_file(&self, kind: NewKind, set: SetAttributes) -> New {
        // A new file is empty, so a size of 0 changes nothing.
        let size_bytes = set.size_bytes.filter(|size| *size != 0 && kind == NewKind::Regular);
        let superuser = self.caller.uid == 0;
        let uid = set.uid.filter(|_| superuser);
        let gid = set.gid.filter(|gid| superuser || self.caller.in_group(*gid));
        New { set: SetAttributes { mode: None, size_bytes, uid, gid, ..set }, ..New::of(kind, set.mode.unwrap_or(0)) }
    }

    /// Resolves a handle to a writable directory and registers a change of it.
    async fn begin_directory_change(&self, handle: &[u8]) -> Result<(TrackedChange<'_>, ResolvedFile), Failed> {
        let (change, dir) = self.begin_change(handle).await.map_err(|status| (status, None))?;
        if dir.attributes.kind != FileKind::Directory {
            return Err((Status::NotDir, Some(dir)));
        }
        match self.require_writable(&dir).await {
            Ok(()) => Ok((change, dir)),
            Err(status) => Err((status, Some(dir))),
        }
    }

    pub(super) async fn create(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let how = CreateHow::read(&mut input)?;
        self.create_entry(handle, name, NewEntry::File(how), out).await;
        Some(())
    }

    pub(super) async fn mkdir(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let set = arguments::attributes(&mut input)?;
        self.create_entry(handle, name, NewEntry::Other(self.new_file(NewKind::Directory, set)), out).await;
        Some(())
    }

    pub(super) async fn symlink(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let set = arguments::attributes(&mut input)?;
        let target = arguments::target(&mut input)?.to_vec();
        self.create_entry(handle, name, NewEntry::Other(self.new_file(NewKind::Symlink(target), set)), out).await;
        Some(())
    }

    pub(super) async fn mknod(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let (special, set) = arguments::special(&mut input)?;
        let kind = match special {
            SpecialFile::Block { major, minor } => Some(NewKind::BlockDevice(major, minor)),
            SpecialFile::Char { major, minor } => Some(NewKind::CharDevice(major, minor)),
            SpecialFile::Socket => Some(NewKind::Socket),
            SpecialFile::Fifo => Some(NewKind::Fifo),
            SpecialFile::Unsupported => None,
        };
        let entry = kind.map_or(NewEntry::Unsupported, |kind| NewEntry::Other(self.new_file(kind, set)));
        self.create_entry(handle, name, entry, out).await;
        Some(())
    }

    async fn create_entry(&self, handle: &[u8], name: &[u8], entry: NewEntry, out: &mut Results) {
        let (change, dir) = match self.begin_directory_change(handle).await {
            Ok(begun) => begun,
            Err((status, dir)) => return WccData::unchanged(dir).put(out.status(status)),
        };
        let made = match entry {
            NewEntry::File(how) => self.create_file(&dir, name, how).await,
            NewEntry::Other(new) => self.create_other(&dir, name, &new).await,
            NewEntry::Unsupported => Err(Status::BadType),
        };
        let made = match made {
            Ok(made) => self.make_stable(&dir).await.map(|()| made),
            Err(status) => Err(status),
        };
        let wcc = self.wcc(&change, dir).await;
        match made {
            Ok(made) => {
                let out = out.status(Status::Ok);
                let handle = self.handle(made.node, made.attributes.generation);
                out.bool(handle.is_some());
                if let Some(handle) = handle {
                    out.opaque(&handle);
                }
                out.bool(true);
                attributes(out, &made);
                wcc.put(out);
            }
            Err(status) => wcc.put(out.status(status)),
        }
    }

    async fn create_other(&self, dir: &ResolvedFile, name: &[u8], new: &New) -> Result<ResolvedFile, Status> {
        let is_device = matches!(new.kind, NewKind::BlockDevice(..) | NewKind::CharDevice(..));
        if is_device && self.caller.uid != 0 {
            return Err(Status::Perm);
        }
        let made = self.tree.create(self.rq, &self.cred(), dir.node, name, new).await;
        let (node, attributes) = made.map_err(|e| self.report(&e))?;
        Ok(ResolvedFile { node, attributes, fsid: dir.fsid })
    }

    async fn create_file(&self, dir: &ResolvedFile, name: &[u8], how: CreateHow) -> Result<ResolvedFile, Status> {
        let set = match how {
            CreateHow::Unchecked(set) | CreateHow::Guarded(set) => set,
            CreateHow::Exclusive(verifier) => {
                let (atime, mtime) = arguments::verifier_times(verifier);
                let atime = Some(SetTime::At(atime));
                let mtime = Some(SetTime::At(mtime));
                SetAttributes { atime, mtime, ..SetAttributes::default() }
            }
        };
        let new = self.new_file(NewKind::Regular, set);
        for _ in 0..MAX_CREATE_ATTEMPTS {
            match self.tree.create(self.rq, &self.cred(), dir.node, name, &new).await {
                Ok((node, attributes)) => return Ok(ResolvedFile { node, attributes, fsid: dir.fsid }),
                Err(FileError::Exists) if !matches!(how, CreateHow::Guarded(_)) => {}
                Err(error) => return Err(self.report(&error)),
            }
            match self.existing(dir, name, how).await {
                // It existed and was removed since: try to create it again.
                Err(Status::NoEnt) => {}
                other => return other,
            }
        }
        Err(Status::JukeBox)
    }

    /// Opens the existing file with this name, if the create mode allows it.
    async fn existing(&self, dir: &ResolvedFile, name: &[u8], how: CreateHow) -> Result<ResolvedFile, Status> {
        let node = self.tree.lookup(self.rq, dir.node, name).await.map_err(|e| self.report(&e))?;
        let found = self.at(node).await?;
        if found.attributes.kind != FileKind::Regular {
            return Err(Status::Exist);
        }
        match how {
            CreateHow::Exclusive(verifier) => {
                let times = (found.attributes.atime_ns, found.attributes.mtime_ns);
                let ours = times == arguments::verifier_times(verifier) && found.attributes.size_bytes == 0;
                if ours { Ok(found) } else { Err(Status::Exist) }
            }
            // Only the size of an existing file is set.
            CreateHow::Unchecked(SetAttributes { size_bytes: Some(size_bytes), .. }) => {
                self.set(&found, &SetAttributes::size(size_bytes), None).await?;
                self.at(node).await
            }
            CreateHow::Unchecked(_) => Ok(found),
            CreateHow::Guarded(_) => Err(Status::Exist),
        }
    }

    pub(super) async fn remove(&self, input: Decoder<'_>, out: &mut Results) -> Option<()> {
        self.remove_entry(input, false, out).await
    }

    pub(super) async fn rmdir(&self, input: Decoder<'_>, out: &mut Results) -> Option<()> {
        self.remove_entry(input, true, out).await
    }

    async fn remove_entry(&self, mut input: Decoder<'_>, is_dir: bool, out: &mut Results) -> Option<()> {
        let handle = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let (status, wcc) = match self.begin_directory_change(handle).await {
            Err((status, dir)) => (status, WccData::unchanged(dir)),
            Ok((change, dir)) => {
                let cred = self.cred();
                let done = match is_dir {
                    true => self.tree.remove_dir(self.rq, &cred, dir.node, name).await,
                    false => self.tree.remove(self.rq, &cred, dir.node, name).await,
                };
                let done = match done {
                    Ok(()) => self.make_stable(&dir).await,
                    Err(error) => Err(self.report(&error)),
                };
                (done.err().unwrap_or(Status::Ok), self.wcc(&change, dir).await)
            }
        };
        wcc.put(out.status(status));
        Some(())
    }

    pub(super) async fn rename(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let from = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let to = handle_argument(&mut input)?;
        let new_name = name_argument(&mut input)?;
        let (status, from, to) = self.rename_entry((from, name), (to, new_name)).await;
        let out = out.status(status);
        from.put(out);
        to.put(out);
        Some(())
    }

    async fn rename_entry(&self, from: (&[u8], &[u8]), to: (&[u8], &[u8])) -> (Status, WccData, WccData) {
        let (change, dir) = match self.begin_directory_change(from.0).await {
            Ok(begun) => begun,
            Err((status, dir)) => return (status, WccData::unchanged(dir), WccData::default()),
        };
        // A rename within one directory is one change, not two overlapping ones.
        let is_dir = |(node, generation)| node == dir.node && generation == dir.attributes.generation;
        let same = self.node(to.0).is_ok_and(is_dir);
        let other = if same { None } else { Some(self.begin_directory_change(to.0).await) };
        let (other_change, other) = match other {
            None => (None, dir.clone()),
            Some(Ok((change, other))) => (Some(change), other),
            Some(Err((status, other))) => return (status, self.wcc(&change, dir).await, WccData::unchanged(other)),
        };
        let ends = ((dir.node, from.1), (other.node, to.1));
        let done = self.tree.rename(self.rq, &self.cred(), ends.0, ends.1, RenameMode::Replace).await;
        let done = match done {
            Ok(()) => self.make_stable(&dir).await,
            Err(error) => Err(self.report(&error)),
        };
        let to = self.wcc(other_change.as_ref().unwrap_or(&change), other).await;
        let from = self.wcc(&change, dir).await;
        (done.err().unwrap_or(Status::Ok), from, to)
    }

    pub(super) async fn link(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let file = handle_argument(&mut input)?;
        let dir = handle_argument(&mut input)?;
        let name = name_argument(&mut input)?;
        let (status, file, wcc) = self.link_entry(file, dir, name).await;
        let out = out.status(status);
        post_op(out, file.as_ref());
        wcc.put(out);
        Some(())
    }

    async fn link_entry(&self, file: &[u8], dir: &[u8], name: &[u8]) -> (Status, Option<ResolvedFile>, WccData) {
        // The file changes too: its link count.
        let (_file_change, file) = match self.begin_change(file).await {
            Ok(begun) => begun,
            Err(status) => return (status, None, WccData::default()),
        };
        let (change, dir) = match self.begin_directory_change(dir).await {
            Ok(begun) => begun,
            Err((status, dir)) => return (status, Some(file), WccData::unchanged(dir)),
        };
        let done = self.tree.link(self.rq, &self.cred(), file.node, dir.node, name).await;
        let done = match done {
            Ok(_) => self.make_stable(&dir).await,
            Err(error) => Err(self.report(&error)),
        };
        let file = self.at(file.node).await.ok();
        (done.err().unwrap_or(Status::Ok), file, self.wcc(&change, dir).await)
    }
}
