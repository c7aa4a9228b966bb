//! Short form of fuzzing: every decoder's fuzz target on mutated seeds, with the stable compiler, for some seconds
//! each.
//!
//! Targets are functions over bytes, beside the decoders ([`weir_format::fuzz::TARGETS`] and others), so
//! that this runner, the coverage-guided one in `fuzz/` and the decoders' own tests share them. Seeds are files under
//! `fuzz/seeds/TARGET` (including past findings), pieces of golden pools, and random bytes. The same
//! `--seed` gives the same inputs in the same order.
//!
//! A target fails by a panic or by taking longer than [`SLOWEST`] for one input. The input is then written to
//! `target/fuzz-findings/TARGET-HASH`; after the decoder is fixed, it becomes a seed. Memory is bounded by the
//! process's address space limit: an input that makes a decoder allocate without bound ends the run.
#![allow(clippy::disallowed_methods, reason = "a run is limited by the real clock")]

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::hash::hex_of;
use crate::report::line;

/// Maximum time for one input: generous for debug builds on a busy machine; an endless loop takes longer.
pub const SLOWEST: Duration = Duration::from_secs(5);

/// Maximum length of an input.
const INPUT_BYTES: usize = 64 << 10;

/// Address space limit of the whole run, in bytes.
const MEMORY_BYTES: u64 = 8 << 30;

/// A target with its name.
pub type Target = (&'static str, fn(&[u8]));

/// All targets of the workspace.
pub fn targets() -> Vec<Target> {
    [
        weir_format::fuzz::TARGETS,
        weir_codec::fuzz::TARGETS,
        weir_blocks::fuzz::TARGETS,
        weir_dmu::fuzz::TARGETS,
        weir_dsl::fuzz::TARGETS,
        weir_send::fuzz::TARGETS,
        weir_files::fuzz::TARGETS,
        weir_nfs::fuzz::TARGETS,
        weir_nbd::fuzz::TARGETS,
        weir_smb::fuzz::TARGETS,
        weir_iscsi::fuzz::TARGETS,
        weir_daemon::admin::TARGETS,
        weir_admin::TARGETS,
        weir_daemon::fuzz::TARGETS,
        weir_doctor::TARGETS,
        weir_csi::TARGETS,
        weir_lab::TARGETS,
        weir_analytics::TARGETS,
        weir_object_store::fuzz::TARGETS,
        weir_daemon::fuzz::SHARE_TARGETS,
        crate::fuzz_locks::TARGETS,
        weir_daemon::users::TARGETS,
        weir_web::TARGETS,
    ]
    .concat()
}

/// Reproducible random numbers: xorshift64* (Vigna).
pub struct Chance(u64);

impl Chance {
    /// Chance from a seed.
    pub fn new(seed: u64) -> Chance {
        Chance(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below a bound; 0 if the bound is.
    pub fn below(&mut self, bound: usize) -> usize {
        if bound == 0 { 0 } else { (self.draw() % bound as u64) as usize }
    }
}

/// Makes an input from the seeds.
pub fn mutate(seeds: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    let mut input = match seeds.get(chance.below(seeds.len() + 1)) {
        Some(seed) => seed.clone(),
        None => {
            let length = 1 << chance.below(13);
            (0..length).map(|_| chance.draw() as u8).collect()
        }
    };
    for _ in 0..1 << chance.below(5) {
        let at = chance.below(input.len());
        match chance.below(8) {
            0 => replace(&mut input, at, &[1 << chance.below(8)], |old, new| old ^ new),
            1 => replace(&mut input, at, &[chance.draw() as u8], |_, new| new),
            2 => {
                let extremes = [0, 1, u64::MAX, 1 << 63, u64::MAX >> 1, 1 << 31, 0xffff_ffff, 16 << 20, 1 << 48];
                let value = extremes.get(chance.below(extremes.len())).copied().unwrap_or_default();
                let bytes = if chance.below(2) == 0 { value.to_le_bytes() } else { value.to_be_bytes() };
                let width = 1 << chance.below(4);
                replace(&mut input, at & !7, bytes.get(..width).unwrap_or(&bytes), |_, new| new);
            }
            3 => input.truncate(at),
            4 => {
                let piece: Vec<u8> = input.iter().skip(at).take(chance.below(256)).copied().collect();
                let to = chance.below(input.len());
                replace(&mut input, to, &piece, |_, new| new);
            }
            5 => {
                if let Some(other) = seeds.get(chance.below(seeds.len())) {
                    let from = chance.below(other.len());
                    let piece: Vec<u8> = other.iter().skip(from).take(chance.below(1024)).copied().collect();
                    replace(&mut input, at, &piece, |_, new| new);
                }
            }
            6 => input.extend((0..chance.below(64)).map(|_| chance.draw() as u8)),
            _ => replace(&mut input, at, &[1], u8::wrapping_add),
        }
    }
    input.truncate(INPUT_BYTES);
    input
}

fn replace(input: &mut [u8], at: usize, bytes: &[u8], how: impl Fn(u8, u8) -> u8) {
    for (old, new) in input.iter_mut().skip(at).zip(bytes) {
        *old = how(*old, *new);
    }
}

/// Reads the seeds of a target: the files in `fuzz/seeds/TARGET`.
pub fn kept_seeds(folder: &Path, target: &str) -> Vec<Vec<u8>> {
    let mut files: Vec<_> =
        std::fs::read_dir(folder.join(target)).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    files.sort();
    files.iter().filter_map(|file| std::fs::read(file).ok()).collect()
}

/// Writes seeds into a folder, named by their contents, for a coverage-guided run.
pub fn write_seeds(folder: &Path, seeds: &[Vec<u8>]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    seeds.iter().try_for_each(|seed| std::fs::write(folder.join(hex_of(seed)), seed))
}

/// Limits of a run.
pub struct Limits {
    /// Time for each target.
    pub each: Duration,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// An input with which a target fails.
pub struct Finding {
    /// Name of the target, and the number of the input.
    pub case: String,
    /// The panic or the time, and the file in which the input is kept.
    pub why: Vec<String>,
}

/// Runs one target, first on its seeds unchanged, then on mutations of them; returns how many inputs there were.
///
/// # Errors
/// The first input with which the target panics or takes longer than [`SLOWEST`].
pub fn run(target: &Target, seeds: &[Vec<u8>], limits: &Limits, findings: &Path) -> Result<String, Finding> {
    let (name, body) = target;
    let mut chance = Chance::new(limits.seed);
    let until = Instant::now() + limits.each;
    let mut count = 0_u64;
    while count < seeds.len() as u64 || Instant::now() < until {
        let input = match usize::try_from(count).ok().and_then(|at| seeds.get(at)) {
            Some(seed) => seed.clone(),
            None => mutate(seeds, &mut chance),
        };
        count += 1;
        let begun = Instant::now();
        let outcome = catch_unwind(AssertUnwindSafe(|| body(&input)));
        let took = begun.elapsed();
        let why = match outcome {
            Err(payload) => {
                format!("panicked {}: {}", LAST_PANIC.with(|last| last.borrow().clone()), text_of(&*payload))
            }
            Ok(()) if took > SLOWEST => format!("took {took:?}"),
            Ok(()) => continue,
        };
        let hash: String = hex_of(&input).chars().take(12).collect();
        let place = findings.join(format!("{name}-{hash}"));
        let kept = std::fs::create_dir_all(findings).and_then(|()| std::fs::write(&place, &input));
        let kept = kept.map_or_else(|error| error.to_string(), |()| place.display().to_string());
        let case = format!("{name} (input {count} of seed {})", limits.seed);
        return Err(Finding { case, why: vec![why, format!("input: {kept}")] });
    }
    Ok(format!("{count} inputs from {} seeds", seeds.len()))
}

/// The message of a panic.
fn text_of(payload: &(dyn std::any::Any + Send)) -> &str {
    let formatted = payload.downcast_ref::<String>().map(String::as_str);
    formatted.or_else(|| payload.downcast_ref::<&str>().copied()).unwrap_or("no message")
}

thread_local! {
    /// Where this thread panicked last; empty where [`prepare`] was not called.
    static LAST_PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

fn place_of(info: &std::panic::PanicHookInfo<'_>) -> String {
    info.location().map_or_else(String::new, |place| format!("at {place}"))
}

/// Silences the panic hook, because findings are reported with their input, and bounds the process's memory.
pub fn prepare() {
    std::panic::set_hook(Box::new(|info| LAST_PANIC.with(|last| *last.borrow_mut() = place_of(info))));
    let limit = rustix::process::Rlimit { current: Some(MEMORY_BYTES), maximum: Some(MEMORY_BYTES) };
    if let Err(error) = rustix::process::setrlimit(rustix::process::Resource::As, limit) {
        line(&format!("memory is not bounded: {error}"));
    }
}

/// Pieces of a pool's image for a target, unchanged: labels, their name-value lists, uberblocks.
pub fn image_seeds(image: &[u8], target: &str) -> Vec<Vec<u8>> {
    const LABEL: usize = 256 << 10;
    let order = |bytes: &[u8]| [&[0], bytes].concat();
    let label = image.get(..LABEL).unwrap_or_default();
    match target {
        "label" => vec![order(label.get(..120 << 10).unwrap_or_default())],
        "nvlist" => vec![order(label.get(16 << 10..20 << 10).unwrap_or_default())],
        "uberblock" => label.get(128 << 10..).unwrap_or_default().chunks(1024).take(4).map(order).collect(),
        "stream" => Vec::new(),
        // Sectors from the middle of a pool, some of them uncompressed metadata.
        _ => image
            .get(4 << 20..)
            .unwrap_or_default()
            .chunks(4096)
            .filter(|piece| piece.iter().any(|byte| *byte != 0))
            .step_by(13)
            .take(12)
            .map(order)
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn brittle(data: &[u8]) {
        assert!(data.first() != Some(&7) || data.len() < 4, "the planted mistake");
    }

    #[test]
    fn a_planted_mistake_is_found_and_its_input_kept() {
        let folder = tempfile::tempdir().unwrap();
        let limits = Limits { each: Duration::from_secs(20), seed: 1 };
        let found = run(&("brittle", brittle), &[vec![0; 64]], &limits, folder.path()).unwrap_err();
        assert!(found.why[0].contains("the planted mistake"), "{:?}", found.why);
        let kept = std::fs::read_dir(folder.path()).unwrap().next().unwrap().unwrap().path();
        assert_eq!(std::fs::read(kept).unwrap().first(), Some(&7));
    }

    #[test]
    fn the_same_seed_gives_the_same_inputs() {
        let seeds = vec![vec![1, 2, 3, 4, 5, 6, 7, 8]; 2];
        let inputs = |seed| {
            let mut chance = Chance::new(seed);
            (0..50).map(|_| mutate(&seeds, &mut chance)).collect::<Vec<_>>()
        };
        assert_eq!(inputs(5), inputs(5));
        assert_ne!(inputs(5), inputs(6));
    }
}
