//! Geometry of RAID-Z: the sectors and children of each block. Pure.
//!
//! A block of s sectors on a vdev of width w with p parity columns is written row by row, p parity sectors before at
//! most w − p data sectors, and begins at the sector that the allocator chose. Data are ordered by column, not by row,
//! so that each child has one contiguous piece:
//!
//! ```text
//!   width 5, parity 1, a block of 10 sectors that begins on child 2
//!   child    0    1    2    3    4
//!                      P0   D0   D3        first column: parity, of the rows 0–2
//!            D6   D8   P1   D1   D4        then the data columns; the last ones are a sector shorter
//!            D7   D9   P2   D2   D5
//! ```
//!
//! The allocated size is rounded up to p + 1 sectors; the sectors skipped at the end have no contents. With single
//! parity, the first two columns are swapped in every other MiB of the vdev's space, because the first release did so
//! and the format keeps it.
//!
//! *Expansion.* An expanded vdev keeps the rows of its old blocks (their logical width) and reflows all sectors
//! over more children: sector n of the vdev's space is then on child n mod w', in row n div w'. Each row of an old
//! block is therefore mapped sector by sector ([`Map::expanded`]). During the expansion, rows that are not yet
//! copied are in the old layout, and the first ones may still be in the scratch area in front of the space.
//!
//! *Wrong columns.* A [`Suspect`] is a device that may have returned wrong bytes: one of the children or, for a
//! reflowed block, one of the former children (a disk with wrong bytes at that time spread them over all children).
//!
//! Source: OpenZFS `module/zfs/vdev_raidz.c`: `vdev_raidz_map_alloc`, `vdev_raidz_map_alloc_expanded`,
//! `raidz_simulate_failure`, theory comment.

#[cfg(test)]
mod tests;

use crate::draid;
use std::cmp::Reverse;
use std::collections::BTreeSet;

/// The boot area, where an expansion keeps the first rows for a while.
pub(crate) const SCRATCH_BYTES: u64 = 7 << 19;
/// With single parity, this bit of the offset swaps the first two columns.
const SWAP_BIT: u64 = 1 << 20;

/// A piece of a block (or of its parity) on one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Column {
    /// Index of the child.
    pub child: usize,
    /// Offset on the child, in bytes of its allocatable space (wrapping: the scratch area is in front of it).
    pub offset_bytes: u64,
    /// Length in bytes; 0 for a column that the row does not reach.
    pub size_bytes: usize,
    /// Offset of a data column's bytes in the block.
    pub at: usize,
}

/// Columns that one set of parity columns protects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Parity columns first, then the data columns.
    pub columns: Vec<Column>,
}

/// Position of a block: its columns on the children.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Map {
    /// Parity columns of each row.
    pub nparity: usize,
    /// The rows.
    pub rows: Vec<Row>,
    /// Bytes of the block: the sum of all data columns.
    pub len: usize,
}

/// Layout of an expanded vdev at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reflowed {
    /// Present number of children.
    pub physical_width: u64,
    /// Number of children when the block was written.
    pub logical_width: u64,
    /// Bytes of the vdev's space that have been moved to the present width; `u64::MAX` after the expansion.
    pub moved_bytes: u64,
    /// Whether the rows at the reflow position are still in the scratch area.
    pub scratch: bool,
}

/// Sectors that an expansion has copied to places from which they are not read yet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Copies {
    /// Bytes of the vdev's space, from its beginning, that have a copy in the scratch area.
    pub scratch_bytes: u64,
    /// Bytes of the vdev's space, from its beginning, that have a copy at their place in the new layout.
    pub place_bytes: u64,
}

/// A further place of a column, to which it is written besides that of the map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shadow {
    /// Row of the column in the map.
    pub row: usize,
    /// Number of the column in the row.
    pub column: usize,
    /// Index of the child.
    pub child: usize,
    /// Offset on the child, as in [`Column`].
    pub offset_bytes: u64,
    /// Whether the place is in the scratch area.
    pub scratch: bool,
}

/// A device that may have returned wrong bytes: the sectors n of the vdev's space with n mod `width` = `index`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Suspect {
    width: Reverse<u64>,
    index: u64,
}

/// Sectors of a block, divided into columns.
struct Shape {
    /// Number of rows that are full of data columns.
    full: u64,
    /// Data sectors of the row that is not full.
    rest: u64,
    /// Columns, including parity, that extend into that row.
    big: u64,
    /// Number of sectors including parity.
    total: u64,
}

impl Shape {
    fn new(sectors: u64, width: u64, nparity: u64) -> Self {
        let data = (width - nparity).max(1);
        let full = sectors / data;
        let rest = sectors % data;
        let big = if rest == 0 { 0 } else { rest + nparity };
        Shape { full, rest, big, total: sectors + nparity * (full + u64::from(rest > 0)) }
    }
}

impl Map {
    /// Maps `psize_bytes` (a multiple of the sector size `1 << ashift`) at `offset_bytes` of a vdev of `width`
    /// children, `nparity` of them parity. `width` must be larger than `nparity`, which is 1 to 3.
    pub fn new(offset_bytes: u64, psize_bytes: u64, ashift: u32, width: u64, nparity: u64) -> Map {
        let first = offset_bytes >> ashift;
        let shape = Shape::new(psize_bytes >> ashift, width, nparity);
        let used = if shape.full == 0 { shape.big } else { width };
        let mut at = 0;
        let mut columns: Vec<Column> = (0..used)
            .map(|c| {
                let child = first % width + c;
                let row = first / width + child / width;
                let size_bytes = ((shape.full + u64::from(c < shape.big)) << ashift) as usize;
                let column = Column { child: (child % width) as usize, offset_bytes: row << ashift, size_bytes, at };
                if c >= nparity {
                    at += size_bytes;
                }
                column
            })
            .collect();
        swap_first_two(&mut columns, nparity, offset_bytes);
        Map { nparity: nparity as usize, rows: vec![Row { columns }], len: at }
    }

    /// Maps a block of a vdev that was expanded after the block was written.
    pub fn expanded(offset_bytes: u64, psize_bytes: u64, ashift: u32, nparity: u64, layout: Reflowed) -> Map {
        let sectors = psize_bytes >> ashift;
        let logical = layout.logical_width;
        let shape = Shape::new(sectors, logical, nparity);
        let rows_count = shape.total.div_ceil(logical);
        let width = shape.total.min(logical);
        let rows = (0..rows_count).map(|row| {
            let first = (offset_bytes >> ashift) + row * logical;
            let moved = first + width <= layout.moved_bytes >> ashift;
            let physical = if moved { layout.physical_width } else { layout.physical_width - 1 };
            let back = if moved && layout.scratch { SCRATCH_BYTES } else { 0 };
            let last_row = row + 1 == rows_count;
            let mut columns: Vec<Column> = (0..width)
                .map(|c| {
                    let sector = first + c;
                    let beyond = c >= nparity && last_row && shape.big != 0 && c >= shape.big;
                    let data = c.saturating_sub(nparity);
                    let place = if c < shape.big || shape.rest == 0 {
                        data * rows_count + row
                    } else {
                        shape.rest * rows_count + (data - shape.rest) * (rows_count - 1) + row
                    };
                    Column {
                        child: (sector % physical) as usize,
                        offset_bytes: ((sector / physical) << ashift).wrapping_sub(back),
                        size_bytes: if beyond { 0 } else { 1 << ashift },
                        at: (place << ashift) as usize,
                    }
                })
                .collect();
            swap_first_two(&mut columns, nparity, offset_bytes);
            Row { columns }
        });
        Map { nparity: nparity as usize, rows: rows.collect(), len: psize_bytes as usize }
    }

    /// Further places of the columns of a block that [`Map::expanded`] mapped with `layout`: of those sectors that have been
    /// copied, but are still read from where the map says.
    pub fn shadows(&self, offset_bytes: u64, ashift: u32, layout: Reflowed, copies: Copies) -> Vec<Shadow> {
        let Reflowed { physical_width, logical_width, moved_bytes, scratch } = layout;
        let is_swapped = self.nparity == 1 && offset_bytes & SWAP_BIT != 0;
        let mut out = Vec::new();
        for (row, columns) in self.rows.iter().map(|row| &row.columns).enumerate() {
            let first = (offset_bytes >> ashift) + row as u64 * logical_width;
            let is_moved = first + columns.len() as u64 <= moved_bytes >> ashift;
            for (column, _) in columns.iter().enumerate().filter(|(_, column)| column.size_bytes > 0) {
                let nth = match column {
                    0 if is_swapped && columns.len() > 1 => 1,
                    1 if is_swapped => 0,
                    nth => nth,
                };
                let sector = first + nth as u64;
                let child = (sector % physical_width) as usize;
                let place = (sector / physical_width) << ashift;
                if !is_moved && sector < copies.scratch_bytes >> ashift {
                    let offset_bytes = place.wrapping_sub(SCRATCH_BYTES);
                    out.push(Shadow { row, column, child, offset_bytes, scratch: true });
                }
                if (!is_moved || scratch) && sector < copies.place_bytes >> ashift {
                    out.push(Shadow { row, column, child, offset_bytes: place, scratch: false });
                }
            }
        }
        out
    }

    /// Maps a block on a dRAID vdev.
    pub fn of_draid(map: &draid::Map, offset_bytes: u64, psize_bytes: u64) -> Map {
        let nparity = map.layout().nparity as usize;
        let mut at = 0;
        let rows = map.rows(offset_bytes, psize_bytes).into_iter().map(|row| {
            let columns = row.columns.into_iter().enumerate().map(|(c, column)| {
                let size_bytes = column.size_bytes as usize;
                let placed = Column { child: column.child, offset_bytes: column.offset_bytes, size_bytes, at };
                if c >= nparity {
                    at += size_bytes;
                }
                placed
            });
            Row { columns: columns.collect() }
        });
        let rows = rows.collect();
        Map { nparity, rows, len: at }
    }

    /// Returns the devices that any column came from, present children first. `widths` are the present width and those
    /// that the vdev has had since the block was written.
    pub fn suspects(&self, ashift: u32, widths: std::ops::RangeInclusive<u64>) -> Vec<Suspect> {
        let physical = *widths.end();
        let mut all = BTreeSet::new();
        for column in self.columns() {
            for width in widths.clone() {
                let index = sector_number(column, physical, ashift) % width.max(1);
                all.insert(Suspect { width: Reverse(width.max(1)), index });
            }
        }
        all.into_iter().collect()
    }

    /// Returns all columns that are not empty.
    pub fn columns(&self) -> impl Iterator<Item = &Column> {
        self.rows.iter().flat_map(|r| &r.columns).filter(|c| c.size_bytes > 0)
    }
}

impl Suspect {
    /// Whether `column` came from this device.
    pub fn gave(&self, column: &Column, physical_width: u64, ashift: u32) -> bool {
        sector_number(column, physical_width, ashift) % self.width.0 == self.index
    }
}

fn sector_number(column: &Column, physical_width: u64, ashift: u32) -> u64 {
    physical_width.wrapping_mul(column.offset_bytes >> ashift).wrapping_add(column.child as u64)
}

fn swap_first_two(columns: &mut [Column], nparity: u64, offset_bytes: u64) {
    if let ([a, b, ..], 1, true) = (columns, nparity, offset_bytes & SWAP_BIT != 0) {
        std::mem::swap(&mut a.child, &mut b.child);
        std::mem::swap(&mut a.offset_bytes, &mut b.offset_bytes);
    }
}
