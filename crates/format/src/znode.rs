//! File metadata before system attributes (`znode_phys_t`, OpenZFS `include/sys/zfs_sa.h`): the bonus area of a
//! file's dnode in file systems of ZPL version 1 to 4; and structures of all versions: directory entries, master
//! node, FUIDs.
//!
//! ```text
//!   0 atime · 16 mtime · 32 ctime · 48 crtime (each seconds, nanoseconds)
//!  64 generation · 72 mode · 80 size · 88 parent · 96 links · 104 xattr directory · 112 rdev · 120 flags
//! 128 uid · 136 gid · 144 zap · 152 pad (24) · 176 ACL (88) · 264 symbolic link's target, if it fits
//! ```

use crate::acl::EmbeddedAcl;
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::ObjectId;
use crate::nvlist::NvList;

/// A point in time: seconds (signed) and nanoseconds since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970.
    pub sec: i64,
    /// Nanoseconds within the second.
    pub nsec: u32,
}

impl Timestamp {
    /// From the two words on disk.
    pub fn from_words(words: [u64; 2]) -> Self {
        Timestamp { sec: words[0] as i64, nsec: words[1] as u32 }
    }

    /// The two words on disk.
    pub fn to_words(self) -> [u64; 2] {
        [self.sec as u64, self.nsec.into()]
    }
}

/// Persistent flags of a file (`zp_flags`, `ZPL_FLAGS`; OpenZFS `include/sys/zfs_znode.h`, `include/sys/fs/zfs.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileFlags(pub u64);

#[allow(missing_docs)]
impl FileFlags {
    pub const XATTR: u64 = 0x1;
    pub const INHERIT_ACE: u64 = 0x2;
    pub const ACL_TRIVIAL: u64 = 0x4;
    pub const ACL_OBJ_ACE: u64 = 0x8;
    pub const ACL_PROTECTED: u64 = 0x10;
    pub const ACL_DEFAULTED: u64 = 0x20;
    pub const ACL_AUTO_INHERIT: u64 = 0x40;
    pub const BONUS_SCANSTAMP: u64 = 0x80;
    pub const NO_EXECS_DENIED: u64 = 0x100;
    pub const READONLY: u64 = 0x1_0000_0000;
    pub const HIDDEN: u64 = 0x2_0000_0000;
    pub const SYSTEM: u64 = 0x4_0000_0000;
    pub const ARCHIVE: u64 = 0x8_0000_0000;
    pub const IMMUTABLE: u64 = 0x10_0000_0000;
    pub const NOUNLINK: u64 = 0x20_0000_0000;
    pub const APPENDONLY: u64 = 0x40_0000_0000;
    pub const NODUMP: u64 = 0x80_0000_0000;
    pub const OPAQUE: u64 = 0x100_0000_0000;
    pub const AV_QUARANTINED: u64 = 0x200_0000_0000;
    pub const AV_MODIFIED: u64 = 0x400_0000_0000;
    pub const REPARSE: u64 = 0x800_0000_0000;
    pub const OFFLINE: u64 = 0x1000_0000_0000;
    pub const SPARSE: u64 = 0x2000_0000_0000;
    pub const PROJINHERIT: u64 = 0x4000_0000_0000;
    /// The file has a project id attribute.
    pub const PROJID: u64 = 0x8000_0000_0000;

    /// Whether all of `bits` are set.
    pub fn has(self, bits: u64) -> bool {
        self.0 & bits == bits
    }
}

/// A file's metadata in its dnode's bonus area.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Znode {
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub crtime: Timestamp,
    /// The txg in which the file was created.
    pub generation: u64,
    pub mode: u64,
    pub size_bytes: u64,
    pub parent: ObjectId,
    pub links: u64,
    /// Extended attribute directory, or 0.
    pub xattr: ObjectId,
    pub rdev: u64,
    /// See [`flag`].
    pub flags: u64,
    pub uid: u64,
    pub gid: u64,
    pub zap: u64,
    pub acl: EmbeddedAcl,
}

impl Znode {
    /// Bytes on disk.
    pub const SIZE: usize = 264;

    /// Decodes a bonus area.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bonus, endian, "znode");
        let mut time = || Ok(Timestamp::from_words(c.words()?));
        let atime = time()?;
        let mtime = time()?;
        let ctime = time()?;
        let crtime = time()?;
        let [generation, mode, size_bytes, parent, links, xattr, rdev, flags, uid, gid, zap] = c.words()?;
        c.skip(24)?;
        let acl = EmbeddedAcl::decode(&mut c)?;
        Ok(Znode {
            atime,
            mtime,
            ctime,
            crtime,
            generation,
            mode,
            size_bytes,
            parent: ObjectId(parent),
            links,
            xattr: ObjectId(xattr),
            rdev,
            flags,
            uid,
            gid,
            zap,
            acl,
        })
    }

    /// The bytes on disk.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        for t in [self.atime, self.mtime, self.ctime, self.crtime] {
            e.words(&t.to_words());
        }
        e.words(&[self.generation, self.mode, self.size_bytes, self.parent.0, self.links, self.xattr.0]);
        e.words(&[self.rdev, self.flags, self.uid, self.gid, self.zap, 0, 0, 0]);
        self.acl.encode(&mut e);
        e.finish()
    }

    /// The target of a symbolic link, stored after the znode in the bonus area whenever it fits.
    pub fn inline_target<'a>(&self, bonus: &'a [u8]) -> Option<&'a [u8]> {
        let len = usize::try_from(self.size_bytes).ok()?;
        bonus.get(Self::SIZE..)?.get(..len)
    }
}

/// Names in a file system's master node (object 1).
#[allow(missing_docs)]
pub mod master {
    pub const OBJECT: u64 = 1;
    pub const FSID: &str = "FSID";
    pub const UNLINKED_SET: &str = "DELETE_QUEUE";
    pub const ROOT: &str = "ROOT";
    pub const VERSION: &str = "VERSION";
    pub const FUID_TABLES: &str = "FUID";
    pub const SHARES: &str = "SHARES";
    pub const SA_ATTRS: &str = "SA_ATTRS";
    pub const NORMALIZATION: &str = "normalization";
    pub const UTF8ONLY: &str = "utf8only";
    pub const CASESENSITIVITY: &str = "casesensitivity";
}

/// The value of an entry in a directory's ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Object number of the file.
    pub object: ObjectId,
    /// File type: the upper four bits of the mode; 0 in old file systems, which do not record it.
    pub kind: u8,
}

impl DirEntry {
    /// From the word on disk.
    pub fn from_word(word: u64) -> Self {
        DirEntry { object: ObjectId(word & ((1 << 48) - 1)), kind: (word >> 60) as u8 }
    }

    /// The word on disk.
    pub fn to_word(self) -> u64 {
        u64::from(self.kind) << 60 | self.object.0 & ((1 << 48) - 1)
    }
}

/// A user or group identity: a POSIX id, or an id relative to a domain in the file system's FUID table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fuid(pub u64);

impl Fuid {
    /// Index of the domain; 0 for a POSIX id.
    pub fn domain(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// The id in its domain.
    pub fn id(self) -> u32 {
        self.0 as u32
    }
}

/// Decodes the FUID table (a packed nvlist in an object): domain indices and names.
pub fn decode_fuid_table(bytes: &[u8]) -> Result<Vec<(u64, String)>, DecodeError> {
    let list = NvList::decode(bytes)?;
    let entries = list.get_list_array("fuid_nvlist").unwrap_or_default();
    entries.iter().map(|e| Ok((e.require_u64("fuid_idx")?, e.require_str("fuid_domain")?.to_owned()))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn directory_entries() {
        let e = DirEntry { object: ObjectId(0x1234), kind: 8 };
        assert_eq!(e.to_word(), 0x8000_0000_0000_1234);
        assert_eq!(DirEntry::from_word(e.to_word()), e);
        assert_eq!((Fuid(5 << 32 | 7).domain(), Fuid(5 << 32 | 7).id()), (5, 7));
    }

    proptest! {
        #[test]
        fn znode_round_trips(mut bytes in proptest::collection::vec(any::<u8>(), 320)) {
            bytes[152..176].fill(0);
            for t in 0..4 {
                bytes[16 * t + 12..16 * t + 16].fill(0);
            }
            bytes[188..190].copy_from_slice(&[1, 0]);
            let z = Znode::decode(&bytes, Endian::Little).unwrap();
            prop_assert_eq!(&z.encode(Endian::Little)[..], &bytes[..Znode::SIZE]);
        }
    }
}
