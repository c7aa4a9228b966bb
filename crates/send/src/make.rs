//! Makes a stream of a snapshot: walks it, reads its blocks ahead, and encodes the records (OpenZFS `dmu_send_impl`).

use crate::encoder::{CryptParameters, StreamEncoder};
use crate::error::SendError;
use crate::merge::Merge;
use crate::plan::SendPlan;
use crate::traverse::{Found, Item, Traversal};
use bytes::Bytes;
use futures_channel::mpsc;
use futures_util::StreamExt;
use futures_util::future::{BoxFuture, ready, try_join3};
use std::sync::Arc;
use weir_blocks::{Bookmark, ReadOptions};
use weir_dmu::{ErrorLocation, Object, ObjectError, ObjectSet, VisitedBlocks};
use weir_dsl::redaction::RedactionReader;
use weir_format::ddt::DdtKey;
use weir_format::kinds::Swap;
use weir_format::stream::{ObjectRecord, Record, SpillRecord, WriteRecord, feature};
use weir_format::{BlockPointer, ChecksumKind, CompressionKind, Dnode, Endian, ObjectId};
use weir_machine::{ByteSemaphore, Request};

/// Maximum bytes of blocks that are read ahead of the stream.
pub const MAX_AHEAD_BYTES: usize = 32 << 20;
/// Maximum number of blocks that are read at the same time.
const MAX_CONCURRENT_READS: usize = 64;
/// Number of items that the walk may be ahead of the reads.
const MAX_ITEMS: usize = 256;
/// Encoded bytes that are handed to the output at once.
const OUTPUT_BYTES: usize = 1 << 20;
/// Maximum block of a stream without large blocks (`SPA_OLD_MAXBLOCKSIZE`).
pub(crate) const OLD_MAX_BLOCK_BYTES: u64 = 128 << 10;
/// Flag of OBJECT: the object has a spill block (`DRR_OBJECT_SPILL`).
pub(crate) const HAS_SPILL: u8 = 4;
/// Flag of SPILL: unchanged since the origin (`DRR_SPILL_UNMODIFIED`).
pub(crate) const SPILL_UNMODIFIED: u8 = 4;
/// Flag of WRITE: the checksum identifies the block (`DRR_CHECKSUM_DEDUP`).
const STRONG_CHECKSUM: u8 = 1;
/// Bytes of a dnode before its pointers (`DNODE_CORE_SIZE`).
const DNODE_CORE_BYTES: usize = 64;
/// Checksum type of a block without a usable checksum (`ZIO_CHECKSUM_OFF`).
const NO_CHECKSUM: u8 = 2;

/// Where a stream goes.
pub trait Output: Send {
    /// Takes bytes of the stream, and waits until there is room for more.
    ///
    /// # Errors
    /// [`SendError::ReaderGone`].
    fn put(&mut self, bytes: Vec<u8>) -> BoxFuture<'_, Result<(), SendError>>;
}

/// A found item with its block's bytes.
struct Loaded {
    item: Item,
    bytes: Bytes,
    is_compressed: bool,
}

/// Makes the stream of one snapshot, from BEGIN to END; returns its length in bytes.
///
/// # Errors
/// [`SendError::Object`] for blocks that cannot be read; [`SendError::Unsupported`]; [`SendError::ReaderGone`].
pub async fn make(
    rq: &Request,
    set: &Arc<ObjectSet>,
    plan: &SendPlan,
    output: &mut dyn Output,
) -> Result<u64, SendError> {
    let (to, items) = mpsc::channel(MAX_ITEMS);
    let mut walk_to = to;
    let from_point = match plan.from_point {
        Some((object, offset)) => {
            // The block size is that of the snapshot, whatever the sizes of the pieces that were sent.
            let block_bytes = set.object(rq, object).await?.block_bytes();
            Some((object, offset.checked_div(block_bytes).unwrap_or(0)))
        }
        None => None,
    };
    let mut merging: BoxFuture<'_, Result<(), SendError>> = Box::pin(ready(Ok(())));
    if plan.redact.is_some() || plan.previous.is_some() {
        let (to, walk) = mpsc::channel(MAX_ITEMS);
        let to = std::mem::replace(&mut walk_to, to);
        let of_point = |list: &RedactionReader| match from_point {
            Some((object, block)) => list.clone().starting_at(object, block),
            None => list.clone(),
        };
        let (redact, previous) = (plan.redact.as_ref().map(of_point), plan.previous.as_ref().map(of_point));
        merging = Box::pin(Merge { rq, set, redact, previous, walk, to }.run());
    }
    let traversal = Traversal {
        rq,
        set,
        is_raw: plan.begin.features & feature::RAW != 0,
        all_holes: false,
        from_point,
        after: plan.from_txg,
        to: walk_to,
        entered: VisitedBlocks::default(),
        memory: ByteSemaphore::new(MAX_AHEAD_BYTES),
    };
    let maker = Maker { rq, set, features: plan.begin.features };
    let encoding = async {
        let mut encoder = StreamEncoder::new(plan.begin.to_guid);
        let (begin, list) = plan.head();
        encoder.begin(begin, &list);
        let mut loaded = std::pin::pin!(items.map(|item| maker.load(item)).buffered(MAX_CONCURRENT_READS));
        while let Some(one) = loaded.next().await {
            maker.encode(&mut encoder, one?)?;
            if encoder.waiting_bytes() >= OUTPUT_BYTES {
                output.put(encoder.take()).await?;
            }
        }
        Ok::<StreamEncoder, SendError>(encoder)
    };
    // The walk ends the stream of items, also when it fails; END follows only if it did not.
    let (encoder, (), ()) = try_join3(encoding, traversal.run(), merging).await?;
    let mut encoder = encoder;
    encoder.end();
    let total = encoder.total_bytes();
    output.put(encoder.take()).await?;
    Ok(total)
}

struct Maker<'a> {
    rq: &'a Request,
    set: &'a Arc<ObjectSet>,
    features: u64,
}

impl Maker<'_> {
    fn has(&self, feature: u64) -> bool {
        self.features & feature != 0
    }

    /// Whether blocks of this size are cut into pieces.
    fn splits(&self, block_bytes: u64) -> bool {
        block_bytes > OLD_MAX_BLOCK_BYTES && !self.has(feature::LARGE_BLOCKS)
    }

    /// Whether an embedded block is sent as it is (`send_do_embed`).
    fn embeds(&self, pointer: &BlockPointer) -> bool {
        let needed = match pointer.compression() {
            Some(CompressionKind::Zstd) => feature::LZ4 | feature::ZSTD,
            Some(CompressionKind::Lz4) => feature::LZ4,
            _ => 0,
        };
        pointer.embedded().is_some_and(|e| e.etype == weir_format::blkptr::Embedded::DATA)
            && self.features & (needed | feature::EMBED_DATA) == needed | feature::EMBED_DATA
    }

    /// Reads the block of an item.
    async fn load(&self, item: Item) -> Result<Loaded, SendError> {
        let empty = |item| Loaded { item, bytes: Bytes::new(), is_compressed: false };
        match &item.0 {
            Found::Object { unmodified_spill: Some(pointer), id, .. } | Found::Spill { object: id, pointer } => {
                if pointer.endian() == Endian::Big {
                    return Err(SendError::Unsupported("objects of the other byte order"));
                }
                let is_raw = self.has(feature::RAW);
                if is_raw {
                    self.check_raw(*id, ErrorLocation::SPILL, pointer)?;
                }
                let bytes = self.read(*id, ErrorLocation::SPILL, pointer, is_raw).await?;
                Ok(Loaded { item, bytes, is_compressed: is_raw })
            }
            Found::Data { pointer, .. } if self.embeds(pointer) => Ok(empty(item)),
            Found::Data { object, dnode, block, pointer } => {
                let kind = dnode.dnode.object_type;
                if pointer.endian() == Endian::Big && !pointer.is_embedded() && kind.swap() != Swap::Uint8 {
                    return Err(SendError::Unsupported("objects of the other byte order"));
                }
                let is_raw = self.has(feature::RAW);
                if is_raw {
                    self.check_raw(*object, *block, pointer)?;
                }
                let is_compressed = is_raw
                    || self.has(feature::COMPRESSED)
                        && !self.splits(dnode.block_bytes())
                        && pointer.endian() == Endian::Little
                        && !pointer.is_embedded()
                        && !pointer.is_encrypted()
                        && !pointer.object_type().is_metadata();
                let bytes = self.read(*object, *block, pointer, is_compressed).await?;
                let expected = if is_compressed { pointer.psize_bytes() } else { dnode.block_bytes() };
                if bytes.len() as u64 != expected {
                    let place = self.set.place(*object, 0, *block);
                    return Err(ObjectError::Corrupt { place, why: "block size differs from the object's" }.into());
                }
                Ok(Loaded { item, bytes, is_compressed })
            }
            _ => Ok(empty(item)),
        }
    }

    /// Checks that a block of a raw stream is as the receiver can store it.
    fn check_raw(&self, id: ObjectId, block: u64, pointer: &BlockPointer) -> Result<(), SendError> {
        if pointer.endian() == Endian::Big {
            return Err(SendError::Unsupported("objects of the other byte order"));
        }
        if !pointer.uses_crypt() || pointer.is_embedded() {
            let place = self.set.place(id, 0, block);
            return Err(ObjectError::Corrupt { place, why: "a block of an encrypted dataset is not protected" }.into());
        }
        Ok(())
    }

    async fn read(&self, id: ObjectId, block: u64, pointer: &BlockPointer, raw: bool) -> Result<Bytes, SendError> {
        let place = self.set.place(id, 0, block);
        let origin = Some(Bookmark { objset: self.set.id(), object: id.0, level: 0, block });
        let options = ReadOptions { origin, raw, ..self.set.options().clone() };
        let read = self.set.cache().read(self.rq, pointer, &options).await;
        Ok(read.map_err(|e| ObjectError::block(place, e))?)
    }

    fn encode(&self, encoder: &mut StreamEncoder, loaded: Loaded) -> Result<(), SendError> {
        let Loaded { item: (found, _permit), bytes, is_compressed } = loaded;
        match found {
            Found::ObjectRange { first, slots, pointer } => {
                encoder.object_range(first, slots, CryptParameters::of(&pointer));
            }
            Found::Object { id, dnode, unmodified_spill } => {
                self.object(encoder, id, &dnode);
                if let Some(pointer) = unmodified_spill {
                    self.spill(encoder, id, &pointer, SPILL_UNMODIFIED, &bytes);
                }
            }
            Found::FreeObjects { first, count } => encoder.free_objects(first, count),
            Found::Hole { object, first, end, block_bytes } => {
                // A hole whose offset overflows can never have been anything else.
                if let Some(offset) = first.checked_mul(block_bytes) {
                    encoder.free(object, offset, end.saturating_mul(block_bytes) - offset);
                }
            }
            Found::Redacted { object, first, end, block_bytes } => {
                let (Some(offset), Some(end)) = (first.checked_mul(block_bytes), end.checked_mul(block_bytes)) else {
                    let place = self.set.place(object, 0, first);
                    return Err(ObjectError::Corrupt { place, why: "a block beyond the end of all objects" }.into());
                };
                encoder.redact(object, offset, end.saturating_sub(offset));
            }
            Found::Spill { object, pointer } => self.spill(encoder, object, &pointer, 0, &bytes),
            Found::Data { object, dnode, block, pointer } => {
                let Some(offset) = block.checked_mul(dnode.block_bytes()) else {
                    let place = self.set.place(object, 0, block);
                    return Err(ObjectError::Corrupt { place, why: "a block beyond the end of all objects" }.into());
                };
                if self.embeds(&pointer) {
                    embedded(encoder, object, offset, dnode.block_bytes(), &pointer);
                } else if self.splits(dnode.block_bytes()) {
                    for (at, piece) in
                        (0..).step_by(OLD_MAX_BLOCK_BYTES as usize).zip(bytes.chunks(OLD_MAX_BLOCK_BYTES as usize))
                    {
                        let record = WriteRecord {
                            object,
                            object_type: dnode.dnode.object_type.0.into(),
                            offset: offset.saturating_add(at),
                            logical_bytes: piece.len() as u64,
                            checksum_type: NO_CHECKSUM,
                            ..WriteRecord::default()
                        };
                        encoder.write(record, piece);
                    }
                } else {
                    let is_raw = self.has(feature::RAW);
                    encoder.write(write_record(object, &dnode, offset, &pointer, (is_compressed, is_raw)), &bytes);
                }
            }
        }
        Ok(())
    }

    fn object(&self, encoder: &mut StreamEncoder, id: ObjectId, dnode: &Dnode) {
        let block_bytes = if self.splits(dnode.data_block_bytes.into()) {
            OLD_MAX_BLOCK_BYTES as u32
        } else {
            dnode.data_block_bytes
        };
        let mut record = ObjectRecord {
            object: id,
            object_type: dnode.object_type.0.into(),
            bonus_type: dnode.bonus_type.0.into(),
            block_bytes,
            bonus_len: dnode.bonus_len.into(),
            checksum: dnode.checksum,
            compression: dnode.compression,
            dnode_slots: dnode.slots() as u8,
            flags: if dnode.spill.is_some() { HAS_SPILL } else { 0 },
            ..ObjectRecord::default()
        };
        let end = dnode.max_block_id.saturating_add(1).saturating_mul(dnode.data_block_bytes.into());
        // The area after the contents may hold remains of a longer one; OpenZFS sends them as padding.
        let bonus = dnode.bonus.get(..usize::from(dnode.bonus_len).next_multiple_of(8)).unwrap_or(dnode.bonus());
        if self.has(feature::RAW) {
            record.max_block_id = dnode.max_block_id;
            record.indirect_shift = dnode.indirect_shift;
            record.levels = dnode.levels;
            record.pointers = dnode.block_pointers.len() as u8;
            if !bonus.is_empty() {
                // The whole area is encrypted.
                let spill_bytes = if dnode.spill.is_some() { BlockPointer::SIZE } else { 0 };
                let room = dnode.slots() * Dnode::SLOT - DNODE_CORE_BYTES;
                let area_bytes = room.saturating_sub(dnode.block_pointers.len() * BlockPointer::SIZE + spill_bytes);
                let area = dnode.bonus.get(..area_bytes).unwrap_or(&dnode.bonus);
                record.raw_bonus_len = area.len() as u32;
                return encoder.object(record, area, end);
            }
        }
        encoder.object(record, bonus, end);
    }

    fn spill(&self, encoder: &mut StreamEncoder, object: ObjectId, pointer: &BlockPointer, flags: u8, bytes: &[u8]) {
        let mut record = SpillRecord { object, length: pointer.lsize_bytes(), flags, ..SpillRecord::default() };
        if self.has(feature::RAW) {
            let CryptParameters { salt, iv, mac } = CryptParameters::of(pointer);
            record.compression = pointer.compression().map_or(0, CompressionKind::to_u8);
            record.compressed_bytes = pointer.psize_bytes();
            (record.salt, record.iv, record.mac) = (salt, iv, mac);
        }
        encoder.spill(record, bytes);
    }
}

fn embedded(encoder: &mut StreamEncoder, object: ObjectId, offset: u64, length: u64, pointer: &BlockPointer) {
    let Some(payload) = pointer.embedded() else { return };
    let record = Record::WriteEmbedded {
        object,
        offset,
        length,
        to_guid: 0,
        compression: pointer.compression().map_or(0, CompressionKind::to_u8),
        etype: payload.etype,
        lsize_bytes: payload.lsize_bytes as u32,
        psize_bytes: payload.psize_bytes as u32,
    };
    encoder.embedded(record, payload.bytes().unwrap_or_default());
}

/// WRITE of a whole block (`dmu_dump_write`): with the block's checksum, if it is one of the bytes sent.
fn write_record(
    object: ObjectId,
    dnode: &Object,
    offset: u64,
    pointer: &BlockPointer,
    (is_compressed, is_raw): (bool, bool),
) -> WriteRecord {
    let mut record = WriteRecord {
        object,
        object_type: dnode.dnode.object_type.0.into(),
        offset,
        logical_bytes: dnode.block_bytes(),
        checksum_type: NO_CHECKSUM,
        ..WriteRecord::default()
    };
    let compression = pointer.compression().filter(|_| !pointer.is_embedded());
    if let Some(kind) = compression.filter(|kind| is_raw || is_compressed && *kind != CompressionKind::Off) {
        record.compression = kind.to_u8();
        record.compressed_bytes = pointer.psize_bytes();
    }
    if is_raw {
        let CryptParameters { salt, iv, mac } = CryptParameters::of(pointer);
        (record.salt, record.iv, record.mac) = (salt, iv, mac);
    }
    if let Some(kind) = pointer.checksum_kind().filter(|_| is_raw || !pointer.uses_crypt()) {
        use ChecksumKind::{Blake3, Edonr, Sha256, Sha512, Skein};
        record.checksum_type = kind as u8;
        record.flags = u8::from(matches!(kind, Sha256 | Sha512 | Skein | Edonr | Blake3)) * STRONG_CHECKSUM;
        record.key = DdtKey { checksum: pointer.checksum(), prop: key_properties(pointer) };
    }
    record
}

/// Sizes and compression in a block's key (`DDK_SET_LSIZE` and so on): sectors less one in 16 bits each, compression in 7,
/// protection in 1.
fn key_properties(pointer: &BlockPointer) -> u64 {
    let sectors = |bytes: u64| (bytes >> 9).saturating_sub(1) & 0xffff;
    let compression = pointer.compression().map_or(0, CompressionKind::to_u8);
    let sizes = sectors(pointer.lsize_bytes()) | sectors(pointer.psize_bytes()) << 16;
    sizes | u64::from(compression & 0x7f) << 32 | u64::from(pointer.uses_crypt()) << 39
}
