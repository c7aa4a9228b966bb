//! Prefetch of an object's blocks: a read is reported to the object's prefetcher, and the ranges that it requests are read
//! into the cache in the background.

use crate::error::ObjectError;
use crate::handles::Reader;
use crate::object::Object;
use std::ops::Range;
use std::sync::Arc;
use weir_blocks::ReadOptions;
use weir_machine::{Priority, Request};

impl Reader<'_> {
    /// Reports a read to the object's prefetcher, and starts the prefetches that it requests.
    pub(crate) fn prefetch_after(self, object: &Arc<Object>, offset: u64, len: u64, end: u64) {
        if !self.set.reads_ahead(object.dnode.object_type) {
            return;
        }
        let ranges = {
            let mut prefetcher = object.prefetcher.lock();
            prefetcher.observe(offset, len, end)
        };
        for range in ranges {
            let set = self.set.clone();
            let object = object.clone();
            let job = async move {
                let rq = Request::internal("prefetch").with_priority(Priority::Async);
                // The error is dropped here, because a demand read of the block returns it again.
                let _ = set.reader().prefetch_range(&rq, &object, range).await;
            };
            drop(self.set.cache().machine().tasks.spawn(job));
        }
    }

    async fn prefetch_range(self, rq: &Request, object: &Object, range: Range<u64>) -> Result<(), ObjectError> {
        let block_bytes = object.block_bytes();
        let mut at = range.start / block_bytes;
        let end = range.end.div_ceil(block_bytes);
        while at < end {
            let pointers = self.set.pointers().below(rq, object, at..end).await?;
            for (block, pointer) in (at..).zip(&pointers) {
                let Some(pointer) = pointer else { continue };
                let options = self.set.options_at(self.set.place(object.id, 0, block));
                self.set.cache().prefetch(pointer, &ReadOptions { prefetch: true, ..options });
            }
            at = at.saturating_add(pointers.len().max(1) as u64);
        }
        Ok(())
    }
}
