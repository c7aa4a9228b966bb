//! A file that is being modified: its dnode, and its attributes as [`SaAttrs`].

use super::sa_attrs::{self, AttrRegistry, SaAttrs};
use crate::attributes::FileKind;
use crate::error::FileError;
use crate::handles::Nodes;
use crate::metadata::{AttrIds, corrupt, index};
use std::sync::Arc;
use weir_dmu::Object;
use weir_dmu::sa::SaTable;
use weir_dmu::txg::Tx;
use weir_format::acl::Ace;
use weir_format::znode::{FileFlags, Timestamp, Znode};
use weir_format::{DecodeError, Dnode, Endian, ObjectId, ObjectType};
use weir_machine::Request;

/// Flags that every change of contents or attributes sets, for archivers and virus scanners.
const CHANGED: u64 = FileFlags::ARCHIVE | FileFlags::AV_MODIFIED;

/// A file that is being modified.
#[derive(Clone)]
pub(crate) struct Node {
    pub id: ObjectId,
    pub object: Arc<Object>,
    pub row: SaAttrs,
    pub numbers: Arc<AttrIds>,
    /// IDs of the attributes in the spill block when the file was loaded.
    spilled: Vec<sa_attrs::Attribute>,
}

impl Node {
    pub fn word(&self, index: usize) -> u64 {
        self.row.word(&*self.numbers, index)
    }

    pub fn set_word(&mut self, index: usize, word: u64) -> Result<(), FileError> {
        self.row.set_word(&*self.numbers, index, word).map_err(|e| corrupt(self.id, e))
    }

    pub fn set_time(&mut self, index: usize, time: Timestamp) -> Result<(), FileError> {
        self.row.set_time(&*self.numbers, index, time).map_err(|e| corrupt(self.id, e))
    }

    /// A time attribute, if present.
    pub fn time(&self, index: usize) -> Option<Timestamp> {
        let bytes = self.get(index)?;
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?));
        Some(Timestamp::from_words([word(0)?, word(8)?]))
    }

    pub fn get(&self, index: usize) -> Option<&[u8]> {
        self.row.get(&*self.numbers, index)
    }

    pub fn set(&mut self, index: usize, value: &[u8]) -> Result<(), FileError> {
        self.row.set(&*self.numbers, index, value).map_err(|e| corrupt(self.id, e))
    }

    pub fn unset(&mut self, index: usize) {
        self.row.unset(&*self.numbers, index);
    }

    pub fn aces(&self) -> Result<Vec<Ace>, FileError> {
        self.row.aces(&*self.numbers).map_err(|e| corrupt(self.id, e))
    }

    pub fn set_aces(&mut self, aces: &[Ace]) -> Result<(), FileError> {
        self.row.set_aces(&*self.numbers, aces).map_err(|e| corrupt(self.id, e))
    }

    /// Mode with kind bits.
    pub fn mode(&self) -> u64 {
        self.word(index::MODE)
    }

    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.mode() as u32)
    }

    pub fn is_dir(&self) -> bool {
        self.kind() == FileKind::Directory
    }

    pub fn size_bytes(&self) -> u64 {
        self.word(index::SIZE)
    }

    pub fn links(&self) -> u64 {
        self.word(index::LINKS)
    }

    pub fn flags(&self) -> u64 {
        self.word(index::FLAGS)
    }

    pub fn has_flag(&self, flag: u64) -> bool {
        self.flags() & flag != 0
    }

    /// Owner and group as POSIX IDs; other identities are mapped to the anonymous user.
    pub fn owner(&self) -> (u32, u32) {
        let posix = |index| u32::try_from(self.word(index)).unwrap_or(crate::metadata::NOBODY);
        (posix(index::UID), posix(index::GID))
    }

    /// Updates the times of an attribute change.
    pub fn touch(&mut self, now: Timestamp) -> Result<(), FileError> {
        self.set_word(index::FLAGS, self.flags() | FileFlags::ARCHIVE)?;
        self.set_time(index::CTIME, now)
    }

    /// Updates the times of a contents change.
    pub fn touch_contents(&mut self, now: Timestamp) -> Result<(), FileError> {
        self.set_word(index::FLAGS, self.flags() | CHANGED)?;
        self.set_time(index::MTIME, now)?;
        self.set_time(index::CTIME, now)
    }

    pub fn require_dir(self) -> Result<Self, FileError> {
        if self.is_dir() { Ok(self) } else { Err(FileError::NotDirectory { object: self.id }) }
    }

    /// Fails unless this is a regular file, the only kind with modifiable contents.
    pub fn require_file(self) -> Result<Self, FileError> {
        match self.kind() {
            FileKind::Regular => Ok(self),
            FileKind::Directory => Err(FileError::IsDirectory { object: self.id }),
            _ => Err(FileError::Invalid { why: "not a regular file" }),
        }
    }

    /// Whether the attributes fit into bonus buffer and spill block.
    pub fn fits(&self) -> bool {
        self.row.parts(&*self.numbers, room(&self.object.dnode)).is_some()
    }

    /// Whether it is a file or directory of extended attributes.
    pub fn is_xattr(&self) -> bool {
        self.has_flag(FileFlags::XATTR)
    }
}

/// Capacity of the bonus buffer in bytes without a spill block pointer.
fn room(dnode: &Dnode) -> usize {
    dnode.bonus.len() + if dnode.spill.is_some() { weir_format::BlockPointer::SIZE } else { 0 }
}

impl Nodes<'_> {
    /// Loads a file for modification; under its lock.
    ///
    /// # Errors
    /// [`FileError::Stale`] if it was freed.
    pub(super) async fn load(self, rq: &Request, id: ObjectId) -> Result<Node, FileError> {
        let object = self.files.object(rq, id).await.map_err(|e| stale_if_missing(e, id))?;
        let numbers = self.files.numbers();
        let dnode = &object.dnode;
        let wrong = |e: DecodeError| corrupt(id, e);
        let mut row = SaAttrs::default();
        let mut spilled = Vec::new();
        match dnode.bonus_type {
            ObjectType::SA => {
                let pieces = numbers.table().row(dnode.bonus(), dnode.endian).map_err(wrong)?;
                row.take(&*numbers, &pieces, dnode.endian).map_err(wrong)?;
                let spill = self
                    .files
                    .objects()
                    .reader()
                    .read_spill(rq, &object)
                    .await
                    .map_err(|e| FileError::of(e, &object))?;
                if let Some((bytes, endian)) = spill {
                    let pieces = numbers.table().row(&bytes, endian).map_err(wrong)?;
                    let mut rest = SaAttrs::default();
                    rest.take(&*numbers, &pieces, endian).map_err(wrong)?;
                    row.take(&*numbers, &pieces, endian).map_err(wrong)?;
                    spilled = rest.into_attributes();
                }
            }
            ObjectType::ZNODE => {
                let znode = Znode::decode(dnode.bonus(), dnode.endian).map_err(wrong)?;
                if znode.acl.external.0 != 0 || dnode.endian == Endian::Big {
                    let what = "modifying a file of an older version with a long access control list".to_owned();
                    return Err(FileError::Unsupported { what });
                }
                let is_link = FileKind::from_mode(znode.mode as u32) == FileKind::Symlink;
                let target = znode.inline_target(dnode.bonus()).filter(|_| is_link);
                row = SaAttrs::of_znode(&*numbers, &znode, target).map_err(wrong)?;
            }
            _ => return Err(FileError::Stale { object: id }),
        }
        Ok(Node { id, object, row, numbers, spilled })
    }

    /// A new file without attributes.
    pub(super) fn of(self, object: Arc<Object>) -> Node {
        Node {
            id: object.id,
            object,
            row: SaAttrs::with_default_capacity(),
            numbers: self.files.numbers(),
            spilled: Vec::new(),
        }
    }

    /// Stores the attributes of a file.
    pub(super) async fn store(self, rq: &Request, tx: &Tx, node: &Node) -> Result<(), FileError> {
        let failed = |e| FileError::of(e, &node.object);
        let set = self.files.objects();
        let endian = node.object.dnode.endian;
        let parts = node.row.parts(&*node.numbers, room(&node.object.dnode)).ok_or(FileError::NoSpace)?;
        let wrong = |e: DecodeError| corrupt(node.id, e);
        let bonus_layout = self.layout(rq, tx, sa_attrs::layout(parts.bonus)).await?;
        let bonus = sa_attrs::encode(&*node.numbers, parts.bonus, bonus_layout, endian).map_err(wrong)?;
        if parts.spill.is_empty() && !node.spilled.is_empty() {
            set.changes().set_spill(rq, tx, node.id, None).await.map_err(failed)?;
        }
        set.changes().set_bonus(rq, tx, node.id, ObjectType::SA, &bonus).await.map_err(failed)?;
        if !parts.spill.is_empty() && parts.spill != node.spilled {
            let layout = self.layout(rq, tx, sa_attrs::layout(parts.spill)).await?;
            // The block is written in the byte order given here.
            let bytes = sa_attrs::encode(&*node.numbers, parts.spill, layout, Endian::Little).map_err(wrong)?;
            set.changes().set_spill(rq, tx, node.id, Some(sa_attrs::spill_block(bytes))).await.map_err(failed)?;
        }
        Ok(())
    }

    /// Number of a layout, which is registered if necessary.
    async fn layout(self, rq: &Request, tx: &Tx, attributes: Vec<u16>) -> Result<u16, FileError> {
        if let Some(number) = self.files.numbers().layout(&attributes) {
            return Ok(number);
        }
        let _alone = self.files.writing()?.sa_registry_lock.lock().await;
        let mut table = self.files.numbers().table().clone();
        let failed = |e| FileError::at(e, ObjectId(weir_format::znode::master::OBJECT), 0);
        let number = table.register_layout(rq, self.files.objects(), tx, &attributes).await.map_err(failed)?;
        self.files.set_attr_ids(AttrIds::new(table));
        Ok(number)
    }

    /// Registers the known attribute with this index if necessary.
    pub(super) async fn register_attribute(self, rq: &Request, tx: &Tx, index: usize) -> Result<(), FileError> {
        if self.files.numbers().number(index).is_some() {
            return Ok(());
        }
        let _alone = self.files.writing()?.sa_registry_lock.lock().await;
        let mut table: SaTable = self.files.numbers().table().clone();
        let failed = |e| FileError::at(e, ObjectId(weir_format::znode::master::OBJECT), 0);
        table.register_known(rq, self.files.objects(), tx).await.map_err(failed)?;
        self.files.set_attr_ids(AttrIds::new(table));
        Ok(())
    }
}

/// Converts "not found" to "stale": the object existed when the caller got its number.
fn stale_if_missing(error: FileError, id: ObjectId) -> FileError {
    if error == FileError::NotFound { FileError::Stale { object: id } } else { error }
}
