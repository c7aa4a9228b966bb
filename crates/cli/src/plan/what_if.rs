//! `weir what-if`: the load that an open pool has had, on changed hardware, by simulation.

use crate::analytics::{observation, open_pools, why};
use crate::args::CommandLine;
use crate::call::{Call, outln};
use crate::failure::Failure;
use crate::options::PoolDirs;
use crate::reading::refused;
use crate::remote::RemoteProcess;
use crate::zpool::holder::PoolHolder;
use clap::Parser;
use std::collections::{BTreeMap, BTreeSet};
use weir_admin::{OpenPool, PoolPropertiesQuery, PoolQuery, Row, VdevGroup, VdevSpaceRow};
use weir_analytics::{Interval, quantile_ns};
use weir_doctor::{Interface, Reader, RealHost};
use weir_planner::hardware::drive::DriveSpec;
use weir_planner::plan::what_if::{self, Change, Recorded, Running, Settings};
use weir_planner::simulate::server::VdevLayout;

/// Seconds of the load: those of the last hour.
const LAST_SECONDS: u64 = 3600;
/// Most virtual seconds of a measurement.
const MAX_SECONDS: f64 = 600.0;

/// Predict what a change of the hardware would do for a pool in use.
///
/// The load is that of the last hour, or, if the pool was opened later, since then: the process that has the pool open counted it. The
/// engine runs it on modelled drives, links and processors in virtual time: as they are now, and with each of the changes. The
/// answer is a table, what limits each, and what was assumed because no counter says it. It changes nothing.
#[derive(Debug, Parser)]
#[command(
    name = "weir what-if",
    override_usage = "weir what-if [-j] [-t SECONDS] [--log[=DRIVE]] [--arc [+]SIZE]… [--l2arc SIZE]… [--layout LAYOUT[:WIDTH]]… [--link RATE]… [OPTION]… POOL"
)]
pub struct WhatIfArgs {
    /// A log device: a name of the drives of weir plan
    #[arg(long, value_name = "DRIVE", num_args = 0..=1, require_equals = true, default_missing_value = "log-device")]
    log: Option<String>,
    /// An ARC of this size, or larger by it, such as +64G; may be repeated
    #[arg(long, value_name = "[+]SIZE")]
    arc: Vec<String>,
    /// A cache device of this size that is full, such as 400G, beside the present ones; may be repeated, for one simulation each
    #[arg(long, value_name = "SIZE")]
    l2arc: Vec<String>,
    /// Another layout of the drives: mirrors, mirror3, raidz1, raidz2 or raidz3, with the drives of a vdev, such as raidz2:6; may be repeated
    #[arg(long, value_name = "LAYOUT[:WIDTH]")]
    layout: Vec<String>,
    /// A network link of this rate, such as 10GbE; may be repeated
    #[arg(long, value_name = "RATE")]
    link: Vec<String>,
    /// Rate of the present link [default: that of the fastest network interface in use]
    #[arg(long, value_name = "RATE")]
    link_now: Option<String>,
    /// Model of the present drives, as in weir plan [default: by the time of their operations]
    #[arg(long, value_name = "DRIVE")]
    drive: Option<String>,
    /// Watch for this time from now on, instead of taking the last hour
    #[arg(short = 't', value_name = "SECONDS")]
    watch: Option<String>,
    /// Virtual seconds of a measurement [default: 5, or as many as 2,000 operations take, up to 60]
    #[arg(long, value_name = "S")]
    seconds: Option<f64>,
    /// Number from which all that is random follows
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Print JSON
    #[arg(short = 'j', long)]
    json: bool,
    #[command(flatten)]
    places: PoolDirs,
    /// Pool that a process has open
    #[arg(value_name = "POOL")]
    pool: String,
}

impl WhatIfArgs {
    /// The changes of the command line.
    fn changes(&self) -> Result<Vec<Change>, Failure> {
        let misused = |error: weir_planner::plan::PlanError| WhatIfArgs::misused(&error.to_string());
        let mut changes: Vec<Change> = self.log.iter().cloned().map(Change::Log).collect();
        for text in &self.arc {
            changes.push(Change::arc(text).map_err(misused)?);
        }
        for text in &self.l2arc {
            changes.push(Change::cache_device(text).map_err(misused)?);
        }
        for text in &self.layout {
            changes.push(Change::layout(text).map_err(misused)?);
        }
        for text in &self.link {
            changes.push(Change::Link(Change::gbit("link", text).map_err(misused)?));
        }
        if changes.is_empty() {
            return Err(WhatIfArgs::misused("no change to predict: give --log, --arc, --l2arc, --layout or --link"));
        }
        let known = |name: &str| DriveSpec::named(name).is_some();
        if let Some(unknown) = self.log.iter().chain(&self.drive).find(|name| !known(name)) {
            let names = DriveSpec::NAMES.map(|(name, _)| name).join(", ");
            return Err(WhatIfArgs::misused(&format!("no drive is named '{unknown}'; the names are {names}")));
        }
        if self.seconds.is_some_and(|seconds| !(0.001..=MAX_SECONDS).contains(&seconds)) {
            return Err(WhatIfArgs::misused(&format!("--seconds is between 0.001 and {MAX_SECONDS}")));
        }
        Ok(changes)
    }

    /// Rate of the present link in Gbit/s.
    fn link_gbit(&self) -> Result<Option<f64>, Failure> {
        let Some(text) = &self.link_now else { return Ok(fastest_link()) };
        let gbit = Change::gbit("link-now", text).map_err(|error| WhatIfArgs::misused(&error.to_string()))?;
        Ok(Some(gbit))
    }
}

/// Rate of the fastest network interface, in Gbit/s, of those that say their rate.
fn fastest_link() -> Option<f64> {
    let interfaces = Reader::new(RealHost).traffic(&[]).interfaces;
    let rates = interfaces.iter().filter(|interface| !interface.is_loopback).filter_map(Interface::rate);
    rates.max().map(|bits| bits as f64 / 1e9)
}

/// Runs the command.
pub fn run(call: &Call, args: &WhatIfArgs) -> Result<u8, Failure> {
    let changes = args.changes()?;
    let link_gbit = args.link_gbit()?;
    if link_gbit.is_none() && changes.iter().any(|change| matches!(change, Change::Link(_))) {
        return Err(Failure::failed(
            "weir what-if: --link: the rate of the present link is not known; give it as --link-now 1GbE",
        ));
    }
    let watch = why::time_to_watch(args.watch.as_deref()).map_err(|what| WhatIfArgs::misused(&what))?;
    let reason = "the process that has it open (weir daemon, serve, mount) counts its load";
    let open = open_pools(call, &args.places, std::slice::from_ref(&args.pool), reason)?;
    let Some((name, remote)) = open.first() else {
        return Err(Failure::failed(format!("weir what-if: cannot open '{}': no such pool", args.pool)));
    };
    let mut before = None;
    if let Some(time) = watch {
        before = Some(observation(call, name, remote, 0)?.after);
        if !why::wait(call, time)? {
            return Ok(0);
        }
    }
    let mut seen = observation(call, name, remote, LAST_SECONDS)?;
    seen.before = before.or(seen.before);
    let interval = Interval::between(seen.before.as_ref(), &seen.after);
    let vdevs = vdevs(call, name, &seen.after.guid, remote)?;
    let failed = |why: String| Failure::failed(format!("weir what-if: {why}"));
    let running = running(&interval, &vdevs, args, link_gbit).map_err(failed)?;
    let settings = Settings { seed: args.seed, seconds: args.seconds };
    let mut show = |step: &str| eprintln!("simulation: {step} …");
    let answers = what_if::what_if(&running, &recorded(&interval), &changes, settings, &mut show);
    let answers = answers.map_err(|error| failed(error.to_string()))?;
    if args.json {
        outln!(call, "{}", serde_json::to_string_pretty(&answers).map_err(|error| failed(error.to_string()))?);
    } else {
        let text = what_if::text(&answers);
        call.print(format_args!(
            "{}",
            text.chars().map(|c| if c.is_control() && c != '\n' { '?' } else { c }).collect::<String>()
        ));
    }
    Ok(0)
}

/// The vdevs of a pool that another process has open.
fn vdevs(call: &Call, name: &str, guid: &str, remote: &RemoteProcess) -> Result<Vec<VdevSpaceRow>, Failure> {
    let closed = || Failure::failed(format!("weir what-if: cannot open '{name}': no such pool"));
    let pool = OpenPool { name: name.to_owned(), guid: guid.parse().map_err(|_| closed())?, devices: Vec::new() };
    let query = PoolPropertiesQuery { properties: Some(Vec::new()), altroot: None, vdevs: true };
    let mut rows = Vec::new();
    let mut take = |row| {
        if let Row::VdevSpace(row) = row {
            rows.push(row);
        }
    };
    let holder = PoolHolder::Other(remote.clone());
    holder.query(call, &pool, PoolQuery::PoolProperties(query), &mut take)?.map_err(refused)?;
    Ok(rows)
}

/// Layout of the top-level vdev at the beginning of `rows`, which the vdevs below it follow.
fn layout(rows: &[VdevSpaceRow]) -> Option<VdevLayout> {
    let (top, below) = rows.split_first()?;
    let children = below.iter().take_while(|row| row.depth > 0).filter(|row| row.depth == 1).count();
    // The name of a RAID-Z vdev begins with its type and parity, as in zpool status.
    let parity = top.name.strip_prefix("raidz").and_then(|rest| rest.get(..1)?.parse().ok());
    match (top.kind.as_str(), parity) {
        ("raidz", Some(parity)) => Some(VdevLayout::Raidz(parity, children)),
        ("mirror", _) => Some(VdevLayout::Mirror(children)),
        _ if children == 0 => Some(VdevLayout::Single),
        _ => None,
    }
}

/// Bytes of the cache devices of the pool that are in use.
fn cache_bytes(vdevs: &[VdevSpaceRow]) -> u64 {
    let caches = vdevs.iter().filter(|row| row.group == VdevGroup::Cache && row.health == "ONLINE");
    caches.filter_map(|row| row.device_bytes).fold(0, u64::saturating_add)
}

/// The pool as the models need it. The first data vdev stands for all.
fn running(
    interval: &Interval,
    vdevs: &[VdevSpaceRow],
    args: &WhatIfArgs,
    link_gbit: Option<f64>,
) -> Result<Running, String> {
    let is_top = |row: &&VdevSpaceRow| row.depth == 0 && row.group == VdevGroup::Normal;
    let first = vdevs.iter().position(|row| is_top(&row)).ok_or("the pool has no data vdev")?;
    let rows = &vdevs[first..];
    let layout = layout(rows).filter(|layout| layout.disks() > 0);
    let layout = layout.ok_or_else(|| format!("vdev {} is neither a disk, a mirror nor RAID-Z", rows[0].name))?;
    let own = rows.iter().enumerate().take_while(|(at, row)| *at == 0 || row.depth > 0);
    let smallest = own.filter_map(|(_, row)| row.device_bytes).min();
    let data_share = layout.data_disks() as f64 / layout.disks() as f64;
    // Of a RAID-Z vdev, allocated bytes contain parity; of a mirror they are those of one side.
    let share = if matches!(layout, VdevLayout::Raidz(..)) { data_share } else { 1.0 };
    let mut requests: BTreeMap<u64, u64> = BTreeMap::new();
    for row in &interval.clients {
        *requests.entry(row.objset).or_default() += row.reads + row.writes;
    }
    let busiest = requests.into_iter().max_by_key(|(_, count)| *count).map_or(0, |(objset, _)| objset);
    let record = interval.datasets.iter().find(|dataset| dataset.objset == busiest).map_or(0, |one| one.record_bytes);
    Ok(Running {
        pool: interval.pool.clone(),
        layout,
        vdevs: vdevs.iter().filter(is_top).count(),
        drive_bytes: smallest.ok_or("no device of the pool is in use")?,
        drive: args.drive.clone(),
        cache_bytes: cache_bytes(vdevs),
        has_log: vdevs.iter().any(|row| row.group == VdevGroup::Log),
        record_bytes: if record > 0 { record } else { 128 << 10 },
        data_bytes: (interval.space.allocated_bytes as f64 * share) as u64,
        arc_bytes: [interval.arc.max_bytes, interval.arc.size_bytes()],
        dirty_bytes: interval.txg.dirty_max_bytes,
        processors: std::thread::available_parallelism().map_or(1, std::num::NonZero::get),
        link_gbit,
    })
}

/// The load of the interval.
fn recorded(interval: &Interval) -> Recorded {
    let of_clients = || interval.clients.iter().filter(|row| row.protocol != "internal" && row.reads + row.writes > 0);
    let read = interval.operation("read");
    let write = interval.operation("write");
    let mut both = read.clone();
    both.add(&write);
    let sum = |of: fn(&weir_analytics::ClientTotals) -> u64| of_clients().map(of).sum::<u64>();
    let requests = sum(|row| row.requests).max(1);
    let names: BTreeSet<&str> = of_clients().map(|row| row.client.as_str()).collect();
    // The time of a row is that of all its requests, of which reads and writes have their share.
    let time_ns = sum(|row| row.time_ns) as f64 * both.requests as f64 / requests as f64;
    let us = |share| quantile_ns(&both.latency, share).map_or(0.0, |ns| ns as f64 / 1e3);
    let from = |name: &str| read.read_bytes.get(name);
    let data = || interval.leaves.iter().filter(|leaf| leaf.class == "normal");
    Recorded {
        seconds: interval.seconds,
        clients: names.len().max(1),
        reads: [read.requests, read.read_bytes.total()],
        writes: [write.requests, write.written_bytes],
        time_ns: time_ns.min(sum(|row| row.time_ns) as f64) as u64,
        overlapping: sum(|row| row.overlapping) as f64 / requests as f64,
        read_from: [from("arc demand"), from("arc prefetched"), from("disk") + from("l2arc")],
        log_bytes: interval.written.iter().filter(|row| row.content == "intent log").map(|row| row.bytes).sum(),
        device: [data().map(|leaf| leaf.timed_ops).sum(), data().map(|leaf| leaf.timed_ns).sum()],
        latency_us: [us(0.5), us(0.99)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(depth: usize, kind: &str, name: &str) -> VdevSpaceRow {
        VdevSpaceRow {
            group: VdevGroup::Normal,
            depth,
            guid: 1,
            name: name.into(),
            kind: kind.into(),
            path: None,
            health: "ONLINE".into(),
            device_bytes: (kind == "disk").then_some(1 << 40),
            space: None,
        }
    }

    #[test]
    fn the_layout_follows_from_the_vdevs() {
        let disk = |depth| row(depth, "disk", "sda");
        assert_eq!(layout(&[disk(0), disk(0)]), Some(VdevLayout::Single));
        assert_eq!(layout(&[row(0, "mirror", "mirror-0"), disk(1), disk(1), disk(0)]), Some(VdevLayout::Mirror(2)));
        let raidz =
            [row(0, "raidz", "raidz2-0"), disk(1), disk(1), row(1, "replacing", "replacing-2"), disk(2), disk(1)];
        assert_eq!(layout(&raidz), Some(VdevLayout::Raidz(2, 4)));
        assert_eq!(layout(&[row(0, "draid", "draid1:2d:3c-0"), disk(1)]), None);
    }

    #[test]
    fn cache_devices_are_added_up() {
        let cache = || VdevSpaceRow { group: VdevGroup::Cache, ..row(0, "disk", "nvme0n1") };
        let failed = VdevSpaceRow { health: "FAULTED".into(), ..cache() };
        assert_eq!(cache_bytes(&[row(0, "disk", "sda"), cache(), failed, cache()]), 2 << 40);
        assert_eq!(cache_bytes(&[row(0, "disk", "sda")]), 0);
    }

    #[test]
    fn a_call_needs_a_change_and_known_drives() {
        let of = |words: &[&str]| {
            let words: Vec<std::ffi::OsString> = words.iter().map(std::ffi::OsString::from).collect();
            let args = WhatIfArgs::parse_line(&words).map_err(|_| String::new())?;
            args.changes().map_err(|failure| failure.line)
        };
        let all = ["--log", "--arc", "+64G", "--layout", "mirrors", "--link", "10GbE", "--arc", "8G", "tank"];
        let words: Vec<String> = of(&all).unwrap().iter().map(Change::words).collect();
        assert_eq!(words, ["--log", "--arc +64.0G", "--arc 8.0G", "--layout mirror", "--link 10GbE"]);
        for (words, says) in [
            (&["tank"][..], "no change to predict"),
            (&["--log=floppy", "tank"], "no drive is named 'floppy'"),
            (&["--arc", "much", "tank"], "--arc: 'much' is not a size"),
        ] {
            assert!(of(words).unwrap_err().contains(says), "{words:?}");
        }
    }
}
