use std::collections::BTreeSet;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

use serde_json::{Value, json};

use crate::hash::hex_of;
use crate::manifest::Entry;
use crate::posix::PosixTree;
use crate::tree::BlockDevice;

use super::*;

/// Makes a manifest line from the kernel's view of a file, so that the comparison must find nothing.
fn line(root: &Path, path: &str, more: &Value) -> Value {
    let place = root.join(path.trim_start_matches('/'));
    let found = std::fs::symlink_metadata(&place).unwrap();
    let time = |seconds: i64, nanos: i64| seconds * 1_000_000_000 + nanos;
    let kind = if found.is_dir() {
        "dir"
    } else if found.is_symlink() {
        "symlink"
    } else {
        "file"
    };
    let mut line = json!({
        "path": path, "type": kind, "mode": format!("{:04o}", found.mode() & 0o7777),
        "uid": found.uid(), "gid": found.gid(), "nlink": found.nlink(), "ino": found.ino(), "size": found.size(),
        "mtime_ns": time(found.mtime(), found.mtime_nsec()), "ctime_ns": time(found.ctime(), found.ctime_nsec()),
        "atime_ns": time(found.atime(), found.atime_nsec()), "blocks512": found.blocks(),
    });
    if kind == "file" {
        line["sha256"] = json!(hex_of(&std::fs::read(&place).unwrap()));
    }
    for (key, value) in more.as_object().unwrap() {
        line[key] = value.clone();
    }
    line
}

fn entries(lines: Vec<Value>) -> Vec<Entry> {
    serde_json::from_value(Value::Array(lines)).unwrap()
}

fn sample() -> (tempfile::TempDir, Vec<Value>) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path();
    std::fs::create_dir(root.join("d")).unwrap();
    std::fs::write(root.join("d/f"), vec![7; 3_000_000]).unwrap();
    std::fs::write(root.join("empty"), b"").unwrap();
    symlink("d/f", root.join("link")).unwrap();
    std::fs::create_dir(root.join("many")).unwrap();
    for name in ["b", "a", "c"] {
        std::fs::write(root.join("many").join(name), name).unwrap();
    }
    let mut names = String::new();
    let mut all = String::new();
    for name in ["a", "b", "c"] {
        let found = line(root, &format!("/many/{name}"), &json!({}));
        names += &format!("{name}\n");
        all += &format!(
            "{name}\tfile\t{}\t{}\t{}\t1\t{}\t{}\t{}\n",
            found["mode"].as_str().unwrap(),
            found["uid"],
            found["gid"],
            found["mtime_ns"],
            found["ino"],
            found["sha256"].as_str().unwrap()
        );
    }
    let mass = json!({ "count": 3, "names_sha256": hex_of(names.as_bytes()), "lines_sha256": hex_of(all.as_bytes()),
        "first": [line(root, "/many/a", &json!({}))] });
    let lines = vec![
        line(root, "/", &json!({ "entries": 4 })),
        line(root, "/d", &json!({ "entries": 1 })),
        line(root, "/d/f", &json!({})),
        line(root, "/empty", &json!({})),
        line(root, "/link", &json!({ "target": "d/f" })),
        line(root, "/many", &json!({ "entries": 3, "mass": mass })),
    ];
    (folder, lines)
}

/// A tree on the file system of temporary files: the test relies only on its unique object numbers.
fn posix(root: &Path) -> PosixTree {
    let mut tree = PosixTree::new(root);
    tree.carries.ino = true;
    tree.carries.crtime = false;
    tree
}

/// Returns the differences except for access times, which reading the sample changes.
fn findings(root: &Path, lines: Vec<Value>) -> Vec<String> {
    differing(super::tree(&mut posix(root), &entries(lines), &BTreeSet::new()))
}

fn differing(found: Findings) -> Vec<String> {
    found.lines().into_iter().filter(|line| !line.contains("atime is")).collect()
}

#[test]
fn a_tree_equals_the_manifest_made_of_it() {
    let (folder, lines) = sample();
    let found = super::tree(&mut posix(folder.path()), &entries(lines), &BTreeSet::new());
    assert_eq!(found.bytes, 3_000_004);
    assert!(found.facts > 40);
    assert_eq!(differing(found), Vec::<String>::new());
}

#[test]
fn every_kind_of_difference_is_found() {
    type Damage = (&'static str, fn(&Path));
    let damages: [Damage; 7] = [
        ("mode", |root| std::fs::set_permissions(root.join("empty"), std::fs::Permissions::from_mode(0o600)).unwrap()),
        ("sha256", |root| std::fs::write(root.join("d/f"), vec![8; 3_000_000]).unwrap()),
        ("size", |root| std::fs::write(root.join("empty"), b"x").unwrap()),
        ("not found", |root| std::fs::remove_file(root.join("d/f")).unwrap()),
        ("must not be there", |root| std::fs::write(root.join("extra"), b"").unwrap()),
        ("target", |root| {
            std::fs::remove_file(root.join("link")).unwrap();
            symlink("d/g", root.join("link")).unwrap();
        }),
        ("hash of all entries", |root| std::fs::write(root.join("many/c"), b"d").unwrap()),
    ];
    for (word, damage) in damages {
        let (folder, lines) = sample();
        damage(folder.path());
        let found = findings(folder.path(), lines);
        assert!(found.iter().any(|line| line.contains(word)), "{word}: {found:?}");
    }
}

#[test]
fn facts_of_the_manifest_alone_are_missed_in_the_tree() {
    let (folder, mut lines) = sample();
    lines[2]["xattrs"] = json!({ "user.a": { "b64": "eA==" } });
    lines[2]["rdev"] = json!([8, 1]);
    lines[3]["error"] = json!("EIO");
    let found = findings(folder.path(), lines);
    for word in ["user.a is missing", "device number", "reads without the error EIO"] {
        assert!(found.iter().any(|line| line.contains(word)), "{word}: {found:?}");
    }
}

#[test]
fn what_is_mounted_over_a_directory_is_left_to_its_own_manifest() {
    let (folder, lines) = sample();
    std::fs::write(folder.path().join("d/unknown"), b"of another file system").unwrap();
    let mounts = [b"/d".to_vec()].into();
    let lines: Vec<Value> = lines.into_iter().filter(|line| line["path"] != "/d/f").collect();
    let found = super::tree(&mut posix(folder.path()), &entries(lines), &mounts);
    assert_eq!(differing(found), Vec::<String>::new());
}

struct Zeros(Vec<u8>);

impl BlockDevice for Zeros {
    fn size_bytes(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, TreeError> {
        Ok(self.0[offset as usize..][..length].to_vec())
    }
}

#[test]
fn volumes_are_compared_as_a_whole_and_by_chunk() {
    let mut bytes = vec![0; 200_000];
    bytes[70_000] = 1;
    let chunk: String = hex_of(&bytes[65536..131072]).chars().take(16).collect();
    let expected: VolumeContents = serde_json::from_value(
        json!({ "size": 200_000, "sha256": hex_of(&bytes), "nonzero_chunks": [[65536, 65536, chunk]] }),
    )
    .unwrap();
    assert!(volume(&mut Zeros(bytes.clone()), &expected).is_empty());
    bytes[150_000] = 2;
    let found = volume(&mut Zeros(bytes), &expected).lines();
    assert!(found.iter().any(|line| line.contains("[131072]")), "{found:?}");
}
