//! Laws that storage obeys, on modelled hardware: within 10 to 25 %, as each test states.
//!
//! Each compares several disks with one disk in the same simulation, so no figure here depends on a data sheet. `cargo xtask sim` runs
//! them: without optimisation they would take minutes.
#![cfg(not(debug_assertions))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use weir_planner::hardware::drive::DriveSpec;
use weir_planner::plan::description::Description;
use weir_planner::plan::load::predict;
use weir_planner::simulate::outcome::Outcome;
use weir_planner::simulate::server::{CacheDeviceSpec, PoolSpec, ServerSpec, VdevLayout};
use weir_planner::simulate::simulate;
use weir_planner::simulate::workload::{Order, Workload};

fn pool(layout: VdevLayout, vdevs: usize) -> PoolSpec {
    PoolSpec::new(DriveSpec::named("hdd-7k").unwrap(), layout, vdevs)
}

fn run(pool: PoolSpec, workload: &Workload) -> Outcome {
    let mut server = ServerSpec::new(pool);
    server.arc_bytes = 64 << 20;
    server.dirty_bytes = 256 << 20;
    let outcome = simulate(1, &server, workload).unwrap();
    println!(
        "{:?} x {}: {:.1} MB/s, {:.0} op/s, {:.0?} us, {:.2?}, {:?}, {:?}",
        server.pool.layout,
        server.pool.vdevs,
        outcome.mb_s(),
        outcome.operations_per_second,
        outcome.latency_us,
        outcome.busy,
        outcome.traffic,
        outcome.limit
    );
    outcome
}

fn near(value: f64, want: f64, tolerance: f64) {
    assert!((value / want - 1.0).abs() <= tolerance, "{value:.3} is not within {tolerance} of {want:.3}");
}

/// Reads from anywhere, as many at a time for each vdev.
fn random_reads(vdevs: usize) -> Workload {
    Workload {
        order: Order::Random,
        operation_bytes: 128 << 10,
        depth: 32 * vdevs,
        file_bytes: 1 << 30,
        seconds: 3.0,
        ..Workload::sequential_read()
    }
}

fn iops(layout: VdevLayout, vdevs: usize) -> f64 {
    run(pool(layout, vdevs), &random_reads(vdevs * if layout == VdevLayout::Mirror(2) { 2 } else { 1 }))
        .operations_per_second
}

#[test]
fn random_reads_of_raidz_grow_with_vdevs_and_of_mirrors_with_disks() {
    let one = iops(VdevLayout::Single, 1);
    near(iops(VdevLayout::Single, 3), 3.0 * one, 0.1);
    near(iops(VdevLayout::Mirror(2), 2), 4.0 * one, 0.15);
    let raidz = iops(VdevLayout::Raidz(2, 6), 1);
    near(iops(VdevLayout::Raidz(2, 6), 2), 2.0 * raidz, 0.1);
}

fn read_rate(layout: VdevLayout, vdevs: usize) -> f64 {
    let data_disks = layout.data_disks() * vdevs;
    let read = Workload {
        depth: 4 * data_disks,
        operation_bytes: 1 << 20,
        file_bytes: data_disks as u64 * (384 << 20),
        seconds: 2.0,
        ..Workload::sequential_read()
    };
    run(pool(layout, vdevs), &read).mb_s()
}

#[test]
fn sequential_reads_grow_with_data_disks() {
    let one = read_rate(VdevLayout::Single, 1);
    near(read_rate(VdevLayout::Single, 4), 4.0 * one, 0.15);
    near(read_rate(VdevLayout::Raidz(2, 6), 1), 4.0 * one, 0.15);
}

fn write_outcome(layout: VdevLayout, vdevs: usize) -> Outcome {
    let data_disks = layout.data_disks() * vdevs;
    let write = Workload {
        depth: 4 * data_disks,
        operation_bytes: 1 << 20,
        file_bytes: 8 << 30,
        ramp_seconds: 2.0,
        seconds: 20.0,
        ..Workload::sequential_write()
    };
    run(pool(layout, vdevs), &write)
}

/// Bytes written to the devices for each byte of the load.
fn amplification(outcome: &Outcome) -> f64 {
    outcome.traffic.disk_written_bytes as f64 / (outcome.write_mb_s * 1e6 * outcome.seconds)
}

#[test]
fn sequential_writes_grow_with_data_disks_and_cost_their_redundancy() {
    let one = write_outcome(VdevLayout::Single, 1);
    let mirror = write_outcome(VdevLayout::Mirror(2), 1);
    near(mirror.mb_s(), one.mb_s(), 0.1);
    near(amplification(&mirror), 2.0, 0.1);
    let raidz = write_outcome(VdevLayout::Raidz(1, 3), 1);
    // The flushes and the metadata of a txg take as long as on one disk, while its data take half as long.
    near(raidz.mb_s(), 2.0 * one.mb_s(), 0.25);
    // What is dirty at the beginning of the measurement is written in it, and the reverse at its end.
    near(amplification(&raidz), 1.5, 0.1);
}

fn with_cache_device(pool: PoolSpec) -> PoolSpec {
    let drive = DriveSpec::named("ssd-enterprise").unwrap();
    PoolSpec { cache: Some(CacheDeviceSpec { drive, bytes: 8 << 30 }), ..pool }
}

/// Reads of 16 KiB from anywhere in files of eight times the ARC.
fn small_reads() -> Workload {
    Workload {
        order: Order::Random,
        operation_bytes: 16 << 10,
        depth: 16,
        file_bytes: 512 << 20,
        warm: true,
        seconds: 1.0,
        ..Workload::sequential_read()
    }
}

#[test]
fn a_filled_cache_device_serves_what_the_arc_lacks_at_its_own_rate() {
    let with = |drive: &str| {
        let pool = PoolSpec::new(DriveSpec::named(drive).unwrap(), VdevLayout::Single, 1);
        PoolSpec { record_bytes: 16 << 10, ..pool }
    };
    let disk = run(with("hdd-7k"), &small_reads());
    let flash = run(with("ssd-enterprise"), &small_reads());
    let cached = run(with_cache_device(with("hdd-7k")), &small_reads());
    near(cached.operations_per_second, flash.operations_per_second, 0.1);
    assert!(cached.operations_per_second > 10.0 * disk.operations_per_second);
    let of = |name: &str| cached.bytes_by_source.get(name).copied().unwrap_or(0) as f64;
    assert!(of("l2arc") > 0.95 * (of("l2arc") + of("disk")), "{cached:?}");
}

#[test]
fn a_plan_with_a_cache_device_is_faster_by_what_the_device_serves() {
    let figures = |cache: &str| {
        let pool = "[pool]\ndrive = \"hdd-7k\"\ndrive_tb = 1\nlayout = \"mirror\"\nrecord_kib = 16\n";
        let load = "[workload]\nfile_mib = 96\norder = \"random\"\noperation_kib = 16";
        let text = format!("{pool}{cache}[server]\nmemory_gb = 1\narc_gb = 0.03\n{load}");
        predict(&Description::parse(&text).unwrap(), 1, 0.2).unwrap().outcome
    };
    let [without, with] = [figures(""), figures("cache_gb = 0.2\n")];
    assert!(with.operations_per_second > 5.0 * without.operations_per_second, "{without:?} {with:?}");
    assert!(with.l2arc_share() > 0.5 && without.l2arc_share() == 0.0, "{without:?} {with:?}");
}

#[test]
fn the_feed_of_a_cache_device_is_bounded() {
    let nvme = PoolSpec::new(DriveSpec::named("nvme").unwrap(), VdevLayout::Mirror(2), 1);
    // Enough for the ARC to be replaced many times a second.
    let load = Workload { warm: false, file_bytes: 1 << 30, ramp_seconds: 2.0, seconds: 4.0, ..small_reads() };
    let load = Workload { operation_bytes: 128 << 10, ..load };
    let outcome = run(with_cache_device(nvme), &load);
    // `l2arc_write_max`, 32 MiB, at most each 200 ms (`l2arc_feed_min_ms`); a twentieth more for log blocks, headers and txgs.
    let most = (32 << 20) as f64 / 0.2 * outcome.seconds * 1.05;
    let written = outcome.traffic.disk_written_bytes as f64;
    assert!(outcome.read_mb_s > 1000.0, "{outcome:?}");
    assert!(written <= most, "{written:.0} of at most {most:.0} bytes");
    assert!(written > 0.25 * most, "the device was fed {written:.0} of at most {most:.0} bytes");
}

#[test]
fn a_simulation_gives_the_same_figures_again() {
    let read =
        Workload { seconds: 0.5, file_bytes: 128 << 20, order: Order::Random, depth: 4, ..Workload::sequential_read() };
    let figures = || run(pool(VdevLayout::Mirror(2), 1), &read);
    assert_eq!(figures(), figures());
}
