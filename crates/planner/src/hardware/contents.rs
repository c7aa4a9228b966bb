//! What a modelled disk holds: slices of the load's payload instead of copies of it.
//!
//! A load writes slices of one buffer over and over. Sectors that equal a part of it are held as a reference, so terabytes of
//! modelled contents need memory only for what the pool itself makes: metadata, parity, compressed blocks.

use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_sim::Rng;

/// Unit in which contents are compared with the payload, in bytes.
const SECTOR_BYTES: usize = 4096;
/// Size of a random payload.
pub const PAYLOAD_BYTES: usize = 16 << 20;

/// The buffer whose slices a load writes, from multiples of a sector on.
pub struct Payload {
    bytes: Bytes,
    /// The sector of the buffer that begins with these eight bytes.
    sectors: BTreeMap<[u8; 8], u32>,
}

impl Payload {
    /// A payload of these bytes, which should not repeat.
    pub fn new(bytes: Bytes) -> Self {
        let first = |(at, sector): (usize, &[u8])| Some((sector.first_chunk::<8>().copied()?, at as u32));
        let sectors = bytes.chunks_exact(SECTOR_BYTES).enumerate().filter_map(first).collect();
        Payload { bytes, sectors }
    }

    /// A payload of [`PAYLOAD_BYTES`] random bytes.
    pub fn random(rng: &mut Rng) -> Self {
        let mut bytes = vec![0; PAYLOAD_BYTES];
        rng.fill(&mut bytes);
        Payload::new(Bytes::from(bytes))
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// The longest slice that begins with the first sector of `data` and equals its beginning, in whole sectors.
    fn matching(&self, data: &[u8]) -> Option<Bytes> {
        let at = *self.sectors.get(data.first_chunk::<8>()?)? as usize * SECTOR_BYTES;
        let own = self.bytes[at..].chunks_exact(SECTOR_BYTES);
        let equal = own.zip(data.chunks_exact(SECTOR_BYTES)).take_while(|(a, b)| a == b).count();
        (equal > 0).then(|| self.bytes.slice(at..at + equal * SECTOR_BYTES))
    }
}

/// Written ranges by their offset; what was never written reads as zeros. Ranges do not overlap.
#[derive(Default)]
pub struct Contents(BTreeMap<u64, Bytes>);

impl Contents {
    /// Takes out what is held in the range.
    pub fn clear(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        if let Some((&start, bytes)) = self.0.range_mut(..offset).next_back() {
            let held_end = start + bytes.len() as u64;
            if held_end > offset {
                let tail = (held_end > end).then(|| bytes.slice((end - start) as usize..));
                bytes.truncate((offset - start) as usize);
                if let Some(tail) = tail {
                    self.0.insert(end, tail);
                    return;
                }
            }
        }
        let covered: Vec<u64> = self.0.range(offset..end).map(|(start, _)| *start).collect();
        for start in covered {
            let Some(bytes) = self.0.remove(&start) else { continue };
            if start + bytes.len() as u64 > end {
                self.0.insert(end, bytes.slice((end - start) as usize..));
            }
        }
    }

    /// Holds a copy of `bytes` at `offset`, or a reference where they are part of `payload`.
    pub fn write(&mut self, offset: u64, bytes: &[u8], payload: Option<&Arc<Payload>>) {
        self.clear(offset, bytes.len() as u64);
        let mut copied = 0;
        let mut at = 0;
        while at < bytes.len() {
            let Some(slice) = payload.and_then(|payload| payload.matching(&bytes[at..])) else {
                at = (at + SECTOR_BYTES).min(bytes.len());
                continue;
            };
            self.copy(offset, &bytes[copied..at], copied);
            let len = slice.len();
            self.0.insert(offset + at as u64, slice);
            at += len;
            copied = at;
        }
        self.copy(offset, &bytes[copied..], copied);
    }

    fn copy(&mut self, offset: u64, bytes: &[u8], at: usize) {
        if !bytes.is_empty() {
            self.0.insert(offset + at as u64, Bytes::copy_from_slice(bytes));
        }
    }

    /// Fills `into` from `offset` on.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        into.fill(0);
        let end = offset + into.len() as u64;
        let first = self.0.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
        for (&start, bytes) in self.0.range(first..end) {
            let from = offset.max(start);
            let to = end.min(start + bytes.len() as u64);
            if from < to {
                let held = &bytes[(from - start) as usize..(to - start) as usize];
                into[(from - offset) as usize..(to - offset) as usize].copy_from_slice(held);
            }
        }
    }

    /// Number of ranges.
    pub fn ranges(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_give_what_was_written_last() {
        let mut rng = Rng::new(7);
        let mut payload = vec![0u8; 64 << 10];
        rng.fill(&mut payload);
        let payload = Arc::new(Payload::new(Bytes::from(payload)));
        let mut contents = Contents::default();
        let size = 96 << 10;
        let mut want = vec![0u8; size];
        let mut referenced = 0;
        for round in 0..2000u32 {
            let at = rng.below(size as u64 - 1) as usize;
            let len = 1 + rng.below((size - at) as u64) as usize;
            match rng.below(5) {
                0 => {
                    contents.clear(at as u64, len as u64);
                    want[at..at + len].fill(0);
                }
                1 | 2 => {
                    let from = rng.below(8) as usize * SECTOR_BYTES;
                    let len = len.min(payload.bytes().len() - from);
                    let slice = payload.bytes().slice(from..from + len);
                    contents.write(at as u64, &slice, Some(&payload));
                    want[at..at + len].copy_from_slice(&slice);
                    referenced += u32::from(len >= SECTOR_BYTES);
                }
                _ => {
                    let byte = (round % 255 + 1) as u8;
                    contents.write(at as u64, &vec![byte; len], Some(&payload));
                    want[at..at + len].fill(byte);
                }
            }
            let mut got = vec![9u8; size];
            contents.read(0, &mut got);
            assert!(got == want, "round {round}");
        }
        assert!(referenced > 100, "{referenced}");
    }

    #[test]
    fn payload_is_referenced_and_not_copied() {
        let mut bytes = vec![0u8; 64 << 10];
        Rng::new(1).fill(&mut bytes);
        let payload = Arc::new(Payload::new(Bytes::from(bytes)));
        let mut contents = Contents::default();
        let mixed = [&[7u8; 5000][..], &payload.bytes()[8192..24_576]].concat();
        contents.write(0, &mixed[5000..], Some(&payload));
        let held = contents.0.get(&0).unwrap();
        assert_eq!(held.as_ptr(), payload.bytes()[8192..].as_ptr());
        assert_eq!((contents.ranges(), held.len()), (1, 16_384));
    }
}
