//! What is laid over a directory of the tree: `.`, `..`, `.zfs`, child file systems, snapshots. It is listed first, in an
//! order that lasts (see [`super::cursor`]).

use super::cursor::{AFTER_CONTROL, AFTER_PARENT, AFTER_SELF, Position, number_of};
use super::{Branch, Node, Opened, Tree, TreeEntry};
use crate::{FileError, FileKind, Snapdir};
use std::collections::BTreeMap;
use std::ops::Bound;
use weir_machine::Request;

/// Members that hang below another one: by the last parts of their names, and by what stands for them in cookies.
#[derive(Default)]
pub(super) struct Entries {
    pub by_name: BTreeMap<Vec<u8>, u32>,
    in_order: BTreeMap<u64, (Vec<u8>, u32)>,
}

impl Entries {
    pub fn insert(&mut self, name: &[u8], id: u64, index: u32) {
        self.by_name.insert(name.to_vec(), index);
        self.in_order.insert(number_of(id), (name.to_vec(), index));
    }

    pub fn get(&self, name: &[u8]) -> Option<u32> {
        self.by_name.get(name).copied()
    }

    /// In the order of listings; from the start, or behind one that is or was there.
    fn after(&self, number: Option<u64>) -> impl Iterator<Item = (u64, &[u8], u32)> {
        let from = number.map_or(Bound::Unbounded, Bound::Excluded);
        let range = self.in_order.range((from, Bound::Unbounded));
        range.map(|(number, (name, index))| (*number, name.as_slice(), *index))
    }
}

impl Tree {
    /// The entries behind a place that no ZAP holds: `.`, `..`, `.zfs`, child file systems, snapshots.
    pub(super) async fn laid_over(
        &self,
        rq: &Request,
        node: Node,
        branch: &Branch,
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
                let (name, kind) = (name.to_vec(), Some(FileKind::Directory));
                out.push(TreeEntry { name, node, kind, cookie: place.cookie() });
            }
        };
        if fixed < AFTER_SELF {
            enter(b".", node, Position::Fixed(AFTER_SELF));
        }
        if fixed < AFTER_PARENT {
            enter(b"..", self.parent(rq, node).await?, Position::Fixed(AFTER_PARENT));
        }
        let control = match node.object {
            Node::ROOT if fixed < AFTER_CONTROL && !branch.is_snapshot => {
                let opened = self.open(rq, node.branch).await?;
                let visible = matches!(opened, Opened::Files(files) if files.snapdir() == Snapdir::Visible);
                visible.then_some((&b".zfs"[..], Node::CONTROL))
            }
            Node::CONTROL if fixed < AFTER_CONTROL => Some((&b"snapshot"[..], Node::SNAPSHOTS)),
            _ => None,
        };
        if let Some((name, object)) = control {
            enter(name, at(object), Position::Fixed(AFTER_CONTROL));
        }
        let members = match node.object {
            Node::ROOT => &branch.children,
            Node::SNAPSHOTS => &branch.snapshots,
            _ => return Ok(()),
        };
        for (number, name, index) in members.after(member).take(max) {
            enter(name, Node { branch: index, object: Node::ROOT }, Position::Member(number));
        }
        Ok(())
    }
}
