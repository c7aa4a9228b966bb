//! One tree over all file systems and snapshots of a pool: what a mount or a file server shows.
//!
//! ```text
//!  pool                        Node { branch: pool,        object: ROOT }
//!  ├─ a/                       Node { branch: pool/a,      object: ROOT }     child file system over the directory `a`,
//!  │  └─ file                  Node { branch: pool/a,      object: 12 }       which may or may not exist in `pool`
//!  ├─ dir/                     Node { branch: pool,        object: 7 }
//!  └─ .zfs/                    Node { branch: pool,        object: CONTROL }  not listed unless `snapdir=visible`
//!     └─ snapshot/             Node { branch: pool,        object: SNAPSHOTS }
//!        └─ monday/            Node { branch: pool@monday, object: ROOT }
//! ```
//!
//! Every file system hangs below its parent's root by the last part of its name, whatever its `mountpoint` says: that
//! is the one arrangement in which no two can collide and none is lost.
//!
//! Invariants. A member keeps the index that it got first for as long as the tree stands, whatever it is called; the index
//! of one that is gone is not given again, and its nodes are stale. The list of members is replaced as a whole
//! ([`Tree::renew`]): each step sees the old one or the new one. A node has one spelling: the root directory of a branch is
//! always [`Node::ROOT`], never its object number. File systems are opened at the first step into them and kept; ten thousand snapshots that
//! nobody looks at cost two names each. A file system whose key is not loaded appears as an empty directory that holds its
//! children, as ZFS shows the mount point of one that it can't mount; any other failure to open is an error of each
//! step into it. No lock is held across an await: two first steps may both open, and the first one stored wins.
//!
//! Rejected: file systems at their `mountpoint` (absolute paths of another machine, `none`, `legacy`, twice the same).

mod change;
mod cursor;
mod laid;
pub mod memory;
mod source;

pub use change::Kept;
pub use source::{Answer, Files, Opener};

use crate::{Acl, Attributes, FileError, FileKind, Seek, Snapdir, Usage};
use bytes::Bytes;
use cursor::Position;
use laid::Entries;
use smallvec::SmallVec;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::UNIX_EPOCH;
use weir_format::ObjectId;
use weir_machine::{Clock, Request};

/// One file or directory of the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Node {
    /// Index of the file system or snapshot.
    pub branch: u32,
    /// The object's number, or one of the constants below.
    pub object: u64,
}

impl Node {
    /// The root directory of the branch. Stands on object 1, the master node, which is never a file.
    pub const ROOT: u64 = 1;
    /// The directory `.zfs`. Object numbers end at 2^48, so this is none (`DN_MAX_OBJECT`).
    pub const CONTROL: u64 = (1 << 48) - 1;
    /// The directory `.zfs/snapshot`.
    pub const SNAPSHOTS: u64 = (1 << 48) - 2;

    /// Whether there is no object behind it.
    pub fn is_synthetic(self) -> bool {
        self.object == Node::CONTROL || self.object == Node::SNAPSHOTS
    }
}

/// A file system or snapshot to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Full name: `pool/a` or `pool/a@snapshot`.
    pub name: String,
    /// A number that lasts, and that no other member has, nor will have when this one is gone: handles lead by it. The data
    /// set's `fsid_guid`.
    pub id: u64,
}

/// One entry of a directory of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TreeEntry {
    /// The name.
    pub name: Vec<u8>,
    /// Where it leads.
    pub node: Node,
    /// What it is, where that is known without opening it.
    pub kind: Option<FileKind>,
    /// Hand this to `read_dir` to go on after this entry. Never 0, below 2^63.
    pub cookie: u64,
}

/// What stands behind a branch once it is opened.
#[derive(Clone)]
enum Opened {
    Files(Arc<dyn Files>),
    /// Its key is not loaded.
    Locked,
}

impl Opened {
    /// It was closed for good (rolled back): it has a successor.
    fn is_closed(&self) -> bool {
        matches!(self, Opened::Files(files) if files.is_closed())
    }
}

/// One file system or snapshot in the tree.
struct Branch {
    member: Member,
    parent: Option<u32>,
    is_snapshot: bool,
    children: Entries,
    snapshots: Entries,
    /// When snapshots came or went last, in nanoseconds since 1970; else when the tree was made.
    snapshots_changed_ns: i128,
    /// What stands behind it, also when it is called something else.
    opened: Arc<Mutex<Option<Opened>>>,
}

/// The members of one moment.
#[derive(Default)]
struct Shape {
    /// By index; `None` for one that is gone.
    branches: Vec<Option<Arc<Branch>>>,
    by_id: BTreeMap<u64, u32>,
}

impl Shape {
    /// What comes after `before`: see [`Tree::new`] for the order of the members.
    fn after(before: &Shape, mut members: Vec<Member>, now_ns: i128) -> Shape {
        if let Some(rest) = members.get_mut(1..) {
            // Parents before children: `a` < `a/b`, and a snapshot after its file system.
            rest.sort_by(|a, b| a.name.cmp(&b.name));
        }
        let mut next = before.branches.len();
        let mut branches: BTreeMap<u32, Branch> = BTreeMap::new();
        let mut by_name: BTreeMap<String, u32> = BTreeMap::new();
        for (place, member) in members.into_iter().enumerate() {
            let (parent, leaf, is_snapshot) = split(&member.name);
            let parent = parent.and_then(|name| by_name.get(name)).copied();
            let known = before.by_id.get(&member.id).copied();
            let index = known.unwrap_or(next as u32);
            match parent.and_then(|p| branches.get_mut(&p)) {
                Some(parent) if is_snapshot => parent.snapshots.insert(leaf, member.id, index),
                Some(parent) => parent.children.insert(leaf, member.id, index),
                None if place == 0 => {}
                None => continue,
            }
            next += usize::from(known.is_none());
            let opened = before.branch(index).map(|branch| branch.opened.clone()).unwrap_or_default();
            let (children, snapshots) = Default::default();
            by_name.insert(member.name.clone(), index);
            let snapshots_changed_ns = now_ns;
            let branch = Branch { member, parent, is_snapshot, children, snapshots, snapshots_changed_ns, opened };
            branches.insert(index, branch);
        }
        for (index, branch) in &mut branches {
            let unchanged = |old: &&Arc<Branch>| old.snapshots.by_name == branch.snapshots.by_name;
            if let Some(old) = before.branch(*index).filter(unchanged) {
                branch.snapshots_changed_ns = old.snapshots_changed_ns;
            }
        }
        let by_id = branches.iter().map(|(index, branch)| (branch.member.id, *index)).collect();
        let mut slots = vec![None; next];
        for (index, branch) in branches {
            if let Some(slot) = slots.get_mut(index as usize) {
                *slot = Some(Arc::new(branch));
            }
        }
        Shape { branches: slots, by_id }
    }

    fn branch(&self, index: u32) -> Option<&Arc<Branch>> {
        self.branches.get(index as usize).and_then(Option::as_ref)
    }

    fn members(&self) -> impl Iterator<Item = &Member> {
        self.branches.iter().flatten().map(|branch| &branch.member)
    }
}

/// The tree.
pub struct Tree {
    opener: Arc<dyn Opener>,
    shape: RwLock<Arc<Shape>>,
    /// Without one, all times of what is no object are those of objects.
    clock: Option<Clock>,
    /// Who is told that it was renewed.
    watchers: Mutex<Vec<Watcher>>,
}

type Watcher = Box<dyn Fn() + Send + Sync>;

impl Tree {
    /// A tree of `members`, the first of which is the root; a member whose parent is not among them is left out.
    pub fn new(opener: Arc<dyn Opener>, members: Vec<Member>) -> Self {
        let shape = Shape::after(&Shape::default(), members, 0);
        Tree { opener, shape: RwLock::new(Arc::new(shape)), clock: None, watchers: Mutex::default() }
    }

    /// The same; the directory of snapshots shows when they came or went last, so that clients that keep what it held look
    /// again. What came or went before the tree was made it does not know, so it shows that time first.
    pub fn with_clock(opener: Arc<dyn Opener>, members: Vec<Member>, clock: Clock) -> Self {
        let tree = Tree { clock: Some(clock), ..Tree::new(opener, Vec::new()) };
        tree.renew(members);
        tree
    }

    fn now_ns(&self) -> i128 {
        let wall = self.clock.as_ref().and_then(|clock| clock.wall().duration_since(UNIX_EPOCH).ok());
        wall.and_then(|since| i128::try_from(since.as_nanos()).ok()).unwrap_or(0)
    }

    /// Calls `told` when members came, went or are called otherwise ([`Tree::renew`]), or one is no longer what it was (rolled
    /// back): what was known of names may not be true any more.
    pub fn watch(&self, told: impl Fn() + Send + Sync + 'static) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).push(Box::new(told));
    }

    /// Shows these members from now on, in the same order as in [`Tree::new`], with the same root. What could not be
    /// opened for lack of a key is tried again.
    pub fn renew(&self, members: Vec<Member>) {
        let changed = {
            let mut shape = self.shape.write().unwrap_or_else(PoisonError::into_inner);
            let next = Shape::after(&shape, members, self.now_ns());
            let mut changed = !next.members().eq(shape.members());
            for branch in next.branches.iter().flatten() {
                let mut opened = branch.opened.lock().unwrap_or_else(PoisonError::into_inner);
                changed |= opened.as_ref().is_some_and(Opened::is_closed);
                changed |= opened.take_if(|opened| matches!(opened, Opened::Locked)).is_some();
            }
            *shape = Arc::new(next);
            changed
        };
        if changed {
            self.tell();
        }
    }

    fn tell(&self) {
        self.watchers.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|told| told());
    }

    fn shape(&self) -> Arc<Shape> {
        self.shape.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The root of the tree.
    pub fn root(&self) -> Node {
        Node { branch: 0, object: Node::ROOT }
    }

    /// The members, in the order of their index.
    pub fn members(&self) -> Vec<Member> {
        self.shape().members().cloned().collect()
    }

    /// The member that a node belongs to.
    pub fn member(&self, node: Node) -> Option<Member> {
        self.shape().branch(node.branch).map(|branch| branch.member.clone())
    }

    /// The branch of the member with this number.
    pub fn branch_by_id(&self, id: u64) -> Option<u32> {
        self.shape().by_id.get(&id).copied()
    }

    /// The number by which `stat` and its kin tell the branch of `node` from others.
    pub async fn fsid(&self, rq: &Request, node: Node) -> Result<u64, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) => Ok(files.fsid()),
            Opened::Locked => Ok(self.branch(node)?.member.id),
        }
    }

    /// The longest name in a directory.
    pub async fn name_max(&self, rq: &Request, node: Node) -> Result<usize, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => Ok(files.name_max()),
            _ => Ok(255),
        }
    }

    /// Whether names that differ in case alone are the same name in a directory.
    pub async fn is_case_insensitive(&self, rq: &Request, node: Node) -> Result<bool, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => Ok(files.is_case_insensitive()),
            _ => Ok(false),
        }
    }

    /// Whether a name in a directory stands for itself alone: no other spelling leads to the same entry.
    pub async fn has_exact_names(&self, rq: &Request, node: Node) -> Result<bool, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => Ok(files.has_exact_names()),
            _ => Ok(true),
        }
    }

    /// The node of a handle, if its file is still the same one.
    ///
    /// # Errors
    /// [`FileError::Stale`] if it is not.
    pub async fn by_file_id(&self, rq: &Request, node: Node, generation: u64) -> Result<Attributes, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if node.object != Node::ROOT && !node.is_synthetic() => {
                files.by_file_id(rq, ObjectId(node.object), generation).await
            }
            _ => self.attributes(rq, node).await,
        }
    }

    /// What `name` leads to in the directory `node`; `.`, `..` and `.zfs` included.
    pub async fn lookup(&self, rq: &Request, node: Node, name: &[u8]) -> Result<Node, FileError> {
        let branch = self.branch(node)?;
        let at = |object| Node { branch: node.branch, object };
        if node.is_synthetic() || (node.object == Node::ROOT && name == b".zfs" && !branch.is_snapshot) {
            self.must_lead_to_snapshots(rq, node).await?;
        }
        match (node.object, name) {
            (_, b"..") => return self.parent(rq, node).await,
            (Node::CONTROL | Node::SNAPSHOTS, b".") => return Ok(node),
            (Node::CONTROL, b"snapshot") => return Ok(at(Node::SNAPSHOTS)),
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
        let Opened::Files(files) = self.open(rq, node.branch).await? else {
            return if name == b"." { Ok(node) } else { Err(FileError::NotFound) };
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

    /// An error where `.zfs` is nowhere.
    async fn must_lead_to_snapshots(&self, rq: &Request, node: Node) -> Result<(), FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if files.snapdir() == Snapdir::Disabled => Err(FileError::NotFound),
            _ => Ok(()),
        }
    }

    /// The directory that holds `node`; the root of the tree is its own parent.
    pub async fn parent(&self, rq: &Request, node: Node) -> Result<Node, FileError> {
        let branch = self.branch(node)?;
        match node.object {
            Node::CONTROL => Ok(Node { branch: node.branch, object: Node::ROOT }),
            Node::SNAPSHOTS => Ok(Node { branch: node.branch, object: Node::CONTROL }),
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

    /// What `stat` shows. `object` in the result is the node's own number, or the real one of a root directory.
    pub async fn attributes(&self, rq: &Request, node: Node) -> Result<Attributes, FileError> {
        let branch = self.branch(node)?;
        match self.open(rq, node.branch).await? {
            Opened::Locked => Ok(synthetic(node, None, branch.children.by_name.len())),
            Opened::Files(files) if node.is_synthetic() => {
                let root = files.attributes(rq, files.root()).await?;
                let inside = if node.object == Node::CONTROL { 1 } else { branch.snapshots.by_name.len() };
                let mut found = synthetic(node, Some(&root), inside);
                if node.object == Node::SNAPSHOTS {
                    found.mtime_ns = found.mtime_ns.max(branch.snapshots_changed_ns);
                    found.ctime_ns = found.ctime_ns.max(branch.snapshots_changed_ns);
                }
                Ok(found)
            }
            Opened::Files(files) => files.attributes(rq, object_of(&*files, node)).await,
        }
    }

    /// Up to `max` entries of a directory after `cookie` (0: from the start), `.` and `..` first. Fewer than `max`
    /// means that the end is reached.
    pub async fn read_dir(
        &self,
        rq: &Request,
        node: Node,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<TreeEntry>, FileError> {
        let branch = self.branch(node)?;
        let mut out = Vec::new();
        let mut stored = match Position::of(cookie) {
            Position::Stored(cookie) => Some(cookie),
            after => {
                if after == Position::Fixed(0) {
                    // A listing begins only where there is a directory.
                    self.require_directory(rq, node).await?;
                }
                self.laid_over(rq, node, &branch, after, max, &mut out).await?;
                (out.len() < max).then_some(0)
            }
        };
        if node.is_synthetic() {
            self.must_lead_to_snapshots(rq, node).await?;
            return Ok(out);
        }
        let Opened::Files(files) = self.open(rq, node.branch).await? else { return Ok(out) };
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

    /// Up to `len` bytes of a file from `offset`, clipped at its end, as the pieces that lie in the cache.
    pub async fn read(
        &self,
        rq: &Request,
        node: Node,
        offset: u64,
        len: usize,
    ) -> Result<SmallVec<[Bytes; 4]>, FileError> {
        let files = self.files(rq, node).await?;
        files.read(rq, object_of(&*files, node), offset, len).await
    }

    /// The next data or hole at or after `offset`, or `None` beyond the last.
    pub async fn seek(&self, rq: &Request, node: Node, offset: u64, what: Seek) -> Result<Option<u64>, FileError> {
        let files = self.files(rq, node).await?;
        files.seek(rq, object_of(&*files, node), offset, what).await
    }

    /// The target of a symbolic link.
    pub async fn read_link(&self, rq: &Request, node: Node) -> Result<Bytes, FileError> {
        let files = self.files(rq, node).await?;
        files.read_link(rq, object_of(&*files, node)).await
    }

    /// The names of all extended attributes.
    pub async fn xattr_names(&self, rq: &Request, node: Node) -> Result<Vec<Vec<u8>>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => files.xattr_names(rq, object_of(&*files, node)).await,
            _ => Ok(Vec::new()),
        }
    }

    /// The value of an extended attribute, if there is one of that name.
    pub async fn xattr(&self, rq: &Request, node: Node, name: &[u8]) -> Result<Option<Bytes>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => files.xattr(rq, object_of(&*files, node), name).await,
            _ => Ok(None),
        }
    }

    /// The access control list; `None` where there is no object.
    pub async fn acl(&self, rq: &Request, node: Node) -> Result<Option<Acl>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => files.acl(rq, object_of(&*files, node)).await.map(Some),
            _ => Ok(None),
        }
    }

    /// What `statvfs` of a file or directory shows.
    pub async fn usage(&self, rq: &Request, node: Node) -> Result<Usage, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if node.is_synthetic() => files.usage(rq, files.root()).await,
            Opened::Files(files) => files.usage(rq, object_of(&*files, node)).await,
            Opened::Locked => Ok(Usage::default()),
        }
    }

    fn branch(&self, node: Node) -> Result<Arc<Branch>, FileError> {
        let stale = FileError::Stale { object: ObjectId(node.object) };
        self.shape().branch(node.branch).cloned().ok_or(stale)
    }

    async fn open(&self, rq: &Request, branch: u32) -> Result<Opened, FileError> {
        let branch = self.branch(Node { branch, object: Node::ROOT })?;
        let lock = || branch.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(opened) = lock().clone().filter(|opened| !opened.is_closed()) {
            return Ok(opened);
        }
        let opened = match self.opener.open(rq, &branch.member).await {
            Ok(files) => Opened::Files(files),
            Err(FileError::NoKey) => Opened::Locked,
            // It went, and the tree has not heard of it yet.
            Err(FileError::NotFound) => return Err(FileError::Stale { object: ObjectId(Node::ROOT) }),
            Err(error) => return Err(error),
        };
        let (opened, succeeds) = {
            let mut stored = lock();
            let succeeds = stored.take_if(|stored| stored.is_closed()).is_some();
            (stored.get_or_insert(opened).clone(), succeeds)
        };
        if succeeds {
            self.tell();
        }
        Ok(opened)
    }

    /// The file system of a node behind which there is an object.
    async fn files(&self, rq: &Request, node: Node) -> Result<Arc<dyn Files>, FileError> {
        match self.open(rq, node.branch).await? {
            Opened::Files(files) if !node.is_synthetic() => Ok(files),
            _ => Err(FileError::IsDirectory { object: ObjectId(node.object) }),
        }
    }
}

/// Parent, own part and whether it is a snapshot: `pool/a@s` is (`pool/a`, `s`, true).
fn split(name: &str) -> (Option<&str>, &[u8], bool) {
    if let Some((parent, leaf)) = name.split_once('@') {
        return (Some(parent), leaf.as_bytes(), true);
    }
    match name.rsplit_once('/') {
        Some((parent, leaf)) => (Some(parent), leaf.as_bytes(), false),
        None => (None, name.as_bytes(), false),
    }
}

fn object_of(files: &dyn Files, node: Node) -> ObjectId {
    if node.object == Node::ROOT { files.root() } else { ObjectId(node.object) }
}

fn node_of(files: &dyn Files, branch: u32, object: ObjectId) -> Node {
    Node { branch, object: if object == files.root() { Node::ROOT } else { object.0 } }
}

/// A directory without an object: readable by all, with the times of its file system's root.
fn synthetic(node: Node, root: Option<&Attributes>, inside: usize) -> Attributes {
    let time = |pick: fn(&Attributes) -> i128| root.map(pick).unwrap_or(0);
    Attributes {
        object: ObjectId(node.object),
        kind: FileKind::Directory,
        mode: 0o555,
        uid: 0,
        gid: 0,
        links: 2 + inside as u64,
        size_bytes: 2 + inside as u64,
        blocks512: 0,
        block_bytes: 512,
        device: None,
        atime_ns: time(|a| a.atime_ns),
        mtime_ns: time(|a| a.mtime_ns),
        ctime_ns: time(|a| a.ctime_ns),
        crtime_ns: time(|a| a.crtime_ns),
        generation: 0,
        flags: crate::FileFlags::default(),
        parent: ObjectId(Node::ROOT),
        project: None,
    }
}

#[cfg(test)]
mod tests;
