//! Procedures that modify something.

use crate::harness::*;
use std::sync::Arc;
use weir_daemon::fuzz::{server_of, small_server, writable_server};
use weir_files::FileKind;
use weir_files::tree::memory::{MemoryFiles, MemoryOpener};
use weir_files::tree::{Export, Tree};
use weir_front::{ExportRules, IdentityMap, Squash};
use weir_nfs::wire::{Decoder, Encoder};
use weir_nfs::{Secrets, Server};

pub const ALICE: u32 = 1000;

pub fn open_server() -> (Server, Vec<u8>) {
    let server = writable_server(IdentityMap { squash: Squash::None, ..IdentityMap::default() });
    let root = mount(&server, "/p").unwrap();
    (server, root)
}

/// `sattr3` with only mode and size.
pub fn sattr(out: &mut Encoder, mode: Option<u32>, size: Option<u64>) {
    match mode {
        Some(mode) => drop(out.u32(1).u32(mode)),
        None => drop(out.u32(0)),
    }
    out.u32(0).u32(0);
    match size {
        Some(size) => drop(out.u32(1).u64(size)),
        None => drop(out.u32(0)),
    }
    out.u32(0).u32(0);
}

/// Decoded `wcc_data`: before (size, mtime, ctime) and after (size, ctime).
#[derive(Debug, PartialEq, Eq)]
struct Wcc {
    before: Option<(u64, u64, u64)>,
    after: Option<(u64, u64)>,
}

fn wcc(input: &mut Decoder<'_>) -> Wcc {
    let before = (input.u32() == Some(1)).then(|| (input.u64().unwrap(), input.u64().unwrap(), input.u64().unwrap()));
    let after = (input.u32() == Some(1)).then(|| {
        let fattr = input.fixed(FATTR).unwrap();
        let word = |at: usize| u64::from_be_bytes(fattr[at..at + 8].try_into().unwrap());
        (word(20), word(76))
    });
    Wcc { before, after }
}

/// Status of results that end in one `wcc_data`.
fn ended(results: &[u8]) -> u32 {
    let mut input = Decoder::new(results);
    let status = input.u32().unwrap();
    wcc(&mut input);
    if status != 0 {
        assert!(input.rest().is_empty());
    }
    status
}

/// Handle of a created file.
fn made(results: &[u8]) -> Result<Vec<u8>, u32> {
    let mut input = Decoder::new(results);
    let status = input.u32().unwrap();
    if status != 0 {
        wcc(&mut input);
        assert!(input.rest().is_empty());
        return Err(status);
    }
    assert_eq!(input.u32(), Some(1));
    let handle = input.opaque(64).unwrap().to_vec();
    assert_eq!(input.u32(), Some(1));
    input.fixed(FATTR).unwrap();
    let weak = wcc(&mut input);
    assert!(weak.before.is_some() && weak.after.is_some(), "no concurrent change");
    assert!(input.rest().is_empty());
    Ok(handle)
}

fn create(server: &Server, dir: &[u8], name: &str, how: u32, size: Option<u64>) -> Result<Vec<u8>, u32> {
    let mut arguments = args(dir);
    arguments.opaque(name.as_bytes()).u32(how);
    sattr(&mut arguments, Some(0o644), size);
    made(&ask(server, 8, ALICE, &arguments))
}

fn exclusive(server: &Server, dir: &[u8], name: &str, verifier: u64) -> Result<Vec<u8>, u32> {
    made(&ask(server, 8, ALICE, args(dir).opaque(name.as_bytes()).u32(2).u64(verifier)))
}

fn write(server: &Server, handle: &[u8], uid: u32, offset: u64, stable: u32, data: &[u8]) -> Result<(u32, u32), u32> {
    let mut arguments = args(handle);
    arguments.u64(offset).u32(data.len() as u32).u32(stable).opaque(data);
    let results = ask(server, 7, uid, &arguments);
    let mut input = Decoder::new(&results);
    let status = input.u32().unwrap();
    wcc(&mut input);
    if status != 0 {
        assert!(input.rest().is_empty());
        return Err(status);
    }
    let result = (input.u32().unwrap(), input.u32().unwrap());
    assert_eq!(input.fixed(8), Some(&b"verifier"[..]));
    assert!(input.rest().is_empty());
    Ok(result)
}

fn read(server: &Server, handle: &[u8]) -> Vec<u8> {
    let results = ask(server, 6, 0, args(handle).u64(0).u32(1 << 20));
    let mut input = Decoder::new(&results);
    assert_eq!((input.u32(), input.u32()), (Some(0), Some(1)));
    input.fixed(FATTR).unwrap();
    (input.u32(), input.u32()).0.unwrap();
    input.opaque(1 << 20).unwrap().to_vec()
}

#[test]
fn written_data_is_read_back_and_stability_reported() {
    let (server, root) = open_server();
    let file = create(&server, &root, "new", 0, None).unwrap();
    assert_eq!(write(&server, &file, ALICE, 0, 0, b"unstable"), Ok((8, 0)));
    assert_eq!(write(&server, &file, ALICE, 4, 1, b"data"), Ok((4, 2)), "more stable than asked for");
    assert_eq!(write(&server, &file, ALICE, 10, 2, b"all"), Ok((3, 2)));
    assert_eq!(write(&server, &file, ALICE, 0, 0, b""), Ok((0, 0)));
    assert_eq!(read(&server, &file), b"unstdata\0\0all");
    let commit = ask(&server, 21, ALICE, args(&file).u64(0).u32(0));
    assert_eq!((commit[..4].to_vec(), commit.len()), (vec![0; 4], 4 + 4 + 4 + FATTR + 8));
    assert!(commit.ends_with(b"verifier"));
    // Malformed: data shorter than the count, and an unknown degree of stability.
    for (count, stable) in [(9, 0), (4, 3)] {
        let mut arguments = args(&file);
        arguments.u64(0).u32(count).u32(stable).opaque(b"data");
        assert_eq!(accept_status(&answer(&server, &call(NFS, 3, 7, ALICE, &arguments))), 4);
    }
    assert_eq!(write(&server, &root, ALICE, 0, 0, b"x"), Err(21));
    let link = lookup(&server, &root, b"link").unwrap();
    assert_eq!(write(&server, &link, ALICE, 0, 0, b"x"), Err(22));
    let foreign = lookup(&server, &root, b"file").unwrap();
    assert_eq!(write(&server, &foreign, ALICE, 0, 0, b"x"), Err(13));
}

#[test]
fn the_owner_may_write_whatever_the_mode() {
    let (server, root) = open_server();
    let file = create(&server, &root, "new", 0, None).unwrap();
    let mut arguments = args(&file);
    sattr(&mut arguments, Some(0o444), None);
    assert_eq!(ended(&ask(&server, 2, ALICE, arguments.u32(0))), 0);
    assert_eq!(write(&server, &file, ALICE, 0, 0, b"mine"), Ok((4, 0)));
    assert_eq!(write(&server, &file, ALICE + 1, 0, 0, b"x"), Err(13));
}

#[test]
fn create_modes_unchecked_guarded_exclusive() {
    let (server, root) = open_server();
    let file = create(&server, &root, "f", 1, None).unwrap();
    assert_eq!(create(&server, &root, "f", 1, None), Err(17), "guarded");
    assert_eq!(write(&server, &file, ALICE, 0, 0, b"abc"), Ok((3, 0)));
    assert_eq!(create(&server, &root, "f", 0, None), Ok(file.clone()), "unchecked");
    assert_eq!(read(&server, &file), b"abc");
    assert_eq!(create(&server, &root, "f", 0, Some(0)), Ok(file.clone()), "unchecked, cut");
    assert_eq!(read(&server, &file), b"");
    assert_eq!(create(&server, &root, "dir", 0, None), Err(17));
    let one = exclusive(&server, &root, "x", 0x0102_0304_0506_0708).unwrap();
    assert_eq!(exclusive(&server, &root, "x", 0x0102_0304_0506_0708), Ok(one.clone()), "sent again");
    assert_eq!(exclusive(&server, &root, "x", 0x0102_0304_0506_0709), Err(17), "another client");
    assert_eq!(write(&server, &one, ALICE, 0, 0, b"abc"), Ok((3, 0)));
    assert_eq!(exclusive(&server, &root, "x", 0x0102_0304_0506_0708), Err(17), "in use");
    assert_eq!(create(&server, &file, "y", 0, None), Err(20));
    assert_eq!(create(&server, &root, "", 0, None), Err(22));
    assert_eq!(create(&server, &root, ".", 0, None), Err(17));
    assert_eq!(create(&server, &root, &"n".repeat(256), 0, None), Err(63));
}

#[test]
fn directories_symlinks_and_special_files_are_created() {
    let (server, root) = open_server();
    let with = |mode| {
        let mut set = Encoder::default();
        sattr(&mut set, Some(mode), None);
        set.bytes
    };
    let mut arguments = args(&root);
    arguments.opaque(b"d").bytes.extend_from_slice(&with(0o750));
    let dir = made(&ask(&server, 9, ALICE, &arguments)).unwrap();
    assert_eq!(made(&ask(&server, 9, ALICE, &arguments)), Err(17));
    let mut arguments = args(&dir);
    arguments.opaque(b"l").bytes.extend_from_slice(&with(0o777));
    let link = made(&ask(&server, 10, ALICE, arguments.opaque(b"to/there"))).unwrap();
    assert!(ask(&server, 5, ALICE, &args(&link)).ends_with(b"\0\0\0\x08to/there"));
    for (kind, uid, wanted) in
        [(7, ALICE, None), (6, ALICE, None), (4, ALICE, Some(1)), (4, 0, None), (1, 0, Some(10_007))]
    {
        let mut arguments = args(&dir);
        arguments.opaque(format!("n{kind}").as_bytes()).u32(kind);
        arguments.bytes.extend_from_slice(&with(0o600));
        if kind == 4 {
            arguments.u32(1).u32(3);
        }
        assert_eq!(made(&ask(&server, 11, uid, &arguments)).err(), wanted, "kind {kind}");
    }
}

/// Owner, group and size of a file created by `by` with these requested attributes.
fn made_as(server: &Server, root: &[u8], procedure: u32, by: u32, name: &str, set: (u32, u32, u64)) -> (u32, u32, u64) {
    let (uid, gid, size) = set;
    let mut arguments = args(root);
    arguments.opaque(name.as_bytes());
    if procedure == 8 {
        arguments.u32(1);
    }
    arguments.u32(1).u32(0o6755).u32(1).u32(uid).u32(1).u32(gid).u32(1).u64(size).u32(0).u32(0);
    if procedure == 10 {
        arguments.opaque(b"target");
    }
    let handle = made(&ask(server, procedure, by, &arguments)).unwrap();
    let results = ask(server, 1, by, &args(&handle));
    let mut input = Decoder::new(&results[4 + 12..]);
    (input.u32().unwrap(), input.u32().unwrap(), input.u64().unwrap())
}

#[test]
fn only_root_sets_the_owner_of_a_new_file() {
    let (server, root) = open_server();
    let of = |procedure, by, name: &str, set| made_as(&server, &root, procedure, by, name, set);
    assert_eq!(of(8, ALICE, "one", (0, 0, 5)), (ALICE, ALICE, 5), "not for root");
    assert_eq!(of(8, ALICE, "two", (ALICE + 1, ALICE + 1, 5)), (ALICE, ALICE, 5));
    assert_eq!(of(8, 0, "three", (ALICE, 77, 5)), (ALICE, 77, 5), "root may");
    assert_eq!(of(9, ALICE, "four", (0, 0, 99)), (ALICE, ALICE, 2), "the size of a directory is ignored");
    assert_eq!(of(10, ALICE, "five", (0, 0, 1)), (ALICE, ALICE, 6));
}

#[test]
fn rename_link_and_remove() {
    let (server, root) = open_server();
    let dir = lookup(&server, &root, b"dir").unwrap();
    let remove = |procedure, at: &[u8], name: &[u8]| ended(&ask(&server, procedure, ALICE, args(at).opaque(name)));
    assert_eq!(remove(12, &root, b"nothing"), 2);
    assert_eq!(remove(12, &root, b"dir"), 21);
    assert_eq!(remove(13, &root, b"dir"), 66);
    assert_eq!(remove(13, &root, b"file"), 20);
    assert_eq!(remove(13, &root, b"c"), 1, "a file system");
    assert_eq!(remove(12, &root, b"file"), 0);
    assert_eq!(lookup(&server, &root, b"file"), Err(2));
    let file = create(&server, &root, "f", 0, None).unwrap();
    let rename = |from: (&[u8], &str), to: (&[u8], &str)| {
        let mut arguments = args(from.0);
        arguments.opaque(from.1.as_bytes()).opaque(to.0).opaque(to.1.as_bytes());
        let results = ask(&server, 14, ALICE, &arguments);
        let mut input = Decoder::new(&results);
        let status = input.u32().unwrap();
        let both = (wcc(&mut input), wcc(&mut input));
        assert!(input.rest().is_empty());
        (status, both.0, both.1)
    };
    let (status, from, to) = rename((&root, "f"), (&dir, "g"));
    assert_eq!(status, 0);
    assert!(from.before.is_some() && to.before.is_some());
    assert_eq!(lookup(&server, &dir, b"g"), Ok(file.clone()));
    let (status, from, to) = rename((&dir, "g"), (&dir, "h"));
    assert!(status == 0 && from == to && from.before.is_some());
    let child = lookup(&server, &root, b"c").unwrap();
    assert_eq!(rename((&dir, "h"), (&child, "h")).0, 18);
    assert_eq!(rename((&root, "dir"), (&dir, "in")).0, 22);
    assert_eq!(rename((&file, "h"), (&dir, "h")).0, 20);
    let mut link = args(&file);
    let results = ask(&server, 15, ALICE, link.opaque(&root).opaque(b"again"));
    assert_eq!((results.len(), &results[..8]), (8 + FATTR + 4 + 24 + 4 + FATTR, &[0, 0, 0, 0, 0, 0, 0, 1][..]));
    assert_eq!(lookup(&server, &root, b"again"), Ok(file.clone()));
    let taken = ask(&server, 15, ALICE, args(&file).opaque(&root).opaque(b"dir"));
    assert_eq!(taken[..4], 17u32.to_be_bytes());
    assert_eq!((remove(12, &dir, b"h"), remove(12, &root, b"again")), (0, 0));
    assert_eq!(ask(&server, 1, ALICE, &args(&file)), 70u32.to_be_bytes(), "stale");
}

#[test]
fn setattr_checks_its_guard() {
    let (server, root) = open_server();
    let file = create(&server, &root, "f", 0, None).unwrap();
    let attributes = ask(&server, 1, ALICE, &args(&file));
    let ctime = u64::from_be_bytes(attributes[4 + 76..4 + 84].try_into().unwrap());
    let set = |guard: Option<u64>, size| {
        let mut arguments = args(&file);
        sattr(&mut arguments, None, Some(size));
        match guard {
            Some(guard) => drop(arguments.u32(1).u64(guard)),
            None => drop(arguments.u32(0)),
        }
        let results = ask(&server, 2, ALICE, &arguments);
        let mut input = Decoder::new(&results);
        (input.u32().unwrap(), wcc(&mut input))
    };
    assert_eq!(set(Some(ctime + 1), 9).0, 10_002);
    let (status, weak) = set(Some(ctime), 9);
    assert_eq!(status, 0);
    assert_eq!((weak.before.unwrap().0, weak.before.unwrap().2, weak.after.unwrap().0), (0, ctime, 9));
    assert_eq!(set(Some(ctime), 5).0, 10_002, "it has changed since");
    assert_eq!(set(None, 5).0, 0);
    assert_eq!(read(&server, &file), [0; 5]);
}

#[test]
fn a_retransmitted_call_is_answered_from_the_drc() {
    let (server, root) = open_server();
    let remove = call(NFS, 3, 12, ALICE, args(&root).opaque(b"file"));
    let alice = peer([127, 0, 0, 2]);
    let first = answer_to(&server, &alice, &remove);
    assert_eq!(first[24..28], [0; 4]);
    assert_eq!(answer_to(&server, &alice, &remove), first, "the same answer");
    let other = answer_to(&server, &peer([127, 0, 0, 3]), &remove);
    assert_eq!(other[24..28], 2u32.to_be_bytes(), "another client's call");
    let mut next = remove.clone();
    next[3] ^= 1;
    assert_eq!(answer_to(&server, &alice, &next)[24..28], 2u32.to_be_bytes(), "another call");
    let again = answer_to(&server, &alice.clone().from_port(1023), &remove);
    assert_eq!(again[24..28], 2u32.to_be_bytes(), "another connection's");
}

/// A restarted client may reuse xids. A WRITE that differs from an earlier one, even only in its last byte, is a new
/// call.
#[test]
fn a_write_is_never_answered_with_the_reply_of_another() {
    let (server, root) = open_server();
    let file = create(&server, &root, "f", 1, None).unwrap();
    let mut arguments = args(&file);
    arguments.u64(0).u32(100_000).u32(2).opaque(&[7; 100_000]);
    let mut write = call(NFS, 3, 7, ALICE, &arguments);
    let alice = peer([127, 0, 0, 2]);
    assert_eq!(answer_to(&server, &alice, &write)[24..28], [0; 4]);
    *write.last_mut().unwrap() = 8;
    assert_eq!(answer_to(&server, &alice, &write)[24..28], [0; 4]);
    assert_eq!(read(&server, &file).last(), Some(&8));
}

/// Status of a reply whose results are attributes, or a COMMIT's verifier.
fn ended_or_committed(results: &[u8]) -> u32 {
    ended(results.strip_suffix(b"verifier").unwrap_or(results))
}

/// A call may wait between the check of a handle and its write: the object number must not be reused meanwhile.
#[test]
fn files_are_pinned_for_the_duration_of_a_call() {
    let mut files = MemoryFiles::new(0x11);
    files.writable = true;
    files.add(34, b"file", FileKind::Regular, 0o666, b"contents");
    let files = Arc::new(files);
    let opener = MemoryOpener([("p".to_owned(), Arc::clone(&files))].into());
    let tree = Tree::new(Arc::new(opener), vec![Export { name: "p".into(), id: 54 }]);
    let secrets = Secrets { handles: [1; 32], verifier: *b"verifier" };
    let server = server_of(tree, secrets, ExportRules::default());
    let root = mount(&server, "/p").unwrap();
    let file = lookup(&server, &root, b"file").unwrap();
    assert_eq!(write(&server, &file, ALICE, 0, 2, b"CON"), Ok((3, 2)));
    assert_eq!(read(&server, &file), b"CONtents");
    assert_eq!(ended(&ask(&server, 12, 0, args(&root).opaque(b"file"))), 0);
    assert!(write(&server, &file, ALICE, 0, 2, b"late").is_err());
    assert_eq!((files.unheld(), files.held_count()), (0, 0));
}

#[test]
fn writes_without_permission_fail_with_rofs() {
    let (writable, root) = open_server();
    let read_only = small_server(IdentityMap::default());
    let reader = peer([192, 0, 2, 7]);
    let writer = peer([127, 0, 0, 4]);
    let file = lookup(&writable, &root, b"file").unwrap();
    let snapshot = mount(&writable, "/p/c/.zfs/snapshot/s").unwrap();
    let old = lookup(&writable, &snapshot, b"old").unwrap();
    let mut set = Encoder::default();
    sattr(&mut set, Some(0o600), None);
    let with = |handle: &[u8], tail: &[&[u8]]| {
        let mut arguments = args(handle);
        tail.iter().for_each(|bytes| arguments.bytes.extend_from_slice(bytes));
        arguments
    };
    let name: &[u8] = &[0, 0, 0, 1, b'n', 0, 0, 0];
    let guarded: &[u8] = &[0, 0, 0, 1];
    let cases = |file: &[u8], dir: &[u8]| {
        [
            (2, with(file, &[&set.bytes, &[0; 4]])),
            (7, with(file, &[&[0; 8], &[0, 0, 0, 4], &[0; 4], &[0, 0, 0, 4], b"data"])),
            (8, with(dir, &[name, guarded, &set.bytes])),
            (9, with(dir, &[name, &set.bytes])),
            (10, with(dir, &[name, &set.bytes, &[0, 0, 0, 4], b"over"])),
            (11, with(dir, &[name, &[0, 0, 0, 7], &set.bytes])),
            (12, with(dir, &[name])),
            (13, with(dir, &[name])),
            (21, with(file, &[&[0; 12]])),
        ]
    };
    for (server, peer, file, dir) in
        [(&read_only, &writer, &file, &root), (&writable, &reader, &file, &root), (&writable, &writer, &old, &snapshot)]
    {
        for (procedure, arguments) in cases(file, dir) {
            let reply = answer_to(server, peer, &call(NFS, 3, procedure, 0, &arguments));
            assert_eq!(accept_status(&reply), 0, "{procedure}");
            // COMMIT modifies nothing, so it also succeeds on a read-only file system: earlier writes become stable.
            let expected = if procedure == 21 && peer.host.address.is_loopback() { 0 } else { 30 };
            assert_eq!(ended_or_committed(&reply[24..]), expected, "procedure {procedure}");
        }
        let mut rename = args(dir);
        rename.opaque(b"a").opaque(dir).opaque(b"b");
        assert_eq!(answer_to(server, peer, &call(NFS, 3, 14, 0, &rename))[24..28], 30u32.to_be_bytes());
        let link = answer_to(server, peer, &call(NFS, 3, 15, 0, args(file).opaque(dir).opaque(b"b")));
        assert_eq!(link[24..28], 30u32.to_be_bytes());
        let access = answer_to(server, peer, &call(NFS, 3, 4, 0, args(dir).u32(0x3f)));
        assert_eq!(access[access.len() - 4..], [0, 0, 0, 0x03]);
        let info = answer_to(server, peer, &call(NFS, 3, 19, 0, &args(dir)));
        assert_eq!(info[info.len() - 4..], [0, 0, 0, 0x0b]);
    }
    let access = answer_to(&writable, &writer, &call(NFS, 3, 4, 0, args(&root).u32(0x3f)));
    assert_eq!(access[access.len() - 4..], [0, 0, 0, 0x1f]);
    let info = answer_to(&writable, &writer, &call(NFS, 3, 19, 0, &args(&root)));
    assert_eq!(info[info.len() - 4..], [0, 0, 0, 0x1b]);
    let stale = ask(&writable, 12, 0, args(&[0; 52]).opaque(b"x"));
    assert_eq!(stale, [&10_001u32.to_be_bytes()[..], &[0; 8]].concat());
}
