//! `zpool iostat`: reads and writes of the devices of pools that processes have open.
//!
//! The counters are those of the leaves since the process opened the pool; other vdevs have the sum of their
//! children. Reads and writes of an interval are printed per second.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`zpool_do_iostat`, `print_vdev_stats`), `module/zfs/vdev.c`
//! (`vdev_get_stats_ex_impl`).

use super::iostat_text::{Columns, Report, Shape};
use super::opened::{ask, holders, served};
use super::repeat::{LOOK, Repetition};
use super::tree::NameStyle;
use crate::admin::ServedPool;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use clap::Parser;
use std::collections::BTreeMap;
use std::ops::Sub;
use std::sync::Arc;
use weir_blocks::vdev::histogram::LeafStats;
use weir_engine::Engine;
use weir_machine::Nanos;
use weir_pool::{Class, VdevConfig};

/// Show operations and bytes of pools that processes have open.
///
/// The first report covers the time since the process opened the pool, each further one the time since the last.
#[derive(Debug, Parser)]
#[command(
    name = "zpool iostat",
    override_usage = "zpool iostat [[-lq]|[-rw]] [-T d|u] [-gHLnPpvy] [-d DIR]… [POOL… | POOL VDEV…] [INTERVAL [COUNT]]"
)]
pub struct IostatArgs {
    /// Show also each vdev
    #[arg(short)]
    verbose: bool,
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers; times in nanoseconds
    #[arg(short)]
    parsable: bool,
    /// Print the header once only
    #[arg(short = 'n')]
    one_header: bool,
    /// Omit the first report
    #[arg(short = 'y')]
    omit_first: bool,
    /// Show average times of operations: in all, of the disk, and in the queues
    #[arg(short = 'l')]
    latency: bool,
    /// Show how many operations wait and are in progress
    #[arg(short = 'q')]
    queues: bool,
    /// Show histograms of the sizes of operations, alone and merged
    #[arg(short = 'r')]
    sizes: bool,
    /// Show histograms of the times of operations
    #[arg(short = 'w')]
    times: bool,
    #[command(flatten)]
    names: NameStyle,
    /// Print the time of each report: d as a date, u in seconds since 1970
    #[arg(short = 'T', value_name = "d|u")]
    time: Option<String>,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools, or one pool and its vdevs; then seconds between two reports, and number of reports
    #[arg(value_name = "POOL VDEV INTERVAL COUNT")]
    words: Vec<String>,
}

/// Operations and bytes, read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work(pub [u64; 4]);

impl Sub for Work {
    type Output = Work;

    fn sub(self, before: Work) -> Work {
        Work(std::array::from_fn(|i| self.0[i].saturating_sub(before.0[i])))
    }
}

impl std::iter::Sum for Work {
    fn sum<I: Iterator<Item = Work>>(all: I) -> Work {
        all.fold(Work::default(), |a, b| Work(std::array::from_fn(|i| a.0[i].saturating_add(b.0[i]))))
    }
}

/// Operations of a vdev.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VdevWork {
    /// Operations and bytes.
    pub work: Work,
    /// Their times and sizes.
    pub stats: LeafStats,
}

/// A line of a report: indented name, bytes allocated and free if the vdev has them, what it did; `None` for a heading.
pub struct IostatRow {
    /// Name.
    pub name: String,
    /// Allocated and free bytes.
    pub space: Option<(u64, u64)>,
    /// Operations; `None` for a heading.
    pub done: Option<VdevWork>,
}

impl IostatArgs {
    /// The columns that the options choose.
    fn shape(&self) -> Result<Shape, Failure> {
        if (self.sizes || self.times) && (self.latency || self.queues) {
            return Err(IostatArgs::misused("[-r|-w] isn't allowed with [-c|-l|-q]"));
        }
        match (self.sizes, self.times) {
            (true, true) => Err(IostatArgs::misused("Only one of [-r|-w] can be passed at a time")),
            (true, false) => Ok(Shape::Sizes),
            (false, true) => Ok(Shape::Times),
            (false, false) => Ok(Shape::Lines { latency: self.latency, queues: self.queues }),
        }
    }

    fn columns(&self) -> Result<Columns, Failure> {
        Ok(Columns { shape: self.shape()?, parsable: self.parsable, scripted: self.scripted, verbose: self.verbose })
    }
}

/// Runs the command.
pub fn run(call: &Call, args: &IostatArgs) -> Result<u8, Failure> {
    let mut names = args.words.clone();
    let repetition = Repetition::take::<IostatArgs>(args.time.as_deref(), &mut names)?;
    let columns = args.columns()?;
    if args.omit_first && repetition.interval.is_none() {
        return Err(IostatArgs::misused("-y leaves out the first of several reports"));
    }
    if call.process().is_some() {
        let watched = Watched::find(call, args, &names)?;
        return watched.report(call, args, columns, repetition);
    }
    let why = "what goes to and from its devices is counted by the process that has (weir serve, mount, demo)";
    let mut asked = holders(call, &args.places, names.first(), why)?;
    for name in names.iter().skip(1) {
        // Other names are those of pools, or of vdevs of the first pool.
        let others = holders(call, &args.places, Some(name), why).unwrap_or_default();
        asked.extend(others.into_iter().filter(|other| !asked.contains(other)).collect::<Vec<_>>());
    }
    if asked.len() > 1 && (repetition.interval.is_some() || !names.is_empty()) {
        return Err(Failure::failed("several processes have these pools open: name those of one process"));
    }
    ask(call, &asked)
}

/// Pools, or vdevs of one pool, that are reported.
struct Watched {
    pools: Vec<Arc<ServedPool>>,
    vdevs: Vec<String>,
    names: NameStyle,
    deep: bool,
}

/// Counters of a pool's leaves at a time.
struct Sample {
    at: Nanos,
    leaves: BTreeMap<u64, VdevWork>,
}

impl Watched {
    /// The pools of these names, or the first with vdevs of these names; all pools that this process has open without names.
    fn find(call: &Call, args: &IostatArgs, names: &[String]) -> Result<Self, Failure> {
        let style = args.names;
        let watched = |pools, vdevs| Watched { pools, vdevs, names: style, deep: args.verbose };
        let Some((first, rest)) = names.split_first() else { return Ok(watched(served(call, None)?, Vec::new())) };
        let mut pools = served(call, Some(first))?;
        let others: Vec<_> = rest.iter().filter_map(|name| call.served_pool(name)).collect();
        if others.len() == rest.len() {
            pools.extend(others);
            return Ok(watched(pools, Vec::new()));
        }
        if let Some(pool) = pools.first() {
            let root = root_of(&pool.engine)?;
            if let Some(missing) = rest.iter().find(|name| !root.walk().into_iter().any(|vdev| is_named(vdev, name))) {
                return Err(Failure::failed(format!(
                    "cannot find vdev '{missing}' in '{first}', nor a pool of that name"
                )));
            }
        }
        Ok(watched(pools, rest.to_vec()))
    }

    fn sample(&self, pool: &ServedPool, now: Nanos) -> Sample {
        let tree = pool.engine.cache.blocks().tree();
        let mut stats = tree.stats();
        let of = |c: weir_blocks::vdev::Counts| Work([c.reads, c.writes, c.read_bytes, c.write_bytes]);
        let leaf = |leaf: weir_blocks::vdev::LeafHealth| {
            let stats = stats.remove(&leaf.guid).unwrap_or_default();
            (leaf.guid, VdevWork { work: of(leaf.counts), stats })
        };
        Sample { at: now, leaves: tree.health().into_iter().map(leaf).collect() }
    }

    /// Prints the reports.
    fn report(self, call: &Call, args: &IostatArgs, columns: Columns, repetition: Repetition) -> Result<u8, Failure> {
        let machine = call.machine()?;
        let mut left = if repetition.interval.is_some() { repetition.count } else { Some(1) };
        let at_start = |pool: &Arc<ServedPool>| Sample { at: pool.engine.opened(), leaves: BTreeMap::new() };
        let sampled = |pool: &Arc<ServedPool>| self.sample(pool, machine.clock.now());
        let mut before: Vec<Sample> = match args.omit_first {
            true => self.pools.iter().map(sampled).collect(),
            false => self.pools.iter().map(at_start).collect(),
        };
        let mut is_first = true;
        while left != Some(0) {
            let wait = repetition.interval.filter(|_| !is_first || args.omit_first);
            let due = machine.clock.now() + wait.unwrap_or_default();
            while machine.clock.now() < due {
                if call.is_gone() || self.pools.iter().any(|pool| pool.engine.events.is_ended()) {
                    return Ok(0);
                }
                machine.block_on(machine.clock.sleep(LOOK.min(due.since(machine.clock.now()))));
            }
            repetition.print_time(call)?;
            let now: Vec<Sample> = self.pools.iter().map(|pool| self.sample(pool, machine.clock.now())).collect();
            let mut pools = Vec::new();
            for ((pool, now), before) in self.pools.iter().zip(&now).zip(&before) {
                let seconds = now.at.since(before.at).as_secs_f64().max(1e-9);
                // Histograms since the pool was opened are not divided.
                let is_whole = before.leaves.is_empty() && !matches!(columns.shape, Shape::Lines { .. });
                pools.push((self.rows(&pool.engine, now, before)?, if is_whole { 1.0 } else { seconds }));
            }
            let header = !args.scripted && (is_first || args.verbose && !args.one_header);
            let report = Report { pools, of_vdevs: !self.vdevs.is_empty(), header };
            call.print(format_args!("{}", columns.text(&report)));
            (before, is_first) = (now, false);
            left = left.map(|left| left - 1);
        }
        Ok(0)
    }

    /// The pool; with `-v` also its vdevs, by class; or those that were named.
    fn rows(&self, engine: &Engine, now: &Sample, before: &Sample) -> Result<Vec<IostatRow>, Failure> {
        let root = root_of(engine)?;
        let leaf = |guid: u64| {
            let now = now.leaves.get(&guid).cloned().unwrap_or_default();
            match before.leaves.get(&guid) {
                Some(before) => VdevWork { work: now.work - before.work, stats: now.stats.since(&before.stats) },
                None => now,
            }
        };
        let done = |vdev: &VdevConfig| {
            let leaves: Vec<VdevWork> = vdev.leaves().into_iter().map(|found| leaf(found.guid)).collect();
            let mut stats = LeafStats::default();
            leaves.iter().for_each(|leaf| stats.add(&leaf.stats));
            VdevWork { work: leaves.iter().map(|leaf| leaf.work).sum(), stats }
        };
        let space = |top: &VdevConfig| {
            let sums = engine.cache.blocks().vdev_space(top.id as u32);
            (sums.allocated_bytes, sums.size_bytes.saturating_sub(sums.allocated_bytes))
        };
        let row = |name: String, space, vdev: &VdevConfig| IostatRow { name, space, done: Some(done(vdev)) };
        let ours = |class: Class| root.children.iter().filter(move |top| top.class == class && top.is_concrete());
        let mut out = Vec::new();
        if !self.vdevs.is_empty() {
            let is_top = |vdev: &VdevConfig| root.children.iter().any(|top| top.guid == vdev.guid);
            let chosen = root.walk().into_iter().filter(|vdev| self.vdevs.iter().any(|name| is_named(vdev, name)));
            out.extend(chosen.map(|vdev| row(self.names.of(vdev), is_top(vdev).then(|| space(vdev)), vdev)));
            return Ok(out);
        }
        let sold = [Class::Normal, Class::Special, Class::Dedup].into_iter().flat_map(ours).map(space);
        let total = sold.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
        out.push(row(engine.name(), Some(total), &root));
        let classes = [(Class::Normal, ""), (Class::Dedup, "dedup"), (Class::Special, "special"), (Class::Log, "logs")];
        for (class, heading) in classes.into_iter().filter(|_| self.deep) {
            if ours(class).next().is_some() && !heading.is_empty() {
                out.push(IostatRow { name: heading.to_owned(), space: None, done: None });
            }
            for top in ours(class) {
                out.push(row(format!("  {}", self.names.of(top)), Some(space(top)), top));
                self.below(top, 4, &done, &mut out);
            }
        }
        Ok(out)
    }

    fn below(
        &self,
        vdev: &VdevConfig,
        indent: usize,
        done: &dyn Fn(&VdevConfig) -> VdevWork,
        out: &mut Vec<IostatRow>,
    ) {
        for child in &vdev.children {
            let name = format!("{}{}", " ".repeat(indent), self.names.of(child));
            out.push(IostatRow { name, space: None, done: Some(done(child)) });
            self.below(child, indent + 2, done, out);
        }
    }
}

fn root_of(engine: &Engine) -> Result<VdevConfig, Failure> {
    let config = engine.shown().config;
    let unreadable = |error| Failure::failed(format!("the vdevs of '{}': {error}", config.name));
    VdevConfig::parse(&config.root).map_err(unreadable)
}

fn is_named(vdev: &VdevConfig, text: &str) -> bool {
    let ends_so = |path: &str| path == text || path.rsplit('/').next() == Some(text);
    vdev.guid.to_string() == text || vdev.name() == text || vdev.path.as_deref().is_some_and(ends_so)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_go_with_nothing_else() {
        let of = |line: &str| {
            let words: Vec<_> = line.split_whitespace().map(Into::into).collect();
            IostatArgs::parse_line(&words).unwrap().shape().map_err(|failure| failure.line)
        };
        assert_eq!(of("-lq"), Ok(Shape::Lines { latency: true, queues: true }));
        assert_eq!((of("-r"), of("-w -v")), (Ok(Shape::Sizes), Ok(Shape::Times)));
        assert!(of("-rw").unwrap_err().contains("Only one of [-r|-w]"));
        assert!(of("-wl").unwrap_err().contains("isn't allowed with"));
    }
}
