//! Disks in object stores, as commands name them: by URL, where others have a path.
//!
//! Processes of one machine take turns at such a disk as at others, by a lock on a file of its own, in this user's runtime
//! directory. Its first line is the URL. Between machines, the lease in the store decides (`weir_object_store::lease`).

use crate::directories;
use crate::failure::Failure;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use weir_codec::{Salt, checksum};
use weir_format::{ChecksumKind, Endian};
use weir_linux::{BuildError, Production};
use weir_machine::Machine;
use weir_object_store::{DiskUrl, Prices, Settings, StoreDisks, is_url, is_url_path, prices, with_stores};

/// Extension of the files that stand for URLs.
const EXTENSION: &str = "url";

/// The machine on which commands run: with disks in object stores.
///
/// # Errors
/// [`BuildError`].
pub fn machine() -> Result<Machine, BuildError> {
    Ok(with_stores(Production::from_env().build()?).0)
}

/// The machine of a process that serves pools, with a guard that gives back its disks in object stores when it is dropped.
///
/// # Errors
/// [`BuildError`].
pub fn serving_machine() -> Result<(Machine, ReturnedDisks), BuildError> {
    let (machine, disks) = with_stores(Production::from_env().build()?);
    Ok((machine, ReturnedDisks(disks)))
}

/// Gives back the disks in object stores that the process has open: tasks that have not ended may still refer to their pools.
pub struct ReturnedDisks(Arc<StoreDisks>);

impl ReturnedDisks {
    /// The disks.
    pub fn disks(&self) -> &Arc<StoreDisks> {
        &self.0
    }
}

/// The price list in a file; an empty one if none is named.
///
/// # Errors
/// One line that names the file: it cannot be read, or is no price list.
pub fn prices(file: Option<&Path>) -> Result<Prices, Failure> {
    let Some(path) = file else { return Ok(Prices::default()) };
    let failed = |why: String| Failure::failed(format!("store_prices: {}: {why}", path.display()));
    let mut text = String::new();
    let read = File::open(path).and_then(|file| file.take(prices::MAX_BYTES as u64 + 1).read_to_string(&mut text));
    read.map_err(|error| failed(error.to_string()))?;
    Prices::parse(&text).map_err(failed)
}

impl Drop for ReturnedDisks {
    fn drop(&mut self) {
        self.0.close_all();
    }
}

/// The file that is locked for a device: the device itself, or the lock file of a URL, which is made if it is missing.
pub fn lock_file(path: &Path) -> PathBuf {
    if !is_url_path(path) {
        return path.to_owned();
    }
    let bytes = path.as_os_str().as_bytes();
    let Ok(digest) = checksum(ChecksumKind::Sha256, Endian::Little, &Salt::none(), bytes) else {
        return path.to_owned();
    };
    let digest = format!("{:016x}{:016x}", digest[0], digest[1]);
    let Ok(folder) = directories::own_runtime() else { return path.to_owned() };
    let file = folder.join(format!("{digest}.{EXTENSION}"));
    if !file.exists() {
        let new = folder.join(format!("{digest}.{}", std::process::id()));
        let write = || {
            let mut made = File::options().create(true).truncate(true).write(true).mode(0o600).open(&new)?;
            writeln!(made, "{}", path.display())?;
            // Another process may have made it meanwhile, and locked it: it stays.
            let linked = std::fs::hard_link(&new, &file);
            std::fs::remove_file(&new)?;
            linked
        };
        if let Err(error) = write().or_else(|error| if file.exists() { Ok(()) } else { Err(error) }) {
            tracing::warn!(path = %file.display(), %error, "a disk in an object store cannot be locked on this machine");
        }
    }
    file
}

/// Whether a device exists, as far as this machine knows: whether a disk in an object store does, only the store knows.
pub fn may_exist(path: &Path) -> bool {
    is_url_path(path) || path.exists()
}

/// The path of a device: for the lock file of a URL, the URL.
pub fn device_of(path: PathBuf) -> PathBuf {
    if path.extension() != Some(OsStr::new(EXTENSION)) || path.parent() != directories::own_runtime().ok().as_deref() {
        return path;
    }
    let first = File::open(&path).ok().and_then(|file| BufReader::new(file).lines().next()?.ok());
    first.filter(|line| is_url(line)).map_or(path, PathBuf::from)
}

/// Splits a list of places that are separated by colons. The colon of a URL separates nothing.
pub fn split_places(list: &OsStr) -> Vec<PathBuf> {
    let mut out: Vec<PathBuf> = Vec::new();
    for part in std::env::split_paths(list) {
        let is_rest = part.as_os_str().as_bytes().starts_with(b"//");
        match out.last_mut() {
            Some(scheme) if is_rest && is_url(&format!("{}:{}", scheme.display(), part.display())) => {
                let mut url = scheme.clone().into_os_string();
                url.push(":");
                url.push(part.as_os_str());
                *scheme = url.into();
            }
            _ => out.push(part),
        }
    }
    out.retain(|path| !path.as_os_str().is_empty());
    out
}

/// Makes the disks of a command line that do not exist, after testing their stores.
///
/// # Errors
/// One line that names the disk.
pub fn make(machine: &Machine, disks: &[DiskUrl]) -> Result<(), Failure> {
    if disks.is_empty() {
        return Ok(());
    }
    let stores = StoreDisks::new(machine, Settings::default());
    for disk in disks {
        stores.create(disk).map_err(Failure::failed)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colons_of_urls_separate_nothing() {
        let split = |list: &str| {
            let all = split_places(OsStr::new(list));
            all.iter().map(|path| path.display().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(split("/a:/b::c"), ["/a", "/b", "c"]);
        assert_eq!(split("s3://b/p:/a:file:///d:x"), ["s3://b/p", "/a", "file:///d", "x"]);
        assert_eq!(split("/a://b"), ["/a", "//b"]);
    }
}
