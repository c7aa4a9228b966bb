//! Pool versions up to 28 and, from version 5000 on, named features (OpenZFS `module/zcommon/zfeature_common.c`,
//! `include/sys/fs/zfs.h`).
//!
//! A pool lists the features that a reader must support in the label's `features_for_read` (and in the MOS). A
//! *read-only compatible* feature is listed only in the MOS's `features_for_write`: software that does not support it
//! may still import the pool read-only.

/// A pool feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Feature {
    /// The name on disk, for example `org.illumos:lz4_compress`.
    pub guid: &'static str,
    /// The short name, after `feature@`.
    pub name: &'static str,
    /// A one-line description.
    pub about: &'static str,
    /// Software that does not support the feature may still import the pool read-only.
    pub read_only_compatible: bool,
    /// The MOS cannot be read without the feature: it is listed in the label while active.
    pub mos: bool,
    /// The feature is also recorded in each dataset that uses it.
    pub per_dataset: bool,
    /// Weir can read pools in which the feature is active.
    pub readable: bool,
}

const RO: u8 = 1;
const MOS: u8 = 2;
const DS: u8 = 4;
/// Not readable by Weir.
const UNREAD: u8 = 8;

const fn f(guid: &'static str, name: &'static str, flags: u8, about: &'static str) -> Feature {
    Feature {
        guid,
        name,
        about,
        read_only_compatible: flags & RO != 0,
        mos: flags & MOS != 0,
        per_dataset: flags & DS != 0,
        readable: flags & UNREAD == 0,
    }
}

macro_rules! features {
    ($($id:ident = $domain:literal $name:literal, $flags:expr, $about:literal;)+) => {
        impl Feature {
            $(
                #[doc = concat!("`", $name, "`: ", $about, ".")]
                pub const $id: &'static Feature = &f(concat!($domain, ":", $name), $name, $flags, $about);
            )+
        }

        /// All features of OpenZFS in the order of `spa_feature_t`, and others that Weir recognises.
        pub const FEATURES: &[Feature] = &[$(*Feature::$id),+];
    };
}

features! {
    ASYNC_DESTROY = "com.delphix" "async_destroy", RO, "file systems are destroyed in the background";
    EMPTY_BPOBJ = "com.delphix" "empty_bpobj", RO, "snapshots share one empty block list";
    LZ4_COMPRESS = "org.illumos" "lz4_compress", 0, "LZ4 compression";
    MULTI_VDEV_CRASH_DUMP = "com.joyent" "multi_vdev_crash_dump", 0, "crash dumps on pools of several vdevs";
    SPACEMAP_HISTOGRAM = "com.delphix" "spacemap_histogram", RO, "space maps count free segments by size";
    ENABLED_TXG = "com.delphix" "enabled_txg", RO, "the txg in which each feature was enabled is kept";
    HOLE_BIRTH = "com.delphix" "hole_birth", MOS, "holes keep the txg in which they were made";
    ZPOOL_CHECKPOINT = "com.delphix" "zpool_checkpoint", RO,
        "the pool's state can be kept in a checkpoint to rewind to";
    SPACEMAP_V2 = "com.delphix" "spacemap_v2", RO, "large segments take less space in space maps";
    EXTENSIBLE_DATASET = "com.delphix" "extensible_dataset", 0, "datasets carry further attributes";
    BOOKMARKS = "com.delphix" "bookmarks", RO, "bookmarks";
    FILESYSTEM_LIMITS = "com.joyent" "filesystem_limits", RO, "limits for file systems and snapshots";
    EMBEDDED_DATA = "com.delphix" "embedded_data", MOS, "small blocks are stored in their pointers";
    LIVELIST = "com.delphix" "livelist", RO, "clones list their own blocks";
    LOG_SPACEMAP = "com.delphix" "log_spacemap", RO, "changes of all metaslabs go to one log";
    LARGE_BLOCKS = "org.open-zfs" "large_blocks", DS, "blocks beyond 128 KiB";
    LARGE_DNODE = "org.zfsonlinux" "large_dnode", DS, "dnodes beyond 512 bytes";
    SHA512 = "org.illumos" "sha512", DS, "SHA-512/256 checksums";
    SKEIN = "org.illumos" "skein", DS, "Skein checksums";
    EDONR = "org.illumos" "edonr", DS, "Edon-R checksums";
    REDACTION_BOOKMARKS = "com.delphix" "redaction_bookmarks", 0, "bookmarks with redaction lists";
    REDACTED_DATASETS = "com.delphix" "redacted_datasets", DS, "datasets received from redacted streams";
    BOOKMARK_WRITTEN = "com.delphix" "bookmark_written", 0, "space written since a bookmark";
    DEVICE_REMOVAL = "com.delphix" "device_removal", MOS, "top-level vdevs can be removed";
    OBSOLETE_COUNTS = "com.delphix" "obsolete_counts", RO, "mappings of removed vdevs drop obsolete entries";
    USEROBJ_ACCOUNTING = "org.zfsonlinux" "userobj_accounting", RO | DS, "objects counted by user and group";
    BOOKMARK_V2 = "com.datto" "bookmark_v2", 0, "larger bookmarks";
    ENCRYPTION = "com.datto" "encryption", DS, "encrypted datasets";
    PROJECT_QUOTA = "org.zfsonlinux" "project_quota", RO | DS, "space and objects counted by project";
    ALLOCATION_CLASSES = "org.zfsonlinux" "allocation_classes", RO, "special and dedup vdevs";
    RESILVER_DEFER = "com.datto" "resilver_defer", RO, "a new resilver waits for the running one";
    DEVICE_REBUILD = "org.openzfs" "device_rebuild", RO, "sequential rebuild of mirrors and dRAID";
    ZSTD_COMPRESS = "org.freebsd" "zstd_compress", DS, "Zstandard compression";
    DRAID = "org.openzfs" "draid", MOS, "distributed spares (dRAID)";
    DRAID_FAILURE_DOMAINS = "com.seagate" "draid_failure_domains", MOS | UNREAD,
        "failure domains in dRAID: an arrangement of disks that Weir does not support";
    ZILSAXATTR = "org.openzfs" "zilsaxattr", RO | DS, "the intent log carries SA-based extended attributes";
    HEAD_ERRLOG = "com.delphix" "head_errlog", 0, "the error log is kept by dataset";
    BLAKE3 = "org.openzfs" "blake3", DS, "BLAKE3 checksums";
    BLOCK_CLONING = "com.fudosecurity" "block_cloning", RO, "files share blocks through the reference table";
    BLOCK_CLONING_ENDIAN = "com.truenas" "block_cloning_endian", RO, "the reference table has a fixed byte order";
    VDEV_ZAPS_V2 = "com.klarasystems" "vdev_zaps_v2", MOS, "the root vdev has properties";
    REDACTION_LIST_SPILL = "com.delphix" "redaction_list_spill", 0, "redaction lists of many snapshots";
    RAIDZ_EXPANSION = "org.openzfs" "raidz_expansion", MOS, "RAID-Z vdevs can grow by a disk";
    FAST_DEDUP = "com.klarasystems" "fast_dedup", RO, "dedup tables with a log and flat entries";
    LONGNAME = "org.zfsonlinux" "longname", DS, "file names up to 1023 bytes";
    LARGE_MICROZAP = "com.klarasystems" "large_microzap", RO | DS, "micro ZAPs beyond 128 KiB";
    DYNAMIC_GANG_HEADER = "com.klarasystems" "dynamic_gang_header", MOS, "gang headers as large as a sector";
    PHYSICAL_REWRITE = "com.truenas" "physical_rewrite", RO | DS, "rewritten blocks keep their logical birth";
}

/// Looks up a feature by its name on disk.
pub fn by_guid(guid: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.guid == guid)
}

/// Looks up a feature by its short name.
pub fn by_name(name: &str) -> Option<&'static Feature> {
    FEATURES.iter().find(|f| f.name == name)
}

/// The version of pools with features.
pub const VERSION_FEATURES: u64 = 5000;

/// All pool versions, with the feature that each introduced.
pub const VERSIONS: [(u64, &str); 29] = [
    (1, "initial version"),
    (2, "ditto blocks (replicated metadata)"),
    (3, "hot spares and double parity RAID-Z"),
    (4, "pool history"),
    (5, "gzip compression"),
    (6, "bootfs pool property"),
    (7, "separate intent log devices"),
    (8, "delegated administration"),
    (9, "refquota and refreservation"),
    (10, "cache devices"),
    (11, "faster scrub"),
    (12, "snapshot properties"),
    (13, "space usage broken down (snapused)"),
    (14, "aclinherit=passthrough-x"),
    (15, "user and group space accounting"),
    (16, "STMF property"),
    (17, "triple parity RAID-Z"),
    (18, "snapshot holds"),
    (19, "log device removal"),
    (20, "zle compression"),
    (21, "deduplication"),
    (22, "received properties"),
    (23, "slim intent log"),
    (24, "system attributes"),
    (25, "scrub statistics"),
    (26, "faster snapshot deletion"),
    (27, "faster snapshot creation"),
    (28, "multiple vdev replacements"),
    (VERSION_FEATURES, "feature flags"),
];

/// Whether Weir can read pools of a version.
pub fn is_known_version(version: u64) -> bool {
    VERSIONS.iter().any(|v| v.0 == version)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_found() {
        for feature in FEATURES {
            assert_eq!(by_guid(feature.guid), Some(feature));
            assert_eq!(by_name(feature.name), Some(feature));
        }
        assert_eq!(FEATURES.len(), 48);
        assert!(by_guid("org.illumos:lz4_compress").is_some_and(|f| !f.read_only_compatible && f.readable));
        assert!(is_known_version(28) && is_known_version(5000) && !is_known_version(29) && !is_known_version(0));
    }
}
