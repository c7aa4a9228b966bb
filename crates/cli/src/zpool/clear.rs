//! `zpool clear`: clears error counters, puts faulted devices back into service, and resumes a suspended pool.

use crate::args::CommandLine;
use crate::call::Call;
use crate::command_target::CommandTarget;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::writable::refused;
use clap::Parser;
use weir_admin::{Action, PoolChange, RefusalKind};

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
    // A relative path of an existing file is one below the caller's folder.
    let absolute = |device: &String| match call.path(device) {
        path if device.contains('/') && path.exists() => path.to_string_lossy().into_owned(),
        _ => device.clone(),
    };
    let change = PoolChange::Clear { devices: devices.iter().map(absolute).collect() };
    CommandTarget::of_pool(call, &args.places, pool)?.with(|target| {
        target.attempt(Action::Pool(change))?.map_err(|refusal| match (refusal.kind, refusal.names.as_slice()) {
            (RefusalKind::Missing, [device]) => {
                Failure::failed(format!("cannot clear errors for {device}: {}", refusal.why))
            }
            _ => refused(&format!("cannot clear errors for {pool}"), refusal),
        })
    })?;
    Ok(0)
}
