//! What the daemon serves beside NFS and NBD, and what commands do to that: users, SMB, mounts, ports, pools that are being opened.

use super::{CONFIGURATION, Running, Site, serve, text};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

/// Whether these programs are there; says so if not.
fn has(programs: &[&str]) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let is_there = |name: &&&str| {
        let dirs = std::env::split_paths(&path).chain(["/usr/sbin".into()]);
        dirs.map(|dir| dir.join(name)).any(|path| path.is_file())
    };
    let missing: Vec<&&str> = programs.iter().filter(|name| !is_there(name)).collect();
    missing.iter().for_each(|name| println!("skipped: {name} is not installed"));
    missing.is_empty()
}

/// The daemon as a unit runs it: umask, system call filter and capabilities; without the programs for that, the umask.
fn as_unit(site: &Site, unit: &str) -> Command {
    let unit = format!("{}/../../packaging/systemd/{unit}", env!("CARGO_MANIFEST_DIR"));
    const RUNNER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/daemon/under_unit.py");
    let weir = env!("CARGO_BIN_EXE_weir");
    let works = has(&["python3", "systemd-analyze"])
        && Command::new("python3").args([RUNNER, &unit, "true"]).status().is_ok_and(|status| status.success());
    let mut command = match works {
        true => Command::new("python3"),
        false => Command::new("sh"),
    };
    match works {
        true => command.args([RUNNER, &unit, weir, "daemon"]),
        false => command.args(["-c", "umask 077; exec \"$0\" daemon", weir]),
    };
    println!(
        "{}",
        if works { "under the unit's filter" } else { "skipped: the unit's filter, which libseccomp loads" }
    );
    command.current_dir(site.dir.path());
    let like = site.command("daemon");
    command.envs(like.get_envs().filter_map(|(name, value)| Some((name, value?))));
    command
}

/// Whether this test may mount.
pub fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists() && has(&["fusermount3"]);
    if !can {
        println!("skipped: mounts need root and /dev/fuse");
    }
    can
}

impl Site {
    /// Runs a command with this standard input.
    pub fn with_input(&self, line: &str, input: &str) {
        let mut command = self.command(line);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        assert!(out.status.success(), "{line}: {}", text(&out.stderr));
    }

    /// Names of the iSCSI targets that a client finds.
    fn targets(&self) -> String {
        let address = self.status("/protocols/iscsi/address").as_str().unwrap().to_owned();
        text(&Command::new("iscsi-ls").arg(format!("iscsi://{address}")).output().unwrap().stdout)
    }

    /// A command of smbclient as the user ann.
    fn smbclient(&self, service: &str, commands: &[&str]) -> Command {
        let address = self.status("/protocols/smb/address").as_str().unwrap().to_owned();
        let (host, port) = address.rsplit_once(':').unwrap();
        // Into a pipe, smbclient prints when it ends.
        let mut command = Command::new("stdbuf");
        command
            .args(["-oL", "smbclient", "-p", port, "-U", "ann%a password", &format!("//{host}/{service}")])
            .args(commands);
        command.stdin(Stdio::null()).current_dir(self.dir.path());
        command
    }

    /// Output of smbclient for a command on a share.
    fn smb(&self, share: &str, command: &str) -> String {
        let out = self.smbclient(share, &["-c", command]).output().unwrap();
        format!("{}{}", text(&out.stdout), text(&out.stderr))
    }
}

/// Stops the daemon and starts it again, until it takes commands and before its pools are open; its lines.
fn restarted(site: &Site, mut daemon: Running) -> (Running, impl Iterator<Item = String>) {
    site.ok("daemon stop");
    daemon.ended();
    let mut child = site.command("daemon").stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let daemon = Running { child };
    site.wait_until("the daemon takes commands", || site.path("run/daemon.sock").exists());
    (daemon, lines)
}

#[test]
fn an_export_waits_for_a_pool_that_is_being_opened() {
    let site = Site::new(1);
    let mut daemon = site.start();
    site.ok("zpool create tank d0");
    for _ in 0..3 {
        let (next, mut lines) = restarted(&site, daemon);
        daemon = next;
        let status = site.ok("daemon status");
        assert!(!status.contains("OPEN: \n"), "a reason is missing: {status}");
        site.ok("zpool export tank");
        assert!(lines.any(|line| line == "ready"));
        assert_eq!(site.pools(), [""; 0], "the daemon has the pool although it was exported");
        let listed = site.ok(&format!("zpool list -H -o name,health -d {}", site.dir.path().display()));
        assert_eq!(listed, "tank\tEXPORTED\n");
        site.ok(&format!("zpool import -d {} tank", site.dir.path().display()));
    }
}

#[test]
fn commands_wait_for_a_pool_that_is_being_opened() {
    let site = Site::new(1);
    let mut daemon = site.start();
    site.ok("zpool create tank d0");
    site.ok("zfs create -o sharenfs=on tank/a");
    for line in [
        "zfs list -H -o name tank/a",
        "zpool status tank",
        "zpool iostat tank",
        "zpool get -H name tank",
        "zfs share -a",
        "zfs unshare tank/a",
    ] {
        let (next, mut lines) = restarted(&site, daemon);
        daemon = next;
        site.ok(line);
        assert!(lines.any(|line| line == "ready"));
    }
}

#[test]
fn a_target_comes_and_goes_with_its_chap_user() {
    if !has(&["iscsi-ls"]) {
        return;
    }
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create tank d0");
    site.with_input("user add bob", "a secret of bob\n");
    site.ok("zfs create -V 16M -o weir:iscsi=on,target=iqn.2026-01.test:v,chap=bob tank/v");
    assert!(site.targets().contains("iqn.2026-01.test:v"), "{}", site.log());
    site.ok("user remove bob");
    assert_eq!(site.targets(), "", "without its secret, it is not shared");
    site.with_input("user add bob", "another secret of bob\n");
    assert!(site.targets().contains("iqn.2026-01.test:v"), "{}", site.log());
    let address = site.status("/protocols/iscsi/address").as_str().unwrap().to_owned();
    let with_user = format!("iscsi://bob%another secret of bob@{address}");
    let listed = Command::new("iscsi-ls").args(["-s", &with_user]).output().unwrap();
    assert!(text(&listed.stdout).contains("Lun:0"), "{}{}", text(&listed.stdout), site.log());
    site.ok("user remove bob");
    assert_eq!(site.targets(), "");
    let url = format!("iscsi://{address}/iqn.2026-01.test:v/0");
    assert!(!Command::new("iscsi-inq").arg(url).output().unwrap().status.success());
    let log = site.log();
    let refusals: Vec<&str> = log.lines().filter(|line| line.contains("login refused")).collect();
    assert_eq!(refusals.len(), 1, "{log}");
    assert!(refusals[0].contains("target 'iqn.2026-01.test:v': there is no such target"), "{refusals:?}");
}

#[test]
fn serve_imports_an_exported_pool_and_exports_it_again() {
    let site = Site::new(1);
    let dir = site.dir.path().display().to_string();
    site.ok("zpool create tank d0");
    site.ok("zpool export tank");
    let mut command = site.command(&format!("serve -d {dir} --nfs-port 0 --nbd-port 0 tank"));
    let errors = std::fs::File::create(site.path("errors")).unwrap();
    let mut child = command.stdout(Stdio::piped()).stderr(errors).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line == "ready"));
    let mut server = Running { child };
    let said = std::fs::read_to_string(site.path("errors")).unwrap();
    assert!(said.contains("pool 'tank' was exported: it is imported until this command ends"), "{said}");
    server.signal(rustix::process::Signal::TERM);
    assert!(server.ended());
    assert_eq!(site.ok(&format!("zpool list -H -o name,health -d {dir}")), "tank\tEXPORTED\n");
}

/// A pool that another host uses. Its host ID is made in a mount namespace with another machine ID.
#[test]
fn serve_refuses_a_pool_that_another_host_uses() {
    if !rustix::process::geteuid().is_root() || !has(&["unshare"]) || Path::new("/etc/hostid").exists() {
        println!("skipped: another host ID needs root and unshare, and no /etc/hostid");
        return;
    }
    let site = Site::new(1);
    let dir = site.dir.path().display().to_string();
    std::fs::write(site.path("id"), "0badcafe000000000000000000000000\n").unwrap();
    let script = format!(
        "mount --bind {dir}/id /etc/machine-id && '{}' zpool create -o cachefile=none tank {dir}/d0",
        env!("CARGO_BIN_EXE_weir")
    );
    let mut command = Command::new("unshare");
    command.env("STATE_DIRECTORY", site.path("state")).env("RUNTIME_DIRECTORY", site.path("run"));
    if !command.args(["-m", "sh", "-c", &script]).status().unwrap().success() {
        println!("skipped: no mount namespace");
        return;
    }
    let line = format!("serve -d {dir} --nfs-port 0 --nbd-port 0");
    let error = site.fails(&format!("{line} tank"));
    assert!(error.contains("hostid badcafe); -f forces it") && error.lines().count() == 1, "{error}");
    let mut forced = serve(&site, &format!("{line} -f tank"));
    forced.signal(rustix::process::Signal::TERM);
    assert!(forced.ended());
}

#[test]
fn a_reload_moves_the_ports_that_changed_and_no_other() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank d0");
    site.ok("zfs create -V 16M tank/volume");
    let nbd = site.nbd("tank/volume");
    let nbd_address = site.status("/protocols/nbd/address");
    let mut nfs = site.nfs();
    let root = nfs.mount("/tank").unwrap();
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let moved = CONFIGURATION.replace("nfs_port = 0", &format!("nfs_port = {port}"));
    site.configure(&moved);
    let said = site.ok("daemon reload");
    assert!(said.contains(&format!("nfs3 listens on 127.0.0.1:{port} now")) && !said.contains("nbd"), "{said}");
    assert_eq!(site.status("/protocols/nfs3/address"), format!("127.0.0.1:{port}"));
    assert_eq!(site.nfs().status_of(&root), 0, "the handle is valid at the new port");
    assert_eq!(site.status("/protocols/nbd/address"), nbd_address);
    assert_eq!(site.status("/protocols/nbd/clients").as_array().unwrap().len(), 1, "it stays connected");
    drop(nbd);
    // A port that is taken: the old one is served on.
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let other = taken.local_addr().unwrap().port();
    site.configure(&moved.replace(&format!("nfs_port = {port}"), &format!("nfs_port = {other}")));
    let reload = site.command("daemon reload").output().unwrap();
    let said = text(&reload.stderr);
    assert_eq!(reload.status.code(), Some(1), "{said}");
    assert!(said.contains("nfs3 cannot be moved") && said.contains("; nfs_port chooses another port"), "{said}");
    assert_eq!(site.nfs().status_of(&root), 0);
    // Two protocols on one port: everything stays as it was.
    site.configure(&moved.replace("nbd_port = 0", &format!("nbd_port = {port}")));
    let said = site.fails("daemon reload");
    assert!(said.contains(&format!("nfs_port and nbd_port are both {port}")), "{said}");
    assert_eq!(site.nfs().status_of(&root), 0);
    assert_eq!(site.status("/protocols/nfs3/address"), format!("127.0.0.1:{port}"));
}

/// Mount points of Weir below a directory, in the kernel's list.
pub fn mounts_below(dir: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string("/proc/self/mounts").unwrap();
    let points = text.lines().filter_map(|line| line.split(' ').nth(1)).map(PathBuf::from);
    let mut below: Vec<PathBuf> = points.filter_map(|point| point.strip_prefix(dir).ok().map(Path::to_owned)).collect();
    below.sort();
    below
}

#[test]
fn file_systems_are_mounted_where_their_properties_say() {
    if !can_mount() {
        return;
    }
    let site = Site::new(1);
    site.configure(&CONFIGURATION.replace("mounts = false", "mounts = true"));
    let mut daemon = site.start();
    let top = site.path("m");
    let mounts = || mounts_below(&top).iter().map(|path| path.display().to_string()).collect::<Vec<_>>();
    site.ok(&format!("zpool create -m {}/tank tank d0", top.display()));
    site.ok("zfs create tank/a");
    site.ok("zfs create -o canmount=noauto tank/n");
    std::fs::write(top.join("tank/a/file"), "content").unwrap();
    assert_eq!(mounts(), ["tank"], "a child is in the mount of its parent");
    assert!(!top.join("tank/n").exists());
    site.ok(&format!("zfs set mountpoint={}/other tank/a", top.display()));
    assert_eq!(mounts(), ["other", "tank"]);
    assert_eq!(std::fs::read_to_string(top.join("other/file")).unwrap(), "content");
    site.ok("zfs set canmount=off tank/a");
    assert_eq!(mounts(), ["tank"]);
    site.ok("zfs set canmount=on tank/a");
    site.ok("zfs mount tank/a");
    site.ok(&format!("zfs create -o mountpoint={}/b tank/b", top.display()));
    assert_eq!(mounts(), ["b", "other", "tank"]);
    // What was unmounted by hand stays so.
    site.ok("zfs unmount tank/b");
    site.ok("zfs create tank/c");
    assert_eq!(mounts(), ["other", "tank"]);
    // A killed daemon leaves mounts behind that answer nothing.
    daemon.signal(rustix::process::Signal::KILL);
    daemon.ended();
    assert!(std::fs::read_dir(top.join("tank")).is_err());
    let _daemon = site.start();
    assert_eq!(mounts(), ["b", "other", "tank"]);
    assert_eq!(std::fs::read_to_string(top.join("other/file")).unwrap(), "content");
    site.ok("zfs rename tank/a tank/z");
    site.ok("zfs destroy tank/z");
    assert_eq!(mounts(), ["b", "tank"]);
    site.ok("zpool export tank");
    assert_eq!(mounts(), [""; 0]);
    site.ok(&format!("zpool import -N -d {} tank", site.dir.path().display()));
    assert_eq!(mounts(), [""; 0]);
    site.ok("zfs mount -a");
    assert_eq!(mounts(), ["b", "tank"]);
    site.ok("daemon stop");
    assert_eq!(mounts(), [""; 0]);
}

/// An smbclient that stays connected to a share.
struct Session {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Session {
    fn open(site: &Site, share: &str) -> Session {
        let mut command = site.smbclient(share, &[]);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        let (to, lines) = channel();
        std::thread::spawn(move || output.lines().map_while(Result::ok).try_for_each(|line| to.send(line).ok()));
        let input = child.stdin.take().unwrap();
        Session { child, input, lines }
    }

    /// Waits for a line that contains `part` after a command.
    fn says(&mut self, command: &str, part: &str) -> bool {
        // A client that has ended says nothing.
        let _ = writeln!(self.input, "{command}");
        let until = Instant::now() + Duration::from_secs(10);
        while let Ok(line) = self.lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            if line.contains(part) {
                return true;
            }
        }
        false
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The systemd unit of an ordinary user allows the daemon to serve pools on files over the network, without mounts.
#[test]
fn the_rootless_unit_serves_pools_on_files() {
    let site = Site::new(3);
    let mut daemon = site.start_by(as_unit(&site, "weir-rootless.service"));
    site.ok("zpool create -O sharenfs=on -O weir:nbd=on tank mirror d0 d1");
    site.ok("zfs create -V 16M tank/vol");
    site.ok("zfs create tank/a");
    let mut nfs = site.nfs();
    let root = nfs.mount("/tank/a").unwrap();
    assert_eq!(nfs.status_of_listing(&root), 0);
    assert!(site.nbd("tank/vol").is_connected());
    site.ok("zfs snapshot -r tank@s");
    site.ok("zpool add -f tank d2");
    site.ok("zpool scrub tank");
    drop(nfs);
    site.ok("zpool export -f tank");
    site.ok(&format!("zpool import -d {} tank", site.dir.path().display()));
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.ended(), "{}", site.log());
    assert!(!site.log().contains("WARN") && !site.log().contains("ERROR"), "{}", site.log());
}

#[test]
fn sharesmb_makes_and_ends_shares() {
    if !can_mount() || !has(&["smbd", "smbclient", "smbcontrol", "pdbedit"]) {
        return;
    }
    let site = Site::new(2);
    std::fs::set_permissions(site.dir.path(), std::fs::Permissions::from_mode(0o711)).unwrap();
    let mut daemon = site.start_by(as_unit(&site, "weir.service"));
    site.with_input("smb user add ann", "a password\n");
    site.ok(&format!("zpool create -m {} tank d0", site.path("m").display()));
    site.ok("zpool create other d1");
    site.ok("zfs create -o sharesmb=on tank/a");
    site.ok("zfs create -o sharesmb=off tank/a/private");
    site.ok("zfs create tank/a/inner");
    site.ok("zfs mount tank/a/inner");
    std::fs::set_permissions(site.path("m/a/inner"), std::fs::Permissions::from_mode(0o777)).unwrap();
    site.ok("zfs unmount tank/a/inner");
    site.ok("zfs create -o sharesmb=name=Music,ro other/m");
    let file = site.path("d1").display().to_string();
    let listed = site.smb("tank_a", "ls");
    assert!(listed.contains("inner") && !listed.contains("private"), "{listed}\n{}", site.log());
    std::fs::write(site.path("d1.small"), "content").unwrap();
    let put = site.smb("tank_a", &format!("put {file}.small inner\\file; get inner\\file back"));
    assert_eq!(std::fs::read_to_string(site.path("back")).unwrap_or_default(), "content", "{put}");
    assert!(site.smb("Music", &format!("put {file}.small x")).contains("ACCESS_DENIED"));
    for name in ["tank", "tank_a_private", "other"] {
        assert!(site.smb(name, "ls").contains("NT_STATUS_BAD_NETWORK_NAME"), "{name} is shared");
    }
    // A client that is connected loses the share with the property, and one that uses another share does not.
    let mut music = Session::open(&site, "Music");
    let mut client = Session::open(&site, "tank_a");
    assert!(client.says("ls", "inner") && music.says("ls", "blocks of size"));
    let status = site.ok("smb status -H");
    assert!(status.contains("tank_a") && status.contains("SMB3_11"), "{status}");
    assert!(site.ok("daemon status").contains("ann@127.0.0.1 tank_a"));
    let error = site.fails("zpool export tank");
    assert!(error.contains("pool is busy") && error.contains("smb 127.0.0.1"), "{error}");
    site.ok("zfs set sharesmb=off tank/a");
    assert!(client.says("ls", "NT_STATUS_NETWORK_NAME_DELETED"), "the share ended");
    assert!(music.says("ls", "blocks of size"), "the other goes on");
    assert!(site.smb("tank_a", "ls").contains("NT_STATUS_BAD_NETWORK_NAME"));
    drop((client, music));
    site.ok("zfs set sharesmb=on tank/a");
    assert!(site.smb("tank_a", "ls").contains("inner"));
    // A user that is removed loses the connection.
    let mut removed = Session::open(&site, "Music");
    assert!(removed.says("ls", "blocks of size") && site.ok("smb status -H").contains("\tann\t"));
    site.ok("smb user remove ann");
    site.wait_until("the connection ended", || !site.ok("smb status -H").contains("\tann\t"));
    site.with_input("smb user add ann", "a password\n");
    assert!(site.smb("tank_a", "ls").contains("inner"));
    assert_eq!(mounts_below(&site.path("run-smb")).len(), 2);
    // After SIGKILL, smbd and the mounts of the daemon remain; the next start replaces them.
    daemon.signal(rustix::process::Signal::KILL);
    daemon.ended();
    let begun = Instant::now();
    let mut daemon = site.start_by(as_unit(&site, "weir.service"));
    site.wait_until("shared again", || site.smb("tank_a", "ls").contains("inner"));
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    // An export ends the shares of the pool, and no other.
    site.ok("zpool export -f tank");
    assert_eq!(mounts_below(&site.path("run-smb")).len(), 1);
    assert!(site.smb("Music", "ls").contains("blocks of size"));
    let passdb = site.path("state/smb/private/passdb.tdb").metadata().unwrap();
    assert_eq!(passdb.permissions().mode() & 0o777, 0o600);
    // The list of the shares comes from helpers that smbd starts and that outlive it.
    let mut list = site.smbclient("", &["-L", "127.0.0.1"]);
    let listed = list.output().unwrap();
    assert!(String::from_utf8_lossy(&listed.stdout).contains("Music"), "{listed:?}");
    assert!(samba_processes(&site).contains("smbd"));
    // Also without a share, the next start ends what a killed daemon left.
    site.ok("zfs set sharesmb=off other/m");
    daemon.signal(rustix::process::Signal::KILL);
    daemon.ended();
    assert!(samba_processes(&site).contains("smbd"));
    let _daemon = site.start_by(as_unit(&site, "weir.service"));
    site.wait_until("smbd of the killed daemon ends", || samba_processes(&site).is_empty());
    site.ok("daemon stop");
    assert_eq!(mounts_below(&site.path("run-smb")).len(), 0);
    assert_eq!(samba_processes(&site), "");
}

/// Command lines of the processes with the daemon's configuration of Samba.
fn samba_processes(site: &Site) -> String {
    let ours = format!("--configfile={}", site.path("run-smb").display());
    let entries = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| std::fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&ours)).map(|line| line.replace('\0', " ") + "\n").collect()
}

/// Commands that show what pools do find those of the daemon, and of other processes beside it.
#[test]
fn counters_of_the_daemons_pools_need_no_place() {
    let site = Site::new(2);
    let _daemon = site.start();
    let why = site.fails("top -b");
    assert!(why.contains("no process has a pool open"), "{why}");
    site.ok("zpool create tank d0");
    for line in ["top -b", "top -b tank", "arcstat -H -f pool", "arcstat -H -f pool tank", "why", "why tank"] {
        let shown = site.ok(line);
        assert!(shown.contains("tank"), "{line}: {shown}");
    }
    let why = site.fails("top -b other");
    assert!(why.contains("cannot open 'other': no such pool"), "{why}");
    // A pool of another process.
    site.ok("zpool create -o cachefile=none beside d1");
    site.ok("zpool export beside");
    let mut serve = site.command("serve -d d1 --nfs-port 0 --nbd-port 0 beside");
    let mut serve = serve.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let lines = std::io::BufRead::lines(std::io::BufReader::new(serve.stdout.take().unwrap()));
    assert!(lines.map_while(Result::ok).any(|line| line == "ready"));
    let both = site.ok("top -b");
    let one = site.ok("arcstat -H -f pool beside");
    serve.kill().unwrap();
    serve.wait().unwrap();
    assert!(both.contains("tank") && both.contains("beside"), "{both}");
    assert_eq!(one.trim(), "beside");
}

#[test]
fn a_pool_with_another_guid_is_in_use_until_it_is_exported() {
    let site = Site::new(1);
    let mut daemon = site.start();
    site.ok("zpool create -O sharenfs=on one d0");
    let handle = site.nfs().mount("/one").unwrap();
    site.ok("zpool reguid -g 4711 one");
    for line in ["zpool import -d .", "zpool import -d . one", "zpool import -d . 4711"] {
        let why = site.fails(line);
        assert!(why.contains("no pools available") || why.contains("already imported"), "{line}: {why}");
    }
    assert_eq!(site.nfs().status_of(&handle), 0);
    daemon.signal(rustix::process::Signal::KILL);
    daemon.ended();
    let _daemon = site.start();
    assert_eq!(site.ok("zpool get -H -o value guid one"), "4711\n");
    site.ok("zpool reguid -g 4712 one");
    site.ok("zpool export one");
    assert_eq!(site.pools(), [""; 0]);
    assert!(site.nfs().mount("/one").is_err());
    assert!(site.ok("zpool import -d .").contains("id: 4712"));
    site.ok("zpool import -d . one");
    assert_eq!(site.pools(), ["one"]);
}

#[test]
fn a_dataset_that_no_client_has_open_is_named_in_the_counters() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    site.ok("zfs create one/a");
    site.ok("zpool sync one");
    let shown = site.ok("top -b one");
    assert!(shown.contains(" one/a ") && !shown.contains("objset"), "{shown}");
}

#[test]
fn properties_of_a_new_dataset_are_printed() {
    let site = Site::new(1);
    let _daemon = site.start();
    site.ok("zpool create one d0");
    let lines = |line: &str| site.ok(line).lines().map(str::to_owned).collect::<Vec<_>>();
    assert_eq!(
        lines("zfs create -Pnv -o recordsize=8k -o compression=lz4 one/a"),
        ["create\tone/a", "property\trecordsize\t8k", "property\tcompression\tlz4"]
    );
    assert_eq!(lines("zfs create -nv -o atime=off one/a"), ["would create one/a", "\tatime=off"]);
    assert_eq!(
        lines("zfs create -nPs -b 8K -V 10000 one/v"),
        ["create\tone/v", "property\tvolsize\t16384", "property\tvolblocksize\t8192"]
    );
    assert!(site.fails("zfs create -n -b 1234 -V 8M one/v").contains("must be power of 2 from 512B to 16M"));
    site.ok("zpool sync -f one");
    let would = lines("zfs create -nP -V 8M one/v");
    assert_eq!(would[..2], ["create\tone/v", "property\tvolsize\t8388608"]);
    assert_eq!(lines("zfs create -n -o atime=off one/a"), [""; 0], "only -v and -P show it");
    assert_eq!(lines("zfs create -npP one/a/b"), ["create_ancestors\tone/a/b", "create\tone/a/b"]);
    assert_eq!(lines("zfs create -npv one/a/b"), ["would create ancestors of one/a/b", "would create one/a/b"]);
    assert_eq!(site.ok("zfs list -H -o name"), "one\n");
    assert_eq!(lines("zfs create -Pv -V 8M one/v"), would);
    let reserved = site.ok("zfs get -Hp -o value refreservation one/v");
    assert_eq!(would[2..], [format!("property\trefreservation\t{}", reserved.trim())]);
}
