//! Advisory locks on files of the tree: one table for all front ends.

use super::{Node, Tree};
use crate::FileError;
use crate::locks::{LockedFile, Locks};
use std::sync::Arc;
use weir_machine::{Clock, Request};

impl Tree {
    /// The locks on the files of all file systems.
    pub fn locks(&self) -> &Arc<Locks> {
        &self.locks
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
}
