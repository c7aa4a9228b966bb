//! Classification of a file by its two states.

use super::*;

const FILE: u64 = 0o100_644;
const DIR: u64 = 0o040_755;

fn stat(mode: u64, generation: u64, links: u64) -> Option<Stat> {
    Some(Stat { mode, generation, links, ..Stat::default() })
}

fn side<'a>(stat: Option<Stat>, path: &str) -> Side<'a> {
    Side { name: "p@s", stat, path: Path::At(path.as_bytes().to_vec()) }
}

fn absent<'a>() -> Side<'a> {
    Side { name: "p@s", stat: None, path: Path::None }
}

fn classified(in_newer: bool, a: &Side<'_>, b: &Side<'_>) -> Vec<(Change, String)> {
    let mut out = Vec::new();
    classify(ObjectId(9), in_newer, a, b, &mut out);
    out.into_iter().map(|one| one.map(|d| (d.change, String::from_utf8(d.path).unwrap())).unwrap()).collect()
}

fn renamed(to: &str) -> Change {
    Change::Renamed(to.as_bytes().to_vec())
}

#[test]
fn files_come_and_go() {
    let file = side(stat(FILE, 1, 1), "/a");
    assert_eq!(classified(true, &absent(), &file), [(Change::Added, "/a".into())]);
    assert_eq!(classified(false, &file, &absent()), [(Change::Removed, "/a".into())]);
    // The number is in use, but not by a file.
    assert_eq!(classified(true, &file, &absent()), [(Change::Removed, "/a".into())]);
    assert_eq!(classified(true, &absent(), &absent()), []);
}

#[test]
fn files_change_and_move() {
    let a = side(stat(FILE, 1, 1), "/a");
    let b = side(stat(FILE, 1, 1), "/b");
    assert_eq!(classified(true, &a, &a), [(Change::Modified, "/a".into())]);
    assert_eq!(classified(true, &a, &b), [(renamed("/b"), "/a".into())]);
    let both = [(Change::Removed, "/a".into()), (Change::Added, "/b".into())];
    assert_eq!(classified(true, &a, &side(stat(FILE, 2, 1), "/b")), both, "another file has the number");
    assert_eq!(classified(true, &a, &side(stat(DIR, 1, 2), "/b")), both, "a directory is no file that changed");
}

#[test]
fn links_are_counted_but_not_those_of_directories() {
    let one = side(stat(FILE, 1, 1), "/a");
    let three = side(stat(FILE, 1, 3), "/c");
    assert_eq!(classified(true, &one, &three), [(Change::Links(2), "/a".into())]);
    assert_eq!(classified(true, &three, &one), [(Change::Links(-2), "/a".into())]);
    let nameless = Side { path: Path::None, ..side(stat(FILE, 1, 2), "") };
    assert_eq!(classified(true, &nameless, &three), [(Change::Links(1), "/c".into())]);
    let two = side(stat(DIR, 1, 2), "/d");
    let five = side(stat(DIR, 1, 5), "/d");
    assert_eq!(classified(true, &two, &five), [(Change::Modified, "/d".into())]);
}

#[test]
fn open_files_without_names_are_in_the_queue() {
    let file = side(stat(FILE, 1, 1), "/a");
    let queued = || Side { path: Path::Queued, ..side(stat(FILE, 1, 0), "") };
    assert_eq!(classified(true, &file, &queued()), [(renamed("(on_delete_queue)"), "/a".into())]);
    assert_eq!(classified(true, &absent(), &queued()), [(Change::Added, "(on_delete_queue)".into())]);
    assert_eq!(classified(false, &queued(), &absent()), [], "the removal was reported when the file was unlinked");
}

#[test]
fn what_cannot_be_looked_at_is_said_once() {
    let failed = || Side { path: Path::Failed(FileError::NoKey), ..absent() };
    for (a, b) in [(failed(), failed()), (failed(), absent()), (absent(), failed())] {
        let mut out = Vec::new();
        classify(ObjectId(9), true, &a, &b, &mut out);
        assert_eq!(out, [Err(Unknown { object: ObjectId(9), name: "p@s".into(), why: FileError::NoKey })]);
    }
}
