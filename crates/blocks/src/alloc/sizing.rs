//! Allocated size of blocks on a top-level vdev (OpenZFS `vdev_psize_to_asize`).

/// Block size for which the deflate ratio is computed (`vdev_set_deflate_ratio`).
const TYPICAL_BLOCK_BYTES: u64 = 1 << 17;

/// Parameters of the allocated size of blocks on one top-level vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sizing {
    /// log2 of the sector size.
    pub ashift: u32,
    /// Parameters of RAID-Z and dRAID; `None` for other kinds.
    pub raidz: Option<RaidzSizing>,
}

/// RAID-Z geometry; a dRAID group has the geometry of a RAID-Z vdev.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RaidzSizing {
    /// Parity columns, 1 to 3.
    pub nparity: u64,
    /// Present number of children.
    pub width: u64,
    /// Txgs in which the vdev was expanded by one child each.
    pub expansion_txgs: Vec<u64>,
    /// Blocks take whole rows (dRAID).
    pub whole_rows: bool,
}

impl Sizing {
    /// Allocated bytes of a block of `psize_bytes` written in `txg`: whole sectors, and with RAID-Z the parity, rounded up
    /// so that no gap is left that is too small for any block.
    pub fn asize_bytes(&self, psize_bytes: u64, txg: u64) -> u64 {
        let sectors = psize_bytes.div_ceil(1 << self.ashift).max(1);
        let Some(raidz) = &self.raidz else { return sectors << self.ashift };
        let later = raidz.expansion_txgs.iter().filter(|&&t| t > txg).count() as u64;
        let width = raidz.width.saturating_sub(later).max(raidz.nparity + 1);
        let rows = sectors.div_ceil(width - raidz.nparity);
        if raidz.whole_rows {
            return (rows * width) << self.ashift;
        }
        let total = sectors + raidz.nparity * rows;
        total.next_multiple_of(raidz.nparity + 1) << self.ashift
    }

    /// Bytes that 512 bytes of allocated space count as in a dataset's used space: 512, less with parity
    /// (`vdev_deflate_ratio`).
    pub fn deflate(&self) -> u64 {
        TYPICAL_BLOCK_BYTES / (self.typical_asize_bytes() >> 9)
    }

    /// Allocated bytes of a block of 128 KiB on the vdev as it was created, from which the deflate ratio is computed.
    pub fn typical_asize_bytes(&self) -> u64 {
        self.asize_bytes(TYPICAL_BLOCK_BYTES, 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn raidz(ashift: u32, nparity: u64, width: u64, expansion_txgs: &[u64]) -> Sizing {
        Sizing {
            ashift,
            raidz: Some(RaidzSizing { nparity, width, expansion_txgs: expansion_txgs.to_vec(), whole_rows: false }),
        }
    }

    #[test]
    fn sizes_are_those_of_openzfs() {
        let plain = Sizing { ashift: 12, raidz: None };
        assert_eq!((plain.asize_bytes(512, 0), plain.asize_bytes(4097, 0), plain.deflate()), (4096, 8192, 512));
        let z1 = raidz(12, 1, 5, &[]);
        assert_eq!(z1.asize_bytes(4096, 0), 8192);
        assert_eq!(z1.asize_bytes(8192, 0), 16384, "three sectors are rounded to four");
        assert_eq!(z1.asize_bytes(16384, 0), 6 << 12);
        assert_eq!(z1.asize_bytes(128 << 10, 0), 40 << 12);
        assert_eq!(z1.deflate(), (1 << 17) / (40 << 3));
        let d2 = RaidzSizing { nparity: 2, width: 6, expansion_txgs: vec![], whole_rows: true };
        let d2 = Sizing { ashift: 12, raidz: Some(d2) };
        assert_eq!((d2.asize_bytes(512, 0), d2.asize_bytes(5 << 12, 0)), (6 << 12, 12 << 12));
        let z3 = raidz(9, 3, 8, &[]);
        assert_eq!(z3.asize_bytes(512, 0), 4 << 9);
        assert_eq!(z3.asize_bytes(6 << 9, 0), 12 << 9);
    }

    #[test]
    fn an_expanded_vdev_counts_by_its_width_at_the_time() {
        let z = raidz(12, 1, 5, &[100]);
        assert_eq!(z.asize_bytes(16 << 12, 99), raidz(12, 1, 4, &[]).asize_bytes(16 << 12, 0));
        assert_eq!(z.asize_bytes(16 << 12, 100), raidz(12, 1, 5, &[]).asize_bytes(16 << 12, 0));
        assert_eq!(z.deflate(), raidz(12, 1, 4, &[]).deflate());
    }
}
