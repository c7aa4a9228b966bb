//! SHA-512/256 (FIPS 180-4), what ZFS calls sha512: SHA-512 from other starting values, cut to 256 bits.
//!
//! A block's 80 rounds are one long chain of additions and rotations over eight words, which vectors cannot shorten. The
//! *message schedule* (the 64 words that follow from the block's 16) is no part of that chain, and needs nothing of the block
//! before: the `simd` functions make it in vector registers, two words of two blocks at a time, beside the scalar
//! instructions of the first block's rounds; what is the second's is kept until its rounds come. The order of a round's
//! additions is fixed, so that what is known early is added early, and the schedule reaches the rounds through memory, which
//! costs no instruction: a compiler left alone adds the schedule's word last and takes it from the vector register, which is
//! 5 % slower. Processors without its instructions take the library's SHA-512/256.

use aws_lc_rs::digest;

/// The first 32 bytes of SHA-512 from SHA-512/256's starting values.
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

    /// The fractional parts of the cube roots of the first eighty primes.
    static K: [u64; 80] = cube_roots();

    /// 2⁶⁴·frac(∛p), found by bisection on whole numbers: the largest r with r³ ≤ p·2¹⁹², of which the low 64 bits count.
    const fn cube_roots() -> [u64; 80] {
        let mut table = [0; 80];
        let (mut count, mut candidate) = (0, 2u64);
        while count < 80 {
            let (mut prime, mut divisor) = (true, 2);
            while divisor * divisor <= candidate {
                prime = prime && candidate % divisor != 0;
                divisor += 1;
            }
            if prime {
                // The whole part is below 8, so the root has 67 bits.
                let (mut root, mut bit) = (0u128, 67);
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

    /// Whether root³ ≤ p·2¹⁹², for roots below 2⁶⁷: in limbs of 32 bits.
    const fn cube_at_most(root: u128, p: u64) -> bool {
        let limbs = [root as u32 as u64, (root >> 32) as u32 as u64, (root >> 64) as u64];
        let mut cube = [0u64; 9];
        let mut i = 0;
        while i < 27 {
            // Products of three limbs are up to 96 bits: added limb by limb.
            let product = limbs[i / 9] as u128 * limbs[i / 3 % 3] as u128 * limbs[i % 3] as u128;
            let (mut at, mut carry) = (i / 9 + i / 3 % 3 + i % 3, product);
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
        // SAFETY: the processor has just said that it has these instructions.
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

    /// Two words of each block's schedule, sixteen words on: `w[i]` becomes w + σ₀(w₊₁) + w₊₉ + σ₁(w₊₁₄).
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

    /// Has a value computed up to here: what is added to it further down is not added before.
    macro_rules! settled {
        ($value:expr) => {
            // SAFETY: no instruction; the value stays what it is.
            unsafe { asm!("/* {0} */", inout(reg) $value, options(pure, nomem, nostack, preserves_flags)) }
        };
    }

    /// One round. Of the three, the majority is b where a and b agree, else c; whether the next round's b and c differ is
    /// whether this round's a and b do.
    macro_rules! round {
        ($a:ident $b:ident $c:ident $d:ident $e:ident $f:ident $g:ident $h:ident, $differed:ident, $wk:expr) => {
            $h = $h.wrapping_add($wk);
            settled!($h);
            // The choice of f or g, by its two halves.
            let clear = !$e & $g;
            $h = $h.wrapping_add(clear);
            settled!($h);
            let both = $e & $f;
            let big1 = $e.rotate_right(14) ^ $e.rotate_right(18) ^ $e.rotate_right(41);
            $h = $h.wrapping_add(both);
            settled!($h);
            $h = $h.wrapping_add(big1);
            settled!($h);
            $d = $d.wrapping_add($h);
            let big0 = $a.rotate_right(28) ^ $a.rotate_right(34) ^ $a.rotate_right(39);
            let differ = $a ^ $b;
            let majority = (differ & $differed) ^ $b;
            $differed = differ;
            let mut late = big0.wrapping_add(majority);
            settled!(late);
            $h = $h.wrapping_add(late);
        };
    }

    /// Sixteen rounds over words that have their constants added. Instead of moving the state's words, each round takes them
    /// from where they are. `$between` goes after every second, its argument being which pair of words has been used up.
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

    macro_rules! nothing {
        ($i:expr) => {};
    }

    /// Takes blocks two by two. A last one alone is scheduled beside itself.
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

    /// The rounds of the first block, with the schedule of both between them; then, if there are `two`, those of the second.
    #[inline]
    #[target_feature(enable = "avx2,avx512f,avx512vl,bmi1,bmi2")]
    #[allow(unused_assignments, reason = "the last round has no next one")]
    fn compress_pair(state: &mut [u64; 8], first: &[u8; BLOCK], second: &[u8; BLOCK], two: bool) {
        let swap = _mm256_broadcastsi128_si256(_mm_set_epi64x(0x0809_0a0b_0c0d_0e0f, 0x0001_0203_0405_0607));
        // SAFETY (all three): 16 bytes are there; the loads and the store ask for no alignment.
        let constant = |k: &[u64; 2]| _mm256_broadcastsi128_si256(unsafe { _mm_loadu_si128(k.as_ptr().cast()) });
        let load = |bytes: &[u8; 16]| unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) };
        let store = |to: &mut [u64; 2], v| unsafe { _mm_storeu_si128(to.as_mut_ptr().cast(), v) };
        let (constants, _) = K.as_chunks::<2>();
        let (pairs, theirs) = (first.as_chunks::<16>().0, second.as_chunks::<16>().0);
        let mut w: [__m256i; 8] =
            std::array::from_fn(|i| _mm256_shuffle_epi8(_mm256_set_m128i(load(&theirs[i]), load(&pairs[i])), swap));
        // Words and constants: of the sixteen rounds at hand, and of all the second block's.
        let (mut wk, mut later) = ([[0u64; 2]; 8], [[0u64; 2]; 40]);
        for i in 0..8 {
            let sum = _mm256_add_epi64(w[i], constant(&constants[i]));
            store(&mut wk[i], _mm256_castsi256_si128(sum));
            store(&mut later[i], _mm256_extracti128_si256::<1>(sum));
        }
        let [mut a, mut b, mut c, mut d, mut e, mut f, mut g, mut h] = *state;
        let mut differed = b ^ c;
        for (stage, kept) in constants[8..].as_chunks::<8>().0.iter().zip(later[8..].as_chunks_mut::<8>().0) {
            macro_rules! go_on {
                ($i:expr) => {{
                    const I: usize = $i;
                    w[I] = schedule(w[I], w[(I + 1) % 8], w[(I + 4) % 8], w[(I + 5) % 8], w[(I + 7) % 8]);
                    let sum = _mm256_add_epi64(w[I], constant(&stage[I]));
                    store(&mut wk[I], _mm256_castsi256_si128(sum));
                    store(&mut kept[I], _mm256_extracti128_si256::<1>(sum));
                    // SAFETY: no instruction; it only might have touched the words, which are then read from memory.
                    unsafe { asm!("/* {0} */", in(reg) wk.as_mut_ptr(), options(nostack, preserves_flags)) };
                }};
            }
            rounds!(a b c d e f g h, differed, wk, go_on);
        }
        rounds!(a b c d e f g h, differed, wk, nothing);
        add(state, [a, b, c, d, e, f, g, h]);
        if !two {
            return;
        }
        [a, b, c, d, e, f, g, h] = *state;
        differed = b ^ c;
        for stage in later.as_chunks::<8>().0 {
            rounds!(a b c d e f g h, differed, stage, nothing);
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

    /// Lengths around the padding's corners and beyond; the library is the peer.
    #[test]
    fn agrees_with_a_peer() {
        let data: Vec<u8> = (0..2000u32).map(|i| (i * i / 3) as u8).collect();
        for length in (0..300).chain([511, 512, 1999, 2000]) {
            let expected = digest::digest(&digest::SHA512_256, &data[..length]);
            assert_eq!(sha512_256(&data[..length]), expected.as_ref(), "{length}");
        }
    }
}
