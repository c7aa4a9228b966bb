//! Deduplication tables (OpenZFS `include/sys/ddt.h`, `ddt_impl.h`, `module/zfs/ddt*.c`): from a block's checksum to
//! its addresses and reference count.
//!
//! ```text
//!  key           checksum (4 words) · sizes and compression (word)
//!  traditional   4 × [ 3 DVAs · references · birth ]  (256 bytes; number of copies 0 ditto, 1, 2, 3)
//!  flat          3 DVAs · references · birth · time it became unique (72 bytes)
//!  log header    version | flags · length · first txg · checkpoint key
//!  log record    type (8) | length (16) | … | storage type (8) | class (8) · key · value
//! ```
//!
//! A ZAP value is a byte string: the first byte holds the byte order (bit 7) and the compression (ZLE or none), the
//! rest is the value. The caller decompresses it, see [`StoredValue`].

use crate::blkptr::{BlockPointer, Dva};
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::Txg;
use crate::kinds::{ChecksumKind, CompressionKind, ObjectType};

const WHAT: &str = "dedup table";

/// Class of a table's entries (`ddt_class_t`): by number of references.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum DdtClass {
    Ditto,
    Duplicate,
    Unique,
}

impl DdtClass {
    /// All classes in their order.
    pub const ALL: [DdtClass; 3] = [DdtClass::Ditto, DdtClass::Duplicate, DdtClass::Unique];

    /// The class's name as part of object names.
    pub fn name(self) -> &'static str {
        match self {
            DdtClass::Ditto => "ditto",
            DdtClass::Duplicate => "duplicate",
            DdtClass::Unique => "unique",
        }
    }
}

/// The name of a table's ZAP: in the MOS directory (legacy) or in the table's own directory (fast dedup).
pub fn table_name(checksum: ChecksumKind, class: DdtClass) -> String {
    format!("DDT-{}-zap-{}", checksum.name(), class.name())
}

/// The name of a fast dedup table's directory in the MOS directory. It also holds [`DIR_VERSION`] and [`DIR_FLAGS`].
pub fn directory_name(checksum: ChecksumKind) -> String {
    format!("DDT-{}", checksum.name())
}

/// The name of log 0 or 1 in a fast dedup table's directory.
pub fn log_name(checksum: ChecksumKind, n: u8) -> String {
    format!("DDT-log-{}-{n}", checksum.name())
}

/// Entry of a fast dedup table's directory: the version, 1.
pub const DIR_VERSION: &str = "version";
/// Entry of a fast dedup table's directory: 1 flat values, 2 logs.
pub const DIR_FLAGS: &str = "flags";

/// The key of an entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DdtKey {
    /// The block's checksum.
    pub checksum: [u64; 4],
    /// Sizes, compression, encryption.
    pub prop: u64,
}

impl DdtKey {
    /// Bytes on disk.
    pub const SIZE: usize = 40;

    /// Decodes 40 bytes.
    pub fn decode(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        Ok(DdtKey { checksum: c.words()?, prop: c.u64()? })
    }

    /// From the words of a ZAP key.
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let [a, b, c, d, prop] = *words else { return None };
        Some(DdtKey { checksum: [a, b, c, d], prop })
    }

    /// The words of a ZAP key.
    pub fn to_words(&self) -> [u64; 5] {
        let [a, b, c, d] = self.checksum;
        [a, b, c, d, self.prop]
    }

    /// The key that a block has in the table of its checksum function.
    pub fn of(pointer: &BlockPointer) -> Self {
        let p = pointer.words()[6];
        let crypt = u64::from(pointer.uses_crypt()) << 39;
        DdtKey { checksum: pointer.checksum(), prop: p & 0x7f_ffff_ffff | crypt }
    }

    /// Builds a pointer to the block of this key with the fields that scrubs and frees need (`ddt_bp_create`); the
    /// dedup bit is clear.
    pub fn pointer(&self, checksum: ChecksumKind, phys: &DdtPhys) -> BlockPointer {
        let mut words = [0; 16];
        words[..6].copy_from_slice(&phys.dva_words);
        let crypt = u64::from(self.is_encrypted()) << 61;
        let kinds = u64::from(ObjectType::DEDUP.0) << 48 | u64::from(checksum as u8) << 40;
        words[6] = 1 << 63 | crypt | kinds | self.prop & 0x7f_ffff_ffff;
        words[10] = phys.birth.0;
        words[11] = 1;
        words[12..].copy_from_slice(&self.checksum);
        BlockPointer::from_words(words)
    }

    /// Logical size in bytes.
    pub fn lsize_bytes(&self) -> u64 {
        ((self.prop & 0xffff) + 1) << 9
    }

    /// Physical size in bytes.
    pub fn psize_bytes(&self) -> u64 {
        ((self.prop >> 16 & 0xffff) + 1) << 9
    }

    /// Compression, if defined.
    pub fn compression(&self) -> Option<CompressionKind> {
        CompressionKind::from_u8((self.prop >> 32 & 0x7f) as u8)
    }

    /// Whether the block is encrypted.
    pub fn is_encrypted(&self) -> bool {
        self.prop >> 39 & 1 != 0
    }
}

/// Addresses and reference count of a deduplicated block.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DdtPhys {
    /// The copies, as the six words of their DVAs.
    pub dva_words: [u64; 6],
    /// Number of block pointers that refer to the block.
    pub references: u64,
    /// The txg in which the block was allocated; 0 if this variant is not in use.
    pub birth: Txg,
    /// When the entry became unique, in seconds since 1970 (flat form only).
    pub class_start_s: u64,
}

impl DdtPhys {
    /// Bytes of a traditional value.
    pub const TRADITIONAL: usize = 256;
    /// Bytes of a flat value.
    pub const FLAT: usize = 72;

    /// Decodes a value: 256 bytes give four traditional variants, 72 bytes one flat variant.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Vec<Self>, DecodeError> {
        let mut c = Cursor::new(bytes, endian, WHAT);
        match bytes.len() {
            Self::FLAT => Ok(vec![DdtPhys {
                dva_words: c.words()?,
                references: c.u64()?,
                birth: Txg(c.u64()?),
                class_start_s: c.u64()?,
            }]),
            Self::TRADITIONAL => (0..4)
                .map(|_| {
                    Ok(DdtPhys { dva_words: c.words()?, references: c.u64()?, birth: Txg(c.u64()?), class_start_s: 0 })
                })
                .collect(),
            len => Err(DecodeError::Field { what: WHAT, field: "value size", value: len as u64 }),
        }
    }

    /// Encodes a value: one variant gives the flat form, four give the traditional form.
    pub fn encode(values: &[Self], endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        for v in values {
            e.words(&v.dva_words);
            e.words(&[v.references, v.birth.0]);
            if values.len() == 1 {
                e.u64(v.class_start_s);
            }
        }
        e.finish()
    }

    /// The copies in use.
    pub fn dvas(&self) -> impl Iterator<Item = Dva> + '_ {
        self.dva_words.chunks_exact(2).map(|w| Dva::from_words(w[0], w[1])).filter(|d| d.asize_bytes != 0)
    }
}

/// Statistics of a table by reference count (`ddt_histogram_t`): one row for each power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdtHistogram {
    /// Per row: blocks, their logical, physical and deflated bytes; then the same four multiplied by the references.
    pub rows: [[u64; 8]; 64],
}

impl Default for DdtHistogram {
    fn default() -> Self {
        DdtHistogram { rows: [[0; 8]; 64] }
    }
}

impl DdtHistogram {
    /// From the words of the table's entry in `DDT-statistics`; `None` unless there are exactly 512.
    pub fn from_words(words: &[u64]) -> Option<Self> {
        let (rows, rest) = words.as_chunks::<8>();
        let rows = rows.try_into().ok().filter(|_| rest.is_empty())?;
        Some(DdtHistogram { rows })
    }

    /// The words as they are stored.
    pub fn to_words(&self) -> Vec<u64> {
        self.rows.iter().flatten().copied().collect()
    }

    /// Adds an entry; `deflated` returns the bytes that a DVA takes without parity.
    pub fn add(&mut self, key: &DdtKey, value: &[DdtPhys], deflated: &dyn Fn(&Dva) -> u64) {
        self.count(key, value, deflated, u64::saturating_add);
    }

    /// Subtracts an entry that was added before.
    pub fn sub(&mut self, key: &DdtKey, value: &[DdtPhys], deflated: &dyn Fn(&Dva) -> u64) {
        self.count(key, value, deflated, u64::saturating_sub);
    }

    fn count(&mut self, key: &DdtKey, value: &[DdtPhys], deflated: &dyn Fn(&Dva) -> u64, change: fn(u64, u64) -> u64) {
        let mut sums = [0u64; 8];
        for phys in value.iter().filter(|p| p.birth.0 != 0) {
            let copies = if key.is_encrypted() { 2 } else { 3 };
            let bytes = phys.dvas().take(copies).map(|dva| deflated(&dva)).fold(0, u64::saturating_add);
            let one = [1, key.lsize_bytes(), key.psize_bytes(), bytes];
            let used = one.map(|n| n.saturating_mul(phys.references));
            for (sum, n) in sums.iter_mut().zip(one.into_iter().chain(used)) {
                *sum = sum.saturating_add(n);
            }
        }
        let [_, _, _, _, references, ..] = sums;
        let row = references.checked_ilog2().and_then(|row| self.rows.get_mut(row as usize));
        for (cell, n) in row.into_iter().flatten().zip(sums) {
            *cell = change(*cell, n);
        }
    }

    /// The deflated bytes that the blocks take, and those they would take if each reference had its own copy.
    pub fn bytes(&self) -> (u64, u64) {
        let sum = |at: usize| self.rows.iter().filter_map(|row| row.get(at)).fold(0, |a: u64, n| a.saturating_add(*n));
        (sum(3), sum(7))
    }
}

/// A table entry's value as stored in the ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredValue<'a> {
    /// Byte order of the value's words.
    pub endian: Endian,
    /// How `data` is compressed: ZLE or [`CompressionKind::Off`].
    pub compression: CompressionKind,
    /// The value, compressed.
    pub data: &'a [u8],
}

impl<'a> StoredValue<'a> {
    /// Decodes the byte string of a ZAP entry.
    pub fn decode(bytes: &'a [u8]) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bytes, Endian::Little, WHAT);
        let version = c.u8()?;
        let endian = if version & 0x80 != 0 { Endian::Little } else { Endian::Big };
        let compression = match CompressionKind::from_u8(version & 0x7f) {
            Some(CompressionKind::Zle) => CompressionKind::Zle,
            Some(CompressionKind::Off) => CompressionKind::Off,
            _ => return Err(DecodeError::Field { what: WHAT, field: "compression", value: version.into() }),
        };
        Ok(StoredValue { endian, compression, data: c.bytes(c.remaining())? })
    }
}

/// The header of a dedup log, in its object's bonus area.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DdtLogHeader {
    /// Bit 0: being flushed; bit 1: `checkpoint` is valid.
    pub flags: u8,
    /// Length of the log in bytes.
    pub length_bytes: u64,
    /// The txg in which the log became active.
    pub first_txg: Txg,
    /// Entries up to this key have been flushed.
    pub checkpoint: DdtKey,
}

impl DdtLogHeader {
    /// Flag: the log is being flushed.
    pub const FLUSHING: u8 = 1;
    /// Flag: `checkpoint` is valid.
    pub const CHECKPOINT: u8 = 2;

    /// Decodes a bonus area.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bonus, endian, "dedup log");
        let [info, length_bytes, first_txg] = c.words()?;
        if info & 0xff != 1 {
            return Err(DecodeError::Field { what: "dedup log", field: "version", value: info & 0xff });
        }
        let checkpoint = DdtKey::decode(&mut c)?;
        Ok(DdtLogHeader { flags: (info >> 8) as u8, length_bytes, first_txg: Txg(first_txg), checkpoint })
    }

    /// The bytes of the bonus area.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        e.words(&[1 | u64::from(self.flags) << 8, self.length_bytes, self.first_txg.0]);
        e.words(&self.checkpoint.to_words());
        e.finish()
    }
}

/// An entry of a dedup log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DdtLogEntry {
    /// Storage type of the table that holds the entry: 0 ZAP, 1 none yet.
    pub storage: u8,
    /// Number of its class; 3 none yet.
    pub class: u8,
    /// The key.
    pub key: DdtKey,
    /// One flat or four traditional variants.
    pub value: Vec<DdtPhys>,
}

/// The entries in one block of a dedup log.
pub fn log_entries(block: &[u8], endian: Endian) -> Result<Vec<DdtLogEntry>, DecodeError> {
    const WHAT: &str = "dedup log";
    let bad = |field, value| DecodeError::Field { what: WHAT, field, value };
    let mut c = Cursor::new(block, endian, WHAT);
    let mut out = Vec::new();
    while c.remaining() >= 8 {
        let mut record = c.clone();
        let info = record.u64()?;
        match info & 0xff {
            0 => break,
            1 => {}
            kind => return Err(bad("record type", kind)),
        }
        let length = (info >> 8 & 0xffff) as usize;
        let value = length.checked_sub(8 + DdtKey::SIZE).ok_or(bad("record length", length as u64))?;
        let key = DdtKey::decode(&mut record)?;
        let value = DdtPhys::decode(record.bytes(value)?, endian)?;
        out.push(DdtLogEntry { storage: (info >> 48) as u8, class: (info >> 56) as u8, key, value });
        c.skip(length)?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert_eq!(table_name(ChecksumKind::Sha256, DdtClass::Duplicate), "DDT-sha256-zap-duplicate");
        assert_eq!(directory_name(ChecksumKind::Blake3), "DDT-blake3");
        assert_eq!(log_name(ChecksumKind::Skein, 1), "DDT-log-skein-1");
    }

    #[test]
    fn values_round_trip() {
        for (count, len) in [(1, DdtPhys::FLAT), (4, DdtPhys::TRADITIONAL)] {
            let bytes: Vec<u8> = (0..len).map(|i| i as u8).collect();
            for endian in [Endian::Little, Endian::Big] {
                let values = DdtPhys::decode(&bytes, endian).unwrap();
                assert_eq!(values.len(), count);
                assert_eq!(DdtPhys::encode(&values, endian), bytes);
            }
        }
        assert!(DdtPhys::decode(&[0; 64], Endian::Big).is_err());
    }

    #[test]
    fn a_log_header_round_trips() {
        let checkpoint = DdtKey { checksum: [1, 2, 3, 4], prop: 5 };
        let header = DdtLogHeader { flags: 3, length_bytes: 1 << 17, first_txg: Txg(9), checkpoint };
        for endian in [Endian::Little, Endian::Big] {
            assert_eq!(DdtLogHeader::decode(&header.encode(endian), endian).unwrap(), header);
        }
    }

    #[test]
    fn a_histogram_counts_by_references() {
        let key = DdtKey { checksum: [0; 4], prop: 7 << 16 | 15 };
        let phys = DdtPhys { dva_words: [8, 64, 0, 0, 0, 0], references: 5, birth: Txg(4), class_start_s: 0 };
        let value = [DdtPhys::default(), phys, DdtPhys::default(), DdtPhys::default()];
        let mut histogram = DdtHistogram::default();
        histogram.add(&key, &value, &|dva| dva.asize_bytes);
        assert_eq!(histogram.rows[2], [1, 8192, 4096, 4096, 5, 40960, 20480, 20480]);
        assert_eq!(histogram.bytes(), (4096, 20480));
        assert_eq!(DdtHistogram::from_words(&histogram.to_words()), Some(histogram.clone()));
        histogram.sub(&key, &value, &|dva| dva.asize_bytes);
        assert_eq!(histogram, DdtHistogram::default());
        assert_eq!(DdtHistogram::from_words(&[0; 511]), None);
    }

    #[test]
    fn a_key_gives_a_pointer_to_its_block() {
        let mut words = [0; 16];
        words[0] = 8;
        words[1] = 64;
        words[6] = 1 << 63 | 8 << 40 | 15 << 32 | 7 << 16 | 15;
        words[10] = 4;
        words[12] = 99;
        let pointer = BlockPointer::from_words(words);
        let phys = DdtPhys { dva_words: [8, 64, 0, 0, 0, 0], references: 1, birth: Txg(4), class_start_s: 0 };
        let made = DdtKey::of(&pointer).pointer(ChecksumKind::Sha256, &phys);
        assert_eq!(DdtKey::of(&made), DdtKey::of(&pointer));
        assert!(
            !made.is_dedup() && made.dva(0) == pointer.dva(0) && made.checksum_kind() == Some(ChecksumKind::Sha256)
        );
    }

    #[test]
    fn a_log_block() {
        let mut e = Encoder::new(Endian::Little);
        let key = DdtKey { checksum: [1, 2, 3, 4], prop: 0x10_0000_0000 };
        e.u64(1 | 120 << 8 | 1 << 56);
        e.words(&key.to_words());
        e.words(&[0; 9]);
        e.pad_to(4096);
        let mut bytes = e.finish();
        let entries = log_entries(&bytes, Endian::Little).unwrap();
        assert_eq!((entries.len(), entries[0].key, entries[0].class), (1, key, 1));
        bytes[1] = 3;
        assert!(log_entries(&bytes, Endian::Little).is_err());
    }
}
