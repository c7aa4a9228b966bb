//! Records in objects of the MOS: pool history and error log.

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::nvlist::NvList;

/// The bonus area of the history object (`spa_history_phys_t`, OpenZFS `include/sys/spa_impl.h`). The object is a
/// ring buffer with logical, growing offsets: the first `create_len` bytes (the pool's creation) are kept, the rest
/// wraps at `size_bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HistoryHeader {
    /// End of the record of the pool's creation; byte offset.
    pub create_len: u64,
    /// Size of the ring in bytes.
    pub size_bytes: u64,
    /// Logical offset of the oldest record.
    pub begin: u64,
    /// Logical offset of the end.
    pub end: u64,
    /// Number of records overwritten.
    pub lost: u64,
}

impl HistoryHeader {
    /// Decodes a bonus area.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [create_len, size_bytes, begin, end, lost] = Cursor::new(bonus, endian, "pool history").words()?;
        Ok(HistoryHeader { create_len, size_bytes, begin, end, lost })
    }

    /// Byte offset in the object of a logical offset; `None` if the ring is empty.
    pub fn physical(&self, logical: u64) -> Option<u64> {
        let ring = self.size_bytes.checked_sub(self.create_len).filter(|r| *r > 0)?;
        if logical < self.create_len {
            return Some(logical);
        }
        Some((logical - self.create_len) % ring + self.create_len)
    }
}

/// Decodes the records in consecutive history bytes, oldest first: each is a little-endian 64-bit length and a packed
/// nvlist. A truncated last record is left out; a record that does not decode yields an error.
pub fn history_records(bytes: &[u8]) -> Vec<Result<NvList, DecodeError>> {
    let mut c = Cursor::new(bytes, Endian::Little, "pool history");
    let mut out = Vec::new();
    while let Ok(len) = c.u64() {
        let Some(record) = usize::try_from(len).ok().filter(|l| *l > 0).and_then(|l| c.bytes(l).ok()) else { break };
        out.push(NvList::decode(record));
    }
    out
}

/// The block that an entry of the error log names (OpenZFS `module/zfs/spa_errlog.c`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[allow(missing_docs)]
pub enum ErrorName {
    /// The old log: object set, object, level, block.
    Bookmark { objset: u64, object: u64, level: i64, block: u64 },
    /// In the log of a head dataset (feature `head_errlog`): object, level, block, birth.
    InHead { object: u64, level: i64, block: u64, birth: u64 },
}

impl ErrorName {
    /// Parses `a:b:c:d`, hexadecimal. `in_head` tells whether the name is from the log of a head dataset.
    pub fn parse(name: &str, in_head: bool) -> Option<Self> {
        let mut parts = name.split(':').map(|p| u64::from_str_radix(p, 16));
        let mut next = || parts.next().and_then(Result::ok);
        let a = next()?;
        let b = next()?;
        let c = next()?;
        let d = next()?;
        if parts.next().is_some() {
            return None;
        }
        Some(if in_head {
            ErrorName::InHead { object: a, level: b as i64, block: c, birth: d }
        } else {
            ErrorName::Bookmark { objset: a, object: b, level: c as i64, block: d }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_names() {
        let old = ErrorName::Bookmark { objset: 0x36, object: 2, level: -1, block: 10 };
        assert_eq!(ErrorName::parse("36:2:ffffffffffffffff:a", false), Some(old));
        assert_eq!(
            ErrorName::parse("2:0:a:1f", true),
            Some(ErrorName::InHead { object: 2, level: 0, block: 10, birth: 31 })
        );
        for bad in ["", "1:2:3", "1:2:3:4:5", "x:1:2:3", "1:2:3:"] {
            assert_eq!(ErrorName::parse(bad, false), None);
        }
    }

    #[test]
    fn history() {
        let mut list = NvList::new();
        list.set("history command", "zpool create tank");
        let packed = list.encode_xdr();
        let mut bytes = (packed.len() as u64).to_le_bytes().to_vec();
        bytes.extend(&packed);
        bytes.extend(1000u64.to_le_bytes());
        assert_eq!(history_records(&bytes), [Ok(list)]);
        let h = HistoryHeader { create_len: 100, size_bytes: 1100, begin: 0, end: 0, lost: 0 };
        assert_eq!((h.physical(50), h.physical(1100), h.physical(1150)), (Some(50), Some(100), Some(150)));
        assert_eq!(HistoryHeader::default().physical(5), None);
    }
}
