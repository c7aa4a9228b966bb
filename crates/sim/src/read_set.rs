//! The set of sectors that a simulated world reads from its initial disk contents.
//!
//! A world's history is a function of its seed and of the bytes that it reads: two worlds whose disks differ only in
//! sectors that are not read have the same history. So the result after one power cut is valid for every other cut
//! that leaves the same bytes in the sectors read ([`Cut::is_equivalent`](crate::Cut::is_equivalent)), whatever the
//! other sectors contain. For example, any subset of the blocks of a txg whose uberblock was not written may survive,
//! and none of them is ever read.
//!
//! Sectors that the world writes before it reads them are not in the set.

/// A set of sectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SectorSet(Vec<u64>);

impl SectorSet {
    pub(crate) fn has(&self, sector: u64) -> bool {
        self.0.get((sector / 64) as usize).is_some_and(|word| word >> (sector % 64) & 1 == 1)
    }

    fn add(&mut self, sector: u64) {
        let word = (sector / 64) as usize;
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (sector % 64);
    }
}

/// The sectors of one disk that were read before they were written, and those that were written.
#[derive(Clone, Debug, Default)]
pub(crate) struct TouchedSectors {
    read: SectorSet,
    written: SectorSet,
}

impl TouchedSectors {
    pub(crate) fn note_read(&mut self, sectors: std::ops::Range<u64>) {
        for sector in sectors {
            if !self.written.has(sector) {
                self.read.add(sector);
            }
        }
    }

    pub(crate) fn note_write(&mut self, sectors: std::ops::Range<u64>) {
        sectors.for_each(|sector| self.written.add(sector));
    }

    pub(crate) fn into_read(self) -> SectorSet {
        self.read
    }
}

/// The sectors read from the initial contents of each disk, in the order of the disks' paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadSet(pub(crate) Vec<SectorSet>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sectors_written_before_they_are_read_are_excluded() {
        let mut touched = TouchedSectors::default();
        touched.note_read(3..5);
        touched.note_write(4..200);
        touched.note_read(100..202);
        let read = touched.into_read();
        let all: Vec<u64> = (0..300).filter(|sector| read.has(*sector)).collect();
        assert_eq!(all, [3, 4, 200, 201]);
    }
}
