//! A disk with a volatile cache over a file: what was not flushed is lost at a cut.
//!
//! ```text
//!   write ─▶ cache (sectors in memory) ─ flush ─▶ file        read: file ◄ cached sectors over it
//!                     │
//!                    cut: dropped, or for each sector by chance kept
//! ```
//!
//! The file stands for the medium: what reached it survives. A sector of 512 bytes is atomic: after a cut it has the new or
//! the old content, as drives guarantee. The cache is as large as the disk and writes nothing back by itself, so that a program
//! that omits a flush loses all that such a program can lose. A cached sector that is written again has no earlier version.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// Unit of the cache in bytes.
const PAGE_BYTES: u64 = 4096;
/// Unit that is atomic, in bytes.
pub const SECTOR_BYTES: u64 = 512;

/// Cached sectors of a page.
struct Page {
    bytes: Box<[u8]>,
    /// One bit for each sector that is cached, the lowest for the first.
    cached: u8,
}

/// Amounts that a disk has counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    /// Bytes that were written to the cache.
    pub written_bytes: u64,
    /// Flushes, and writes that were to be stable at once.
    pub flushes: u64,
}

/// The disk.
pub struct VolatileDisk {
    file: File,
    size_bytes: u64,
    cache: BTreeMap<u64, Page>,
    /// Counters since the disk was made.
    pub counters: Counters,
}

impl VolatileDisk {
    /// A disk of `size_bytes` whose medium is `file`.
    #[must_use]
    pub fn new(file: File, size_bytes: u64) -> Self {
        Self { file, size_bytes, cache: BTreeMap::new(), counters: Counters::default() }
    }

    /// Size in bytes.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Bytes in the cache.
    #[must_use]
    pub fn cached_bytes(&self) -> u64 {
        self.cache.values().map(|page| u64::from(page.cached.count_ones()) * SECTOR_BYTES).sum()
    }

    /// Reads what was written last, up to the end of the disk. Returns the number of bytes.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn read(&self, offset: u64, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.size_bytes.saturating_sub(offset).min(buffer.len() as u64);
        let buffer = &mut buffer[..len as usize];
        read_file(&self.file, offset, buffer)?;
        let end = offset + len;
        for (number, page) in self.cache.range(offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES)) {
            for sector in 0..PAGE_BYTES / SECTOR_BYTES {
                let at = number * PAGE_BYTES + sector * SECTOR_BYTES;
                let from = at.max(offset);
                let to = (at + SECTOR_BYTES).min(end);
                if page.cached & 1 << sector != 0 && from < to {
                    let source = &page.bytes[(from - number * PAGE_BYTES) as usize..][..(to - from) as usize];
                    buffer[(from - offset) as usize..][..(to - from) as usize].copy_from_slice(source);
                }
            }
        }
        Ok(buffer.len())
    }

    /// Writes to the cache.
    ///
    /// # Errors
    /// If the range extends past the end; errors of reading the rest of a sector that is written in part.
    pub fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        let end = offset.checked_add(data.len() as u64).filter(|end| *end <= self.size_bytes);
        let Some(end) = end else { return Err(io::Error::from(io::ErrorKind::StorageFull)) };
        let mut at = offset;
        while at < end {
            let sector = at / SECTOR_BYTES;
            let to = ((sector + 1) * SECTOR_BYTES).min(end);
            let part = &data[(at - offset) as usize..(to - offset) as usize];
            let is_whole = part.len() as u64 == SECTOR_BYTES;
            let mut before = [0; SECTOR_BYTES as usize];
            if !is_whole {
                self.read(sector * SECTOR_BYTES, &mut before)?;
            }
            before[(at % SECTOR_BYTES) as usize..][..part.len()].copy_from_slice(part);
            let page = self
                .cache
                .entry(at / PAGE_BYTES)
                .or_insert_with(|| Page { bytes: vec![0; PAGE_BYTES as usize].into(), cached: 0 });
            let within = (sector * SECTOR_BYTES % PAGE_BYTES) as usize;
            page.bytes[within..][..SECTOR_BYTES as usize].copy_from_slice(&before);
            page.cached |= 1 << (within as u64 / SECTOR_BYTES);
            at = to;
        }
        self.counters.written_bytes += data.len() as u64;
        Ok(())
    }

    /// Moves the cache to the file.
    ///
    /// # Errors
    /// Errors of the file; the cache keeps what was not moved.
    pub fn flush(&mut self) -> io::Result<()> {
        self.counters.flushes += 1;
        // Pages are written whole if they are cached whole, neighbours together: flushes are what the servers wait for.
        let mut run: Vec<u8> = Vec::new();
        let mut begin = 0;
        for (number, page) in &self.cache {
            let at = number * PAGE_BYTES;
            if page.cached != u8::MAX {
                for (from, bytes) in sectors(at, page) {
                    self.file.write_all_at(bytes, from)?;
                }
                continue;
            }
            if begin + run.len() as u64 != at {
                self.file.write_all_at(&run, begin)?;
                run.clear();
                begin = at;
            }
            run.extend_from_slice(&page.bytes);
        }
        self.file.write_all_at(&run, begin)?;
        self.cache.clear();
        Ok(())
    }

    /// Cuts the power: empties the cache. For each cached sector `survives` decides whether it reached the medium. Returns the
    /// bytes that are lost.
    ///
    /// # Errors
    /// Errors of the file.
    pub fn cut(&mut self, mut survives: impl FnMut() -> bool) -> io::Result<u64> {
        let mut lost_bytes = 0;
        for (number, page) in std::mem::take(&mut self.cache) {
            for (from, bytes) in sectors(number * PAGE_BYTES, &page) {
                match survives() {
                    true => self.file.write_all_at(bytes, from)?,
                    false => lost_bytes += SECTOR_BYTES,
                }
            }
        }
        Ok(lost_bytes)
    }
}

/// Cached sectors of the page at `at`, with their offsets.
fn sectors(at: u64, page: &Page) -> impl Iterator<Item = (u64, &[u8])> {
    let all = page.bytes.chunks(SECTOR_BYTES as usize).enumerate();
    all.filter(|(sector, _)| page.cached & 1 << sector != 0)
        .map(move |(sector, bytes)| (at + sector as u64 * SECTOR_BYTES, bytes))
}

/// Reads from a file, which reads as zeros behind its end.
fn read_file(file: &File, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], offset + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer[done..].fill(0);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statistics::Seeded;

    fn disk(size_bytes: u64) -> VolatileDisk {
        VolatileDisk::new(tempfile::tempfile().unwrap(), size_bytes)
    }

    fn content(disk: &VolatileDisk) -> Vec<u8> {
        let mut bytes = vec![0xee; disk.size_bytes() as usize];
        assert_eq!(disk.read(0, &mut bytes).unwrap() as u64, disk.size_bytes());
        bytes
    }

    #[test]
    fn reads_see_every_write_and_a_cut_returns_to_the_last_flush() {
        let mut disk = disk(64 << 10);
        let mut now = vec![0; 64 << 10];
        let mut flushed = now.clone();
        let mut seeded = Seeded::new(11);
        for step in 0..2000 {
            match seeded.below(10) {
                0 => {
                    disk.flush().unwrap();
                    flushed.clone_from(&now);
                    assert_eq!(disk.cached_bytes(), 0);
                }
                1 => {
                    let cached = disk.cached_bytes();
                    assert_eq!(disk.cut(|| false).unwrap(), cached);
                    now.clone_from(&flushed);
                }
                _ => {
                    // Whole sectors and pages as well as odd ranges.
                    let unit = [1, 512, 4096][seeded.below(3)];
                    let from = seeded.below((64 << 10) / unit) * unit;
                    let len = (1 + seeded.below(4)) * unit + seeded.below(2) * 3;
                    let to = (from + len).min(64 << 10);
                    seeded.fill(&mut now[from..to]);
                    disk.write(from as u64, &now[from..to]).unwrap();
                }
            }
            assert!(content(&disk) == now, "step {step}");
        }
    }

    #[test]
    fn sectors_survive_or_are_lost_as_wholes() {
        let mut disk = disk(1 << 20);
        disk.write(0, &[1; 1 << 20]).unwrap();
        disk.flush().unwrap();
        disk.write(100, &vec![2; (1 << 20) - 200]).unwrap();
        let mut seeded = Seeded::new(3);
        let lost = disk.cut(|| seeded.below(2) == 0).unwrap();
        let content = content(&disk);
        let sectors: Vec<&[u8]> = content.chunks(512).collect();
        let is_new = |sector: &&&[u8]| sector[256] == 2;
        assert!(sectors[1..2047].iter().all(|sector| sector.iter().all(|byte| *byte == sector[0])));
        let new = sectors.iter().filter(is_new).count() as u64;
        assert_eq!(lost, (2048 - new) * 512);
        assert!((800..1250).contains(&new), "{new}");
        // The first 100 bytes of the first sector were not written.
        assert!(sectors[0][..100].iter().all(|byte| *byte == 1));
    }

    #[test]
    fn ranges_past_the_end_are_refused_or_cut_short() {
        let mut disk = disk(1000);
        assert!(disk.write(990, &[1; 11]).is_err() && disk.write(u64::MAX, &[1; 2]).is_err());
        assert_eq!(disk.cached_bytes(), 0);
        disk.write(990, &[1; 10]).unwrap();
        assert_eq!(disk.read(995, &mut [0; 100]).unwrap(), 5);
        assert_eq!(disk.read(2000, &mut [0; 100]).unwrap(), 0);
    }
}
