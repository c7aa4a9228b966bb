//! Devices that are attached, replaced and detached while the pool is in use; each state is one that zdb knows, and the new
//! device alone has everything.

use crate::real::{folder, import, pool_of};
use crate::resilver::{LAYOUTS, look, run, small};
use crate::{work, zdb};
use futures_util::future::join;
use std::os::unix::fs::FileExt;
use std::path::Path;
use weir_engine::PoolProperty;
use weir_engine::scrub::{Progress, ScanLimits};
use weir_engine::{AttachRequest, Engine, Layout, NewLeaf, OfflineMode};
use weir_format::label;
use weir_machine::Machine;
use weir_pool::{OpenOptions, Pool, VdevConfig};

pub fn blank(dir: &Path, name: &str, mib: u64) -> NewLeaf {
    let path = dir.join(name);
    std::fs::File::create(&path).unwrap().set_len(mib << 20).unwrap();
    NewLeaf { path, is_file: true }
}

pub fn guid(engine: &Engine, name: &str) -> u64 {
    let root = VdevConfig::parse(&engine.shown().config.root).unwrap();
    let found = root.leaves().into_iter().find(|leaf| leaf.name().ends_with(name)).map(|leaf| leaf.guid);
    found.unwrap_or_else(|| panic!("no {name} in {root:?}"))
}

pub fn shape(engine: &Engine) -> String {
    fn one(vdev: &VdevConfig) -> String {
        let name = vdev.name().rsplit('/').next().unwrap_or_default().to_owned();
        let below: Vec<_> = vdev.children.iter().map(one).collect();
        if below.is_empty() { name } else { format!("{name}[{}]", below.join(" ")) }
    }
    one(&VdevConfig::parse(&engine.shown().config.root).unwrap())
}

pub fn request(engine: &Engine, beside: &str, new: NewLeaf, replaces: bool) -> AttachRequest {
    AttachRequest { device: guid(engine, beside), new, replaces, ashift: None, force: false }
}

pub async fn assert_healthy(machine: &Machine, dir: &Path) {
    assert!(look(machine, dir).await.dtls().is_empty());
    zdb::assert_clean(dir, "tank");
    zdb::assert_counted(dir, "tank");
    work::assert_pool_clean(machine, dir, "tank").await;
}

#[test]
fn a_single_device_becomes_a_mirror_and_the_other_side_alone_has_everything() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("attach-single");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        let small_one = blank(&dir, "small", 70);
        let error = engine.vdevs().attach(&request(&engine, "a0", small_one, false)).await.unwrap_err();
        assert!(error.to_string().contains("is too small"), "{error}");
        std::fs::remove_file(dir.join("small")).unwrap();
        let error = engine.vdevs().detach(guid(&engine, "a0")).await.unwrap_err();
        assert!(error.to_string().contains("only applicable to mirror"), "{error}");
        for name in ["b0", "c0"] {
            let new = blank(&dir, name, 96);
            engine.vdevs().attach(&request(&engine, "a0", new, false)).await.unwrap();
            work::write_object(&engine, "tank", 20, 3).await.unwrap();
            engine.sync().await.unwrap();
        }
        assert_eq!(shape(&engine), "root[mirror-0[a0 b0 c0]]");
        let error = engine.vdevs().detach(guid(&engine, "a0")).await.unwrap_err();
        assert!(error.to_string().contains("no valid replicas"), "{error}");
        run(&engine, &ScanLimits::default()).await;
        engine.stop().await.unwrap();
        assert_healthy(&machine, &dir).await;
        let engine = import(&machine, &dir).await.unwrap();
        engine.vdevs().detach(guid(&engine, "a0")).await.unwrap();
        engine.vdevs().detach(guid(&engine, "c0")).await.unwrap();
        assert_eq!(shape(&engine), "root[b0]");
        work::write_object(&engine, "tank", 20, 4).await.unwrap();
        engine.stop().await.unwrap();
        for name in ["a0", "c0"] {
            // The labels are wiped: the devices can be used again without force.
            let bytes = std::fs::read(dir.join(name)).unwrap();
            assert!(bytes[..512 << 10].iter().all(|byte| *byte == 0), "{name} has labels");
            std::fs::remove_file(dir.join(name)).unwrap();
        }
        assert_healthy(&machine, &dir).await;
        import(&machine, &dir).await.unwrap().export().await.unwrap();
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// A device is destroyed completely and replaced, then the other side goes.
#[test]
fn a_destroyed_device_is_replaced_in_its_place() {
    let machine = weir_linux::machine().unwrap();
    for (name, layout, count) in LAYOUTS {
        machine.block_on(async {
            let dir = folder(&format!("replace-{name}"));
            let engine = Engine::create(&machine, &pool_of(&dir, layout, count)).await.unwrap();
            work::history(&engine, &|_| ()).await.unwrap();
            engine.stop().await.unwrap();
            let path = dir.join("a1");
            std::fs::write(&path, vec![0x5a; 96 << 20]).unwrap();
            let engine = import(&machine, &dir).await.unwrap();
            let new = NewLeaf { path: path.clone(), is_file: true };
            // The device has no labels any more, only bytes of an unknown kind.
            let replacing = AttachRequest { force: true, ..request(&engine, "a1", new, true) };
            engine.vdevs().attach(&replacing).await.unwrap();
            assert!(shape(&engine).contains("replacing-1[old a1]"), "{}", shape(&engine));
            work::write_object(&engine, "tank", 20, 4).await.unwrap();
            engine.scrubs().run(&small(), &mut |_| false).await.unwrap();
            engine.stop().await.unwrap();
            zdb::assert_clean(&dir, "tank");
            zdb::assert_counted(&dir, "tank");
            let engine = import(&machine, &dir).await.unwrap();
            assert!(engine.scrubs().start_resilver_if_needed().await.unwrap());
            run(&engine, &ScanLimits::default()).await;
            assert!(!shape(&engine).contains("replacing"), "{}", shape(&engine));
            engine.stop().await.unwrap();
            assert_healthy(&machine, &dir).await;
            std::fs::remove_file(dir.join("a0")).unwrap();
            if count == 4 {
                std::fs::remove_file(dir.join("a2")).unwrap();
            }
            work::assert_pool_clean(&machine, &dir, "tank").await;
            std::fs::remove_dir_all(&dir).unwrap();
        });
    }
}

/// A device of the pool, under its own path or another one, in service or offline, is refused even by force: it would be mirrored
/// by itself, and lose its labels at the end.
#[test]
fn a_device_of_the_pool_is_not_taken_again() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("attach-itself");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Mirror, 2)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        // The links are in another folder, where no import looks for devices.
        let links = folder("attach-itself-links");
        let link = |name: &str| NewLeaf { path: links.join(name), is_file: true };
        std::os::unix::fs::symlink(dir.join("a1"), links.join("symbolic")).unwrap();
        std::fs::hard_link(dir.join("a1"), links.join("hard")).unwrap();
        let own = || NewLeaf { path: dir.join("a1"), is_file: true };
        for is_offline in [false, true] {
            if is_offline {
                engine.vdevs().offline(guid(&engine, "a1"), OfflineMode::Kept).await.unwrap();
            }
            let before = shape(&engine);
            let attempts = [
                ("a1", own(), true),
                ("a1", link("symbolic"), true),
                ("a0", link("hard"), true),
                ("a0", link("hard"), false),
            ];
            for (beside, new, replaces) in attempts {
                let attempt = AttachRequest { force: true, ..request(&engine, beside, new, replaces) };
                let error = engine.vdevs().attach(&attempt).await.unwrap_err().to_string();
                assert!(error.contains("is part of this pool already"), "{attempt:?}: {error}");
            }
            assert_eq!(shape(&engine), before);
        }
        engine.vdevs().online(guid(&engine, "a1")).await.unwrap();
        run(&engine, &ScanLimits::default()).await;
        engine.stop().await.unwrap();
        assert_healthy(&machine, &dir).await;
        // Each side alone has everything.
        std::fs::remove_file(dir.join("a0")).unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        std::fs::remove_dir_all(&dir).unwrap();
        std::fs::remove_dir_all(&links).unwrap();
    });
}

/// A second device is replaced in the middle of a pass of the resilver for the first one, which then starts again: what the pass
/// read does not count, because it gave the second device nothing.
#[test]
fn a_device_replaced_during_a_pass_of_a_resilver_gets_everything() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("replace-two");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Raidz(2), 4)).await.unwrap();
        for seed in 0..8 {
            work::write_object(&engine, "tank", 250, seed).await.unwrap();
            engine.sync().await.unwrap();
        }
        let [first, second] = ["b1", "b2"].map(|name| blank(&dir, name, 96));
        engine.vdevs().attach(&request(&engine, "a1", first, true)).await.unwrap();
        engine.scrubs().run(&small(), &mut |_| false).await.unwrap();
        let replacing = request(&engine, "a2", second, true);
        let limits = ScanLimits::default();
        let mut all = |_: &Progress| true;
        let (replaced, passed) = join(engine.vdevs().attach(&replacing), engine.scrubs().run(&limits, &mut all)).await;
        replaced.and(passed.map(drop)).unwrap();
        run(&engine, &limits).await;
        assert_eq!(shape(&engine), "root[raidz2-0[a0 b1 b2 a3]]");
        engine.stop().await.unwrap();
        assert_healthy(&machine, &dir).await;
        ["a0", "a3"].iter().for_each(|name| std::fs::remove_file(dir.join(name)).unwrap());
        work::assert_pool_clean(&machine, &dir, "tank").await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// A running device is replaced: the old one serves until the new one has everything. A replacement that is given up leaves
/// everything as it was.
#[test]
fn a_running_device_is_replaced_and_a_replacement_can_be_given_up() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("replace-running");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        let new = blank(&dir, "b0", 100);
        engine.vdevs().attach(&request(&engine, "a0", new.clone(), true)).await.unwrap();
        assert_eq!(shape(&engine), "root[replacing-0[a0 b0]]");
        engine.scrubs().run(&small(), &mut |_| false).await.unwrap();
        engine.vdevs().detach(guid(&engine, "b0")).await.unwrap();
        assert_eq!(shape(&engine), "root[a0]");
        let done = engine.scrubs().run(&small(), &mut |_| true).await.unwrap().unwrap();
        assert!(done.is_finished());
        engine.vdevs().attach(&request(&engine, "a0", new, true)).await.unwrap();
        run(&engine, &small()).await;
        assert_eq!(shape(&engine), "root[b0]");
        work::write_object(&engine, "tank", 20, 4).await.unwrap();
        engine.stop().await.unwrap();
        std::fs::remove_file(dir.join("a0")).unwrap();
        assert_healthy(&machine, &dir).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// A missing device is replaced by another one; when it comes back, the pool does not know it.
#[test]
fn a_missing_device_is_replaced_and_stays_out() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("replace-missing");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Raidz(1), 3)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.stop().await.unwrap();
        let away = dir.with_extension("away");
        std::fs::rename(dir.join("a2"), &away).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        let new = blank(&dir, "b2", 96);
        engine.vdevs().attach(&request(&engine, "a2", new, true)).await.unwrap();
        run(&engine, &small()).await;
        assert_eq!(shape(&engine), "root[raidz1-0[a0 a1 b2]]");
        engine.stop().await.unwrap();
        std::fs::rename(&away, dir.join("a2")).unwrap();
        import(&machine, &dir).await.unwrap().stop().await.unwrap();
        std::fs::remove_file(dir.join("a2")).unwrap();
        assert_healthy(&machine, &dir).await;
        std::fs::File::options().write(true).open(dir.join("a0")).unwrap().write_all_at(&[0; 4096], 0).unwrap();
        std::fs::remove_file(dir.join("a0")).unwrap();
        let pool = Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "tank")).await.unwrap();
        assert!(pool.lost().is_empty());
        drop(pool);
        work::assert_pool_clean(&machine, &dir, "tank").await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// With `autoreplace=on`, a blank device at the path of a missing one replaces it; one that holds anything does not.
#[test]
fn a_blank_device_replaces_a_missing_one_if_the_pool_says_so() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("autoreplace");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Raidz(1), 3)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.stop().await.unwrap();
        std::fs::remove_file(dir.join("a1")).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        let step = async || engine.spares().keep_replacing(&mut |_| true).await.unwrap();
        let _new = blank(&dir, "a1", 96);
        assert_eq!(step().await, None, "autoreplace is off");
        let on = PoolProperty::Number { property: "autoreplace".into(), number: 1 };
        engine.properties().set_on_pool(on).await.unwrap();
        std::fs::File::options().write(true).open(dir.join("a1")).unwrap().write_all_at(b"mine", 8192).unwrap();
        assert_eq!(step().await, None, "the device holds data");
        let _new = blank(&dir, "a1", 96);
        assert_eq!(step().await, Some(dir.join("a1")));
        assert_eq!(step().await, None, "it is there");
        run(&engine, &ScanLimits::default()).await;
        assert_eq!(shape(&engine), "root[raidz1-0[a0 a1 a2]]");
        engine.stop().await.unwrap();
        std::fs::remove_file(dir.join("a2")).unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}

/// Power fails between the first labels of the txg that detaches a device and its uberblock: they name the other device as the
/// former mirror, which no committed configuration does.
#[test]
fn labels_of_a_detachment_that_was_not_committed_do_not_count() {
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        let dir = folder("detach-uncommitted");
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Mirror, 2)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.stop().await.unwrap();
        let names = ["a0", "a1"];
        let before = names.map(|name| std::fs::read(dir.join(name)).unwrap());
        let engine = import(&machine, &dir).await.unwrap();
        engine.vdevs().detach(guid(&engine, "a1")).await.unwrap();
        engine.stop().await.unwrap();
        let after = std::fs::read(dir.join("a0")).unwrap();
        for (name, bytes) in names.iter().zip(&before) {
            std::fs::write(dir.join(name), bytes).unwrap();
        }
        let a0 = std::fs::File::options().write(true).open(dir.join("a0")).unwrap();
        for index in [0, 2] {
            let at = label::label_offset(index, after.len() as u64).unwrap() as usize;
            let area = at + label::CONFIG.start..at + label::CONFIG.end;
            a0.write_all_at(&after[area.clone()], area.start as u64).unwrap();
        }
        work::assert_pool_clean(&machine, &dir, "tank").await;
        let engine = import(&machine, &dir).await.unwrap();
        assert_eq!(shape(&engine), "root[mirror-0[a0 a1]]");
        engine.export().await.unwrap();
        assert_healthy(&machine, &dir).await;
        std::fs::remove_dir_all(&dir).unwrap();
    });
}
