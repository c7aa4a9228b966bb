//! Runs fuzz targets on reproducible random inputs, for the tests of crates that decode malformed input.

use crate::rng::Rng;

/// A fuzz target: name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Runs every target on `rounds` random inputs and on the empty one. Every second input is short; the others have up to
/// `max_bytes` bytes. Some words of an input are small numbers, because random ones are mostly out of range.
///
/// # Panics
/// If a target panics.
pub fn run_targets(targets: &[Target], rounds: u64, max_bytes: u64) {
    const SHORT_BYTES: u64 = 40;
    let mut rng = Rng::new(0x2545_f491_4f6c_dd1d);
    for (_, body) in targets {
        for round in 0..rounds {
            let len = rng.below(if round % 2 == 0 { SHORT_BYTES } else { max_bytes });
            let mut data: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
            for word in data.chunks_mut(8).skip(rng.below(8) as usize).step_by(3) {
                word.iter_mut().skip(2).for_each(|byte| *byte = 0);
            }
            body(&data);
        }
        body(&[]);
    }
}
