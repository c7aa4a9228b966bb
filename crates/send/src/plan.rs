//! What a stream is about: the snapshot, the origin that it is relative to, and its BEGIN record (OpenZFS `dmu_send`,
//! `setup_featureflags`, `create_begin_record`).

use crate::error::SendError;
use std::sync::Arc;
use weir_codec::crypt::WrappedKey;
use weir_dmu::zap::Value;
use weir_dmu::{ObjectError, ObjectSet, zap};
use weir_dsl::redaction::{RedactionReader, redaction_of};
use weir_dsl::{Dataset, Dsl, KeyFormat, bookmarks, keys};
use weir_format::dsl::{Bookmark, crypto_key, dataset_field};
use weir_format::features::Feature;
use weir_format::stream::{Begin, feature};
use weir_format::znode::master;
use weir_format::{DslDataset, Endian, NvList, NvValue, ObjectId, ObjsetKind, Txg};
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

/// Entry in the list of BEGIN: the wrapped key of a raw stream (`crypt_keydata`).
pub const KEY_DATA: &str = "crypt_keydata";
/// Entries in the list of BEGIN: where a stream is continued (`BEGINNV_RESUME_OBJECT`, `BEGINNV_RESUME_OFFSET`).
pub const RESUME_OBJECT: &str = "resume_object";
/// See [`RESUME_OBJECT`].
pub const RESUME_OFFSET: &str = "resume_offset";

/// Entries in the list of BEGIN: GUIDs of the snapshots that the stream is redacted for, and that its origin is redacted for at
/// the receiver (`BEGINNV_REDACT_SNAPS`, `BEGINNV_REDACT_FROM_SNAPS`).
pub const REDACT_SNAPS: &str = "redact_snaps";
/// See [`REDACT_SNAPS`].
pub const REDACT_FROM_SNAPS: &str = "redact_from_snaps";

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
    /// Blocks of an encrypted dataset are sent as they are on disk, without the key (`-w`).
    pub raw: bool,
}

/// The names of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SendNames<'a> {
    /// The snapshot or bookmark that the stream is relative to.
    pub from: Option<&'a str>,
    /// The redaction bookmark of the snapshot's dataset, with or without the dataset.
    pub redact: Option<&'a str>,
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
    /// Blocks that are left out.
    pub redact: Option<RedactionReader>,
    /// Blocks that were left out of the stream that the origin was received from.
    pub previous: Option<RedactionReader>,
    /// The list of the BEGIN record.
    pub list: NvList,
}

/// The origin of an incremental stream.
struct Origin {
    guid: u64,
    txg: Txg,
    is_clone: bool,
    /// Identity of the IVs of its blocks; 0 if they are not encrypted.
    ivset_guid: u64,
    /// The redaction list of a bookmark.
    list: Option<RedactionReader>,
    /// GUIDs of the snapshots that a redacted snapshot is redacted for.
    redacted_for: Option<Vec<u64>>,
}

impl SendPlan {
    /// Plans the stream of the snapshot `to` with these names. `set` is the snapshot's object set.
    ///
    /// # Errors
    /// [`SendError::Refused`] if one is missing or `from` is not earlier; errors of reading.
    pub async fn new(
        rq: &Request,
        dsl: &Dsl,
        (names, to): (SendNames<'_>, Dataset),
        set: &Arc<ObjectSet>,
        (flags, pool): (SendFlags, PoolFeatures),
    ) -> Result<SendPlan, SendError> {
        let origin = match names.from {
            Some(from) => Some(origin(rq, dsl, from, &to).await?),
            None => None,
        };
        let redact = match names.redact {
            Some(_) if flags.raw => return Err(SendError::Whole("Error: raw sends may not be redacted.".into())),
            Some(name) => Some(list_of(rq, dsl, &to, name).await?),
            None => None,
        };
        let redacted_for = match &redact {
            Some(list) => Some(list.header().snapshots.clone()),
            None => redaction_of(dsl, rq, &to).await?,
        };
        let mut features = feature_flags(rq, dsl, &to, set, (flags, pool)).await?;
        if redacted_for.is_some() {
            features |= feature::REDACTED;
        }
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
        let from_txg = origin.as_ref().map_or(Txg(0), |origin| origin.txg);
        let mut list = NvList::new();
        if let Some(guids) = redacted_for {
            list.set(REDACT_SNAPS, NvValue::Uint64Array(guids));
        }
        let (previous, from_redacted) = match &origin {
            Some(origin) => (origin.list.clone(), origin.redacted_for.clone()),
            None => (None, None),
        };
        let from_list = previous.as_ref().map(|list| list.header().snapshots.clone());
        if let Some(guids) = from_list.or(from_redacted) {
            list.set(REDACT_FROM_SNAPS, NvValue::Uint64Array(guids));
        }
        if begin.features & feature::RAW != 0 {
            let from_ivset = origin.as_ref().map_or(0, |origin| origin.ivset_guid);
            list.set(KEY_DATA, key_data(rq, dsl, &to, set, from_ivset).await?);
        }
        Ok(SendPlan { begin, from_txg, to, from_point: None, redact, previous, list })
    }

    /// Objects of the redaction lists, which must stay while the stream is made.
    pub fn redaction_lists(&self) -> impl Iterator<Item = ObjectId> {
        self.redact.iter().chain(&self.previous).map(RedactionReader::object)
    }

    /// The rest of the stream, from an object and an offset in it.
    #[must_use]
    pub fn continued(mut self, object: ObjectId, offset: u64) -> Self {
        self.list.set(RESUME_OBJECT, object.0);
        self.list.set(RESUME_OFFSET, offset);
        self.begin.features |= feature::RESUMING;
        self.from_point = Some((object, offset));
        self
    }

    /// The BEGIN record and its packed list.
    pub fn head(&self) -> (Begin, Vec<u8>) {
        let list = if self.list.is_empty() { Vec::new() } else { self.list.encode_native(Endian::Little) };
        (Begin { payload_len: list.len() as u32, ..self.begin.clone() }, list)
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
        return Ok(Origin {
            guid: earlier.phys.guid,
            txg: earlier.phys.creation_txg,
            is_clone,
            ivset_guid: ivset_guid(rq, dsl, &earlier).await?,
            list: None,
            redacted_for: redaction_of(dsl, rq, &earlier).await?,
        });
    };
    let gone = || SendError::Refused(format!("incremental source ({from}) does not exist"));
    let dir = dsl.dir_named(source).ok_or_else(gone)?;
    let head = dsl.head(rq, dir).await?;
    let bookmark = bookmark_named(rq, dsl, &head, from).await?.ok_or_else(gone)?;
    let list = complete_list(rq, dsl, from, &bookmark).await?;
    // A bookmark takes the place of its snapshot in the chain.
    let phys = DslDataset { creation_txg: bookmark.creation_txg, guid: bookmark.guid, ..head.phys.clone() };
    let earlier = Dataset { id: ObjectId(0), name: format!("{source}@"), phys, ..head };
    // From the redaction bookmark of the snapshot itself, a stream has the blocks that were redacted.
    let is_of_itself = list.is_some() && bookmark.guid == to.phys.guid;
    if !is_of_itself && !dsl.is_before(rq, to, &earlier).await? {
        return Err(not_earlier());
    }
    Ok(Origin {
        guid: bookmark.guid,
        txg: bookmark.creation_txg,
        is_clone: source != of,
        ivset_guid: bookmark.ivset_guid,
        list,
        redacted_for: None,
    })
}

/// The bookmark of a head with that full name.
async fn bookmark_named(rq: &Request, dsl: &Dsl, head: &Dataset, name: &str) -> Result<Option<Bookmark>, ObjectError> {
    let all = bookmarks::bookmarks(dsl, rq, head).await?;
    Ok(all.into_iter().find(|bookmark| bookmark.name == name).map(|named| named.bookmark))
}

/// The redaction list of a bookmark; `None` if it is an ordinary one.
async fn complete_list(
    rq: &Request,
    dsl: &Dsl,
    name: &str,
    bookmark: &Bookmark,
) -> Result<Option<RedactionReader>, SendError> {
    let list = RedactionReader::open(dsl, rq, bookmark).await?;
    match list {
        Some(list) if !list.header().is_complete() => {
            Err(SendError::Refused(format!("the redaction list of {name} is not complete")))
        }
        list => Ok(list),
    }
}

/// The redaction list that a stream of a snapshot is redacted with.
async fn list_of(rq: &Request, dsl: &Dsl, to: &Dataset, name: &str) -> Result<RedactionReader, SendError> {
    let of = to.name.split('@').next().unwrap_or_default();
    let short = name.rsplit_once('#').map_or(name, |(_, short)| short);
    let name = format!("{of}#{short}");
    let missing = || SendError::Whole(format!("cannot open '{name}': bookmark does not exist"));
    let dir = dsl.dir_named(of).ok_or_else(missing)?;
    let head = dsl.head(rq, dir).await?;
    let bookmark = bookmark_named(rq, dsl, &head, &name).await?.ok_or_else(missing)?;
    let list = complete_list(rq, dsl, &name, &bookmark).await?;
    list.ok_or_else(|| SendError::Refused("not a redaction bookmark".to_owned()))
}

/// Identity of the IVs of a snapshot's blocks; 0 if it has none.
async fn ivset_guid(rq: &Request, dsl: &Dsl, snapshot: &Dataset) -> Result<u64, ObjectError> {
    let fields = dsl.dataset_fields(rq, snapshot).await?;
    Ok(fields.get(dataset_field::IVSET_GUID).and_then(Value::first).unwrap_or(0))
}

/// The wrapped key of an encrypted dataset, and how the dnodes of its snapshot are stored (`dsl_crypto_populate_key_nvlist`).
async fn key_data(
    rq: &Request,
    dsl: &Dsl,
    to: &Dataset,
    set: &Arc<ObjectSet>,
    from_ivset: u64,
) -> Result<NvList, SendError> {
    let unreadable = || SendError::Refused("the dataset has no readable key object".to_owned());
    let dir = dsl.dir(to.dir).ok_or_else(unreadable)?;
    let spec = keys::key_spec(dsl, rq, dir).await?.ok_or_else(unreadable)?;
    // The root knows how the wrapping key is made; others may lack that.
    let root = match dsl.dir(spec.root) {
        Some(root) => keys::key_spec(dsl, rq, root).await?.ok_or_else(unreadable)?,
        None => return Err(unreadable()),
    };
    let meta = set.meta().ok_or_else(unreadable)?;
    let key = &spec.wrapped;
    if key.version != WrappedKey::CURRENT_VERSION {
        return Err(SendError::Refused("the dataset is encrypted in an old format that cannot be sent raw".to_owned()));
    }
    let is_passphrase = root.format == Some(KeyFormat::Passphrase);
    let if_passphrase = |n: u64| if is_passphrase { n } else { 0 };
    let mut list = NvList::new();
    let bytes = |bytes: &[u8]| NvValue::Uint8Array(bytes.to_vec());
    list.set(crypto_key::SUITE, key.suite);
    list.set(crypto_key::GUID, key.guid);
    list.set(crypto_key::VERSION, key.version);
    list.set(crypto_key::MASTER_KEY, bytes(&key.master_key));
    list.set(crypto_key::HMAC_KEY, bytes(&key.hmac_key));
    list.set(crypto_key::IV, bytes(&key.iv));
    list.set(crypto_key::MAC, bytes(&key.mac));
    list.set("portable_mac", bytes(&set.root().header.portable_mac));
    list.set(crypto_key::KEYFORMAT, root.format_number);
    list.set(crypto_key::PBKDF2_ITERS, if_passphrase(root.iterations));
    list.set(crypto_key::PBKDF2_SALT, if_passphrase(root.salt));
    let dnode = &meta.dnode;
    list.set("mdn_checksum", u64::from(dnode.checksum));
    list.set("mdn_compress", u64::from(dnode.compression));
    list.set("mdn_nlevels", u64::from(dnode.levels));
    list.set("mdn_blksz", meta.block_bytes());
    list.set("mdn_indblkshift", u64::from(dnode.indirect_shift));
    list.set("mdn_nblkptr", dnode.block_pointers.len() as u64);
    list.set("mdn_maxblkid", dnode.max_block_id);
    list.set("to_ivset_guid", ivset_guid(rq, dsl, to).await?);
    list.set("from_ivset_guid", from_ivset);
    Ok(list)
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
    let version = match set.kind() {
        // All encrypted file systems have system attributes.
        ObjsetKind::Zfs if set.is_locked() => Some(weir_dsl::sync_tasks::ZPL_VERSION),
        ObjsetKind::Zfs => zap::lookup_word(rq, set, ObjectId(master::OBJECT), master::VERSION).await?,
        _ => None,
    };
    let is_raw = flags.raw && set.is_encrypted();
    let large_blocks = (flags.large_blocks || flags.raw) && uses(Feature::LARGE_BLOCKS);
    let embeds = (flags.embedded || flags.raw) && pool.embedded_data && !set.is_encrypted();
    let compressed = flags.compressed || flags.raw;
    if uses(Feature::LARGE_MICROZAP) && !large_blocks {
        let why = "source snapshot contains large microzaps, need -L (--large-block) or -w (--raw) to generate stream";
        return Err(SendError::Refused(why.to_owned()));
    }
    let bits = [
        (version.is_some_and(|version| version >= weir_dsl::sync_tasks::ZPL_VERSION), feature::SA_SPILL),
        (large_blocks, feature::LARGE_BLOCKS),
        (embeds, feature::EMBED_DATA),
        (compressed, feature::COMPRESSED),
        (is_raw, feature::RAW),
        ((embeds || compressed) && pool.lz4, feature::LZ4),
        (compressed && uses(Feature::ZSTD_COMPRESS), feature::ZSTD),
        (uses(Feature::LARGE_DNODE), feature::LARGE_DNODE),
        (uses(Feature::LONGNAME), feature::LONGNAME),
        (uses(Feature::LARGE_MICROZAP), feature::LARGE_MICROZAP),
    ];
    Ok(bits.into_iter().filter(|(is_set, _)| *is_set).map(|(_, bit)| bit).sum())
}
