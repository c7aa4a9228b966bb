//! State of the vdevs of a pool: health, space, errors, and passes over their free space.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`print_status_config`), `include/sys/fs/zfs.h` (`vdev_stat_t`, `vdev_aux_t`).

use super::vdev_space::{CLASSES, VdevGroup, spare_state};
use crate::problem::OpenErrors;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;
use weir_blocks::Blocks;
use weir_engine::cache_devices::CacheDeviceStats;
use weir_pool::aux_devices::cache_state;
use weir_pool::dtls::Dtls;
use weir_pool::initialize_trim::{LeafActivity, LeafActivityState, LeafProgress, percent};
use weir_pool::status::{States, VdevState};
use weir_pool::{Class, Pool, VdevConfig, VdevKind, sizes};

/// Health of a vdev.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
#[allow(missing_docs, reason = "the names are those of OpenZFS")]
pub enum VdevHealth {
    Online,
    Degraded,
    Offline,
    Removed,
    Faulted,
    Unavail,
    /// A hot spare that is not in use.
    Avail,
    /// A hot spare that replaces a device.
    InUse,
}

impl From<VdevState> for VdevHealth {
    fn from(state: VdevState) -> Self {
        match state {
            VdevState::Online => VdevHealth::Online,
            VdevState::Degraded => VdevHealth::Degraded,
            VdevState::Offline => VdevHealth::Offline,
            VdevState::Removed => VdevHealth::Removed,
            VdevState::Faulted => VdevHealth::Faulted,
            VdevState::Unavail => VdevHealth::Unavail,
        }
    }
}

impl fmt::Display for VdevHealth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VdevHealth::Online => "ONLINE",
            VdevHealth::Degraded => "DEGRADED",
            VdevHealth::Offline => "OFFLINE",
            VdevHealth::Removed => "REMOVED",
            VdevHealth::Faulted => "FAULTED",
            VdevHealth::Unavail => "UNAVAIL",
            VdevHealth::Avail => "AVAIL",
            VdevHealth::InUse => "INUSE",
        })
    }
}

/// Why a vdev has its health (`vs_aux`), where the health does not say it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthReason {
    /// An administrator or another program declared the device as faulted or degraded.
    External,
    /// The device had too many errors.
    TooManyErrors,
    /// Too few of the vdevs below it can be used.
    InsufficientReplicas,
}

/// Errors of a leaf or cache device since the pool was opened, or since they were cleared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdevErrors {
    /// Reads that failed.
    pub reads: u64,
    /// Writes that failed.
    pub writes: u64,
    /// Blocks whose checksum did not match.
    pub checksums: u64,
    /// Operations that took longer than the limit of slow ones.
    pub slow: u64,
}

impl VdevErrors {
    /// Whether an operation failed, or a checksum did not match.
    pub fn any(&self) -> bool {
        self.reads > 0 || self.writes > 0 || self.checksums > 0
    }
}

/// Space of the root, of a top-level vdev with data, or of a cache device, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdevStatusSpace {
    /// Allocated bytes.
    pub allocated_bytes: u64,
    /// Bytes that can be allocated.
    pub size_bytes: u64,
    /// Bytes that can be allocated, without parity; 0 for a cache device.
    pub deflated_bytes: u64,
    /// Bytes that only the checkpoint references.
    pub checkpoint_bytes: u64,
}

/// State of a pass over the free space of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeafPassState {
    /// There was none.
    None,
    /// In progress.
    Active,
    /// Canceled.
    Canceled,
    /// Suspended until it is started again.
    Suspended,
    /// Done.
    Complete,
}

impl From<LeafActivityState> for LeafPassState {
    fn from(state: LeafActivityState) -> Self {
        match state {
            LeafActivityState::None => LeafPassState::None,
            LeafActivityState::Active => LeafPassState::Active,
            LeafActivityState::Canceled => LeafPassState::Canceled,
            LeafActivityState::Suspended => LeafPassState::Suspended,
            LeafActivityState::Complete => LeafPassState::Complete,
        }
    }
}

/// A pass over the free space of a leaf: initialization or trim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeafPass {
    /// State of the pass.
    pub state: LeafPassState,
    /// Percentage of the free space over which it has passed.
    pub percent: u64,
    /// Time of its start, or of its end if it is complete, in seconds since 1970.
    pub time_s: u64,
}

/// A vdev with those below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdevStatus {
    /// GUID of the vdev.
    pub guid: u64,
    /// Number of the vdev among those below its parent.
    pub id: u64,
    /// Name of the vdev; the pool's of the root.
    pub name: String,
    /// Type of the vdev as in its label, for example `mirror` or `file`.
    pub kind: String,
    /// Whether it is a leaf.
    pub is_leaf: bool,
    /// Path of its device, if its label has one.
    pub path: Option<String>,
    /// Id of its device (`devid`), if its label has one.
    pub devid: Option<String>,
    /// Group of the vdev, also of one below a top-level vdev; `None` for the root, for removed vdevs and for holes.
    pub group: Option<VdevGroup>,
    /// Health of the vdev.
    pub health: VdevHealth,
    /// Reason of the health, if it is known.
    pub reason: Option<HealthReason>,
    /// Why a leaf cannot be opened, if it is not just missing.
    pub open_error: Option<String>,
    /// Txgs whose blocks the leaf misses (its DTL), as text: `12-17,20`.
    pub missing_txgs: Option<String>,
    /// Errors of a leaf or cache device of an open pool.
    pub errors: Option<VdevErrors>,
    /// Usable bytes of its device, if it is a leaf whose device is in use.
    pub device_bytes: Option<u64>,
    /// Minimum bytes that a replacement of it must have, in a pool that is open; 0 if that is unknown.
    pub needed_bytes: u64,
    /// Space, if it is the root, a top-level vdev with data or a cache device, of a pool that is open.
    pub space: Option<VdevStatusSpace>,
    /// Whether it is a top-level vdev that is being removed.
    pub removing: bool,
    /// Whether it is a top-level vdev on which nothing new is allocated.
    pub non_allocating: bool,
    /// Size of a cache device as a multiple of the ARC's, if that is too large for its index ([`oversized`]).
    pub oversized_by: Option<u64>,
    /// The last initialization of a leaf.
    pub initialized: Option<LeafPass>,
    /// The last trim of a leaf.
    pub trimmed: Option<LeafPass>,
    /// Vdevs below it.
    pub children: Vec<VdevStatus>,
}

/// States of the vdevs of a pool.
#[derive(Clone, Copy)]
pub struct VdevFacts<'a> {
    /// States of the vdevs.
    pub states: &'a States,
    /// DTLs of the leaves.
    pub dtls: &'a Dtls,
    /// Why leaves cannot be used.
    pub open_errors: &'a OpenErrors,
}

impl VdevStatus {
    /// The vdevs of a pool by its configuration: names and states, but no counters, which only an open pool has.
    pub fn of_found(name: &str, state: VdevState, root: &VdevConfig, facts: VdevFacts<'_>) -> Self {
        let top = |top: &VdevConfig| VdevStatus::of(top, group_of(top), facts);
        VdevStatus {
            name: name.to_owned(),
            health: state.into(),
            reason: None,
            children: root.children.iter().map(top).collect(),
            ..VdevStatus::of(&VdevConfig { children: Vec::new(), ..root.clone() }, None, facts)
        }
    }

    /// The vdevs of an open pool. `passes` are the passes over its leaves, by kind.
    pub(super) fn of_open(
        pool: &Pool,
        open_errors: &OpenErrors,
        passes: &[(LeafActivity, BTreeMap<u64, LeafProgress>)],
    ) -> Self {
        let dtls = pool.dtls();
        let facts = VdevFacts { states: &pool.states, dtls: &dtls, open_errors };
        let mut root = VdevStatus::of_found(pool.name(), pool.state, &pool.tree, facts);
        let open = OpenFacts { pool, errors: errors_of_leaves(&pool.blocks) };
        let mut whole =
            VdevStatusSpace { allocated_bytes: pool.capacity.allocated_bytes, ..VdevStatusSpace::default() };
        let tops = pool.tree.children.iter().zip(&pool.space.vdevs);
        for (status, (top, space)) in root.children.iter_mut().zip(tops) {
            open.add(status, top, sizes::of_top(top));
            for leaf in status.leaves_mut() {
                for (kind, progress) in passes {
                    let pass = progress.get(&leaf.guid).map(|progress| LeafPass {
                        state: progress.state.into(),
                        percent: percent(top, space, progress),
                        time_s: progress.time_s,
                    });
                    match kind {
                        LeafActivity::Initialize => leaf.initialized = pass,
                        LeafActivity::Trim => leaf.trimmed = pass,
                    }
                }
            }
            if !top.is_concrete() {
                continue;
            }
            status.removing = top.removing;
            status.non_allocating = top.non_allocating;
            let of_top = VdevStatusSpace {
                allocated_bytes: space.allocated_bytes(),
                size_bytes: space.space_bytes(),
                deflated_bytes: top.deflate(space.space_bytes()),
                checkpoint_bytes: space.checkpoint_bytes,
            };
            status.space = Some(of_top);
            if top.class != Class::Log {
                whole.size_bytes = whole.size_bytes.saturating_add(of_top.size_bytes);
                whole.deflated_bytes = whole.deflated_bytes.saturating_add(of_top.deflated_bytes);
            }
        }
        root.space = Some(whole);
        root
    }

    /// The vdevs of a pool of which only what is in memory is known: their states, and the errors of the leaves.
    pub(super) fn of_memory(
        name: &str,
        state: VdevState,
        tree: &VdevConfig,
        facts: VdevFacts<'_>,
        blocks: &Blocks,
    ) -> Self {
        let mut root = VdevStatus::of_found(name, state, tree, facts);
        let errors = errors_of_leaves(blocks);
        for leaf in root.children.iter_mut().flat_map(VdevStatus::leaves_mut) {
            leaf.errors = errors.get(&leaf.guid).copied();
        }
        root
    }

    /// A hot spare of an open pool.
    pub(super) fn of_spare(pool: &Pool, spare: &VdevConfig) -> Self {
        let health = match spare_state(pool, spare) {
            "INUSE" => VdevHealth::InUse,
            "AVAIL" => VdevHealth::Avail,
            _ => VdevHealth::Unavail,
        };
        VdevStatus { group: Some(VdevGroup::Spare), health, ..VdevStatus::plain(spare) }
    }

    /// A cache device of an open pool.
    pub(super) fn of_cache(pool: &Pool, cache: &VdevConfig) -> Self {
        let device = pool.aux.get(&cache.guid).map(|d| sizes::usable_device(d.disk.geometry().size_bytes));
        let (state, stats) = cache_state(pool, cache);
        let arc_bytes = pool.cache.stats().sizes.budget_bytes;
        let space = VdevStatusSpace {
            allocated_bytes: stats.as_ref().map_or(0, |stats| stats.used_bytes),
            size_bytes: sizes::of_cache(device.unwrap_or(0), cache.ashift),
            ..VdevStatusSpace::default()
        };
        VdevStatus {
            group: Some(VdevGroup::Cache),
            health: state.into(),
            errors: stats.as_ref().map(errors_of_cache),
            device_bytes: device,
            needed_bytes: device.unwrap_or(0),
            space: Some(space),
            oversized_by: stats.and_then(|stats| oversized(stats.size_bytes, arc_bytes)),
            ..VdevStatus::plain(cache)
        }
    }

    /// The vdev alone, online.
    fn plain(vdev: &VdevConfig) -> Self {
        VdevStatus {
            guid: vdev.guid,
            id: vdev.id,
            name: vdev.name(),
            kind: vdev.kind.type_name().to_owned(),
            is_leaf: vdev.is_leaf(),
            path: vdev.path.clone(),
            devid: vdev.devid.clone(),
            group: None,
            health: VdevHealth::Online,
            reason: None,
            open_error: None,
            missing_txgs: None,
            errors: None,
            device_bytes: None,
            needed_bytes: 0,
            space: None,
            removing: false,
            non_allocating: false,
            oversized_by: None,
            initialized: None,
            trimmed: None,
            children: Vec::new(),
        }
    }

    /// The vdev and those below it, with the states that `facts` has.
    fn of(vdev: &VdevConfig, group: Option<VdevGroup>, facts: VdevFacts<'_>) -> Self {
        let state = facts.states.get(&vdev.guid).copied().unwrap_or(VdevState::Unavail);
        VdevStatus {
            group,
            health: state.into(),
            reason: reason(vdev, state),
            open_error: facts.open_errors.get(vdev.guid).map(str::to_owned),
            missing_txgs: facts.dtls.get(&vdev.guid).map(ToString::to_string),
            children: vdev.children.iter().map(|child| VdevStatus::of(child, group, facts)).collect(),
            ..VdevStatus::plain(vdev)
        }
    }

    fn leaves_mut(&mut self) -> Vec<&mut VdevStatus> {
        if self.is_leaf {
            return vec![self];
        }
        self.children.iter_mut().flat_map(VdevStatus::leaves_mut).collect()
    }
}

/// Facts about its vdevs that only an open pool knows.
struct OpenFacts<'a> {
    pool: &'a Pool,
    errors: BTreeMap<u64, VdevErrors>,
}

impl OpenFacts<'_> {
    /// Adds sizes and errors to a vdev with `bytes` allocatable bytes, and to those below it.
    fn add(&self, status: &mut VdevStatus, vdev: &VdevConfig, bytes: u64) {
        debug_assert_eq!(status.guid, vdev.guid);
        status.errors = self.errors.get(&vdev.guid).copied();
        // A device that is offline is not opened.
        let device = self.pool.devices.get(&vdev.guid).filter(|_| status.health != VdevHealth::Offline);
        status.device_bytes = device.map(|d| sizes::usable_device(d.disk.geometry().size_bytes));
        status.needed_bytes = if vdev.is_leaf() { sizes::of_device(bytes) } else { bytes };
        let bytes = sizes::of_child(vdev, bytes);
        for (below, child) in status.children.iter_mut().zip(&vdev.children) {
            self.add(below, child, bytes);
        }
    }
}

/// Number of times by which a cache device is larger than the ARC, if it is so large that its index may need more memory than it
/// may have: more than ten times.
pub fn oversized(device_bytes: u64, arc_bytes: u64) -> Option<u64> {
    let is_too_large = device_bytes > arc_bytes.saturating_mul(MAX_ARC_FACTOR);
    is_too_large.then(|| device_bytes / arc_bytes.max(1))
}

/// Maximum size of a cache device as a multiple of the ARC's whose index fits.
const MAX_ARC_FACTOR: u64 = 10;

/// The group of a top-level vdev; `None` for a removed one and for a hole.
fn group_of(top: &VdevConfig) -> Option<VdevGroup> {
    let is_there = !matches!(top.kind, VdevKind::Hole | VdevKind::Indirect);
    CLASSES.into_iter().find(|(class, _)| is_there && *class == top.class).map(|(_, group)| group)
}

fn reason(vdev: &VdevConfig, state: VdevState) -> Option<HealthReason> {
    match state {
        VdevState::Faulted | VdevState::Degraded if vdev.is_leaf() => match vdev.aux_state.as_deref() {
            Some("external") => Some(HealthReason::External),
            // A device that has just been taken out of service: the txg with the reason is on its way.
            None if state == VdevState::Faulted => None,
            _ => Some(HealthReason::TooManyErrors),
        },
        VdevState::Unavail if !vdev.children.is_empty() => Some(HealthReason::InsufficientReplicas),
        _ => None,
    }
}

/// Errors of each leaf.
fn errors_of_leaves(blocks: &Blocks) -> BTreeMap<u64, VdevErrors> {
    let health = blocks.tree().health().into_iter();
    let errors = health.map(|leaf| {
        let counts = leaf.counts;
        let errors = VdevErrors {
            reads: counts.read_errors,
            writes: counts.write_errors,
            checksums: counts.checksum_errors,
            slow: counts.slow,
        };
        (leaf.guid, errors)
    });
    errors.collect()
}

fn errors_of_cache(stats: &CacheDeviceStats) -> VdevErrors {
    VdevErrors { reads: stats.read_errors, writes: stats.write_errors, checksums: stats.checksum_errors, slow: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_device_is_too_large_beyond_ten_times_the_arc() {
        assert_eq!(oversized(10 << 30, 1 << 30), None);
        assert_eq!(oversized(30 << 30, 1 << 30), Some(30));
        assert_eq!(oversized(7, 0), Some(7));
    }
}
