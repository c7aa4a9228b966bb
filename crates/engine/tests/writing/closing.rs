//! Exports: operations in progress end before another process may have the devices. Pools that cannot
//! be imported, or have unreadable parts, are left unchanged.

use crate::real::{folder, import, pool_of};
use crate::scrub::destroy_block;
use crate::stuck::{self, Bad};
use crate::{work, zdb};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_dmu::ObjectError;
use weir_dmu::live::SpaceReserve;
use weir_dsl::sync_tasks::DslError;
use weir_engine::create::PoolValue;
use weir_engine::scrub::ScanLimits;
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_engine::{ImportOptions, TxgSync};
use weir_format::dsl::pool as names;
use weir_format::{DslDir, Endian, ObjectId, ObjectType, Txg};
use weir_machine::Request;
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError};
use weir_sim::{Fault, SimDisk, SimWorld, Timing};

const SEARCH: &str = "/sim";
/// State in the labels of an exported pool.
const EXPORTED: u8 = 1;

fn one_disk(world: &SimWorld) -> (Arc<SimDisk>, CreateOptions) {
    let disk = world.add_disk(format!("{SEARCH}/d0"), 64 << 20, 512, Timing::Nvme);
    let leaf = NewLeaf { path: disk.path().to_owned(), is_file: true };
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Single, leaves: vec![leaf] };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    options.force = true;
    (disk, options)
}

/// Whether the first label says that the pool is exported.
fn is_free(disk: &SimDisk) -> bool {
    let label = disk.peek(16 << 10, 16 << 10);
    let name = [0, 0, 0, 5, b's', b't', b'a', b't', b'e', 0, 0, 0];
    let at = label.windows(name.len()).position(|bytes| bytes == name);
    // Behind the name: type, count, the value's eight bytes.
    at.is_some_and(|at| label[at + name.len() + 15] == EXPORTED)
}

#[test]
fn changes_that_no_others_follow_are_synced_within_a_second() {
    let world = SimWorld::new(11);
    let (_disk, options) = one_disk(&world);
    let machine = world.machine();
    let run = world.run(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        for syncs_when_idle in [false, true] {
            if syncs_when_idle {
                engine.sync_when_idle();
            }
            engine.txgs().wait_synced(engine.txgs().open()).await.unwrap();
            let written = engine.txgs().open();
            work::write_object(&engine, "tank", 2, 1).await.unwrap();
            machine.clock.sleep(Duration::from_millis(1_200)).await;
            assert_eq!(engine.txgs().last_synced() >= written, syncs_when_idle);
        }
        // While changes follow each other, a txg takes them all for its whole time.
        let written = engine.txgs().open();
        let begun = machine.clock.now();
        while engine.txgs().last_synced() < written {
            work::write_object(&engine, "tank", 2, 1).await.unwrap();
            machine.clock.sleep(Duration::from_millis(100)).await;
        }
        let synced_after = machine.clock.now().since(begun);
        assert!((4_500..5_500).contains(&synced_after.as_millis()), "after {synced_after:?}");
        // Without changes, no txg is synced before its time.
        engine.txgs().wait_synced(engine.txgs().open()).await.unwrap();
        let synced = engine.txgs().last_synced();
        machine.clock.sleep(Duration::from_secs(4)).await;
        assert_eq!(engine.txgs().last_synced(), synced);
        engine.stop().await.unwrap();
    });
    run.unwrap();
}

/// In whatever txg a pool is exported, no discard comes after the label with the exported state.
#[test]
fn nothing_is_trimmed_after_the_pool_is_exported() {
    let world = SimWorld::new(5);
    let (disk, mut options) = one_disk(&world);
    options.properties = vec![("autotrim".into(), PoolValue::Number(1))];
    let machine = world.machine();
    let rq = &Request::internal("test");
    let run = world.run(async {
        // The few metaslabs have their turns in the 33rd group and those after.
        for more in 24..36 {
            let engine = Engine::create(&machine, &options).await.unwrap();
            let mut ids = Vec::new();
            for n in 0..12 {
                ids.push(work::write_object(&engine, "tank", 64, n).await.unwrap());
            }
            engine.sync().await.unwrap();
            let set = engine.open_set(rq, "tank", None).await.unwrap();
            for id in ids {
                let tx = set.begin(rq, 16 << 10, SpaceReserve::NetFree).await.unwrap();
                set.frees().remove(rq, &tx, ObjectId(id)).await.unwrap();
            }
            engine.sync().await.unwrap();
            for n in 0..more {
                work::write_object(&engine, "tank", 2, n).await.unwrap();
                engine.sync().await.unwrap();
            }
            let clock = machine.clock.clone();
            let watched = disk.clone();
            let watch = machine.tasks.spawn(async move {
                while !is_free(&watched) {
                    clock.sleep(Duration::from_micros(1)).await;
                }
                watched.stats().discards
            });
            engine.export().await.unwrap();
            machine.clock.sleep(Duration::from_millis(10)).await;
            assert_eq!(watch.await.unwrap(), disk.stats().discards, "{more} groups later");
        }
        disk.stats().discards
    });
    assert!(run.unwrap() > 0, "something was trimmed");
}

/// Whatever operation fails during an import: when the error is returned, no task has the disks open.
#[test]
fn a_pool_that_cannot_be_opened_is_let_go() {
    let world = SimWorld::new(6);
    let (disk, options) = one_disk(&world);
    let machine = world.machine();
    let how = ImportOptions::new(OpenOptions::new(vec![SEARCH.into()], "tank"));
    let run = world.run(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.export().await.unwrap();
        drop(engine);
        let holders = Arc::strong_count(&disk);
        let mut late = 0;
        let operations = || disk.stats().reads + disk.stats().changes();
        let before = operations();
        let engine = Engine::import(&machine, &how).await.unwrap();
        let all = operations() - before;
        engine.export().await.unwrap();
        drop(engine);
        // The first group is the last that happens.
        for nth in (0..all).filter(|nth| nth % 64 == 0 || nth + 50 > all) {
            disk.lay(Fault::FailNth { nth, errno: 5 });
            let opened = Engine::import(&machine, &how).await;
            disk.lift_all();
            match opened {
                Err(error) => {
                    assert_eq!(Arc::strong_count(&disk), holders, "operation {nth}: {error}");
                    late += u64::from(matches!(error, PoolError::Suspended { .. }));
                }
                Ok(engine) => {
                    let _suspended = engine.export().await;
                    drop(engine);
                    assert_eq!(Arc::strong_count(&disk), holders, "operation {nth}");
                }
            }
        }
        work::assert_pool_clean(&machine, Path::new(SEARCH), "tank").await;
        late
    });
    assert!(run.unwrap() > 0, "some failed in the first group");
}

/// A scrub replaces the log of errors of the one before, whether or not that can be read.
#[test]
fn a_log_of_errors_that_is_lost_stops_no_scrub() {
    let dir = folder("errlog");
    let machine = weir_linux::machine().unwrap();
    let mut options = pool_of(&dir, Layout::Single, 1);
    // So that the log has a block of its own.
    options.features.retain(|feature| feature != "embedded_data");
    let rq = &Request::internal("test");
    let scrub = async || {
        let engine = import(&machine, &dir).await.unwrap();
        engine.scrubs().start().await.unwrap();
        let done = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap().unwrap();
        assert!(done.is_finished(), "{done:?}");
        engine.sync().await.expect("the pool goes on");
        engine.export().await.unwrap();
        done.scan.errors
    };
    let open = async || Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        work::write_object(&engine, "tank", 4, 77).await.unwrap();
        engine.export().await.unwrap();
        destroy_block(&dir.join("a0"), &work::contents(77, 0));
        assert_eq!(scrub().await, 1);
        let pool = open().await;
        let log = pool.mos.named(rq, names::ERRLOG_LAST).await.unwrap().unwrap();
        let pointer = pool.mos.set.object(rq, log).await.unwrap().dnode.block_pointers[0];
        drop(pool);
        stuck::spoil(&dir, &pointer);
        let errors = weir_pool::errlog::errors(&open().await, rq).await.unwrap();
        assert!(errors.count == 0 && errors.lost.is_some(), "{errors:?}");
        // The log is one of what it finds.
        assert_eq!(scrub().await, 2);
        let errors = weir_pool::errlog::errors(&open().await, rq).await.unwrap();
        assert!(errors.count == 2 && errors.lost.is_none(), "{errors:?}");
        assert_eq!(scrub().await, 1, "and it is gone");
        assert_eq!(weir_pool::errlog::errors(&open().await, rq).await.unwrap().count, 1);
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Where destroyed datasets are freed at once, a dataset with unreadable indirect blocks is not destroyed.
#[test]
fn what_cannot_be_freed_at_once_stays() {
    let dir = folder("at-once");
    let machine = weir_linux::machine().unwrap();
    let mut options = pool_of(&dir, Layout::Single, 1);
    options.features.retain(|feature| feature != "async_destroy");
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        let (files, file) = stuck::make(&engine, "tank/first").await;
        let pointer = stuck::pointer_of(&files, file, Bad::Pointers).await;
        drop(files);
        engine.snapshot(vec!["tank@s".into()], Vec::new()).await.unwrap();
        engine.export().await.unwrap();
        stuck::spoil(&dir, &pointer);
        let engine = import(&machine, &dir).await.unwrap();
        let refused = engine.destroy_dataset("tank/first".into()).await;
        assert!(matches!(refused, Err(PoolError::Dsl(DslError::Object(ObjectError::Block { .. })))), "{refused:?}");
        engine.sync().await.expect("the pool goes on");
        assert!(engine.file_system(&Request::internal("test"), "tank/first").await.is_ok());
        engine.export().await.unwrap();
        stuck::spoil(&dir, &pointer);
        let engine = import(&machine, &dir).await.unwrap();
        engine.destroy_dataset("tank/first".into()).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Directories that contain each other: the pool can be read, and is not opened for writing.
#[test]
fn a_tree_that_is_none_is_not_written() {
    let dir = folder("circle");
    let machine = weir_linux::machine().unwrap();
    let rq = &Request::internal("test");
    machine.block_on(async {
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap();
        for name in ["tank/a", "tank/a/b"] {
            work::make_dataset(&engine, name).await.unwrap();
        }
        let ids = {
            let dsl = engine.synced().dsl(rq).await.unwrap();
            ["tank/a", "tank/a/b"].map(|name| dsl.dir_named(name).unwrap().id)
        };
        let forged = engine.sync_task(move |syncing: &mut TxgSync<'_>| {
            Box::pin(async move {
                let change = &syncing.change;
                let phys = DslDir { parent: ids[1], ..change.dir(ids[0]).await? };
                let kind = ObjectType::DSL_DIR;
                let bonus = phys.encode(Endian::Little);
                Ok(change.mos.changes().set_bonus(change.rq, change.tx, ids[0], kind, &bonus).await?)
            })
        });
        forged.await.unwrap();
        engine.export().await.unwrap();
        let refused = import(&machine, &dir).await.unwrap_err();
        assert!(matches!(&refused, PoolError::Refused { what } if what.contains("tank/a")), "{refused}");
        let pool = Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
        assert_eq!(pool.datasets(rq, false).await.unwrap().len(), 3);
        assert!(pool.uberblock.txg > Txg(4));
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
