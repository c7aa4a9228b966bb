//! Loads on block devices: other people's clients.

use std::process::Command;

use serde_json::Value;

use super::super::{Measured, succeeded};
use super::servers::Server;
use crate::JudgeError;

/// A load on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockLoad {
    /// Sequential reads of 1 MiB, the whole device once.
    Read,
    /// Sequential writes of 1 MiB, the whole device once, then a flush.
    Write,
    /// Reads of 4 KiB anywhere, for five seconds.
    RandomRead,
    /// Writes of 4 KiB anywhere, for five seconds, then a flush.
    RandomWrite,
}

impl BlockLoad {
    fn is_write(self) -> bool {
        matches!(self, BlockLoad::Write | BlockLoad::RandomWrite)
    }

    fn fio(self) -> &'static [&'static str] {
        match self {
            BlockLoad::Read => &["--rw=read", "--bs=1M"],
            BlockLoad::Write => &["--rw=write", "--bs=1M", "--end_fsync=1"],
            BlockLoad::RandomRead => &["--rw=randread", "--bs=4k", "--time_based", "--runtime=5"],
            BlockLoad::RandomWrite => &["--rw=randwrite", "--bs=4k", "--time_based", "--runtime=5", "--end_fsync=1"],
        }
    }
}

/// Measures fio's engine for NBD.
pub fn nbd(server: &Server, load: BlockLoad) -> Result<Measured, JudgeError> {
    let uri = format!("--uri={}", server.path);
    let usual =
        ["--ioengine=nbd", "--name=load", "--iodepth=16", "--refill_buffers", "--randrepeat=0", "--norandommap"];
    let mut command = Command::new("fio");
    command.arg("--output-format=json").args(usual).args(load.fio()).arg(uri);
    let text = succeeded(&mut command).map_err(|error| match error {
        JudgeError::Io { .. } => JudgeError::Missing { what: "fio is not installed".to_string() },
        error => error,
    })?;
    figures(&text, if load.is_write() { "write" } else { "read" })
}

/// The figures of fio's JSON report.
fn figures(text: &str, direction: &str) -> Result<Measured, JudgeError> {
    let parsed: Value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or_default())
        .map_err(|source| JudgeError::Manifest { golden: "fio's report".to_string(), source })?;
    let job = &parsed["jobs"][0];
    let figure = |name: &str| job[direction][name].as_f64().unwrap_or_default();
    // The run time ends with the last operation; the job's own time includes the flush.
    let seconds = (job["job_runtime"].as_f64().unwrap_or_default() / 1000.0).max(figure("runtime") / 1000.0);
    Ok(Measured {
        bytes: figure("io_bytes") as u64,
        operations: figure("total_ios") as u64,
        seconds,
        ..Measured::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_of_fio_is_read() {
        let text = "fio: note\n{\"jobs\":[{\"job_runtime\":2000,\"read\":{\"io_bytes\":4096,\"total_ios\":1,\"runtime\":1500}}]}";
        let measured = figures(text, "read").unwrap();
        assert_eq!((measured.bytes, measured.operations, measured.seconds), (4096, 1, 2.0));
    }
}
