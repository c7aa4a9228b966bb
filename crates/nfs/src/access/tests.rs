use super::*;
use futures_util::FutureExt;
use weir_files::tree::Files;
use weir_files::tree::memory::MemoryFiles;
use weir_files::{Ace, FileFlags};
use weir_machine::Request;

fn attributes(mode: u32, uid: u32, gid: u32) -> Attributes {
    let mut files = MemoryFiles::new(1);
    let object = files.add(34, b"f", FileKind::Regular, mode, b"");
    files.change(object, |a| (a.uid, a.gid) = (uid, gid));
    let rq = Request::internal("test");
    let object = files.lookup(&rq, files.root(), b"f").now_or_never().unwrap().unwrap();
    files.attributes(&rq, object).now_or_never().unwrap().unwrap()
}

fn squashing(squash: Squash) -> Options {
    Options { squash, anon_gid: 99, ..Options::default() }
}

fn caller(uid: u32, groups: &[u32]) -> Caller {
    Caller { uid, groups: groups.into() }
}

#[test]
fn the_mode_decides_for_owner_group_and_others_in_that_order() {
    let file = attributes(0o461, 10, 20);
    assert_eq!(granted(&caller(10, &[20]), &file, None, None), 4);
    assert_eq!(granted(&caller(11, &[5, 20]), &file, None, None), 6);
    assert_eq!(granted(&caller(11, &[5]), &file, None, None), 1);
    assert_eq!(granted(&caller(0, &[0]), &file, None, None), 7);
    assert_eq!(granted(&caller(0, &[0]), &attributes(0o600, 10, 20), None, None), 6);
}

#[test]
fn root_and_the_nameless_become_nobody() {
    let root = Credential::System { uid: 0, gid: 0, groups: SmallVec::from_slice(&[0, 7]) };
    assert_eq!(Caller::new(&root, &squashing(Squash::Root)), caller(NOBODY, &[99, 99, 7]));
    assert_eq!(Caller::new(&root, &squashing(Squash::Nobody)), caller(0, &[0, 0, 7]));
    assert_eq!(Caller::new(&root, &squashing(Squash::All)), caller(NOBODY, &[99]));
    assert_eq!(Caller::new(&Credential::None, &squashing(Squash::Nobody)), caller(NOBODY, &[99]));
}

fn posix(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, perm, id) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&perm.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
    value
}

#[test]
fn posix_acls_mask_named_entries() {
    let file = attributes(0o640, 10, 20);
    let acl = posix(&[(1, 6, 0), (2, 7, 30), (4, 4, 0), (8, 6, 40), (16, 4, 0), (32, 0, 0)]);
    let may = |uid, groups: &[u32]| granted(&caller(uid, groups), &file, Some(&acl), None);
    assert_eq!(may(10, &[1]), 6);
    assert_eq!(may(30, &[1]), 4);
    assert_eq!(may(31, &[20]), 4);
    assert_eq!(may(31, &[40]), 4);
    assert_eq!(may(31, &[1]), 0);
    for broken in [&acl[..3], &acl[..11], b"", b"\x09\0\0\0"] {
        assert_eq!(granted(&caller(31, &[20]), &file, Some(broken), None), 4, "the mode decides");
    }
}

#[test]
fn the_first_entry_that_speaks_of_a_bit_decides_it() {
    let mut file = attributes(0o000, 10, 20);
    file.flags = FileFlags(0);
    let ace = |kind, flags, mask, who| Ace { kind, flags, mask, who };
    let acl = Acl {
        entries: vec![
            ace(0, 0x8, 0x21, Who::Everyone),
            ace(1, 0, 0x1, Who::User(30)),
            ace(0, 0, 0x1, Who::Group(40)),
            ace(1, 0, 0x1, Who::Group(40)),
            ace(0, 0, 0x20, Who::Everyone),
            ace(0, 0, 0x3, Who::Owner),
        ],
        trivial: false,
    };
    let may = |uid, groups: &[u32]| granted(&caller(uid, groups), &file, None, Some(&acl));
    assert_eq!(may(30, &[40]), 1);
    assert_eq!(may(31, &[40]), 5);
    assert_eq!(may(31, &[1]), 1);
    assert_eq!(may(10, &[1]), 7);
}
