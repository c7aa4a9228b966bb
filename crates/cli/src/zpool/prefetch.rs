//! `zpool prefetch`: reads tables of shared blocks into the ARC.

use super::attach::opened;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use clap::Parser;
use weir_engine::prefetch::{PrefetchType, prefetch};

/// Read dedup and block reference tables into memory.
///
/// They stay in the ARC of the process that has the pool open.
#[derive(Debug, Parser)]
#[command(name = "zpool prefetch", override_usage = "zpool prefetch [-t ddt | brt] [-d DIR]… POOL")]
pub struct PrefetchArgs {
    /// Tables to read: ddt or brt; default: both
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool
    #[arg(value_name = "POOL")]
    words: Vec<String>,
}

/// Runs the command. It returns when the tables are read.
pub fn run(call: &Call, args: &PrefetchArgs) -> Result<u8, Failure> {
    let pool = match args.words.as_slice() {
        [] => return Err(PrefetchArgs::misused("missing pool name argument")),
        [pool] => pool,
        _ => return Err(PrefetchArgs::misused("too many arguments")),
    };
    let kinds: &[PrefetchType] = match args.kind.as_deref() {
        None => &[PrefetchType::Ddt, PrefetchType::Brt],
        Some("ddt") => &[PrefetchType::Ddt],
        Some("brt") => &[PrefetchType::Brt],
        Some(_) => return Err(PrefetchArgs::misused("unsupported prefetch type")),
    };
    let cannot = |why: String| Failure::failed(format!("cannot prefetch '{pool}': {why}"));
    opened(call, &args.places, pool)?.with_pool(|writable| {
        if writable.served_pool().is_none() {
            return Err(cannot("no process has it open, so that nothing would stay in memory".into()));
        }
        for kind in kinds {
            let done = writable.machine.block_on(prefetch(&writable.engine, *kind));
            done.map_err(|error| cannot(error.to_string()))?;
        }
        Ok(0)
    })
}
