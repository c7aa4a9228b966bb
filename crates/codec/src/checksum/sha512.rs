//! SHA-512/256 (FIPS 180-4), the `sha512` checksum of ZFS: SHA-512 with other initial values, truncated to 256 bits.
//!
//! The 80 rounds of a block are one dependency chain of additions and rotations over eight words, which vectors
//! cannot shorten. The *message schedule* (64 words computed from the block's 16) is not part of that chain and does
//! not depend on the previous block. The `simd` functions therefore compute it in vector registers, two words of two
//! blocks at a time, interleaved with the scalar instructions of the first block's rounds; the second block's
//! schedule is stored until its rounds. Barriers fix the order of a round's additions, so that values known early are
//! added early. The schedule reaches the rounds through memory operands, which cost no extra instruction. Without the
//! barriers a compiler adds the schedule's word last and from the vector register, which is 5 % slower. Processors
//! without these instructions use the library's SHA-512/256.

use aws_lc_rs::digest;

/// The SHA-512/256 digest of `data`.
pub fn sha512_256(data: &[u8]) -> [u8; 32] {
    #[cfg(target_arch = "x86_64")]
    if let Some(digest) = simd::sha512_256(data) {
        return digest;
    }
    let digest = digest::digest(&digest::SHA512_256, data);
    std::array::from_fn(|i| digest.as_ref()[i])
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod simd {
    use std::arch::asm;
    use std::arch::x86_64::*;

    const BLOCK: usize = 128;

    const INITIAL: [u64; 8] = [
        0x2231_2194_fc2b_f72c,
        0x9f55_5fa3_c84c_64c2,
        0x2393_b86b_6f53_b151,
        0x9638_7719_5940_eabd,
        0x9628_3ee2_a88e_ffe3,
        0xbe5e_1e25_5386_3992,
        0x2b01_99fc_2c85_b8aa,
        0x0eb7_2ddc_81c5_2ca2,
    ];

    /// The round constants: fractional parts of the cube roots of the first eighty primes.
    static K: [u64; 80] = cube_roots();

    /// 2⁶⁴·frac(∛p), found by bisection on integers: the low 64 bits of the largest r with r³ ≤ p·2¹⁹².
    const fn cube_roots() -> [u64; 80] {
        let mut table = [0; 80];
        let mut count = 0;
        let mut candidate = 2u64;
        while count < 80 {
            let mut prime = true;
            let mut divisor = 2;
            while divisor * divisor <= candidate {
                prime = prime && !candidate.is_multiple_of(divisor);
                divisor += 1;
            }
            if prime {
                // The integer part is below 8, so the root has 67 bits.
                let mut root = 0u128;
                let mut bit = 67;
                while bit > 0 {
                    bit -= 1;
                    let trial = root | 1 << bit;
                    if cube_at_most(trial, candidate) {
                        root = trial;
                    }
                }
                table[count] = root as u64;
                count += 1;
            }
            candidate += 1;
        }
        table
    }

    /// Whether root³ ≤ p·2¹⁹², for roots below 2⁶⁷; computed in limbs of 32 bits.
    const fn cube_at_most(root: u128, p: u64) -> bool {
        let limbs = [root as u32 as u64, (root >> 32) as u32 as u64, (root >> 64) as u64];
        let mut cube = [0u64; 9];
        let mut i = 0;
        while i < 27 {
            // Products of three limbs have up to 96 bits and are added limb by limb.
            let product = limbs[i / 9] as u128 * limbs[i / 3 % 3] as u128 * limbs[i % 3] as u128;
            let mut at = i / 9 + i / 3 % 3 + i % 3;
            let mut carry = product;
            while carry != 0 {
                let sum = cube[at] as u128 + (carry & 0xffff_ffff);
                cube[at] = sum as u64 & 0xffff_ffff;
                carry = (carry >> 32) + (sum >> 32);
                at += 1;
            }
            i += 1;
        }
        let high = cube[6] | cube[7] << 32;
        high < p || high == p && cube[0] | cube[1] | cube[2] | cube[3] | cube[4] | cube[5] == 0
    }

    pub(super) fn sha512_256(data: &[u8]) -> Option<[u8; 32]> {
        if !(is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2"))
        {
            return None;
        }
        let (blocks, rest) = data.as_chunks::<BLOCK>();
        let mut tail = [[0; BLOCK]; 2];
        tail[0][..rest.len()].copy_from_slice(rest);
        tail[0][rest.len()] = 0x80;
        let last = usize::from(rest.len() >= BLOCK - 16);
        tail[last][BLOCK - 16..].copy_from_slice(&(data.len() as u128 * 8).to_be_bytes());
        let mut state = INITIAL;
        // SAFETY: the target features were checked above.
        unsafe {
            compress(&mut state, blocks);
            compress(&mut state, &tail[..=last]);
        }
        let mut digest = [0; 32];
        for (to, word) in digest.as_chunks_mut::<8>().0.iter_mut().zip(state) {
            *to = word.to_be_bytes();
        }
        Some(digest)
    }

    /// Computes the next two words of each block's schedule: word i + 16 is w + σ₀(w₊₁) + w₊₉ + σ₁(w₊₁₄) relative to
    /// word i.
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512vl")]
    fn schedule(w0: __m256i, w1: __m256i, w4: __m256i, w5: __m256i, w7: __m256i) -> __m256i {
        const XOR3: i32 = 0x96;
        let next = _mm256_alignr_epi8::<8>(w1, w0);
        let small0 = _mm256_ternarylogic_epi64::<XOR3>(
            _mm256_ror_epi64::<1>(next),
            _mm256_ror_epi64::<8>(next),
            _mm256_srli_epi64::<7>(next),
        );
        let small1 = _mm256_ternarylogic_epi64::<XOR3>(
            _mm256_ror_epi64::<19>(w7),
            _mm256_ror_epi64::<61>(w7),
            _mm256_srli_epi64::<6>(w7),
        );
        let sum = _mm256_add_epi64(_mm256_add_epi64(w0, _mm256_alignr_epi8::<8>(w5, w4)), small0);
        _mm256_add_epi64(sum, small1)
    }

    /// Optimisation barrier: the value is computed here, before any term that is added to it further down.
    macro_rules! barrier {
        ($value:expr) => {
            // SAFETY: emits no instruction and does not change the value.
            unsafe { asm!("/* {0} */", inout(reg) $value, options(pure, nomem, nostack, preserves_flags)) }
        };
    }

    /// One round. The majority of a, b and c is b where a and b agree, else c. The next round's b ^ c is this round's
    /// a ^ b, so it is passed on in `$differed`.
    macro_rules! round {
        ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident, $differed:ident, $wk:expr) => {
            $h = $h.wrapping_add($wk);
            barrier!($h);
            // The choice between f and g, added as two disjoint halves.
            let clear = !$e & $g;
            $h = $h.wrapping_add(clear);
            barrier!($h);
            let both = $e & $f;
            let big1 = $e.rotate_right(14) ^ $e.rotate_right(18) ^ $e.rotate_right(41);
            $h = $h.wrapping_add(both);
            barrier!($h);
            $h = $h.wrapping_add(big1);
            barrier!($h);
            $d = $d.wrapping_add($h);
            let big0 = $a.rotate_right(28) ^ $a.rotate_right(34) ^ $a.rotate_right(39);
            let differ = $a ^ $b;
            let majority = (differ & $differed) ^ $b;
            $differed = differ;
            let mut late = big0.wrapping_add(majority);
            barrier!(late);
            $h = $h.wrapping_add(late);
        };
    }

    /// Sixteen rounds over schedule words with their constants already added. Instead of moving the state's words,
    /// each round renames them. `$between` is invoked after every second round with the index of the pair of words
    /// just used.
    macro_rules! rounds {
        ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident,
         $differed:ident, $wk:expr, $between:ident) => {
            rounds!(half $a $b $c $d $e $f $g $h, $differed, $wk, 0, $between);
            rounds!(half $a $b $c $d $e $f $g $h, $differed, $wk, 4, $between);
        };
        (half $a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident,
         $differed:ident, $wk:expr, $first:literal, $between:ident) => {
            round!($a $b $c $d $e $f $g $h, $differed, $wk[$first][0]);
            round!($h $a $b $c $d $e $f $g, $differed, $wk[$first][1]);
            $between!($first);
            round!($g $h $a $b $c $d $e $f, $differed, $wk[$first + 1][0]);
            round!($f $g $h $a $b $c $d $e, $differed, $wk[$first + 1][1]);
            $between!($first + 1);
            round!($e $f $g $h $a $b $c $d, $differed, $wk[$first + 2][0]);
            round!($d $e $f $g $h $a $b $c, $differed, $wk[$first + 2][1]);
            $between!($first + 2);
            round!($c $d $e $f $g $h $a $b, $differed, $wk[$first + 3][0]);
            round!($b $c $d $e $f $g $h $a, $differed, $wk[$first + 3][1]);
            $between!($first + 3);
        };
    }

    macro_rules! no_op {
        ($i:expr) => {};
    }

    /// Processes blocks in pairs. A single last block takes both lanes of the schedule.
    #[target_feature(enable = "avx2,avx512f,avx512vl,bmi1,bmi2")]
    fn compress(state: &mut [u64; 8], blocks: &[[u8; BLOCK]]) {
        let (pairs, single) = blocks.as_chunks::<2>();
        for [first, second] in pairs {
            compress_pair(state, first, second, true);
        }
        for block in single {
            compress_pair(state, block, block, false);
        }
    }

    /// The rounds of the first block, interleaved with the schedule of both; then, if `two`, the rounds of the
    /// second.
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512vl,bmi1,bmi2")]
    #[allow(unused_assignments, reason = "the last round has no next one")]
    fn compress_pair(state: &mut [u64; 8], first: &[u8; BLOCK], second: &[u8; BLOCK], two: bool) {
        let swap = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0809_0a0b_0c0d_0e0f, 0x0001_0203_0405_0607));
        // SAFETY (all three): each reference covers 16 bytes; loads and store need no alignment.
        let constant = |k: &[u64; 2]| _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(k.as_ptr().cast()) });
        let load = |bytes: &[u8; 16]| unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        let store = |to: &mut [u64; 2], v| unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), v) };
        let (constants, _) = K.as_chunks::<2>();
        let first_pairs = first.as_chunks::<16>().0;
        let second_pairs = second.as_chunks::<16>().0;
        let mut w: [__m256i; 8] = std::array::from_fn(|i| {
            _mm256_shuffle_epi8(_mm256_set_m128i(load(&second_pairs[i]), load(&first_pairs[i])), swap)
        });
        // Sums of words and constants: of the current sixteen rounds, and of all rounds of the second block.
        let mut wk = [[0u64; 2]; 8];
        let mut later = [[0u64; 2]; 40];
        for i in 0..8 {
            let sum = _mm256_add_epi64(w[i], constant(&constants[i]));
            store(&mut wk[i], _mm256_castsi256_si128(sum));
            store(&mut later[i], _mm256_extracti128_si256::<1>(sum));
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
        let mut differed = b ^ c;
        for (stage, kept) in constants[8..].as_chunks::<8>().0.iter().zip(later[8..].as_chunks_mut::<8>().0) {
            macro_rules! schedule_next {
                ($i:expr) => {{
                    const I: usize = $i;
                    w[I] = schedule(w[I], w[(I + 1) % 8], w[(I + 4) % 8], w[(I + 5) % 8], w[(I + 7) % 8]);
                    let sum = _mm256_add_epi64(w[I], constant(&stage[I]));
                    store(&mut wk[I], _mm256_castsi256_si128(sum));
                    store(&mut kept[I], _mm256_extracti128_si256::<1>(sum));
                    // SAFETY: emits no instruction; it makes the compiler assume that the words in memory changed, so
                    // that the rounds read them from there.
                    unsafe { asm!("/* {0} */", in(reg) wk.as_mut_ptr(), options(nostack, preserves_flags)) };
                }};
            }
            rounds!(a b c d e f g h, differed, wk, schedule_next);
        }
        rounds!(a b c d e f g h, differed, wk, no_op);
        add(state, [a, b, c, d, e, f, g, h]);
        if !two {
            return;
        }
        [a, b, c, d, e, f, g, h] = *state;
        differed = b ^ c;
        for stage in later.as_chunks::<8>().0 {
            rounds!(a b c d e f g h, differed, stage, no_op);
        }
        add(state, [a, b, c, d, e, f, g, h]);
    }

    #[inline(always)]
    fn add(state: &mut [u64; 8], by: [u64; 8]) {
        for (s, v) in state.iter_mut().zip(by) {
            *s = s.wrapping_add(v);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with the library at lengths around the boundaries of the padding.
    #[test]
    fn agrees_with_the_library() {
        let data: Vec<u8> = (0..2000u32).map(|i| (i * i / 3) as u8).collect();
        for length in (0..300).chain([511, 512, 1999, 2000]) {
            let expected = digest::digest(&digest::SHA512_256, &data[..length]);
            assert_eq!(sha512_256(&data[..length]), expected.as_ref(), "{length}");
        }
    }
}
