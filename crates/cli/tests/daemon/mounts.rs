//! Mounts of the daemon: file systems in use, keys that are not loaded, options, and the messages about all that.

use super::served::{can_mount, mounts_below};
use super::{CONFIGURATION, Running, Site, text};
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

const ACCESS_DENIED: i32 = 13;
const IO_ERROR: i32 = 5;
const READ_ONLY: i32 = 30;
/// NFS3ERR_ACCES, and MNT3ERR_ACCES.
const NFS_ACCESS_DENIED: u32 = 13;

/// A daemon that mounts, with the pool `tank` below the directory `m`, whose root has a property.
fn site_with_mounts(property: &str) -> (Site, Running, PathBuf) {
    let site = Site::new(1);
    site.configure(&CONFIGURATION.replace("mounts = false", "mounts = true"));
    let daemon = site.start();
    let top = site.path("m");
    site.ok(&format!("zpool create -m {}/tank -O {property} tank d0", top.display()));
    (site, daemon, top)
}

fn errno<T>(result: std::io::Result<T>) -> i32 {
    result.map(drop).unwrap_err().raw_os_error().unwrap()
}

/// Names in a directory, as `ls` finds them.
fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Lists a directory to its end: some errors come with the first entries.
fn list(dir: &Path) -> std::io::Result<usize> {
    std::fs::read_dir(dir)?.try_fold(0, |count, entry| entry.map(|_| count + 1))
}

impl Site {
    fn get(&self, properties: &str, name: &str) -> String {
        self.ok(&format!("zfs get -H -o value {properties} {name}")).trim().replace('\n', " ")
    }
}

/// Type and options of the mount at a path, in the kernel's list.
fn kernel_mount(path: &Path) -> Option<(String, String)> {
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let at = |line: &&str| line.split(' ').nth(1) == path.to_str();
    let line = table.lines().rfind(at)?;
    Some((line.split(' ').nth(2)?.to_owned(), line.split(' ').nth(3)?.to_owned()))
}

#[test]
fn without_its_key_a_file_system_is_no_empty_directory() {
    if !can_mount() {
        return;
    }
    let (site, _daemon, top) = site_with_mounts("sharenfs=on");
    std::fs::write(site.path("key"), "00112233445566778899aabbccddeeff".repeat(2)).unwrap();
    let location = format!("-o keylocation=file://{}", site.path("key").display());
    site.ok(&format!("zfs create -o encryption=on -o keyformat=hex {location} tank/enc"));
    site.ok("zfs create tank/enc/below");
    std::fs::write(top.join("tank/enc/file"), "content").unwrap();
    let mut nfs = site.nfs();
    let root = nfs.mount("/tank/enc").unwrap();
    let file = nfs.lookup(&root, "file").unwrap();
    assert_eq!((nfs.status_of_listing(&root), nfs.status_of_read(&file)), (0, 0));

    // Mounted, so that its key stays: as OpenZFS, whether or not a file is open.
    let said = site.fails("zfs unload-key tank/enc");
    assert!(said.contains("Key unload error: 'tank/enc' is busy."), "{said}");
    assert!(said.contains("zfs unmount tank/enc"), "{said}");
    let open = File::open(top.join("tank/enc/file")).unwrap();
    let said = site.fails("zfs unmount tank/enc");
    assert!(said.contains(&format!("cannot unmount '{}/tank/enc': pool or dataset is busy", top.display())), "{said}");
    drop(open);
    site.wait_until("the file is closed", || site.command("zfs unmount tank/enc").status().unwrap().success());
    site.ok("zfs unload-key tank/enc");
    assert_eq!(site.get("keystatus,mounted", "tank/enc"), "unavailable no");

    // On the mount of its parent.
    assert_eq!(names(&top.join("tank")), ["enc"], "it exists");
    let enc = top.join("tank/enc");
    assert_eq!(std::fs::metadata(&enc).unwrap().mode() & 0o7777, 0o111);
    assert_eq!(errno(list(&enc)), ACCESS_DENIED);
    assert_eq!(errno(File::open(enc.join("file"))), ACCESS_DENIED);
    assert_eq!(errno(std::fs::write(enc.join("new"), "x")), ACCESS_DENIED);
    assert_eq!(errno(list(&enc.join("below"))), ACCESS_DENIED);
    // Over NFS, with handles from before, from the parent, and by a new mount.
    assert_eq!((nfs.status_of_listing(&root), nfs.status_of_read(&file)), (NFS_ACCESS_DENIED, NFS_ACCESS_DENIED));
    assert_eq!(
        (nfs.lookup(&root, "file"), nfs.lookup(&root, "other")),
        (Err(NFS_ACCESS_DENIED), Err(NFS_ACCESS_DENIED))
    );
    let tank = nfs.mount("/tank").unwrap();
    let again = nfs.lookup(&tank, "enc").unwrap();
    assert_eq!(nfs.status_of_listing(&again), NFS_ACCESS_DENIED);
    assert_eq!(nfs.mount("/tank/enc"), Err(NFS_ACCESS_DENIED));

    for name in ["tank/enc", "tank/enc/below"] {
        let said = site.fails(&format!("zfs mount {name}"));
        assert!(said.contains(&format!("cannot mount '{name}': encryption key not loaded")), "{said}");
    }
    site.ok("zfs load-key tank/enc");
    site.ok("zfs mount -a");
    assert_eq!(
        (names(&enc), std::fs::read_to_string(enc.join("file")).unwrap()),
        (vec!["below".to_owned(), "file".to_owned()], "content".to_owned())
    );
    assert_eq!((nfs.status_of_listing(&root), nfs.status_of_read(&file)), (0, 0));
}

/// As OpenZFS: directories that follow the names of file systems go with the pool, chosen ones stay.
#[test]
fn an_export_removes_the_mount_points_that_it_made() {
    if !can_mount() {
        return;
    }
    let (site, _daemon, top) = site_with_mounts("canmount=off");
    site.ok("zfs create tank/named");
    site.ok(&format!("zfs create -o mountpoint={}/chosen tank/other", top.display()));
    std::fs::write(top.join("tank/named/file"), "x").unwrap();
    assert!(kernel_mount(&top.join("tank/named")).is_some() && kernel_mount(&top.join("chosen")).is_some());
    site.ok("zpool export tank");
    assert_eq!((names(&top), names(&top.join("tank"))), (vec!["chosen".to_owned(), "tank".to_owned()], vec![]));
    site.ok(&format!("zpool import -d {} tank", site.dir.path().display()));
    assert_eq!(std::fs::read_to_string(top.join("tank/named/file")).unwrap(), "x");
}

/// As OpenZFS: a directory that follows the name of a file system goes with the name, a chosen one stays.
#[test]
fn directories_of_former_names_are_removed() {
    if !can_mount() {
        return;
    }
    let (site, _daemon, top) = site_with_mounts("canmount=off");
    let tank = top.join("tank");
    for name in ["destroyed", "old", "kept", "none"] {
        site.ok(&format!("zfs create tank/{name}"));
    }
    site.ok(&format!("zfs create -o mountpoint={}/chosen tank/other", top.display()));
    assert_eq!(names(&tank), ["destroyed", "kept", "none", "old"]);
    site.ok("zfs destroy tank/destroyed");
    site.ok("zfs rename tank/old tank/new");
    assert_eq!(names(&tank), ["kept", "new", "none"]);
    site.ok(&format!("zfs set mountpoint={}/elsewhere tank/new", top.display()));
    site.ok("zfs set mountpoint=none tank/none");
    assert_eq!(
        (names(&tank), names(&top)),
        (vec!["kept".into()], ["chosen", "elsewhere", "tank"].map(String::from).into())
    );
    // A file in the way, and directories that were chosen.
    site.ok("zfs unmount tank/kept");
    std::fs::write(tank.join("kept/file"), "x").unwrap();
    for name in ["kept", "other", "new"] {
        site.ok(&format!("zfs destroy tank/{name}"));
    }
    assert_eq!(
        (names(&tank), names(&top)),
        (vec!["kept".into()], ["chosen", "elsewhere", "tank"].map(String::from).into())
    );
    assert_eq!(std::fs::read_to_string(tank.join("kept/file")).unwrap(), "x");
}

/// A daemon that mounts nothing by itself: what `zfs mount` mounted ends with it, also if it is killed.
#[test]
fn mounts_by_hand_end_with_a_killed_daemon() {
    if !can_mount() {
        return;
    }
    let site = Site::new(1);
    let mut daemon = site.start();
    let top = site.path("m");
    site.ok(&format!("zpool create -m {} tank d0", top.display()));
    for killed in [false, true] {
        site.ok("zfs mount tank");
        if !killed {
            std::fs::write(top.join("file"), "x").unwrap();
            site.ok("zpool sync tank");
        }
        assert!(kernel_mount(&top).is_some());
        daemon.signal(rustix::process::Signal::KILL);
        assert!(!daemon.ended());
        daemon = site.start();
        assert!(kernel_mount(&top).is_none(), "{}", site.log());
    }
    // A process that is started later, and does not know what is mounted.
    site.ok("zfs mount tank");
    assert_eq!(std::fs::read_to_string(top.join("file")).unwrap(), "x");
}

#[test]
fn a_forced_rename_detaches_what_is_in_use() {
    if !can_mount() {
        return;
    }
    let (site, _daemon, top) = site_with_mounts("sharenfs=on");
    site.ok("zfs create tank/old");
    let separate = top.join("separate");
    site.ok(&format!("zfs create -o mountpoint={} tank/old/own", separate.display()));
    let own = File::create(separate.join("file")).unwrap();
    let file = File::create(top.join("tank/old/file")).unwrap();
    file.write_all_at(b"before", 0).unwrap();
    let said = site.fails("zfs rename tank/old tank/new");
    assert!(said.contains("busy"), "{said}");
    site.ok("zfs rename -f tank/old tank/new");
    assert_eq!(site.get("mounted", "tank/new"), "yes");
    assert_eq!(site.get("mounted", "tank/new/own"), "yes");
    // What was open goes on.
    file.write_all_at(b"after!", 0).unwrap();
    own.write_all_at(b"own", 0).unwrap();
    assert_eq!(std::fs::read(top.join("tank/new/file")).unwrap(), b"after!");
    assert_eq!(std::fs::read(separate.join("file")).unwrap(), b"own");
    assert!(!top.join("tank/old").exists());
}

/// A daemon that mounts nothing: a client that does not call at the moment loses nothing unawares.
#[test]
fn the_key_of_a_shared_file_system_stays_until_it_is_unshared() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    std::fs::write(site.path("key"), "00112233445566778899aabbccddeeff".repeat(2)).unwrap();
    let location = format!("-o keylocation=file://{}", site.path("key").display());
    site.ok(&format!("zfs create -o encryption=on -o keyformat=hex {location} tank/enc"));
    site.ok("zfs create -o sharenfs=on tank/enc/below");
    let mut nfs = site.nfs();
    let root = nfs.mount("/tank/enc/below").unwrap();
    assert_eq!(nfs.status_of_listing(&root), 0);
    drop(nfs);
    let said = site.fails("zfs unload-key tank/enc");
    assert!(said.contains("Key unload error: 'tank/enc' is busy."), "{said}");
    assert!(said.contains("'tank/enc/below' is shared: zfs unshare tank/enc/below"), "{said}");
    let mut nfs = site.nfs();
    assert_eq!(nfs.status_of_listing(&root), 0);
    site.ok("zfs unshare tank/enc/below");
    site.ok("zfs unload-key tank/enc");
    site.ok("zfs load-key tank/enc");
    site.ok("zfs share tank/enc/below");
    assert_eq!(nfs.status_of_listing(&root), 0);
    site.ok("zfs set sharenfs=off tank/enc/below");
    site.ok("zfs unload-key tank/enc");
}

#[test]
fn keys_that_are_missing_at_the_start_show_on_mounts() {
    if !can_mount() {
        return;
    }
    let (site, daemon, top) = site_with_mounts("sharenfs=on");
    std::fs::write(site.path("key"), "00112233445566778899aabbccddeeff".repeat(2)).unwrap();
    let location = format!("-o keylocation=file://{}", site.path("key").display());
    site.ok(&format!("zfs create -o encryption=on -o keyformat=hex {location} tank/enc"));
    std::fs::write(top.join("tank/enc/file"), "content").unwrap();
    site.ok("daemon stop");
    drop(daemon);
    let _daemon = site.start();
    assert_eq!(names(&top.join("tank")), ["enc"]);
    assert_eq!(errno(list(&top.join("tank/enc"))), ACCESS_DENIED);
    // As in OpenZFS, the key alone mounts nothing.
    site.ok("zfs load-key tank/enc");
    assert_eq!(site.get("keystatus,mounted", "tank/enc"), "available no");
    site.ok("zfs mount tank/enc");
    assert_eq!(std::fs::read_to_string(top.join("tank/enc/file")).unwrap(), "content");
}

#[test]
fn a_busy_file_system_keeps_its_name_and_its_mount_point() {
    if !can_mount() {
        return;
    }
    let (site, _daemon, top) = site_with_mounts("sharenfs=on");
    let place = |name: &str| top.join(name).display().to_string();
    site.ok(&format!("zfs create -o mountpoint={} tank/a", place("a")));
    site.ok("zfs create tank/a/in");
    site.ok(&format!("zfs create -o mountpoint={} tank/a/own", place("own")));
    let busy = |path: &str| format!("cannot unmount '{}': pool or dataset is busy", place(path));
    // A file of the child that moves with it, and one of the file system itself.
    for (file, path) in [("a/in/file", "a/in"), ("a/file", "a")] {
        let open = File::create(top.join(file)).unwrap();
        for line in [
            &format!("zfs set mountpoint={} tank/a", place("b")),
            "zfs inherit mountpoint tank/a",
            "zfs set mountpoint=none tank/a",
            "zfs set canmount=off tank/a",
            "zfs rename tank/a tank/z",
        ] {
            let said = site.fails(line);
            assert!(said.contains(&busy(path)), "{line}: {said}");
        }
        assert!(site.fails("zfs destroy -r tank/a").contains("is busy"));
        assert_eq!(site.get("mountpoint,canmount,mounted", "tank/a"), format!("{} on yes", place("a")));
        assert_eq!(site.get("mountpoint,mounted", "tank/a/in"), format!("{} yes", place("a/in")));
        assert_eq!(site.get("mountpoint,mounted", "tank/a/own"), format!("{} yes", place("own")));
        assert_eq!(mounts_below(&top), [Path::new("a"), Path::new("own"), Path::new("tank")]);
        (&open).write_all(b"still there").unwrap();
    }
    // A working directory is a use of the mount, too.
    let mut sleeper = std::process::Command::new("sleep").arg("60").current_dir(top.join("a")).spawn().unwrap();
    assert!(site.fails(&format!("zfs set mountpoint={} tank/a", place("b"))).contains(&busy("a")));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    // An own mount point is none of its parent's.
    let other = File::create(top.join("own/file")).unwrap();
    site.ok(&format!("zfs set mountpoint={} tank/a", place("b")));
    assert_eq!(mounts_below(&top), [Path::new("b"), Path::new("own"), Path::new("tank")]);
    assert_eq!(site.get("mountpoint,mounted", "tank/a/in"), format!("{} yes", place("b/in")));
    assert_eq!(std::fs::read(top.join("b/in/file")).unwrap(), b"still there");
    assert!(site.fails("zfs rename tank/a tank/z").contains(&busy("own")));
    assert_eq!(site.get("mounted", "tank/a/in"), "yes", "what was unmounted before the refusal is mounted again");
    drop(other);
    site.wait_until("it is closed", || site.command("zfs rename tank/a tank/z").status().unwrap().success());
    assert_eq!(mounts_below(&top), [Path::new("b"), Path::new("own"), Path::new("tank")]);
    assert_eq!(site.get("mounted", "tank/z/in"), "yes");
    // One that was mounted by a command moves as well.
    site.ok("zfs create -o canmount=noauto tank/n");
    site.ok("zfs mount tank/n");
    site.ok(&format!("zfs set mountpoint={} tank/n", place("n")));
    assert_eq!(site.get("mounted", "tank/n"), "yes");
    site.ok("zpool export tank");
    assert_eq!(mounts_below(&top), Vec::<PathBuf>::new());
}

#[test]
fn commands_leave_mounts_as_they_are() {
    if !can_mount() {
        return;
    }
    let (site, _daemon, top) = site_with_mounts("sharenfs=on");
    let place = |name: &str| top.join(name).display().to_string();
    site.ok(&format!("zfs create -u -o mountpoint={} tank/new", place("new")));
    site.ok("zfs create -u tank/child");
    site.ok("zfs snapshot tank/child@s");
    site.ok(&format!("zfs clone -u -o mountpoint={} tank/child@s tank/clone", place("clone")));
    std::fs::write(site.path("key"), "00112233445566778899aabbccddeeff".repeat(2)).unwrap();
    let location = format!("-o keylocation=file://{}", site.path("key").display());
    site.ok(&format!(
        "zfs create -u -o encryption=on -o keyformat=hex {location} -o mountpoint={} tank/enc",
        place("enc")
    ));
    // A later command that mounts something changes nothing about them.
    site.ok(&format!("zfs create -o mountpoint={} tank/a", place("a")));
    for name in ["tank/new", "tank/child", "tank/clone", "tank/enc"] {
        assert_eq!(site.get("mounted", name), "no", "{name}");
    }
    assert_eq!(mounts_below(&top), [Path::new("a"), Path::new("tank")]);
    // Also in use: nothing is unmounted.
    let open = File::create(top.join("a/file")).unwrap();
    site.ok(&format!("zfs set -u mountpoint={} tank/a", place("b")));
    assert_eq!(site.get("mountpoint,mounted", "tank/a"), format!("{} yes", place("b")));
    site.ok("zfs rename -u tank/a tank/z");
    site.ok("zfs create tank/later");
    assert_eq!(
        (mounts_below(&top), site.get("mounted", "tank/z")),
        (vec!["a".into(), "tank".into()], "yes".to_owned())
    );
    drop(open);
    site.wait_until("it is unmounted", || site.command("zfs unmount tank/z").status().unwrap().success());
    site.ok("zfs mount tank/z");
    assert_eq!(mounts_below(&top), [Path::new("b"), Path::new("tank")]);
    assert!(top.join("b/file").exists());
}

#[test]
fn what_is_open_after_a_forced_export_fails_with_an_io_error() {
    if !can_mount() {
        return;
    }
    let (site, _daemon, top) = site_with_mounts("sharenfs=on");
    let file = File::options().read(true).write(true).create_new(true).open(top.join("tank/file")).unwrap();
    file.write_all_at(b"content", 0).unwrap();
    file.sync_all().unwrap();
    site.ok("zpool export -f tank");
    let failed = [file.write_all_at(&[7; 8192], 0), file.write_all_at(b"x", 1 << 20), file.set_len(0)].map(errno);
    assert_eq!(failed, [IO_ERROR; 3]);
}

#[test]
fn mounts_have_the_options_of_their_properties() {
    if !can_mount() {
        return;
    }
    let (site, _daemon, top) = site_with_mounts("sharenfs=on");
    let place = |name: &str| top.join(name).display().to_string();
    let (kind, options) = kernel_mount(&top.join("tank")).unwrap();
    assert_eq!(kind, "fuse.weir");
    assert!(!["nodev", "nosuid", "noexec"].iter().any(|word| options.contains(word)), "{options}");
    // A child with other options has a mount of its own at its place in the parent.
    site.ok("zfs create -o exec=off -o setuid=off -o devices=off tank/data");
    let (_, options) = kernel_mount(&top.join("tank/data")).unwrap();
    assert!(["nodev", "nosuid", "noexec"].iter().all(|word| options.contains(word)), "{options}");
    std::fs::copy("/bin/true", top.join("tank/data/true")).unwrap();
    std::fs::set_permissions(top.join("tank/data/true"), PermissionsExt::from_mode(0o755)).unwrap();
    assert_eq!(errno(std::process::Command::new(top.join("tank/data/true")).status()), ACCESS_DENIED);
    site.ok("zfs set exec=on tank/data");
    assert!(std::process::Command::new(top.join("tank/data/true")).status().unwrap().success());
    site.ok("zfs inherit -r setuid tank/data");
    site.ok("zfs inherit devices tank/data");
    let (_, options) = kernel_mount(&top.join("tank/data")).unwrap();
    assert!(!["nodev", "nosuid", "noexec"].iter().any(|word| options.contains(word)), "{options}");
    // After unmounting, it is mounted as its parent is.
    site.ok("zfs unmount tank/data");
    site.ok("zfs mount tank/data");
    assert!(
        kernel_mount(&top.join("tank/data")).is_none() && top.join("tank/data/true").exists(),
        "in its parent's mount"
    );

    // A directory that is not empty is covered, unless overlay says otherwise.
    std::fs::create_dir_all(top.join("full/inside")).unwrap();
    let said = site.fails(&format!("zfs create -o overlay=off -o mountpoint={} tank/full", place("full")));
    let created =
        "is not empty, and overlay is off: -O mounts over it\nfilesystem successfully created, but not mounted\n";
    assert!(said.starts_with("cannot mount 'tank/full': directory '") && said.ends_with(created), "{said}");
    assert_eq!((site.get("mounted", "tank/full"), names(&top.join("full"))), ("no".into(), vec!["inside".into()]));
    assert!(site.log().contains("is not empty"), "{}", site.log());
    let said = site.fails("zfs mount tank/full");
    assert!(said.contains("cannot mount 'tank/full': directory") && said.contains("is not empty"), "{said}");
    site.ok("zfs mount -O tank/full");
    assert_eq!(names(&top.join("full")), [""; 0]);
    site.ok("zfs unmount tank/full");
    site.ok("zfs set overlay=on tank/full");
    site.command("zfs mount tank/full").status().unwrap();
    assert_eq!((site.get("mounted", "tank/full"), names(&top.join("full")).len()), ("yes".into(), 0));
    assert!(!site.log().contains("fusermount"), "{}", site.log());
}

/// As OpenZFS's remounts: what is in use is not in the way.
#[test]
fn options_of_a_mount_in_use_change_at_once() {
    if !can_mount() {
        return;
    }
    let (site, _daemon, top) = site_with_mounts("sharenfs=on");
    let desk = top.join("tank/desk");
    site.ok("zfs create tank/desk");
    site.ok("zfs create tank/desk/below");
    let program = desk.join("true");
    std::fs::copy("/bin/true", &program).unwrap();
    std::fs::set_permissions(&program, PermissionsExt::from_mode(0o755)).unwrap();
    let runs = || std::process::Command::new(&program).status().map(|status| status.success());
    let file = File::create(desk.join("open")).unwrap();
    file.write_all_at(b"before", 0).unwrap();

    // In the mount of its parent: what is open goes on there.
    site.ok("zfs set exec=off tank/desk");
    assert_eq!(errno(runs()), ACCESS_DENIED);
    let (_, options) = kernel_mount(&desk).unwrap();
    assert!(options.contains("noexec"), "{options}");
    file.write_all_at(b"after!", 0).unwrap();
    assert_eq!(std::fs::read(desk.join("open")).unwrap(), b"after!");
    assert!(desk.join("below").is_dir() && site.get("mounted", "tank/desk/below") == "yes");
    // By its own mount, in both directions.
    let file = File::create(desk.join("second")).unwrap();
    site.ok("zfs set exec=on tank/desk");
    assert!(runs().unwrap());
    site.ok("zfs set readonly=on tank/desk");
    assert_eq!(errno(file.write_all_at(b"x", 0)), READ_ONLY);
    assert_eq!(errno(File::create(desk.join("new"))), READ_ONLY);
    drop(file);
    let reader = File::open(desk.join("second")).unwrap();
    site.ok("zfs set readonly=off tank/desk");
    File::create(desk.join("new")).unwrap();
    site.ok("zfs set readonly=on tank/desk");
    // Nothing is open for writing now, so that the kernel's flag says it too.
    site.ok("zfs set setuid=off tank/desk");
    let (_, options) = kernel_mount(&desk).unwrap();
    assert!(options.split(',').any(|word| word == "ro") && options.contains("nosuid"), "{options}");
    // A file system that is mounted while readonly=on becomes writable, too.
    drop(reader);
    site.ok("zfs unmount tank/desk");
    site.ok("zfs mount tank/desk");
    let reader = File::open(desk.join("second")).unwrap();
    site.ok("zfs set readonly=off tank/desk");
    std::fs::write(desk.join("new"), b"y").unwrap();

    // Access times.
    // Of a file that is new to the kernel, which does not ask for what it has read before.
    let is_noted = |name: &str| {
        let file = desk.join(name);
        std::fs::write(&file, name).unwrap();
        let atime = || std::fs::metadata(&file).unwrap().accessed().unwrap();
        let before = atime();
        assert_eq!(std::fs::read(&file).unwrap(), name.as_bytes());
        // The kernel keeps attributes for a moment.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        atime() > before
    };
    site.ok("zfs set relatime=off tank/desk");
    assert!(is_noted("on"));
    site.ok("zfs set atime=off tank/desk");
    assert!(!is_noted("off"));
    site.ok("zfs set atime=on tank/desk");
    assert!(is_noted("on again"));
    drop(reader);
    assert!(!site.log().contains("WARN"), "{}", site.log());
    // An administrator's 'zfs unmount' holds when another option changes.
    site.ok("zfs unmount tank/desk");
    site.ok("zfs set exec=off tank/desk");
    assert_eq!(site.get("mounted", "tank/desk"), "no");
}

/// An ordinary user mounts and unmounts by `fusermount3`.
#[test]
fn an_ordinary_user_unmounts_what_is_not_busy() {
    const USER: u32 = 65_534;
    let is_open = std::fs::metadata("/dev/fuse").is_ok_and(|device| device.mode() & 0o006 == 0o006);
    if !can_mount() || !is_open {
        println!("skipped: ordinary users may not open /dev/fuse");
        return;
    }
    let site = Site::new(1);
    site.configure(&CONFIGURATION.replace("mounts = false", "mounts = true"));
    std::fs::create_dir(site.path("m")).unwrap();
    for name in ["", "run", "state", "conf", "conf/weir.toml", "d0", "m"] {
        std::os::unix::fs::chown(site.path(name), Some(USER), Some(USER)).unwrap();
    }
    let of_user = |line: &str| {
        let mut command = site.command(line);
        command.uid(USER).gid(USER);
        command
    };
    let run = |line: &str| {
        let out = of_user(line).output().unwrap();
        (out.status.code(), text(&out.stderr))
    };
    let _daemon = site.start_by(of_user("daemon"));
    let top = site.path("m");
    assert_eq!(run(&format!("zpool create -m {}/tank tank d0", top.display())), (Some(0), String::new()));
    assert_eq!(kernel_mount(&top.join("tank")).unwrap().0, "fuse.weir");
    let file = top.join("tank/file");
    let holder = of_user("").get_program().to_owned();
    assert!(!holder.is_empty());
    let mut sleeper = std::process::Command::new("sleep");
    let mut sleeper = sleeper.arg("60").current_dir("/").uid(USER).gid(USER);
    // A working directory there, entered by the user: root may not enter the mount of another user.
    sleeper = sleeper.current_dir(top.join("tank"));
    let mut sleeper = sleeper.spawn().unwrap();
    let (code, said) = run("zfs unmount tank");
    let wanted = format!("cannot unmount '{}/tank': pool or dataset is busy\n", top.display());
    assert_eq!((code, said), (Some(1), wanted));
    assert!(kernel_mount(&top.join("tank")).is_some());
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    assert_eq!(run("zfs unmount tank"), (Some(0), String::new()));
    assert!(kernel_mount(&top.join("tank")).is_none() && !file.exists());
    assert_eq!(run("zfs mount tank"), (Some(0), String::new()));
    assert_eq!(run("zpool export tank"), (Some(0), String::new()));
    assert!(!site.log().contains("fusermount"), "{}", site.log());
}

/// If the daemon were killed, its transfers to a file that it serves itself would never end, and so would neither.
#[test]
fn devices_of_pools_are_not_on_own_mounts() {
    if !can_mount() {
        return;
    }
    let (site, _daemon, top) = site_with_mounts("atime=off");
    let inside = top.join("tank/inside");
    File::create(&inside).unwrap().set_len(100 << 20).unwrap();
    let said = site.fails(&format!("zpool create inner {}", inside.display()));
    assert!(said.contains("this process serves the file system that the file is on"), "{said}");
    let said = site.fails(&format!("zpool attach tank d0 {}", inside.display()));
    assert!(said.contains("this process serves the file system that the file is on"), "{said}");
}
