//! Changes through the tree: to the file system that the node is in.
//!
//! What is laid over a directory (`.`, `..`, `.zfs`, child file systems) is no entry of it: such names are taken, and
//! what has them cannot be removed or renamed from here. A name does not leave its file system: links and renames from
//! one to another are refused, as between any two mounts.

use super::{Files, Node, Opened, Tree, node_of, object_of};
use crate::{Acl, Attributes, Cred, FileError, New, RenameMode, SetAttributes, SetFlags, Space, WriteAt, XattrMode};
use bytes::Bytes;
use std::ops::Range;
use std::sync::Arc;
use weir_format::ObjectId;
use weir_machine::Request;

/// A file that is kept alive although its last name may go, for as long as a call takes.
pub struct Kept {
    files: Arc<dyn Files>,
    object: ObjectId,
}

impl Kept {
    /// Ends it; a file without a name that nobody else holds goes.
    ///
    /// # Errors
    /// What taking the file apart meets. It goes when the file system is next opened, then.
    pub async fn release(self, rq: &Request) -> Result<(), FileError> {
        self.files.end_call(rq, self.object).await
    }
}

impl Tree {
    /// The file system of a node that is to be changed.
    async fn changing(&self, rq: &Request, node: Node) -> Result<Arc<dyn Files>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Locked => Err(FileError::NoKey),
            Opened::Files(_) if node.is_synthetic() => Err(FileError::NotPermitted { object: ObjectId(node.object) }),
            Opened::Files(files) if !files.is_writable() => Err(FileError::ReadOnly),
            Opened::Files(files) => Ok(files),
        }
    }

    /// Whether `name` in the directory `node` is laid over it.
    fn is_laid_over(&self, node: Node, name: &[u8]) -> Result<bool, FileError> {
        let branch = self.branch(node)?;
        let fixed = name == b"." || name == b"..";
        let at_root = node.object == Node::ROOT;
        Ok(fixed || at_root && (name == b".zfs" && !branch.is_snapshot || branch.children.get(name).is_some()))
    }

    fn must_be_free(&self, node: Node, name: &[u8]) -> Result<(), FileError> {
        if self.is_laid_over(node, name)? { Err(FileError::Exists) } else { Ok(()) }
    }

    fn must_be_entry(&self, node: Node, name: &[u8]) -> Result<(), FileError> {
        match (self.is_laid_over(node, name)?, name) {
            (false, _) => Ok(()),
            (true, b".") => Err(FileError::Invalid { why: "a directory has no name in itself" }),
            (true, b"..") => Err(FileError::NotEmpty { object: ObjectId(node.object) }),
            (true, _) => Err(FileError::Busy),
        }
    }

    /// Whether the file system of a node takes changes.
    pub async fn is_writable(&self, rq: &Request, node: Node) -> Result<bool, FileError> {
        Ok(matches!(self.open(rq, node.branch).await?, Opened::Files(files) if files.is_writable()))
    }

    /// Makes a file of any kind in the directory `dir`; see [`crate::FileSystem::create`].
    pub async fn create(
        &self,
        rq: &Request,
        cred: &Cred,
        dir: Node,
        name: &[u8],
        new: &New,
    ) -> Result<(Node, Attributes), FileError> {
        let files = self.changing(rq, dir).await?;
        self.must_be_free(dir, name)?;
        let made = files.create(rq, cred, object_of(&*files, dir), name, new).await?;
        Ok((node_of(&*files, dir.branch, made.object), made))
    }

    /// Gives a file another name; see [`crate::FileSystem::link`].
    pub async fn link(
        &self,
        rq: &Request,
        cred: &Cred,
        file: Node,
        dir: Node,
        name: &[u8],
    ) -> Result<Attributes, FileError> {
        let files = self.changing(rq, dir).await?;
        self.must_be_free(dir, name)?;
        if file.branch != dir.branch {
            return Err(FileError::CrossDevice);
        }
        self.changing(rq, file).await?;
        files.link(rq, cred, object_of(&*files, file), object_of(&*files, dir), name).await
    }

    /// Takes a name from a file that is no directory; see [`crate::FileSystem::remove`].
    pub async fn remove(&self, rq: &Request, cred: &Cred, dir: Node, name: &[u8]) -> Result<(), FileError> {
        let files = self.changing(rq, dir).await?;
        if self.is_laid_over(dir, name)? {
            return Err(FileError::IsDirectory { object: ObjectId(dir.object) });
        }
        files.remove(rq, cred, object_of(&*files, dir), name).await
    }

    /// Removes an empty directory; see [`crate::FileSystem::remove_dir`].
    pub async fn remove_dir(&self, rq: &Request, cred: &Cred, dir: Node, name: &[u8]) -> Result<(), FileError> {
        let files = self.changing(rq, dir).await?;
        self.must_be_entry(dir, name)?;
        files.remove_dir(rq, cred, object_of(&*files, dir), name).await
    }

    /// Renames within one file system; see [`crate::FileSystem::rename`].
    pub async fn rename(
        &self,
        rq: &Request,
        cred: &Cred,
        from: (Node, &[u8]),
        to: (Node, &[u8]),
        mode: RenameMode,
    ) -> Result<(), FileError> {
        let files = self.changing(rq, from.0).await?;
        self.changing(rq, to.0).await?;
        for (dir, name) in [from, to] {
            if name != b".." {
                self.must_be_entry(dir, name)?;
            } else {
                return Err(FileError::Busy);
            }
        }
        if from.0.branch != to.0.branch {
            return Err(FileError::CrossDevice);
        }
        let from = (object_of(&*files, from.0), from.1);
        let to = (object_of(&*files, to.0), to.1);
        files.rename(rq, cred, from, to, mode).await
    }

    /// Writes to a file; see [`crate::FileSystem::write`].
    pub async fn write(
        &self,
        rq: &Request,
        cred: &Cred,
        file: Node,
        at: WriteAt,
        data: Bytes,
    ) -> Result<Attributes, FileError> {
        let files = self.changing(rq, file).await?;
        files.write(rq, cred, object_of(&*files, file), at, data).await
    }

    /// Copies a range from one file to another, also of another file system or from a snapshot, and gives how many bytes;
    /// see [`crate::FileSystem::copy_range`].
    ///
    /// # Errors
    /// [`FileError::CrossDevice`] if either is no file of a pool; the caller then reads and writes.
    pub async fn copy_range(
        &self,
        rq: &Request,
        cred: &Cred,
        (source, source_at): (Node, u64),
        (target, target_at): (Node, u64),
        len: u64,
    ) -> Result<u64, FileError> {
        let to = self.changing(rq, target).await?;
        let from = match self.open(rq, source.branch).await? {
            Opened::Files(files) if !source.is_synthetic() => files,
            _ => return Err(FileError::CrossDevice),
        };
        let (Some(lender), Some(files)) = (from.file_system(), to.file_system()) else {
            return Err(FileError::CrossDevice);
        };
        let source = (lender, object_of(&*from, source), source_at);
        files.copy_range(rq, cred, source, (object_of(&*to, target), target_at), len).await
    }

    /// Sets attributes, the size among them; see [`crate::FileSystem::set_attributes`].
    pub async fn set_attributes(
        &self,
        rq: &Request,
        cred: &Cred,
        node: Node,
        set: &SetAttributes,
    ) -> Result<Attributes, FileError> {
        let files = self.changing(rq, node).await?;
        files.set_attributes(rq, cred, object_of(&*files, node), set).await
    }

    /// Sets flags and the project of a file; see [`crate::FileSystem::set_flags`].
    pub async fn set_flags(
        &self,
        rq: &Request,
        cred: &Cred,
        node: Node,
        set: &SetFlags,
    ) -> Result<Attributes, FileError> {
        let files = self.changing(rq, node).await?;
        files.set_flags(rq, cred, object_of(&*files, node), set).await
    }

    /// Reserves, zeroes or punches a range; see [`crate::FileSystem::allocate`].
    pub async fn allocate(
        &self,
        rq: &Request,
        cred: &Cred,
        file: Node,
        range: Range<u64>,
        space: Space,
    ) -> Result<Attributes, FileError> {
        let files = self.changing(rq, file).await?;
        files.allocate(rq, cred, object_of(&*files, file), range, space).await
    }

    /// Sets an extended attribute; see [`crate::FileSystem::set_xattr`].
    pub async fn set_xattr(
        &self,
        rq: &Request,
        cred: &Cred,
        node: Node,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FileError> {
        let files = self.changing(rq, node).await?;
        files.set_xattr(rq, cred, object_of(&*files, node), name, value, mode).await
    }

    /// Removes an extended attribute; see [`crate::FileSystem::remove_xattr`].
    pub async fn remove_xattr(&self, rq: &Request, cred: &Cred, node: Node, name: &[u8]) -> Result<(), FileError> {
        let files = self.changing(rq, node).await?;
        files.remove_xattr(rq, cred, object_of(&*files, node), name).await
    }

    /// Sets the access control list; see [`crate::FileSystem::set_acl`].
    pub async fn set_acl(&self, rq: &Request, cred: &Cred, node: Node, acl: &Acl) -> Result<(), FileError> {
        let files = self.changing(rq, node).await?;
        files.set_acl(rq, cred, object_of(&*files, node), acl).await
    }

    /// Returns when all that was changed in the node's file system before the call is on stable storage.
    pub async fn sync(&self, rq: &Request, node: Node) -> Result<(), FileError> {
        match self.open(rq, node.branch).await? {
            // Also where nothing may change any more: what was changed before may not be stable yet.
            Opened::Files(files) => {
                let object = (!node.is_synthetic()).then(|| object_of(&*files, node));
                files.sync(rq, object).await
            }
            Opened::Locked => Ok(()),
        }
    }

    /// Keeps a file for a call that has its number from somewhere, and so the number for the file: it cannot become
    /// another's before the call is done. Who calls looks then whether it is still the file that is meant.
    pub async fn keep(&self, rq: &Request, node: Node) -> Result<Option<Kept>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => {
                let object = object_of(&*files, node);
                files.hold_for_call(object);
                Ok(Some(Kept { files, object }))
            }
            _ => Ok(None),
        }
    }

    /// Keeps a file alive although its last name may go: it is open. One [`Tree::release`] for each hold.
    pub async fn hold(&self, rq: &Request, node: Node) -> Result<(), FileError> {
        if let Opened::Files(files) = self.open(rq, node.branch).await?
            && !node.is_synthetic()
        {
            files.hold(object_of(&*files, node));
        }
        Ok(())
    }

    /// Ends a hold; a file without a name and without holds goes.
    pub async fn release(&self, rq: &Request, node: Node) -> Result<(), FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => files.release(rq, object_of(&*files, node)).await,
            _ => Ok(()),
        }
    }
}
