//! Operations that modify something.

use crate::access;
use crate::convert::{self, WriteArgs};
use crate::inner::{Entry, Inner, report, report_of_file};
use bytes::Bytes;
use fuser::{Errno, FileAttr, INodeNo};
use weir_files::tree::Node;
use weir_files::{
    Ace, AceWho, Acl, Attributes, Cred, FileError, New, NewKind, RenameMode, SetAttributes, Space, XattrMode, acl_xdr,
    masks,
};
use weir_files::{DirName, FilePosition};
use weir_machine::Request;

/// Arguments of a create.
pub(crate) struct Create<'a> {
    pub(crate) parent: INodeNo,
    pub(crate) name: &'a [u8],
    pub(crate) kind: NewKind,
    pub(crate) mode: u32,
    pub(crate) umask: u32,
}

/// Bits that new files do not have on a mount for a file server.
const SERVER_UMASK: u32 = 0o022;

/// Rights of the owner of a new file on such a mount besides those of its mode. The right to delete children means nothing for a
/// file, but it is one of those that programs ask for together (FILE_ALL_ACCESS).
const SERVER_OWNER_RIGHTS: u32 = masks::DELETE_CHILD;

/// An ACL without entries permits nothing. ZFS has no such ACL; an entry that permits nothing to everyone says the same.
fn denying_if_empty(mut acl: Acl) -> Acl {
    if acl.entries.is_empty() {
        acl.entries.push(Ace { kind: 0, flags: 0, mask: 0, who: AceWho::Everyone });
    }
    acl
}

impl Inner {
    /// Opens a file with the rights in `mask`: pins it until `close`.
    pub(crate) async fn open(&self, rq: &Request, cred: &Cred, number: INodeNo, mask: u32) -> Result<(), Errno> {
        let node = self.node(number)?;
        self.tree.require_usable(rq, node).await.map_err(|e| report_of_file(rq, &e))?;
        let writes = mask & (masks::WRITE_DATA | masks::APPEND_DATA) != 0;
        if writes && !self.tree.is_writable(rq, node).await.map_err(|e| report_of_file(rq, &e))? {
            return Err(Errno::EROFS);
        }
        self.permissions().require(rq, cred, node, mask).await?;
        self.tree.hold(rq, node).await.map_err(|e| report_of_file(rq, &e))?;
        // It may have been removed before it was pinned.
        match self.tree.attributes(rq, node).await {
            Ok(_) => {
                self.opens.add(node.branch);
                Ok(())
            }
            Err(error) => {
                self.release(rq, node).await;
                Err(report_of_file(rq, &error))
            }
        }
    }

    /// Closes a file that `open` pinned.
    pub(crate) async fn close(&self, rq: &Request, number: INodeNo) -> Result<(), Errno> {
        let node = self.node(number)?;
        self.opens.remove(node.branch);
        self.tree.release(rq, node).await.map_err(|e| report(rq, &e))
    }

    pub(crate) async fn release(&self, rq: &Request, node: Node) {
        if let Err(error) = self.tree.release(rq, node).await {
            tracing::warn!(%error, "an unlinked file may stay in the unlinked set until the pool is imported again");
        }
    }

    async fn create_node(
        &self,
        rq: &Request,
        cred: &Cred,
        create: &Create<'_>,
        new: New,
    ) -> Result<(Node, Attributes), Errno> {
        let dir = self.dir_of(rq, self.node(create.parent)?, create.name).await?;
        // smbd asks for modes that allow all users everything and relies on ACLs; where a directory has none to inherit, new
        // files are writable by their owner alone.
        let umask = if cred.checked { create.umask } else { create.umask | SERVER_UMASK };
        let owner_rights = if cred.checked { 0 } else { SERVER_OWNER_RIGHTS };
        let new = New { mode: create.mode & 0o7777, umask, owner_rights, ..new };
        self.tree.create(rq, cred, dir, create.name, &new).await.map_err(|e| report(rq, &e))
    }

    /// Creates a file of any kind; the name must not exist.
    pub(crate) async fn create(&self, rq: &Request, cred: &Cred, create: Create<'_>) -> Result<Entry, Errno> {
        let new = New::of(create.kind.clone(), 0);
        let (node, attributes) = self.create_node(rq, cred, &create, new).await?;
        self.entry_for(rq, (create.parent, create.name), node, &attributes).await
    }

    /// Creates a regular file, or uses the existing one unless `O_EXCL` is set, and opens it.
    pub(crate) async fn create_and_open(
        &self,
        rq: &Request,
        cred: &Cred,
        create: Create<'_>,
        flags: i32,
    ) -> Result<Entry, Errno> {
        // An existing file is opened with the rights that its ACL gives, so that it must not be mistaken for a new one.
        let exclusive = flags & libc::O_EXCL != 0 || !cred.checked;
        let new = New { exclusive, ..New::of(NewKind::Regular, 0) };
        let (node, mut attributes) = match self.create_node(rq, cred, &create, new).await {
            Err(errno) if errno.code() == libc::EEXIST && flags & libc::O_EXCL == 0 => {
                let dir = self.dir_of(rq, self.node(create.parent)?, create.name).await?;
                let node = self.tree.lookup(rq, dir, create.name).await.map_err(|e| report(rq, &e))?;
                self.permissions().require(rq, cred, node, access::open_mask(flags)).await?;
                (node, self.tree.attributes(rq, node).await.map_err(|e| report(rq, &e))?)
            }
            made => made?,
        };
        self.tree.hold(rq, node).await.map_err(|e| report(rq, &e))?;
        let entry = async {
            if flags & libc::O_TRUNC != 0 && attributes.size_bytes != 0 {
                let cred = cred.clone().checked();
                let cut = self.tree.set_attributes(rq, &cred, node, &SetAttributes::size(0)).await;
                attributes = cut.map_err(|e| report(rq, &e))?;
            }
            self.entry_for(rq, (create.parent, create.name), node, &attributes).await
        };
        let entry = entry.await;
        match entry {
            Ok(_) => self.opens.add(node.branch),
            Err(_) => self.release(rq, node).await,
        }
        entry
    }

    pub(crate) async fn remove(
        &self,
        rq: &Request,
        cred: &Cred,
        parent: INodeNo,
        name: &[u8],
        is_dir: bool,
    ) -> Result<(), Errno> {
        let dir = self.dir_of(rq, self.node(parent)?, name).await?;
        let done = match is_dir {
            true => self.tree.remove_dir(rq, cred, dir, name).await,
            false => self.tree.remove(rq, cred, dir, name).await,
        };
        done.map_err(|e| report(rq, &e))
    }

    pub(crate) async fn rename(
        &self,
        rq: &Request,
        cred: &Cred,
        from: DirName<'_, INodeNo>,
        to: DirName<'_, INodeNo>,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let from = DirName { dir: self.dir_of(rq, self.node(from.dir)?, from.name).await?, name: from.name };
        let to = DirName { dir: self.dir_of(rq, self.node(to.dir)?, to.name).await?, name: to.name };
        self.tree.rename(rq, cred, from, to, mode).await.map_err(|e| report(rq, &e))
    }

    pub(crate) async fn link(
        &self,
        rq: &Request,
        cred: &Cred,
        number: INodeNo,
        parent: INodeNo,
        name: &[u8],
    ) -> Result<Entry, Errno> {
        let node = self.node(number)?;
        let dir = self.dir_of(rq, self.node(parent)?, name).await?;
        let attributes = self.tree.link(rq, cred, node, dir, name).await.map_err(|e| report(rq, &e))?;
        self.entry_for(rq, (parent, name), node, &attributes).await
    }

    pub(crate) async fn set_attributes(
        &self,
        rq: &Request,
        cred: &Cred,
        number: INodeNo,
        set: &SetAttributes,
    ) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        if set.is_empty() {
            return self.attributes(rq, number).await;
        }
        let attributes = self.tree.set_attributes(rq, cred, node, set).await.map_err(|e| report_of_file(rq, &e))?;
        Ok(self.file_attr(number, node, &attributes))
    }

    pub(crate) async fn write(
        &self,
        rq: &Request,
        cred: &Cred,
        number: INodeNo,
        args: WriteArgs,
        data: Bytes,
    ) -> Result<(), Errno> {
        let node = self.node(number)?;
        if args.clears_setid {
            self.clear_setid(rq, cred, number, node).await?;
        }
        self.tree.write(rq, cred, node, args.at, data).await.map_err(|e| report(rq, &e))?;
        if args.stable { self.sync(rq, number).await } else { Ok(()) }
    }

    /// Clears the set-user-id and set-group-id bits, as the kernel does for writes through its page cache, and
    /// invalidates the kernel's cached mode before the file can be executed.
    async fn clear_setid(&self, rq: &Request, cred: &Cred, number: INodeNo, node: Node) -> Result<(), Errno> {
        let mode = self.tree.attributes(rq, node).await.map_err(|e| report(rq, &e))?.mode;
        let cleared = convert::clear_setid_bits(mode);
        if cleared != mode & 0o7777 {
            let set = SetAttributes { mode: Some(cleared), ..SetAttributes::default() };
            self.tree.set_attributes(rq, cred, node, &set).await.map_err(|e| report(rq, &e))?;
            self.kernel.invalidate_attributes(number);
        }
        Ok(())
    }

    /// Returns the number of bytes copied, which the kernel's reply limits to 32 bits.
    pub(crate) async fn copy_range(
        &self,
        rq: &Request,
        cred: &Cred,
        source: FilePosition<INodeNo>,
        target: FilePosition<INodeNo>,
        len: u64,
    ) -> Result<u32, Errno> {
        const MAX_COPY_BYTES: u64 = 1 << 31;
        let source = FilePosition { file: self.node(source.file)?, offset: source.offset };
        let target = FilePosition { file: self.node(target.file)?, offset: target.offset };
        let copied = self.tree.copy_range(rq, cred, source, target, len.min(MAX_COPY_BYTES)).await;
        copied.map(|bytes| bytes as u32).map_err(|e| report(rq, &e))
    }

    pub(crate) async fn sync(&self, rq: &Request, number: INodeNo) -> Result<(), Errno> {
        self.tree.sync(rq, self.node(number)?).await.map_err(|e| report(rq, &e))
    }

    pub(crate) async fn allocate(
        &self,
        rq: &Request,
        cred: &Cred,
        number: INodeNo,
        (offset, length): (u64, u64),
        space: Space,
    ) -> Result<(), Errno> {
        let end = offset.checked_add(length).ok_or(Errno::EFBIG)?;
        let node = self.node(number)?;
        let done = self.tree.allocate(rq, cred, node, offset..end, space).await;
        done.map(drop).map_err(|e| report(rq, &e))
    }

    pub(crate) async fn set_xattr(
        &self,
        rq: &Request,
        cred: &Cred,
        number: INodeNo,
        (name, value): (&[u8], &[u8]),
        mode: XattrMode,
    ) -> Result<(), Errno> {
        let node = self.node(number)?;
        let done = match name {
            // Every file has an ACL.
            acl_xdr::NAME if mode == XattrMode::Create => Err(FileError::Exists),
            acl_xdr::NAME => match acl_xdr::decode(value).map(denying_if_empty) {
                Ok(acl) => self.tree.set_acl(rq, cred, node, &acl).await,
                Err(error) => Err(error),
            },
            _ => self.tree.set_xattr(rq, cred, node, name, value, mode).await,
        };
        done.map_err(|e| report_of_file(rq, &e))
    }

    pub(crate) async fn remove_xattr(
        &self,
        rq: &Request,
        cred: &Cred,
        number: INodeNo,
        name: &[u8],
    ) -> Result<(), Errno> {
        let node = self.node(number)?;
        let done = match name {
            // An empty ACL is replaced by that of the mode.
            acl_xdr::NAME => self.tree.set_acl(rq, cred, node, &Acl::default()).await,
            _ => self.tree.remove_xattr(rq, cred, node, name).await,
        };
        done.map_err(|e| report_of_file(rq, &e))
    }
}
