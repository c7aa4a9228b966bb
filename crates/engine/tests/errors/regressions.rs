//! Regression tests: single errors that must not break a promise.

use crate::acknowledged_state::{Known, Slot, UNIT, bytes_of};
use crate::history::Prepared;
use crate::judge::judge;
use crate::world::{FILES, SHAPES, Shape, import, make_file};
use bytes::Bytes;
use std::sync::Arc;
use weir_engine::Engine;
use weir_files::{Cred, FileSystem, WriteAt};
use weir_machine::Request;
use weir_sim::{ErrorPlan, Fault, SimWorld};

/// Bytes before the space that a pool allocates.
const FRONT_BYTES: u64 = 4 << 20;

fn shape(name: &str) -> Shape {
    SHAPES.into_iter().find(|shape| shape.name == name).unwrap()
}

async fn open(world: &SimWorld) -> (Arc<Engine>, Arc<FileSystem>) {
    let engine = import(&world.machine()).await.unwrap();
    let files = engine.file_system(&Request::internal("test"), FILES).await.unwrap();
    (engine, files)
}

/// Creates a file of `units` units and commits it.
async fn make_stable(files: &FileSystem, known: &mut Known, name: &str, units: usize) {
    let rq = Request::internal("test");
    let version = 50 + known.files.len() as u64;
    let file = make_file(files, name).await.unwrap();
    let data: Vec<u8> = (0..units).flat_map(|unit| bytes_of(version, unit)).collect();
    files.contents().write(&rq, &Cred::root(), file, WriteAt::Offset(0), Bytes::from(data)).await.unwrap();
    files.sync(&rq, Some(file)).await.unwrap();
    known.names.insert(name.into(), Slot::new(Some(known.files.len())));
    known.files.push(vec![Slot::new(version); units]);
}

/// One side of a mirror failed the writes of the log, and the other side fails reads when the log is claimed. The import
/// is refused, and the log is complete when that side can be read again.
#[test]
fn a_log_is_not_cut_short_by_read_errors_of_its_only_good_copy() {
    // The log holds the data of short writes, and block pointers to the data of long writes.
    for units in [1, 12] {
        let (world, mut known) = Prepared::new(shape("mirror")).world(units as u64);
        let run = world.run(async {
            let (_engine, files) = open(&world).await;
            make_stable(&files, &mut known, "before", 1).await;
            world.inject_errors(ErrorPlan::Random { disks: vec![0], reads: 0, writes: 1000, flushes: 0 });
            make_stable(&files, &mut known, "after", units).await;
        });
        run.unwrap();
        world.power_failure();
        assert!(world.lift_errors().writes > 0);
        let disk = world.disks().swap_remove(1);
        disk.lay(Fault::Unreadable { offset: FRONT_BYTES, len: 59 << 20 });
        let refused = world.run(async { import(&world.machine()).await.map(drop).unwrap_err().to_string() }).unwrap();
        assert!(refused.contains("d1"), "{refused}");
        world.power_failure();
        disk.lift_all();
        world.run(judge(&world.machine(), &known)).unwrap().unwrap();
    }
}

/// A disk that failed the write of one copy of a block has a DTL. New blocks are allocated on it nevertheless, because it
/// is a top-level vdev without redundancy.
#[test]
fn space_is_allocated_on_a_top_level_disk_with_a_dtl_after_an_import() {
    let (world, mut known) = Prepared::new(shape("stripe")).world(1);
    let machine = world.machine();
    let run = world.run(async {
        let (engine, _files) = open(&world).await;
        engine.sync().await.unwrap();
        // A txg of the MOS alone, whose blocks have copies on both disks.
        world.disks()[1].lay(Fault::FailNth { nth: 0, errno: 5 });
        engine.snapshot(vec![format!("{FILES}@before")], Vec::new()).await.unwrap();
        assert_eq!(engine.cache.blocks().tree().dtls().len(), 1, "the write of a copy failed");
        engine.export().await.unwrap();
        let (engine, files) = open(&world).await;
        let allocated = |vdev| engine.cache.blocks().vdev_space(vdev).allocated_bytes;
        let before = allocated(1);
        for n in 0..40 {
            make_stable(&files, &mut known, &format!("file-{n}"), 24).await;
        }
        engine.sync().await.unwrap();
        assert!(allocated(1) > before + 40 * 6 * UNIT as u64, "{before} bytes, then {}", allocated(1));
        engine.export().await.unwrap();
        judge(&machine, &known).await
    });
    run.unwrap().unwrap();
}
