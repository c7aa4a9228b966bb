//! Invariants of features: the reference count of each equals its number of uses.
//!
//! ```text
//!   of a dataset          one for each dataset whose ZAP has the feature's name
//!   spacemap_histogram    one for each space map with a header of the second version
//!   extensible_dataset    one for each directory or dataset that is a ZAP as well
//!   empty_bpobj           one for each use of the shared empty list
//!   log_spacemap, async_destroy    1 if their object exists
//! ```
//!
//! Source: OpenZFS `module/zfs/zfeature.c`, `dsl_dataset.c` (`dsl_dataset_activate_feature`), `space_map.c`
//! (`space_map_alloc`), `dmu_object.c` (`dmu_object_zapify`), `bpobj.c` (`bpobj_alloc_empty`).

use super::{Part, Report};
use crate::open::Pool;
use std::collections::BTreeMap;
use weir_dmu::{ObjectError, Objects};
use weir_dsl::deadlist;
use weir_format::dsl::pool as names;
use weir_format::features;
use weir_format::space_map::SpaceMapHeader;
use weir_format::{Dnode, ObjectId, ObjectType};
use weir_machine::Request;

/// Checks the counts of features.
pub(super) async fn check(rq: &Request, pool: &Pool, report: &mut Report) -> Result<(), ObjectError> {
    let mut counts: BTreeMap<&'static str, u64> = BTreeMap::new();
    let empty = pool.mos.named(rq, names::EMPTY_BPOBJ).await?;
    let mut objects = Objects::of(&pool.mos.set);
    while let Some((id, dnode)) = objects.next(rq).await? {
        let Ok(dnode) = dnode else { continue };
        count_object(&dnode, &mut counts);
        if dnode.object_type == ObjectType::DEADLIST
            && let Some(empty) = empty
        {
            let lists = deadlist::lists(rq, &pool.mos.set, id).await;
            let uses = lists.map_or(0, |lists| lists.values().filter(|list| **list == empty).count());
            *counts.entry("empty_bpobj").or_default() += uses as u64;
        }
        if dnode.bonus_type == ObjectType::DSL_DATASET && dnode.object_type.is_zap() {
            count_dataset(rq, pool, id, &mut counts).await;
        }
    }
    let of = |name| async move { Ok::<_, ObjectError>(u64::from(pool.mos.named(rq, name).await?.is_some())) };
    counts.insert("log_spacemap", of(names::LOG_SPACEMAP).await?);
    counts.insert("async_destroy", of(names::BPTREE_OBJ).await?);
    for feature in features::FEATURES {
        // A disabled feature must not be in use.
        let count = pool.features.count(feature.guid).unwrap_or(0);
        let known = matches!(
            feature.name,
            "spacemap_histogram" | "extensible_dataset" | "empty_bpobj" | "log_spacemap" | "async_destroy"
        );
        if known || feature.per_dataset {
            let found = counts.get(feature.name).copied().unwrap_or(0);
            report.demand(count == found, Part::Feature, feature.name, || format!("counted {count}, used {found}"));
        }
    }
    Ok(())
}

fn count_object(dnode: &Dnode, counts: &mut BTreeMap<&'static str, u64>) {
    let has_histogram = usize::from(dnode.bonus_len) == SpaceMapHeader::SIZE;
    if dnode.object_type == ObjectType::SPACE_MAP && has_histogram {
        *counts.entry("spacemap_histogram").or_default() += 1;
    }
    let is_dsl = matches!(dnode.bonus_type, ObjectType::DSL_DIR | ObjectType::DSL_DATASET);
    if is_dsl && dnode.object_type.is_zap() {
        *counts.entry("extensible_dataset").or_default() += 1;
    }
}

async fn count_dataset(rq: &Request, pool: &Pool, id: ObjectId, counts: &mut BTreeMap<&'static str, u64>) {
    let Ok(entries) = pool.mos.numbers(rq, id).await else { return };
    for guid in entries.keys() {
        if let Some(feature) = features::by_guid(guid).filter(|feature| feature.per_dataset) {
            *counts.entry(feature.name).or_default() += 1;
        }
    }
}
