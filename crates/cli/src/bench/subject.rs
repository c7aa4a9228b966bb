//! What a benchmark's command line names: a target outside, or a dataset of a pool that this process opens for the time of the
//! benchmark.
//!
//! A word with `://` is a URL. One that exists as a file or directory is that; with `-d` no path is looked for. Any other word is the
//! name of a dataset. A path with a slash at the beginning, or a dot, is never a dataset.

use super::failed;
use super::filler;
use super::in_process::OpenDataset;
use super::prepare::{Measured, Wanted, prepare, shortfall};
use super::progress::Terminal;
use super::server::Server;
use crate::call::{Call, PoolOwner};
use crate::failure::Failure;
use crate::limits::{LimitOptions, Limits};
use crate::mount::{Access, OpenedPool};
use crate::pools::{holder_of, keys, search_paths};
use crate::stores::{ReturnedDisks, serving_machine};
use clap::Args;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use weir_engine::Engine;
use weir_lab::native::carrier::Carrier;
use weir_lab::native::in_process::InProcess;
use weir_lab::target::Target;
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, PoolError};

/// Properties of a dataset that its speed depends on.
const PROPERTIES: [&str; 9] = [
    "recordsize",
    "volblocksize",
    "compression",
    "checksum",
    "sync",
    "primarycache",
    "secondarycache",
    "dedup",
    "encryption",
];

/// Options for a target that is a dataset.
#[derive(Args, Clone, Debug, Default)]
pub struct PoolOptions {
    /// The target is a dataset: directory, file or device to scan for its pool; may be repeated [default: WEIR_POOL_DIRS, else the
    /// cache file and the block devices]
    #[arg(short = 'd', long = "dir", value_name = "DIR")]
    dirs: Vec<OsString>,
    /// Key of an encrypted dataset: DATASET=file://FILE or DATASET=HEX; may be repeated
    #[arg(long = "key", value_name = "DATASET=SOURCE")]
    keys: Vec<OsString>,
    /// Maximum size of the ARC of a dataset's pool, for example 4G [default: as of weir serve]
    #[arg(long, value_name = "SIZE")]
    arc_max: Option<String>,
    /// Maximum amount of dirty data of a dataset's pool [default: as of weir serve]
    #[arg(long, value_name = "SIZE")]
    dirty_max: Option<String>,
    #[command(flatten)]
    wanted: Wanted,
}

impl PoolOptions {
    /// The option that was given and that only a dataset has.
    fn only_for_datasets(&self) -> Option<&'static str> {
        [
            (!self.dirs.is_empty(), "--dir"),
            (!self.keys.is_empty(), "--key"),
            (self.arc_max.is_some(), "--arc-max"),
            (self.dirty_max.is_some(), "--dirty-max"),
            (self.wanted.fill.is_some(), "--fill"),
            (self.wanted.fragment.is_some(), "--fragment"),
        ]
        .into_iter()
        .find_map(|(is_given, option)| is_given.then_some(option))
    }
}

/// The target of a benchmark, with its pool if it is a dataset.
pub struct Subject {
    /// Target.
    pub target: Target,
    /// Facts for the result.
    pub facts: BTreeMap<String, String>,
    word: String,
    pool: Option<Pool>,
}

/// A pool that is open while a dataset of it is measured.
struct Pool {
    opened: OpenedPool,
    engine: Arc<Engine>,
    open: OpenOptions,
    wanted: Wanted,
    _disks: ReturnedDisks,
}

/// Whether a word can be the name of a dataset.
fn is_dataset_name(word: &str) -> bool {
    let is_component = |part: &str| {
        !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.: ".contains(&byte))
    };
    !word.contains("://")
        && word.starts_with(|first: char| first.is_ascii_alphabetic())
        && word.split('/').all(is_component)
}

impl Subject {
    /// Opens what a word names.
    ///
    /// # Errors
    /// If it names nothing, or a dataset whose pool cannot be opened, or that is no file system or volume that can be written.
    pub fn open(word: &str, options: &PoolOptions) -> Result<Self, Failure> {
        let is_path = options.dirs.is_empty() && Path::new(word).exists();
        if is_path || !is_dataset_name(word) {
            if let Some(option) = options.only_for_datasets() {
                let text = format!(
                    "weir bench: {word} is no dataset: {option} is for a dataset that is measured in this process"
                );
                return Err(Failure::usage(text));
            }
            return Self::outside(word);
        }
        Self::open_dataset(word, options)
    }

    /// A target that is no dataset.
    ///
    /// # Errors
    /// If it names nothing.
    pub fn outside(word: &str) -> Result<Self, Failure> {
        let target = Target::parse(word).map_err(failed)?;
        let mut facts = Server::facts(word);
        facts.insert("age".to_owned(), "not aged".to_owned());
        Ok(Self { target, facts, word: word.to_owned(), pool: None })
    }

    fn open_dataset(word: &str, options: &PoolOptions) -> Result<Self, Failure> {
        let pool_name = word.split('/').next().unwrap_or(word);
        let given = LimitOptions {
            arc_max: options.arc_max.clone(),
            dirty_max: options.dirty_max.clone(),
            ..LimitOptions::default()
        };
        let limits = Limits::chosen(&given).map_err(|why| Failure::usage(format!("weir bench: {why}")))?;
        let (machine, disks) = serving_machine()?;
        let mut open = OpenOptions::new(search_paths(&options.dirs), pool_name.to_owned());
        open.keys = keys(&std::env::current_dir().unwrap_or_default(), &options.keys)?;
        refuse_open_elsewhere(word, &open)?;
        let cannot = |failure: Failure| {
            let line = match options.dirs.is_empty() {
                true => format!("weir bench: {word}: No such file or directory; as a dataset: {failure}"),
                false => format!("weir bench: {failure}"),
            };
            failure.saying(line)
        };
        let opened = OpenedPool::open(&machine, &open, Access::Write, false, &limits).map_err(cannot)?;
        let engine = opened.served_pool().map(|served| served.engine.clone());
        let found = match &engine {
            Some(engine) => measured(&machine, engine, word, &open, &limits),
            None => Err(Failure::failed(format!("weir bench: {word}: the pool is read-only"))),
        };
        match (found, engine) {
            (Ok((target, facts)), Some(engine)) => {
                let pool = Pool { opened, engine, open, wanted: options.wanted, _disks: disks };
                Ok(Self { target, facts, word: word.to_owned(), pool: Some(pool) })
            }
            (found, engine) => {
                drop(engine);
                let failure = found.err().unwrap_or_else(|| Failure::failed(format!("weir bench: {word}: no pool")));
                opened.close().and(Err(failure))
            }
        }
    }

    /// Counters to read beside the client's.
    pub fn server(&self) -> Server {
        match &self.pool {
            Some(pool) => Server::in_process(pool.engine.clone()),
            None => Server::find(&self.word),
        }
    }

    /// Fills, ages and fragments the pool as the command line asks; `false` if the user stopped it.
    ///
    /// # Errors
    /// If the state is out of reach, or the pool fails.
    pub fn prepare(&mut self, terminal: &mut Terminal<'_>) -> Result<bool, Failure> {
        let Some(Pool { engine, open, wanted, .. }) = self.pool.as_ref().filter(|pool| pool.wanted.is_any()) else {
            return Ok(true);
        };
        let record = ["dataset.recordsize", "dataset.volblocksize"].iter().find_map(|key| self.facts.get(*key));
        let record_bytes = record.and_then(|text| text.parse().ok()).unwrap_or(128 << 10);
        let reached = engine.machine.block_on(prepare(engine, open, wanted, record_bytes, terminal))?;
        let Some(reached) = reached else { return Ok(false) };
        let percent = |key: &str| reached.get(key).map_or("unknown", String::as_str);
        let fill = percent("pool.fill_percent");
        let fragmentation = percent("pool.fragmentation_percent");
        let age = percent("age");
        eprintln!("pool '{}': {fill} % filled, {fragmentation} % fragmented, {age}", engine.name());
        shortfall(&reached).iter().for_each(|text| eprintln!("warning: {text}"));
        self.facts.extend(reached);
        Ok(true)
    }

    /// Destroys what filled the pool, unless it `keeps` it, and closes the pool. Sessions of the target must have ended.
    ///
    /// # Errors
    /// If the pool cannot be closed.
    pub fn close(self, keeps: bool) -> Result<(), Failure> {
        let Self { target, pool, .. } = self;
        drop(target);
        pool.map_or(Ok(()), |pool| {
            let is_prepared = pool.wanted.is_any() && !keeps;
            let emptied =
                if is_prepared { pool.engine.machine.block_on(filler::destroy(&pool.engine)) } else { Ok(()) };
            drop(pool.engine);
            pool.opened.close().and(emptied.map_err(Failure::from))
        })
    }
}

/// Refuses a dataset whose pool another process serves.
fn refuse_open_elsewhere(word: &str, open: &OpenOptions) -> Result<(), Failure> {
    let call = Call::own("bench", Vec::new());
    match holder_of(&call, &open.search, &open.pool)? {
        PoolOwner::Theirs(remote) => {
            let what = if remote.is_daemon { "the daemon" } else { "a process" };
            let text = format!(
                "weir bench: {word}: {what} (process {}) has the pool open; measure the dataset through its mount or a URL, or export \
                 the pool first",
                remote.pid
            );
            Err(Failure::busy(text))
        }
        PoolOwner::Free | PoolOwner::Ours(_) => Ok(()),
    }
}

/// The dataset as a target, and facts about it.
fn measured(
    machine: &Machine,
    engine: &Arc<Engine>,
    word: &str,
    open: &OpenOptions,
    limits: &Limits,
) -> Result<(Target, BTreeMap<String, String>), Failure> {
    let dataset = machine.block_on(OpenDataset::open(engine, word));
    let dataset = dataset.map_err(|error| Failure::failed(format!("weir bench: {word}: {error}")))?;
    if !dataset.is_writable() {
        return Err(Failure::failed(format!("weir bench: {word}: it cannot be written")));
    }
    let target = InProcess(Arc::new(dataset));
    let mut facts = machine.block_on(facts(engine, word, open))?;
    facts.insert("arc_max_bytes".to_owned(), limits.arc_bytes.to_string());
    facts.insert("dirty_max_bytes".to_owned(), limits.dirty_bytes.to_string());
    facts.insert("age".to_owned(), "not aged".to_owned());
    debug_assert!(target.room_bytes().is_ok(), "an open dataset knows its room");
    Ok((Target::InProcess(target), facts))
}

/// Properties of the dataset, and fill and fragmentation of its pool as `zpool list` shows them.
async fn facts(engine: &Arc<Engine>, name: &str, open: &OpenOptions) -> Result<BTreeMap<String, String>, PoolError> {
    let rq = &Request::internal("bench");
    let mut facts = BTreeMap::from([("dataset".to_owned(), name.to_owned())]);
    let view = engine.synced().view(open).await?;
    let dataset = view.dsl.find(rq, name).await?;
    for property in view.dsl.properties(rq, &dataset, &engine.facts()).await? {
        if PROPERTIES.contains(&property.name.as_str()) {
            facts.insert(format!("dataset.{}", property.name), property.text(true));
        }
    }
    facts.extend(Measured::of(engine, open).await?.facts());
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datasets_are_words_that_are_neither_urls_nor_paths() {
        for name in ["tank", "tank/films", "tank/a b/c-1.x:y"] {
            assert!(is_dataset_name(name), "{name}");
        }
        for other in ["/tank/films", "./tank", "../x", "tank//x", "tank/", "nbd://h/v", "tank@snap", "1", ""] {
            assert!(!is_dataset_name(other), "{other}");
        }
    }
}
