//! Reads in open context the blocks that the syncer will read for a change.
//!
//! To change or free a block, the syncer reads the indirect blocks above it. If it could not, it could not sync the
//! txg, and one bad block would suspend the whole pool. So a change reads them first and fails with the error. They are
//! mostly in the cache, and the syncer finds them there.
//!
//! Source: OpenZFS `module/zfs/dmu_tx.c` (`dmu_tx_check_ioerr`).

use crate::error::ObjectError;
use crate::handles::Frees;
use crate::object::Object;
use crate::read::pointer_in;
use futures_util::future::BoxFuture;
use std::ops::Range;
use std::sync::Arc;
use weir_format::{BlockPointer, ObjectId};
use weir_machine::Request;

impl<'a> Frees<'a> {
    /// Reads all indirect blocks that lead to a range of an object's blocks.
    ///
    /// # Errors
    /// Errors of reading them.
    pub async fn read_indirects_ahead(self, rq: &Request, id: ObjectId, blocks: Range<u64>) -> Result<(), ObjectError> {
        loop {
            let version = self.set.version();
            let object = self.set.object(rq, id).await?;
            match self.read_indirects(rq, &object, &blocks).await {
                Err(error) if self.set.raced_with_sync(&error, version) => {}
                done => return done,
            }
        }
    }

    async fn read_indirects(self, rq: &Request, object: &Arc<Object>, blocks: &Range<u64>) -> Result<(), ObjectError> {
        let top = object.top_level();
        if top == 0 || blocks.is_empty() {
            return Ok(());
        }
        if blocks.end - blocks.start == 1 {
            return self.set.pointers().at(rq, object, 0, blocks.start).await.map(drop);
        }
        for (number, pointer) in object.dnode.block_pointers.iter().enumerate() {
            self.read_indirects_below(rq, object, (pointer, top, number as u64), blocks).await?;
        }
        Ok(())
    }

    /// Reads the indirect blocks below a pointer (with its level and number) and above the blocks.
    fn read_indirects_below(
        self,
        rq: &'a Request,
        object: &'a Arc<Object>,
        (pointer, level, number): (&'a BlockPointer, u8, u64),
        blocks: &'a Range<u64>,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        Box::pin(async move {
            let tree = object.tree();
            let Range { start, end } = tree.blocks_below(level, number);
            if level == 0 || pointer.is_hole() || start >= blocks.end || end <= blocks.start {
                return Ok(());
            }
            let bytes = self.set.pointers().read_indirect(rq, object, pointer, level, start).await?;
            if level == 1 {
                return Ok(());
            }
            let first = tree.first_child(number);
            for index in tree.children_above(level, number, blocks, bytes.len() / BlockPointer::SIZE) {
                let child = pointer_in(&bytes, pointer, index as usize).unwrap_or_default();
                self.read_indirects_below(rq, object, (&child, level - 1, first + index), blocks).await?;
            }
            Ok(())
        })
    }
}
