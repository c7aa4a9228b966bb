//! What a modelled disk holds: three bytes for each sector of the load's payload and of its parity.
//!
//! Each sector of a payload is a sum a·u + b·v + c·w of three random sectors u, v and w, with factors of RAID-Z's field GF(2⁸). The
//! parity of such sectors is a sum of u, v and w as well, because RAID-Z multiplies and adds in that field. So a disk holds the
//! factors of payload and parity. It holds copies of what the pool itself makes: metadata, blocks of the intent log, compressed blocks.
//!
//! ```text
//!   u = 1 0 0 random …
//!   v = 0 1 0 random …        the first three bytes of a sum are a, b and c
//!   w = 0 0 1 random …
//! ```

use bytes::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use weir_codec::parity::{self, field};
use weir_sim::Rng;

/// Unit in which contents are compared with the payload, in bytes.
const SECTOR_BYTES: usize = 4096;
/// Size of a random payload.
pub const PAYLOAD_BYTES: usize = 16 << 20;

/// The factors a, b and c of a sector.
type Factors = [u8; 3];

/// The buffer whose slices a load writes, from multiples of a sector on, and the sectors of whose sums it consists.
pub struct Payload {
    bytes: Bytes,
    /// The 256 multiples of u, of v and of w, in the order of their factors.
    multiples: [Vec<u8>; 3],
}

impl Payload {
    /// A payload of [`PAYLOAD_BYTES`] random bytes.
    pub fn random(rng: &mut Rng) -> Self {
        Self::of_len(rng, PAYLOAD_BYTES)
    }

    /// The payload of a pool without contents.
    pub fn empty() -> Self {
        Self::of_len(&mut Rng::new(0), 0)
    }

    fn of_len(rng: &mut Rng, len: usize) -> Self {
        let multiples = [0, 1, 2].map(|basis: usize| {
            let mut sector = vec![0; SECTOR_BYTES];
            rng.fill(&mut sector);
            (0..3).for_each(|at| sector[at] = u8::from(at == basis));
            multiples(&sector)
        });
        let mut payload = Payload { bytes: Bytes::new(), multiples };
        let mut bytes = vec![0; len];
        for (at, sector) in bytes.chunks_mut(SECTOR_BYTES).enumerate() {
            // No factors are used twice.
            let [low, high, ..] = (at as u32 + 1).to_le_bytes();
            let factors = [low, high, rng.below(256) as u8];
            payload.sum(factors, sector);
        }
        payload.bytes = bytes.into();
        payload
    }

    /// The bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    /// Fills a sector with the sum that has these factors.
    fn sum(&self, factors: Factors, into: &mut [u8]) {
        let multiple = |basis: usize| {
            let at = usize::from(factors[basis]) * SECTOR_BYTES;
            &self.multiples[basis][at..at + SECTOR_BYTES]
        };
        // The first parity of columns is their sum.
        add(&[multiple(0), multiple(1), multiple(2)], into);
    }

    /// The factors of the sectors at the beginning of `data` that are sums of u, v and w.
    fn factors_of(&self, data: &[u8]) -> Vec<Factors> {
        let mut sum = [0; SECTOR_BYTES];
        let of = |sector: &[u8]| {
            let factors = *sector.first_chunk::<3>()?;
            self.sum(factors, &mut sum);
            (sum == sector).then_some(factors)
        };
        data.chunks_exact(SECTOR_BYTES).map_while(of).collect()
    }
}

/// All multiples of a sector.
fn multiples(sector: &[u8]) -> Vec<u8> {
    let mut all = vec![0; 256 * SECTOR_BYTES];
    for factor in 1..256_usize {
        let (before, rest) = all.split_at_mut(factor * SECTOR_BYTES);
        let into = &mut rest[..SECTOR_BYTES];
        let of = |factor: usize| &before[factor * SECTOR_BYTES..][..SECTOR_BYTES];
        match factor.is_power_of_two() {
            true if factor == 1 => into.copy_from_slice(sector),
            true => into.iter_mut().zip(of(factor / 2)).for_each(|(byte, half)| *byte = field::double(*half)),
            false => {
                let greatest = 1 << factor.ilog2();
                add(&[of(greatest), of(factor - greatest)], into);
            }
        }
    }
    all
}

/// Fills `into` with the sum of columns as long as it.
fn add(columns: &[&[u8]], into: &mut [u8]) {
    let len = into.len();
    debug_assert!(columns.iter().all(|column| column.len() == len), "{len}");
    if parity::generate(columns, &mut [into]).is_err() {
        debug_assert!(false, "two or three columns of equal length have a parity");
    }
}

/// A written range.
enum Written {
    Copy(Bytes),
    /// Sectors that are sums, and the bytes of them that are held.
    Sums(Arc<[Factors]>, Range<usize>),
}

impl Written {
    fn len(&self) -> usize {
        match self {
            Written::Copy(bytes) => bytes.len(),
            Written::Sums(_, held) => held.len(),
        }
    }

    fn slice(&self, range: Range<usize>) -> Self {
        debug_assert!(range.start <= range.end && range.end <= self.len(), "{range:?} of {}", self.len());
        match self {
            Written::Copy(bytes) => Written::Copy(bytes.slice(range)),
            Written::Sums(sectors, held) => {
                Written::Sums(sectors.clone(), held.start + range.start..held.start + range.end)
            }
        }
    }

    /// Copies the bytes from `from` on.
    fn copy(&self, from: usize, into: &mut [u8], payload: &Payload) {
        let (sectors, held) = match self {
            Written::Copy(bytes) => return into.copy_from_slice(&bytes[from..from + into.len()]),
            Written::Sums(sectors, held) => (sectors, held),
        };
        let mut at = held.start + from;
        let mut left = into;
        let mut sector = [0; SECTOR_BYTES];
        while !left.is_empty() {
            let within = at % SECTOR_BYTES;
            let len = left.len().min(SECTOR_BYTES - within);
            let (part, rest) = left.split_at_mut(len);
            let factors = sectors[at / SECTOR_BYTES];
            if len == SECTOR_BYTES {
                payload.sum(factors, part);
            } else {
                payload.sum(factors, &mut sector);
                part.copy_from_slice(&sector[within..within + len]);
            }
            at += len;
            left = rest;
        }
    }
}

/// Written ranges by their offset; what was never written reads as zeros. Ranges do not overlap.
#[derive(Default)]
pub struct Contents(BTreeMap<u64, Written>);

impl Contents {
    /// Takes out what is held in the range.
    pub fn clear(&mut self, offset: u64, len: u64) {
        let end = offset + len;
        if let Some((&start, held)) = self.0.range_mut(..offset).next_back() {
            let held_end = start + held.len() as u64;
            if held_end > offset {
                let tail = (held_end > end).then(|| held.slice((end - start) as usize..held.len()));
                *held = held.slice(0..(offset - start) as usize);
                if let Some(tail) = tail {
                    self.0.insert(end, tail);
                    return;
                }
            }
        }
        let covered: Vec<u64> = self.0.range(offset..end).map(|(start, _)| *start).collect();
        for start in covered {
            let Some(held) = self.0.remove(&start) else { continue };
            if start + held.len() as u64 > end {
                self.0.insert(end, held.slice((end - start) as usize..held.len()));
            }
        }
    }

    /// Holds `bytes` at `offset`: the factors of the sectors that have some, and a copy of the others.
    pub fn write(&mut self, offset: u64, bytes: &[u8], payload: &Payload) {
        self.clear(offset, bytes.len() as u64);
        let mut copied = 0;
        let mut at = 0;
        while at < bytes.len() {
            let factors = payload.factors_of(&bytes[at..]);
            if factors.is_empty() {
                at = (at + SECTOR_BYTES).min(bytes.len());
                continue;
            }
            self.copy(offset, &bytes[copied..at], copied);
            let len = factors.len() * SECTOR_BYTES;
            self.0.insert(offset + at as u64, Written::Sums(factors.into(), 0..len));
            at += len;
            copied = at;
        }
        self.copy(offset, &bytes[copied..], copied);
    }

    fn copy(&mut self, offset: u64, bytes: &[u8], at: usize) {
        if !bytes.is_empty() {
            self.0.insert(offset + at as u64, Written::Copy(Bytes::copy_from_slice(bytes)));
        }
    }

    /// Fills `into` from `offset` on.
    pub fn read(&self, offset: u64, into: &mut [u8], payload: &Payload) {
        into.fill(0);
        let end = offset + into.len() as u64;
        let first = self.0.range(..=offset).next_back().map_or(offset, |(start, _)| *start);
        for (&start, held) in self.0.range(first..end) {
            let from = offset.max(start);
            let to = end.min(start + held.len() as u64);
            if from < to {
                let part = &mut into[(from - offset) as usize..(to - offset) as usize];
                held.copy((from - start) as usize, part, payload);
            }
        }
    }

    /// Bytes of copies.
    #[cfg(test)]
    fn copied_bytes(&self) -> usize {
        let copied = |written: &Written| if let Written::Copy(bytes) = written { bytes.len() } else { 0 };
        self.0.values().map(copied).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_format::CompressionKind;

    #[test]
    fn reads_give_what_was_written_last() {
        let mut rng = Rng::new(7);
        let payload = Payload::of_len(&mut rng, 64 << 10);
        let mut contents = Contents::default();
        let size = 96 << 10;
        let mut want = vec![0u8; size];
        let mut sums = 0;
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
                    contents.write(at as u64, &slice, &payload);
                    want[at..at + len].copy_from_slice(&slice);
                    sums += u32::from(len >= SECTOR_BYTES);
                }
                _ => {
                    let byte = (round % 255 + 1) as u8;
                    contents.write(at as u64, &vec![byte; len], &payload);
                    want[at..at + len].fill(byte);
                }
            }
            let mut got = vec![9u8; size];
            contents.read(0, &mut got, &payload);
            assert!(got == want, "round {round}");
        }
        assert!(sums > 100, "{sums}");
    }

    #[test]
    fn payload_and_its_parity_are_not_copied() {
        let payload = Payload::random(&mut Rng::new(1));
        let column = |n: usize| &payload.bytes()[n << 20..][..32 << 10];
        let data = [column(0), column(3), column(5), column(9)];
        let mut parities = vec![vec![0; 32 << 10]; 3];
        let mut columns: Vec<&mut [u8]> = parities.iter_mut().map(Vec::as_mut_slice).collect();
        parity::generate(&data, &mut columns).unwrap();
        let mut contents = Contents::default();
        let written: Vec<&[u8]> = data.into_iter().chain(parities.iter().map(Vec::as_slice)).collect();
        for (n, bytes) in written.iter().enumerate() {
            contents.write((n << 20) as u64, bytes, &payload);
        }
        assert_eq!(contents.copied_bytes(), 0);
        contents.write(8 << 20, &[7; 5000], &payload);
        assert_eq!(contents.copied_bytes(), 5000);
        for (n, bytes) in written.iter().enumerate() {
            let mut got = vec![0; bytes.len()];
            contents.read((n << 20) as u64, &mut got, &payload);
            assert!(got == *bytes, "column {n}");
        }
    }

    #[test]
    fn the_sectors_of_a_payload_differ_and_cannot_be_compressed() {
        let payload = Payload::random(&mut Rng::new(3));
        let mut sectors: Vec<&[u8]> = payload.bytes().chunks(SECTOR_BYTES).collect();
        sectors.sort_unstable();
        assert!(sectors.windows(2).all(|pair| pair[0] != pair[1]));
        let record = &payload.bytes()[..128 << 10];
        let mut output = vec![0; record.len()];
        let level = weir_codec::compress::ZstdLevel::DEFAULT;
        for kind in [CompressionKind::Lz4, CompressionKind::Zstd, CompressionKind::Gzip(6)] {
            assert_eq!(weir_codec::compress(kind, level, record, &mut output), Ok(None), "{kind:?}");
        }
    }
}
