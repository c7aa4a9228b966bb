//! A tree in memory, mounted through the kernel. Tests are skipped where there is no FUSE.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(clippy::disallowed_methods, reason = "the kernel's time is the real one")]

mod locks;

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use weir_files::DirName;
use weir_files::tree::memory::{MemoryFiles, MemoryOpener};
use weir_files::tree::{Export, Tree};
use weir_files::{Cred, FileKind, RenameMode};
use weir_fuse::{MountOptions, Mounted, mount};
use weir_linux::Production;
use weir_machine::{Machine, Request};

const BIG: usize = 5_000_003;

fn big() -> Vec<u8> {
    (0..BIG).map(|i| (i.wrapping_mul(2_654_435_761) >> 7) as u8).collect()
}

fn tree() -> Tree {
    let mut root = MemoryFiles::new(1);
    root.add(34, b"big", FileKind::Regular, 0o640, &big());
    let link = root.add(34, b"link", FileKind::Symlink, 0o777, b"to/nowhere");
    root.change(link, |a| a.mtime_ns = -1_000_000_001);
    let null = root.add(34, b"null", FileKind::CharDevice, 0o666, b"");
    root.change(null, |a| a.device = Some((1, 3)));
    let tagged = root.add(34, b"tagged", FileKind::Regular, 0o644, b"x");
    root.set_xattr(tagged, b"user.one", b"value");
    let many = root.add(34, b"many", FileKind::Directory, 0o755, b"");
    for i in 0..3000 {
        root.add(many, format!("entry-{i:05}").as_bytes(), FileKind::Regular, 0o600, b"");
    }
    let mut child = MemoryFiles::new(2);
    child.add(34, b"inside", FileKind::Regular, 0o644, b"child");
    let mut snapshot = MemoryFiles::new(3);
    snapshot.add(34, b"old", FileKind::Regular, 0o644, b"snapshot");
    let files = [("p", root), ("p/c", child), ("p/c@s", snapshot)];
    let files = files.into_iter().map(|(name, files)| (name.to_string(), Arc::new(files))).collect::<BTreeMap<_, _>>();
    let export = |name: &str, id| Export { name: name.into(), id };
    Tree::new(Arc::new(MemoryOpener(files)), vec![export("p", 1), export("p/c", 2), export("p/c@s", 3)])
}

/// A mount, or `None` with a line on stderr if FUSE is unavailable.
fn mounted(machine: &Machine, path: &Path) -> Option<Mounted> {
    mounted_tree(machine, tree(), path, false)
}

fn mounted_tree(machine: &Machine, tree: impl Into<Arc<Tree>>, path: &Path, writable: bool) -> Option<Mounted> {
    mounted_beside(machine, tree, path, writable, !writable)
}

/// A mount; with `others`, beside other front ends.
fn mounted_beside(
    machine: &Machine,
    tree: impl Into<Arc<Tree>>,
    path: &Path,
    writable: bool,
    others: bool,
) -> Option<Mounted> {
    let root = rustix::process::geteuid().is_root();
    let source = "p".to_string();
    let options = MountOptions {
        source,
        allow_other: root,
        threads: 2,
        writable,
        exclusive: !others,
        dev: root,
        suid: root,
        exec: true,
    };
    match mount(tree, machine.tasks.clone(), path, &options) {
        Ok(mounted) => Some(mounted),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

#[test]
fn a_read_only_mount_shows_the_tree() {
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = mounted(&machine, dir.path()) else { return };
    let at = |name: &str| dir.path().join(name);

    let names = |path: &str| {
        let mut names: Vec<_> =
            std::fs::read_dir(at(path)).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    };
    assert_eq!(names(""), ["big", "c", "link", "many", "null", "tagged"]);
    assert_eq!(names("c"), ["inside"]);
    assert_eq!(names("c/.zfs"), ["snapshot"]);
    assert_eq!(names("c/.zfs/snapshot"), ["s"]);
    assert_eq!(std::fs::read(at("c/.zfs/snapshot/s/old")).unwrap(), b"snapshot");
    let many = names("many");
    assert_eq!(many.len(), 3000);
    assert_eq!(many[2999], "entry-02999");

    assert_eq!(std::fs::read(at("big")).unwrap(), big());
    let mut piece = [0; 100];
    let file = std::fs::File::open(at("big")).unwrap();
    file.read_exact_at(&mut piece, 4_000_001).unwrap();
    assert_eq!(piece, big()[4_000_001..4_000_101]);
    assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(7)).unwrap(), BIG as u64);

    let big = std::fs::metadata(at("big")).unwrap();
    assert_eq!((big.len(), big.permissions().mode(), big.mtime_nsec()), (BIG as u64, 0o100640, 123_456_789));
    assert_eq!(std::fs::metadata(dir.path()).unwrap().ino(), 34);
    let link = std::fs::symlink_metadata(at("link")).unwrap();
    assert_eq!((link.mtime(), link.mtime_nsec()), (-2, 999_999_999));
    assert_eq!(std::fs::read_link(at("link")).unwrap(), Path::new("to/nowhere"));
    assert_eq!(std::fs::symlink_metadata(at("null")).unwrap().rdev(), rustix::fs::makedev(1, 3));

    assert_eq!(xattr::get(at("tagged"), "user.one").unwrap().unwrap(), b"value");
    assert_eq!(xattr::get(at("tagged"), "user.two").unwrap(), None);
    assert_eq!(xattr::list(at("tagged")).unwrap().count(), 1);

    let error = std::fs::write(at("new"), b"x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(30), "a read-only file system");
    assert_eq!(std::fs::metadata(at("nothing")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
    drop(file);

    assert!(!mounted.unmounter().unmount().unwrap());
    mounted.join().unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

/// A tree with a writable root and child, and a read-only snapshot.
fn writable_tree() -> Tree {
    let (opener, exports) = writable_file_systems();
    Tree::new(opener, exports)
}

fn writable_file_systems() -> (Arc<MemoryOpener>, Vec<Export>) {
    let files = [("p", 1, true), ("p/c", 2, true), ("p/c@s", 3, false)].map(|(name, fsid, writable)| {
        let mut files = MemoryFiles::new(fsid);
        files.writable = writable;
        files.add(34, b"old", FileKind::Regular, 0o644, b"as it was");
        (name.to_string(), Arc::new(files))
    });
    let export = |name: &str, id| Export { name: name.into(), id };
    let exports = vec![export("p", 1), export("p/c", 2), export("p/c@s", 3)];
    (Arc::new(MemoryOpener(files.into_iter().collect())), exports)
}

fn errno<T: std::fmt::Debug>(result: Result<T, impl Into<std::io::Error>>) -> i32 {
    result.map_err(Into::into).unwrap_err().raw_os_error().unwrap()
}

#[test]
fn files_are_created_written_and_modified() {
    use std::io::{Read, Seek, SeekFrom, Write};
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = mounted_tree(&machine, writable_tree(), dir.path(), true) else { return };
    let at = |name: &str| dir.path().join(name);

    std::fs::write(at("new"), b"hello").unwrap();
    assert_eq!(std::fs::read(at("new")).unwrap(), b"hello");
    std::fs::write(at("new"), b"hi").unwrap();
    assert_eq!(std::fs::read(at("new")).unwrap(), b"hi", "cut by O_TRUNC");
    let mut append = std::fs::File::options().append(true).open(at("new")).unwrap();
    append.write_all(b" there").unwrap();
    append.sync_all().unwrap();
    assert_eq!(std::fs::read(at("new")).unwrap(), b"hi there");
    assert_eq!(errno(std::fs::File::options().write(true).create_new(true).open(at("new"))), 17);
    let long: Vec<u8> = (0..3_000_001u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(at("long"), &long).unwrap();
    assert!(std::fs::read(at("long")).unwrap() == long);
    let file = std::fs::File::options().read(true).write(true).open(at("long")).unwrap();
    file.write_all_at(b"middle", 1_000_000).unwrap();
    file.set_len(1_000_010).unwrap();
    let mut tail = Vec::new();
    (&file).seek(SeekFrom::Start(999_998)).unwrap();
    (&file).read_to_end(&mut tail).unwrap();
    assert_eq!(tail, [&long[999_998..1_000_000], b"middle", &long[1_000_006..1_000_010]].concat());

    std::fs::set_permissions(at("new"), std::fs::Permissions::from_mode(0o4711)).unwrap();
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_234_567_890, 987_654_321);
    file.set_modified(time).unwrap();
    assert_eq!(std::fs::metadata(at("new")).unwrap().mode() & 0o7777, 0o4711);
    assert_eq!(std::fs::metadata(at("long")).unwrap().modified().unwrap(), time);

    xattr::set(at("new"), "user.one", b"value").unwrap();
    assert_eq!(xattr::get(at("new"), "user.one").unwrap().unwrap(), b"value");
    xattr::remove(at("new"), "user.one").unwrap();
    assert_eq!(errno(xattr::remove(at("new"), "user.one")), 61);

    use rustix::fs::FallocateFlags as Space;
    rustix::fs::fallocate(&file, Space::PUNCH_HOLE | Space::KEEP_SIZE, 10, 20).unwrap();
    rustix::fs::fallocate(&file, Space::empty(), 1_000_000, 100).unwrap();
    let held = std::fs::read(at("long")).unwrap();
    assert_eq!((held.len(), &held[9..31]), (1_000_100, &[&long[9..10], &[0; 20], &long[30..31]].concat()[..]));
    assert_eq!(errno(rustix::fs::fallocate(&file, Space::COLLAPSE_RANGE, 0, 4096)), 95);

    // An open file survives the removal of its last link.
    std::fs::remove_file(at("long")).unwrap();
    assert_eq!(errno(std::fs::metadata(at("long"))), 2);
    file.write_all_at(b"still", 0).unwrap();
    let mut head = [0; 5];
    file.read_exact_at(&mut head, 0).unwrap();
    assert_eq!((&head, file.metadata().unwrap().nlink()), (b"still", 0));
    drop((file, append));

    assert_eq!(errno(std::fs::write(at("c/.zfs/snapshot/s/old"), b"x")), 30);
    assert_eq!(errno(std::fs::write(at("c/.zfs/snapshot/s/new"), b"x")), 30);
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
}

#[test]
fn times_before_1970_with_a_fraction_survive_utimens_and_getattr() {
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = mounted_tree(&machine, writable_tree(), dir.path(), true) else { return };
    let path = dir.path().join("old");
    let file = std::fs::File::create(&path).unwrap();
    // 1969-12-31 23:59:58.250 and a second before 1900, among others.
    for (seconds, ns) in
        [(-2, 250_000_000), (-1, 1), (-2_208_988_801, 999_999_999), (-5, 0), (0, 7), (1_700_000_000, 3)]
    {
        let whole = Duration::from_secs(i64::unsigned_abs(seconds));
        let second = if seconds < 0 { std::time::UNIX_EPOCH - whole } else { std::time::UNIX_EPOCH + whole };
        let time = second + Duration::from_nanos(ns);
        file.set_times(std::fs::FileTimes::new().set_modified(time).set_accessed(time)).unwrap();
        // The attributes are those of the server's reply to SETATTR.
        let found = std::fs::metadata(&path).unwrap();
        assert_eq!((found.mtime(), found.mtime_nsec() as u64), (seconds, ns));
        assert_eq!((found.atime(), found.atime_nsec() as u64), (seconds, ns));
    }
    drop(file);
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
}

#[test]
fn names_are_created_renamed_and_removed() {
    use rustix::fs::{CWD, FileType, Mode, RenameFlags};
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = mounted_tree(&machine, writable_tree(), dir.path(), true) else { return };
    let at = |name: &str| dir.path().join(name);

    std::fs::create_dir(at("d")).unwrap();
    assert_eq!(errno(std::fs::create_dir(at("d"))), 17);
    std::fs::write(at("d/f"), b"f").unwrap();
    std::fs::hard_link(at("d/f"), at("g")).unwrap();
    assert_eq!(std::fs::metadata(at("g")).unwrap().nlink(), 2);
    std::os::unix::fs::symlink("d/f", at("l")).unwrap();
    assert_eq!(std::fs::read(at("l")).unwrap(), b"f");
    rustix::fs::mknodat(CWD, at("fifo"), FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    if rustix::process::geteuid().is_root() {
        let null = rustix::fs::makedev(1, 3);
        rustix::fs::mknodat(CWD, at("null"), FileType::CharacterDevice, Mode::from_raw_mode(0o666), null).unwrap();
        assert_eq!(std::fs::metadata(at("null")).unwrap().rdev(), null);
        std::fs::write(at("null"), b"into nothing").unwrap();
    }
    assert_eq!(errno(std::fs::remove_dir(at("d"))), 39);
    assert_eq!(errno(std::fs::remove_dir(at("g"))), 20);
    assert_eq!(errno(std::fs::remove_dir(at("c"))), 16, "a file system");
    std::fs::rename(at("d/f"), at("d/h")).unwrap();
    assert_eq!(errno(std::fs::rename(at("d/h"), at("c/h"))), 18);
    assert_eq!(errno(std::fs::rename(at("d"), at("d/in"))), 22);
    let both = |flags| rustix::fs::renameat_with(CWD, at("old"), CWD, at("d/h"), flags);
    assert_eq!(errno(both(RenameFlags::NOREPLACE)), 17);
    both(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (std::fs::read(at("old")).unwrap(), std::fs::read(at("d/h")).unwrap()),
        (b"f".into(), b"as it was".into())
    );
    std::fs::rename(at("old"), at("d/h")).unwrap();
    assert_eq!(std::fs::read(at("d/h")).unwrap(), b"f");
    std::fs::remove_file(at("d/h")).unwrap();
    std::fs::remove_dir(at("d")).unwrap();
    std::fs::remove_file(at("l")).unwrap();
    assert_eq!(std::fs::read(at("g")).unwrap(), b"f");
    let directory = std::fs::File::open(dir.path()).unwrap();
    directory.sync_all().unwrap();
    drop(directory);
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
}

#[test]
fn names_are_cached_until_administration_invalidates_them() {
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tree = Arc::new(writable_tree());
    let Some(mounted) = mounted_tree(&machine, tree.clone(), dir.path(), true) else { return };
    let at = |name: &str| dir.path().join(name);
    std::fs::create_dir(at("d")).unwrap();
    std::fs::write(at("d/f"), b"f").unwrap();
    // The kernel sees its own changes.
    std::fs::rename(at("d/f"), at("d/g")).unwrap();
    assert_eq!(errno(std::fs::metadata(at("d/f"))), 2);
    assert_eq!(std::fs::read(at("d/g")).unwrap(), b"f");
    // Without the kernel's knowledge a name changes to another file, as in a rollback.
    let rq = Request::internal("test");
    let cred = Cred::root();
    machine.block_on(async {
        let d = tree.lookup(&rq, tree.root(), b"d").await.unwrap();
        tree.rename(&rq, &cred, DirName { dir: d, name: b"g" }, DirName { dir: d, name: b"h" }, RenameMode::Replace)
            .await
            .unwrap();
    });
    std::thread::sleep(Duration::from_millis(1200));
    assert!(std::fs::metadata(at("d/g")).is_ok(), "believed for good");
    tree.renew(tree.exports());
    std::thread::sleep(Duration::from_millis(100));
    assert!(std::fs::metadata(at("d/g")).is_ok(), "nothing changed");
    let mut fewer = tree.exports();
    fewer.truncate(1);
    tree.renew(fewer);
    let is_refused = (0..500).any(|_| {
        std::thread::sleep(Duration::from_millis(10));
        std::fs::metadata(at("d/g")).is_err()
    });
    assert!(is_refused, "taken back");
    assert_eq!(std::fs::read(at("d/h")).unwrap(), b"f");
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
}

#[test]
fn direct_writes_are_visible_through_the_page_cache() {
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = mounted_tree(&machine, writable_tree(), dir.path(), true) else { return };
    let path = dir.path().join("f");
    let both = std::fs::File::options().read(true).write(true).create(true).truncate(true).open(&path).unwrap();
    both.write_all_at(&[b'a'; 10_000], 0).unwrap();
    let read = |at: u64| {
        let mut byte = [0];
        both.read_exact_at(&mut byte, at).map(|()| byte[0])
    };
    assert_eq!((read(0).unwrap(), read(9_999).unwrap()), (b'a', b'a'), "kept in pages");
    let only = std::fs::File::options().write(true).open(&path).unwrap();
    only.write_all_at(b"bb", 4_095).unwrap();
    assert_eq!([4_094, 4_095, 4_096, 4_097].map(|at| read(at).unwrap()), *b"abba");
    let mut append = std::fs::File::options().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut append, b"end").unwrap();
    assert_eq!((read(10_002).unwrap(), both.metadata().unwrap().len()), (b'd', 10_003));
    both.write_all_at(b"c", 10_000).unwrap();
    only.set_len(10_001).unwrap();
    assert_eq!((read(10_000).unwrap(), read(10_001).is_err()), (b'c', true));
    drop((both, only, append));
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
}

#[test]
fn a_mount_ends_without_an_error_while_requests_are_in_progress() {
    let machine = Production::default().build().unwrap();
    for _ in 0..200 {
        let dir = tempfile::tempdir().unwrap();
        let Some(mounted) = mounted_tree(&machine, writable_tree(), dir.path(), true) else { return };
        let files = ["f", "g", "h"].map(|name| std::fs::File::create(dir.path().join(name)).unwrap());
        files.iter().for_each(|mut file| std::io::Write::write_all(&mut file, b"data").unwrap());
        // The kernel releases files on its own, after `close`.
        drop(files);
        mounted.unmounter().unmount().unwrap();
        mounted.join().unwrap();
    }
}

#[test]
fn a_mount_in_use_is_detached() {
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let Some(mounted) = mounted(&machine, dir.path()) else { return };
    let file = std::fs::File::open(dir.path().join("big")).unwrap();
    assert!(mounted.unmounter().unmount().unwrap());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    drop(file);
    mounted.join().unwrap();
}
