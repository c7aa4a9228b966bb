//! `zpool checkpoint`: keeps the present state of a pool, or gives up the one that is kept.

use super::attach::opened;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::{DatasetDirs, PoolDirs};
use clap::Parser;
use weir_engine::checkpoint::{create, discard};

/// Keep the present state of a pool, for 'zpool import --rewind-to-checkpoint'.
#[derive(Debug, Parser)]
#[command(name = "zpool checkpoint", override_usage = "zpool checkpoint [-d [-w]] [--dir DIR]… POOL")]
pub struct CheckpointArgs {
    /// Discard the checkpoint
    #[arg(short = 'd', long)]
    discard: bool,
    /// Wait until it is discarded
    #[arg(short, long)]
    wait: bool,
    #[command(flatten)]
    places: DatasetDirs,
    /// Pool
    #[arg(value_name = "POOL")]
    words: Vec<String>,
}

/// Runs the command. Discarding is part of it: `-w` makes no difference.
pub fn run(call: &Call, args: &CheckpointArgs) -> Result<u8, Failure> {
    let pool = match args.words.as_slice() {
        [] => return Err(CheckpointArgs::misused("missing pool argument")),
        [pool] => pool,
        _ => return Err(CheckpointArgs::misused("too many arguments")),
    };
    if args.wait && !args.discard {
        return Err(CheckpointArgs::misused("--wait only valid when used with --discard"));
    }
    let places = PoolDirs { dirs: args.places.dirs.clone() };
    opened(call, &places, pool)?.with(async |engine| {
        let doing = if args.discard { "discard checkpoint in" } else { "checkpoint" };
        let cannot = |error| Failure::failed(format!("cannot {doing} '{pool}': {error}"));
        if args.discard { discard(engine).await } else { create(engine).await }.map_err(cannot)?;
        engine.log_command(call.line(), call.caller.ids.0).map_err(cannot)
    })?;
    Ok(0)
}
