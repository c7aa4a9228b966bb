//! `weir zdb`: examines and verifies a pool.
//!
//! The options are zdb's. The output differs where Weir's form is easier to read; lines that scripts parse are zdb's.
//! Exit codes: 0 no error found, 1 failure, 2 invalid command line, or leaks or violated invariants found, 3 unreadable
//! blocks.

mod blocks;
mod copy;
mod extras;
mod invariants;
mod label;
mod objects;
mod pool;
mod ranges;
mod raw;
pub(crate) mod select;
pub(crate) mod text;

use crate::args::CommandLine;
use crate::cache_file::CacheFile;
use crate::failure::Failure;
use clap::{ArgAction, Parser};
use std::ffi::OsString;

/// Examine and verify a pool without changing it.
///
/// Exit code: 0 no error found, 1 failure, 2 invalid command line, or leaked blocks or violated invariants, 3
/// unreadable blocks.
#[derive(Debug, Parser)]
#[command(
    name = "zdb",
    disable_help_flag = true,
    override_usage = "zdb [-e] [-p DIR]… [-bcCdDFhikLmMsuZ] [-t TXG] POOL[/DATASET] [OBJECT | PATH]…\n       zdb --invariants [-e] [-p DIR]… POOL\n       zdb -l [-qu] DEVICE\n       zdb [-e] [-p DIR]… -r DATASET PATH DEST\n       zdb [-e] [-p DIR]… -R POOL VDEV:OFFSET:SIZE[/PSIZE][:FLAGS]\n       zdb [-C] [-U FILE]"
)]
pub struct ZdbArgs {
    /// Accepted for compatibility; has no effect
    #[arg(short = 'A')]
    _a: bool,
    /// Walk all blocks and compare them with the space maps; repeat for statistics by type and level
    #[arg(short = 'b', long = "block-stats", action = ArgAction::Count)]
    block_stats: u8,
    /// Walk all blocks and verify the checksums of metadata; repeated, also of data
    #[arg(short = 'c', long = "checksum", action = ArgAction::Count)]
    checksum: u8,
    /// Show the configuration in the MOS
    #[arg(short = 'C', long = "config")]
    config: bool,
    /// Show datasets and objects; repeat for more detail
    #[arg(short = 'd', long = "datasets", action = ArgAction::Count)]
    datasets: u8,
    /// Show the dedup tables; twice, also their entries by number of references
    #[arg(short = 'D', long = "dedup-stats", action = ArgAction::Count)]
    dedup_stats: u8,
    /// Look for the pool also where the daemon does; pools need not be imported without it either
    #[arg(short = 'e', long = "exported")]
    exported: bool,
    /// If the last txg is unreadable, open an earlier one
    #[arg(short = 'F', long = "automatic-rewind")]
    rewind: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'G')]
    _g: bool,
    /// Show the history of the pool
    #[arg(short = 'h', long = "history")]
    history: bool,
    /// Show the intent logs
    #[arg(short = 'i', long = "intent-logs")]
    intent_logs: bool,
    /// Open the state of the checkpoint
    #[arg(short = 'k', long = "checkpointed-state")]
    checkpoint: bool,
    /// Show the labels of a device, equal ones once; three times, each label
    #[arg(short = 'l', long = "label", action = ArgAction::Count)]
    label: u8,
    /// Do not compare the space maps with the blocks in use
    #[arg(short = 'L', long = "disable-leak-tracking")]
    no_leak_tracking: bool,
    /// Show the metaslabs
    #[arg(short = 'm', long = "metaslabs")]
    metaslabs: bool,
    /// Show the fragmentation of the vdevs and of the pool
    #[arg(short = 'M', long = "metaslab-groups")]
    metaslab_groups: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'N')]
    _n: bool,
    /// Show exact numbers
    #[arg(short = 'P', long = "parseable")]
    parsable: bool,
    /// With -l: do not show the labels
    #[arg(short = 'q', long = "skip-label")]
    skip_label: bool,
    /// Copy a file out of a dataset: DATASET PATH DEST
    #[arg(short = 'r', long = "copy-object")]
    copy: bool,
    /// Show the bytes at an address: POOL VDEV:OFFSET:SIZE[/PSIZE][:FLAGS]
    #[arg(short = 'R', long = "read-block")]
    read_block: bool,
    /// Show I/O statistics of the devices
    #[arg(short = 's', long = "io-stats")]
    io_stats: bool,
    /// Simulate deduplication of all data: what it would save, and the size of its tables
    #[arg(short = 'S', long = "simulate-dedup")]
    simulates_dedup: bool,
    /// Show the uberblock; with -l the uberblocks of the labels, three times each place of each label
    #[arg(short = 'u', long = "uberblock", action = ArgAction::Count)]
    uberblock: u8,
    /// Cache file: without a pool, the configurations in it are shown; otherwise it names devices
    #[arg(short = 'U', long = "cachefile", value_name = "FILE")]
    cache_file: Option<std::path::PathBuf>,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'v', long = "verbose")]
    _verbose: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'X')]
    _x: bool,
    /// With -ddddd: show the headers of blocks that are compressed by zstd
    #[arg(short = 'Z', long = "zstd-headers")]
    zstd_headers: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'Y', long = "all-reconstruction")]
    _all_reconstruction: bool,
    /// Accepted for compatibility; --invariants checks the livelists
    #[arg(short = 'y', long = "livelist")]
    _livelist: bool,
    /// Check the invariants of the pool beyond its checksums
    #[arg(long)]
    invariants: bool,
    /// Directory, file or device to scan for pools; may be repeated [default: WEIR_POOL_DIRS]
    #[arg(short, long = "path", value_name = "DIR")]
    paths: Vec<OsString>,
    /// Open the pool in the state of this txg or an earlier one
    #[arg(short, long, value_name = "TXG")]
    txg: Option<String>,
    /// Key of an encrypted dataset: DATASET=file://FILE or DATASET=HEX; or the passphrase or key in hexadecimal of the
    /// dataset that is examined; may be repeated
    #[arg(short = 'K', long = "key", value_name = "KEY")]
    keys: Vec<OsString>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Pool or dataset, and objects: ids, ids of mounts (inode numbers), ranges FIRST:LAST[:FLAGS], or a path; with -l a device
    #[arg(value_name = "POOL[/DATASET]")]
    words: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &ZdbArgs) -> Result<u8, Failure> {
    let machine = crate::stores::machine()?;
    if args.label > 0 {
        return label::run(&machine, &device(args)?, args);
    }
    if args.words.is_empty() && args.shows_cached() {
        return cached(args);
    }
    pool::run(&machine, args)
}

impl ZdbArgs {
    /// Whether an option or operand says what to show of a pool.
    fn selects(&self) -> bool {
        self.config || self.words.len() > 1 || self.shows_parts()
    }

    /// Whether no option but `-C`, `-U` and those without effect is given.
    fn shows_cached(&self) -> bool {
        !self.shows_parts() && !self.copy && !self.read_block && self.paths.is_empty() && self.txg.is_none()
    }

    /// Whether an option shows a part of the pool's state.
    fn shows_parts(&self) -> bool {
        let counts = [self.block_stats, self.checksum, self.datasets, self.dedup_stats, self.uberblock];
        let flags = [
            self.history,
            self.intent_logs,
            self.metaslabs,
            self.metaslab_groups,
            self.io_stats,
            self.simulates_dedup,
            self.invariants,
        ];
        counts != [0; 5] || flags.contains(&true)
    }
}

/// Shows the configurations of the pools in the cache file.
fn cached(args: &ZdbArgs) -> Result<u8, Failure> {
    let file = match &args.cache_file {
        Some(path) => Some(CacheFile::at(path.clone())),
        None => CacheFile::usual(),
    };
    let Some(file) = file else {
        return Err(ZdbArgs::misused("there is no cache file: name a pool, or a file with -U"));
    };
    let configurations = file.configurations()?;
    if configurations.is_empty() {
        return Err(Failure::failed("no pool is in the cache file: name a pool, and its devices with -p"));
    }
    for (name, config) in configurations {
        println!("{name}:\n{}", config.to_text(4).trim_end());
    }
    Ok(0)
}

fn device(args: &ZdbArgs) -> Result<std::path::PathBuf, Failure> {
    match &args.words[..] {
        [device] => Ok(device.into()),
        [] => Err(ZdbArgs::misused("-l needs a device")),
        _ => Err(ZdbArgs::misused("-l takes one device")),
    }
}
