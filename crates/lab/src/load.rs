//! Loads that fio carries: their parameters, and the job file that says the same to fio.

use crate::fio::Fio;
use crate::result::Workload;
use crate::target::Target;
use std::fmt::Write;
use std::path::Path;

/// Beginning of the names of files that benchmarks make in a directory.
pub const FILE_PREFIX: &str = "weir-bench";

/// Interface by which fio does I/O.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// io_uring(7).
    IoUring,
    /// io_submit(2).
    Libaio,
    /// pread(2) and pwrite(2): one operation in flight per worker.
    Psync,
    /// libnbd.
    Nbd,
    /// No I/O at all: measures the client itself.
    Null,
}

impl Engine {
    /// Name of fio's engine.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::IoUring => "io_uring",
            Self::Libaio => "libaio",
            Self::Psync => "psync",
            Self::Nbd => "nbd",
            Self::Null => "null",
        }
    }
}

/// How fio makes each write stable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stability {
    /// The file is open with `O_DSYNC`: fio measures one operation, which contains the flush.
    Dsync,
    /// fdatasync(2) after each write: fio measures write and flush apart. For a fio without `sync=dsync`.
    Fdatasync,
    /// fio's `fsync` after each write, the only flush that its engine nbd knows.
    Fsync,
}

impl Stability {
    /// Line of a job file.
    fn line(self) -> (&'static str, &'static str) {
        match self {
            Self::Dsync => ("sync", "dsync"),
            Self::Fdatasync => ("fdatasync", "1"),
            Self::Fsync => ("fsync", "1"),
        }
    }
}

/// Parameters of a load.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// Sizes of operations in bytes, with their shares in percent, which add up to 100.
    pub blocks: Vec<(u64, u32)>,
    /// Reads among the operations, in percent.
    pub read_percent: u32,
    /// Operations at random places, in percent; the others continue where the last one ended.
    pub random_percent: u32,
    /// Workers, each with a file (or a part of the device) of its own.
    pub workers: u32,
    /// Operations in flight per worker.
    pub depth: u32,
    /// Whether each write is complete only when it is stable ([`Stability`] says how).
    pub sync: bool,
    /// Bytes over all workers.
    pub size_bytes: u64,
    /// Seconds of measurement; 0 to pass over the data once.
    pub seconds: u64,
    /// Seconds of load before the measurement.
    pub ramp_seconds: u64,
}

impl Load {
    /// One pass of sequential reads or writes over the data, of blocks of one size.
    #[must_use]
    pub fn sequential(block_bytes: u64, read_percent: u32) -> Self {
        Self {
            blocks: vec![(block_bytes, 100)],
            read_percent,
            random_percent: 0,
            workers: 1,
            depth: 1,
            sync: false,
            size_bytes: 0,
            seconds: 0,
            ramp_seconds: 0,
        }
    }

    /// As [`Load::sequential`], at random places.
    #[must_use]
    pub fn random(block_bytes: u64, read_percent: u32) -> Self {
        Self { random_percent: 100, ..Self::sequential(block_bytes, read_percent) }
    }

    /// Name of fio's pattern.
    #[must_use]
    pub fn pattern(&self) -> &'static str {
        match (self.random_percent, self.read_percent) {
            (0, 100) => "read",
            (0, 0) => "write",
            (0, _) => "rw",
            (_, 100) => "randread",
            (_, 0) => "randwrite",
            _ => "randrw",
        }
    }

    /// Whether any operation writes.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.read_percent < 100
    }

    /// The largest size of an operation.
    #[must_use]
    pub fn largest_block(&self) -> u64 {
        self.blocks.iter().map(|(bytes, _)| *bytes).max().unwrap_or_default()
    }

    /// Bytes for each worker: a multiple of the largest block and of 4 KiB, so that direct I/O can reach the end.
    #[must_use]
    pub fn bytes_per_worker(&self) -> u64 {
        let unit = self.largest_block().max(1).next_multiple_of(4096);
        (self.size_bytes / u64::from(self.workers.max(1)) / unit).max(1) * unit
    }

    /// Seconds that the load takes with its ramp; `None` if it ends with its data.
    #[must_use]
    pub fn expected_seconds(&self) -> Option<f64> {
        (self.seconds > 0).then_some((self.seconds + self.ramp_seconds) as f64)
    }

    /// The load as part of a result.
    #[must_use]
    pub fn workload(&self, is_direct: bool) -> Workload {
        Workload {
            pattern: self.pattern().to_owned(),
            block_bytes: if self.blocks.len() == 1 { self.largest_block() } else { 0 },
            read_percent: self.read_percent,
            workers: self.workers,
            depth: self.depth,
            sync: self.sync,
            direct: is_direct,
            size_bytes: self.size_bytes,
            seconds: self.seconds,
        }
    }
}

/// Text of a job file for fio 3. `logs` is the beginning of the names of fio's logs of rates.
#[must_use]
pub fn job_file(name: &str, load: &Load, target: &Target, fio: &Fio, logs: &Path) -> String {
    let engine = fio.engine;
    let mut text = String::from("[global]\n");
    let mut line = |key: &str, value: &dyn std::fmt::Display| {
        let _ = writeln!(text, "{key}={value}");
    };
    line("ioengine", &engine.name());
    line("direct", &u8::from(fio.is_direct && engine != Engine::Nbd));
    line("iodepth", &load.depth);
    line("numjobs", &load.workers);
    line("thread", &1);
    line("group_reporting", &1);
    line("size", &load.bytes_per_worker());
    match (engine, target) {
        (Engine::Null, _) => line("filename", &"null"),
        (_, Target::Directory(path)) => {
            line("directory", &escaped(path));
            line("filename_format", &format_args!("{FILE_PREFIX}.$jobnum"));
            // The files are made beforehand; without this fio would extend them by itself, unmeasured.
            line("create_on_open", &u8::from(load.writes()));
        }
        (_, Target::File(path) | Target::Device(path)) => {
            line("filename", &escaped(path));
            line("offset_increment", &load.bytes_per_worker());
        }
        (_, Target::Nbd(uri)) => {
            line("uri", uri);
            line("offset_increment", &load.bytes_per_worker());
        }
        // A load without fio, whose job file is never used.
        (_, Target::Network(_) | Target::InProcess(_)) => {}
    }
    // New bytes for each write: data that neither compresses nor occurs twice.
    line("refill_buffers", &1);
    line("randrepeat", &0);
    line("norandommap", &1);
    if load.sync {
        let (key, value) = fio.stability.line();
        line(key, &value);
    }
    if load.seconds > 0 {
        line("time_based", &1);
        line("runtime", &load.seconds);
        line("ramp_time", &load.ramp_seconds);
    } else if load.writes() {
        // A pass over the data ends when the data is on stable storage.
        line("end_fsync", &1);
    }
    line("lat_percentiles", &1);
    line("clat_percentiles", &0);
    line("write_bw_log", &escaped(logs));
    line("log_avg_msec", &1000);
    let _ = writeln!(text, "\n[{}]", name.replace([']', '['], " "));
    let _ = writeln!(text, "rw={}", load.pattern());
    if !matches!(load.read_percent, 0 | 100) {
        let _ = writeln!(text, "rwmixread={}", load.read_percent);
    }
    if !matches!(load.random_percent, 0 | 100) {
        let _ = writeln!(text, "percentage_random={}", load.random_percent);
    }
    if let [(bytes, _)] = load.blocks[..] {
        let _ = writeln!(text, "bs={bytes}");
    } else {
        let split: Vec<String> = load.blocks.iter().map(|(bytes, share)| format!("{bytes}/{share}")).collect();
        let _ = writeln!(text, "bssplit={}", split.join(":"));
    }
    text
}

/// A path for a job file: fio takes `:` as a separator of files.
fn escaped(path: &Path) -> String {
    path.display().to_string().replace('\\', "\\\\").replace(':', "\\:")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    fn fio(engine: Engine, stability: Stability) -> Fio {
        Fio { version: String::new(), engine, is_direct: true, stability }
    }

    #[test]
    fn a_write_that_is_made_stable_is_one_operation_where_fio_can() {
        let load = Load { sync: true, seconds: 1, ..Load::sequential(4096, 0) };
        for (stability, line) in
            [(Stability::Dsync, "sync=dsync"), (Stability::Fdatasync, "fdatasync=1"), (Stability::Fsync, "fsync=1")]
        {
            let target = Target::Device("/dev/sdz".into());
            let text = job_file("w", &load, &target, &fio(Engine::Psync, stability), Path::new("l"));
            let flushes: Vec<&str> = text.lines().filter(|line| line.contains("sync=")).collect();
            assert_eq!(flushes, [line]);
        }
    }

    #[test]
    fn a_job_file_states_the_load() {
        let load = Load { workers: 4, depth: 16, seconds: 10, size_bytes: 1 << 30, ..Load::random(4096, 67) };
        let text = job_file(
            "mix",
            &load,
            &Target::Directory("/pool/a:b".into()),
            &fio(Engine::IoUring, Stability::Dsync),
            Path::new("/tmp/log"),
        );
        for line in [
            "directory=/pool/a\\:b",
            "filename_format=weir-bench.$jobnum",
            "size=268435456",
            "iodepth=16",
            "numjobs=4",
            "direct=1",
            "refill_buffers=1",
            "rw=randrw",
            "rwmixread=67",
            "bs=4096",
            "runtime=10",
        ] {
            assert!(text.lines().any(|have| have == line), "{line} is missing:\n{text}");
        }
    }

    #[test]
    fn workers_of_a_device_do_not_overlap() {
        let load = Load { workers: 2, size_bytes: 8 << 20, ..Load::sequential(1 << 20, 100) };
        let device = Target::Device(PathBuf::from("/dev/sdz"));
        let text = job_file("read", &load, &device, &fio(Engine::Libaio, Stability::Dsync), Path::new("log"));
        assert!(text.contains("offset_increment=4194304\n"), "{text}");
        let text = job_file(
            "read",
            &load,
            &Target::Nbd("nbd://h/v".into()),
            &fio(Engine::Nbd, Stability::Fsync),
            Path::new("log"),
        );
        assert!(text.contains("uri=nbd://h/v\n") && text.contains("direct=0\n"), "{text}");
    }

    #[test]
    fn a_share_of_sizes_and_of_random_places_is_stated() {
        let load = Load { blocks: vec![(4096, 60), (65536, 40)], random_percent: 75, ..Load::random(4096, 80) };
        let text = job_file(
            "file server",
            &load,
            &Target::Device("/dev/sdz".into()),
            &fio(Engine::Libaio, Stability::Dsync),
            Path::new("l"),
        );
        assert!(text.contains("bssplit=4096/60:65536/40\n") && text.contains("percentage_random=75\n"), "{text}");
        assert_eq!(load.workload(true).block_bytes, 0);
    }
}
