//! Geometry of dRAID: the sectors and children of each block. Pure.
//!
//! A dRAID vdev has *redundancy groups* like RAID-Z, of `ndata + nparity` columns, spread over its children; the
//! capacity of `nspares` children, distributed over all of them, is reserved as distributed spares. One *row* is 16 MiB
//! of every child at the same offset. A group takes 16 MiB × its width and may continue in the next row. A *slice* has
//! as many rows as `ngroups` groups fill exactly. Each slice orders the children by another permutation, so that no
//! child is special:
//!
//! ```text
//!   permuted child   7  2  5 | 0  6  1 | 4  3        3 data+parity columns per group, 8 children, 2 of them spare
//!   row 0           [ group 0 ][ group 1 ][  spare ]
//! ```
//!
//! In a group, a block takes one sector of each column after the other, parity columns first, in whole rows. The
//! allocated size is a multiple of the group's width; the remaining sectors are skipped (zero).
//!
//! *Failure domains*: `width` may be a multiple of `children`. Several slices are then side by side, and children are
//! only swapped with their counterparts in the other slices.
//!
//! Source: OpenZFS `module/zfs/vdev_draid.c` (theory comment, `vdev_draid_logical_to_physical`,
//! `vdev_draid_map_alloc_row`, `vdev_draid_spare_get_child`), `include/sys/vdev_draid.h`.

mod seeds;
#[cfg(test)]
mod tests;

use thiserror::Error;

/// Height of a row: bytes of each child that one group takes.
const ROW_BYTES: u64 = 16 << 20;
/// First word of the generator's state (`VDEV_DRAID_SEED`).
const GENERATOR_SEED: u64 = 0xd_7a1d_5eed;

/// Parameters of a dRAID vdev in a pool's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Data columns of a group.
    pub ndata: u64,
    /// Parity columns of a group: 1 to 3.
    pub nparity: u64,
    /// Distributed spares.
    pub nspares: u64,
    /// Groups of a slice.
    pub ngroups: u64,
    /// Number of children of one slice.
    pub children: u64,
    /// Number of all children: a multiple of `children`.
    pub width: u64,
}

/// Error of a dRAID configuration.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LayoutError {
    /// A number out of its range.
    #[error("dRAID configuration: {field} = {value} is not possible here")]
    Field {
        /// Name of the parameter.
        field: &'static str,
        /// Value of the parameter.
        value: u64,
    },
    /// The generated permutations have another checksum than the format requires.
    #[error("dRAID permutations for {children} children have checksum {actual:#x}, not {expected:#x}")]
    Checksum {
        /// Number of children.
        children: u64,
        /// Required checksum.
        expected: u64,
        /// Checksum of the generated permutations.
        actual: u64,
    },
}

/// One column of a row of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Index of the child.
    pub child: usize,
    /// Byte offset in the child's allocatable space.
    pub offset_bytes: u64,
    /// Bytes of the block (or of parity) there; 0 for a column that is skipped as a whole.
    pub size_bytes: u64,
}

/// A part of a block inside one group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Bytes of the block in this row.
    pub data_bytes: u64,
    /// Parity columns first, then the data columns.
    pub columns: Vec<Column>,
}

/// Geometry of one dRAID vdev.
#[derive(Clone, Debug)]
pub struct Map {
    layout: Layout,
    ashift: u32,
    permutations: Vec<u8>,
    nperms: u64,
}

/// Position in a redundancy group: the permutation, the first column, the columns of the slice, the byte offset on each
/// child.
struct Place {
    permutation: u64,
    start: u64,
    ndisks: u64,
    physical_bytes: u64,
}

impl Layout {
    fn check(&self) -> Result<(), LayoutError> {
        let bad = |field, value| Err(LayoutError::Field { field, value });
        if !(1..=3).contains(&self.nparity) {
            return bad("parity", self.nparity);
        }
        if self.ndata == 0 || self.ndata > 255 {
            return bad("data columns", self.ndata);
        }
        if !(2..=255).contains(&self.children) {
            return bad("children", self.children);
        }
        if self.width == 0 || self.width > 255 || !self.width.is_multiple_of(self.children) {
            return bad("width", self.width);
        }
        if self.nspares > 100 || self.nspares >= self.width {
            return bad("spares", self.nspares);
        }
        let spares_a_slice = self.nspares.div_ceil(self.width / self.children);
        if self.children < self.ndata + self.nparity + spares_a_slice {
            return bad("data columns", self.ndata);
        }
        let group_width = self.ndata + self.nparity;
        if self.ngroups == 0 || self.ngroups > 255 || !(group_width * self.ngroups).is_multiple_of(self.ndisks()) {
            return bad("groups", self.ngroups);
        }
        Ok(())
    }

    /// Columns of a group.
    pub(crate) fn group_width(&self) -> u64 {
        self.ndata + self.nparity
    }

    /// Bytes of the vdev's space that a group takes.
    pub(crate) fn group_bytes(&self) -> u64 {
        self.group_width() * ROW_BYTES
    }

    fn ndisks(&self) -> u64 {
        self.width - self.nspares
    }

    /// Number of slices side by side.
    fn slices(&self) -> u64 {
        self.width / self.children
    }
}

impl Map {
    /// Makes the permutations of `layout`; `ashift` is log2 of the vdev's sector size.
    pub fn new(layout: Layout, ashift: u32) -> Result<Self, LayoutError> {
        layout.check()?;
        if !(9..=16).contains(&ashift) {
            return Err(LayoutError::Field { field: "ashift", value: ashift.into() });
        }
        let children = layout.children as usize;
        let (seed, expected) = seeds::SEEDS[children - 2];
        let nperms = if children < 32 { 256 } else { 512 };
        let mut permutations = shuffled_rows(children, nperms, seed);
        let actual = fletcher4_first_word(&permutations);
        if actual != expected {
            return Err(LayoutError::Checksum { children: layout.children, expected, actual });
        }
        if layout.width > layout.children {
            swap_between_slices(&mut permutations, children, nperms, layout.slices() as usize, seed);
        }
        Ok(Map { layout, ashift, permutations, nperms: nperms as u64 })
    }

    /// Parameters that the map was made from.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// Bytes allocated for a block of `psize_bytes`: whole rows of the group's width.
    pub fn asize_bytes(&self, psize_bytes: u64) -> u64 {
        let row = self.layout.ndata << self.ashift;
        (psize_bytes.div_ceil(row) * self.layout.group_width()) << self.ashift
    }

    /// Returns the one or two rows of a block of `psize_bytes` (rounded up to sectors) at `offset_bytes` of the vdev.
    pub fn rows(&self, offset_bytes: u64, psize_bytes: u64) -> Vec<Row> {
        let sector = 1u64 << self.ashift;
        let mut left = psize_bytes.div_ceil(sector) * sector;
        let mut offset = offset_bytes;
        let mut rows = Vec::with_capacity(2);
        while left > 0 {
            let group_end = (offset / self.layout.group_bytes() + 1).saturating_mul(self.layout.group_bytes());
            let room = (group_end - offset) / self.layout.group_width() * self.layout.ndata / sector * sector;
            let size = if offset.saturating_add(self.asize_bytes(left)) > group_end { room } else { left };
            if size == 0 {
                // Only an invalid offset (not a multiple of the group's width) leaves less than a row: nothing to map.
                break;
            }
            rows.push(self.row(offset, size));
            offset = offset.saturating_add(self.asize_bytes(size));
            left -= size.min(left);
        }
        rows
    }

    fn row(&self, offset_bytes: u64, size_bytes: u64) -> Row {
        let l = &self.layout;
        let place = self.place(offset_bytes);
        let width = l.group_width();
        let sectors = size_bytes >> self.ashift;
        let whole = sectors / l.ndata;
        let rest = sectors % l.ndata;
        let big = if rest == 0 { 0 } else { rest + l.nparity };
        let (base, turn) = self.permutation(place.permutation);
        let columns = (0..width)
            .map(|i| {
                let wrapped = place.start + i >= place.ndisks;
                Column {
                    child: self.child(base, turn, (place.start + i) % place.ndisks),
                    offset_bytes: place.physical_bytes.saturating_add(if wrapped { ROW_BYTES } else { 0 }),
                    size_bytes: (whole + u64::from(i < big)) << self.ashift,
                }
            })
            .collect();
        Row { data_bytes: size_bytes, columns }
    }

    /// Returns the child that has the space of distributed spare `spare` at `physical_bytes` of a child's space; `None`
    /// for a spare that the layout does not have. That child may itself be replaced by a spare; the caller then calls
    /// this again.
    pub fn spare_child(&self, spare: u64, physical_bytes: u64) -> Option<usize> {
        let l = &self.layout;
        if spare >= l.nspares {
            return None;
        }
        let slice_bytes = l.group_bytes() * l.ngroups / l.ndisks();
        let permutation = (physical_bytes / slice_bytes) * l.slices() + spare % l.slices();
        let (base, turn) = self.permutation(permutation);
        Some(self.child(base, turn, (l.children - 1) - spare / l.slices()))
    }

    fn place(&self, offset_bytes: u64) -> Place {
        let l = &self.layout;
        let slices = l.slices();
        let group = offset_bytes / l.group_bytes();
        // From this slice on there is one spare fewer, and so one group more.
        let small = l.nspares % slices;
        let per_slice = l.ngroups / slices;
        let in_row = group % l.ngroups;
        let slice = if small == 0 || in_row < small * per_slice {
            in_row / per_slice.max(1)
        } else {
            small + (in_row - small * per_slice) / (per_slice + 1)
        };
        let more = small != 0 && slice >= small;
        let ndisks = l.ndisks() / slices + u64::from(more);
        let before = if small == 0 || slice <= small {
            slice * per_slice
        } else {
            small * per_slice + (slice - small) * (per_slice + 1)
        };
        let local = in_row.saturating_sub(before) % (per_slice + u64::from(more)).max(1);
        let row_of_slice = group / l.ngroups;
        let rows_a_slice = l.group_width() * l.ngroups / l.ndisks();
        let row = row_of_slice * rows_a_slice + local * l.group_width() / ndisks;
        let sector_in_group = (offset_bytes % l.group_bytes()) >> self.ashift;
        let in_child = (sector_in_group / l.group_width()) << self.ashift;
        Place {
            permutation: row_of_slice * slices + slice,
            start: local * l.group_width() % ndisks,
            ndisks,
            physical_bytes: row.saturating_mul(ROW_BYTES).saturating_add(in_child),
        }
    }

    /// Index of the permutation row(s), and the rotation of its numbers: the stored rows are reused with every
    /// rotation.
    fn permutation(&self, index: u64) -> (&[u8], u64) {
        let (n, children) = (self.layout.slices(), self.layout.children);
        let nperms = self.nperms / n * n;
        let at = index % (nperms * children);
        let first = at / (children * n) * (children * n);
        (&self.permutations[first as usize..], at % children + index % n * children)
    }

    fn child(&self, base: &[u8], turn: u64, index: u64) -> usize {
        let children = self.layout.children;
        if self.layout.width > children {
            usize::from(base[((index + turn) % children + turn / children * children) as usize])
        } else {
            ((u64::from(base[index as usize]) + turn) % children) as usize
        }
    }
}

/// Generator xoroshiro128++, whose sequence is part of the format.
struct Generator([u64; 2]);

impl Generator {
    fn next(&mut self) -> u64 {
        let [a, b] = self.0;
        let out = a.wrapping_add(b).rotate_left(17).wrapping_add(a);
        let b = b ^ a;
        self.0 = [a.rotate_left(49) ^ b ^ (b << 21), b.rotate_left(28)];
        out
    }
}

/// Makes `nperms` rows of `children` numbers, each row a Fisher–Yates shuffle of the previous one.
fn shuffled_rows(children: usize, nperms: usize, seed: u64) -> Vec<u8> {
    let mut generator = Generator([GENERATOR_SEED, seed]);
    let mut row: Vec<u8> = (0..children).map(|c| c as u8).collect();
    let mut all = Vec::with_capacity(children * nperms);
    for _ in 0..nperms {
        for j in (1..children).rev() {
            let k = (generator.next() % (j as u64 + 1)) as usize;
            row.swap(j, k);
        }
        all.extend_from_slice(&row);
    }
    all
}

/// Numbers the children of slices that are side by side, and swaps each with its counterparts.
fn swap_between_slices(permutations: &mut [u8], children: usize, nperms: usize, slices: usize, seed: u64) {
    let mut generator = Generator([GENERATOR_SEED, seed]);
    for big_row in permutations[..nperms / slices * slices * children].chunks_exact_mut(slices * children) {
        for j in 0..children {
            let wanted = big_row[j];
            // Slices that were not shuffled yet have numbers of their own range: each number is in them once.
            let mut at = vec![j; slices];
            for (k, place) in at.iter_mut().enumerate().skip(1) {
                let slice = &big_row[k * children..(k + 1) * children];
                *place = slice.iter().position(|&v| v == wanted).unwrap_or(j);
            }
            for (k, &place) in at.iter().enumerate().skip(1) {
                big_row[k * children + place] += (k * children) as u8;
            }
            for k in (1..slices).rev() {
                let l = (generator.next() % (k as u64 + 1)) as usize;
                big_row.swap(k * children + at[k], l * children + at[l]);
            }
        }
    }
}

/// First word of fletcher4 over little-endian 32-bit words (a tail shorter than a word does not count).
fn fletcher4_first_word(bytes: &[u8]) -> u64 {
    bytes.chunks_exact(4).fold(0u64, |a, w| a.wrapping_add(u64::from(u32::from_le_bytes([w[0], w[1], w[2], w[3]]))))
}
