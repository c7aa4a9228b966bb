//! Commands that change pools: made, filled with datasets, exported, taken over, destroyed; OpenZFS's `zdb` says after
//! each step that no block is lost. Without `zdb` (`WEIR_ZFS_TOOLS`) the steps alone are tried.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

mod destroying;
mod in_use;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    /// A folder with this number of sparse devices of 128 MiB.
    fn new(devices: usize) -> Self {
        let dir = tempfile::tempdir().unwrap();
        for i in 0..devices {
            std::fs::File::create(dir.path().join(format!("d{i}"))).unwrap().set_len(128 << 20).unwrap();
        }
        Lab { dir }
    }

    /// Runs a line of words; `D` and a number is a device.
    fn run(&self, line: &str) -> Output {
        self.command(line).output().unwrap()
    }

    fn command(&self, line: &str) -> Command {
        let is_device = |word: &str| word.strip_prefix('D').is_some_and(|n| n.parse::<u32>().is_ok());
        let path = |word: &str| self.dir.path().join(word.to_lowercase()).display().to_string();
        let words = line.split(' ').map(|word| if is_device(word) { path(word) } else { word.to_owned() });
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command
            .args(words)
            .env("WEIR_POOL_DIRS", self.dir.path())
            .env("RUNTIME_DIRECTORY", self.dir.path().join("run"))
            .stdin(Stdio::null());
        command
    }

    /// Runs a line that works; what it prints.
    fn ok(&self, line: &str) -> String {
        let out = self.run(line);
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// Runs a line that fails; its exit code and what it says.
    fn fails(&self, line: &str) -> (i32, String) {
        let out = self.run(line);
        assert!(!out.status.success(), "{line}");
        (out.status.code().unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
    }

    /// Demands that OpenZFS's zdb counts every block of the pool.
    fn check(&self, pool: &str) {
        let Some(tools) = std::env::var_os("WEIR_ZFS_TOOLS").map(PathBuf::from) else { return };
        let mut zdb = Command::new(tools.join("sbin/zdb"));
        zdb.env("LD_LIBRARY_PATH", tools.join("lib/x86_64-linux-gnu"));
        let out = zdb.args(["-e", "-p"]).arg(self.dir.path()).args([pool, "-bcc"]).output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout);
        let said = format!("{text}{}", String::from_utf8_lossy(&out.stderr));
        assert!(out.status.success() && text.contains("No leaks"), "zdb: {said}");
    }
}

#[test]
fn create_and_add_overwrite_no_contents_unless_forced() {
    let lab = Lab::new(6);
    let path = |name: &str| lab.dir.path().join(name);
    let write = |name: &str, at: u64, bytes: &[u8]| {
        let file = std::fs::File::options().write(true).open(path(name)).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, bytes, at).unwrap();
    };
    write("d0", 1080, b"\x53\xef");
    write("d1", 300 << 10, b"a line of a diary");
    write("d2", (128 << 20) - 7, b"the end");
    let kept: Vec<Vec<u8>> = ["d0", "d1", "d2"].map(|name| std::fs::read(path(name)).unwrap()).to_vec();
    for (line, what) in [
        ("zpool create t D0", "ext4"),
        ("zpool create t D1", "data of an unknown kind"),
        ("zpool create t D3 log D2", "data of an unknown kind"),
        ("zpool create t D3 cache D1", "data of an unknown kind"),
    ] {
        let (code, said) = lab.fails(line);
        assert!(code == 1 && said.contains(what) && said.contains("-f"), "{line}: {said}");
    }
    lab.ok("zpool create t D3");
    for line in ["zpool add t D1", "zpool add t log D2", "zpool add t spare D0"] {
        let (code, said) = lab.fails(line);
        assert!(code == 1 && said.contains("-f"), "{line}: {said}");
    }
    for (name, bytes) in ["d0", "d1", "d2"].iter().zip(&kept) {
        assert!(std::fs::read(path(name)).unwrap() == *bytes, "{name} was changed");
    }
    lab.ok("zpool add -f t D1");
    // Labels of a destroyed pool, and those that were cleared, count as nothing.
    lab.ok("zpool create u D4");
    lab.ok("zpool destroy u");
    lab.ok("zpool create u D4");
    lab.ok("zpool create v D5");
    let (code, said) = lab.fails("zpool labelclear -f D5");
    assert!(code == 1 && said.contains("is a member of active pool \"v\""), "{said}");
    lab.ok("zpool export v");
    lab.ok("zpool labelclear -f D5");
    lab.ok("zpool create v D5");
}

#[test]
fn a_pool_lives_from_creation_to_destruction() {
    let lab = Lab::new(8);
    let plan = lab.ok("zpool create -n p raidz2 D0 D1 D2 D3 D4 D5 log D6");
    assert!(plan.contains("would create 'p' with the following layout") && plan.contains("raidz2"));
    assert_eq!(lab.fails("zpool status p").0, 1, "it was only said");
    lab.ok("zpool create -O compression=lz4 -o comment=mine p raidz2 D0 D1 D2 D3 D4 D5 log D6");
    lab.check("p");
    let status = lab.ok("zpool status p");
    assert!(status.contains("raidz2-0") && status.contains("logs") && status.contains("No known data errors"));
    assert!(!status.contains("action:"), "a new pool needs nothing: {status}");
    let (code, why) = lab.fails("zpool create q D0 D7");
    assert!(code == 1 && why.contains("is part of active pool 'p'") && why.contains("zpool export p"), "{why}");
    assert!(lab.fails("zpool labelclear D0").1.contains("use '-f'"));

    lab.ok("zpool set autotrim=on p");
    lab.ok("zpool set comment=yours p");
    let got = lab.ok("zpool get -H -o property,value comment,autotrim p");
    assert_eq!(got, "comment\tyours\nautotrim\ton\n");
    let history = lab.ok("zpool history p");
    assert!(history.contains("zpool create -O compression=lz4") && history.contains("zpool set autotrim=on p"));

    lab.ok("zpool export p");
    lab.check("p");
    assert!(lab.ok("zpool import").contains("The pool can be imported"));
    lab.ok("zpool import p tank");
    assert!(lab.ok("zpool list -H -o name").starts_with("tank"));
    lab.ok("zpool sync");
    lab.ok("zpool destroy tank");
    assert!(lab.fails("zpool status tank").1.contains("no such pool"));
    lab.ok("zpool import -D tank");
    lab.check("tank");
    lab.ok("zpool destroy tank");
    lab.ok("zpool create -f new mirror D0 D1");
    lab.check("new");
}

#[test]
fn datasets_come_change_and_go() {
    let lab = Lab::new(2);
    lab.ok("zpool create p mirror D0 D1");
    lab.ok("zfs create -p p/a/b");
    lab.ok("zfs create -o recordsize=1M -o org.x:y=z p/c");
    lab.ok("zfs create -V 32M -s p/v");
    let (code, why) = lab.fails("zfs create p/c");
    assert_eq!((code, why.as_str()), (1, "cannot create 'p/c': dataset already exists\n"));
    assert_eq!(lab.fails("zfs create p/x/y").1, "cannot create 'p/x/y': parent does not exist\n");
    lab.ok("zfs snapshot -r p@one");
    lab.ok("zfs clone p/a/b@one p/clone");
    lab.ok("zfs hold keep p/a@one");
    assert!(lab.ok("zfs holds -H p/a@one").starts_with("p/a@one\tkeep\t"));
    assert!(lab.fails("zfs destroy p/a@one").1.contains("being held"));
    lab.ok("zfs release keep p/a@one");
    lab.ok("zfs bookmark p/c@one #mark");
    lab.ok("zfs rename p/c p/d");
    lab.ok("zfs rename -r p@one two");
    lab.ok("zfs set compression=zstd quota=64M p/d");
    let got = "zfs get -H -o property,value,source compression,quota,recordsize,org.x:y p/d";
    let wanted = "compression\tzstd\tlocal\nquota\t64M\tlocal\nrecordsize\t1M\tlocal\norg.x:y\tz\tlocal\n";
    assert_eq!(lab.ok(got), wanted);
    lab.ok("zfs inherit compression p/d");
    assert!(lab.ok("zfs get -H -o source compression p/d").starts_with("default"));
    lab.ok("zfs set volsize=48M p/v");
    assert_eq!(lab.ok("zfs get -H -o value volsize p/v"), "48M\n");
    let full = lab.fails("zfs create -V 1T p/full").1;
    assert!(full.contains("cannot create 'p/full': out of space"), "{full}");
    lab.ok("zfs create -V 8M p/thick");
    let reserved = || lab.ok("zfs get -Hp -o value refreservation p/thick").trim().parse::<u64>().unwrap();
    let before = reserved();
    lab.ok("zfs set volsize=16M p/thick");
    assert!(reserved() >= before + (8 << 20), "{} after {before}", reserved());
    assert!(lab.fails("zfs set volsize=1T p/thick").1.contains("greater than available space"));
    lab.ok("zfs set volsize=8M p/thick");
    assert_eq!(reserved(), before);
    lab.ok("zfs destroy p/thick");
    let names = "p\np@two\np/a\np/a@two\np/a/b\np/a/b@two\np/clone\np/d\np/d@two\np/d#mark\np/v\np/v@two\n";
    assert_eq!(lab.ok("zfs list -H -t all -o name"), names);
    lab.check("p");

    // As OpenZFS: what is below comes first, and clones elsewhere only with -r.
    assert!(lab.fails("zfs destroy p/a").1.contains("use '-r'"));
    assert!(lab.fails("zfs destroy -r p/a").1.contains("use '-R'"));
    assert!(lab.fails("zfs destroy p/d").1.contains("use '-r'"));
    let plan = lab.ok("zfs destroy -R -nv p/a");
    assert!(plan.starts_with("would destroy p/clone\n") && plan.ends_with("would destroy p/a\n"), "{plan}");
    lab.ok("zfs promote p/clone");
    lab.ok("zfs destroy -r p/a");
    lab.ok("zfs snapshot p/d@three");
    assert!(lab.fails("zfs rollback p/d@two").1.contains("use '-r'"));
    lab.ok("zfs rollback -r p/d@two");
    lab.ok("zfs destroy p/d#mark");
    lab.ok("zfs destroy p/d@%");
    assert_eq!(lab.ok("zfs list -H -t all -o name"), "p\np@two\np/clone\np/clone@two\np/d\np/v\np/v@two\n");
    lab.check("p");
    lab.ok("zfs destroy -r p/clone");
    lab.ok("zfs destroy -r p/v");
    lab.ok("zpool export p");
    lab.check("p");
}

/// Invalid or impossible command lines, their exit codes, and a part of their message.
const REFUSED: &[(&str, i32, &str)] = &[
    ("zpool create", 2, "missing pool name"),
    ("zpool create q", 2, "missing vdev specification"),
    ("zpool create mirror D0", 1, "it is reserved"),
    ("zpool create q mirror D2", 1, "mirror"),
    ("zpool create q D2 mirror D3 D4", 1, "mismatched replication level"),
    ("zpool create -o ashift=7 q D2", 1, "only values between 9 and 16"),
    ("zpool create -O compression=fast q D2", 1, "must be one of"),
    ("zpool create -d -O compression=zstd q D2", 1, "needs feature@zstd_compress"),
    ("zpool create -O encryption=on q D2", 1, "Keyformat required for new encryption root"),
    (
        "zpool create -O keyformat=raw q D2",
        1,
        "'keyformat' is a property of encrypted datasets, and encryption is off: add '-O",
    ),
    ("zpool create -O pbkdf2iters=400000 q D2", 1, "add '-O encryption=on'"),
    ("zpool create q /nowhere/at/all", 1, "no such file or directory"),
    ("zpool destroy nothing", 1, "no such pool"),
    ("zpool export", 2, "missing pool argument"),
    ("zpool import nothing", 1, "no such pool available"),
    ("zpool import -n p", 2, "-n option must be used with -F"),
    ("zpool set p", 2, "missing property=value"),
    ("zpool set size=1 p", 1, "readonly"),
    ("zfs create", 2, "missing dataset name"),
    ("zfs create p", 1, "missing dataset name"),
    ("zfs create -o bogus=1 p/x", 1, "invalid property 'bogus'"),
    ("zfs create -V lots p/x", 1, "bad volume size 'lots'"),
    ("zfs create -o atime=maybe p/x", 1, "must be one of 'off | on'"),
    ("zfs create -V 0 p/x", 1, "cannot create 'p/x': volume size cannot be zero"),
    ("zfs list -d x p", 2, "x is not an integer"),
    ("zfs get -d -1 all p", 2, "Depth can not be negative."),
    ("zfs rename p/no p/no", 1, "cannot open 'p/no': dataset does not exist"),
    ("zpool destroy p extra", 2, "too many arguments"),
    ("zpool destroy", 2, "missing pool argument"),
    ("zfs destroy p", 1, "operation does not apply to pools"),
    ("zfs destroy nothing", 1, "cannot open 'nothing': dataset does not exist"),
    ("zfs destroy p/nothing", 1, "dataset does not exist"),
    ("zfs destroy p@nothing", 1, "could not find any snapshots"),
    ("zfs snapshot p", 2, "missing '@' delimiter in snapshot name\nusage: zfs snapshot"),
    ("zfs snapshot p@s p/nothing@s", 1, "cannot open 'p/nothing': dataset does not exist"),
    ("zfs clone p/a p/b", 1, "not a snapshot"),
    ("zfs promote p", 1, "cannot promote 'p'"),
    ("zfs set p", 2, "missing"),
    ("zfs set atime=maybe p", 1, "must be one of 'off | on'"),
    ("zfs inherit quota p", 1, "use 'zfs set quota=none' to clear"),
    ("zfs inherit used p", 1, "used property is read-only"),
    ("zfs inherit bogus p", 2, "invalid property 'bogus'"),
    ("zfs hold keep p", 1, "is not a snapshot"),
];

#[test]
fn what_cannot_be_done_is_one_clear_line() {
    let lab = Lab::new(5);
    lab.ok("zpool create p mirror D0 D1");
    for (line, code, what) in REFUSED {
        let (got, why) = lab.fails(line);
        assert!(got == *code && why.contains(what), "{line}: {got}, {why}");
    }
    lab.ok("zfs rename p p");
    lab.ok("zfs create -s -V 1M p/v");
    assert!(lab.fails("zfs set volsize=0 p/v").1.contains("cannot set property for 'p/v': 'volsize' cannot be zero"));
    lab.ok("zfs snapshot p/v@s");
    assert!(lab.fails("zfs destroy p/v").1.starts_with("cannot destroy 'p/v': volume has children\nuse '-r'"));
    lab.check("p");
}

#[test]
fn two_processes_never_write_one_pool() {
    let lab = Lab::new(1);
    lab.ok("zpool create p D0");
    let held = std::fs::File::open(Path::new(lab.dir.path()).join("d0")).unwrap();
    held.lock().unwrap();
    let (code, why) = lab.fails("zfs create p/x");
    assert!(code == 1 && why.contains("cannot open 'p'"), "{why}");
    assert!(lab.ok("zfs list -H -o name").starts_with('p'), "reading is free");
    drop(held);
    lab.ok("zfs create p/x");
}

/// A device is overwritten with noise; a scrub puts it right, tells so, and the status shows it. What is free goes back
/// to the files' own file system.
#[test]
fn a_pool_is_scrubbed_and_trimmed() {
    use std::os::unix::fs::{FileExt, MetadataExt};
    let lab = Lab::new(2);
    lab.ok("zpool create tank mirror D0 D1");
    assert!(lab.fails("zpool scrub -p tank").1.contains("there is no active scrub"));
    let output = lab.ok("zpool scrub tank");
    assert!(output.contains("tank: scrubbed ") && output.contains(" 0B repaired, 0 errors"), "{output}");
    let file = std::fs::File::options().read(true).write(true).open(lab.dir.path().join("d1")).unwrap();
    let mut block = vec![0; 64 << 10];
    for at in ((4u64 << 20)..(120 << 20)).step_by(64 << 10) {
        file.read_exact_at(&mut block, at).unwrap();
        if block.iter().any(|&b| b != 0) {
            file.write_all_at(&[0xe7; 64 << 10], at).unwrap();
        }
    }
    let output = lab.ok("zpool scrub tank");
    assert!(!output.contains(" 0B repaired") && output.contains(", 0 errors"), "{output}");
    let status = lab.ok("zpool status tank");
    assert!(status.contains("scan: scrub repaired ") && status.contains("No known data errors"), "{status}");
    lab.check("tank");
    file.write_all_at(&[0xe7; 1 << 20], 100 << 20).unwrap();
    file.sync_all().unwrap();
    let before = file.metadata().unwrap().blocks();
    assert_eq!(
        lab.ok("zpool trim tank"),
        "",
        "it is done when the command returns, because no process has the pool open"
    );
    file.sync_all().unwrap();
    assert!(file.metadata().unwrap().blocks() + 1000 < before);
    lab.check("tank");
}

/// How this process, which is another host to the commands, opens the pool.
fn import_options(lab: &Lab, pool: &str) -> weir_engine::ImportOptions {
    let open = weir_pool::OpenOptions::new(vec![lab.dir.path().to_owned()], pool);
    weir_engine::ImportOptions { force: true, ..weir_engine::ImportOptions::new(open) }
}

/// A MiB that does not compress, of its own for each number.
fn contents(number: u64) -> bytes::Bytes {
    let mut word = number + 1;
    let words = std::iter::repeat_with(|| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word
    });
    words.take(1 << 17).flat_map(u64::to_le_bytes).collect::<Vec<u8>>().into()
}

/// Fills a volume by this process, in txgs of 4 MiB, and leaves the pool as one that is in use.
fn fill(lab: &Lab, pool: &str, volume: &str) {
    fill_with(lab, pool, volume, 0);
}

/// The same, with contents from this number on.
fn fill_with(lab: &Lab, pool: &str, volume: &str, first: u64) {
    let machine = weir_linux::machine().unwrap();
    let how = import_options(lab, pool);
    machine.block_on(async {
        let rq = &weir_machine::Request::internal("test");
        let engine = weir_engine::Engine::import(&machine, &how).await.unwrap();
        let device = engine.volume(rq, volume).await.unwrap();
        for part in 0..8u8 {
            for block in 0..4u64 {
                let data = contents(first + u64::from(part) * 4 + block);
                device.write(rq, (u64::from(part) * 4 + block) << 20, data, false).await.unwrap();
            }
            engine.sync().await.unwrap();
        }
        engine.stop().await.unwrap();
    });
}

/// Reads what [`fill`] wrote: for each MiB, whether it could be read. What is read is right.
fn readable(lab: &Lab, pool: &str, volume: &str) -> Option<Vec<bool>> {
    let machine = weir_linux::machine().unwrap();
    let how = import_options(lab, pool);
    machine.block_on(async {
        let rq = &weir_machine::Request::internal("test");
        let engine = weir_engine::Engine::import(&machine, &how).await.ok()?;
        let device = engine.volume(rq, volume).await;
        let mut out = Vec::new();
        if let Ok(device) = device {
            for block in 0..32u8 {
                let read = device.read(rq, u64::from(block) << 20, 1 << 20).await;
                if let Ok(data) = &read {
                    assert!(*data == contents(block.into()), "block {block} is not what was written");
                }
                out.push(read.is_ok());
            }
        }
        engine.stop().await.unwrap();
        Some(out)
    })
}

/// A disk is away while 32 MiB are written, and comes back: the pool is unhealthy until a resilver, and its old copies
/// stand in for no other disk.
#[test]
fn a_disk_that_was_away_has_a_dtl_until_a_resilver() {
    for (layout, disks) in [("raidz", 3), ("mirror", 2)] {
        let lab = Lab::new(disks);
        let names = (0..disks).map(|i| format!("D{i}")).collect::<Vec<_>>().join(" ");
        lab.ok(&format!("zpool create p {layout} {names}"));
        lab.ok("zfs create -s -V 64M p/v");
        let d0 = lab.dir.path().join("d0");
        let d1 = lab.dir.path().join("d1");
        let away = tempfile::tempdir_in(lab.dir.path()).unwrap();
        let gone0 = away.path().join("d0");
        let gone1 = away.path().join("d1");
        std::fs::rename(&d1, &gone1).unwrap();
        fill(&lab, "p", "p/v");
        std::fs::rename(&gone1, &d1).unwrap();
        let waits = |said: &str| {
            let status = lab.ok("zpool status p");
            let line = status.lines().find(|line| line.trim_start().starts_with(d1.to_str().unwrap())).unwrap();
            assert!(line.contains("ONLINE") && line.ends_with("(awaiting resilver)"), "{said}: {status}");
            assert!(status.contains(" state: ONLINE") && status.contains("zpool resilver"), "{said}: {status}");
            assert!(lab.ok("zpool status -x").contains("(awaiting resilver)"), "{said}");
            assert_eq!(lab.ok("zpool list -H -o health p"), "ONLINE\n", "{said}");
            assert!(lab.ok("zpool status -j p").contains("\"misses\""), "{said}");
            lab.check("p");
        };
        waits("at once");
        // Another process opens the pool, writes all labels anew, and reads all data.
        assert_eq!(readable(&lab, "p", "p/v"), Some(vec![true; 32]));
        waits("after a restart");

        std::fs::rename(&d0, &gone0).unwrap();
        let status = lab.run("zpool status p");
        let text = String::from_utf8_lossy(&status.stdout);
        if status.status.success() {
            assert!(text.contains(" state: DEGRADED") && text.contains("has too few devices to read"), "{text}");
        }
        // Only errors or what was written, never what stood there before.
        let read = readable(&lab, "p", "p/v").unwrap_or_default();
        assert!(read.is_empty() || read.contains(&false), "{layout}: the old copies stood in for a disk");
        std::fs::rename(&gone0, &d0).unwrap();
        lab.ok("zpool resilver p");
        let status = lab.ok("zpool status p");
        assert!(status.contains(" state: ONLINE") && !status.contains("awaiting"), "{status}");
        // What could not be read without the first disk is listed until a scrub does not find it.
        lab.ok("zpool scrub -w p");
        assert_eq!(lab.ok("zpool status -x"), "all pools are healthy\n");
        lab.check("p");
        std::fs::rename(&d0, &gone0).unwrap();
        assert_eq!(readable(&lab, "p", "p/v"), Some(vec![true; 32]), "{layout} without the first disk");
    }
}

#[test]
fn a_pool_that_cannot_be_opened_hides_no_other() {
    use std::os::unix::fs::FileExt;
    let lab = Lab::new(4);
    lab.ok("zpool create a D0");
    lab.ok("zpool create b D1 D2");
    lab.ok("zpool create c D3");
    // The devices of b are too few; of c, only the labels are left.
    std::fs::remove_file(lab.dir.path().join("d2")).unwrap();
    let file = std::fs::File::options().write(true).open(lab.dir.path().join("d3")).unwrap();
    file.write_all_at(&vec![0xe7; 120 << 20], 4 << 20).unwrap();
    let both = |line: &str| {
        let out = lab.run(line);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(1), "{line}: {said}");
        let lines: Vec<&str> = said.lines().collect();
        assert_eq!(lines.len(), 2, "{line}: {said}");
        assert!(lines[0].starts_with("cannot open 'b'") && lines[1].starts_with("cannot open 'c'"), "{line}: {said}");
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(both("zfs list -H -o name"), "a\n");
    assert_eq!(both("zfs get -H -o name,value type"), "a\tfilesystem\n");
    // As in OpenZFS, this is no error of a list.
    assert_eq!(lab.ok("zpool list -H -o name,health"), "a\tONLINE\nb\tUNAVAIL\nc\tFAULTED\n");
    assert!(both("zpool get -H -o name,value health").starts_with("a\tONLINE"));
    let status = both("zpool status");
    let parts: Vec<&str> = status.split("  pool: ").collect();
    assert_eq!(parts.len(), 4, "{status}");
    assert!(parts[1].contains(" state: ONLINE") && parts[1].contains("No known data errors"), "{status}");
    for (part, state, id) in [(parts[2], "UNAVAIL", "ZFS-8000-6X"), (parts[3], "FAULTED", "ZFS-8000-72")] {
        assert!(part.contains(&format!(" state: {state}\nstatus: ")) && part.contains("\naction: "), "{part}");
        assert!(part.contains(&format!("msg/{id}\nconfig:\n\n\tNAME ")), "{part}");
    }
    assert!(parts[2].contains("/d1  ONLINE       0     0     0\n"), "{status}");
    assert!(lab.run("zpool status c").stdout.starts_with(b"  pool: c\n state: FAULTED\n"));
    assert!(both("zpool status -x").starts_with("  pool: b\n"));
    let json: serde_json::Value = serde_json::from_str(&both("zpool status -j")).unwrap();
    assert_eq!(json["pools"]["b"]["state"], "UNAVAIL");
    assert_eq!(json["pools"]["a"]["state"], "ONLINE");
}

/// Later snapshots, their clones and what depends on those: each option destroys as much as it says.
#[test]
fn properties_are_set_on_the_datasets_that_exist() {
    let lab = Lab::new(1);
    lab.ok("zpool create p D0");
    lab.ok("zfs create p/a");
    lab.ok("zfs create p/b");
    let (code, why) = lab.fails("zfs set atime=off p/a p/no p/b q");
    assert!(code == 1 && why.lines().count() == 2, "{why}");
    assert!(why.starts_with("cannot open 'p/no': dataset does not exist\n"), "{why}");
    assert_eq!(lab.ok("zfs get -H -o value,source atime p/a p/b"), "off\tlocal\noff\tlocal\n");
    let (code, why) = lab.fails("zfs inherit atime p/a p/no p/b");
    assert!(code == 1 && why.contains("'p/no'") && why.lines().count() == 1, "{why}");
    assert_eq!(lab.ok("zfs get -H -o value,source atime p/a p/b"), "on\tdefault\non\tdefault\n");
}

/// A device is named by a path as for 'zpool create': relative to the caller's folder.
#[test]
fn relative_paths_name_devices() {
    let lab = Lab::new(0);
    let folder = lab.dir.path().join("dh");
    std::fs::create_dir(&folder).unwrap();
    for name in ["1", "2", "3", "4"] {
        std::fs::File::create(folder.join(name)).unwrap().set_len(128 << 20).unwrap();
    }
    for line in [
        "create p mirror dh/1 dh/2",
        "offline p dh/1",
        "online p ./dh/1",
        "clear p dh/1",
        "attach p dh/2 dh/3",
        "replace p dh/3 dh/4",
        "detach p dh/4",
        "add p cache dh/3",
        "remove p dh/3",
    ] {
        let mut command = lab.command(&format!("zpool {line}"));
        let out = command.current_dir(lab.dir.path()).env("WEIR_POOL_DIRS", &folder).output().unwrap();
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
    }
}
