//! Copies of ranges of a top-level vdev that is being removed.
//!
//! ```text
//!   mirror ─► mirror     child n is written what child n of the source has: damage of one side stays on one side
//!   mirror ─► device     what the first child has that can be read
//!   device ─► mirror     the same to all children
//! ```
//!
//! A range has no checksum: it is copied as it is, with what is not allocated in it.
//!
//! Source: OpenZFS `module/zfs/vdev_removal.c` (`spa_vdev_copy_one_child`).

use super::write::{OperationGuard, Portion};
use super::{Body, Place, Tree, Vdev, VdevRead, WriteJob};
use crate::error::BlockError;
use crate::freeze::freeze;
use bytes::Bytes;
use futures_util::future::join_all;
use weir_format::Txg;
use weir_machine::accounts::Redundancy;

/// The first txg of a DTL that has everything.
const FIRST_TXG: Txg = Txg(1);

/// A range that is copied.
#[derive(Clone, Copy)]
pub(crate) struct CopiedRange {
    pub from: Place,
    pub to: Place,
    pub len: u64,
}

/// Copies a range to another top-level vdev, which must be a device or a mirror of devices. A device that is absent there lacks
/// the copy, and with it every txg, because blocks of any txg may be in the range.
pub(crate) async fn copy(
    tree: &Tree,
    read: &VdevRead<'_>,
    write: &WriteJob<'_>,
    range: CopiedRange,
) -> Result<(), BlockError> {
    let _operation: OperationGuard<'_> = tree.begin()?;
    let CopiedRange { from, to, len } = range;
    let tops = tree.version();
    let (source, _) = tops.check(from, len)?;
    let (target, _) = tops.check(to, len)?;
    let source = &source.vdev;
    let tops = tops.as_ref();
    let _locked = write.lock_range(tree, to, len).await;
    let portion = Portion::new(Redundancy::First, 0);
    let Body::Mirror(children) = &target.vdev.body else {
        let bytes = read_side(source, tree, read, from, 0, len).await?;
        return target.vdev.write(tops, write, portion, to, to.offset, bytes).await;
    };
    let first = children.iter().position(Vdev::is_writable).unwrap_or(0);
    let copies = children.iter().enumerate().map(|(n, child)| async move {
        if !child.is_writable() {
            child.each_leaf(&mut |leaf| leaf.writes().dtl().dirty(FIRST_TXG, write.txg, false));
            return Ok(false);
        }
        let bytes = read_side(source, tree, read, from, n, len).await?;
        let redundancy = if n == first { Redundancy::First } else { Redundancy::Copy };
        child.write(tops, write, Portion { redundancy, ..portion }, to, to.offset, bytes).await.map(|()| true)
    });
    let mut is_stored = false;
    for answer in join_all(copies).await {
        is_stored |= answer?;
    }
    let missing = BlockError::Missing { vdev: to.vdev, offset: to.offset, devices: Vec::new() };
    is_stored.then_some(()).ok_or(missing)
}

/// Reads a range from child `n` of a mirror, or from the next one after it that can be read; from a device, if it is one.
async fn read_side(
    vdev: &Vdev,
    tree: &Tree,
    job: &VdevRead<'_>,
    place: Place,
    n: usize,
    len: u64,
) -> Result<Bytes, BlockError> {
    let Body::Mirror(children) = &vdev.body else {
        return vdev.read(tree, job, place, place.offset, len, None).await.map(freeze);
    };
    let mut worst = BlockError::Missing { vdev: place.vdev, offset: place.offset, devices: Vec::new() };
    for child in children.iter().cycle().skip(n % children.len().max(1)).take(children.len()) {
        match child.read(tree, job, place, place.offset, len, None).await {
            Ok(buf) => return Ok(freeze(buf)),
            Err(error) => worst = error,
        }
    }
    Err(worst)
}
