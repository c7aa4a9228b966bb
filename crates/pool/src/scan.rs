//! Finds devices that belong to pools.
//!
//! Opens every regular file and block device of the given directories, and every given device, read-only and reads its
//! labels, also those of each partition if it has a partition table. A device without labels is left out silently,
//! unless it was given itself.

use crate::error::PoolError;
use crate::gpt::{self, Partition, Window};
use crate::label::{self, Labels};
use futures_util::StreamExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
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
/// [`PoolError::Disk`] for a path that does not exist or cannot be opened, and for any device if the process has no
/// file descriptor left, because a pool without that device would look damaged. Devices inside a directory that cannot
/// be opened or read for other reasons are in [`Scan::faults`].
pub async fn scan(machine: &Machine, paths: &[PathBuf]) -> Result<Scan, PoolError> {
    let mut named = Vec::new();
    let mut inside = Vec::new();
    for path in paths {
        match machine.disks.scan(path) {
            Ok(found) => inside.extend(found),
            Err(DiskError::Open { errno, .. }) if errno == ENOTDIR => named.push(path.clone()),
            Err(source) => return Err(PoolError::Disk { path: path.clone(), source }),
        }
    }
    let mut out = Scan { searched: paths.to_vec(), ..Scan::default() };
    let candidates = named.iter().map(|p| (p, true)).chain(inside.iter().map(|p| (p, false)));
    let mut seen = std::collections::BTreeSet::new();
    let candidates: Vec<_> = candidates.filter(|(p, _)| seen.insert((*p).clone())).collect();
    out.looked_at = candidates.len();
    let mut probes = futures_util::stream::iter(candidates)
        .map(|(path, must)| async move { (path, must, probe(machine, path).await) })
        .buffered(PARALLEL);
    while let Some((path, must, result)) = probes.next().await {
        match result {
            Ok(devices) => out.devices.extend(devices),
            // Whether a store answers now says nothing about the other devices.
            Err(PoolError::Disk { path, source: source @ DiskError::Unopened { .. } }) => {
                out.faults.push((path, source.to_string()));
            }
            // Of several devices, one that cannot be read hides no other.
            Err(PoolError::Disk { path, source }) if out.looked_at > 1 && source.is_of_io() => {
                out.faults.push((path, source.to_string()));
            }
            Err(error) if must => return Err(error),
            Err(PoolError::Disk { path, source }) if source.lacks_descriptors() => {
                return Err(PoolError::Disk { path, source });
            }
            Err(PoolError::Disk { source, .. }) => out.faults.push((path.clone(), source.to_string())),
            Err(error) => out.faults.push((path.clone(), error.to_string())),
        }
    }
    out.devices.sort_by_key(|d| (d.path.clone(), d.partition.map(|p| p.number)));
    Ok(out)
}

/// "Not a directory".
const ENOTDIR: i32 = 20;

/// Returns the devices at a path: the whole device, or its partitions.
pub async fn probe(machine: &Machine, path: &Path) -> Result<Vec<Device>, PoolError> {
    let at = |source| PoolError::Disk { path: path.to_owned(), source };
    let disk = machine.disks.open(path, Access::ReadOnly).map_err(at)?;
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
