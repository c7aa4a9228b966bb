//! Lists of block pointers: bpobjs, and deadlists made of them.

use crate::cursor::{Cursor, DecodeError, Endian};
use crate::encoder::Encoder;
use crate::ids::ObjectId;

/// The header of an object that is an array of block pointers (`bpobj_phys_t`), in its bonus area. Older pools have
/// shorter headers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bpobj {
    /// Number of block pointers in the object.
    pub pointers: u64,
    /// Allocated bytes of the blocks, sub-objects included.
    pub bytes: u64,
    /// Bytes of the blocks after and before compression; absent before pool version 3.
    pub sizes: Option<(u64, u64)>,
    /// Object that lists the numbers of further bpobjs, and their count; absent before pool version 26.
    pub sub_objects: Option<(ObjectId, u64)>,
    /// Number of pointers that record frees rather than allocations (livelists).
    pub freed: Option<u64>,
}

impl Bpobj {
    /// Bytes of the oldest header.
    pub const SIZE_V0: usize = 16;
    /// Bytes of the header with sizes.
    pub const SIZE_V1: usize = 32;
    /// Bytes of the header with sub-objects.
    pub const SIZE_V2: usize = 48;
    /// Bytes of the header with the count of frees.
    pub const SIZE_V3: usize = 56;

    /// Decodes a bonus area; its length determines which fields are present.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let mut c = Cursor::new(bonus, endian, "bpobj");
        let [pointers, bytes] = c.words()?;
        let sizes = if bonus.len() >= Self::SIZE_V1 { Some((c.u64()?, c.u64()?)) } else { None };
        let sub_objects = if bonus.len() >= Self::SIZE_V2 { Some((ObjectId(c.u64()?), c.u64()?)) } else { None };
        let freed = if bonus.len() >= Self::SIZE_V3 { Some(c.u64()?) } else { None };
        Ok(Bpobj { pointers, bytes, sizes, sub_objects, freed })
    }

    /// The bytes of the bonus area. An optional field is written only if all fields before it are present.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        e.words(&[self.pointers, self.bytes]);
        if let Some((comp, uncomp)) = self.sizes {
            e.words(&[comp, uncomp]);
            if let Some((object, count)) = self.sub_objects {
                e.words(&[object.0, count]);
                if let Some(freed) = self.freed {
                    e.u64(freed);
                }
            }
        }
        e.finish()
    }
}

/// The header of a deadlist (`dsl_deadlist_phys_t`), in the bonus area of its ZAP. Each key of the ZAP is a
/// hexadecimal minimum birth txg, each value a bpobj. Before pool version 26 a deadlist is a plain bpobj; the object
/// type tells them apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deadlist {
    /// Allocated bytes of the blocks.
    pub used_bytes: u64,
    /// Bytes after compression.
    pub compressed_bytes: u64,
    /// Bytes before compression.
    pub uncompressed_bytes: u64,
}

impl Deadlist {
    /// Bytes on disk.
    pub const SIZE: usize = 320;

    /// Decodes a bonus area.
    pub fn decode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let [used_bytes, compressed_bytes, uncompressed_bytes] = Cursor::new(bonus, endian, "deadlist").words()?;
        Ok(Deadlist { used_bytes, compressed_bytes, uncompressed_bytes })
    }

    /// The bytes of the bonus area.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let mut e = Encoder::new(endian);
        e.words(&[self.used_bytes, self.compressed_bytes, self.uncompressed_bytes]);
        e.pad_to(Self::SIZE);
        e.finish()
    }

    /// Parses a key of the ZAP: the minimum birth txg.
    pub fn key(name: &str) -> Option<u64> {
        u64::from_str_radix(name, 16).ok()
    }
}
