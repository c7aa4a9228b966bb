//! Pools that OpenZFS made, opened for writing, worked on and given back.

use crate::{real, work, zdb};
use std::path::{Path, PathBuf};
use std::process::Command;
use weir_machine::{Machine, Request};
use weir_pool::engine::ImportOptions;
use weir_pool::{Engine, OpenOptions, Pool, PoolError};

pub fn goldens() -> Option<PathBuf> {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/golden");
    let from = std::env::var_os("WEIR_GOLDEN").map_or(top, PathBuf::from);
    if !from.is_dir() {
        eprintln!("skipped: no goldens in {} (WEIR_GOLDEN)", from.display());
        return None;
    }
    Some(from)
}

pub fn unpack(from: &Path, name: &str) -> PathBuf {
    let dir = real::folder(&format!("golden-{name}"));
    let unpack = "zstd -dc \"$0\" | tar -xSf - -C \"$1\"";
    let archive = from.join(format!("{name}.tar.zst"));
    let status = Command::new("sh").args(["-c", unpack]).arg(archive).arg(&dir).status().unwrap();
    assert!(status.success(), "unpacking {name}");
    dir
}

/// Whether Weir's own walk finds nothing wrong.
fn is_clean(machine: &Machine, dir: &Path) -> bool {
    let rq = &Request::internal("test");
    let options = OpenOptions::new(vec![dir.to_owned()], "");
    let report =
        machine.block_on(async { Pool::open(machine, &options).await?.verify(rq).await.map_err(PoolError::from) });
    report.is_ok_and(|report| report.is_clean())
}

/// Whether the pool has a checkpoint of which every block can be read.
fn checkpoint_is_whole(machine: &Machine, dir: &Path, pool: &str) -> bool {
    let rq = &Request::internal("test");
    let mut options = OpenOptions::new(vec![dir.to_owned()], pool);
    options.checkpoint = true;
    let report =
        machine.block_on(async { Pool::open(machine, &options).await?.verify(rq).await.map_err(PoolError::from) });
    report.is_ok_and(|report| report.unreadable.is_empty())
}

/// Opens a golden for writing, works on it and exports it; `Err` with the reason why it may not be written.
fn judge(from: &Path, name: &str) -> Result<(), String> {
    let dir = unpack(from, name);
    let machine = Machine::production().unwrap();
    let own_name = format!("g-{name}");
    let was_clean = zdb::is_clean(&dir, &own_name) && is_clean(&machine, &dir);
    let was_counted = zdb::is_counted(&dir, &own_name) == Some(true);
    let had_checkpoint = checkpoint_is_whole(&machine, &dir, "");
    let done = machine.block_on(async {
        let mut options = ImportOptions::new(OpenOptions::new(vec![dir.clone()], ""));
        options.force = true;
        let engine = match Engine::import(&machine, &options).await {
            Ok(engine) => engine,
            Err(PoolError::Refused { what }) => return Err(what),
            Err(other) => return Err(format!("error: {other}")),
        };
        let pool = engine.name();
        let worked = match work::history(&engine, &|_| ()).await {
            Ok(()) => work::destroy_all(&engine).await,
            failed => failed,
        };
        let exported = engine.export().await;
        worked.and(exported).map(|()| pool).map_err(|e| format!("error: {e}"))
    });
    // Some were damaged on purpose: those keep their damage, but nothing leaks.
    let outcome = done.and_then(|pool| {
        let rq = &Request::internal("test");
        let options = OpenOptions::new(vec![dir.clone()], &pool);
        let report =
            machine.block_on(async { Pool::open(&machine, &options).await?.verify(rq).await.map_err(PoolError::from) });
        let report = report.map_err(|e| format!("error: {e}"))?;
        let leaks: Vec<_> = report.leaks().take(5).collect();
        if !report.space_agrees() {
            let faults = report.space.as_ref().map(|s| &s.faults);
            return Err(format!(
                "error: clashes {:?} leaks {leaks:x?} {faults:?}",
                report.clashes.iter().take(3).collect::<Vec<_>>()
            ));
        }
        if was_clean && !(report.is_clean() && zdb::is_clean(&dir, &pool)) {
            return Err("error: it is not clean any more".into());
        }
        if was_counted && zdb::is_counted(&dir, &pool) == Some(false) {
            return Err("error: its objects or features are not counted right any more".into());
        }
        if had_checkpoint && !checkpoint_is_whole(&machine, &dir, &pool) {
            return Err("error: what its checkpoint keeps was overwritten".into());
        }
        Ok(())
    });
    std::fs::remove_dir_all(&dir).unwrap();
    outcome
}

/// Tests that share the pools, so that all processors have something to do.
const PARTS: usize = 4;

#[test]
fn pools_of_openzfs_are_written_1() {
    written(0);
}

#[test]
fn pools_of_openzfs_are_written_2() {
    written(1);
}

#[test]
fn pools_of_openzfs_are_written_3() {
    written(2);
}

#[test]
fn pools_of_openzfs_are_written_4() {
    written(3);
}

/// Every so many-th of the pools.
fn written(part: usize) {
    let Some(from) = goldens() else { return };
    let only = std::env::var("WEIR_GOLDEN_ONLY").ok();
    let mut names: Vec<String> = std::fs::read_dir(&from)
        .unwrap()
        .filter_map(|e| e.unwrap().file_name().to_str()?.strip_suffix(".tar.zst").map(str::to_owned))
        .filter(|name| only.as_ref().is_none_or(|only| only.split(',').any(|o| o == name)))
        .collect();
    names.sort();
    let mut failed = Vec::new();
    for name in names.into_iter().skip(part).step_by(PARTS) {
        match judge(&from, &name) {
            Ok(()) => eprintln!("{name}: written"),
            Err(why) if why.starts_with("error") => failed.push(format!("{name}: {why}")),
            Err(why) => eprintln!("{name}: {why}"),
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
