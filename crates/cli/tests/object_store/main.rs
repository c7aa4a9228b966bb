//! Pools on disks in object stores: a folder always, and a server of S3 on loopback where one is installed.
//!
//! Servers: `versitygw` (Go) and `moto_server` (PyPI), found in `PATH` or by `WEIR_VERSITYGW` and `WEIR_MOTO_SERVER`. A test whose
//! server is absent prints a line and passes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(clippy::disallowed_methods, reason = "it waits for real processes")]

use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Size of the objects of all tests in bytes.
const OBJECT_BYTES: u64 = 256 << 10;

/// A child process, killed when the test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Directories of a test, and the environment that reaches a store.
struct Site {
    dir: tempfile::TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Site {
    fn new() -> Site {
        let site = Site { dir: tempfile::tempdir().unwrap(), environment: Vec::new() };
        for name in ["run", "state", "conf"] {
            std::fs::DirBuilder::new().mode(0o700).create(site.path(name)).unwrap();
        }
        let ports = "nfs_port = 0\nnbd_port = 0\niscsi_port = 0\nsmb_port = 0\nhttp_port = 0\nmounts = false\n";
        std::fs::write(site.path("conf/weir.toml"), ports).unwrap();
        site
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_weir"));
        command.args(words).current_dir(self.dir.path()).stdin(Stdio::null());
        for (variable, name) in
            [("RUNTIME_DIRECTORY", "run"), ("STATE_DIRECTORY", "state"), ("CONFIGURATION_DIRECTORY", "conf")]
        {
            command.env(variable, self.path(name));
        }
        let of_others =
            std::env::vars_os().map(|(name, _)| name).filter(|name| name.to_string_lossy().starts_with("AWS_"));
        of_others.for_each(|name| {
            command.env_remove(name);
        });
        command.env_remove("WEIR_POOL_DIRS").envs(self.environment.iter().cloned());
        command
    }

    fn run(&self, line: &str) -> Output {
        self.command(&line.split(' ').collect::<Vec<_>>()).output().unwrap()
    }

    /// Runs a command that succeeds; returns what it printed.
    fn ok(&self, line: &str) -> String {
        let out = self.run(line);
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(out.status.success(), "{line}: {}{}", text(&out.stdout), text(&out.stderr));
        text(&out.stdout)
    }

    /// Runs a command that fails; returns its error.
    fn fails(&self, line: &str) -> String {
        let out = self.run(line);
        assert!(!out.status.success(), "{line}: {}", String::from_utf8_lossy(&out.stdout));
        String::from_utf8_lossy(&out.stderr).into_owned()
    }

    fn daemon(&self) -> Running {
        let log = std::fs::File::create(self.path("daemon.log")).unwrap();
        let child = self.command(&["daemon"]).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        let running = Running(child);
        self.until("the daemon answers", Duration::from_secs(60), || self.run("daemon status").status.success());
        running
    }

    fn until(&self, what: &str, limit: Duration, is_so: impl Fn() -> bool) {
        let started = Instant::now();
        while !is_so() {
            let log = || std::fs::read_to_string(self.path("daemon.log")).unwrap_or_default();
            assert!(started.elapsed() < limit, "{what}: not within {limit:?}\n{}", log());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// A stream of a file system with properties, made on a local pool.
    fn stream(&self) -> PathBuf {
        let image = self.path("source");
        std::fs::File::create(&image).unwrap().set_len(128 << 20).unwrap();
        self.ok(&format!("zpool create source {}", image.display()));
        self.ok("zfs create -o compression=off -o recordsize=1M source/a");
        for n in 0..40 {
            self.ok(&format!("zfs set user:note{n}={} source/a", "x".repeat(900)));
        }
        self.ok("zfs snapshot source/a@s");
        let stream = self.path("stream");
        let mut send = self.command(&["zfs", "send", "-p", "source/a@s"]);
        assert!(send.stdout(std::fs::File::create(&stream).unwrap()).status().unwrap().success());
        self.ok("zpool export source");
        stream
    }

    fn receive(&self, target: &str, stream: &Path) {
        let input = std::fs::File::open(stream).unwrap();
        assert!(self.command(&["zfs", "receive", target]).stdin(input).status().unwrap().success());
    }

    fn is_clean(&self, pool: &str) {
        self.ok(&format!("zpool scrub -w {pool}"));
        let status = self.ok(&format!("zpool status {pool}"));
        assert!(status.contains("with 0 errors") && status.contains("No known data errors"), "{status}");
    }
}

/// A pool on a store is made, filled, scrubbed, exported, imported; the daemon that has it is killed, and the next one
/// opens it after the lease; freed objects are deleted.
fn life(site: &Site, url: &str, objects: impl Fn() -> usize) {
    let stream = site.stream();
    site.ok(&format!("zpool create tank {url}?size=1G&object=256K"));
    assert!(site.ok("zpool status tank").contains(&format!("  {url}  ONLINE")));
    site.receive("tank/a", &stream);
    site.is_clean("tank");
    site.ok("zpool export tank");
    assert!(site.ok(&format!("zpool import -d {url}")).contains("pool: tank"));
    site.ok(&format!("zpool import -d {url} tank"));
    assert!(site.ok("zfs get -H -o value user:note7 tank/a").starts_with("xxx"));

    let mut daemon = site.daemon();
    site.until("the pool is open", Duration::from_secs(60), || site.run("zpool list tank").status.success());
    site.ok("zfs create -V 16M tank/v");
    site.ok("zpool initialize -w tank");
    site.ok("zpool sync tank");
    let full = objects();
    assert!(full as u64 > (900 << 20) / OBJECT_BYTES, "{full} objects");
    daemon.0.kill().unwrap();
    daemon.0.wait().unwrap();

    let daemon = site.daemon();
    let limit = Duration::from_secs(120);
    site.until("the pool is open again", limit, || site.run("zpool list tank").status.success());
    assert!(site.ok("zfs list -H -o name").contains("tank/v"));
    site.is_clean("tank");
    site.ok("zpool trim -w tank");
    let left = objects();
    assert!(left < full / 4, "{left} of {full} objects are left after a trim");
    site.is_clean("tank");
    drop(daemon_ends(daemon));
    // The daemon gave the disk back at its end: the next process does not wait for the lease.
    let started = Instant::now();
    site.ok("zfs set user:after=1 tank");
    assert!(started.elapsed() < Duration::from_secs(25), "{:?}", started.elapsed());
    site.ok("zpool export tank");
}

/// Ends a daemon by SIGTERM.
fn daemon_ends(mut daemon: Running) -> Running {
    rustix::process::kill_process(rustix::process::Pid::from_child(&daemon.0), rustix::process::Signal::TERM).unwrap();
    assert!(daemon.0.wait().unwrap().success());
    daemon
}

fn files_in(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().flatten().filter(|entry| entry.file_name().len() == 16).count()
}

#[test]
fn a_pool_lives_in_a_folder() {
    let site = Site::new();
    let folder = site.path("store");
    life(&site, &format!("file://{}", folder.display()), || files_in(&folder));
}

/// The program of a server; `None` with a line if it is absent.
fn server(variable: &str, name: &str) -> Option<PathBuf> {
    let named = std::env::var_os(variable).map(PathBuf::from);
    let in_path = || {
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .map(|dir| dir.join(name))
            .find(|p| p.exists())
    };
    let found = named.filter(|path| path.exists()).or_else(in_path);
    if found.is_none() {
        println!("skipped: {name} is not installed, and {variable} does not name it");
    }
    found
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Starts a server, and sets the environment of the site.
fn start(site: &mut Site, port: u16, mut command: Command) -> Running {
    let log = std::fs::File::create(site.path("server.log")).unwrap();
    let child = command.stdin(Stdio::null()).stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
    let running = Running(child);
    site.until("the server answers", Duration::from_secs(60), || TcpStream::connect(("127.0.0.1", port)).is_ok());
    site.environment = vec![
        ("AWS_ACCESS_KEY_ID", "tester".into()),
        ("AWS_SECRET_ACCESS_KEY", "testers-secret".into()),
        ("AWS_REGION", "us-east-1".into()),
        ("AWS_ENDPOINT_URL", format!("http://127.0.0.1:{port}")),
    ];
    running
}

fn versitygw(site: &mut Site) -> Option<Running> {
    let program = server("WEIR_VERSITYGW", "versitygw")?;
    let port = free_port();
    let folder = site.path("buckets");
    std::fs::create_dir_all(folder.join("bucket")).unwrap();
    let mut command = Command::new(program);
    command.env("ROOT_ACCESS_KEY", "tester").env("ROOT_SECRET_KEY", "testers-secret");
    command.args(["--port", &format!("127.0.0.1:{port}"), "posix"]).arg(folder);
    Some(start(site, port, command))
}

#[test]
fn a_pool_lives_on_versitygw() {
    let mut site = Site::new();
    let Some(_server) = versitygw(&mut site) else { return };
    let folder = site.path("buckets/bucket/tank");
    life(&site, "s3://bucket/tank", || files_in(&folder));
    // With the key in a file, and with a wrong one.
    let file = site.path("credentials");
    std::fs::write(&file, "[default]\naws_access_key_id = tester\naws_secret_access_key = testers-secret\n").unwrap();
    site.environment.retain(|(name, _)| !name.contains("KEY"));
    assert!(site.fails("zpool import -d s3://bucket/tank tank").contains("AWS_SHARED_CREDENTIALS_FILE"));
    site.environment.push(("AWS_SHARED_CREDENTIALS_FILE", file.display().to_string()));
    site.ok("zpool import -d s3://bucket/tank tank");
    std::fs::write(&file, "[default]\naws_access_key_id = tester\naws_secret_access_key = another-secret\n").unwrap();
    let error = site.fails("zpool create other s3://bucket/other?size=1G");
    assert!(error.contains("status 403") && error.contains("s3://bucket/other"), "{error}");
    assert!(!error.contains("secret") && !error.contains("Credential="), "{error}");
}

#[test]
fn a_mirror_of_a_store_and_a_file_survives_the_loss_of_the_store() {
    let mut site = Site::new();
    let Some(server) = versitygw(&mut site) else { return };
    let image = site.path("local");
    std::fs::File::create(&image).unwrap().set_len(1 << 30).unwrap();
    let local = image.display().to_string();
    let log = site.path("log");
    std::fs::File::create(&log).unwrap().set_len(128 << 20).unwrap();
    site.ok(&format!("zpool create tank mirror s3://bucket/m?size=1G {local} log {}", log.display()));
    site.ok("zfs create tank/a");
    site.ok("zpool export tank");
    drop(server);
    site.ok(&format!("zpool import -d {} tank", site.dir.path().display()));
    assert!(site.ok("zpool status tank").contains("DEGRADED"));
    assert!(site.ok("zfs list -H -o name").contains("tank/a"));
}

#[test]
fn a_pool_is_made_on_moto() {
    let mut site = Site::new();
    let Some(program) = server("WEIR_MOTO_SERVER", "moto_server") else { return };
    let port = free_port();
    let mut command = Command::new(program);
    command.args(["-H", "127.0.0.1", "-p", &port.to_string()]);
    let _server = start(&mut site, port, command);
    let error = site.fails("zpool create tank s3://nowhere/tank?size=1G");
    assert!(error.contains("NoSuchBucket") && error.contains("s3://nowhere/tank"), "{error}");
}

/// The counts of `weir store` grow with what is written, and its costs are counts times prices.
#[test]
fn requests_are_shown_with_their_cost() {
    let site = Site::new();
    let folder = site.path("store");
    let list = site.path("prices.toml");
    let conf = std::fs::read_to_string(site.path("conf/weir.toml")).unwrap();
    std::fs::write(site.path("conf/weir.toml"), format!("{conf}store_prices = \"{}\"\n", list.display())).unwrap();
    std::fs::write(&list, "[[store]]\nurl = \"file://\"\ncurrency = \"EUR\"\nput_per_1000 = -1\n").unwrap();
    let error = site.fails("daemon --check");
    assert!(error.contains("prices.toml") && error.contains("put_per_1000 takes a price"), "{error}");
    let prices =
        "put_per_1000 = 5\nget_per_1000 = 0.4\nsent_per_gb = 2\nstored_per_gb_month = 10\ngb_bytes = 1073741824\n";
    std::fs::write(&list, format!("[[store]]\nurl = \"file://\"\ncurrency = \"EUR\"\n{prices}")).unwrap();
    site.ok(&format!("zpool create tank file://{}?size=1G&object=256K", folder.display()));
    let daemon = site.daemon();
    site.until("the pool is open", Duration::from_secs(60), || site.run("zpool list tank").status.success());
    let rows = || -> Vec<Vec<String>> {
        let text = site.ok("store -Hp tank");
        text.lines().map(|line| line.split('\t').map(str::to_owned).collect()).collect()
    };
    let before = rows();
    assert_eq!(before.iter().map(|row| row[2].as_str()).collect::<Vec<_>>(), ["get", "put", "head", "delete", "all"]);
    site.ok("zfs create -V 16M tank/v");
    site.ok("zpool initialize -w tank");
    site.ok("zpool sync tank");
    let after = rows();
    let number = |row: &[String], column: usize| row[column].parse::<u64>().unwrap();
    let objects = files_in(&folder) as u64;
    assert!(number(&after[1], 3) >= objects, "{objects} objects, {:?}", after[1]);
    assert!(number(&after[1], 3) >= number(&before[1], 3) + objects / 2, "{before:?} {after:?}");
    assert!(number(&after[1], 6) >= objects * OBJECT_BYTES, "{:?}", after[1]);
    let nanos = |row: &[String]| row[9].strip_suffix(" EUR").unwrap().replace('.', "").parse::<u64>().unwrap();
    let puts = number(&after[1], 3) * 5_000_000;
    let sent = u64::try_from(u128::from(number(&after[1], 6)) * 2_000_000_000 / (1 << 30)).unwrap();
    assert_eq!(nanos(&after[1]), puts + sent);
    assert_eq!(nanos(&after[0]), number(&after[0], 3) * 400_000);
    assert_eq!(nanos(&after[4]), after[..4].iter().map(|row| nanos(row)).sum::<u64>());
    let shown = site.ok("store tank");
    assert!(shown.starts_with("POOL  DISK") && shown.contains("at most 10.000000 EUR for 1G\n"), "{shown}");
    let json: serde_json::Value = serde_json::from_str(&site.ok("store -j tank")).unwrap();
    assert_eq!(json["pools"][0]["space"][0]["size_bytes"], 1 << 30);
    // Another list is in force from a reload on.
    std::fs::write(&list, "[[store]]\nurl = \"file://\"\ncurrency = \"USD\"\n").unwrap();
    site.ok("daemon reload");
    assert!(rows().iter().all(|row| row[9] == "0.000000000 USD"), "{:?}", rows());
    drop(daemon_ends(daemon));
}

#[test]
fn malformed_urls_and_unknown_disks_are_refused() {
    let site = Site::new();
    for (url, why) in [
        ("http://b/p?size=1G", "unknown kind of store; accepted are s3://BUCKET/PREFIX"),
        ("s3://b", "names no prefix"),
        ("file:///x?size=1", "size= takes 64M"),
        ("s3://k:secret@b/p?size=1G", "credentials come from the environment"),
    ] {
        let error = site.fails(&format!("zpool create tank {url}"));
        assert!(error.contains(why) && !error.contains("secret"), "{url}: {error}");
    }
    let folder = format!("file://{}", site.path("store").display());
    assert!(site.fails(&format!("zpool create tank {folder}")).contains("a new one needs a size"));
    assert!(site.fails("zpool create tank s3://b/p?size=1G").contains("no credentials"));
    site.ok(&format!("zpool create tank {folder}?size=128M"));
    assert!(site.fails(&format!("zpool create other {folder}?size=256M")).contains("is part of active pool 'tank'"));
    site.ok("zpool destroy tank");
    assert!(
        site.fails(&format!("zpool create other {folder}?size=256M")).contains("there is a disk of 134217728 bytes")
    );
    site.ok(&format!("zpool create other {folder}"));
}

/// The objects laid into a sparse file are an image that OpenZFS's zdb reads.
#[test]
fn zdb_finds_no_leak_in_the_objects_laid_into_a_file() {
    let Some(tools) = std::env::var_os("WEIR_ZFS_TOOLS").map(PathBuf::from).filter(|dir| dir.join("sbin/zdb").exists())
    else {
        println!("skipped: WEIR_ZFS_TOOLS names no directory with OpenZFS's zdb");
        return;
    };
    let site = Site::new();
    let stream = site.stream();
    let folder = site.path("store");
    site.ok(&format!("zpool create tank file://{}?size=1G&object=256K", folder.display()));
    site.receive("tank/a", &stream);
    site.ok("zfs create -V 64M tank/v");
    site.ok("zpool export tank");
    std::fs::create_dir(site.path("laid")).unwrap();
    let image = std::fs::File::create(site.path("laid/image")).unwrap();
    image.set_len(1 << 30).unwrap();
    for entry in std::fs::read_dir(&folder).unwrap().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        if let (16, Ok(index)) = (name.len(), u64::from_str_radix(&name, 16)) {
            use std::os::unix::fs::FileExt;
            image.write_all_at(&std::fs::read(entry.path()).unwrap(), index * OBJECT_BYTES).unwrap();
        }
    }
    let mut zdb = Command::new(tools.join("sbin/zdb"));
    zdb.env("LD_LIBRARY_PATH", tools.join("lib/x86_64-linux-gnu"));
    let out = zdb.args(["-bcc", "-e", "-p"]).arg(site.path("laid")).arg("tank").output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && text.contains("No leaks"), "{text}{}", String::from_utf8_lossy(&out.stderr));
}
