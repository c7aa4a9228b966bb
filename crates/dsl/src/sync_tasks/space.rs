//! Arithmetic of used space, pure (OpenZFS `module/zfs/dsl_dir.c`, `dsl_dataset.c`).
//!
//! ```text
//!   Dir pool          used = HEAD + SNAP + CHILD + CHILD_RSRV + REFRSRV
//!     ▲  ▲            CHILD: what the directories below use; CHILD_RSRV: what they reserve beyond that
//!     │  └ Dir a      a parent is charged max(used, reservation) of each child
//!     └─── Dir b      REFRSRV: the part of the head's refreservation that its own (unique) blocks do not fill
//! ```
//!
//! A change starts at one directory and propagates to the root: each level converts the change of its child's charge
//! into its own change, until a reservation absorbs it. All is linear in differences of maxima, so the sum of several
//! blocks can be applied in one step.

use weir_format::DslDir;
use weir_machine::invariant;

/// Use of a directory's space: the index into `used_breakdown`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// The live dataset.
    Head = 0,
    /// Blocks that only snapshots refer to.
    Snapshots = 1,
    /// The child directories.
    Children = 2,
    /// Unused reservations of children.
    ChildReservations = 3,
    /// The unused part of the head's refreservation.
    RefReservation = 4,
}

/// A change of sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// Bytes on the devices.
    pub used: i64,
    /// Bytes after compression.
    pub compressed: i64,
    /// Bytes before compression.
    pub uncompressed: i64,
}

impl Delta {
    /// A growth by three sizes.
    pub fn new(used: u64, compressed: u64, uncompressed: u64) -> Self {
        Delta { used: used as i64, compressed: compressed as i64, uncompressed: uncompressed as i64 }
    }

    /// Of used bytes alone.
    pub fn used(used: i64) -> Self {
        Delta { used, ..Delta::default() }
    }

    /// Nothing changes.
    pub fn is_zero(&self) -> bool {
        *self == Delta::default()
    }
}

impl std::ops::Neg for Delta {
    type Output = Delta;

    fn neg(self) -> Delta {
        Delta { used: -self.used, compressed: -self.compressed, uncompressed: -self.uncompressed }
    }
}

impl std::ops::AddAssign for Delta {
    fn add_assign(&mut self, other: Delta) {
        self.used += other.used;
        self.compressed += other.compressed;
        self.uncompressed += other.uncompressed;
    }
}

/// `base` changed by `by`; saturates, because values on disk may be wrong.
pub fn changed(base: u64, by: i64) -> u64 {
    base.saturating_add_signed(by)
}

/// `to` less `from`, signed.
pub fn difference(to: u64, from: u64) -> i64 {
    to.wrapping_sub(from) as i64
}

/// Change of the charge max(`used`, `reserved`), when `used` changes by `delta`.
pub fn charged(used: u64, delta: i64, reserved: u64) -> i64 {
    difference(changed(used, delta).max(reserved), used.max(reserved))
}

fn add_use(dir: &mut DslDir, what: Use, by: i64) {
    if let Some(slot) = dir.used_breakdown.get_mut(what as usize).filter(|_| dir.flags & 1 != 0) {
        *slot = changed(*slot, by);
    }
}

/// Whether the space used is the sum of its uses. What was read from disk need not be so.
fn is_exact(dir: &DslDir) -> bool {
    dir.flags & 1 != 0 && dir.used_breakdown.iter().copied().fold(0, u64::wrapping_add) == dir.used_bytes
}

/// Applies `delta` to one directory, `new_use` of it (and the difference taken from `old`) accounted as `new`. Returns
/// the change of the parent's charge.
pub fn book(dir: &mut DslDir, delta: Delta, new_use: i64, old: Use, new: Use) -> i64 {
    let was_exact = is_exact(dir);
    let above = charged(dir.used_bytes, delta.used, dir.reserved_bytes);
    dir.used_bytes = changed(dir.used_bytes, delta.used);
    dir.compressed_bytes = changed(dir.compressed_bytes, delta.compressed);
    dir.uncompressed_bytes = changed(dir.uncompressed_bytes, delta.uncompressed);
    add_use(dir, old, delta.used - new_use);
    add_use(dir, new, new_use);
    // Tests and the simulator check it, whose pools begin exact. In production a total that a disk has wrong may saturate.
    let is_checked = weir_machine::invariant::is_checked();
    invariant!(!is_checked || !was_exact || is_exact(dir), "the space used is not the sum of its uses: {dir:?}");
    above
}

/// Moves bytes from one use to another.
pub fn transfer(dir: &mut DslDir, bytes: i64, from: Use, to: Use) {
    add_use(dir, from, -bytes);
    add_use(dir, to, bytes);
}

/// Bytes available below a directory, from the levels from the root on: `(quota, used, reserved)` of each; `pool_bytes`
/// is the pool's size less its slop (OpenZFS `dsl_dir_space_available`).
pub fn available(path: &[(u64, u64, u64)], pool_bytes: u64) -> u64 {
    available_without(path, pool_bytes, usize::MAX, 0)
}

/// Bytes available as in [`available`], when the directory at depth `at` is charged `by` (not positive) for a subtree
/// that will leave it.
pub fn available_without(path: &[(u64, u64, u64)], pool_bytes: u64, at: usize, by: i64) -> u64 {
    let mut above = u64::MAX;
    for (depth, (quota, used, reserved)) in path.iter().enumerate() {
        let mut quota = if *quota == 0 { u64::MAX } else { *quota };
        if depth == 0 {
            quota = quota.min(pool_bytes);
        }
        let mut from_parent = above.saturating_add(reserved.saturating_sub(*used));
        let mut used = *used;
        if depth == at {
            used = changed(used, by);
            from_parent = from_parent.saturating_add(by.unsigned_abs());
        }
        above = quota.saturating_sub(used).min(from_parent);
    }
    above
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_reservation_absorbs_changes_that_it_covers() {
        assert_eq!(charged(10, 5, 0), 5);
        assert_eq!(charged(10, 5, 100), 0);
        assert_eq!(charged(95, 10, 100), 5);
        assert_eq!(charged(105, -10, 100), -5);
    }

    #[test]
    fn available_is_the_minimum_up_to_the_root() {
        assert_eq!(available(&[(0, 100, 0)], 1000), 900);
        assert_eq!(available(&[(0, 100, 0), (300, 50, 0)], 1000), 250);
        // 500 of the 900 used are an unused reservation of the child's.
        assert_eq!(available(&[(0, 900, 0), (0, 0, 500)], 1000), 600);
        assert_eq!(available(&[(0, 100, 0), (50, 60, 0)], 1000), 0);
        // 200 leave the directory below the root, and may return below it though its quota is used up.
        assert_eq!(available(&[(0, 300, 0), (300, 300, 0)], 1000), 0);
        assert_eq!(available_without(&[(0, 300, 0), (300, 300, 0)], 1000, 1, -200), 200);
    }

    proptest! {
        /// Applying a sum once equals applying block after block, and the parts sum up to the whole.
        #[test]
        fn applying_a_sum_is_exact(
            reserved in 0u64..2000,
            start in 0u64..1000,
            steps in proptest::collection::vec(0i64..200, 1..20),
        ) {
            let dir = DslDir {
                used_bytes: start,
                reserved_bytes: reserved,
                flags: 1,
                used_breakdown: [start, 0, 0, 0, 0],
                ..DslDir::default()
            };
            let mut one = dir.clone();
            let mut many = dir;
            let mut above = 0;
            for step in &steps {
                above += book(&mut many, Delta::used(*step), *step, Use::RefReservation, Use::Head);
            }
            let sum: i64 = steps.iter().sum();
            prop_assert_eq!(book(&mut one, Delta::used(sum), sum, Use::RefReservation, Use::Head), above);
            prop_assert_eq!(&one, &many);
            prop_assert_eq!(one.used_breakdown.iter().sum::<u64>(), one.used_bytes);
        }
    }
}
