use super::memory::{MemoryFiles, MemoryOpener};
use super::synthetic_entries::Entries;
use super::*;
use crate::Snapdir;
use crate::change::DirName;
use futures_util::FutureExt;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};

fn export(name: &str, id: u64) -> Export {
    Export { name: name.into(), id }
}

/// `p` contains a file, a directory `a` (covered by child `p/a`) and the child `p/open`; `p/locked` has no key.
fn tree() -> Tree {
    let mut root = MemoryFiles::new(1);
    root.add(34, b"file", FileKind::Regular, 0o644, b"hello");
    root.add(34, b"a", FileKind::Directory, 0o755, b"");
    let mut child = MemoryFiles::new(2);
    let dir = child.add(34, b"dir", FileKind::Directory, 0o755, b"");
    child.add(dir, b"deep", FileKind::Regular, 0o644, b"deep");
    let mut opener = MemoryOpener::default();
    opener.0.insert("p".into(), Arc::new(root));
    for name in ["p/a", "p/open", "p/a@s1", "p/a@s2"] {
        let mut files = MemoryFiles::new(3);
        files.snapdir = if name == "p/open" { Snapdir::Visible } else { Snapdir::Hidden };
        files.add(34, name.as_bytes().rsplit(|b| *b == b'/').next().unwrap(), FileKind::Regular, 0o644, b"x");
        opener.0.insert(name.into(), Arc::new(files));
    }
    opener.0.insert("p/a".into(), Arc::new(child));
    let exports = ["p", "p/locked", "p/a@s2", "p/a", "p/open", "p/a@s1", "q/orphan"];
    let exports = exports.iter().enumerate().map(|(i, n)| export(n, i as u64 + 10)).collect();
    Tree::new(Arc::new(opener), exports)
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("a tree in memory never waits")
}

fn walk(tree: &Tree, path: &str) -> Result<Node, FileError> {
    let rq = Request::internal("test");
    path.split('/').filter(|p| !p.is_empty()).try_fold(tree.root(), |n, p| wait(tree.lookup(&rq, n, p.as_bytes())))
}

fn names(tree: &Tree, path: &str, page: usize) -> Vec<String> {
    let rq = Request::internal("test");
    let node = walk(tree, path).unwrap();
    let mut out = Vec::new();
    let mut cookie = 0;
    loop {
        let entries = wait(tree.read_dir(&rq, node, cookie, page)).unwrap();
        let full = entries.len() >= page;
        for entry in entries {
            assert!(entry.cookie != 0 && entry.cookie < 1 << 63);
            cookie = entry.cookie;
            out.push(String::from_utf8(entry.name).unwrap());
        }
        if !full {
            return out;
        }
    }
}

#[test]
fn children_cover_directories_and_names_are_unique() {
    let tree = tree();
    for page in [1, 2, 3, 100] {
        assert_eq!(names(&tree, "", page), [".", "..", "locked", "a", "open", "file"]);
        assert_eq!(names(&tree, "a", page), [".", "..", "dir"]);
        assert_eq!(names(&tree, "open", page), [".", "..", ".zfs", "open"]);
        assert_eq!(names(&tree, "a/.zfs/shadow", page).len(), 4);
        assert_eq!(names(&tree, "a/.zfs", page), [".", "..", "snapshot"]);
        assert_eq!(names(&tree, "a/.zfs/snapshot", page), [".", "..", "s2", "s1"]);
        assert_eq!(names(&tree, "a/.zfs/snapshot/s1", page), [".", "..", "a@s1"]);
    }
}

#[test]
fn dot_dot_crosses_file_system_boundaries() {
    let tree = tree();
    for (path, same) in [
        ("a/dir/..", "a"),
        ("a/..", ""),
        ("..", ""),
        ("a/dir/deep/..", "a/dir"),
        ("a/.zfs/..", "a"),
        ("a/.zfs/snapshot/..", "a/.zfs"),
        ("a/.zfs/snapshot/s2/..", "a/.zfs/snapshot"),
        ("a/.", "a"),
        ("a/.zfs/.", "a/.zfs"),
        ("locked/..", ""),
    ] {
        assert_eq!(walk(&tree, path).unwrap(), walk(&tree, same).unwrap(), "{path}");
    }
}

#[test]
fn missing_names_return_errors() {
    let tree = tree();
    let rq = Request::internal("test");
    for path in ["b", "a/.zfs/x", "a/.zfs/snapshot/s3", "a/.zfs/snapshot/s1/.zfs", "a/dir/.zfs"] {
        assert_eq!(walk(&tree, path), Err(FileError::NotFound), "{path}");
    }
    assert!(matches!(walk(&tree, "file/x"), Err(FileError::NotDirectory { .. })));
    assert!(matches!(walk(&tree, "file/."), Err(FileError::NotDirectory { .. })));
    let long = "n".repeat(256);
    assert_eq!(walk(&tree, &long), Err(FileError::NameTooLong { len: 256 }));
    let nowhere = Node { branch: 99, object: 1 };
    assert!(matches!(wait(tree.attributes(&rq, nowhere)), Err(FileError::Stale { .. })));
    let file = walk(&tree, "file").unwrap();
    assert!(wait(tree.by_file_id(&rq, file, 7)).is_ok());
    assert!(matches!(wait(tree.by_file_id(&rq, file, 8)), Err(FileError::Stale { .. })));
    assert!(matches!(wait(tree.read_dir(&rq, file, 0, 10)), Err(FileError::NotDirectory { .. })));
    let control = walk(&tree, "a/.zfs").unwrap();
    assert!(matches!(wait(tree.read(&rq, control, 0, 10)), Err(FileError::IsDirectory { .. })));
}

/// Programs that copy or compare directories must see an error, and no empty directory.
#[test]
fn a_file_system_without_its_key_is_no_empty_directory() {
    use crate::{Cred, New, NewKind};
    let rq = Request::internal("test");
    let mut opener = MemoryOpener::default();
    for name in ["p", "p/locked/open"] {
        opener.0.insert(name.into(), Arc::new(MemoryFiles::new(1)));
    }
    let exports = ["p", "p/locked", "p/locked@s", "p/locked/open"];
    let exports = exports.iter().enumerate().map(|(i, n)| export(n, i as u64 + 10)).collect();
    let tree = Tree::new(Arc::new(opener), exports);
    let locked = walk(&tree, "locked").unwrap();
    let root = wait(tree.attributes(&rq, locked)).unwrap();
    assert_eq!((root.kind, root.mode), (FileKind::Directory, 0o111));
    assert_eq!(names(&tree, "", 10), [".", "..", "locked"]);
    for cookie in [0, 1, 1 << 62 | 2] {
        assert_eq!(wait(tree.read_dir(&rq, locked, cookie, 10)), Err(FileError::NoKey));
    }
    for path in ["locked/x", "locked/.zfs", "locked/.zfs/snapshot/s/x", "locked/open/../x"] {
        assert_eq!(walk(&tree, path), Err(FileError::NoKey), "{path}");
    }
    assert_eq!(names(&tree, "locked/open", 10), [".", ".."], "its key is loaded");
    assert_eq!((walk(&tree, "locked/.."), walk(&tree, "locked/.")), (Ok(tree.root()), Ok(locked)));
    // Handles of files and directories that clients had before.
    for object in [34, 100, Node::CONTROL, Node::SNAPSHOTS] {
        let node = Node { object, ..locked };
        assert_eq!(wait(tree.attributes(&rq, node)), Err(FileError::NoKey), "{object}");
        assert_eq!(wait(tree.read_dir(&rq, node, 0, 10)), Err(FileError::NoKey), "{object}");
        assert_eq!(wait(tree.by_file_id(&rq, node, 7)), Err(FileError::NoKey), "{object}");
    }
    assert_eq!(wait(tree.read(&rq, locked, 0, 10)), Err(FileError::NoKey));
    assert_eq!(wait(tree.usage(&rq, locked)), Err(FileError::NoKey));
    assert_eq!(wait(spelling(&tree, &rq, locked, b"x")), Err(FileError::NoKey));
    let new = New::of(NewKind::Regular, 0o644);
    let made = wait(tree.create(&rq, &Cred::new(0, 0, &[]), locked, b"x", &new));
    assert_eq!(made.map(drop), Err(FileError::NoKey));
    assert_eq!(FileError::NoKey.errno(), 13, "EACCES, as OpenZFS");
}

#[test]
fn changes_stay_in_the_file_system_of_the_node() {
    use crate::{Cred, New, NewKind, RenameMode, SetAttributes, WriteAt};
    let rq = Request::internal("test");
    let cred = Cred::new(10, 20, &[]);
    let mut opener = MemoryOpener::default();
    for (name, writable) in [("p", true), ("p/a", true), ("p@s", false)] {
        let mut files = MemoryFiles::new(1);
        files.add(34, b"a", FileKind::Directory, 0o755, b"");
        files.writable = writable;
        opener.0.insert(name.into(), Arc::new(files));
    }
    let tree = Tree::new(Arc::new(opener), vec![export("p", 1), export("p/a", 2), export("p@s", 3)]);
    let root = tree.root();
    let child = walk(&tree, "a").unwrap();
    let file = New::of(NewKind::Regular, 0o640);
    let dir = New::of(NewKind::Directory, 0o750);
    let snapshot = walk(&tree, ".zfs/snapshot/s").unwrap();
    assert_eq!(wait(tree.create(&rq, &cred, snapshot, b"f", &file)), Err(FileError::ReadOnly));
    assert_eq!(wait(tree.create(&rq, &cred, root, b"a", &dir)), Err(FileError::Exists));
    assert_eq!(wait(tree.create(&rq, &cred, root, b".zfs", &dir)), Err(FileError::Exists));
    assert_eq!(wait(tree.remove_dir(&rq, &cred, root, b"a")), Err(FileError::Busy));
    let (node, made) = wait(tree.create(&rq, &cred, root, b"f", &file)).unwrap();
    assert_eq!((made.uid, made.gid, made.mode, made.links), (10, 20, 0o640, 1));
    wait(tree.write(&rq, &cred, node, WriteAt::Offset(3), Bytes::from_static(b"abc"))).unwrap();
    let cut = wait(tree.set_attributes(&rq, &cred, node, &SetAttributes::size(5))).unwrap();
    assert_eq!(cut.size_bytes, 5);
    assert_eq!(&wait(tree.read(&rq, node, 0, 9)).unwrap()[0][..], b"\0\0\0ab");
    assert_eq!(
        wait(tree.rename(
            &rq,
            &cred,
            DirName { dir: root, name: b"f" },
            DirName { dir: child, name: b"f" },
            RenameMode::Replace
        )),
        Err(FileError::CrossDevice)
    );
    let (inside, _) = wait(tree.create(&rq, &cred, root, b"d", &dir)).unwrap();
    wait(tree.rename(
        &rq,
        &cred,
        DirName { dir: root, name: b"f" },
        DirName { dir: inside, name: b"g" },
        RenameMode::NoReplace,
    ))
    .unwrap();
    assert_eq!(wait(tree.remove_dir(&rq, &cred, root, b"d")).unwrap_err().errno(), 39);
    assert!(
        wait(tree.rename(
            &rq,
            &cred,
            DirName { dir: root, name: b"d" },
            DirName { dir: inside, name: b"d" },
            RenameMode::Replace
        ))
        .is_err(),
        "a cycle"
    );
    assert_eq!(wait(tree.link(&rq, &cred, node, root, b"h")).unwrap().links, 2);
    wait(tree.hold(&rq, node)).unwrap();
    wait(tree.remove(&rq, &cred, root, b"h")).unwrap();
    wait(tree.remove(&rq, &cred, inside, b"g")).unwrap();
    assert_eq!(wait(tree.attributes(&rq, node)).unwrap().links, 0, "the file is held");
    wait(tree.release(&rq, node)).unwrap();
    assert!(wait(tree.attributes(&rq, node)).is_err());
    wait(tree.remove_dir(&rq, &cred, root, b"d")).unwrap();
    assert_eq!(wait(tree.attributes(&rq, root)).unwrap().size_bytes, 3);
}

#[test]
fn remaining_exports_keep_their_nodes() {
    let mut opener = MemoryOpener::default();
    for name in ["p", "p/a", "p/b", "p/new", "p/b@s"] {
        let mut files = MemoryFiles::new(3);
        files.add(34, name.as_bytes().rsplit(|b| *b == b'/').next().unwrap(), FileKind::Regular, 0o644, b"x");
        opener.0.insert(name.into(), Arc::new(files));
    }
    let tree = Tree::new(Arc::new(opener), vec![export("p", 1), export("p/a", 2)]);
    let seen = Arc::new(AtomicUsize::new(0));
    let counted = seen.clone();
    tree.observers().watch_exports(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    tree.renew(tree.exports());
    assert_eq!(seen.load(Ordering::Relaxed), 0, "nothing changed");
    let a = walk(&tree, "a").unwrap();
    let file = walk(&tree, "a/a").unwrap();
    // `p/a` is renamed to `p/b` and has a snapshot; `p/new` was created.
    tree.renew(vec![export("p", 1), export("p/new", 3), export("p/b", 2), export("p/b@s", 4)]);
    assert_eq!(names(&tree, "", 10), [".", "..", "b", "new", "p"]);
    assert_eq!((walk(&tree, "b").unwrap(), walk(&tree, "b/a").unwrap()), (a, file));
    assert_eq!(tree.export_of(a), Some(export("p/b", 2)));
    let new = walk(&tree, "new").unwrap();
    assert_eq!(names(&tree, "b/.zfs/snapshot", 10), [".", "..", "s"]);
    // Both are removed; one is created again with another ID.
    tree.renew(vec![export("p", 1), export("p/b", 5)]);
    let rq = Request::internal("test");
    assert!(matches!(wait(tree.attributes(&rq, file)), Err(FileError::Stale { .. })));
    assert!(matches!(wait(tree.attributes(&rq, new)), Err(FileError::Stale { .. })));
    assert_eq!(tree.branch_by_id(2), None);
    let again = walk(&tree, "b").unwrap();
    assert!(again.branch != a.branch && again.branch != new.branch);
    assert_eq!((tree.exports().len(), seen.load(Ordering::Relaxed)), (2, 2));
}

/// Random changes below some file systems leave the same tree as replacing all exports.
#[test]
fn changes_below_file_systems_equal_replacing_all() {
    let opener = || Arc::new(MemoryOpener::default());
    let mut dice = weir_sim::Rng::new(5);
    let mut steps = 0;
    for _ in 0..20 {
        let mut all = BTreeMap::from([("p".to_owned(), 1)]);
        let listed = |all: &BTreeMap<String, u64>| all.iter().map(|(name, id)| export(name, *id)).collect::<Vec<_>>();
        let tree = Tree::new(opener(), listed(&all));
        for next_id in 2..62 {
            let heads: Vec<String> = all.keys().filter(|name| !name.contains('@')).cloned().collect();
            let top = heads[dice.below(heads.len() as u64) as usize].clone();
            let is_below = |name: &str, top: &str| {
                name.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', '@']))
            };
            let mut tops = vec![top.clone()];
            match dice.below(4) {
                0 => drop(all.insert(format!("{top}@s{}", dice.below(4)), next_id)),
                1 if top != "p" => all.retain(|name, _| !is_below(name, &top)),
                2 if top != "p" => {
                    let to = format!("p/r{next_id}");
                    let moved: Vec<_> = all.extract_if(.., |name, _| is_below(name, &top)).collect();
                    all.extend(moved.into_iter().map(|(name, id)| (format!("{to}{}", &name[top.len()..]), id)));
                    tops.push(to);
                }
                _ => {
                    let name = format!("{top}/c{}", dice.below(5));
                    all.entry(name.clone()).or_insert(next_id);
                    tops = vec![name];
                }
            }
            let inside = |name: &str| tops.iter().any(|top| is_below(name, top));
            tree.renew_below(&tops, listed(&all).into_iter().filter(|export| inside(&export.name)).collect());
            let mut found = tree.exports();
            found.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(found, listed(&all), "after a change below {tops:?}");
            let fresh = Tree::new(opener(), listed(&all));
            for (name, id) in &all {
                let branch_of = |tree: &Tree| {
                    let namespace = tree.namespace();
                    namespace.branch(namespace.index_of(*id).unwrap()).unwrap().clone()
                };
                let here = branch_of(&tree);
                let there = branch_of(&fresh);
                let lists = |branch: &MountedDataset| [&branch.children, &branch.snapshots].map(Entries::names);
                assert_eq!(lists(&here), lists(&there), "{name}");
                assert_eq!(here.parent.is_some(), there.parent.is_some());
                steps += 1;
            }
        }
    }
    assert!(steps > 5000, "{steps} exports compared");
}

/// Snapshots are created and destroyed during a listing: each that exists throughout is listed exactly once.
#[test]
fn listings_resume_while_exports_change() {
    let mut opener = MemoryOpener::default();
    opener.0.insert("p".into(), Arc::new(MemoryFiles::new(1)));
    let opener = Arc::new(opener);
    let exports = |snapshots: &[u64]| {
        let named = |id: &u64| export(&format!("p@s{id}"), *id);
        std::iter::once(export("p", 1)).chain(snapshots.iter().map(named)).collect::<Vec<_>>()
    };
    let rq = Request::internal("test");
    for page in [1, 2, 3] {
        let mut tree = Tree::new(opener.clone(), exports(&[20, 30, 40, 50, 60]));
        let mut seen = Vec::new();
        let mut cookie = 0;
        for step in 0.. {
            let entries = wait(tree.read_dir(&rq, walk(&tree, ".zfs/snapshot").unwrap(), cookie, page)).unwrap();
            cookie = entries.last().map_or(cookie, |last| last.cookie);
            seen.extend(entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()));
            if entries.len() < page {
                break;
            }
            // Earlier snapshots are destroyed and others created; at the end after a restart, which changes all
            // indices.
            match step {
                0 | 1 => tree.renew(exports(&[7, 8, 9, 30, 40, 50, 60])),
                2 => tree.renew(exports(&[40, 50, 60])),
                _ => tree = Tree::new(opener.clone(), exports(&[55, 40, 5, 60, 50])),
            }
        }
        for name in [".", "..", "s40", "s50", "s60"] {
            assert_eq!(seen.iter().filter(|other| *other == name).count(), 1, "{name} in {seen:?}");
        }
    }
}

#[test]
fn snapshot_directories_can_be_disabled() {
    let mut files = MemoryFiles::new(1);
    files.snapdir = Snapdir::Disabled;
    let opener = MemoryOpener(BTreeMap::from([("p".to_owned(), Arc::new(files))]));
    let tree = Tree::new(Arc::new(opener), vec![export("p", 1), export("p@s", 2)]);
    assert_eq!(walk(&tree, ".zfs"), Err(FileError::NotFound));
    let rq = Request::internal("test");
    for object in [Node::CONTROL, Node::SNAPSHOTS] {
        let node = Node { branch: 0, object };
        assert_eq!(wait(tree.lookup(&rq, node, b"s")), Err(FileError::NotFound));
        assert_eq!(wait(tree.read_dir(&rq, node, 0, 9)), Err(FileError::NotFound));
    }
}

/// Changes made before a file system became read-only can still be made stable.
#[test]
fn sync_works_on_a_read_only_file_system() {
    let files = Arc::new(MemoryFiles::new(1));
    let opener = MemoryOpener(BTreeMap::from([("p".to_owned(), files.clone())]));
    let tree = Tree::new(Arc::new(opener), vec![export("p", 1)]);
    let rq = Request::internal("test");
    wait(tree.sync(&rq, tree.root())).unwrap();
    assert_eq!((files.writable, files.syncs()), (false, 1));
}

#[test]
fn snapshots_have_second_names_by_their_time() {
    let mut opener = MemoryOpener::default();
    let times = [("p", 0), ("p@old", 1_000_000_000), ("p@twin", 1_000_000_000), ("p@new", 1_795_513_737)];
    let mut exports = Vec::new();
    for (id, (name, seconds)) in (1..).zip(times) {
        let mut files = MemoryFiles::new(id);
        files.change(34, |a| a.crtime_ns = i128::from(seconds) * 1_000_000_000);
        opener.0.insert(name.into(), Arc::new(files));
        exports.push(export(name, id));
    }
    let tree = Tree::new(Arc::new(opener), exports.clone());
    let [old, twin, new] =
        ["@GMT-2001.09.09-01.46.40", "@GMT-2001.09.09-01.46.41", "@GMT-2026.11.24-09.48.57"].map(String::from);
    let mut shown = names(&tree, ".zfs/shadow", 10);
    shown.sort();
    assert_eq!(shown, [".", "..", &old, &twin, &new]);
    for (shadow, name) in [(&old, "old"), (&twin, "twin"), (&new, "new")] {
        let by_time = walk(&tree, &format!(".zfs/shadow/{shadow}")).unwrap();
        assert_eq!(by_time, walk(&tree, &format!(".zfs/snapshot/{name}")).unwrap());
    }
    assert!(matches!(walk(&tree, ".zfs/shadow/@GMT-2001.09.09-01.46.42"), Err(FileError::NotFound)));
    assert_eq!(names(&tree, ".zfs", 10), [".", "..", "snapshot"], "not listed");
    // After the first of the twins is destroyed, the second has the name of its own second.
    tree.renew(exports.into_iter().filter(|export| export.name != "p@old").collect());
    let by_time = walk(&tree, &format!(".zfs/shadow/{old}")).unwrap();
    assert_eq!(by_time, walk(&tree, ".zfs/snapshot/twin").unwrap());
}

#[test]
fn a_bounded_number_of_file_systems_stays_open() {
    let rq = Request::internal("test");
    let mut opener = MemoryOpener::default();
    let names: Vec<String> = (0..opened::MAX_OPENED + 70).map(|n| format!("p/d{n:03}")).collect();
    for name in std::iter::once("p").chain(names.iter().map(String::as_str)) {
        let mut files = MemoryFiles::new(1);
        files.writable = true;
        files.add(34, b"file", FileKind::Regular, 0o644, name.as_bytes());
        opener.0.insert(name.into(), Arc::new(files));
    }
    let exports = std::iter::once("p").chain(names.iter().map(String::as_str));
    let tree = Tree::new(Arc::new(opener), exports.enumerate().map(|(n, name)| export(name, n as u64 + 1)).collect());
    let used = "p/d000/file".strip_prefix("p").unwrap();
    for name in &names {
        walk(&tree, &format!("{}/file", name.strip_prefix("p").unwrap())).unwrap();
        walk(&tree, used).unwrap();
    }
    let is_open = |index: u32| tree.namespace().branch(index).is_some_and(|branch| branch.opened.lock().is_some());
    let open = (0..=names.len() as u32).filter(|index| is_open(*index)).count();
    assert_eq!(open, opened::MAX_OPENED, "of {}", names.len() + 1);
    let of_used = walk(&tree, used).unwrap();
    assert!(is_open(of_used.branch), "it was accessed between all others");
    // One that was given up opens again.
    let closed = (0..=names.len() as u32).find(|index| !is_open(*index)).unwrap();
    let root = Node { branch: closed, object: Node::ROOT };
    let file = wait(tree.lookup(&rq, root, b"file")).unwrap();
    let found = wait(tree.read(&rq, file, 0, 99)).unwrap().concat();
    assert_eq!(found, tree.export_of(root).unwrap().name.as_bytes());
}
