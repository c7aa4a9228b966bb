//! The options of zdb that open the pool.

use super::{ZdbArgs, blocks, copy, extras, invariants, objects, raw, text};
use crate::args::CommandLine;
use crate::cache_file::CacheFile;
use crate::failure::Failure;
use crate::pools::{keys, search_paths};
use weir_format::Txg;
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool, Rewind};

/// Opens the pool that the first operand names, and runs the options.
pub fn run(machine: &Machine, args: &ZdbArgs) -> Result<u8, Failure> {
    let Some(target) = args.words.first().map(|word| word.to_string_lossy().into_owned()) else {
        return Err(ZdbArgs::misused("name a pool"));
    };
    let pool_name = target.split(['/', '@']).next().unwrap_or(&target).to_owned();
    if pool_name.is_empty() {
        return Err(ZdbArgs::misused(&format!("'{target}' is no name of a pool or dataset")));
    }
    let options = options(args, pool_name)?;
    let pool = machine.block_on(Pool::open(machine, &options))?;
    for warning in &pool.warnings {
        eprintln!("{warning}");
    }
    if args.copy {
        let [_, path, dest] = &args.words[..] else { return Err(ZdbArgs::misused("-r takes DATASET PATH DEST")) };
        return copy::run(machine, &pool, &target, &path.to_string_lossy(), &dest.to_string_lossy());
    }
    if args.read_block {
        return raw::run(machine, &pool, args);
    }
    if args.uberblock {
        print!("\nUberblock:\n{}\n", text::uberblock(&pool.uberblock));
    }
    if args.config {
        print!("\nMOS Configuration:\n{}\n", pool.config.list.to_text(8));
    }
    windows(machine, &pool, args)?;
    let mut code = 0;
    // Objects are shown also without -d.
    if args.datasets > 0 || args.words.len() > 1 {
        code = objects::run(machine, &pool, &target, args)?;
    }
    if args.block_stats > 0 || args.checksum > 0 {
        code = code.max(blocks::run(machine, &pool, args)?);
    }
    if args.invariants {
        code = code.max(invariants::run(machine, &pool)?);
    }
    Ok(code)
}

/// Output of the options that show a part of the pool's state.
fn windows(machine: &Machine, pool: &Pool, args: &ZdbArgs) -> Result<(), Failure> {
    let rq = Request::internal("zdb");
    if args.metaslabs {
        extras::metaslabs(pool, true);
    }
    if args.dedup_stats {
        extras::dedup(pool);
    }
    if args.intent_logs {
        machine.block_on(extras::logs(&rq, pool))?;
    }
    if args.history {
        machine.block_on(extras::history(&rq, pool))?;
    }
    if args.io_stats {
        extras::devices(pool);
    }
    Ok(())
}

/// Parses the options that say which state of the pool to open.
fn options(args: &ZdbArgs, pool: String) -> Result<OpenOptions, Failure> {
    let search = match &args.cache_file {
        Some(path) if args.paths.is_empty() => CacheFile::at(path.clone()).device_paths(),
        _ => search_paths(&args.paths),
    };
    let mut options = OpenOptions::new(search, pool);
    if args.rewind {
        options.rewind = Rewind::Auto;
    }
    if let Some(txg) = &args.txg {
        let txg = txg
            .parse()
            .map_err(|_| ZdbArgs::misused(&format!("-t takes a transaction group's number, not '{txg}'")))?;
        options.rewind = Rewind::Before(Txg(txg));
    }
    options.checkpoint = args.checkpoint;
    options.keys = keys(std::path::Path::new(""), &args.keys)?;
    Ok(options)
}
