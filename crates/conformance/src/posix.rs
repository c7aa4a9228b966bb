//! A mounted tree, seen through the kernel: what a user of `weir mount` sees.

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::manifest::FileKind;
use crate::tree::{Attributes, Carries, Listing, Times, Tree, TreeError};

/// A tree below a directory of this machine.
pub struct PosixTree {
    root: PathBuf,
    /// Facts that the mounted file system shows.
    pub carries: Carries,
}

impl PosixTree {
    /// The tree below `root`, taken to be one of Weir's mounts: all but object numbers and birth times, for which FUSE
    /// has no field.
    pub fn new(root: &Path) -> PosixTree {
        let carries =
            Carries { ino: false, crtime: false, xattrs: true, holes: true, blksize: false, times: Times::Signed64 };
        PosixTree { root: root.to_path_buf(), carries }
    }
}

fn failure(error: &std::io::Error) -> TreeError {
    if error.raw_os_error() == Some(Errno::IO.raw_os_error()) {
        TreeError::Input(error.to_string())
    } else {
        TreeError::Other(error.to_string())
    }
}

impl Tree for PosixTree {
    type Node = PathBuf;

    fn carries(&self) -> Carries {
        self.carries
    }

    fn root(&mut self) -> Result<PathBuf, TreeError> {
        Ok(self.root.clone())
    }

    fn attributes(&mut self, path: &PathBuf) -> Result<Attributes, TreeError> {
        let found = std::fs::symlink_metadata(path).map_err(|error| failure(&error))?;
        let of = found.file_type();
        let kind = if of.is_dir() {
            FileKind::Dir
        } else if of.is_symlink() {
            FileKind::Symlink
        } else if of.is_char_device() {
            FileKind::Chr
        } else if of.is_block_device() {
            FileKind::Blk
        } else if of.is_fifo() {
            FileKind::Fifo
        } else if of.is_socket() {
            FileKind::Socket
        } else {
            FileKind::File
        };
        let time = |seconds: i64, nanos: i64| seconds.saturating_mul(1_000_000_000).saturating_add(nanos);
        let born = found.created().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        let device = found.rdev();
        Ok(Attributes {
            kind,
            mode: found.mode() & 0o7777,
            uid: found.uid().into(),
            gid: found.gid().into(),
            nlink: found.nlink(),
            ino: found.ino(),
            size: found.size(),
            mtime_ns: time(found.mtime(), found.mtime_nsec()),
            ctime_ns: time(found.ctime(), found.ctime_nsec()),
            atime_ns: time(found.atime(), found.atime_nsec()),
            crtime_ns: born.and_then(|since| i64::try_from(since.as_nanos()).ok()),
            blocks512: found.blocks(),
            blksize: Some(found.blksize()),
            rdev: (rustix::fs::major(device).into(), rustix::fs::minor(device).into()),
        })
    }

    fn read_dir(&mut self, path: &PathBuf) -> Result<Listing<PathBuf>, TreeError> {
        let entries = std::fs::read_dir(path).map_err(|error| failure(&error))?;
        entries
            .map(|entry| {
                let name = entry.map_err(|error| failure(&error))?.file_name().into_vec();
                let child = path.join(OsStr::from_bytes(&name));
                Ok((name, child))
            })
            .collect()
    }

    fn read(&mut self, path: &PathBuf, offset: u64, length: usize) -> Result<Vec<u8>, TreeError> {
        let file = File::open(path).map_err(|error| failure(&error))?;
        let mut bytes = vec![0; length];
        let mut filled = 0;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match file.read_at(rest, offset + filled as u64).map_err(|error| failure(&error))? {
                0 => break,
                more => filled += more,
            }
        }
        bytes.truncate(filled);
        Ok(bytes)
    }

    fn read_link(&mut self, path: &PathBuf) -> Result<Vec<u8>, TreeError> {
        let target = std::fs::read_link(path).map_err(|error| failure(&error))?;
        Ok(target.into_os_string().into_vec())
    }

    fn xattrs(&mut self, path: &PathBuf) -> Result<Vec<(String, Vec<u8>)>, TreeError> {
        let names = xattr::list(path).map_err(|error| failure(&error))?;
        let mut all = Vec::new();
        for name in names {
            if let Some(value) = xattr::get(path, &name).map_err(|error| failure(&error))? {
                all.push((name.to_string_lossy().into_owned(), value));
            }
        }
        Ok(all)
    }

    fn data_runs(&mut self, path: &PathBuf, size: u64) -> Result<Vec<(u64, u64)>, TreeError> {
        let file = File::open(path).map_err(|error| failure(&error))?;
        let mut runs = Vec::new();
        let mut at = 0;
        while at < size {
            let start = match seek(&file, SeekFrom::Data(at)) {
                Ok(start) => start,
                Err(Errno::NXIO) => break,
                Err(error) => return Err(failure(&error.into())),
            };
            let end = seek(&file, SeekFrom::Hole(start)).map_err(|error| failure(&error.into()))?;
            if end <= start {
                return Err(TreeError::Other(format!("a hole at {end} before the data at {start}")));
            }
            runs.push((start, end - start));
            at = end;
        }
        Ok(runs)
    }
}
