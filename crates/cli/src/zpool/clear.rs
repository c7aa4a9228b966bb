//! `zpool clear`: clears error counters, puts faulted devices back into service, and resumes a suspended pool.

use super::target;
use crate::args::CommandLine;
use crate::call::Call;
use crate::command_target::CommandTarget;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::writable::refused;
use clap::Parser;
use std::collections::VecDeque;
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
    // The process that has the pool open knows the vdevs, and this one the caller's folder.
    let mut names: Vec<VecDeque<String>> = devices.iter().map(|device| target::names_of(call, device).into()).collect();
    CommandTarget::of_pool(call, &args.places, pool)?.with(|target| {
        loop {
            let change =
                PoolChange::Clear { devices: names.iter().filter_map(|names| names.front().cloned()).collect() };
            let Err(refusal) = target.attempt(Action::Pool(change))? else { return Ok(()) };
            let missing = match (refusal.kind, refusal.names.as_slice()) {
                (RefusalKind::Missing, [missing]) => names.iter().position(|names| names.front() == Some(missing)),
                _ => None,
            };
            let Some(missing) = missing else {
                return Err(refused(&format!("cannot clear errors for {pool}"), refusal));
            };
            let others = names.get_mut(missing).filter(|names| names.len() > 1);
            if others.and_then(VecDeque::pop_front).is_none() {
                let device = devices.get(missing).map_or("", String::as_str);
                return Err(Failure::failed(format!("cannot clear errors for {device}: {}", refusal.why)));
            }
        }
    })?;
    Ok(0)
}
