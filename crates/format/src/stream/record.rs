//! The records of a send stream.

use super::{CHECKED_BYTES, MAX_BEGIN_PAYLOAD, MAX_PAYLOAD, RECORD_BYTES, WHAT};
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::ddt::DdtKey;
use crate::encoder::Encoder;
use crate::ids::ObjectId;

/// The record that opens a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Kind of stream: 1 one snapshot, 2 compound.
    pub header_type: u8,
    /// Feature flags, see [`super::feature`].
    pub features: u64,
    /// Creation time of the snapshot, in seconds since 1970.
    pub creation_time_s: u64,
    /// Type of the object set.
    pub objset_type: u32,
    /// Bits: 1 clone, 2 case-insensitive names, 4 has free records, 8 has spill blocks.
    pub flags: u32,
    /// GUID of the snapshot that is sent.
    pub to_guid: u64,
    /// GUID of the snapshot that an incremental stream is relative to; 0 for a full stream.
    pub from_guid: u64,
    /// Name of the snapshot.
    pub to_name: Vec<u8>,
    /// Size in bytes of the nvlist that follows.
    pub payload_len: u32,
}

impl Begin {
    /// The magic number.
    pub const MAGIC: u64 = 0x2_f5ba_cbac;
    const NAME: usize = 256;
}

/// OBJECT: an object, with its bonus area as payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct ObjectRecord {
    pub object: ObjectId,
    pub object_type: u32,
    pub bonus_type: u32,
    pub block_bytes: u32,
    pub bonus_len: u32,
    pub checksum: u8,
    pub compression: u8,
    pub dnode_slots: u8,
    /// Bits: 2 raw data in the other byte order, 4 has a spill block.
    pub flags: u8,
    /// Raw streams: size in bytes of the bonus area as stored on disk.
    pub raw_bonus_len: u32,
    pub to_guid: u64,
    pub indirect_shift: u8,
    pub levels: u8,
    pub pointers: u8,
    pub max_block_id: u64,
}

/// WRITE: a data block as payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct WriteRecord {
    pub object: ObjectId,
    pub object_type: u32,
    pub offset: u64,
    pub logical_bytes: u64,
    pub to_guid: u64,
    pub checksum_type: u8,
    pub flags: u8,
    /// Compression of the payload; 0 if none.
    pub compression: u8,
    pub key: DdtKey,
    pub compressed_bytes: u64,
    pub salt: [u8; 8],
    pub iv: [u8; 12],
    pub mac: [u8; 16],
}

/// SPILL: a spill block as payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct SpillRecord {
    pub object: ObjectId,
    pub length: u64,
    pub to_guid: u64,
    /// Bit 2: unchanged since the previous snapshot.
    pub flags: u8,
    pub compression: u8,
    pub compressed_bytes: u64,
    pub salt: [u8; 8],
    pub iv: [u8; 12],
    pub mac: [u8; 16],
    pub object_type: u32,
}

/// A record of a send stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Record {
    Begin(Begin),
    Object(ObjectRecord),
    FreeObjects {
        first: ObjectId,
        count: u64,
        to_guid: u64,
    },
    Write(WriteRecord),
    Free {
        object: ObjectId,
        offset: u64,
        length: u64,
        to_guid: u64,
    },
    End {
        checksum: [u64; 4],
        to_guid: u64,
    },
    /// The block's data was sent earlier, in this stream or in an earlier one.
    WriteByRef {
        object: ObjectId,
        offset: u64,
        length: u64,
        to_guid: u64,
        ref_guid: u64,
        ref_object: ObjectId,
        ref_offset: u64,
        checksum_type: u8,
        flags: u8,
        key: DdtKey,
    },
    Spill(SpillRecord),
    WriteEmbedded {
        object: ObjectId,
        offset: u64,
        length: u64,
        to_guid: u64,
        compression: u8,
        etype: u8,
        lsize_bytes: u32,
        psize_bytes: u32,
    },
    ObjectRange {
        first: ObjectId,
        slots: u64,
        to_guid: u64,
        salt: [u8; 8],
        iv: [u8; 12],
        mac: [u8; 16],
        flags: u8,
    },
    Redact {
        object: ObjectId,
        offset: u64,
        length: u64,
        to_guid: u64,
    },
}

impl Record {
    /// The names that `zstream dump` shows, indexed by type number.
    pub const NAMES: [&'static str; 11] = [
        "BEGIN",
        "OBJECT",
        "FREEOBJECTS",
        "WRITE",
        "FREE",
        "END",
        "WRITE_BYREF",
        "SPILL",
        "WRITE_EMBEDDED",
        "OBJECT_RANGE",
        "REDACT",
    ];

    /// Detects the byte order of a stream from its first record, which must be BEGIN.
    pub fn endian_of_begin(bytes: &[u8]) -> Result<Endian, DecodeError> {
        let mut c = Cursor::new(bytes, Endian::Little, WHAT);
        c.skip(8)?;
        let raw = c.array::<8>()?;
        match (u64::from_le_bytes(raw), u64::from_be_bytes(raw)) {
            (Begin::MAGIC, _) => Ok(Endian::Little),
            (_, Begin::MAGIC) => Ok(Endian::Big),
            (found, _) => Err(DecodeError::Magic { what: WHAT, found }),
        }
    }

    /// The type number.
    pub fn kind(&self) -> u32 {
        match self {
            Record::Begin(_) => 0,
            Record::Object(_) => 1,
            Record::FreeObjects { .. } => 2,
            Record::Write(_) => 3,
            Record::Free { .. } => 4,
            Record::End { .. } => 5,
            Record::WriteByRef { .. } => 6,
            Record::Spill(_) => 7,
            Record::WriteEmbedded { .. } => 8,
            Record::ObjectRange { .. } => 9,
            Record::Redact { .. } => 10,
        }
    }

    /// The type's name.
    pub fn name(&self) -> &'static str {
        Self::NAMES.get(self.kind() as usize).copied().unwrap_or("")
    }

    /// Size in bytes of the payload that follows the record.
    pub fn payload_len(&self) -> Result<usize, DecodeError> {
        let round = |n: u32| u64::from(n).next_multiple_of(8);
        let (len, max) = match self {
            Record::Begin(b) => (b.payload_len.into(), MAX_BEGIN_PAYLOAD),
            Record::Object(o) if o.raw_bonus_len != 0 => (o.raw_bonus_len.into(), MAX_PAYLOAD),
            Record::Object(o) => (round(o.bonus_len), MAX_PAYLOAD),
            Record::Write(w) => (if w.compression != 0 { w.compressed_bytes } else { w.logical_bytes }, MAX_PAYLOAD),
            Record::Spill(s) => (if s.compressed_bytes != 0 { s.compressed_bytes } else { s.length }, MAX_PAYLOAD),
            Record::WriteEmbedded { psize_bytes, .. } => (round(*psize_bytes), MAX_PAYLOAD),
            _ => (0, MAX_PAYLOAD),
        };
        let bad = DecodeError::Field { what: WHAT, field: "payload length", value: len };
        usize::try_from(len).ok().filter(|_| len <= max).ok_or(bad)
    }

    /// Decodes a record's 312 bytes; also returns the running checksum stored in it.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<(Self, [u64; 4]), DecodeError> {
        let mut tail = Cursor::new(bytes, endian, WHAT);
        tail.skip(CHECKED_BYTES)?;
        let stored = tail.words()?;
        let mut c = Cursor::new(bytes, endian, WHAT);
        let kind = c.u32()?;
        let payload_len = c.u32()?;
        Ok((Self::body(kind, payload_len, &mut c)?, stored))
    }

    fn body(kind: u32, payload_len: u32, c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(match kind {
            0 => Record::Begin(begin(payload_len, c)?),
            1 => Record::Object(object(c)?),
            2 => Record::FreeObjects { first: ObjectId(c.u64()?), count: c.u64()?, to_guid: c.u64()? },
            3 => Record::Write(write(c)?),
            4 => {
                let [object, offset, length, to_guid] = c.words()?;
                Record::Free { object: ObjectId(object), offset, length, to_guid }
            }
            5 => Record::End { checksum: c.words()?, to_guid: c.u64()? },
            6 => by_ref(c)?,
            7 => Record::Spill(spill(c)?),
            8 => {
                let [object, offset, length, to_guid] = c.words()?;
                let compression = c.u8()?;
                let etype = c.u8()?;
                c.skip(6)?;
                Record::WriteEmbedded {
                    object: ObjectId(object),
                    offset,
                    length,
                    to_guid,
                    compression,
                    etype,
                    lsize_bytes: c.u32()?,
                    psize_bytes: c.u32()?,
                }
            }
            9 => Record::ObjectRange {
                first: ObjectId(c.u64()?),
                slots: c.u64()?,
                to_guid: c.u64()?,
                salt: c.array()?,
                iv: c.array()?,
                mac: c.array()?,
                flags: c.u8()?,
            },
            10 => {
                let [object, offset, length, to_guid] = c.words()?;
                Record::Redact { object: ObjectId(object), offset, length, to_guid }
            }
            _ => return Err(DecodeError::Field { what: WHAT, field: "record type", value: kind.into() }),
        })
    }

    /// Encodes the record's 312 bytes with `checksum` as running checksum (BEGIN has none).
    pub fn encode(&self, endian: Endian, checksum: [u64; 4]) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        e.u32(self.kind());
        e.u32(if let Record::Begin(b) = self { b.payload_len } else { 0 });
        match self {
            Record::Begin(b) => encode_begin(b, &mut e),
            Record::Object(o) => encode_object(o, &mut e),
            Record::FreeObjects { first, count, to_guid } => e.words(&[first.0, *count, *to_guid]),
            Record::Write(w) => encode_write(w, &mut e),
            Record::Free { object, offset, length, to_guid } | Record::Redact { object, offset, length, to_guid } => {
                e.words(&[object.0, *offset, *length, *to_guid]);
            }
            Record::End { checksum, to_guid } => {
                e.words(checksum);
                e.u64(*to_guid);
            }
            Record::WriteByRef {
                object,
                offset,
                length,
                to_guid,
                ref_guid,
                ref_object,
                ref_offset,
                checksum_type,
                flags,
                key,
            } => {
                e.words(&[object.0, *offset, *length, *to_guid, *ref_guid, ref_object.0, *ref_offset]);
                e.bytes(&[*checksum_type, *flags, 0, 0, 0, 0, 0, 0]);
                e.words(&key.to_words());
            }
            Record::Spill(s) => encode_spill(s, &mut e),
            Record::WriteEmbedded { object, offset, length, to_guid, compression, etype, lsize_bytes, psize_bytes } => {
                e.words(&[object.0, *offset, *length, *to_guid]);
                e.bytes(&[*compression, *etype, 0, 0, 0, 0, 0, 0]);
                e.u32(*lsize_bytes);
                e.u32(*psize_bytes);
            }
            Record::ObjectRange { first, slots, to_guid, salt, iv, mac, flags } => {
                e.words(&[first.0, *slots, *to_guid]);
                e.bytes(salt);
                e.bytes(iv);
                e.bytes(mac);
                e.u8(*flags);
            }
        }
        if !matches!(self, Record::Begin(_)) {
            e.pad_to(CHECKED_BYTES);
            e.words(&checksum);
        }
        e.pad_to(RECORD_BYTES);
        e.finish()
    }
}

fn begin(payload_len: u32, c: &mut Cursor<'_>) -> Result<Begin, DecodeError> {
    let [magic, info, creation_time_s] = c.words()?;
    if magic != Begin::MAGIC {
        return Err(DecodeError::Magic { what: WHAT, found: magic });
    }
    let objset_type = c.u32()?;
    let flags = c.u32()?;
    let [to_guid, from_guid] = c.words()?;
    let name = c.bytes(Begin::NAME)?;
    let len = name.iter().position(|byte| *byte == 0);
    let len = len.ok_or(DecodeError::Field { what: WHAT, field: "length of the name", value: Begin::NAME as u64 })?;
    Ok(Begin {
        header_type: (info & 3) as u8,
        features: info >> 2 & ((1 << 56) - 1),
        creation_time_s,
        objset_type,
        flags,
        to_guid,
        from_guid,
        to_name: name.iter().copied().take(len).collect(),
        payload_len,
    })
}

fn encode_begin(b: &Begin, e: &mut Encoder) {
    e.words(&[Begin::MAGIC, u64::from(b.header_type & 3) | b.features << 2, b.creation_time_s]);
    e.u32(b.objset_type);
    e.u32(b.flags);
    e.words(&[b.to_guid, b.from_guid]);
    e.bytes(b.to_name.get(..b.to_name.len().min(Begin::NAME - 1)).unwrap_or_default());
}

fn object(c: &mut Cursor<'_>) -> Result<ObjectRecord, DecodeError> {
    let mut o = ObjectRecord {
        object: ObjectId(c.u64()?),
        object_type: c.u32()?,
        bonus_type: c.u32()?,
        block_bytes: c.u32()?,
        bonus_len: c.u32()?,
        checksum: c.u8()?,
        compression: c.u8()?,
        dnode_slots: c.u8()?,
        flags: c.u8()?,
        raw_bonus_len: c.u32()?,
        to_guid: c.u64()?,
        indirect_shift: c.u8()?,
        levels: c.u8()?,
        pointers: c.u8()?,
        max_block_id: 0,
    };
    c.skip(5)?;
    o.max_block_id = c.u64()?;
    Ok(o)
}

fn encode_object(o: &ObjectRecord, e: &mut Encoder) {
    e.u64(o.object.0);
    e.u32(o.object_type);
    e.u32(o.bonus_type);
    e.u32(o.block_bytes);
    e.u32(o.bonus_len);
    e.bytes(&[o.checksum, o.compression, o.dnode_slots, o.flags]);
    e.u32(o.raw_bonus_len);
    e.u64(o.to_guid);
    e.bytes(&[o.indirect_shift, o.levels, o.pointers, 0, 0, 0, 0, 0]);
    e.u64(o.max_block_id);
}

fn write(c: &mut Cursor<'_>) -> Result<WriteRecord, DecodeError> {
    let object = ObjectId(c.u64()?);
    let object_type = c.u32()?;
    c.skip(4)?;
    let [offset, logical_bytes, to_guid] = c.words()?;
    let checksum_type = c.u8()?;
    let flags = c.u8()?;
    let compression = c.u8()?;
    c.skip(5)?;
    Ok(WriteRecord {
        object,
        object_type,
        offset,
        logical_bytes,
        to_guid,
        checksum_type,
        flags,
        compression,
        key: DdtKey::decode(c)?,
        compressed_bytes: c.u64()?,
        salt: c.array()?,
        iv: c.array()?,
        mac: c.array()?,
    })
}

fn encode_write(w: &WriteRecord, e: &mut Encoder) {
    e.u64(w.object.0);
    e.u32(w.object_type);
    e.u32(0);
    e.words(&[w.offset, w.logical_bytes, w.to_guid]);
    e.bytes(&[w.checksum_type, w.flags, w.compression, 0, 0, 0, 0, 0]);
    e.words(&w.key.to_words());
    e.u64(w.compressed_bytes);
    e.bytes(&w.salt);
    e.bytes(&w.iv);
    e.bytes(&w.mac);
}

fn spill(c: &mut Cursor<'_>) -> Result<SpillRecord, DecodeError> {
    let [object, length, to_guid] = c.words()?;
    let flags = c.u8()?;
    let compression = c.u8()?;
    c.skip(6)?;
    Ok(SpillRecord {
        object: ObjectId(object),
        length,
        to_guid,
        flags,
        compression,
        compressed_bytes: c.u64()?,
        salt: c.array()?,
        iv: c.array()?,
        mac: c.array()?,
        object_type: c.u32()?,
    })
}

fn encode_spill(s: &SpillRecord, e: &mut Encoder) {
    e.words(&[s.object.0, s.length, s.to_guid]);
    e.bytes(&[s.flags, s.compression, 0, 0, 0, 0, 0, 0]);
    e.u64(s.compressed_bytes);
    e.bytes(&s.salt);
    e.bytes(&s.iv);
    e.bytes(&s.mac);
    e.u32(s.object_type);
}

fn by_ref(c: &mut Cursor<'_>) -> Result<Record, DecodeError> {
    let [object, offset, length, to_guid, ref_guid, ref_object, ref_offset] = c.words()?;
    let checksum_type = c.u8()?;
    let flags = c.u8()?;
    c.skip(6)?;
    Ok(Record::WriteByRef {
        object: ObjectId(object),
        offset,
        length,
        to_guid,
        ref_guid,
        ref_object: ObjectId(ref_object),
        ref_offset,
        checksum_type,
        flags,
        key: DdtKey::decode(c)?,
    })
}
