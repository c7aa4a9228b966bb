//! Commands about a pool that another process has open: that process does them, and its clients see the outcome at
//! once.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "it waits for the kernel")]

mod coverage;
mod destroying;
mod expansion;
mod health;
mod initialize_trim;
mod labels;
mod other_programs;
mod prefetch;
mod program;
mod queries;
mod rebuild;
mod remove;
mod scripts;
mod spares;
mod split;
mod texts;
mod vdev_scripts;
mod versions;

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

/// A folder with a pool `p`, a mirror of two files.
struct Lab(tempfile::TempDir);

impl Lab {
    fn new() -> Lab {
        let lab = Lab(tempfile::tempdir().unwrap());
        let disks: Vec<String> = (0..2).map(|i| lab.path(&format!("d{i}")).display().to_string()).collect();
        for disk in &disks {
            std::fs::File::create(disk).unwrap().set_len(256 << 20).unwrap();
        }
        lab.ok(&format!("zpool create p mirror {} {}", disks[0], disks[1]));
        lab
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn weir(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(line.split_whitespace()).stdin(Stdio::null()).current_dir(self.0.path());
        command.env("WEIR_POOL_DIRS", self.0.path()).env("RUNTIME_DIRECTORY", self.0.path().join("weir"));
        command
    }

    fn run(&self, line: &str) -> Output {
        self.weir(line).output().unwrap()
    }

    fn ok(&self, line: &str) -> String {
        let out = self.run(line);
        assert!(out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap()
    }

    /// The error of a command that fails.
    fn fails(&self, line: &str) -> String {
        let out = self.run(line);
        assert_eq!(out.status.code(), Some(1), "{line}");
        String::from_utf8(out.stderr).unwrap()
    }

    /// A process that has the pool open, once it is ready.
    fn start(&self, line: &str) -> Child {
        let mut child = self.weir(line).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "ready"), "{line} ended");
        child
    }

    /// Demands that OpenZFS's zdb, if present, counts every block of the pool.
    fn check(&self) {
        check(self.0.path());
    }

    fn serve(&self) -> Child {
        self.start("serve --nfs-port 0 --nbd-port 0 p")
    }
}

fn wait_ms(ms: u64) {
    std::thread::sleep(std::time::Duration::from_millis(ms));
}

/// Demands that OpenZFS's zdb, if present (`WEIR_ZFS_TOOLS`), counts every block of the pool.
fn check(folder: &Path) {
    check_pool(folder, "p");
}

fn check_pool(folder: &Path, pool: &str) {
    let Some(tools) = std::env::var_os("WEIR_ZFS_TOOLS").map(PathBuf::from) else { return };
    let mut zdb = Command::new(tools.join("sbin/zdb"));
    zdb.env("LD_LIBRARY_PATH", tools.join("lib/x86_64-linux-gnu"));
    let out = zdb.args(["-e", "-p"]).arg(folder).args([pool, "-bcc"]).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success() && text.contains("No leaks"), "zdb: {text}{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn forty_idle_connections_of_administrators_delay_no_command() {
    use std::os::unix::net::UnixStream;
    let lab = Lab::new();
    let mut server = lab.serve();
    let socket = lab.path(&format!("weir/{}.sock", server.id()));
    let idle: Vec<UnixStream> = (0..40).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    assert!(lab.ok("zfs list -H -o name").contains('p'));
    // If the command had waited for them, the server would have closed them before it.
    for mut connection in &idle {
        connection.set_nonblocking(true).unwrap();
        let error = std::io::Read::read(&mut connection, &mut [0]).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
    }
    // Far more of them close the oldest, and the newest have their place.
    let more: Vec<UnixStream> = (0..400).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    assert!(lab.ok("zfs list -H -o name").contains('p'));
    let mut oldest = &idle[0];
    oldest.set_nonblocking(false).unwrap();
    oldest.set_read_timeout(Some(std::time::Duration::from_secs(50))).unwrap();
    assert_eq!(std::io::Read::read(&mut oldest, &mut [0]).unwrap(), 0, "it was closed");
    drop(more);
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
}

/// Runs a shell line with `weir` as `$0` in the lab.
fn shell(lab: &Lab, line: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", line, env!("CARGO_BIN_EXE_weir")]).stdin(Stdio::null()).current_dir(lab.0.path());
    command.env("WEIR_POOL_DIRS", lab.0.path()).env("RUNTIME_DIRECTORY", lab.0.path().join("weir")).output().unwrap()
}

#[test]
fn too_few_open_files_are_a_clear_error_and_no_panic() {
    let lab = Lab::new();
    for command in ["zpool list", "serve p", "mount p m", "demo --once"] {
        let out = shell(&lab, &format!("ulimit -n 8; exec \"$0\" {command}"));
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(1), "{command}: {said}");
        assert!(said.contains("ulimit -n") && said.contains("open files is 8"), "{command}: {said}");
        assert!(!said.contains("panicked") && said.lines().count() == 1, "{command}: {said}");
    }
    // A soft limit alone is raised.
    let out = shell(&lab, "ulimit -Sn 8; exec \"$0\" zpool list -H -o name");
    assert_eq!(String::from_utf8_lossy(&out.stdout), "p\n", "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn a_device_for_which_no_descriptor_is_left_is_not_reported_missing() {
    let lab = Lab::new();
    for i in 0..40 {
        std::fs::hard_link(lab.path("d0"), lab.path(&format!("link{i}"))).unwrap();
    }
    // Enough to start with, and not for all of the images.
    let out = shell(&lab, "ulimit -n 60; exec \"$0\" zpool status p");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("oo many open files"), "{said}");
    assert!(!String::from_utf8_lossy(&out.stdout).contains("UNAVAIL"), "{}", String::from_utf8_lossy(&out.stdout));
}

#[test]
fn a_server_does_what_administrators_ask() {
    let lab = Lab::new();
    let mut server = lab.serve();
    let socket = lab.path(&format!("weir/{}.sock", server.id()));
    assert!(socket.exists());
    lab.ok("zfs create -p p/a/b");
    lab.ok("zfs create -V 32M p/v");
    lab.ok("zfs snapshot -r p@one");
    lab.ok("zfs clone p/a@one p/c");
    lab.ok("zfs promote p/c");
    lab.ok("zfs rename p/c p/d");
    lab.ok("zfs set compression=zstd recordsize=1M p/d");
    lab.ok("zfs hold keep p@one");
    assert!(lab.fails("zfs destroy p@one").contains("being held"));
    assert!(lab.ok("zfs holds -H p@one").contains("keep"));
    lab.ok("zfs release keep p@one");
    lab.ok("zfs bookmark p@one p#mark");
    lab.ok("zfs rollback p/v@one");
    assert!(lab.fails("zfs diff p/v@one p/d").contains("is not an earlier snapshot"));
    assert_eq!(lab.ok("zfs diff p/d@one p/d"), "");
    let names = "p\np@one\np#mark\np/a\np/a/b\np/a/b@one\np/d\np/d@one\np/v\np/v@one\n";
    assert_eq!(lab.ok("zfs list -H -o name -t all"), names);
    assert_eq!(lab.ok("zfs get -H -o value compression p/d"), "zstd\n");
    lab.ok("zpool set comment=here p");
    assert_eq!(lab.ok("zpool get -H -o value comment p"), "here\n");
    assert!(lab.ok("zpool scrub -w p").contains("0 errors"));
    assert!(lab.ok("zpool status p").contains("scrub"), "{}", lab.ok("zpool status p"));
    assert_eq!(lab.ok("zpool trim -w p"), "");
    assert!(lab.ok("zpool status -t p").contains("(100% trimmed, completed at"));
    lab.ok("zpool sync");
    for disk in ["d2", "d3"] {
        std::fs::File::create(lab.path(disk)).unwrap().set_len(256 << 20).unwrap();
    }
    assert!(lab.fails("zpool add p d2").contains("mismatched replication level"));
    let size = |lab: &Lab| lab.ok("zpool list -Hp -o size p").trim().parse::<u64>().unwrap();
    let before = size(&lab);
    lab.ok("zpool add p mirror d2 d3");
    assert_eq!(size(&lab), 2 * before);
    assert!(lab.ok("zpool status p").contains("mirror-1"));
    assert!(lab.ok("zpool history p").contains("zfs rename p/c p/d\n"));
    assert_eq!(lab.run("zfs create").status.code(), Some(2));
    assert!(lab.fails("zfs destroy p/none").contains("does not exist"));
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
    assert!(!socket.exists());
    check(lab.0.path());
    assert_eq!(lab.ok("zfs list -H -o name -t all"), names);
}

/// The messages themselves: a command and its answer are JSON, and what is not a command changes nothing.
#[test]
fn commands_are_typed_messages() {
    use std::io::{Read, Write};
    use weir_daemon::admin::VERSION;
    let lab = Lab::new();
    let mut server = lab.serve();
    let socket = lab.path(&format!("weir/{}.sock", server.id()));
    // Sends one command of a version; returns the kind and the contents of each frame.
    let exchange = |version: u32, json: &str| {
        let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
        let contents = [&version.to_le_bytes()[..], json.as_bytes()].concat();
        let length = (contents.len() as u32).to_le_bytes();
        stream.write_all(&[&[9][..], &length, &contents].concat()).unwrap();
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).unwrap();
        let mut frames = Vec::new();
        let mut rest = &answer[..];
        while let Some((header, after)) = rest.split_first_chunk::<5>() {
            let length = u32::from_le_bytes([header[1], header[2], header[3], header[4]]) as usize;
            frames.push((header[0], String::from_utf8(after[..length].to_vec()).unwrap()));
            rest = &after[length..];
        }
        frames
    };
    let answered = |json: &str| {
        let frames = exchange(VERSION, json);
        assert_eq!((frames.len(), frames[0].0, frames[1].0), (2, 8, 10), "begun and an answer: {frames:?}");
        frames[1].1.clone()
    };
    let create = r#"{"pool":"p","line":"made by hand","action":{"change":{"change":"create","name":"p/a","kind":"file_system","properties":{"compression":16},"parents":false}}}"#;
    assert_eq!(answered(create), r#"{"done":"changed"}"#);
    assert_eq!(answered(create), r#"{"refused":{"kind":"exists","why":"dataset already exists"}}"#);
    assert!(lab.ok("zpool history p").contains("made by hand"));
    let kind = r#"{"pool":"p","line":"","action":{"kind":{"name":"p/a"}}}"#;
    assert_eq!(answered(kind), r#"{"done":{"kind":"filesystem"}}"#);
    lab.ok("zfs snapshot -r p@s");
    let what = r#"{"dataset":{"name":"p/a","recursive":true,"dependents":false,"defer":false}}"#;
    let plan = format!(r#"{{"pool":"p","line":"","action":{{"plan":{what}}}}}"#);
    assert_eq!(answered(&plan), r#"{"done":{"destroys":{"names":["p/a@s","p/a"],"reclaimed_bytes":null}}}"#);
    let bare = plan.replace("\"recursive\":true", "\"recursive\":false");
    let refused = r#"{"refused":{"kind":"has_children","why":"filesystem has children","names":["p/a@s"]}}"#;
    assert_eq!(answered(&bare), refused);
    assert!(answered(&plan.replace("\"p\"", "\"q\"")).contains("other_pool"));
    for wrong in ["", "{}", r#"{"pool":"p","line":"","action":{"kind":{"name":"p/a"}},"force":true}"#] {
        assert!(answered(wrong).contains("not a command of this version"), "{wrong}");
    }
    let frames = exchange(VERSION - 1, kind);
    let refused = format!("version {}, this program {VERSION}: use the same version of weir", VERSION - 1);
    assert!(frames[0].1.contains(&refused), "{frames:?}");
    assert_eq!(lab.ok("zfs list -H -o name -r p/a"), "p/a\n", "nothing was destroyed");
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
}

/// A shell asks for completions: commands, options, and names of a pool that a server has open.
#[test]
fn shells_complete_names_of_pools_and_datasets() {
    let lab = Lab::new();
    let mut server = lab.serve();
    for name in ["p/home", "p/homes", "p/other"] {
        lab.ok(&format!("zfs create {name}"));
    }
    lab.ok("zfs snapshot p/home@monday");
    // As the script for bash asks about the last of the words.
    let complete = |words: &[&str]| {
        let mut command = lab.weir("--");
        command.args(words).env("WEIR_COMPLETE", "bash").env("_CLAP_IFS", "\n");
        command.env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string());
        let out = command.output().unwrap();
        assert!(out.status.success(), "{out:?}");
        String::from_utf8(out.stdout).unwrap()
    };
    assert_eq!(complete(&["weir", "zfs", "list", "p/ho"]), "p/home\np/homes");
    assert_eq!(complete(&["weir", "zfs", "destroy", "p/home@"]), "p/home@monday");
    assert_eq!(complete(&["weir", "zpool", "status", ""]).lines().next(), Some("p"));
    assert_eq!(complete(&["weir", "zfs", "prom"]), "promote");
    assert!(complete(&["weir", "zfs", "list", "--js"]).starts_with("--json"));
    assert!(!complete(&["weir", "zfs", "create", "p/ho"]).contains("p/home"), "a new name");
    lab.ok("zpool export p");
    assert!(server.wait().unwrap().success());
}

#[test]
fn the_process_with_the_pool_reports_its_devices() {
    let lab = Lab::new();
    let nowhere = |line: &str| {
        let mut command = lab.weir(line);
        command.env_remove("WEIR_POOL_DIRS");
        let out = command.output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap() + &String::from_utf8(out.stderr).unwrap())
    };
    // Others of this user may have other pools open.
    let unknown = |line: &str| nowhere(line).0.is_some_and(|code| code != 0);
    assert!(unknown("zpool list -H -o name p"));
    let mut server = lab.serve();
    assert_eq!(nowhere("zpool list -H -o name p"), (Some(0), "p\n".into()));
    assert_eq!(nowhere("zfs create p/a"), (Some(0), String::new()));
    assert_eq!(nowhere("zfs list -r -H -o name p"), (Some(0), "p\np/a\n".into()));
    // A key is entered once, for the process that has the pool open.
    std::fs::write(lab.path("key"), "long enough").unwrap();
    let location = lab.path("key").display().to_string();
    lab.ok(&format!("zfs create -o encryption=on -o keyformat=passphrase -o keylocation=file://{location} p/e"));
    let mut get = lab.weir("zfs get --key p/e=prompt -H -o value keystatus p/e");
    let mut get = get.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    get.stdin.take().unwrap().write_all(b"long enough\n").unwrap();
    assert_eq!(String::from_utf8(get.wait_with_output().unwrap().stdout).unwrap(), "available\n");
    // Killed, it leaves its socket behind; who looks next takes it away.
    let socket = lab.path(&format!("weir/{}.sock", server.id()));
    server.kill().unwrap();
    server.wait().unwrap();
    assert!(socket.exists());
    assert!(unknown("zpool list -H -o name p"));
    assert!(!socket.exists());
    assert_eq!(lab.ok("zfs list -H -o name"), "p\np/a\np/e\n");
}

#[test]
fn a_mount_shows_what_comes_and_goes() {
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("skipped: no /dev/fuse");
        return;
    }
    let lab = Lab::new();
    let top = lab.path("mnt");
    std::fs::create_dir(&top).unwrap();
    let mut mount = lab.start(&format!("mount p {}", top.display()));
    lab.ok("zfs create p/a");
    std::fs::write(top.join("a/file"), "one").unwrap();
    lab.ok("zfs snapshot p/a@s");
    assert_eq!(std::fs::read(top.join("a/.zfs/snapshot/s/file")).unwrap(), b"one");
    std::fs::write(top.join("a/file"), "two").unwrap();
    std::fs::write(top.join("a/new one"), "").unwrap();
    let changed = "M\t/\t/p/a/\nM\tF\t/p/a/file\n+\tF\t/p/a/new\\0040one\n";
    let sorted = |text: &str| text.lines().map(str::to_owned).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(sorted(&lab.ok("zfs diff -F p/a@s p/a")), sorted(changed));
    assert_eq!(sorted(&lab.ok("zfs diff -F p/a@s")), sorted(changed));
    std::fs::remove_file(top.join("a/new one")).unwrap();
    let open = std::fs::File::open(top.join("a/file")).unwrap();
    for line in ["zfs destroy -r p/a", "zfs rollback p/a@s", "zpool export p"] {
        assert!(lab.fails(line).contains("busy"), "{line}");
    }
    assert_eq!(lab.ok("zfs list -H -o name -t snapshot"), "p/a@s\n");
    // Nothing goes for what cannot be done.
    lab.ok("zfs snapshot p/a@t");
    assert!(lab.fails("zfs rollback -r p/a@s").contains("busy"));
    assert!(lab.fails("zfs rename -r p/a@gone @t").contains("does not exist"));
    assert_eq!(lab.ok("zfs list -H -o name -t snapshot"), "p/a@s\np/a@t\n");
    lab.ok("zfs destroy p/a@t");
    drop(open);
    // The kernel closes the file a moment later, and caches names for a second.
    let rolled = (0..50).any(|_| {
        wait_ms(100);
        lab.run("zfs rollback p/a@s").status.success()
    });
    wait_ms(1100);
    assert!(rolled && std::fs::read(top.join("a/file")).unwrap() == b"one");
    lab.ok("zfs rename p/a p/b");
    lab.ok("zfs destroy p/b@s");
    wait_ms(1100);
    assert!(!top.join("a").exists());
    assert_eq!(std::fs::read(top.join("b/file")).unwrap(), b"one");
    lab.ok("zfs destroy p/b");
    wait_ms(1100);
    assert!(!top.join("b").exists());
    lab.ok("zpool export p");
    assert!(mount.wait().unwrap().success());
    check(lab.0.path());
}

/// The classes of `zpool events -H`, history and configuration left out, and what is said of dropped ones.
fn classes(text: &str) -> Vec<&str> {
    let all = text.lines().filter_map(|line| Some(line.split_once('\t')?.1));
    all.filter(|class| !class.ends_with("history_event") && !class.ends_with("config_sync")).collect()
}

#[test]
fn events_of_a_pool_are_reported() {
    let lab = Lab::new();
    let refused = lab.fails("zpool events p");
    assert!(refused.contains("no process has pool 'p' open") && refused.contains("zpool history -i"), "{refused}");
    assert!(lab.fails("zpool events q").contains("no such pool"));
    let mut server = lab.serve();
    for misused in ["zpool events -c p", "zpool events -vc", "zpool events -jf", "zpool events p q"] {
        assert_eq!(lab.run(misused).status.code(), Some(2), "{misused}");
    }
    let mut follower = lab.weir("zpool events -Hf p").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    lab.ok("zfs snapshot p@one");
    let all = lab.ok("zpool events");
    assert!(all.starts_with("TIME                           CLASS\n"), "{all}");
    assert_eq!(classes(&lab.ok("zpool events -H p")), ["sysevent.fs.zfs.pool_import"]);
    // The txg after that of the snapshot writes the command line.
    lab.ok("zpool sync p");
    let long = lab.ok("zpool events -v p");
    assert!(long.contains("        history_command = \"zfs snapshot p@one\"\n"), "{long}");
    assert!(lab.ok("zpool events -j --json-int").contains(r#""class":"sysevent.fs.zfs.pool_import""#));
    assert!(lab.ok("zpool events -c").starts_with("cleared "));
    assert_eq!(lab.ok("zpool events -H"), "");
    // One side loses what is on it; the other has it still.
    let side = std::fs::File::options().write(true).open(lab.path("d1")).unwrap();
    let waste = vec![0xe7; 1 << 20];
    (4..200).for_each(|n| std::os::unix::fs::FileExt::write_all_at(&side, &waste, n << 20).unwrap());
    assert!(lab.ok("zpool scrub -w p").contains("0 errors"));
    let text = lab.ok("zpool events -H p");
    let found = classes(&text);
    let first = found.first().unwrap();
    let last = found.last().unwrap();
    assert_eq!((*first, *last), ("sysevent.fs.zfs.scrub_start", "sysevent.fs.zfs.scrub_finish"));
    assert!(found.len() > 2 && found[1..found.len() - 1].iter().all(|class| *class == "ereport.fs.zfs.checksum"));
    let long = lab.ok("zpool events -v p");
    let place = format!("        vdev_path = \"{}\"\n", lab.path("d1").display());
    assert_eq!(long.matches("zio_offset = 0x").count(), long.matches(&place).count(), "{long}");
    let line = lab.ok("zpool iostat -Hp p");
    let numbers: Vec<u64> = line.trim().split('\t').skip(1).map(|cell| cell.parse().unwrap()).collect();
    let size: u64 = lab.ok("zpool list -Hp -o size p").trim().parse().unwrap();
    assert_eq!((numbers.len(), numbers[0] + numbers[1]), (6, size), "{line}");
    assert!(numbers[2..].iter().all(|n| *n > 0), "a scrub read and put right: {line}");
    let reports = lab.ok("zpool iostat -v p 0.1 2");
    assert_eq!(reports.matches("pool        ").count() + reports.matches("mirror-0").count(), 4, "{reports}");
    lab.ok("zpool export p");
    assert!(lab.fails("zpool iostat p").contains("no process has pool 'p' open"));
    assert!(server.wait().unwrap().success());
    let mut followed = String::new();
    std::io::Read::read_to_string(&mut follower.stdout.take().unwrap(), &mut followed).unwrap();
    assert!(follower.wait().unwrap().success());
    assert_eq!(classes(&followed).first(), Some(&"sysevent.fs.zfs.pool_import"));
    assert_eq!(classes(&followed).last(), Some(&"sysevent.fs.zfs.pool_export"));
    check(lab.0.path());
}

#[test]
fn commands_started_at_once_on_a_pool_at_rest_take_turns() {
    let lab = Lab::new();
    let start = |i: u32| lab.weir(&format!("zfs create p/{i}")).stderr(Stdio::piped()).spawn().unwrap();
    for child in (0..6).map(start).collect::<Vec<_>>() {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
    assert_eq!(lab.ok("zfs list -H -o name"), "p\np/0\np/1\np/2\np/3\np/4\np/5\n");
    check(lab.0.path());
}

#[test]
fn a_command_waits_for_a_bounded_time_and_names_the_process_it_waits_for() {
    let lab = Lab::new();
    let disk = std::fs::File::open(lab.path("d0")).unwrap();
    disk.lock().unwrap();
    let out = lab.weir("zfs create p/x").env("WEIR_WAIT", "3").output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    let process = format!("process {}", std::process::id());
    assert_eq!(out.status.code(), Some(1), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with(&format!("waiting for {process}")), "{said}");
    assert!(lines[1].contains(&process) && lines[1].contains("stop that first"), "{said}");
    let child = lab.weir("zfs create p/x").stderr(Stdio::null()).spawn().unwrap();
    wait_ms(300);
    drop(disk);
    assert!(child.wait_with_output().unwrap().status.success());
}

/// Fills a volume with small blocks, which take seconds to scrub.
fn fill(lab: &Lab) {
    fill_volume(lab, "p/v");
}

fn fill_volume(lab: &Lab, name: &str) {
    lab.ok(&format!("zfs create -s -V 64M -o volblocksize=512 -o compression=off {name}"));
    at_rest(lab, async |engine| {
        let rq = &weir_machine::Request::internal("test");
        let device = engine.volume(rq, name).await.unwrap();
        for at in 0..12 {
            device.write(rq, at << 20, vec![at as u8; 1 << 20].into(), false).await.unwrap();
        }
        engine.sync().await.unwrap();
        drop(device);
    });
}

/// Changes the pool in this process while no other one has it open.
fn at_rest(lab: &Lab, change: impl AsyncFnOnce(&weir_engine::Engine)) {
    let machine = weir_linux::machine().unwrap();
    let open = weir_pool::OpenOptions::new(vec![lab.0.path().to_owned()], "p");
    let how = weir_engine::ImportOptions { force: true, ..weir_engine::ImportOptions::new(open) };
    machine.block_on(async {
        let engine = weir_engine::Engine::import(&machine, &how).await.unwrap();
        change(&engine).await;
        engine.stop().await.unwrap();
    });
}

#[test]
fn a_scrub_at_rest_runs_the_commands_of_others() {
    let lab = Lab::new();
    fill(&lab);
    let mut scrub = lab.weir("zpool scrub p").stdout(Stdio::piped()).spawn().unwrap();
    let socket = lab.path(&format!("weir/{}.sock", scrub.id()));
    while !socket.exists() {
        assert!(scrub.try_wait().unwrap().is_none(), "the scrub ended before it accepted commands");
        wait_ms(2);
    }
    lab.ok("zfs snapshot p/v@during");
    assert!(lab.ok("zpool status p").contains("scrub in progress"));
    let running = "cannot scrub p: currently scrubbing; use 'zpool scrub -s' to cancel scrub\n";
    assert_eq!(lab.fails("zpool scrub p"), running);
    lab.ok("zpool scrub -p p");
    let out = scrub.wait_with_output().unwrap();
    assert!(out.status.success() && String::from_utf8_lossy(&out.stdout).contains("p: "), "{out:?}");
    assert!(lab.ok("zpool status p").contains("scrub paused"));
    let paused = "cannot pause scrubbing p: scrub is paused; use 'zpool scrub' to resume scrub\n";
    assert_eq!(lab.fails("zpool scrub -p p"), paused);
    assert!(lab.ok("zfs list -H -t snapshot -o name").contains("p/v@during"));
    // A command that closes the pool ends the scrub.
    let scrub = lab.weir("zpool scrub p").stderr(Stdio::piped()).spawn().unwrap();
    let socket = lab.path(&format!("weir/{}.sock", scrub.id()));
    while !socket.exists() {
        wait_ms(2);
    }
    lab.ok("zpool export p");
    let out = scrub.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&out.stderr).contains("another command closed the pool"), "{out:?}");
    check(lab.0.path());
}

fn end(mut server: Child) {
    let pid = rustix::process::Pid::from_child(&server);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(server.wait().unwrap().success());
}

/// Colours are shown on a terminal alone, and only if the user asks for them as with OpenZFS; also by the process that serves
/// the pool.
#[test]
fn a_terminal_shows_states_in_colors() {
    let lab = Lab::new();
    lab.ok("zpool offline p d1");
    let on_terminal = |variable: &str| {
        let mut script = Command::new("script");
        script.args(["-qec", &format!("{} zpool status p", env!("CARGO_BIN_EXE_weir")), "/dev/null"]);
        script
            .env("TERM", "xterm")
            .env_remove("ZFS_COLOR")
            .env_remove("NO_COLOR")
            .env(variable, "1")
            .stdin(Stdio::null());
        script.env("WEIR_POOL_DIRS", lab.0.path()).env("RUNTIME_DIRECTORY", lab.path("weir"));
        let out = script.current_dir(lab.0.path()).output().unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        String::from_utf8(out.stdout).unwrap().replace('\r', "")
    };
    let expect = || {
        let shown = on_terminal("ZFS_COLOR");
        assert!(shown.contains(" \x1b[1mstate:\x1b[0m \x1b[33mDEGRADED\x1b[0m\n"), "{shown:?}");
        let is_yellow = |device: &str| {
            let row = shown.lines().find(|line| line.starts_with('\t') && line.contains(&format!("/{device} ")));
            row.unwrap_or_else(|| panic!("{shown:?}")).starts_with("\t\x1b[33m")
        };
        assert_eq!(["d0", "d1"].map(is_yellow), [false, true], "{shown:?}");
        assert_eq!(on_terminal("UNRELATED"), lab.ok("zpool status p"), "colours without ZFS_COLOR");
    };
    expect();
    let server = lab.serve();
    expect();
    end(server);
}
