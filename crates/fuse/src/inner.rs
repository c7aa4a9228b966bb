//! State shared by all operations, and the operations that only read.

use crate::convert;
use crate::inodes::{Inodes, UNKNOWN};
use crate::name_cache::{LONG_TTL, NameCache, SHORT_TTL};
use fuser::{
    Errno, FileAttr, FopenFlags, Generation, INodeNo, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyStatfs,
    ReplyXattr,
};
use futures_util::future::join_all;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use weir_files::tree::{Node, Tree, TreeEntry};
use weir_files::{Attributes, FileError, FileKind, Seek};
use weir_machine::{Client, Protocol, Request};

/// Directory entries per step of `readdir` and of `readdirplus`.
const PLAIN_ENTRIES: usize = 128;
const PLUS_ENTRIES: usize = 32;
/// Block size in `statvfs`, in bytes.
const STATFS_BYTES: u64 = 4096;
/// Maximum size in bytes of an extended attribute's value on Linux (`XATTR_SIZE_MAX`) and of a list of names.
const XATTR_BYTES: usize = 65_536;

/// State shared by all operations of a mount.
pub(crate) struct Inner {
    pub(crate) tree: Arc<Tree>,
    pub(crate) inodes: Inodes,
    /// Number of the mount among those that lock files of this tree.
    pub(crate) mount: u64,
    /// The user of the last request and the client that it is in the accounts: most mounts have few users.
    last_client: Mutex<Option<(u32, Client)>>,
    /// Whether the mount is writable.
    pub(crate) writable: bool,
    /// TTL of attributes.
    pub(crate) attr_ttl: Duration,
    /// The kernel's cached names.
    pub(crate) kernel: Arc<NameCache>,
    /// Whether no other front end changes the pool.
    exclusive_mount: bool,
    /// Whether the kernel invalidates the page cache on direct writes.
    invalidates_page_cache: OnceLock<bool>,
}

/// A resolved directory entry.
pub(crate) struct Entry {
    pub(crate) attributes: FileAttr,
    pub(crate) generation: u64,
    /// TTL of the entry.
    pub(crate) entry_ttl: Duration,
}

impl Inner {
    /// `exclusive_mount` means that no other front end changes the pool.
    pub(crate) fn new(tree: impl Into<Arc<Tree>>, writable: bool, exclusive_mount: bool) -> Self {
        let tree = tree.into();
        let attr_ttl = if writable { SHORT_TTL } else { LONG_TTL };
        let kernel = Arc::<NameCache>::default();
        let exclusive_mount = writable && exclusive_mount;
        if exclusive_mount {
            let kernel = Arc::downgrade(&kernel);
            tree.watch(move || kernel.upgrade().iter().for_each(|kernel| kernel.invalidate_all()));
        }
        let mount = tree.locks().mount();
        Inner {
            tree,
            inodes: Inodes::new(),
            mount,
            last_client: Mutex::default(),
            writable,
            attr_ttl,
            kernel,
            exclusive_mount,
            invalidates_page_cache: OnceLock::new(),
        }
    }

    /// The client that a user is in the accounts.
    pub(crate) fn client(&self, uid: u32) -> Client {
        let mut last = self.last_client.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((of, client)) if *of == uid => client.clone(),
            _ => {
                let client = self.tree.accounts().client(Protocol::Fuse, &format!("uid {uid}"));
                *last = Some((uid, client.clone()));
                client
            }
        }
    }

    /// Records whether the kernel invalidates the page cache on direct writes.
    pub(crate) fn set_invalidates_page_cache(&self, invalidates: bool) {
        // Set once, at `init`.
        let _ = self.invalidates_page_cache.set(invalidates);
    }

    /// Reply flags of an open with these flags.
    pub(crate) fn open_flags(&self, flags: i32) -> FopenFlags {
        convert::open_flags(flags, self.invalidates_page_cache.get().copied().unwrap_or(false))
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
        self.entry_for(rq, (parent, name), node, &attributes).await
    }

    /// Builds the entry of a name in directory `parent`.
    pub(crate) async fn entry_for(
        &self,
        rq: &Request,
        (parent, name): (INodeNo, &[u8]),
        node: Node,
        attributes: &Attributes,
    ) -> Result<Entry, Errno> {
        let mut entry_ttl = self.attr_ttl;
        if self.exclusive_mount {
            let dir = self.node(parent)?;
            let exact = self.tree.has_exact_names(rq, dir).await.map_err(|e| report(rq, &e))?;
            let stays = exact && node.branch == dir.branch && !node.is_synthetic();
            entry_ttl = self.kernel.entry_ttl(parent, name, stays);
        }
        let generation = attributes.generation;
        Ok(Entry { attributes: convert::attributes(self.number(node)?, attributes), generation, entry_ttl })
    }

    pub(crate) async fn attributes(&self, rq: &Request, number: INodeNo) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        let attributes = self.tree.attributes(rq, node).await.map_err(|e| report(rq, &e))?;
        Ok(self.file_attr(number, node, &attributes))
    }

    /// Attributes of a file with its inode number. The mount's root is never looked up, so it can show its object
    /// number.
    pub(crate) fn file_attr(&self, number: INodeNo, node: Node, attributes: &Attributes) -> FileAttr {
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
                let number = self.listed_number(node, entry);
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
                // An unreadable file is listed with a TTL of zero, so that an access to it returns the error.
                let (attributes, attr_ttl) = match attributes {
                    Some(attributes) => (convert::attributes(number, &attributes), self.attr_ttl),
                    None => (placeholder_attr(number, entry.kind), Duration::ZERO),
                };
                let name = OsStr::from_bytes(&entry.name);
                let ino = INodeNo(number);
                if reply.add(ino, entry.cookie, name, &attr_ttl, &attributes, Generation(generation)) {
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

    /// Inode number of a listed entry; other file systems are not entered for a listing.
    fn listed_number(&self, dir: Node, entry: &TreeEntry) -> u64 {
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

/// Placeholder for unreadable attributes.
fn placeholder_attr(number: u64, kind: Option<FileKind>) -> FileAttr {
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

/// Maps an error to an errno and logs corruption and I/O errors, because the caller sees only EIO.
pub(crate) fn report(rq: &Request, error: &FileError) -> Errno {
    if matches!(error, FileError::Corrupt { .. } | FileError::Device { .. } | FileError::Unsupported { .. }) {
        tracing::warn!(operation = rq.operation.name(), %error, "operation failed");
    }
    convert::errno(error)
}

/// Replies to getxattr or listxattr: with the size if `size` is 0, else with the bytes.
pub(crate) fn reply_xattr(reply: ReplyXattr, size: u32, value: Result<impl AsRef<[u8]>, Errno>) {
    match value {
        Err(errno) => reply.error(errno),
        Ok(value) if value.as_ref().len() > XATTR_BYTES => reply.error(Errno::E2BIG),
        Ok(value) if size == 0 => reply.size(value.as_ref().len() as u32),
        Ok(value) if value.as_ref().len() > size as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(value.as_ref()),
    }
}
