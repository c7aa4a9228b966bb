//! Weighted sums of columns over GF(2⁸): `outₖ = Σ fᵢₖ·inᵢ` for up to three outs.
//!
//! The work is cut at each column's end, so that the loops see columns of one length. Four ways, by what the processor
//! has, all giving the same bytes:
//!
//! | way | product by a constant |
//! |---|---|
//! | AVX-512 + GFNI, AVX2 + GFNI | one `gf2p8affineqb`: multiplication by a constant is linear over the bits, so an 8×8 bit matrix does it in any field (`gf2p8mulb` is for another polynomial) |
//! | AVX2 | two table look-ups, of the low and the high four bits |
//! | portable | the doublings of the input, xored where the factor has a bit; compilers make vectors of it |

use super::field;

/// A column and its factor in each of the outs.
pub(super) struct Input<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) factors: [u8; 3],
}

/// Fills each of `outs` (at most three) with its weighted sum; columns that are shorter count as zeros at their ends.
pub(super) fn combine(inputs: &[Input<'_>], outs: &mut [&mut [u8]]) {
    let mut ends: Vec<usize> = inputs.iter().map(|i| i.bytes.len()).chain(outs.iter().map(|o| o.len())).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut start = 0;
    for end in ends.into_iter().filter(|&end| end > 0) {
        let alive: Vec<usize> = (0..outs.len().min(3)).filter(|&k| outs[k].len() >= end).collect();
        let part: Vec<Input<'_>> = inputs
            .iter()
            .filter(|i| i.bytes.len() >= end)
            .map(|i| Input {
                bytes: &i.bytes[start..end],
                factors: std::array::from_fn(|k| alive.get(k).map_or(0, |&k| i.factors[k])),
            })
            .collect();
        let mut rest = outs.iter_mut().filter(|o| o.len() >= end).map(|o| &mut o[start..end]);
        match (rest.next(), rest.next(), rest.next()) {
            (Some(a), None, _) => dispatch(&part, [a]),
            (Some(a), Some(b), None) => dispatch(&part, [a, b]),
            (Some(a), Some(b), Some(c)) => dispatch(&part, [a, b, c]),
            (None, ..) => {}
        }
        start = end;
    }
}

/// All inputs and outs are equally long here.
fn dispatch<const N: usize>(inputs: &[Input<'_>], outs: [&mut [u8]; N]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(way) = simd::best() {
        return simd::run(way, inputs, outs);
    }
    portable(inputs, outs);
}

/// Bytes that the portable way keeps in hand.
const STRIDE: usize = 64;

fn portable<const N: usize>(inputs: &[Input<'_>], mut outs: [&mut [u8]; N]) {
    let length = outs.iter().map(|o| o.len()).min().unwrap_or(0);
    let mut at = 0;
    while at < length {
        let now = STRIDE.min(length - at);
        let mut sums = [[0u8; STRIDE]; N];
        for input in inputs {
            let mut doubled = [0u8; STRIDE];
            doubled[..now].copy_from_slice(&input.bytes[at..at + now]);
            let mut left = input.factors;
            while left != [0; 3] {
                for (sum, factor) in sums.iter_mut().zip(&mut left) {
                    let mask = (*factor & 1).wrapping_neg();
                    sum.iter_mut().zip(&doubled).for_each(|(s, d)| *s ^= d & mask);
                    *factor >>= 1;
                }
                left[N..].fill(0);
                doubled.iter_mut().for_each(|d| *d = field::double(*d));
            }
        }
        for (out, sum) in outs.iter_mut().zip(&sums) {
            out[at..at + now].copy_from_slice(&sum[..now]);
        }
        at += now;
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod simd {
    //! Each way is safe to call where the processor has its instructions; [`best`] asks it. Loads and stores go
    //! through references to whole arrays, never past a column's end.

    use super::super::field;
    use super::{Input, portable};
    use std::arch::x86_64::*;

    /// A way that this processor can go.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Way {
        Avx512Gfni,
        Avx2Gfni,
        Avx2,
    }

    impl Way {
        pub(super) const ALL: [Way; 3] = [Way::Avx512Gfni, Way::Avx2Gfni, Way::Avx2];

        pub(super) fn is_here(self) -> bool {
            match self {
                Way::Avx512Gfni => {
                    is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("gfni")
                }
                Way::Avx2Gfni => {
                    is_x86_feature_detected!("avx2")
                        && is_x86_feature_detected!("avx")
                        && is_x86_feature_detected!("gfni")
                }
                Way::Avx2 => is_x86_feature_detected!("avx2"),
            }
        }
    }

    /// The fastest way here; `None` for the portable one.
    pub(super) fn best() -> Option<Way> {
        Way::ALL.into_iter().find(|way| way.is_here())
    }

    /// Goes `way`; where the processor cannot, the portable one.
    pub(super) fn run<const N: usize>(way: Way, inputs: &[Input<'_>], outs: [&mut [u8]; N]) {
        if !way.is_here() {
            return portable(inputs, outs);
        }
        // SAFETY: the processor has just said that it has the instructions of this way.
        unsafe {
            match way {
                Way::Avx512Gfni => avx512_gfni(inputs, outs),
                Way::Avx2Gfni => avx2_gfni(inputs, outs),
                Way::Avx2 => avx2(inputs, outs),
            }
        }
    }

    /// The bit matrix by which `gf2p8affineqb` multiplies with `factor`: byte 7−i holds, for result bit i, which bits of
    /// the operand go in.
    const fn matrix(factor: u8) -> u64 {
        let mut m = 0u64;
        let mut bit = 0;
        while bit < 8 {
            // Column `bit` of the map: what the operand's bit turns into.
            let image = field::mul(factor, 1 << bit);
            let mut i = 0;
            while i < 8 {
                if image >> i & 1 == 1 {
                    m |= 1 << (8 * (7 - i) + bit);
                }
                i += 1;
            }
            bit += 1;
        }
        m
    }

    static MATRICES: [u64; 256] = {
        let mut table = [0; 256];
        let mut f = 0;
        while f < 256 {
            table[f] = matrix(f as u8);
            f += 1;
        }
        table
    };

    /// Products of a factor with 0…15 and with 0x00, 0x10 … 0xf0.
    static NIBBLES: [[[u8; 16]; 2]; 256] = {
        let mut table = [[[0; 16]; 2]; 256];
        let mut f = 0;
        while f < 256 {
            let mut n = 0;
            while n < 16 {
                table[f][0][n] = field::mul(f as u8, n as u8);
                table[f][1][n] = field::mul(f as u8, (n as u8) << 4);
                n += 1;
            }
            f += 1;
        }
        table
    };

    macro_rules! way {
        (
            $name:ident, $features:literal, $width:literal, $unroll:literal, $vector:ty, $zero:expr, $load:expr, $store:expr,
            $prepare:expr, $accumulate:expr
        ) => {
            #[target_feature(enable = $features)]
            fn $name<const N: usize>(inputs: &[Input<'_>], mut outs: [&mut [u8]; N]) {
                const STEP: usize = $width * $unroll;
                let length = outs.iter().map(|o| o.len()).min().unwrap_or(0);
                let whole = length / STEP * STEP;
                let mut at = 0;
                while at < whole {
                    let mut sums = [[$zero; $unroll]; N];
                    for input in inputs {
                        let chunk: &[[u8; $width]; $unroll] = {
                            let bytes = &input.bytes[at..at + STEP];
                            let (chunks, _) = bytes.as_chunks::<$width>();
                            match chunks.first_chunk::<$unroll>() {
                                Some(chunk) => chunk,
                                None => return,
                            }
                        };
                        let v: [$vector; $unroll] = std::array::from_fn(|u| $load(&chunk[u]));
                        for k in 0..N {
                            let factor = input.factors[k];
                            if factor == 1 {
                                for u in 0..$unroll {
                                    sums[k][u] = $accumulate(sums[k][u], v[u]);
                                }
                                continue;
                            }
                            let product = $prepare(factor);
                            for u in 0..$unroll {
                                sums[k][u] = $accumulate(sums[k][u], product(v[u]));
                            }
                        }
                    }
                    for (out, sum) in outs.iter_mut().zip(&sums) {
                        let (chunks, _) = out[at..at + STEP].as_chunks_mut::<$width>();
                        for (chunk, v) in chunks.iter_mut().zip(sum) {
                            $store(chunk, *v);
                        }
                    }
                    at += STEP;
                }
                if whole < length {
                    let tails: Vec<Input<'_>> =
                        inputs.iter().map(|i| Input { bytes: &i.bytes[whole..length], factors: i.factors }).collect();
                    portable(&tails, outs.map(|o| &mut o[whole..length]));
                }
            }
        };
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn load512(bytes: &[u8; 64]) -> __m512i {
        // SAFETY: 64 bytes are there; the load asks for no alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store512(bytes: &mut [u8; 64], v: __m512i) {
        // SAFETY: 64 bytes are there; the store asks for no alignment.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), v) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load256(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: 32 bytes are there; the load asks for no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store256(bytes: &mut [u8; 32], v: __m256i) {
        // SAFETY: 32 bytes are there; the store asks for no alignment.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), v) }
    }

    way!(
        avx512_gfni,
        "avx512f,avx512bw,gfni",
        64,
        4,
        __m512i,
        _mm512_setzero_si512(),
        |bytes| load512(bytes),
        |bytes, v| store512(bytes, v),
        |factor: u8| {
            let m = _mm512_set1_epi64(MATRICES[usize::from(factor)] as i64);
            move |v| _mm512_gf2p8affine_epi64_epi8::<0>(v, m)
        },
        |sum, v| _mm512_xor_si512(sum, v)
    );

    way!(
        avx2_gfni,
        "avx,avx2,gfni",
        32,
        2,
        __m256i,
        _mm256_setzero_si256(),
        |bytes| load256(bytes),
        |bytes, v| store256(bytes, v),
        |factor: u8| {
            let m = _mm256_set1_epi64x(MATRICES[usize::from(factor)] as i64);
            move |v| _mm256_gf2p8affine_epi64_epi8::<0>(v, m)
        },
        |sum, v| _mm256_xor_si256(sum, v)
    );

    way!(
        avx2,
        "avx2",
        32,
        2,
        __m256i,
        _mm256_setzero_si256(),
        |bytes| load256(bytes),
        |bytes, v| store256(bytes, v),
        |factor: u8| {
            let [low, high] = &NIBBLES[usize::from(factor)];
            let both = |table: &[u8; 16]| {
                // SAFETY: 16 bytes are there; the load asks for no alignment.
                let t = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
                _mm256_broadcastsi128_si256(t)
            };
            let (low, high, mask) = (both(low), both(high), _mm256_set1_epi8(0x0f));
            move |v| {
                let l = _mm256_shuffle_epi8(low, _mm256_and_si256(v, mask));
                let h = _mm256_shuffle_epi8(high, _mm256_and_si256(_mm256_srli_epi64::<4>(v), mask));
                _mm256_xor_si256(l, h)
            }
        },
        |sum, v| _mm256_xor_si256(sum, v)
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every way gives the bytes of the definition, at lengths around the strides.
    #[test]
    fn all_ways_agree() {
        for length in [1, 31, 64, 65, 255, 256, 257, 512, 1000, 4096 + 17] {
            let columns: Vec<Vec<u8>> =
                (0..7usize).map(|c| (0..length).map(|i| (i * 31 + c * 77 + i * i / 7) as u8).collect()).collect();
            let inputs: Vec<Input<'_>> = columns
                .iter()
                .enumerate()
                .map(|(c, bytes)| Input {
                    bytes,
                    factors: [1, 3 + 41 * c as u8, if c == 2 { 0 } else { 255 - c as u8 }],
                })
                .collect();
            let expected: Vec<Vec<u8>> = (0..3)
                .map(|k| {
                    let sum = |i| inputs.iter().fold(0, |s, input| s ^ field::mul(input.factors[k], input.bytes[i]));
                    (0..length).map(sum).collect()
                })
                .collect();
            let run = |go: &dyn Fn([&mut [u8]; 3])| {
                let mut outs = vec![vec![0xee; length]; 3];
                let [a, b, c] = &mut outs[..] else { unreachable!() };
                go([a, b, c]);
                assert_eq!(outs, expected);
            };
            run(&|outs| portable(&inputs, outs));
            #[cfg(target_arch = "x86_64")]
            for way in simd::Way::ALL {
                run(&|outs| simd::run(way, &inputs, outs));
            }
        }
    }
}
