//! Result of a benchmark run: one JSON document. docs/lab.md describes the schema.
//!
//! Units stand in the names of fields: `_bytes`, `_ns`, `_seconds`, `_per_s`. A field that could not be measured is `null` or absent; no
//! value is estimated.

use crate::error::LabError;
use crate::steady::Window;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::Path;

/// Name and version of the schema.
pub const SCHEMA: &str = "weir.bench/1";

/// Largest result file that is read, in bytes.
const MAX_FILE_BYTES: u64 = 256 << 20;

/// Result of one run of one method on one target.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunResult {
    /// [`SCHEMA`].
    pub schema: String,
    /// Reasons not to believe or not to compare figures of this result; the first thing to read.
    pub warnings: Vec<Warning>,
    /// Sentences for each step: what limited it, and what would change it.
    pub verdict: Vec<String>,
    /// Method, such as `quick`.
    pub method: String,
    /// Target as the user named it.
    pub target: String,
    /// Words of the command line after `weir bench`.
    pub command: Vec<String>,
    /// Beginning of the run, in seconds since 1970 (UTC).
    pub started_unix_seconds: u64,
    /// Beginning of the run in RFC 3339.
    pub started: String,
    /// Whether all rounds of all steps were measured; `false` after an interruption.
    pub complete: bool,
    /// Program and interface that carried the load.
    pub client: String,
    /// Processors, memory, kernel, disks, versions, properties: everything in which two runs may differ besides the target's speed.
    pub environment: BTreeMap<String, String>,
    /// Rates that no part of the way to the data can exceed, measured or known before the run.
    pub ceilings: Vec<Ceiling>,
    /// Steps in the order of the method.
    pub steps: Vec<Step>,
}

/// A reason not to believe or not to compare a figure.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Name of the rule, such as `client-cache`.
    pub rule: String,
    /// Step that it concerns; absent if all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// Sentence.
    pub text: String,
    /// Whether comparisons leave the step out.
    pub not_comparable: bool,
}

/// Upper bound of a rate, by one part of the way to the data.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    /// Part: `client`, `memory`, `link` or `disk`.
    pub part: String,
    /// Block size and pattern that it holds for, such as `4K random`; empty if any.
    pub load: String,
    /// Bytes a second, if bytes are limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes_per_s: Option<f64>,
    /// Operations a second, if operations are limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operations_per_s: Option<f64>,
    /// How the figure was obtained.
    pub source: String,
}

/// One workload of a method, and what was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Step {
    /// Name within the method, such as `sequential read 1M`.
    pub name: String,
    /// The workload.
    pub workload: Workload,
    /// Expected rate by rule of thumb, with the rule.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expected: Option<String>,
    /// Measurements, in order of time.
    pub rounds: Vec<Round>,
}

/// Parameters of a workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Workload {
    /// `read`, `write`, `randread`, `randwrite`, `rw` or `randrw`, as in fio; or the name of a load of Weir's own.
    pub pattern: String,
    /// Size of an operation in bytes; 0 if sizes vary.
    pub block_bytes: u64,
    /// Reads among the operations, in percent.
    pub read_percent: u32,
    /// Processes or threads that issue operations.
    pub workers: u32,
    /// Operations in flight per worker; 0 if the client decides.
    pub depth: u32,
    /// Whether each write is complete only when it is stable: `O_DSYNC`, or a flush after it.
    pub sync: bool,
    /// Whether the client's page cache is bypassed.
    pub direct: bool,
    /// Size of the data that is read or written, in bytes.
    pub size_bytes: u64,
    /// Seconds of measurement; 0 if a fixed amount is measured.
    pub seconds: u64,
}

/// One measurement of a workload.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Round {
    /// Seconds from the beginning of the run.
    pub at_seconds: f64,
    /// Length in seconds.
    pub seconds: f64,
    /// Amount that was read.
    pub read: Flow,
    /// Amount that was written.
    pub written: Flow,
    /// Operations that move no data, such as the making and closing of files.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub other_operations: u64,
    /// Latency of operations.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency: Option<Latency>,
    /// Processor time that the client used, in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cpu_seconds: Option<f64>,
    /// Share of all processors of this machine that was busy, 0 to 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine_busy: Option<f64>,
    /// Bytes that the disks below the target read, if they are on this machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_read_bytes: Option<u64>,
    /// Bytes that the disks below the target wrote.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk_written_bytes: Option<u64>,
    /// Rates second by second, on one time axis.
    pub series: Vec<Second>,
    /// Steady window of the bytes per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<Window>,
    /// Increase of the server's counters during the round, such as bytes by source, if the server is a Weir on this machine.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub server: BTreeMap<String, u64>,
    /// Further figures of the method, with the unit in their names.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub figures: BTreeMap<String, f64>,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
fn is_zero(count: &u64) -> bool {
    *count == 0
}

/// Amount in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Flow {
    /// Bytes.
    pub bytes: u64,
    /// Operations.
    pub operations: u64,
}

/// Latency of operations, from submission to completion, in nanoseconds. That of a write that is made stable contains its flush.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, Default)]
pub struct Latency {
    /// Mean.
    pub mean_ns: f64,
    /// Median.
    pub p50_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Largest.
    pub max_ns: u64,
    /// Upper bound of a bucket and operations in it; eight buckets between two powers of two.
    pub histogram: Vec<(u64, u64)>,
}

/// Rates in one second of a round.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, Default)]
pub struct Second {
    /// Bytes that the client read.
    pub read_bytes: u64,
    /// Bytes that the client wrote.
    pub written_bytes: u64,
    /// Bytes that the disks below the target read; `null` if unknown.
    pub disk_read_bytes: Option<u64>,
    /// Bytes that the disks below the target wrote.
    pub disk_written_bytes: Option<u64>,
}

impl Round {
    /// Bytes a second in both directions: the mean of the steady window, or of the round if it has none.
    #[must_use]
    pub fn bytes_per_s(&self) -> f64 {
        match &self.window {
            Some(window) if window.steady => window.mean,
            _ if self.seconds > 0.0 => (self.read.bytes + self.written.bytes) as f64 / self.seconds,
            _ => 0.0,
        }
    }

    /// Operations a second in both directions and without data, scaled to the steady window as [`Round::bytes_per_s`].
    #[must_use]
    pub fn operations_per_s(&self) -> f64 {
        let bytes = self.read.bytes + self.written.bytes;
        let operations = (self.read.operations + self.written.operations + self.other_operations) as f64;
        match bytes {
            0 if self.seconds > 0.0 => operations / self.seconds,
            0 => 0.0,
            _ => operations * self.bytes_per_s() / bytes as f64,
        }
    }

    /// Whether the rate was steady; `None` if the round was too short to tell.
    #[must_use]
    pub fn is_steady(&self) -> Option<bool> {
        self.window.as_ref().map(|window| window.steady)
    }
}

impl Step {
    /// Median of a figure over the rounds.
    pub fn median(&self, figure: impl Fn(&Round) -> f64) -> f64 {
        let values: Vec<f64> = self.rounds.iter().map(figure).collect();
        crate::statistics::median(&values).unwrap_or_default()
    }

    /// Operations in flight over all workers.
    #[must_use]
    pub fn in_flight(&self) -> u32 {
        self.workload.workers.max(1).saturating_mul(self.workload.depth.max(1))
    }
}

impl RunResult {
    /// Reads a result file.
    ///
    /// # Errors
    /// If the file cannot be read, is larger than 256 MiB, is no result, or one of a newer schema.
    pub fn read(path: &Path) -> Result<Self, LabError> {
        let name = path.display().to_string();
        let bytes = std::fs::metadata(path).map_err(LabError::io(path))?.len();
        if bytes > MAX_FILE_BYTES {
            return Err(LabError::format(name, format!("{bytes} bytes are too many for a result")));
        }
        let text = std::fs::read_to_string(path).map_err(LabError::io(path))?;
        Self::parse(&name, &text)
    }

    /// Parses a result. `name` is for messages.
    ///
    /// # Errors
    /// If the text is no result, or one of another schema.
    pub fn parse(name: &str, text: &str) -> Result<Self, LabError> {
        let value: serde_json::Value = serde_json::from_str(text).map_err(|error| LabError::format(name, error))?;
        match value["schema"].as_str() {
            Some(SCHEMA) => {}
            Some(other) => {
                let what = format!("schema {other:?}; this version of Weir reads {SCHEMA:?}");
                return Err(LabError::format(name, what));
            }
            None => return Err(LabError::format(name, "no result of 'weir bench': there is no field \"schema\"")),
        }
        serde_json::from_value(value).map_err(|error| LabError::format(name, error))
    }

    /// Writes the result; a reader sees the former file or the new one, never a part.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), LabError> {
        let text = serde_json::to_string_pretty(self).map_err(|error| LabError::format("result", error))?;
        let partial = path.with_extension("json.partial");
        std::fs::write(&partial, format!("{text}\n")).map_err(LabError::io(&partial))?;
        std::fs::rename(&partial, path).map_err(LabError::io(path))
    }

    /// Whether warnings say that a step must not be compared.
    #[must_use]
    pub fn is_comparable(&self, step: &str) -> bool {
        !self
            .warnings
            .iter()
            .any(|warning| warning.not_comparable && warning.step.as_deref().is_none_or(|name| name == step))
    }
}

/// Fuzz body of the decoder of results.
pub fn fuzz(input: &[u8]) {
    if let Ok(result) = RunResult::parse("input", &String::from_utf8_lossy(input)) {
        let text = serde_json::to_string(&result).unwrap_or_default();
        assert!(RunResult::parse("again", &text).is_ok(), "a result that was read can be written and read");
    }
}
