//! Hardware and clients of the documents. Parameters that no document states are ours; the rows name them.

use crate::hardware::drive::DriveSpec;
use crate::hardware::flash::FlashSpec;
use crate::hardware::link::LinkSpec;
use crate::hardware::rotating::RotatingSpec;
use crate::simulate::outcome::Outcome;
use crate::simulate::server::{PoolSpec, ServerSpec, VdevLayout};
use crate::simulate::workload::Workload;
use crate::simulate::{SimulationError, simulate};

/// Factor by which memory and files of most rows are divided.
pub const K: u64 = 16;
pub const GIB: u64 = 1 << 30;
pub const MIB: u64 = 1 << 20;

/// HGST 7k disk of 2 TB of 2012.
pub fn hgst() -> DriveSpec {
    DriveSpec::Rotating(RotatingSpec { outer_mb_s: 160.0, inner_mb_s: 80.0, cache_mib: 64, ..RotatingSpec::RPM_7K })
}

/// Intel NVMe SSD of 400 GB (sequential writes 900 MB/s in its data sheet, reads 2200 MB/s).
pub fn nvme_400() -> DriveSpec {
    DriveSpec::Flash(FlashSpec {
        read_mb_s: 2200.0,
        write_mb_s: 900.0,
        sustained_mb_s: 900.0,
        flush_us: 20.0,
        ..FlashSpec::NVME
    })
}

/// Intel S3610.
pub fn sata_ssd() -> DriveSpec {
    DriveSpec::Flash(FlashSpec::ENTERPRISE)
}

pub fn raidz2(width: usize) -> VdevLayout {
    VdevLayout::Raidz(2, width)
}

/// 10 GbE with jumbo frames.
pub fn ten_gbit() -> LinkSpec {
    LinkSpec { mtu: 9000, ..LinkSpec::new(10.0) }
}

/// Both ports of the first document's X540 with jumbo frames, for several users: six that read at least 300 MB/s each need
/// more than one port carries. Each user has one.
pub fn two_ports() -> LinkSpec {
    LinkSpec { gbit: 20.0, ..ten_gbit() }
}

/// A server with `ram_gib` of memory, 2 GiB of which the system uses, divided by [`K`]. Dirty data are a tenth of the memory and
/// at most 4 GiB, divided by 4: divided by more, the fixed cost of a txg would weigh more than on the real machine.
pub fn server(pool: PoolSpec, ram_gib: u64, link: Option<LinkSpec>) -> ServerSpec {
    let dirty_bytes = (ram_gib * GIB / 10).min(4 * GIB) / 4;
    ServerSpec { arc_bytes: (ram_gib - 2) * GIB / K, dirty_bytes, link, ..ServerSpec::new(pool) }
}

/// A Mac of the first document: SMB 2.1 with requests of 1 MiB, two at a time. The work of the client for each request is
/// chosen so that one user alone reads about 900 MB/s and writes about 500 MB/s (the document: 836 and 501).
pub fn mac(reads: bool) -> Workload {
    Workload {
        operation_bytes: MIB,
        depth: 2,
        read_percent: if reads { 100 } else { 0 },
        client_us: if reads { 1100.0 } else { 2900.0 },
        file_bytes: 2 * GIB,
        ramp_seconds: 0.5,
        seconds: 2.0,
        ..Workload::sequential_read()
    }
}

/// A client that is limited by its link only.
pub fn fast_client(reads: bool) -> Workload {
    Workload { depth: 6, client_us: 0.0, ..mac(reads) }
}

pub fn run(server: &ServerSpec, workload: &Workload) -> Result<Outcome, SimulationError> {
    simulate(1, server, workload)
}

/// Bytes that one byte of the load became on the devices.
pub fn amplification(outcome: &Outcome) -> f64 {
    outcome.traffic.disk_written_bytes as f64 / (outcome.write_mb_s * 1e6 * outcome.seconds)
}

/// Mean of a part of the time series, from `from` to `to` percent of the measurement.
pub fn mean_of(outcome: &Outcome, from: usize, to: usize) -> f64 {
    let count = outcome.series_mb_s.len();
    let part = &outcome.series_mb_s[count * from / 100..count * to / 100];
    part.iter().sum::<f64>() / part.len().max(1) as f64
}
