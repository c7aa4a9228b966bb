//! Replay of a dataset's intent log on open, and reports of records that cannot be replayed.
//!
//! Each such log causes a log message and an event `ereport.fs.zfs.log_replay`. The objects of discarded records are
//! added to the pool's error log, so that `zpool status -v` names the files that lost changes. The error log is on stable
//! storage before the intent log is destroyed, so a crash between the two repeats the report and does not lose it.

use super::error_log::ErrorLogTask;
use super::events::ErrorReport;
use crate::open_datasets::OpenSet;
use crate::{Engine, TxgSync};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use weir_dmu::{ErrorLocation, ObjectError, ObjectSet};
use weir_format::{ObjectId, Txg};
use weir_machine::Request;
use weir_pool::error::PoolError;
use weir_pool::walk::{LOG_LEVEL, VisitPosition};
use weir_zil::{GiveUp, GivenUp, Replayer};

/// The block number of a spill block in an error log (`DMU_SPILL_BLKID`).
const SPILL: u64 = ErrorLocation::SPILL;

/// Replays the log of `dataset`, which was just opened and has no clients yet.
///
/// # Errors
/// [`ObjectError::LogKept`] if the log cannot be replayed now; [`PoolError::Suspended`].
pub(super) async fn replay(
    engine: &Engine,
    rq: &Request,
    dataset: &str,
    open: &OpenSet,
    replayer: &dyn Replayer,
) -> Result<(), PoolError> {
    let Some(zil) = &open.zil else { return Ok(()) };
    let always = engine.gives_up_logs.load(Ordering::Relaxed);
    let give_up = if always { GiveUp::Always } else { GiveUp::IfLost };
    match zil.replay(rq, &open.set, replayer, give_up).await {
        Ok(replayed) => {
            if let Some(lost) = replayed.given_up {
                report_given_up(engine, rq, dataset, &open.set, &lost).await?;
                zil.give_up(rq, &open.set).await?;
            }
            Ok(())
        }
        Err(error) => {
            if matches!(error, ObjectError::LogKept { .. }) {
                tracing::error!(dataset, %error, "the dataset cannot be opened");
                engine.events.report_dataset(ErrorReport::LogReplay, |list| {
                    list.set("dataset", dataset);
                    list.set("reason", error.to_string().as_str());
                });
            }
            Err(error.into())
        }
    }
}

async fn report_given_up(
    engine: &Engine,
    rq: &Request,
    dataset: &str,
    set: &Arc<ObjectSet>,
    lost: &GivenUp,
) -> Result<(), PoolError> {
    let records = lost.records;
    tracing::warn!(
        dataset,
        records,
        objects = lost.objects.len(),
        "the intent log cannot be replayed to its end; changes that were stable are lost from {lost}"
    );
    engine.events.report_dataset(ErrorReport::LogReplay, |list| {
        list.set("dataset", dataset);
        list.set("zio_objset", set.id().0);
        if let Some(record) = &lost.record {
            list.set("log_record_type", record.kind);
            list.set("log_record_seq", record.seq);
            list.set("log_record_txg", record.txg.0);
            list.set("zio_object", record.object.0);
        }
        list.set("log_records_lost", records);
        list.set("reason", lost.why.as_str());
    });
    let errors = errors_of(rq, set, lost).await;
    let dataset = dataset.to_owned();
    engine
        .sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let mut task = ErrorLogTask(syncing);
                let log = task.name().await;
                if let Err(error) = task.add(log, &errors).await {
                    tracing::warn!(dataset, %error, "the objects that lost changes are not in the pool's error log");
                }
                Ok(())
            })
        })
        .await
}

/// The entries for the error log: the block that cannot be read, and the first block of each other object that lost
/// changes, each with its birth.
async fn errors_of(rq: &Request, set: &Arc<ObjectSet>, lost: &GivenUp) -> Vec<(VisitPosition, Txg)> {
    let mut places: BTreeMap<ObjectId, ErrorLocation> = BTreeMap::new();
    for &object in &lost.objects {
        places.insert(object, ErrorLocation { objset: set.id(), object, level: 0, block: 0 });
    }
    let mut out = Vec::new();
    match lost.place {
        Some(ErrorLocation { objset, object, block, .. }) if lost.record.is_none() => {
            out.push((VisitPosition { objset, object: object.0, level: LOG_LEVEL, block }, Txg(0)));
        }
        Some(place) => _ = places.insert(place.object, place),
        None => {}
    }
    for ErrorLocation { objset, object, level, block } in places.into_values() {
        let birth = birth_of(rq, set, object, level, block).await;
        out.push((VisitPosition { objset, object: object.0, level: level as i8, block }, birth));
    }
    debug_assert!(out.iter().all(|(at, _)| at.objset == set.id()));
    out
}

/// Birth txg of a block; 0 for holes and if its indirect blocks cannot be read.
async fn birth_of(rq: &Request, set: &Arc<ObjectSet>, object: ObjectId, level: u8, block: u64) -> Txg {
    let Ok(found) = set.object(rq, object).await else { return Txg(0) };
    let pointer = match block {
        SPILL => found.dnode.spill,
        block => set.pointers().at(rq, &found, level, block).await.ok().flatten(),
    };
    pointer.map_or(Txg(0), |pointer| pointer.physical_birth())
}
