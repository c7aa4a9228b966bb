//! `zpool remove`: devices that a pool gives up: hot spares and cache devices.

use super::attach::opened;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use clap::Parser;
use std::path::Path;
use weir_engine::Engine;
use weir_format::NvList;

/// Remove hot spares and cache devices from a pool.
#[derive(Debug, Parser)]
#[command(name = "zpool remove", override_usage = "zpool remove [-d DIR]… POOL DEVICE…")]
pub struct RemoveArgs {
    #[command(flatten)]
    places: PoolDirs,
    /// Pool and devices
    #[arg(value_name = "POOL DEVICE")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &RemoveArgs) -> Result<u8, Failure> {
    let (pool, devices) = match args.words.as_slice() {
        [] => return Err(RemoveArgs::misused("missing pool name argument")),
        [_] => return Err(RemoveArgs::misused("missing device")),
        [pool, devices @ ..] => (pool, devices),
    };
    opened(call, &args.places, pool)?.with(async |engine| {
        for device in devices {
            let cannot = |why: String| Failure::failed(format!("cannot remove {device}: {why}"));
            let guid = find(engine, device).map_err(cannot)?;
            engine.spares().remove_aux(guid).await.map_err(|error| cannot(error.to_string()))?;
        }
        Ok(engine.log_command(call.line(), call.caller.ids.0)?)
    })?;
    Ok(0)
}

/// The GUID of the hot spare or cache device with that GUID, path or name.
fn find(engine: &Engine, text: &str) -> Result<u64, String> {
    let aux = engine.shown().config.aux;
    let guid = |vdev: &NvList| vdev.get_u64("guid").unwrap_or(0);
    let is_called = |vdev: &&NvList| {
        let path = vdev.get_str("path").unwrap_or_default();
        let name = Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
        guid(vdev).to_string() == text || path == text || name.as_deref() == Some(text)
    };
    if let Some(vdev) = aux.spares.iter().chain(&aux.caches).find(is_called) {
        return Ok(guid(vdev));
    }
    super::attach::find(engine, text)?;
    Err("only hot spares and cache devices can be removed".to_owned())
}
