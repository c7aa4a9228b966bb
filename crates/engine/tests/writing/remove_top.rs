//! Removal of top-level vdevs with data from pools on real files: OpenZFS's zdb finds no leak and no wrong block after it, and
//! in the middle of it.

use crate::{real, work, zdb};
use std::path::Path;
use std::sync::Arc;
use weir_dmu::live::SpaceReserve;
use weir_engine::{
    CreateOptions, DirtyLimits, Engine, ImportOptions, Layout, NewTopLevelVdev, VdevAddRequest, removal,
};
use weir_format::ObjectId;
use weir_format::dsl::pool::REMOVING;
use weir_machine::{Access, Machine, Request};
use weir_pool::label;
use weir_pool::mos::Mos;
use weir_pool::{Class, OpenOptions, PoolError, VdevConfig, VdevKind};

pub fn tops(engine: &Engine) -> Vec<VdevConfig> {
    VdevConfig::parse(&engine.shown().config.root).unwrap().children
}

/// Imports the pool; each txg copies at most `bytes`.
async fn import(machine: &Machine, dir: &Path, bytes: u64) -> Result<Arc<Engine>, PoolError> {
    let mut options = ImportOptions::new(OpenOptions::new(vec![dir.to_owned()], "tank"));
    options.dirty = DirtyLimits { copied_bytes: bytes, ..DirtyLimits::default() };
    Engine::import(machine, &options).await
}

async fn remove(engine: &Arc<Engine>, index: usize) -> Result<(), PoolError> {
    removal::start(engine, tops(engine)[index].guid).await?;
    engine.vdev_removals().wait().await
}

/// zdb and Weir find nothing wrong.
async fn judge(machine: &Machine, dir: &Path) {
    work::assert_pool_clean(machine, dir, "tank").await;
    zdb::assert_clean(dir, "tank");
    zdb::assert_counted(dir, "tank");
}

/// Two vdevs of a class, and one that stays.
fn pool(name: &str, layout: Layout, count: usize) -> (std::path::PathBuf, CreateOptions) {
    let dir = real::folder(name);
    let top = |name: &str, layout, count| real::top(&dir, name, Class::Normal, layout, count);
    let tops: Vec<NewTopLevelVdev> =
        vec![top("a", layout, count), top("b", layout, count), top("c", Layout::Single, 1)];
    // The slop of a pool is 128 MiB, or half of it.
    std::fs::OpenOptions::new().write(true).open(dir.join("c0")).unwrap().set_len(768 << 20).unwrap();
    let options = CreateOptions::new("tank", tops);
    (dir, options)
}

/// A quiet pool: its first vdev, then its second one, on which the mapping of the first is.
fn remove_quiet(name: &str, layout: Layout, count: usize) {
    let (dir, options) = pool(name, layout, count);
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        work::write_object(&engine, "tank", 200, 1).await.unwrap();
        for index in 0..2 {
            engine.sync().await.unwrap();
            remove(&engine, index).await.unwrap();
            work::write_object(&engine, "tank", 50, index as u64).await.unwrap();
        }
        let kinds: Vec<VdevKind> = tops(&engine).iter().map(|top| top.kind).collect();
        assert_eq!(kinds, [VdevKind::Indirect, VdevKind::Indirect, VdevKind::File]);
        assert_eq!(tops(&engine)[1].prev_indirect_vdev, Some(0));
        engine.export().await.unwrap();
        judge(&machine, &dir).await;
        std::fs::remove_file(dir.join("a0")).unwrap();
        let engine = import(&machine, &dir, 1 << 20).await.unwrap();
        work::destroy_all(&engine).await.unwrap();
        engine.export().await.unwrap();
        judge(&machine, &dir).await;
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn devices_leave_a_quiet_pool() {
    remove_quiet("remove-devices", Layout::Single, 1);
}

#[test]
fn mirrors_leave_a_quiet_pool() {
    remove_quiet("remove-mirrors", Layout::Mirror, 2);
}

/// Each vdev is replaced by the next one: nothing but the configuration need be on a device that the labels describe, since
/// the first mappings, and whatever has not changed since, were moved by the later removals.
#[test]
fn vdevs_are_replaced_one_by_one() {
    let dir = real::folder("remove-one-by-one");
    let top = |name: &str| {
        let made = real::top(&dir, name, Class::Normal, Layout::Single, 1);
        // The slop of a pool is 128 MiB, or half of it.
        std::fs::OpenOptions::new().write(true).open(dir.join(format!("{name}0"))).unwrap().set_len(512 << 20).unwrap();
        made
    };
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &CreateOptions::new("tank", vec![top("a"), top("b")])).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        work::write_object(&engine, "tank", 100, 1).await.unwrap();
        engine.sync().await.unwrap();
        remove(&engine, 0).await.unwrap();
        for (index, more) in [(1, "c"), (2, "d")] {
            let more = VdevAddRequest { tops: vec![top(more)], ..VdevAddRequest::default() };
            engine.devices().add(&more).await.unwrap();
            remove(&engine, index).await.unwrap();
        }
        engine.export().await.unwrap();
        for gone in ["a0", "b0", "c0"] {
            std::fs::remove_file(dir.join(gone)).unwrap();
        }
        judge(&machine, &dir).await;
        let engine = import(&machine, &dir, 1 << 20).await.unwrap();
        let kinds: Vec<VdevKind> = tops(&engine).iter().map(|top| top.kind).collect();
        assert_eq!(kinds, [VdevKind::Indirect, VdevKind::Indirect, VdevKind::Indirect, VdevKind::File]);
        work::destroy_all(&engine).await.unwrap();
        engine.export().await.unwrap();
        judge(&machine, &dir).await;
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Writes and removes objects of a dataset, in a few txgs.
async fn churn(engine: &Engine, seed: u64) {
    let rq = &Request::internal("test");
    let mut objects = Vec::new();
    for n in 0..4 {
        objects.push(work::write_object(engine, "tank", 20, seed + n).await.unwrap());
        engine.sync().await.unwrap();
    }
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    for object in objects.iter().step_by(2) {
        let tx = set.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
        set.frees().remove(rq, &tx, ObjectId(*object)).await.unwrap();
        drop(tx);
        engine.sync().await.unwrap();
    }
}

/// Removes objects that were written before the removal began, one a txg.
async fn free_older(engine: &Engine, objects: &[u64]) {
    let rq = &Request::internal("test");
    let set = engine.open_set(rq, "tank", None).await.unwrap();
    for object in objects {
        let tx = set.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
        set.frees().remove(rq, &tx, ObjectId(*object)).await.unwrap();
        drop(tx);
        engine.sync().await.unwrap();
    }
}

async fn words(engine: &Engine) -> Vec<u64> {
    let rq = &Request::internal("test");
    let mos = engine.synced().state(rq).await.unwrap().mos.clone();
    Mos { set: mos }.named_words(rq, REMOVING).await.unwrap().unwrap()
}

/// A pool in use: half of its blocks are copied, some of the copied and some of the others are freed; the pool is exported in
/// the middle, judged, and the removal goes on by itself, or is canceled.
fn remove_in_use(name: &str, layout: Layout, count: usize, cancels: bool) {
    let (dir, options) = pool(name, layout, count);
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        let mut objects = Vec::new();
        for n in 0..24 {
            objects.push(work::write_object(&engine, "tank", 60, 100 + n).await.unwrap());
        }
        engine.export().await.unwrap();
        let engine = import(&machine, &dir, 4 << 10).await.unwrap();
        removal::start(&engine, tops(&engine)[0].guid).await.unwrap();
        assert!(engine.vdev_removals().is_running().await.unwrap());
        for n in 0..3 {
            free_older(&engine, &objects[n * 4..n * 4 + 2]).await;
            churn(&engine, 1000 * n as u64).await;
        }
        let busy = removal::start(&engine, tops(&engine)[1].guid).await.unwrap_err().to_string();
        assert!(busy.contains("removal may already be in progress"), "{busy}");
        let again = removal::start(&engine, tops(&engine)[0].guid).await.unwrap_err().to_string();
        assert!(again.contains("removal for this vdev is already in progress."), "{again}");
        let checkpoint = weir_engine::checkpoint::create(&engine).await.unwrap_err().to_string();
        assert!(checkpoint.contains("device removal in progress"), "{checkpoint}");
        let [state, vdev, _, _, _, to_copy, copied] = words(&engine).await[..] else { panic!() };
        assert!(state == 1 && vdev == 0 && 0 < copied && copied < to_copy, "{state} {vdev}: {copied} of {to_copy}");
        engine.export().await.unwrap();
        judge(&machine, &dir).await;
        // The removal copies slowly, so that it cannot end before it is canceled.
        let bytes = if cancels { 1 } else { 32 << 10 };
        let engine = import(&machine, &dir, bytes).await.unwrap();
        free_older(&engine, &objects[12..14]).await;
        if cancels {
            engine.vdev_removals().cancel().await.unwrap();
            assert_eq!(words(&engine).await[0], 3);
            let none = engine.vdev_removals().cancel().await.unwrap_err().to_string();
            assert!(none.contains("there is no active removal"), "{none}");
            let used = engine.cache.blocks().vdev_space(0).allocated_bytes;
            work::write_object(&engine, "tank", 500, 77).await.unwrap();
            engine.sync().await.unwrap();
            assert!(engine.cache.blocks().vdev_space(0).allocated_bytes > used, "nothing is allocated on the vdev");
        } else {
            engine.vdev_removals().wait().await.unwrap();
            let words = words(&engine).await;
            assert_eq!((words[0], words[2], words[5]), (2, 0, words[6]));
            assert_eq!(tops(&engine)[0].kind, VdevKind::Indirect);
            let gone = machine.disks.open(&dir.join("a0"), Access::ReadOnly).unwrap();
            assert!(label::read(&gone).await.best().is_none(), "the labels are not wiped");
        }
        free_older(&engine, &objects[20..]).await;
        churn(&engine, 5000).await;
        engine.export().await.unwrap();
        judge(&machine, &dir).await;
        if cancels {
            let engine = import(&machine, &dir, 1 << 20).await.unwrap();
            remove(&engine, 0).await.unwrap();
            engine.export().await.unwrap();
            judge(&machine, &dir).await;
        }
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn a_device_leaves_a_pool_in_use() {
    remove_in_use("remove-in-use", Layout::Single, 1, false);
}

#[test]
fn a_mirror_leaves_a_pool_in_use() {
    remove_in_use("remove-mirror-in-use", Layout::Mirror, 2, false);
}

#[test]
fn a_removal_is_canceled() {
    remove_in_use("remove-canceled", Layout::Mirror, 2, true);
}

/// Metadata and dedup tables return to the vdevs of the normal class.
#[test]
fn special_and_dedup_vdevs_leave_a_pool() {
    let dir = real::folder("remove-classes");
    let machine = weir_linux::machine().unwrap();
    let top = |name: &str, class, layout, count| real::top(&dir, name, class, layout, count);
    let tops_of_pool = vec![
        top("a", Class::Normal, Layout::Mirror, 2),
        top("s", Class::Special, Layout::Mirror, 2),
        top("d", Class::Dedup, Layout::Single, 1),
    ];
    machine.block_on(async {
        let engine = Engine::create(&machine, &CreateOptions::new("tank", tops_of_pool)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.sync().await.unwrap();
        assert!(engine.cache.blocks().vdev_space(1).allocated_bytes > 0, "nothing is on the special vdev");
        remove(&engine, 1).await.unwrap();
        remove(&engine, 2).await.unwrap();
        let only = removal::start(&engine, tops(&engine)[0].guid).await.unwrap_err().to_string();
        assert!(only.contains("out of space"), "{only}");
        churn(&engine, 1).await;
        engine.export().await.unwrap();
        judge(&machine, &dir).await;
    });
    std::fs::remove_dir_all(&dir).unwrap();
}
