//! What operations share, and those that read.

use crate::convert;
use crate::inodes::{Inodes, UNKNOWN};
use crate::names::Names;
use fuser::{
    Errno, FileAttr, FopenFlags, Generation, INodeNo, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyStatfs,
    ReplyXattr,
};
use futures_util::future::join_all;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use weir_files::tree::{Node, Tree, TreeEntry};
use weir_files::{Attributes, FileError, FileKind, Seek};
use weir_machine::{Request, Served};

/// How long the kernel may believe what it was told where nothing changes.
pub(crate) const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// How long it may where something may change that it does not see: through another door, or by a transaction group
/// that finds out how much space a file takes.
pub(crate) const SHORTLY: Duration = Duration::from_secs(1);
/// Entries asked for at once when only names are wanted, and when attributes are.
const PLAIN_ENTRIES: usize = 128;
const PLUS_ENTRIES: usize = 32;
/// The unit in which `statvfs` counts.
const STATFS_BYTES: u64 = 4096;
/// The longest value of an extended attribute that Linux carries (`XATTR_SIZE_MAX`), and list of names.
const XATTR_BYTES: usize = 65_536;

/// What operations share.
pub(crate) struct Inner {
    pub(crate) tree: Arc<Tree>,
    pub(crate) inodes: Inodes,
    pub(crate) served: Served,
    /// Whether the mount takes changes.
    pub(crate) writable: bool,
    /// How long the kernel may believe attributes.
    pub(crate) valid: Duration,
    /// What it believes of names.
    pub(crate) kernel: Arc<Names>,
    /// Nobody else changes what is shown.
    alone: bool,
    /// Whether the kernel drops the pages of a file that are written past.
    drops_pages: OnceLock<bool>,
}

/// What a name leads to.
pub(crate) struct Entry {
    pub(crate) attributes: FileAttr,
    pub(crate) generation: u64,
    /// How long the kernel may believe it.
    pub(crate) believed: Duration,
}

impl Inner {
    /// `alone` says that no other door changes what is shown.
    pub(crate) fn new(tree: impl Into<Arc<Tree>>, writable: bool, alone: bool) -> Self {
        let (tree, valid) = (tree.into(), if writable { SHORTLY } else { FOREVER });
        let kernel = Arc::<Names>::default();
        let alone = writable && alone;
        if alone {
            let kernel = Arc::downgrade(&kernel);
            tree.watch(move || kernel.upgrade().iter().for_each(|kernel| kernel.take_back()));
        }
        Inner {
            tree,
            inodes: Inodes::new(),
            served: Served::default(),
            writable,
            valid,
            kernel,
            alone,
            drops_pages: OnceLock::new(),
        }
    }

    /// Learns what the kernel does with the pages of a file that are written past.
    pub(crate) fn drops_pages(&self, drops: bool) {
        // A kernel introduces itself once.
        let _ = self.drops_pages.set(drops);
    }

    /// How a file is opened with these flags.
    pub(crate) fn opened(&self, flags: i32) -> FopenFlags {
        convert::opened(flags, self.drops_pages.get().copied().unwrap_or(false))
    }

    pub(crate) fn node(&self, number: INodeNo) -> Result<Node, Errno> {
        self.inodes.node(number.0).ok_or(Errno::from_i32(libc::ESTALE))
    }

    pub(crate) fn number(&self, node: Node) -> Result<u64, Errno> {
        self.inodes.number(node).ok_or(Errno::ENFILE)
    }

    pub(crate) async fn entry(&self, rq: &Request, parent: INodeNo, name: &[u8]) -> Result<Entry, Errno> {
        let dir = self.node(parent)?;
        let node = self.tree.lookup(rq, dir, name).await.map_err(|e| report(rq, &e))?;
        let attributes = self.tree.attributes(rq, node).await.map_err(|e| report(rq, &e))?;
        self.named(rq, (parent, name), node, &attributes).await
    }

    /// What the name in the directory `parent` leads to, for the kernel.
    pub(crate) async fn named(
        &self,
        rq: &Request,
        (parent, name): (INodeNo, &[u8]),
        node: Node,
        attributes: &Attributes,
    ) -> Result<Entry, Errno> {
        let mut believed = self.valid;
        if self.alone {
            let dir = self.node(parent)?;
            let exact = self.tree.has_exact_names(rq, dir).await.map_err(|e| report(rq, &e))?;
            let stays = exact && node.branch == dir.branch && !node.is_synthetic();
            believed = self.kernel.believed(parent, name, stays);
        }
        let generation = attributes.generation;
        Ok(Entry { attributes: convert::attributes(self.number(node)?, attributes), generation, believed })
    }

    pub(crate) async fn attributes(&self, rq: &Request, number: INodeNo) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        let attributes = self.tree.attributes(rq, node).await.map_err(|e| report(rq, &e))?;
        Ok(self.attributes_shown(number, node, &attributes))
    }

    /// A file's attributes under its number. The mount's own root is never looked up, so it can show its object's number.
    pub(crate) fn attributes_shown(&self, number: INodeNo, node: Node, attributes: &Attributes) -> FileAttr {
        let shown = if node == self.tree.root() { attributes.object.0 } else { number.0 };
        convert::attributes(shown, attributes)
    }

    pub(crate) async fn read(&self, rq: &Request, number: INodeNo, offset: u64, len: usize, reply: ReplyData) {
        let node = match self.node(number) {
            Ok(node) => node,
            Err(errno) => return reply.error(errno),
        };
        match self.tree.read(rq, node, offset, len).await {
            Ok(pieces) => match pieces.as_slice() {
                [] => reply.data(&[]),
                [one] => reply.data(one),
                many => reply.data(&many.concat()),
            },
            Err(error) => reply.error(report(rq, &error)),
        }
    }

    pub(crate) async fn read_link(&self, rq: &Request, number: INodeNo) -> Result<bytes::Bytes, Errno> {
        self.tree.read_link(rq, self.node(number)?).await.map_err(|e| report(rq, &e))
    }

    pub(crate) async fn read_dir(
        &self,
        rq: &Request,
        number: INodeNo,
        from: u64,
        reply: &mut ReplyDirectory,
    ) -> Result<(), Errno> {
        let node = self.node(number)?;
        let mut cookie = from;
        loop {
            let page = self.page(rq, node, cookie, PLAIN_ENTRIES).await?;
            for entry in &page {
                let number = self.listed(node, entry);
                let kind = entry.kind.unwrap_or(FileKind::Regular);
                if reply.add(INodeNo(number), entry.cookie, convert::kind(kind), OsStr::from_bytes(&entry.name)) {
                    return Ok(());
                }
                cookie = entry.cookie;
            }
            if page.len() < PLAIN_ENTRIES {
                return Ok(());
            }
        }
    }

    pub(crate) async fn read_dir_plus(
        &self,
        rq: &Request,
        number: INodeNo,
        from: u64,
        reply: &mut ReplyDirectoryPlus,
    ) -> Result<(), Errno> {
        let node = self.node(number)?;
        let mut cookie = from;
        loop {
            let page = self.page(rq, node, cookie, PLUS_ENTRIES).await?;
            let attributes = join_all(page.iter().map(|entry| self.tree.attributes(rq, entry.node))).await;
            for (entry, attributes) in page.iter().zip(attributes) {
                let number = self.number(entry.node).unwrap_or(UNKNOWN);
                let attributes = attributes.ok().filter(|_| number != UNKNOWN);
                let generation = attributes.as_ref().map(|a| a.generation).unwrap_or(0);
                // What can't be read is listed all the same, and believed for no time: whoever wants it gets the error.
                let (attributes, valid) = match attributes {
                    Some(attributes) => (convert::attributes(number, &attributes), self.valid),
                    None => (nothing(number, entry.kind), Duration::ZERO),
                };
                let name = OsStr::from_bytes(&entry.name);
                let ino = INodeNo(number);
                if reply.add(ino, entry.cookie, name, &valid, &attributes, Generation(generation)) {
                    return Ok(());
                }
                cookie = entry.cookie;
            }
            if page.len() < PLUS_ENTRIES {
                return Ok(());
            }
        }
    }

    async fn page(&self, rq: &Request, node: Node, cookie: u64, max: usize) -> Result<Vec<TreeEntry>, Errno> {
        self.tree.read_dir(rq, node, cookie, max).await.map_err(|e| report(rq, &e))
    }

    /// The number that a listing shows for an entry; those of other file systems are not entered for it.
    fn listed(&self, dir: Node, entry: &TreeEntry) -> u64 {
        if entry.node.branch == dir.branch { self.number(entry.node).unwrap_or(UNKNOWN) } else { UNKNOWN }
    }

    pub(crate) async fn xattr(&self, rq: &Request, number: INodeNo, name: &[u8]) -> Result<bytes::Bytes, Errno> {
        let value = self.tree.xattr(rq, self.node(number)?, name).await;
        value.map_err(|e| report(rq, &e))?.ok_or(Errno::NO_XATTR)
    }

    pub(crate) async fn xattr_names(&self, rq: &Request, number: INodeNo) -> Result<Vec<u8>, Errno> {
        let names = self.tree.xattr_names(rq, self.node(number)?).await.map_err(|e| report(rq, &e))?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    pub(crate) async fn seek(&self, rq: &Request, number: INodeNo, offset: i64, whence: i32) -> Result<i64, Errno> {
        let node = self.node(number)?;
        let what = match whence {
            libc::SEEK_DATA => Seek::Data,
            libc::SEEK_HOLE => Seek::Hole,
            _ => return Err(Errno::EINVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let found = self.tree.seek(rq, node, offset, what).await.map_err(|e| report(rq, &e))?;
        i64::try_from(found.ok_or(Errno::ENXIO)?).map_err(|_| Errno::EOVERFLOW)
    }

    pub(crate) async fn statfs(&self, rq: &Request, number: INodeNo, reply: ReplyStatfs) {
        let answer = async {
            let node = self.node(number)?;
            let usage = self.tree.usage(rq, node).await.map_err(|e| report(rq, &e))?;
            let name_max = self.tree.name_max(rq, node).await.map_err(|e| report(rq, &e))?;
            Ok::<_, Errno>((usage, name_max))
        };
        match answer.await {
            Ok((usage, name_max)) => {
                let free = usage.available_bytes / STATFS_BYTES;
                let blocks = usage.referenced_bytes.div_ceil(STATFS_BYTES).saturating_add(free);
                let files = usage.objects_used.saturating_add(usage.objects_available);
                let unit = STATFS_BYTES as u32;
                reply.statfs(blocks, free, free, files, usage.objects_available, unit, name_max as u32, unit);
            }
            Err(errno) => reply.error(errno),
        }
    }
}

/// What stands for attributes that can't be had.
fn nothing(number: u64, kind: Option<FileKind>) -> FileAttr {
    let epoch = std::time::UNIX_EPOCH;
    FileAttr {
        ino: INodeNo(number),
        size: 0,
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        crtime: epoch,
        kind: convert::kind(kind.unwrap_or(FileKind::Directory)),
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 0,
        flags: 0,
    }
}

/// The kernel's number for an error; those that mean lost bytes are logged, for the caller sees EIO alone.
pub(crate) fn report(rq: &Request, error: &FileError) -> Errno {
    if matches!(error, FileError::Corrupt { .. } | FileError::Device { .. } | FileError::Unsupported { .. }) {
        tracing::warn!(operation = rq.operation, %error, "answered with an error");
    }
    convert::errno(error)
}

/// Answers the two-step protocol of extended attributes: size first, then the bytes.
pub(crate) fn reply_xattr(reply: ReplyXattr, size: u32, value: Result<impl AsRef<[u8]>, Errno>) {
    match value {
        Err(errno) => reply.error(errno),
        Ok(value) if value.as_ref().len() > XATTR_BYTES => reply.error(Errno::E2BIG),
        Ok(value) if size == 0 => reply.size(value.as_ref().len() as u32),
        Ok(value) if value.as_ref().len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(value.as_ref()),
    }
}
