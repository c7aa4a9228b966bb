//! From our values to the kernel's: attributes, times, device numbers, errors.

use fuser::{Errno, FileAttr, FileType, INodeNo};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_files::{Attributes, FileError, FileKind};

/// What the kernel calls a kind. It has no doors or event ports: they show as plain files.
pub(crate) fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::Regular | FileKind::Other => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::BlockDevice => FileType::BlockDevice,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
    }
}

/// The attributes under an inode number.
pub(crate) fn attributes(number: u64, from: &Attributes) -> FileAttr {
    FileAttr {
        ino: INodeNo(number),
        size: from.size_bytes,
        blocks: from.blocks512,
        atime: time(from.atime_ns),
        mtime: time(from.mtime_ns),
        ctime: time(from.ctime_ns),
        crtime: time(from.crtime_ns),
        kind: kind(from.kind),
        perm: (from.mode & 0o7777) as u16,
        nlink: u32::try_from(from.links).unwrap_or(u32::MAX),
        uid: from.uid,
        gid: from.gid,
        rdev: from.device.map(|(major, minor)| device(major, minor)).unwrap_or(0),
        blksize: from.block_bytes,
        flags: 0,
    }
}

/// Nanoseconds since 1970 as the system's time; what it can't hold becomes 1970.
fn time(ns: i128) -> SystemTime {
    let magnitude = ns.unsigned_abs();
    let seconds = u64::try_from(magnitude / 1_000_000_000).unwrap_or(u64::MAX);
    let distance = Duration::new(seconds, (magnitude % 1_000_000_000) as u32);
    let time = if ns < 0 { UNIX_EPOCH.checked_sub(distance) } else { UNIX_EPOCH.checked_add(distance) };
    time.unwrap_or(UNIX_EPOCH)
}

/// The 32-bit device number of the kernel's FUSE protocol: 12 bits of major, 20 of minor.
fn device(major: u32, minor: u32) -> u32 {
    (minor & 0xff) | ((major & 0xfff) << 8) | ((minor & 0xfff00) << 12)
}

/// Our errors as the kernel's numbers.
pub(crate) fn errno(error: &FileError) -> Errno {
    Errno::from_i32(error.errno())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_on_both_sides_of_1970_keep_their_nanoseconds() {
        assert_eq!(time(1_500_000_000_000_000_001).duration_since(UNIX_EPOCH).unwrap().subsec_nanos(), 1);
        assert_eq!(UNIX_EPOCH.duration_since(time(-1_250_000_000)).unwrap(), Duration::new(1, 250_000_000));
        assert_eq!(time(i128::MAX), UNIX_EPOCH);
        assert_eq!(time(i128::MIN), UNIX_EPOCH);
    }

    #[test]
    fn device_numbers_are_laid_out_as_the_kernel_reads_them() {
        assert_eq!(device(8, 1), 0x801);
        assert_eq!(device(259, 1_000), (259 << 8) | (1_000 & 0xff) | ((1_000 & !0xff) << 12));
    }
}
