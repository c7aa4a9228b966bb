//! When file systems are mounted, unmounted and destroyed: as OpenZFS's own test suite expects it.

use super::served::can_mount;
use super::{CONFIGURATION, Running, Site};
use std::io::Write;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A daemon that mounts, and the pool `tank` whose root is mounted in the directory `m`.
fn mounting() -> Option<(Site, Running, PathBuf)> {
    can_mount().then(|| {
        let site = Site::new(3);
        site.configure(&CONFIGURATION.replace("mounts = false", "mounts = true"));
        let daemon = site.start();
        let top = site.path("m");
        site.ok(&format!("zpool create -m {} tank d0", top.display()));
        (site, daemon, top)
    })
}

impl Site {
    fn mounted(&self, name: &str) -> bool {
        self.ok(&format!("zfs get -H -o value mounted {name}")) == "yes\n"
    }
}

/// A process whose working directory is in a mount.
fn inside(place: &std::path::Path) -> Child {
    Command::new("sleep").arg("60").current_dir(place).spawn().unwrap()
}

fn end(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_working_directory_keeps_a_file_system_from_being_destroyed() {
    let Some((site, _daemon, top)) = mounting() else { return };
    let own = top.join("elsewhere").display().to_string();
    site.ok(&format!("zfs create -o mountpoint={own} tank/a"));
    site.ok("zfs create tank/a/child");
    site.ok("zfs snapshot tank/a@s");
    site.ok(&format!("zfs clone -o mountpoint={own}-clone tank/a@s tank/clone"));
    std::fs::write(format!("{own}/file"), "still there").unwrap();
    let user = inside(own.as_ref());
    for line in ["zfs destroy -r tank/a", "zfs destroy -rf tank/a", "zfs destroy -R tank/a"] {
        let said = site.fails(line);
        let expected = if line.contains("-R") { "is busy" } else { "has dependent clones" };
        assert!(said.contains(expected), "{line}: {said}");
    }
    let clone = inside(format!("{own}-clone").as_ref());
    let said = site.fails("zfs destroy -f tank/clone");
    assert!(said.contains(&format!("cannot unmount '{own}-clone': pool or dataset is busy")), "{said}");
    end(clone);
    site.wait_until("it is left", || site.command("zfs destroy tank/clone").status().unwrap().success());
    assert!(site.fails("zfs destroy -r tank/a").contains("is busy"));
    for name in ["tank/a", "tank/a/child"] {
        assert!(site.mounted(name), "{name} is mounted as before");
    }
    assert_eq!(std::fs::read_to_string(format!("{own}/file")).unwrap(), "still there");
    end(user);
    site.wait_until("it is left", || site.command("zfs destroy -r tank/a").status().unwrap().success());
}

#[test]
fn only_commands_and_mount_points_mount_what_canmount_turns_on() {
    let Some((site, _daemon, top)) = mounting() else { return };
    site.ok("zfs create -o canmount=off tank/a");
    site.ok("zfs set canmount=on tank/a");
    assert!(!site.mounted("tank/a"));
    site.ok("zfs mount tank/a");
    assert!(site.mounted("tank/a"));
    site.ok("zfs create -o mountpoint=none tank/b");
    site.ok(&format!("zfs set mountpoint={} tank/b", top.join("b").display()));
    assert!(site.mounted("tank/b"), "a new mount point mounts it");
    site.ok("zfs set canmount=noauto tank/b");
    site.ok("zfs unmount -a");
    assert!(site.mounted("tank/b") && !site.mounted("tank/a"), "what was mounted by a command stays");
}

#[test]
fn the_list_of_mounts_has_the_file_systems_in_the_mount_of_their_parent() {
    let Some((site, _daemon, top)) = mounting() else { return };
    site.ok("zfs create tank/a");
    site.ok("zfs create tank/a/b");
    let lists = |name: &str, path: &std::path::Path| {
        let path = path.display().to_string();
        site.ok("zfs mount").lines().any(|line| line.split_whitespace().eq([name, &path]))
    };
    assert!(lists("tank", &top) && lists("tank/a", &top.join("a")) && lists("tank/a/b", &top.join("a/b")));
    site.ok(&format!("zfs unmount {}", top.join("a/b").display()));
    assert!(lists("tank/a", &top.join("a")) && !lists("tank/a/b", &top.join("a/b")));
    site.ok("zfs mount tank/a/b");
    site.ok("zfs unmount tank/a");
    assert!(lists("tank", &top) && !lists("tank/a", &top.join("a")) && !lists("tank/a/b", &top.join("a/b")));
    // As in OpenZFS: a value of mountpoint mounts, also the present one.
    site.ok(&format!("zfs set mountpoint={} tank/a", top.join("a").display()));
    assert!(lists("tank/a", &top.join("a")) && lists("tank/a/b", &top.join("a/b")));
    for line in ["zfs mount -a tank", "zfs unmount -a tank", "zfs mount tank/a tank/a/b", "zfs mount -R"] {
        assert_eq!(site.command(line).output().unwrap().status.code(), Some(2), "{line}");
    }
    // One that is mounted over another one.
    site.ok(&format!("zfs create -o mountpoint={} tank/inner", top.join("x/y").display()));
    site.ok(&format!("zfs create -o mountpoint={} tank/outer", top.join("x").display()));
    site.ok("zfs unmount -a");
    assert!(!site.ok("zfs mount").contains(&top.display().to_string()));
    site.ok("zfs mount -R tank/a tank/outer");
    assert!(site.mounted("tank/a/b") && site.mounted("tank/outer") && !site.mounted("tank/inner"));
}

#[test]
fn mounting_loads_the_key_that_is_missing() {
    let Some((site, _daemon, top)) = mounting() else { return };
    let with_key = |line: &str, key: &str| {
        let mut child = site.command(line).stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(key.as_bytes()).unwrap();
        child.wait_with_output().unwrap().status.success()
    };
    assert!(with_key("zfs create -o encryption=on -o keyformat=passphrase tank/e", "password\n"));
    site.ok("zfs create tank/e/below");
    std::fs::write(top.join("e/file"), "x").unwrap();
    site.ok("zfs unmount tank/e");
    site.ok("zfs unload-key tank/e");
    assert!(!with_key("zfs mount -l tank/e", "wrong password\n"));
    assert!(!site.mounted("tank/e"));
    assert!(with_key("zfs mount -l tank/e", "password\n"));
    assert!(site.mounted("tank/e"));
    assert_eq!(std::fs::read_to_string(top.join("e/file")).unwrap(), "x");
    // All others are mounted although a key is missing, and unmounting can unload it.
    site.ok("zfs unmount -u tank/e");
    assert_eq!(site.ok("zfs get -H -o value keystatus tank/e"), "unavailable\n");
    site.ok("zfs mount -a");
    assert!(!site.mounted("tank/e") && site.mounted("tank"));
}

#[test]
fn a_file_system_of_an_old_version_is_written_after_its_upgrade() {
    let Some((site, _daemon, top)) = mounting() else { return };
    for version in [1, 4] {
        let file = top.join(format!("old{version}/dir/file"));
        site.ok(&format!("zfs create -o version={version} tank/old{version}"));
        let dir = file.parent().unwrap();
        assert!(std::fs::create_dir(dir).is_err(), "version {version} can only be read");
        site.ok(&format!("zfs upgrade tank/old{version}"));
        std::fs::create_dir(dir).unwrap();
        std::fs::write(&file, "x").unwrap();
        site.ok("zpool export tank");
        site.ok(&format!("zpool import -d {} tank", site.dir.path().display()));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "x");
        std::fs::remove_file(&file).unwrap();
    }
}

#[test]
fn a_pool_is_not_created_where_its_files_would_be_covered() {
    let site = Site::new(1);
    let place = site.dir.path().display().to_string();
    for (options, why) in [
        (format!("-m {place}"), format!("mountpoint '{place}' exists and is not empty\nuse '-m' option")),
        (format!("-f -O mountpoint={place}"), "exists and is not empty".to_owned()),
        ("-R here".to_owned(), "invalid alternate root 'here': must be an absolute path".to_owned()),
        ("-m here".to_owned(), "invalid mountpoint 'here': must be an absolute path".to_owned()),
    ] {
        let said = site.fails(&format!("zpool create {options} tank d0"));
        assert!(said.contains(&why), "{options}: {said}");
    }
    std::fs::create_dir(site.path("empty")).unwrap();
    site.ok(&format!("zpool create -m {place}/empty tank d0"));
}

#[test]
fn spares_of_a_pool_that_is_gone_are_free() {
    let site = Site::new(3);
    let daemon = site.start();
    site.ok("zpool create -m none tank d0 spare d1 cache d2");
    let said = site.fails("zpool create -m none other d1");
    assert!(said.contains("d1 is part of active pool 'tank'") || said.contains("in use"), "{said}");
    site.ok("zpool destroy tank");
    site.ok("zpool create -m none tank d0 spare d1 cache d2");
    drop(daemon);
    // No process has the pool open, and the labels of a spare do not name it.
    let said = site.fails("zpool create -m none other d1");
    assert!(said.contains("use '-f'") && said.contains("d1 is a hot spare"), "{said}");
}

#[test]
fn clones_have_the_properties_of_their_kind() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create -m none tank d0");
    site.ok("zfs create -V 8M tank/v");
    site.ok("zfs snapshot tank/v@s");
    let said = site.fails("zfs clone -o quota=64M tank/v@s tank/c");
    assert!(said.contains("'quota' does not apply to datasets of this type"), "{said}");
    site.ok("zfs clone -p -o volmode=none -o my:note=x tank/v@s tank/new/c");
    site.ok("zfs clone -p tank/v@s tank/new/c");
    assert!(site.fails("zfs clone tank/v@s tank/new/c").contains("already exists"));
}

#[test]
fn an_alternate_root_is_before_every_mount_point_until_the_export() {
    let Some((site, daemon, top)) = mounting() else { return };
    let root = top.join("alt").display().to_string();
    site.ok(&format!("zpool create -R {root} -m /place other d1"));
    site.ok("zfs create other/a");
    std::fs::write(format!("{root}/place/a/file"), "x").unwrap();
    let shown = |name: &str| site.ok(&format!("zfs get -H -o value mountpoint,mounted {name}"));
    assert_eq!(shown("other/a"), format!("{root}/place/a\nyes\n"));
    assert_eq!(site.ok("zpool get -H -o value altroot other"), format!("{root}\n"));
    assert_eq!(site.ok("zpool list -H -o altroot other"), format!("{root}\n"));
    // The value that is set is the one without it.
    site.ok("zfs set mountpoint=/new other/a");
    assert_eq!(shown("other/a"), format!("{root}/new\nyes\n"));
    assert_eq!(std::fs::read_to_string(format!("{root}/new/file")).unwrap(), "x");
    site.ok("zpool export other");
    let dir = site.dir.path().display().to_string();
    let said = site.fails(&format!("zpool import -d {dir} -R here other"));
    assert!(said.contains("invalid alternate root 'here'"), "{said}");
    site.ok(&format!("zpool import -d {dir} -N -R {root}/second other"));
    assert_eq!(shown("other/a"), format!("{root}/second/new\nno\n"));
    site.ok("zfs mount other/a");
    assert_eq!(std::fs::read_to_string(format!("{root}/second/new/file")).unwrap(), "x");
    // It is not imported at the next start.
    drop(daemon);
    let _daemon = site.start();
    assert_eq!(site.pools(), ["tank"]);
}

#[test]
fn a_working_directory_keeps_a_pool_open() {
    let Some((site, _daemon, top)) = mounting() else { return };
    std::fs::write(top.join("file"), "x").unwrap();
    let user = inside(&top);
    for line in ["zpool export tank", "zpool destroy tank"] {
        let said = site.fails(line);
        assert!(said.contains(&format!("cannot unmount '{}': pool or dataset is busy", top.display())), "{said}");
        assert!(site.mounted("tank"));
    }
    assert_eq!(std::fs::read_to_string(top.join("file")).unwrap(), "x");
    site.ok("zpool export -f tank");
    end(user);
}

/// The directory of a file system that is not mounted is a stored one of its parent, in which other file systems can be mounted.
#[test]
fn file_systems_are_mounted_below_ones_that_are_not() {
    let Some((site, _daemon, top)) = mounting() else { return };
    site.ok("zfs create -o canmount=off tank/off");
    site.ok("zfs create tank/off/a");
    std::fs::write(top.join("off/a/file"), "a").unwrap();
    site.ok("zfs create tank/b");
    site.ok("zfs create tank/b/c");
    std::fs::write(top.join("b/file"), "b").unwrap();
    std::fs::write(top.join("b/c/file"), "c").unwrap();
    site.ok("zfs unmount tank/b");
    assert!(!top.join("b").exists(), "the kernel looks the name up again at once");
    site.ok("zfs mount tank/b/c");
    assert_eq!(std::fs::read_to_string(top.join("b/c/file")).unwrap(), "c");
    let names = |path: &str| {
        let mut names: Vec<_> =
            std::fs::read_dir(top.join(path)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names("b"), ["c"], "what is in tank/b is not shown");
    assert_eq!(names("."), ["b", "off"]);
    // Its directory carries a mount, which moves, unless it is in use.
    let user = inside(&top.join("b/c"));
    for line in ["zfs mount tank/b", "zfs mount -a"] {
        let refused = site.fails(line);
        let why =
            format!("cannot mount 'tank/b': cannot unmount what is mounted below it: '{}'", top.join("b/c").display());
        assert!(refused.starts_with(&why), "{refused}");
        assert_eq!((names("b"), names("b/c")), (vec!["c".into()], vec!["file".into()]), "nothing is changed");
    }
    end(user);
    for line in ["zfs mount -a", "zfs mount tank/b"] {
        site.wait_until("it is left", || site.command(line).status().unwrap().success());
        assert_eq!(std::fs::read_to_string(top.join("b/file")).unwrap(), "b");
        assert_eq!(std::fs::read_to_string(top.join("b/c/file")).unwrap(), "c");
        assert!(site.mounted("tank/b") && site.mounted("tank/b/c"), "{line}");
        site.ok("zfs unmount tank/b");
        site.ok("zfs mount tank/b/c");
    }
    site.ok("zfs mount -a");
    site.ok("zpool export tank");
    site.ok("zpool import -d . tank");
    assert_eq!(std::fs::read_to_string(top.join("off/a/file")).unwrap(), "a");
    assert_eq!(std::fs::read_to_string(top.join("b/c/file")).unwrap(), "c");
    site.ok("zpool export tank");
}

#[test]
fn a_reload_with_mounts_mounts_the_pools_that_are_open() {
    if !can_mount() {
        return;
    }
    let site = Site::new(1);
    let _daemon = site.start();
    let top = site.path("m");
    site.ok(&format!("zpool create -m {} tank d0", top.display()));
    assert!(!site.mounted("tank"));
    site.configure(&CONFIGURATION.replace("mounts = false", "mounts = true"));
    site.ok("daemon reload");
    assert!(site.mounted("tank"));
    site.ok("zfs create tank/new");
    assert!(site.mounted("tank/new"));
    site.configure(CONFIGURATION);
    assert!(site.ok("daemon reload").contains("mounts = false holds for pools that are opened from now on"));
}

/// A rename over a file is atomic: its name leads to the old or to the new file at each moment.
#[test]
fn a_file_that_is_replaced_is_there_at_all_times() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let Some((site, _daemon, top)) = mounting() else { return };
    let name = top.join("file");
    let write = |n: u64| {
        std::fs::write(top.join("new"), n.to_string()).unwrap();
        std::fs::rename(top.join("new"), &name).unwrap();
    };
    write(0);
    let ends = AtomicBool::new(false);
    let reads = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            let mut last = 0;
            while !ends.load(Ordering::Relaxed) {
                let read: u64 = std::fs::read_to_string(&name).expect("it is there").parse().expect("it is whole");
                assert!(read >= last, "{read} after {last}");
                assert!(std::fs::metadata(&name).expect("it is there").is_file());
                (reads, last) = (reads + 1, read);
            }
            reads
        });
        (1..1500).for_each(write);
        ends.store(true, Ordering::Relaxed);
        reader.join().unwrap()
    });
    assert!(reads > 50, "{reads} reads");
    // What was replaced is freed at once, or a second later.
    site.ok("zpool export tank");
    site.ok("zdb -e -p . tank --invariants");
}

/// The kernel caches names, attributes and data for a second. What another protocol changes it forgets at once.
#[test]
fn a_mount_shows_what_another_protocol_changed_before_its_caches_expire() {
    const ROUNDS: usize = 12;
    let Some((site, _daemon, top)) = mounting() else { return };
    site.ok("zfs create -o sharenfs=rw,no_root_squash tank/shared");
    let dir = top.join("shared");
    let mut nfs = site.nfs();
    let root = nfs.mount("/tank/shared").unwrap();
    let name = dir.join("file");
    std::fs::write(&name, "000000").unwrap();
    let open = std::fs::File::open(&name).unwrap();
    let read_open = || {
        let mut text = [0; 6];
        std::os::unix::fs::FileExt::read_exact_at(&open, &mut text, 0).unwrap();
        String::from_utf8(text.to_vec()).unwrap()
    };
    let file = nfs.lookup(&root, "file").unwrap();
    let mut waits = Vec::new();
    for round in 1..=ROUNDS {
        let new = format!("{round:06}");
        let old = format!("{:06}", round - 1);
        assert_eq!(read_open(), old);
        assert_eq!(nfs.write(&file, new.as_bytes()), 0);
        let written = Instant::now();
        site.wait_until("data of an open file", || read_open() == new);
        waits.push(written.elapsed());
    }
    for round in 1..=ROUNDS {
        let new = dir.join("new");
        let text = format!("replaced {round}");
        std::fs::write(&new, &text).unwrap();
        assert!(name.metadata().is_ok() && std::fs::read_to_string(&name).unwrap() != text);
        assert_eq!(nfs.rename(&root, "new", "file"), 0);
        let renamed = Instant::now();
        site.wait_until("the file of a name", || std::fs::read_to_string(&name).is_ok_and(|read| read == text));
        // Weir notifies the kernel of each name separately.
        site.wait_until("the name that is gone", || !new.exists());
        waits.push(renamed.elapsed());
    }
    // Without notifications the kernel shows each change when its cache expires, most of a second later. A busy machine delays
    // only some of the notifications.
    waits.sort();
    assert!(waits[ROUNDS / 2] < Duration::from_millis(500), "{waits:?}");
}

/// `zdb -S` predicts what deduplication would save. Without options, zdb shows all of a pool, with its checkpoint.
#[test]
fn zdb_simulates_deduplication_and_shows_the_checkpoint() {
    const BLOCKS: u32 = 256;
    let Some((site, _daemon, top)) = mounting() else { return };
    site.ok("zfs create -o recordsize=8k -o compression=off tank/a");
    let data: Vec<u8> = (0..BLOCKS * 2048).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes()).collect();
    for name in ["a/one", "a/two"] {
        std::fs::write(top.join(name), &data).unwrap();
    }
    site.ok("zpool checkpoint tank");
    site.ok("zfs create tank/later");
    site.ok("zpool export tank");
    let zdb = |options: &str| site.ok(&format!("zdb -e -p . {options}"));
    let shown = zdb("-S tank");
    assert!(
        shown.contains("dedup = 2.00, compress = 1.00, copies = 1.00, dedup * compress / copies = 2.00"),
        "{shown}"
    );
    let row = shown.lines().find(|line| line.starts_with("     2 ")).unwrap();
    assert_eq!(row.split_whitespace().collect::<Vec<_>>(), ["2", "256", "2M", "2M", "2M", "512", "4M", "4M", "4M"]);
    assert!(shown.contains("DDT entries 256, size 63.8K on disk"), "{shown}");
    let found = "Checkpointed uberblock found:";
    let all = zdb("tank");
    assert!(all.contains(found) && all.contains("Dataset tank/later [ZPL]") && all.contains("No leaks"), "{all}");
    let old = zdb("-k -d tank");
    assert!(old.contains("Dataset tank_CHECKPOINTED_UNIVERSE/a [ZPL]"), "{old}");
    assert!(!old.contains(found) && !old.contains("later"), "{old}");
    assert!(zdb("-Pddd tank/a").contains("    Deadlist: 0 (0/0 comp)"));
    assert!(site.fails("zdb -e -p . tank/none").contains("tank/none"));
}

#[test]
fn a_path_names_the_file_system_that_it_is_in() {
    let Some((site, _daemon, top)) = mounting() else { return };
    site.ok("zfs create tank/a");
    site.ok("zfs create tank/a/b");
    site.ok(&format!("zfs create -o mountpoint={} tank/own", site.path("own").display()));
    std::fs::create_dir(top.join("a/b/folder")).unwrap();
    for (path, name) in [
        (top.clone(), "tank"),
        (top.join("a"), "tank/a"),
        (top.join("a/b/folder"), "tank/a/b"),
        (site.path("own"), "tank/own"),
    ] {
        assert_eq!(site.ok(&format!("zfs list -Ho name {}", path.display())), format!("{name}\n"));
        assert_eq!(site.ok(&format!("zfs get -Ho value name {}", path.display())), format!("{name}\n"));
    }
    let outside = site.dir.path().display().to_string();
    assert!(site.fails(&format!("zfs list {outside}")).contains("not a ZFS filesystem"));
    assert!(site.fails(&format!("zfs list {outside}/none")).contains("No such file or directory"));
}

/// `mount -t zfs DATASET DIRECTORY` runs the helper.
#[test]
fn mount_8_mounts_file_systems_with_a_legacy_mount_point() {
    let Some((site, _daemon, top)) = mounting() else { return };
    site.ok("zfs create -o mountpoint=legacy tank/legacy");
    site.ok("zfs create tank/usual");
    assert!(site.fails("zfs mount tank/legacy").contains("mount -t zfs tank/legacy"));
    let place = site.path("here");
    std::fs::create_dir(&place).unwrap();
    let helper = |dataset: &str, options: &str| {
        let mut command = site.command("");
        std::os::unix::process::CommandExt::arg0(&mut command, "mount.zfs");
        let out = command.arg(dataset).arg(&place).args(["-o", options]).output().unwrap();
        (out.status.code().unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
    };
    assert_eq!(helper("tank/legacy", "rw,nosuid,_netdev"), (0, String::new()));
    std::fs::write(place.join("file"), b"contents").unwrap();
    assert!(site.mounted("tank/legacy"));
    let (code, why) = helper("tank/legacy", "rw");
    assert!(code == 16 && why.contains("already mounted"), "{code} {why}");
    assert_eq!(site.ok(&format!("zfs list -Ho name {}", place.display())), "tank/legacy\n");
    // Properties and names change, and the mount stays.
    site.ok("zfs set atime=off tank/legacy");
    site.ok("zfs rename tank/legacy tank/renamed");
    site.ok("zfs set readonly=on tank/renamed");
    assert!(std::fs::write(place.join("file"), b"other").is_err());
    assert_eq!(std::fs::read(place.join("file")).unwrap(), b"contents");
    let at_place = format!("zfs list -Ho name {}", place.display());
    assert_eq!(site.ok(&at_place), "tank/renamed\n", "the mount's source is the former name");
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(&place.display().to_string())).unwrap();
    assert!(line.contains("nosuid") && line.contains(" fuse.weir "), "{line}");
    let unmounted = Command::new("umount").arg(&place).status().unwrap();
    assert!(unmounted.success() && !site.mounted("tank/renamed"));
    assert_eq!(helper("tank/renamed", "ro").0, 0);
    site.ok("zfs unmount tank/renamed");
    let (code, why) = helper("tank/usual", "rw");
    assert!(code == 32 && why.contains("is not 'legacy'"), "{code} {why}");
    assert!(helper("tank/none", "rw").1.contains("dataset does not exist"));
    assert!(helper("tank/usual@s", "rw").1.contains(".zfs/snapshot"));
    // Where another mount would be hidden, and could not be ended any more.
    site.ok(&format!("zfs create -o mountpoint={} tank/below", place.join("below").display()));
    let (code, why) = helper("tank/renamed", "rw");
    assert!(code == 32 && why.contains("'tank/below' is mounted below"), "{code} {why}");
    site.ok("zfs destroy tank/below");
    // A child has a mount of its own in that of its parent.
    site.ok("zfs set readonly=off tank/renamed");
    site.ok("zfs create -o mountpoint=legacy tank/renamed/child");
    assert_eq!(helper("tank/renamed", "rw").0, 0);
    let child = place.join("child");
    std::fs::create_dir(&child).unwrap();
    let mut command = site.command("");
    std::os::unix::process::CommandExt::arg0(&mut command, "mount.zfs");
    assert!(command.arg("tank/renamed/child").arg(&child).status().unwrap().success());
    let table = std::fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(table.contains(&format!(" {} fuse.weir ", child.display())), "{table}");
    std::fs::write(child.join("file"), b"of the child").unwrap();
    assert_eq!(site.ok(&format!("zfs list -Ho name {}", child.display())), "tank/renamed/child\n");
    site.ok("zfs unmount -a");
    assert!(child.join("file").exists(), "as OpenZFS: not those that mount(8) made");
    for mounted in [&child, &place] {
        assert!(Command::new("umount").arg(mounted).status().unwrap().success());
    }
    // A read-only mount of a shared file system makes its NFS and SMB shares read-only, too.
    site.ok("zfs create -o sharenfs=on tank/shared");
    site.ok("zfs unmount tank/shared");
    site.ok("zfs mount -o ro tank/shared");
    let path = top.join("shared");
    let mut nfs = site.nfs();
    let root = nfs.mount(path.to_str().unwrap()).unwrap();
    let read_only = 30;
    assert_eq!(nfs.rename(&root, "a", "b"), read_only);
    site.ok("zfs unmount tank/shared");
    site.ok("zfs mount tank/shared");
    assert_ne!(nfs.rename(&root, "a", "b"), read_only);
}

/// A mount whose directory another mount hides cannot be ended by its path.
#[test]
fn a_hidden_mount_is_said_to_be_hidden() {
    let Some((site, _daemon, top)) = mounting() else { return };
    let place = site.path("above");
    site.ok(&format!("zfs create -o mountpoint={} tank/sub", place.join("sub").display()));
    let over = Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&place).status().unwrap();
    assert!(over.success());
    for has_directory in [false, true] {
        if has_directory {
            std::fs::create_dir(place.join("sub")).unwrap();
        }
        for line in ["zfs unmount tank/sub", "zpool export tank"] {
            let why = site.fails(line);
            assert!(why.contains("a mount at a directory above hides it"), "{line}: {why}");
        }
    }
    assert!(site.mounted("tank/sub") && top.is_dir());
    assert!(Command::new("umount").arg(&place).status().unwrap().success());
    site.ok("zfs unmount tank/sub");
    site.ok("zpool export tank");
}
