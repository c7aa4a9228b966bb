//! Sequential rebuilds: a new device of a mirror or dRAID vdev alone has everything, in the places of the others; also after an
//! interruption, and while the pool is written to.

use crate::attach::{blank, guid, request, shape};
use crate::real::{folder, import, pool_of};
use crate::resilver::look;
use crate::{work, zdb};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_engine::create::DraidRequest;
use weir_engine::resilver::ResilverWatch;
use weir_engine::{Activity, DirtyLimits, Engine, ImportOptions, Layout, NewLeaf, rebuild};
use weir_format::dsl::{RebuildPhys, RebuildState};
use weir_format::features::Feature;
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool};

/// Two data devices per group, and two distributed spares.
const DRAID: Layout = Layout::Draid(DraidRequest { parity: 1, data: Some(2), children: None, spares: 2 });

/// The devices of the first group of a dRAID vdev, where the blocks of a small pool are, and the one that has the space of the first
/// distributed spare in that row.
pub fn first_group(ndata: u64, nparity: u64, nspares: u64, children: u64) -> (Vec<usize>, usize) {
    // Any number of groups that fills a slice.
    let ngroups = children - nspares;
    let layout = weir_blocks::draid::Layout { ndata, nparity, nspares, ngroups, children, width: children };
    let map = weir_blocks::draid::Map::new(layout, 12).unwrap();
    let columns = map.rows(0, 4096 * ndata).remove(0).columns;
    (columns.into_iter().map(|column| column.child).collect(), map.spare_child(0, 0).unwrap())
}

/// Imports the pool with a limit of bytes of a pass, so that there are several.
async fn import_slow(machine: &Machine, dir: &Path) -> Arc<Engine> {
    let mut options = ImportOptions::new(OpenOptions::new(vec![dir.to_owned()], "tank"));
    options.dirty = DirtyLimits { rebuilt_bytes: 64 << 10, ..DirtyLimits::default() };
    Engine::import(machine, &options).await.unwrap()
}

/// The record of the first vdev's rebuild.
async fn record(pool: &Pool) -> RebuildPhys {
    let rq = &Request::internal("test");
    weir_pool::rebuild::of_top(rq, &pool.mos, &pool.tree.children[0]).await.unwrap().unwrap_or_default()
}

fn feature_count(pool: &Pool) -> Option<u64> {
    pool.features.count(Feature::DEVICE_REBUILD.guid)
}

/// A rebuild is complete, and a scrub verifies it.
async fn scrub(engine: &Engine) {
    engine.rebuilds().wait().await.unwrap();
    engine.spares().finish_replacing().await.unwrap();
    assert!(engine.cache.blocks().tree().dtls().is_empty());
    let done = engine.scrubs().run(&Default::default(), &mut |_| true).await.unwrap().unwrap();
    assert!(done.is_finished() && !done.is_resilver() && done.scan.errors == 0, "{done:?}");
    let health = engine.cache.blocks().tree().health();
    assert!(health.iter().all(|leaf| leaf.counts.checksum_errors == 0), "{health:?}");
}

#[test]
fn a_device_that_is_attached_sequentially_has_everything_alone() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("rebuild-attach");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.sync().await.unwrap();
        let new = blank(&dir, "b0", 96);
        rebuild::attach(&engine, &request(&engine, "a0", new, false)).await.unwrap();
        work::write_object(&engine, "tank", 20, 3).await.unwrap();
        engine.rebuilds().wait().await.unwrap();
        // The copies themselves are right, before a scrub could repair them.
        engine.stop().await.unwrap();
        let pool = look(&machine, &dir).await;
        let done = record(&pool).await;
        assert!(pool.dtls().is_empty());
        assert_eq!((done.state, done.errors, feature_count(&pool)), (RebuildState::Complete, 0, Some(0)), "{done:?}");
        assert!(done.rebuilt_bytes > 0 && done.rebuilt_bytes == done.issued_bytes, "{done:?}");
        assert!(done.end_time_s >= done.start_time_s && done.estimated_bytes >= done.scanned_bytes, "{done:?}");
        drop(pool);
        let away = dir.with_extension("away");
        std::fs::rename(dir.join("a0"), &away).unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        std::fs::rename(&away, dir.join("a0")).unwrap();
        zdb::assert_clean(&dir, "tank");
        zdb::assert_counted(&dir, "tank");
        let engine = import(&machine, &dir).await.unwrap();
        scrub(&engine).await;
        engine.vdevs().detach(guid(&engine, "a0")).await.unwrap();
        engine.stop().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// The end of a rebuild begins a scrub in syncing context. A process that looks for it before the txg has synced finds it later.
#[test]
fn the_scrub_that_follows_a_rebuild_is_carried_out() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("rebuild-scrub");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.sync().await.unwrap();
        rebuild::attach(&engine, &request(&engine, "a0", blank(&dir, "b0", 96), false)).await.unwrap();
        let mut watch = ResilverWatch::default();
        let mut looks = 0;
        while !engine.scrubs().keep_resilvered(&mut watch).await.unwrap() {
            looks += 1;
            assert!(looks < 300_000, "no scrub begins");
            machine.clock.sleep(Duration::from_micros(100)).await;
        }
        let rq = &Request::internal("test");
        assert!(!engine.rebuilds().is_unfinished(rq).await.unwrap(), "the end of the rebuild has not synced");
        let done = engine.scrubs().run(&Default::default(), &mut |_| true).await.unwrap().expect("a scrub has begun");
        assert!(done.is_finished() && !done.is_resilver() && done.scan.errors == 0, "{done:?}");
        engine.stop().await.unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

#[test]
fn a_device_that_is_replaced_sequentially_leaves() {
    let machine = weir_linux::machine().unwrap();
    for (name, layout, count) in [("mirror", Layout::Mirror, 2), ("draid", DRAID, 6)] {
        machine.block_on(async {
            let dir = folder(&format!("rebuild-{name}"));
            let engine = Engine::create(&machine, &pool_of(&dir, layout, count)).await.unwrap();
            work::history(&engine, &|_| ()).await.unwrap();
            engine.stop().await.unwrap();
            std::fs::remove_file(dir.join("a1")).unwrap();
            let engine = import(&machine, &dir).await.unwrap();
            let new = blank(&dir, "b1", 96);
            rebuild::attach(&engine, &request(&engine, "a1", new, true)).await.unwrap();
            work::write_object(&engine, "tank", 40, 4).await.unwrap();
            scrub(&engine).await;
            assert!(!shape(&engine).contains("replacing"), "{}", shape(&engine));
            engine.stop().await.unwrap();
            zdb::assert_clean(&dir, "tank");
            zdb::assert_counted(&dir, "tank");
            std::fs::remove_file(dir.join("a0")).unwrap();
            work::assert_pool_clean(&machine, &dir, "tank").await;
            std::fs::remove_dir_all(&dir).unwrap();
        });
    }
}

/// A distributed spare is rebuilt, then another device is lost.
#[test]
fn a_distributed_spare_is_rebuilt_sequentially() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("rebuild-dspare");
        let engine = Engine::create(&machine, &pool_of(&dir, DRAID, 6)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.stop().await.unwrap();
        let (group, _) = first_group(2, 1, 2, 6);
        let replaced = format!("a{}", group[0]);
        std::fs::remove_file(dir.join(&replaced)).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        let spares = engine.shown().config.aux.spares;
        let path = spares.first().and_then(|spare| spare.get_str("path")).unwrap().to_owned();
        let spare = NewLeaf { path: path.into(), is_file: false };
        rebuild::attach(&engine, &request(&engine, &replaced, spare, true)).await.unwrap();
        engine.rebuilds().wait().await.unwrap();
        engine.stop().await.unwrap();
        let done = record(&look(&machine, &dir).await).await;
        assert!(done.rebuilt_bytes > 0 && done.errors == 0, "{done:?}");
        std::fs::remove_file(dir.join(format!("a{}", group[1]))).unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        zdb::assert_clean(&dir, "tank");
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// A part of the spare's space is on a device that is away: what was not written there is resilvered when it is back.
#[test]
fn a_distributed_spare_on_a_device_that_is_away_does_not_count_as_rebuilt() {
    let machine = weir_linux::machine().unwrap();
    let layout = Layout::Draid(DraidRequest { parity: 2, data: Some(2), children: None, spares: 1 });
    machine.block_on(async {
        let dir = folder("rebuild-dspare-away");
        let engine = Engine::create(&machine, &pool_of(&dir, layout, 6)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        work::write_object(&engine, "tank", 300, 5).await.unwrap();
        engine.stop().await.unwrap();
        let away = dir.with_extension("away");
        let (group, host) = first_group(2, 2, 1, 6);
        let replaced = format!("a{}", group[0]);
        let host = dir.join(format!("a{host}"));
        std::fs::remove_file(dir.join(&replaced)).unwrap();
        std::fs::rename(&host, &away).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        let path = engine.shown().config.aux.spares[0].get_str("path").unwrap().to_owned();
        let spare = NewLeaf { path: path.into(), is_file: false };
        rebuild::attach(&engine, &request(&engine, &replaced, spare, true)).await.unwrap();
        engine.rebuilds().wait().await.unwrap();
        engine.stop().await.unwrap();
        let pool = look(&machine, &dir).await;
        let done = record(&pool).await;
        assert!(done.state == RebuildState::Complete && done.errors > 0, "{done:?}");
        let spare = pool.tree.leaves().into_iter().find(|leaf| leaf.is_spare).unwrap().guid;
        assert!(pool.dtls().contains_key(&spare));
        drop(pool);
        std::fs::rename(&away, &host).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
        crate::resilver::run(&engine, &Default::default()).await;
        engine.stop().await.unwrap();
        for lost in &group[1..3] {
            std::fs::remove_file(dir.join(format!("a{lost}"))).unwrap();
        }
        work::assert_pool_clean(&machine, &dir, "tank").await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

#[test]
fn a_rebuild_that_was_interrupted_goes_on_at_its_position() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("rebuild-interrupted");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Mirror, 2)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        work::write_object(&engine, "tank", 300, 5).await.unwrap();
        engine.stop().await.unwrap();
        let engine = import_slow(&machine, &dir).await;
        let new = blank(&dir, "b0", 96);
        rebuild::attach(&engine, &request(&engine, "a0", new, false)).await.unwrap();
        let rq = &Request::internal("test");
        assert!(engine.synced().activities(rq).await.unwrap().contains(&Activity::Resilver));
        assert!(engine.rebuilds().left_bytes().await.unwrap() > 0);
        let why = |result: Result<(), weir_pool::PoolError>| result.unwrap_err().to_string();
        assert!(why(engine.scrubs().start().await).contains("currently sequentially resilvering"));
        assert!(!engine.scrubs().start_resilver(true).await.unwrap(), "it waits for the rebuild");
        let healing = request(&engine, "a0", blank(&dir, "c0", 96), false);
        assert!(why(engine.vdevs().attach(&healing).await).contains("currently sequentially resilvering"));
        std::fs::remove_file(dir.join("c0")).unwrap();
        for _ in 0..3 {
            engine.sync_always().await.unwrap();
        }
        engine.stop().await.unwrap();
        let pool = look(&machine, &dir).await;
        let before = record(&pool).await;
        assert_eq!((before.state, feature_count(&pool)), (RebuildState::Active, Some(1)), "{before:?}");
        assert!(before.last_offset_bytes > 0 && before.scanned_bytes < before.estimated_bytes, "{before:?}");
        drop(pool);
        zdb::assert_clean(&dir, "tank");
        let engine = import(&machine, &dir).await.unwrap();
        engine.rebuilds().wait().await.unwrap();
        engine.stop().await.unwrap();
        let done = record(&look(&machine, &dir).await).await;
        assert_eq!((done.state, done.errors), (RebuildState::Complete, 0), "{done:?}");
        assert!(done.start_time_s == before.start_time_s && done.scanned_bytes >= before.scanned_bytes, "{done:?}");
        for name in ["a0", "a1"] {
            std::fs::remove_file(dir.join(name)).unwrap();
        }
        work::assert_pool_clean(&machine, &dir, "tank").await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

#[test]
fn a_rebuild_begins_again_with_another_device_and_is_canceled_without_any() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("rebuild-changed");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        work::write_object(&engine, "tank", 300, 5).await.unwrap();
        engine.stop().await.unwrap();
        let engine = import_slow(&machine, &dir).await;
        rebuild::attach(&engine, &request(&engine, "a0", blank(&dir, "b0", 96), false)).await.unwrap();
        engine.sync_always().await.unwrap();
        engine.vdevs().detach(guid(&engine, "b0")).await.unwrap();
        engine.rebuilds().wait().await.unwrap();
        engine.sync().await.unwrap();
        assert_eq!(shape(&engine), "root[a0]");
        for name in ["c0", "d0"] {
            rebuild::attach(&engine, &request(&engine, "a0", blank(&dir, name, 96), false)).await.unwrap();
            engine.sync_always().await.unwrap();
        }
        engine.rebuilds().wait().await.unwrap();
        engine.stop().await.unwrap();
        let pool = look(&machine, &dir).await;
        let done = record(&pool).await;
        assert_eq!((done.state, done.errors, feature_count(&pool)), (RebuildState::Complete, 0, Some(0)), "{done:?}");
        assert!(pool.dtls().is_empty());
        drop(pool);
        zdb::assert_clean(&dir, "tank");
        for name in ["a0", "b0"] {
            std::fs::remove_file(dir.join(name)).unwrap();
        }
        let held = dir.with_extension("held");
        for (gone, other) in [("c0", "d0"), ("d0", "c0")] {
            assert!(dir.join(other).exists());
            std::fs::rename(dir.join(gone), &held).unwrap();
            work::assert_pool_clean(&machine, &dir, "tank").await;
            std::fs::rename(&held, dir.join(gone)).unwrap();
        }
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

#[test]
fn what_cannot_be_rebuilt_is_refused() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("rebuild-refused");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Raidz(1), 3)).await.unwrap();
        let asked = request(&engine, "a0", blank(&dir, "b0", 96), true);
        let error = rebuild::attach(&engine, &asked).await.unwrap_err().to_string();
        assert!(error.contains("only mirror and dRAID vdevs support sequential reconstruction"), "{error}");
        engine.stop().await.unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let dir = folder("rebuild-disabled");
        let mut options = pool_of(&dir, Layout::Mirror, 2);
        options.features.retain(|name| *name != "device_rebuild");
        let engine = Engine::create(&machine, &options).await.unwrap();
        let asked = request(&engine, "a0", blank(&dir, "b0", 96), false);
        let error = rebuild::attach(&engine, &asked).await.unwrap_err().to_string();
        assert!(error.contains("device_rebuild feature must be enabled"), "{error}");
        // A resilver excludes a rebuild.
        engine.stop().await.unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
        let dir = folder("rebuild-resilvering");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Mirror, 2)).await.unwrap();
        engine.vdevs().attach(&request(&engine, "a0", blank(&dir, "b0", 96), false)).await.unwrap();
        let asked = request(&engine, "a0", blank(&dir, "c0", 96), false);
        let error = rebuild::attach(&engine, &asked).await.unwrap_err().to_string();
        assert!(error.contains("currently resilvering"), "{error}");
        engine.stop().await.unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    });
}
