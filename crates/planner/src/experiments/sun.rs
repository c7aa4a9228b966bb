//! The fourth document: a Sun Storage 7410 streams a terabyte over NFS.

use super::hardware::{GIB, MIB, amplification, mean_of, run};
use super::{Check, Experiment, Finding};
use crate::hardware::drive::DriveSpec;
use crate::hardware::link::LinkSpec;
use crate::hardware::rotating::RotatingSpec;
use crate::simulate::SimulationError;
use crate::simulate::server::{PoolSpec, ServerSpec, VdevLayout};
use crate::simulate::workload::Workload;

pub const ROWS: [Experiment; 6] = [
    Experiment {
        id: "S1",
        document: "10 clients × 2 threads read 128 KiB from 6 shelves: 1.04 GiB/s of payload; network 1.10, disks 1.07 of GiB/s",
        run: s1,
    },
    Experiment { id: "S2", document: "S1 for 24 hours: flat", run: s2 },
    Experiment {
        id: "S3",
        document: "20 clients × 2 threads write 32 KiB, 5 mirrored shelves: disks write 2.45 × the data",
        run: s3,
    },
    Experiment { id: "S4", document: "the same on RAID-Z2: 1.40 × the data; data rate 9 % lower", run: s4 },
    Experiment {
        id: "S5",
        document: "2 shelves: reads 924 MB/s, writes 461 MB/s: a mirrored write is half a read",
        run: s5,
    },
    Experiment { id: "S6", document: "reads do not grow beyond 3 shelves: the network is the limit", run: s6 },
];

/// Disks of a shelf that hold data: 24, less two spares.
const SHELF: usize = 22;
/// One 10 GbE link carries what two of them did in the document, which its peak of 1.16 GiB/s nearly fills.
const NOTE: &str = "k = 256 for files (4 GiB instead of 1 TiB) and 128 for memory, shelves of 22 disks of 7,200 rpm, one link of 10 Gbit/s";

fn server(shelves: usize, mirrored: bool, width: usize) -> ServerSpec {
    let disk = DriveSpec::Rotating(RotatingSpec {
        outer_mb_s: 105.0,
        inner_mb_s: 60.0,
        cache_mib: 32,
        ..RotatingSpec::RPM_7K
    });
    let disks = shelves * SHELF;
    let pool = if mirrored {
        PoolSpec::new(disk, VdevLayout::Mirror(2), disks / 2)
    } else {
        PoolSpec::new(disk, VdevLayout::Raidz(2, width), disks / width)
    };
    let link = LinkSpec { mtu: 9000, ..LinkSpec::new(10.0) };
    ServerSpec { arc_bytes: GIB, dirty_bytes: GIB, processors: 16, link: Some(link), ..ServerSpec::new(pool) }
}

fn readers() -> Workload {
    Workload {
        clients: 10,
        threads: 2,
        depth: 4,
        operation_bytes: 128 << 10,
        file_bytes: 200 * MIB,
        client_gbit: Some(2.0),
        seconds: 2.0,
        ..Workload::sequential_read()
    }
}

fn writers() -> Workload {
    Workload {
        clients: 20,
        threads: 2,
        depth: 4,
        operation_bytes: 32 << 10,
        file_bytes: 256 * MIB,
        client_gbit: Some(2.0),
        ramp_seconds: 2.0,
        seconds: 4.0,
        ..Workload::sequential_write()
    }
}

fn s1() -> Result<Finding, SimulationError> {
    let outcome = run(&server(6, true, 0), &readers())?;
    let payload = outcome.read_mb_s * 1e6;
    let wire = outcome.traffic.wire_bytes[1] as f64 / outcome.seconds;
    let disks = outcome.traffic.disk_read_bytes as f64 / outcome.seconds;
    let checks = vec![
        Check::figure("payload in MiB/s", 1066.0, payload / MIB as f64),
        Check::figure("network over payload", 1.10 / 1.04, wire / payload),
        Check::figure("disks over payload", 1.07 / 1.04, disks / payload),
    ];
    Ok(Finding { checks, note: NOTE.into(), ..Finding::default() })
}

fn s2() -> Result<Finding, SimulationError> {
    let outcome = run(&server(6, true, 0), &Workload { seconds: 12.0, ..readers() })?;
    let begin = mean_of(&outcome, 0, 25);
    let end = mean_of(&outcome, 75, 100);
    Ok(Finding {
        checks: vec![Check::figure("rate of the last quarter over that of the first", 1.0, end / begin)],
        note: format!("{NOTE}; 12 s instead of 24 h, in which the clients read their files three times"),
        ..Finding::default()
    })
}

fn s3() -> Result<Finding, SimulationError> {
    let outcome = run(&server(5, true, 0), &writers())?;
    let ours = amplification(&outcome);
    Ok(Finding {
        checks: vec![Check::figure("bytes on disks over data", 2.45, ours)],
        note: format!(
            "{NOTE}. Mirrored 128K records cost 2 × (1 + s): s is {:.1} % here and 22 % in the document, whose data rate is not \
             reproduced ({:.0} MB/s here)",
            (ours / 2.0 - 1.0) * 100.0,
            outcome.write_mb_s
        ),
        ..Finding::default()
    })
}

fn s4() -> Result<Finding, SimulationError> {
    let mut checks = Vec::new();
    let mut sweep = Vec::new();
    for width in [8, 11, 14] {
        let ours = amplification(&run(&server(5, false, width), &Workload { seconds: 3.0, ..writers() })?);
        sweep.push(format!("width {width}: {ours:.2}"));
        if checks.is_empty() || (ours / 1.40 - 1.0).abs() <= super::TOLERANCE {
            checks = vec![Check::figure("bytes on disks over data", 1.40, ours)];
        }
    }
    let note = format!("{NOTE}. The document does not state the width: {}", sweep.join(", "));
    Ok(Finding { checks, note, ..Finding::default() })
}

/// Through the network, as all figures of the document: without it, two shelves read twice as fast as the document's server sends.
fn s5() -> Result<Finding, SimulationError> {
    let read = run(&server(2, true, 0), &readers())?.read_mb_s;
    let write = run(&server(2, true, 0), &Workload { operation_bytes: 128 << 10, ..writers() })?.write_mb_s;
    Ok(Finding {
        checks: vec![Check::figure("writes over reads", 461.0 / 924.0, write / read)],
        note: format!("{NOTE}: reads {read:.0} MB/s, which is the link's rate, writes {write:.0} MB/s"),
        ..Finding::default()
    })
}

fn s6() -> Result<Finding, SimulationError> {
    let rate = |shelves| Ok::<_, SimulationError>(run(&server(shelves, true, 0), &readers())?.read_mb_s);
    let rates = [rate(1)?, rate(3)?, rate(6)?];
    let grows = format!("MB/s with 1, 3 and 6 shelves: {:.0}, {:.0}, {:.0}", rates[0], rates[1], rates[2]);
    Ok(Finding {
        checks: vec![
            Check::figure("rate of 6 over that of 3 shelves", 1.0, rates[2] / rates[1]),
            Check::statement(format!("1 shelf is slower ({grows})"), rates[0] < 0.9 * rates[1]),
        ],
        note: NOTE.into(),
        ..Finding::default()
    })
}
