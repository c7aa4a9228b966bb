//! Preparation of a pool for a benchmark: how full it is, how fragmented its free space is, and how long it was in use.
//!
//! ```text
//!   measure (allocated, FRAG of zpool list) ─▶ next(): Fill │ Empty │ Hole │ Done ─▶ filler: write, remove, punch ─▶ three txgs ─▶ measure …
//! ```
//!
//! The filler is a set of files in a dataset of their own, which is destroyed at the end. *Bulk* files fill the pool. *Holed* files
//! are written, and every second record of them is freed: the holes between the other records fragment the free space. A hole has the
//! size of a record of the measured dataset if that fragments enough, so that the dataset's writes find holes as its own use would
//! have left them.
//!
//! OpenZFS rates free segments by size: 83 % at 16K, 64 % at 128K, 43 % at 1M, 0 % from 512M on; FRAG is the mean over the free space. The
//! estimate of [`next`] only has to come close: each pass measures again.

use super::filler::{Filler, settle};
use super::progress::Terminal;
use crate::failure::Failure;
use clap::Args;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_engine::Engine;
use weir_lab::clock::Stopwatch;
use weir_pool::{OpenOptions, PoolError, capacity};

/// Passes after which a preparation ends with what it reached.
const MAX_PASSES: usize = 32;
/// Largest share of a pool that a preparation allocates, in percent: the rest is for metadata and the slop space.
const MAX_ALLOCATED_PERCENT: f64 = 92.0;
/// Share of an estimate that one pass makes: holes also leave less of the free space that is not fragmented, so that all at once would be
/// too many.
const STEP: f64 = 0.4;
/// Difference to the wanted percentage that is no difference.
const TOLERANCE_PERCENT: f64 = 0.5;
/// Difference to the wanted percentage that is mentioned.
const MAX_OFF_PERCENT: u32 = 3;
/// Smallest record of holed files in bytes: smaller ones have holes of several sectors only where sectors are small.
const MIN_RECORD_BYTES: u64 = 8 << 10;

/// State that a pool shall have.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// Fill the dataset's pool to this share of its size first, in percent (CAP of zpool list)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=90))]
    pub fill: Option<u32>,
    /// Fragment the free space of the dataset's pool first, in percent (FRAG of zpool list)
    #[arg(long, value_name = "PERCENT", value_parser = clap::value_parser!(u32).range(1..=70))]
    pub fragment: Option<u32>,
    /// Overwrite random records of what fills the pool for this time first, such as 2h
    #[arg(long, value_name = "TIME", value_parser = super::seconds, requires = "fill")]
    pub age: Option<u64>,
}

impl Wanted {
    /// Whether the command line asks for a preparation.
    pub fn is_any(&self) -> bool {
        self.fill.is_some() || self.fragment.is_some() || self.age.is_some()
    }
}

/// State that a pool has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Measured {
    /// Size of the pool in bytes (SIZE).
    pub size_bytes: u64,
    /// Allocated bytes (ALLOC).
    pub allocated_bytes: u64,
    /// Fragmentation in percent (FRAG); `None` if the pool does not know it.
    pub fragmentation: Option<u64>,
}

impl Measured {
    /// Measures a pool as of its last txg.
    ///
    /// # Errors
    /// Errors of reading the pool's metadata.
    pub async fn of(engine: &Arc<Engine>, open: &OpenOptions) -> Result<Self, PoolError> {
        let view = engine.synced().view(open).await?;
        let capacity = &view.capacity;
        Ok(Self {
            size_bytes: capacity.size_bytes,
            allocated_bytes: capacity.allocated_bytes,
            fragmentation: capacity.fragmentation,
        })
    }

    /// Allocated share in percent.
    pub fn fill_percent(&self) -> f64 {
        self.allocated_bytes as f64 * 100.0 / (self.size_bytes as f64).max(1.0)
    }

    /// Facts for a result.
    pub fn facts(&self) -> BTreeMap<String, String> {
        let fragmentation = self.fragmentation.map_or("unknown".to_owned(), |percent| percent.to_string());
        BTreeMap::from([
            ("pool.size_bytes".to_owned(), self.size_bytes.to_string()),
            ("pool.fill_percent".to_owned(), (self.fill_percent() as u64).to_string()),
            ("pool.fragmentation_percent".to_owned(), fragmentation),
        ])
    }
}

/// Next work of a preparation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Work {
    /// Write bulk files of this many bytes.
    Fill(u64),
    /// Remove bulk files of this many bytes.
    Empty(u64),
    /// Make holes of this many bytes: write twice as much, and free every second record.
    Hole(u64),
    /// The pool is as wanted.
    Done,
}

/// The next work for a pool. `bulk_bytes` are those of the bulk files, `hole_percent` the fragmentation of a hole.
///
/// # Errors
/// If the holes do not fit into the pool.
fn next(measured: &Measured, wanted: &Wanted, bulk_bytes: u64, hole_percent: f64) -> Result<Work, String> {
    let size = measured.size_bytes as f64;
    let allocated = measured.allocated_bytes as f64;
    let goal = wanted.fill.map_or(allocated, |percent| size * f64::from(percent) / 100.0);
    let tolerance = size * TOLERANCE_PERCENT / 100.0;
    let missing = match (wanted.fragment, measured.fragmentation) {
        // FRAG is rounded down.
        (Some(wanted), Some(now)) if now < u64::from(wanted) => f64::from(wanted) + 0.5 - now as f64,
        _ => 0.0,
    };
    // A hole takes the place of free space that is fragmented already.
    let gain = (hole_percent - measured.fragmentation.unwrap_or(0) as f64).max(5.0);
    let holes = missing / gain * (size - goal);
    if missing > 0.0 {
        if goal + holes > size * MAX_ALLOCATED_PERCENT / 100.0 {
            return Err(out_of_reach(wanted, goal * 100.0 / size));
        }
        if allocated + holes + tolerance < goal {
            return Ok(Work::Fill((goal - holes - allocated) as u64));
        }
        let is_full = |bytes: f64| bytes > size * MAX_ALLOCATED_PERCENT / 100.0;
        if wanted.fill.is_some() && bulk_bytes > 0 && (allocated > goal || is_full(allocated + holes * 2.0)) {
            return Ok(Work::Empty((holes.max(allocated - goal) as u64).min(bulk_bytes)));
        }
        if is_full(allocated + holes * STEP * 2.0) {
            return Err(out_of_reach(wanted, allocated * 100.0 / size));
        }
        return Ok(Work::Hole((holes * STEP) as u64));
    }
    match allocated - goal {
        above if above > tolerance && bulk_bytes > 0 => Ok(Work::Empty((above as u64).min(bulk_bytes))),
        above if above < -tolerance => Ok(Work::Fill(-above as u64)),
        _ => Ok(Work::Done),
    }
}

/// The message if holes do not fit into a pool.
fn out_of_reach(wanted: &Wanted, fill_percent: f64) -> String {
    format!(
        "fragmentation of {} % at {fill_percent:.0} % fill is out of reach: the pool would be full meanwhile; choose less of either",
        wanted.fragment.unwrap_or_default()
    )
}

/// Record size of holed files, and the fragmentation that holes of this size cause. It is the record size of the dataset, or the
/// largest smaller one whose holes fragment twice as much as wanted.
fn holed_record(record_bytes: u64, wanted: &Wanted) -> (u64, f64) {
    let least = u64::from(wanted.fragment.unwrap_or(0)).saturating_mul(2).min(80);
    let mut bytes = record_bytes.clamp(MIN_RECORD_BYTES, 1 << 20);
    while capacity::segment_fragmentation(bytes) < least && bytes > MIN_RECORD_BYTES {
        bytes /= 2;
    }
    (bytes, capacity::segment_fragmentation(bytes) as f64)
}

/// Prepares a pool; `None` if the user stopped it. The facts say what was reached.
///
/// # Errors
/// If the state is out of reach, or the pool fails.
pub async fn prepare(
    engine: &Arc<Engine>,
    open: &OpenOptions,
    wanted: &Wanted,
    record_bytes: u64,
    terminal: &mut Terminal<'_>,
) -> Result<Option<BTreeMap<String, String>>, Failure> {
    let failed = |why: String| Failure::failed(format!("weir bench: {}: {why}", engine.name()));
    let (record_bytes, hole_percent) = holed_record(record_bytes, wanted);
    let mut filler = Filler::open(engine, record_bytes).await?;
    let mut measured = Measured::of(engine, open).await?;
    let mut age = "not aged".to_owned();
    let mut left_to_age = wanted.age;
    for _ in 0..MAX_PASSES {
        let work = next(&measured, wanted, filler.bulk_bytes(), hole_percent).map_err(failed)?;
        let goes_on = match work {
            Work::Fill(bytes) => {
                let what = format!("fill the pool to {} %", wanted.fill.unwrap_or_default());
                filler.fill(bytes, &what, terminal).await?
            }
            Work::Empty(bytes) => filler.empty(bytes).await.map(|()| true)?,
            Work::Hole(bytes) => {
                let what = format!("fragment the free space to {} %", wanted.fragment.unwrap_or_default());
                filler.hole(bytes, &what, terminal).await?
            }
            Work::Done => break,
        };
        if !goes_on {
            return Ok(None);
        }
        // The pool is in use before its free space is cut into the wanted pieces, which the use would fill again.
        if let (Some(seconds), Work::Fill(_)) = (left_to_age, work) {
            let Some(aged) = filler.age(seconds, terminal).await? else { return Ok(None) };
            age = aged;
            left_to_age = None;
        }
        settle(engine).await?;
        measured = Measured::of(engine, open).await?;
    }
    if let Some(seconds) = left_to_age {
        let Some(aged) = filler.age(seconds, terminal).await? else { return Ok(None) };
        age = aged;
        settle(engine).await?;
        measured = Measured::of(engine, open).await?;
    }
    let mut facts = measured.facts();
    facts.insert("age".to_owned(), age);
    facts.extend(wanted.fill.map(|percent| ("pool.wanted_fill_percent".to_owned(), percent.to_string())));
    facts.extend(wanted.fragment.map(|percent| ("pool.wanted_fragmentation_percent".to_owned(), percent.to_string())));
    Ok(Some(facts))
}

/// The wanted state that was not reached, as a sentence; `None` if it was.
pub fn shortfall(facts: &BTreeMap<String, String>) -> Option<String> {
    let percent = |key: &str| facts.get(key)?.parse::<u32>().ok();
    let off = |what: &str, key: &str| {
        let wanted = percent(&format!("pool.wanted_{key}_percent"))?;
        let is = percent(&format!("pool.{key}_percent"))?;
        (wanted.abs_diff(is) > MAX_OFF_PERCENT).then(|| format!("{what} {is} % instead of {wanted} %"))
    };
    let parts: Vec<String> =
        [off("fill", "fill"), off("fragmentation", "fragmentation")].into_iter().flatten().collect();
    (!parts.is_empty()).then(|| format!("the wanted state is out of reach: {}", parts.join(", ")))
}

/// Progress of work whose whole is known.
pub struct Whole {
    what: String,
    bytes: u64,
    watch: Stopwatch,
}

impl Whole {
    /// Work of this many bytes that begins now.
    pub fn new(what: &str, bytes: u64) -> Self {
        Self { what: what.to_owned(), bytes: bytes.max(1), watch: Stopwatch::start() }
    }

    /// Shows what is done and the time that is left; `false` if the user stopped it.
    pub fn shows(&self, done: u64, terminal: &mut Terminal<'_>) -> bool {
        let share = (done as f64 / self.bytes as f64).min(1.0);
        let seconds_left = (share > 0.0).then(|| self.watch.seconds() * (1.0 - share) / share);
        terminal.shows(&self.what, share, seconds_left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZE: u64 = 1 << 40;

    /// Executes the work of `next` on a pool of which holes and the rest of the free space are known.
    fn reached(wanted: &Wanted, hole_percent: f64) -> Result<(Measured, usize), String> {
        let mut bulk = 0_f64;
        let mut kept = 0_f64;
        let mut holes = 0_f64;
        for pass in 0..MAX_PASSES {
            let free = SIZE as f64 - bulk - kept;
            let measured = Measured {
                size_bytes: SIZE,
                allocated_bytes: (bulk + kept) as u64,
                fragmentation: Some((hole_percent * holes / free) as u64),
            };
            match next(&measured, wanted, bulk as u64, hole_percent)? {
                Work::Fill(bytes) => bulk += bytes as f64,
                Work::Empty(bytes) => bulk -= bytes as f64,
                Work::Hole(bytes) => {
                    kept += bytes as f64;
                    holes += bytes as f64;
                }
                Work::Done => return Ok((measured, pass)),
            }
            assert!(bulk + kept + holes < SIZE as f64, "more than the pool holds");
        }
        Err("no end".to_owned())
    }

    #[test]
    fn passes_lead_to_the_wanted_fill_and_fragmentation() {
        for (fill, fragment, hole_percent) in
            [(60, 23, 64.0), (60, 23, 83.0), (60, 50, 83.0), (80, 10, 64.0), (30, 1, 71.0)]
        {
            let wanted = Wanted { fill: Some(fill), fragment: Some(fragment), age: None };
            let (measured, passes) = reached(&wanted, hole_percent).unwrap();
            let off = (measured.fill_percent() - f64::from(fill)).abs();
            let fragmentation = measured.fragmentation.unwrap();
            assert!(
                off <= 0.5 && (u64::from(fragment)..=u64::from(fragment) + 2).contains(&fragmentation),
                "{measured:?}"
            );
            assert!(passes < 16, "{passes} passes for {wanted:?}");
        }
        let (measured, passes) = reached(&Wanted { fill: Some(60), ..Wanted::default() }, 64.0).unwrap();
        assert!((measured.fill_percent() - 60.0).abs() < 0.5 && passes == 1, "{measured:?}");
    }

    #[test]
    fn a_state_that_was_not_reached_is_mentioned() {
        let facts = |pairs: [(&str, &str); 4]| {
            pairs.map(|(key, value)| (format!("pool.{key}_percent"), value.to_owned())).into()
        };
        let reached =
            facts([("fill", "59"), ("wanted_fill", "60"), ("fragmentation", "26"), ("wanted_fragmentation", "23")]);
        assert_eq!(shortfall(&reached), None);
        let missed =
            facts([("fill", "60"), ("wanted_fill", "60"), ("fragmentation", "34"), ("wanted_fragmentation", "23")]);
        let text = shortfall(&missed).unwrap();
        assert_eq!(text, "the wanted state is out of reach: fragmentation 34 % instead of 23 %");
        assert_eq!(shortfall(&BTreeMap::new()), None);
    }

    #[test]
    fn what_does_not_fit_into_the_pool_is_refused() {
        let wanted = Wanted { fill: Some(85), fragment: Some(60), age: None };
        assert!(reached(&wanted, 64.0).unwrap_err().contains("60 % at 85 % fill is out of reach"));
    }

    /// A pool without files of the filler, whose holes do not fragment it: nothing may fill it up.
    #[test]
    fn holes_that_do_not_help_never_fill_the_pool() {
        let wanted = Wanted { fragment: Some(30), ..Wanted::default() };
        let mut measured = Measured { size_bytes: SIZE, allocated_bytes: SIZE / 2, fragmentation: Some(1) };
        let mut passes = 0;
        let why = loop {
            match next(&measured, &wanted, 0, 64.0) {
                Ok(Work::Hole(bytes)) => measured.allocated_bytes += bytes * 2,
                Ok(other) => panic!("{other:?} of {measured:?}"),
                Err(why) => break why,
            }
            assert!(measured.fill_percent() <= MAX_ALLOCATED_PERCENT, "{measured:?}");
            passes += 1;
        };
        assert!(passes > 0 && why.contains("out of reach"), "{why}");
    }

    #[test]
    fn holes_are_as_large_as_records_if_these_fragment_enough() {
        let fragment = |percent| Wanted { fragment: Some(percent), ..Wanted::default() };
        assert_eq!(holed_record(128 << 10, &fragment(23)), (128 << 10, 64.0));
        assert_eq!(holed_record(128 << 10, &fragment(34)), (64 << 10, 71.0));
        assert_eq!(holed_record(1 << 20, &fragment(23)), (512 << 10, 50.0));
        assert_eq!(holed_record(16 << 20, &fragment(1)), (1 << 20, 43.0));
        assert_eq!(holed_record(512, &fragment(70)).0, 8 << 10);
    }
}
