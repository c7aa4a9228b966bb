//! `zpool iostat`: reads and writes of the devices of a pool that a process has open.
//!
//! The counters are those of the leaves since the process opened the pool; other vdevs have the sum of their
//! children. Reads and writes of an interval are printed per second.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`print_iostat_default`), `module/zfs/vdev.c` (`vdev_get_stats_ex_impl`).

use super::opened::{ask, holders, served};
use crate::admin::ServedPool;
use crate::args::CommandLine;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::units::human;
use clap::Parser;
use std::collections::BTreeMap;
use std::ops::Sub;
use std::time::Duration;
use weir_engine::Engine;
use weir_machine::Nanos;
use weir_pool::{Class, VdevConfig};

/// Show operations and bytes of a pool that a process has open.
///
/// The first report covers the time since the process opened the pool, each further one the time since the last.
#[derive(Debug, Parser)]
#[command(name = "zpool iostat", override_usage = "zpool iostat [-vHpny] [-d DIR]… [POOL] [INTERVAL [COUNT]]")]
pub struct IostatArgs {
    /// Show also each vdev
    #[arg(short)]
    verbose: bool,
    /// No header; columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers
    #[arg(short)]
    parsable: bool,
    /// Print the header once only
    #[arg(short = 'n')]
    one_header: bool,
    /// Omit the first report
    #[arg(short = 'y')]
    omit_first: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool, seconds between two reports, and number of reports
    #[arg(value_name = "POOL INTERVAL COUNT")]
    words: Vec<String>,
}

/// Interval of checks whether the client still waits for output.
pub const LOOK: Duration = Duration::from_millis(200);
/// The longest interval, in seconds: a larger number is a pool's.
const MAX_INTERVAL_S: f64 = 1e9;
/// Columns of a number for people, and of an exact one.
const NARROW: usize = 5;
const WIDE: usize = 15;
/// Narrowest column of names.
const NAMES: usize = 10;

/// Requested report.
#[derive(Clone, Debug, PartialEq)]
struct ReportRequest {
    pool: Option<String>,
    interval: Option<Duration>,
    count: Option<u64>,
}

/// Operations and bytes, read and written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Work([u64; 4]);

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

/// A line of a report: indented name, bytes allocated and free if the vdev has them, operations and bytes.
struct IostatRow {
    name: String,
    space: Option<(u64, u64)>,
    work: Option<Work>,
}

/// Runs the command.
pub fn run(call: &Call, args: &IostatArgs) -> Result<u8, Failure> {
    let wanted = wanted(args.words.clone())?;
    if args.omit_first && wanted.interval.is_none() {
        return Err(IostatArgs::misused("-y leaves out the first of several reports"));
    }
    if call.process().is_some() {
        return of_served_pools(call, args, &wanted);
    }
    let why = "what goes to and from its devices is counted by the process that has (weir serve, mount, demo)";
    let holders = holders(call, &args.places, wanted.pool.as_ref(), why)?;
    if wanted.interval.is_some() && holders.len() > 1 {
        return Err(Failure::failed("several processes have pools open: name the pool to watch"));
    }
    ask(call, &holders)
}

/// Parses the operands: a pool, an interval and a count, each optional.
fn wanted(mut words: Vec<String>) -> Result<ReportRequest, Failure> {
    let (interval, count) = take_interval::<IostatArgs>(&mut words)?;
    if words.len() > 1 {
        return Err(IostatArgs::misused("name one pool"));
    }
    Ok(ReportRequest { pool: words.pop(), interval, count })
}

/// Takes an interval and a count, each optional, off the end of the operands.
pub fn take_interval<A: CommandLine>(words: &mut Vec<String>) -> Result<(Option<Duration>, Option<u64>), Failure> {
    let number = |word: &String| word.parse::<f64>().ok().filter(|n| (0.0..MAX_INTERVAL_S).contains(n));
    let at = words.iter().rposition(|word| number(word).is_none()).map_or(0, |last| last + 1);
    let numbers: Vec<f64> = words.split_off(at).iter().filter_map(number).collect();
    let (interval, count) = match numbers.as_slice() {
        [] => (None, None),
        [interval, rest @ ..] if *interval > 0.0 && rest.len() < 2 => {
            let count = rest.first().map(|count| *count as u64);
            (Some(Duration::from_secs_f64(*interval)), count)
        }
        _ => return Err(A::misused("an interval in seconds above zero, and how many reports")),
    };
    if count == Some(0) {
        return Err(A::misused("the number of reports cannot be zero"));
    }
    Ok((interval, count))
}

/// Work of each leaf, by GUID.
fn work(engine: &Engine) -> BTreeMap<u64, Work> {
    let health = engine.cache.blocks().tree().health();
    let of = |c: weir_blocks::vdev::Counts| Work([c.reads, c.writes, c.read_bytes, c.write_bytes]);
    health.into_iter().map(|leaf| (leaf.guid, of(leaf.counts))).collect()
}

/// Shows reports of the pool that is named, or of all pools that this process has open.
fn of_served_pools(call: &Call, args: &IostatArgs, wanted: &ReportRequest) -> Result<u8, Failure> {
    let pools = served(call, wanted.pool.as_ref())?;
    if wanted.interval.is_some() && pools.len() > 1 {
        return Err(Failure::failed("several pools are open: name the pool to watch"));
    }
    pools.iter().try_for_each(|pool| of_served_pool(call, args, wanted, pool).map(drop))?;
    Ok(0)
}

/// Shows reports of a pool that this process has open.
fn of_served_pool(
    call: &Call,
    args: &IostatArgs,
    wanted: &ReportRequest,
    served_pool: &ServedPool,
) -> Result<u8, Failure> {
    let machine = call.machine()?;
    let engine = &served_pool.engine;
    let mut left = if wanted.interval.is_some() { wanted.count } else { Some(1) };
    let mut before = BTreeMap::new();
    let mut since = engine.opened();
    if args.omit_first {
        (before, since) = (work(engine), machine.clock.now());
    }
    let mut is_first = true;
    machine.block_on(async {
        while left != Some(0) {
            let wait = wanted.interval.filter(|_| !is_first || args.omit_first);
            let due = machine.clock.now() + wait.unwrap_or_default();
            while machine.clock.now() < due {
                if call.is_gone() || engine.events.is_ended() {
                    return Ok(0);
                }
                machine.clock.sleep(LOOK.min(due.since(machine.clock.now()))).await;
            }
            let now = work(engine);
            let at = machine.clock.now();
            let lines = lines(engine, &now, &before, args.verbose)?;
            let head = !args.scripted && (is_first || args.verbose && !args.one_header);
            call.print(format_args!("{}", text(&lines, seconds(at, since), args, head)));
            (before, since, is_first) = (now, at, false);
            left = left.map(|left| left - 1);
        }
        Ok(0)
    })
}

fn seconds(now: Nanos, since: Nanos) -> f64 {
    now.since(since).as_secs_f64().max(1e-9)
}

/// The pool; with `deep` also its vdevs, by class.
fn lines(
    engine: &Engine,
    now: &BTreeMap<u64, Work>,
    before: &BTreeMap<u64, Work>,
    deep: bool,
) -> Result<Vec<IostatRow>, Failure> {
    let config = engine.shown().config;
    let unreadable = |error| Failure::failed(format!("the vdevs of '{}': {error}", config.name));
    let root = VdevConfig::parse(&config.root).map_err(unreadable)?;
    let of = |all: &BTreeMap<u64, Work>, guid: u64| all.get(&guid).copied().unwrap_or_default();
    let done = |vdev: &VdevConfig| vdev.leaves().into_iter().map(|l| of(now, l.guid) - of(before, l.guid)).sum();
    let space = |top: &VdevConfig| {
        let sums = engine.cache.blocks().vdev_space(top.id as u32);
        (sums.allocated_bytes, sums.size_bytes.saturating_sub(sums.allocated_bytes))
    };
    let ours = |class: Class| root.children.iter().filter(move |top| top.class == class && top.is_concrete());
    let sold = [Class::Normal, Class::Special, Class::Dedup].into_iter().flat_map(ours).map(space);
    let total = sold.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1));
    let mut out = vec![IostatRow { name: config.name.clone(), space: Some(total), work: Some(done(&root)) }];
    let classes = [(Class::Normal, ""), (Class::Dedup, "dedup"), (Class::Special, "special"), (Class::Log, "logs")];
    for (class, heading) in classes.into_iter().filter(|_| deep) {
        if ours(class).next().is_some() && !heading.is_empty() {
            out.push(IostatRow { name: heading.to_owned(), space: None, work: None });
        }
        for top in ours(class) {
            out.push(IostatRow { name: format!("  {}", top.name()), space: Some(space(top)), work: Some(done(top)) });
            below(top, 4, &done, &mut out);
        }
    }
    Ok(out)
}

fn below(vdev: &VdevConfig, indent: usize, done: &dyn Fn(&VdevConfig) -> Work, out: &mut Vec<IostatRow>) {
    for child in &vdev.children {
        let name = format!("{}{}", " ".repeat(indent), child.name());
        out.push(IostatRow { name, space: None, work: Some(done(child)) });
        below(child, indent + 2, done, out);
    }
}

/// Formats a report over this number of seconds.
fn text(lines: &[IostatRow], seconds: f64, args: &IostatArgs, head: bool) -> String {
    let exact = args.parsable;
    let scripted = args.scripted;
    let width = if exact { WIDE } else { NARROW };
    let names = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0).max(NAMES);
    let dashes = || format!("{}{}\n", "-".repeat(names), format!("  {}", "-".repeat(width)).repeat(6));
    let mut out = String::new();
    if head {
        out += &heading(names, width);
        out += &dashes();
    }
    let nothing = |line: &IostatRow| if exact && line.work.is_some() { "0" } else { "-" };
    let number = |n: u64| if exact { n.to_string() } else { human(n) };
    for line in lines {
        let space = line.space.map(|(allocated, free)| [number(allocated), number(free)]);
        let space = space.unwrap_or_else(|| [(); 2].map(|()| nothing(line).to_owned()));
        let work = line.work.map(|work| work.0.map(|n| number((n as f64 / seconds) as u64)));
        let work = work.unwrap_or_else(|| [(); 4].map(|()| "-".to_owned()));
        if scripted {
            // Headings are for people.
            if line.work.is_some() {
                out += &format!("{}\t{}\t{}\n", line.name.trim_start(), space.join("\t"), work.join("\t"));
            }
            continue;
        }
        out += &format!("{:<names$}", line.name);
        space.iter().chain(&work).for_each(|cell| out += &format!("  {cell:>width$}"));
        out.push('\n');
    }
    if args.verbose && !scripted {
        out += &dashes();
    }
    out
}

/// The two lines above a report.
fn heading(names: usize, width: usize) -> String {
    let pair = 2 * width + 2;
    let above = ["capacity", "operations", "bandwidth"].map(|title| {
        let start = pair / 2 - title.len() / 2;
        format!("  {:start$}{title:<rest$}", "", rest = pair - start)
    });
    let below = ["alloc", "free", "read", "write", "read", "write"].map(|title| format!("  {title:>width$}"));
    format!("{:names$}{}\n{:<names$}{}\n", "", above.concat(), "pool", below.concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_behind_a_pool_are_an_interval_and_a_count() {
        let of = |line: &str| wanted(line.split_whitespace().map(str::to_owned).collect());
        let is = |line: &str, pool: Option<&str>, ms: Option<u64>, count| {
            let interval = ms.map(Duration::from_millis);
            assert_eq!(of(line).unwrap(), ReportRequest { pool: pool.map(str::to_owned), interval, count }, "{line}");
        };
        is("", None, None, None);
        is("p", Some("p"), None, None);
        is("p 0.5", Some("p"), Some(500), None);
        is("2 3", None, Some(2000), Some(3));
        is("17846251834091284731 2", Some("17846251834091284731"), Some(2000), None);
        for wrong in ["p q", "p 0", "p 1 0", "p 1 2 3"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn reports_look_as_those_of_openzfs() {
        let args = |line: &str| IostatArgs::parse_line(&[line.into()]).unwrap();
        let line = |name: &str, space, work| IostatRow { name: name.into(), space, work: Some(Work(work)) };
        let lines = [
            line("tank", Some((2048, 1 << 30)), [20, 2, 4096, 0]),
            line("  mirror-0", Some((2048, 1 << 30)), [20, 2, 4096, 0]),
            line("    /d/0", None, [20, 2, 4096, 0]),
        ];
        let expected = "              capacity     operations     bandwidth \n\
pool        alloc   free   read  write   read  write
----------  -----  -----  -----  -----  -----  -----
tank           2K     1G     10      1     2K      0
  mirror-0     2K     1G     10      1     2K      0
    /d/0        -      -     10      1     2K      0
----------  -----  -----  -----  -----  -----  -----
";
        assert_eq!(text(&lines, 2.0, &args("-v"), true), expected);
        let scripted = "tank\t2048\t1073741824\t10\t1\t2048\t0\n";
        assert_eq!(text(&lines[..1], 2.0, &args("-Hp"), false), scripted);
    }
}
