//! Checks of received records: what every sender obeys, before anything is changed (OpenZFS `recv_check_drr_*`).

use crate::error::ReceiveError;
use crate::make::{HAS_SPILL, OLD_MAX_BLOCK_BYTES};
use crate::plan::{HAS_SPILLS, REDACT_FROM_SNAPS, REDACT_SNAPS};
use weir_dmu::ErrorLocation;
use weir_dsl::sync_tasks::receive_redacted::StreamRedaction;
use weir_format::features::Feature;
use weir_format::stream::{Begin, ObjectRecord, Record, SpillRecord, WriteRecord, feature};
use weir_format::{CompressionKind, Dnode, NvList, ObjectId, ObjectType};

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
/// Flag of a record: the block is of the other byte order (`DRR_RAW_BYTESWAP`).
const OTHER_ORDER: u8 = 2;
/// Maximum number of levels of an object's tree (`DN_MAX_LEVELS`).
const MAX_LEVELS: u32 = 8;
/// Log2 of the sizes of indirect blocks (`DN_MIN_INDBLKSHIFT`, before 2012 10; `DN_MAX_INDBLKSHIFT`).
const INDIRECT: std::ops::RangeInclusive<u8> = 10..=17;
/// Maximum number of snapshots that a stream is redacted for: they are the value of an entry of a ZAP (`ZAP_MAXVALUELEN`).
const MAX_REDACTION_SNAPSHOTS: usize = 1024;
/// Offsets from here on are not those of a file or volume.
const MAX_OFFSET: u64 = 1 << 63;
/// Feature flags of streams that can be received.
pub const SUPPORTED: u64 = feature::SA_SPILL
    | feature::EMBED_DATA
    | feature::LZ4
    | feature::LARGE_BLOCKS
    | feature::COMPRESSED
    | feature::LARGE_DNODE
    | feature::RAW
    | feature::REDACTED
    | feature::ZSTD
    | feature::HOLDS
    | feature::RESUMING
    | feature::SWITCH_TO_LARGE_BLOCKS
    | feature::LONGNAME
    | feature::LARGE_MICROZAP;
/// Feature flags, with the pool feature without which such blocks cannot be stored (OpenZFS `module/zfs/dmu_recv.c`,
/// `recv_begin_check_feature_flags_impl`).
const NEEDED: [(u64, &Feature); 8] = [
    (feature::LZ4, Feature::LZ4_COMPRESS),
    (feature::ZSTD, Feature::ZSTD_COMPRESS),
    (feature::EMBED_DATA, Feature::EMBEDDED_DATA),
    (feature::LARGE_BLOCKS, Feature::LARGE_BLOCKS),
    (feature::LARGE_DNODE, Feature::LARGE_DNODE),
    (feature::LONGNAME, Feature::LONGNAME),
    (feature::LARGE_MICROZAP, Feature::LARGE_MICROZAP),
    (feature::REDACTED, Feature::REDACTED_DATASETS),
];
/// Names of feature flags that are known and not supported.
const UNSUPPORTED: [(u64, &str); 2] = [
    (feature::DEDUP, "deduplicated streams; convert it with: zstream redup"),
    (feature::DEDUP_PROPS, "deduplicated streams; convert it with: zstream redup"),
];

fn invalid<T>(why: impl Into<String>) -> Result<T, ReceiveError> {
    Err(ReceiveError::Invalid(why.into()))
}

/// Pool features that must be enabled to receive a stream.
pub fn needed_features(begin: &Begin) -> Vec<&'static Feature> {
    NEEDED.iter().filter(|(flag, _)| begin.features & flag != 0).map(|(_, feature)| *feature).collect()
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
        // Embedded blocks are not encrypted.
        0 if begin.features & (feature::RAW | feature::EMBED_DATA) == feature::RAW | feature::EMBED_DATA => {
            Err(ReceiveError::Invalid("a raw stream with embedded blocks".into()))
        }
        0 => Ok(()),
        unknown => {
            let flags = begin.features;
            let why =
                format!("stream has unsupported feature, feature flags = {flags:x} (unknown flags = {unknown:x})");
            Err(ReceiveError::Unsupported(why))
        }
    }
}

/// The redactions of a stream, from the list of its BEGIN record.
///
/// # Errors
/// [`ReceiveError::Invalid`] if a redacted stream does not say what it is redacted for.
pub fn redaction_of(begin: &Begin, list: &[u8]) -> Result<StreamRedaction, ReceiveError> {
    if list.is_empty() && begin.features & feature::REDACTED == 0 {
        return Ok(StreamRedaction::default());
    }
    let malformed = |_| ReceiveError::Invalid("invalid stream (malformed nvlist)".into());
    let list = NvList::decode(list).map_err(malformed)?;
    let guids = |name: &str| match list.get_u64_array(name) {
        Some(guids) if guids.is_empty() || guids.len() > MAX_REDACTION_SNAPSHOTS => {
            invalid(format!("{name} of {} snapshots", guids.len()))
        }
        guids => Ok(guids.map(<[u64]>::to_vec)),
    };
    let redacted_for = match begin.features & feature::REDACTED {
        0 => None,
        _ => guids(REDACT_SNAPS)?
            .map_or_else(|| invalid("a redacted stream without its snapshots"), |found| Ok(Some(found)))?,
    };
    Ok(StreamRedaction { redacted_for, from_redacted_for: guids(REDACT_FROM_SNAPS)? })
}

/// Checks a record of the stream that `begin` began.
///
/// # Errors
/// [`ReceiveError::Invalid`].
pub fn check(begin: &Begin, record: &Record) -> Result<(), ReceiveError> {
    match record {
        Record::Object(object) => check_object(begin, object),
        Record::Write(write) => check_write(begin, write),
        Record::Spill(spill) => check_spill(begin, spill),
        Record::ObjectRange { first, slots, flags, .. } => {
            if !is_raw(begin) || *slots != SLOTS_PER_BLOCK || !first.0.is_multiple_of(SLOTS_PER_BLOCK) {
                return invalid("a range of objects that is not valid in this stream");
            }
            if first.0 >= MAX_OBJECTS {
                return invalid(format!("object number {first} is outside the valid range"));
            }
            in_this_order(*flags)
        }
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
        Record::Free { object, offset, length, .. } | Record::Redact { object, offset, length, .. } => {
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

/// Whether the blocks of the stream are encrypted.
pub(crate) fn is_raw(begin: &Begin) -> bool {
    begin.features & feature::RAW != 0
}

/// Checks that a block of a raw stream is of this byte order.
fn in_this_order(flags: u8) -> Result<(), ReceiveError> {
    match flags & OTHER_ORDER {
        0 => Ok(()),
        _ => Err(ReceiveError::Unsupported("a raw stream with blocks of the other byte order".into())),
    }
}

/// Checks the sizes of a block of a raw stream: it is stored as it comes.
fn check_raw_block(begin: &Begin, kind: u8, (logical, stored): (u64, u64)) -> Result<(), ReceiveError> {
    compressed(begin, kind)?;
    let is_whole = CompressionKind::from_u8(kind) == Some(CompressionKind::Off);
    let is_stored = kind != 0 && stored >= 512 && stored.is_multiple_of(512) && stored <= logical;
    if !is_stored || is_whole && stored != logical {
        return invalid("a raw block that is not valid in this stream");
    }
    Ok(())
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
    if is_raw(begin) {
        return check_raw_object(o, slots);
    }
    let of_raw = [o.raw_bonus_len, o.pointers.into(), o.indirect_shift.into(), o.levels.into()];
    if of_raw != [0; 4] || o.checksum >= CHECKSUMS || CompressionKind::from_u8(o.compression).is_none() {
        return invalid("an object with fields that are not valid in this stream");
    }
    Ok(())
}

/// Checks the fields of an object that only raw streams have: its layout must be one that can be made.
fn check_raw_object(o: &ObjectRecord, slots: u64) -> Result<(), ReceiveError> {
    if o.raw_bonus_len < o.bonus_len || o.checksum >= CHECKSUMS || CompressionKind::from_u8(o.compression).is_none() {
        return invalid("an object with fields that are not valid in a raw stream");
    }
    let (levels, pointers) = (u32::from(o.levels), u64::from(o.pointers));
    if !(1..=MAX_LEVELS).contains(&levels) || !(1..=3).contains(&pointers) || !INDIRECT.contains(&o.indirect_shift) {
        return invalid(format!("{levels} levels, {pointers} pointers, indirect blocks of 2^{}", o.indirect_shift));
    }
    let area = slots * Dnode::SLOT as u64 - 64;
    let taken = (pointers + u64::from(o.flags & HAS_SPILL != 0)) * 128;
    if u64::from(o.raw_bonus_len) > area.saturating_sub(taken) {
        return invalid(format!("a bonus area of {} bytes in a dnode of {slots} slots", o.raw_bonus_len));
    }
    let shift = (u32::from(o.indirect_shift) - 7) * (levels - 1);
    let reached = if shift < 60 { pointers << shift } else { u64::MAX };
    let end = o.max_block_id.saturating_add(1).saturating_mul(o.block_bytes.into());
    if o.max_block_id >= reached || end > MAX_OFFSET {
        return invalid(format!("a last block {} that {levels} levels do not reach", o.max_block_id));
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
    if is_raw(begin) {
        in_this_order(w.flags)?;
        return check_raw_block(begin, w.compression, (w.logical_bytes, w.compressed_bytes));
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

fn check_spill(begin: &Begin, s: &SpillRecord) -> Result<(), ReceiveError> {
    number(s.object)?;
    kind(s.object_type)?;
    let is_valid = s.length.is_multiple_of(512) && (512..=MAX_BLOCK_BYTES).contains(&s.length);
    if is_valid && is_raw(begin) {
        in_this_order(s.flags)?;
        return check_raw_block(begin, s.compression, (s.length, s.compressed_bytes));
    }
    if !is_valid || s.compressed_bytes != 0 {
        return invalid(format!("a spill block of {} bytes is not valid in this stream", s.length));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn begin(features: u64) -> Begin {
        Begin {
            header_type: 1,
            features,
            creation_time_s: 0,
            objset_type: 2,
            flags: HAS_SPILLS,
            to_guid: 1,
            from_guid: 0,
            to_name: b"p@s".to_vec(),
            payload_len: 0,
        }
    }

    /// A file may have 2^63 - 1 bytes: its last block ends there or a byte later.
    #[test]
    fn ranges_end_at_the_greatest_size_of_a_file() {
        let block = 128 << 10;
        assert!(range((1 << 63) - block, block).is_ok() && range(0, 1 << 63).is_ok());
        assert!(range((1 << 63) - block, block + 1).is_err() && range(u64::MAX, 2).is_err());
    }

    fn object() -> ObjectRecord {
        ObjectRecord {
            object: ObjectId(40),
            object_type: 19,
            bonus_type: 44,
            block_bytes: 4096,
            bonus_len: 168,
            dnode_slots: 1,
            raw_bonus_len: 320,
            indirect_shift: 17,
            levels: 2,
            pointers: 1,
            max_block_id: 1023,
            ..ObjectRecord::default()
        }
    }

    fn raw(record: &Record) -> Result<(), ReceiveError> {
        check(&begin(feature::RAW | feature::COMPRESSED | feature::LZ4 | feature::LARGE_BLOCKS), record)
    }

    #[test]
    fn objects_of_raw_streams_have_a_layout_that_can_be_made() {
        assert!(raw(&Record::Object(object())).is_ok());
        // The layout is part of no other stream.
        assert!(check(&begin(0), &Record::Object(object())).is_err());
        let changes: [fn(&mut ObjectRecord); 8] = [
            |o| o.levels = 0,
            |o| o.levels = 9,
            |o| o.pointers = 4,
            |o| o.indirect_shift = 9,
            |o| o.max_block_id = 1024,
            |o| o.raw_bonus_len = 321,
            |o| o.raw_bonus_len = 160,
            |o| (o.levels, o.max_block_id) = (8, u64::MAX),
        ];
        for change in changes {
            let mut wrong = object();
            change(&mut wrong);
            assert!(raw(&Record::Object(wrong.clone())).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn blocks_of_raw_streams_are_whole_sectors() {
        let block = WriteRecord {
            object: ObjectId(40),
            object_type: 19,
            logical_bytes: 4096,
            compression: CompressionKind::Lz4.to_u8(),
            compressed_bytes: 1024,
            ..WriteRecord::default()
        };
        assert!(raw(&Record::Write(block.clone())).is_ok());
        for (kind, bytes, flags) in
            [(15, 1000, 0), (15, 0, 0), (15, 8192, 0), (2, 1024, 0), (0, 4096, 0), (15, 1024, 2)]
        {
            let wrong = WriteRecord { compression: kind, compressed_bytes: bytes, flags, ..block.clone() };
            assert!(raw(&Record::Write(wrong)).is_err(), "compression {kind}, {bytes} bytes, flags {flags}");
        }
    }

    #[test]
    fn redacted_streams_name_their_snapshots() {
        let list = |guids: Vec<u64>| {
            let mut list = NvList::new();
            list.set(REDACT_SNAPS, weir_format::NvValue::Uint64Array(guids.clone()));
            list.set(REDACT_FROM_SNAPS, weir_format::NvValue::Uint64Array(guids));
            list.encode_native(weir_format::Endian::Little)
        };
        let redacted = begin(feature::REDACTED);
        let found = redaction_of(&redacted, &list(vec![7, 9])).unwrap();
        assert_eq!(found.redacted_for, Some(vec![7, 9]));
        assert_eq!(found.from_redacted_for, Some(vec![7, 9]));
        assert_eq!(redaction_of(&begin(0), &list(vec![7])).unwrap().redacted_for, None);
        assert_eq!(redaction_of(&begin(0), &[]).unwrap(), StreamRedaction::default());
        for wrong in [
            Vec::new(),
            list(Vec::new()),
            list(vec![1; 1025]),
            NvList::new().encode_native(weir_format::Endian::Little),
        ] {
            assert!(redaction_of(&redacted, &wrong).is_err(), "{wrong:?}");
        }
        let redact = Record::Redact { object: ObjectId(3), offset: 512, length: u64::MAX - 3, to_guid: 1 };
        assert!(check(&redacted, &redact).is_err());
    }

    #[test]
    fn ranges_of_objects_are_blocks_of_dnodes() {
        let range = |first, slots, flags| Record::ObjectRange {
            first: ObjectId(first),
            slots,
            to_guid: 0,
            salt: [0; 8],
            iv: [0; 12],
            mac: [0; 16],
            flags,
        };
        assert!(raw(&range(32, 32, 0)).is_ok());
        assert!(check(&begin(0), &range(32, 32, 0)).is_err());
        for wrong in [range(33, 32, 0), range(32, 31, 0), range(32, 32, 2), range(1 << 48, 32, 0)] {
            assert!(raw(&wrong).is_err(), "{wrong:?}");
        }
        assert!(check_features(&begin(feature::RAW)).is_ok());
        assert!(check_features(&begin(feature::RAW | feature::EMBED_DATA)).is_err());
    }
}
