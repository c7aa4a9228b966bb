//! Synthetic entries of directories: `.`, `..`, `.zfs`, child file systems, snapshots. They are listed first, in a
//! stable order (see [`super::cursor`]).

use super::cursor::{AFTER_CONTROL, AFTER_PARENT, AFTER_SELF, Position, number_of};
use super::namespace::MountedDataset;
use super::shadow::ShadowDirectory;
use super::{Node, Opened, Tree, TreeEntry};
use crate::{Attributes, FileError, FileKind, Snapdir};
use std::collections::BTreeMap;
use std::ops::Bound;
use weir_format::ObjectId;
use weir_machine::Request;

/// Exports mounted in a directory, by the last component of their name and by their ID in cookies.
#[derive(Clone, Default)]
pub(super) struct Entries {
    pub by_name: BTreeMap<Vec<u8>, u32>,
    in_order: BTreeMap<u64, (Vec<u8>, u32)>,
}

impl Entries {
    pub fn insert(&mut self, name: &[u8], id: u64, index: u32) {
        self.by_name.insert(name.to_vec(), index);
        self.in_order.insert(number_of(id), (name.to_vec(), index));
    }

    pub fn remove(&mut self, name: &[u8], id: u64) {
        self.by_name.remove(name);
        self.in_order.remove(&number_of(id));
    }

    /// All names, in listing order and by name.
    #[cfg(test)]
    pub fn names(&self) -> [Vec<Vec<u8>>; 2] {
        [self.in_order.values().map(|(name, _)| name.clone()).collect(), self.by_name.keys().cloned().collect()]
    }

    pub fn get(&self, name: &[u8]) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// The exports in listing order, after the given ID.
    fn after(&self, number: Option<u64>) -> impl Iterator<Item = (u64, &[u8], u32)> {
        let from = number.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.in_order.range((from, Bound::Unbounded));
        range.map(|(number, (name, index))| (*number, name.as_slice(), *index))
    }
}

/// Lists the synthetic entries after a position: `.`, `..`, `.zfs`, child file systems, snapshots.
pub(super) async fn list_synthetic(
    tree: &Tree,
    rq: &Request,
    node: Node,
    branch: &MountedDataset,
    after: Position,
    max: usize,
    out: &mut Vec<TreeEntry>,
) -> Result<(), FileError> {
    let (fixed, member) = match after {
        Position::Fixed(index) => (index, None),
        Position::Member(number) => (u64::MAX, Some(number)),
        Position::Stored(_) => return Ok(()),
    };
    let at = |object| Node { branch: node.branch, object };
    let mut enter = |name: &[u8], node, place: Position| {
        if out.len() < max {
            let name = name.to_vec();
            let kind = Some(FileKind::Directory);
            out.push(TreeEntry { name, node, kind, cookie: place.cookie() });
        }
    };
    if fixed < AFTER_SELF {
        enter(b".", node, Position::Fixed(AFTER_SELF));
    }
    if fixed < AFTER_PARENT {
        enter(b"..", tree.parent(rq, node).await?, Position::Fixed(AFTER_PARENT));
    }
    let control = match node.object {
        Node::ROOT if fixed < AFTER_CONTROL && !branch.is_snapshot => {
            let opened = tree.open(rq, node.branch).await?;
            let visible = matches!(opened, Opened::Files(files) if files.snapdir() == Snapdir::Visible);
            visible.then_some((&b".zfs"[..], Node::CONTROL))
        }
        Node::CONTROL if fixed < AFTER_CONTROL => Some((&b"snapshot"[..], Node::SNAPSHOTS)),
        _ => None,
    };
    if let Some((name, object)) = control {
        enter(name, at(object), Position::Fixed(AFTER_CONTROL));
    }
    let shadow;
    let members = match node.object {
        Node::ROOT => &branch.children,
        Node::SNAPSHOTS => &branch.snapshots,
        Node::SHADOW => {
            shadow = ShadowDirectory { tree, branch }.names(rq).await?;
            &shadow.names
        }
        _ => return Ok(()),
    };
    for (number, name, index) in members.after(member).take(max) {
        enter(name, Node { branch: index, object: Node::ROOT }, Position::Member(number));
    }
    Ok(())
}

/// The directory for a name, for a mount that `contains` only some of the child file systems: if the name is one of another child, the
/// directory as it is stored, without its children. A stored directory of that name is a mount point, or belongs to a user.
///
/// # Errors
/// If the file system of the directory cannot be opened.
pub async fn directory_for(
    tree: &Tree,
    rq: &Request,
    dir: Node,
    name: &[u8],
    contains: impl Fn(Node) -> bool,
) -> Result<Node, FileError> {
    let child = match dir.object {
        Node::ROOT => tree.branch(dir)?.children.get(name).map(|child| Node { branch: child, object: Node::ROOT }),
        _ => None,
    };
    if child.is_none_or(contains) {
        return Ok(dir);
    }
    match tree.open(rq, dir.branch).await? {
        Opened::Files(files) => Ok(Node { object: files.root().0, ..dir }),
        Opened::Shut(why) => Err(why),
    }
}

/// Attributes of a synthetic directory: readable by all, with the times of its file system's root.
pub(super) fn synthetic(node: Node, root: Option<&Attributes>, inside: usize) -> Attributes {
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

/// Attributes of the root of a file system whose key is not loaded: it cannot be listed, and all users may pass to the file systems
/// below. `inside` is their number.
pub(super) fn locked_root(inside: usize) -> Attributes {
    let root = Node { branch: 0, object: Node::ROOT };
    Attributes { mode: 0o111, flags: crate::FileFlags(crate::FileFlags::ACL_TRIVIAL), ..synthetic(root, None, inside) }
}
