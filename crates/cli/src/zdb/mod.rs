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
pub(crate) mod select;
pub(crate) mod text;

pub use text::{date, stamp};

use crate::args::CommandLine;
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
    override_usage = "zdb [-e] [-p DIR]… [-bcCdDFhikLmsu] [-t TXG] POOL[/DATASET] [OBJECT | PATH]…\n       zdb --invariants [-e] [-p DIR]… POOL\n       zdb -l [-qu] DEVICE\n       zdb [-e] [-p DIR]… -r DATASET PATH DEST"
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
    /// Show statistics of deduplication
    #[arg(short = 'D', long = "dedup-stats")]
    dedup_stats: bool,
    /// Accepted for compatibility; has no effect: pools need not be imported
    #[arg(short = 'e', long = "exported")]
    _exported: bool,
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
    /// Show the labels of a device
    #[arg(short = 'l', long = "label")]
    label: bool,
    /// Do not compare the space maps with the blocks in use
    #[arg(short = 'L', long = "disable-leak-tracking")]
    no_leak_tracking: bool,
    /// Show the metaslabs
    #[arg(short = 'm', long = "metaslabs")]
    metaslabs: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'N')]
    _n: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'P', long = "parseable")]
    _parsable: bool,
    /// With -l: do not show the labels
    #[arg(short = 'q', long = "skip-label")]
    skip_label: bool,
    /// Copy a file out of a dataset: DATASET PATH DEST
    #[arg(short = 'r', long = "copy-object")]
    copy: bool,
    /// Show I/O statistics of the devices
    #[arg(short = 's', long = "io-stats")]
    io_stats: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'S')]
    _simulate: bool,
    /// Show the uberblock, or with -l the uberblocks of a label
    #[arg(short = 'u', long = "uberblock")]
    uberblock: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'v', long = "verbose")]
    _verbose: bool,
    /// Accepted for compatibility; has no effect
    #[arg(short = 'X')]
    _x: bool,
    /// Accepted for compatibility; has no effect
    #[arg(long = "all-reconstruction")]
    _all_reconstruction: bool,
    /// Check the invariants of the pool beyond its checksums
    #[arg(long)]
    invariants: bool,
    /// Directory, file or device to scan for pools; may be repeated [default: WEIR_POOL_DIRS]
    #[arg(short, long = "path", value_name = "DIR")]
    paths: Vec<OsString>,
    /// Open the pool in the state of this txg or an earlier one
    #[arg(short, long, value_name = "TXG")]
    txg: Option<String>,
    /// Key of an encrypted dataset: DATASET=file://FILE or DATASET=HEX; may be repeated
    #[arg(short = 'K', long = "key", value_name = "DATASET=SOURCE")]
    keys: Vec<OsString>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
    /// Pool or dataset and object ids or a path; with -l a device
    #[arg(value_name = "POOL[/DATASET]")]
    words: Vec<OsString>,
}

/// Runs the command.
pub fn run(args: &ZdbArgs) -> Result<u8, Failure> {
    let machine = crate::stores::machine()?;
    if args.label {
        return label::run(&machine, &device(args)?, args);
    }
    pool::run(&machine, args)
}

fn device(args: &ZdbArgs) -> Result<std::path::PathBuf, Failure> {
    match &args.words[..] {
        [device] => Ok(device.into()),
        [] => Err(ZdbArgs::misused("-l needs a device")),
        _ => Err(ZdbArgs::misused("-l takes one device")),
    }
}
