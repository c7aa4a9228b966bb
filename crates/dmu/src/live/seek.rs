//! Reads a live object set: the overlay and the synced tree as one.

use super::dirty_object::{BlockLookup, DirtyObject};
use crate::error::ObjectError;
use crate::handles::Reader;
use crate::object::Object;
use crate::read::Seek;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_format::ObjectId;
use weir_machine::Request;

/// Newest state of an object, and the overlay's content for some of its blocks.
pub(crate) type View = (Arc<Object>, BTreeMap<u64, BlockLookup>);

impl Reader<'_> {
    /// Returns the object's node under the lock, or the object if it has no node.
    async fn node_or_object<T>(
        self,
        rq: &Request,
        id: ObjectId,
        look: impl Fn(&DirtyObject, Arc<Object>) -> T,
    ) -> Result<Option<Result<T, Arc<Object>>>, ObjectError> {
        let Some(live) = self.set.live() else { return Ok(None) };
        loop {
            let version = {
                let shard = live.shard(id);
                if let Some(node) = shard.get(&id) {
                    let gone = ObjectError::NoObject { objset: self.set.id(), object: id };
                    return Ok(Some(Ok(look(node, node.current.clone().ok_or(gone)?))));
                }
                live.version()
            };
            let object = self.set.object(rq, id).await?;
            let shard = live.shard(id);
            if live.version() == version && !shard.contains_key(&id) {
                return Ok(Some(Err(object)));
            }
        }
    }

    /// Returns the newest state of `object`, and the blocks of the byte range that are in the overlay; `None` if the
    /// object set is read-only.
    pub(crate) async fn view(
        self,
        rq: &Request,
        object: &Arc<Object>,
        offset: u64,
        end: u64,
    ) -> Result<Option<View>, ObjectError> {
        if object.id.0 == 0 {
            return Ok(None);
        }
        let look = |node: &DirtyObject, current: Arc<Object>| {
            let block_bytes = current.block_bytes();
            let blocks = offset / block_bytes..end.div_ceil(block_bytes);
            let seen = blocks.map(|n| (n, node.lookup(n))).filter(|(_, seen)| *seen != BlockLookup::Synced).collect();
            (current, seen)
        };
        let found = self.node_or_object(rq, object.id, look).await?;
        Ok(found.map(|found| found.unwrap_or_else(|object| (object, BTreeMap::new()))))
    }

    /// Returns the newest state of `object`, and the overlay's content for block `n`; `None` if the object set is
    /// read-only.
    pub(crate) async fn view_block(
        self,
        rq: &Request,
        object: &Arc<Object>,
        n: u64,
    ) -> Result<Option<(Arc<Object>, BlockLookup)>, ObjectError> {
        if object.id.0 == 0 {
            return Ok(None);
        }
        let found = self.node_or_object(rq, object.id, |node, current| (current, node.lookup(n))).await?;
        Ok(found.map(|found| found.unwrap_or_else(|object| (object, BlockLookup::Synced))))
    }

    /// Returns the newest state of `object`, and its spill block if that is unsynced; `None` if the object set is
    /// read-only.
    pub(crate) async fn view_spill(
        self,
        rq: &Request,
        object: &Arc<Object>,
    ) -> Result<Option<(Arc<Object>, Option<Option<Bytes>>)>, ObjectError> {
        let found = self.node_or_object(rq, object.id, |node, current| (current, node.lookup_spill())).await?;
        Ok(found.map(|found| found.unwrap_or_else(|object| (object, None))))
    }

    /// Returns the first block from `from` on and before `end` that is data, or a hole. Goes from one change to the
    /// next, and descends the synced tree in between.
    pub(crate) async fn next_block_live(
        self,
        rq: &Request,
        id: ObjectId,
        from: u64,
        end: u64,
        what: Seek,
    ) -> Result<Option<u64>, ObjectError> {
        let mut at = from;
        while at < end {
            // The overlay's content for `at`, and the end of the run of blocks with the same content.
            let look = |node: &DirtyObject, current: Arc<Object>| (current, node.lookup(at), node.run_end(at));
            let found = self.node_or_object(rq, id, look).await?;
            let (object, seen, run_end) = match found {
                Some(Ok(seen)) => seen,
                Some(Err(object)) => (object, BlockLookup::Synced, u64::MAX),
                None => return Ok(None),
            };
            match (seen, what) {
                (BlockLookup::Data(_) | BlockLookup::Shared(_), Seek::Data | Seek::Dnodes)
                | (BlockLookup::Hole, Seek::Hole) => {
                    return Ok(Some(at));
                }
                (BlockLookup::Data(_) | BlockLookup::Shared(_) | BlockLookup::Hole, _) => at = run_end,
                (BlockLookup::Synced, _) => match self.set.pointers().next_block(rq, &object, at, what, None).await? {
                    Some(found) if found < run_end => return Ok(Some(found)),
                    _ => at = run_end,
                },
            }
        }
        Ok((what == Seek::Hole && at >= end).then_some(at.max(end)))
    }
}

impl DirtyObject {
    /// Returns the first block after `n` for which the overlay may have another content than for `n`.
    pub(crate) fn run_end(&self, n: u64) -> u64 {
        let mut end = u64::MAX;
        for changes in self.txgs.values() {
            if changes.blocks.contains_key(&n) || changes.shared.contains_key(&n) {
                return n.saturating_add(1);
            }
            if let Some((next, _)) = changes.blocks.range(n..).next() {
                end = end.min(*next);
            }
            if let Some((next, _)) = changes.shared.range(n..).next() {
                end = end.min(*next);
            }
            if let Some(span) = changes.freed.at_or_after(n) {
                end = end.min(if span.start > n { span.start } else { span.end });
            }
        }
        let last = self.base.as_ref().map_or(0, |base| base.dnode.max_block_id.saturating_add(1));
        if last > n { end.min(last) } else { end }
    }
}
