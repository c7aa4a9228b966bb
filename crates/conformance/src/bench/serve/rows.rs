//! The rows: what is measured, with which client, against whom.

use super::super::{Measured, line_of, measuring};
use super::block_load::{self, BlockLoad};
use super::nfs_load::Load;
use super::servers::{Contender, RANDOM_SHARE, SHARE, Server};
use crate::JudgeError;

/// Unit of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Payload, in 10^6 bytes per second.
    MbPerSecond,
    /// Operations per second.
    PerSecond,
}

impl Unit {
    /// The figure in this unit.
    pub fn of(self, measured: &Measured) -> f64 {
        match self {
            Unit::MbPerSecond => measured.mb_per_second(),
            Unit::PerSecond => measured.per_second(),
        }
    }

    /// Name of the unit.
    pub fn name(self) -> &'static str {
        match self {
            Unit::MbPerSecond => "MB/s",
            Unit::PerSecond => "op/s",
        }
    }
}

/// One row.
pub struct Row {
    /// Name, unique.
    pub name: &'static str,
    /// The client program.
    pub client: &'static str,
    /// Weir, in the role of the row.
    pub ours: Contender,
    /// The servers that Weir is compared with.
    pub peers: &'static [Contender],
    /// Unit of the figures.
    pub unit: Unit,
    /// The ratio that Weir should reach.
    pub aim: f64,
    /// Whether server and page cache begin empty.
    pub is_cold: bool,
    /// Runs before the measurement.
    pub prepare: fn(&Server, u64) -> Result<(), JudgeError>,
    /// Measures.
    pub measure: fn(&Server, u64) -> Result<Measured, JudgeError>,
}

impl Row {
    /// Whether a contender takes part.
    pub fn has(&self, contender: Contender) -> bool {
        self.ours == contender || self.peers.contains(&contender)
    }
}

const NFS: Row = Row {
    name: "",
    client: "weir-judge, 4 connections, 1 MiB",
    ours: Contender::WeirFiles,
    peers: &[Contender::Ganesha],
    unit: Unit::MbPerSecond,
    aim: 1.5,
    is_cold: false,
    prepare: nothing,
    measure: |server, mib| nfs(server, SHARE, Load::Read, mib),
};

const NFS_RANDOM: Row = Row { client: "weir-judge, 16 connections, recordsize=4K", unit: Unit::PerSecond, ..NFS };

const NBD: Row = Row {
    client: "fio, engine nbd, depth 16",
    ours: Contender::WeirNbd,
    peers: &[Contender::Nbdkit, Contender::QemuNbd],
    measure: |server, _| block_load::nbd(server, BlockLoad::Read),
    ..NFS
};

/// All rows. Rows of one contender are measured in this order: the first ones write what the later ones read.
pub const ROWS: &[Row] = &[
    Row { name: "nfs write 1M and COMMIT", measure: |server, mib| nfs(server, SHARE, Load::Write, mib), ..NFS },
    Row { name: "nfs read 1M hot", prepare: |server, mib| nfs(server, SHARE, Load::Read, mib).map(drop), ..NFS },
    Row {
        name: "nfs random read 4K hot",
        // Writes what is read: from then on it is in the cache.
        prepare: |server, mib| nfs(server, RANDOM_SHARE, Load::Write, mib / 4).map(drop),
        measure: |server, mib| nfs(server, RANDOM_SHARE, Load::RandomRead, mib / 4),
        ..NFS_RANDOM
    },
    Row {
        name: "nfs random write 4K, COMMIT",
        measure: |server, mib| nfs(server, RANDOM_SHARE, Load::RandomWrite, mib / 4),
        ..NFS_RANDOM
    },
    Row { name: "nfs read 1M cold", is_cold: true, ..NFS },
    Row { name: "nbd write 1M, flush", measure: |server, _| block_load::nbd(server, BlockLoad::Write), ..NBD },
    Row { name: "nbd read 1M hot", prepare: |server, _| block_load::nbd(server, BlockLoad::Read).map(drop), ..NBD },
    Row {
        name: "nbd random read 4K hot",
        unit: Unit::PerSecond,
        measure: |server, _| block_load::nbd(server, BlockLoad::RandomRead),
        ..NBD
    },
    Row {
        name: "nbd random write 4K, flush",
        unit: Unit::PerSecond,
        measure: |server, _| block_load::nbd(server, BlockLoad::RandomWrite),
        ..NBD
    },
    Row { name: "nbd read 1M cold", is_cold: true, ..NBD },
];

fn nothing(_: &Server, _: u64) -> Result<(), JudgeError> {
    Ok(())
}

/// Runs the NFS client of this program as a process of its own.
fn nfs(server: &Server, share: &str, load: Load, mib: u64) -> Result<Measured, JudgeError> {
    let nfs = server.nfs.map(|address| address.to_string()).unwrap_or_default();
    let mount = server.mount.map(|address| address.to_string()).unwrap_or_default();
    let path = format!("{}/{share}", server.path);
    line_of(&measuring(&["serve-bench-child", load.name(), &nfs, &mount, &path, "f", &mib.to_string()])?)
}
