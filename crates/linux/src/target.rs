//! An open file or block device: its descriptors, its geometry, and the choice of the descriptor for a transfer.

#![allow(unsafe_code, reason = "ioctl, statx and fallocate")]

use super::descriptors::none_left;
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use weir_machine::disk::{Access, Geometry};

/// `<linux/fs.h>`: `_IOR(0x12, 114, size_t)` on a 64-bit machine.
const BLKGETSIZE64: libc::c_ulong = 0x8008_1272;
/// `<linux/fs.h>`: `_IO(0x12, 104)`: the logical sector size, an `int`.
const BLKSSZGET: libc::c_ulong = 0x1268;
/// `<linux/fs.h>`: `_IO(0x12, 119)`: start and length to discard, two 64-bit numbers.
const BLKDISCARD: libc::c_ulong = 0x1277;
/// `<linux/fs.h>`: `_IO(0x12, 126)`: whether it is rotational, an `unsigned short`.
const BLKROTATIONAL: libc::c_ulong = 0x127e;

/// The error number, or EIO if there is none.
pub fn errno(error: &io::Error) -> i32 {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// Whether the file can be used as a disk: a regular file or block device.
pub fn is_disk(metadata: &Metadata) -> bool {
    metadata.is_file() || metadata.file_type().is_block_device()
}

struct Direct {
    file: File,
    offset_align: u64,
    memory_align: usize,
    /// Cleared when the file system rejects a direct transfer.
    usable: AtomicBool,
}

pub struct Target {
    /// The geometry when the target was opened.
    opened: Geometry,
    size_bytes: AtomicU64,
    pub access: Access,
    /// Whether the target is a block device.
    pub device: bool,
    /// Whether a transfer may block the thread that submits it to io_uring.
    ///
    /// A file system that cannot start a transfer without waiting (FUSE, network file systems) would keep the ring of the
    /// submitting thread locked, and with it the transfers of all other disks, as long as one disk hangs.
    pub blocks_submission: bool,
    buffered: File,
    direct: Option<Direct>,
}

/// Whether a file is on a file system that starts transfers without waiting: ext4, XFS, Btrfs, F2FS, tmpfs
/// (`statfs(2)`, f_type).
fn starts_transfers_at_once(file: &File) -> bool {
    const LOCAL: [i64; 5] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010, 0x0102_1994];
    rustix::fs::fstatfs(file).is_ok_and(|about| LOCAL.contains(&about.f_type))
}

impl Target {
    pub fn open(path: &Path, access: Access, direct: bool) -> io::Result<Target> {
        let metadata = std::fs::metadata(path)?;
        if !is_disk(&metadata) {
            // A FIFO would block the open, a directory would fail later and less clearly.
            return Err(io::Error::from_raw_os_error(libc::ENOTBLK));
        }
        let device = metadata.file_type().is_block_device();
        let mut options = OpenOptions::new();
        options.read(true).write(access == Access::ReadWrite);
        // On a device, O_EXCL without O_CREAT refuses one that is mounted or held by another subsystem.
        let exclusive = if device && access == Access::ReadWrite { libc::O_EXCL } else { 0 };
        let buffered = options.custom_flags(exclusive).open(path)?;
        let geometry = if device {
            device_geometry(&buffered)?
        } else {
            Geometry { size_bytes: buffered.metadata()?.len(), sector_bytes: 512, rotational: false }
        };
        // A second exclusive open of a device would fail: reopen the open descriptor through /proc.
        let again = format!("/proc/self/fd/{}", buffered.as_raw_fd());
        let direct = match direct.then(|| options.custom_flags(libc::O_DIRECT).open(again)) {
            Some(Ok(file)) => Some(file),
            // Without descriptors the device would be slower for as long as it is open, and nothing would say why.
            Some(Err(error)) if none_left(&error) => return Err(error),
            // The file system has no direct access.
            Some(Err(_)) | None => None,
        };
        let direct = direct.and_then(|file| {
            let (offset_align, memory_align) = direct_alignment(&file, u64::from(geometry.sector_bytes))?;
            Some(Direct { file, offset_align, memory_align, usable: AtomicBool::new(true) })
        });
        let blocks_submission = !device && !starts_transfers_at_once(&buffered);
        let size_bytes = AtomicU64::new(geometry.size_bytes);
        Ok(Target { opened: geometry, size_bytes, access, device, blocks_submission, buffered, direct })
    }

    /// The geometry, as of the last look.
    pub fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes.load(Ordering::Relaxed), ..self.opened }
    }

    /// Looks whether the target has grown. One that has shrunk keeps its size: operations behind its end fail.
    pub fn look_again(&self) -> Geometry {
        let now = match self.device {
            true => device_geometry(&self.buffered).map(|geometry| geometry.size_bytes),
            false => self.buffered.metadata().map(|metadata| metadata.len()),
        };
        match now {
            Ok(size_bytes) => drop(self.size_bytes.fetch_max(size_bytes, Ordering::Relaxed)),
            Err(error) => tracing::debug!(%error, "cannot read the size of a device"),
        }
        self.geometry()
    }

    /// The file for a transfer, and whether it is opened for direct I/O.
    pub fn file<'a>(&self, offset: u64, mut memory: impl Iterator<Item = &'a [u8]>) -> (&File, bool) {
        match &self.direct {
            Some(direct)
                if direct.usable.load(Ordering::Relaxed)
                    && offset.is_multiple_of(direct.offset_align)
                    && memory.all(|part| {
                        (part.len() as u64).is_multiple_of(direct.offset_align)
                            && (part.as_ptr() as usize).is_multiple_of(direct.memory_align)
                    }) =>
            {
                (&direct.file, true)
            }
            _ => (&self.buffered, false),
        }
    }

    /// Whether a write could use direct I/O if its memory were aligned.
    pub fn wants_aligned<'a>(&self, offset: u64, len: u64, memory: impl Iterator<Item = &'a [u8]>) -> bool {
        let fits = |direct: &Direct| (offset | len).is_multiple_of(direct.offset_align);
        self.direct.as_ref().is_some_and(fits) && !self.file(offset, memory).1
    }

    /// The descriptor for flushes and discards.
    pub fn plain_fd(&self) -> RawFd {
        self.buffered.as_raw_fd()
    }

    pub fn plain(&self) -> &File {
        &self.buffered
    }

    /// Disables direct I/O permanently.
    pub fn disable_direct(&self) {
        if let Some(direct) = &self.direct {
            direct.usable.store(false, Ordering::Relaxed);
        }
    }

    /// Deallocates a range: a hole in a file, a discard on a device. May take long on a device.
    pub fn discard(&self, offset: u64, len: u64) -> io::Result<()> {
        let result = if self.device {
            let range = [offset, len];
            // SAFETY: the request reads two 64-bit numbers, which live until it returns.
            unsafe { libc::ioctl(self.plain_fd(), BLKDISCARD, range.as_ptr()) }
        } else {
            let (Ok(offset), Ok(len)) = (libc::off_t::try_from(offset), libc::off_t::try_from(len)) else {
                return Err(io::Error::from_raw_os_error(libc::EFBIG));
            };
            // SAFETY: a system call on an open descriptor, without memory.
            unsafe { libc::fallocate(self.plain_fd(), PUNCH_HOLE, offset, len) }
        };
        if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }
}

/// Mode of `fallocate` for punching a hole.
pub const PUNCH_HOLE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

fn device_geometry(file: &File) -> io::Result<Geometry> {
    let mut size_bytes = 0u64;
    let mut sector_bytes = 0i32;
    let mut rotational = 0u16;
    let fd = file.as_raw_fd();
    // SAFETY: each request writes a value of its pointer's type.
    let failed = unsafe {
        libc::ioctl(fd, BLKGETSIZE64, &mut size_bytes) != 0 || libc::ioctl(fd, BLKSSZGET, &mut sector_bytes) != 0
    };
    if failed {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: as above. On failure the device is taken as non-rotational.
    let known = unsafe { libc::ioctl(fd, BLKROTATIONAL, &mut rotational) } == 0;
    let sector_bytes = u32::try_from(sector_bytes).ok().filter(|b| b.is_power_of_two()).unwrap_or(512);
    Ok(Geometry { size_bytes, sector_bytes, rotational: known && rotational != 0 })
}

/// Alignment that direct I/O requires: of offsets and lengths, and of memory. `None` if the file system does not
/// support direct I/O. Kernels before 6.1 do not report it: then a page, or a device's sector, which is always
/// sufficient.
fn direct_alignment(file: &File, sector_bytes: u64) -> Option<(u64, usize)> {
    let page = weir_machine::Buf::ALIGN;
    let guess = if file.metadata().ok()?.is_file() { page as u64 } else { sector_bytes };
    // SAFETY: all-zero is a value of this plain structure.
    let mut about: libc::statx = unsafe { std::mem::zeroed() };
    let mask = libc::STATX_DIOALIGN;
    // SAFETY: an empty path with AT_EMPTY_PATH means the descriptor itself; `about` is writable and of the right type.
    let result = unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, mask, &mut about) };
    if result != 0 || about.stx_mask & mask == 0 {
        return Some((guess, page));
    }
    match (u64::from(about.stx_dio_offset_align), about.stx_dio_mem_align as usize) {
        (0, _) | (_, 0) => None,
        // Buffers are page-aligned; a stricter requirement cannot be met.
        (_, memory) if memory > page => None,
        (offset, memory) => Some((offset, memory)),
    }
}
