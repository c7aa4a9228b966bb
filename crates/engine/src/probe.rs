//! Devices in service that are looked at again: whether they are still at their paths, with the labels of this pool.
//!
//! ```text
//!   zpool reopen, online, offline; start of a scrub; an error of the device
//!      ─► its path opened anew ─► labels with its GUID, as new as those of the open device?
//!            ├─ yes: it stays in service
//!            ├─ no, and the pool has all blocks without it ─► lost: it counts as missing, so that hot spares and
//!            │                                                autoreplace step in, and comes back by itself
//!            └─ no, and the pool needs it ─► it stays in service, because its open file still has what no other device has;
//!                                            it is shown as REMOVED until its path leads to it again
//! ```
//!
//! Until it is looked at, a device whose file was removed or renamed is used through its open file, as in OpenZFS. The state
//! that `zpool status` shows is that of the engine.
//!
//! OpenZFS closes a device that fails the look in any case, and suspends the pool if it needs it.
//!
//! Source: OpenZFS `module/zfs/vdev.c` (`vdev_reopen`, `vdev_validate`, `vdev_probe`), `module/zfs/dsl_scan.c`
//! (`dsl_scan`, which reopens all vdevs first).

use super::Vdevs;
use super::events::ErrorReport;
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use weir_format::{NvList, Txg};
use weir_machine::{Disk, invariant};
use weir_pool::config::{VdevConfig, VdevKind};
use weir_pool::error::PoolError;
use weir_pool::label::{self, Labels};
use weir_pool::scan;

/// Time for a device to return its labels. One that hangs is not lost: see [`super::supervision`].
const PROBE_TIME: Duration = Duration::from_secs(10);
/// How often labels are compared that a txg may have written between two reads.
const COMPARISONS: usize = 3;
/// `vdev_state_t` of events: `VDEV_STATE_CANT_OPEN`, `VDEV_STATE_HEALTHY`.
const CANT_OPEN: u64 = 4;
const HEALTHY: u64 = 7;

/// Why a device is lost.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Loss {
    /// The path cannot be opened.
    Path(String),
    /// The path leads to something without labels of the device, or with older ones.
    Label,
}

impl Loss {
    fn report(&self) -> ErrorReport {
        match self {
            Loss::Path(_) => ErrorReport::VdevOpenFailed,
            Loss::Label => ErrorReport::VdevBadLabel,
        }
    }
}

/// Txgs of the newest configuration and of the newest uberblock.
fn newest(labels: &Labels) -> (Txg, Option<Txg>) {
    (labels.txg(), labels.ring.iter().map(|slot| slot.uberblock.txg).max())
}

/// Whether the leaf has a device at its path: a distributed spare has none.
fn has_device(leaf: &VdevConfig) -> bool {
    leaf.kind != VdevKind::DraidSpare
}

impl Vdevs<'_> {
    /// Looks at the chosen leaves that are in service, and takes those out of service that are lost and that the pool does not
    /// need. Returns their GUIDs.
    ///
    /// # Errors
    /// Errors of parsing the configuration.
    pub async fn probe(&self, is_chosen: impl Fn(u64) -> bool) -> Result<Vec<u64>, PoolError> {
        let bad = |source| PoolError::Decode { what: "the vdev tree".into(), source };
        let root = VdevConfig::parse(&self.engine.shown().config.root).map_err(bad)?;
        let mut losses = Vec::new();
        for leaf in root.leaves().into_iter().filter(|leaf| has_device(leaf) && is_chosen(leaf.guid)) {
            // A device that hangs has to be waited for; it holds up no other change of the vdevs.
            let looked = self.look_at(leaf);
            let late = self.engine.machine.clock.sleep(PROBE_TIME);
            match futures_util::future::select(pin!(looked), pin!(late)).await {
                futures_util::future::Either::Left((Some(loss), _)) => losses.push((leaf.guid, loss)),
                futures_util::future::Either::Left((None, _)) => self.set_gone(leaf.guid, false),
                futures_util::future::Either::Right(_) => {}
            }
        }
        if losses.is_empty() {
            return Ok(Vec::new());
        }
        let _one_at_a_time = self.engine.adding.lock().await;
        let root = VdevConfig::parse(&self.engine.shown().config.root).map_err(bad)?;
        Ok(losses.into_iter().filter(|(guid, loss)| self.lose(&root, *guid, loss)).map(|(guid, _)| guid).collect())
    }

    /// Takes a lost device out of service, unless the pool needs it.
    fn lose(&self, root: &VdevConfig, guid: u64, loss: &Loss) -> bool {
        let Ok(leaf) = self.engine.cache.blocks().tree().leaf(guid) else { return false };
        let why = match loss {
            Loss::Path(why) => why.as_str(),
            Loss::Label => "what is at its path has no labels of this device",
        };
        if self.is_required(root, guid) {
            if leaf.set_gone(true) {
                tracing::error!(device = leaf.name(), why, "lost, but kept in service, because the pool needs it");
                self.engine.events.report(loss.report(), Some(guid));
            }
            return false;
        }
        if !leaf.lose() {
            return false;
        }
        invariant!(!leaf.is_in_service() && leaf.disk().is_none(), "a device that is lost is in service");
        tracing::error!(device = leaf.name(), why, "lost: out of service");
        self.engine.events.report(loss.report(), Some(guid));
        self.engine.events.post_state_change(guid, HEALTHY, CANT_OPEN);
        true
    }

    fn set_gone(&self, guid: u64, is_gone: bool) {
        if let Ok(leaf) = self.engine.cache.blocks().tree().leaf(guid)
            && leaf.set_gone(is_gone)
        {
            tracing::info!(device = leaf.name(), "is at its path again");
        }
    }

    /// Why a leaf in service is lost; `None` if it is not, or if that cannot be found out.
    async fn look_at(&self, config: &VdevConfig) -> Option<Loss> {
        let leaf = self.engine.cache.blocks().tree().leaf(config.guid).ok().filter(|leaf| leaf.is_in_service())?;
        let open = leaf.disk()?;
        let mut loss = None;
        // A device may be at another path than its configuration says; its name is that of the path.
        let mut paths: Vec<PathBuf> = config.path.iter().map(PathBuf::from).collect();
        paths.push(PathBuf::from(leaf.name().rsplit_once(':').map_or(leaf.name(), |(path, _)| path)));
        paths.push(PathBuf::from(leaf.name()));
        paths.dedup();
        for path in paths {
            match scan::probe(&self.engine.machine, &path).await {
                Ok(found) => {
                    for device in found {
                        if self.is_same(config.guid, &open, &device.disk).await {
                            return None;
                        }
                    }
                    loss = Some(Loss::Label);
                }
                Err(PoolError::Disk { source, .. }) if source.lacks_descriptors() => return None,
                Err(error) => loss = loss.or_else(|| Some(Loss::Path(error.to_string()))),
            }
        }
        loss
    }

    /// Whether the disk that was opened anew is the open one: it has the labels of the device, and the same ones.
    async fn is_same(&self, guid: u64, open: &Arc<dyn Disk>, anew: &Arc<dyn Disk>) -> bool {
        let pool = self.engine.shown().config.guid;
        let is_it = |list: &NvList| list.get_u64("guid") == Some(guid) && list.get_u64("pool_guid") == Some(pool);
        for _ in 0..COMPARISONS {
            let found = label::read(anew).await;
            if !found.best().is_some_and(is_it) {
                return false;
            }
            if newest(&found) == newest(&label::read(open).await) {
                return true;
            }
        }
        false
    }
}
