//! Changes of directories: CREATE, MKDIR, SYMLINK, MKNOD, REMOVE, RMDIR, RENAME, LINK.
//!
//! Each is stable when it is answered. File systems decide who may; what is here is the protocol: three ways to create,
//! and both directories' attributes before and after.

use super::arguments::{self, How, Special};
use super::weak::{Change, Weak};
use super::{Context, Failed, Found, Status, attributes, handle_argument, name_argument, post_op};
use crate::reply::Results;
use crate::wire::Decoder;
use weir_files::{FileError, FileKind, New, NewKind, RenameMode, SetAttributes, SetTime};

/// How often a CREATE looks again when names come and go under its eyes.
const TRIES: u32 = 8;

/// What is to be made.
enum Wanted {
    /// A plain file, in one of three ways.
    File(How),
    /// Anything else.
    Other(New),
    /// Nothing that can be made.
    Unfit,
}

impl Context<'_> {
    /// A new file of a kind with the attributes that a client gave. To whom it belongs only the superuser says, and others
    /// may give it to a group that they are in; what has no size gets none. The rest of it is passed over, as Linux does.
    fn new_file(&self, kind: NewKind, set: SetAttributes) -> New {
        // It begins with no bytes anyway, so a size of 0 says nothing.
        let size_bytes = set.size_bytes.filter(|size| *size != 0 && kind == NewKind::Regular);
        let superuser = self.caller.uid == 0;
        let uid = set.uid.filter(|_| superuser);
        let gid = set.gid.filter(|gid| superuser || self.caller.in_group(*gid));
        New { set: SetAttributes { mode: None, size_bytes, uid, gid, ..set }, ..New::of(kind, set.mode.unwrap_or(0)) }
    }

    /// Begins a change of the directory of a handle.
    async fn changing_directory(&self, handle: &[u8]) -> Result<(Change<'_>, Found), Failed> {
        let (change, dir) = self.changing(handle).await.map_err(|status| (status, None))?;
        if dir.attributes.kind != FileKind::Directory {
            return Err((Status::NotDir, Some(dir)));
        }
        match self.may_change(&dir).await {
            Ok(()) => Ok((change, dir)),
            Err(status) => Err((status, Some(dir))),
        }
    }

    pub(super) async fn create(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let (handle, name) = (handle_argument(&mut input)?, name_argument(&mut input)?);
        let how = How::read(&mut input)?;
        self.make(handle, name, Wanted::File(how), out).await;
        Some(())
    }

    pub(super) async fn mkdir(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let (handle, name) = (handle_argument(&mut input)?, name_argument(&mut input)?);
        let set = arguments::attributes(&mut input)?;
        self.make(handle, name, Wanted::Other(self.new_file(NewKind::Directory, set)), out).await;
        Some(())
    }

    pub(super) async fn symlink(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let (handle, name) = (handle_argument(&mut input)?, name_argument(&mut input)?);
        let set = arguments::attributes(&mut input)?;
        let target = arguments::target(&mut input)?.to_vec();
        self.make(handle, name, Wanted::Other(self.new_file(NewKind::Symlink(target), set)), out).await;
        Some(())
    }

    pub(super) async fn mknod(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let (handle, name) = (handle_argument(&mut input)?, name_argument(&mut input)?);
        let (special, set) = arguments::special(&mut input)?;
        let kind = match special {
            Special::Block { major, minor } => Some(NewKind::BlockDevice(major, minor)),
            Special::Char { major, minor } => Some(NewKind::CharDevice(major, minor)),
            Special::Socket => Some(NewKind::Socket),
            Special::Fifo => Some(NewKind::Fifo),
            Special::Unfit => None,
        };
        let wanted = kind.map_or(Wanted::Unfit, |kind| Wanted::Other(self.new_file(kind, set)));
        self.make(handle, name, wanted, out).await;
        Some(())
    }

    async fn make(&self, handle: &[u8], name: &[u8], wanted: Wanted, out: &mut Results) {
        let (change, dir) = match self.changing_directory(handle).await {
            Ok(begun) => begun,
            Err((status, dir)) => return Weak::unchanged(dir).put(out.status(status)),
        };
        let made = match wanted {
            Wanted::File(how) => self.make_file(&dir, name, how).await,
            Wanted::Other(new) => self.make_other(&dir, name, &new).await,
            Wanted::Unfit => Err(Status::BadType),
        };
        let made = match made {
            Ok(made) => self.make_stable(&dir).await.map(|()| made),
            Err(status) => Err(status),
        };
        let weak = self.weak(&change, dir).await;
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
                weak.put(out);
            }
            Err(status) => weak.put(out.status(status)),
        }
    }

    async fn make_other(&self, dir: &Found, name: &[u8], new: &New) -> Result<Found, Status> {
        let is_device = matches!(new.kind, NewKind::BlockDevice(..) | NewKind::CharDevice(..));
        if is_device && self.caller.uid != 0 {
            return Err(Status::Perm);
        }
        let made = self.tree.create(self.rq, &self.cred(), dir.node, name, new).await;
        let (node, attributes) = made.map_err(|e| self.report(&e))?;
        Ok(Found { node, attributes, fsid: dir.fsid })
    }

    async fn make_file(&self, dir: &Found, name: &[u8], how: How) -> Result<Found, Status> {
        let set = match how {
            How::Unchecked(set) | How::Guarded(set) => set,
            How::Exclusive(verifier) => {
                let (atime, mtime) = arguments::verifier_times(verifier);
                let (atime, mtime) = (Some(SetTime::At(atime)), Some(SetTime::At(mtime)));
                SetAttributes { atime, mtime, ..SetAttributes::default() }
            }
        };
        let new = self.new_file(NewKind::Regular, set);
        for _ in 0..TRIES {
            match self.tree.create(self.rq, &self.cred(), dir.node, name, &new).await {
                Ok((node, attributes)) => return Ok(Found { node, attributes, fsid: dir.fsid }),
                Err(FileError::Exists) if !matches!(how, How::Guarded(_)) => {}
                Err(error) => return Err(self.report(&error)),
            }
            match self.existing(dir, name, how).await {
                // It was there and is gone: make it after all.
                Err(Status::NoEnt) => {}
                other => return other,
            }
        }
        Err(Status::JukeBox)
    }

    /// The file that has the name already, if it will do.
    async fn existing(&self, dir: &Found, name: &[u8], how: How) -> Result<Found, Status> {
        let node = self.tree.lookup(self.rq, dir.node, name).await.map_err(|e| self.report(&e))?;
        let found = self.at(node).await?;
        if found.attributes.kind != FileKind::Regular {
            return Err(Status::Exist);
        }
        match how {
            How::Exclusive(verifier) => {
                let times = (found.attributes.atime_ns, found.attributes.mtime_ns);
                let ours = times == arguments::verifier_times(verifier) && found.attributes.size_bytes == 0;
                if ours { Ok(found) } else { Err(Status::Exist) }
            }
            // Of a file that is there the size alone is set.
            How::Unchecked(SetAttributes { size_bytes: Some(size_bytes), .. }) => {
                self.set(&found, &SetAttributes::size(size_bytes), None).await?;
                self.at(node).await
            }
            How::Unchecked(_) => Ok(found),
            How::Guarded(_) => Err(Status::Exist),
        }
    }

    pub(super) async fn remove(&self, input: Decoder<'_>, out: &mut Results) -> Option<()> {
        self.take_away(input, false, out).await
    }

    pub(super) async fn rmdir(&self, input: Decoder<'_>, out: &mut Results) -> Option<()> {
        self.take_away(input, true, out).await
    }

    async fn take_away(&self, mut input: Decoder<'_>, is_dir: bool, out: &mut Results) -> Option<()> {
        let (handle, name) = (handle_argument(&mut input)?, name_argument(&mut input)?);
        let (status, weak) = match self.changing_directory(handle).await {
            Err((status, dir)) => (status, Weak::unchanged(dir)),
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
                (done.err().unwrap_or(Status::Ok), self.weak(&change, dir).await)
            }
        };
        weak.put(out.status(status));
        Some(())
    }

    pub(super) async fn rename(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let (from, name) = (handle_argument(&mut input)?, name_argument(&mut input)?);
        let (to, new_name) = (handle_argument(&mut input)?, name_argument(&mut input)?);
        let (status, from, to) = self.move_name((from, name), (to, new_name)).await;
        let out = out.status(status);
        from.put(out);
        to.put(out);
        Some(())
    }

    async fn move_name(&self, from: (&[u8], &[u8]), to: (&[u8], &[u8])) -> (Status, Weak, Weak) {
        let (change, dir) = match self.changing_directory(from.0).await {
            Ok(begun) => begun,
            Err((status, dir)) => return (status, Weak::unchanged(dir), Weak::default()),
        };
        // Within one directory there is one change, not two that overlap.
        let is_dir = |(node, generation)| node == dir.node && generation == dir.attributes.generation;
        let same = self.node(to.0).is_ok_and(is_dir);
        let other = if same { None } else { Some(self.changing_directory(to.0).await) };
        let (other_change, other) = match other {
            None => (None, dir.clone()),
            Some(Ok((change, other))) => (Some(change), other),
            Some(Err((status, other))) => return (status, self.weak(&change, dir).await, Weak::unchanged(other)),
        };
        let ends = ((dir.node, from.1), (other.node, to.1));
        let done = self.tree.rename(self.rq, &self.cred(), ends.0, ends.1, RenameMode::Replace).await;
        let done = match done {
            Ok(()) => self.make_stable(&dir).await,
            Err(error) => Err(self.report(&error)),
        };
        let to = self.weak(other_change.as_ref().unwrap_or(&change), other).await;
        let from = self.weak(&change, dir).await;
        (done.err().unwrap_or(Status::Ok), from, to)
    }

    pub(super) async fn link(&self, mut input: Decoder<'_>, out: &mut Results) -> Option<()> {
        let file = handle_argument(&mut input)?;
        let (dir, name) = (handle_argument(&mut input)?, name_argument(&mut input)?);
        let (status, file, weak) = self.add_name(file, dir, name).await;
        let out = out.status(status);
        post_op(out, file.as_ref());
        weak.put(out);
        Some(())
    }

    async fn add_name(&self, file: &[u8], dir: &[u8], name: &[u8]) -> (Status, Option<Found>, Weak) {
        // The file changes, too: its count of links.
        let (_file_change, file) = match self.changing(file).await {
            Ok(begun) => begun,
            Err(status) => return (status, None, Weak::default()),
        };
        let (change, dir) = match self.changing_directory(dir).await {
            Ok(begun) => begun,
            Err((status, dir)) => return (status, Some(file), Weak::unchanged(dir)),
        };
        let done = self.tree.link(self.rq, &self.cred(), file.node, dir.node, name).await;
        let done = match done {
            Ok(_) => self.make_stable(&dir).await,
            Err(error) => Err(self.report(&error)),
        };
        let file = self.at(file.node).await.ok();
        (done.err().unwrap_or(Status::Ok), file, self.weak(&change, dir).await)
    }
}
