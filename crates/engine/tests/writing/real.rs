//! On real files: every arrangement of devices.

use crate::{work, zdb};
use std::path::{Path, PathBuf};
use weir_dmu::live::{CloneSource, NewObject, SpaceReserve};
use weir_dsl::Scope;
use weir_engine::create::DraidRequest;
use weir_engine::{CreateOptions, Engine, Layout, NewLeaf, NewTopLevelVdev};
use weir_engine::{ImportOptions, VdevAddRequest};
use weir_format::{ObjectId, ObjectType};
use weir_machine::{Machine, Request};
use weir_pool::config::Class;
use weir_pool::{OpenOptions, Pool, PoolError, Rewind};

const MIB: u64 = 1 << 20;

/// A folder of its own for the devices of one pool.
pub fn folder(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join("writing").join(name);
    let _absent = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    dir
}

/// A sparse file as a device.
fn device(dir: &Path, name: &str, bytes: u64) -> NewLeaf {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
    NewLeaf { path, is_file: true }
}

/// A top-level vdev of this number of files.
pub fn top(dir: &Path, name: &str, class: Class, layout: Layout, count: usize) -> NewTopLevelVdev {
    let leaves = (0..count).map(|i| device(dir, &format!("{name}{i}"), 96 * MIB)).collect();
    NewTopLevelVdev { class, layout, leaves }
}

/// A pool of one top-level vdev.
pub fn pool_of(dir: &Path, layout: Layout, count: usize) -> CreateOptions {
    CreateOptions::new("tank", vec![top(dir, "a", Class::Normal, layout, count)])
}

/// Makes a pool, exports it, opens it again, works on it, exports it again; zdb and Weir judge both states.
fn judge(name: &str, ashift: u64, tops: impl FnOnce(&Path) -> Vec<NewTopLevelVdev>) {
    let dir = folder(&format!("{name}-{ashift}"));
    let machine = weir_linux::machine().unwrap();
    let mut options = CreateOptions::new("tank", tops(&dir));
    options.ashift = Some(ashift);
    options.command = "zpool create tank".into();
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

pub async fn import(machine: &Machine, dir: &Path) -> Result<std::sync::Arc<Engine>, PoolError> {
    Engine::import(machine, &ImportOptions::new(OpenOptions::new(vec![dir.to_owned()], "tank"))).await
}

fn judge_both(name: &str, tops: impl Fn(&Path) -> Vec<NewTopLevelVdev>) {
    judge(name, 9, &tops);
    judge(name, 12, &tops);
}

#[test]
fn one_device() {
    judge_both("single", |dir| vec![top(dir, "a", Class::Normal, Layout::Single, 1)]);
}

#[test]
fn mirrors() {
    judge_both("mirror", |dir| {
        vec![top(dir, "a", Class::Normal, Layout::Mirror, 2), top(dir, "b", Class::Normal, Layout::Mirror, 3)]
    });
}

#[test]
fn raidz1() {
    judge_both("raidz1", |dir| vec![top(dir, "a", Class::Normal, Layout::Raidz(1), 3)]);
}

#[test]
fn raidz2() {
    judge_both("raidz2", |dir| vec![top(dir, "a", Class::Normal, Layout::Raidz(2), 5)]);
}

#[test]
fn raidz3() {
    judge_both("raidz3", |dir| {
        vec![top(dir, "a", Class::Normal, Layout::Raidz(3), 6), top(dir, "b", Class::Normal, Layout::Raidz(3), 4)]
    });
}

/// A dRAID layout of one to three parities.
fn draid(text: &str) -> Layout {
    Layout::Draid(DraidRequest::parse(text).unwrap())
}

#[test]
fn draids() {
    judge_both("draid1", |dir| vec![top(dir, "a", Class::Normal, draid("draid1:2d:1s"), 4)]);
    judge_both("draid23", |dir| {
        vec![
            top(dir, "a", Class::Normal, draid("draid2:3d:8c:2s"), 8),
            top(dir, "b", Class::Normal, draid("draid3"), 5),
            top(dir, "s", Class::Special, draid("draid:1d:1s"), 3),
        ]
    });
}

/// A dRAID vdev joins a pool that is open, with its distributed spares, which no command takes away.
#[test]
fn a_draid_vdev_is_added() {
    let dir = folder("draid-added");
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &pool_of(&dir, draid("draid1:1d:1s"), 3)).await.unwrap();
        let more = VdevAddRequest {
            tops: vec![top(&dir, "b", Class::Normal, draid("draid2:2s"), 9)],
            ..VdevAddRequest::default()
        };
        engine.devices().add(&more).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        let spares = engine.shown().config.aux.spares;
        let names: Vec<_> = spares.iter().filter_map(|spare| spare.get_str("path")).collect();
        assert_eq!(names, ["draid1-0-0", "draid2-1-0", "draid2-1-1"]);
        let guid = spares[1].get_u64("guid").unwrap();
        let refused = engine.spares().remove_aux(guid).await.unwrap_err();
        assert!(refused.to_string().contains("dRAID spares cannot be removed"), "{refused}");
        engine.export().await.unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        assert_eq!(engine.shown().config.aux.spares.len(), 3);
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    let without = CreateOptions { features: vec!["lz4_compress".into()], ..pool_of(&dir, draid("draid"), 3) };
    assert!(without.check().unwrap_err().to_string().contains("feature@draid"));
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn stripes() {
    judge_both("stripe", |dir| (0..4).map(|i| top(dir, &format!("a{i}"), Class::Normal, Layout::Single, 1)).collect());
}

#[test]
fn classes() {
    judge_both("classes", |dir| {
        vec![
            top(dir, "a", Class::Normal, Layout::Raidz(1), 3),
            top(dir, "l", Class::Log, Layout::Mirror, 2),
            top(dir, "s", Class::Special, Layout::Mirror, 2),
            top(dir, "d", Class::Dedup, Layout::Single, 1),
        ]
    });
}

#[test]
fn caches_and_spares() {
    let dir = folder("aux");
    let machine = weir_linux::machine().unwrap();
    let mut options = CreateOptions::new("tank", vec![top(&dir, "a", Class::Normal, Layout::Mirror, 2)]);
    options.caches = vec![device(&dir, "cache", 64 * MIB)];
    options.spares = vec![device(&dir, "spare", 96 * MIB)];
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        let again = Engine::create(&machine, &options).await.unwrap_err();
        assert!(matches!(again, PoolError::InUse { .. }), "{again}");
        options.force = true;
        Engine::create(&machine, &options).await.unwrap().export().await.unwrap();
    });
    zdb::assert_clean(&dir, "tank");
}

/// Space so scattered that every block of more than 1 KiB is a gang.
fn judge_gangs(name: &str, ashift: u64, layout: Layout, count: usize) {
    let dir = folder(&format!("gang-{name}-{ashift}"));
    let machine = weir_linux::machine().unwrap();
    let mut options = CreateOptions::new("tank", vec![top(&dir, "a", Class::Normal, layout, count)]);
    options.ashift = Some(ashift);
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        engine.cache.blocks().force_gangs_above(Some(1024 << (ashift - 9))).unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        let engine = import(&machine, &dir).await.unwrap();
        work::write_object(&engine, "tank", 9, 4).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn gangs() {
    judge_gangs("single", 9, Layout::Single, 1);
    judge_gangs("mirror", 12, Layout::Mirror, 2);
    judge_gangs("raidz", 9, Layout::Raidz(1), 3);
}

#[test]
fn vdevs_are_added() {
    let dir = folder("add");
    let machine = weir_linux::machine().unwrap();
    let options = CreateOptions::new("tank", vec![top(&dir, "a", Class::Normal, Layout::Mirror, 2)]);
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.export().await.unwrap();
        let mut more = VdevAddRequest {
            tops: vec![top(&dir, "b", Class::Normal, Layout::Raidz(1), 3)],
            ..VdevAddRequest::default()
        };
        more.tops.push(top(&dir, "l", Class::Log, Layout::Single, 1));
        more.tops.push(top(&dir, "s", Class::Special, Layout::Mirror, 2));
        more.caches = vec![device(&dir, "cache", 64 * MIB)];
        let import = ImportOptions::new(OpenOptions::new(vec![dir.clone()], "tank"));
        let engine = weir_engine::open::import_and_add(&machine, &import, &more).await.unwrap();
        work::write_object(&engine, "tank", 500, 9).await.unwrap();
        // While it is in use.
        let before = engine.gate.space().size_bytes;
        let file = work::write_object(&engine, "tank", 50, 10);
        let tops =
            vec![top(&dir, "c", Class::Normal, Layout::Mirror, 2), top(&dir, "m", Class::Log, Layout::Mirror, 2)];
        let more = VdevAddRequest { tops, spares: vec![device(&dir, "spare", 64 * MIB)], ..VdevAddRequest::default() };
        let (added, written) = futures_util::future::join(engine.devices().add(&more), file).await;
        added.unwrap();
        written.unwrap();
        assert!(engine.gate.space().size_bytes > before);
        work::write_object(&engine, "tank", 500, 11).await.unwrap();
        engine.sync().await.unwrap();
        let taken = engine.cache.blocks().vdev_space(4).allocated_bytes;
        assert!(taken > 0, "nothing is on the new vdev");
        let again = engine.devices().add(&more).await.unwrap_err();
        assert!(again.to_string().ends_with("c0 is part of this pool already"), "{again}");
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

/// Objects share blocks, within a dataset and between two; then each is overwritten and removed.
async fn share(engine: &Engine) {
    let rq = &Request::internal("test");
    work::make_dataset(engine, "tank/b").await.unwrap();
    let first = work::write_object(engine, "tank", 20, 5).await.unwrap();
    engine.sync().await.unwrap();
    engine.properties().renew(rq, Scope::Path("tank")).await.unwrap();
    engine.properties().renew(rq, Scope::Path("tank/b")).await.unwrap();
    let from = engine.open_set(rq, "tank", None).await.unwrap();
    let mut sharers = Vec::new();
    for name in ["tank", "tank/b"] {
        let to = engine.open_set(rq, name, None).await.unwrap();
        let tx = to.begin(rq, 1 << 20, SpaceReserve::Normal).await.unwrap();
        let id =
            to.changes().create(rq, &tx, &NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 16 << 10)).await.unwrap();
        for block in 0..20 {
            let answer = to.writes().block_to_clone(rq, &tx, &from, ObjectId(first), block).await.unwrap();
            let CloneSource::Block(pointer) = answer else { panic!("{answer:?}") };
            assert_eq!(pointer.is_embedded(), !u64::is_multiple_of(block, 2));
            to.writes().clone_block(rq, &tx, id, block, pointer).await.unwrap();
        }
        sharers.push((to, id));
    }
    engine.sync().await.unwrap();
    let tx = from.begin(rq, 1 << 20, SpaceReserve::Normal).await.unwrap();
    from.writes().write(rq, &tx, ObjectId(first), 0, &[9; 16 << 10]).await.unwrap();
    drop(tx);
    engine.sync().await.unwrap();
    let tx = from.begin(rq, 1 << 20, SpaceReserve::NetFree).await.unwrap();
    from.frees().remove(rq, &tx, ObjectId(first)).await.unwrap();
    from.frees().remove(rq, &tx, sharers[0].1).await.unwrap();
    drop(tx);
    engine.sync().await.unwrap();
    let (set, id) = &sharers[1];
    let object = set.object(rq, *id).await.unwrap();
    for block in 0..20 {
        let bytes = set.reader().read_block(rq, &object, block).await.unwrap().unwrap();
        assert_eq!(bytes, work::contents(5, block), "block {block}");
    }
}

#[test]
fn files_share_blocks() {
    let dir = folder("share");
    let machine = weir_linux::machine().unwrap();
    let options = CreateOptions::new("tank", vec![top(&dir, "a", Class::Normal, Layout::Raidz(1), 3)]);
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        share(&engine).await;
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    machine.block_on(async {
        let engine = import(&machine, &dir).await.unwrap();
        work::destroy_all(&engine).await.unwrap();
        engine.export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_a_rewind_gives_up_does_not_come_back() {
    let dir = folder("rewind");
    let machine = weir_linux::machine().unwrap();
    let options = CreateOptions::new("tank", vec![top(&dir, "a", Class::Normal, Layout::Mirror, 2)]);
    machine.block_on(async {
        let engine = Engine::create(&machine, &options).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        let kept = engine.txgs().last_synced();
        work::write_object(&engine, "tank", 3, 1).await.unwrap();
        engine.export().await.unwrap();
        let given_up = engine.txgs().last_synced();
        let mut open = OpenOptions::new(vec![dir.clone()], "tank");
        open.rewind = Rewind::Before(kept);
        let engine = Engine::import(&machine, &ImportOptions::new(open)).await.unwrap();
        assert!(engine.txgs().last_synced() > given_up);
        work::write_object(&engine, "tank", 7, 2).await.unwrap();
        engine.export().await.unwrap();
        let last = engine.txgs().last_synced();
        let pool = Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
        assert_eq!(pool.uberblock.txg, last);
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    std::fs::remove_dir_all(&dir).unwrap();
}
