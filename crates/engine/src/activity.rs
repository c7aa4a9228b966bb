//! Activities of a pool that take long, for which administrators wait (`zpool wait`).
//!
//! Source: OpenZFS `include/sys/fs/zfs.h` (`zpool_wait_activity_t`), `module/zfs/spa.c` (`spa_activity_in_progress`).

use super::attach::parsed;
use super::{Engine, Synced, checkpoint};
use std::collections::BTreeSet;
use weir_machine::Request;
use weir_pool::config::VdevKind;
use weir_pool::error::PoolError;
use weir_pool::initialize_trim::LeafActivity;

/// An activity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Activity {
    /// A checkpoint is being discarded.
    Discard,
    /// Destroyed datasets are being freed.
    Free,
    /// Devices are being initialized.
    Initialize,
    /// A device is being replaced by another one, or a hot spare by the original.
    Replace,
    /// A top-level vdev is being removed.
    Remove,
    /// Devices are being given the blocks that they lack.
    Resilver,
    /// All blocks are being verified.
    Scrub,
    /// The free space of devices is being trimmed.
    Trim,
    /// A RAID-Z vdev is being expanded.
    RaidzExpand,
}

impl Activity {
    /// All activities, in the order of OpenZFS.
    pub const ALL: [Activity; 9] = [
        Activity::Discard,
        Activity::Free,
        Activity::Initialize,
        Activity::Replace,
        Activity::Remove,
        Activity::Resilver,
        Activity::Scrub,
        Activity::Trim,
        Activity::RaidzExpand,
    ];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Activity::Discard => "discard",
            Activity::Free => "free",
            Activity::Initialize => "initialize",
            Activity::Replace => "replace",
            Activity::Remove => "remove",
            Activity::Resilver => "resilver",
            Activity::Scrub => "scrub",
            Activity::Trim => "trim",
            Activity::RaidzExpand => "raidz_expand",
        }
    }
}

impl Synced<'_> {
    /// The activities in progress. A paused scrub is none.
    ///
    /// # Errors
    /// Errors of reading the MOS.
    pub async fn activities(&self, rq: &Request) -> Result<BTreeSet<Activity>, PoolError> {
        let mut out = BTreeSet::new();
        let mut add = |activity, is_in_progress: bool| {
            if is_in_progress {
                out.insert(activity);
            }
        };
        let scan = self.engine.scrubs().progress(rq).await?.filter(|scan| scan.is_open() && !scan.is_paused());
        add(
            Activity::Resilver,
            scan.as_ref().is_some_and(|scan| scan.is_resilver()) || self.engine.rebuilds().is_unfinished(rq).await?,
        );
        add(Activity::Scrub, scan.as_ref().is_some_and(|scan| !scan.is_resilver()));
        add(Activity::Initialize, !self.engine.initialize_trim().running(LeafActivity::Initialize).is_empty());
        add(Activity::Trim, !self.engine.initialize_trim().running(LeafActivity::Trim).is_empty());
        add(Activity::Free, self.engine.shown().freeing.left_bytes > 0);
        add(Activity::Replace, is_replacing(self.engine)?);
        add(Activity::Remove, self.engine.vdev_removals().is_running().await?);
        add(Activity::RaidzExpand, self.engine.expansions().vdev()?.is_some());
        add(Activity::Discard, checkpoint::is_discarding(self.engine, rq).await?);
        Ok(out)
    }
}

/// Whether a device of the pool is about to be detached because another one supersedes it (`vdev_replace_in_progress`).
fn is_replacing(engine: &Engine) -> Result<bool, PoolError> {
    let root = parsed(&engine.shown().config.root)?;
    let is_superseded = |vdev: &&weir_pool::VdevConfig| match vdev.kind {
        VdevKind::Replacing => true,
        VdevKind::Spare => vdev.children.iter().any(|child| child.unspare),
        _ => false,
    };
    Ok(root.walk().iter().any(is_superseded))
}
