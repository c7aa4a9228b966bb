//! Number and byte ranges of the metaslabs of a top-level vdev.
//!
//! Metaslabs have a size of a power of two. On dRAID they consist of whole rows of redundancy groups, so that no
//! block is in two metaslabs. Source: OpenZFS `module/zfs/vdev.c` (`vdev_metaslab_init`), `vdev_draid.c` (`vdev_draid_metaslab_init`).

use crate::config::VdevConfig;
use std::ops::Range;

/// Maximum accepted number of metaslabs of a vdev (OpenZFS makes about 200, at most 2^17).
pub const MAX_METASLABS: u64 = 1 << 20;

/// Layout of the metaslabs of a top-level vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaslabGeometry {
    count: u64,
    /// log2 of the size in bytes.
    shift: u32,
    /// Size of a row of a dRAID redundancy group in bytes; 1 for other vdevs.
    row_bytes: u64,
}

impl MetaslabGeometry {
    /// The layout of the metaslabs of `top`.
    pub fn of(top: &VdevConfig) -> Self {
        let shift = top.metaslab_shift.min(63) as u32;
        let count = (top.asize_bytes >> shift).min(MAX_METASLABS);
        MetaslabGeometry { count, shift, row_bytes: top.draid_row_bytes() }
    }

    /// Number of metaslabs, at most [`MAX_METASLABS`].
    pub fn count(self) -> u64 {
        self.count
    }

    /// log2 of the size of metaslabs in bytes.
    pub fn shift(self) -> u32 {
        self.shift
    }

    /// Index of the metaslab that contains an offset of the vdev.
    pub fn index_of(self, offset_bytes: u64) -> u64 {
        offset_bytes >> self.shift
    }

    /// Offset of the first byte of a metaslab.
    pub fn start(self, metaslab: u64) -> u64 {
        let start = metaslab << self.shift;
        start.checked_next_multiple_of(self.row_bytes).unwrap_or(start)
    }

    /// Size of a metaslab in bytes.
    pub fn size_bytes(self, metaslab: u64) -> u64 {
        let skipped = self.start(metaslab) - (metaslab << self.shift);
        (1u64 << self.shift).saturating_sub(skipped) / self.row_bytes * self.row_bytes
    }

    /// Byte range of a metaslab.
    pub fn range(self, metaslab: u64) -> Range<u64> {
        let start = self.start(metaslab);
        start..start.saturating_add(self.size_bytes(metaslab))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::NvList;

    fn geometry(kind: &str) -> MetaslabGeometry {
        let mut list = NvList::new();
        list.set("type", kind);
        list.set("nparity", 1u64);
        list.set("draid_ndata", 2u64);
        list.set("ashift", 12u64);
        list.set("metaslab_shift", 20u64);
        list.set("asize", (5u64 << 20) + 4096);
        MetaslabGeometry::of(&VdevConfig::parse(&list).unwrap())
    }

    #[test]
    fn metaslabs_of_draid_consist_of_whole_rows() {
        let disk = geometry("disk");
        assert_eq!((disk.count(), disk.index_of(3 << 20), disk.range(4)), (5, 3, 4 << 20..5 << 20));
        let draid = geometry("draid");
        let row_bytes = 3 << 12;
        for metaslab in 0..draid.count() {
            let range = draid.range(metaslab);
            assert_eq!((range.start % row_bytes, range.end % row_bytes), (0, 0));
            assert!(disk.range(metaslab).contains(&range.start) && range.end <= disk.range(metaslab).end);
        }
        assert_eq!(draid.range(1).start, (1u64 << 20).next_multiple_of(row_bytes));
    }
}
