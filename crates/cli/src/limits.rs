//! The limits of a process that serves a pool: memory of the ARC and of dirty data, and deadlines of devices.
//!
//! | limit | default | least | option | environment |
//! |---|---|---|---|---|
//! | ARC | half of the memory above 128 MiB | 32 MiB | `--arc-max` | `WEIR_ARC_MAX` |
//! | dirty data | a tenth of the memory, at most 4 GiB | 16 MiB | `--dirty-max` | `WEIR_DIRTY_MAX` |
//! | slow I/O | 30 s | 0.1 s | `--slow-io` | `WEIR_SLOW_IO` |
//! | a device that hangs | 60 s | 0.1 s | `--deadman` | `WEIR_DEADMAN` |
//! | writes to a cache device per second | 32 MiB, twice that until the ARC is full | 1 MiB | | `WEIR_L2ARC_WRITE_MAX` |
//!
//! With `WEIR_L2ARC_NOPREFETCH=0`, cache devices also get blocks that were read ahead and not used, and serve reads ahead.
//!
//! The memory is that of the machine, or the smallest limit of the cgroups that this process is in, whichever is less
//! ([`MemoryLimit`]). It is read once, at the start.
//!
//! The 128 MiB are for the rest of the process: buffers of requests and of devices, and freed memory between the blocks
//! of the ARC. With 300 MiB the ARC has 86 MiB. Half is the default of OpenZFS on Linux up to 2.2 (`zfs_arc_max`).
//! Since 2.3 it is all memory but 1 GiB, which suits a cache that the kernel can shrink: the kernel cannot shrink the
//! memory of a process, so that default would have the process killed where others need memory. The dirty limit is that
//! of OpenZFS (`zfs_dirty_data_max`, `zfs_dirty_data_max_max`).

use crate::args::CommandLine;
use crate::failure::Failure;
use crate::size;
use crate::units::human_bytes;
use clap::Args;
use std::fmt;
use std::time::Duration;
use weir_blocks::vdev::Deadlines;
use weir_cache::l2arc::L2Settings;
use weir_engine::DirtyLimits;
use weir_linux::MemoryLimit;
use weir_pool::OpenOptions;

/// Options that limit a pool's memory.
#[derive(Args, Clone, Debug, Default)]
pub struct LimitOptions {
    /// Maximum size of the ARC, for example 4G [default: WEIR_ARC_MAX, else a share of the memory]
    #[arg(long, value_name = "SIZE")]
    pub arc_max: Option<String>,
    /// Maximum amount of dirty data [default: WEIR_DIRTY_MAX, else a share of the memory]
    #[arg(long, value_name = "SIZE")]
    pub dirty_max: Option<String>,
    /// Seconds after which an operation of a device is slow [default: WEIR_SLOW_IO, else 30]
    #[arg(long, value_name = "SECONDS")]
    pub slow_io: Option<String>,
    /// Seconds after which a device that does not answer is taken out of service [default: WEIR_DEADMAN, else 60]
    #[arg(long, value_name = "SECONDS")]
    pub deadman: Option<String>,
}

/// The ARC holds two blocks of the largest size (`arc_c_min`).
const MIN_ARC_BYTES: u64 = 32 << 20;
/// Memory that the rest of the process takes, whatever the size of the ARC.
const RESERVED_BYTES: u64 = 128 << 20;
/// Dirty data may always be one block of the largest size.
const MIN_DIRTY_BYTES: u64 = 16 << 20;
/// The default of dirty data is not larger (`zfs_dirty_data_max_max`).
const MAX_DIRTY_BYTES: u64 = 4 << 30;

/// The least that a cache device is written per second.
const MIN_L2ARC_WRITE_BYTES: u64 = 1 << 20;

/// Limits of a pool's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The ARC, in bytes.
    pub arc_bytes: u64,
    /// Data that waits for its txg to sync, in bytes.
    pub dirty_bytes: u64,
    /// Deadlines of operations of devices.
    pub deadlines: Deadlines,
    /// Settings of cache devices.
    pub l2arc: L2Settings,
    memory: MemoryLimit,
}

impl Limits {
    /// The defaults for this much memory.
    fn of_memory(memory: MemoryLimit) -> Self {
        let arc_bytes = (memory.bytes.saturating_sub(RESERVED_BYTES) / 2).max(MIN_ARC_BYTES);
        let dirty_bytes = (memory.bytes / 10).clamp(MIN_DIRTY_BYTES, MAX_DIRTY_BYTES);
        Limits { arc_bytes, dirty_bytes, deadlines: Deadlines::default(), l2arc: L2Settings::default(), memory }
    }

    /// Those of a process that serves a pool: of its options, else of the environment, else the defaults.
    ///
    /// # Errors
    /// [`Failure::usage`] for a size that is none, or too small.
    pub fn of<C: CommandLine>(given: &LimitOptions) -> Result<Self, Failure> {
        Self::chosen(given).map_err(|why| C::misused(&why))
    }

    /// Those of options, else of the environment, else the defaults.
    ///
    /// # Errors
    /// The reason why a value is invalid; it begins with the name of the option or variable.
    pub fn chosen(given: &LimitOptions) -> Result<Self, String> {
        let mut limits = Self::of_memory(MemoryLimit::current());
        let size = |least| move |name: &str, text: &str| bytes(name, text, least);
        limits.arc_bytes = chosen("--arc-max", &given.arc_max, "WEIR_ARC_MAX", limits.arc_bytes, size(MIN_ARC_BYTES))?;
        let dirty = limits.dirty_bytes;
        limits.dirty_bytes = chosen("--dirty-max", &given.dirty_max, "WEIR_DIRTY_MAX", dirty, size(MIN_DIRTY_BYTES))?;
        let Deadlines { slow, hang } = limits.deadlines;
        limits.deadlines.slow = chosen("--slow-io", &given.slow_io, "WEIR_SLOW_IO", slow, seconds)?;
        limits.deadlines.hang = chosen("--deadman", &given.deadman, "WEIR_DEADMAN", hang, seconds)?;
        let write_max = limits.l2arc.write_max_bytes;
        let write_max = chosen("", &None, "WEIR_L2ARC_WRITE_MAX", write_max, size(MIN_L2ARC_WRITE_BYTES))?;
        limits.l2arc.write_max_bytes = write_max;
        limits.l2arc.write_boost_bytes = write_max;
        limits.l2arc.takes_prefetched = chosen("", &None, "WEIR_L2ARC_NOPREFETCH", false, is_off)?;
        Ok(limits)
    }

    /// The share of one of `pools` pools that one process has open: each has an ARC and dirty data of its own.
    pub fn shared_by(&self, pools: usize) -> Self {
        let pools = (pools as u64).max(1);
        Limits {
            arc_bytes: (self.arc_bytes / pools).max(MIN_ARC_BYTES),
            dirty_bytes: (self.dirty_bytes / pools).max(MIN_DIRTY_BYTES),
            ..self.clone()
        }
    }

    /// Size of the ARC if as many bytes of its limit are for something else, in bytes: not less than the ARC needs.
    pub fn arc_bytes_beside(&self, others: u64) -> u64 {
        self.arc_bytes.saturating_sub(others).max(MIN_ARC_BYTES)
    }

    /// Memory of the machine, or of the cgroup of this process, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.memory.bytes
    }

    /// Those of a command that has a pool open for a moment: not more than 256 MiB each.
    pub fn of_command() -> Self {
        let limits = Self::of_memory(MemoryLimit::current());
        Limits {
            arc_bytes: limits.arc_bytes.min(OpenOptions::ARC_BYTES),
            dirty_bytes: limits.dirty_bytes.min(DirtyLimits::default().max_bytes),
            ..limits
        }
    }

    /// Whether the ARC and dirty data together may take more than the memory.
    pub fn exceed_memory(&self) -> bool {
        self.arc_bytes.saturating_add(self.dirty_bytes) > self.memory.bytes
    }

    /// Says on standard error how much memory the process may take.
    pub fn tell(&self) {
        eprintln!("{self}");
        if self.exceed_memory() {
            eprintln!("these limits exceed the memory: the kernel may kill this process");
        }
    }
}

impl fmt::Display for Limits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [arc, dirty, all] = [self.arc_bytes, self.dirty_bytes, self.memory.bytes].map(human_bytes);
        write!(f, "memory: ARC at most {arc}, dirty data at most {dirty}, of {all} ")?;
        match &self.memory.cgroup {
            Some(file) => write!(f, "({})", file.display()),
            None => f.write_str("(the machine's)"),
        }
    }
}

/// A limit: that of the option, else that of the environment variable, else the default. `parse` gets the name of the
/// option or variable, and the text.
fn chosen<T>(
    option: &str,
    given: &Option<String>,
    variable: &str,
    default: T,
    parse: impl Fn(&str, &str) -> Result<T, String>,
) -> Result<T, String> {
    let in_environment = || std::env::var(variable).ok().filter(|text| !text.is_empty());
    match (given, in_environment()) {
        (Some(text), _) => parse(option, text),
        (None, Some(text)) => parse(variable, &text),
        (None, None) => Ok(default),
    }
}

/// Whether a switch is off: 0 of 0 and 1.
fn is_off(name: &str, text: &str) -> Result<bool, String> {
    match text {
        "0" => Ok(true),
        "1" => Ok(false),
        _ => Err(format!("{name} is 0 or 1, not '{text}'")),
    }
}

/// A time that a user chose.
fn seconds(name: &str, text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.1..=86_400.0).contains(seconds));
    let seconds = seconds.ok_or_else(|| format!("{name}: '{text}' is no number from 0.1 to 86400"))?;
    Ok(Duration::from_secs_f64(seconds))
}

/// A size that a user chose.
fn bytes(name: &str, text: &str, least: u64) -> Result<u64, String> {
    match size::parse(text) {
        Some(bytes) if bytes >= least => Ok(bytes),
        _ => Err(format!("{name} takes a size of at least {}, such as 2G, not '{text}'", human_bytes(least))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ffi::OsString;

    #[derive(clap::Parser, Debug)]
    struct TestArgs {
        #[command(flatten)]
        limits: LimitOptions,
    }

    const MIB: u64 = 1 << 20;

    fn of_memory(mib: u64) -> (u64, u64) {
        let limits = Limits::of_memory(MemoryLimit { bytes: mib * MIB, cgroup: None });
        (limits.arc_bytes / MIB, limits.dirty_bytes / MIB)
    }

    #[test]
    fn limits_follow_the_memory() {
        assert_eq!(of_memory(300), (86, 30));
        assert_eq!(of_memory(8 << 10), ((4 << 10) - 64, 819));
        assert_eq!(of_memory(64 << 10), ((32 << 10) - 64, 4 << 10), "dirty data is bounded");
        assert_eq!(of_memory(10), (32, 16), "and both work with very little");
    }

    #[test]
    fn options_set_the_limits_and_are_checked() {
        let parse = |line: &[&str]| {
            let words: Vec<OsString> = line.iter().map(Into::into).collect();
            Limits::of::<TestArgs>(&TestArgs::parse_line(&words).unwrap().limits)
        };
        let limits = parse(&["--arc-max", "1.5G", "--dirty-max=64M"]).unwrap();
        assert_eq!((limits.arc_bytes, limits.dirty_bytes), (1536 * MIB, 64 * MIB));
        for wrong in [["--arc-max", "1M"], ["--arc-max", "much"], ["--dirty-max", "8k"]] {
            let error = parse(&wrong).unwrap_err();
            assert_eq!(error.code, 2);
            assert!(error.line.contains(wrong[0]) && error.line.contains("at least"), "{}", error.line);
        }
        let memory = MemoryLimit { bytes: 300 * MIB, cgroup: Some("/sys/fs/cgroup/memory.max".into()) };
        let shown = Limits::of_memory(memory).to_string();
        assert_eq!(shown, "memory: ARC at most 86M, dirty data at most 30M, of 300M (/sys/fs/cgroup/memory.max)");
    }
}
