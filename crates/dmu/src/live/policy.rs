//! How the blocks of an object set are written, as the properties of its dataset determine (`dmu_write_policy` in
//! OpenZFS's `module/zfs/dmu.c`).

use weir_codec::compress::ZstdLevel;
use weir_format::{ChecksumKind, CompressionKind, Dnode};

/// Policy for writing the blocks of an object set, from the dataset's properties.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// `compression`, resolved: never `On` or `Inherit`.
    pub compression: CompressionKind,
    /// Level of zstd.
    pub zstd_level: ZstdLevel,
    /// `checksum`, resolved.
    pub checksum: ChecksumKind,
    /// `dedup`; `None` means off.
    pub dedup: Option<DedupPolicy>,
    /// `copies` of data.
    pub copies: u8,
    /// Copies of metadata: one more than of data, as with `redundant_metadata=all`; the MOS has three copies of
    /// everything.
    pub metadata_copies: u8,
    /// `special_small_blocks` in bytes: data blocks up to this size go to the special class.
    pub special_small_bytes: u32,
    /// Whether small blocks are embedded in their pointers (`feature@embedded_data`).
    pub embed: bool,
    /// Whether files may share blocks (`feature@block_cloning`).
    pub share_blocks: bool,
    /// Finds the owner of a file, for the accounting of users, groups and projects.
    pub owner_of: Option<OwnerOf>,
}

impl Default for Policy {
    /// Policy of a file system with default properties: LZ4, fletcher4.
    fn default() -> Self {
        Policy {
            compression: CompressionKind::Lz4,
            zstd_level: ZstdLevel::DEFAULT,
            checksum: ChecksumKind::Fletcher4,
            dedup: None,
            copies: 1,
            metadata_copies: 2,
            special_small_bytes: 0,
            embed: true,
            share_blocks: false,
            owner_of: None,
        }
    }
}

impl Policy {
    /// Checksum of metadata: that of data if it is strong enough (`ZCHECKSUM_FLAG_METADATA`).
    pub fn metadata_checksum(&self) -> ChecksumKind {
        use ChecksumKind::{Blake3, Edonr, Fletcher4, Sha256, Sha512, Skein};
        match self.checksum {
            good @ (Sha256 | Sha512 | Skein | Edonr | Blake3) => good,
            _ => Fletcher4,
        }
    }

    /// Policy of the MOS.
    pub fn of_mos() -> Self {
        Policy { copies: 3, metadata_copies: 3, ..Policy::default() }
    }
}

/// Dedup property of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DedupPolicy {
    /// Checksum that identifies blocks; all data of the dataset use it.
    pub checksum: ChecksumKind,
    /// Whether blocks with the same checksum are compared byte by byte before they are shared.
    pub verify: bool,
}

/// Finds user, group and project of a file from its dnode and spill block; `None` for an object without an owner.
pub type OwnerOf = fn(&Dnode, Option<&[u8]>) -> Option<[u64; 3]>;
