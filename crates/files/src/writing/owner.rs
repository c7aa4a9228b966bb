//! Owners to which an object's space is accounted, read from the bonus buffer only, because this runs for each dnode
//! that is synced (OpenZFS `zpl_get_file_info`).
//!
//! The relevant attributes come first in every layout and in this order: mode, size, generation, owner, group,
//! parent, flags, four times, links, project. So their offsets after the header are fixed.

use weir_format::sa::SaHeader;
use weir_format::znode::{FileFlags, Znode};
use weir_format::{Cursor, DecodeError, Endian, ObjectType};

/// Offset of the owner after the header; group, parent and flags follow.
const OWNER_AT: usize = 24;
/// Offset of the project after the flags.
const PROJECT_AFTER_FLAGS: usize = 128 - 56;

/// Owner, group and project of an object.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owner {
    /// The user (a FUID).
    pub uid: u64,
    /// The group (a FUID).
    pub gid: u64,
    /// The project; 0 if the file has none.
    pub project: u64,
}

/// Decodes the owner from a bonus buffer; `None` if the object is not a file.
///
/// # Errors
/// If the bonus buffer is truncated.
pub fn owner_of(bonus_type: ObjectType, bonus: &[u8], endian: Endian) -> Result<Option<Owner>, DecodeError> {
    match bonus_type {
        ObjectType::ZNODE => {
            let znode = Znode::decode(bonus, endian)?;
            Ok(Some(Owner { uid: znode.uid, gid: znode.gid, project: 0 }))
        }
        // A file that is being created may have no attributes yet.
        ObjectType::SA if bonus.is_empty() => Ok(Some(Owner::default())),
        ObjectType::SA => {
            let header = SaHeader::decode(bonus, endian)?;
            let mut c = Cursor::new(bonus, endian, "system attributes");
            c.skip(header.header_bytes + OWNER_AT)?;
            let [uid, gid, _parent, flags] = c.words()?;
            let mut project = 0;
            if flags & FileFlags::PROJID != 0 {
                c.skip(PROJECT_AFTER_FLAGS)?;
                project = c.u64()?;
            }
            Ok(Some(Owner { uid, gid, project }))
        }
        _ => Ok(None),
    }
}
