//! Checks of received records: what every sender obeys, before anything is changed (OpenZFS `recv_check_drr_*`).

use crate::error::ReceiveError;
use crate::make::{HAS_SPILL, OLD_MAX_BLOCK_BYTES};
use crate::plan::HAS_SPILLS;
use weir_dmu::ErrorLocation;
use weir_format::stream::{Begin, ObjectRecord, Record, SpillRecord, WriteRecord, feature};
use weir_format::{CompressionKind, Dnode, ObjectId, ObjectType};

/// Number of object numbers (`DN_MAX_OBJECT`).
const MAX_OBJECTS: u64 = 1 << 48;
/// Slots of a block of dnodes.
pub(crate) const SLOTS_PER_BLOCK: u64 = 32;
/// Maximum block size.
const MAX_BLOCK_BYTES: u64 = 16 << 20;
/// Maximum payload of an embedded block.
const MAX_EMBEDDED_BYTES: u32 = 112;
/// Number of checksum functions (`ZIO_CHECKSUM_FUNCTIONS`).
const CHECKSUMS: u8 = 15;
/// Offsets from here on are not those of a file or volume.
const MAX_OFFSET: u64 = i64::MAX as u64;
/// Feature flags of streams that can be received.
pub const SUPPORTED: u64 = feature::SA_SPILL
    | feature::EMBED_DATA
    | feature::LZ4
    | feature::LARGE_BLOCKS
    | feature::COMPRESSED
    | feature::LARGE_DNODE
    | feature::ZSTD
    | feature::HOLDS
    | feature::RESUMING
    | feature::SWITCH_TO_LARGE_BLOCKS
    | feature::LONGNAME
    | feature::LARGE_MICROZAP;
/// Names of feature flags that are known and not supported.
const UNSUPPORTED: [(u64, &str); 4] = [
    (feature::DEDUP, "deduplicated streams; convert it with: zstream redup"),
    (feature::DEDUP_PROPS, "deduplicated streams; convert it with: zstream redup"),
    (feature::REDACTED, "redacted streams"),
    (feature::RAW, "raw streams (zfs send -w)"),
];

fn invalid<T>(why: impl Into<String>) -> Result<T, ReceiveError> {
    Err(ReceiveError::Invalid(why.into()))
}

/// Checks the feature flags of a stream.
///
/// # Errors
/// [`ReceiveError::Unsupported`] with the feature's name.
pub fn check_features(begin: &Begin) -> Result<(), ReceiveError> {
    if let Some((_, what)) = UNSUPPORTED.iter().find(|(bit, _)| begin.features & bit != 0) {
        return Err(ReceiveError::Unsupported(format!("weir does not receive {what}")));
    }
    match begin.features & !SUPPORTED {
        0 => Ok(()),
        unknown => {
            let flags = begin.features;
            let why =
                format!("stream has unsupported feature, feature flags = {flags:x} (unknown flags = {unknown:x})");
            Err(ReceiveError::Unsupported(why))
        }
    }
}

/// Checks a record of the stream that `begin` began.
///
/// # Errors
/// [`ReceiveError::Invalid`].
pub fn check(begin: &Begin, record: &Record) -> Result<(), ReceiveError> {
    match record {
        Record::Object(object) => check_object(begin, object),
        Record::Write(write) => check_write(begin, write),
        Record::Spill(spill) => check_spill(spill),
        Record::WriteEmbedded { object, offset, length, compression, etype, lsize_bytes, psize_bytes, .. } => {
            number(*object)?;
            block_bytes(begin, *length)?;
            if !is_spill(*offset, *length) {
                range(*offset, *length)?;
            }
            compressed(begin, *compression)?;
            let is_data = *etype == weir_format::blkptr::Embedded::DATA;
            let fits = *psize_bytes <= MAX_EMBEDDED_BYTES && u64::from(*lsize_bytes) <= *length;
            if begin.features & feature::EMBED_DATA == 0 || !is_data || !fits || lsize_bytes < psize_bytes {
                return invalid("an embedded block that cannot be one");
            }
            Ok(())
        }
        Record::Free { object, offset, length, .. } => {
            number(*object)?;
            if *length == u64::MAX { Ok(()) } else { range(*offset, *length) }
        }
        Record::FreeObjects { first, count, .. } => match first.0.checked_add(*count) {
            Some(_) => Ok(()),
            None => invalid("a range of objects that has no end"),
        },
        Record::End { .. } => Ok(()),
        other => invalid(format!("a record {} does not belong here", other.name())),
    }
}

/// Whether an embedded block is a spill block: OpenZFS 2.4 sends one, with `-e`, at the offset that the number of spill blocks
/// gives (`dump_write_embedded`).
pub(crate) fn is_spill(offset: u64, length: u64) -> bool {
    offset == ErrorLocation::SPILL.wrapping_mul(length)
}

fn number(object: ObjectId) -> Result<(), ReceiveError> {
    match object.0 {
        1..MAX_OBJECTS => Ok(()),
        other => invalid(format!("object number {other} is outside the valid range")),
    }
}

fn range(offset: u64, length: u64) -> Result<(), ReceiveError> {
    match offset.checked_add(length) {
        Some(end) if end <= MAX_OFFSET => Ok(()),
        _ => invalid(format!("offset {offset} and length {length} are beyond the end of every object")),
    }
}

fn block_bytes(begin: &Begin, bytes: u64) -> Result<(), ReceiveError> {
    let most = if begin.features & feature::LARGE_BLOCKS == 0 { OLD_MAX_BLOCK_BYTES } else { MAX_BLOCK_BYTES };
    match bytes {
        512.. if bytes <= most && bytes.is_multiple_of(512) => Ok(()),
        other => invalid(format!("block size {other} is not valid in this stream")),
    }
}

fn compressed(begin: &Begin, kind: u8) -> Result<(), ReceiveError> {
    let needed = match CompressionKind::from_u8(kind) {
        None => return invalid(format!("compression type {kind} does not exist")),
        Some(CompressionKind::Zstd) => feature::ZSTD,
        Some(CompressionKind::Lz4) => feature::LZ4,
        Some(_) => 0,
    };
    if begin.features & needed == needed { Ok(()) } else { invalid("a compression that the stream did not announce") }
}

fn kind(number: u32) -> Result<ObjectType, ReceiveError> {
    match u8::try_from(number).map(ObjectType) {
        Ok(kind) if kind.is_valid() => Ok(kind),
        _ => invalid(format!("object type {number} does not exist")),
    }
}

fn check_object(begin: &Begin, o: &ObjectRecord) -> Result<(), ReceiveError> {
    number(o.object)?;
    block_bytes(begin, o.block_bytes.into())?;
    let slots = u64::from(o.dnode_slots.max(1));
    if kind(o.object_type)? == ObjectType::NONE {
        return invalid("an object without a type");
    }
    let bonus = kind(o.bonus_type)?;
    if bonus == ObjectType::NONE && o.bonus_len != 0 {
        return invalid("a bonus area without a type");
    }
    if slots > 1 && begin.features & feature::LARGE_DNODE == 0 {
        return invalid("a large dnode that the stream did not announce");
    }
    if o.object.0 % SLOTS_PER_BLOCK + slots > SLOTS_PER_BLOCK {
        return invalid("a dnode that reaches into the next block of dnodes");
    }
    // The header and one pointer take 192 bytes; a spill pointer takes 128 more.
    let has_spill = o.flags & HAS_SPILL != 0;
    let room = slots * Dnode::SLOT as u64 - 192 - u64::from(has_spill) * 128;
    if u64::from(o.bonus_len) > room {
        return invalid(format!("a bonus area of {} bytes in a dnode of {slots} slots", o.bonus_len));
    }
    if has_spill && begin.flags & HAS_SPILLS == 0 || o.flags & !HAS_SPILL != 0 {
        return invalid(format!("flags {:#x} of an object are not valid in this stream", o.flags));
    }
    let of_raw = [o.raw_bonus_len, o.pointers.into(), o.indirect_shift.into(), o.levels.into()];
    if of_raw != [0; 4] || o.checksum >= CHECKSUMS || CompressionKind::from_u8(o.compression).is_none() {
        return invalid("an object with fields that are not valid in this stream");
    }
    Ok(())
}

fn check_write(begin: &Begin, w: &WriteRecord) -> Result<(), ReceiveError> {
    number(w.object)?;
    range(w.offset, w.logical_bytes)?;
    block_bytes(begin, w.logical_bytes)?;
    kind(w.object_type)?;
    if w.checksum_type >= CHECKSUMS {
        return invalid(format!("checksum type {} does not exist", w.checksum_type));
    }
    if w.compression == 0 {
        return if w.compressed_bytes == 0 { Ok(()) } else { invalid("a compressed size without a compression") };
    }
    compressed(begin, w.compression)?;
    let fits = w.compressed_bytes > 0 && w.compressed_bytes <= w.logical_bytes;
    if begin.features & feature::COMPRESSED == 0 || !fits {
        return invalid("a compressed block that is not valid in this stream");
    }
    Ok(())
}

fn check_spill(s: &SpillRecord) -> Result<(), ReceiveError> {
    number(s.object)?;
    kind(s.object_type)?;
    let is_valid = s.length.is_multiple_of(512) && (512..=MAX_BLOCK_BYTES).contains(&s.length);
    if !is_valid || s.compressed_bytes != 0 {
        return invalid(format!("a spill block of {} bytes is not valid in this stream", s.length));
    }
    Ok(())
}
