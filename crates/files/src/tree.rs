//! One tree of all file systems and snapshots of a pool, as exported by mounts and file servers.
//!
//! ```text
//!  pool                        Node { branch: pool,        object: ROOT }
//!  ├─ a/                       Node { branch: pool/a,      object: ROOT }     child file system over the directory `a`,
//!  │  └─ file                  Node { branch: pool/a,      object: 12 }       which may or may not exist in `pool`
//!  ├─ dir/                     Node { branch: pool,        object: 7 }
//!  └─ .zfs/                    Node { branch: pool,        object: CONTROL }  not listed unless `snapdir=visible`
//!     ├─ snapshot/             Node { branch: pool,        object: SNAPSHOTS }
//!     │  └─ monday/            Node { branch: pool@monday, object: ROOT }
//!     └─ shadow/               Node { branch: pool,        object: SHADOW }     not listed
//!        └─ @GMT-2026.…/       Node { branch: pool@monday, object: ROOT }
//! ```
//!
//! Every file system is mounted in its parent's root under the last component of its name, whatever its `mountpoint`:
//! only this arrangement guarantees that no two collide and all are reachable.
//!
//! Invariants. An export keeps its index for the lifetime of the tree, even if it is renamed; the index of a removed
//! export is not reused, and its nodes are stale. Exports are replaced atomically ([`Tree::renew`], [`Tree::renew_below`]): each
//! step sees either the old or the new ones. A node has one representation: the root directory of an export is always
//! [`Node::ROOT`], never its object number. File systems are opened on first access, and a bounded number
//! of idle ones stays open (`opened`); ten thousand unused snapshots cost two names each. An open failure is returned by each
//! access. No lock is held across an await: two concurrent first accesses may both open the file system, and the first to finish
//! is kept.
//!
//! A file system whose key is not loaded, or that is damaged so that it cannot be opened, is never taken for an empty one,
//! because programs that copy directories would copy that. Its root is a directory that cannot be listed (mode 0111): it has
//! attributes, so that the directory above can be listed with them, and lookups of its child file systems succeed, because
//! their keys may be loaded, and they may be whole. Every other access fails with [`FileError::NoKey`], or with the error of
//! opening it.
//!
//! Rejected: file systems at their `mountpoint` (absolute paths of another machine, `none`, `legacy`, duplicates).

mod change;
mod cursor;
pub mod memory;
mod namespace;
mod observers;
mod opened;
mod shadow;
mod source;
mod spelling;
mod synthetic_entries;

pub use change::Hold;
pub use observers::{ChangeObserver, ChangeObservers, Changed};
pub use source::{Created, FileFuture, Files, Opener};
pub use spelling::spelling;

use crate::locks::{LockedFile, Locks};
use crate::{Acl, Attributes, FileError, FileKind, Snapdir, Usage};
use bytes::Bytes;
use cursor::Position;
use namespace::{Extent, MountedDataset, Namespace};
use opened::OpenedBranches;
use shadow::ShadowDirectory;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::UNIX_EPOCH;
pub use synthetic_entries::directory_for;
use synthetic_entries::{locked_root, synthetic};
use weir_format::ObjectId;
use weir_machine::lock::{RwLock, order};
use weir_machine::{Accounts, Clock, Request};

/// A file or directory of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// Index of the export.
    pub branch: u32,
    /// Object number, or one of the constants below.
    pub object: u64,
}

impl Node {
    /// Root directory of the export. Uses object 1, the master node, which is never a file.
    pub const ROOT: u64 = 1;
    /// The directory `.zfs`. Object numbers are below 2^48 (`DN_MAX_OBJECT`), so this is not an object.
    pub const CONTROL: u64 = (1 << 48) - 1;
    /// The directory `.zfs/snapshot`.
    pub const SNAPSHOTS: u64 = (1 << 48) - 2;

    /// The directory `.zfs/shadow`: the snapshots by their time.
    pub const SHADOW: u64 = (1 << 48) - 3;

    /// Whether the node is not backed by an object.
    pub fn is_synthetic(self) -> bool {
        matches!(self.object, Node::CONTROL | Node::SNAPSHOTS | Node::SHADOW)
    }
}

/// A file system or snapshot in the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Full name: `pool/a` or `pool/a@snapshot`.
    pub name: String,
    /// Persistent ID that is never reused and that file handles contain: the dataset's `fsid_guid`.
    pub id: u64,
}

/// How names in a directory are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NameRules {
    /// Whether names that differ only in case are equal.
    pub is_case_insensitive: bool,
    /// Whether each entry has exactly one spelling.
    pub has_exact_names: bool,
}

/// A directory entry of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Node of the entry.
    pub node: Node,
    /// Kind of the node, if known without opening it.
    pub kind: Option<FileKind>,
    /// Cookie to continue a listing after this entry. Never 0, below 2^63.
    pub cookie: u64,
}

/// State of an opened export.
#[derive(Clone)]
enum Opened {
    Files(Arc<dyn Files>),
    /// The file system cannot be used: its key is not loaded, or it is damaged. Its place and child file systems are known.
    Shut(FileError),
}

impl Opened {
    /// Whether it was closed permanently (after a rollback) and must be reopened.
    fn is_closed(&self) -> bool {
        matches!(self, Opened::Files(files) if files.is_closed())
    }
}

/// Tree of all exports of a pool.
pub struct Tree {
    opener: Arc<dyn Opener>,
    namespace: RwLock<Arc<Namespace>, { order::NAMESPACE }>,
    /// Clock for the times of synthetic directories; without it they have the times of objects.
    clock: Option<Clock>,
    /// Accounts of the requests.
    accounts: Arc<Accounts>,
    /// Front ends whose clients cache what changes.
    observers: ChangeObservers,
    /// Advisory locks on files.
    locks: Arc<Locks>,
    /// The opened file systems.
    opened: OpenedBranches,
}

impl Tree {
    /// Builds a tree of `exports`, the first of which is the root; an export whose parent is missing is skipped.
    pub fn new(opener: Arc<dyn Opener>, exports: Vec<Export>) -> Self {
        let mut namespace = Namespace::default();
        namespace.replace(Extent::All, exports, 0);
        let namespace = RwLock::new(Arc::new(namespace));
        Tree {
            opener,
            namespace,
            clock: None,
            accounts: Arc::default(),
            observers: ChangeObservers::default(),
            locks: Arc::default(),
            opened: OpenedBranches::default(),
        }
    }

    /// Like [`Tree::new`], with a clock: the modification time of `.zfs/snapshot` is the last creation or destruction
    /// of a snapshot, so that clients revalidate cached listings. Initially it is the time the tree was created.
    pub fn with_clock(opener: Arc<dyn Opener>, exports: Vec<Export>, clock: Clock) -> Self {
        let tree = Tree { clock: Some(clock), ..Tree::new(opener, Vec::new()) };
        tree.renew(exports);
        tree
    }

    /// Records requests in the pool's accounts instead of in accounts of the tree.
    pub fn with_accounts(self, accounts: &Arc<Accounts>) -> Self {
        Tree { accounts: accounts.clone(), ..self }
    }

    /// Accounts of the requests.
    pub fn accounts(&self) -> &Arc<Accounts> {
        &self.accounts
    }

    fn now_ns(&self) -> i128 {
        let wall = self.clock.as_ref().and_then(|clock| clock.wall().duration_since(UNIX_EPOCH).ok());
        wall.and_then(|since| i128::try_from(since.as_nanos()).ok()).unwrap_or(0)
    }

    /// Replaces the exports, in the same order as in [`Tree::new`] and with the same root. File systems that were
    /// locked are opened again.
    pub fn renew(&self, exports: Vec<Export>) {
        self.replace(Extent::All, exports);
    }

    /// Replaces the exports of the file systems `tops`, their snapshots and descendants by `exports`. The cost does not
    /// depend on the number of the other exports.
    pub fn renew_below(&self, tops: &[String], exports: Vec<Export>) {
        self.replace(Extent::Below(tops), exports);
    }

    fn replace(&self, extent: Extent<'_>, exports: Vec<Export>) {
        let changed = {
            let mut namespace = self.namespace.write();
            let now_ns = self.now_ns();
            let namespace = Arc::make_mut(&mut namespace);
            let replaced = namespace.replace(extent, exports, now_ns);
            let mut changed = replaced.changed;
            for branch in replaced.placed.iter().filter_map(|index| namespace.branch(*index)) {
                let mut opened = branch.opened.lock();
                changed |= opened.as_ref().is_some_and(Opened::is_closed);
                changed |= opened.take_if(|opened| matches!(opened, Opened::Shut(_))).is_some();
            }
            changed
        };
        if changed {
            self.observers.report_exports();
        }
    }

    fn namespace(&self) -> Arc<Namespace> {
        self.namespace.read().clone()
    }

    /// The root of the tree.
    pub fn root(&self) -> Node {
        Node { branch: 0, object: Node::ROOT }
    }

    /// All exports, in the order of their index.
    pub fn exports(&self) -> Vec<Export> {
        self.namespace().exports().cloned().collect()
    }

    /// Export that contains a node.
    pub fn export_of(&self, node: Node) -> Option<Export> {
        self.namespace().branch(node.branch).map(|branch| branch.export.clone())
    }

    /// Index of the export with this ID.
    pub fn branch_by_id(&self, id: u64) -> Option<u32> {
        self.namespace().index_of(id)
    }

    /// Device number of a node's export for `stat`.
    pub async fn fsid(&self, rq: &Request, node: Node) -> Result<u64, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) => Ok(files.fsid()),
            Opened::Shut(_) => Ok(self.branch(node)?.export.id),
        }
    }

    /// Maximum length of a name in a directory, in bytes.
    pub async fn name_max(&self, rq: &Request, node: Node) -> Result<usize, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => Ok(files.name_max()),
            _ => Ok(255),
        }
    }

    /// How names in a directory are compared. Synthetic names are exact.
    ///
    /// # Errors
    /// Those of opening the file system.
    pub async fn name_rules(&self, rq: &Request, node: Node) -> Result<NameRules, FileError> {
        let rules = |is_case_insensitive, has_exact_names| NameRules { is_case_insensitive, has_exact_names };
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => {
                Ok(rules(files.is_case_insensitive(), files.has_exact_names()))
            }
            _ => Ok(rules(false, true)),
        }
    }

    /// Attributes of a node if it still has this generation; for file handles.
    ///
    /// # Errors
    /// [`FileError::Stale`] if it does not.
    pub async fn by_file_id(&self, rq: &Request, node: Node, generation: u64) -> Result<Attributes, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if node.object != Node::ROOT && !node.is_synthetic() => {
                files.by_file_id(rq, ObjectId(node.object), generation).await
            }
            _ => self.attributes(rq, node).await,
        }
    }

    /// Looks up `name` in the directory `node`; handles `.`, `..` and `.zfs`.
    pub async fn lookup(&self, rq: &Request, node: Node, name: &[u8]) -> Result<Node, FileError> {
        let branch = self.branch(node)?;
        let at = |object| Node { branch: node.branch, object };
        if node.is_synthetic() || (node.object == Node::ROOT && name == b".zfs" && !branch.is_snapshot) {
            self.require_snapshot_dir(rq, node).await?;
        }
        match (node.object, name) {
            (_, b"..") => return self.parent(rq, node).await,
            (Node::CONTROL | Node::SNAPSHOTS | Node::SHADOW, b".") => return Ok(node),
            (Node::CONTROL, b"snapshot") => return Ok(at(Node::SNAPSHOTS)),
            (Node::CONTROL, b"shadow") => return Ok(at(Node::SHADOW)),
            (Node::SHADOW, name) => return ShadowDirectory { tree: self, branch: &branch }.lookup(rq, name).await,
            (Node::SNAPSHOTS, name) => {
                let index = branch.snapshots.get(name).ok_or(FileError::NotFound)?;
                return Ok(Node { branch: index, object: Node::ROOT });
            }
            (Node::CONTROL, _) => return Err(FileError::NotFound),
            (Node::ROOT, b".zfs") if !branch.is_snapshot => return Ok(at(Node::CONTROL)),
            (Node::ROOT, name) => {
                if let Some(child) = branch.children.get(name) {
                    return Ok(Node { branch: child, object: Node::ROOT });
                }
            }
            _ => {}
        }
        let files = match self.open(rq, node.branch).await? {
            Opened::Files(files) => files,
            Opened::Shut(_) if name == b"." && node.object == Node::ROOT => return Ok(node),
            Opened::Shut(why) => return Err(why),
        };
        if name.len() > files.name_max() {
            return Err(FileError::NameTooLong { len: name.len() });
        }
        let dir = object_of(&*files, node);
        if name == b"." {
            let attributes = files.attributes(rq, dir).await?;
            let is_dir = attributes.kind == FileKind::Directory;
            return if is_dir { Ok(node) } else { Err(FileError::NotDirectory { object: dir }) };
        }
        let found = files.lookup(rq, dir, name).await?;
        Ok(node_of(&*files, node.branch, found))
    }

    /// Fails if `.zfs` is not reachable.
    async fn require_snapshot_dir(&self, rq: &Request, node: Node) -> Result<(), FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if files.snapdir() == Snapdir::Disabled => Err(FileError::NotFound),
            Opened::Files(_) => Ok(()),
            Opened::Shut(why) => Err(why),
        }
    }

    /// Fails if a node's file system cannot be used.
    ///
    /// # Errors
    /// [`FileError::NoKey`] if its key is not loaded; errors of opening the file system.
    pub async fn require_usable(&self, rq: &Request, node: Node) -> Result<(), FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(_) => Ok(()),
            Opened::Shut(why) => Err(why),
        }
    }

    /// Parent directory of `node`; the root of the tree is its own parent.
    pub async fn parent(&self, rq: &Request, node: Node) -> Result<Node, FileError> {
        let branch = self.branch(node)?;
        match node.object {
            Node::CONTROL => Ok(Node { branch: node.branch, object: Node::ROOT }),
            Node::SNAPSHOTS | Node::SHADOW => Ok(Node { branch: node.branch, object: Node::CONTROL }),
            Node::ROOT => Ok(match branch.parent {
                None => node,
                Some(parent) if branch.is_snapshot => Node { branch: parent, object: Node::SNAPSHOTS },
                Some(parent) => Node { branch: parent, object: Node::ROOT },
            }),
            _ => {
                let files = self.files(rq, node).await?;
                let parent = files.parent(rq, ObjectId(node.object)).await?;
                Ok(node_of(&*files, node.branch, parent))
            }
        }
    }

    /// Attributes of a node. `object` in the result is the node's number, or the real object number of a root
    /// directory.
    pub async fn attributes(&self, rq: &Request, node: Node) -> Result<Attributes, FileError> {
        let branch = self.branch(node)?;
        match self.open(rq, node.branch).await? {
            Opened::Shut(_) if node.object == Node::ROOT => Ok(locked_root(branch.children.by_name.len())),
            Opened::Shut(why) => Err(why),
            Opened::Files(files) if node.is_synthetic() => {
                let root = files.attributes(rq, files.root()).await?;
                let inside = if node.object == Node::CONTROL { 1 } else { branch.snapshots.by_name.len() };
                let mut found = synthetic(node, Some(&root), inside);
                if node.object != Node::CONTROL {
                    found.mtime_ns = found.mtime_ns.max(branch.snapshots_changed_ns);
                    found.ctime_ns = found.ctime_ns.max(branch.snapshots_changed_ns);
                }
                Ok(found)
            }
            Opened::Files(files) => files.attributes(rq, object_of(&*files, node)).await,
        }
    }

    /// Reads up to `max` entries of a directory after `cookie` (0: from the start), `.` and `..` first. Fewer than
    /// `max` mean the end.
    pub async fn read_dir(
        &self,
        rq: &Request,
        node: Node,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<TreeEntry>, FileError> {
        let branch = self.branch(node)?;
        self.require_usable(rq, node).await?;
        let mut out = Vec::new();
        let mut stored = match Position::of(cookie) {
            Position::Stored(cookie) => Some(cookie),
            after => {
                if after == Position::Fixed(0) {
                    // Check on the first page that the node is a directory.
                    self.require_directory(rq, node).await?;
                }
                synthetic_entries::list_synthetic(self, rq, node, &branch, after, max, &mut out).await?;
                (out.len() < max).then_some(0)
            }
        };
        if node.is_synthetic() {
            self.require_snapshot_dir(rq, node).await?;
            return Ok(out);
        }
        let files = match self.open(rq, node.branch).await? {
            Opened::Files(files) => files,
            Opened::Shut(why) => return Err(why),
        };
        let dir = object_of(&*files, node);
        let covered = |name: &[u8]| {
            node.object == Node::ROOT
                && (branch.children.get(name).is_some() || (name == b".zfs" && !branch.is_snapshot))
        };
        while let Some(cookie) = stored.take().filter(|_| out.len() < max) {
            let wanted = max - out.len();
            let page = files.read_dir(rq, dir, cookie, wanted).await?;
            // A page that is not full is the last one.
            stored = page.last().filter(|_| page.len() >= wanted).map(|last| last.cookie);
            for entry in page.into_iter().filter(|entry| !covered(&entry.name)) {
                out.push(TreeEntry {
                    node: node_of(&*files, node.branch, entry.object),
                    name: entry.name,
                    kind: entry.kind,
                    cookie: Position::Stored(entry.cookie).cookie(),
                });
            }
        }
        Ok(out)
    }

    async fn require_directory(&self, rq: &Request, node: Node) -> Result<(), FileError> {
        match self.attributes(rq, node).await?.kind {
            FileKind::Directory => Ok(()),
            _ => Err(FileError::NotDirectory { object: ObjectId(node.object) }),
        }
    }

    /// Names of all extended attributes.
    pub async fn xattr_names(&self, rq: &Request, node: Node) -> Result<Vec<Vec<u8>>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => files.xattr_names(rq, object_of(&*files, node)).await,
            _ => Ok(Vec::new()),
        }
    }

    /// Value of an extended attribute, if it exists.
    pub async fn xattr(&self, rq: &Request, node: Node, name: &[u8]) -> Result<Option<Bytes>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => files.xattr(rq, object_of(&*files, node), name).await,
            _ => Ok(None),
        }
    }

    /// The ACL; `None` for synthetic nodes.
    pub async fn acl(&self, rq: &Request, node: Node) -> Result<Option<Acl>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => files.acl(rq, object_of(&*files, node)).await.map(Some),
            _ => Ok(None),
        }
    }

    /// The locks on the files of all file systems.
    pub fn locks(&self) -> &Arc<Locks> {
        &self.locks
    }

    /// Front ends to which changes of exports, files and names are reported.
    pub fn observers(&self) -> &ChangeObservers {
        &self.observers
    }

    /// The clock of [`Tree::with_clock`].
    pub fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }

    /// Key of the locks on a file. Network front ends know the same three numbers from its handle.
    ///
    /// # Errors
    /// If its attributes cannot be read.
    pub async fn locked_file(&self, rq: &Request, node: Node) -> Result<LockedFile, FileError> {
        let generation = self.attributes(rq, node).await?.generation;
        let file_system = self.branch(node)?.export.id;
        Ok(LockedFile { file_system, object: node.object, generation })
    }

    /// Space usage for `statvfs` of a file or directory.
    pub async fn usage(&self, rq: &Request, node: Node) -> Result<Usage, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if node.is_synthetic() => files.usage(rq, files.root()).await,
            Opened::Files(files) => files.usage(rq, object_of(&*files, node)).await,
            Opened::Shut(why) => Err(why),
        }
    }

    fn branch(&self, node: Node) -> Result<Arc<MountedDataset>, FileError> {
        let stale = FileError::Stale { object: ObjectId(node.object) };
        self.namespace().branch(node.branch).cloned().ok_or(stale)
    }

    async fn open(&self, rq: &Request, index: u32) -> Result<Opened, FileError> {
        let branch = self.branch(Node { branch: index, object: Node::ROOT })?;
        let lock = || branch.opened.lock();
        if !branch.accessed.load(Ordering::Relaxed) {
            branch.accessed.store(true, Ordering::Relaxed);
        }
        if let Some(opened) = lock().clone().filter(|opened| !opened.is_closed()) {
            return Ok(opened);
        }
        let opened = match self.opener.open(rq, &branch.export).await {
            Ok(files) => Opened::Files(files),
            Err(FileError::NoKey) => Opened::Shut(FileError::NoKey),
            // Not stored: a device may return, and the next access tries again.
            Err(why @ (FileError::Corrupt { .. } | FileError::Device { .. } | FileError::Unsupported { .. })) => {
                return Ok(Opened::Shut(why));
            }
            // It was destroyed, and the tree has not been renewed yet.
            Err(FileError::NotFound) => return Err(FileError::Stale { object: ObjectId(Node::ROOT) }),
            Err(error) => return Err(error),
        };
        let (opened, succeeds, is_new) = {
            let mut stored = lock();
            let succeeds = stored.take_if(|stored| stored.is_closed()).is_some();
            let is_new = stored.is_none() && !succeeds;
            (stored.get_or_insert(opened).clone(), succeeds, is_new)
        };
        if is_new && matches!(opened, Opened::Files(_)) {
            self.opened.add(index, &self.namespace());
        }
        if succeeds {
            self.observers.report_exports();
        }
        Ok(opened)
    }

    /// File system of a node that is backed by an object.
    async fn files(&self, rq: &Request, node: Node) -> Result<Arc<dyn Files>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => Ok(files),
            Opened::Shut(why) => Err(why),
            Opened::Files(_) => Err(FileError::IsDirectory { object: ObjectId(node.object) }),
        }
    }
}

fn object_of(files: &dyn Files, node: Node) -> ObjectId {
    if node.object == Node::ROOT { files.root() } else { ObjectId(node.object) }
}

fn node_of(files: &dyn Files, branch: u32, object: ObjectId) -> Node {
    Node { branch, object: if object == files.root() { Node::ROOT } else { object.0 } }
}

#[cfg(test)]
mod tests;
