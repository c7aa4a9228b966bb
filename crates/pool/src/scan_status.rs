//! Status of scrub and resilver, of removals and RAID-Z expansions, and of the checkpoint.
//!
//! Each has a record in the MOS: `scan` and `com.delphix:removing` are arrays of words in the directory, an expansion
//! is in the ZAP of its vdev, the checkpoint is an uberblock.
//!
//! Source: OpenZFS `include/sys/dsl_scan.h` (`dsl_scan_phys_t`), `include/sys/vdev_removal.h`
//! (`spa_removing_phys_t`), `module/zfs/vdev_raidz.c` (`spa_raidz_expand_get_stats`).

use crate::config::VdevKind;
use crate::error::PoolError;
use crate::indirect;
use crate::open::Pool;
use crate::uberblocks;
use weir_dmu::zap;
use weir_format::ObjectId;
use weir_format::dsl::pool as names;
use weir_format::indirect::MappingEntry;
use weir_machine::Request;

/// Names in a top-level vdev's ZAP (`VDEV_TOP_ZAP_RAIDZ_EXPAND_*`).
const EXPAND: [&str; 4] = [
    "org.openzfs:raidz_expand_state",
    "org.openzfs:raidz_expand_start_time",
    "org.openzfs:raidz_expand_end_time",
    "org.openzfs:raidz_expand_bytes_copied",
];

/// Stage of a scan, removal or expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Stage {
    Running,
    Finished,
    Canceled,
}

impl Stage {
    fn from_word(word: u64) -> Option<Self> {
        match word {
            1 => Some(Stage::Running),
            2 => Some(Stage::Finished),
            3 => Some(Stage::Canceled),
            _ => None,
        }
    }

    /// Name in `zpool status -j`.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Running => "SCANNING",
            Stage::Finished => "FINISHED",
            Stage::Canceled => "CANCELED",
        }
    }
}

/// Position of a scrub by Weir, beside `scan` in the MOS: object set, object, seconds spent, block.
pub const PLACE: &str = "org.weir:scrub";
/// Flag in `scan`: paused (`DSF_SCRUB_PAUSED`).
pub const PAUSED: u64 = 2;
/// When Weir paused a scrub last, beside `scan` in the MOS: seconds since 1970. OpenZFS keeps this in memory only.
pub const PAUSED_AT: &str = "org.weir:scrub_paused";

/// The last scrub or resilver. Times in seconds since 1970, sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Scan {
    /// Whether it is a resilver; otherwise a scrub.
    pub resilver: bool,
    pub stage: Stage,
    pub start_s: u64,
    pub end_s: u64,
    pub to_examine: u64,
    pub examined: u64,
    /// Bytes of blocks that were found: examined, or queued to be read.
    pub found: u64,
    /// Examined bytes that needed no read.
    pub skipped: u64,
    /// Bytes that were repaired or written to the new device.
    pub processed: u64,
    pub errors: u64,
    /// Whether it is paused until it is started again.
    pub paused: bool,
    /// When it was paused; 0 if it is not, or that is not known.
    pub paused_s: u64,
    /// Seconds that Weir spent on it; 0 if another program runs it.
    pub active_s: u64,
    /// Estimated remaining seconds; `None` before a rate is known.
    pub left_s: Option<u64>,
}

/// Estimated remaining seconds of a scan at its average rate; `None` before a rate is known.
pub fn average_left_s(to_examine: u64, examined: u64, active_s: u64) -> Option<u64> {
    let left = u128::from(to_examine.saturating_sub(examined)) * u128::from(active_s);
    let seconds = (active_s >= 1).then(|| left.checked_div(u128::from(examined))).flatten();
    seconds.map(|seconds| u64::try_from(seconds).unwrap_or(u64::MAX))
}

/// Counts of a scan in progress that are ahead of its record in the MOS, which is written every few seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct LiveScan {
    pub examined: u64,
    /// Bytes of blocks that were found and are not read yet.
    pub queued: u64,
    pub processed: u64,
    pub errors: u64,
    pub active_s: u64,
    /// Estimated remaining seconds; `None` before a rate is known.
    pub left_s: Option<u64>,
}

/// The last removal of a top-level vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Removal {
    pub stage: Stage,
    /// Id of the vdev.
    pub vdev: u64,
    pub start_s: u64,
    pub end_s: u64,
    pub to_copy: u64,
    pub copied: u64,
    /// Memory for the mappings of all removed vdevs, in bytes.
    pub mapping_memory: u64,
}

/// The last RAID-Z expansion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Expansion {
    pub stage: Stage,
    /// Id of the vdev.
    pub vdev: u64,
    pub start_s: u64,
    pub end_s: u64,
    /// Bytes to move: all allocated bytes of the vdev.
    pub to_reflow: u64,
    pub reflowed: u64,
}

/// The checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// Time of its creation, in seconds since 1970.
    pub taken_s: u64,
    /// Bytes that only the checkpoint has.
    pub bytes: u64,
}

/// Returns the last scrub or resilver.
pub async fn last_scan(pool: &Pool, rq: &Request) -> Result<Option<Scan>, PoolError> {
    let Some(words) = pool.mos.named_words(rq, names::SCAN).await? else { return Ok(None) };
    let word = |i: usize| words.get(i).copied().unwrap_or(0);
    // 1 is a scrub, 2 a resilver.
    let (1 | 2, Some(stage)) = (word(0), Stage::from_word(word(1))) else { return Ok(None) };
    let own = pool.mos.named_words(rq, PLACE).await?.unwrap_or_default();
    let mut scan = Scan {
        paused: stage == Stage::Running && word(23) & PAUSED != 0,
        paused_s: 0,
        active_s: own.get(2).copied().unwrap_or(0),
        resilver: word(0) == 2,
        stage,
        start_s: word(7),
        end_s: word(8),
        to_examine: word(9),
        examined: word(10),
        found: word(10),
        skipped: word(11),
        processed: word(12),
        errors: word(13),
        left_s: None,
    };
    scan.left_s = average_left_s(scan.to_examine, scan.examined, scan.active_s);
    if scan.paused {
        let paused = pool.mos.named_words(rq, PAUSED_AT).await?.unwrap_or_default();
        // Another program may have continued it since, and paused it again: the position then has other counts than the scan.
        let is_of = |time_s: &&u64| **time_s >= scan.start_s && own.get(5) == Some(&scan.examined);
        scan.paused_s = paused.first().filter(is_of).copied().unwrap_or(0);
    }
    if let Some(live) = pool.live_scan {
        scan.examined = live.examined;
        scan.found = live.examined.saturating_add(live.queued);
        scan.processed = live.processed;
        scan.errors = live.errors;
        scan.active_s = live.active_s;
        scan.left_s = live.left_s;
    }
    Ok(Some(scan))
}

/// Returns the last removal of a top-level vdev.
pub async fn last_removal(pool: &Pool, rq: &Request) -> Result<Option<Removal>, PoolError> {
    let Some(words) = pool.mos.named_words(rq, names::REMOVING).await? else { return Ok(None) };
    let word = |i: usize| words.get(i).copied().unwrap_or(0);
    let Some(stage) = Stage::from_word(word(0)) else { return Ok(None) };
    let mut mapping_memory = 0u64;
    for vdev in indirect::newest_first(&pool.tree).into_iter().filter(|v| v.indirect_object != 0) {
        let (_, entries) = indirect::mapping(rq, &pool.mos, ObjectId(vdev.indirect_object)).await?;
        mapping_memory = mapping_memory.saturating_add((entries.len() * MappingEntry::SIZE) as u64);
    }
    let vdev = word(1);
    let start_s = word(3);
    let end_s = word(4);
    let to_copy = word(5);
    let copied = word(6);
    Ok(Some(Removal { stage, vdev, start_s, end_s, to_copy, copied, mapping_memory }))
}

/// Returns the RAID-Z expansion in progress, or the last one.
pub async fn last_expansion(pool: &Pool, rq: &Request) -> Result<Option<Expansion>, PoolError> {
    let mut last: Option<Expansion> = None;
    for (top, space) in pool.tree.children.iter().zip(&pool.space.vdevs) {
        if !matches!(top.kind, VdevKind::Raidz { .. }) || top.top_zap == 0 {
            continue;
        }
        let mut words = [0; 4];
        for (word, name) in words.iter_mut().zip(EXPAND) {
            *word = zap::lookup_word(rq, &pool.mos.set, ObjectId(top.top_zap), name).await?.unwrap_or(0);
        }
        let [stage, start_s, end_s, reflowed] = words;
        let Some(stage) = Stage::from_word(stage) else { continue };
        // Files may have been removed since they were copied.
        let to_reflow = space.allocated_bytes().max(reflowed);
        let found = Expansion { stage, vdev: top.id, start_s, end_s, to_reflow, reflowed };
        if stage == Stage::Running {
            return Ok(Some(found));
        }
        if last.is_none_or(|l| l.end_s < end_s) {
            last = Some(found);
        }
    }
    Ok(last)
}

/// Returns the checkpoint, if there is one.
pub async fn checkpoint(pool: &Pool, rq: &Request) -> Result<Option<Checkpoint>, PoolError> {
    let Some(words) = pool.mos.named_words(rq, names::CHECKPOINT).await? else { return Ok(None) };
    let taken_s = uberblocks::of_checkpoint(&words).map_or(0, |uberblock| uberblock.timestamp_s);
    Ok(Some(Checkpoint { taken_s, bytes: pool.capacity.checkpoint_bytes }))
}
