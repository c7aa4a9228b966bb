//! GUID partition tables (UEFI specification, chapter 5), and a partition as a disk of its own.
//!
//! OpenZFS puts a table on a disk that it is given whole: partition 1 from 1 MiB on holds the vdev, partition 9 the
//! last 8 MiB. The header is in the second sector, of 512 or 4096 bytes, and a copy is in the last. Only what a vdev
//! needs is decoded. Every partition in use is a candidate, because labels have checksums.

use crate::error::PoolError;
use std::path::Path;
use std::sync::Arc;
use weir_format::{Cursor, DecodeError, Endian};
use weir_machine::{Buf, Disk, DiskError, Geometry, Io, Op};

/// Bytes at the front with the header and 128 entries, with either sector size.
const FRONT_BYTES: u64 = 64 << 10;
/// Maximum number of entries that are decoded.
const MAX_ENTRIES: u32 = 128;
const SIGNATURE: &[u8; 8] = b"EFI PART";

/// One partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Partition {
    /// Number, from 1.
    pub number: u32,
    /// First byte.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub len_bytes: u64,
}

/// Decodes the partitions in the front of a disk of `size_bytes`; empty if there is no table.
pub fn parse(front: &[u8], size_bytes: u64) -> Vec<Partition> {
    [512usize, 4096].iter().find_map(|&sector| parse_with(front, sector, size_bytes).ok().flatten()).unwrap_or_default()
}

fn parse_with(front: &[u8], sector: usize, size_bytes: u64) -> Result<Option<Vec<Partition>>, DecodeError> {
    const WHAT: &str = "partition table";
    let header = front.get(sector..).unwrap_or_default();
    if !header.starts_with(SIGNATURE) {
        return Ok(None);
    }
    let mut c = Cursor::new(header, Endian::Little, WHAT);
    c.skip(72)?;
    let entries_lba = c.u64()?;
    let count = c.u32()?.min(MAX_ENTRIES);
    let entry_bytes = c.u32()? as usize;
    if !(128..=4096).contains(&entry_bytes) {
        return Err(DecodeError::Field { what: WHAT, field: "entry size", value: entry_bytes as u64 });
    }
    let at = usize::try_from(entries_lba).ok().and_then(|lba| lba.checked_mul(sector)).unwrap_or(usize::MAX);
    let mut out = Vec::new();
    for (i, entry) in front.get(at..).unwrap_or_default().chunks_exact(entry_bytes).take(count as usize).enumerate() {
        let mut c = Cursor::new(entry, Endian::Little, WHAT);
        let kind: [u8; 16] = c.array()?;
        c.skip(16)?;
        let first = c.u64()?;
        let last = c.u64()?;
        let bytes = |lba: u64| lba.checked_mul(sector as u64);
        if kind == [0; 16] {
            continue;
        }
        if let (Some(start), Some(end)) = (bytes(first), last.checked_add(1).and_then(bytes))
            && start < end
            && end <= size_bytes
        {
            out.push(Partition { number: i as u32 + 1, offset_bytes: start, len_bytes: end - start });
        }
    }
    Ok(Some(out))
}

/// Reads the partitions of a disk.
pub async fn partitions(disk: &Arc<dyn Disk>, path: &Path) -> Result<Vec<Partition>, PoolError> {
    let size = disk.geometry().size_bytes;
    let len = FRONT_BYTES.min(size - size % u64::from(disk.geometry().sector_bytes.max(1)));
    let front = disk.read(0, len as usize).await.map_err(|source| PoolError::Disk { path: path.into(), source })?;
    Ok(parse(front.as_ref(), size))
}

/// A part of a disk as a disk.
pub struct Window {
    disk: Arc<dyn Disk>,
    offset_bytes: u64,
    len_bytes: u64,
}

impl Window {
    /// The partition of the disk.
    pub fn new(disk: Arc<dyn Disk>, partition: Partition) -> Self {
        Window { disk, offset_bytes: partition.offset_bytes, len_bytes: partition.len_bytes }
    }
}

impl Disk for Window {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.len_bytes, ..self.disk.geometry() }
    }

    fn submit(&self, mut io: Io) {
        let inside = io.op == Op::Flush || io.offset.checked_add(io.len).is_some_and(|end| end <= self.len_bytes);
        if !inside {
            let error = DiskError::OutOfRange { op: io.op, offset: io.offset, len: io.len, size_bytes: self.len_bytes };
            return io.fail(error);
        }
        io.offset += self.offset_bytes;
        self.disk.submit(io);
    }

    fn buffer(&self, len: usize) -> Buf {
        self.disk.buffer(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(sector: usize, entries: &[(u64, u64)]) -> Vec<u8> {
        let mut front = vec![0; 64 << 10];
        front[sector..sector + 8].copy_from_slice(SIGNATURE);
        front[sector + 72..sector + 80].copy_from_slice(&2u64.to_le_bytes());
        front[sector + 80..sector + 84].copy_from_slice(&128u32.to_le_bytes());
        front[sector + 84..sector + 88].copy_from_slice(&128u32.to_le_bytes());
        for (i, (first, last)) in entries.iter().enumerate() {
            let at = 2 * sector + i * 128;
            front[at] = 1;
            front[at + 32..at + 40].copy_from_slice(&first.to_le_bytes());
            front[at + 40..at + 48].copy_from_slice(&last.to_le_bytes());
        }
        front
    }

    #[test]
    fn finds_partitions_with_either_sector_size() {
        for sector in [512usize, 4096] {
            let found = parse(&table(sector, &[(256, 511)]), 1 << 30);
            let bytes = sector as u64 * 256;
            assert_eq!(found, [Partition { number: 1, offset_bytes: bytes, len_bytes: bytes }]);
        }
    }

    #[test]
    fn malformed_entries_are_left_out() {
        let front = table(512, &[(100, 50), (u64::MAX, u64::MAX), (0, 1 << 40), (8, 15)]);
        assert_eq!(parse(&front, 1 << 20), [Partition { number: 4, offset_bytes: 4096, len_bytes: 4096 }]);
        assert_eq!(parse(&[0; 100], 1 << 20), []);
    }
}
