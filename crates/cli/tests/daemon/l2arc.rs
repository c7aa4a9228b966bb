//! A cache device of a pool that the daemon serves: used, shown, found again after a restart, and read by OpenZFS's zdb.

use super::*;

const SET_BYTES: u64 = 96 << 20;
const PIECE_BYTES: usize = 1 << 20;

/// The bytes of a piece of the volume, of which lz4 saves a part.
fn piece(n: u64) -> Vec<u8> {
    let mut state = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let words = (0..PIECE_BYTES / 8).flat_map(|i| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        if i % 4 == 0 { [7; 8] } else { state.to_le_bytes() }
    });
    words.collect()
}

fn read_all(site: &Site) {
    let mut volume = site.nbd("one/v");
    for n in 0..SET_BYTES / PIECE_BYTES as u64 {
        assert!(volume.read(n * PIECE_BYTES as u64, PIECE_BYTES) == piece(n), "piece {n}");
    }
}

/// Starts the daemon with an ARC of a third of the working set.
fn started(site: &Site) -> Running {
    site.configure(&format!("{CONFIGURATION}arc_max = \"32M\"\n"));
    let mut command = site.command("daemon");
    command.env("WEIR_L2ARC_WRITE_MAX", "512M").env("WEIR_L2ARC_NOPREFETCH", "0");
    site.start_by(command)
}

fn arcstat(site: &Site, field: &str) -> f64 {
    let shown = site.ok(&format!("arcstat -Hp -f {field} one"));
    shown.trim().parse().unwrap_or_else(|_| panic!("{field}: {shown}"))
}

/// The cells of the cache device in the output of a command.
fn cells(site: &Site, line: &str) -> Vec<String> {
    let shown = site.ok(line);
    let row = shown.lines().find(|line| line.contains("c0")).unwrap_or_else(|| panic!("{shown}"));
    row.split_whitespace().map(str::to_owned).collect()
}

fn zdb(arguments: &[&str]) -> Option<String> {
    let tools = PathBuf::from(std::env::var_os("WEIR_ZFS_TOOLS")?);
    let mut zdb = Command::new(tools.join("sbin/zdb"));
    let libraries = [tools.join("lib"), tools.join("lib/x86_64-linux-gnu")].map(|path| path.display().to_string());
    let out = zdb.env("LD_LIBRARY_PATH", libraries.join(":")).args(arguments).output().unwrap();
    assert!(out.status.success(), "zdb {arguments:?}: {}{}", text(&out.stdout), text(&out.stderr));
    Some(text(&out.stdout))
}

#[test]
fn a_cache_device_is_used_shown_and_found_again() {
    let site = Site::new(0);
    for (name, bytes) in [("d0", 256 << 20), ("c0", 1200 << 20)] {
        std::fs::File::create(site.path(name)).unwrap().set_len(bytes).unwrap();
    }
    let mut daemon = started(&site);
    site.ok("zpool create -O weir:nbd=on one d0 cache c0");
    site.ok(&format!("zfs create -V {SET_BYTES} -o volblocksize=64K one/v"));
    let mut volume = site.nbd("one/v");
    (0..SET_BYTES / PIECE_BYTES as u64).for_each(|n| volume.write(n * PIECE_BYTES as u64, &piece(n)));
    site.ok("zpool sync one");
    drop(volume);
    for _ in 0..3 {
        read_all(&site);
        std::thread::sleep(Duration::from_secs(2));
    }
    assert!(arcstat(&site, "l2hits") > 0.0 && arcstat(&site, "l2size") > 64e6, "{}", site.ok("arcstat -f l2asize one"));
    let [_, allocated, free, reads, writes, ..] = &cells(&site, "zpool iostat -Hpv one")[..] else { panic!() };
    assert!(allocated.parse::<u64>().unwrap() > 32 << 20 && free.parse::<u64>().unwrap() > 1 << 30);
    assert!(reads != "0" && writes != "0", "{reads} reads, {writes} writes");
    let listed = cells(&site, "zpool list -Hpv -o name,alloc,free,health one");
    assert_eq!((listed[1].parse::<u64>().unwrap() > 32 << 20, listed[3].as_str()), (true, "ONLINE"));
    let status = site.ok("zpool status one");
    assert!(status.contains("times the size of the ARC"), "{status}");

    // The device is taken offline and put back; what it has is found again, also after a restart.
    site.ok("zpool offline one c0");
    assert!(cells(&site, "zpool status one").contains(&"OFFLINE".to_owned()));
    site.ok("zpool online one c0");
    site.ok("zpool clear one c0");
    site.wait_until("the cache device is rebuilt", || arcstat(&site, "l2size") > 0.0);
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.ended());
    let device = site.path("c0").display().to_string();
    if let Some(shown) = zdb(&["-lll", &device]) {
        assert!(shown.contains("L2ARC device header") && shown.contains("0 with invalid cksum"), "{shown}");
        let count = shown.split("log_blk_count:").nth(1).unwrap().split_whitespace().next().unwrap();
        assert!(count.parse::<u64>().unwrap() > 5, "{count} log blocks");
    }
    let mut daemon = started(&site);
    site.wait_until("the cache device is rebuilt", || arcstat(&site, "l2size") > 32e6);
    read_all(&site);
    assert!(arcstat(&site, "l2hits") > 0.0);
    site.ok("zpool remove one c0");
    assert!(!site.ok("zpool status one").contains("c0"));
    read_all(&site);
    site.ok("zpool export one");
    daemon.signal(rustix::process::Signal::TERM);
    assert!(daemon.ended());
    if let Some(shown) = zdb(&["-e", "-p", &site.path("").display().to_string(), "one", "-bcc"]) {
        assert!(shown.contains("No leaks"), "{shown}");
    }
}
