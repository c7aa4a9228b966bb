//! The running checksum of a stream: Fletcher-4, continued from record to record.
//!
//! The kernels compute the checksum of one buffer from zero. Two checksums are joined by arithmetic: with sums `a b c d` of
//! the bytes so far and `p q r s` of the next `n` words, the sum `a` has been added once to `b`, and so on, for each word.

use weir_codec::checksum::fletcher::fletcher4;
use weir_format::Endian;
use weir_format::stream::RunningChecksum;

/// Fletcher-4 over a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RunningFletcher4([u64; 4]);

impl RunningChecksum for RunningFletcher4 {
    fn update(&mut self, bytes: &[u8], endian: Endian) {
        let words = bytes.len() as u128 / 4;
        let whole = bytes.get(..words as usize * 4).unwrap_or_default();
        let [p, q, r, s] = fletcher4(endian, whole);
        let [a, b, c, d] = self.0;
        // Numbers of words, pairs and triples; the sums are taken modulo 2^64.
        let one = words as u64;
        let two = (words * (words + 1) / 2) as u64;
        let three = (words * (words + 1) * (words + 2) / 6) as u64;
        let times = |sum: u64, n: u64| sum.wrapping_mul(n);
        self.0 = [
            a.wrapping_add(p),
            b.wrapping_add(times(a, one)).wrapping_add(q),
            c.wrapping_add(times(b, one)).wrapping_add(times(a, two)).wrapping_add(r),
            d.wrapping_add(times(c, one)).wrapping_add(times(b, two)).wrapping_add(times(a, three)).wrapping_add(s),
        ];
    }

    fn value(&self) -> [u64; 4] {
        self.0
    }

    fn reset(&mut self) {
        self.0 = [0; 4];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn pieces_sum_up_to_the_whole(words in proptest::collection::vec(any::<u32>(), 0..300), cut in 0usize..300) {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            let (head, tail) = bytes.split_at(cut.min(words.len()) * 4);
            for endian in [Endian::Little, Endian::Big] {
                let mut running = RunningFletcher4::default();
                running.update(head, endian);
                running.update(tail, endian);
                prop_assert_eq!(running.value(), fletcher4(endian, &bytes));
            }
        }
    }
}
