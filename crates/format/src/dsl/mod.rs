//! Datasets and snapshots (OpenZFS `include/sys/dsl_dir.h`, `dsl_dataset.h`, `dsl_deadlist.h`, `bpobj.h`,
//! `dsl_bookmark.h`): the structures in the bonus areas of the MOS's objects, and the names in their ZAPs.
//!
//! ```text
//!  object directory (object 1) ── root_dataset ──▶ DslDir ── head ──▶ DslDataset ── pointer ──▶ object set
//!                                    │ children ZAP: name → DslDir       │ prev ──▶ snapshot ── prev ──▶ …
//!                                    │ props ZAP                         │ snapshot names ZAP: name → DslDataset
//!                                                                        │ deadlist: freed blocks still referenced by prev
//! ```
//!
//! All are arrays of 64-bit words in the byte order of their block. Old pools have shorter structures; each decoder
//! documents the values of absent words.

mod bookmark;
mod deadlist;
pub mod rebuild;
#[cfg(test)]
mod tests;

pub use bookmark::{Bookmark, RedactionBlock, RedactionList};
pub use deadlist::{Bpobj, Deadlist};
pub use rebuild::{RebuildPhys, RebuildState};

use crate::blkptr::BlockPointer;
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::{ObjectId, Txg};

/// Names in the MOS's object directory (object 1, `DMU_POOL_*` in OpenZFS `include/sys/dmu.h`).
#[allow(missing_docs)]
pub mod pool {
    pub const DIRECTORY_OBJECT: u64 = 1;
    pub const CONFIG: &str = "config";
    pub const FEATURES_FOR_WRITE: &str = "features_for_write";
    pub const FEATURES_FOR_READ: &str = "features_for_read";
    pub const FEATURE_DESCRIPTIONS: &str = "feature_descriptions";
    pub const FEATURE_ENABLED_TXG: &str = "feature_enabled_txg";
    pub const ROOT_DATASET: &str = "root_dataset";
    pub const SYNC_BPOBJ: &str = "sync_bplist";
    pub const ERRLOG_SCRUB: &str = "errlog_scrub";
    pub const ERRLOG_LAST: &str = "errlog_last";
    pub const SPARES: &str = "spares";
    pub const DEFLATE: &str = "deflate";
    pub const HISTORY: &str = "history";
    pub const PROPS: &str = "pool_props";
    pub const L2CACHE: &str = "l2cache";
    pub const TMP_USERREFS: &str = "tmp_userrefs";
    pub const DDT_STATS: &str = "DDT-statistics";
    pub const CREATION_VERSION: &str = "creation_version";
    pub const SCAN: &str = "scan";
    pub const ERRORSCRUB: &str = "error_scrub";
    pub const LAST_SCRUBBED_TXG: &str = "last_scrubbed_txg";
    pub const FREE_BPOBJ: &str = "free_bpobj";
    pub const BPTREE_OBJ: &str = "bptree_obj";
    pub const EMPTY_BPOBJ: &str = "empty_bpobj";
    pub const CHECKSUM_SALT: &str = "org.illumos:checksum_salt";
    pub const VDEV_ZAP_MAP: &str = "com.delphix:vdev_zap_map";
    pub const REMOVING: &str = "com.delphix:removing";
    pub const OBSOLETE_BPOBJ: &str = "com.delphix:obsolete_bpobj";
    pub const CONDENSING_INDIRECT: &str = "com.delphix:condensing_indirect";
    pub const CHECKPOINT: &str = "com.delphix:zpool_checkpoint";
    pub const LOG_SPACEMAP: &str = "com.delphix:log_spacemap_zap";
    pub const DELETED_CLONES: &str = "com.delphix:deleted_clones";
}

/// Names in the ZAP of an extensible DSL directory.
#[allow(missing_docs)]
pub mod dir_field {
    pub const FILESYSTEM_COUNT: &str = "com.joyent:filesystem_count";
    pub const SNAPSHOT_COUNT: &str = "com.joyent:snapshot_count";
    pub const CRYPTO_KEY_OBJ: &str = "com.datto:crypto_key_obj";
    pub const LIVELIST: &str = "com.delphix:livelist";
    pub const SNAPSHOTS_CHANGED: &str = "com.ixsystems:snapshots_changed";
}

/// Names in the ZAP of an extensible DSL dataset, which also holds the GUIDs of per-dataset features.
#[allow(missing_docs)]
pub mod dataset_field {
    pub const BOOKMARK_NAMES: &str = "com.delphix:bookmarks";
    pub const REMAP_DEADLIST: &str = "com.delphix:remap_deadlist";
    pub const IVSET_GUID: &str = "com.datto:ivset_guid";
    pub const RAW_RECEIVED: &str = "org.openzfs:raw_received";
    pub const RESUME_FROMGUID: &str = "com.delphix:resume_fromguid";
    pub const RESUME_TONAME: &str = "com.delphix:resume_toname";
    pub const RESUME_TOGUID: &str = "com.delphix:resume_toguid";
    pub const RESUME_OBJECT: &str = "com.delphix:resume_object";
    pub const RESUME_OFFSET: &str = "com.delphix:resume_offset";
    pub const RESUME_BYTES: &str = "com.delphix:resume_bytes";
    pub const RESUME_LARGEBLOCK: &str = "com.delphix:resume_largeblockok";
    pub const RESUME_EMBEDOK: &str = "com.delphix:resume_embedok";
    pub const RESUME_COMPRESSOK: &str = "com.delphix:resume_compressok";
    pub const RESUME_RAWOK: &str = "com.datto:resume_rawok";
    pub const RESUME_REDACT_BOOKMARK_SNAPS: &str = "com.delphix:resume_redact_book_snaps";
}

/// Names in the ZAP of a wrapped encryption key (`dsl_crypt.h`).
#[allow(missing_docs)]
pub mod crypto_key {
    pub const SUITE: &str = "DSL_CRYPTO_SUITE";
    pub const GUID: &str = "DSL_CRYPTO_GUID";
    pub const IV: &str = "DSL_CRYPTO_IV";
    pub const MAC: &str = "DSL_CRYPTO_MAC";
    pub const MASTER_KEY: &str = "DSL_CRYPTO_MASTER_KEY_1";
    pub const HMAC_KEY: &str = "DSL_CRYPTO_HMAC_KEY_1";
    pub const ROOT_DDOBJ: &str = "DSL_CRYPTO_ROOT_DDOBJ";
    pub const REFCOUNT: &str = "DSL_CRYPTO_REFCOUNT";
    pub const VERSION: &str = "DSL_CRYPTO_VERSION";
    /// Properties of the wrapping key's derivation, stored in the same ZAP.
    pub const KEYFORMAT: &str = "keyformat";
    pub const PBKDF2_SALT: &str = "pbkdf2salt";
    pub const PBKDF2_ITERS: &str = "pbkdf2iters";
}

/// Suffix of a property's name in a property ZAP (`module/zfs/dsl_prop.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PropSuffix {
    /// No suffix: the value was set locally.
    Local,
    /// `$inherit`: the inherited value overrides the received one.
    Inherit,
    /// `$recvd`: the value was received with a stream.
    Received,
    /// `$iuv`: the value of an index property that older software does not know.
    InheritedUnknown,
    /// `$hasrecvd`: the dataset has received properties.
    HasReceived,
}

/// Splits a key of a property ZAP into name and suffix. Only known suffixes are split off, since names of user
/// properties may contain `$`.
pub fn split_property(key: &str) -> (&str, PropSuffix) {
    if key == "$hasrecvd" {
        return ("", PropSuffix::HasReceived);
    }
    for (text, suffix) in
        [("$inherit", PropSuffix::Inherit), ("$recvd", PropSuffix::Received), ("$iuv", PropSuffix::InheritedUnknown)]
    {
        if let Some(name) = key.strip_suffix(text) {
            return (name, suffix);
        }
    }
    (key, PropSuffix::Local)
}

/// A directory in the tree of datasets (`dsl_dir_phys_t`, 256 bytes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DslDir {
    /// Time of creation, in seconds since 1970. OpenZFS writes it (`dsl_dir_create_sync`) and does not read it.
    pub creation_time_s: u64,
    /// The head dataset: the current, writable state.
    pub head_dataset: ObjectId,
    /// The parent directory; 0 for the root.
    pub parent: ObjectId,
    /// The origin snapshot of a clone, or 0.
    pub origin: ObjectId,
    /// ZAP of the child directories.
    pub children: ObjectId,
    /// Bytes used by this directory and its descendants.
    pub used_bytes: u64,
    /// Bytes after compression.
    pub compressed_bytes: u64,
    /// Bytes before compression.
    pub uncompressed_bytes: u64,
    /// Quota in bytes; 0 if there is none.
    pub quota_bytes: u64,
    /// Reservation in bytes.
    pub reserved_bytes: u64,
    /// ZAP of properties.
    pub props: ObjectId,
    /// ZAP of delegated permissions.
    pub permissions: ObjectId,
    /// Bit 0: `used_breakdown` is valid.
    pub flags: u64,
    /// Bytes used by head, snapshots, children, children's reservations, refreservation.
    pub used_breakdown: [u64; 5],
    /// ZAP of clones' directories.
    pub clones: ObjectId,
}

impl DslDir {
    /// Bytes on disk.
    pub const SIZE: usize = 256;

    /// Decodes a bonus area.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bonus, endian, "DSL directory");
        let [creation_time_s, head, parent, origin, children] = c.words()?;
        let [used_bytes, compressed_bytes, uncompressed_bytes, quota_bytes, reserved_bytes] = c.words()?;
        let [props, permissions, flags] = c.words()?;
        let used_breakdown = c.words()?;
        let [clones] = c.words()?;
        Ok(DslDir {
            creation_time_s,
            head_dataset: ObjectId(head),
            parent: ObjectId(parent),
            origin: ObjectId(origin),
            children: ObjectId(children),
            used_bytes,
            compressed_bytes,
            uncompressed_bytes,
            quota_bytes,
            reserved_bytes,
            props: ObjectId(props),
            permissions: ObjectId(permissions),
            flags,
            used_breakdown,
            clones: ObjectId(clones),
        })
    }

    /// The bytes of the bonus area.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        e.words(&[self.creation_time_s, self.head_dataset.0, self.parent.0, self.origin.0, self.children.0]);
        e.words(&[self.used_bytes, self.compressed_bytes, self.uncompressed_bytes]);
        e.words(&[self.quota_bytes, self.reserved_bytes, self.props.0, self.permissions.0, self.flags]);
        e.words(&self.used_breakdown);
        e.u64(self.clones.0);
        e.pad_to(Self::SIZE);
        e.finish()
    }
}

/// A dataset or snapshot (`dsl_dataset_phys_t`, 320 bytes).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DslDataset {
    /// The DSL directory that the dataset belongs to.
    pub dir: ObjectId,
    /// The previous snapshot.
    pub prev_snapshot: ObjectId,
    /// The txg of the previous snapshot.
    pub prev_snapshot_txg: Txg,
    /// The next snapshot or the head; 0 for a head.
    pub next_snapshot: ObjectId,
    /// ZAP of snapshot names; 0 for a snapshot.
    pub snapshot_names: ObjectId,
    /// Number of references from clones and from the next snapshot; 0 for a head.
    pub children: u64,
    /// Seconds since 1970.
    pub creation_time_s: u64,
    /// The txg in which it was created.
    pub creation_txg: Txg,
    /// The deadlist.
    pub deadlist: ObjectId,
    /// Allocated bytes of the blocks that the dataset references.
    pub referenced_bytes: u64,
    /// Referenced bytes after compression.
    pub compressed_bytes: u64,
    /// Referenced bytes before compression.
    pub uncompressed_bytes: u64,
    /// Bytes of blocks that only this dataset references.
    pub unique_bytes: u64,
    /// 56-bit file system id, used in NFS handles; may change.
    pub fsid_guid: u64,
    /// GUID; never changes.
    pub guid: u64,
    /// [`DslDataset::INCONSISTENT`] and so on.
    pub flags: u64,
    /// Pointer to the object set.
    pub pointer: BlockPointer,
    /// ZAP of clones; snapshots only.
    pub next_clones: ObjectId,
    /// ZAP of properties; snapshots only.
    pub props: ObjectId,
    /// ZAP of user holds.
    pub user_refs: ObjectId,
}

impl DslDataset {
    /// Bytes on disk.
    pub const SIZE: usize = 320;
    /// Flag: being received or destroyed.
    pub const INCONSISTENT: u64 = 1;
    /// Flag: the dataset cannot be promoted.
    pub const NO_PROMOTE: u64 = 2;
    /// Flag: `unique_bytes` is exact.
    pub const UNIQUE_ACCURATE: u64 = 4;
    /// Flag: the snapshot is destroyed when its last hold is released.
    pub const DEFER_DESTROY: u64 = 8;
    /// Flag: names are compared case-insensitively.
    pub const CASE_INSENSITIVE: u64 = 1 << 16;

    /// Decodes a bonus area.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bonus, endian, "DSL dataset");
        let [dir, prev, prev_txg, next, names, children, creation_time_s, creation_txg] = c.words()?;
        let [deadlist, referenced_bytes, compressed_bytes, uncompressed_bytes] = c.words()?;
        let [unique_bytes, fsid_guid, guid, flags] = c.words()?;
        let pointer = BlockPointer::decode(&mut c)?;
        let [next_clones, props, user_refs] = c.words()?;
        Ok(DslDataset {
            dir: ObjectId(dir),
            prev_snapshot: ObjectId(prev),
            prev_snapshot_txg: Txg(prev_txg),
            next_snapshot: ObjectId(next),
            snapshot_names: ObjectId(names),
            children,
            creation_time_s,
            creation_txg: Txg(creation_txg),
            deadlist: ObjectId(deadlist),
            referenced_bytes,
            compressed_bytes,
            uncompressed_bytes,
            unique_bytes,
            fsid_guid,
            guid,
            flags,
            pointer,
            next_clones: ObjectId(next_clones),
            props: ObjectId(props),
            user_refs: ObjectId(user_refs),
        })
    }

    /// The bytes of the bonus area.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        e.words(&[self.dir.0, self.prev_snapshot.0, self.prev_snapshot_txg.0, self.next_snapshot.0]);
        e.words(&[self.snapshot_names.0, self.children, self.creation_time_s, self.creation_txg.0, self.deadlist.0]);
        e.words(&[self.referenced_bytes, self.compressed_bytes, self.uncompressed_bytes, self.unique_bytes]);
        e.words(&[self.fsid_guid, self.guid, self.flags]);
        e.words(self.pointer.words());
        e.words(&[self.next_clones.0, self.props.0, self.user_refs.0]);
        e.pad_to(Self::SIZE);
        e.finish()
    }

    /// Whether this is a snapshot.
    pub fn is_snapshot(&self) -> bool {
        self.children != 0
    }
}

/// Progress of a scrub of the blocks in the error log (`dsl_errorscrub_phys_t`), an array of words in the MOS directory under
/// [`pool::ERRORSCRUB`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ErrorScrubPhys {
    /// 3 for an error scrub; 0 if there was none since the last scrub.
    pub func: u64,
    /// 2 finished, 3 cancelled, 4 error scrubbing.
    pub state: u64,
    /// OpenZFS's place in the error log; 0: its beginning.
    pub cursor: u64,
    /// Time of its start, in seconds since 1970.
    pub start_time_s: u64,
    /// Time of its end; 0 while it is in progress.
    pub end_time_s: u64,
    /// Blocks that were not read yet.
    pub to_examine: u64,
    /// Blocks that were read.
    pub examined: u64,
    /// Blocks that could not be read.
    pub errors: u64,
    /// Not 0 if it is paused.
    pub paused: u64,
}

impl ErrorScrubPhys {
    /// Words on disk.
    pub const WORDS: usize = 9;

    /// From the words of the ZAP entry; `None` if there are too few.
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let [func, state, cursor, start_time_s, end_time_s, to_examine, examined, errors, paused] =
            *words.first_chunk::<{ Self::WORDS }>()?;
        Some(ErrorScrubPhys { func, state, cursor, start_time_s, end_time_s, to_examine, examined, errors, paused })
    }

    /// The words of the ZAP entry.
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let ErrorScrubPhys { func, state, cursor, start_time_s, end_time_s, to_examine, examined, errors, paused } =
            *self;
        [func, state, cursor, start_time_s, end_time_s, to_examine, examined, errors, paused]
    }
}

/// Progress of a scrub or resilver (`dsl_scan_phys_t`), an array of words in the MOS directory under [`pool::SCAN`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ScanPhys {
    /// 0 none, 1 scrub, 2 resilver, 3 error scrub.
    pub func: u64,
    /// 0 none, 1 scanning, 2 finished, 3 cancelled, 4 error scrubbing.
    pub state: u64,
    pub queue: ObjectId,
    pub min_txg: Txg,
    pub max_txg: Txg,
    pub current_min_txg: Txg,
    pub current_max_txg: Txg,
    pub start_time_s: u64,
    pub end_time_s: u64,
    pub to_examine_bytes: u64,
    pub examined_bytes: u64,
    pub skipped_bytes: u64,
    pub processed_bytes: u64,
    pub errors: u64,
    pub ddt_class_max: u64,
    /// Class, type, checksum, cursor.
    pub ddt_bookmark: [u64; 4],
    /// Object set, object, level, block.
    pub bookmark: [u64; 4],
    pub flags: u64,
}

impl ScanPhys {
    /// Words on disk.
    pub const WORDS: usize = 24;

    /// From the words of the ZAP entry; `None` if there are too few.
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let w: &[u64; Self::WORDS] = words.get(..Self::WORDS)?.try_into().ok()?;
        Some(ScanPhys {
            func: w[0],
            state: w[1],
            queue: ObjectId(w[2]),
            min_txg: Txg(w[3]),
            max_txg: Txg(w[4]),
            current_min_txg: Txg(w[5]),
            current_max_txg: Txg(w[6]),
            start_time_s: w[7],
            end_time_s: w[8],
            to_examine_bytes: w[9],
            examined_bytes: w[10],
            skipped_bytes: w[11],
            processed_bytes: w[12],
            errors: w[13],
            ddt_class_max: w[14],
            ddt_bookmark: [w[15], w[16], w[17], w[18]],
            bookmark: [w[19], w[20], w[21], w[22]],
            flags: w[23],
        })
    }

    /// The words of the ZAP entry.
    pub fn to_words(&self) -> [u64; Self::WORDS] {
        let [d0, d1, d2, d3] = self.ddt_bookmark;
        let [b0, b1, b2, b3] = self.bookmark;
        [
            self.func,
            self.state,
            self.queue.0,
            self.min_txg.0,
            self.max_txg.0,
            self.current_min_txg.0,
            self.current_max_txg.0,
            self.start_time_s,
            self.end_time_s,
            self.to_examine_bytes,
            self.examined_bytes,
            self.skipped_bytes,
            self.processed_bytes,
            self.errors,
            self.ddt_class_max,
            d0,
            d1,
            d2,
            d3,
            b0,
            b1,
            b2,
            b3,
            self.flags,
        ]
    }
}
