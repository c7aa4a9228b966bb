//! The options of zdb that open the pool.

use super::{ZdbArgs, blocks, copy, extras, invariants, objects, raw, text};
use crate::args::CommandLine;
use crate::cache_file::CacheFile;
use crate::daemon::Configuration;
use crate::failure::Failure;
use crate::pools::{keys, search_paths};
use std::ffi::OsString;
use std::path::PathBuf;
use weir_format::Txg;
use weir_format::dsl::pool as names;
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool, Rewind, uberblocks};

/// Opens the pool that the first operand names, and runs the options.
pub fn run(machine: &Machine, args: &ZdbArgs) -> Result<u8, Failure> {
    let Some(target) = args.words.first().map(|word| word.to_string_lossy().into_owned()) else {
        return Err(ZdbArgs::misused("name a pool"));
    };
    let pool_name = target.split(['/', '@']).next().unwrap_or(&target).to_owned();
    if pool_name.is_empty() {
        return Err(ZdbArgs::misused(&format!("'{target}' is no name of a pool or dataset")));
    }
    let options = options(args, pool_name.clone())?;
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
    // Without an option that selects, everything is shown once, as by OpenZFS; of a dataset, the dataset.
    let is_default = !args.selects();
    let all = is_default && target == pool_name;
    if args.config || all {
        print!("\nMOS Configuration:\n{}\n", pool.config.list.to_text(8));
    }
    if args.uberblock > 0 || all {
        print!("\nUberblock:\n{}\n", text::uberblock(&pool.uberblock));
    }
    if !args.checkpoint && target == pool_name {
        checkpoint(machine, &pool)?;
    }
    windows(machine, &pool, args)?;
    let mut code = 0;
    // Objects are shown also without -d.
    if args.datasets > 0 || args.words.len() > 1 || is_default {
        code = objects::run(machine, &pool, &target, args)?;
    }
    // Of a dataset or objects, -b is the detail of their pointers, as in OpenZFS.
    let is_of_pool = target == pool_name && args.words.len() == 1;
    if (args.block_stats > 0 || args.checksum > 0 || all) && is_of_pool {
        code = code.max(blocks::run(machine, &pool, args)?);
    }
    if args.invariants {
        code = code.max(invariants::run(machine, &pool)?);
    }
    Ok(code)
}

/// Shows the uberblock of the checkpoint, if there is one (`verify_checkpoint`).
fn checkpoint(machine: &Machine, pool: &Pool) -> Result<(), Failure> {
    let cannot = |error: &dyn std::fmt::Display| Failure::failed(format!("cannot read the checkpoint: {error}"));
    let words = machine.block_on(pool.mos.named_words(&Request::internal("zdb"), names::CHECKPOINT));
    if let Some(words) = words.map_err(|error| cannot(&error))? {
        let found = uberblocks::of_checkpoint(&words).map_err(|error| cannot(&error))?;
        print!("\nCheckpointed uberblock found:\n{}\n", text::uberblock(&found));
    }
    Ok(())
}

/// Output of the options that show a part of the pool's state.
fn windows(machine: &Machine, pool: &Pool, args: &ZdbArgs) -> Result<(), Failure> {
    let rq = Request::internal("zdb");
    if args.metaslabs {
        extras::metaslabs(pool, true);
    }
    if args.metaslab_groups {
        extras::metaslab_groups(pool);
    }
    if args.dedup_stats > 0 {
        machine.block_on(extras::dedup(&rq, pool, args.dedup_stats > 1))?;
    }
    if args.simulates_dedup {
        blocks::simulate_dedup(machine, pool)?;
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

/// The places to look for the pool: those given, else the usual ones and with `-e`, as `zpool import` of a daemon has them, those
/// of the daemon's configuration.
fn with_those_of_the_daemon(args: &ZdbArgs) -> Vec<PathBuf> {
    let mut places = search_paths(&args.paths);
    if args.exported && args.paths.is_empty() {
        // A configuration that cannot be read is for the daemon to report.
        places.extend(Configuration::load(None).ok().and_then(|read| read.pool_dirs).unwrap_or_default());
    }
    places
}

/// Parses the options that say which state of the pool to open.
fn options(args: &ZdbArgs, pool: String) -> Result<OpenOptions, Failure> {
    let search = match &args.cache_file {
        Some(path) if args.paths.is_empty() => CacheFile::at(path.clone()).device_paths(),
        _ => with_those_of_the_daemon(args),
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
    // As in OpenZFS a key alone is that of the dataset that is examined.
    let (named, alone): (Vec<OsString>, Vec<OsString>) =
        args.keys.iter().cloned().partition(|key| key.to_string_lossy().contains('='));
    options.keys = keys(std::path::Path::new(""), &named)?;
    let target = args.words.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default();
    let dataset = target.split('@').next().unwrap_or_default().trim_end_matches('/').to_owned();
    options.keys.extend(alone.into_iter().map(|key| (dataset.clone(), key.into_encoded_bytes())));
    Ok(options)
}
