//! Distributed spares in use: space of a dRAID vdev's children that takes the place of one of them.
//!
//! ```text
//!   child 5 of the dRAID vdev is spare-5 [disk 5, draid2-0-0]
//!   write at an offset of draid2-0-0 ─► the child that has the spare's space there ─► its disk, or its own spare, ...
//! ```
//!
//! A distributed spare has a [`Leaf`], for its DTL, its service state and its place in the configuration, but no bytes of
//! its own: what is read and written goes to another child of the dRAID vdev, in the version of the tree that the operation
//! began with. That child queues, counts, keeps and flushes the operation as its own.
//!
//! *What it lacks.* The spare's DTL has the blocks that were never written to the spare: all of them until its first resilver
//! is complete. A write or flush that fails is recorded in the DTL of the device that failed, and a device that is replaced
//! begins with a DTL of everything. So the spare lacks a block if its own DTL has the birth txg, or that of the child that
//! has its space at that offset.
//!
//! *Redundancy.* In a row in which a child has the space of the spare, it has no column of a group. So a device that is lost
//! costs each row one column at most, its own or that of a spare, and the vdev counts only its failed children, not the
//! spares that have space there. A flush of the dRAID vdev reaches all children, and needs nothing of the spare.
//!
//! *Bounds.* Each distributed spare occurs once in a tree ([`super::build`]), and the spares of a vdev have different
//! children in each row. So a chain of spares does not branch into itself; one that returns to its beginning, in rows that
//! no group uses, ends at the limit of redirections.
//!
//! Rejected: a virtual disk below the leaf. It would record the loss of one device in two DTLs and as two failed columns, and
//! would need a reference to the present tree from within it.
//!
//! Source: OpenZFS `module/zfs/vdev_draid.c` (`vdev_draid_spare_io_start`, `vdev_draid_spare_child_done`,
//! `vdev_draid_missing`).

use super::leaf::Leaf;
use super::tree::Tops;
use super::write::Portion;
use super::{Place, Recipients, Tree, Vdev, VdevRead, Verify, WriteJob};
use crate::error::BlockError;
use bytes::Bytes;
use std::sync::Arc;
use weir_format::Txg;
use weir_machine::{Buf, Disk, DiskError, Geometry, Io, Op, invariant};

/// A distributed spare of the dRAID vdev `top` in the place of one of its children.
pub(crate) struct SpareVdev {
    /// Index of the dRAID vdev.
    pub top: u32,
    /// Number of the spare in it.
    pub spare: u64,
    /// DTL and service state.
    pub leaf: Arc<Leaf>,
}

/// The disk of a distributed spare's leaf, which gives it a service state. Nothing is read from it or written to it.
#[derive(Debug)]
pub(super) struct NoBytes;

impl Disk for NoBytes {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: 0, sector_bytes: 512, rotational: false }
    }

    fn submit(&self, io: Io) {
        match io.op {
            Op::Flush => io.succeed(),
            op => io.fail(DiskError::Refused { op, why: "a distributed spare has no bytes of its own" }),
        }
    }
}

impl SpareVdev {
    /// The child that has the spare's space at `offset`, and the place for errors there.
    fn child<'a>(&self, tops: &'a Tops, place: Place, offset: u64) -> Result<(&'a Vdev, Place), BlockError> {
        let child = tops.spare_child(self.top, self.spare, offset, place)?;
        Ok((child, Place { hops: place.hops + 1, ..place }))
    }

    fn missing(&self, place: Place) -> BlockError {
        BlockError::Missing { vdev: place.vdev, offset: place.offset, devices: vec![self.leaf.name.clone()] }
    }

    /// Reads `len` bytes at `offset`, within one row.
    pub(super) async fn read<'a>(
        &'a self,
        tree: &'a Tree,
        job: &'a VdevRead<'a>,
        place: Place,
        (offset, len): (u64, u64),
        verify: Option<Verify<'a>>,
    ) -> Result<Buf, BlockError> {
        if !self.leaf.present() {
            return Err(self.missing(place));
        }
        let tops = tree.version();
        let (child, place) = self.child(&tops, place, offset)?;
        child.read(tree, job, place, offset, len, verify).await
    }

    /// Writes at `offset`, within one row. What fails is in the DTL of the device that failed.
    pub(super) async fn write(
        &self,
        tops: &Tops,
        job: &WriteJob<'_>,
        portion: Portion,
        place: Place,
        (offset, data): (u64, Bytes),
    ) -> Result<(), BlockError> {
        let lacks = match job.recipients {
            Recipients::All => false,
            Recipients::Lacking => self.leaf.is_stale(job.txg),
            Recipients::Behind => self.leaf.is_behind(),
        };
        let portion = Portion { to_all: portion.to_all || lacks, ..portion };
        if !self.leaf.present() {
            if job.recipients != Recipients::All && !portion.to_all {
                return Ok(());
            }
            self.leaf.writes().dtl().dirty(job.txg, job.txg, false);
            return Err(self.missing(place));
        }
        match self.child(tops, place, offset) {
            Ok((child, below)) => {
                invariant!(below.hops > place.hops, "a redirection is not counted");
                child.write(tops, job, portion, below, offset, data).await
            }
            Err(error) => {
                self.leaf.writes().dtl().dirty(job.txg, job.txg, job.repair);
                invariant!(!self.leaf.has_everything(), "a block that is written nowhere is in no DTL");
                Err(error)
            }
        }
    }

    /// As [`Vdev::read_preference`]: by the DTL of the spare, and by the child that has its space at `offset`.
    pub(super) fn read_preference(&self, tree: &Tree, place: Place, offset: u64, birth: Txg) -> u8 {
        let own = self.leaf.read_preference(birth);
        if own == 2 {
            return own;
        }
        let tops = tree.version();
        let below = self.child(&tops, place, offset);
        below.map_or(2, |(child, place)| child.read_preference(tree, place, offset, birth)).max(own)
    }

    /// As [`Vdev::checksum_error`], at the device that has the spare's space at the beginning of `range`.
    pub(super) fn checksum_error(&self, tree: &Tree, job: &VdevRead<'_>, place: Place, range: (u64, u64)) -> bool {
        let tops = tree.version();
        let below = self.child(&tops, place, range.0).ok().filter(|_| self.leaf.present());
        below.is_some_and(|(child, place)| child.checksum_error(tree, job, place, range))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draid::{Layout, Map};
    use crate::vdev::{Body, DistributedSpare, TreeError, VdevKind, VdevSpec};
    use weir_sim::{SimWorld, Timing};

    const ROW_BYTES: u64 = 16 << 20;
    const SPARES: u64 = 2;
    const DEVICES: u64 = 6;

    /// A dRAID vdev whose device `n` is absent and replaced by spare `spare`, for each pair.
    fn tree(world: &SimWorld, replaced: &[(u64, u64)]) -> Result<Arc<Tree>, TreeError> {
        let machine = world.machine();
        let leaves = (0..DEVICES).map(|i| {
            let path = format!("/d{i}");
            let leaf = |disk| VdevSpec::leaf(i, 10 + i, path.clone(), disk);
            let Some((_, spare)) = replaced.iter().find(|(device, _)| *device == i) else {
                world.add_disk(&path, 1 << 26, 512, Timing::Nvme);
                return leaf(machine.disks.open(path.as_ref(), weir_machine::Access::ReadWrite).ok());
            };
            let used = VdevSpec {
                kind: VdevKind::DraidSpare,
                distributed_spare: Some(DistributedSpare { top: 0, spare: *spare }),
                ..VdevSpec::leaf(1, 20 + i, format!("draid1-0-{spare}"), None)
            };
            VdevSpec::inner(i, 30 + i, format!("spare-{i}"), VdevKind::Spare, vec![leaf(None), used])
        });
        let kind = VdevKind::Draid { nparity: 1, ndata: 3, nspares: SPARES as u8, ngroups: 1 };
        Tree::new(vec![VdevSpec::inner(0, 1, "draid1-0", kind, leaves.collect()).top(12, 0)], &machine.clock)
    }

    fn map() -> Map {
        let layout = Layout { ndata: 3, nparity: 1, nspares: SPARES, ngroups: 1, children: DEVICES, width: DEVICES };
        Map::new(layout, 12).unwrap()
    }

    fn children(tops: &Tops) -> &[Vdev] {
        match &tops.get(0).unwrap().vdev.body {
            Body::Draid { children, .. } => children,
            _ => panic!("no dRAID vdev"),
        }
    }

    /// With any two devices replaced: their columns are on different devices, those of a spare that is on a replaced device are
    /// on the other spare, and only in rows in which both replaced devices are spare the chain returns to its beginning.
    #[test]
    fn chains_of_spares_end_at_a_device_or_return() {
        let (map, mut returned, mut chained) = (map(), 0, 0);
        for (first, second) in (0..DEVICES).flat_map(|a| (0..DEVICES).map(move |b| (a, b))).filter(|(a, b)| a != b) {
            let world = SimWorld::new(1);
            let tree = tree(&world, &[(first, 0), (second, 1)]).unwrap();
            let tops = tree.version();
            for row in 0..200 {
                let offset = row * ROW_BYTES;
                let of_spare = |spare| map.spare_child(spare, offset).unwrap() as u64;
                let spare_children = [of_spare(0), of_spare(1)];
                assert_ne!(spare_children[0], spare_children[1]);
                for device in [first, second].into_iter().filter(|device| !spare_children.contains(device)) {
                    let child = &children(&tops)[device as usize];
                    assert_eq!(child.read_preference(&tree, Place::new(0, 0), offset, Txg(5)), 0, "row {row}");
                    chained += u64::from(spare_children.iter().any(|host| [first, second].contains(host)));
                }
                if spare_children == [second, first] {
                    let child = &children(&tops)[first as usize];
                    assert_eq!(child.read_preference(&tree, Place::new(0, 0), offset, Txg(5)), 2, "row {row}");
                    returned += 1;
                }
            }
        }
        assert!(returned > 50 && chained > 50, "{returned} {chained}");
    }

    /// A spare lacks what its own DTL has, and in each row what the device lacks that has its space there.
    #[test]
    fn a_spare_lacks_what_the_device_below_lacks() {
        let world = SimWorld::new(2);
        let tree = tree(&world, &[(4, 0)]).unwrap();
        let tops = tree.version();
        tree.leaf(11).unwrap().dirty_dtl(Txg(7));
        let preference =
            |row: u64, birth| children(&tops)[4].read_preference(&tree, Place::new(0, 0), row * ROW_BYTES, Txg(birth));
        let below = |row: u64| map().spare_child(0, row * ROW_BYTES).unwrap();
        for row in (0..60).filter(|row| below(*row) != 4) {
            assert_eq!((preference(row, 7), preference(row, 8)), (u8::from(below(row) == 1), 0), "row {row}");
        }
        tree.leaf(24).unwrap().dirty_dtl(Txg(8));
        assert!((0..60).filter(|row| below(*row) != 4).all(|row| preference(row, 8) == 1));
        assert!(tree.leaf(24).unwrap().take_out());
        assert!((0..60).all(|row| preference(row, 9) == 2), "it is out of service");
    }

    #[test]
    fn a_spare_replaces_one_device_only() {
        let world = SimWorld::new(3);
        let error = tree(&world, &[(1, 0), (2, 0)]).err().unwrap();
        assert!(error.to_string().contains("is in use already"), "{error}");
    }
}
