//! Detection of foreign contents by magic bytes: file systems, volume managers, partition tables and files.
//!
//! An administrator may name the wrong device, so a device with such contents requires `-f`. A regular file is refused
//! if any byte in the label areas is not zero, because a file with contents was created for another purpose. After
//! `zpool labelclear` these bytes are zero, and labels of a destroyed pool are ignored. A disk may contain random bytes
//! from earlier use, so on disks only known contents count.
//!
//! Source: the formats that `blkid` reports to `zpool create` on Linux; each magic from its format's own description.

/// Number of bytes from the start of a device that [`what`] examines.
pub const FRONT_BYTES: usize = 128 << 10;

/// Offset in bytes, magic and description of known contents; the first match wins.
const MAGICS: [(usize, &[u8], &str); 37] = [
    (0, b"LUKS\xba\xbe", "an encrypted volume (LUKS)"),
    (512, b"LABELONE", "a physical volume of LVM"),
    (0, b"LABELONE", "a physical volume of LVM"),
    (1024, b"LABELONE", "a physical volume of LVM"),
    (1536, b"LABELONE", "a physical volume of LVM"),
    (4096, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID array"),
    (0, b"\xfc\x4e\x2b\xa9", "a member of a Linux RAID array"),
    (4120, b"\xc6\x85\x73\xf6", "bcache or a bcachefs file system"),
    (0, b"bluestore block device", "a Ceph object store"),
    (64 << 10 | 64, b"_BHRfS_M", "a btrfs file system"),
    (0, b"XFSB", "an XFS file system"),
    (1080, b"\x53\xef", "an ext2, ext3 or ext4 file system"),
    (1024, b"\x10\x20\xf5\xf2", "an F2FS file system"),
    (64 << 10 | 52, b"ReIsEr", "a ReiserFS file system"),
    (32 << 10, b"JFS1", "a JFS file system"),
    (0, b"hsqs", "a SquashFS file system"),
    (32, b"NXSB", "an APFS file system"),
    (1024, b"H+\0\x04", "an HFS+ file system"),
    (32 << 10 | 1, b"CD001", "an ISO 9660 file system"),
    (4086, b"SWAPSPACE2", "swap space"),
    (3, b"NTFS    ", "an NTFS file system"),
    (3, b"EXFAT   ", "an exFAT file system"),
    (54, b"FAT1", "a FAT file system"),
    (82, b"FAT32", "a FAT file system"),
    (65_526, b"SWAPSPACE2", "swap space"),
    (1024, b"\xe2\xe1\xf5\xe0", "an EROFS file system"),
    (64 << 10, b"\x01\x16\x19\x70", "a GFS2 file system"),
    (0, b"QFI\xfb", "a QEMU image (qcow2)"),
    (0, b"KDMV", "a VMware image"),
    (0, b"vhdxfile", "a Hyper-V image (VHDX)"),
    (64, b"\x7f\x10\xda\xbe", "a VirtualBox image (VDI)"),
    (257, b"ustar", "a tar archive"),
    (0, b"PK\x03\x04", "a ZIP archive"),
    (0, b"\x1f\x8b", "a gzip file"),
    (0, b"\x7fELF", "a program"),
    (0, b"SQLite format 3\0", "an SQLite database"),
    (510, b"\x55\xaa", "a boot sector or partition table"),
];

/// Describes the contents of a device from its first bytes; `None` if they are unknown.
pub fn what(front: &[u8]) -> Option<&'static str> {
    let has = |at: usize, magic: &[u8]| front.get(at..).is_some_and(|bytes| bytes.starts_with(magic));
    MAGICS.iter().find(|(at, magic, _)| has(*at, magic)).map(|(.., what)| *what)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_magic_is_detected() {
        assert_eq!(what(&[0; FRONT_BYTES]), None);
        for (at, magic, name) in MAGICS {
            let mut front = vec![0; FRONT_BYTES];
            front[at..at + magic.len()].copy_from_slice(magic);
            assert_eq!(what(&front), Some(name));
            assert_eq!(what(&front[..at + magic.len() - 1]), None);
        }
    }
}
