//! `zpool clear`: clears error counters, puts faulted devices back into service, and resumes a suspended pool.

use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::pools::search;
use crate::writable::{WritablePool, WriteIntent};
use clap::Parser;
use std::path::Path;
use weir_blocks::vdev::LeafHealth;
use weir_pool::PoolError;

/// Clear the errors of a pool or of its devices, and resume a suspended pool.
#[derive(Debug, Parser)]
#[command(name = "zpool clear", override_usage = "zpool clear [-d DIR]… POOL [DEVICE]…")]
pub struct ClearArgs {
    #[command(flatten)]
    places: PoolDirs,
    /// Pool, and devices by name, path or GUID; default: all devices
    #[arg(value_name = "POOL [DEVICE]")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &ClearArgs) -> Result<u8, Failure> {
    let [pool, devices @ ..] = args.words.as_slice() else { return Err(ClearArgs::misused("missing pool name")) };
    let intent = WriteIntent { search: search(call, &args.places.dirs)?, pool: pool.clone(), ..WriteIntent::default() };
    WritablePool::of_call(call, &intent)?.with(async |engine| {
        let health = engine.cache.blocks().tree().health();
        let mut chosen = Vec::new();
        for device in devices {
            let found = health.iter().find(|leaf| is_called(leaf, device));
            let none = || Failure::failed(format!("cannot clear errors for {device}: no such device in pool"));
            chosen.push(Some(found.ok_or_else(none)?.guid));
        }
        if chosen.is_empty() {
            chosen.push(None);
        }
        for leaf in chosen {
            engine.clear(leaf).await.map_err(|error| match error {
                PoolError::Refused { what } => Failure::failed(format!("cannot clear errors for {pool}: {what}")),
                other => other.into(),
            })?;
        }
        Ok(())
    })?;
    Ok(0)
}

/// Whether a leaf has that GUID, name or path, or its path ends in that name.
fn is_called(leaf: &LeafHealth, device: &str) -> bool {
    let file_name = |path: &str| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
    leaf.guid.to_string() == device || leaf.name == device || file_name(&leaf.name).as_deref() == Some(device)
}
