//! Resilvers write to a device that was away the blocks that it lacks, and no others; the pool is then readable without the
//! other devices.

use crate::real::{folder, import, pool_of};
use crate::{work, zdb};
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_dmu::live::{CloneSource, NewObject, SpaceReserve};
use weir_engine::create::DraidRequest;
use weir_engine::resilver::ResilverWatch;
use weir_engine::scrub::{Progress, ScanLimits};
use weir_engine::{Engine, Layout, OfflineMode};
use weir_format::{ObjectId, ObjectType};
use weir_machine::{Machine, Request};
use weir_pool::scan_status::{Stage, last_scan};
use weir_pool::{OpenOptions, Pool};

/// Two data devices per group, and one distributed spare.
const DRAID: Layout = Layout::Draid(DraidRequest { parity: 1, data: Some(2), children: None, spares: 1 });

pub const LAYOUTS: [(&str, Layout, usize); 4] = [
    ("mirror", Layout::Mirror, 2),
    ("raidz", Layout::Raidz(1), 3),
    ("raidz2", Layout::Raidz(2), 4),
    ("draid", DRAID, 5),
];

pub fn small() -> ScanLimits {
    ScanLimits { time: Duration::from_secs(60), bytes: 100 << 10, sorted_blocks: 3, ..ScanLimits::default() }
}

pub async fn look(machine: &Machine, dir: &Path) -> Pool {
    Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], "tank")).await.unwrap()
}

/// A pool that was written to while its device `a1` was away, which is back.
async fn with_returned(machine: &Machine, name: &str, (layout, count): (Layout, usize)) -> PathBuf {
    let dir = folder(&format!("resilver-{name}"));
    let there = dir.join("a1");
    let away = dir.with_extension("away");
    let engine = Engine::create(machine, &pool_of(&dir, layout, count)).await.unwrap();
    work::history(&engine, &|_| ()).await.unwrap();
    engine.stop().await.unwrap();
    std::fs::rename(&there, &away).unwrap();
    let engine = import(machine, &dir).await.unwrap();
    for seed in 0..3 {
        work::write_object(&engine, "tank", 100, seed).await.unwrap();
        work::snapshot(&engine, &format!("tank@away{seed}")).await.unwrap();
    }
    engine.stop().await.unwrap();
    std::fs::rename(&away, &there).unwrap();
    assert_eq!(look(machine, &dir).await.dtls().len(), 1);
    dir
}

pub async fn run(engine: &Engine, limits: &ScanLimits) -> Progress {
    let done = engine.scrubs().run(limits, &mut |_| true).await.unwrap().unwrap();
    assert!(done.is_finished() && done.is_resilver() && done.scan.errors == 0, "{done:?}");
    done
}

/// The pool has everything on the other devices: those in `gone` may go.
async fn assert_whole_without(machine: &Machine, dir: &Path, gone: &[&str]) {
    assert!(look(machine, dir).await.dtls().is_empty());
    zdb::assert_clean(dir, "tank");
    zdb::assert_counted(dir, "tank");
    gone.iter().for_each(|name| std::fs::remove_file(dir.join(name)).unwrap());
    work::assert_pool_clean(machine, dir, "tank").await;
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn a_returned_device_is_given_what_it_lacks() {
    let machine = weir_linux::machine().unwrap();
    for (name, layout, count) in LAYOUTS {
        machine.block_on(async {
            let dir = with_returned(&machine, name, (layout, count)).await;
            let engine = import(&machine, &dir).await.unwrap();
            assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
            assert!(engine.scrubs().start_resilver_if_needed().await.unwrap(), "it goes on");
            let refused = engine.scrubs().start().await.unwrap_err().to_string();
            assert!(refused.contains("currently resilvering"), "{refused}");
            let done = run(&engine, &small()).await;
            let device = engine.cache.blocks().tree().health().into_iter().find(|leaf| leaf.name.ends_with("a1"));
            let repaired = device.unwrap().counts.repaired_bytes;
            assert!(repaired > 300 * (16 << 10) / 4 && done.scan.processed_bytes == repaired, "{name}: {done:?}");
            assert!(!engine.scrubs().start_resilver_if_needed().await.unwrap(), "nothing is lacking");
            engine.stop().await.unwrap();
            let gone: &[&str] = if count == 4 { &["a0", "a2"] } else { &["a0"] };
            assert_whole_without(&machine, &dir, gone).await;
        });
    }
}

/// A device that comes back while a resilver runs may lack blocks that the walk has passed.
#[test]
fn a_device_that_comes_back_during_a_resilver_is_given_what_it_lacks() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = with_returned(&machine, "two", (Layout::Raidz(2), 4)).await;
        let engine = import(&machine, &dir).await.unwrap();
        let mut watch = ResilverWatch::default();
        engine.sync().await.unwrap();
        assert!(engine.scrubs().keep_resilvered(&mut watch).await.unwrap());
        let second = crate::offline::guid(&engine, "a2");
        engine.vdevs().offline(second, OfflineMode::Faulted).await.unwrap();
        work::write_object(&engine, "tank", 100, 9).await.unwrap();
        engine.sync().await.unwrap();
        engine.devices().clear(Some(second)).await.unwrap();
        for _ in 0..4 {
            engine.sync().await.unwrap();
            if !engine.scrubs().keep_resilvered(&mut watch).await.unwrap() {
                break;
            }
            run(&engine, &ScanLimits::default()).await;
        }
        engine.stop().await.unwrap();
        assert_whole_without(&machine, &dir, &["a0", "a3"]).await;
    });
}

/// Only blocks of the DTL's txgs are read: the rest of the pool, which is larger, is left alone.
#[test]
fn a_resilver_reads_only_what_was_born_while_a_device_was_away() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("resilver-range");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Mirror, 2)).await.unwrap();
        work::write_object(&engine, "tank", 1000, 9).await.unwrap();
        engine.stop().await.unwrap();
        let away = dir.with_extension("away");
        std::fs::rename(dir.join("a1"), &away).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        work::write_object(&engine, "tank", 10, 5).await.unwrap();
        engine.stop().await.unwrap();
        std::fs::rename(&away, dir.join("a1")).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
        let done = run(&engine, &ScanLimits::default()).await;
        assert!(done.scan.processed_bytes < 200 * (16 << 10), "{done:?}");
        assert!(done.scan.examined_bytes < 200 * (16 << 10), "{done:?}");
        engine.stop().await.unwrap();
        assert_whole_without(&machine, &dir, &["a0"]).await;
    });
}

/// A process ends after each pass; the next one goes on where it was, and zdb likes each state.
#[test]
fn a_resilver_goes_on_after_each_import() {
    let machine = weir_linux::machine().unwrap();
    let rq = &Request::internal("test");
    machine.block_on(async {
        let dir = with_returned(&machine, "resumed", (Layout::Raidz(1), 3)).await;
        let mut places = Vec::new();
        loop {
            let engine = import(&machine, &dir).await.unwrap();
            assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
            let limits = ScanLimits { bytes: 1 << 20, sorted_blocks: 8, ..small() };
            let part = engine.scrubs().run(&limits, &mut |_| false).await.unwrap().unwrap();
            engine.stop().await.unwrap();
            if part.is_finished() {
                break;
            }
            let scan = last_scan(&look(&machine, &dir).await, rq).await.unwrap().unwrap();
            assert!(scan.resilver && scan.stage == Stage::Running);
            places.push(part.place);
        }
        assert!(places.len() >= 2 && places.windows(2).all(|pair| pair[0] < pair[1]), "{places:?}");
        assert_whole_without(&machine, &dir, &["a2"]).await;
    });
}

/// Runs passes until the walk has passed the object set `objset`.
async fn run_past(engine: &Engine, objset: u64) {
    loop {
        let part = engine.scrubs().run(&small(), &mut |_| false).await.unwrap().unwrap();
        assert!(!part.is_finished(), "the walk ended before");
        if part.place.objset.0 > objset {
            return;
        }
    }
}

/// Carries a resilver to its end in another process. Returns the rounds of datasets that it visited again.
async fn finish_elsewhere(machine: &Machine, dir: &Path) -> u64 {
    let engine = import(machine, dir).await.unwrap();
    let mut begun = Vec::new();
    let mut rounds = 0;
    let mut note = |progress: &Progress| {
        begun.push(progress.resume.began);
        rounds = progress.revisits.round;
        true
    };
    let done = engine.scrubs().run(&small(), &mut note).await.unwrap().unwrap();
    assert!(done.is_finished());
    begun.dedup();
    assert_eq!(begun.len(), 1, "it does not start again: {begun:?}");
    engine.stop().await.unwrap();
    rounds
}

/// Blocks of a destroyed snapshot move to a dataset that the walk has passed: that one is visited again.
#[test]
fn blocks_that_move_while_a_resilver_runs_are_not_missed() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = with_returned(&machine, "moved", (Layout::Mirror, 2)).await;
        let engine = import(&machine, &dir).await.unwrap();
        let head = engine.open_set(&Request::internal("test"), "tank", None).await.unwrap().id().0;
        assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
        run_past(&engine, head).await;
        for number in [1, 2] {
            engine.destroy_snapshots(vec![format!("tank@away{number}")], false).await.unwrap();
        }
        engine.stop().await.unwrap();
        assert_eq!(finish_elsewhere(&machine, &dir).await, 1);
        assert_whole_without(&machine, &dir, &["a0"]).await;
    });
}

/// A file is cloned to a dataset that the walk has passed, and its original removed before the walk is there.
#[test]
fn blocks_that_are_cloned_while_a_resilver_runs_are_not_missed() {
    let machine = weir_linux::machine().unwrap();
    let rq = &Request::internal("test");
    machine.block_on(async {
        let dir = folder("resilver-cloned");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Mirror, 2)).await.unwrap();
        engine.stop().await.unwrap();
        let away = dir.with_extension("away");
        std::fs::rename(dir.join("a1"), &away).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        work::make_dataset(&engine, "tank/z").await.unwrap();
        let original = ObjectId(work::write_object(&engine, "tank/z", 40, 5).await.unwrap());
        engine.stop().await.unwrap();
        std::fs::rename(&away, dir.join("a1")).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        engine.properties().renew(rq, weir_dsl::Scope::Path("tank")).await.unwrap();
        let to = engine.open_set(rq, "tank", None).await.unwrap();
        let from = engine.open_set(rq, "tank/z", None).await.unwrap();
        assert!(engine.scrubs().start_resilver_if_needed().await.unwrap() && to.id() < from.id());
        run_past(&engine, to.id().0).await;
        let tx = to.begin(rq, 1 << 20, SpaceReserve::Normal).await.unwrap();
        let new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 16 << 10);
        let copy = to.changes().create(rq, &tx, &new).await.unwrap();
        for block in 0..40 {
            let answer = to.writes().block_to_clone(rq, &tx, &from, original, block).await.unwrap();
            let CloneSource::Block(pointer) = answer else { panic!("{answer:?}") };
            to.writes().clone_block(rq, &tx, copy, block, pointer).await.unwrap();
        }
        drop(tx);
        engine.sync().await.unwrap();
        let tx = from.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
        from.frees().remove(rq, &tx, original).await.unwrap();
        drop(tx);
        engine.stop().await.unwrap();
        assert!(finish_elsewhere(&machine, &dir).await >= 1);
        assert_whole_without(&machine, &dir, &["a0"]).await;
    });
}

/// The bug that these tests must find: blocks of some txgs are left out, and the DTL is excised nevertheless.
#[test]
fn canary_a_resilver_that_skips_txgs_is_found() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = with_returned(&machine, "canary", (Layout::Mirror, 2)).await;
        let engine = import(&machine, &dir).await.unwrap();
        engine.cache.blocks().tree().plant(weir_blocks::vdev::DeviceBug::SkipsResilver);
        assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
        run(&engine, &ScanLimits::default()).await;
        engine.stop().await.unwrap();
        assert!(look(&machine, &dir).await.dtls().is_empty());
        std::fs::remove_file(dir.join("a0")).unwrap();
        let is_found = match Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await {
            Err(_) => true,
            Ok(pool) => {
                let report = weir_pool::verify::verify_pool(&pool, &Request::internal("test")).await.unwrap();
                !report.unreadable.is_empty()
            }
        };
        assert!(is_found, "blocks are missing, and no one noticed");
        std::fs::remove_dir_all(&dir).unwrap();
    });
}
