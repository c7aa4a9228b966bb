//! Mirrors: every child holds the same range.
//!
//! Fresh children first, and of those the least busy one. One that was just asked for what comes before may be a little
//! busier: so a stream goes to each child in stretches, whose reads can be joined. When its bytes do not pass, the next,
//! until one does. A scrub asks all of them. Those that gave wrong bytes, or an error, are given the right ones, if the
//! pool is open for writing.

use super::{Place, Proof, Tree, Vdev, VdevRead, WriteJob};
use crate::error::{BlockError, note};
use bytes::Bytes;
use futures_util::future::join_all;
use weir_machine::Buf;

/// The order in which to ask `count` children, given what each is like: reluctance first, then load. Children that are
/// alike are taken in turn by `turn`.
fn order(count: usize, turn: usize, like: impl Fn(usize) -> (u8, usize)) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).map(|i| (i + turn) % count).collect();
    order.sort_by_key(|&i| like(i));
    order
}

pub(super) async fn read(
    children: &[Vdev],
    tree: &Tree,
    job: &VdevRead<'_>,
    place: Place,
    offset: u64,
    len: u64,
    proof: Option<Proof<'_>>,
) -> Result<Buf, BlockError> {
    let (mut worst, mut right, mut wrong) = (None, None, Vec::new());
    // Neighbouring ranges go to the same child as long as nobody is busy, so that its disk can read on sequentially.
    let turn = (offset >> 20) as usize;
    for i in order(children.len(), turn, |i| (children[i].read_preference(job.birth), children[i].load(offset))) {
        match children[i].read(tree, job, place, offset, len, proof).await {
            Ok(buf) if proof.is_some() && job.tests_every_copy() => right = Some(buf),
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
        if proof.is_some()
            && !wrong.is_empty()
            && let Some(repair) = WriteJob::repairing(job, tree, place)
        {
            heal(&wrong, &repair, place, offset, buf.as_ref()).await;
        }
        return Ok(buf);
    }
    Err(worst.unwrap_or(BlockError::Missing { vdev: place.vdev, offset: place.offset, devices: Vec::new() }))
}

/// Writes the right bytes to the children that gave others, or none though they are there.
async fn heal(wrong: &[&Vdev], job: &WriteJob<'_>, place: Place, offset: u64, right: &[u8]) {
    let right = Bytes::copy_from_slice(right);
    // The device counts what it could not write.
    join_all(wrong.iter().map(|child| child.write(job, place, offset, right.clone()))).await;
}

#[cfg(test)]
mod tests {
    use super::order;

    #[test]
    fn the_fresh_and_idle_first() {
        assert_eq!(order(3, 0, |_| (0, 0)), [0, 1, 2]);
        assert_eq!(order(3, 7, |_| (0, 0)), [1, 2, 0]);
        assert_eq!(order(3, 0, |i| ([1, 0, 2][i], 0)), [1, 0, 2]);
        assert_eq!(order(3, 0, |i| (0, [5, 1, 3][i])), [1, 2, 0]);
        assert!(order(0, 3, |_| (0, 0)).is_empty());
    }
}
