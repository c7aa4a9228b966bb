//! Statistics of blocks by type and level, as `zdb -b` prints them.

use weir_format::{BlockPointer, ObjectType};

/// Number of rows for old object types; the other rows follow them.
pub const TYPES: usize = 54;
/// Row of deferred frees.
pub const DEFERRED: usize = TYPES;
/// Row of types that encode their own properties (`DMU_OTN_*`).
pub const OTHER: usize = TYPES + 2;
/// Row of the totals.
pub const TOTAL: usize = TYPES + 3;
/// Number of rows.
pub const ROWS: usize = TYPES + 4;
/// Number of levels: a pointer has five bits for its level.
pub const LEVELS: usize = 32;
/// Number of size bins: powers of two from 512 bytes to 16 MiB.
pub const BINS: usize = 16;

/// One cell of the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cell {
    /// Number of blocks.
    pub count: u64,
    /// Logical bytes.
    pub lsize_bytes: u64,
    /// Physical bytes.
    pub psize_bytes: u64,
    /// Allocated bytes of all copies.
    pub asize_bytes: u64,
    /// Gang blocks.
    pub gangs: u64,
    /// Blocks with two copies on one vdev.
    pub ditto_same_vdev: u64,
    /// Blocks with two copies in one metaslab.
    pub ditto_same_metaslab: u64,
}

/// Blocks of one size: bin `i` has those of up to `512 << i` bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bin {
    /// Number of blocks.
    pub count: u64,
    /// Sum of their sizes in bytes.
    pub bytes: u64,
}

/// Statistics of all blocks.
#[derive(Clone, Debug)]
pub struct BlockStats {
    cells: Vec<Cell>,
    /// Histograms of physical, logical and allocated sizes.
    pub sizes: [[Bin; BINS]; 3],
    /// Embedded blocks by kind of payload.
    pub embedded: [u64; 3],
}

impl Default for BlockStats {
    fn default() -> Self {
        BlockStats { cells: vec![Cell::default(); ROWS * (LEVELS + 1)], sizes: Default::default(), embedded: [0; 3] }
    }
}

/// Name of a row.
pub fn row_name(row: usize) -> &'static str {
    match row {
        DEFERRED => "deferred free",
        OTHER => "other",
        TOTAL => "Total",
        r if r < TYPES => ObjectType(r as u8).name(),
        _ => "dedup ditto",
    }
}

/// Row of an object type.
pub fn row_of(object_type: ObjectType) -> usize {
    let n = usize::from(object_type.0);
    if n < TYPES { n } else { OTHER }
}

fn bin(bytes: u64) -> usize {
    let top = 64 - bytes.saturating_sub(1).leading_zeros() as usize;
    top.saturating_sub(9).min(BINS - 1)
}

impl BlockStats {
    /// Returns a cell; `None` for `level` is the sum over all levels.
    pub fn cell(&self, row: usize, level: Option<usize>) -> Cell {
        self.cells.get(row * (LEVELS + 1) + level.unwrap_or(LEVELS)).copied().unwrap_or_default()
    }

    /// Returns the sum over all rows.
    pub fn total(&self) -> Cell {
        self.cell(TOTAL, None)
    }

    /// Adds a block to row `row`. `metaslab` returns the metaslab of an address.
    pub fn add(&mut self, bp: &BlockPointer, row: usize, metaslab: impl Fn(u32, u64) -> u64) {
        let (same_vdev, same_metaslab) = dittos(bp, metaslab);
        let gangs = bp.dvas().filter(|d| d.gang).count() as u64;
        let level = usize::from(bp.level()).min(LEVELS - 1);
        for (row, level) in [(TOTAL, level), (row, level), (TOTAL, LEVELS), (row, LEVELS)] {
            let Some(c) = self.cells.get_mut(row * (LEVELS + 1) + level) else { continue };
            c.count += 1;
            c.lsize_bytes += bp.lsize_bytes();
            c.psize_bytes += psize(bp);
            c.asize_bytes += bp.asize_bytes();
            c.gangs += gangs;
            c.ditto_same_vdev += u64::from(same_vdev);
            c.ditto_same_metaslab += u64::from(same_metaslab);
        }
        if bp.is_embedded() {
            if let Some(n) = bp.embedded().and_then(|e| self.embedded.get_mut(usize::from(e.etype))) {
                *n += 1;
            }
            return;
        }
        for (bins, bytes) in self.sizes.iter_mut().zip([bp.psize_bytes(), bp.lsize_bytes(), bp.asize_bytes()]) {
            if let Some(b) = bins.get_mut(bin(bytes)) {
                b.count += 1;
                b.bytes += bytes;
            }
        }
    }
}

/// Physical size; an embedded block takes no space.
fn psize(bp: &BlockPointer) -> u64 {
    if bp.is_embedded() { 0 } else { bp.psize_bytes() }
}

/// Whether two copies are on one vdev, and in one metaslab.
fn dittos(bp: &BlockPointer, metaslab: impl Fn(u32, u64) -> u64) -> (bool, bool) {
    let copies: Vec<_> = bp.dvas().collect();
    let mut same = (false, false);
    for (i, a) in copies.iter().enumerate() {
        for b in copies.iter().skip(i + 1).filter(|b| b.vdev == a.vdev) {
            same.0 = true;
            same.1 |= metaslab(a.vdev, a.offset_bytes) == metaslab(b.vdev, b.offset_bytes);
        }
    }
    same
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bins_hold_up_to_their_size() {
        assert_eq!([1, 512, 513, 1024, 4096, 4097, 16 << 20, 1 << 40].map(bin), [0, 0, 1, 1, 3, 4, 15, 15]);
    }
}
