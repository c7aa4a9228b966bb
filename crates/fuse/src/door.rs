//! The operations of the kernel, each turned into one walk through the tree.
//!
//! Each operation is a future. It is polled once on the thread that read the request: what the cache can answer is
//! answered there and then, without a change of threads. What has to wait goes on as a task, and the thread takes the
//! next request. The kernel bounds how many requests are on their way.

use crate::convert;
use crate::inodes::{Inodes, UNKNOWN};
use fuser::{
    AccessFlags, Errno, FileAttr, FileHandle, Filesystem, Generation, INodeNo, InitFlags, KernelConfig, LockOwner,
    OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek, ReplyOpen,
    ReplyStatfs, ReplyXattr, Request as KernelRequest,
};
use futures_util::future::join_all;
use std::ffi::OsStr;
use std::future::Future;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;
use weir_files::tree::{Node, Tree, TreeEntry};
use weir_files::{FileError, FileKind, Seek};
use weir_machine::{Request, Served, Tasks};

/// How long the kernel may believe what it was told: nothing changes while it is mounted.
const FOREVER: Duration = Duration::from_secs(24 * 3600);
/// Entries asked for at once when only names are wanted, and when attributes are.
const PLAIN_ENTRIES: usize = 128;
const PLUS_ENTRIES: usize = 32;
/// Requests that the kernel may have under way in the background (read-ahead), above its default of 16.
const BACKGROUND: u16 = 64;
/// The unit in which `statvfs` counts.
const STATFS_BYTES: u64 = 4096;
/// The longest value of an extended attribute that Linux carries (`XATTR_SIZE_MAX`), and list of names.
const XATTR_BYTES: usize = 65_536;

/// What operations share.
pub(crate) struct Inner {
    pub(crate) tree: Tree,
    pub(crate) inodes: Inodes,
    pub(crate) served: Served,
}

impl Inner {
    pub(crate) fn new(tree: Tree) -> Self {
        Inner { tree, inodes: Inodes::new(), served: Served::default() }
    }

    fn node(&self, number: INodeNo) -> Result<Node, Errno> {
        self.inodes.node(number.0).ok_or(Errno::from_i32(libc::ESTALE))
    }

    fn number(&self, node: Node) -> Result<u64, Errno> {
        self.inodes.number(node).ok_or(Errno::ENFILE)
    }

    async fn entry(&self, rq: &Request, parent: INodeNo, name: &[u8]) -> Result<(FileAttr, u64), Errno> {
        let parent = self.node(parent)?;
        let node = self.tree.lookup(rq, parent, name).await.map_err(|e| report(rq, &e))?;
        let attributes = self.tree.attributes(rq, node).await.map_err(|e| report(rq, &e))?;
        Ok((convert::attributes(self.number(node)?, &attributes), attributes.generation))
    }

    async fn attributes(&self, rq: &Request, number: INodeNo) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        let attributes = self.tree.attributes(rq, node).await.map_err(|e| report(rq, &e))?;
        // The mount's own root is never looked up, so it can show its object's number.
        let shown = if node == self.tree.root() { attributes.object.0 } else { number.0 };
        Ok(convert::attributes(shown, &attributes))
    }

    async fn read(&self, rq: &Request, number: INodeNo, offset: u64, len: usize, reply: ReplyData) {
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

    async fn read_link(&self, rq: &Request, number: INodeNo) -> Result<bytes::Bytes, Errno> {
        self.tree.read_link(rq, self.node(number)?).await.map_err(|e| report(rq, &e))
    }

    async fn read_dir(
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

    async fn read_dir_plus(
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
                    Some(attributes) => (convert::attributes(number, &attributes), FOREVER),
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

    async fn xattr(&self, rq: &Request, number: INodeNo, name: &[u8]) -> Result<bytes::Bytes, Errno> {
        let value = self.tree.xattr(rq, self.node(number)?, name).await;
        value.map_err(|e| report(rq, &e))?.ok_or(Errno::NO_XATTR)
    }

    async fn xattr_names(&self, rq: &Request, number: INodeNo) -> Result<Vec<u8>, Errno> {
        let names = self.tree.xattr_names(rq, self.node(number)?).await.map_err(|e| report(rq, &e))?;
        Ok(names.into_iter().flat_map(|name| name.into_iter().chain([0])).collect())
    }

    async fn seek(&self, rq: &Request, number: INodeNo, offset: i64, whence: i32) -> Result<i64, Errno> {
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

    async fn statfs(&self, rq: &Request, number: INodeNo, reply: ReplyStatfs) {
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
fn report(rq: &Request, error: &FileError) -> Errno {
    if matches!(error, FileError::Corrupt { .. } | FileError::Device { .. } | FileError::Unsupported { .. }) {
        tracing::warn!(operation = rq.operation, %error, "answered with an error");
    }
    convert::errno(error)
}

/// Answers the two-step protocol of extended attributes: size first, then the bytes.
fn reply_xattr(reply: ReplyXattr, size: u32, value: Result<impl AsRef<[u8]>, Errno>) {
    match value {
        Err(errno) => reply.error(errno),
        Ok(value) if value.as_ref().len() > XATTR_BYTES => reply.error(Errno::E2BIG),
        Ok(value) if size == 0 => reply.size(value.as_ref().len() as u32),
        Ok(value) if value.as_ref().len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(value.as_ref()),
    }
}

/// The door itself.
pub(crate) struct Door {
    pub(crate) inner: Arc<Inner>,
    pub(crate) tasks: Tasks,
}

impl Door {
    /// Runs one operation: on the spot as far as it gets without waiting, then as a task.
    fn run<F>(&self, from: &KernelRequest, operation: &'static str, work: impl FnOnce(Arc<Inner>, Arc<Request>) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let rq = Arc::new(Request::new(format!("uid {}", from.uid()), "fuse", operation));
        let (inner, booked) = (Arc::clone(&self.inner), Arc::clone(&rq));
        let work = work(Arc::clone(&self.inner), rq);
        let mut work = Box::pin(async move {
            work.await;
            inner.served.book(&booked);
        });
        if work.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending() {
            drop(self.tasks.spawn(work));
        }
    }
}

impl Filesystem for Door {
    fn init(&mut self, _: &KernelRequest, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = [
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_READDIRPLUS_AUTO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_NO_OPEN_SUPPORT,
            InitFlags::FUSE_NO_OPENDIR_SUPPORT,
            InitFlags::FUSE_POSIX_ACL,
        ];
        for flag in wanted {
            // An older kernel goes without.
            let _ = config.add_capabilities(flag);
        }
        let _ = config.set_max_background(BACKGROUND);
        Ok(())
    }

    fn lookup(&self, from: &KernelRequest, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let name = name.as_bytes().to_vec();
        self.run(from, "lookup", |inner, rq| async move {
            match inner.entry(&rq, parent, &name).await {
                Ok((attributes, generation)) => reply.entry(&FOREVER, &attributes, Generation(generation)),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn getattr(&self, from: &KernelRequest, number: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        self.run(from, "getattr", |inner, rq| async move {
            match inner.attributes(&rq, number).await {
                Ok(attributes) => reply.attr(&FOREVER, &attributes),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readlink(&self, from: &KernelRequest, number: INodeNo, reply: ReplyData) {
        self.run(from, "readlink", |inner, rq| async move {
            match inner.read_link(&rq, number).await {
                Ok(target) => reply.data(&target),
                Err(errno) => reply.error(errno),
            }
        });
    }

    /// Nothing to keep per open file: the kernel takes this for leave not to ask again, and to keep its pages.
    fn open(&self, _: &KernelRequest, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _: &KernelRequest, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.error(Errno::ENOSYS);
    }

    fn flush(&self, _: &KernelRequest, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn access(&self, _: &KernelRequest, _: INodeNo, _: AccessFlags, reply: ReplyEmpty) {
        reply.error(Errno::ENOSYS);
    }

    fn read(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.run(from, "read", |inner, rq| async move {
            inner.read(&rq, number, offset, size as usize, reply).await;
        });
    }

    fn readdir(&self, from: &KernelRequest, number: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        self.run(from, "readdir", |inner, rq| async move {
            match inner.read_dir(&rq, number, offset, &mut reply).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn readdirplus(
        &self,
        from: &KernelRequest,
        number: INodeNo,
        _: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        self.run(from, "readdirplus", |inner, rq| async move {
            match inner.read_dir_plus(&rq, number, offset, &mut reply).await {
                Ok(()) => reply.ok(),
                Err(errno) => reply.error(errno),
            }
        });
    }

    fn statfs(&self, from: &KernelRequest, number: INodeNo, reply: ReplyStatfs) {
        self.run(from, "statfs", |inner, rq| async move { inner.statfs(&rq, number, reply).await });
    }

    fn getxattr(&self, from: &KernelRequest, number: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let name = name.as_bytes().to_vec();
        self.run(from, "getxattr", |inner, rq| async move {
            reply_xattr(reply, size, inner.xattr(&rq, number, &name).await);
        });
    }

    fn listxattr(&self, from: &KernelRequest, number: INodeNo, size: u32, reply: ReplyXattr) {
        self.run(from, "listxattr", |inner, rq| async move {
            reply_xattr(reply, size, inner.xattr_names(&rq, number).await);
        });
    }

    fn lseek(&self, from: &KernelRequest, number: INodeNo, _: FileHandle, offset: i64, whence: i32, reply: ReplyLseek) {
        self.run(from, "lseek", |inner, rq| async move {
            match inner.seek(&rq, number, offset, whence).await {
                Ok(offset) => reply.offset(offset),
                Err(errno) => reply.error(errno),
            }
        });
    }
}
