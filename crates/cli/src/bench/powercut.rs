//! Command line of `weir bench powercut`.

use super::{Common, failed, seconds, size};
use crate::args::CommandLine;
use crate::failure::Failure;
use clap::Parser;
use weir_lab::methods::powercut::{Cases, powercut};
use weir_lab::plan::Plan;
use weir_lab::powercut::MIN_DISK_BYTES;
use weir_lab::powercut::client::{WAYS, Way};
use weir_lab::powercut::server::{SYNC_VALUES, ServerKind};

/// Most writers: each has a connection and a thread.
const MAX_WRITERS: u32 = 64;

/// Power cuts below a server: what was acknowledged and is lost.
///
/// Starts a server of its own for each case, on a disk of its own: a file in the directory, behind a FUSE mount that drops at the cut what
/// was not flushed. Exit code 1 if a server lost what it had promised.
#[derive(Debug, Parser)]
#[command(name = "powercut", override_usage = "weir bench powercut DIRECTORY [OPTION]…")]
pub struct PowercutArgs {
    /// Directory for the disk
    pub target: String,
    /// Values of the property sync of Weir's datasets, separated by commas; none for no Weir
    #[arg(long, value_name = "VALUES", value_delimiter = ',', default_value = "standard,always,disabled")]
    sync: Vec<String>,
    /// Ways to Weir, separated by commas: nfs, nbd, iscsi, mount
    #[arg(long, value_name = "WAYS", value_delimiter = ',', default_value = "nfs,nbd,iscsi,mount")]
    through: Vec<String>,
    /// Test a peer, too: tgt, with its write cache and without
    #[arg(long, value_name = "NAME")]
    peer: Option<String>,
    /// Writers at the same time
    #[arg(long, value_name = "N", default_value_t = 2)]
    writers: u32,
    /// Size of the disk, a quarter of which is written at most
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size)]
    size: u64,
    /// Longest time until a cut; the seed chooses from a third of it on
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = seconds)]
    time: u64,
    /// Seed of the records and of the times; each round adds 1
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u32,
    /// Percent of the unflushed sectors that reach the disk nevertheless
    #[arg(long, value_name = "PERCENT", default_value_t = 0)]
    survive: u32,
    #[command(flatten)]
    pub common: Common,
}

/// The plan that the command line asks for.
///
/// # Errors
/// If values are unknown or out of bounds, or the peer is not installed.
pub fn plan(args: &PowercutArgs) -> Result<Plan, Failure> {
    if !(1..=MAX_WRITERS).contains(&args.writers) {
        return Err(PowercutArgs::misused(&format!("--writers is from 1 to {MAX_WRITERS}")));
    }
    if args.survive > 100 {
        return Err(PowercutArgs::misused("--survive is from 0 to 100"));
    }
    if args.size < MIN_DISK_BYTES || !args.size.is_multiple_of(1 << 20) {
        return Err(PowercutArgs::misused("--size is a multiple of 1M, and at least 256M"));
    }
    let program = std::env::current_exe()
        .map_err(|error| Failure::failed(format!("weir bench: cannot find this program: {error}")))?;
    let ways: Vec<Way> = args.through.iter().map(|word| value(&WAYS, word, "--through")).collect::<Result<_, _>>()?;
    let mut servers = Vec::new();
    for word in args.sync.iter().filter(|word| *word != "none") {
        let sync = value(&SYNC_VALUES, word, "--sync")?;
        servers.push((ServerKind::Weir(program.clone(), sync), ways.clone()));
    }
    match args.peer.as_deref() {
        None => {}
        Some("tgt") => {
            for write_cache in [true, false] {
                servers.push((ServerKind::Tgt { write_cache }, vec![Way::Iscsi]));
            }
        }
        Some(other) => return Err(PowercutArgs::misused(&format!("--peer: unknown peer '{other}'; known is tgt"))),
    }
    if servers.is_empty() {
        return Err(PowercutArgs::misused("nothing to test: --sync=none needs --peer"));
    }
    servers.iter().try_for_each(|(server, _)| server.version().map(drop)).map_err(failed)?;
    Ok(powercut(&Cases {
        servers,
        writers: args.writers,
        disk_bytes: args.size,
        seconds: args.time,
        seed: u64::from(args.seed),
        survive_percent: args.survive,
    }))
}

/// The value with a name.
fn value<T: Copy>(values: &[(&str, T)], word: &str, option: &str) -> Result<T, Failure> {
    let found = values.iter().find(|(name, _)| *name == word).map(|(_, value)| *value);
    found.ok_or_else(|| {
        let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        PowercutArgs::misused(&format!("{option}: unknown value '{word}'; known are {}", names.join(", ")))
    })
}
