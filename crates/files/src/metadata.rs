//! Metadata of a file: decoded from system attributes (ZPL version 5) or a znode (earlier versions).
//!
//! The IDs of the attributes known to the ZPL are kept per file system ([`AttrIds`]); a file's attributes are decoded
//! once per call. The spill block is read only if a required attribute is not in the bonus buffer.
//!
//! After an upgrade from an older version, files not modified since still have a znode; the bonus type distinguishes
//! them.

use crate::attributes::{Attributes, FileKind};
use crate::error::FileError;
use crate::writing::AttrRegistry;
use bytes::Bytes;
use std::sync::Arc;
use weir_dmu::sa::SaTable;
use weir_dmu::{Object, ObjectSet};
use weir_format::acl::EmbeddedAcl;
use weir_format::sa::ZPL_ATTRIBUTES;
use weir_format::znode::{FileFlags, Fuid, Timestamp, Znode};
use weir_format::{Cursor, DecodeError, Endian, ObjectId, ObjectType};
use weir_machine::Request;

/// UID and GID reported for identities without a POSIX number.
pub(crate) const NOBODY: u32 = 65_534;

/// Indices of attributes in [`ZPL_ATTRIBUTES`].
pub(crate) mod index {
    pub const ATIME: usize = 0;
    pub const MTIME: usize = 1;
    pub const CTIME: usize = 2;
    pub const CRTIME: usize = 3;
    pub const GEN: usize = 4;
    pub const MODE: usize = 5;
    pub const SIZE: usize = 6;
    pub const PARENT: usize = 7;
    pub const LINKS: usize = 8;
    pub const XATTR: usize = 9;
    pub const RDEV: usize = 10;
    pub const FLAGS: usize = 11;
    pub const UID: usize = 12;
    pub const GID: usize = 13;
    pub const ZNODE_ACL: usize = 15;
    pub const DACL_COUNT: usize = 16;
    pub const SYMLINK: usize = 17;
    pub const DACL_ACES: usize = 19;
    pub const DXATTR: usize = 20;
    pub const PROJID: usize = 21;
}

/// The SA registry of a file system, mapped to the known attributes.
#[derive(Debug, Default)]
pub(crate) struct AttrIds {
    table: SaTable,
    /// Index in [`ZPL_ATTRIBUTES`] by attribute ID.
    known: Vec<Option<u8>>,
    /// Attribute ID by index in [`ZPL_ATTRIBUTES`].
    numbers: Vec<Option<u16>>,
}

impl AttrIds {
    pub(crate) fn new(table: SaTable) -> Self {
        let mut known =
            vec![None; 1 + ZPL_ATTRIBUTES.iter().filter_map(|a| table.number(a.0)).max().unwrap_or(0) as usize];
        for (index, attribute) in ZPL_ATTRIBUTES.iter().enumerate() {
            if let Some(slot) = table.number(attribute.0).and_then(|n| known.get_mut(usize::from(n))) {
                *slot = Some(index as u8);
            }
        }
        let numbers = ZPL_ATTRIBUTES.iter().map(|a| table.number(a.0)).collect();
        AttrIds { table, known, numbers }
    }

    /// The SA registry and layouts.
    pub(crate) fn table(&self) -> &SaTable {
        &self.table
    }

    /// Number of the layout with these attributes, if it is registered.
    pub(crate) fn layout(&self, attributes: &[u16]) -> Option<u16> {
        self.table.layout_of(attributes)
    }
}

impl AttrRegistry for AttrIds {
    fn index(&self, number: u16) -> Option<usize> {
        self.known.get(usize::from(number)).copied().flatten().map(usize::from)
    }

    fn number(&self, index: usize) -> Option<u16> {
        *self.numbers.get(index)?
    }

    fn length(&self, number: u16) -> Option<u16> {
        self.table.length(number)
    }
}

/// An ACL as stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum StoredAcl {
    #[default]
    None,
    /// A system attribute: encoded entries and their count.
    Aces(Bytes, u64, Endian),
    /// In the znode, or in an object that the znode references.
    Znode(Box<EmbeddedAcl>, Endian),
}

/// Decoded metadata of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Metadata {
    pub times: [Timestamp; 4],
    pub generation: u64,
    pub mode: u64,
    pub size_bytes: u64,
    pub parent: ObjectId,
    pub links: u64,
    pub xattr_dir: ObjectId,
    pub rdev: u64,
    pub flags: FileFlags,
    pub uid: Fuid,
    pub gid: Fuid,
    pub project: Option<u64>,
    pub acl: StoredAcl,
    pub symlink: Option<Bytes>,
    pub xattrs: Option<Bytes>,
    /// Bit mask of the attributes found, by index.
    found: u32,
}

/// Which attributes a load needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetadataScope {
    /// The attributes of `stat`.
    Basics,
    /// All attributes.
    All,
}

impl Metadata {
    /// Reads the metadata of `object`, which must be a file.
    pub(crate) async fn load(
        rq: &Request,
        set: &Arc<ObjectSet>,
        numbers: &AttrIds,
        object: &Arc<Object>,
        extent: MetadataScope,
    ) -> Result<Self, FileError> {
        let dnode = &object.dnode;
        let bonus = dnode.bonus();
        let mut metadata = Metadata::default();
        match dnode.bonus_type {
            ObjectType::ZNODE => {
                metadata = Self::of_znode(bonus, dnode.endian).map_err(|e| corrupt(object.id, e))?;
            }
            ObjectType::SA => {
                metadata.add_attributes(numbers, bonus, dnode.endian, None).map_err(|e| corrupt(object.id, e))?;
                // A spill block that is not synced yet has no block pointer.
                if extent == MetadataScope::All || metadata.lacks_basics() {
                    let spill = set.reader().read_spill(rq, object).await.map_err(|e| FileError::of(e, object))?;
                    if let Some((bytes, endian)) = spill {
                        metadata
                            .add_attributes(numbers, &bytes, endian, Some(&bytes))
                            .map_err(|e| corrupt(object.id, e))?;
                    }
                }
                if metadata.found & 1 << index::MODE == 0 {
                    return Err(FileError::Corrupt {
                        object: object.id,
                        offset: 0,
                        why: "file has no mode attribute".into(),
                    });
                }
            }
            // Not a file: an internal object of the file system.
            _ => return Err(FileError::NotFound),
        }
        Ok(metadata)
    }

    pub(crate) fn of_znode(bonus: &[u8], endian: Endian) -> Result<Self, DecodeError> {
        let znode = Znode::decode(bonus, endian)?;
        Ok(Metadata {
            times: [znode.atime, znode.mtime, znode.ctime, znode.crtime],
            generation: znode.generation,
            mode: znode.mode,
            size_bytes: znode.size_bytes,
            parent: znode.parent,
            links: znode.links,
            xattr_dir: znode.xattr,
            rdev: znode.rdev,
            flags: FileFlags(znode.flags),
            uid: Fuid(znode.uid),
            gid: Fuid(znode.gid),
            symlink: znode.inline_target(bonus).map(Bytes::copy_from_slice),
            acl: StoredAcl::Znode(Box::new(znode.acl), endian),
            ..Metadata::default()
        })
    }

    fn lacks_basics(&self) -> bool {
        use index::*;
        const BASICS: u32 = 1 << ATIME
            | 1 << MTIME
            | 1 << CTIME
            | 1 << CRTIME
            | 1 << GEN
            | 1 << MODE
            | 1 << SIZE
            | 1 << PARENT
            | 1 << LINKS
            | 1 << FLAGS
            | 1 << UID
            | 1 << GID;
        let is_device = matches!(self.kind(), FileKind::BlockDevice | FileKind::CharDevice);
        self.found & BASICS != BASICS
            || is_device && self.found & 1 << RDEV == 0
            || self.flags.has(FileFlags::PROJID) && self.project.is_none()
    }

    /// Adds decoded system attributes. `shared` holds the same bytes; slices of it are kept without a copy.
    pub(crate) fn add_attributes(
        &mut self,
        numbers: &AttrIds,
        bytes: &[u8],
        endian: Endian,
        shared: Option<&Bytes>,
    ) -> Result<(), DecodeError> {
        let keep = |part: &[u8]| shared.map_or_else(|| Bytes::copy_from_slice(part), |whole| whole.slice_ref(part));
        let mut aces = None;
        for (number, part) in numbers.table.row(bytes, endian)? {
            let Some(index) = numbers.index(number) else { continue };
            self.found |= 1 << index;
            let mut c = Cursor::new(part, endian, "system attribute");
            match index {
                index::ATIME..=index::CRTIME => {
                    if let Some(time) = self.times.get_mut(index) {
                        *time = Timestamp::from_words(c.words()?);
                    }
                }
                index::GEN => self.generation = c.u64()?,
                index::MODE => self.mode = c.u64()?,
                index::SIZE => self.size_bytes = c.u64()?,
                index::PARENT => self.parent = ObjectId(c.u64()?),
                index::LINKS => self.links = c.u64()?,
                index::XATTR => self.xattr_dir = ObjectId(c.u64()?),
                index::RDEV => self.rdev = c.u64()?,
                index::FLAGS => self.flags = FileFlags(c.u64()?),
                index::UID => self.uid = Fuid(c.u64()?),
                index::GID => self.gid = Fuid(c.u64()?),
                index::PROJID => self.project = Some(c.u64()?),
                index::ZNODE_ACL => self.acl = StoredAcl::Znode(Box::new(EmbeddedAcl::decode(&mut c)?), endian),
                index::DACL_COUNT => self.count_aces(c.u64()?),
                index::DACL_ACES => aces = Some(keep(part)),
                index::SYMLINK => self.symlink = Some(keep(part)),
                index::DXATTR => self.xattrs = Some(keep(part)),
                _ => {}
            }
        }
        if let Some(aces) = aces {
            let count = if let StoredAcl::Aces(_, count, _) = &self.acl { *count } else { 0 };
            self.acl = StoredAcl::Aces(aces, count, endian);
        }
        Ok(())
    }

    /// The entry count may be in the bonus buffer and the entries in the spill block.
    fn count_aces(&mut self, count: u64) {
        self.acl = match std::mem::take(&mut self.acl) {
            StoredAcl::Aces(bytes, _, endian) => StoredAcl::Aces(bytes, count, endian),
            _ => StoredAcl::Aces(Bytes::new(), count, Endian::Little),
        };
    }

    /// Time of the last change of attributes.
    pub(crate) fn ctime(&self) -> Timestamp {
        let [_, _, ctime, _] = self.times;
        ctime
    }

    /// Kind of the file.
    pub(crate) fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode as u32)
    }

    /// The attributes of `stat`.
    pub(crate) fn attributes(&self, object: &Object) -> Attributes {
        let [atime_ns, mtime_ns, ctime_ns, crtime_ns] =
            self.times.map(|t| i128::from(t.sec) * 1_000_000_000 + i128::from(t.nsec));
        let kind = self.kind();
        let device = matches!(kind, FileKind::BlockDevice | FileKind::CharDevice).then(|| device(self.rdev));
        Attributes {
            object: object.id,
            kind,
            mode: (self.mode & 0o7777) as u32,
            uid: posix(self.uid),
            gid: posix(self.gid),
            links: self.links,
            size_bytes: self.size_bytes,
            // The dnode's slots count too.
            blocks512: (object.dnode.used_bytes().saturating_add(256) >> 9).saturating_add(object.dnode.slots() as u64),
            block_bytes: object.block_bytes() as u32,
            device,
            atime_ns,
            mtime_ns,
            ctime_ns,
            crtime_ns,
            generation: self.generation,
            flags: self.flags,
            parent: self.parent,
            project: self.project,
        }
    }
}

/// Splits a device number: Linux stores 12 bits of major and 20 of minor number, illumos 32 bits of each.
fn device(rdev: u64) -> (u32, u32) {
    match rdev >> 32 {
        0 => ((rdev >> 20) as u32, (rdev & 0xf_ffff) as u32),
        major => (major as u32, rdev as u32),
    }
}

fn posix(fuid: Fuid) -> u32 {
    if fuid.domain() == 0 { fuid.id() } else { NOBODY }
}

pub(crate) fn corrupt(object: ObjectId, error: DecodeError) -> FileError {
    FileError::Corrupt { object, offset: 0, why: error.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_of_both_systems() {
        assert_eq!(device(8 << 20 | 1), (8, 1));
        assert_eq!(device(5 << 32 | 3), (5, 3));
    }

    #[test]
    fn domain_identities_map_to_the_anonymous_user() {
        assert_eq!(posix(Fuid(4_000_000_000)), 4_000_000_000);
        assert_eq!(posix(Fuid(1 << 32 | 500)), NOBODY);
    }

    #[test]
    fn acl_count_and_entries_are_accepted_in_either_order() {
        let mut metadata =
            Metadata { acl: StoredAcl::Aces(Bytes::from_static(b"x"), 0, Endian::Big), ..Default::default() };
        metadata.count_aces(3);
        assert_eq!(metadata.acl, StoredAcl::Aces(Bytes::from_static(b"x"), 3, Endian::Big));
    }
}
