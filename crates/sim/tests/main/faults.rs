//! Each fault has its documented effect, can be removed, and does not change the true contents.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_machine::{Access, Buf, Disk, DiskError};
use weir_sim::{Fault, SimDisk, SimError, SimWorld, Timing};

const LEN: usize = 4096;

fn world_with_disk() -> (SimWorld, Arc<SimDisk>, Arc<dyn Disk>) {
    let world = SimWorld::new(7);
    let sim = world.add_disk("/sim/disk", 1 << 20, 512, Timing::Nvme);
    let disk = world.machine().disks.open(Path::new("/sim/disk"), Access::ReadWrite).unwrap();
    (world, sim, disk)
}

async fn fill(disk: &Arc<dyn Disk>, offset: u64, byte: u8) {
    disk.write(offset, Buf::copy_from(&[byte; LEN])).await.unwrap();
}

async fn reads_as(disk: &Arc<dyn Disk>, offset: u64, byte: u8) -> bool {
    disk.read(offset, LEN).await.unwrap().as_ref().iter().all(|b| *b == byte)
}

#[test]
fn rot_flips_bits_until_removed_or_overwritten() {
    let (world, sim, disk) = world_with_disk();
    world
        .run(async {
            fill(&disk, 0, 1).await;
            let rot = sim.lay(Fault::Rot { offset: 0, len: LEN as u64, bits: 3 });
            assert!(!reads_as(&disk, 0, 1).await);
            sim.lift(rot);
            assert!(reads_as(&disk, 0, 1).await);
            sim.lay(Fault::Rot { offset: 0, len: LEN as u64, bits: 3 });
            fill(&disk, 0, 2).await;
            assert!(reads_as(&disk, 0, 2).await);
        })
        .unwrap();
}

#[test]
fn only_unreadable_sectors_fail() {
    let (world, sim, disk) = world_with_disk();
    world
        .run(async {
            let bad = sim.lay(Fault::Unreadable { offset: 1000, len: 10 });
            assert!(matches!(disk.read(512, 512).await, Err(DiskError::Os { errno: 5, offset: 512, .. })));
            assert!(disk.read(0, 512).await.is_ok() && disk.read(1024, 512).await.is_ok());
            sim.lift(bad);
            assert!(disk.read(0, LEN).await.is_ok());
            assert_eq!(sim.stats().errors, 1);
        })
        .unwrap();
}

#[test]
fn removing_a_misdirected_write_restores_both_ranges() {
    let (world, sim, disk) = world_with_disk();
    world
        .run(async {
            fill(&disk, 0, 1).await;
            fill(&disk, 8192, 2).await;
            let fault = sim.lay(Fault::Misdirect { nth: 0, to: 8192 });
            fill(&disk, 0, 3).await;
            assert!(reads_as(&disk, 0, 1).await && reads_as(&disk, 8192, 3).await);
            assert!(sim.peek(0, LEN).iter().all(|b| *b == 3));
            sim.lift(fault);
            assert!(reads_as(&disk, 0, 3).await && reads_as(&disk, 8192, 2).await);
        })
        .unwrap();
}

#[test]
fn a_hung_disk_completes_when_the_fault_is_removed() {
    let (world, sim, disk) = world_with_disk();
    let machine = world.machine();
    world
        .run(async {
            let hang = sim.lay(Fault::Hang);
            let reader = disk.clone();
            let read = machine.tasks.spawn(async move { reader.read(0, LEN).await.is_ok() });
            machine.clock.sleep(Duration::from_secs(3600)).await;
            sim.lift(hang);
            assert!(read.await.unwrap());
        })
        .unwrap();
    assert!(world.now_ns() >= 3_600_000_000_000, "an hour of virtual time passed");
}

#[test]
fn an_endless_wait_is_a_deadlock_that_names_the_task() {
    let (world, sim, disk) = world_with_disk();
    sim.lay(Fault::Hang);
    let machine = world.machine();
    let error = world.run(async { machine.tasks.spawn(async move { disk.read(0, LEN).await.is_ok() }).await });
    let Err(SimError::Deadlock { stuck, .. }) = error else { panic!("{error:?}") };
    assert_eq!(stuck.len(), 2);
    assert!(stuck[1].contains("faults.rs:"), "{stuck:?}");
}

#[test]
fn an_endless_loop_is_stopped() {
    let world = SimWorld::new(1);
    world.limit_steps(1000);
    let machine = world.machine();
    let error = world.run(async {
        loop {
            machine.clock.sleep(Duration::from_nanos(1)).await;
        }
    });
    assert_eq!(error, Err::<(), _>(SimError::TooManySteps { steps: 1000 }));
}

#[test]
fn a_missing_disk_rejects_operations_and_returns_intact() {
    let (world, sim, disk) = world_with_disk();
    let machine = world.machine();
    world
        .run(async {
            fill(&disk, 0, 9).await;
            let gone = sim.lay(Fault::Gone);
            assert!(disk.read(0, LEN).await.is_err());
            assert!(machine.disks.open(Path::new("/sim/disk"), Access::ReadOnly).is_err());
            sim.lift(gone);
            assert!(reads_as(&disk, 0, 9).await);
        })
        .unwrap();
}

#[test]
fn the_nth_operation_fails_and_only_that_one() {
    let (world, sim, disk) = world_with_disk();
    world
        .run(async {
            sim.lay(Fault::FailNth { nth: 2, errno: 28 });
            for n in 0..5 {
                let result = disk.read(0, LEN).await;
                match result {
                    Err(DiskError::Os { errno, .. }) => assert_eq!((n, errno), (2, 28)),
                    other => assert!(other.is_ok() && n != 2),
                }
            }
        })
        .unwrap();
}

#[test]
fn slow_disks_take_factor_times_as_long() {
    let time = |factor| {
        let (world, sim, disk) = world_with_disk();
        sim.lay(Fault::Slow { factor });
        world.run(async { disk.read(0, LEN).await.map(drop) }).unwrap().unwrap();
        world.now_ns()
    };
    let ratio = time(100) as f64 / time(1) as f64;
    assert!((ratio - 100.0).abs() < 1.0, "{ratio}");
}

#[test]
fn power_cuts_keep_flushed_writes_and_tear_only_unflushed_ones() {
    let mut kept = 0;
    let mut lost = 0;
    let mut torn = 0;
    for seed in 0..200 {
        let world = SimWorld::new(seed);
        let sim = world.add_disk("/sim/disk", 1 << 20, 512, Timing::Chaos);
        let disk = world.machine().disks.open(Path::new("/sim/disk"), Access::ReadWrite).unwrap();
        world
            .run(async {
                fill(&disk, 0, 1).await;
                disk.flush().await.unwrap();
                fill(&disk, 8192, 2).await;
            })
            .unwrap();
        world.power_failure();
        assert!(sim.peek(0, LEN).iter().all(|b| *b == 1), "seed {seed}: flushed data survive");
        let sectors: Vec<Vec<u8>> = sim.peek(8192, LEN).chunks(512).map(<[u8]>::to_vec).collect();
        assert!(sectors.iter().all(|s| s.iter().all(|b| *b == s[0])), "seed {seed}: sectors are old or new");
        match sectors.iter().filter(|s| s[0] == 2).count() {
            0 => lost += 1,
            8 => kept += 1,
            _ => torn += 1,
        }
    }
    assert!(kept > 20 && lost > 20 && torn > 10, "{kept} kept, {lost} lost, {torn} torn");
}

#[test]
fn an_image_is_read_through_and_never_changed() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let image = folder.path().join("image");
    std::fs::write(&image, vec![5; 1 << 16]).unwrap();
    let world = SimWorld::new(1);
    let sim = world.add_image("/sim/image", &image, Timing::Nvme).unwrap();
    let machine = world.machine();
    world
        .run(async {
            let disk = machine.disks.open(Path::new("/sim/image"), Access::ReadWrite).unwrap();
            fill(&disk, 4096, 6).await;
            disk.flush().await.unwrap();
            assert!(reads_as(&disk, 0, 5).await && reads_as(&disk, 4096, 6).await);
        })
        .unwrap();
    assert_eq!((sim.stats().writes, sim.stats().flushes, sim.stats().reads), (1, 1, 2));
    assert!(std::fs::read(&image).unwrap().iter().all(|b| *b == 5));
}
