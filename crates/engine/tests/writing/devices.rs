//! Devices that hold something else, held something else, or became smaller.

use crate::real::{folder, import, pool_of};
use crate::{work, zdb};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use weir_engine::{Engine, Layout};
use weir_pool::{OpenOptions, Pool, PoolError};

const MIB: u64 = 1 << 20;

fn put(path: &Path, at: u64, bytes: &[u8]) {
    File::options().write(true).open(path).unwrap().write_all_at(bytes, at).unwrap();
}

#[test]
fn file_systems_of_others_are_taken_by_force_alone() {
    let dir = folder("foreign");
    let machine = weir_linux::machine().unwrap();
    let mut options = pool_of(&dir, Layout::Mirror, 2);
    put(&dir.join("a1"), 1080, b"\x53\xef");
    machine.block_on(async {
        let before = fs::read(dir.join("a0")).unwrap();
        let error = Engine::create(&machine, &options).await.unwrap_err();
        assert!(matches!(&error, PoolError::InUse { what, .. } if what.contains("ext4")), "{error}");
        assert!(fs::read(dir.join("a0")).unwrap() == before, "it was refused too late");
        options.force = true;
        Engine::create(&machine, &options).await.unwrap().export().await.unwrap();
        // Of a pool that was destroyed nothing is left to be asked about.
        import(&machine, &dir).await.unwrap().destroy().await.unwrap();
        options.force = false;
        Engine::create(&machine, &options).await.unwrap().export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    fs::remove_dir_all(&dir).unwrap();
}

/// A partition table with one partition of 64 MiB, 1 MiB from the start.
fn partition_table() -> Vec<u8> {
    let mut front = vec![0; 2048];
    front[512..520].copy_from_slice(b"EFI PART");
    front[584..592].copy_from_slice(&2u64.to_le_bytes());
    front[592..596].copy_from_slice(&128u32.to_le_bytes());
    front[596..600].copy_from_slice(&128u32.to_le_bytes());
    front[1024] = 1;
    front[1056..1064].copy_from_slice(&2048u64.to_le_bytes());
    front[1064..1072].copy_from_slice(&(2047 + 64 * 2048u64).to_le_bytes());
    front
}

/// A pool on a whole disk is what is found there, not what a partition of the disk once held.
#[test]
fn partitions_end_where_a_whole_disk_is_taken() {
    let dir = folder("whole");
    let old_dir = folder("whole-old");
    let machine = weir_linux::machine().unwrap();
    let mut old = pool_of(&old_dir, Layout::Single, 1);
    File::options().write(true).open(old_dir.join("a0")).unwrap().set_len(64 * MIB).unwrap();
    old.name = "old".into();
    machine.block_on(async { Engine::create(&machine, &old).await.unwrap().export().await.unwrap() });
    let mut new = pool_of(&dir, Layout::Single, 1);
    put(&dir.join("a0"), 0, &partition_table());
    put(&dir.join("a0"), MIB, &fs::read(old_dir.join("a0")).unwrap());
    machine.block_on(async {
        let found = Pool::open(&machine, &OpenOptions::new(vec![dir.clone()], "old")).await.unwrap();
        assert_eq!(found.devices.values().next().unwrap().partition.unwrap().offset_bytes, MIB);
        drop(found);
        assert!(matches!(Engine::create(&machine, &new).await.unwrap_err(), PoolError::InUse { .. }));
        new.force = true;
        Engine::create(&machine, &new).await.unwrap().export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
    });
    zdb::assert_clean(&dir, "tank");
    fs::remove_dir_all(&dir).unwrap();
    fs::remove_dir_all(&old_dir).unwrap();
}

/// The last labels of a device that became smaller would be written over data: it is left out, unless the pool needs it.
#[test]
fn devices_that_became_smaller_are_left_alone() {
    let dir = folder("smaller");
    let machine = weir_linux::machine().unwrap();
    let cut =
        |name: &str, mib: u64| File::options().write(true).open(dir.join(name)).unwrap().set_len(mib * MIB).unwrap();
    machine.block_on(async {
        let engine = Engine::create(&machine, &pool_of(&dir, Layout::Raidz(1), 3)).await.unwrap();
        work::history(&engine, &|_| ()).await.unwrap();
        engine.export().await.unwrap();
        // Behind the last whole metaslab is nothing.
        cut("a1", 95);
        import(&machine, &dir).await.unwrap().export().await.unwrap();
        work::assert_pool_clean(&machine, &dir, "tank").await;
        cut("a1", 60);
        let before = fs::read(dir.join("a1")).unwrap();
        let engine = import(&machine, &dir).await.unwrap();
        let vdevs = engine.cache.blocks().tree().health();
        assert_eq!(vdevs.iter().filter(|leaf| !leaf.present).count(), 1, "one device is out of service");
        engine.export().await.unwrap();
        assert!(fs::read(dir.join("a1")).unwrap() == before, "something was written to the device that is left out");
        work::assert_pool_clean(&machine, &dir, "tank").await;
        // With its size it comes back.
        cut("a1", 96);
        let engine = import(&machine, &dir).await.unwrap();
        assert!(engine.cache.blocks().tree().health().iter().all(|leaf| leaf.present));
        engine.export().await.unwrap();
        // Two are too many.
        cut("a1", 60);
        cut("a2", 60);
        let before = ["a0", "a1", "a2"].map(|name| fs::read(dir.join(name)).unwrap());
        let error = import(&machine, &dir).await.unwrap_err();
        assert!(error.to_string().contains("is smaller than it was"), "{error}");
        assert!(["a0", "a1", "a2"].map(|name| fs::read(dir.join(name)).unwrap()) == before, "something was written");
    });
    fs::remove_dir_all(&dir).unwrap();
}
