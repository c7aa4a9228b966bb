//! Holds on snapshots (OpenZFS `module/zfs/dsl_userhold.c`): a snapshot with a hold cannot be destroyed. Temporary
//! holds are also in a ZAP of the pool, and are released at the next import.

use super::{DslError, DslSyncContext, destroy, history, names};
use std::collections::BTreeSet;
use weir_dmu::zap::Zap;
use weir_format::dsl::pool;
use weir_format::{DslDataset, ObjectId, ObjectType};

/// Maximum length of a tag in bytes (`MAXNAMELEN` less the NUL).
const MAX_TAG_LEN: usize = 255;

/// Maximum accepted number of temporary holds.
const MAX_TEMPORARY_HOLDS: usize = 1 << 20;

/// Name of a temporary hold in the pool's ZAP: the snapshot and the tag.
fn temporary_name(id: ObjectId, tag: &str) -> String {
    format!("{:x}-{tag}", id.0)
}

/// Checks that holds `(snapshot, tag)` may be added.
///
/// # Errors
/// [`DslError::Missing`], [`DslError::Exists`] (the snapshot has the tag already), [`DslError::Name`].
pub async fn check_holds(cx: &mut DslSyncContext<'_>, holds: &[(String, String)]) -> Result<(), DslError> {
    let mut seen = BTreeSet::new();
    for (name, tag) in holds {
        let found = names::find_snapshot(cx, name).await?;
        if tag.is_empty() || tag.len() > MAX_TAG_LEN {
            return Err(DslError::Name { name: tag.clone(), why: "a tag has 1 to 255 bytes" });
        }
        let there = found.phys.user_refs.0 != 0 && cx.word(found.phys.user_refs, tag).await?.is_some();
        if there || !seen.insert((found.id, tag)) {
            return Err(DslError::Exists { name: format!("{name} (tag {tag})") });
        }
    }
    Ok(())
}

/// Adds holds, all or none. `temporary` ones are released at the next import of the pool.
///
/// # Errors
/// Those of [`check_holds`], before anything was changed.
pub async fn hold(cx: &mut DslSyncContext<'_>, holds: &[(String, String)], temporary: bool) -> Result<(), DslError> {
    check_holds(cx, holds).await?;
    for (name, tag) in holds {
        let mut found = names::find_snapshot(cx, name).await?;
        if found.phys.user_refs.0 == 0 {
            found.phys.user_refs = cx.zap(ObjectType::USERREFS).await?;
            cx.put_dataset(found.id, &found.phys).await?;
        }
        cx.insert_word(found.phys.user_refs, tag, cx.now_s).await?;
        if temporary {
            let zap = match cx.pool_object(pool::TMP_USERREFS).await? {
                Some(zap) => zap,
                None => cx.zap_linked(ObjectType::USERREFS, super::DIRECTORY, pool::TMP_USERREFS).await?,
            };
            cx.insert_word(zap, &temporary_name(found.id, tag), cx.now_s).await?;
        }
        let text = format!("tag={tag} temp={} refs={}", u8::from(temporary), destroy::holds_on(cx, &found.phys).await?);
        history::log(cx, name, found.id, "hold", &text).await?;
    }
    Ok(())
}

/// Checks that holds may be released.
///
/// # Errors
/// [`DslError::Missing`]: the snapshot or its tag does not exist, or is named twice.
pub async fn check_releases(cx: &mut DslSyncContext<'_>, holds: &[(String, String)]) -> Result<(), DslError> {
    let mut seen = BTreeSet::new();
    for (name, tag) in holds {
        let found = names::find_snapshot(cx, name).await?;
        let there = found.phys.user_refs.0 != 0 && cx.word(found.phys.user_refs, tag).await?.is_some();
        if !there || !seen.insert((found.id, tag)) {
            return Err(DslError::Missing { name: format!("{name} (tag {tag})") });
        }
        if found.phys.flags & DslDataset::DEFER_DESTROY != 0 && (cx.reading)(found.id) {
            return Err(DslError::busy(name, "it is being read, and would go with its last hold"));
        }
    }
    Ok(())
}

/// Releases holds, all or none. Destroys a snapshot that is marked for deferred destruction and has no hold left.
///
/// # Errors
/// Those of [`check_releases`], before anything was changed.
pub async fn release(cx: &mut DslSyncContext<'_>, holds: &[(String, String)]) -> Result<(), DslError> {
    check_releases(cx, holds).await?;
    for (name, tag) in holds {
        let found = names::find_snapshot(cx, name).await?;
        release_one(cx, name, found.id, tag).await?;
    }
    Ok(())
}

/// Releases the temporary holds. The import calls this once.
///
/// # Errors
/// Errors of reading and writing the MOS.
pub async fn drop_temporary_holds(cx: &mut DslSyncContext<'_>) -> Result<(), DslError> {
    let Some(zap) = cx.pool_object(pool::TMP_USERREFS).await? else { return Ok(()) };
    let entries = Zap::open(cx.rq, &cx.mos, zap).await?.all(cx.rq, MAX_TEMPORARY_HOLDS).await?;
    for entry in entries {
        let name = entry.key.text();
        let held = name.split_once('-').and_then(|(id, tag)| Some((u64::from_str_radix(id, 16).ok()?, tag)));
        let Some((id, tag)) = held else { continue };
        let id = ObjectId(id);
        match cx.dataset(id).await {
            Ok(phys) if phys.user_refs.0 != 0 && cx.word(phys.user_refs, tag).await?.is_some() => {
                release_one(cx, &format!("snapshot {id}"), id, tag).await?;
            }
            // The snapshot or the hold is gone already.
            _ => drop(cx.zap_remove(zap, &name).await?),
        }
    }
    Ok(())
}

async fn release_one(cx: &mut DslSyncContext<'_>, name: &str, id: ObjectId, tag: &str) -> Result<(), DslError> {
    let phys = cx.dataset(id).await?;
    cx.zap_remove(phys.user_refs, tag).await?;
    if let Some(zap) = cx.pool_object(pool::TMP_USERREFS).await? {
        cx.zap_remove(zap, &temporary_name(id, tag)).await?;
    }
    let left = destroy::holds_on(cx, &phys).await?;
    history::log(cx, name, id, "release", &format!("tag={tag} refs={left}")).await?;
    let deferred = phys.flags & DslDataset::DEFER_DESTROY != 0;
    if left == 0 && deferred && phys.children == 1 {
        history::log(cx, name, id, "destroy", "").await?;
        destroy::destroy_snapshot(cx, id).await?;
    }
    Ok(())
}
