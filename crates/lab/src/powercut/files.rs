//! A file of a mounted file system as a client.

use super::client::Client;
use rustix::fs::OFlags;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

/// A file, open twice: as usual, and with `O_DSYNC`.
pub struct MountedFile {
    plain: File,
    stable: File,
}

impl MountedFile {
    /// Opens a file, which is made if it is not there.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false);
        let plain = options.open(path)?;
        let stable = options.custom_flags(OFlags::DSYNC.bits().cast_signed()).open(path)?;
        Ok(Self { plain, stable })
    }
}

impl Client for MountedFile {
    fn write(&mut self, offset: u64, data: &[u8], is_stable: bool) -> io::Result<bool> {
        let file = if is_stable { &self.stable } else { &self.plain };
        file.write_all_at(data, offset)?;
        Ok(is_stable)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.plain.sync_all()
    }

    fn read(&mut self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let mut done = 0;
        while done < buffer.len() {
            match self.plain.read_at(&mut buffer[done..], offset + done as u64)? {
                0 => break,
                count => done += count,
            }
        }
        buffer[done..].fill(0);
        Ok(())
    }
}
