//! Distributed spares of dRAID vdevs: they step in, hold what the failed device held, so that as many devices can be lost again
//! as there are parities, and step back. zdb judges each state.

use crate::attach::{assert_healthy, blank, guid, request, shape};
use crate::real::{folder, import, pool_of};
use crate::resilver::{look, run, small};
use crate::{work, zdb};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_engine::create::DraidRequest;
use weir_engine::scrub::ScanLimits;
use weir_engine::{Engine, Layout, NewLeaf, OfflineMode, SpareWatch, VdevAddRequest};
use weir_machine::Machine;
use weir_pool::status::VdevState;

/// A redundancy group that fills a row, so that every 16 MiB of a device have another permutation.
fn draid(text: &str) -> Layout {
    Layout::Draid(DraidRequest::parse(text).unwrap())
}

fn spare(name: &str) -> NewLeaf {
    NewLeaf { path: name.into(), is_file: false }
}

async fn step_in(engine: &Engine) -> Option<PathBuf> {
    engine.spares().keep_spares(&mut SpareWatch::default(), &mut |_| false).await.unwrap()
}

/// A pool whose blocks are in several rows.
async fn filled(machine: &Machine, dir: &Path, text: &str, count: usize) -> Arc<Engine> {
    let engine = Engine::create(machine, &pool_of(dir, draid(text), count)).await.unwrap();
    work::history(&engine, &|_| ()).await.unwrap();
    for seed in 0..6 {
        work::write_object(&engine, "tank", 700, seed).await.unwrap();
        engine.sync().await.unwrap();
    }
    engine
}

/// Demands that Weir and zdb can read everything without these devices.
async fn assert_readable_without(machine: &Machine, dir: &Path, names: &[&str]) {
    let away = dir.with_extension("away");
    std::fs::create_dir_all(&away).unwrap();
    names.iter().for_each(|name| std::fs::rename(dir.join(name), away.join(name)).unwrap());
    work::assert_pool_clean(machine, dir, "tank").await;
    zdb::assert_clean(dir, "tank");
    names.iter().for_each(|name| std::fs::rename(away.join(name), dir.join(name)).unwrap());
}

#[test]
fn two_distributed_spares_step_in_and_back() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("dspare-two");
        let engine = filled(&machine, &dir, "draid2:3d:2s", 7).await;
        assert_eq!(step_in(&engine).await, None, "no device failed");
        engine.vdevs().offline(guid(&engine, "a2"), OfflineMode::Faulted).await.unwrap();
        assert_eq!(step_in(&engine).await, Some("draid2-0-0".into()));
        assert_eq!(step_in(&engine).await, None, "one is enough");
        work::write_object(&engine, "tank", 300, 50).await.unwrap();
        run(&engine, &ScanLimits::default()).await;
        let one = "root[draid2:3d:7c:2s-0[a0 a1 spare-2[a2 draid2-0-0] a3 a4 a5 a6]]";
        assert_eq!(shape(&engine), one);
        engine.stop().await.unwrap();
        zdb::assert_clean(&dir, "tank");
        zdb::assert_counted(&dir, "tank");
        let pool = look(&machine, &dir).await;
        let leaves = pool.tree.leaves();
        let used = leaves.iter().find(|leaf| leaf.name() == "draid2-0-0").unwrap();
        assert_eq!((pool.state, pool.states[&used.guid]), (VdevState::Degraded, VdevState::Online));
        assert!(pool.dtls().values().count() <= 1, "only the failed device lacks blocks: {:?}", pool.dtls());
        drop(pool);
        for pair in [["a0", "a1"], ["a3", "a6"], ["a4", "a5"], ["a0", "a6"]] {
            assert_readable_without(&machine, &dir, &pair).await;
        }
        // The spare is taken out of service, and gets what it missed.
        let engine = import(&machine, &dir).await.unwrap();
        let used = guid(&engine, "draid2-0-0");
        engine.vdevs().offline(used, OfflineMode::Kept).await.unwrap();
        work::write_object(&engine, "tank", 100, 54).await.unwrap();
        engine.stop().await.unwrap();
        zdb::assert_clean(&dir, "tank");
        assert_readable_without(&machine, &dir, &["a3"]).await;
        let engine = import(&machine, &dir).await.unwrap();
        engine.vdevs().online(used).await.unwrap();
        run(&engine, &ScanLimits::default()).await;
        engine.stop().await.unwrap();
        assert_readable_without(&machine, &dir, &["a3", "a5"]).await;
        // A device that has space of the first spare fails.
        let engine = import(&machine, &dir).await.unwrap();
        assert_eq!(shape(&engine), one);
        engine.vdevs().offline(guid(&engine, "a4"), OfflineMode::Faulted).await.unwrap();
        work::write_object(&engine, "tank", 300, 51).await.unwrap();
        assert_eq!(step_in(&engine).await, Some("draid2-0-1".into()));
        work::write_object(&engine, "tank", 300, 52).await.unwrap();
        run(&engine, &ScanLimits::default()).await;
        let two = "root[draid2:3d:7c:2s-0[a0 a1 spare-2[a2 draid2-0-0] a3 spare-4[a4 draid2-0-1] a5 a6]]";
        assert_eq!(shape(&engine), two);
        engine.stop().await.unwrap();
        zdb::assert_clean(&dir, "tank");
        for pair in [["a0", "a1"], ["a1", "a3"], ["a3", "a6"], ["a5", "a6"], ["a0", "a5"]] {
            assert_readable_without(&machine, &dir, &pair).await;
        }
        // The first is replaced, the second works again.
        let engine = import(&machine, &dir).await.unwrap();
        let new = blank(&dir, "b2", 96);
        engine.vdevs().attach(&request(&engine, "a2", new, true)).await.unwrap();
        work::write_object(&engine, "tank", 300, 53).await.unwrap();
        engine.scrubs().run(&small(), &mut |_| false).await.unwrap();
        run(&engine, &ScanLimits::default()).await;
        let one = "root[draid2:3d:7c:2s-0[a0 a1 b2 a3 spare-4[a4 draid2-0-1] a5 a6]]";
        assert_eq!(shape(&engine), one);
        engine.devices().clear(Some(guid(&engine, "a4"))).await.unwrap();
        assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
        run(&engine, &ScanLimits::default()).await;
        assert_eq!(shape(&engine), "root[draid2:3d:7c:2s-0[a0 a1 b2 a3 a4 a5 a6]]");
        assert_eq!(engine.shown().config.aux.spares.len(), 2);
        engine.export().await.unwrap();
        std::fs::remove_file(dir.join("a2")).unwrap();
        assert_healthy(&machine, &dir).await;
        for pair in [["a0", "b2"], ["a4", "b2"], ["a1", "a4"]] {
            assert_readable_without(&machine, &dir, &pair).await;
        }
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// With one parity: the spare makes good for the first device, so a second one may fail, also one with space of the spare, and
/// the pool goes on.
#[test]
fn after_the_resilver_any_second_device_may_fail() {
    let machine = weir_linux::machine().unwrap();
    for second in ["a0", "a2", "a3"] {
        machine.block_on(async {
            let dir = folder(&format!("dspare-second-{second}"));
            let engine = filled(&machine, &dir, "draid1:2d:1s", 4).await;
            let used = request(&engine, "a1", spare("draid1-0-0"), true);
            engine.vdevs().offline(guid(&engine, "a1"), OfflineMode::Faulted).await.unwrap();
            engine.vdevs().attach(&used).await.unwrap();
            run(&engine, &ScanLimits::default()).await;
            engine.vdevs().offline(guid(&engine, second), OfflineMode::Faulted).await.unwrap();
            for seed in 60..63 {
                work::write_object(&engine, "tank", 150, seed).await.unwrap();
                engine.sync().await.unwrap();
            }
            engine.stop().await.unwrap();
            std::fs::remove_file(dir.join("a1")).unwrap();
            assert_readable_without(&machine, &dir, &[second]).await;
            // It is replaced: the new one gets its columns and the spare's.
            let engine = import(&machine, &dir).await.unwrap();
            let new = blank(&dir, "b", 96);
            engine.vdevs().attach(&request(&engine, second, new, true)).await.unwrap();
            run(&engine, &ScanLimits::default()).await;
            engine.stop().await.unwrap();
            std::fs::remove_file(dir.join(second)).unwrap();
            zdb::assert_clean(&dir, "tank");
            for third in ["a0", "a2", "a3", "b"].into_iter().filter(|name| *name != second) {
                assert_readable_without(&machine, &dir, &[third]).await;
            }
            std::fs::remove_dir_all(&dir).unwrap();
        });
    }
}

#[test]
fn a_distributed_spare_serves_its_own_vdev_only() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("dspare-refused");
        let engine = filled(&machine, &dir, "draid1:2d:1s", 4).await;
        let tops = vec![crate::real::top(&dir, "c", weir_pool::config::Class::Normal, draid("draid1:2d:1s"), 4)];
        engine.devices().add(&VdevAddRequest { tops, ..VdevAddRequest::default() }).await.unwrap();
        let foreign = engine.vdevs().attach(&request(&engine, "a1", spare("draid1-1-0"), true)).await.unwrap_err();
        let why = "dRAID spares can only replace child devices in their parent's dRAID vdev";
        assert!(foreign.to_string().contains(why), "{foreign}");
        let attached = engine.vdevs().attach(&request(&engine, "a1", spare("draid1-0-0"), false)).await.unwrap_err();
        assert!(attached.to_string().contains("hot spare"), "{attached}");
        engine.vdevs().attach(&request(&engine, "a1", spare("draid1-0-0"), true)).await.unwrap();
        let again = engine.vdevs().attach(&request(&engine, "a2", spare("draid1-0-0"), true)).await.unwrap_err();
        assert!(again.to_string().contains("is an active hot spare"), "{again}");
        let used = guid(&engine, "draid1-0-0");
        let removed = engine.spares().remove_aux(used).await.unwrap_err();
        assert!(removed.to_string().contains("detach it first"), "{removed}");
        // It is canceled before it has everything.
        work::write_object(&engine, "tank", 50, 9).await.unwrap();
        engine.vdevs().detach(used).await.unwrap();
        assert!(!shape(&engine).contains("spare-"), "{}", shape(&engine));
        // A device of the other vdev fails: its own spare steps in.
        engine.vdevs().offline(guid(&engine, "c0"), OfflineMode::Faulted).await.unwrap();
        assert_eq!(step_in(&engine).await, Some("draid1-1-0".into()));
        run(&engine, &ScanLimits::default()).await;
        // The spare stays in the place of a device that is detached, and is a spare again when that place has another one.
        engine.vdevs().detach(guid(&engine, "c0")).await.unwrap();
        assert!(shape(&engine).contains("[draid1-1-0 c1 c2 c3]"), "{}", shape(&engine));
        engine.stop().await.unwrap();
        zdb::assert_clean(&dir, "tank");
        zdb::assert_counted(&dir, "tank");
        let engine = import(&machine, &dir).await.unwrap();
        let new = blank(&dir, "n", 96);
        engine.vdevs().attach(&request(&engine, "draid1-1-0", new, true)).await.unwrap();
        run(&engine, &ScanLimits::default()).await;
        assert!(shape(&engine).contains("[n c1 c2 c3]"), "{}", shape(&engine));
        assert_eq!(engine.shown().config.aux.spares.len(), 2);
        engine.export().await.unwrap();
        std::fs::remove_file(dir.join("c0")).unwrap();
        assert_healthy(&machine, &dir).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}
