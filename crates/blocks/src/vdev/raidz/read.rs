//! The steps of a read: first the direct one into the block ([`single_leaf`]), then all others of [`super`].

use super::{Assembly, ColumnRef, ColumnState, RaidzTarget, Read};
use crate::error::BlockError;
use crate::vdev::{Place, Tree, VdevRead, Verify, single_leaf};
use weir_machine::Buf;

/// Reads a block.
pub(in crate::vdev) async fn read(
    target: &RaidzTarget<'_>,
    tree: &Tree,
    job: &VdevRead<'_>,
    place: Place,
    verify: Option<Verify<'_>>,
) -> Result<Buf, BlockError> {
    let cells = target.map.rows.iter().map(|r| r.columns.iter().map(|_| ColumnState::Untried).collect()).collect();
    let mut read = Read { target, tree, job, place, cells, failure: None, missing: Vec::new() };
    read.mark_absent();
    if job.tests_every_copy() {
        let fresh: Vec<ColumnRef> = read.untried().into_iter().filter(|&at| read.read_preference(at) == 0).collect();
        read.fetch(&fresh).await;
    } else if let Some(block) = single_leaf::read(&mut read, verify).await {
        return Ok(block);
    }
    loop {
        let wants = read.wants();
        if wants.is_empty() {
            break;
        }
        read.fetch(&wants).await;
    }
    let mut block = job.pool.take(target.map.len);
    let prove = |bytes: &[u8]| verify.map_or(Ok(()), |p| p(bytes));
    if read.assemble(&mut block, &[]) == Assembly::Impossible {
        return Err(read.shortage());
    }
    if prove(block.as_ref()).is_ok() {
        if verify.is_some() && job.tests_every_copy() {
            let rest = read.untried();
            read.fetch(&rest).await;
            read.count_differences(&block);
        }
        read.heal(&block).await;
        return Ok(block);
    }
    // Devices are blamed below.
    job.settle(place).await;
    let rest = read.untried();
    if !rest.is_empty() {
        read.fetch(&rest).await;
        // A stale column that had been left out may be right after all; what stood in for it was not.
        if read.assemble(&mut block, &[]) == Assembly::Built && prove(block.as_ref()).is_ok() {
            read.count_differences(&block);
            read.heal(&block).await;
            return Ok(block);
        }
    }
    let Err(fault) = read.search(&mut block, &prove) else {
        read.heal(&block).await;
        return Ok(block);
    };
    for (child, side) in read.sides() {
        let before = read.cells.clone();
        read.ask_side(child, side).await;
        let whole = read.assemble(&mut block, &[]) == Assembly::Built && prove(block.as_ref()).is_ok();
        let found = whole || read.search(&mut block, &prove).is_ok();
        read.cells = before;
        if found {
            // What the other side gave is among the differences now, and both sides get what belongs there.
            read.heal(&block).await;
            return Ok(block);
        }
    }
    read.count_unrecoverable();
    Err(read.damaged(fault))
}
