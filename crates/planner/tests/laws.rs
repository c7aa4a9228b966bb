//! Laws that storage obeys, on modelled hardware: within 10 to 25 %, as each test states.
//!
//! Each compares several disks with one disk in the same simulation, so no figure here depends on a data sheet. `cargo xtask sim` runs
//! them: without optimisation they would take minutes.
#![cfg(not(debug_assertions))]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use weir_planner::hardware::drive::DriveSpec;
use weir_planner::simulate::outcome::Outcome;
use weir_planner::simulate::server::{PoolSpec, ServerSpec, VdevLayout};
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

#[test]
fn a_simulation_gives_the_same_figures_again() {
    let read =
        Workload { seconds: 0.5, file_bytes: 128 << 20, order: Order::Random, depth: 4, ..Workload::sequential_read() };
    let figures = || run(pool(VdevLayout::Mirror(2), 1), &read);
    assert_eq!(figures(), figures());
}
