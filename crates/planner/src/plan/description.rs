//! The description of a server and its load: TOML, checked.

use super::PlanError;
use super::prices::Prices;
use crate::hardware::drive::DriveSpec;
use crate::hardware::link::LinkSpec;
use crate::hardware::processors::Costs;
use crate::simulate::server::{CacheDeviceSpec, PoolSpec, SyncProperty, VdevLayout};
use crate::simulate::workload::Order;
use serde::{Deserialize, Serialize};

/// Bytes of memory that the system needs and the ARC does not get, unless the description says otherwise.
const SYSTEM_BYTES: f64 = 2e9;
/// Share of the memory that dirty data may take, and the bytes that they take at most (`zfs_dirty_data_max_percent`,
/// `zfs_dirty_data_max_max`).
const DIRTY_SHARE: f64 = 0.1;
const MAX_DIRTY_BYTES: u64 = 4 << 30;
const MIN_DIRTY_BYTES: u64 = 16 << 20;

/// A server, its pool, its clients, and what the user knows of prices and failures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Description {
    /// Name of the plan; the file's name if it has none.
    pub name: Option<String>,
    /// Processors and memory.
    #[serde(default)]
    pub server: ServerSection,
    /// Drives and layout.
    pub pool: PoolSection,
    /// The server's network link; none: the load runs on the server.
    pub link: Option<LinkSpec>,
    /// The load.
    #[serde(default)]
    pub workload: WorkloadSection,
    /// Prices, watts and noise.
    pub prices: Option<Prices>,
    /// How often drives fail, and what then happens.
    #[serde(default)]
    pub failures: Failures,
    /// Costs of work on this server's processors (`weir plan calibrate` prints this section).
    #[serde(default)]
    pub costs: Costs,
}

/// `[server]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSection {
    /// Number of processors.
    pub processors: usize,
    /// Memory in GB.
    pub memory_gb: f64,
    /// ARC in GB; otherwise the memory less 2 GB, and at least half of it.
    pub arc_gb: Option<f64>,
}

impl Default for ServerSection {
    fn default() -> Self {
        ServerSection { processors: 8, memory_gb: 16.0, arc_gb: None }
    }
}

/// `[pool]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PoolSection {
    /// A name of [`DriveSpec::NAMES`] or a table with a drive's parameters.
    pub drive: toml::Value,
    /// Size of each drive in TB (10¹² bytes).
    pub drive_tb: f64,
    /// `single`, `mirror`, `mirror3` …, `raidz1`, `raidz2` or `raidz3`.
    pub layout: String,
    /// Drives of each RAID-Z vdev or mirror.
    pub width: Option<usize>,
    /// Number of data vdevs.
    #[serde(default = "one")]
    pub vdevs: usize,
    /// Log device: a name or a table, as `drive`.
    pub log: Option<toml::Value>,
    /// Size of the cache device (L2ARC) in GB; none: no cache device.
    pub cache_gb: Option<f64>,
    /// Cache device: a name or a table, as `drive`; otherwise `ssd-enterprise`.
    pub cache: Option<toml::Value>,
    /// `recordsize` in KiB.
    #[serde(default = "default_record")]
    pub record_kib: f64,
    /// `sync`: `standard`, `always` or `disabled`.
    #[serde(default = "standard")]
    pub sync: String,
    /// Share of the usable space that is in use, in percent.
    #[serde(default)]
    pub fill_percent: f64,
}

/// Model of a cache device that is not named.
pub(super) const CACHE_DRIVE: &str = "ssd-enterprise";

fn one() -> usize {
    1
}

fn default_record() -> f64 {
    128.0
}

fn standard() -> String {
    "standard".to_owned()
}

/// `[workload]`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct WorkloadSection {
    /// Clients.
    pub clients: usize,
    /// Threads of each client, each with a file of its own.
    pub threads: usize,
    /// Operations that a thread has outstanding at a time.
    pub depth: usize,
    /// KiB of an operation.
    pub operation_kib: f64,
    /// Share of reads in percent.
    pub read_percent: u64,
    /// `sequential` or `random`.
    pub order: String,
    /// MiB of each thread's file.
    pub file_mib: f64,
    /// Each write is stable before it is acknowledged.
    pub stable: bool,
    /// The load goes to a volume instead of files.
    pub volume: bool,
    /// Rate of each client's own link in Gbit/s; otherwise as the server's.
    pub client_gbit: Option<f64>,
    /// Microseconds from an answer until the client asks again.
    pub client_us: f64,
}

impl Default for WorkloadSection {
    fn default() -> Self {
        WorkloadSection {
            clients: 1,
            threads: 1,
            depth: 8,
            operation_kib: 128.0,
            read_percent: 100,
            order: "sequential".to_owned(),
            file_mib: 1024.0,
            stable: false,
            volume: false,
            client_gbit: None,
            client_us: 0.0,
        }
    }
}

/// `[failures]`: assumptions that the user can replace by those of the drives' data sheets.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields, default)]
pub struct Failures {
    /// Share of the drives that fail in a year, in percent.
    pub annual_failure_percent: f64,
    /// Probability that a bit cannot be read.
    pub unrecoverable_read_per_bit: f64,
    /// Days from a failure until the new drive is in the server; 0 with a hot spare.
    pub replacement_days: f64,
}

impl Default for Failures {
    fn default() -> Self {
        Failures { annual_failure_percent: 1.5, unrecoverable_read_per_bit: 1e-15, replacement_days: 3.0 }
    }
}

fn wrong(key: &str, why: impl Into<String>) -> PlanError {
    PlanError::Value { key: key.to_owned(), why: why.into() }
}

fn within(key: &str, value: f64, least: f64, most: f64) -> Result<(), PlanError> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(wrong(key, format!("{value} is not between {least} and {most}")))
}

/// The drive of a name or of a table of parameters.
fn drive_of(key: &str, value: &toml::Value) -> Result<DriveSpec, PlanError> {
    if let Some(name) = value.as_str() {
        let names = || DriveSpec::NAMES.map(|(name, _)| name).join(", ");
        return DriveSpec::named(name)
            .ok_or_else(|| wrong(key, format!("no drive is named '{name}'; the names are {}", names())));
    }
    let spec = DriveSpec::deserialize(value.clone())
        .map_err(|error| wrong(key, format!("{}; a drive is a name or a table", error.message())))?;
    let positive = match &spec {
        DriveSpec::Rotating(disk) => {
            disk.rpm > 0.0 && disk.outer_mb_s > 0.0 && disk.inner_mb_s > 0.0 && disk.interface_mb_s > 0.0
        }
        DriveSpec::Flash(flash) => {
            flash.read_mb_s > 0.0 && flash.write_mb_s > 0.0 && flash.sustained_mb_s > 0.0 && flash.read_us > 0.0
        }
    };
    if positive { Ok(spec) } else { Err(wrong(key, "rates and latencies of a drive are above 0")) }
}

fn layout_of(pool: &PoolSection) -> Result<VdevLayout, PlanError> {
    let name = pool.layout.as_str();
    let unknown = || {
        let what = "the layouts are single, mirror, mirror3 (and so on), raidz1, raidz2 and raidz3";
        wrong("pool.layout", format!("no layout is named '{name}'; {what}"))
    };
    let digits = name.trim_start_matches(|c: char| c.is_ascii_alphabetic());
    let number = if digits.is_empty() { None } else { Some(digits.parse::<usize>().map_err(|_| unknown())?) };
    let layout = match (&name[..name.len() - digits.len()], number) {
        ("single", None) => VdevLayout::Single,
        ("mirror", number) => VdevLayout::Mirror(number.or(pool.width).unwrap_or(2)),
        ("raidz", number) => {
            let parity = number.unwrap_or(1);
            if !(1..=3).contains(&parity) {
                return Err(unknown());
            }
            let width = pool.width.ok_or_else(|| wrong("pool.width", "RAID-Z needs the number of drives of a vdev"))?;
            VdevLayout::Raidz(parity as u8, width)
        }
        _ => return Err(unknown()),
    };
    if let Some(width) = pool.width.filter(|width| *width != layout.disks()) {
        return Err(wrong("pool.width", format!("{width} drives are not a vdev of layout '{name}'")));
    }
    let least = match layout {
        VdevLayout::Single => 1,
        VdevLayout::Mirror(_) => 2,
        VdevLayout::Raidz(parity, _) => usize::from(parity) + 1,
    };
    if !(least..=255).contains(&layout.disks()) {
        return Err(wrong("pool.width", format!("a vdev of layout '{name}' has {least} to 255 drives")));
    }
    Ok(layout)
}

impl Description {
    /// Reads a description.
    ///
    /// # Errors
    /// [`PlanError::Toml`] with the line, [`PlanError::Value`] with the key.
    pub fn parse(text: &str) -> Result<Self, PlanError> {
        let description: Description =
            toml::from_str(text).map_err(|error| PlanError::Toml(error.to_string().trim_end().to_owned()))?;
        description.checked()
    }

    /// A description from a table, of which a value was changed.
    ///
    /// # Errors
    /// As [`Description::parse`].
    pub fn of_table(table: toml::Table) -> Result<Self, PlanError> {
        let description =
            Description::deserialize(table).map_err(|error| PlanError::Toml(error.message().to_owned()))?;
        description.checked()
    }

    pub(super) fn checked(self) -> Result<Self, PlanError> {
        let Description { server, pool, link, workload, failures, costs, .. } = &self;
        within("server.processors", server.processors as f64, 1.0, 4096.0)?;
        within("server.memory_gb", server.memory_gb, 0.5, 1e6)?;
        if let Some(arc_gb) = server.arc_gb {
            within("server.arc_gb", arc_gb, 0.03, server.memory_gb)?;
        }
        within("pool.drive_tb", pool.drive_tb, 0.001, 1000.0)?;
        within("pool.vdevs", pool.vdevs as f64, 1.0, 250.0)?;
        within("pool.fill_percent", pool.fill_percent, 0.0, 95.0)?;
        match pool.cache_gb {
            Some(cache_gb) => within("pool.cache_gb", cache_gb, 0.1, 1e6)?,
            None if pool.cache.is_some() => return Err(wrong("pool.cache", "give the size of the device as cache_gb")),
            None => {}
        }
        if !(pool.record_kib * 1024.0).fract().eq(&0.0) || !((pool.record_kib * 1024.0) as u64).is_power_of_two() {
            return Err(wrong("pool.record_kib", "a record size is a power of two"));
        }
        within("pool.record_kib", pool.record_kib, 0.5, 16384.0)?;
        if let Some(link) = link {
            within("link.gbit", link.gbit, 0.001, 10_000.0)?;
            within("link.mtu", link.mtu as f64, 576.0, 65_535.0)?;
            within("link.latency_us", link.latency_us, 0.0, 10_000_000.0)?;
            within("link.loss", link.loss, 0.0, 0.5)?;
        }
        within("workload.clients", workload.clients as f64, 1.0, 1000.0)?;
        within("workload.threads", workload.threads as f64, 1.0, 1000.0)?;
        within("workload.depth", workload.depth as f64, 1.0, 1024.0)?;
        within(
            "workload.clients × threads × depth",
            (workload.clients * workload.threads * workload.depth) as f64,
            1.0,
            20_000.0,
        )?;
        within("workload.operation_kib", workload.operation_kib, 0.5, 16384.0)?;
        within("workload.read_percent", workload.read_percent as f64, 0.0, 100.0)?;
        within("workload.file_mib", workload.file_mib, workload.operation_kib / 1024.0, 1e9)?;
        within("workload.client_us", workload.client_us, 0.0, 1e10)?;
        if let Some(gbit) = workload.client_gbit {
            within("workload.client_gbit", gbit, 0.001, 10_000.0)?;
        }
        within("failures.annual_failure_percent", failures.annual_failure_percent, 0.0, 100.0)?;
        within("failures.unrecoverable_read_per_bit", failures.unrecoverable_read_per_bit, 0.0, 1e-6)?;
        within("failures.replacement_days", failures.replacement_days, 0.0, 365.0)?;
        let each = [
            ("costs.checksum_ns_per_kib", costs.checksum_ns_per_kib),
            ("costs.compress_ns_per_kib", costs.compress_ns_per_kib),
            ("costs.decompress_ns_per_kib", costs.decompress_ns_per_kib),
            ("costs.parity_ns_per_kib", costs.parity_ns_per_kib),
            ("costs.copy_ns_per_kib", costs.copy_ns_per_kib),
            ("costs.request_ns", costs.request_ns),
            ("costs.task_ns", costs.task_ns),
            ("costs.write_request_ns", costs.write_request_ns),
            ("costs.device_operation_ns", costs.device_operation_ns),
            ("costs.read_record_ns", costs.read_record_ns),
            ("costs.read_ns_per_kib", costs.read_ns_per_kib),
            ("costs.write_ns_per_kib", costs.write_ns_per_kib),
            ("costs.written_record_ns", costs.written_record_ns),
        ];
        for (key, value) in each {
            within(key, value, 0.0, 1e9)?;
        }
        if let Some(prices) = &self.prices {
            prices.check()?;
        }
        self.order()?;
        self.pool_spec()?;
        Ok(self)
    }

    /// The order of the operations.
    ///
    /// # Errors
    /// [`PlanError::Value`].
    pub fn order(&self) -> Result<Order, PlanError> {
        match self.workload.order.as_str() {
            "sequential" => Ok(Order::Sequential),
            "random" => Ok(Order::Random),
            other => Err(wrong("workload.order", format!("'{other}' is neither sequential nor random"))),
        }
    }

    /// The pool, whose drives hold nothing.
    ///
    /// # Errors
    /// [`PlanError::Value`] if the layout, a drive or the property `sync` is unknown.
    pub fn pool_spec(&self) -> Result<PoolSpec, PlanError> {
        let pool = &self.pool;
        let sync = match pool.sync.as_str() {
            "standard" => SyncProperty::Standard,
            "always" => SyncProperty::Always,
            "disabled" => SyncProperty::Disabled,
            other => return Err(wrong("pool.sync", format!("'{other}' is not standard, always or disabled"))),
        };
        let mut spec = PoolSpec::new(drive_of("pool.drive", &pool.drive)?, layout_of(pool)?, pool.vdevs);
        spec.drive_bytes = (pool.drive_tb * 1e12) as u64 / 4096 * 4096;
        spec.log = pool.log.as_ref().map(|log| drive_of("pool.log", log)).transpose()?;
        if let Some(cache_gb) = pool.cache_gb {
            let usual = toml::Value::String(CACHE_DRIVE.to_owned());
            let drive = drive_of("pool.cache", pool.cache.as_ref().unwrap_or(&usual))?;
            spec.cache = Some(CacheDeviceSpec { drive, bytes: (cache_gb * 1e9) as u64 });
        }
        spec.record_bytes = (pool.record_kib * 1024.0) as u64;
        spec.sync = sync;
        spec.fill = pool.fill_percent / 100.0;
        Ok(spec)
    }

    /// Bytes of the ARC.
    pub fn arc_bytes(&self) -> u64 {
        let memory = self.server.memory_gb * 1e9;
        let arc = self.server.arc_gb.map_or((memory - SYSTEM_BYTES).max(memory / 2.0), |gb| gb * 1e9);
        arc as u64
    }

    /// Limit of dirty data in bytes.
    pub fn dirty_bytes(&self) -> u64 {
        ((self.server.memory_gb * 1e9 * DIRTY_SHARE) as u64).clamp(MIN_DIRTY_BYTES, MAX_DIRTY_BYTES)
    }

    /// Bytes of the files of all threads.
    pub fn working_set_bytes(&self) -> u64 {
        let files = (self.workload.clients * self.workload.threads) as f64;
        (files * self.workload.file_mib * 1048576.0) as u64
    }

    /// Whether writes wait until they are stable.
    pub fn writes_are_stable(&self) -> bool {
        self.workload.read_percent < 100
            && self.pool.sync != "disabled"
            && (self.workload.stable || self.pool.sync == "always")
    }
}

#[cfg(test)]
mod tests {
    use super::super::EXAMPLE;
    use super::*;

    fn error(change: &str) -> String {
        let text = format!("[pool]\ndrive = \"hdd-7k\"\ndrive_tb = 10\nlayout = \"raidz2\"\nwidth = 6\n{change}");
        Description::parse(&text).unwrap_err().to_string()
    }

    #[test]
    fn the_example_is_a_description() {
        let example = Description::parse(EXAMPLE).unwrap();
        let pool = example.pool_spec().unwrap();
        assert_eq!(pool.layout, VdevLayout::Raidz(2, 6));
        assert_eq!(example.arc_bytes(), 30_000_000_000);
        assert_eq!(example.dirty_bytes(), 3_200_000_000);
    }

    #[test]
    fn errors_name_the_line_or_the_key_and_what_is_allowed() {
        for (change, says) in [
            ("drives = 4\n", "line 6"),
            ("drives = 4\n", "unknown field `drives`"),
            ("vdevs = 0\n", "pool.vdevs: 0 is not between 1 and 250"),
            ("record_kib = 100\n", "pool.record_kib: a record size is a power of two"),
            ("log = \"floppy\"\n", "pool.log: no drive is named 'floppy'; the names are hdd-7k, "),
            ("cache = \"nvme\"\n", "pool.cache: give the size of the device as cache_gb"),
            ("cache_gb = 400\ncache = \"floppy\"\n", "pool.cache: no drive is named 'floppy'"),
            ("cache_gb = 0.01\n", "pool.cache_gb: 0.01 is not between 0.1 and 1000000"),
            ("log = { kind = \"flash\", read_mb_s = 1.0 }\n", "pool.log: missing field"),
            ("sync = \"maybe\"\n", "pool.sync: 'maybe' is not standard, always or disabled"),
            ("[workload]\norder = \"zigzag\"\n", "'zigzag' is neither sequential nor random"),
            ("[workload]\nfile_mib = 0.1\noperation_kib = 1024\n", "workload.file_mib: 0.1 is not between 1 and"),
            ("[link]\ngbit = 0\n", "link.gbit: 0 is not between"),
            ("[link]\ngbit = nan\n", "link.gbit: NaN is not between"),
            ("[failures]\nreplacement_days = -1\n", "failures.replacement_days: -1 is not between 0 and 365"),
            ("[prices]\ndrive = -1\n", "prices.drive: -1 is not between"),
        ] {
            assert!(error(change).contains(says), "{change}: {}", error(change));
        }
    }

    #[test]
    fn layouts_have_a_width() {
        let layout = |name: &str, width: &str| {
            let text = format!("[pool]\ndrive = \"nvme\"\ndrive_tb = 1\nlayout = \"{name}\"\n{width}");
            Description::parse(&text).and_then(|description| description.pool_spec()).map(|spec| spec.layout)
        };
        assert_eq!(layout("single", "").unwrap(), VdevLayout::Single);
        assert_eq!(layout("mirror", "").unwrap(), VdevLayout::Mirror(2));
        assert_eq!(layout("mirror", "width = 3").unwrap(), VdevLayout::Mirror(3));
        assert_eq!(layout("mirror3", "").unwrap(), VdevLayout::Mirror(3));
        assert_eq!(layout("raidz", "width = 3").unwrap(), VdevLayout::Raidz(1, 3));
        for (name, width, says) in [
            ("raidz2", "", "needs the number of drives"),
            ("raidz2", "width = 2", "has 3 to 255 drives"),
            ("raidz4", "width = 9", "no layout is named 'raidz4'"),
            ("stripe", "", "no layout is named 'stripe'"),
            ("mirror3", "width = 2", "2 drives are not a vdev of layout 'mirror3'"),
            ("mirror1", "", "has 2 to 255 drives"),
            ("single", "width = 2", "2 drives are not a vdev of layout 'single'"),
        ] {
            let error = layout(name, width).unwrap_err().to_string();
            assert!(error.contains(says), "{name} {width}: {error}");
        }
    }
}
