//! Finds devices that belong to pools.
//!
//! Opens every regular file and block device of the given directories, and every given device, read-only and reads its
//! labels, also those of each partition if it has a partition table. A device without labels is left out silently,
//! unless it was given itself.

use crate::error::PoolError;
use crate::gpt::{self, Partition, Window};
use crate::label::{self, Labels};
use futures_util::StreamExt;
use futures_util::future::{Either, select};
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use weir_format::NvList;
use weir_machine::{Access, Disk, DiskError, Machine};

/// Maximum number of devices that are read at the same time.
const PARALLEL: usize = 16;

/// A device with at least one valid label or uberblock.
pub struct Device {
    /// The file or block device.
    pub path: PathBuf,
    /// The partition, if the labels are those of a partition.
    pub partition: Option<Partition>,
    /// The device (or the partition), read-only.
    pub disk: Arc<dyn Disk>,
    /// Labels of the device.
    pub labels: Labels,
}

impl Device {
    /// Returns the newest configuration in the labels.
    pub fn config(&self) -> Option<&NvList> {
        self.labels.best()
    }

    /// Returns the GUID of the device's leaf vdev.
    pub fn guid(&self) -> Option<u64> {
        self.config()?.get_u64("guid")
    }

    /// Opens the device again with another kind of access.
    ///
    /// # Errors
    /// [`PoolError::Disk`].
    pub fn reopen(&mut self, machine: &Machine, access: Access) -> Result<(), PoolError> {
        let failed = |source| PoolError::Disk { path: self.path.clone(), source };
        let disk = machine.disks.open(&self.path, access).map_err(failed)?;
        self.disk = match self.partition {
            Some(partition) => Arc::new(Window::new(disk, partition)),
            None => disk,
        };
        Ok(())
    }

    /// Path, with the partition's number if there is one.
    pub fn name(&self) -> String {
        match self.partition {
            Some(p) => format!("{}:{}", self.path.display(), p.number),
            None => self.path.display().to_string(),
        }
    }
}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.name())
    }
}

/// Result of a scan.
#[derive(Debug, Default)]
pub struct Scan {
    /// Searched directories and devices.
    pub searched: Vec<PathBuf>,
    /// Devices with labels, in the order of their paths.
    pub devices: Vec<Device>,
    /// Number of files and devices that were read.
    pub looked_at: usize,
    /// Devices that could not be opened or read.
    pub faults: Vec<(PathBuf, String)>,
}

/// Scans `paths`: directories (not recursively) and devices.
///
/// # Errors
/// [`PoolError::Disk`] for a path that does not exist, for the only device if it cannot be opened or read, for a device that was
/// named itself if no other one has labels, and for any device if the process has no file descriptor left, because a pool without
/// that device would look damaged. Other devices that cannot be opened or read are in [`Scan::faults`].
pub async fn scan(machine: &Machine, paths: &[PathBuf]) -> Result<Scan, PoolError> {
    scan_with(machine, paths, &ScanOptions::default()).await
}

/// Devices that a scan leaves alone, and how long it waits for one.
#[derive(Clone, Copy, Default)]
pub struct ScanOptions<'a> {
    /// Whether named paths that do not exist are left out, instead of an error.
    pub skips_absent: bool,
    /// Whether a device is not read, and looks as if it were not there; `None` if all are read.
    pub leaves_out: Option<&'a (dyn Fn(&Path) -> bool + Sync)>,
    /// Time in which a device must answer; else it is in [`Scan::faults`]. `None` for as long as it takes: a disk at rest may need 20
    /// seconds.
    pub patience: Option<Duration>,
}

/// As [`scan`], with options.
///
/// # Errors
/// As [`scan`].
pub async fn scan_with(machine: &Machine, paths: &[PathBuf], options: &ScanOptions<'_>) -> Result<Scan, PoolError> {
    let mut out = Scan { searched: paths.to_vec(), ..Scan::default() };
    let mut candidates = match options.patience {
        None => candidates_if(machine, paths, options.skips_absent)?,
        Some(patience) => {
            let on = machine.clone();
            let paths = paths.to_vec();
            let skips_absent = options.skips_absent;
            let looking = machine.tasks.run_blocking(move || candidates_if(&on, &paths, skips_absent));
            match select(looking, pin!(machine.clock.sleep(patience))).await {
                Either::Left((Ok(found), _)) => found?,
                // One path does not answer; which ones do is not known then.
                _ => Vec::new(),
            }
        }
    };
    candidates.retain(|(path, _)| !options.leaves_out.is_some_and(|leaves_out| leaves_out(path)));
    out.looked_at = candidates.len();
    let mut probes = futures_util::stream::iter(candidates)
        .map(|(path, must)| async move {
            let result = probe_within(machine, &path, options.patience).await;
            (path, must, result)
        })
        .buffered(PARALLEL);
    let mut first_fault = None;
    while let Some((path, must, result)) = probes.next().await {
        match result {
            Ok(None) => out.faults.push((path, "it does not answer".to_owned())),
            Ok(Some(devices)) => out.devices.extend(devices),
            // Whether a store answers now says nothing about the other devices.
            Err(PoolError::Disk { path, source: source @ DiskError::Unopened { .. } }) => {
                out.faults.push((path, source.to_string()));
            }
            // Of several devices, one that cannot be opened or read hides no other.
            Err(PoolError::Disk { path, source }) if out.looked_at > 1 && source.is_of_device() => {
                out.faults.push((path.clone(), source.to_string()));
                first_fault = first_fault.or(must.then_some(PoolError::Disk { path, source }));
            }
            Err(error) if must => return Err(error),
            Err(PoolError::Disk { path, source }) if source.lacks_descriptors() => {
                return Err(PoolError::Disk { path, source });
            }
            Err(PoolError::Disk { source, .. }) => out.faults.push((path, source.to_string())),
            Err(error) => out.faults.push((path, error.to_string())),
        }
    }
    if let Some(fault) = first_fault.filter(|_| out.devices.is_empty()) {
        return Err(fault);
    }
    out.devices.sort_by_key(|d| (d.path.clone(), d.partition.map(|p| p.number)));
    Ok(out)
}

/// The files and devices that a scan of `paths` reads, each once, and whether it was named itself.
///
/// # Errors
/// [`PoolError::Disk`] for a path that does not exist.
pub fn candidates(machine: &Machine, paths: &[PathBuf]) -> Result<Vec<(PathBuf, bool)>, PoolError> {
    candidates_if(machine, paths, false)
}

fn candidates_if(machine: &Machine, paths: &[PathBuf], skips_absent: bool) -> Result<Vec<(PathBuf, bool)>, PoolError> {
    let mut named = Vec::new();
    let mut inside = Vec::new();
    for path in paths {
        match machine.disks.scan(path) {
            Ok(found) => inside.extend(found),
            Err(DiskError::Open { errno, .. }) if errno == ENOENT && skips_absent => {}
            Err(source @ DiskError::Open { errno: ENOENT, .. }) => {
                return Err(PoolError::Disk { path: path.clone(), source });
            }
            // It is no directory, or cannot be opened, which is found when it is read.
            Err(_) => named.push(path.clone()),
        }
    }
    let all = named.into_iter().map(|path| (path, true)).chain(inside.into_iter().map(|path| (path, false)));
    let mut seen = std::collections::BTreeSet::new();
    Ok(all.filter(|(path, _)| seen.insert(path.clone())).collect())
}

/// As [`probe`]; `None` if there is no answer in this time.
async fn probe_within(
    machine: &Machine,
    path: &Path,
    patience: Option<Duration>,
) -> Result<Option<Vec<Device>>, PoolError> {
    let Some(patience) = patience else { return probe(machine, path).await.map(Some) };
    // A task of its own: a thread that waits for a future waits for the operations that it began, too.
    let on = machine.clone();
    let at = path.to_owned();
    let probing = machine.tasks.spawn(async move {
        let opener = on.clone();
        let to_open = at.clone();
        // To open a path may block.
        match on.tasks.run_blocking(move || opener.disks.open(&to_open, Access::ReadOnly)).await {
            Ok(Ok(disk)) => devices_on(disk, &at).await.map(Some),
            Ok(Err(source)) => Err(PoolError::Disk { path: at, source }),
            Err(_) => Ok(None),
        }
    });
    match select(probing, pin!(machine.clock.sleep(patience))).await {
        Either::Left((Ok(probed), _)) => probed,
        _ => Ok(None),
    }
}

/// "No such file or directory".
const ENOENT: i32 = 2;

/// Returns the devices at a path: the whole device, or its partitions.
pub async fn probe(machine: &Machine, path: &Path) -> Result<Vec<Device>, PoolError> {
    let at = |source| PoolError::Disk { path: path.to_owned(), source };
    devices_on(machine.disks.open(path, Access::ReadOnly).map_err(at)?, path).await
}

/// Returns the devices on a disk that was opened.
async fn devices_on(disk: Arc<dyn Disk>, path: &Path) -> Result<Vec<Device>, PoolError> {
    let mut out = Vec::new();
    if disk.geometry().size_bytes < weir_format::label::LABEL_BYTES * weir_format::label::LABELS as u64 {
        return Ok(out);
    }
    let labels = label::read(&disk).await;
    let found = |labels: &Labels| labels.best().is_some() || !labels.ring.is_empty();
    // Labels 2 and 3 of a disk's last partition may be where the disk's own would be, so a partition table is decisive.
    let partitions = gpt::partitions(&disk, path).await?;
    for partition in partitions {
        let window: Arc<dyn Disk> = Arc::new(Window::new(disk.clone(), partition));
        let labels = label::read(&window).await;
        if found(&labels) {
            out.push(Device { path: path.to_owned(), partition: Some(partition), disk: window, labels });
        }
    }
    if out.is_empty() && found(&labels) {
        out.push(Device { path: path.to_owned(), partition: None, disk, labels });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_linux::Production;

    /// Disks of which one cannot be opened, with this error number.
    struct Failing(i32);

    impl weir_machine::Disks for Failing {
        fn scan(&self, dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
            Ok(vec![dir.join("d0")])
        }

        fn open(&self, path: &Path, _: Access) -> Result<Arc<dyn Disk>, DiskError> {
            Err(DiskError::Open { path: path.into(), errno: self.0 })
        }
    }

    #[test]
    fn a_device_that_lacks_a_descriptor_does_not_count_as_missing() {
        let scanned = |errno| {
            let machine = Machine { disks: Arc::new(Failing(errno)), ..Production::default().build().unwrap() };
            machine.block_on(scan(&machine, &["/pool".into()]))
        };
        // EIO is an error of the device itself.
        assert_eq!(scanned(5).unwrap().faults.len(), 1);
        for errno in [23, 24] {
            let error = scanned(errno).unwrap_err().to_string();
            assert!(error.contains("/pool/d0") && error.contains("oo many open files"), "{error}");
        }
    }
}
