//! The text of `zpool iostat`.
//!
//! Source: OpenZFS `cmd/zpool/zpool_main.c` (`print_iostat_labels`, `print_iostat_default`, `print_iostat_latency`,
//! `print_iostat_queues`, `print_iostat_histos`), `lib/libzutil/zutil_nicenum.c`.

use super::iostat::{IostatRow, VdevWork};
use super::vdev_scripts::ScriptColumns;
use crate::units::{human, human_time_ns};
use weir_blocks::vdev::histogram::{LeafStats, OperationStats, SIZE_BUCKETS, TIME_BUCKETS, average};

/// Narrowest column of names.
const NAMES: usize = 10;
/// First bucket of the sizes that are shown: 512 bytes.
const FIRST_SIZE: usize = 9;

/// Form in which the operations of each vdev are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A line.
    Lines {
        /// With average times.
        latency: bool,
        /// With the lengths of the queues.
        queues: bool,
    },
    /// Histograms of sizes.
    Sizes,
    /// Histograms of times.
    Times,
}

/// A group of columns: title and number of columns of each heading above, and the headings below.
struct Group {
    above: &'static [(&'static str, usize)],
    below: &'static [&'static str],
    /// Width of a column with exact numbers.
    wide: usize,
}

const WORK: Group = Group {
    above: &[("capacity", 2), ("operations", 2), ("bandwidth", 2)],
    below: &["alloc", "free", "read", "write", "read", "write"],
    wide: 15,
};
const LATENCY: Group = Group {
    above: &[
        ("total_wait", 2),
        ("disk_wait", 2),
        ("syncq_wait", 2),
        ("asyncq_wait", 2),
        ("scrub", 1),
        ("trim", 1),
        ("rebuild", 1),
    ],
    below: &["read", "write", "read", "write", "read", "write", "read", "write", "wait", "wait", "wait"],
    wide: 10,
};
const QUEUES: Group = Group {
    above: &[
        ("syncq_read", 2),
        ("syncq_write", 2),
        ("asyncq_read", 2),
        ("asyncq_write", 2),
        ("scrubq_read", 2),
        ("trimq_write", 2),
        ("rebuildq_write", 2),
    ],
    below: &[
        "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend", "activ", "pend",
        "activ",
    ],
    wide: 6,
};
const TIMES: Group = Group {
    above: &[("total_wait", 2), ("disk_wait", 2), ("syncq_wait", 2), ("asyncq_wait", 2)],
    below: &["read", "write", "read", "write", "read", "write", "read", "write", "scrub", "trim", "rebuild"],
    wide: 10,
};
const SIZES: Group = Group {
    above: &[
        ("sync_read", 2),
        ("sync_write", 2),
        ("async_read", 2),
        ("async_write", 2),
        ("scrub", 2),
        ("trim", 2),
        ("rebuild", 2),
    ],
    below: &["ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg", "ind", "agg"],
    wide: 6,
};

/// The rows of all pools, each with the seconds by which its counters are divided.
pub struct Report {
    /// The pools.
    pub pools: Vec<(Vec<IostatRow>, f64)>,
    /// Names of the pools.
    pub names: Vec<String>,
    /// Columns that scripts add to devices.
    pub scripts: ScriptColumns,
    /// Whether vdevs were named.
    pub of_vdevs: bool,
    /// Whether the header is printed.
    pub header: bool,
}

/// How reports look.
#[derive(Clone, Copy, Debug)]
pub struct Columns {
    /// Form of each vdev.
    pub shape: Shape,
    /// Exact numbers.
    pub parsable: bool,
    /// Tabs, and no header.
    pub scripted: bool,
    /// With all vdevs.
    pub verbose: bool,
}

impl Columns {
    /// The text of a report.
    pub fn text(self, report: &Report) -> String {
        let rows = report.pools.iter().flat_map(|(rows, _)| rows);
        let names = rows.map(|row| row.name.chars().count()).max().unwrap_or(0).max(NAMES);
        match self.shape {
            Shape::Lines { latency, queues } => {
                let chosen = [(WORK, true), (LATENCY, latency), (QUEUES, queues)];
                let groups: Vec<Group> =
                    chosen.into_iter().filter(|(_, is_on)| *is_on).map(|(group, _)| group).collect();
                self.lines(report, names, &groups)
            }
            Shape::Sizes | Shape::Times => self.histograms(report, names),
        }
    }

    fn width(self, group: &Group) -> usize {
        if self.parsable { group.wide } else { 5 }
    }

    fn lines(self, report: &Report, names: usize, groups: &[Group]) -> String {
        let widths: Vec<(&Group, usize)> = groups.iter().map(|group| (group, self.width(group))).collect();
        let dashes = format!("{}{}\n", dashes(names, &widths).trim_end_matches('\n'), report.scripts.dashes());
        let mut out = String::new();
        if report.header {
            let heading = heading("", if report.of_vdevs { "vdev" } else { "pool" }, names, &widths);
            out += &format!("{}{}\n", heading.trim_end_matches('\n'), report.scripts.headings());
            out += &dashes;
        }
        let mut count = 0;
        for ((rows, seconds), pool) in report.pools.iter().zip(&report.names) {
            for row in rows {
                let line = self.line(row, *seconds, names, &widths);
                match report.scripts.cells(pool, row.path.as_deref()) {
                    Some(cells) => out += &format!("{}{cells}\n", line.trim_end_matches('\n')),
                    None => out += &line,
                }
                count += usize::from(row.done.is_some());
            }
            if self.verbose && !self.scripted && !report.of_vdevs {
                out += &dashes;
            }
        }
        let several = report.pools.len() > 1 || report.of_vdevs && count > 1;
        if several && !self.scripted && (!self.verbose || report.of_vdevs) {
            out += &dashes;
        }
        out
    }

    fn line(self, row: &IostatRow, seconds: f64, names: usize, widths: &[(&Group, usize)]) -> String {
        let Some(done) = &row.done else {
            // Headings are for people.
            return match self.scripted {
                true => String::new(),
                false => {
                    let columns = widths.iter().flat_map(|(group, width)| group.below.iter().map(move |_| *width));
                    let cells: String = columns.map(|width| format!("  {:>width$}", "-")).collect();
                    format!("{:<names$}{cells}\n", row.name)
                }
            };
        };
        let mut cells = self.work(row.space, done, seconds);
        if let Shape::Lines { latency, queues } = self.shape {
            cells.extend(latency.then(|| self.latency(&done.stats)).into_iter().flatten());
            cells.extend(queues.then(|| self.queues(&done.stats)).into_iter().flatten());
        }
        if self.scripted {
            return format!("{}\t{}\n", row.name.trim_start(), cells.join("\t"));
        }
        let columns = widths.iter().flat_map(|(group, width)| group.below.iter().map(move |_| *width));
        debug_assert_eq!(columns.clone().count(), cells.len());
        let cells: String = columns.zip(cells).map(|(width, cell)| format!("  {cell:>width$}")).collect();
        format!("{:<names$}{cells}\n", row.name)
    }

    fn number(self, n: u64) -> String {
        if self.parsable { n.to_string() } else { human(n) }
    }

    fn work(self, space: Option<(u64, u64)>, done: &VdevWork, seconds: f64) -> Vec<String> {
        let nothing = if self.parsable { "0" } else { "-" };
        let space = space.map(|(allocated, free)| [self.number(allocated), self.number(free)]);
        let space = space.unwrap_or_else(|| [(); 2].map(|()| nothing.to_owned()));
        let work = done.work.0.map(|n| self.number((n as f64 / seconds) as u64));
        space.into_iter().chain(work).collect()
    }

    fn latency(self, stats: &LeafStats) -> Vec<String> {
        let averages = time_columns(stats).map(|times| times.map_or(0, average));
        averages.map(|ns| if self.parsable && ns > 0 { ns.to_string() } else { human_time_ns(ns) }).to_vec()
    }

    fn queues(self, LeafStats { reads, writes }: &LeafStats) -> Vec<String> {
        let of = |stats: &OperationStats, class: usize| [stats.pending[class], stats.active[class]];
        let scrub = [0, 1].map(|i| of(reads, 2)[i].saturating_add(of(writes, 2)[i]));
        let all = [of(reads, 0), of(writes, 0), of(reads, 1), of(writes, 1), scrub, [0; 2], [0; 2]];
        all.concat().into_iter().map(|n| self.number(n)).collect()
    }

    fn histograms(self, report: &Report, names: usize) -> String {
        let (group, title) = if self.shape == Shape::Sizes { (&SIZES, "req_size") } else { (&TIMES, "latency") };
        let mut out = String::new();
        for (rows, seconds) in &report.pools {
            for row in rows {
                let Some(done) = &row.done else { continue };
                let per_second = |n: u64| (n as f64 / seconds) as u64;
                let table: Vec<(u64, Vec<u64>)> = match self.shape {
                    Shape::Sizes => (FIRST_SIZE..SIZE_BUCKETS)
                        .map(|i| (1 << i, size_cells(&done.stats, i).into_iter().map(per_second).collect()))
                        .collect(),
                    _ => (0..TIME_BUCKETS)
                        .map(|i| {
                            let columns = time_columns(&done.stats);
                            let cells = columns.map(|times| times.map_or(0, |times| per_second(times[i])));
                            ((2 << i) - 1, cells.to_vec())
                        })
                        .collect(),
                };
                out += &self.histogram(row.name.trim_start(), group, title, names, &table);
            }
        }
        out
    }

    fn histogram(self, name: &str, group: &Group, title: &str, names: usize, table: &[(u64, Vec<u64>)]) -> String {
        let widest = table.iter().flat_map(|(_, cells)| cells).max().copied().unwrap_or(0);
        let width = if self.parsable { widest.to_string().len().max(5) } else { 5 };
        let widths = [(group, width)];
        let mut out = "\n".to_owned();
        if self.scripted {
            out += &format!("{name}\n");
        } else {
            out += &heading(name, title, names, &widths);
            out += &dashes(names, &widths);
        }
        for (label, cells) in table {
            let cells = cells.iter().map(|n| self.number(*n));
            if self.scripted {
                out += &format!("{label}\t{}\n", cells.collect::<Vec<_>>().join("\t"));
            } else {
                let label = if self.shape == Shape::Sizes { human(*label) } else { human_time_ns(*label) };
                let cells: String = cells.map(|cell| format!("  {cell:>width$}")).collect();
                out += &format!("{label:<names$}{cells}\n");
            }
        }
        if !self.scripted {
            out += &format!("{}\n", "-".repeat(names + (width + 2) * group.below.len()));
        }
        out
    }
}

/// The times of the columns of [`LATENCY`]; `None` for operations that do not pass the queues.
fn time_columns(stats: &LeafStats) -> [Option<&[u64; TIME_BUCKETS]>; 11] {
    let LeafStats { reads, writes } = stats;
    [
        Some(&reads.total),
        Some(&writes.total),
        Some(&reads.disk),
        Some(&writes.disk),
        Some(&reads.waits[0]),
        Some(&writes.waits[0]),
        Some(&reads.waits[1]),
        Some(&writes.waits[1]),
        Some(&reads.waits[2]),
        None,
        None,
    ]
}

/// A row of the histograms of sizes. Repairs are writes of the class of scrubs.
fn size_cells(LeafStats { reads, writes }: &LeafStats, bucket: usize) -> [u64; 14] {
    let of = |stats: &OperationStats, class: usize| [stats.single[class][bucket], stats.merged[class][bucket]];
    let scrub = [0, 1].map(|i| of(reads, 2)[i].saturating_add(of(writes, 2)[i]));
    let pairs = [of(reads, 0), of(writes, 0), of(reads, 1), of(writes, 1), scrub, [0; 2], [0; 2]];
    std::array::from_fn(|i| pairs[i / 2][i % 2])
}

fn dashes(names: usize, widths: &[(&Group, usize)]) -> String {
    let columns = widths.iter().flat_map(|(group, width)| group.below.iter().map(move |_| *width));
    let columns: String = columns.map(|width| format!("  {}", "-".repeat(width))).collect();
    format!("{}{columns}\n", "-".repeat(names))
}

/// The two lines above a report.
fn heading(name: &str, title: &str, names: usize, widths: &[(&Group, usize)]) -> String {
    let mut above = String::new();
    let mut below = String::new();
    for (group, width) in widths {
        for (title, columns) in group.above {
            let whole = width * columns + 2 * (columns - 1);
            let start = (whole / columns).saturating_sub(title.len() / columns);
            let rest = whole.saturating_sub(start).max(title.len());
            above += &format!("  {:start$}{title:<rest$}", "");
        }
        group.below.iter().for_each(|title| below += &format!("  {title:>width$}"));
    }
    format!("{name:<names$}{above}\n{title:<names$}{below}\n")
}

#[cfg(test)]
mod tests {
    use super::super::iostat::Work;
    use super::*;

    fn row(name: &str, space: Option<(u64, u64)>, work: [u64; 4]) -> IostatRow {
        let done = Some(VdevWork { work: Work(work), stats: LeafStats::default() });
        IostatRow { name: name.into(), space, done, path: None }
    }

    fn columns(shape: Shape) -> Columns {
        Columns { shape, parsable: false, scripted: false, verbose: true }
    }

    fn report(pools: Vec<(Vec<IostatRow>, f64)>) -> Report {
        let names = vec!["tank".to_owned(); pools.len()];
        Report { pools, names, scripts: ScriptColumns::default(), of_vdevs: false, header: true }
    }

    const PLAIN: Shape = Shape::Lines { latency: false, queues: false };

    #[test]
    fn reports_look_as_those_of_openzfs() {
        let rows = vec![
            row("tank", Some((2048, 1 << 30)), [20, 2, 4096, 0]),
            row("  mirror-0", Some((2048, 1 << 30)), [20, 2, 4096, 0]),
            row("    /d/0", None, [20, 2, 4096, 0]),
        ];
        let mut report = report(vec![(rows, 2.0)]);
        let expected = "              capacity     operations     bandwidth \n\
pool        alloc   free   read  write   read  write
----------  -----  -----  -----  -----  -----  -----
tank           2K     1G     10      1     2K      0
  mirror-0     2K     1G     10      1     2K      0
    /d/0        -      -     10      1     2K      0
----------  -----  -----  -----  -----  -----  -----
";
        assert_eq!(columns(PLAIN).text(&report), expected);
        report.pools[0].0.truncate(1);
        report.header = false;
        let scripted = Columns { scripted: true, parsable: true, ..columns(PLAIN) };
        assert_eq!(scripted.text(&report), "tank\t2048\t1073741824\t10\t1\t2048\t0\n");
    }

    #[test]
    fn times_and_queues_are_further_columns() {
        let mut one = row("tank", Some((2048, 1 << 30)), [1, 0, 512, 0]);
        let stats = &mut one.done.as_mut().unwrap().stats;
        stats.reads.total[20] = 1;
        stats.reads.disk[20] = 1;
        stats.reads.waits[0][10] = 1;
        stats.writes.pending = [1, 2, 3];
        let report = report(vec![(vec![one], 1.0)]);
        let columns = Columns { verbose: false, ..columns(Shape::Lines { latency: true, queues: true }) };
        let text = columns.text(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "              capacity     operations     bandwidth    total_wait     disk_wait    syncq_wait    asyncq_wait  \
             scrub   trim  rebuild   syncq_read    syncq_write   asyncq_read  asyncq_write   scrubq_read   \
             trimq_write  rebuildq_write"
        );
        let cells: Vec<&str> = lines[3].split_whitespace().collect();
        assert_eq!(cells[7..18], ["1ms", "-", "1ms", "-", "1us", "-", "-", "-", "-", "-", "-"]);
        assert_eq!(cells[18..], ["0", "0", "1", "0", "0", "0", "2", "0", "3", "0", "0", "0", "0", "0"]);
        assert!(lines[2].len() == lines[3].len());
    }

    #[test]
    fn histograms_have_a_line_for_each_power_of_two() {
        let mut one = row("tank", None, [1, 0, 512, 0]);
        let stats = &mut one.done.as_mut().unwrap().stats;
        stats.reads.single[0][12] = 3;
        stats.writes.merged[1][24] = 7;
        stats.reads.total[0] = 4;
        let report = report(vec![(vec![one], 1.0)]);
        let text = columns(Shape::Sizes).text(&report);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 3 + 16 + 1);
        assert!(lines[1].starts_with("tank          sync_read    sync_write"), "{}", lines[1]);
        assert_eq!(lines[7].split_whitespace().take(2).collect::<Vec<_>>(), ["4K", "3"]);
        assert_eq!(lines[19].split_whitespace().nth(8), Some("7"));
        let text = columns(Shape::Times).text(&report);
        assert!(text.lines().nth(4).unwrap().starts_with("1ns             4      0"), "{text}");
        let scripted = Columns { scripted: true, ..columns(Shape::Times) }.text(&report);
        assert!(scripted.starts_with("\ntank\n1\t4\t0\t"), "{scripted}");
    }
}
