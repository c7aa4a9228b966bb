//! A new GUID for the pool (`zpool reguid`), so that a copy of its devices is another pool.
//!
//! The labels of all devices change with one txg. A power cut in the middle leaves labels with both GUIDs: the new ones count
//! only if an uberblock of their txg was written ([`weir_pool::assemble()`]).
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_change_guid`).

use super::create::layout;
use super::events::PoolEvent;
use super::syncing::TxgSync;
use super::{Engine, attach, config};
use std::collections::BTreeMap;
use weir_machine::invariant;
use weir_pool::error::PoolError;

fn refused(what: impl Into<String>) -> PoolError {
    PoolError::Refused { what: what.into() }
}

/// Gives the pool another GUID: the given one, or a random one. Returns it.
///
/// # Errors
/// [`PoolError::Refused`] if the GUID is 0, a device is not in service, the pool has a checkpoint, or a vdev has that GUID.
pub async fn change_guid(engine: &Engine, given: Option<u64>) -> Result<u64, PoolError> {
    let _one_at_a_time = engine.adding.lock().await;
    engine.vdevs().check_no_checkpoint().await?;
    let guid = given.unwrap_or_else(|| layout::guid(&engine.machine.entropy));
    let root = attach::parsed(&engine.shown().config.root)?;
    if guid == 0 {
        return Err(refused("a GUID is a number from 1 to 18446744073709551615"));
    }
    if root.walk().iter().any(|vdev| vdev.guid == guid) {
        return Err(refused(format!("the GUID {guid} is in use")));
    }
    let tree = engine.cache.blocks().tree();
    let is_absent = |leaf: &&&weir_pool::VdevConfig| !tree.leaf(leaf.guid).is_ok_and(|leaf| leaf.is_in_service());
    if let Some(absent) = root.leaves().iter().find(is_absent) {
        return Err(refused(format!("{} is not in service: its labels would keep the old GUID", absent.name())));
    }
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                syncing.core.config.guid = guid;
                config::set(&mut syncing.core.config.root, "guid", guid.into());
                syncing.core.config_dirty = true;
                Ok(())
            })
        })
        .await?;
    invariant!(engine.shown().config.guid == guid, "the pool has another GUID");
    // Their headers name the former GUID: they begin again.
    engine.cache.l2arc().close().await;
    engine.cache_devices().open(&mut BTreeMap::new()).await;
    engine.events.post(PoolEvent::PoolReguid, |_| {});
    Ok(guid)
}
