//! Roots of a walk over a pool: the MOS, and every dataset from its previous snapshot on.
//!
//! Datasets are found as objects of the MOS, not by name, so that hidden ones (a partially received stream, the origin
//! dataset) are walked as well (OpenZFS `module/zfs/dmu_traverse.c`, `traverse_pool`).

use crate::mos::Mos;
use crate::walk::Root;
use weir_dmu::{ObjectError, Objects};
use weir_format::dsl::DslDataset;
use weir_format::{ObjectType, ObjsetId, Txg};
use weir_machine::Request;

/// Returns the MOS and all datasets, in the order of their objects.
///
/// # Errors
/// [`ObjectError`] if the MOS cannot be listed. A dataset with a malformed object is left out and counted in the second
/// value.
pub async fn roots(rq: &Request, mos: &Mos) -> Result<(Vec<Root>, u64), ObjectError> {
    let mut out = vec![Root { objset: ObjsetId::MOS, pointer: mos.set.pointer(), after: Txg(0), log: false }];
    let (datasets, bad) = datasets(rq, mos, &|_, _| true).await?;
    out.extend(datasets);
    Ok((out, bad))
}

/// Returns the datasets for which `wanted` is true, in the order of their objects, as [`roots`].
///
/// # Errors
/// As [`roots`].
pub async fn datasets(
    rq: &Request,
    mos: &Mos,
    wanted: &(dyn Fn(ObjsetId, &DslDataset) -> bool + Sync),
) -> Result<(Vec<Root>, u64), ObjectError> {
    let mut out = Vec::new();
    let mut bad = 0;
    let mut objects = Objects::of(&mos.set);
    while let Some((id, dnode)) = objects.next(rq).await? {
        let Ok(dnode) = dnode else {
            bad += 1;
            continue;
        };
        if dnode.bonus_type != ObjectType::DSL_DATASET && dnode.object_type != ObjectType::DSL_DATASET {
            continue;
        }
        match DslDataset::decode(dnode.bonus(), dnode.endian) {
            Ok(dataset) if !wanted(ObjsetId(id.0), &dataset) => {}
            Ok(dataset) => out.push(Root {
                objset: ObjsetId(id.0),
                pointer: dataset.pointer,
                after: dataset.prev_snapshot_txg,
                log: !dataset.is_snapshot(),
            }),
            Err(_) => bad += 1,
        }
    }
    Ok((out, bad))
}
