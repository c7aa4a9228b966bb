//! What a stream is about: the snapshot, the origin that it is relative to, and its BEGIN record (OpenZFS `dmu_send`,
//! `setup_featureflags`, `create_begin_record`).

use crate::error::SendError;
use std::sync::Arc;
use weir_dmu::{ObjectError, ObjectSet, zap};
use weir_dsl::{Dataset, Dsl, bookmarks};
use weir_format::features::Feature;
use weir_format::stream::{Begin, feature};
use weir_format::znode::master;
use weir_format::{DslDataset, Endian, NvList, ObjectId, ObjsetKind, Txg};
use weir_machine::Request;

/// BEGIN of one snapshot (`DMU_SUBSTREAM`).
pub const ONE_SNAPSHOT: u8 = 1;
/// BEGIN of several streams (`DMU_COMPOUNDSTREAM`).
pub const COMPOUND: u8 = 2;
/// Flag of BEGIN: the origin is of another dataset (`DRR_FLAG_CLONE`).
pub const IS_CLONE: u32 = 1;
/// Flag of BEGIN: names ignore case (`DRR_FLAG_CI_DATA`).
pub const IGNORES_CASE: u32 = 2;
/// Flag of BEGIN: the stream has all free records (`DRR_FLAG_FREERECORDS`).
pub const HAS_FREES: u32 = 4;
/// Flag of BEGIN: objects say whether they have a spill block (`DRR_FLAG_SPILL_BLOCK`).
pub const HAS_SPILLS: u32 = 8;

/// Entries in the list of BEGIN: where a stream is continued (`BEGINNV_RESUME_OBJECT`, `BEGINNV_RESUME_OFFSET`).
pub const RESUME_OBJECT: &str = "resume_object";
/// See [`RESUME_OBJECT`].
pub const RESUME_OFFSET: &str = "resume_offset";

/// Features of the pool that decide what a stream may contain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolFeatures {
    /// `feature@lz4_compress` is active.
    pub lz4: bool,
    /// `feature@embedded_data` is active.
    pub embedded_data: bool,
}

/// Options of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendFlags {
    /// Blocks of more than 128 KiB are sent whole (`-L`).
    pub large_blocks: bool,
    /// Embedded blocks are sent as such (`-e`).
    pub embedded: bool,
    /// Compressed blocks are sent as such (`-c`).
    pub compressed: bool,
}

/// A stream to be made.
#[derive(Clone, Debug)]
pub struct SendPlan {
    /// The BEGIN record.
    pub begin: Begin,
    /// Txg of the origin; 0 for a full stream.
    pub from_txg: Txg,
    /// The snapshot.
    pub to: Dataset,
    /// Object and offset from which the stream is continued.
    pub from_point: Option<(ObjectId, u64)>,
    /// Packed list of the BEGIN record.
    pub list: Vec<u8>,
}

/// The origin of an incremental stream.
struct Origin {
    guid: u64,
    txg: Txg,
    is_clone: bool,
}

impl SendPlan {
    /// Plans the stream of the snapshot `to`, relative to the snapshot or bookmark `from`. `set` is the snapshot's object
    /// set.
    ///
    /// # Errors
    /// [`SendError::Refused`] if one is missing or `from` is not earlier; errors of reading.
    pub async fn new(
        rq: &Request,
        dsl: &Dsl,
        (from, to): (Option<&str>, Dataset),
        set: &Arc<ObjectSet>,
        (flags, pool): (SendFlags, PoolFeatures),
    ) -> Result<SendPlan, SendError> {
        let origin = match from {
            Some(from) => Some(origin(rq, dsl, from, &to).await?),
            None => None,
        };
        let features = feature_flags(rq, dsl, &to, set, (flags, pool)).await?;
        let is_clone = origin.as_ref().is_some_and(|origin| origin.is_clone);
        let ignores_case = to.phys.flags & DslDataset::CASE_INSENSITIVE != 0;
        let bits = u32::from(is_clone) * IS_CLONE + u32::from(ignores_case) * IGNORES_CASE + HAS_FREES + HAS_SPILLS;
        let begin = Begin {
            header_type: ONE_SNAPSHOT,
            features,
            creation_time_s: to.phys.creation_time_s,
            objset_type: set.kind() as u32,
            flags: bits,
            to_guid: to.phys.guid,
            from_guid: origin.as_ref().map_or(0, |origin| origin.guid),
            to_name: to.name.clone().into_bytes(),
            payload_len: 0,
        };
        let from_txg = origin.map_or(Txg(0), |origin| origin.txg);
        Ok(SendPlan { begin, from_txg, to, from_point: None, list: Vec::new() })
    }

    /// The rest of the stream, from an object and an offset in it.
    #[must_use]
    pub fn continued(mut self, object: ObjectId, offset: u64) -> Self {
        let mut list = NvList::new();
        list.set(RESUME_OBJECT, object.0);
        list.set(RESUME_OFFSET, offset);
        self.list = list.encode_native(Endian::Little);
        self.begin.features |= feature::RESUMING;
        self.begin.payload_len = self.list.len() as u32;
        self.from_point = Some((object, offset));
        self
    }
}

/// Finds the origin of an incremental stream.
async fn origin(rq: &Request, dsl: &Dsl, from: &str, to: &Dataset) -> Result<Origin, SendError> {
    let not_earlier = || SendError::Refused("not an earlier snapshot from the same fs".to_owned());
    let missing = |error: ObjectError| match error {
        ObjectError::NoName { .. } => SendError::Refused(format!("incremental source ({from}) does not exist")),
        other => SendError::Object(other),
    };
    let of = to.name.split('@').next().unwrap_or_default();
    let Some((source, _)) = from.split_once('#') else {
        let earlier = dsl.find(rq, from).await.map_err(missing)?;
        if !earlier.is_snapshot() || !dsl.is_before(rq, to, &earlier).await? {
            return Err(not_earlier());
        }
        let is_clone = earlier.name.split('@').next() != Some(of);
        return Ok(Origin { guid: earlier.phys.guid, txg: earlier.phys.creation_txg, is_clone });
    };
    let dir = dsl
        .dir_named(source)
        .ok_or_else(|| SendError::Refused(format!("incremental source ({from}) does not exist")))?;
    let head = dsl.head(rq, dir).await?;
    let all = bookmarks::bookmarks(dsl, rq, &head).await?;
    let found = all.into_iter().find(|bookmark| bookmark.name == from).map(|named| named.bookmark);
    let bookmark = found.ok_or_else(|| SendError::Refused(format!("incremental source ({from}) does not exist")))?;
    if bookmark.redaction_list.0 != 0 {
        return Err(SendError::Unsupported("from a redaction bookmark"));
    }
    // A bookmark takes the place of its snapshot in the chain.
    let phys = DslDataset { creation_txg: bookmark.creation_txg, guid: bookmark.guid, ..head.phys.clone() };
    let earlier = Dataset { id: ObjectId(0), name: format!("{source}@"), phys, ..head };
    if !dsl.is_before(rq, to, &earlier).await? {
        return Err(not_earlier());
    }
    Ok(Origin { guid: bookmark.guid, txg: bookmark.creation_txg, is_clone: source != of })
}

/// The feature flags of a stream.
async fn feature_flags(
    rq: &Request,
    dsl: &Dsl,
    to: &Dataset,
    set: &Arc<ObjectSet>,
    (flags, pool): (SendFlags, PoolFeatures),
) -> Result<u64, SendError> {
    let fields = dsl.dataset_fields(rq, to).await?;
    let uses = |feature: &Feature| fields.contains_key(feature.guid);
    if uses(Feature::REDACTED_DATASETS) {
        return Err(SendError::Unsupported("a redacted dataset"));
    }
    let version = match set.kind() {
        ObjsetKind::Zfs => zap::lookup_word(rq, set, ObjectId(master::OBJECT), master::VERSION).await?,
        _ => None,
    };
    let large_blocks = flags.large_blocks && uses(Feature::LARGE_BLOCKS);
    let embeds = flags.embedded && pool.embedded_data && !set.is_encrypted();
    if uses(Feature::LARGE_MICROZAP) && !large_blocks {
        let why = "source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream";
        return Err(SendError::Refused(why.to_owned()));
    }
    let bits = [
        (version.is_some_and(|version| version >= weir_dsl::sync_tasks::ZPL_VERSION), feature::SA_SPILL),
        (large_blocks, feature::LARGE_BLOCKS),
        (embeds, feature::EMBED_DATA),
        (flags.compressed, feature::COMPRESSED),
        ((embeds || flags.compressed) && pool.lz4, feature::LZ4),
        (flags.compressed && uses(Feature::ZSTD_COMPRESS), feature::ZSTD),
        (uses(Feature::LARGE_DNODE), feature::LARGE_DNODE),
        (uses(Feature::LONGNAME), feature::LONGNAME),
        (uses(Feature::LARGE_MICROZAP), feature::LARGE_MICROZAP),
    ];
    Ok(bits.into_iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum())
}
