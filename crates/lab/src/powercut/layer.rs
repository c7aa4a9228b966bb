//! The layer below a server: one file in a FUSE mount of this process, which loses at a cut what was not flushed.
//!
//! ```text
//!   server (any program) ─▶ kernel ─▶ /dev/fuse ─▶ layer ─▶ VolatileDisk ─▶ file in the target directory
//! ```
//!
//! The server needs no part of its own for the test: its writes leave it through the kernel and end here. The page cache
//! is bypassed (`FOPEN_DIRECT_IO`), so what the kernel would hold is in the cache of the layer. `fsync`, `fdatasync`, and writes
//! to a file that is open with `O_SYNC` or `O_DSYNC` (the kernel passes the flags with each write) are flushes.
//!
//! **A cut** has three parts, as the end of a machine has: [`Layer::freeze`] answers nothing any more, the caller kills the server, and
//! [`Layer::cut`] empties the cache. The server never sees an error that a machine without power would not see. A process that is
//! killed ends only when its requests are answered, so `cut` answers those that were held, with EIO; no instruction of the
//! server runs after that. What was held is not carried out.

use super::disk::{Counters, VolatileDisk};
use crate::error::LabError;
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, WriteFlags,
};
use rustix::fs::OFlags;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};
use weir_machine::lock::Mutex;

/// Name of the file.
pub const DISK_NAME: &str = "disk";

/// Inode of the file; that of the directory is 1.
const DISK: INodeNo = INodeNo(2);

/// Time for which the kernel may keep names and attributes, which never change.
const TTL: Duration = Duration::from_secs(1);

/// Whether requests are carried out.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Power {
    On,
    /// Requests are held.
    Frozen,
    /// Requests fail.
    Off,
}

/// Answers with an error, of requests that are held.
type HeldAnswers = Vec<Box<dyn FnOnce() + Send>>;

struct State {
    disk: VolatileDisk,
    power: Power,
    held: HeldAnswers,
}

struct LayerOps {
    state: Arc<Mutex<State>>,
}

impl LayerOps {
    /// Carries out a request and answers it, or holds it.
    fn answer<R: Send + 'static, T>(
        &self,
        reply: R,
        refuse: fn(R, Errno),
        work: impl FnOnce(&mut VolatileDisk) -> io::Result<T>,
        succeed: impl FnOnce(R, T),
    ) {
        let mut state = self.state.lock();
        match state.power {
            Power::On => {
                let done = work(&mut state.disk);
                // Answered under the lock: a request that was carried out is not held by a freeze that follows.
                match done {
                    Ok(value) => succeed(reply, value),
                    Err(error) => refuse(
                        reply,
                        Errno::from_i32(error.raw_os_error().unwrap_or(rustix::io::Errno::IO.raw_os_error())),
                    ),
                }
            }
            Power::Frozen => state.held.push(Box::new(move || refuse(reply, Errno::EIO))),
            Power::Off => refuse(reply, Errno::EIO),
        }
    }
}

fn attributes(ino: INodeNo, kind: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino,
        size,
        blocks: size / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o700,
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

impl Filesystem for LayerOps {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        if name == DISK_NAME {
            let size = self.state.lock().disk.size_bytes();
            reply.entry(&TTL, &attributes(DISK, FileType::RegularFile, size), Generation(0));
        } else {
            reply.error(Errno::ENOENT);
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let size = self.state.lock().disk.size_bytes();
        let found = match ino {
            DISK => attributes(ino, FileType::RegularFile, size),
            _ => attributes(ino, FileType::Directory, 0),
        };
        reply.attr(&TTL, &found);
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let flags = FopenFlags::FOPEN_DIRECT_IO | FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), flags);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let read = |disk: &mut VolatileDisk| {
            let mut bytes = vec![0; size as usize];
            let count = disk.read(offset, &mut bytes)?;
            bytes.truncate(count);
            Ok(bytes)
        };
        self.answer(reply, ReplyData::error, read, |reply, bytes| reply.data(&bytes));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let is_stable = OFlags::from_bits_retain(flags.0 as u32).intersects(OFlags::DSYNC | OFlags::SYNC);
        let write = |disk: &mut VolatileDisk| {
            disk.write(offset, data)?;
            if is_stable { disk.flush() } else { Ok(()) }
        };
        let count = data.len() as u32;
        self.answer(reply, ReplyWrite::error, write, move |reply, ()| reply.written(count));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.answer(reply, ReplyEmpty::error, VolatileDisk::flush, |reply, ()| reply.ok());
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        if offset == 0 {
            // The buffer of a listing has room for one short name.
            let _is_full = reply.add(DISK, 1, FileType::RegularFile, DISK_NAME);
        }
        reply.ok();
    }
}

/// A mounted disk whose power can be cut.
pub struct Layer {
    state: Arc<Mutex<State>>,
    mountpoint: PathBuf,
    session: Option<BackgroundSession>,
}

impl Layer {
    /// Mounts a disk of `size_bytes` at `mountpoint`, an existing directory, whose medium is the new file `medium`.
    ///
    /// # Errors
    /// If FUSE cannot be used here, or the file cannot be made.
    pub fn mount(medium: &Path, size_bytes: u64, mountpoint: &Path) -> Result<Self, LabError> {
        let made = File::options().read(true).write(true).create(true).truncate(true).open(medium);
        let file = made.map_err(LabError::io(medium))?;
        let disk = VolatileDisk::new(file, size_bytes);
        let state = Arc::new(Mutex::new(State { disk, power: Power::On, held: Vec::new() }));
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RW, MountOption::FSName("weir-bench".into())];
        let fuse = |error: io::Error| {
            LabError::Target(format!(
                "the layer below the server cannot be mounted: {error}; it needs /dev/fuse, and for a user other than root \
                 fusermount3 (package fuse3)"
            ))
        };
        let ops = LayerOps { state: Arc::clone(&state) };
        let session = Session::new(ops, mountpoint, &config).and_then(Session::spawn).map_err(fuse)?;
        Ok(Self { state, mountpoint: mountpoint.to_path_buf(), session: Some(session) })
    }

    /// Directory with the file [`DISK_NAME`].
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.mountpoint
    }

    /// Path of the file that servers use.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.mountpoint.join(DISK_NAME)
    }

    /// Counters of the disk, and the bytes in its cache.
    #[must_use]
    pub fn counters(&self) -> (Counters, u64) {
        let state = self.state.lock();
        (state.disk.counters, state.disk.cached_bytes())
    }

    /// From now on nothing is carried out or answered.
    pub fn freeze(&self) {
        self.state.lock().power = Power::Frozen;
    }

    /// Empties the cache and fails all requests. Returns the bytes that were lost. For each cached sector, `survives` decides
    /// whether it reached the medium.
    ///
    /// # Errors
    /// Errors of the medium.
    pub fn cut(&self, survives: impl FnMut() -> bool) -> Result<u64, LabError> {
        let mut state = self.state.lock();
        state.power = Power::Off;
        let held = std::mem::take(&mut state.held);
        let lost = state.disk.cut(survives);
        drop(state);
        held.into_iter().for_each(|refuse| refuse());
        lost.map_err(LabError::io(&self.mountpoint))
    }

    /// Carries out requests again.
    pub fn power_on(&self) {
        self.state.lock().power = Power::On;
    }
}

impl Drop for Layer {
    fn drop(&mut self) {
        // A request without an answer would keep its process, and the mount, indefinitely.
        let held = {
            let mut state = self.state.lock();
            state.power = Power::Off;
            std::mem::take(&mut state.held)
        };
        held.into_iter().for_each(|refuse| refuse());
        if let Some(session) = self.session.take() {
            let _ended = session.umount_and_join();
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "real threads on a real mount")]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};

    #[test]
    fn a_program_keeps_what_it_flushed_and_sees_no_error_before_the_cut() {
        if File::options().read(true).write(true).open("/dev/fuse").is_err() {
            eprintln!("skipped: no /dev/fuse");
            return;
        }
        let folder = tempfile::tempdir().unwrap();
        let mountpoint = folder.path().join("mount");
        std::fs::create_dir(&mountpoint).unwrap();
        let layer = Layer::mount(&folder.path().join("medium"), 1 << 20, &mountpoint).unwrap();
        let open = |flags: OFlags| {
            let flags = i32::try_from(flags.bits()).unwrap();
            File::options().read(true).write(true).custom_flags(flags).open(layer.path()).unwrap()
        };
        let plain = open(OFlags::empty());
        plain.write_all_at(&[1; 4096], 0).unwrap();
        plain.sync_data().unwrap();
        open(OFlags::DSYNC).write_all_at(&[2; 4096], 4096).unwrap();
        plain.write_all_at(&[3; 4096], 8192).unwrap();
        let mut read = [0; 12_288];
        plain.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((read[0], read[4096], read[8192]), (1, 2, 3));
        assert_eq!(layer.counters().1, 4096);

        layer.freeze();
        let held = std::thread::spawn(move || (plain.sync_data(), plain));
        // The flush is held: nothing of it may be carried out, however long the freeze lasts.
        std::thread::sleep(Duration::from_millis(200));
        assert!(!held.is_finished());
        assert_eq!(layer.cut(|| false).unwrap(), 4096);
        let (flushed, plain) = held.join().unwrap();
        assert_eq!(flushed.unwrap_err().raw_os_error(), Some(5));
        assert_eq!(plain.read_exact_at(&mut read, 0).unwrap_err().raw_os_error(), Some(5));
        layer.power_on();
        plain.read_exact_at(&mut read, 0).unwrap();
        assert_eq!((read[0], read[4096], read[8192]), (1, 2, 0));
        assert!((&plain).write_all(&[0; 1]).is_ok() && File::open(mountpoint.join("other")).is_err());
    }
}
