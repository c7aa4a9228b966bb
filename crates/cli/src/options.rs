//! Groups of options that several commands share.

use crate::args::CommandLine;
use crate::failure::Failure;
use crate::json::Numbers;
use clap::Args;
use std::collections::BTreeSet;
use std::ffi::OsString;
use weir_dsl::props::native_named;
use weir_pool::properties::full_name;

/// Help of the options that name places to look for pools.
const DIRS: &str = "Directory, file or device to scan for pools; may be repeated [default: the pools of the daemon, \
                    else WEIR_POOL_DIRS, else the cache file and the block devices]";

/// Places to look for pools, of commands about pools.
#[derive(Args, Clone, Debug, Default)]
pub struct PoolDirs {
    #[arg(short = 'd', value_name = "DIR", help = DIRS)]
    pub dirs: Vec<OsString>,
}

/// Places to look for pools, of commands about datasets.
#[derive(Args, Clone, Debug, Default)]
pub struct DatasetDirs {
    #[arg(long = "dir", value_name = "DIR", help = DIRS)]
    pub dirs: Vec<OsString>,
}

/// Places to look for pools, and keys of encrypted datasets, of commands about datasets.
#[derive(Args, Clone, Debug, Default)]
pub struct Places {
    #[arg(long = "dir", value_name = "DIR", help = DIRS)]
    pub dirs: Vec<OsString>,
    /// Key of an encrypted dataset: DATASET=file://FILE, DATASET=HEX or DATASET=prompt; may be repeated
    #[arg(long = "key", value_name = "DATASET=SOURCE")]
    pub keys: Vec<OsString>,
}

/// Output as JSON.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct JsonOptions {
    /// Print JSON
    #[arg(short = 'j', long)]
    pub json: bool,
    /// With -j: print numbers as integers instead of strings
    #[arg(long)]
    pub json_int: bool,
}

impl JsonOptions {
    /// Form of numbers in JSON.
    ///
    /// # Errors
    /// Misuse of the command `C` if `--json-int` is given without `-j`.
    pub fn numbers<C: CommandLine>(self) -> Result<Numbers, Failure> {
        match (self.json, self.json_int) {
            (false, true) => Err(C::misused("'--json-int' only works with '-j'")),
            (_, true) => Ok(Numbers::Integers),
            _ => Ok(Numbers::Text),
        }
    }
}

/// Output about pools as JSON.
#[derive(Args, Clone, Copy, Debug, Default)]
pub struct PoolJsonOptions {
    #[command(flatten)]
    pub output: JsonOptions,
    /// With -j: the keys of the pools are their GUIDs instead of their names
    #[arg(long)]
    pub json_pool_key_guid: bool,
}

impl PoolJsonOptions {
    /// Form of numbers in JSON.
    ///
    /// # Errors
    /// Misuse of the command `C` if an option is given without `-j`.
    pub fn numbers<C: CommandLine>(self) -> Result<Numbers, Failure> {
        match self.json_pool_key_guid && !self.output.json {
            true => Err(C::misused("'--json-pool-key-guid' only works with '-j'")),
            false => self.output.numbers::<C>(),
        }
    }

    /// The key of a pool.
    pub fn key(self, name: &str, guid: u64) -> String {
        if self.json_pool_key_guid { guid.to_string() } else { name.to_owned() }
    }
}

/// Fails if a property of datasets is given twice (OpenZFS `parseprop`).
///
/// # Errors
/// OpenZFS's message.
pub fn once<'a>(given: impl IntoIterator<Item = &'a String>) -> Result<(), String> {
    let full = |name: &str| native_named(name).map_or_else(|| name.to_owned(), |native| native.prop.name().to_owned());
    distinct(given.into_iter().filter_map(|text| text.split_once('=')).map(|(name, _)| (name, full(name))))
}

/// Fails if a property of pools is given twice, except `cachefile` (OpenZFS `add_prop_list`).
///
/// # Errors
/// OpenZFS's message.
pub fn pools_once(given: &[String]) -> Result<(), String> {
    let names =
        given.iter().filter_map(|text| text.split_once('=')).map(|(name, _)| (name, full_name(name).to_owned()));
    distinct(names.filter(|(_, full)| full != "cachefile"))
}

/// Names as given, and in full.
fn distinct<'a>(names: impl Iterator<Item = (&'a str, String)>) -> Result<(), String> {
    let mut seen = BTreeSet::new();
    for (name, full) in names {
        if !seen.insert(full) {
            return Err(format!("property '{name}' specified multiple times"));
        }
    }
    Ok(())
}
