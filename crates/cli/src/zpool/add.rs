//! `zpool add`: more vdevs for a pool, also while it is in use.

use super::devices;
use super::opened::words;
use crate::args::Spec;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::locks::lock;
use crate::pools::search;
use crate::size;
use crate::writable::{WritablePool, WriteIntent};
use std::ffi::OsString;
use weir_engine::create::Layout;
use weir_engine::{Engine, VdevAddRequest};

const SPEC: Spec = Spec {
    command: "zpool add",
    letters: "fno:d:",
    long: &[],
    usage: "zpool add [-fn] [-o ashift=N] [-d DIR]… POOL [mirror|raidz[1-3]|log|cache|special|dedup|spare] DEVICE…",
};

/// Runs the command.
pub fn run(call: &Call, line: Vec<OsString>) -> Result<u8, Failure> {
    let args = SPEC.parse(line)?;
    let words = words(&args);
    let Some((pool, rest)) = words.split_first() else { return Err(SPEC.misused("missing pool name argument")) };
    if rest.is_empty() {
        return Err(SPEC.misused("missing vdev specification"));
    }
    let vdevs = devices::parse(&call.caller.folder, rest)?;
    let mut more = VdevAddRequest { force: args.has('f'), ..VdevAddRequest::default() };
    for given in args.values('o') {
        let text = given.to_string_lossy();
        let shift = text.strip_prefix("ashift=").and_then(size::parse).filter(|shift| (9..=16).contains(shift));
        let why = || SPEC.misused(&format!("'{text}': the one property is ashift, from 9 to 16"));
        more.ashift = Some(shift.ok_or_else(why)?);
    }
    let intent = WriteIntent { search: search(call, args.values('d'))?, pool: pool.clone(), ..WriteIntent::default() };
    let writable = WritablePool::of_call(call, &intent)?;
    let served_pool = writable.served_pool().cloned();
    writable.with(async |engine| {
        if let Some(mismatch) = vdevs.mismatch(&present(engine)).filter(|_| !args.has('f')) {
            return Err(Failure::failed(format!(
                "invalid vdev specification\nuse '-f' to override the following errors:\n{mismatch}"
            )));
        }
        if args.has('n') {
            outln!(call, "would add to '{pool}':\n\n{}", devices::shown(pool, &vdevs));
            return Ok(());
        }
        let locks = lock(pool, vdevs.paths())?;
        (more.tops, more.caches, more.spares) = (vdevs.tops, vdevs.caches, vdevs.spares);
        let failed = |error| Failure::failed(format!("cannot add to '{pool}': {error}"));
        engine.add_vdevs(&more).await.map_err(failed)?;
        if let Some(served_pool) = served_pool {
            served_pool.also_has(locks);
        }
        engine.log_command(call.line(), call.caller.ids.0).await.map_err(failed)
    })?;
    Ok(0)
}

/// The layouts of the ordinary vdevs that the pool has, each with its number of devices.
fn present(engine: &Engine) -> Vec<(Layout, usize)> {
    let config = engine.shown().config;
    let ordinary = config.tops().iter().filter(|top| {
        let special = top.get_u64("is_log").is_some_and(|log| log != 0) || top.get_str("alloc_bias").is_some();
        !special && !matches!(top.get_str("type"), Some("hole" | "indirect" | "missing"))
    });
    let shape = |top: &weir_format::NvList| {
        let count = top.get_list_array("children").map_or(1, <[_]>::len);
        match top.get_str("type") {
            Some("mirror") => (Layout::Mirror, count),
            Some("raidz") => (Layout::Raidz(top.get_u64("nparity").unwrap_or(1) as u8), count),
            _ => (Layout::Single, 1),
        }
    };
    ordinary.map(shape).collect()
}
