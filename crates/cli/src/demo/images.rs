//! Files of the demo's pool, and detection of files that the demo did not create.

use super::POOL;
use crate::failure::Failure;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use weir_engine::create::{NewLeaf, devices};
use weir_machine::{Access, Machine};
use weir_pool::assemble::state;
use weir_pool::{FoundPool, assemble, scan};

/// Disks of the RAID-Z2.
const DISKS: usize = 6;
/// Sizes of the files, which are sparse.
const DISK_BYTES: u64 = 1 << 30;
const LOG_BYTES: u64 = 256 << 20;

/// The files of the demo's pool.
#[derive(Clone)]
pub struct Images {
    /// Directory of the files.
    pub folder: PathBuf,
    /// The disks of the RAID-Z2.
    pub disks: Vec<PathBuf>,
    /// The log device.
    pub log: PathBuf,
}

impl Images {
    /// Paths of the files in a directory, whether they exist or not.
    pub fn of(folder: &Path) -> Self {
        let disks = (0..DISKS).map(|i| folder.join(format!("disk{i}"))).collect();
        Images { folder: folder.to_path_buf(), disks, log: folder.join("log") }
    }

    /// Paths of all files.
    pub fn all(&self) -> Vec<PathBuf> {
        self.disks.iter().chain([&self.log]).cloned().collect()
    }

    /// Paths that are regular files.
    pub fn present(&self) -> Vec<PathBuf> {
        let is_file = |path: &PathBuf| std::fs::symlink_metadata(path).is_ok_and(|metadata| metadata.is_file());
        self.all().into_iter().filter(is_file).collect()
    }

    /// Whether the files contain the demo's pool.
    ///
    /// # Errors
    /// Errors of opening and reading the files.
    pub fn hold_the_pool(&self, machine: &Machine) -> Result<bool, Failure> {
        let assembly = assemble(machine.block_on(scan(machine, &self.present()))?);
        let is_it = |pool: &FoundPool| pool.config.name == POOL && pool.config.state != state::DESTROYED;
        Ok(assembly.pools.values().any(is_it))
    }

    /// Checks that creating the files overwrites no data of others.
    ///
    /// # Errors
    /// Names the file that would be overwritten, and describes its contents.
    pub fn check(&self, machine: &Machine) -> Result<(), Failure> {
        for path in self.all() {
            if let Some(what) = foreign(machine, &path)? {
                let last = DISKS - 1;
                return Err(Failure::failed(format!(
                    "weir demo: {} {what}, and was not made by weir demo: nothing was changed\n\
                     name another folder with --dir, or replace disk0 to disk{last} and log there with -f",
                    path.display()
                )));
            }
        }
        Ok(())
    }

    /// Creates the files. An existing file is removed first, so that its other hard links keep their contents.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn make(&self) -> Result<(), Failure> {
        let sizes = std::iter::repeat_n(DISK_BYTES, DISKS).chain([LOG_BYTES]);
        for (path, bytes) in self.all().iter().zip(sizes) {
            let failed = |error: std::io::Error| Failure::failed(format!("weir demo: {}: {error}", path.display()));
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(failed(error)),
                _ => {}
            }
            let made = std::fs::File::options().write(true).create_new(true).open(path);
            made.and_then(|file| file.set_len(bytes)).map_err(failed)?;
        }
        Ok(())
    }
}

/// Describes the contents of a file that the demo did not create; `None` if overwriting it loses nothing.
fn foreign(machine: &Machine, path: &Path) -> Result<Option<String>, Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::failed(format!("weir demo: {}: {error}", path.display()));
    let metadata = match std::fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(&error)),
    };
    if !metadata.is_file() {
        return Ok(Some("is not a regular file".into()));
    }
    // A file without data: an earlier run ended before it created its pool. A short file may have its bytes in its
    // inode.
    let is_all_hole = metadata.blocks() == 0 && [DISK_BYTES, LOG_BYTES].contains(&metadata.len());
    if metadata.len() == 0 || is_all_hole {
        return Ok(None);
    }
    let found = machine.block_on(scan::probe(machine, path))?;
    let is_own = |config: &weir_format::NvList| config.get_str("name") == Some(POOL);
    if found.iter().filter_map(|device| device.config()).any(is_own) {
        return Ok(None);
    }
    let disk = machine.disks.open(path, Access::ReadOnly).map_err(|error| failed(&error))?;
    let leaf = NewLeaf { path: path.to_path_buf(), is_file: true };
    let owner = machine.block_on(devices::owner(&disk, &leaf))?;
    Ok(Some(owner.unwrap_or_else(|| "holds data of an unknown kind".into())))
}
