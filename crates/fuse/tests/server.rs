//! A mount for a file server: what smbd does with a mount, without smbd. Tests are skipped where there is no FUSE.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use rustix::fs::{Mode, OFlags};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use weir_files::tree::memory::{MemoryFiles, MemoryOpener};
use weir_files::tree::{Export, Tree};
use weir_files::{Ace, AceWho, Acl, FileKind, acl_xdr, masks};
use weir_fuse::{Clients, MountOptions, Mounted, mount_for_server};
use weir_linux::Production;
use weir_machine::{Machine, Protocol};

const ACL_NAME: &str = "system.nfs4_acl_xdr";
/// A user other than the files' owner.
const OTHER: u32 = 54_321;

struct OneClient;

impl Clients for OneClient {
    fn client(&self, _: u32, uid: u32) -> BoxFuture<'_, String> {
        async move { format!("ann@10.0.0.1 as {uid}") }.boxed()
    }
}

fn tree() -> Arc<Tree> {
    let mut root = MemoryFiles::new(1);
    root.writable = true;
    root.change(34, |a| a.mode = 0o755);
    root.add(34, b"file", FileKind::Regular, 0o600, b"secret");
    root.add(34, b"streams", FileKind::Regular, 0o644, b"");
    root.add(34, b"open", FileKind::Regular, 0o644, b"public");
    let private = root.add(34, b"private", FileKind::Directory, 0o700, b"");
    root.add(private, b"inside", FileKind::Regular, 0o644, b"x");
    let opener = MemoryOpener(BTreeMap::from([("p".to_owned(), Arc::new(root))]));
    Arc::new(Tree::new(Arc::new(opener), vec![Export { name: "p".into(), id: 1 }]))
}

/// A mount, or `None` with a line on stderr if FUSE is unavailable.
fn mounted(machine: &Machine, tree: &Arc<Tree>, path: &Path) -> Option<Mounted> {
    let root = rustix::process::geteuid().is_root();
    let options = MountOptions {
        source: "p".into(),
        allow_other: root,
        threads: 2,
        writable: true,
        exclusive: false,
        dev: false,
        suid: false,
        exec: false,
    };
    match mount_for_server(tree.clone(), machine, Arc::new(OneClient), path, &options) {
        Ok(mounted) => Some(mounted),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

#[test]
fn files_that_the_server_knows_outlive_their_names() {
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let tree = tree();
    let Some(mounted) = mounted(&machine, &tree, dir.path()) else { return };
    let at = |name: &str| dir.path().join(name);

    // Without an OPEN request.
    std::fs::write(at("gone"), b"five!").unwrap();
    let path_only = rustix::fs::open(at("gone"), OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    std::fs::remove_file(at("gone")).unwrap();
    let found = rustix::fs::fstat(&path_only).unwrap();
    assert_eq!((found.st_size, found.st_nlink), (5, 0));

    // A directory that is removed while it is open.
    std::fs::create_dir(at("dir")).unwrap();
    let open_dir = std::fs::File::open(at("dir")).unwrap();
    std::fs::remove_dir(at("dir")).unwrap();
    assert!(open_dir.metadata().unwrap().is_dir());
    rustix::fs::fchmod(&open_dir, Mode::from_raw_mode(0o700)).unwrap();
    assert_eq!(open_dir.metadata().unwrap().mode() & 0o777, 0o700);
    drop(open_dir);
    drop(path_only);

    // Streams are extended attributes, and may be empty.
    std::fs::write(at("streams"), b"").unwrap();
    for (name, value) in [("user.DosStream.AFP_AfpInfo:$DATA", &b""[..]), ("user.DOSATTRIB", b"0x20")] {
        xattr::set(at("streams"), name, value).unwrap();
        assert_eq!(xattr::get(at("streams"), name).unwrap().unwrap(), value, "{name}");
    }

    // The spelling of a name whose case is not known.
    let spelling = |name: &str| xattr::get(dir.path(), format!("glusterfs.get_real_filename:{name}")).unwrap();
    assert_eq!(spelling("STREAMS").as_deref(), Some(&b"streams\0"[..]));
    assert_eq!((spelling("streams").as_deref(), spelling("other")), (Some(&b"streams\0"[..]), None));

    // Each operation is accounted to the client, not to a user of this machine.
    let uid = rustix::process::geteuid().as_raw();
    let clients: Vec<(Protocol, String)> =
        tree.accounts().datasets().into_iter().map(|row| (row.protocol, row.client)).collect();
    assert!(clients.contains(&(Protocol::Smb, format!("ann@10.0.0.1 as {uid}"))), "{clients:?}");
    assert!(clients.iter().all(|(protocol, _)| *protocol != Protocol::Fuse), "{clients:?}");
    assert!(mounted.served().requests > 0);

    // A program that the other test starts may still hold a copy of a descriptor: then the mount is detached.
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
}

/// Whether another user's `program` with these arguments succeeds.
fn as_other(program: &str, words: &[&Path]) -> bool {
    let mut command = Command::new(program);
    command.args(words).uid(OTHER).gid(OTHER).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    command.status().unwrap().success()
}

#[test]
fn the_acl_decides_and_not_the_mode() {
    let machine = Production::default().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    rustix::fs::chmod(dir.path(), Mode::from_raw_mode(0o755)).unwrap();
    let point = dir.path().join("mnt");
    std::fs::create_dir(&point).unwrap();
    let Some(mounted) = mounted(&machine, &tree(), &point) else { return };
    let at = |name: &str| point.join(name);
    let entry = |kind, mask, who| Ace { kind, flags: 0, mask, who };
    let acl = |entries| acl_xdr::encode(&Acl { entries, trivial: false, flags: Acl::PROTECTED });

    let given = acl(vec![entry(0, masks::READ_DATA, AceWho::User(OTHER.into()))]);
    xattr::set(at("file"), ACL_NAME, &given).unwrap();
    assert_eq!(xattr::get(at("file"), ACL_NAME).unwrap().unwrap(), given);
    let error = xattr::set(at("file"), ACL_NAME, &given[..given.len() - 1]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EINVAL), "{error}");

    xattr::set(at("streams"), ACL_NAME, &acl(vec![])).unwrap();
    let nothing = acl(vec![entry(0, 0, AceWho::Everyone)]);
    assert_eq!(xattr::get(at("streams"), ACL_NAME).unwrap().unwrap(), nothing, "no entry permits nothing");

    if rustix::process::geteuid().is_root() {
        assert!(as_other("cat", &[&at("file")]), "the ACL permits what the mode 600 does not");
        assert!(!as_other("test", &[Path::new("-w"), &at("file")]));
        assert!(as_other("cat", &[&at("open")]));
        xattr::set(at("open"), ACL_NAME, &acl(vec![entry(1, masks::READ_DATA, AceWho::Everyone)])).unwrap();
        assert!(!as_other("cat", &[&at("open")]), "the ACL forbids what the mode 644 permits");
        // The kernel does not cache the names of a directory that not everyone may search.
        assert_eq!(std::fs::read(at("private/inside")).unwrap(), b"x");
        assert!(!as_other("cat", &[&at("private/inside")]));
    } else {
        eprintln!("skipped: other users need root");
    }
    // A program that the other test starts may still hold a copy of a descriptor: then the mount is detached.
    mounted.unmounter().unmount().unwrap();
    mounted.join().unwrap();
}
