//! Modification through the tree: delegates to the file system of the node.
//!
//! Synthetic entries of a directory (`.`, `..`, `.zfs`, child file systems) are not stored in it: their names exist,
//! but cannot be removed or renamed here. Links and renames between file systems are rejected, as between any two
//! mounts.

use super::{Changed, Files, Node, Opened, Tree, node_of, object_of};
use crate::{Attributes, Cred, DirName, FileError, FilePosition, HoldKind, New, RenameMode};
use std::sync::Arc;
use weir_format::ObjectId;
use weir_machine::Request;

/// A file that stays, even if its last link is removed. It belongs to one instance of a file system, which a rollback
/// replaces.
pub struct Hold {
    files: Arc<dyn Files>,
    object: ObjectId,
    kind: HoldKind,
}

impl Hold {
    /// Whether the file system was closed permanently: the hold keeps nothing any more.
    pub fn is_closed(&self) -> bool {
        self.files.is_closed()
    }

    /// Releases the file; an unlinked file without other holds is freed.
    ///
    /// # Errors
    /// If the file cannot be freed; it is freed when the file system is next opened.
    pub async fn release(self, rq: &Request) -> Result<(), FileError> {
        self.files.release(rq, self.object, self.kind).await
    }
}

impl Tree {
    /// File system of a node, for modification.
    pub(super) async fn file_system_to_modify(&self, rq: &Request, node: Node) -> Result<Arc<dyn Files>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Shut(why) => Err(why),
            Opened::Files(_) if node.is_synthetic() => Err(FileError::NotPermitted { object: ObjectId(node.object) }),
            Opened::Files(files) if !files.is_writable() => Err(FileError::ReadOnly),
            Opened::Files(files) => Ok(files),
        }
    }

    /// Whether `name` in the directory `node` is a synthetic entry.
    fn is_synthetic_entry(&self, node: Node, name: &[u8]) -> Result<bool, FileError> {
        let branch = self.branch(node)?;
        let fixed = name == b"." || name == b"..";
        let at_root = node.object == Node::ROOT;
        Ok(fixed || at_root && (name == b".zfs" && !branch.is_snapshot || branch.children.get(name).is_some()))
    }

    fn require_no_synthetic_entry(&self, node: Node, name: &[u8]) -> Result<(), FileError> {
        if self.is_synthetic_entry(node, name)? { Err(FileError::Exists) } else { Ok(()) }
    }

    fn require_stored_entry(&self, node: Node, name: &[u8]) -> Result<(), FileError> {
        match (self.is_synthetic_entry(node, name)?, name) {
            (false, _) => Ok(()),
            (true, b".") => Err(FileError::Invalid { why: "'.' cannot be removed or renamed" }),
            (true, b"..") => Err(FileError::NotEmpty { object: ObjectId(node.object) }),
            (true, _) => Err(FileError::Busy),
        }
    }

    /// Whether the file system of a node is writable.
    pub async fn is_writable(&self, rq: &Request, node: Node) -> Result<bool, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) => Ok(files.is_writable()),
            Opened::Shut(why) => Err(why),
        }
    }

    /// Creates a file of any kind in directory `dir`; see [`Names::create`](crate::Names::create).
    pub async fn create(
        &self,
        rq: &Request,
        cred: &Cred,
        dir: Node,
        name: &[u8],
        new: &New,
    ) -> Result<(Node, Attributes), FileError> {
        let files = self.file_system_to_modify(rq, dir).await?;
        self.require_no_synthetic_entry(dir, name)?;
        let made = files.create(rq, cred, object_of(&*files, dir), name, new).await?;
        Ok((node_of(&*files, dir.branch, made.object), made))
    }

    /// Creates a hard link; see [`Names::link`](crate::Names::link).
    pub async fn link(
        &self,
        rq: &Request,
        cred: &Cred,
        file: Node,
        dir: Node,
        name: &[u8],
    ) -> Result<Attributes, FileError> {
        let files = self.file_system_to_modify(rq, dir).await?;
        self.require_no_synthetic_entry(dir, name)?;
        if file.branch != dir.branch {
            return Err(FileError::CrossDevice);
        }
        self.file_system_to_modify(rq, file).await?;
        let done = files.link(rq, cred, object_of(&*files, file), object_of(&*files, dir), name).await?;
        self.observers().report(rq, Changed::File(file));
        Ok(done)
    }

    /// Removes a link of a file that is not a directory; see [`Names::remove`](crate::Names::remove).
    pub async fn remove(&self, rq: &Request, cred: &Cred, dir: Node, name: &[u8]) -> Result<(), FileError> {
        let files = self.file_system_to_modify(rq, dir).await?;
        if self.is_synthetic_entry(dir, name)? {
            return Err(FileError::IsDirectory { object: ObjectId(dir.object) });
        }
        files.remove(rq, cred, object_of(&*files, dir), name).await?;
        self.observers().report(rq, Changed::Name { dir, name });
        Ok(())
    }

    /// Removes an empty directory; see [`Names::remove_dir`](crate::Names::remove_dir).
    pub async fn remove_dir(&self, rq: &Request, cred: &Cred, dir: Node, name: &[u8]) -> Result<(), FileError> {
        let files = self.file_system_to_modify(rq, dir).await?;
        self.require_stored_entry(dir, name)?;
        files.remove_dir(rq, cred, object_of(&*files, dir), name).await?;
        self.observers().report(rq, Changed::Name { dir, name });
        Ok(())
    }

    /// Renames within one file system; see [`Names::rename`](crate::Names::rename).
    pub async fn rename(
        &self,
        rq: &Request,
        cred: &Cred,
        from: DirName<'_, Node>,
        to: DirName<'_, Node>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        let files = self.file_system_to_modify(rq, from.dir).await?;
        self.file_system_to_modify(rq, to.dir).await?;
        for DirName { dir, name } in [from, to] {
            if name != b".." {
                self.require_stored_entry(dir, name)?;
            } else {
                return Err(FileError::Busy);
            }
        }
        if from.dir.branch != to.dir.branch {
            return Err(FileError::CrossDevice);
        }
        let stored = |at: DirName<'_, Node>| object_of(&*files, at.dir);
        let old = DirName { dir: stored(from), name: from.name };
        let new = DirName { dir: stored(to), name: to.name };
        files.rename(rq, cred, old, new, mode).await?;
        for DirName { dir, name } in [from, to] {
            self.observers().report(rq, Changed::Name { dir, name });
        }
        Ok(())
    }

    /// Copies a range between files, also from another file system or a snapshot, and returns the number of bytes;
    /// see [`Contents::copy_range`](crate::Contents::copy_range).
    ///
    /// # Errors
    /// [`FileError::CrossDevice`] if either is not a file of a pool; the caller then copies by read and write.
    pub async fn copy_range(
        &self,
        rq: &Request,
        cred: &Cred,
        source: FilePosition<Node>,
        target: FilePosition<Node>,
        len: u64,
    ) -> Result<u64, FileError> {
        let to = self.file_system_to_modify(rq, target.file).await?;
        let from = match self.open(rq, source.file.branch).await? {
            Opened::Files(files) if !source.file.is_synthetic() => files,
            _ => return Err(FileError::CrossDevice),
        };
        let (Some(lender), Some(files)) = (from.file_system(), to.file_system()) else {
            return Err(FileError::CrossDevice);
        };
        let source = FilePosition { file: object_of(&*from, source.file), offset: source.offset };
        let at = FilePosition { file: object_of(&*to, target.file), offset: target.offset };
        let copied = files.contents().copy_range(rq, cred, lender, source, at, len).await?;
        self.observers().report(rq, Changed::File(target.file));
        Ok(copied)
    }

    /// Waits until all earlier changes of the node's file system are on stable storage.
    pub async fn sync(&self, rq: &Request, node: Node) -> Result<(), FileError> {
        match self.open(rq, node.branch).await? {
            // Also on a file system that has become read-only: earlier changes may not be stable yet.
            Opened::Files(files) => {
                let object = (!node.is_synthetic()).then(|| object_of(&*files, node));
                files.sync(rq, object).await
            }
            Opened::Shut(_) => Ok(()),
        }
    }

    /// Holds a file for a call or a lookup, so that its object number is not reused. Check the generation afterwards.
    /// `None` for files that are not stored.
    pub async fn hold_as(&self, rq: &Request, node: Node, kind: HoldKind) -> Result<Option<Hold>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => {
                let object = object_of(&*files, node);
                files.hold(object, kind);
                Ok(Some(Hold { files, object, kind }))
            }
            _ => Ok(None),
        }
    }

    /// Holds an open file, so that it survives the removal of its last link. Each hold needs one [`Tree::release`].
    pub async fn hold(&self, rq: &Request, node: Node) -> Result<(), FileError> {
        if let Opened::Files(files) = self.open(rq, node.branch).await?
            && !node.is_synthetic()
        {
            files.hold(object_of(&*files, node), HoldKind::Open);
        }
        Ok(())
    }

    /// Releases a hold; an unlinked file without holds is freed.
    pub async fn release(&self, rq: &Request, node: Node) -> Result<(), FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => {
                files.release(rq, object_of(&*files, node), HoldKind::Open).await
            }
            _ => Ok(()),
        }
    }
}
