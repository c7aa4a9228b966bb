//! The present server and its load as a description, from the counters of the process that has the pool open.

use super::super::PlanError;
use super::super::description::{Description, PoolSection, ServerSection, WorkloadSection};
use super::super::text::time_us;
use crate::hardware::link::LinkSpec;
use crate::simulate::server::VdevLayout;
use serde::Serialize;

const SEQUENTIAL: &str = "sequential";
const RANDOM: &str = "random";
/// Reads and writes without which there is no load to predict.
const LEAST_OPERATIONS: u64 = 100;
/// Share of a client's requests that begin during another one, from which it counts as having several outstanding.
const OVERLAPPING: f64 = 0.1;
/// Share of bytes from the ARC below which the files that are read count as all of the pool's data.
const LEAST_SHARE: f64 = 0.02;
/// Time of a device operation from which drives count as rotating, and from which as SATA SSDs, in nanoseconds.
const ROTATING_NS: f64 = 2e6;
const SATA_NS: f64 = 150e3;
/// Smallest cache device and largest one of a description, in GB.
const MIN_CACHE_GB: f64 = 0.1;
const MAX_CACHE_GB: f64 = 1e6;
/// Smallest operation and largest one of a model, in bytes.
const OPERATION_BYTES: (u64, u64) = (512, 16 << 20);

/// Reads and writes of a time, as the process that has the pool open counted them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Recorded {
    /// Length of the time in seconds.
    pub seconds: f64,
    /// Clients that read or wrote.
    pub clients: usize,
    /// Reads, and their bytes.
    pub reads: [u64; 2],
    /// Writes, and their bytes.
    pub writes: [u64; 2],
    /// Sum of the times of reads and writes in nanoseconds.
    pub time_ns: u64,
    /// Share of the requests that began during another one of the same client, from 0 to 1.
    pub overlapping: f64,
    /// Bytes read that came from the ARC without prefetch, from the ARC by prefetch, and from devices.
    pub read_from: [u64; 3],
    /// Bytes of the intent log written to devices.
    pub log_bytes: u64,
    /// Operations of data devices and the sum of their times in nanoseconds.
    pub device: [u64; 2],
    /// Median and 99th percentile of the latencies in microseconds: powers of two.
    pub latency_us: [f64; 2],
}

/// A pool in use, and the machine that it is on.
#[derive(Clone, Debug, PartialEq)]
pub struct Running {
    /// Name of the pool.
    pub pool: String,
    /// Layout of its data vdevs.
    pub layout: VdevLayout,
    /// Number of its data vdevs.
    pub vdevs: usize,
    /// Size of a drive in bytes.
    pub drive_bytes: u64,
    /// Name of the model of the drives; none: by the time of their operations.
    pub drive: Option<String>,
    /// Whether it has a log device.
    pub has_log: bool,
    /// Bytes of its cache devices (L2ARC) together.
    pub cache_bytes: u64,
    /// Record size of the dataset with most requests, in bytes.
    pub record_bytes: u64,
    /// Bytes allocated, less redundancy.
    pub data_bytes: u64,
    /// Maximum of the ARC, and what it held, in bytes.
    pub arc_bytes: [u64; 2],
    /// Limit of dirty data in bytes.
    pub dirty_bytes: u64,
    /// Processors of the machine.
    pub processors: usize,
    /// Rate of the network link that clients use, in Gbit/s, if it is known.
    pub link_gbit: Option<f64>,
}

/// The present server and its load, as a description.
pub(super) struct Base {
    pub description: Description,
    /// The load in words.
    pub load: String,
    /// Sentences about what was assumed.
    pub assumed: Vec<String>,
}

/// Gigabytes of a size, at least the 30 MB of ARC that a description has.
pub(super) fn gigabytes(bytes: u64) -> f64 {
    (bytes as f64 / 1e9).max(0.03)
}

/// The model of the drives, and why.
fn drive(running: &Running, recorded: &Recorded) -> (String, Option<String>) {
    if let Some(drive) = &running.drive {
        return (drive.clone(), None);
    }
    let [operations, ns] = recorded.device;
    let each_ns = ns as f64 / operations.max(1) as f64;
    let name = match each_ns {
        slow if slow >= ROTATING_NS => "hdd-7k",
        middle if middle >= SATA_NS => "ssd-enterprise",
        _ => "nvme",
    };
    let why = if operations == 0 {
        format!("Drives: {name}, because none of their operations was timed; name yours with --drive.")
    } else {
        format!(
            "Drives: {name}, because one of their operations took {} in the mean; name yours with --drive.",
            time_us(each_ns / 1e3)
        )
    };
    (name.to_owned(), Some(why))
}

/// Bytes of the files that are read, and why.
pub(super) fn working_set(running: &Running, recorded: &Recorded, operation_bytes: u64) -> (u64, String) {
    let [cached, prefetched, device] = recorded.read_from;
    let [_, held] = running.arc_bytes;
    let share = cached as f64 / (cached + prefetched + device).max(1) as f64;
    let least = operation_bytes * recorded.clients.max(1) as u64 * 16;
    let most = (running.data_bytes / 2).max(least);
    if recorded.reads[0] == 0 {
        let bytes = recorded.writes[1].clamp(least, most);
        return (bytes, "Files: as large as what was written; nothing was read.".to_owned());
    }
    if share < LEAST_SHARE {
        let why = "Files: half of the pool's data, because the ARC had almost none of what was read.".to_owned();
        return (most, why);
    }
    let bytes = ((held as f64 / share) as u64).clamp(least, most);
    let why = format!(
        "Files: {:.2} GB, because the ARC holds {:.2} GB and gave {:.0} % of the bytes read; all parts are taken to be read equally often, \
         so that more memory may help more than this says if some are read more often.",
        bytes as f64 / 1e9,
        held as f64 / 1e9,
        share * 100.0
    );
    (bytes, why)
}

/// The description of the present server with the recorded load.
///
/// # Errors
/// [`PlanError::Value`]: too few operations.
pub(super) fn base(running: &Running, recorded: &Recorded) -> Result<Base, PlanError> {
    let operations = recorded.reads[0] + recorded.writes[0];
    if operations < LEAST_OPERATIONS || recorded.seconds <= 0.0 {
        let why = format!(
            "{operations} reads and writes in {:.0} s are too few to predict anything from; watch a busy time with -t SECONDS",
            recorded.seconds
        );
        return Err(PlanError::Value { key: running.pool.clone(), why });
    }
    let bytes = recorded.reads[1] + recorded.writes[1];
    let operation_bytes = (bytes / operations).next_power_of_two().clamp(OPERATION_BYTES.0, OPERATION_BYTES.1);
    let (drive, why_drive) = drive(running, recorded);
    let (files_bytes, why_files) = working_set(running, recorded, operation_bytes);
    let (order, why_order) = order(running, recorded, operation_bytes);
    let link = running.link_gbit.map(LinkSpec::new);
    let workload = workload(recorded, link, (operation_bytes, files_bytes, order));
    let load = words(&workload);
    let arc_gb = gigabytes(running.arc_bytes[0]);
    let memory_gb = (running.dirty_bytes as f64 / 1e8).max(arc_gb).max(0.5);
    let description = Description {
        name: Some(running.pool.clone()),
        server: ServerSection { processors: running.processors.max(1), memory_gb, arc_gb: Some(arc_gb) },
        pool: pool(running, drive),
        link,
        workload,
        prices: None,
        failures: Default::default(),
        costs: Default::default(),
    };
    let mut assumed: Vec<String> = why_drive.into_iter().chain([why_files, why_order]).collect();
    if let Some(gb) = description.pool.cache_gb {
        assumed.push(format!(
            "Cache devices: {gb:.1} GB, taken to be one device of the model ssd-enterprise that is full when the load begins."
        ));
    }
    assumed.push(
        "Not in the model: fragmentation, compression, encryption, requests without data, other work of this machine, costs of its own \
         processors (weir plan calibrate), and loads that change during the time."
            .to_owned(),
    );
    Ok(Base { description: description.checked()?, load, assumed })
}

/// The order of the operations, and why.
fn order(running: &Running, recorded: &Recorded, operation_bytes: u64) -> (&'static str, String) {
    let [_, prefetched, device] = recorded.read_from;
    let (order, why) = match (recorded.reads[0] > 0, prefetched > device, operation_bytes >= running.record_bytes) {
        (true, true, _) => (SEQUENTIAL, "prefetches read more than requests did"),
        (true, false, _) => (RANDOM, "prefetches read no more than requests did"),
        (false, _, true) => (SEQUENTIAL, "writes are as large as records"),
        (false, _, false) => (RANDOM, "writes are smaller than records"),
    };
    (order, format!("Order: {order}, because {why}."))
}

/// The load of operations of a size on files of a size in an order.
fn workload(
    recorded: &Recorded,
    link: Option<LinkSpec>,
    (operation_bytes, files_bytes, order): (u64, u64, &str),
) -> WorkloadSection {
    let operations = (recorded.reads[0] + recorded.writes[0]).max(1);
    let clients = recorded.clients.clamp(1, 1000);
    let in_flight = recorded.time_ns as f64 / 1e9 / recorded.seconds;
    let depth = if recorded.overlapping < OVERLAPPING {
        1
    } else {
        ((in_flight / clients as f64).ceil() as usize).clamp(2, 20_000 / clients)
    };
    // A client's time between an answer and the next request; the way over the link is simulated.
    let cycle_us = recorded.seconds * 1e6 * (clients * depth) as f64 / operations as f64;
    let mean_us = recorded.time_ns as f64 / 1e3 / operations as f64;
    let way_us = link
        .map_or(0.0, |link| operation_bytes as f64 / link.payload_rate(operation_bytes) * 1e6 + 2.0 * link.latency_us);
    debug_assert!(depth >= 1 && cycle_us > 0.0, "{depth} {cycle_us}");
    WorkloadSection {
        clients,
        threads: 1,
        depth,
        operation_kib: operation_bytes as f64 / 1024.0,
        read_percent: (recorded.reads[0] * 100 + operations / 2) / operations,
        order: order.to_owned(),
        file_mib: (files_bytes / clients as u64).max(operation_bytes) as f64 / 1048576.0,
        stable: recorded.log_bytes * 2 >= recorded.writes[1] && recorded.writes[0] > 0,
        volume: false,
        client_gbit: None,
        client_us: (cycle_us - mean_us - way_us).max(0.0),
    }
}

/// A load in words.
fn words(load: &WorkloadSection) -> String {
    let WorkloadSection { clients, depth, operation_kib, read_percent, order, client_us, .. } = load;
    let plural = |count: &usize| if *count == 1 { "" } else { "s" };
    format!(
        "{clients} client{} with {depth} request{} at a time of {operation_kib} KiB, {read_percent} % reads, {order}{}, next one {} \
         after an answer",
        plural(clients),
        plural(depth),
        if load.stable { ", writes stable" } else { "" },
        time_us(*client_us)
    )
}

/// Gigabytes of the cache device of the model; none if the pool's are together smaller than any that a description may have.
fn cache_gb(bytes: u64) -> Option<f64> {
    let gb = bytes as f64 / 1e9;
    (gb >= MIN_CACHE_GB).then_some(gb.min(MAX_CACHE_GB))
}

fn pool(running: &Running, drive: String) -> PoolSection {
    let layout = match running.layout {
        VdevLayout::Single => "single".to_owned(),
        VdevLayout::Mirror(_) => "mirror".to_owned(),
        VdevLayout::Raidz(parity, _) => format!("raidz{parity}"),
    };
    let width = running.layout.disks();
    PoolSection {
        drive: toml::Value::String(drive),
        // In whole gigabytes.
        drive_tb: ((running.drive_bytes as f64 / 1e9).round() / 1e3).clamp(0.001, 1000.0),
        layout,
        width: (width > 1).then_some(width),
        vdevs: running.vdevs,
        log: running.has_log.then(|| toml::Value::String("log-device".to_owned())),
        cache_gb: cache_gb(running.cache_bytes),
        cache: None,
        record_kib: running.record_bytes.next_power_of_two().clamp(512, 16 << 20) as f64 / 1024.0,
        sync: "standard".to_owned(),
        fill_percent: 0.0,
    }
}
