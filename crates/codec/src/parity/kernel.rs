//! Weighted sums of columns over GF(2⁸): `outₖ = Σ fᵢₖ·inᵢ` for up to three outputs.
//!
//! The work is split at each column's end, so that the loops process columns of one length. There are four kernels,
//! selected by processor features, all with the same result:
//!
//! | kernel | product by a constant |
//! |---|---|
//! | AVX-512 + GFNI, AVX2 + GFNI | one `gf2p8affineqb`: multiplication by a constant is linear over the bits, so an 8×8 bit matrix does it in any field (`gf2p8mulb` is for another polynomial) |
//! | AVX2 | two table look-ups, of the low and the high four bits |
//! | portable | the doublings of the input, xored where the factor has a bit; compilers vectorise it |

use super::field;

/// A column and its factor for each output.
pub(super) struct Input<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) factors: [u8; 3],
}

/// Fills each of `outs` (at most three) with its weighted sum; shorter columns are extended with zeros.
pub(super) fn combine(inputs: &[Input<'_>], outs: &mut [&mut [u8]]) {
    let mut ends: Vec<usize> = inputs.iter().map(|i| i.bytes.len()).chain(outs.iter().map(|o| o.len())).collect();
    ends.sort_unstable();
    ends.dedup();
    let mut start = 0;
    for end in ends.into_iter().filter(|&end| end > 0) {
        let active: Vec<usize> = (0..outs.len().min(3)).filter(|&k| outs[k].len() >= end).collect();
        let part: Vec<Input<'_>> = inputs
            .iter()
            .filter(|i| i.bytes.len() >= end)
            .map(|i| Input {
                bytes: &i.bytes[start..end],
                factors: std::array::from_fn(|k| active.get(k).map_or(0, |&k| i.factors[k])),
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

/// Runs the fastest kernel; all inputs and outputs have the same length.
fn dispatch<const N: usize>(inputs: &[Input<'_>], outs: [&mut [u8]; N]) {
    #[cfg(target_arch = "x86_64")]
    if let Some(kernel) = simd::best() {
        return simd::run(kernel, inputs, outs);
    }
    portable(inputs, outs);
}

/// Bytes that the portable kernel processes at once.
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
    //! Each kernel is safe to call if the processor supports its target features, which [`best`] checks. Loads and
    //! stores use references to whole arrays, never past a column's end.

    use super::super::field;
    use super::{Input, portable};
    use std::arch::x86_64::*;

    /// A SIMD kernel.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Kernel {
        Avx512Gfni,
        Avx2Gfni,
        Avx2,
    }

    impl Kernel {
        pub(super) const ALL: [Kernel; 3] = [Kernel::Avx512Gfni, Kernel::Avx2Gfni, Kernel::Avx2];

        pub(super) fn is_supported(self) -> bool {
            match self {
                Kernel::Avx512Gfni => {
                    is_x86_feature_detected!("avx512f")
                        && is_x86_feature_detected!("avx512bw")
                        && is_x86_feature_detected!("gfni")
                }
                Kernel::Avx2Gfni => {
                    is_x86_feature_detected!("avx2")
                        && is_x86_feature_detected!("avx")
                        && is_x86_feature_detected!("gfni")
                }
                Kernel::Avx2 => is_x86_feature_detected!("avx2"),
            }
        }
    }

    /// The fastest kernel that the processor supports; `None` for the portable one.
    pub(super) fn best() -> Option<Kernel> {
        Kernel::ALL.into_iter().find(|kernel| kernel.is_supported())
    }

    /// Runs `kernel`, or the portable one if the processor does not support it.
    pub(super) fn run<const N: usize>(kernel: Kernel, inputs: &[Input<'_>], outs: [&mut [u8]; N]) {
        if !kernel.is_supported() {
            return portable(inputs, outs);
        }
        // SAFETY: `is_supported` has checked the target features of the kernel.
        unsafe {
            match kernel {
                Kernel::Avx512Gfni => avx512_gfni(inputs, outs),
                Kernel::Avx2Gfni => avx2_gfni(inputs, outs),
                Kernel::Avx2 => avx2(inputs, outs),
            }
        }
    }

    /// The bit matrix that makes `gf2p8affineqb` multiply by `factor`: byte 7−i is the mask of operand bits that
    /// contribute to result bit i.
    const fn matrix(factor: u8) -> u64 {
        let mut m = 0u64;
        let mut bit = 0;
        while bit < 8 {
            // Column `bit` of the matrix: the image of the operand's bit.
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

    macro_rules! kernel {
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
        // SAFETY: the array has 64 bytes; the load needs no alignment.
        unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store512(bytes: &mut [u8; 64], v: __m512i) {
        // SAFETY: the array has 64 bytes; the store needs no alignment.
        unsafe { _mm512_storeu_si512(bytes.as_mut_ptr().cast(), v) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn load256(bytes: &[u8; 32]) -> __m256i {
        // SAFETY: the array has 32 bytes; the load needs no alignment.
        unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn store256(bytes: &mut [u8; 32], v: __m256i) {
        // SAFETY: the array has 32 bytes; the store needs no alignment.
        unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), v) }
    }

    kernel!(
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

    kernel!(
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

    kernel!(
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
                // SAFETY: the table has 16 bytes; the load needs no alignment.
                let t = unsafe { _mm_loadu_si128(table.as_ptr().cast()) };
                _mm256_broadcastsi128_si256(t)
            };
            let low = both(low);
            let high = both(high);
            let mask = _mm256_set1_epi8(0x0f);
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

    /// All kernels agree with the definition, at lengths around the strides.
    #[test]
    fn all_kernels_agree() {
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
            for kernel in simd::Kernel::ALL {
                run(&|outs| simd::run(kernel, &inputs, outs));
            }
        }
    }
}
