//! The second document: IOMeter over iSCSI against OpenSolaris, Nexenta and a Promise array.

use super::hardware::{MIB, run};
use super::{Check, Experiment, Finding};
use crate::hardware::drive::DriveSpec;
use crate::hardware::link::LinkSpec;
use crate::hardware::rotating::RotatingSpec;
use crate::simulate::server::{PoolSpec, ServerSpec, VdevLayout};
use crate::simulate::workload::{Order, Workload};
use crate::simulate::{SimulationError, simulate_array};

const fn row(id: &'static str, document: &'static str, run: super::Run) -> Experiment {
    Experiment { id, document, run }
}

pub const ROWS: [Experiment; 17] = [
    row("A1", "4K sequential read: OpenSolaris and Nexenta above Promise at depth", || {
        ranks(4, Pattern::Sequential, ZFS_LEADS)
    }),
    row("A2", "4K random write: OpenSolaris and Nexenta above Promise", || ranks(4, Pattern::Write, ZFS_LEADS)),
    row("A3", "4K 67 % write: OpenSolaris and Nexenta above Promise", || ranks(4, Pattern::Mix, ZFS_LEADS)),
    row("A4", "4K random read: OpenSolaris and Nexenta far above Promise", || ranks(4, Pattern::Read, ZFS_LEADS)),
    row("A5", "8K random read: OpenSolaris above Nexenta above Promise", || ranks(8, Pattern::Read, ZFS_LEADS)),
    row("A6", "8K sequential read: OpenSolaris and Nexenta above Promise at depth", || {
        ranks(8, Pattern::Sequential, ZFS_LEADS)
    }),
    row("A7", "8K random write: OpenSolaris and Nexenta above Promise", || ranks(8, Pattern::Write, ZFS_LEADS)),
    row("A8", "8K 67 % write: OpenSolaris and Nexenta above Promise", || ranks(8, Pattern::Mix, ZFS_LEADS)),
    row("A9", "16K 67 % write: OpenSolaris and Nexenta above Promise at depth", || ranks(16, Pattern::Mix, ZFS_LEADS)),
    row("A10", "16K random write: OpenSolaris above Nexenta above Promise at depth", || {
        ranks(16, Pattern::Write, ZFS_LEADS)
    }),
    row("A11", "16K sequential read: Promise above both at all depths", || {
        ranks(16, Pattern::Sequential, PROMISE_LEADS)
    }),
    row("A12", "16K random read: OpenSolaris above Nexenta above Promise", || ranks(16, Pattern::Read, ZFS_LEADS)),
    row("A13", "32K 67 % write: OpenSolaris above Promise above Nexenta", || ranks(32, Pattern::Mix, PROMISE_BETWEEN)),
    row("A14", "32K random read: OpenSolaris first, Nexenta about as Promise", a14),
    row("A15", "32K sequential read: Promise above both at all depths", || {
        ranks(32, Pattern::Sequential, PROMISE_LEADS)
    }),
    row("A16", "32K random write: OpenSolaris above Promise above Nexenta, flat", || {
        ranks(32, Pattern::Write, PROMISE_BETWEEN)
    }),
    row("A17", "dedup: above 90 % of the processors, fewer IOPS", a17),
];

#[derive(Clone, Copy, PartialEq)]
enum Pattern {
    Sequential,
    Read,
    Write,
    Mix,
}

/// IOPS of OpenSolaris, Nexenta and Promise at depth 24.
type Ranks = (&'static str, fn([f64; 3]) -> bool);

/// Two figures within 10 % count as level.
const ZFS_LEADS: Ranks =
    ("both above Promise at depth 24, OpenSolaris not below Nexenta", |[open, nexenta, promise]| {
        open > promise && nexenta > promise && open > 0.9 * nexenta
    });
const PROMISE_LEADS: Ranks = ("Promise above both", |[open, nexenta, promise]| promise > open && promise > nexenta);
const PROMISE_BETWEEN: Ranks =
    ("OpenSolaris, Promise, Nexenta", |[open, nexenta, promise]| open > promise && promise > nexenta);
const LEVEL: Ranks =
    ("OpenSolaris above Promise, not below Nexenta, Nexenta within a third of Promise", |[open, nexenta, promise]| {
        open > promise && open > 0.9 * nexenta && (nexenta / promise - 1.0).abs() < 1.0 / 3.0
    });

const NOTE: &str = "k = 64; LUN of 256 MiB; 10 mirrors of 7k disks over 1 GbE; ARC and L2ARC are one memory of 768 MiB \
                    (OpenSolaris) or 200 MiB (Nexenta), without a cache device; Promise: 8 mirrored pairs of the same disks \
                    without ZFS and without write caches, 100 µs of its one processor for a command; all are ours";

fn disk(cache_mib: u64) -> DriveSpec {
    DriveSpec::Rotating(RotatingSpec { outer_mb_s: 110.0, inner_mb_s: 60.0, cache_mib, ..RotatingSpec::RPM_7K })
}

fn array(arc_mib: u64) -> ServerSpec {
    let pool = PoolSpec { record_bytes: 8 << 10, ..PoolSpec::new(disk(32), VdevLayout::Mirror(2), 10) };
    ServerSpec {
        arc_bytes: arc_mib * MIB,
        dirty_bytes: 256 * MIB,
        processors: 8,
        link: Some(LinkSpec::new(1.0)),
        ..ServerSpec::new(pool)
    }
}

fn load(kib: u64, pattern: Pattern, depth: usize) -> Workload {
    Workload {
        volume: true,
        operation_bytes: kib << 10,
        order: if pattern == Pattern::Sequential { Order::Sequential } else { Order::Random },
        read_percent: match pattern {
            Pattern::Sequential | Pattern::Read => 100,
            Pattern::Write => 0,
            Pattern::Mix => 33,
        },
        depth,
        file_bytes: 256 * MIB,
        warm: true,
        ramp_seconds: 0.5,
        seconds: 1.5,
        ..Workload::sequential_read()
    }
}

fn promise() -> ServerSpec {
    let mut spec = array(0);
    spec.pool.vdevs = 8;
    // The controller switches the volatile caches of its disks off.
    spec.pool.drive = disk(0);
    // The controller has one embedded processor. It is taken to clock at 1 GHz and to complete one instruction per cycle, so that a
    // command takes four times as long as on a server's Xeon: 100 µs instead of 25 µs. The controller computes no checksums.
    spec.processors = 1;
    spec.costs.request_ns = 100_000.0;
    spec.costs.checksum_ns_per_kib = 0.0;
    spec
}

/// IOPS of OpenSolaris, Nexenta and Promise at a depth.
fn iops(kib: u64, pattern: Pattern, depth: usize) -> Result<[f64; 3], SimulationError> {
    let load = load(kib, pattern, depth);
    let open = run(&array(768), &load)?.operations_per_second;
    let nexenta = run(&array(200), &load)?.operations_per_second;
    Ok([open, nexenta, simulate_array(1, &promise(), &load)?.operations_per_second])
}

fn figures([open, nexenta, promise]: [f64; 3]) -> String {
    format!("{open:.0}, {nexenta:.0}, {promise:.0}")
}

fn ranks(kib: u64, pattern: Pattern, ranks: Ranks) -> Result<Finding, SimulationError> {
    judged(kib, pattern, ranks, [iops(kib, pattern, 1)?, iops(kib, pattern, 24)?])
}

fn judged(
    kib: u64,
    pattern: Pattern,
    (statement, holds): Ranks,
    [low, deep]: [[f64; 3]; 2],
) -> Result<Finding, SimulationError> {
    let without_cache = if pattern == Pattern::Sequential && !holds(deep) {
        let load = Workload { warm: false, overwrites: 1.0, ..load(kib, pattern, 24) };
        let [open, nexenta] = [run(&array(32), &load)?, run(&array(32), &load)?].map(|run| run.operations_per_second);
        Some([open, nexenta, deep[2]])
    } else {
        None
    };
    Ok(Finding {
        checks: vec![Check::statement(format!("{statement} (IOPS {})", figures(deep)), holds(deep))],
        note: format!("IOPS of OpenSolaris, Nexenta, Promise at depth 1: {}. {NOTE}", figures(low)),
        without_cause: without_cache.map(|cold| {
            let cause = "the modelled caches hold the whole LUN, so that the link limits all three; prefetched blocks do not enter an \
                         L2ARC, so that sequential reads came from disks, on which random writes had scattered the LUN";
            (cause.to_owned(), vec![Check::statement(format!("{statement} (IOPS {})", figures(cold)), holds(cold))])
        }),
    })
}

/// At depth 24 the link makes OpenSolaris and Nexenta level, which counts as in other rows; at depth 1 OpenSolaris has to lead.
fn a14() -> Result<Finding, SimulationError> {
    let low = iops(32, Pattern::Read, 1)?;
    let mut finding = judged(32, Pattern::Read, LEVEL, [low, iops(32, Pattern::Read, 24)?])?;
    let [open, nexenta, promise] = low;
    let leads = open > 1.1 * nexenta && open > 1.1 * promise;
    finding.checks.push(Check::statement(format!("OpenSolaris first at depth 1 (IOPS {})", figures(low)), leads));
    Ok(finding)
}

fn a17() -> Result<Finding, SimulationError> {
    let with = |dedup, clients_first| {
        let mut spec = ServerSpec { processors: 2, clients_first, ..array(768) };
        spec.pool.dedup = dedup;
        spec.costs.checksum_ns_per_kib = if dedup { 8000.0 } else { 150.0 };
        // Long enough for the dirty data to reach their limit, so that writes are not faster than they are synced.
        run(&spec, &Workload { ramp_seconds: 12.0, seconds: 4.0, ..load(8, Pattern::Write, 24) })
    };
    let checks = |clients_first| {
        let plain = with(false, clients_first)?;
        let dedup = with(true, clients_first)?;
        let fewer = format!("IOPS {:.0} instead of {:.0}", dedup.operations_per_second, plain.operations_per_second);
        let share = dedup.busy.processors * 100.0;
        Ok::<_, SimulationError>(vec![
            Check::statement(fewer, dedup.operations_per_second < 0.9 * plain.operations_per_second),
            Check::statement(format!("processors {share:.0} % busy, above 90 %"), share > 90.0),
        ])
    };
    Ok(Finding {
        checks: checks(false)?,
        note: format!("SHA-256 in software of 2010, 125 MB/s a processor, two processors (ours). {NOTE}"),
        without_cause: Some((
            "requests of clients wait behind the checksums of a txg, so that clients fill the next txg only after this one, while the \
             processors are idle; OpenZFS runs the threads that checksum writes at a lower priority than others"
                .into(),
            checks(true)?,
        )),
    })
}
