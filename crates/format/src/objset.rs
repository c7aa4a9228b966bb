//! The header of an object set (`objset_phys_t`, OpenZFS `include/sys/dmu_objset.h`): the block that the uberblock's
//! root pointer and each dataset's pointer refer to.
//!
//! ```text
//!     0 meta dnode (512)            the object that holds all other dnodes
//!   512 intent log header (192)
//!   704 type · 712 flags
//!   720 portable MAC (32) · 752 local MAC (32)
//!  1024 user accounting dnode · 1536 group accounting dnode       from 2048-byte headers on
//!  2048 project accounting dnode                                  in 4096-byte headers
//! ```

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::dnode::Dnode;
use crate::encoder::Encoder;
use crate::zil::ZilHeader;

const WHAT: &str = "object set";

/// Type of an object set (`dmu_objset_type_t`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum ObjsetKind {
    None,
    /// The meta object set.
    Meta,
    /// A file system.
    Zfs,
    /// A volume.
    Zvol,
    Other,
    Any,
}

impl ObjsetKind {
    /// From the number on disk.
    pub fn from_u64(n: u64) -> Option<Self> {
        use ObjsetKind::*;
        [None, Meta, Zfs, Zvol, Other, Any].get(usize::try_from(n).ok()?).copied()
    }

    /// The name that zdb shows.
    pub fn name(self) -> &'static str {
        match self {
            ObjsetKind::None => "NONE",
            ObjsetKind::Meta => "META",
            ObjsetKind::Zfs => "ZPL",
            ObjsetKind::Zvol => "ZVOL",
            ObjsetKind::Other => "OTHER",
            ObjsetKind::Any => "ANY",
        }
    }
}

/// A decoded object set header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Objset {
    /// The object that holds all other dnodes; `None` in an object set that never held an object.
    pub meta_dnode: Option<Dnode>,
    /// Header of the intent log.
    pub zil: ZilHeader,
    /// Type of the object set.
    pub kind: ObjsetKind,
    /// Flags: [`Objset::USER_ACCOUNTING`] etc.
    pub flags: u64,
    /// MAC over the fields that a raw send preserves; encrypted datasets only.
    pub portable_mac: [u8; 32],
    /// MAC over the accounting dnodes; encrypted datasets only.
    pub local_mac: [u8; 32],
    /// Dnode of the ZAP of space used by user.
    pub user_used: Option<Dnode>,
    /// Dnode of the ZAP of space used by group.
    pub group_used: Option<Dnode>,
    /// Dnode of the ZAP of space used by project.
    pub project_used: Option<Dnode>,
}

impl Objset {
    /// Flag: user and group accounting is complete.
    pub const USER_ACCOUNTING: u64 = 1;
    /// Flag: object accounting is complete.
    pub const OBJECT_ACCOUNTING: u64 = 2;
    /// Flag: project accounting is complete.
    pub const PROJECT_ACCOUNTING: u64 = 4;
    /// The object number of the user accounting ZAP (`DMU_USERUSED_OBJECT`), which has no slot in the meta dnode.
    pub const USERUSED_OBJECT: u64 = u64::MAX;
    /// The object number of the group accounting ZAP.
    pub const GROUPUSED_OBJECT: u64 = u64::MAX - 1;
    /// The object number of the project accounting ZAP.
    pub const PROJECTUSED_OBJECT: u64 = u64::MAX - 2;
    /// Size of the oldest header in bytes.
    pub const SIZE_V1: usize = 1024;
    /// Size in bytes of a header with user and group accounting.
    pub const SIZE_V2: usize = 2048;
    /// Size in bytes of a header with project accounting.
    pub const SIZE_V3: usize = 4096;

    /// Decodes a header block of 1024, 2048 or 4096 bytes.
    pub fn decode(bytes: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bytes, endian, WHAT);
        let meta_dnode = Dnode::decode(c.bytes(Dnode::SLOT)?, endian)?;
        let zil = ZilHeader::decode(&mut c)?;
        let kind = c.u64()?;
        let kind = ObjsetKind::from_u64(kind).ok_or(DecodeError::Field { what: WHAT, field: "type", value: kind })?;
        let flags = c.u64()?;
        let portable_mac = c.array()?;
        let local_mac = c.array()?;
        let dnode_at = |offset: usize, size: usize| match bytes.get(offset..offset + Dnode::SLOT) {
            Some(slot) if bytes.len() >= size => Dnode::decode(slot, endian),
            _ => Ok(None),
        };
        Ok(Objset {
            meta_dnode,
            zil,
            kind,
            flags,
            portable_mac,
            local_mac,
            user_used: dnode_at(1024, Self::SIZE_V2)?,
            group_used: dnode_at(1536, Self::SIZE_V2)?,
            project_used: dnode_at(2048, Self::SIZE_V3)?,
        })
    }

    /// Encodes a header block of 1024, 2048 or 4096 bytes with the accounting dnodes that fit. Dnodes must be in the
    /// byte order `endian` and take one slot.
    pub fn encode(&self, len: usize, endian: Endian) -> Vec<u8> {
        let slot = |e: &mut Encoder, dnode: &Option<Dnode>| {
            let end = e.position() + Dnode::SLOT;
            let bytes = dnode.as_ref().map(Dnode::encode).unwrap_or_default();
            e.bytes(bytes.get(..Dnode::SLOT).unwrap_or_default());
            e.pad_to(end);
        };
        let mut e = Encoder::new(endian);
        slot(&mut e, &self.meta_dnode);
        self.zil.encode(&mut e);
        e.words(&[self.kind as u64, self.flags]);
        e.bytes(&self.portable_mac);
        e.bytes(&self.local_mac);
        e.pad_to(Self::SIZE_V1);
        if len >= Self::SIZE_V2 {
            slot(&mut e, &self.user_used);
            slot(&mut e, &self.group_used);
        }
        if len >= Self::SIZE_V3 {
            slot(&mut e, &self.project_used);
        }
        e.pad_to(len);
        e.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A header with all accounting dnodes that fit.
    fn header(len: usize) -> Vec<u8> {
        let mut b = vec![0; len];
        for at in [0, 1024, 1536, 2048] {
            if let Some(slot) = b.get_mut(at..at + 8) {
                slot.copy_from_slice(&[10, 17, 1, 3, 0, 0, 0, 0]);
            }
        }
        b[704] = 2;
        b[720..784].fill(0x5a);
        b
    }

    #[test]
    fn all_sizes_round_trip() {
        for len in [Objset::SIZE_V1, Objset::SIZE_V2, Objset::SIZE_V3] {
            let bytes = header(len);
            let set = Objset::decode(&bytes, Endian::Little).unwrap();
            assert_eq!(set.kind, ObjsetKind::Zfs);
            assert_eq!(set.user_used.is_some(), len >= Objset::SIZE_V2);
            assert_eq!(set.project_used.is_some(), len >= Objset::SIZE_V3);
            assert_eq!(set.encode(len, Endian::Little), bytes);
        }
        let mut bytes = header(1024);
        bytes[704] = 9;
        assert!(Objset::decode(&bytes, Endian::Little).is_err());
        assert!(Objset::decode(&bytes[..700], Endian::Little).is_err());
    }
}
