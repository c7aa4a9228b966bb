//! A tree in memory, mounted for real and looked at through the kernel. Skips where there is no FUSE.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use weir_files::FileKind;
use weir_files::tree::memory::{MemoryFiles, MemoryOpener};
use weir_files::tree::{Member, Tree};
use weir_fuse::{MountOptions, Mounted, mount};
use weir_machine::{Machine, Production};

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
    let member = |name: &str, id| Member { name: name.into(), id };
    Tree::new(Arc::new(MemoryOpener(files)), vec![member("p", 1), member("p/c", 2), member("p/c@s", 3)])
}

/// A mount, or `None` with one line where FUSE can't be had.
fn mounted(machine: &Machine, path: &Path) -> Option<Mounted> {
    let options = MountOptions { source: "p".into(), allow_other: rustix::process::geteuid().is_root(), threads: 2 };
    match mount(tree(), machine.tasks.clone(), path, &options) {
        Ok(mounted) => Some(mounted),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

#[test]
fn a_mounted_tree_looks_as_it_should() {
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
