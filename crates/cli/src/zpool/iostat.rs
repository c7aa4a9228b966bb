//! `zpool iostat`: reads and writes of the devices of pools that processes have open.
//!
//! The counters are those of the leaves since the process opened the pool; other vdevs have the sum of their
//! children. Reads and writes of an interval are printed per second.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`zpool_do_iostat`, `print_vdev_stats`), `module/zfs/vdev.c`
//! (`vdev_get_stats_ex_impl`).

use super::holder::PoolHolder;
use super::iostat_text::{Columns, Report, Shape};
use super::list_vdevs::heading_of;
use super::repeat::Repetition;
use super::target;
use super::tree::NameStyle;
use super::vdev_scripts::{self, ScriptColumns, Scripts};
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::reading::{is_called, refused};
use clap::Parser;
use std::collections::BTreeMap;
use std::ops::Sub;
use std::time::Duration;
use weir_admin::{IostatQuery, LeafIo, OpenPool, PoolIoRow, RefusalKind, Row, VdevGroup, VdevIo};
use weir_blocks::vdev::histogram::LeafStats;

/// Show operations and bytes of pools that processes have open.
///
/// The first report covers the time since the process opened the pool, each further one the time since the last.
#[derive(Debug, Parser)]
#[command(
    name = "zpool iostat",
    override_usage = "zpool iostat [[[-c [SCRIPT[,…]]] [-lq]]|[-rw]] [-T d|u] [-gHLnPpvy] [-d DIR]… [POOL… | POOL VDEV…] [INTERVAL [COUNT]]"
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
    /// Run scripts for each device, and show what they print as columns; without a name, list the scripts
    #[arg(short = 'c', value_name = "SCRIPT,…", num_args = 0..=1, default_missing_value = "")]
    scripts: Option<String>,
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
    /// Path of its device, if it is a leaf with one.
    pub path: Option<String>,
}

impl IostatArgs {
    /// The columns that the options choose.
    fn shape(&self) -> Result<Shape, Failure> {
        if (self.sizes || self.times) && (self.latency || self.queues || self.scripts.is_some()) {
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
        let verbose = self.is_verbose();
        Ok(Columns { shape: self.shape()?, parsable: self.parsable, scripted: self.scripted, verbose })
    }

    /// Whether each vdev is shown: those that scripts add something to are devices.
    fn is_verbose(&self) -> bool {
        self.verbose || self.scripts.is_some()
    }
}

/// Runs the command.
pub fn run(call: &Call, args: &IostatArgs) -> Result<u8, Failure> {
    let mut names = args.words.clone();
    let repetition = Repetition::take::<IostatArgs>(args.time.as_deref(), &mut names)?;
    let columns = args.columns()?;
    if args.scripts.as_deref() == Some("") {
        vdev_scripts::list(call, "iostat");
        return Ok(0);
    }
    let scripts = args.scripts.as_deref().map(|given| Scripts::find(call, given)).transpose()?;
    if args.omit_first && repetition.interval.is_none() {
        return Err(IostatArgs::misused("-y leaves out the first of several reports"));
    }
    let why = "what goes to and from its devices is counted by the process that has (weir daemon, serve, mount, demo)";
    let holders = match call.process() {
        Some(_) => vec![PoolHolder::Own],
        None => holders(call, args, &names, why)?,
    };
    if holders.len() > 1 && (repetition.interval.is_some() || !names.is_empty()) {
        return Err(Failure::failed("several processes have these pools open: name those of one process"));
    }
    for holder in &holders {
        let watched = Watched { scripts: scripts.as_ref(), ..Watched::find(call, args, holder, &names)? };
        watched.report(call, args, columns, repetition)?;
    }
    Ok(0)
}

/// The processes that have the pools of these names open.
fn holders(call: &Call, args: &IostatArgs, names: &[String], why: &str) -> Result<Vec<PoolHolder>, Failure> {
    let mut holders = match PoolHolder::find(call, &args.places, names.first(), why) {
        // Vdevs may be named without their pool.
        Err(failure) if names.first().is_some_and(|name| name.contains('/')) => {
            PoolHolder::find(call, &args.places, None, why).map_err(|_| failure)?
        }
        found => found?,
    };
    for name in names.iter().skip(1) {
        // Other names are those of pools, or of vdevs of the first pool.
        let others = PoolHolder::find(call, &args.places, Some(name), why).unwrap_or_default();
        for other in others {
            if !holders.contains(&other) {
                holders.push(other);
            }
        }
    }
    Ok(holders)
}

/// Pools, or vdevs of one pool, that are reported.
struct Watched<'a> {
    holder: &'a PoolHolder,
    pools: Vec<OpenPool>,
    vdevs: Vec<String>,
    names: NameStyle,
    deep: bool,
    has_histograms: bool,
    scripts: Option<&'a Scripts>,
}

/// Counters of a pool's leaves at a time.
struct Sample {
    uptime_ns: u64,
    leaves: BTreeMap<u64, VdevWork>,
}

impl Sample {
    fn of(row: &PoolIoRow) -> Self {
        let work = |io: &LeafIo| Work([io.reads, io.writes, io.read_bytes, io.write_bytes]);
        let leaf = |vdev: &VdevIo| {
            let io = vdev.io.as_ref()?;
            Some((vdev.guid, VdevWork { work: work(io), stats: io.stats() }))
        };
        let leaves = row.root.walk().into_iter().chain(&row.caches).filter_map(leaf).collect();
        Sample { uptime_ns: row.uptime_ns, leaves }
    }

    /// The work of the leaves at and below a vdev since `before`.
    fn since(&self, before: Option<&Sample>, vdev: &VdevIo) -> VdevWork {
        let leaf = |guid: u64| {
            let now = self.leaves.get(&guid).cloned().unwrap_or_default();
            match before.and_then(|before| before.leaves.get(&guid)) {
                Some(before) => VdevWork { work: now.work - before.work, stats: now.stats.since(&before.stats) },
                None => now,
            }
        };
        let leaves: Vec<VdevWork> = vdev.walk().into_iter().map(|found| leaf(found.guid)).collect();
        let mut stats = LeafStats::default();
        leaves.iter().for_each(|leaf| stats.add(&leaf.stats));
        VdevWork { work: leaves.iter().map(|leaf| leaf.work).sum(), stats }
    }
}

impl<'a> Watched<'a> {
    /// The pools of these names, or the first with vdevs of these names; all pools that the process has open without names.
    fn find(call: &Call, args: &IostatArgs, holder: &'a PoolHolder, names: &[String]) -> Result<Self, Failure> {
        let has_histograms = args.latency || args.queues || args.sizes || args.times;
        let mut watched = Watched {
            holder,
            pools: holder.pools(call, None)?,
            vdevs: Vec::new(),
            names: args.names,
            deep: args.is_verbose(),
            has_histograms,
            scripts: None,
        };
        let Some((first, rest)) = names.split_first() else { return Ok(watched) };
        if first.contains('/') {
            return watched.with_vdevs(call, names);
        }
        let others: Vec<_> =
            rest.iter().filter_map(|name| watched.pools.iter().find(|pool| is_called(pool, name)).cloned()).collect();
        watched.pools = holder.pools(call, Some(first))?;
        if others.len() == rest.len() {
            watched.pools.extend(others);
            return Ok(watched);
        }
        let mut sampled = None;
        let query = IostatQuery { pools: watched.guids(), interval_ns: None, samples: None, histograms: false };
        let mut take = |row| {
            if let Row::PoolIo(row) = row {
                sampled = Some(row);
            }
        };
        holder.sample(call, query, &mut take)?.map_err(refused)?;
        let names: Vec<Vec<String>> = rest.iter().map(|name| target::names_of(call, name)).collect();
        let is_in = |pool: &PoolIoRow, names: &[String]| {
            of_pool(pool).any(|vdev| names.iter().any(|name| vdev.is_called(name)))
        };
        if let Some(pool) = sampled
            && let Some((missing, _)) = rest.iter().zip(&names).find(|(_, names)| !is_in(&pool, names))
        {
            return Err(Failure::failed(format!("cannot find vdev '{missing}' in '{first}', nor a pool of that name")));
        }
        watched.vdevs = names.concat();
        Ok(watched)
    }

    /// The pool that has vdevs of all these names.
    fn with_vdevs(self, call: &Call, names: &[String]) -> Result<Self, Failure> {
        let names: Vec<Vec<String>> = names.iter().map(|name| target::names_of(call, name)).collect();
        let has_all = |row: &PoolIoRow| {
            names.iter().all(|names| of_pool(row).any(|vdev| names.iter().any(|name| vdev.is_called(name))))
        };
        let mut found = None;
        let query = IostatQuery { pools: self.guids(), interval_ns: None, samples: None, histograms: false };
        let mut take = |row| {
            if let Row::PoolIo(row) = row
                && has_all(&row)
            {
                found = Some(row.name.clone());
            }
        };
        self.holder.sample(call, query, &mut take)?.map_err(refused)?;
        let pools: Vec<OpenPool> = self.pools.into_iter().filter(|pool| Some(&pool.name) == found.as_ref()).collect();
        if pools.is_empty() {
            return Err(Failure::failed("no open pool has all of these vdevs"));
        }
        Ok(Watched { pools, vdevs: names.concat(), ..self })
    }

    fn guids(&self) -> Vec<String> {
        self.pools.iter().map(|pool| pool.guid.to_string()).collect()
    }

    /// Prints the reports.
    fn report(&self, call: &Call, args: &IostatArgs, columns: Columns, repetition: Repetition) -> Result<(), Failure> {
        let interval_ns = repetition.interval.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        // The first sample is that before the first report.
        let samples = repetition.count.map(|count| count.saturating_add(args.omit_first.into()));
        let query = IostatQuery { pools: self.guids(), interval_ns, samples, histograms: self.has_histograms };
        let mut reports = Reports { before: Vec::new(), now: Vec::new(), is_first: true };
        let mut done = Ok(());
        let mut take = |row| {
            if let Row::PoolIo(row) = row {
                reports.now.push((Sample::of(&row), *row));
                if reports.now.len() == self.pools.len() && done.is_ok() {
                    done = self.print(call, args, columns, repetition, &mut reports);
                }
            }
        };
        let answer = self.holder.sample(call, query, &mut take)?;
        done?;
        match answer {
            // The client of this process has gone away.
            Err(refusal) if refusal.kind == RefusalKind::Stopped => Ok(()),
            answer => answer.map_err(refused),
        }
    }

    /// Prints a report of the samples that have arrived, unless it is that before the first report.
    fn print(
        &self,
        call: &Call,
        args: &IostatArgs,
        columns: Columns,
        repetition: Repetition,
        reports: &mut Reports,
    ) -> Result<(), Failure> {
        let now = std::mem::take(&mut reports.now);
        let before = std::mem::take(&mut reports.before);
        if !args.omit_first || !before.is_empty() {
            repetition.print_time(call)?;
            let mut pools = Vec::new();
            for (i, (sample, row)) in now.iter().enumerate() {
                let before = before.get(i);
                let ns = sample.uptime_ns.saturating_sub(before.map_or(0, |before| before.uptime_ns));
                let seconds = Duration::from_nanos(ns).as_secs_f64().max(1e-9);
                // Histograms since the pool was opened are not divided.
                let is_whole = before.is_none_or(|before| before.leaves.is_empty())
                    && !matches!(columns.shape, Shape::Lines { .. });
                pools.push((self.rows(row, sample, before), if is_whole { 1.0 } else { seconds }));
            }
            let header = !args.scripted && (reports.is_first || args.is_verbose() && !args.one_header);
            let names: Vec<String> = now.iter().map(|(_, row)| row.name.clone()).collect();
            let scripts = self.run_scripts(&names, &pools);
            let report = Report { pools, names, scripts, of_vdevs: !self.vdevs.is_empty(), header };
            call.print(format_args!("{}", columns.text(&report)));
            if repetition.interval.is_some() {
                // A command of its own buffers its output until it is known where it runs.
                call.begin();
            }
            reports.is_first = false;
        }
        reports.before = now.into_iter().map(|(sample, _)| sample).collect();
        Ok(())
    }

    /// The columns that scripts add to the devices of the rows.
    fn run_scripts(&self, names: &[String], pools: &[(Vec<IostatRow>, f64)]) -> ScriptColumns {
        let Some(scripts) = self.scripts else { return ScriptColumns::default() };
        debug_assert_eq!(names.len(), pools.len());
        let rows = names.iter().zip(pools).flat_map(|(name, (rows, _))| rows.iter().map(move |row| (name, row)));
        let devices = rows.filter_map(|(name, row)| Some((name.clone(), row.path.clone()?)));
        scripts.run(&devices.collect())
    }

    /// The pool; with `-v` also its vdevs, by class; or those that were named.
    fn rows(&self, pool: &PoolIoRow, now: &Sample, before: Option<&Sample>) -> Vec<IostatRow> {
        let row = |name: String, vdev: &VdevIo| IostatRow {
            name,
            space: vdev.space_bytes.map(|[allocated, free]| (allocated, free)),
            done: Some(now.since(before, vdev)),
            path: vdev.path.clone(),
        };
        let ours = |group: VdevGroup| pool.root.children.iter().filter(move |top| top.group == Some(group));
        let mut out = Vec::new();
        if !self.vdevs.is_empty() {
            let chosen = of_pool(pool).filter(|vdev| self.vdevs.iter().any(|name| vdev.is_called(name)));
            out.extend(chosen.map(|vdev| row(self.names.of_sample(vdev), vdev)));
            return out;
        }
        let with_data = [VdevGroup::Normal, VdevGroup::Special, VdevGroup::Dedup].into_iter().flat_map(ours);
        let total = with_data.filter_map(|top| top.space_bytes).fold((0, 0), |a, b| (a.0 + b[0], a.1 + b[1]));
        out.push(IostatRow { space: Some(total), ..row(pool.name.clone(), &pool.root) });
        let groups = [VdevGroup::Normal, VdevGroup::Dedup, VdevGroup::Special, VdevGroup::Log];
        for group in groups.into_iter().filter(|_| self.deep) {
            let heading = heading_of(group);
            if ours(group).next().is_some() && !heading.is_empty() {
                out.push(IostatRow { name: heading.to_owned(), space: None, done: None, path: None });
            }
            for top in ours(group) {
                self.with_below(top, 2, &row, &mut out);
            }
        }
        if self.deep && !pool.caches.is_empty() {
            out.push(IostatRow { name: heading_of(VdevGroup::Cache).to_owned(), space: None, done: None, path: None });
            pool.caches.iter().for_each(|cache| self.with_below(cache, 2, &row, &mut out));
        }
        out
    }

    fn with_below(
        &self,
        vdev: &VdevIo,
        indent: usize,
        row: &dyn Fn(String, &VdevIo) -> IostatRow,
        out: &mut Vec<IostatRow>,
    ) {
        out.push(row(format!("{}{}", " ".repeat(indent), self.names.of_sample(vdev)), vdev));
        for child in &vdev.children {
            self.with_below(child, indent + 2, row, out);
        }
    }
}

/// The vdevs of a pool, parents first, then its cache devices, which are not in its sums.
fn of_pool(pool: &PoolIoRow) -> impl Iterator<Item = &VdevIo> {
    pool.root.walk().into_iter().chain(&pool.caches)
}

/// Samples between reports.
struct Reports {
    /// Those of the report before, by pool; none before the first one.
    before: Vec<Sample>,
    /// Those of the next report.
    now: Vec<(Sample, PoolIoRow)>,
    is_first: bool,
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
