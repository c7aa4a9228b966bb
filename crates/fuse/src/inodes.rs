//! Inode numbers: one 64-bit number for a file system and an object in it.
//!
//! ```text
//!   63        48 47                                  0
//!   |    tag    |           object number             |      object numbers are below 2^48
//! ```
//!
//! Tag 0 is the file system of the mount's root, so its files keep their ZFS object numbers; other file systems get a tag when they
//! are first entered. The root directory of each file system is object 1 here, so the root inode of the mount is 1,
//! as FUSE demands. Numbers are unique across the mount, so tools that detect hard links by inode number work.
//!
//! The table holds one entry per file system that was ever entered, at most 65,535; entering further ones fails with
//! ENFILE.

use std::collections::BTreeMap;
use weir_machine::lock::Mutex;

use weir_files::tree::Node;

const OBJECT_BITS: u32 = 48;
const OBJECT_MASK: u64 = (1 << OBJECT_BITS) - 1;
/// Placeholder for directory entries whose file system was not entered yet: only `readdir` shows it.
pub(crate) const UNKNOWN: u64 = u64::MAX;

/// The assigned tags.
#[derive(Debug)]
pub(crate) struct Inodes {
    tags: Mutex<Tags>,
}

#[derive(Debug)]
struct Tags {
    branches: Vec<u32>,
    by_branch: BTreeMap<u32, u16>,
}

impl Inodes {
    /// Numbers for a mount whose root is in this file system.
    pub(crate) fn new(root: u32) -> Self {
        Inodes { tags: Mutex::new(Tags { branches: vec![root], by_branch: BTreeMap::from([(root, 0)]) }) }
    }

    /// Inode number of a node; `None` if no tag is left.
    pub(crate) fn number(&self, node: Node) -> Option<u64> {
        let mut tags = self.tags.lock();
        let tag = match tags.by_branch.get(&node.branch) {
            Some(tag) => *tag,
            None => {
                let tag = u16::try_from(tags.branches.len()).ok().filter(|tag| *tag != u16::MAX)?;
                tags.branches.push(node.branch);
                tags.by_branch.insert(node.branch, tag);
                tag
            }
        };
        Some(Inodes::tagged(tag, node))
    }

    /// Inode number of a node in a file system that was entered.
    pub(crate) fn known_number(&self, node: Node) -> Option<u64> {
        let tag = *self.tags.lock().by_branch.get(&node.branch)?;
        Some(Inodes::tagged(tag, node))
    }

    fn tagged(tag: u16, node: Node) -> u64 {
        u64::from(tag) << OBJECT_BITS | (node.object & OBJECT_MASK)
    }

    /// Node of an assigned inode number.
    pub(crate) fn node(&self, number: u64) -> Option<Node> {
        let tags = self.tags.lock();
        let branch = *tags.branches.get((number >> OBJECT_BITS) as usize)?;
        Some(Node { branch, object: number & OBJECT_MASK })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_map_back_to_nodes_and_never_collide() {
        let inodes = Inodes::new(0);
        let nodes = [(0, 1), (0, 34), (7, 34), (7, 1), (3, Node::CONTROL), (3, Node::SNAPSHOTS), (0, Node::CONTROL)];
        let nodes = nodes.map(|(branch, object)| Node { branch, object });
        let numbers = nodes.map(|node| inodes.number(node).unwrap());
        assert_eq!(numbers[..2], [1, 34]);
        for (node, number) in nodes.into_iter().zip(numbers) {
            assert_eq!((inodes.node(number), inodes.known_number(node)), (Some(node), Some(number)));
            assert_eq!(numbers.iter().filter(|n| **n == number).count(), 1);
        }
        assert_eq!(inodes.node(9 << OBJECT_BITS | 34), None);
        assert_eq!(inodes.node(UNKNOWN), None);
        assert_eq!(inodes.known_number(Node { branch: 9, object: 34 }), None);
    }

    #[test]
    fn the_table_is_bounded() {
        let inodes = Inodes::new(0);
        let assigned = (0..70_000).filter(|branch| inodes.number(Node { branch: *branch, object: 1 }).is_some());
        assert_eq!(assigned.count(), 65_535);
    }
}
