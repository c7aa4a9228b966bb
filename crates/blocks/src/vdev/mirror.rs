//! Mirrors: every child holds the same range.
//!
//! Fresh children first, and of those the least busy one; when its bytes do not pass, the next, until one does. A scrub
//! asks all of them.

use super::{Job, Place, Proof, Tree, Vdev};
use crate::error::{BlockError, note};
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
    job: &Job<'_>,
    place: Place,
    offset: u64,
    len: u64,
    proof: Option<Proof<'_>>,
) -> Result<Buf, BlockError> {
    let (mut worst, mut right) = (None, None);
    // Neighbouring ranges go to the same child as long as nobody is busy, so that its disk can read on sequentially.
    let turn = (offset >> 20) as usize;
    for i in order(children.len(), turn, |i| (children[i].reluctance(job.birth), children[i].load())) {
        match children[i].read(tree, job, place, offset, len, proof).await {
            Ok(buf) if proof.is_some() && job.tests_every_copy() => right = Some(buf),
            Ok(buf) => return Ok(buf),
            Err(error) => note(&mut worst, error),
        }
    }
    if let Some(buf) = right {
        return Ok(buf);
    }
    Err(worst.unwrap_or(BlockError::Missing { vdev: place.vdev, offset: place.offset, devices: Vec::new() }))
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
