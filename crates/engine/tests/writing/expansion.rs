//! RAID-Z vdevs that get one more device while the pool is in use, on real files: all objects are whole, and OpenZFS's zdb finds
//! no leak and no wrong block before, in the middle and after.

use crate::attach::{blank, shape};
use crate::real::{folder, pool_of};
use crate::{work, zdb};
use std::path::Path;
use std::sync::Arc;
use weir_dmu::live::SpaceReserve;
use weir_dsl::sync_tasks::features;
use weir_engine::{Activity, AttachRequest, CreateOptions, DirtyLimits, Engine, ImportOptions, Layout, NewLeaf};
use weir_engine::{OfflineMode, TxgSync, checkpoint, expansion};
use weir_format::ObjectId;
use weir_format::features::Feature;
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, PoolError, VdevConfig};

/// Objects that must be whole: number, blocks, seed.
type Objects = Vec<(u64, u64, u64)>;

pub fn with_feature(mut options: CreateOptions) -> CreateOptions {
    options.features.push("raidz_expansion".into());
    options
}

pub fn top(engine: &Engine) -> VdevConfig {
    VdevConfig::parse(&engine.shown().config.root).unwrap().children.remove(0)
}

pub async fn expand(engine: &Arc<Engine>, new: NewLeaf) -> Result<(), PoolError> {
    let device = top(engine).guid;
    let request = AttachRequest { device, new, replaces: false, ashift: None, force: false };
    expansion::start(engine, &request).await
}

/// Imports the pool; each txg copies at most `bytes`.
async fn import(machine: &Machine, dir: &Path, bytes: u64) -> Arc<Engine> {
    let mut options = ImportOptions::new(OpenOptions::new(vec![dir.to_owned()], "tank"));
    options.dirty = DirtyLimits { copied_bytes: bytes, ..DirtyLimits::default() };
    Engine::import(machine, &options).await.unwrap()
}

pub async fn write(engine: &Engine, objects: &mut Objects, blocks: u64) {
    let seed = objects.len() as u64 + 1;
    let id = work::write_object(engine, "tank", blocks, seed).await.unwrap();
    engine.sync().await.unwrap();
    objects.push((id, blocks, seed));
}

/// Frees an object.
pub async fn remove(engine: &Engine, objects: &mut Objects, at: usize) {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    let tx = set.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
    set.frees().remove(rq, &tx, ObjectId(objects.remove(at).0)).await.unwrap();
    drop(tx);
    engine.sync().await.unwrap();
}

/// All objects have the bytes that were written.
pub async fn compare(engine: &Engine, objects: &Objects) {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    for &(id, blocks, seed) in objects {
        let object = set.object(rq, ObjectId(id)).await.unwrap();
        for block in 0..blocks {
            let bytes = set.reader().read(rq, &object, block << 14, 16 << 10, blocks << 14).await.unwrap();
            assert!(bytes.as_ref() == work::contents(seed, block), "object {id} block {block}");
        }
    }
}

pub async fn judge(machine: &Machine, dir: &Path) {
    work::assert_pool_clean(machine, dir, "tank").await;
    zdb::assert_clean(dir, "tank");
    zdb::assert_counted(dir, "tank");
}

/// Fills a pool beyond the scratch area, with free space in between.
async fn fill(engine: &Engine) -> Objects {
    let mut objects = Objects::new();
    for _ in 0..6 {
        write(engine, &mut objects, 500).await;
    }
    remove(engine, &mut objects, 3).await;
    remove(engine, &mut objects, 1).await;
    objects
}

/// Expands a quiet pool, then again after an import.
fn expand_quiet(name: &str, layout: Layout, count: usize) {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder(name);
        let engine = Engine::create(&machine, &with_feature(pool_of(&dir, layout, count))).await.unwrap();
        let mut objects = fill(&engine).await;
        engine.export().await.unwrap();
        for times in 1..=2 {
            expand_once(&machine, &dir, &mut objects).await;
            let engine = import(&machine, &dir, 64 << 20).await;
            let top = top(&engine);
            assert_eq!((top.children.len(), top.raidz_expand_txgs.len()), (count + times, times));
            compare(&engine, &objects).await;
            engine.export().await.unwrap();
        }
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// Imports the pool, expands it, writes more.
async fn expand_once(machine: &Machine, dir: &Path, objects: &mut Objects) {
    let engine = import(machine, dir, 64 << 20).await;
    let before = top(&engine);
    let name = format!("b{}", before.children.len());
    expand(&engine, blank(dir, &name, 96)).await.unwrap();
    engine.expansions().wait().await.unwrap();
    let now = top(&engine);
    assert!(!now.raidz_expanding && now.asize_bytes > before.asize_bytes, "{now:?}");
    assert!(shape(&engine).ends_with(&format!("{name}]]")), "{}", shape(&engine));
    compare(&engine, objects).await;
    write(&engine, objects, 300).await;
    engine.export().await.unwrap();
    judge(machine, dir).await;
}

/// Imports the pool and expands it a little further while it is written to; then it is exported in the middle, judged, and so on
/// until the expansion has ended.
fn expand_interrupted(name: &str, layout: Layout, count: usize) {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder(name);
        let engine = Engine::create(&machine, &with_feature(pool_of(&dir, layout, count))).await.unwrap();
        let mut objects = fill(&engine).await;
        engine.export().await.unwrap();
        let engine = import(&machine, &dir, 64 << 20).await;
        expand(&engine, blank(&dir, "b0", 96)).await.unwrap();
        engine.export().await.unwrap();
        let mut positions = Vec::new();
        let is_whole = |top: &VdevConfig| !top.raidz_expanding;
        loop {
            let pool = crate::resilver::look(&machine, &dir).await;
            if is_whole(&pool.tree.children[0]) {
                break;
            }
            let at = pool.uberblock.reflow;
            positions.push((at.scratch_state, at.offset_bytes));
            drop(pool);
            judge(&machine, &dir).await;
            let engine = import(&machine, &dir, 128 << 10).await;
            assert!(
                engine.synced().activities(&Request::internal("test")).await.unwrap().contains(&Activity::RaidzExpand)
            );
            compare(&engine, &objects).await;
            write(&engine, &mut objects, 40).await;
            let oldest = positions.len() % 3;
            remove(&engine, &mut objects, oldest).await;
            write(&engine, &mut objects, 20).await;
            compare(&engine, &objects).await;
            engine.export().await.unwrap();
            assert!(positions.len() < 60, "{positions:?}");
        }
        assert!(positions.iter().any(|(state, _)| *state == 4), "{positions:?}");
        let engine = import(&machine, &dir, 64 << 20).await;
        compare(&engine, &objects).await;
        assert_eq!(top(&engine).raidz_expand_txgs.len(), 1);
        engine.export().await.unwrap();
        judge(&machine, &dir).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

#[test]
fn a_raidz1_of_three_gets_two_more_devices() {
    expand_quiet("expand-raidz1", Layout::Raidz(1), 3);
}

#[test]
fn a_raidz2_of_four_gets_two_more_devices() {
    expand_quiet("expand-raidz2", Layout::Raidz(2), 4);
}

#[test]
fn a_raidz1_of_two_that_is_expanded_is_a_whole_pool_at_each_export() {
    expand_interrupted("expand-raidz1-interrupted", Layout::Raidz(1), 2);
}

#[test]
fn a_raidz3_of_five_that_is_expanded_is_a_whole_pool_at_each_export() {
    expand_interrupted("expand-raidz3-interrupted", Layout::Raidz(3), 5);
}

/// Each refusal has OpenZFS's reason, and changes nothing.
#[test]
fn expansions_that_cannot_be_are_refused() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("expand-refused");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Raidz(1), 3)).await.unwrap();
        let why = |done: Result<(), PoolError>| done.unwrap_err().to_string();
        let text = why(expand(&engine, blank(&dir, "b0", 96)).await);
        assert!(text.contains("raidz_expansion feature must be enabled"), "{text}");
        let enabled = engine.sync_task(|syncing: &mut TxgSync<'_>| {
            Box::pin(async move { Ok(features::enable_feature(&mut syncing.change, Feature::RAIDZ_EXPANSION).await?) })
        });
        enabled.await.unwrap();
        let text = why(expand(&engine, blank(&dir, "b1", 70)).await);
        assert!(text.contains("is too small"), "{text}");
        let leaf = top(&engine).children[1].guid;
        let request =
            AttachRequest { device: leaf, new: blank(&dir, "b2", 96), replaces: false, ashift: None, force: false };
        let text = why(engine.vdevs().attach(&request).await);
        assert!(text.contains("can only attach to mirrors"), "{text}");
        engine.vdevs().offline(leaf, OfflineMode::Kept).await.unwrap();
        let text = why(expand(&engine, blank(&dir, "b3", 96)).await);
        assert!(text.contains("offline or being replaced"), "{text}");
        engine.vdevs().online(leaf).await.unwrap();
        engine.stop().await.unwrap();
        let engine = import(&machine, &dir, 1 << 20).await;
        engine.scrubs().start_resilver_if_needed().await.unwrap();
        engine.scrubs().run(&Default::default(), &mut |_| true).await.unwrap();
        checkpoint::create(&engine).await.unwrap();
        let text = why(expand(&engine, blank(&dir, "b4", 96)).await);
        assert!(text.contains("checkpoint"), "{text}");
        checkpoint::discard(&engine).await.unwrap();
        expand(&engine, blank(&dir, "b5", 96)).await.unwrap();
        let text = why(expand(&engine, blank(&dir, "b6", 96)).await);
        assert!(text.contains("raidz expansion in progress"), "{text}");
        let text = why(checkpoint::create(&engine).await);
        assert!(text.contains("raidz expansion in progress"), "{text}");
        engine.expansions().wait().await.unwrap();
        engine.stop().await.unwrap();
        judge(&machine, &dir).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}
