//! System attributes (OpenZFS `include/sys/sa_impl.h`, `module/zfs/sa.c`, `module/zfs/zfs_sa.c`): a file's metadata
//! as a packed row of attributes in its bonus area and, if that is too small, its spill block.
//!
//! ```text
//!  header   magic 0x2f505a (u32) · layout number (10 bits) and header bytes / 8 (6 bits) (u16) · length (u16) …
//!  row      attribute values in the layout's order; each padded to eight bytes
//! ```
//!
//! Each file system has a *registry* (name → number, length, byte order class) and *layouts* (number → list of
//! attribute numbers), both ZAPs. The header stores the lengths of variable attributes in the layout's order, so the
//! row is parsed sequentially. The bonus area and the spill block each have their own header.

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;

const WHAT: &str = "system attributes";

/// Layout of an attribute's bytes (`sa_bswap_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum SaSwap {
    Uint64,
    Uint32,
    Uint16,
    Uint8,
    Acl,
}

impl SaSwap {
    /// From the number in the registry.
    pub fn from_u8(n: u8) -> Option<Self> {
        use SaSwap::*;
        [Uint64, Uint32, Uint16, Uint8, Acl].get(usize::from(n)).copied()
    }
}

/// A registered attribute: the value of an entry in the registry ZAP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SaAttribute {
    /// Attribute number, as used in layouts.
    pub number: u16,
    /// Length in bytes; 0 if variable.
    pub length: u16,
    /// Byte order class.
    pub swap: SaSwap,
}

impl SaAttribute {
    /// From the word in the registry ZAP.
    pub fn from_word(word: u64) -> Result<Self, DecodeError> {
        let swap = (word >> 16) as u8;
        Ok(SaAttribute {
            number: word as u16,
            length: (word >> 24) as u16,
            swap: SaSwap::from_u8(swap).ok_or(DecodeError::Field {
                what: WHAT,
                field: "byte order class",
                value: swap.into(),
            })?,
        })
    }

    /// The word in the registry ZAP.
    pub fn to_word(self) -> u64 {
        u64::from(self.length) << 24 | (self.swap as u64) << 16 | u64::from(self.number)
    }
}

/// A predefined attribute of the ZPL: name, length in bytes (0 if variable), byte order class.
pub type KnownAttribute = (&'static str, u16, SaSwap);

/// The attributes of the ZPL in the order in which it registers them.
pub const ZPL_ATTRIBUTES: [KnownAttribute; 23] = {
    use SaSwap::*;
    [
        ("ZPL_ATIME", 16, Uint64),
        ("ZPL_MTIME", 16, Uint64),
        ("ZPL_CTIME", 16, Uint64),
        ("ZPL_CRTIME", 16, Uint64),
        ("ZPL_GEN", 8, Uint64),
        ("ZPL_MODE", 8, Uint64),
        ("ZPL_SIZE", 8, Uint64),
        ("ZPL_PARENT", 8, Uint64),
        ("ZPL_LINKS", 8, Uint64),
        ("ZPL_XATTR", 8, Uint64),
        ("ZPL_RDEV", 8, Uint64),
        ("ZPL_FLAGS", 8, Uint64),
        ("ZPL_UID", 8, Uint64),
        ("ZPL_GID", 8, Uint64),
        ("ZPL_PAD", 32, Uint64),
        ("ZPL_ZNODE_ACL", 88, Uint8),
        ("ZPL_DACL_COUNT", 8, Uint64),
        ("ZPL_SYMLINK", 0, Uint8),
        ("ZPL_SCANSTAMP", 32, Uint8),
        ("ZPL_DACL_ACES", 0, Acl),
        ("ZPL_DXATTR", 0, Uint8),
        ("ZPL_PROJID", 8, Uint64),
        ("ZPL_SEQ", 8, Uint64),
    ]
};

/// Number of attributes in the bonus area of a znode without system attributes: the first of [`ZPL_ATTRIBUTES`], in
/// that order (layout 0).
pub const LEGACY_ATTRIBUTES: usize = 16;

/// Names in the ZAP that `SA_ATTRS` in the master node refers to.
#[allow(missing_docs)]
pub mod name {
    pub const LAYOUTS: &str = "LAYOUTS";
    pub const REGISTRY: &str = "REGISTRY";
}

/// The header of a row (`sa_hdr_phys_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SaHeader {
    /// Layout number; 0 in a bonus area without a layout yet, which is read as layout 1.
    pub layout: u16,
    /// Size of the header in bytes.
    pub header_bytes: usize,
    /// Lengths of the variable attributes in the layout's order, possibly followed by unused ones.
    pub lengths: Vec<u16>,
}

impl SaHeader {
    /// The magic number.
    pub const MAGIC: u32 = 0x2f_505a;

    /// Decodes the header at the front of a bonus area or spill block.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bytes, endian, WHAT);
        let magic = c.u32()?;
        if magic != Self::MAGIC {
            return Err(DecodeError::Magic { what: WHAT, found: magic.into() });
        }
        let info = c.u16()?;
        let header_bytes = usize::from(info >> 10) * 8;
        if header_bytes < 8 || header_bytes > bytes.len() {
            return Err(DecodeError::Field { what: WHAT, field: "header size", value: header_bytes as u64 });
        }
        let mut lengths = Vec::new();
        for _ in 0..(header_bytes - 6) / 2 {
            lengths.push(c.u16()?);
        }
        Ok(SaHeader { layout: info & 0x3ff, header_bytes, lengths })
    }

    /// The bytes of the header.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        e.u32(Self::MAGIC);
        e.u16(self.layout & 0x3ff | ((self.header_bytes / 8) as u16) << 10);
        self.lengths.iter().for_each(|l| e.u16(*l));
        e.pad_to(self.header_bytes);
        e.finish()
    }
}

/// Splits a row into each attribute's number and bytes. `layout` lists the attribute numbers; `length_of` returns the
/// registered length of a number (0 if variable, `None` if unknown).
pub fn attributes<'a>(
    bytes: &'a [u8],
    endian: Endian,
    layout: &[u16],
    mut length_of: impl FnMut(u16) -> Option<u16>,
) -> Result<Vec<(u16, &'a [u8])>, DecodeError> {
    let header = SaHeader::decode(bytes, endian)?;
    let mut lengths = header.lengths.iter();
    let mut c = Cursor::new(bytes, endian, WHAT);
    c.skip(header.header_bytes)?;
    let mut out = Vec::with_capacity(layout.len().min(bytes.len()));
    for number in layout {
        let bad = || DecodeError::Field { what: WHAT, field: "attribute number", value: u64::from(*number) };
        let len = match length_of(*number).ok_or_else(bad)? {
            0 => usize::from(*lengths.next().ok_or_else(bad)?),
            n => usize::from(n),
        };
        out.push((*number, c.bytes(len)?));
        c.skip((len.wrapping_neg() & 7).min(c.remaining()))?;
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_with_two_variable_attributes() {
        let header = SaHeader { layout: 5, header_bytes: 16, lengths: vec![3, 10, 0, 0, 0] };
        let mut bytes = header.encode(Endian::Big);
        assert_eq!(SaHeader::decode(&bytes, Endian::Big).unwrap(), header);
        bytes.extend(7u64.to_be_bytes());
        bytes.extend(b"abc\0\0\0\0\0");
        bytes.extend(b"0123456789");
        let length = |n: u16| [Some(8), Some(0), Some(0)].get(n as usize).copied().flatten();
        let row = attributes(&bytes, Endian::Big, &[0, 1, 2], length).unwrap();
        assert_eq!(row, [(0, &7u64.to_be_bytes()[..]), (1, b"abc"), (2, b"0123456789")]);
        assert!(attributes(&bytes, Endian::Big, &[3], length).is_err());
        assert!(attributes(&bytes[..30], Endian::Big, &[0, 1, 2], length).is_err());
        assert!(SaHeader::decode(&bytes[..7], Endian::Big).is_err());
    }

    #[test]
    fn registry_words() {
        let a = SaAttribute { number: 19, length: 0, swap: SaSwap::Acl };
        assert_eq!(a.to_word(), 0x4_0013);
        assert_eq!(SaAttribute::from_word(a.to_word()).unwrap(), a);
        assert!(SaAttribute::from_word(9 << 16).is_err());
    }
}
