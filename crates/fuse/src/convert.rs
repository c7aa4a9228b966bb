//! Conversions between our types and the kernel's: attributes, times, device numbers, flags, errors.

use fuser::{Errno, FileAttr, FileType, FopenFlags, INodeNo, RenameFlags, TimeOrNow, WriteFlags};
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use weir_files::{
    Attributes, FileError, FileKind, NewKind, RenameMode, SetAttributes, SetTime, Space, WriteAt, XattrMode,
};

/// The kernel's file type. Solaris doors and event ports have none; they appear as regular files.
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

/// Attributes with this inode number.
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

/// Converts nanoseconds since 1970 to system time; unrepresentable times become 1970.
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

/// Maps an error to an errno.
pub(crate) fn errno(error: &FileError) -> Errno {
    Errno::from_i32(error.errno())
}

/// Splits a device number of the FUSE protocol into major and minor.
fn device_parts(device: u32) -> (u32, u32) {
    ((device >> 8) & 0xfff, (device & 0xff) | ((device >> 12) & 0xfff00))
}

/// File kind of a `mknod`; `None` if `mknod` cannot create it.
pub(crate) fn new_kind(mode: u32, rdev: u32) -> Option<NewKind> {
    let (major, minor) = device_parts(rdev);
    match mode & libc::S_IFMT {
        0 | libc::S_IFREG => Some(NewKind::Regular),
        libc::S_IFBLK => Some(NewKind::BlockDevice(major, minor)),
        libc::S_IFCHR => Some(NewKind::CharDevice(major, minor)),
        libc::S_IFIFO => Some(NewKind::Fifo),
        libc::S_IFSOCK => Some(NewKind::Socket),
        _ => None,
    }
}

/// Nanoseconds since 1970 of a time that `fuser` decoded from a SETATTR request.
///
/// The kernel sends whole seconds, rounded down, and nanoseconds from 0 to 999,999,999 to be added to them. For negative
/// seconds `fuser` 0.18.0 (`src/time.rs`, `system_time_from_time`) subtracts the nanoseconds: -2 s and 250,000,000 ns arrive
/// as -2.25 s, not as -1.75 s. The whole seconds of the result are still those of the request, so the nanoseconds can be
/// added to them here. `Cargo.toml` pins that version.
fn nanoseconds(time: SystemTime) -> i128 {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => whole_ns(after) + i128::from(after.subsec_nanos()),
        Err(error) => i128::from(error.duration().subsec_nanos()) - whole_ns(error.duration()),
    }
}

/// The whole seconds of a distance, in nanoseconds.
fn whole_ns(distance: Duration) -> i128 {
    i128::from(distance.as_secs()) * 1_000_000_000
}

/// Converts the arguments of `setattr`.
pub(crate) fn set_attributes(
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size_bytes: Option<u64>,
    atime: Option<TimeOrNow>,
    mtime: Option<TimeOrNow>,
) -> SetAttributes {
    let time = |time: TimeOrNow| match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(nanoseconds(time)),
    };
    let atime = atime.map(time);
    let mtime = mtime.map(time);
    SetAttributes { mode: mode.map(|mode| mode & 0o7777), uid, gid, size_bytes, atime, mtime }
}

/// Arguments of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteArgs {
    /// Offset or end of file.
    pub(crate) at: WriteAt,
    /// Make the data stable before the reply.
    pub(crate) stable: bool,
    /// The server must clear the file's set-user-id and set-group-id bits.
    pub(crate) clears_setid: bool,
}

/// Reply flags of an open. Write-only files bypass the page cache if the kernel then invalidates the pages of
/// readers: the writer does not read the pages, so they would only be a second copy, and the kernel would query the
/// `security.capability` xattr before each cached write.
pub(crate) fn open_flags(flags: i32, invalidates_page_cache: bool) -> FopenFlags {
    match flags & libc::O_ACCMODE {
        libc::O_WRONLY if invalidates_page_cache => FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_DIRECT_IO,
        _ => FopenFlags::FOPEN_KEEP_CACHE,
    }
}

/// Mode after a write by an unprivileged user: without the set-user-id bit, and without the set-group-id bit if the
/// group may execute the file (Linux `setattr_should_drop_suidgid`).
pub(crate) fn clear_setid_bits(mode: u32) -> u32 {
    let group = if mode & libc::S_IXGRP != 0 { libc::S_ISGID } else { 0 };
    mode & 0o7777 & !(libc::S_ISUID | group)
}

/// Derives the arguments of a write from the flags of its open file. Pages written back from the page cache use an
/// arbitrary open file of the inode, so its flags are ignored.
pub(crate) fn write_args(offset: u64, open: i32, write: WriteFlags) -> WriteArgs {
    if write.contains(WriteFlags::FUSE_WRITE_CACHE) {
        return WriteArgs { at: WriteAt::Offset(offset), stable: false, clears_setid: false };
    }
    let at = if open & libc::O_APPEND != 0 { WriteAt::End } else { WriteAt::Offset(offset) };
    // O_SYNC has the bit of O_DSYNC.
    let clears_setid = write.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID);
    WriteArgs { at, stable: open & libc::O_DSYNC != 0, clears_setid }
}

/// Mode of `renameat2`; `None` if unsupported.
pub(crate) fn rename_mode(flags: RenameFlags) -> Option<RenameMode> {
    match flags {
        flags if flags.is_empty() => Some(RenameMode::Replace),
        RenameFlags::RENAME_NOREPLACE => Some(RenameMode::NoReplace),
        RenameFlags::RENAME_EXCHANGE => Some(RenameMode::Exchange),
        _ => None,
    }
}

/// Operation of `fallocate`; `None` if unsupported.
pub(crate) fn space(mode: i32) -> Option<Space> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Some(Space::Reserve { keep_size }),
        libc::FALLOC_FL_ZERO_RANGE => Some(Space::Zero { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Some(Space::Punch),
        _ => None,
    }
}

/// Mode of `setxattr`; `None` if invalid.
pub(crate) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    match flags {
        0 => Some(XattrMode::Any),
        libc::XATTR_CREATE => Some(XattrMode::Create),
        libc::XATTR_REPLACE => Some(XattrMode::Replace),
        _ => None,
    }
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
    fn device_numbers_are_encoded_as_the_kernel_expects() {
        assert_eq!(device(8, 1), 0x801);
        assert_eq!(device(259, 1_000), (259 << 8) | (1_000 & 0xff) | ((1_000 & !0xff) << 12));
    }

    #[test]
    fn times_and_devices_round_trip() {
        for ns in [0, 1, -1_000_000_000, 1_500_000_000_000_000_001] {
            assert_eq!(nanoseconds(time(ns)), ns);
        }
        for (major, minor) in [(8, 1), (259, 1_000), (4_095, 1_048_575)] {
            assert_eq!(device_parts(device(major, minor)), (major, minor));
        }
    }

    #[test]
    fn times_before_1970_with_a_fraction_are_set_as_the_kernel_sent_them() {
        // What fuser 0.18.0 makes of the seconds and nanoseconds of a request.
        let decoded = |seconds: i64, ns: u32| match u64::try_from(seconds) {
            Ok(after) => UNIX_EPOCH + Duration::new(after, ns),
            Err(_) => UNIX_EPOCH - Duration::new(seconds.unsigned_abs(), ns),
        };
        for (seconds, ns) in [(-2, 250_000_000), (-1, 999_999_999), (-1, 0), (0, 1), (-2_208_988_800, 1), (7, 5)] {
            let wanted = i128::from(seconds) * 1_000_000_000 + i128::from(ns);
            let set = set_attributes(None, None, None, None, None, Some(TimeOrNow::SpecificTime(decoded(seconds, ns))));
            assert_eq!(set.mtime, Some(SetTime::At(wanted)), "{seconds} s, {ns} ns");
        }
    }

    #[test]
    fn kinds_of_nodes_follow_the_mode() {
        assert_eq!(new_kind(0o644, 0), Some(NewKind::Regular));
        assert_eq!(new_kind(libc::S_IFREG | 0o644, 7), Some(NewKind::Regular));
        assert_eq!(new_kind(libc::S_IFCHR | 0o600, device(1, 3)), Some(NewKind::CharDevice(1, 3)));
        assert_eq!(new_kind(libc::S_IFBLK, device(8, 0)), Some(NewKind::BlockDevice(8, 0)));
        assert_eq!(
            (new_kind(libc::S_IFIFO, 0), new_kind(libc::S_IFSOCK, 0)),
            (Some(NewKind::Fifo), Some(NewKind::Socket))
        );
        assert_eq!((new_kind(libc::S_IFDIR, 0), new_kind(libc::S_IFLNK, 0)), (None, None));
    }

    #[test]
    fn write_arguments_follow_the_open_flags() {
        let how = |open, cached| {
            let write = if cached { WriteFlags::FUSE_WRITE_CACHE } else { WriteFlags::empty() };
            write_args(7, open, write)
        };
        let at = |at, stable| WriteArgs { at, stable, clears_setid: false };
        assert_eq!(how(libc::O_RDWR, false), at(WriteAt::Offset(7), false));
        assert_eq!(how(libc::O_WRONLY | libc::O_APPEND, false), at(WriteAt::End, false));
        assert_eq!(how(libc::O_WRONLY | libc::O_DSYNC, false), at(WriteAt::Offset(7), true));
        assert_eq!(how(libc::O_WRONLY | libc::O_SYNC | libc::O_APPEND, false), at(WriteAt::End, true));
        assert_eq!(how(libc::O_WRONLY | libc::O_SYNC | libc::O_APPEND, true), at(WriteAt::Offset(7), false));
    }

    #[test]
    fn writes_clear_setid_bits_as_on_linux() {
        let write = write_args(0, libc::O_WRONLY, WriteFlags::FUSE_WRITE_KILL_SUIDGID);
        assert!(write.clears_setid && !write_args(0, libc::O_WRONLY, WriteFlags::empty()).clears_setid);
        assert_eq!([0o6755, 0o4644, 0o2745, 0o1777].map(clear_setid_bits), [0o755, 0o644, 0o2745, 0o1777]);
        let direct = |flags, drops| open_flags(flags, drops).contains(FopenFlags::FOPEN_DIRECT_IO);
        assert!(direct(libc::O_WRONLY | libc::O_APPEND, true) && !direct(libc::O_WRONLY, false));
        assert!(!direct(libc::O_RDWR, true) && open_flags(0, true) == FopenFlags::FOPEN_KEEP_CACHE);
    }

    #[test]
    fn flags_are_converted_or_rejected() {
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        assert_eq!(space(0), Some(Space::Reserve { keep_size: false }));
        assert_eq!(space(keep), Some(Space::Reserve { keep_size: true }));
        assert_eq!(space(keep | libc::FALLOC_FL_PUNCH_HOLE), Some(Space::Punch));
        assert_eq!(space(libc::FALLOC_FL_ZERO_RANGE), Some(Space::Zero { keep_size: false }));
        assert_eq!((space(libc::FALLOC_FL_PUNCH_HOLE), space(libc::FALLOC_FL_COLLAPSE_RANGE)), (None, None));
        assert_eq!(rename_mode(RenameFlags::empty()), Some(RenameMode::Replace));
        assert_eq!(rename_mode(RenameFlags::RENAME_EXCHANGE), Some(RenameMode::Exchange));
        assert_eq!(rename_mode(RenameFlags::RENAME_EXCHANGE | RenameFlags::RENAME_NOREPLACE), None);
        assert_eq!(rename_mode(RenameFlags::RENAME_WHITEOUT), None);
        assert_eq!((xattr_mode(libc::XATTR_REPLACE), xattr_mode(3)), (Some(XattrMode::Replace), None));
    }
}
