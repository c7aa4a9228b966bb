//! Mirrors: every child holds the same range.
//!
//! Children whose DTL does not have the block's txg are read first, among them the least loaded one. A child that read the
//! preceding range is preferred even if its load is a little higher, so that a stream reads several adjacent blocks from
//! one child and the reads are merged. If the bytes do not pass verification, the next child is read. A scrub reads all
//! children. Children that returned wrong bytes or an error are repaired, if the pool is open for writing.

use super::tree::Tops;
use super::write::Portion;
use super::{Place, Tree, Vdev, VdevRead, Verify, WriteJob};
use crate::error::{BlockError, note};
use bytes::Bytes;
use futures_util::future::join_all;
use weir_machine::Buf;
use weir_machine::accounts::Redundancy;

/// The order in which `count` children are read: by read preference, then load. `rotation` decides between equal ones.
fn order(count: usize, rotation: usize, rank: impl Fn(usize) -> (u8, usize)) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).map(|i| (i + rotation) % count).collect();
    order.sort_by_key(|&i| rank(i));
    order
}

pub(super) async fn read(
    children: &[Vdev],
    tree: &Tree,
    job: &VdevRead<'_>,
    place: Place,
    offset: u64,
    len: u64,
    verify: Option<Verify<'_>>,
) -> Result<Buf, BlockError> {
    let mut worst = None;
    let mut right = None;
    let mut wrong = Vec::new();
    // Adjacent ranges are read from the same child while all are idle, so that its disk reads sequentially.
    let rotation = (offset >> 20) as usize;
    let preference = |i: usize| children[i].read_preference(tree, place, offset, job.birth);
    for i in order(children.len(), rotation, |i| (preference(i), children[i].load(offset))) {
        if job.needs_current() && preference(i) > 0 {
            continue;
        }
        match children[i].read(tree, job, place, offset, len, verify).await {
            Ok(buf) if verify.is_some() && job.tests_every_copy() => right = Some(buf),
            Ok(buf) => {
                right = Some(buf);
                break;
            }
            Err(error) => {
                wrong.extend((!matches!(error, BlockError::Missing { .. })).then_some(&children[i]));
                note(&mut worst, error);
            }
        }
    }
    if let Some(buf) = right {
        if verify.is_some()
            && !wrong.is_empty()
            && let Some(repair) = WriteJob::repairing(job, tree, place).await
        {
            let _locked = repair.lock_range(tree, place, job.psize_bytes).await;
            heal(&tree.version(), &wrong, &repair, place, offset, buf.as_ref()).await;
        }
        return Ok(buf);
    }
    Err(worst.unwrap_or(BlockError::Missing { vdev: place.vdev, offset: place.offset, devices: Vec::new() }))
}

/// Writes the right bytes to the present children that returned wrong bytes or an error.
async fn heal(tops: &Tops, wrong: &[&Vdev], job: &WriteJob<'_>, place: Place, offset: u64, right: &[u8]) {
    let right = Bytes::copy_from_slice(right);
    // The leaf counts failed writes.
    let portion = Portion::new(Redundancy::First, 0);
    join_all(wrong.iter().map(|child| child.write(tops, job, portion, place, offset, right.clone()))).await;
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn preferred_and_idle_children_are_read_first() {
        assert_eq!(order(3, 0, |_| (0, 0)), [0, 1, 2]);
        assert_eq!(order(3, 7, |_| (0, 0)), [1, 2, 0]);
        assert_eq!(order(3, 0, |i| ([1, 0, 2][i], 0)), [1, 0, 2]);
        assert_eq!(order(3, 0, |i| (0, [5, 1, 3][i])), [1, 2, 0]);
        assert!(order(0, 3, |_| (0, 0)).is_empty());
    }
}
