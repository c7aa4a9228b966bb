//! Single operations and their results.

use super::*;
use crate::change::DirName;
use crate::change::SetTime;
use crate::{AceWho, Acl};

const USER: u32 = 1000;

fn user(uid: u32) -> Cred {
    Cred::new(uid, uid, &[])
}

pub(super) fn file(mode: u32) -> New {
    New::of(NewKind::Regular, mode)
}

pub(super) fn directory(mode: u32) -> New {
    New::of(NewKind::Directory, mode)
}

#[test]
fn an_unlinked_open_file_survives_until_released_or_crashed() {
    in_world(Settings::default(), async |rq, machine, fs| {
        let root = &Cred::root();
        let held = fs.names().create(rq, root, ROOT, b"held", &file(0o600)).await.unwrap().object;
        let crashed = fs.names().create(rq, root, ROOT, b"crashed", &file(0o600)).await.unwrap().object;
        fs.xattrs().set(rq, root, crashed, b"trusted.big", &[1; 50_000], XattrMode::Any).await.unwrap();
        fs.holds().hold(held, HoldKind::Open);
        fs.holds().hold(held, HoldKind::Open);
        fs.holds().hold(crashed, HoldKind::Open);
        for name in [&b"held"[..], b"crashed"] {
            fs.names().remove(rq, root, ROOT, name).await.unwrap();
        }
        fs.contents().write(rq, root, held, WriteAt::Offset(0), Bytes::from_static(b"still here")).await.unwrap();
        assert_eq!(fs.attrs().get(rq, held).await.unwrap().links, 0);
        assert_eq!(fs.names().link(rq, root, held, ROOT, b"again").await, Err(FileError::NotFound));
        fs.holds().release(rq, held, HoldKind::Open).await.unwrap();
        assert_eq!(&fs.contents().read(rq, held, 0, 99).await.unwrap()[..], b"still here");
        fs.holds().release(rq, held, HoldKind::Open).await.unwrap();
        assert!(fs.attrs().get(rq, held).await.is_err());
        // A new instance has no holds.
        let opening = Opening { machine: machine.clone(), zil: None, settings: Settings::default() };
        let set = fs.objects().clone();
        let again = FileSystem::open_writable(rq, set, Identity::default(), opening).await.unwrap();
        assert!(again.attrs().get(rq, crashed).await.is_ok());
        assert_eq!(again.delete_queue().empty(rq).await, Ok(1));
        assert_eq!(objects(rq, &again).await, []);
        assert_eq!(again.delete_queue().empty(rq).await, Ok(0));
    });
}

#[test]
fn call_holds_do_not_make_a_file_system_busy() {
    in_world(Settings::default(), async |rq, _, fs| {
        let root = &Cred::root();
        let id = fs.names().create(rq, root, ROOT, b"file", &file(0o600)).await.unwrap().object;
        fs.holds().hold(id, HoldKind::Call);
        assert_eq!((fs.holds().open_count(), fs.holds().close_unless_used(Txg(u64::MAX))), (0, false));
        fs.holds().hold(id, HoldKind::Open);
        assert_eq!(fs.holds().open_count(), 1);
        fs.holds().release(rq, id, HoldKind::Open).await.unwrap();
        fs.names().remove(rq, root, ROOT, b"file").await.unwrap();
        assert_eq!((fs.holds().open_count(), fs.attrs().get(rq, id).await.map(|a| a.links)), (0, Ok(0)));
        fs.holds().release(rq, id, HoldKind::Call).await.unwrap();
        assert!(fs.attrs().get(rq, id).await.is_err());
    });
}

#[test]
fn lookups_keep_files_and_let_the_file_system_close() {
    in_world(Settings::default(), async |rq, _, fs| {
        let root = &Cred::root();
        let id = fs.names().create(rq, root, ROOT, b"file", &file(0o600)).await.unwrap().object;
        fs.holds().hold(id, HoldKind::Lookup);
        fs.names().remove(rq, root, ROOT, b"file").await.unwrap();
        assert_eq!(fs.attrs().get(rq, id).await.map(|a| a.links), Ok(0), "the kernel still knows it");
        assert_eq!(fs.holds().open_count(), 0, "no client has it open");
        fs.holds().hold(id, HoldKind::Open);
        assert!(!fs.holds().close_unless_used(Txg(u64::MAX)), "a client has it open");
        fs.holds().release(rq, id, HoldKind::Open).await.unwrap();
        assert!(fs.attrs().get(rq, id).await.is_ok(), "the kernel still knows it");
        assert!(fs.holds().close_unless_used(Txg(u64::MAX)) && fs.is_closed());
    });
}

#[test]
fn a_clone_source_stays_open_until_references_are_synced() {
    in_world(Settings::default(), async |_, _, fs| {
        fs.holds().note_cloned(Txg(8));
        fs.holds().note_cloned(Txg(7));
        assert_eq!((fs.holds().close_unless_used(Txg(7)), fs.is_closed()), (false, false));
        assert_eq!((fs.holds().close_unless_used(Txg(8)), fs.is_closed()), (true, true));
    });
}

#[test]
fn a_directory_cannot_move_into_itself() {
    in_world(Settings::default(), async |rq, _, fs| {
        let root = &Cred::root();
        let mut dir = ROOT;
        let mut all = vec![ROOT];
        for _ in 0..4 {
            dir = fs.names().create(rq, root, dir, b"d", &directory(0o755)).await.unwrap().object;
            all.push(dir);
        }
        fs.names().create(rq, root, all[4], b"leaf", &directory(0o755)).await.unwrap();
        let into_itself = Err(FileError::Invalid { why: "a directory cannot move into itself" });
        for mode in [RenameMode::Replace, RenameMode::NoReplace] {
            assert_eq!(
                fs.names()
                    .rename(rq, root, DirName { dir: all[1], name: b"d" }, DirName { dir: all[4], name: b"x" }, mode)
                    .await,
                into_itself
            );
        }
        assert_eq!(
            fs.names()
                .rename(
                    rq,
                    root,
                    DirName { dir: all[1], name: b"d" },
                    DirName { dir: all[4], name: b"leaf" },
                    RenameMode::Exchange
                )
                .await,
            into_itself
        );
        assert_eq!(
            fs.names()
                .rename(
                    rq,
                    root,
                    DirName { dir: all[4], name: b"leaf" },
                    DirName { dir: all[1], name: b"d" },
                    RenameMode::Exchange
                )
                .await,
            into_itself
        );
        fs.names()
            .rename(
                rq,
                root,
                DirName { dir: all[3], name: b"d" },
                DirName { dir: ROOT, name: b"up" },
                RenameMode::NoReplace,
            )
            .await
            .unwrap();
        assert_eq!(fs.attrs().parent(rq, all[4]).await, Ok(ROOT));
        let links = async |id| fs.attrs().get(rq, id).await.unwrap().links;
        assert_eq!((links(ROOT).await, links(all[3]).await, links(all[4]).await), (4, 2, 3));
        fs.names()
            .rename(
                rq,
                root,
                DirName { dir: ROOT, name: b"up" },
                DirName { dir: all[2], name: b"d" },
                RenameMode::Exchange,
            )
            .await
            .unwrap();
        assert_eq!((fs.attrs().parent(rq, all[4]).await, fs.attrs().parent(rq, all[3]).await), (Ok(all[2]), Ok(ROOT)));
    });
}

#[test]
fn reading_sets_access_times() {
    in_world(Settings::default(), async |rq, machine, fs| {
        let root = &Cred::root();
        let tick = async || machine.clock.sleep(std::time::Duration::from_secs(10)).await;
        let atime = async |id| fs.attrs().get(rq, id).await.unwrap().atime_ns;
        let made = fs.names().create(rq, root, ROOT, b"f", &file(0o644)).await.unwrap();
        fs.contents().write(rq, root, made.object, WriteAt::End, Bytes::from_static(b"x")).await.unwrap();
        tick().await;
        fs.contents().read(rq, made.object, 0, 1).await.unwrap();
        let first = made.atime_ns + 10_000_000_000;
        assert_eq!(atime(made.object).await, first, "noted");
        fs.atimes().store(rq).await.unwrap();
        assert!(!fs.atimes().is_pending());
        assert_eq!(atime(made.object).await, first, "stored");
        tick().await;
        fs.contents().read(rq, made.object, 0, 1).await.unwrap();
        assert_eq!(atime(made.object).await, first, "relatime: already read after the last change");
        fs.contents().write(rq, root, made.object, WriteAt::End, Bytes::from_static(b"y")).await.unwrap();
        fs.contents().read(rq, made.object, 0, 1).await.unwrap();
        fs.directories().read_dir(rq, ROOT, 0, 10).await.unwrap();
        assert_eq!(atime(made.object).await, first + 10_000_000_000);
        assert_eq!(atime(ROOT).await, first + 10_000_000_000);
        let set = SetAttributes { atime: Some(SetTime::At(7)), ..Default::default() };
        assert_eq!(
            fs.attrs().set(rq, root, made.object, &set).await.unwrap().atime_ns,
            7,
            "an explicitly set time is kept"
        );
        fs.atimes().store(rq).await.unwrap();
        assert_eq!(atime(made.object).await, 7);
        fs.set_settings(Settings { read_only: true, ..Settings::default() });
        tick().await;
        fs.contents().read(rq, made.object, 0, 1).await.unwrap();
        fs.set_settings(Settings { access_times: AccessTimes::Off, ..Settings::default() });
        fs.contents().read(rq, made.object, 0, 1).await.unwrap();
        assert_eq!(atime(made.object).await, 7, "unchanged in a read-only file system and with atime=off");
        fs.contents().read(rq, made.object, 0, 1).await.unwrap();
        fs.set_settings(Settings { access_times: AccessTimes::On, ..Settings::default() });
        tick().await;
        fs.contents().read(rq, made.object, 0, 1).await.unwrap();
        assert_eq!(atime(made.object).await, first + 30_000_000_000);
        fs.names().remove(rq, root, ROOT, b"f").await.unwrap();
        fs.atimes().store(rq).await.unwrap();
    });
}

#[test]
fn operations_update_times() {
    in_world(Settings::default(), async |rq, machine, fs| {
        let root = &Cred::root();
        let tick = async || machine.clock.sleep(std::time::Duration::from_secs(10)).await;
        let made = fs.names().create(rq, root, ROOT, b"f", &file(0o644)).await.unwrap();
        assert_eq!([made.atime_ns, made.mtime_ns, made.ctime_ns], [made.crtime_ns; 3]);
        assert_eq!(fs.attrs().get(rq, ROOT).await.unwrap().mtime_ns, made.mtime_ns);
        assert_eq!(made.generation, 4, "the txg of its creation");
        tick().await;
        let linked = fs.names().link(rq, root, made.object, ROOT, b"g").await.unwrap();
        assert_eq!((linked.mtime_ns, linked.ctime_ns), (made.mtime_ns, made.ctime_ns + 10_000_000_000));
        tick().await;
        let data = Bytes::from_static(b"x");
        let written = fs.contents().write(rq, root, made.object, WriteAt::End, data).await.unwrap();
        assert_eq!((written.mtime_ns, written.ctime_ns), (written.mtime_ns, made.ctime_ns + 20_000_000_000));
        let set = SetAttributes { atime: Some(SetTime::At(-1)), mtime: Some(SetTime::Now), ..Default::default() };
        tick().await;
        let set = fs.attrs().set(rq, root, made.object, &set).await.unwrap();
        assert_eq!((set.atime_ns, set.mtime_ns), (-1, made.mtime_ns + 30_000_000_000));
    });
}

#[test]
fn blocks_grow_with_the_file_up_to_the_record_size() {
    let settings = Settings { record_bytes: 4096, ..Settings::default() };
    in_world(settings, async |rq, _, fs| {
        let root = &Cred::root();
        let id = fs.names().create(rq, root, ROOT, b"f", &file(0o644)).await.unwrap().object;
        let write = async |at, len| {
            let data = Bytes::from(vec![at as u8 | 1; len]);
            fs.contents().write(rq, root, id, WriteAt::Offset(at), data).await.unwrap().block_bytes
        };
        assert_eq!([write(0, 100).await, write(500, 13).await, write(1500, 100).await], [512, 1024, 2048]);
        assert_eq!([write(3000, 1).await, write(100_000, 10).await], [3072, 4096]);
        assert_eq!(fs.contents().seek(rq, id, 4096, crate::Seek::Data).await.unwrap(), Some(98_304));
        assert_eq!(fs.contents().read(rq, id, 3000, 1).await.unwrap()[..], [3000u64 as u8 | 1]);
        let cut = fs.attrs().set(rq, root, id, &SetAttributes::size(200)).await.unwrap();
        assert_eq!((cut.size_bytes, cut.block_bytes), (200, 4096));
        // Setting the size also grows the block.
        let id = fs.names().create(rq, root, ROOT, b"g", &file(0o644)).await.unwrap().object;
        let sized = fs.attrs().set(rq, root, id, &SetAttributes::size(1 << 40)).await.unwrap();
        assert_eq!((sized.size_bytes, sized.block_bytes), (1 << 40, 4096));
        let too_large = fs.attrs().set(rq, root, id, &SetAttributes::size(1 << 63)).await;
        assert_eq!(too_large, Err(FileError::TooLarge));
        // Invalid sizes are rejected, and files of other kinds are unchanged.
        let born = async |name: &[u8], kind, size| {
            let new = New { set: SetAttributes::size(size), ..New::of(kind, 0o700) };
            fs.names().create(rq, root, ROOT, name, &new).await.map(|made| made.size_bytes)
        };
        assert_eq!(born(b"h", NewKind::Regular, 1 << 63).await, Err(FileError::TooLarge));
        assert_eq!(born(b"h", NewKind::Regular, 77).await, Ok(77));
        assert!(matches!(born(b"d", NewKind::Directory, 1).await, Err(FileError::Invalid { .. })));
        assert!(matches!(born(b"l", NewKind::Symlink(b"to".into()), 1).await, Err(FileError::Invalid { .. })));
    });
}

#[test]
fn large_directories_grow_and_shrink() {
    in_world(Settings::default(), async |rq, _, fs| {
        let root = &Cred::root();
        let dir = fs.names().create(rq, root, ROOT, b"d", &directory(0o755)).await.unwrap().object;
        for n in 0..3000 {
            fs.names().create(rq, root, dir, format!("file number {n}").as_bytes(), &file(0o600)).await.unwrap();
        }
        assert_eq!(fs.attrs().get(rq, dir).await.unwrap().size_bytes, 3002);
        assert_eq!(fs.names().remove_dir(rq, root, ROOT, b"d").await, Err(FileError::NotEmpty { object: dir }));
        let mut cookie = 0;
        let mut seen = 0;
        loop {
            let page = fs.directories().read_dir(rq, dir, cookie, 100).await.unwrap();
            let Some(last) = page.last() else { break };
            cookie = last.cookie;
            seen += page.len();
            for entry in &page {
                fs.names().remove(rq, root, dir, &entry.name).await.unwrap();
            }
        }
        assert_eq!(seen, 3000, "cookies stay valid while entries are removed");
        fs.names().remove_dir(rq, root, ROOT, b"d").await.unwrap();
        assert_eq!(objects(rq, &fs).await, []);
    });
}

#[test]
fn permissions_are_checked() {
    in_world(Settings::default(), async |rq, _, fs| {
        let root = &Cred::root();
        let owner = &user(USER);
        let other = &user(2000);
        let sticky = fs.names().create(rq, root, ROOT, b"tmp", &directory(0o1777)).await.unwrap().object;
        let closed = fs.names().create(rq, root, ROOT, b"closed", &directory(0o755)).await.unwrap().object;
        let mine = fs.names().create(rq, owner, sticky, b"mine", &file(0o4711)).await.unwrap();
        assert_eq!((mine.uid, mine.gid, mine.mode), (USER, USER, 0o4711));
        let id = mine.object;
        assert_eq!(
            fs.names().create(rq, owner, closed, b"x", &file(0o644)).await,
            Err(FileError::Denied { object: closed })
        );
        let refused = Err(FileError::NotPermitted { object: id });
        assert_eq!(fs.names().remove(rq, other, sticky, b"mine").await, refused);
        assert_eq!(
            fs.names()
                .rename(
                    rq,
                    other,
                    DirName { dir: sticky, name: b"mine" },
                    DirName { dir: sticky, name: b"x" },
                    RenameMode::Replace
                )
                .await,
            refused
        );
        let set = async |cred: &Cred, set: SetAttributes| fs.attrs().set(rq, cred, id, &set).await;
        let not_permitted = Err(FileError::NotPermitted { object: id });
        assert_eq!(set(other, SetAttributes::mode(0o777)).await, not_permitted);
        assert_eq!(set(owner, SetAttributes { uid: Some(2000), ..Default::default() }).await, not_permitted);
        assert_eq!(set(owner, SetAttributes { gid: Some(2000), ..Default::default() }).await, not_permitted);
        assert_eq!(set(other, SetAttributes::size(0)).await, Err(FileError::Denied { object: id }));
        let then = SetAttributes { mtime: Some(SetTime::At(0)), ..Default::default() };
        assert_eq!(set(other, then).await, not_permitted);
        // A group that the owner is not a member of clears the set-group-id bit.
        set(root, SetAttributes { gid: Some(7), mode: Some(0o4755), ..Default::default() }).await.unwrap();
        assert_eq!(set(owner, SetAttributes::mode(0o6755)).await.unwrap().mode, 0o4755);
        // A write by another user clears the set-user-id bit.
        set(root, SetAttributes::mode(0o4777)).await.unwrap();
        let data = Bytes::from_static(b"x");
        assert_eq!(fs.contents().write(rq, other, id, WriteAt::End, data).await.unwrap().mode, 0o777);
        let given = set(root, SetAttributes { uid: Some(5), mode: Some(0o4755), ..Default::default() }).await.unwrap();
        assert_eq!((given.uid, given.mode), (5, 0o755));
        fs.names().remove(rq, root, sticky, b"mine").await.unwrap();
    });
}

#[test]
fn writing_clears_capabilities() {
    for xattr_in_sa in [true, false] {
        in_world(Settings { xattr_in_sa, ..Settings::default() }, async |rq, _, fs| {
            let root = &Cred::root();
            let id = fs.names().create(rq, root, ROOT, b"program", &file(0o755)).await.unwrap().object;
            for name in [&b"security.capability"[..], b"security.other"] {
                fs.xattrs().set(rq, root, id, name, b"value", XattrMode::Any).await.unwrap();
            }
            fs.contents().write(rq, root, id, WriteAt::End, Bytes::from_static(b"x")).await.unwrap();
            assert_eq!(fs.xattrs().names(rq, id).await.unwrap(), [b"security.other"]);
            assert_eq!(
                fs.contents().write(rq, root, id, WriteAt::End, Bytes::from_static(b"y")).await.unwrap().size_bytes,
                2
            );
        });
    }
}

#[test]
fn setgid_directories_determine_the_group() {
    in_world(Settings::default(), async |rq, _, fs| {
        let root = &Cred::root();
        let owner = &user(USER);
        let dir = fs.names().create(rq, root, ROOT, b"d", &directory(0o777)).await.unwrap().object;
        let set = SetAttributes { gid: Some(50), mode: Some(0o2777), ..Default::default() };
        fs.attrs().set(rq, root, dir, &set).await.unwrap();
        let made = fs.names().create(rq, owner, dir, b"f", &file(0o2755)).await.unwrap();
        assert_eq!((made.gid, made.mode), (50, 0o755), "no member: no set-group-id");
        let below = fs.names().create(rq, owner, dir, b"below", &directory(0o755)).await.unwrap();
        assert_eq!((below.gid, below.mode), (50, 0o2755));
    });
}

#[test]
fn posix_acls_are_inherited_and_follow_the_mode() {
    let settings = Settings { acl_type: AclType::Posix, ..Settings::default() };
    in_world(settings, async |rq, _, fs| {
        let root = &Cred::root();
        let entry =
            |tag: u16, perm: u16, id: u32| [&tag.to_le_bytes()[..], &perm.to_le_bytes(), &id.to_le_bytes()].concat();
        let list = |mask: u16| {
            let entries = [entry(1, 7, u32::MAX), entry(2, 7, USER), entry(4, 5, u32::MAX), entry(16, mask, u32::MAX)];
            [&2u32.to_le_bytes()[..], &entries.concat(), &entry(32, 0, u32::MAX)].concat()
        };
        let dir = fs.names().create(rq, root, ROOT, b"d", &directory(0o755)).await.unwrap().object;
        fs.xattrs().set(rq, root, dir, posix_acl::DEFAULT, &list(7), XattrMode::Any).await.unwrap();
        let new = New { umask: 0o077, ..file(0o664) };
        let made = fs.names().create(rq, root, dir, b"f", &new).await.unwrap();
        assert_eq!(made.mode, 0o660, "the default ACL applies instead of the umask");
        let access = async |id| fs.xattrs().get(rq, id, posix_acl::ACCESS).await.unwrap();
        let expected = [
            &2u32.to_le_bytes()[..],
            &[entry(1, 6, u32::MAX), entry(2, 7, USER), entry(4, 5, u32::MAX), entry(16, 6, u32::MAX)].concat(),
            &entry(32, 0, u32::MAX),
        ];
        assert_eq!(access(made.object).await.unwrap()[..], expected.concat());
        let below = fs.names().create(rq, root, dir, b"below", &directory(0o777)).await.unwrap().object;
        assert_eq!(fs.xattrs().get(rq, below, posix_acl::DEFAULT).await.unwrap().unwrap()[..], list(7));
        // The named user may write only if the mask permits it.
        let data = Bytes::from_static(b"x");
        fs.contents().write(rq, &user(USER), made.object, WriteAt::End, data.clone()).await.unwrap();
        fs.attrs().set(rq, root, made.object, &SetAttributes::mode(0o640)).await.unwrap();
        let denied = fs.contents().write(rq, &user(USER), made.object, WriteAt::End, data).await;
        assert_eq!(denied, Err(FileError::Denied { object: made.object }));
        // An ACL equivalent to a mode is not stored.
        let plain = [&2u32.to_le_bytes()[..], &entry(1, 6, 0), &entry(4, 4, 0), &entry(32, 4, 0)].concat();
        fs.xattrs().set(rq, root, made.object, posix_acl::ACCESS, &plain, XattrMode::Any).await.unwrap();
        assert_eq!(access(made.object).await, None);
        assert_eq!(fs.attrs().get(rq, made.object).await.unwrap().mode, 0o644);
        let bad = fs.xattrs().set(rq, root, made.object, posix_acl::ACCESS, b"malformed", XattrMode::Any).await;
        assert!(matches!(bad, Err(FileError::Invalid { .. })));
    });
}

#[test]
fn nfsv4_acls_are_stored_and_determine_the_mode() {
    let settings = Settings { acl_type: AclType::Nfsv4, ..Settings::default() };
    in_world(settings, async |rq, _, fs| {
        let root = &Cred::root();
        let id = fs.names().create(rq, root, ROOT, b"f", &file(0o640)).await.unwrap().object;
        let mut acl = fs.acls().get(rq, id).await.unwrap();
        assert!(acl.trivial);
        acl.entries.insert(0, crate::Ace { kind: 0, flags: 0, mask: 0x2, who: AceWho::User(USER.into()) });
        fs.acls().set(rq, root, id, &acl).await.unwrap();
        let stored = fs.acls().get(rq, id).await.unwrap();
        assert_eq!((&stored.entries, stored.trivial), (&acl.entries, false));
        let data = Bytes::from_static(b"x");
        fs.contents().write(rq, &user(USER), id, WriteAt::End, data.clone()).await.unwrap();
        assert!(fs.contents().write(rq, &user(7), id, WriteAt::End, data).await.is_err());
        fs.acls().set(rq, root, id, &Acl::default()).await.unwrap();
        assert_eq!(fs.acls().get(rq, id).await.unwrap().entries.len(), 3);
        assert_eq!(fs.attrs().get(rq, id).await.unwrap().mode, 0o640);
    });
}

#[test]
fn the_acl_says_which_users_may_change_it_remove_the_file_and_take_it() {
    let settings = Settings { acl_type: AclType::Nfsv4, ..Settings::default() };
    in_world(settings, async |rq, _, fs| {
        let root = &Cred::root();
        let ace = |kind, mask| crate::Ace { kind, flags: 0, mask, who: AceWho::User(USER.into()) };
        let id = fs.names().create(rq, root, ROOT, b"f", &file(0o644)).await.unwrap().object;
        let mut acl = fs.acls().get(rq, id).await.unwrap();
        let refused = Err(FileError::NotPermitted { object: id });
        assert_eq!(fs.acls().set(rq, &user(USER), id, &acl).await, refused, "neither owner nor permitted");
        acl.entries.insert(0, ace(0, crate::acl::WRITE_ACL));
        acl.flags = Acl::PROTECTED;
        fs.acls().set(rq, root, id, &acl).await.unwrap();
        assert_eq!(fs.acls().get(rq, id).await.unwrap().flags, Acl::PROTECTED);
        assert_eq!(fs.acls().set(rq, &user(7), id, &acl).await, refused);
        // Whom the ACL permits to change it may permit itself the rest.
        acl.entries[0] = ace(0, crate::acl::WRITE_ACL | crate::acl::WRITE_OWNER | crate::acl::DELETE);
        fs.acls().set(rq, &user(USER), id, &acl).await.unwrap();
        let take = SetAttributes { uid: Some(7), ..SetAttributes::default() };
        assert!(fs.attrs().set(rq, &user(USER), id, &take).await.is_err(), "only for itself");
        let take = SetAttributes { uid: Some(USER), ..SetAttributes::default() };
        assert_eq!(fs.attrs().set(rq, &user(USER), id, &take).await.unwrap().uid, USER);
        fs.attrs().set(rq, root, ROOT, &SetAttributes { mode: Some(0o755), ..SetAttributes::default() }).await.unwrap();
        assert!(fs.names().remove(rq, &user(7), ROOT, b"f").await.is_err());
        fs.names().remove(rq, &user(USER), ROOT, b"f").await.unwrap();
        // Write permission on the directory grants the removal of its entries, as the ACL that OpenZFS makes of a mode does.
        fs.attrs().set(rq, root, ROOT, &SetAttributes { mode: Some(0o777), ..SetAttributes::default() }).await.unwrap();
        let id = fs.names().create(rq, root, ROOT, b"g", &file(0o644)).await.unwrap().object;
        let mut acl = fs.acls().get(rq, id).await.unwrap();
        acl.entries.insert(0, ace(1, crate::acl::DELETE));
        fs.acls().set(rq, root, id, &acl).await.unwrap();
        fs.names().remove(rq, &user(USER), ROOT, b"g").await.unwrap();
    });
}

/// A rejected operation changes nothing: a file whose mode cannot change is not truncated first.
#[test]
fn a_rejected_chmod_keeps_the_contents() {
    let settings = Settings { acl_type: AclType::Nfsv4, acl_mode: AclMode::Restricted, ..Settings::default() };
    in_world(settings, async |rq, _, fs| {
        let root = &Cred::root();
        let id = fs.names().create(rq, root, ROOT, b"f", &file(0o6777)).await.unwrap().object;
        let data = Bytes::from(vec![7; 300_000]);
        fs.contents().write(rq, root, id, WriteAt::Offset(0), data.clone()).await.unwrap();
        let mut acl = fs.acls().get(rq, id).await.unwrap();
        acl.entries.insert(0, crate::Ace { kind: 0, flags: 0, mask: 0x3, who: AceWho::User(USER.into()) });
        fs.acls().set(rq, root, id, &acl).await.unwrap();
        let before = fs.attrs().get(rq, id).await.unwrap();
        let cut = SetAttributes { mode: Some(0o600), ..SetAttributes::size(10) };
        assert_eq!(fs.attrs().set(rq, root, id, &cut).await, Err(FileError::NotPermitted { object: id }));
        // Truncating another user's program clears its set-user-id bit.
        let done = fs.attrs().set(rq, &user(USER), id, &SetAttributes::size(10)).await;
        assert_eq!(done, Err(FileError::NotPermitted { object: id }));
        assert_eq!(fs.attrs().get(rq, id).await.unwrap(), before);
        assert!(fs.contents().read(rq, id, 0, 1 << 20).await.unwrap() == data);
    });
}

#[test]
fn a_read_only_file_system_rejects_changes() {
    in_world(Settings::default(), async |rq, _, fs| {
        fs.set_settings(Settings { read_only: true, ..Settings::default() });
        assert!(!fs.is_writable());
        let root = &Cred::root();
        assert_eq!(fs.names().create(rq, root, ROOT, b"f", &file(0o644)).await, Err(FileError::ReadOnly));
    });
}

#[test]
fn invalid_names_are_rejected() {
    in_world(Settings::default(), async |rq, _, fs| {
        let root = &Cred::root();
        let made =
            async |name: &[u8]| fs.names().create(rq, root, ROOT, name, &file(0o644)).await.map_err(|e| e.errno());
        assert_eq!(made(&[b'x'; 256]).await.unwrap_err(), 36);
        assert_eq!(made(b"a/b").await.unwrap_err(), 22);
        assert_eq!(made(b"").await.unwrap_err(), 2);
        assert_eq!(made(b"..").await.unwrap_err(), 17);
        let longest = made(&[b'x'; 255]).await.unwrap();
        assert_eq!(made(&[b'x'; 255]).await.unwrap_err(), 17);
        let given = New { exclusive: false, ..file(0o600) };
        assert_eq!(fs.names().create(rq, root, ROOT, &[b'x'; 255], &given).await.unwrap(), longest);
        let target = vec![b't'; 4000];
        let link = New::of(NewKind::Symlink(target.clone()), 0);
        let link = fs.names().create(rq, root, ROOT, b"link", &link).await.unwrap().object;
        assert_eq!(fs.contents().read_link(rq, link).await.unwrap()[..], target);
    });
}

#[test]
fn the_owner_is_in_the_bonus_buffer() {
    for projects in [false, true] {
        in_world(Settings { projects, ..Settings::default() }, async |rq, _, fs| {
            let id = fs.names().create(rq, &user(USER), ROOT, b"f", &file(0o644)).await.unwrap().object;
            let object = fs.object(rq, id).await.unwrap();
            let dnode = &object.dnode;
            let owner = owner_of(dnode.bonus_type, dnode.bonus(), dnode.endian).unwrap();
            assert_eq!(owner, Some(Owner { uid: USER.into(), gid: USER.into(), project: 0 }));
            assert_eq!(owner_of(ObjectType::NONE, &[], dnode.endian), Ok(None));
            // Size in OpenZFS for a file of mode 644: 168 bytes, with a project 176.
            let has_project = fs.attrs().get(rq, id).await.unwrap().project.is_some();
            assert_eq!(dnode.bonus_len, if has_project { 176 } else { 168 });
        });
    }
}

#[test]
fn no_more_is_reserved_than_is_available() {
    in_world(Settings::default(), async |rq, _, fs| {
        let root = &Cred::root();
        let id = fs.names().create(rq, root, ROOT, b"file", &file(0o600)).await.unwrap().object;
        let fits = AVAILABLE_BYTES * 100 / 110;
        let size = async || fs.attrs().get(rq, id).await.unwrap().size_bytes;
        for keep_size in [true, false] {
            let reserve = async |range| fs.contents().allocate(rq, root, id, range, Space::Reserve { keep_size }).await;
            assert_eq!(reserve(5..6 + fits).await.map(drop), Err(FileError::NoSpace));
            assert_eq!(reserve(0..u64::MAX >> 1).await.map(drop), Err(FileError::NoSpace));
            assert_eq!(size().await, 0);
            reserve(5..5 + fits).await.unwrap();
        }
        assert_eq!(size().await, 5 + fits);
        // Nothing is reserved for zeros.
        let zeros = Space::Zero { keep_size: false };
        fs.contents().allocate(rq, root, id, 0..2 * AVAILABLE_BYTES, zeros).await.unwrap();
    });
}
