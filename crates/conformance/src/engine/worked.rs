//! A pool after a workload: the old contents without the additions, and the additions by themselves.

use weir_format::ObjectId;
use weir_machine::Request;

use crate::compare::Findings;
use crate::manifest::Entry;
use crate::tree::{Attributes, Carries, Listing, Tree, TreeError};
use crate::workload::{Done, OURS, differences, sectors};

use super::{EngineTree, Opened};

/// A file system as it was before the workload added a folder to its root: without the folder, and with the root's
/// former times and blocks. Size and links of the root are compared as they are.
pub struct Without<'a> {
    tree: EngineTree,
    before: Option<&'a Entry>,
}

impl<'a> Without<'a> {
    /// `files`: the former contents.
    pub fn new(tree: EngineTree, files: &'a [Entry]) -> Without<'a> {
        Without { tree, before: files.iter().find(|entry| entry.path.bytes() == b"/") }
    }

    fn has_ours(&mut self, root: &ObjectId) -> Result<bool, TreeError> {
        Ok(self.tree.read_dir(root)?.iter().any(|(name, _)| name == OURS.as_bytes()))
    }
}

impl Tree for Without<'_> {
    type Node = ObjectId;

    fn carries(&self) -> Carries {
        self.tree.carries()
    }

    fn root(&mut self) -> Result<ObjectId, TreeError> {
        self.tree.root()
    }

    fn attributes(&mut self, node: &ObjectId) -> Result<Attributes, TreeError> {
        let mut found = self.tree.attributes(node)?;
        let root = self.tree.root()?;
        let Some(before) = self.before.filter(|_| *node == root) else { return Ok(found) };
        if self.has_ours(&root)? {
            found.size = found.size.saturating_sub(1);
            found.nlink = found.nlink.saturating_sub(1);
            (found.mtime_ns, found.ctime_ns) = (before.mtime_ns, before.ctime_ns());
            // The number of blocks of the directory may have changed.
            found.blocks512 = before.blocks512.unwrap_or(found.blocks512);
            found.blksize = before.blksize.or(found.blksize);
        }
        Ok(found)
    }

    fn read_dir(&mut self, node: &ObjectId) -> Result<Listing<ObjectId>, TreeError> {
        let mut listing = self.tree.read_dir(node)?;
        if *node == self.tree.root()? {
            listing.retain(|(name, _)| name != OURS.as_bytes());
        }
        Ok(listing)
    }

    fn read(&mut self, node: &ObjectId, offset: u64, length: usize) -> Result<Vec<u8>, TreeError> {
        self.tree.read(node, offset, length)
    }

    fn read_link(&mut self, node: &ObjectId) -> Result<Vec<u8>, TreeError> {
        self.tree.read_link(node)
    }

    fn xattrs(&mut self, node: &ObjectId) -> Result<Vec<(String, Vec<u8>)>, TreeError> {
        self.tree.xattrs(node)
    }

    fn data_runs(&mut self, node: &ObjectId, size: u64) -> Result<Vec<(u64, u64)>, TreeError> {
        self.tree.data_runs(node, size)
    }
}

/// Checks everything that a workload made.
pub fn look(opened: &Opened, done: &Done) -> Findings {
    let rq = &Request::internal("judge");
    let mut findings = Findings::default();
    for (name, generation) in done.written.iter().filter_map(|(name, how)| Some((name, (*how)?))) {
        findings.facts += 1;
        match opened.file_system(name) {
            Ok(files) => {
                let found = opened.machine.block_on(differences(&files, rq, generation));
                found.into_iter().for_each(|why| findings.differs(format!("{name}: {why}")));
            }
            Err(error) => findings.differs(format!("{name}: {error}")),
        }
    }
    let Some(name) = &done.volume else { return findings };
    findings.facts += 1;
    match opened.volume(name) {
        Ok(mut volume) => {
            for (offset, wanted) in sectors() {
                match crate::tree::BlockDevice::read(&mut volume, offset, wanted.len()) {
                    Ok(found) if found[..] == wanted[..] => {}
                    Ok(_) => findings.differs(format!("{name}: other bytes at {offset}")),
                    Err(error) => findings.differs(format!("{name}: at {offset}: {error}")),
                }
            }
        }
        Err(error) => findings.differs(format!("{name}: {error}")),
    }
    findings
}
