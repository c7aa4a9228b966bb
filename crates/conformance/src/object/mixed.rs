//! Pools with devices in a store beside local ones, and stores that fail.

use super::store::Started;
use crate::site::{Site, check, fill, zdb};
use crate::{JudgeError, io, wrong};
use std::time::Duration;

/// Cases, and the devices of their pools: `S1` and `S2` are disks in the store, `L1` to `L4` local files.
pub const LAYOUTS: [(&str, &str); 3] = [
    ("log, special, cache", "S1 log mirror L1 L2 special mirror L3 L4 cache L5"),
    ("mirror with a local disk", "mirror S1 L1"),
    ("mirror of two stores", "mirror S1 S2"),
];

const DISK_BYTES: u64 = 256 << 20;
/// Pieces that are written.
const PIECES: u64 = 256;

/// Makes a pool of this layout, kills its daemon, opens it again, exports it, and runs zdb on the local devices beside the
/// objects laid into files.
///
/// # Errors
/// The first that is not as it has to be.
pub fn layout(store: &Started, case: &str, layout: &str) -> Result<String, JudgeError> {
    let site = Site::reaching(store.environment.clone())?;
    let devices = site.path("devices");
    std::fs::create_dir(&devices).map_err(io("a folder"))?;
    let prefix = case.replace([' ', ','], "-");
    let mut words = Vec::new();
    let mut disks = Vec::new();
    for word in layout.split(' ') {
        words.push(match word {
            "S1" | "S2" => {
                let disk = format!("{prefix}-{word}");
                let url = format!("{}?size=256M&object=256K", store.url(&disk));
                disks.push(disk);
                url
            }
            "L1" | "L2" | "L3" | "L4" | "L5" => site.device(&format!("devices/{word}"), DISK_BYTES)?,
            word => word.to_owned(),
        });
    }
    // Devices of several kinds differ in redundancy.
    site.ok(&format!("zpool create -f -O compression=off mixed {}", words.join(" ")))?;
    let daemon = site.daemon("mixed")?;
    site.ok("zfs create -s -V 32M -o volblocksize=64K -o weir:nbd=on mixed/v")?;
    let mut volume = site.volume("mixed/v")?;
    fill(&mut volume, 1, 0..PIECES)?;
    for piece in 0..32 {
        fill(&mut volume, 2, piece..piece + 1)?;
    }
    drop((volume, daemon));
    let daemon = site.daemon("mixed")?;
    let mut volume = site.volume("mixed/v")?;
    check(&mut volume, 2, 0..32)?;
    check(&mut volume, 1, 32..PIECES)?;
    site.scrub("mixed")?;
    drop(volume);
    site.detached()?;
    site.ok("zpool export mixed")?;
    drop(daemon);
    let mut objects = Vec::new();
    for disk in &disks {
        let image = devices.join(disk);
        objects.push(store.client(&["lay", &store.url(disk), &image.display().to_string()])?);
    }
    Ok(format!("{} objects, local devices as they are: {}", objects.join(" and "), zdb(&devices, "mixed")?))
}

/// A store that refuses every PUT: the pool is suspended, its error names object and reason, and it goes on when the store does,
/// with nothing lost.
///
/// # Errors
/// The first that is not as it has to be.
pub fn failing(store: &Started) -> Result<String, JudgeError> {
    let site = Site::reaching(store.environment.clone())?;
    let url = store.url("failing");
    site.ok(&format!("zpool create -O compression=off failing {url}?size=256M&object=256K"))?;
    let daemon = site.daemon("failing")?;
    site.ok("zfs create -s -V 32M -o volblocksize=64K -o weir:nbd=on failing/v")?;
    let mut volume = site.volume("failing/v")?;
    fill(&mut volume, 1, 0..64)?;
    // New objects are made under other names in the folder: an object that is a folder cannot be replaced.
    let folder = store.folder_of("failing");
    let moved = store.folder_of("moved");
    std::fs::rename(&folder, &moved).map_err(io("the store"))?;
    std::fs::write(&folder, "not a folder").map_err(io("the store"))?;
    let writer = std::thread::spawn(move || {
        let filled = fill(&mut volume, 2, 0..64);
        (volume, filled)
    });
    site.until("the pool is suspended", || Ok(site.ok("zpool status failing")?.contains("SUSPENDED")))?;
    let log = std::fs::read_to_string(site.path("daemon.log")).map_err(io("daemon.log"))?;
    let line = log.lines().find(|line| line.contains(&format!("{url}/0")));
    let line = line.ok_or_else(|| wrong("the log", format!("no line names an object below {url}: {log}")))?.to_owned();
    std::fs::remove_file(&folder).map_err(io("the store"))?;
    std::fs::rename(&moved, &folder).map_err(io("the store"))?;
    site.until("the pool goes on", || {
        site.ok("zpool clear failing")?;
        std::thread::sleep(Duration::from_secs(1));
        Ok(!site.ok("zpool status failing")?.contains("SUSPENDED"))
    })?;
    let (mut volume, filled) = writer.join().map_err(|_| wrong("the writer", "it panicked"))?;
    filled?;
    check(&mut volume, 2, 0..64)?;
    site.scrub("failing")?;
    drop(volume);
    site.detached()?;
    site.ok("zpool export failing")?;
    drop(daemon);
    Ok(format!("suspended, cleared, nothing lost: {line}"))
}
