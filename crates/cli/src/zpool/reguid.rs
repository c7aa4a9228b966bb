//! `zpool reguid`: another GUID for a pool.

use super::attach::opened;
use crate::args::CommandLine;
use crate::cache_file::CacheFile;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use clap::Parser;
use weir_engine::reguid::change_guid;

/// Give a pool another GUID, for example to a copy of its devices.
#[derive(Debug, Parser)]
#[command(name = "zpool reguid", override_usage = "zpool reguid [-g GUID] [-d DIR]… POOL")]
pub struct ReguidArgs {
    /// The GUID, in decimal; default: a random one
    #[arg(short, value_name = "GUID", allow_hyphen_values = true)]
    guid: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool
    #[arg(value_name = "POOL")]
    words: Vec<String>,
}

/// A GUID: scripts whose numbers have a sign write large ones as negative numbers (`strtoull`).
fn guid_of(text: &str) -> Option<u64> {
    text.parse::<u64>().ok().or_else(|| text.parse::<i64>().ok().map(i64::cast_unsigned))
}

/// Runs the command.
pub fn run(call: &Call, args: &ReguidArgs) -> Result<u8, Failure> {
    let pool = match args.words.as_slice() {
        [] => return Err(ReguidArgs::misused("missing pool name")),
        [pool] => pool,
        _ => return Err(ReguidArgs::misused("too many arguments")),
    };
    let invalid =
        |text: &String| ReguidArgs::misused(&format!("invalid GUID '{text}': it is a number from 1 to {}", u64::MAX));
    let guid = args
        .guid
        .as_ref()
        .map(|text| guid_of(text).filter(|guid| *guid != 0).ok_or_else(|| invalid(text)))
        .transpose()?;
    opened(call, &args.places, pool)?.with_pool(|opened| {
        let engine = &opened.engine;
        let former = engine.shown().config.guid;
        let cannot = |error| Failure::failed(format!("cannot reguid '{pool}': {error}"));
        opened.machine.block_on(change_guid(engine, guid)).map_err(cannot)?;
        engine.log_command(call.line(), call.caller.ids.0).map_err(cannot)?;
        let file = CacheFile::usual();
        let is_cached = |file: &CacheFile| file.pools().is_ok_and(|pools| pools.iter().any(|pool| pool.guid == former));
        if let Some(file) = file.filter(is_cached) {
            file.put_instead(Some(former), engine)?;
        }
        Ok(())
    })?;
    Ok(0)
}
