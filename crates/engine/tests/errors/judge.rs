//! Checks that a pool holds all promised state, and nothing that was never written.

use crate::acknowledged_state::{ATOMIC_BYTES, Known, Slot, UNIT, Units, bytes_of};
use crate::world::{FILES, VOLUME, import, verify};
use std::sync::Arc;
use weir_engine::Engine;
use weir_files::FileSystem;
use weir_format::ObjectId;
use weir_machine::{Machine, Request};

/// Imports the pool, compares its contents with the acknowledged state, exports and verifies it.
pub async fn judge(machine: &Machine, known: &Known) -> Result<(), String> {
    let rq = Request::internal("judge");
    let engine = import(machine).await.map_err(|e| format!("import: {e}"))?;
    let files = engine.file_system(&rq, FILES).await.map_err(|e| format!("{FILES}: {e}"))?;
    judge_names(&files, known).await?;
    drop(files);
    let volume = engine.volume(&rq, VOLUME).await.map_err(|e| format!("{VOLUME}: {e}"))?;
    let bytes = volume.read(&rq, 0, volume.size_bytes() as usize).await.map_err(|e| format!("{VOLUME}: {e}"))?;
    explain(&bytes, &known.volume).map_err(|why| format!("{VOLUME}: {why}"))?;
    drop(volume);
    judge_datasets(&engine, known).await?;
    engine.export().await.map_err(|e| format!("export: {e}"))?;
    verify(machine).await
}

async fn judge_names(files: &FileSystem, known: &Known) -> Result<(), String> {
    let rq = Request::internal("judge");
    let entries =
        files.directories().read_dir(&rq, files.root(), 0, 10_000).await.map_err(|e| format!("{FILES}: {e}"))?;
    let mut found = std::collections::BTreeMap::new();
    for entry in entries {
        found.insert(String::from_utf8_lossy(&entry.name).into_owned(), entry.object);
    }
    if let Some(name) = found.keys().find(|name| !known.names.contains_key(*name)) {
        return Err(format!("{name} was never created"));
    }
    for (name, slot) in &known.names {
        match found.get(name) {
            None if slot.allowed().contains(&None) => {}
            None => return Err(format!("{name} is lost")),
            Some(object) => judge_file(files, *object, slot, known).await.map_err(|why| format!("{name}: {why}"))?,
        }
    }
    Ok(())
}

/// Checks whether one of the files that the name may refer to explains the contents.
async fn judge_file(
    files: &FileSystem,
    object: ObjectId,
    slot: &Slot<Option<usize>>,
    known: &Known,
) -> Result<(), String> {
    let bytes =
        files.contents().read(&Request::internal("judge"), object, 0, 1 << 20).await.map_err(|e| e.to_string())?;
    let mut why = "the name should not exist".to_owned();
    for file in slot.allowed().iter().flatten() {
        match explain(&bytes, &known.files[*file]) {
            Ok(()) => return Ok(()),
            Err(other) => why = other,
        }
    }
    Err(why)
}

/// Checks that each unit has an allowed version. Bytes beyond the end count as zeros.
fn explain(bytes: &[u8], units: &Units) -> Result<(), String> {
    if bytes.len() > units.len() * UNIT {
        return Err(format!("{} bytes, of {} units", bytes.len(), units.len()));
    }
    let mut all = bytes.to_vec();
    all.resize(units.len() * UNIT, 0);
    for (n, (slot, found)) in units.iter().zip(all.chunks(UNIT)).enumerate() {
        let allowed: Vec<Vec<u8>> = slot.allowed().iter().map(|version| bytes_of(*version, n)).collect();
        if allowed.iter().any(|version| version == found) {
            continue;
        }
        let words = found.chunks(ATOMIC_BYTES).enumerate();
        let is_right =
            |(at, word): (usize, &[u8])| allowed.iter().any(|v| &v[at * ATOMIC_BYTES..][..ATOMIC_BYTES] == word);
        if let Some(at) = words.into_iter().position(|word| !is_right(word)) {
            let versions = slot.allowed();
            return Err(format!(
                "word {at} of unit {n} ({} bytes in all) is none of versions {versions:?}",
                bytes.len()
            ));
        }
    }
    Ok(())
}

async fn judge_datasets(engine: &Arc<Engine>, known: &Known) -> Result<(), String> {
    let rq = Request::internal("judge");
    let dsl = engine.synced().dsl(&rq).await.map_err(|e| e.to_string())?;
    for (name, slot) in &known.datasets {
        let is_there = dsl.find(&rq, name).await.is_ok();
        if !slot.allowed().contains(&is_there) {
            return Err(format!("{name} is {}", if is_there { "unexpected" } else { "lost" }));
        }
    }
    Ok(())
}
