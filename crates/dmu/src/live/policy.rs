//! How the blocks of an object set are written, as the properties of its dataset determine (`dmu_write_policy` in
//! OpenZFS's `module/zfs/dmu.c`).

use weir_codec::compress::ZstdLevel;
use weir_format::{ChecksumKind, CompressionKind, Dnode, ObjectType};

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
    /// `redundant_metadata`; the MOS has three copies of everything.
    pub redundant_metadata: RedundantMetadata,
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
            redundant_metadata: RedundantMetadata::All,
            special_small_bytes: 0,
            embed: true,
            share_blocks: false,
            owner_of: None,
        }
    }
}

impl Policy {
    /// Copies of a block of metadata: of an object of type `kind`, at this level.
    pub fn metadata_copies(&self, kind: ObjectType, level: u8) -> u8 {
        let has_one_more = match self.redundant_metadata {
            RedundantMetadata::All => true,
            RedundantMetadata::Most => level >= MIN_REDUNDANT_LEVEL || kind.is_metadata(),
            RedundantMetadata::Some => is_critical(kind, level),
            RedundantMetadata::None => false,
        };
        debug_assert!((1..=MAX_COPIES).contains(&self.copies), "{} copies", self.copies);
        (self.copies + u8::from(has_one_more)).min(MAX_COPIES)
    }

    /// Checksum of metadata: that of data if it is strong enough (`ZCHECKSUM_FLAG_METADATA`).
    pub fn metadata_checksum(&self) -> ChecksumKind {
        use ChecksumKind::{Blake3, Edonr, Fletcher4, Sha256, Sha512, Skein};
        match self.checksum {
            good @ (Sha256 | Sha512 | Skein | Edonr | Blake3) => good,
            _ => Fletcher4,
        }
    }

    /// Whether a block of data that equals the one that it replaces is not written: its checksum tells it (`ZCHECKSUM_FLAG_NOPWRITE`),
    /// and blocks are compressed, as OpenZFS demands (`dmu_write_policy`).
    pub fn allows_nop_writes(&self) -> bool {
        use ChecksumKind::{Blake3, Edonr, Sha256, Sha512, Skein};
        matches!(self.checksum, Sha256 | Sha512 | Skein | Edonr | Blake3)
            && self.compression != CompressionKind::Off
            && self.dedup.is_none()
    }

    /// Policy of the MOS.
    pub fn of_mos() -> Self {
        Policy { copies: 3, ..Policy::default() }
    }
}

/// Which metadata has one copy more than data (`redundant_metadata`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RedundantMetadata {
    /// All.
    #[default]
    All,
    /// All but the blocks of pointers to data.
    Most,
    /// Blocks that concern more than one file.
    Some,
    /// None.
    None,
}

/// Lowest level of the blocks of pointers that have one copy more with `most` (`zfs_redundant_metadata_most_ditto_level`).
const MIN_REDUNDANT_LEVEL: u8 = 2;
/// Maximum number of copies.
const MAX_COPIES: u8 = 3;

/// Whether a block concerns more than one file (`DMU_OT_IS_CRITICAL`).
fn is_critical(kind: ObjectType, level: u8) -> bool {
    kind.is_metadata()
        && (kind != ObjectType::DNODE || level > 0)
        && !matches!(kind, ObjectType::DIRECTORY_CONTENTS | ObjectType::SA)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn redundant_metadata_decides_which_blocks_have_one_copy_more() {
        let copies = |redundant_metadata, copies, kind, level| {
            Policy { copies, redundant_metadata, ..Policy::default() }.metadata_copies(kind, level)
        };
        let file = ObjectType::PLAIN_FILE_CONTENTS;
        let dir = ObjectType::DIRECTORY_CONTENTS;
        for (redundant, expected) in [
            (RedundantMetadata::All, [2, 2, 2, 2, 2]),
            (RedundantMetadata::Most, [1, 2, 2, 2, 2]),
            (RedundantMetadata::Some, [1, 1, 1, 1, 2]),
            (RedundantMetadata::None, [1, 1, 1, 1, 1]),
        ] {
            let blocks = [(file, 1), (file, 2), (dir, 0), (ObjectType::DNODE, 0), (ObjectType::DNODE, 1)];
            let found = blocks.map(|(kind, level)| copies(redundant, 1, kind, level));
            // With `some`, pointers to the data of a file are not critical at any level.
            assert_eq!(found, expected, "{redundant:?}");
        }
        assert_eq!(copies(RedundantMetadata::All, 3, file, 1), 3);
        assert_eq!(Policy::of_mos().metadata_copies(ObjectType::DNODE, 0), 3);
    }
}
