//! Fletcher sums over 64-bit (fletcher2) and 32-bit (fletcher4) words, OpenZFS `module/zcommon/zfs_fletcher.c`.
//!
//! fletcher4 over words w₀…wₙ₋₁: `a += w; b += a; c += b; d += c`, all modulo 2⁶⁴. fletcher2 runs two such sums of two
//! steps each over the even and the odd 64-bit words.
//!
//! *Lanes.* The recurrence is serial, but each sum is linear in the words: a = Σ w, b = Σ m·w, c = Σ T₂(m)·w, d = Σ
//! T₃(m)·w, where m is the number of words from w to the end and T₂, T₃ are the triangular and tetrahedral numbers.
//! So each of L interleaved lanes runs the recurrence on its own words, and [`Weights`] folds lane j into the result
//! at the end: its word with m' = words left *in the lane* has m = L·m' − j, and T₂, T₃ of that are again
//! combinations of 1, m', T₂(m'), T₃(m') with integer coefficients.
//!
//! *Halves.* Lanes of fletcher4 take 64-bit words v = lo + 2³²·hi and run the recurrence on v and on hi; lo's sums are
//! sums(v) − 2³²·sums(hi), which saves the masking.
//!
//! The lane loops are plain Rust over arrays. fletcher2 compiles the same loops for wider vectors. For fletcher4,
//! compilers turn the shift into slower half-width loads, so its loops for wide vectors use intrinsics.

use weir_format::Endian;

/// Bytes that one step of the lane loops processes.
const STEP: usize = 64;
/// Number of 64-bit lanes.
const LANES: usize = STEP / 8;

/// The fletcher2 checksum of `data`, padded with zeros to a multiple of 16 bytes.
pub fn fletcher2(endian: Endian, data: &[u8]) -> [u64; 4] {
    simd::fletcher2(endian, data)
}

/// The fletcher4 checksum of `data`, padded with zeros to a multiple of 4 bytes.
pub fn fletcher4(endian: Endian, data: &[u8]) -> [u64; 4] {
    simd::fletcher4(endian, data)
}

#[inline(always)]
fn word64<const SWAP: bool>(bytes: &[u8; 8]) -> u64 {
    if SWAP { u64::from_be_bytes(*bytes) } else { u64::from_le_bytes(*bytes) }
}

/// Eight bytes as lo + 2³²·hi, where lo is the first 32-bit word.
#[inline(always)]
fn pair32<const SWAP: bool>(bytes: &[u8; 8]) -> u64 {
    let v = u64::from_le_bytes(*bytes);
    if SWAP {
        // Reverses the bytes of each half: reverse all eight, then exchange the halves.
        v.swap_bytes().rotate_left(32)
    } else {
        v
    }
}

#[inline(always)]
fn add<const N: usize>(to: &mut [u64; N], by: &[u64; N]) {
    for (t, b) in to.iter_mut().zip(by) {
        *t = t.wrapping_add(*b);
    }
}

#[inline(always)]
fn fletcher2_lanes<const SWAP: bool>(data: &[u8]) -> [u64; 4] {
    let (steps, rest) = data.as_chunks::<STEP>();
    let mut a = [0u64; LANES];
    let mut b = [0u64; LANES];
    for step in steps {
        let mut v = [0; LANES];
        for (v, bytes) in v.iter_mut().zip(step.as_chunks::<8>().0) {
            *v = word64::<SWAP>(bytes);
        }
        add(&mut a, &v);
        add(&mut b, &a);
    }
    // Lanes 2j and 2j+1 hold every fourth pair from the jth on: m = 4·m' − j.
    let mut sums = [0u64; 4];
    for lane in 0..LANES {
        let j = (lane / 2) as u64;
        let odd = lane % 2;
        let pairs = (LANES / 2) as u64;
        sums[odd] = sums[odd].wrapping_add(a[lane]);
        let b = pairs.wrapping_mul(b[lane]).wrapping_sub(j.wrapping_mul(a[lane]));
        sums[2 + odd] = sums[2 + odd].wrapping_add(b);
    }
    for pair in rest.chunks(16) {
        let mut bytes = [0; 16];
        bytes[..pair.len()].copy_from_slice(pair);
        for (odd, word) in bytes.as_chunks::<8>().0.iter().enumerate() {
            sums[odd] = sums[odd].wrapping_add(word64::<SWAP>(word));
            sums[2 + odd] = sums[2 + odd].wrapping_add(sums[odd]);
        }
    }
    sums
}

/// The four sums of one set of lanes.
struct Sums<const N: usize> {
    abcd: [[u64; N]; 4],
}

impl<const N: usize> Sums<N> {
    #[inline(always)]
    fn new() -> Self {
        Sums { abcd: [[0; N]; 4] }
    }

    #[inline(always)]
    fn step(&mut self, v: &[u64; N]) {
        let [a, b, c, d] = &mut self.abcd;
        add(a, v);
        add(b, a);
        add(c, b);
        add(d, c);
    }

    fn lane(&self, lane: usize) -> [u64; 4] {
        self.abcd.map(|sums| sums[lane])
    }
}

/// Coefficients that fold the sums of the lane with words j, j+L, j+2L… into the total.
struct Weights {
    b: [u64; 2],
    c: [u64; 3],
    d: [u64; 4],
}

impl Weights {
    /// Values of T₂(L·m − j) and T₃(L·m − j) at m = 0, −1, −2 give the coefficients, as T₂(−1) = T₃(−1) = T₃(−2) = 0.
    const fn new(lanes: i64, j: i64) -> Weights {
        const fn t2(x: i64) -> i64 {
            x * (x + 1) / 2
        }
        const fn t3(x: i64) -> i64 {
            x * (x + 1) * (x + 2) / 6
        }
        let c0 = t2(-j);
        let c1 = c0 - t2(-lanes - j);
        let d0 = t3(-j);
        let d1 = d0 - t3(-lanes - j);
        let d2 = t3(-2 * lanes - j) + 2 * d1 - d0;
        Weights {
            b: [-j as u64, lanes as u64],
            c: [c0 as u64, c1 as u64, (lanes * lanes) as u64],
            d: [d0 as u64, d1 as u64, d2 as u64, (lanes * lanes * lanes) as u64],
        }
    }

    fn fold(&self, lane: [u64; 4], into: &mut [u64; 4]) {
        let dot = |weights: &[u64]| {
            weights.iter().zip(lane).fold(0u64, |sum, (w, value)| sum.wrapping_add(w.wrapping_mul(value)))
        };
        let whole = [lane[0], dot(&self.b), dot(&self.c), dot(&self.d)];
        add(into, &whole);
    }
}

fn fletcher4_lanes<const SWAP: bool>(data: &[u8]) -> [u64; 4] {
    let (steps, rest) = data.as_chunks::<STEP>();
    let mut whole = Sums::<LANES>::new();
    let mut high = Sums::<LANES>::new();
    for step in steps {
        let mut v = [0; LANES];
        let mut hi = [0; LANES];
        for (i, bytes) in step.as_chunks::<8>().0.iter().enumerate() {
            v[i] = pair32::<SWAP>(bytes);
            hi[i] = v[i] >> 32;
        }
        whole.step(&v);
        high.step(&hi);
    }
    fletcher4_fold::<SWAP, LANES>(&whole, &high, rest)
}

/// Combines the lanes and adds the words after the last whole step.
fn fletcher4_fold<const SWAP: bool, const N: usize>(whole: &Sums<N>, high: &Sums<N>, rest: &[u8]) -> [u64; 4] {
    let mut sums = [0u64; 4];
    for lane in 0..N {
        let hi = high.lane(lane);
        let v = whole.lane(lane);
        let lo = std::array::from_fn(|i| v[i].wrapping_sub(hi[i] << 32));
        let words = 2 * N as i64;
        Weights::new(words, 2 * lane as i64).fold(lo, &mut sums);
        Weights::new(words, 2 * lane as i64 + 1).fold(hi, &mut sums);
    }
    let [mut a, mut b, mut c, mut d] = sums;
    for word in rest.chunks(4) {
        let mut bytes = [0; 4];
        bytes[..word.len()].copy_from_slice(word);
        let w = if SWAP { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) };
        a = a.wrapping_add(w.into());
        b = b.wrapping_add(a);
        c = c.wrapping_add(b);
        d = d.wrapping_add(c);
    }
    [a, b, c, d]
}

/// The lane loops, dispatched to the widest vectors that the processor supports.
mod simd {
    use super::{fletcher2_lanes, fletcher4_lanes};
    use weir_format::Endian;

    pub(super) fn fletcher2(endian: Endian, data: &[u8]) -> [u64; 4] {
        #[cfg(target_arch = "x86_64")]
        if let Some(sums) = x86::fletcher2(endian, data) {
            return sums;
        }
        match endian {
            Endian::Little => fletcher2_lanes::<false>(data),
            Endian::Big => fletcher2_lanes::<true>(data),
        }
    }

    pub(super) fn fletcher4(endian: Endian, data: &[u8]) -> [u64; 4] {
        #[cfg(target_arch = "x86_64")]
        if let Some(sums) = x86::fletcher4(endian, data) {
            return sums;
        }
        match endian {
            Endian::Little => fletcher4_lanes::<false>(data),
            Endian::Big => fletcher4_lanes::<true>(data),
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[allow(unsafe_code)]
    pub(super) mod x86 {
        use super::super::{Sums, fletcher2_lanes, fletcher4_fold};
        use std::arch::x86_64::*;
        use weir_format::Endian;

        pub(crate) fn has_avx512() -> bool {
            is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
        }

        pub(crate) fn has_avx2() -> bool {
            is_x86_feature_detected!("avx2")
        }

        pub(super) fn fletcher2(endian: Endian, data: &[u8]) -> Option<[u64; 4]> {
            #[target_feature(enable = "avx512f,avx512bw")]
            fn avx512<const SWAP: bool>(data: &[u8]) -> [u64; 4] {
                fletcher2_lanes::<SWAP>(data)
            }
            #[target_feature(enable = "avx2")]
            fn avx2<const SWAP: bool>(data: &[u8]) -> [u64; 4] {
                fletcher2_lanes::<SWAP>(data)
            }
            // SAFETY: the guards check that the processor supports the target features of the function called.
            unsafe {
                match endian {
                    Endian::Little if has_avx512() => Some(avx512::<false>(data)),
                    Endian::Big if has_avx512() => Some(avx512::<true>(data)),
                    Endian::Little if has_avx2() => Some(avx2::<false>(data)),
                    Endian::Big if has_avx2() => Some(avx2::<true>(data)),
                    _ => None,
                }
            }
        }

        pub(super) fn fletcher4(endian: Endian, data: &[u8]) -> Option<[u64; 4]> {
            // SAFETY: the guards check that the processor supports the target features of the function called.
            unsafe {
                match endian {
                    Endian::Little if has_avx512() => Some(avx512::<false>(data)),
                    Endian::Big if has_avx512() => Some(avx512::<true>(data)),
                    Endian::Little if has_avx2() => Some(avx2::<false>(data)),
                    Endian::Big if has_avx2() => Some(avx2::<true>(data)),
                    _ => None,
                }
            }
        }

        /// Reverses the bytes of each 32-bit word of 16 bytes.
        const REVERSE: [u8; 16] = [3, 2, 1, 0, 7, 6, 5, 4, 11, 10, 9, 8, 15, 14, 13, 12];

        macro_rules! fletcher4 {
            (
                $name:ident, $features:literal, $width:literal, $vector:ty, $zero:ident, $load:ident, $store:ident,
                $broadcast:ident, $shuffle:ident, $shift:ident, $add:ident
            ) => {
                #[target_feature(enable = $features)]
                pub(crate) fn $name<const SWAP: bool>(data: &[u8]) -> [u64; 4] {
                    let (steps, rest) = data.as_chunks::<$width>();
                    // SAFETY: `REVERSE` has 16 bytes; the load needs no alignment.
                    let reverse = $broadcast(unsafe { _mm_loadu_si128(REVERSE.as_ptr().cast()) });
                    let mut whole = [$zero(); 4];
                    let mut high = [$zero(); 4];
                    for step in steps {
                        // SAFETY: the step is as wide as the vector; the load needs no alignment.
                        let loaded = unsafe { $load(step.as_ptr().cast()) };
                        let v = if SWAP { $shuffle(loaded, reverse) } else { loaded };
                        for (sums, term) in [(&mut whole, v), (&mut high, $shift::<32>(v))] {
                            sums[0] = $add(sums[0], term);
                            sums[1] = $add(sums[1], sums[0]);
                            sums[2] = $add(sums[2], sums[1]);
                            sums[3] = $add(sums[3], sums[2]);
                        }
                    }
                    let lanes = |sums: [$vector; 4]| Sums {
                        abcd: sums.map(|v| {
                            let mut lanes = [0u64; $width / 8];
                            // SAFETY: the array is as wide as the vector; the store needs no alignment.
                            unsafe { $store(lanes.as_mut_ptr().cast(), v) };
                            lanes
                        }),
                    };
                    fletcher4_fold::<SWAP, { $width / 8 }>(&lanes(whole), &lanes(high), rest)
                }
            };
        }

        fletcher4!(
            avx512,
            "avx512f,avx512bw",
            64,
            __m512i,
            _mm512_setzero_si512,
            _mm512_loadu_si512,
            _mm512_storeu_si512,
            _mm512_broadcast_i32x4,
            _mm512_shuffle_epi8,
            _mm512_srli_epi64,
            _mm512_add_epi64
        );

        fletcher4!(
            avx2,
            "avx2",
            32,
            __m256i,
            _mm256_setzero_si256,
            _mm256_loadu_si256,
            _mm256_storeu_si256,
            _mm256_broadcastsi128_si256,
            _mm256_shuffle_epi8,
            _mm256_srli_epi64,
            _mm256_add_epi64
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// fletcher4 computed word by word, as defined.
    fn plain4(endian: Endian, data: &[u8]) -> [u64; 4] {
        match endian {
            Endian::Little => fletcher4_fold::<false, 0>(&Sums::new(), &Sums::new(), data),
            Endian::Big => fletcher4_fold::<true, 0>(&Sums::new(), &Sums::new(), data),
        }
    }

    fn plain2(endian: Endian, data: &[u8]) -> [u64; 4] {
        let mut sums = [0u64; 4];
        for (i, word) in data.as_chunks::<8>().0.iter().enumerate() {
            let w = if endian == Endian::Big { u64::from_be_bytes(*word) } else { u64::from_le_bytes(*word) };
            sums[i % 2] = sums[i % 2].wrapping_add(w);
            sums[2 + i % 2] = sums[2 + i % 2].wrapping_add(sums[i % 2]);
        }
        sums
    }

    proptest! {
        #[test]
        fn lanes_agree_with_the_definition(mut data in proptest::collection::vec(any::<u8>(), 0..4096)) {
            for endian in [Endian::Little, Endian::Big] {
                prop_assert_eq!(fletcher4(endian, &data), plain4(endian, &data));
            }
            prop_assert_eq!(fletcher4_lanes::<false>(&data), plain4(Endian::Little, &data));
            prop_assert_eq!(fletcher4_lanes::<true>(&data), plain4(Endian::Big, &data));
            #[cfg(target_arch = "x86_64")]
            if simd::x86::has_avx2() {
                // SAFETY: `has_avx2` has checked the target feature.
                #[allow(unsafe_code)]
                let sums = unsafe { (simd::x86::avx2::<false>(&data), simd::x86::avx2::<true>(&data)) };
                prop_assert_eq!(sums, (plain4(Endian::Little, &data), plain4(Endian::Big, &data)));
            }
            data.truncate(data.len() / 16 * 16);
            for endian in [Endian::Little, Endian::Big] {
                prop_assert_eq!(fletcher2(endian, &data), plain2(endian, &data));
                prop_assert_eq!(fletcher2_lanes::<true>(&data), plain2(Endian::Big, &data));
            }
        }
    }

    /// The last sum overflows 2^64 many times.
    #[test]
    fn large_blocks_wrap() {
        let data = vec![0xff; 16 << 20];
        assert_eq!(fletcher4(Endian::Little, &data), plain4(Endian::Little, &data));
        assert_eq!(fletcher2(Endian::Big, &data), plain2(Endian::Big, &data));
    }

    /// The sums of the words 1, 2, 3, computed by hand.
    #[test]
    fn known_sums() {
        let data = [1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0];
        assert_eq!(fletcher4(Endian::Little, &data), [6, 10, 15, 21]);
    }
}
