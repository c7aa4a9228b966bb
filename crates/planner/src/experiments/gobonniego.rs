//! The third document: a virtual machine's disk over iSCSI, from 1 to 10 Gbit/s, under GoBonnieGo.

use super::hardware::{GIB, K, MIB, run, server};
use super::{Check, Experiment, Finding};
use crate::hardware::drive::DriveSpec;
use crate::hardware::link::{Link, LinkSpec, Way};
use crate::hardware::rotating::RotatingSpec;
use crate::simulate::SimulationError;
use crate::simulate::server::{PoolSpec, ServerSpec};
use crate::simulate::workload::{Order, Workload};

pub const ROWS: [Experiment; 5] = [
    Experiment { id: "G1", document: "1 to 10 GbE: reads 1.4×, writes 10×, IOPS 1.6×", run: g1 },
    Experiment { id: "G2", document: "reads dip below 120 MB/s every 35 minutes while the disks are idle", run: g2 },
    Experiment {
        id: "G3",
        document: "power cut: an asynchronous LUN loses acknowledged writes, sync=always does not",
        run: super::power_cut::g3,
    },
    Experiment {
        id: "G4",
        document: "listing of 4,500 entries over 200 Mbit/s: 30 s, then less than 1 s; not the network",
        run: g4,
    },
    Experiment { id: "G5", document: "iSCSI without sync is faster than NFS with sync", run: g5 },
];

const NOTE: &str = "k = 16 for memory and files; RAID-Z2 of seven 7k disks; three requests of 128 KiB at a time for reads, 2.2 ms of the guest \
                    for each; both are ours";

fn freenas(gbit: f64, ram_gib: u64) -> ServerSpec {
    let disk = DriveSpec::Rotating(RotatingSpec::RPM_7K);
    let pool = PoolSpec { record_bytes: 16 << 10, ..PoolSpec::new(disk, super::hardware::raidz2(7), 1) };
    let mut spec = server(pool, ram_gib, Some(LinkSpec::new(gbit)));
    spec.dirty_bytes = 2 * GIB;
    spec
}

fn volume(reads: u64) -> Workload {
    Workload {
        volume: true,
        read_percent: reads,
        file_bytes: 16 * GIB / K,
        seconds: 3.0,
        ramp_seconds: 0.2,
        ..Workload::sequential_read()
    }
}

/// The guest reads ahead: while it works on 128 KiB, others are on their way. Its own work limits it to what the
/// document found with 10 GbE, which was barely more than 1 GbE carries.
fn reader() -> Workload {
    Workload { depth: 3, client_us: 2200.0, ..volume(100) }
}

fn g1() -> Result<Finding, SimulationError> {
    let read = Workload { warm: true, ..reader() };
    let write = Workload { depth: 16, operation_bytes: MIB, seconds: 1.0, ..volume(0) };
    let iops =
        Workload { depth: 1, operation_bytes: 4096, order: Order::Random, client_us: 10.0, warm: true, ..volume(90) };
    let mut rates = [[0.0; 3]; 2];
    for (at, (gbit, ram)) in [(1.0, 32), (10.0, 128)].into_iter().enumerate() {
        let spec = freenas(gbit, ram);
        rates[at] = [run(&spec, &read)?.mb_s(), run(&spec, &write)?.mb_s(), run(&spec, &iops)?.operations_per_second];
    }
    let wire = LinkSpec::new(1.0).payload_rate(128 << 10) / 1e6;
    let ratio = |n: usize| rates[1][n] / rates[0][n];
    Ok(Finding {
        checks: vec![
            Check::figure("reads, 10 over 1 GbE", 1.4, ratio(0)),
            Check::statement(
                format!("1 GbE reads close to the link's rate: {:.0} of {wire:.0} MB/s", rates[0][0]),
                rates[0][0] > 0.85 * wire,
            ),
            Check::figure("writes, 10 over 1 GbE", 10.0, ratio(1)),
            Check::figure("IOPS, 10 over 1 GbE", 1.6, ratio(2)),
        ],
        note: format!("{NOTE}; writes fill the write buffer for one second"),
        ..Finding::default()
    })
}

fn g2() -> Result<Finding, SimulationError> {
    let read = Workload { warm: true, seconds: 6.0, ..reader() };
    let outcome = run(&freenas(10.0, 128), &read)?;
    let least = outcome.series_mb_s.iter().copied().fold(f64::INFINITY, f64::min);
    let mean = outcome.read_mb_s;
    Ok(Finding {
        checks: vec![Check::statement(
            format!("dips to 80 % of the mean: least {least:.0}, mean {mean:.0} MB/s"),
            least < 0.8 * mean,
        )],
        note: format!("{NOTE}. The document names no cause, and nothing in the model has a period of 35 minutes"),
        ..Finding::default()
    })
}

/// Entries of the directory.
const ENTRIES: u64 = 4500;

fn g4() -> Result<Finding, SimulationError> {
    // 200 Mbit/s with 3 ms of one way, as a busy wireless network has.
    let mut link = Link::new(LinkSpec { latency_us: 3000.0, ..LinkSpec::new(0.2) });
    let mut now_ns = 0;
    let mut call = |request: u64, answer: u64| {
        now_ns = link.send(Way::ToServer, request, now_ns);
        now_ns = link.send(Way::ToClient, answer, now_ns);
        now_ns as f64 / 1e9
    };
    let mut each = 0.0;
    for _ in 0..ENTRIES {
        each = call(120, 160);
    }
    let mut batches = each;
    for _ in 0..ENTRIES.div_ceil(100) {
        batches = call(150, 100 * 200);
    }
    Ok(Finding {
        checks: vec![
            Check::figure("a question for each entry, seconds", 30.0, each),
            Check::statement(format!("a hundred entries an answer: {:.1} s, less than 1 s", batches - each), batches - each < 1.0),
        ],
        note: "the link alone, with 3 ms of one way (ours): the same network does both, so the number of questions is the cause".into(),
        ..Finding::default()
    })
}

fn g5() -> Result<Finding, SimulationError> {
    let load = |stable: bool| Workload { stable, volume: !stable, operation_bytes: 128 << 10, depth: 4, ..volume(0) };
    let nfs = run(&freenas(10.0, 32), &load(true))?.mb_s();
    let iscsi = run(&freenas(10.0, 32), &load(false))?.mb_s();
    Ok(Finding {
        checks: vec![Check::statement(format!("iSCSI {iscsi:.0}, NFS {nfs:.0} MB/s"), iscsi > 1.5 * nfs)],
        note: "what is faster is not on stable storage: G3 counts what a power cut costs".into(),
        ..Finding::default()
    })
}
