//! Logs on missing devices.

use crate::world::{HOME, Shape, assert_pool_clean, create, import, make, opening, world};
use std::sync::Arc;
use std::time::Duration;
use weir_engine::{Engine, ImportOptions, Layout};
use weir_files::{FileError, FileSystem};
use weir_machine::Request;
use weir_sim::{Fault, SimDisk, SimWorld};

const SHAPE: Shape = Shape { layout: Layout::Mirror, devices: 2, log: true };
const LATE: usize = 9;

async fn has(files: &Arc<FileSystem>, name: &str) -> bool {
    let rq = Request::internal("test");
    match files.directories().lookup(&rq, files.root(), name.as_bytes()).await {
        Ok(file) => files.contents().read(&rq, file, 0, 1 << 20).await.unwrap() == name.repeat(1000),
        Err(error) => {
            assert_eq!(error, FileError::NotFound);
            false
        }
    }
}

/// Pool whose log device is missing after a power failure and failed imports. Returns the log device, too.
fn without_log_device(seed: u64) -> (SimWorld, Arc<SimDisk>) {
    let world = world(seed, SHAPE);
    let machine = world.machine();
    let first = world.run(async {
        let (engine, files) = create(&machine, SHAPE).await.unwrap();
        make(&files, "early").await;
        engine.sync().await.unwrap();
        for n in 0..LATE {
            make(&files, &format!("late-{n}")).await;
        }
    });
    first.unwrap();
    world.power_failure();
    let disk = world.disks().into_iter().find(|disk| disk.path().ends_with("d2")).unwrap();
    disk.lay(Fault::Gone);
    for _ in 0..3 {
        let machine = world.machine();
        let away = world.run(async {
            import(&machine).await.unwrap_err();
            // Tasks of the failed import have time to end.
            machine.clock.sleep(Duration::from_secs(20)).await;
        });
        away.unwrap();
        world.power_failure();
    }
    (world, disk)
}

/// The log is neither discarded nor claimed in part: the pool is not imported until the device is back.
#[test]
fn a_log_waits_for_its_device() {
    let (world, disk) = without_log_device(6);
    disk.lift_all();
    let machine = world.machine();
    let back = world.run(async {
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        assert!(has(&files, "early").await);
        for n in 0..LATE {
            assert!(has(&files, &format!("late-{n}")).await, "late-{n} was acknowledged as stable");
        }
        engine.export().await.unwrap();
        assert_pool_clean(&machine, "after replay").await;
    });
    back.unwrap();
}

/// With `zpool import -m` the log is discarded, and the pool has the state of the last synced txg.
#[test]
fn a_log_is_discarded_on_request() {
    let (world, disk) = without_log_device(7);
    let machine = world.machine();
    let alone = world.run(async {
        let mut options = ImportOptions::new(opening());
        options.without_logs = true;
        let engine = Engine::import(&machine, &options).await.unwrap();
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        assert!(has(&files, "early").await && !has(&files, "late-0").await);
        make(&files, "new").await;
        engine.stop().await.unwrap();
        // Later imports need no option, and the device may come back.
        let engine = import(&machine).await.unwrap();
        engine.stop().await.unwrap();
        disk.lift_all();
        let engine = import(&machine).await.unwrap();
        let files = engine.file_system(&Request::internal("test"), HOME).await.unwrap();
        assert!(has(&files, "early").await && has(&files, "new").await && !has(&files, "late-0").await);
        engine.export().await.unwrap();
        let pool = crate::world::open(&machine).await;
        let report = weir_pool::verify::verify_pool(&pool, &Request::internal("test")).await.unwrap();
        assert!(report.unreadable.is_empty() && report.clashes.is_empty());
    });
    alone.unwrap();
}
