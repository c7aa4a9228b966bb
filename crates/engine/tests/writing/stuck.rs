//! Unreadable blocks: frees below them wait, reads of them fail, everything else continues.

use crate::real::{folder, import, pool_of};
use crate::waiting::free_per_group;
use crate::{work, zdb};
use bytes::Bytes;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{FileSystemSpec, Kind, NewDataset};
use weir_engine::{Engine, Layout};
use weir_files::{Cred, FileError, FileSystem, New, NewKind, SetAttributes, WriteAt};
use weir_format::{BlockPointer, Cursor, ObjectId};
use weir_machine::{Machine, Request};
use weir_pool::{OpenOptions, Pool};

/// Bytes in front of a device's space.
const FRONT_BYTES: u64 = 4 << 20;
const BLOCK_BYTES: u64 = 512;
/// Blocks of a file: three blocks of pointers, of which the second begins with a hole.
const BLOCKS: u64 = 2400;
const HOLE: std::ops::Range<u64> = 1000..1100;

/// Which block of a destroyed tree cannot be read.
#[derive(Clone, Copy, Debug)]
pub enum Bad {
    /// The set's own.
    Root,
    /// The first below its root.
    TopOfDnodes,
    /// One with dnodes, of which the first are free.
    Dnodes,
    /// One of a file's blocks of pointers.
    Pointers,
}

pub async fn make(engine: &Engine, name: &str) -> (Arc<FileSystem>, ObjectId) {
    let rq = &Request::internal("test");
    let root = Cred::root();
    let properties = vec![("recordsize".to_owned(), Value::Number(BLOCK_BYTES))];
    let kind = Kind::FileSystem(FileSystemSpec::default());
    engine.create_dataset(NewDataset { name: name.into(), kind, properties }).await.unwrap();
    let files = engine.file_system(rq, name).await.unwrap();
    let mut last = ObjectId(0);
    for n in 0..90 {
        let file = format!("f{n}");
        let new = New::of(NewKind::Regular, 0o644);
        last = files.names().create(rq, &root, files.root(), file.as_bytes(), &new).await.unwrap().object;
    }
    for (at, len) in [(0, HOLE.start), (HOLE.end, BLOCKS - HOLE.end)] {
        let noise = (0..).flat_map(|n| work::contents(at + 1, n * 2)).take((len * BLOCK_BYTES) as usize);
        let data = Bytes::from_iter(noise);
        files.contents().write(rq, &root, last, WriteAt::Offset(at * BLOCK_BYTES), data).await.unwrap();
    }
    // The first slots of the last block of dnodes are free.
    for n in 50..85 {
        files.names().remove(rq, &root, files.root(), format!("f{n}").as_bytes()).await.unwrap();
    }
    engine.sync().await.unwrap();
    (files, last)
}

/// The pointer at a place in an indirect block.
async fn below(files: &FileSystem, pointer: &BlockPointer, index: usize) -> BlockPointer {
    let set = files.objects();
    let bytes = set.cache().read(&Request::internal("test"), pointer, set.options()).await.unwrap();
    let mut cursor = Cursor::new(&bytes[index * BlockPointer::SIZE..], pointer.endian(), "test");
    BlockPointer::decode(&mut cursor).unwrap()
}

pub async fn pointer_of(files: &FileSystem, file: ObjectId, bad: Bad) -> BlockPointer {
    let set = files.objects();
    let meta = set.root().header.meta_dnode.clone().unwrap();
    let mut at = meta.block_pointers[0];
    match bad {
        Bad::Root => set.pointer(),
        Bad::TopOfDnodes => at,
        Bad::Dnodes => {
            for level in (1..meta.levels).rev() {
                at = below(files, &at, if level == 1 { file.0 as usize / 32 } else { 0 }).await;
            }
            assert_eq!(at.level(), 0);
            at
        }
        Bad::Pointers => {
            let object = set.object(&Request::internal("test"), file).await.unwrap();
            at = object.dnode.block_pointers[0];
            while at.level() > 1 {
                at = below(files, &at, 1).await;
            }
            at
        }
    }
}

/// Turns bits around in all copies of a block; a second time, they are right again.
pub fn spoil(dir: &Path, pointer: &BlockPointer) {
    let disk = std::fs::File::options().read(true).write(true).open(dir.join("a0")).unwrap();
    for dva in pointer.dvas() {
        let at = FRONT_BYTES + dva.offset_bytes;
        let mut bytes = [0; 64];
        disk.read_exact_at(&mut bytes, at).unwrap();
        bytes.iter_mut().for_each(|byte| *byte = !*byte);
        disk.write_all_at(&bytes, at).unwrap();
    }
}

/// Value of `zpool get freeing` for a pool that is not open.
async fn freeing(machine: &Machine, dir: &Path) -> u64 {
    let pool = Pool::open(machine, &OpenOptions::new(vec![dir.to_owned()], "tank")).await.unwrap();
    let all = weir_pool::properties::properties(&Request::internal("test"), &pool, None).await.unwrap();
    all.iter().find(|p| p.name == "freeing").unwrap().value.text(true).parse().unwrap()
}

/// Two datasets are destroyed, and a block of the first cannot be read.
async fn live(machine: &Machine, dir: &Path, bad: Bad) {
    let engine = import(machine, dir).await.unwrap();
    let (files, file) = make(&engine, "tank/first").await;
    let pointer = pointer_of(&files, file, bad).await;
    drop(files);
    drop(make(&engine, "tank/second").await);
    free_per_group(&engine, 0).await;
    engine.destroy_dataset("tank/first".into()).await.unwrap();
    engine.destroy_dataset("tank/second".into()).await.unwrap();
    engine.export().await.unwrap();
    let all = freeing(machine, dir).await;
    spoil(dir, &pointer);

    let engine = import(machine, dir).await.unwrap();
    // Few at a time: the walk pauses, and goes on, before it comes to the bad block.
    free_per_group(&engine, 700).await;
    for _ in 0..12 {
        engine.sync().await.unwrap();
    }
    let txg = engine.txgs().last_synced();
    let events = engine.events.after(0).events;
    let lost = events.iter().find(|event| event.class == "ereport.fs.zfs.data").expect("the loss is reported");
    assert_eq!(lost.list.get_u64("zio_objset"), Some(u64::MAX), "{bad:?}: a destroyed one");
    if matches!(bad, Bad::Pointers) {
        assert_eq!(lost.list.get_u64("zio_object"), Some(file.0));
    }
    let wrong = events.iter().find(|event| event.class == "ereport.fs.zfs.checksum").expect("and which device it was");
    assert!(wrong.list.get_str("vdev_path").unwrap().ends_with("a0"));
    machine.clock.sleep(std::time::Duration::from_millis(300)).await;
    assert!(engine.txgs().last_synced().0 <= txg.0 + 1, "groups follow each other, and free nothing");
    // The pool goes on.
    drop(make(&engine, "tank/third").await);
    engine.export().await.unwrap();
    let left = freeing(machine, dir).await;
    // The second is gone; the first is as far as it can be found.
    assert!(left > 0 && left <= all / 2 + all / 10, "{bad:?}: {left} of {all}");

    // The device gives the block after all.
    spoil(dir, &pointer);
    work::assert_pool_clean(machine, dir, "tank").await;
    zdb::assert_clean(dir, "tank");
    let engine = import(machine, dir).await.unwrap();
    for _ in 0..12 {
        engine.sync().await.unwrap();
    }
    engine.destroy_dataset("tank/third".into()).await.unwrap();
    engine.sync().await.unwrap();
    engine.export().await.unwrap();
    assert_eq!(freeing(machine, dir).await, 0, "{bad:?}");
    work::assert_pool_clean(machine, dir, "tank").await;
    zdb::assert_clean(dir, "tank");
}

/// Runs `what` on a pool of one disk.
fn on_one_disk(name: &str, what: impl AsyncFnOnce(&Machine, &Path)) {
    let dir = folder(name);
    let machine = weir_linux::machine().unwrap();
    machine.block_on(async {
        Engine::create(&machine, &pool_of(&dir, Layout::Single, 1)).await.unwrap().export().await.unwrap();
        what(&machine, &dir).await;
    });
    std::fs::remove_dir_all(&dir).unwrap();
}

#[test]
fn what_cannot_be_read_waits_and_the_pool_goes_on() {
    on_one_disk("stuck", async |machine, dir| {
        for bad in [Bad::Pointers, Bad::Dnodes, Bad::TopOfDnodes, Bad::Root] {
            live(machine, dir, bad).await;
        }
    });
}

/// A change of a file with unreadable indirect blocks fails, and no other change does; the removed file stays queued.
async fn damaged(machine: &Machine, dir: &Path) {
    let rq = &Request::internal("test");
    let root = Cred::root();
    let engine = import(machine, dir).await.unwrap();
    let (files, file) = make(&engine, "tank/first").await;
    let pointer = pointer_of(&files, file, Bad::Pointers).await;
    drop(files);
    engine.export().await.unwrap();
    spoil(dir, &pointer);

    let engine = import(machine, dir).await.unwrap();
    let files = engine.file_system(rq, "tank/first").await.unwrap();
    let write = async |block: u64| {
        let data = Bytes::from(vec![1; BLOCK_BYTES as usize]);
        files.contents().write(rq, &root, file, WriteAt::Offset(block * BLOCK_BYTES), data).await
    };
    assert!(matches!(write(1500).await, Err(FileError::Corrupt { .. })));
    engine.sync().await.expect("a write that was refused");
    write(500).await.unwrap();
    let cut = SetAttributes::size(800 * BLOCK_BYTES);
    assert!(matches!(files.attrs().set(rq, &root, file, &cut).await, Err(FileError::Corrupt { .. })));
    engine.sync().await.expect("a truncation that was refused");
    let _told = files.names().remove(rq, &root, files.root(), b"f89").await;
    assert_eq!(files.directories().lookup(rq, files.root(), b"f89").await, Err(FileError::NotFound));
    engine.sync().await.expect("a removal that waits");
    drop(make(&engine, "tank/second").await);
    engine.export().await.unwrap();

    // The device gives the block after all.
    spoil(dir, &pointer);
    work::assert_pool_clean(machine, dir, "tank").await;
    let engine = import(machine, dir).await.unwrap();
    let files = engine.file_system(rq, "tank/first").await.unwrap();
    engine.sync().await.unwrap();
    assert!(files.attrs().get(rq, file).await.is_err(), "it is gone now");
    engine.export().await.unwrap();
    work::assert_pool_clean(machine, dir, "tank").await;
    zdb::assert_clean(dir, "tank");
}

#[test]
fn a_damaged_file_stops_no_other_change() {
    on_one_disk("damaged", damaged);
}

/// A file system that cannot be opened is not there; the pool is.
async fn rootless(machine: &Machine, dir: &Path) {
    let rq = &Request::internal("test");
    let engine = import(machine, dir).await.unwrap();
    let (files, file) = make(&engine, "tank/first").await;
    engine.sync().await.unwrap();
    let dsl = engine.synced().dsl(rq).await.unwrap();
    let pointer = dsl.find(rq, "tank/first").await.unwrap().phys.pointer;
    drop((dsl, files));
    engine.export().await.unwrap();
    spoil(dir, &pointer);

    let engine = import(machine, dir).await.unwrap();
    assert!(engine.file_system(rq, "tank/first").await.is_err());
    drop(make(&engine, "tank/second").await);
    engine.export().await.unwrap();

    spoil(dir, &pointer);
    let engine = import(machine, dir).await.unwrap();
    let files = engine.file_system(rq, "tank/first").await.unwrap();
    assert!(files.attrs().get(rq, file).await.is_ok());
    engine.export().await.unwrap();
    work::assert_pool_clean(machine, dir, "tank").await;
}

#[test]
fn a_file_system_without_its_root_stops_no_other_change() {
    on_one_disk("rootless", rootless);
}
