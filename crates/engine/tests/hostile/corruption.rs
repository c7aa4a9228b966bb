//! Corruption of blocks by a seed: the choice of blocks and the changes in them.
//!
//! The changes in a block depend only on the seed, the block's pointer and the stage. Therefore every read of a block
//! returns the same bytes in any order of reads, and a seed can be repeated.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_blocks::fault_injection::{PointerForger, Stage};
use weir_format::BlockPointer;
use weir_sim::Rng;

/// Numbers at limits of the on-disk format.
const WORDS: [u64; 14] =
    [0, 1, 2, 7, 63, 511, 1 << 17, 1 << 24, 1 << 31, u32::MAX as u64, 1 << 40, 1 << 63, i64::MAX as u64, u64::MAX];

/// Control and count of the corruption, shared with the test.
#[derive(Clone, Default)]
pub struct Marks {
    /// No block is corrupted before this is set.
    pub armed: Arc<AtomicBool>,
    /// Number of corrupted reads; a block that is read twice counts twice.
    pub blocks: Arc<AtomicU64>,
}

/// Returns the function that corrupts blocks by `seed`.
pub fn corrupter(seed: u64, marks: Marks) -> PointerForger {
    let mut rng = Rng::new(seed);
    let one_in = [2, 4, 12, 40][rng.below(4) as usize];
    // Object types that are not corrupted, because damage at the root hides everything below it.
    let spared_types = [0, 0, 2][rng.below(3) as usize];
    let physical = rng.below(4) == 0;
    let gentle = rng.below(2) == 0;
    PointerForger::new(move |pointer, stage, bytes| {
        if !marks.armed.load(Ordering::Relaxed) || bytes.is_empty() {
            return;
        }
        let holds_pointers = pointer.level() > 0 || pointer.object_type().is_metadata();
        let fits = match stage {
            Stage::Physical => physical,
            Stage::Logical => !physical,
            Stage::Gang => true,
        };
        let mut types = Rng::new(seed ^ 0x9e37_79b9_7f4a_7c15u64.wrapping_mul(1 + u64::from(pointer.object_type().0)));
        let spared = spared_types > 0 && types.below(spared_types) != 0;
        if !fits || !holds_pointers && stage != Stage::Gang || spared {
            return;
        }
        let mut rng = Rng::new(seed ^ digest(pointer) ^ stage as u64);
        if rng.below(one_in) != 0 {
            return;
        }
        marks.blocks.fetch_add(1, Ordering::Relaxed);
        let changes = 1 + rng.below(if gentle { 2 } else { 16 });
        for _ in 0..changes {
            change(&mut rng, bytes);
        }
    })
}

fn digest(pointer: &BlockPointer) -> u64 {
    pointer.words().iter().fold(0, |hash: u64, word| (hash.rotate_left(7) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95))
}

/// Offset of a change. Headers are at the front of blocks and of their 512-byte slots.
fn spot(rng: &mut Rng, len: usize) -> usize {
    let len = len as u64;
    let at = match rng.below(4) {
        0 => rng.below(len.min(128)),
        1 => rng.below(len.div_ceil(512)) * 512 + rng.below(64),
        2 => rng.below(len.div_ceil(512)) * 512 + 64 + rng.below(448),
        _ => rng.below(len),
    };
    at.min(len - 1) as usize
}

fn change(rng: &mut Rng, bytes: &mut [u8]) {
    let at = spot(rng, bytes.len());
    let word = WORDS[rng.below(WORDS.len() as u64) as usize].to_le_bytes();
    let put = |bytes: &mut [u8], at: usize, from: &[u8]| {
        bytes.iter_mut().skip(at).zip(from).for_each(|(to, from)| *to = *from);
    };
    match rng.below(9) {
        0 => bytes[at] ^= 1 << rng.below(8),
        1 => bytes[at] = rng.u64() as u8,
        2 => bytes[at] = bytes[at].wrapping_add([1, 255][rng.below(2) as usize]),
        3 => put(bytes, at & !1, &word[..2]),
        4 => put(bytes, at & !3, &word[..4]),
        5 | 6 => put(bytes, at & !7, &word),
        7 => {
            // A copy of a block pointer or other 128 bytes: makes loops and duplicate references.
            let from = spot(rng, bytes.len()) & !127;
            let piece: Vec<u8> = bytes.iter().skip(from).take(128).copied().collect();
            put(bytes, at & !127, &piece);
        }
        _ => {
            let len = 1 + rng.below(64) as usize;
            bytes.iter_mut().skip(at).take(len).for_each(|b| *b = word[7]);
        }
    }
}
