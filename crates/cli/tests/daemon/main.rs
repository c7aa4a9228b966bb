//! `weir daemon`: several pools in one process, remembered over restarts and crashes; commands that name no place go to it.
//! Each test has a daemon of its own, by directories of its own, with the rights of the user who runs the test.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "it waits for real processes")]

mod alerts;
mod client;
mod damaged;
mod devices;
mod importing;
mod jobs;
mod l2arc;
mod locate;
mod mounting;
mod mounts;
mod properties;
mod races;
mod readers;
mod refusals;
mod replicate;
mod served;
mod streams;

use client::{Nbd, Nfs};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Any free ports, and no mounts: pools of tests have common names.
const CONFIGURATION: &str = "nfs_port = 0\nnbd_port = 0\niscsi_port = 0\nsmb_port = 0\nhttp_port = 0\nmounts = false\n";

/// Directories of one daemon, and files as disks.
struct Site {
    dir: tempfile::TempDir,
}

/// A running daemon; it is killed when the test ends.
struct Running {
    child: Child,
}

impl Drop for Running {
    fn drop(&mut self) {
        // It has ended already in the tests that stop it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Running {
    fn signal(&self, signal: rustix::process::Signal) {
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end; returns whether the exit code was 0.
    fn ended(&mut self) -> bool {
        self.child.wait().unwrap().success()
    }
}

impl Site {
    /// A site with files `d0`… of 128 MiB.
    fn new(disks: usize) -> Site {
        let site = Site { dir: tempfile::tempdir().unwrap() };
        for name in ["run", "state", "conf"] {
            std::fs::DirBuilder::new().mode(0o700).create(site.path(name)).unwrap();
        }
        site.configure(CONFIGURATION);
        for disk in 0..disks {
            std::fs::File::create(site.path(&format!("d{disk}"))).unwrap().set_len(128 << 20).unwrap();
        }
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn configure(&self, text: &str) {
        std::fs::write(self.path("conf/weir.toml"), text).unwrap();
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(line.split_whitespace()).stdin(Stdio::null()).current_dir(self.dir.path());
        command.env_remove("WEIR_POOL_DIRS").env_remove("WEIR_LOG");
        command.env("RUNTIME_DIRECTORY", self.path("run")).env("STATE_DIRECTORY", self.path("state"));
        command.env("CONFIGURATION_DIRECTORY", self.path("conf"));
        command
    }

    fn ok(&self, line: &str) -> String {
        let out = self.command(line).output().unwrap();
        assert!(out.status.success(), "{line}: {}\n{}", text(&out.stderr), self.log());
        text(&out.stdout)
    }

    /// The error of a command that fails with exit code 1.
    fn fails(&self, line: &str) -> String {
        let out: Output = self.command(line).output().unwrap();
        assert_eq!(out.status.code(), Some(1), "{line}: {}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stderr)
    }

    /// Starts the daemon and waits until it is ready.
    fn start(&self) -> Running {
        self.start_by(self.command("daemon"))
    }

    /// Starts the daemon by a command and waits until it is ready.
    fn start_by(&self, mut command: Command) -> Running {
        let log = std::fs::File::options().create(true).append(true).open(self.path("log")).unwrap();
        let mut child = command.stdout(Stdio::piped()).stderr(log).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        assert!(lines.any(|line| line == "ready"), "the daemon ended: {}", self.log());
        Running { child }
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.path("log")).unwrap_or_default()
    }

    /// A field of the status, by JSON pointer.
    fn status(&self, pointer: &str) -> serde_json::Value {
        let status: serde_json::Value = serde_json::from_str(&self.ok("daemon status -j --json-int")).unwrap();
        status.pointer(pointer).cloned().unwrap_or_default()
    }

    fn nfs(&self) -> Nfs {
        Nfs::connect(self.status("/protocols/nfs3/address").as_str().unwrap())
    }

    /// Makes a certificate of its own authority, and its key, as `NAME-cert.pem` and `NAME-key.pem`; false if openssl is missing.
    fn certificate(&self, name: &str) -> bool {
        let [key, certificate] = ["key", "cert"].map(|kind| self.path(&format!("{name}-{kind}.pem")));
        let mut openssl = Command::new("openssl");
        openssl.args(["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]);
        openssl.args(["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]).arg("-keyout").arg(key).arg("-out");
        openssl.arg(certificate).output().is_ok_and(|out| out.status.success())
    }

    /// Whether nbdinfo gets the size of an export, over TLS if the certificate of a server is named; `None` if it is missing.
    fn nbdinfo(&self, export: &str, server: Option<&str>) -> Option<bool> {
        let address = self.status("/protocols/nbd/address").as_str().unwrap_or_default().to_owned();
        let mut uri = format!("nbd://{address}/{export}");
        if let Some(name) = server {
            let folder = self.path(&format!("trust-{name}"));
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::copy(self.path(&format!("{name}-cert.pem")), folder.join("ca-cert.pem")).unwrap();
            uri = format!("nbds://{address}/{export}?tls-certificates={}", folder.display());
        }
        Some(Command::new("nbdinfo").args(["--size", &uri]).output().ok()?.status.success())
    }

    fn nbd(&self, export: &str) -> Nbd {
        Nbd::attach(self.status("/protocols/nbd/address").as_str().unwrap(), export)
    }

    /// Pools as `zpool list` shows them.
    fn pools(&self) -> Vec<String> {
        self.ok("zpool list -H -o name").lines().map(str::to_owned).collect()
    }

    /// Waits until a condition holds, at most ten seconds.
    fn wait_until(&self, what: &str, mut condition: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < Duration::from_secs(10), "{what}: not within 10 s\n{}", self.log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn two_pools_are_served_again_after_a_crash_and_handles_stay_valid() {
    let site = Site::new(3);
    let mut daemon = site.start();
    // Words relative to the caller's directory, and no -d anywhere.
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank mirror d0 d1");
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on backup d2");
    site.ok("zfs create tank/home");
    site.ok("zfs create -V 16M backup/volume");
    assert_eq!(site.pools(), ["backup", "tank"]);
    let mut nfs = site.nfs();
    let handles = ["/tank", "/tank/home", "/backup"].map(|path| nfs.mount(path).unwrap());
    assert_eq!(nfs.exports(), ["/backup", "/tank", "/tank/home"]);
    assert_eq!(nfs.mount("/nothing"), Err(2), "NFS3ERR_NOENT");
    assert_eq!(site.nbd("backup/volume").size_bytes, 16 << 20);

    daemon.signal(rustix::process::Signal::KILL);
    daemon.ended();
    let begun = Instant::now();
    let _daemon = site.start();
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(site.pools(), ["backup", "tank"]);
    let mut nfs = site.nfs();
    for handle in &handles {
        assert_eq!(nfs.status_of(handle), 0);
    }
    assert_eq!(site.nbd("backup/volume").size_bytes, 16 << 20);
}

#[test]
fn one_pool_comes_and_goes_while_the_other_is_served() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on one d0");
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on two d1");
    let mut nfs = site.nfs();
    let one = nfs.mount("/one").unwrap();
    // Another client that uses pool two alone.
    let mut other = site.nfs();
    let two = other.mount("/two").unwrap();
    assert_eq!((nfs.status_of(&one), other.status_of(&two)), (0, 0));
    site.ok("zpool export -f one");
    assert_eq!((nfs.status_of(&one), other.status_of(&two)), (70, 0), "stale, and as before");
    assert_eq!(site.pools(), ["two"]);
    assert!(site.fails("zfs create one/x").contains("no such pool"));
    site.ok(&format!("zpool import -d {} one", site.path("d0").display()));
    assert_eq!((nfs.status_of(&one), other.status_of(&two)), (0, 0), "the handle is valid again");
    assert!(site.fails("zpool create -O sharenfs=on -O weir:nbd=on two d0").contains("pool already exists"));
    site.ok("zpool destroy -f two");
    assert_eq!((nfs.status_of(&one), other.status_of(&two)), (0, 70));
    assert_eq!(site.pools(), ["one"]);
}

#[test]
fn a_pool_is_busy_while_clients_use_it() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank d0");
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on other d1");
    site.ok("zfs create -V 16M tank/volume");
    let mut nbd = site.nbd("tank/volume");
    assert!(site.fails("zpool export tank").contains("pool is busy"));
    assert!(site.fails("zpool destroy tank").contains("pool is busy"));
    let error = site.fails("zfs destroy tank/volume");
    assert!(error.contains("dataset is busy: clients use 'tank/volume'") && error.contains("nbd 127.0.0.1"), "{error}");
    drop(nbd);
    site.wait_until("the client is gone", || site.status("/protocols/nbd/clients") == serde_json::json!([]));
    let mut nfs = site.nfs();
    let handle = nfs.mount("/tank").unwrap();
    assert_eq!(nfs.status_of(&handle), 0);
    let error = site.fails("zpool export tank");
    assert!(error.contains("pool is busy") && error.contains("nfs3 127.0.0.1"), "{error}");
    // A client that uses another pool is none of this pool's.
    site.ok("zpool export other");
    nfs.unmount("/tank");
    site.ok("zpool export tank");
    site.ok(&format!("zpool import -d {} tank", site.dir.path().display()));
    nbd = site.nbd("tank/volume");
    site.ok("zpool export -f tank");
    assert!(nbd.is_disconnected(), "-f disconnects clients");
    assert_eq!(site.pools(), [""; 0]);
}

#[test]
fn commands_at_once_all_succeed() {
    let site = Site::new(2);
    let _daemon = site.start();
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on one d0");
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on two d1");
    let lines = (0..10).map(|i| match i % 5 {
        0 => format!("zfs create one/fs{i}"),
        1 => format!("zfs create -V 8M two/vol{i}"),
        2 => format!("zfs snapshot one@s{i}"),
        3 => "zpool status".to_owned(),
        _ => "zfs list".to_owned(),
    });
    let running: Vec<(String, Child)> = lines
        .map(|line| {
            let child = site.command(&line).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
            (line, child)
        })
        .collect();
    for (line, child) in running {
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{line}: {}", text(&out.stderr));
    }
    let names = site.ok("zfs list -H -o name -t all");
    for name in ["one/fs0", "one/fs5", "two/vol1", "two/vol6", "one@s2", "one@s7"] {
        assert!(names.lines().any(|line| line == name), "{name}: {names}");
    }
}

#[test]
fn a_signal_stops_the_daemon_and_leaves_its_pools_imported() {
    let site = Site::new(1);
    let mut daemon = site.start();
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank d0");
    let mut nfs = site.nfs();
    let root = nfs.mount("/tank").unwrap();
    assert_eq!(nfs.status_of(&root), 0);
    let begun = Instant::now();
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.ended() && begun.elapsed() < Duration::from_secs(30));
    let log = site.log();
    for part in ["stopping: SIGTERM", "pool 'tank' closed", "ended", "disconnected: closed"] {
        assert!(log.contains(part), "{part}: {log}");
    }
    assert!(log.lines().all(|line| line.starts_with("20")), "each line has a time: {log}");
    // At rest, the pool is found by the cache file, and is in use by this host.
    assert_eq!(site.pools(), ["tank"]);
    site.ok("zfs create tank/at-rest");
    let mut daemon = site.start();
    assert!(site.ok("zfs list -H -o name").contains("tank/at-rest"));
    assert_eq!(site.nfs().status_of(&root), 0);
    site.ok("daemon stop");
    assert!(daemon.ended());
}

#[test]
fn an_unopenable_pool_does_not_keep_the_others_from_being_served() {
    let site = Site::new(3);
    let mut daemon = site.start();
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on good d0");
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on bad d1");
    let root = site.nfs().mount("/bad").unwrap();
    daemon.signal(rustix::process::Signal::TERM);
    daemon.ended();
    std::fs::rename(site.path("d1"), site.path("away")).unwrap();
    let _daemon = site.start();
    assert_eq!(site.ok("zpool list -H -o name,health,free bad"), "bad\tUNAVAIL\t-\n");
    assert_eq!(site.ok("zpool list -H -o name,health"), "bad\tUNAVAIL\ngood\tONLINE\n");
    // A script that looks for unhealthy pools finds it.
    let unhealthy = site.command("zpool status -x").output().unwrap();
    let text = String::from_utf8(unhealthy.stdout).unwrap();
    assert!(text.contains("  pool: bad\n state: UNAVAIL\n") && text.contains("/d1"), "{text}");
    assert!(!text.contains("pool: good") && !unhealthy.status.success(), "{text}");
    assert!(site.nfs().mount("/good").is_ok());
    let lines = site.log().lines().filter(|line| line.contains("pool 'bad'") && line.contains("ERROR")).count();
    assert_eq!(lines, 1, "{}", site.log());
    assert_eq!(site.status("/pools/bad/health"), "NOT OPEN");
    assert!(site.status("/pools/bad/reason").as_str().unwrap().contains("d1"));
    assert_eq!(site.nfs().status_of(&root), 10_008, "NFS3ERR_JUKEBOX: the client is to try again");
    // Its device appears.
    std::fs::rename(site.path("away"), site.path("d1")).unwrap();
    site.wait_until("the pool is opened", || site.ok("zpool list -H -o health bad") == "ONLINE\n");
    // The daemon lists a pool before it exports its file systems.
    site.wait_until("the client goes on", || site.nfs().status_of(&root) == 0);
}

#[test]
fn errors_of_the_configuration_name_the_line() {
    let site = Site::new(0);
    site.configure("nfs_port = 0\nnbd_prot = 0\n");
    for line in ["daemon --check", "daemon"] {
        let error = site.fails(line);
        assert!(error.contains("weir.toml: line 2: unknown field `nbd_prot`"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    site.configure("arc_max = \"1K\"\n");
    assert!(site.fails("daemon --check").contains("arc_max takes a size of at least"));
    site.configure("log = \"weir=loud\"\n");
    assert!(site.fails("daemon --check").contains("log: "));
    for (ports, why) in [
        ("nfs_port = 23111\nnbd_port = 23111\n", "nfs_port and nbd_port are both 23111"),
        ("nbd_port = 2049\n", "nfs_port and nbd_port are both 2049"),
        ("iscsi_port = 23112\nhttp_port = 23112\n", "iscsi_port and http_port are both 23112"),
    ] {
        site.configure(ports);
        let error = site.fails("daemon --check");
        assert!(error.contains(why), "{error}");
    }
    site.configure("listen = \"192.0.2.1\"\nnfs_port = 0\nnbd_port = 0\nsmb_port = 23112\nhttp_port = 23112\n");
    assert!(site.ok("daemon --check").contains("no errors"));
    site.configure("listen = \"::1\"\n");
    assert!(site.ok("daemon --check").contains("no errors"));
    let other = site.path("other.toml");
    std::fs::write(&other, "deadman = 5\n").unwrap();
    assert!(site.ok(&format!("daemon --check --config {}", other.display())).contains("other.toml: no errors"));
}

#[test]
fn a_second_daemon_is_refused_and_two_sites_run_side_by_side() {
    let site = Site::new(1);
    let other = Site::new(1);
    let mut daemon = site.start();
    let error = site.fails("daemon");
    assert!(error.contains("another daemon uses"), "{error}");
    let _other = other.start();
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank d0");
    other.ok("zpool create -O sharenfs=on -O weir:nbd=on tank d0");
    assert_eq!((site.pools(), other.pools()), (vec!["tank".to_owned()], vec!["tank".to_owned()]));
    let guid = |site: &Site| site.ok("zpool get -H -o value guid tank");
    assert_ne!(guid(&site), guid(&other));
    // A daemon that was killed leaves a link to a socket without a listener.
    daemon.signal(rustix::process::Signal::KILL);
    daemon.ended();
    assert!(site.fails("daemon status").contains("no daemon is running"));
    assert_eq!(site.pools(), ["tank"]);
}

/// Commands without a daemon find a pool by the cache file, also after its devices have changed.
#[test]
fn the_cache_file_follows_devices_without_a_daemon() {
    let site = Site::new(5);
    let devices = || {
        let status: serde_json::Value = serde_json::from_str(&site.ok("zpool status -j tank")).unwrap();
        assert_eq!(status["pools"]["tank"]["state"], "ONLINE", "{status}");
        let cached = std::fs::read(site.path("state/zpool.cache")).unwrap();
        let has = |disk: &i32| text(&cached).contains(&site.path(&format!("d{disk}")).display().to_string());
        (0..5).filter(has).collect::<Vec<_>>()
    };
    site.ok("zpool create tank d0");
    assert_eq!(devices(), [0]);
    site.ok("zpool replace tank d0 d1");
    assert_eq!(devices(), [1]);
    site.ok("zpool attach tank d1 d2");
    assert_eq!(devices(), [1, 2]);
    site.ok("zpool add tank spare d3");
    assert_eq!(devices(), [1, 2, 3]);
    site.ok("zpool detach tank d1");
    assert_eq!(devices(), [2, 3]);
    let _daemon = site.start();
    site.wait_until("the daemon has the pool", || site.pools() == ["tank"]);
}

#[test]
fn a_reload_applies_the_configuration_and_keeps_an_invalid_one_out() {
    let site = Site::new(1);
    let daemon = site.start();
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank d0");
    site.configure(&format!("{CONFIGURATION}arc_max = \"64M\"\n"));
    daemon.signal(rustix::process::Signal::HUP);
    site.wait_until("the limit is applied", || site.status("/limits/arc_max_bytes") == 64 << 20);
    site.configure("arc_max = 5\n");
    assert!(site.fails("daemon reload").contains("line 1"));
    assert_eq!(site.status("/limits/arc_max_bytes"), 64 << 20);
    assert_eq!(site.pools(), ["tank"]);
}

#[test]
fn nbd_over_tls_follows_the_configuration_and_new_certificates() {
    let site = Site::new(1);
    if !site.certificate("old")
        || !site.certificate("new")
        || Command::new("nbdinfo").arg("--version").output().is_err()
    {
        eprintln!("skipped: openssl or nbdinfo is missing");
        return;
    }
    let configured = |name: &str, mode: &str| {
        let place = |kind: &str| site.path(&format!("{name}-{kind}.pem")).display().to_string();
        let files = format!("nbd_tls_cert = {:?}\nnbd_tls_key = {:?}\n", place("cert"), place("key"));
        site.configure(&format!("{CONFIGURATION}{files}nbd_tls = {mode:?}\n"));
    };
    configured("old", "allowed");
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    site.ok("zfs create -V 8M -o weir:nbd=on tank/vol");
    assert_eq!(site.nbdinfo("tank/vol", Some("old")), Some(true));
    assert_eq!(site.nbdinfo("tank/vol", None), Some(true), "TLS is allowed, not required");
    let attached = site.nbd("tank/vol");

    configured("new", "required");
    site.ok("daemon reload");
    assert_eq!(site.nbdinfo("tank/vol", Some("new")), Some(true));
    assert_eq!(site.nbdinfo("tank/vol", Some("old")), Some(false), "the old certificate is not shown any more");
    assert_eq!(site.nbdinfo("tank/vol", None), Some(false), "TLS is required");
    assert!(attached.is_connected(), "a reload keeps the connections");

    // The key of another certificate: nothing changes.
    std::fs::copy(site.path("old-key.pem"), site.path("new-key.pem")).unwrap();
    let refusal = site.fails("daemon reload");
    assert!(refusal.contains("weir.toml: TLS of NBD: the certificate and its key"), "{refusal}");
    assert_eq!(site.nbdinfo("tank/vol", Some("new")), Some(true));
    site.configure(&format!("{CONFIGURATION}nbd_tls = \"required\"\n"));
    let refusal = site.fails("daemon reload");
    assert!(refusal.contains("weir.toml: TLS of NBD needs nbd_tls_cert and nbd_tls_key"), "{refusal}");
    site.configure(CONFIGURATION);
    site.ok("daemon reload");
    assert_eq!(site.nbdinfo("tank/vol", None), Some(true));
}

#[test]
fn the_service_manager_hears_of_start_and_stop() {
    let site = Site::new(1);
    let socket = site.path("notify");
    let receiver = std::os::unix::net::UnixDatagram::bind(&socket).unwrap();
    receiver.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let mut command = site.command("daemon");
    command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "400000");
    let mut daemon = Running { child: command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap() };
    let next = || {
        let mut bytes = [0; 512];
        let len = receiver.recv(&mut bytes).unwrap();
        text(&bytes[..len])
    };
    assert_eq!(next(), "READY=1\nSTATUS=0 pools");
    assert_eq!(next(), "WATCHDOG=1");
    daemon.signal(rustix::process::Signal::TERM);
    let stopping = std::iter::repeat_with(next).find(|message| !message.starts_with("WATCHDOG")).unwrap();
    assert_eq!(stopping, "STOPPING=1\nSTATUS=stopping: SIGTERM");
    assert!(daemon.ended());
}

#[test]
fn one_device_under_two_names_is_one() {
    let site = Site::new(2);
    let _daemon = site.start();
    std::os::unix::fs::symlink(site.path("d0"), site.path("link")).unwrap();
    let error = site.fails("zpool create -O sharenfs=on -O weir:nbd=on tank mirror d0 link");
    assert!(error.contains("are the same device"), "{error}");
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank mirror d0 d1");
    let listed = site.fails(&format!("zpool import -d {}", site.dir.path().display()));
    assert!(listed.contains("no pools available to import"), "{listed}");
    site.ok("zpool export tank");
    let listed = site.ok(&format!("zpool import -d {}", site.dir.path().display()));
    assert_eq!(listed.matches("pool: tank").count(), 1, "{listed}");
}

/// A line of `weir serve` that is up.
fn serve(site: &Site, line: &str) -> Running {
    let mut child = site.command(line).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"), "{line} ended");
    Running { child }
}

#[test]
fn serve_takes_several_pools_and_ends_with_the_last() {
    let site = Site::new(2);
    // Without a daemon, the cache file remembers them.
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on one d0");
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on two d1");
    assert_eq!(site.pools(), ["one", "two"]);
    let mut server = serve(&site, "serve --nfs-port 0 --nbd-port 0 one two");
    site.ok("zfs create one/a");
    site.ok("zfs create two/b");
    assert_eq!(site.ok("zfs list -H -o name"), "one\none/a\ntwo\ntwo/b\n");
    site.ok("zpool export one");
    let error = site.fails("zfs create one/c");
    assert!(error.contains("no such pool"), "{error}");
    site.ok("zfs create two/c");
    site.ok("zpool export two");
    assert!(server.ended());
}

#[test]
fn exported_and_destroyed_pools_are_left_alone_until_they_are_imported() {
    let site = Site::new(2);
    let dir = site.dir.path().display().to_string();
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank d0");
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on gone d1");
    assert!(site.fails("zpool create -O sharenfs=on -O weir:nbd=on tank d1").contains("pool already exists"));
    site.ok("zpool export tank");
    site.ok("zpool destroy gone");
    assert_eq!(site.ok(&format!("zpool list -H -o name,health -d {dir}")), "tank\tEXPORTED\n");
    assert!(site.ok(&format!("zpool status --dir {dir}")).contains("zpool import tank"));
    let error = site.fails(&format!("zfs create -d {dir} tank/home"));
    assert!(error.contains("import it first: zpool import tank"), "{error}");
    let error = site.fails(&format!("serve -d {dir} gone"));
    assert!(error.contains("was destroyed") && error.lines().count() == 1, "{error}");
    site.ok(&format!("zpool import -d {dir} tank"));
    site.ok("zfs create tank/home");
}

#[test]
fn the_journal_gets_priorities_instead_of_times() {
    use std::os::unix::fs::MetadataExt;
    let site = Site::new(1);
    let log = std::fs::File::create(site.path("log")).unwrap();
    let metadata = log.metadata().unwrap();
    let mut command = site.command("daemon");
    command.env("JOURNAL_STREAM", format!("{}:{}", metadata.dev(), metadata.ino()));
    let daemon = Running { child: command.stdout(Stdio::null()).stderr(log).spawn().unwrap() };
    site.wait_until("the daemon listens", || site.log().contains("listening"));
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank d0");
    site.ok("zfs create tank/home");
    site.wait_until("the export is logged", || site.log().contains("pool 'tank': shared: tank/home"));
    drop(daemon);
    let lines = site.log();
    assert!(lines.lines().all(|line| line.starts_with("<6>")), "{lines}");
}
