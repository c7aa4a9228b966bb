//! Names in file systems with each case sensitivity.

use super::operations::{directory, file};
use super::*;
use crate::change::DirName;

/// A directory in a file system with this case sensitivity.
async fn with_case(rq: &Request, machine: &Machine, fs: &FileSystem, case: u64) -> (Arc<FileSystem>, ObjectId) {
    let set = fs.objects().clone();
    let tx = fs.begin(rq, 0, SpaceReserve::Normal).await.unwrap();
    zap::put_word(rq, &set, &tx, ObjectId(master::OBJECT), master::CASESENSITIVITY, case).await.unwrap();
    drop(tx);
    let opening = Opening { machine: machine.clone(), zil: None, settings: Settings::default() };
    let fs = FileSystem::open_writable(rq, set, Identity::default(), opening).await.unwrap();
    let dir = fs.names().create(rq, &Cred::root(), ROOT, b"d", &directory(0o755)).await.unwrap().object;
    (fs, dir)
}

async fn names(rq: &Request, fs: &FileSystem, dir: ObjectId) -> Vec<Vec<u8>> {
    let mut names: Vec<_> =
        fs.directories().read_dir(rq, dir, 0, 99).await.unwrap().into_iter().map(|entry| entry.name).collect();
    names.sort();
    names
}

#[test]
fn case_sensitivity_of_names() {
    in_world(Settings::default(), async |rq, machine, fs| {
        let root = &Cred::root();
        // Mixed: both names may be links of one file and stay separate.
        let (mixed, dir) = with_case(rq, machine, &fs, 2).await;
        let id = mixed.names().create(rq, root, dir, b"name", &file(0o600)).await.unwrap().object;
        mixed.names().link(rq, root, id, dir, b"NAME").await.unwrap();
        mixed
            .names()
            .rename(rq, root, DirName { dir, name: b"name" }, DirName { dir, name: b"NAME" }, RenameMode::Replace)
            .await
            .unwrap();
        assert_eq!(names(rq, &mixed, dir).await, [b"NAME", b"name"]);
        for name in [b"name", b"NAME"] {
            mixed.names().remove(rq, root, dir, name).await.unwrap();
        }
        mixed.names().remove_dir(rq, root, ROOT, b"d").await.unwrap();
        // Insensitive: the names are equal, and a rename changes the spelling, also of names that are not UTF-8.
        let (folded, dir) = with_case(rq, machine, &fs, 1).await;
        for (name, other) in [(&b"name"[..], &b"NaMe"[..]), (b"caf\xe9", b"CAF\xe9")] {
            folded.names().create(rq, root, dir, name, &file(0o600)).await.unwrap();
            let again = folded.names().create(rq, root, dir, other, &New { exclusive: true, ..file(0o600) }).await;
            assert_eq!(again.map(drop), Err(FileError::Exists));
            folded
                .names()
                .rename(rq, root, DirName { dir, name }, DirName { dir, name: other }, RenameMode::Replace)
                .await
                .unwrap();
            assert_eq!(names(rq, &folded, dir).await, [other]);
            folded.names().remove(rq, root, dir, name).await.unwrap();
        }
        folded.names().remove_dir(rq, root, ROOT, b"d").await.unwrap();
    });
}

#[test]
fn names_are_found_without_regard_to_case() {
    in_world(Settings::default(), async |rq, machine, fs| {
        let root = &Cred::root();
        for case in [0, 1, 2] {
            let (fs, dir) = with_case(rq, machine, &fs, case).await;
            // More than a micro ZAP holds, and than one step of a search reads.
            for n in 0..600 {
                fs.names().create(rq, root, dir, format!("Name{n}").as_bytes(), &file(0o600)).await.unwrap();
            }
            let spelling = async |name: &str| fs.directories().spelling(rq, dir, name.as_bytes()).await.unwrap();
            for name in ["Name7", "NAME7", "name7"] {
                assert_eq!(spelling(name).await.as_deref(), Some(&b"Name7"[..]), "{case}: {name}");
            }
            assert_eq!((spelling("NAME599").await.is_some(), spelling("name600").await), (true, None), "{case}");
            for n in 0..600 {
                fs.names().remove(rq, root, dir, format!("Name{n}").as_bytes()).await.unwrap();
            }
            fs.names().remove_dir(rq, root, ROOT, b"d").await.unwrap();
        }
    });
}
