use super::memory::{MemoryFiles, MemoryOpener};
use super::*;
use crate::Snapdir;
use futures_util::FutureExt;
use std::sync::atomic::{AtomicUsize, Ordering};

fn member(name: &str, id: u64) -> Member {
    Member { name: name.into(), id }
}

/// `p` holds a file, a directory `a` (which child `p/a` covers) and the child `p/open`; `p/locked` has no key.
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
    let members = ["p", "p/locked", "p/a@s2", "p/a", "p/open", "p/a@s1", "q/orphan"];
    let members = members.iter().enumerate().map(|(i, n)| member(n, i as u64 + 10)).collect();
    Tree::new(Arc::new(opener), members)
}

fn wait<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("memory answers at once")
}

fn walk(tree: &Tree, path: &str) -> Result<Node, FileError> {
    let rq = Request::internal("test");
    path.split('/').filter(|p| !p.is_empty()).try_fold(tree.root(), |n, p| wait(tree.lookup(&rq, n, p.as_bytes())))
}

fn names(tree: &Tree, path: &str, page: usize) -> Vec<String> {
    let rq = Request::internal("test");
    let node = walk(tree, path).unwrap();
    let (mut out, mut cookie) = (Vec::new(), 0);
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
fn children_cover_directories_and_no_name_comes_twice() {
    let tree = tree();
    for page in [1, 2, 3, 100] {
        assert_eq!(names(&tree, "", page), [".", "..", "locked", "a", "open", "file"]);
        assert_eq!(names(&tree, "a", page), [".", "..", "dir"]);
        assert_eq!(names(&tree, "open", page), [".", "..", ".zfs", "open"]);
        assert_eq!(names(&tree, "a/.zfs", page), [".", "..", "snapshot"]);
        assert_eq!(names(&tree, "a/.zfs/snapshot", page), [".", "..", "s2", "s1"]);
        assert_eq!(names(&tree, "a/.zfs/snapshot/s1", page), [".", "..", "a@s1"]);
        assert_eq!(names(&tree, "locked", page), [".", ".."]);
    }
}

#[test]
fn dot_dot_leads_back_over_every_seam() {
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
fn what_is_not_there_says_so() {
    let tree = tree();
    let rq = Request::internal("test");
    for path in ["b", "a/.zfs/x", "a/.zfs/snapshot/s3", "a/.zfs/snapshot/s1/.zfs", "locked/x", "a/dir/.zfs"] {
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

#[test]
fn changes_go_to_the_file_system_of_the_node_and_stay_in_it() {
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
    let tree = Tree::new(Arc::new(opener), vec![member("p", 1), member("p/a", 2), member("p@s", 3)]);
    let (root, child) = (tree.root(), walk(&tree, "a").unwrap());
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
        wait(tree.rename(&rq, &cred, (root, b"f"), (child, b"f"), RenameMode::Replace)),
        Err(FileError::CrossDevice)
    );
    let (inside, _) = wait(tree.create(&rq, &cred, root, b"d", &dir)).unwrap();
    wait(tree.rename(&rq, &cred, (root, b"f"), (inside, b"g"), RenameMode::NoReplace)).unwrap();
    assert_eq!(wait(tree.remove_dir(&rq, &cred, root, b"d")).unwrap_err().errno(), 39);
    assert!(wait(tree.rename(&rq, &cred, (root, b"d"), (inside, b"d"), RenameMode::Replace)).is_err(), "a circle");
    assert_eq!(wait(tree.link(&rq, &cred, node, root, b"h")).unwrap().links, 2);
    wait(tree.hold(&rq, node)).unwrap();
    wait(tree.remove(&rq, &cred, root, b"h")).unwrap();
    wait(tree.remove(&rq, &cred, inside, b"g")).unwrap();
    assert_eq!(wait(tree.attributes(&rq, node)).unwrap().links, 0, "it is held");
    wait(tree.release(&rq, node)).unwrap();
    assert!(wait(tree.attributes(&rq, node)).is_err());
    wait(tree.remove_dir(&rq, &cred, root, b"d")).unwrap();
    assert_eq!(wait(tree.attributes(&rq, root)).unwrap().size_bytes, 3);
}

#[test]
fn members_come_and_go_and_the_others_keep_their_nodes() {
    let mut opener = MemoryOpener::default();
    for name in ["p", "p/a", "p/b", "p/new", "p/b@s"] {
        let mut files = MemoryFiles::new(3);
        files.add(34, name.as_bytes().rsplit(|b| *b == b'/').next().unwrap(), FileKind::Regular, 0o644, b"x");
        opener.0.insert(name.into(), Arc::new(files));
    }
    let tree = Tree::new(Arc::new(opener), vec![member("p", 1), member("p/a", 2)]);
    let told = Arc::new(AtomicUsize::new(0));
    let counted = told.clone();
    tree.watch(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    tree.renew(tree.members());
    assert_eq!(told.load(Ordering::Relaxed), 0, "nothing changed");
    let (a, file) = (walk(&tree, "a").unwrap(), walk(&tree, "a/a").unwrap());
    // `p/a` is called `p/b` now, and has a snapshot; `p/new` came.
    tree.renew(vec![member("p", 1), member("p/new", 3), member("p/b", 2), member("p/b@s", 4)]);
    assert_eq!(names(&tree, "", 10), [".", "..", "b", "new", "p"]);
    assert_eq!((walk(&tree, "b").unwrap(), walk(&tree, "b/a").unwrap()), (a, file));
    assert_eq!(tree.member(a), Some(member("p/b", 2)));
    let new = walk(&tree, "new").unwrap();
    assert_eq!(names(&tree, "b/.zfs/snapshot", 10), [".", "..", "s"]);
    // Both go; one comes back under another number.
    tree.renew(vec![member("p", 1), member("p/b", 5)]);
    let rq = Request::internal("test");
    assert!(matches!(wait(tree.attributes(&rq, file)), Err(FileError::Stale { .. })));
    assert!(matches!(wait(tree.attributes(&rq, new)), Err(FileError::Stale { .. })));
    assert_eq!(tree.branch_by_id(2), None);
    let again = walk(&tree, "b").unwrap();
    assert!(again.branch != a.branch && again.branch != new.branch);
    assert_eq!((tree.members().len(), told.load(Ordering::Relaxed)), (2, 2));
}

/// Snapshots come and go while somebody lists them, an entry at a time: each that was there all the time is told once.
#[test]
fn listings_go_on_where_they_were() {
    let mut opener = MemoryOpener::default();
    opener.0.insert("p".into(), Arc::new(MemoryFiles::new(1)));
    let opener = Arc::new(opener);
    let members = |snapshots: &[u64]| {
        let named = |id: &u64| member(&format!("p@s{id}"), *id);
        std::iter::once(member("p", 1)).chain(snapshots.iter().map(named)).collect::<Vec<_>>()
    };
    let rq = Request::internal("test");
    for page in [1, 2, 3] {
        let mut tree = Tree::new(opener.clone(), members(&[20, 30, 40, 50, 60]));
        let (mut told, mut cookie) = (Vec::new(), 0);
        for step in 0.. {
            let entries = wait(tree.read_dir(&rq, walk(&tree, ".zfs/snapshot").unwrap(), cookie, page)).unwrap();
            cookie = entries.last().map_or(cookie, |last| last.cookie);
            told.extend(entries.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()));
            if entries.len() < page {
                break;
            }
            // Those before the place go, and others come; in the end after a restart, where all get other indices.
            match step {
                0 | 1 => tree.renew(members(&[7, 8, 9, 30, 40, 50, 60])),
                2 => tree.renew(members(&[40, 50, 60])),
                _ => tree = Tree::new(opener.clone(), members(&[55, 40, 5, 60, 50])),
            }
        }
        for name in [".", "..", "s40", "s50", "s60"] {
            assert_eq!(told.iter().filter(|other| *other == name).count(), 1, "{name} in {told:?}");
        }
    }
}

#[test]
fn there_may_be_no_way_to_snapshots() {
    let mut files = MemoryFiles::new(1);
    files.snapdir = Snapdir::Disabled;
    let opener = MemoryOpener(BTreeMap::from([("p".to_owned(), Arc::new(files))]));
    let tree = Tree::new(Arc::new(opener), vec![member("p", 1), member("p@s", 2)]);
    assert_eq!(walk(&tree, ".zfs"), Err(FileError::NotFound));
    let rq = Request::internal("test");
    for object in [Node::CONTROL, Node::SNAPSHOTS] {
        let node = Node { branch: 0, object };
        assert_eq!(wait(tree.lookup(&rq, node, b"s")), Err(FileError::NotFound));
        assert_eq!(wait(tree.read_dir(&rq, node, 0, 9)), Err(FileError::NotFound));
    }
}

/// What was changed before a file system became read-only can still be made stable.
#[test]
fn stable_is_stable_where_nothing_may_change_any_more() {
    let files = Arc::new(MemoryFiles::new(1));
    let opener = MemoryOpener(BTreeMap::from([("p".to_owned(), files.clone())]));
    let tree = Tree::new(Arc::new(opener), vec![member("p", 1)]);
    let rq = Request::internal("test");
    wait(tree.sync(&rq, tree.root())).unwrap();
    assert_eq!((files.writable, files.syncs()), (false, 1));
}
