//! The life of a pool on a store.

use super::store::Started;
use crate::site::{Site, check, fill, zdb as run_zdb};
use crate::{JudgeError, io, wrong};
use std::time::{Duration, Instant};

/// Pool of these cases, and its disk.
const POOL: &str = "tank";
/// Pieces that are written: 24 MiB.
const PIECES: u64 = 384;
/// Pieces that are written just before the daemon is killed.
const LAST: u64 = 32;

fn count(store: &Started, disk: &str) -> Result<u64, JudgeError> {
    let text = store.client(&["count", &store.url(disk)])?;
    text.parse().map_err(|_| wrong("count", text))
}

/// Makes, fills, scrubs, kills over, reopens, trims and exports a pool; a second host is refused.
///
/// # Errors
/// The first that is not as it has to be.
pub fn life(store: &Started) -> Result<String, JudgeError> {
    let (site, url) = (Site::reaching(store.environment.clone())?, store.url(POOL));
    site.ok(&format!("zpool create -O compression=off {POOL} {url}?size=256M&object=256K"))?;
    let daemon = site.daemon(POOL)?;
    site.ok(&format!("zfs create -s -V 32M -o volblocksize=64K -o weir:nbd=on {POOL}/v"))?;
    site.ok(&format!("zfs create -s -V 64M -o volblocksize=64K -o weir:nbd=on {POOL}/freed"))?;
    let mut volume = site.volume(&format!("{POOL}/v"))?;
    fill(&mut volume, 1, 0..PIECES)?;
    fill(&mut site.volume(&format!("{POOL}/freed"))?, 2, 0..2 * PIECES)?;
    // Another host, as far as its directories go: it finds no lock of this one, but the lease.
    let other = Site::reaching(store.environment.clone())?;
    let refused = other.fails(&format!("zpool import -f -d {url} {POOL}"), "in use by process")?;
    site.scrub(POOL)?;
    fill(&mut volume, 3, 0..LAST)?;
    let begun = Instant::now();
    // SIGKILL.
    drop((volume, daemon));
    let daemon = site.daemon(POOL)?;
    let reopened = begun.elapsed();
    let mut volume = site.volume(&format!("{POOL}/v"))?;
    check(&mut volume, 3, 0..LAST)?;
    check(&mut volume, 1, LAST..PIECES)?;
    drop(volume);
    check(&mut site.volume(&format!("{POOL}/freed"))?, 2, 0..2 * PIECES)?;
    site.detached()?;
    site.scrub(POOL)?;
    let full = count(store, POOL)?;
    site.ok(&format!("zfs destroy {POOL}/freed"))?;
    site.until("freed", || Ok(site.ok(&format!("zpool get -Hpo value freeing {POOL}"))?.trim() == "0"))?;
    // Space that a txg freed is trimmed when two more have synced.
    for _ in 0..4 {
        site.ok(&format!("zfs set user:sync=1 {POOL}"))?;
        site.ok(&format!("zpool sync {POOL}"))?;
    }
    site.ok(&format!("zpool trim -w {POOL}"))?;
    let left = count(store, POOL)?;
    if left + 100 > full {
        return Err(wrong("zpool trim", format!("{left} of {full} objects are left after 48 MiB were freed")));
    }
    let mut volume = site.volume(&format!("{POOL}/v"))?;
    check(&mut volume, 3, 0..LAST)?;
    check(&mut volume, 1, LAST..PIECES)?;
    drop(volume);
    site.detached()?;
    site.scrub(POOL)?;
    site.ok(&format!("zpool export {POOL}"))?;
    drop(daemon);
    // After an export no lease is held.
    other.ok(&format!("zpool import -d {url} {POOL}"))?;
    other.ok(&format!("zpool export {POOL}"))?;
    let line = refused.lines().next().unwrap_or_default().to_owned();
    Ok(format!(
        "served again {:.0} s after SIGKILL; trim left {left} of {full} objects; second writer: {line}",
        reopened.as_secs_f64()
    ))
}

/// OpenZFS's zdb on the objects of the exported pool, laid into a file.
///
/// # Errors
/// It finds a leak or an error.
pub fn zdb(store: &Started) -> Result<String, JudgeError> {
    crate::zdb::Tools::find()?;
    let folder = tempfile::tempdir().map_err(io("a folder"))?;
    let image = folder.path().join("image");
    let objects = store.client(&["lay", &store.url(POOL), &image.display().to_string()])?;
    Ok(format!("{objects} objects: {}", run_zdb(folder.path(), POOL)?))
}

/// Compares what `weir store` counts with the requests in the server's log.
///
/// # Errors
/// They differ.
pub fn counts(store: &Started) -> Result<String, JudgeError> {
    let Some(seen) = store.requests_seen() else {
        return Err(JudgeError::Missing { what: "the server logs no requests".into() });
    };
    let (site, url) = (Site::reaching(store.environment.clone())?, store.url("counted"));
    site.ok(&format!("zpool create counted {url}?size=128M&object=256K"))?;
    let daemon = site.daemon("counted")?;
    site.ok("zfs create -s -V 16M -o weir:nbd=on counted/v")?;
    let shown = || -> Result<[u64; 4], JudgeError> {
        let text = site.ok("store -Hp counted")?;
        let mut counts = [0; 4];
        for (count, line) in counts.iter_mut().zip(text.lines()) {
            *count =
                line.split('\t').nth(3).and_then(|n| n.parse().ok()).ok_or_else(|| wrong("weir store", &text[..]))?;
        }
        Ok(counts)
    };
    // Both at a time at which nothing happens: the lease is renewed every 10 s.
    let both = || -> Result<([u64; 4], [u64; 4]), JudgeError> {
        for _ in 0..100 {
            let before = shown()?;
            let logged = seen("counted")?;
            let after = shown()?;
            std::thread::sleep(Duration::from_millis(300));
            if before == after && logged == seen("counted")? && after == shown()? {
                return Ok((after, logged));
            }
        }
        Err(wrong("weir store", "the counts do not stop"))
    };
    let (shown_before, seen_before) = both()?;
    let mut volume = site.volume("counted/v")?;
    fill(&mut volume, 5, 0..256)?;
    site.scrub("counted")?;
    drop(volume);
    site.detached()?;
    site.ok("zfs destroy counted/v")?;
    site.ok("zpool sync counted")?;
    site.ok("zpool trim -w counted")?;
    site.ok("zpool sync counted")?;
    let (shown_after, seen_after) = both()?;
    let difference = |after: [u64; 4], before: [u64; 4]| std::array::from_fn(|n| after[n].saturating_sub(before[n]));
    let shown: [u64; 4] = difference(shown_after, shown_before);
    let seen: [u64; 4] = difference(seen_after, seen_before);
    // Commands such as `zpool trim` read the disk too, before they ask the daemon: these GETs are of their processes.
    if shown[1..] != seen[1..] || shown[0] > seen[0] || shown[1..].contains(&0) {
        return Err(wrong("weir store", format!("get, put, head, delete: shown {shown:?}, the server saw {seen:?}")));
    }
    site.ok("zpool export counted")?;
    drop(daemon);
    Ok(format!("get, put, head, delete: shown {shown:?}, the server saw {seen:?}, with the GETs of commands"))
}
