//! `weir store`: requests and cost of the disks in object stores of pools that processes have open.
//!
//! Rejected: columns in `zpool status` and `zpool iostat`, whose output programs parse, and which have no place for four kinds of
//! requests of a device.

use super::Watched;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::table::{Align, Table};
use crate::units::{human, human_bytes, human_time_ns};
use crate::zpool::repeat::Repetition;
use clap::Parser;
use serde_json::json;
use weir_analytics::{Cost, Sample, StoreSpace, StoreTotals};

/// Columns of the table.
const COLUMNS: [(&str, Align); 10] = [
    ("POOL", Align::Left),
    ("DISK", Align::Left),
    ("REQUEST", Align::Left),
    ("COUNT", Align::Right),
    ("FAILED", Align::Right),
    ("RETRIES", Align::Right),
    ("BYTES", Align::Right),
    ("MEAN", Align::Right),
    ("LONGEST", Align::Right),
    ("COST", Align::Right),
];

/// Show requests, bytes, retries, latency and cost of disks in object stores.
///
/// The first report covers the time since the process that has the pool open named the disk first, each further one the time since
/// the last, except LONGEST. COST is by the price list that store_prices in weir.toml names, without storage, which the lines
/// below the table have: between the allocated bytes and the size of the disk.
#[derive(Debug, Parser)]
#[command(name = "weir store", override_usage = "weir store [-Hpj] [-d DIR]… [POOL…] [INTERVAL [COUNT]]")]
pub struct StoreArgs {
    /// Print the table alone, without header, columns separated by tabs
    #[arg(short = 'H')]
    scripted: bool,
    /// Print exact numbers; times in nanoseconds
    #[arg(short)]
    parsable: bool,
    /// Print JSON
    #[arg(short = 'j', long, conflicts_with = "scripted")]
    json: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pools; then seconds between two reports, and number of reports
    #[arg(value_name = "POOL INTERVAL COUNT")]
    words: Vec<String>,
}

/// Runs the command.
pub fn run(call: &Call, args: &StoreArgs) -> Result<u8, Failure> {
    let mut names = args.words.clone();
    let repetition = Repetition::take::<StoreArgs>(None, &mut names)?;
    let watched = Watched::find(call, &args.places, &names)?;
    let mut last: Vec<Sample> = Vec::new();
    repetition.run(call, |is_first| {
        let samples = watched.samples(call)?;
        let rows: Vec<Vec<StoreTotals>> = samples.iter().map(|sample| since(sample, &last)).collect();
        let pools = || samples.iter().zip(&rows).filter(|(sample, _)| !sample.store_space.is_empty());
        if args.json {
            let pools: Vec<_> = pools()
                .map(|(sample, rows)| json!({ "pool": sample.pool, "requests": rows, "space": sample.store_space }))
                .collect();
            outln!(call, "{}", json!({ "pools": pools }));
        } else if pools().next().is_none() {
            if !args.scripted {
                outln!(call, "no device of {} is in an object store", described(&samples));
            }
        } else {
            let mut table = Table::new(COLUMNS.map(|(name, align)| (name.to_owned(), align)), args.scripted);
            pools().for_each(|(sample, rows)| args.add(&mut table, &sample.pool, rows));
            let space = pools().flat_map(|(sample, _)| &sample.store_space).filter_map(|row| args.storage(row));
            let space: String = if args.scripted { String::new() } else { space.collect() };
            call.print(format_args!("{}{}{space}", if is_first { "" } else { "\n" }, table.text()));
        }
        last = samples;
        Ok(0)
    })
}

fn described(samples: &[Sample]) -> String {
    let names: Vec<String> = samples.iter().map(|sample| format!("'{}'", sample.pool)).collect();
    names.join(", ")
}

/// The requests of a pool since the samples before; all, if the process or the pool was another one.
fn since(sample: &Sample, before: &[Sample]) -> Vec<StoreTotals> {
    let same = |was: &&Sample| was.guid == sample.guid && was.uptime_ns <= sample.uptime_ns;
    let was = before.iter().find(same);
    let row = |now: &StoreTotals| {
        let of_kind = |was: &&StoreTotals| was.name == now.name && was.kind == now.kind;
        let was = was.and_then(|was| was.stores.iter().find(of_kind)).cloned().unwrap_or_default();
        let cost = now.cost.as_ref().map(|cost| Cost {
            nanos: cost.nanos.saturating_sub(was.cost.map_or(0, |was| was.nanos)),
            currency: cost.currency.clone(),
        });
        StoreTotals {
            name: now.name.clone(),
            kind: now.kind.clone(),
            requests: now.requests.saturating_sub(was.requests),
            failed: now.failed.saturating_sub(was.failed),
            retries: now.retries.saturating_sub(was.retries),
            time_ns: now.time_ns.saturating_sub(was.time_ns),
            longest_ns: now.longest_ns,
            bytes: now.bytes.saturating_sub(was.bytes),
            cost,
        }
    };
    sample.stores.iter().map(row).collect()
}

/// The sum of the rows of a disk.
fn sum(rows: &[StoreTotals]) -> StoreTotals {
    let total = |value: fn(&StoreTotals) -> u64| rows.iter().map(value).fold(0, u64::saturating_add);
    let costs: Option<Vec<&Cost>> = rows.iter().map(|row| row.cost.as_ref()).collect();
    let cost = costs.and_then(|costs| {
        let nanos = costs.iter().map(|cost| cost.nanos).fold(0, u64::saturating_add);
        Some(Cost { nanos, currency: costs.first()?.currency.clone() })
    });
    StoreTotals {
        name: rows.first().map(|row| row.name.clone()).unwrap_or_default(),
        kind: "all".to_owned(),
        requests: total(|row| row.requests),
        failed: total(|row| row.failed),
        retries: total(|row| row.retries),
        time_ns: total(|row| row.time_ns),
        longest_ns: rows.iter().map(|row| row.longest_ns).max().unwrap_or(0),
        bytes: total(|row| row.bytes),
        cost,
    }
}

impl StoreArgs {
    /// Adds the rows of a pool: of each disk one for each kind of request, and their sum, which alone has the retries.
    fn add(&self, table: &mut Table, pool: &str, rows: &[StoreTotals]) {
        for disk in rows.chunk_by(|one, next| one.name == next.name) {
            disk.iter().for_each(|row| table.row(self.cells(pool, row, false)));
            table.row(self.cells(pool, &sum(disk), true));
        }
    }

    fn cells(&self, pool: &str, row: &StoreTotals, is_sum: bool) -> Vec<String> {
        let count = |n: u64| if self.parsable { n.to_string() } else { human(n) };
        let time = |ns: u64| if self.parsable { ns.to_string() } else { human_time_ns(ns) };
        vec![
            pool.to_owned(),
            row.name.clone(),
            row.kind.clone(),
            count(row.requests),
            count(row.failed),
            if is_sum { count(row.retries) } else { "-".to_owned() },
            if self.parsable { row.bytes.to_string() } else { human_bytes(row.bytes) },
            time(row.time_ns.checked_div(row.requests).unwrap_or(0)),
            time(row.longest_ns),
            row.cost.as_ref().map_or_else(|| "-".to_owned(), |cost| self.money(cost)),
        ]
    }

    /// Least and most cost of storing what a disk has for a month; `None` without a price.
    fn storage(&self, space: &StoreSpace) -> Option<String> {
        let least = space.month_of_allocated()?;
        let most = space.month.as_ref()?;
        Some(format!(
            "{}: storage costs {} a month for {} allocated, at most {} for {}\n",
            space.name,
            self.money(&least),
            human_bytes(space.allocated_bytes),
            self.money(most),
            human_bytes(space.size_bytes),
        ))
    }

    fn money(&self, cost: &Cost) -> String {
        let units = cost.nanos / 1_000_000_000;
        let nanos = cost.nanos % 1_000_000_000;
        match self.parsable {
            true => format!("{units}.{nanos:09} {}", cost.currency),
            false => format!("{units}.{:06} {}", nanos / 1000, cost.currency),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::CommandLine;

    fn row(kind: &str, requests: u64, nanos: u64) -> StoreTotals {
        StoreTotals {
            name: "s3://b/p".into(),
            kind: kind.into(),
            requests,
            time_ns: requests * 3_000_000,
            longest_ns: 9_000_000,
            bytes: requests << 20,
            retries: u64::from(kind == "put") * 2,
            cost: Some(Cost { nanos, currency: "USD".into() }),
            ..StoreTotals::default()
        }
    }

    #[test]
    fn a_disk_has_a_row_for_each_kind_and_their_sum() {
        let args = StoreArgs::parse_line(&["tank".into()]).unwrap();
        let mut table = Table::new(COLUMNS.map(|(name, align)| (name.to_owned(), align)), false);
        args.add(&mut table, "tank", &[row("get", 10, 4000), row("put", 2000, 10_000_000)]);
        let expected = "\
POOL  DISK      REQUEST  COUNT  FAILED  RETRIES  BYTES  MEAN  LONGEST          COST
tank  s3://b/p  get         10       0        -    10M   3ms      9ms  0.000004 USD
tank  s3://b/p  put      1.95K       0        -  1.95G   3ms      9ms  0.010000 USD
tank  s3://b/p  all      1.96K       0        2  1.96G   3ms      9ms  0.010004 USD
";
        assert_eq!(table.text(), expected);
    }

    #[test]
    fn the_price_of_storage_has_two_bounds() {
        let args = StoreArgs::parse_line(&[]).unwrap();
        let month = Some(Cost { nanos: 2_300_000_000, currency: "USD".into() });
        let space = StoreSpace { name: "s3://b/p".into(), size_bytes: 100 << 30, allocated_bytes: 1 << 30, month };
        let expected = "s3://b/p: storage costs 0.023000 USD a month for 1G allocated, at most 2.300000 USD for 100G\n";
        assert_eq!(args.storage(&space).unwrap(), expected);
        assert_eq!(args.storage(&StoreSpace { month: None, ..space }), None);
    }
}
