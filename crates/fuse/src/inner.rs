//! State shared by all operations, and the operations that only read.

use crate::access::Permissions;
use crate::callers::{Caller, FileServer};
use crate::convert;
use crate::inodes::{Inodes, UNKNOWN};
use crate::invalidations::Invalidations;
use crate::lookups::Lookups;
use crate::name_cache::{LONG_TTL, NameCache, SHORT_TTL};
use crate::open_counts::OpenCounts;
use fuser::{
    Errno, FileAttr, FopenFlags, Generation, INodeNo, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyStatfs,
    ReplyXattr,
};
use futures_util::future::join_all;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use weir_files::tree::{Hold, Node, Tree, TreeEntry, directory_for};
use weir_files::{Attributes, Cred, DirName, FileError, FileKind, HoldKind, RenameMode, Seek, masks};
use weir_machine::lock::{Mutex, order};
use weir_machine::{Client, Protocol, Request};

/// Directory entries per step of `readdir` and of `readdirplus`.
const PLAIN_ENTRIES: usize = 128;
const PLUS_ENTRIES: usize = 32;
/// Block size in `statvfs`, in bytes.
const STATFS_BYTES: u64 = 4096;
/// Time for which a file that a rename replaced can still be opened by a program that looked it up before.
const REPLACED_STAYS: Duration = Duration::from_secs(1);
/// Maximum size in bytes of an extended attribute's value on Linux (`XATTR_SIZE_MAX`) and of a list of names.
const XATTR_BYTES: usize = 65_536;

/// State shared by all operations of a mount.
pub(crate) struct Inner {
    pub(crate) tree: Arc<Tree>,
    pub(crate) inodes: Inodes,
    /// Number of the mount among those that lock files of this tree.
    pub(crate) mount: u64,
    /// Root directory of the mount.
    root: Node,
    /// Child file systems that the mount contains; `None` for all.
    contains: Option<Contains>,
    /// The user of the last request and the client that it is in the accounts: most mounts have few users.
    last_client: Mutex<Option<(u32, Client)>, { order::LAST_CLIENT }>,
    /// Whether the mount is writable.
    pub(crate) writable: bool,
    /// TTL of attributes.
    pub(crate) attr_ttl: Duration,
    /// The kernel's cached names.
    pub(crate) kernel: Arc<NameCache>,
    /// Names and files that another protocol changed, for the kernel to forget.
    pub(crate) invalidations: Invalidations,
    /// Whether no other front end changes the pool.
    exclusive_mount: bool,
    /// The file server for which the mount is, if it is for one: then permissions are checked here.
    pub(crate) server: Option<FileServer>,
    /// Whether only the user that mounted it can use the mount.
    pub(crate) single_user: bool,
    /// Lookups that the kernel has not forgotten, on a mount for a file server; on others files that a rename has just replaced.
    pub(crate) lookups: Lookups,
    /// Files that programs have open.
    pub(crate) opens: OpenCounts,
    /// Whether the kernel invalidates the page cache on direct writes.
    invalidates_page_cache: OnceLock<bool>,
}

/// Whether a mount contains the child file system of this ID.
pub(crate) type Contains = Arc<dyn Fn(u64) -> bool + Send + Sync>;

/// A resolved directory entry.
pub(crate) struct Entry {
    pub(crate) attributes: FileAttr,
    pub(crate) generation: u64,
    /// TTL of the entry.
    pub(crate) entry_ttl: Duration,
}

impl Inner {
    /// `exclusive_mount` means that no other front end changes the pool. `part` is the mounted part of the tree: a root and
    /// the children; `None` for the whole tree.
    pub(crate) fn new(
        tree: impl Into<Arc<Tree>>,
        writable: bool,
        exclusive_mount: bool,
        part: Option<(Node, Contains)>,
    ) -> Self {
        let tree = tree.into();
        let whole = tree.root();
        let (root, contains) = part.map_or((whole, None), |(root, contains)| (root, Some(contains)));
        let attr_ttl = if writable { SHORT_TTL } else { LONG_TTL };
        let kernel = Arc::<NameCache>::default();
        let exclusive_mount = writable && exclusive_mount;
        if exclusive_mount {
            let kernel = Arc::downgrade(&kernel);
            tree.observers().watch_exports(move || kernel.upgrade().iter().for_each(|kernel| kernel.invalidate_all()));
        }
        let mount = tree.locks().mount();
        Inner {
            tree,
            inodes: Inodes::new(root.branch),
            mount,
            root,
            contains,
            last_client: Mutex::default(),
            writable,
            attr_ttl,
            kernel,
            invalidations: Invalidations::default(),
            exclusive_mount,
            server: None,
            single_user: false,
            lookups: Lookups::default(),
            opens: OpenCounts::default(),
            invalidates_page_cache: OnceLock::new(),
        }
    }

    /// Makes it the state of a mount for a file server.
    pub(crate) fn for_server(mut self, server: FileServer, single_user: bool) -> Self {
        self.server = Some(server);
        self.single_user = single_user;
        self
    }

    /// Whether opens are of interest: to pin files, or to check permissions.
    pub(crate) fn tracks_opens(&self) -> bool {
        self.writable || self.server.is_some()
    }

    /// Whether locks are shared with other front ends. If there are none, the kernel keeps the locks, and need not tell of
    /// each descriptor that is closed.
    pub(crate) fn shares_locks(&self) -> bool {
        self.writable && !self.exclusive_mount
    }

    /// Whether other front ends may change files of the mount.
    pub(crate) fn shares_files(&self) -> bool {
        !self.exclusive_mount
    }

    /// Protocol of the requests.
    pub(crate) fn protocol(&self) -> Protocol {
        if self.server.is_some() { Protocol::Smb } else { Protocol::Fuse }
    }

    /// The client of a caller, if it is known: on a mount for a file server it may have to be asked for.
    pub(crate) fn known_client(&self, caller: Caller) -> Option<Client> {
        match &self.server {
            Some(server) => server.known_client(caller),
            None => Some(self.client(caller.uid())),
        }
    }

    /// Asks the file server for the client of a caller.
    pub(crate) async fn find_client(&self, caller: Caller) -> Client {
        let Some(server) = &self.server else { return self.client(caller.uid()) };
        let name = server.client_name(caller).await;
        let client = self.tree.accounts().client(Protocol::Smb, &name);
        server.keep_client(caller, client.clone());
        client
    }

    /// Credentials of a caller for operations on names and on files that are not open. The kernel has checked
    /// permissions, except on a mount for a file server.
    pub(crate) fn cred(&self, caller: Caller) -> Cred {
        match &self.server {
            Some(server) => server.cred(caller),
            None => caller.opened_cred(),
        }
    }

    /// The checks of permissions.
    pub(crate) fn permissions(&self) -> Permissions<'_> {
        Permissions { tree: &self.tree, checks: self.server.is_some(), single_user: self.single_user }
    }

    /// Counts a lookup of a file and holds the file, on a mount for a file server.
    async fn count_lookup(&self, rq: &Request, node: Node) -> Result<(), Errno> {
        if self.server.is_none() { Ok(()) } else { self.hold_lookup(rq, node).await }
    }

    /// Holds a file that a rename will replace, on a mount that holds open files alone: a program may have looked up the old file,
    /// and opens it next. Returns the file if [`Inner::release_replaced`] must release it.
    pub(crate) async fn hold_replaced(&self, rq: &Request, to: DirName<'_, INodeNo>, mode: RenameMode) -> Option<Node> {
        if self.server.is_some() || mode != RenameMode::Replace || self.tree.clock().is_none() {
            return None;
        }
        let dir = self.dir_of(rq, self.node(to.dir).ok()?, to.name).await.ok()?;
        let node = self.tree.lookup(rq, dir, to.name).await.ok()?;
        self.hold_lookup(rq, node).await.ok().map(|()| node)
    }

    /// Releases a file that was held as a rename's target, some time after the rename.
    pub(crate) async fn release_replaced(&self, node: Node) {
        if let Some(clock) = self.tree.clock() {
            clock.sleep(REPLACED_STAYS).await;
        }
        self.forget(&Request::internal("forget"), node, 1).await;
    }

    /// Counts a lookup of a file and holds the file.
    async fn hold_lookup(&self, rq: &Request, node: Node) -> Result<(), Errno> {
        if !self.lookups.add(node, Hold::is_closed) {
            return Ok(());
        }
        let replaced = match self.tree.hold_as(rq, node, HoldKind::Lookup).await {
            Ok(held) => held.and_then(|hold| self.lookups.keep(node, hold)),
            Err(error) => {
                // The reply is an error, so the kernel counts no lookup.
                self.forget(rq, node, 1).await;
                return Err(report(rq, &error));
            }
        };
        self.end_lookup(rq, replaced).await;
        Ok(())
    }

    /// Forgets lookups of a file.
    pub(crate) async fn forget(&self, rq: &Request, node: Node, lookups: u64) {
        self.end_lookup(rq, self.lookups.forget(node, lookups)).await;
    }

    /// Releases a file that the kernel has forgotten, unless its file system was closed meanwhile.
    pub(crate) async fn end_lookup(&self, rq: &Request, hold: Option<Hold>) {
        let Some(hold) = hold.filter(|hold| !hold.is_closed()) else { return };
        if let Err(error) = hold.release(rq).await {
            tracing::warn!(%error, "an unlinked file may stay in the unlinked set until the pool is imported again");
        }
    }

    /// The client that a user is in the accounts.
    pub(crate) fn client(&self, uid: u32) -> Client {
        let mut last = self.last_client.lock();
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

    pub(crate) async fn entry(&self, rq: &Request, cred: &Cred, parent: INodeNo, name: &[u8]) -> Result<Entry, Errno> {
        let dir = self.node(parent)?;
        self.permissions().require(rq, cred, dir, masks::EXECUTE).await?;
        let stored = self.dir_of(rq, dir, name).await?;
        let node = self.tree.lookup(rq, stored, name).await.map_err(|e| report(rq, &e))?;
        self.entry_of(rq, (parent, name), node).await
    }

    /// Builds the entry of a name whose file was found. The file is held before its attributes are read: it may be removed
    /// at any time.
    pub(crate) async fn entry_of(
        &self,
        rq: &Request,
        (parent, name): (INodeNo, &[u8]),
        node: Node,
    ) -> Result<Entry, Errno> {
        self.count_lookup(rq, node).await?;
        let entry = async {
            // A file that was replaced since the lookup is stale: the kernel looks its name up again.
            let attributes = self.tree.attributes(rq, node).await.map_err(|e| report_of_file(rq, &e))?;
            self.build_entry(rq, (parent, name), node, &attributes).await
        };
        let entry = entry.await;
        if entry.is_err() {
            self.forget(rq, node, 1).await;
        }
        entry
    }

    /// Builds the entry of a name in directory `parent` and counts the lookup.
    pub(crate) async fn entry_for(
        &self,
        rq: &Request,
        (parent, name): (INodeNo, &[u8]),
        node: Node,
        attributes: &Attributes,
    ) -> Result<Entry, Errno> {
        self.count_lookup(rq, node).await?;
        let entry = self.build_entry(rq, (parent, name), node, attributes).await;
        if entry.is_err() {
            self.forget(rq, node, 1).await;
        }
        entry
    }

    async fn build_entry(
        &self,
        rq: &Request,
        (parent, name): (INodeNo, &[u8]),
        node: Node,
        attributes: &Attributes,
    ) -> Result<Entry, Errno> {
        let may_cache = self.permissions().may_cache_names(rq, self.node(parent)?).await?;
        let mut entry_ttl = if may_cache { self.attr_ttl } else { Duration::ZERO };
        if self.exclusive_mount {
            let dir = self.node(parent)?;
            let exact = self.tree.name_rules(rq, dir).await.map_err(|e| report(rq, &e))?.has_exact_names;
            let stays = exact && node.branch == dir.branch && !node.is_synthetic();
            entry_ttl = self.kernel.entry_ttl(parent, name, stays);
        }
        let generation = attributes.generation;
        Ok(Entry { attributes: convert::attributes(self.number(node)?, attributes), generation, entry_ttl })
    }

    pub(crate) async fn attributes(&self, rq: &Request, number: INodeNo) -> Result<FileAttr, Errno> {
        let node = self.node(number)?;
        let attributes = self.tree.attributes(rq, node).await.map_err(|e| report_of_file(rq, &e))?;
        Ok(self.file_attr(number, node, &attributes))
    }

    /// Attributes of a file with its inode number. The mount's root is never looked up, so it can show its object
    /// number.
    pub(crate) fn file_attr(&self, number: INodeNo, node: Node, attributes: &Attributes) -> FileAttr {
        let shown = if node == self.root { attributes.object.0 } else { number.0 };
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
        self.tree.read_link(rq, self.node(number)?).await.map_err(|e| report_of_file(rq, &e))
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
            let (page, next) = self.page(rq, node, cookie, PLAIN_ENTRIES).await?;
            for entry in &page {
                let number = self.listed_number(node, entry);
                let kind = entry.kind.unwrap_or(FileKind::Regular);
                if reply.add(INodeNo(number), entry.cookie, convert::kind(kind), OsStr::from_bytes(&entry.name)) {
                    return Ok(());
                }
            }
            match next {
                Some(next) => cookie = next,
                None => return Ok(()),
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
        let may_cache = self.permissions().may_cache_names(rq, node).await?;
        loop {
            let (page, next) = self.page(rq, node, cookie, PLUS_ENTRIES).await?;
            let attributes = join_all(page.iter().map(|entry| self.tree.attributes(rq, entry.node))).await;
            for (entry, attributes) in page.iter().zip(attributes) {
                let number = self.number(entry.node).unwrap_or(UNKNOWN);
                let attributes = attributes.ok().filter(|_| number != UNKNOWN);
                let generation = attributes.as_ref().map(|a| a.generation).unwrap_or(0);
                // An unreadable file is listed with a TTL of zero, so that an access to it returns the error.
                let (attributes, attr_ttl) = match attributes {
                    Some(attributes) if may_cache => (convert::attributes(number, &attributes), self.attr_ttl),
                    Some(attributes) => (convert::attributes(number, &attributes), Duration::ZERO),
                    None => (placeholder_attr(number, entry.kind), Duration::ZERO),
                };
                let name = OsStr::from_bytes(&entry.name);
                let ino = INodeNo(number);
                if reply.add(ino, entry.cookie, name, &attr_ttl, &attributes, Generation(generation)) {
                    return Ok(());
                }
                // The kernel counts no lookup for the directory itself and its parent.
                if entry.name != b"." && entry.name != b".." && number != UNKNOWN {
                    self.count_lookup(rq, entry.node).await?;
                }
            }
            match next {
                Some(next) => cookie = next,
                None => return Ok(()),
            }
        }
    }

    /// Entries of a directory that the mount contains, and the cookie of the next page; `None` at the end.
    async fn page(
        &self,
        rq: &Request,
        node: Node,
        cookie: u64,
        max: usize,
    ) -> Result<(Vec<TreeEntry>, Option<u64>), Errno> {
        let page = self.tree.read_dir(rq, node, cookie, max).await.map_err(|e| report(rq, &e))?;
        let next = page.last().filter(|_| page.len() >= max).map(|last| last.cookie);
        let mut shown = Vec::with_capacity(page.len());
        for mut entry in page {
            if entry.name == b".." && node == self.root {
                entry.node = node;
            }
            if !self.has(node, entry.node) {
                // A directory may be stored under the name of a child that is not mounted.
                let stored = self.dir_of(rq, node, &entry.name).await?;
                let Ok(found) = self.tree.lookup(rq, stored, &entry.name).await else { continue };
                let Ok(attributes) = self.tree.attributes(rq, found).await else { continue };
                entry = TreeEntry { node: found, kind: Some(attributes.kind), ..entry };
            }
            shown.push(entry);
        }
        Ok((shown, next))
    }

    /// The directory for a name in it: without its child file systems if the mount does not contain the child of this name.
    ///
    /// What is in a file system that cannot be used is not known, so nothing is said to be missing there.
    pub(crate) async fn dir_of(&self, rq: &Request, dir: Node, name: &[u8]) -> Result<Node, Errno> {
        directory_for(&self.tree, rq, dir, name, |child| self.has(dir, child)).await.map_err(|e| report(rq, &e))
    }

    /// Whether the mount contains a node of a directory: not if it is the root of a child file system that is not mounted here.
    fn has(&self, dir: Node, node: Node) -> bool {
        let Some(contains) = self.contains.as_ref().filter(|_| node.branch != dir.branch) else { return true };
        // Snapshots, and parents of directories that are contained, are.
        let is_child = node.object == Node::ROOT && !dir.is_synthetic();
        let export = self.tree.export_of(node);
        !is_child || export.is_some_and(|export| contains(export.id) || self.is_above(dir, &export.name))
    }

    /// Whether a file system has this directory's among its children.
    fn is_above(&self, dir: Node, name: &str) -> bool {
        let below = self.tree.export_of(dir).map(|export| export.name).unwrap_or_default();
        below.strip_prefix(name).is_some_and(|rest| rest.starts_with(['/', '@']))
    }

    /// Inode number of a listed entry; other file systems are not entered for a listing.
    fn listed_number(&self, dir: Node, entry: &TreeEntry) -> u64 {
        if entry.node.branch == dir.branch { self.number(entry.node).unwrap_or(UNKNOWN) } else { UNKNOWN }
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

/// As [`report`], for an operation on a file that the kernel names by its number: one that does not exist any more is stale. For
/// `ESTALE` the kernel looks up the path once more, which may lead to a new file of that name; `ENOENT` would go to the program.
pub(crate) fn report_of_file(rq: &Request, error: &FileError) -> Errno {
    match error {
        FileError::NotFound => Errno::from_i32(libc::ESTALE),
        error => report(rq, error),
    }
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
