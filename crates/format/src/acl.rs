//! Access control lists (OpenZFS `include/sys/zfs_acl.h`, `module/os/linux/zfs/zfs_acl.c`), NFSv4-style, in two forms:
//!
//! ```text
//!  version 0   12 bytes each: id (u32) · mask (u32) · flags (u16) · type (u16)
//!  FUID        type (u16) · flags (u16) · mask (u32), and unless it is the owner's, group's or everyone's:
//!              id (u64), and for object types two GUIDs (16 each)
//! ```
//!
//! Files without system attributes store a list of up to 72 bytes in the znode and a longer one in a separate object
//! ([`EmbeddedAcl`]). Files with system attributes store the list in the attribute `ZPL_DACL_ACES`.

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::ObjectId;

const WHAT: &str = "ACL";

/// One access control entry (`zfs_ace_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ace {
    /// Entry type: 0 allow, 1 deny, 2 audit, 3 alarm; 5–8 are the same for object types.
    pub kind: u16,
    /// Principal flags ([`Ace::OWNER`] etc.) and, in the lower bits, inheritance flags.
    pub flags: u16,
    /// Permission bits, numbered as in NFSv4.
    pub mask: u32,
    /// The principal, unless the flags name owner, group or everyone: a FUID (domain index in the upper, id in the
    /// lower 32 bits).
    pub who: u64,
    /// GUIDs of object type and inherited object type; only for entry types 5–8.
    pub object: Option<([u8; 16], [u8; 16])>,
}

impl Ace {
    /// Entry type: allow.
    pub const ALLOW: u16 = 0;
    /// Entry type: deny.
    pub const DENY: u16 = 1;
    /// Entry type: alarm, the last of those without GUIDs.
    pub const ALARM: u16 = 3;
    /// Flag: files inherit the entry.
    pub const FILE_INHERIT: u16 = 0x1;
    /// Flag: directories inherit the entry.
    pub const DIRECTORY_INHERIT: u16 = 0x2;
    /// Flag: inheritance stops one level below.
    pub const NO_PROPAGATE: u16 = 0x4;
    /// Flag: the entry applies only to files and directories that inherit it.
    pub const INHERIT_ONLY: u16 = 0x8;
    /// Flag: `who` is a group.
    pub const IDENTIFIER_GROUP: u16 = 0x40;
    /// Flag: the entry was inherited.
    pub const INHERITED: u16 = 0x80;
    /// Flag: the principal is the owner.
    pub const OWNER: u16 = 0x1000;
    /// Flag: the principal is the owning group (with [`Ace::IDENTIFIER_GROUP`]).
    pub const GROUP: u16 = 0x2000;
    /// Flag: the principal is everyone.
    pub const EVERYONE: u16 = 0x4000;
    /// All flags that select the principal.
    pub const WHO_FLAGS: u16 = Self::OWNER | Self::GROUP | Self::EVERYONE | Self::IDENTIFIER_GROUP;

    /// Whether the on-disk form omits `who`: the flags alone name the principal.
    fn is_abstract(&self) -> bool {
        const OWNING_GROUP: u16 = Ace::GROUP | Ace::IDENTIFIER_GROUP;
        self.kind <= Self::DENY && matches!(self.flags & Self::WHO_FLAGS, Self::OWNER | OWNING_GROUP | Self::EVERYONE)
    }

    fn is_object(&self) -> bool {
        (5..=8).contains(&self.kind)
    }

    /// Decodes an entry of version 0.
    pub fn decode_v0(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let who = c.u32()?;
        let mask = c.u32()?;
        let flags = c.u16()?;
        let kind = c.u16()?;
        Ok(Ace { kind, flags, mask, who: who.into(), object: None })
    }

    /// Decodes an entry of the FUID form.
    pub fn decode(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let kind = c.u16()?;
        let flags = c.u16()?;
        let mask = c.u32()?;
        let mut ace = Ace { kind, flags, mask, who: 0, object: None };
        if !ace.is_abstract() {
            ace.who = c.u64()?;
        }
        if ace.is_object() {
            ace.object = Some((c.array()?, c.array()?));
        }
        Ok(ace)
    }

    /// Appends an entry of version 0.
    pub fn encode_v0(&self, e: &mut Encoder) {
        e.u32(self.who as u32);
        e.u32(self.mask);
        e.u16(self.flags);
        e.u16(self.kind);
    }

    /// Appends an entry of the FUID form.
    pub fn encode(&self, e: &mut Encoder) {
        e.u16(self.kind);
        e.u16(self.flags);
        e.u32(self.mask);
        if !self.is_abstract() {
            e.u64(self.who);
        }
        if self.is_object() {
            let (a, b) = self.object.unwrap_or_default();
            e.bytes(&a);
            e.bytes(&b);
        }
    }
}

/// Decodes `count` entries of version 0 (`fuid` false) or of the FUID form.
pub fn decode_aces(bytes: &[u8], endian: Endian, count: u64, fuid: bool) -> Result<Vec<Ace>, DecodeError> {
    let mut c = Cursor::new(bytes, endian, WHAT);
    let mut out = Vec::new();
    for _ in 0..count {
        out.push(if fuid { Ace::decode(&mut c)? } else { Ace::decode_v0(&mut c)? });
    }
    Ok(out)
}

/// The access control list in a znode without system attributes (`zfs_acl_phys_t`, 88 bytes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddedAcl {
    /// The object that holds the list if it does not fit in `data`; else 0.
    pub external: ObjectId,
    /// Size of the list in bytes.
    pub size_bytes: u64,
    /// Entries.
    pub count: u64,
    /// 0, or 1 for the FUID form.
    pub version: u16,
    /// The list, if it fits.
    pub data: [u8; 72],
}

impl EmbeddedAcl {
    /// Bytes on disk.
    pub const SIZE: usize = 88;

    /// Decodes 88 bytes.
    pub fn decode(c: &mut Cursor<'_>) -> Result<Self, DecodeError> {
        let external = ObjectId(c.u64()?);
        let size_or_count = c.u32()?;
        let version = c.u16()?;
        let count = c.u16()?;
        let data = c.array()?;
        // In version 0 the first field is the number of entries, in the FUID form the number of bytes.
        let (size_bytes, count) = match version {
            0 => (u64::from(size_or_count) * 12, size_or_count.into()),
            _ => (size_or_count.into(), count.into()),
        };
        Ok(EmbeddedAcl { external, size_bytes, count, version, data })
    }

    /// Appends the 88 bytes.
    pub fn encode(&self, e: &mut Encoder) {
        e.u64(self.external.0);
        e.u32(if self.version == 0 { self.count as u32 } else { self.size_bytes as u32 });
        e.u16(self.version);
        e.u16(if self.version == 0 { 0 } else { self.count as u16 });
        e.bytes(&self.data);
    }

    /// The decoded entries. `external` is the contents of the external object, if the list is stored there.
    pub fn aces(&self, external: Option<&[u8]>, endian: Endian) -> Result<Vec<Ace>, DecodeError> {
        decode_aces(external.unwrap_or(&self.data), endian, self.count, self.version != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_by_kind() {
        let mut e = Encoder::new(Endian::Little);
        let owner = Ace { kind: 0, flags: Ace::OWNER, mask: 7, who: 0, object: None };
        let user = Ace { kind: 1, flags: Ace::FILE_INHERIT, mask: 7, who: 1000, object: None };
        let object = Ace { kind: 5, flags: 0, mask: 1, who: 3, object: Some(([1; 16], [2; 16])) };
        let mut sizes = vec![];
        for ace in [owner, user, object] {
            let before = e.position();
            ace.encode(&mut e);
            sizes.push(e.position() - before);
        }
        assert_eq!(sizes, [8, 16, 48]);
        assert_eq!(decode_aces(&e.finish(), Endian::Little, 3, true).unwrap(), [owner, user, object]);
    }

    proptest! {
        #[test]
        fn entries_round_trip(bytes in proptest::collection::vec(any::<u8>(), 48)) {
            let ace = Ace::decode(&mut Cursor::new(&bytes, Endian::Big, WHAT)).unwrap();
            let mut e = Encoder::new(Endian::Big);
            ace.encode(&mut e);
            let back = e.finish();
            prop_assert_eq!(&back[..], &bytes[..back.len()]);
            let v0 = Ace::decode_v0(&mut Cursor::new(&bytes, Endian::Big, WHAT)).unwrap();
            let mut e = Encoder::new(Endian::Big);
            v0.encode_v0(&mut e);
            prop_assert_eq!(&e.finish()[..], &bytes[..12]);
        }
    }
}
