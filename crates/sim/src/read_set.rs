//! What a world's disks were asked for of what they held at first.
//!
//! A world of one seed is a function of the bytes that it reads: two worlds whose disks differ only where nobody looked
//! come to the same. So what was found after one power cut holds for every other that left the same bytes in these
//! places ([`Cut::is_alike`](crate::Cut::is_alike)), whatever it left elsewhere: of the blocks of a group whose
//! uberblock was not written, any subset may have survived, and no reader ever sees them.
//!
//! Sectors that the world wrote itself before it read them are not among the readings.

/// A set of sectors.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sectors(Vec<u64>);

impl Sectors {
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

/// What was read of one disk as it was at first, and what was written since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Touched {
    read: Sectors,
    written: Sectors,
}

impl Touched {
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

    pub(crate) fn into_read(self) -> Sectors {
        self.read
    }
}

/// The sectors that were read, disk by disk in the order of their paths.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readings(pub(crate) Vec<Sectors>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_first_is_not_read_of_what_was_there() {
        let mut touched = Touched::default();
        touched.note_read(3..5);
        touched.note_write(4..200);
        touched.note_read(100..202);
        let read = touched.into_read();
        let all: Vec<u64> = (0..300).filter(|sector| read.has(*sector)).collect();
        assert_eq!(all, [3, 4, 200, 201]);
    }
}
