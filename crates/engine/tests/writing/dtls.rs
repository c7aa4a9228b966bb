//! DTLs: a device that was away, or refused writes, is degraded from then on, its old copies count for no redundancy, and a
//! scrub ends that. OpenZFS's zdb judges the pools before and after it.

use crate::real::{folder, import, pool_of};
use crate::{work, zdb};
use std::path::Path;
use weir_blocks::Dtl;
use weir_engine::scrub::ScanLimits;
use weir_engine::{CreateOptions, Engine, ImportOptions, Layout, NewLeaf, NewTopLevelVdev};
use weir_format::Txg;
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::dtls::Dtls;
use weir_pool::status::VdevState;
use weir_pool::{OpenOptions, Pool};
use weir_sim::{Fault, SimWorld, Timing};

const LAYOUTS: [(&str, Layout, usize); 3] =
    [("mirror", Layout::Mirror, 2), ("raidz", Layout::Raidz(1), 3), ("raidz2", Layout::Raidz(2), 4)];

async fn look(machine: &Machine, dir: &Path) -> Pool {
    Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], "tank")).await.unwrap()
}

/// Demands that this leaf alone lacks writes, those of `dtl`; all are online.
fn assert_lacks(pool: &Pool, leaf: &str, dtl: &Dtl) {
    assert_eq!(pool.state, VdevState::Online);
    for vdev in pool.tree.leaves() {
        assert_eq!(pool.states[&vdev.guid], VdevState::Online, "{}", vdev.name());
        assert_eq!(pool.dtls().get(&vdev.guid), vdev.name().ends_with(leaf).then_some(dtl), "{}", vdev.name());
    }
    assert!(pool.lost().is_empty(), "{:?}", pool.lost());
}

/// Scrubs the pool, which ends all DTLs; then the other device alone may go.
async fn assert_scrubbed(machine: &Machine, dir: &Path, gone: &Path) {
    let engine = import(machine, dir).await.unwrap();
    engine.scrubs().start().await.unwrap();
    let done = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap().unwrap();
    assert!(done.is_finished() && done.scan.errors == 0 && done.scan.processed_bytes > 100_000, "{done:?}");
    let view = engine.synced().view(&OpenOptions::new(vec![dir.to_owned()], "tank")).await.unwrap();
    assert_eq!((view.state, view.dtls()), (VdevState::Online, Dtls::new()), "while it is open");
    drop(view);
    engine.stop().await.unwrap();
    let pool = look(machine, dir).await;
    assert_eq!((pool.state, pool.dtls()), (VdevState::Online, Dtls::new()));
    drop(pool);
    zdb::assert_clean(dir, "tank");
    zdb::assert_counted(dir, "tank");
    std::fs::remove_file(gone).unwrap();
    work::assert_pool_clean(machine, dir, "tank").await;
}

/// Writes in several txgs, and leaves the pool as one that is in use.
async fn write(machine: &Machine, dir: &Path) {
    let engine = import(machine, dir).await.unwrap();
    for seed in 0..3 {
        work::write_object(&engine, "tank", 100, seed).await.unwrap();
        engine.sync().await.unwrap();
    }
    engine.stop().await.unwrap();
}

/// The pool's state after a device was away, and after a restart with it; without another one, what the two do not have is
/// named and not read; a scrub makes the pool whole.
#[test]
fn a_dtl_of_a_device_that_was_away_lasts_until_a_scrub() {
    for (name, layout, count) in LAYOUTS {
        let dir = folder(&format!("dtl-{name}"));
        let machine = weir_linux::machine().unwrap();
        let there = dir.join("a1");
        let away = dir.with_extension("away");
        let other = dir.join("a0");
        let hidden = dir.with_extension("hidden");
        machine.block_on(async {
            let engine = Engine::create(&machine, &pool_of(&dir, layout, count)).await.unwrap();
            work::history(&engine, &|_| ()).await.unwrap();
            engine.stop().await.unwrap();
            let before = look(&machine, &dir).await.uberblock.txg;
            std::fs::rename(&there, &away).unwrap();
            write(&machine, &dir).await;
            let last = {
                let pool = look(&machine, &dir).await;
                assert_eq!(pool.state, VdevState::Degraded);
                pool.uberblock.txg
            };
            std::fs::rename(&away, &there).unwrap();
            zdb::assert_clean(&dir, "tank");
            zdb::assert_counted(&dir, "tank");
            let dtl = look(&machine, &dir).await.dtls().into_values().next().unwrap();
            assert!(dtl.ranges().len() == 1 && dtl.max() == Some(last) && dtl.ranges()[0].0 > before, "{dtl} {last}");
            assert!(dtl.ranges()[0].0.0 <= before.0 + 2, "{dtl} after {before}");
            assert_lacks(&look(&machine, &dir).await, "a1", &dtl);
            // A restart writes all labels anew: the DTL is not forgotten with the old ones.
            let engine = import(&machine, &dir).await.unwrap();
            let view = engine.synced().view(&OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
            assert_lacks(&view, "a1", &dtl);
            drop(view);
            engine.stop().await.unwrap();
            assert_lacks(&look(&machine, &dir).await, "a1", &dtl);
            zdb::assert_clean(&dir, "tank");

            std::fs::rename(&other, &hidden).unwrap();
            match Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await {
                Ok(pool) if layout == Layout::Raidz(2) => {
                    assert_eq!((pool.state, pool.lost()), (VdevState::Degraded, Vec::new()));
                    drop(pool);
                    work::assert_pool_clean(&machine, &dir, "tank").await;
                }
                Ok(pool) => {
                    assert_eq!(pool.state, VdevState::Degraded);
                    let lost = pool.lost();
                    assert!(lost.len() == 1 && lost[0].ends_with(&format!("the blocks of {dtl}")), "{lost:?}");
                    let report = weir_pool::verify::verify_pool(&pool, &Request::internal("test")).await.unwrap();
                    assert!(!report.unreadable.is_empty(), "old bytes passed for new ones");
                }
                Err(error) => assert!(layout != Layout::Raidz(2), "{error}"),
            }
            std::fs::rename(&hidden, &other).unwrap();
            assert_scrubbed(&machine, &dir, &other).await;
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

/// A device that comes back as it was, while the MOS knows of no DTL: its labels show what it lacks, and the next import
/// writes that down.
#[test]
fn a_dtl_is_made_from_old_labels_where_the_mos_has_none() {
    for (name, layout, count) in LAYOUTS {
        let dir = folder(&format!("dtl-labels-{name}"));
        let machine = weir_linux::machine().unwrap();
        let there = dir.join("a1");
        let old = dir.with_extension("old");
        machine.block_on(async {
            let engine = Engine::create(&machine, &pool_of(&dir, layout, count)).await.unwrap();
            work::history(&engine, &|_| ()).await.unwrap();
            engine.export().await.unwrap();
            let before = look(&machine, &dir).await.uberblock.txg;
            std::fs::copy(&there, &old).unwrap();
            write(&machine, &dir).await;
            std::fs::rename(&old, &there).unwrap();
            let pool = look(&machine, &dir).await;
            assert!(pool.tree.leaves().iter().all(|leaf| leaf.dtl_object == 0), "the MOS knows of no DTL");
            let dtl: Dtl = vec![(Txg(before.0 + 1), pool.uberblock.txg)].into();
            assert_lacks(&pool, "a1", &dtl);
            drop(pool);
            import(&machine, &dir).await.unwrap().stop().await.unwrap();
            let pool = look(&machine, &dir).await;
            assert_lacks(&pool, "a1", &dtl);
            assert_eq!(pool.tree.leaves().iter().filter(|leaf| leaf.dtl_object != 0).count(), 1);
            drop(pool);
            zdb::assert_clean(&dir, "tank");
            zdb::assert_counted(&dir, "tank");
            assert_scrubbed(&machine, &dir, &dir.join("a0")).await;
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }
}

/// A side of a mirror that refuses writes while the pool is open is degraded at once, and still after a restart.
#[test]
fn a_dtl_of_a_side_that_refused_writes_is_kept_over_a_restart() {
    const SEARCH: &str = "/sim";
    let world = SimWorld::new(11);
    let disks: Vec<_> = (0..2).map(|i| world.add_disk(format!("{SEARCH}/a{i}"), 64 << 20, 512, Timing::Nvme)).collect();
    let leaves = disks.iter().map(|disk| NewLeaf { path: disk.path().to_owned(), is_file: true }).collect();
    let top = NewTopLevelVdev { class: Class::Normal, layout: Layout::Mirror, leaves };
    let mut options = CreateOptions::new("tank", vec![top]);
    options.arc_bytes = 16 << 20;
    options.force = true;
    let open = OpenOptions::new(vec![SEARCH.into()], "tank");
    let machine = world.machine();
    let run = world.run(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        engine.sync().await.unwrap();
        let gone = disks[1].lay(Fault::Gone);
        work::write_object(&engine, "tank", 100, 1).await.unwrap();
        engine.sync().await.unwrap();
        disks[1].lift(gone);
        work::write_object(&engine, "tank", 10, 2).await.unwrap();
        engine.sync().await.unwrap();
        let view = engine.synced().view(&open).await.unwrap();
        let dtl = view.dtls().into_values().next().unwrap();
        assert_lacks(&view, "a1", &dtl);
        drop(view);
        engine.stop().await.unwrap();
        let pool = Pool::open(&machine, &open).await.unwrap();
        assert_eq!(pool.state, VdevState::Online);
        let after = pool.dtls().into_values().next().unwrap();
        assert!(!after.clone().add_all(&dtl), "{after} lacks some of {dtl}");
        drop(pool);
        let engine = Engine::import(&machine, &ImportOptions::new(open.clone())).await.unwrap();
        engine.scrubs().start().await.unwrap();
        let done = engine.scrubs().run(&ScanLimits::default(), &mut |_| true).await.unwrap().unwrap();
        assert!(done.is_finished() && done.scan.errors == 0, "{done:?}");
        engine.stop().await.unwrap();
        let pool = Pool::open(&machine, &open).await.unwrap();
        assert_eq!((pool.state, pool.dtls()), (VdevState::Online, Dtls::new()));
        // What is known to be old on a device is no new fault.
        assert!(pool.blocks.tree().health().iter().all(|leaf| leaf.counts.checksum_errors == 0));
    });
    run.unwrap();
}
