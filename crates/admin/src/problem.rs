//! Problems of pools, as `zpool status` and `zpool import` show them: status, action, and OpenZFS's message id.
//!
//! ```text
//!   facts about a pool ─► the first problem that applies, the worst first ─► status:, action:, see:
//! ```
//!
//! The order, the conditions and the ids are those of OpenZFS (`lib/libzfs/libzfs_status.c`, `cmd/zpool/zpool_main.c`), with
//! these additions, which have no id: blocks that too few devices have, devices that wait for a resilver, and hot spares that
//! cannot be opened. A suspended pool comes before a resilver, which cannot go on in it. Only problems that concern a choice,
//! such as features that are not enabled, leave a pool healthy for `zpool status -x`.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use weir_machine::{Access, DiskError, Machine};
use weir_pool::assemble::state;
use weir_pool::status::{States, VdevState};
use weir_pool::{FoundPool, Pool, VdevConfig, VdevKind};

/// A problem of a pool (`zpool_status_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the names are those of OpenZFS, in words")]
pub enum Problem {
    SuspendedWaits,
    SuspendedContinues,
    Resilvering,
    BadLog,
    FaultedDevicesBeyondRedundancy,
    MissingDevicesBeyondRedundancy,
    MissingDisksBeyondRedundancy,
    BadLabelsBeyondRedundancy,
    MissingTopLevelVdevs,
    DamagedPool,
    DamagedData,
    LacksBlocks,
    FaultedDevice,
    MissingDevice,
    MissingDisk,
    BadLabel,
    FailingDevice,
    OfflineDevice,
    RemovedDevice,
    RemovedButNeeded,
    AwaitsResilver,
    MissingSpare,
    Errata(u64),
    InUseElsewhere,
    OldVersion,
    DisabledFeatures,
}

impl Problem {
    /// OpenZFS's message id.
    pub fn id(self) -> Option<&'static str> {
        Some(match self {
            Problem::MissingDevice => "ZFS-8000-2Q",
            Problem::MissingDevicesBeyondRedundancy => "ZFS-8000-3C",
            // OpenZFS tells disks that are missing from those with bad labels only for files.
            Problem::BadLabel | Problem::MissingDisk => "ZFS-8000-4J",
            Problem::BadLabelsBeyondRedundancy | Problem::MissingDisksBeyondRedundancy => "ZFS-8000-5E",
            Problem::MissingTopLevelVdevs => "ZFS-8000-6X",
            Problem::DamagedPool => "ZFS-8000-72",
            Problem::DamagedData => "ZFS-8000-8A",
            Problem::FailingDevice => "ZFS-8000-9P",
            Problem::InUseElsewhere => "ZFS-8000-EY",
            Problem::SuspendedWaits => "ZFS-8000-HC",
            Problem::SuspendedContinues => "ZFS-8000-JQ",
            Problem::BadLog => "ZFS-8000-K4",
            Problem::Errata(_) => "ZFS-8000-ER",
            _ => return None,
        })
    }

    /// Address of the page about it.
    pub fn page(self) -> Option<String> {
        self.id().map(|id| format!("https://openzfs.github.io/openzfs-docs/msg/{id}"))
    }

    /// Whether it is worse than something that could be better.
    pub fn is_unhealthy(self) -> bool {
        !matches!(self, Problem::OldVersion | Problem::DisabledFeatures)
    }

    /// Status and action.
    fn texts(self) -> (&'static str, &'static str) {
        match self {
            Problem::SuspendedWaits | Problem::SuspendedContinues => (
                "Writes to one or more devices fail or are not answered; changes of the pool wait.",
                "Bring the devices back, or give them room, then run 'zpool clear'.",
            ),
            Problem::Resilvering => (
                "One or more devices are being resilvered. The pool works meanwhile, possibly with less redundancy.",
                "Wait until the resilver is done.",
            ),
            Problem::BadLog => (
                "A record of the intent log cannot be read, because a log device is missing or damaged.",
                "Bring the device back, or give up the last synchronous writes with 'zpool import -m' or 'zpool clear'.",
            ),
            Problem::FaultedDevicesBeyondRedundancy => (
                "One or more devices are faulted after persistent errors, and too few others are left for the pool to work.",
                "Create the pool anew from a backup. 'zpool clear', which marks the device as repaired, may let some data be read.",
            ),
            Problem::MissingDevicesBeyondRedundancy | Problem::MissingDisksBeyondRedundancy => (
                "One or more devices cannot be opened, and too few others are left for the pool to work.",
                "Bring the missing devices back, and bring them online with 'zpool online'.",
            ),
            Problem::BadLabelsBeyondRedundancy => (
                "One or more devices cannot be used, because their labels are missing or invalid, and too few others are left for the pool to work.",
                "Create the pool anew from a backup, unless the devices that belong there can be found.",
            ),
            Problem::MissingTopLevelVdevs => (
                "One or more top-level vdevs of the pool are missing: none of their devices is there.",
                "Bring the missing devices back.",
            ),
            Problem::DamagedPool => (
                "The metadata of the pool is incomplete or damaged, and the pool cannot be opened.",
                "Try 'zpool import -F', which goes back to an earlier txg, or restore the pool from a backup.",
            ),
            Problem::DamagedData => (
                "Data was damaged beyond repair by errors of one or more devices. Applications may be affected.",
                "Restore the files that 'zpool status -v' lists if possible; otherwise restore the pool from a backup.",
            ),
            Problem::LacksBlocks => (
                "Too few devices are there that have the blocks of some txgs: those cannot be read.",
                "Bring the missing devices back: a resilver gives the others what they lack.",
            ),
            Problem::AwaitsResilver => (
                "One or more devices miss writes: they were away, or failed, while the pool was written. They wait for a resilver.",
                "Keep the other devices until the resilver is done. It begins by itself when a process has the pool open; without one, run 'zpool resilver'.",
            ),
            Problem::RemovedButNeeded => (
                "One or more devices are gone from their paths, and the pool has too few others without them. It goes on with them as it has them open; what only they have is lost when it is closed.",
                "Bring the device back to its path, or copy it with 'zpool attach' or 'zpool replace', before the pool is exported or its process ends.",
            ),
            Problem::MissingSpare => (
                "One or more hot spares cannot be opened.",
                "Bring the spare back, or take it off the pool with 'zpool remove'.",
            ),
            Problem::Errata(_) => {
                ("Errata of software that wrote the pool before were detected.", "See the page about it.")
            }
            Problem::InUseElsewhere => (
                "The pool was last in use by another machine and was not exported.",
                "If no machine uses it any more, import it with 'zpool import -f'.",
            ),
            Problem::OldVersion => (
                "The pool has an old on-disk version. It can be used, but newer features are not available.",
                "Upgrade it with OpenZFS's 'zpool upgrade' if no older software is to read it.",
            ),
            Problem::DisabledFeatures => (
                "Some supported and requested features are not enabled on the pool. It can be used without them.",
                "Enable them with 'zpool set feature@NAME=enabled' if no older software is to read it.",
            ),
            _ => self.device_texts(),
        }
    }

    /// Status and action of problems of devices that redundancy makes up for.
    fn device_texts(self) -> (&'static str, &'static str) {
        match self {
            Problem::FaultedDevice => (
                "One or more devices are faulted after persistent errors and not used. The pool works without them, with less redundancy.",
                "Replace the device with 'zpool replace', or mark it as repaired with 'zpool clear'.",
            ),
            Problem::MissingDevice | Problem::MissingDisk => (
                "One or more devices cannot be opened. The pool works without them, with less redundancy.",
                "Bring the missing device back, and bring it online with 'zpool online', or replace it with 'zpool replace'.",
            ),
            Problem::BadLabel => (
                "One or more devices cannot be used, because their labels are missing or invalid. The pool works without them, with less redundancy.",
                "Replace the device with 'zpool replace'.",
            ),
            Problem::FailingDevice => (
                "One or more devices had errors. What was wrong was read from other copies and corrected where the pool has any; no damaged file is known.",
                "Decide whether the device must be replaced. Then clear the errors with 'zpool clear', or replace it with 'zpool replace'.",
            ),
            Problem::OfflineDevice => (
                "One or more devices were taken offline by the administrator. The pool works without them, with less redundancy.",
                "Bring the device online with 'zpool online', or replace it with 'zpool replace'.",
            ),
            Problem::RemovedDevice => (
                "One or more devices were taken out of the machine. The pool works without them, with less redundancy.",
                "Put the device back and bring it online with 'zpool online', or replace it with 'zpool replace'.",
            ),
            _ => ("", ""),
        }
    }

    /// The problem in a sentence or two.
    pub fn status(self) -> String {
        match self {
            Problem::Errata(number) => format!("Errata #{number} of software that wrote the pool before was detected."),
            other => other.texts().0.to_owned(),
        }
    }

    /// How to repair it.
    pub fn action(self) -> &'static str {
        self.texts().1
    }
}

/// Facts about an open pool that are not in [`Pool`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct PoolFacts {
    /// Number of permanent errors.
    pub errors: u64,
    /// Whether a resilver runs.
    pub resilvers: bool,
    /// Whether a suspended pool fails requests (`failmode=continue`) instead of letting them wait.
    pub fails_requests: bool,
    /// Why devices cannot be opened.
    pub unopened: Unopened,
    /// Whether a cache device cannot be opened.
    pub lacks_cache: bool,
    /// Whether a hot spare cannot be opened.
    pub lacks_spare: bool,
    /// Whether features of new pools are not enabled.
    pub lacks_features: bool,
    /// Whether the on-disk version has no feature flags.
    pub has_old_version: bool,
}

/// The worst problem of an open pool.
pub(crate) fn of_open(pool: &Pool, facts: &PoolFacts) -> Option<Problem> {
    let watched = unreplaced_leaves(&pool.tree);
    let any = |state: VdevState| watched.iter().any(|leaf| pool.states.get(&leaf.guid) == Some(&state));
    let health = pool.blocks.tree().health();
    let has_errors = |leaf: &&VdevConfig| {
        let counts = health.iter().find(|health| health.guid == leaf.guid).map(|health| health.counts);
        counts.is_some_and(|c| c.read_errors > 0 || c.write_errors > 0 || c.checksum_errors > 0)
    };
    let dtls = pool.dtls();
    let is_usable = |guid: &u64| pool.states.get(guid).is_some_and(|state| state.is_usable());
    let conditions = [
        (pool.suspended.is_some() && facts.fails_requests, Problem::SuspendedContinues),
        (pool.suspended.is_some(), Problem::SuspendedWaits),
        (facts.resilvers, Problem::Resilvering),
        (facts.errors > 0, Problem::DamagedData),
        (!pool.lost().is_empty(), Problem::LacksBlocks),
        (health.iter().any(|leaf| leaf.gone), Problem::RemovedButNeeded),
        (any(VdevState::Faulted), Problem::FaultedDevice),
        (any(VdevState::Unavail) && facts.unopened.lacks_file, Problem::MissingDevice),
        (any(VdevState::Unavail) && facts.unopened.has_bad_label, Problem::BadLabel),
        (any(VdevState::Unavail), Problem::MissingDisk),
        (facts.lacks_cache, Problem::MissingDevice),
        (any(VdevState::Degraded) || watched.iter().any(has_errors), Problem::FailingDevice),
        (any(VdevState::Offline), Problem::OfflineDevice),
        (any(VdevState::Removed), Problem::RemovedDevice),
        // Every device that lacks blocks is unavailable, also below a vdev that is being replaced: no resilver can begin.
        (!dtls.is_empty() && !dtls.keys().any(is_usable), Problem::MissingDevice),
        (!dtls.is_empty(), Problem::AwaitsResilver),
        (facts.lacks_spare, Problem::MissingSpare),
        (pool.config.errata != 0, Problem::Errata(pool.config.errata)),
        // Whatever else makes a vdev less than online, such as a removed one below a vdev that is being replaced.
        (pool.state != VdevState::Online, Problem::MissingDevice),
        (facts.has_old_version, Problem::OldVersion),
        (facts.lacks_features, Problem::DisabledFeatures),
    ];
    conditions.into_iter().find(|(applies, _)| *applies).map(|(_, problem)| problem)
}

/// The worst problem of a pool that is not imported.
pub fn problem_of_found(
    pool: &FoundPool,
    root: &VdevConfig,
    found: &FoundStates<'_>,
    own_host: u64,
) -> Option<Problem> {
    let any = |state: VdevState| root.leaves().iter().any(|leaf| found.all.get(&leaf.guid) == Some(&state));
    let is_beyond = found.health == VdevState::Unavail;
    let lacks_log = root.children.iter().any(|top| {
        top.class == weir_pool::Class::Log && !found.all.get(&top.guid).is_some_and(|state| state.is_usable())
    });
    let conditions = [
        (root.children.iter().any(|top| top.kind == VdevKind::Missing), Problem::MissingTopLevelVdevs),
        (is_beyond && any(VdevState::Faulted), Problem::FaultedDevicesBeyondRedundancy),
        (is_beyond && found.unopened.lacks_file, Problem::MissingDevicesBeyondRedundancy),
        (is_beyond && found.unopened.has_bad_label, Problem::BadLabelsBeyondRedundancy),
        (is_beyond, Problem::MissingDisksBeyondRedundancy),
        (lacks_log, Problem::BadLog),
        (any(VdevState::Faulted), Problem::FaultedDevice),
        (any(VdevState::Unavail) && found.unopened.lacks_file, Problem::MissingDevice),
        (any(VdevState::Unavail) && found.unopened.has_bad_label, Problem::BadLabel),
        (any(VdevState::Unavail), Problem::MissingDisk),
        (any(VdevState::Degraded), Problem::FailingDevice),
        (any(VdevState::Offline), Problem::OfflineDevice),
        (any(VdevState::Removed), Problem::RemovedDevice),
        (found.misses_writes, Problem::AwaitsResilver),
        (
            pool.config.state == state::ACTIVE && pool.config.hostid.is_some_and(|host| host != own_host),
            Problem::InUseElsewhere,
        ),
        (pool.config.errata != 0, Problem::Errata(pool.config.errata)),
    ];
    conditions.into_iter().find(|(applies, _)| *applies).map(|(_, problem)| problem)
}

/// States of a pool that is not imported, by its labels.
pub struct FoundStates<'a> {
    /// State of the pool.
    pub health: VdevState,
    /// States of the vdevs.
    pub all: &'a States,
    /// Why devices cannot be opened.
    pub unopened: Unopened,
    /// Whether labels of devices are older than those of others.
    pub misses_writes: bool,
}

/// Leaves whose problems are shown: below a vdev that is being replaced, they are about to end.
fn unreplaced_leaves(vdev: &VdevConfig) -> Vec<&VdevConfig> {
    if vdev.is_leaf() {
        return vec![vdev];
    }
    let below = if vdev.kind == VdevKind::Replacing { &[][..] } else { &vdev.children };
    below.iter().flat_map(unreplaced_leaves).collect()
}

/// Kinds of the reasons why devices cannot be opened, which decide OpenZFS's message ids.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unopened {
    /// Whether a file is missing (`VDEV_AUX_OPEN_FAILED`, which OpenZFS on Linux sets for files alone).
    pub lacks_file: bool,
    /// Whether there is a device whose labels are not those of the pool.
    pub has_bad_label: bool,
}

/// Why leaves cannot be used, by their GUID, if they are not just missing; and whether files are.
#[derive(Clone, Debug, Default)]
pub struct OpenErrors {
    why: BTreeMap<u64, String>,
    lacks_file: bool,
}

/// A device without labels of the pool.
const BAD_LABEL: &str = "invalid label";

impl OpenErrors {
    /// Opens the paths of the leaves that cannot be used.
    pub fn of(machine: &Machine, root: &VdevConfig, states: &States) -> Self {
        let gone: Vec<&VdevConfig> =
            root.leaves().into_iter().filter(|leaf| states.get(&leaf.guid) == Some(&VdevState::Unavail)).collect();
        let why = |leaf: &VdevConfig| match machine.disks.open(leaf.path.as_deref()?.as_ref(), Access::ReadOnly) {
            Ok(_) => Some(BAD_LABEL.to_owned()),
            Err(DiskError::Open { errno: ENOENT, .. }) => None,
            Err(DiskError::Open { errno, .. }) => Some(std::io::Error::from_raw_os_error(errno).to_string()),
            Err(error) => Some(error.to_string()),
        };
        let is_bad = |why: &str| why == BAD_LABEL;
        let found: Vec<(&VdevConfig, Option<String>)> = gone.into_iter().map(|leaf| (leaf, why(leaf))).collect();
        let is_missing = |(leaf, why): &(&VdevConfig, Option<String>)| {
            leaf.kind == VdevKind::File && !why.as_deref().is_some_and(is_bad)
        };
        let lacks_file = found.iter().any(is_missing);
        OpenErrors { why: found.into_iter().filter_map(|(leaf, why)| Some((leaf.guid, why?))).collect(), lacks_file }
    }

    /// The reason of a leaf.
    pub fn get(&self, guid: u64) -> Option<&str> {
        self.why.get(&guid).map(String::as_str)
    }

    /// Kinds of the reasons.
    pub fn kinds(&self) -> Unopened {
        Unopened { lacks_file: self.lacks_file, has_bad_label: self.why.values().any(|why| why == BAD_LABEL) }
    }
}

/// "No such file or directory".
const ENOENT: i32 = 2;
