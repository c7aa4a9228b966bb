//! A file that is being changed: its dnode, and its attributes as a [`Row`].

use super::row::{self, Naming, Row};
use crate::attributes::FileKind;
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::metadata::{Numbers, index, lies};
use std::sync::Arc;
use weir_dmu::Object;
use weir_dmu::sa::SaTable;
use weir_dmu::txg::Tx;
use weir_format::acl::Ace;
use weir_format::znode::{Timestamp, Znode, flag};
use weir_format::{DecodeError, Dnode, Endian, ObjectId, ObjectType};
use weir_machine::Request;

/// Flags that every change of a file's contents sets, and every change of its attributes: what archivers and virus
/// scanners look at.
const CHANGED: u64 = flag::ARCHIVE | flag::AV_MODIFIED;

/// A file that is being changed.
#[derive(Clone)]
pub(crate) struct Node {
    pub id: ObjectId,
    pub object: Arc<Object>,
    pub row: Row,
    pub numbers: Arc<Numbers>,
    /// The attributes that were in the spill block when it was loaded.
    spilled: Vec<row::Attribute>,
}

impl Node {
    pub fn word(&self, index: usize) -> u64 {
        self.row.word(&*self.numbers, index)
    }

    pub fn set_word(&mut self, index: usize, word: u64) -> Result<(), FileError> {
        self.row.set_word(&*self.numbers, index, word).map_err(|e| lies(self.id, e))
    }

    pub fn set_time(&mut self, index: usize, time: Timestamp) -> Result<(), FileError> {
        self.row.set_time(&*self.numbers, index, time).map_err(|e| lies(self.id, e))
    }

    /// A time, if the file has it.
    pub fn time(&self, index: usize) -> Option<Timestamp> {
        let bytes = self.get(index)?;
        let word = |at: usize| Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk::<8>()?));
        Some(Timestamp::from_words([word(0)?, word(8)?]))
    }

    pub fn get(&self, index: usize) -> Option<&[u8]> {
        self.row.get(&*self.numbers, index)
    }

    pub fn set(&mut self, index: usize, value: &[u8]) -> Result<(), FileError> {
        self.row.set(&*self.numbers, index, value).map_err(|e| lies(self.id, e))
    }

    pub fn unset(&mut self, index: usize) {
        self.row.unset(&*self.numbers, index);
    }

    pub fn aces(&self) -> Result<Vec<Ace>, FileError> {
        self.row.aces(&*self.numbers).map_err(|e| lies(self.id, e))
    }

    pub fn set_aces(&mut self, aces: &[Ace]) -> Result<(), FileError> {
        self.row.set_aces(&*self.numbers, aces).map_err(|e| lies(self.id, e))
    }

    /// The mode, with its kind.
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

    /// Owner and group, where they are POSIX numbers; others are nobody's.
    pub fn owner(&self) -> (u32, u32) {
        let posix = |index| u32::try_from(self.word(index)).unwrap_or(crate::metadata::NOBODY);
        (posix(index::UID), posix(index::GID))
    }

    /// Its attributes change at `now`.
    pub fn touch(&mut self, now: Timestamp) -> Result<(), FileError> {
        self.set_word(index::FLAGS, self.flags() | flag::ARCHIVE)?;
        self.set_time(index::CTIME, now)
    }

    /// Its contents change at `now`.
    pub fn touch_contents(&mut self, now: Timestamp) -> Result<(), FileError> {
        self.set_word(index::FLAGS, self.flags() | CHANGED)?;
        self.set_time(index::MTIME, now)?;
        self.set_time(index::CTIME, now)
    }

    pub fn require_dir(self) -> Result<Self, FileError> {
        if self.is_dir() { Ok(self) } else { Err(FileError::NotDirectory { object: self.id }) }
    }

    /// A plain file: the only kind that has contents to be changed.
    pub fn require_file(self) -> Result<Self, FileError> {
        match self.kind() {
            FileKind::Regular => Ok(self),
            FileKind::Directory => Err(FileError::IsDirectory { object: self.id }),
            _ => Err(FileError::Invalid { why: "not a plain file" }),
        }
    }

    /// Whether its attributes fit into bonus area and spill block.
    pub fn fits(&self) -> bool {
        self.row.parts(&*self.numbers, room(&self.object.dnode)).is_some()
    }

    /// Whether it is a file of extended attributes, or their directory.
    pub fn is_xattr(&self) -> bool {
        self.has_flag(flag::XATTR)
    }
}

/// Room of a bonus area in bytes, were there no spill block.
fn room(dnode: &Dnode) -> usize {
    dnode.bonus.len() + if dnode.spill.is_some() { weir_format::BlockPointer::SIZE } else { 0 }
}

impl FileSystem {
    /// Loads a file to be changed; under its lock.
    ///
    /// # Errors
    /// [`FileError::Stale`] if it is gone.
    pub(super) async fn node(&self, rq: &Request, id: ObjectId) -> Result<Node, FileError> {
        let object = self.object(rq, id).await.map_err(|e| gone(e, id))?;
        let numbers = self.numbers();
        let dnode = &object.dnode;
        let wrong = |e: DecodeError| lies(id, e);
        let mut row = Row::default();
        let mut spilled = Vec::new();
        match dnode.bonus_type {
            ObjectType::SA => {
                let pieces = numbers.table().row(dnode.bonus(), dnode.endian).map_err(wrong)?;
                row.take(&*numbers, &pieces, dnode.endian).map_err(wrong)?;
                let spill = self.objects().read_spill(rq, &object).await.map_err(|e| FileError::of(e, &object))?;
                if let Some((bytes, endian)) = spill {
                    let pieces = numbers.table().row(&bytes, endian).map_err(wrong)?;
                    let mut rest = Row::default();
                    rest.take(&*numbers, &pieces, endian).map_err(wrong)?;
                    row.take(&*numbers, &pieces, endian).map_err(wrong)?;
                    spilled = rest.into_attributes();
                }
            }
            ObjectType::ZNODE => {
                let znode = Znode::decode(dnode.bonus(), dnode.endian).map_err(wrong)?;
                if znode.acl.external.0 != 0 || dnode.endian == Endian::Big {
                    let what = "changing a file of an older version with a long access control list".to_owned();
                    return Err(FileError::Unsupported { what });
                }
                let is_link = FileKind::from_mode(znode.mode as u32) == FileKind::Symlink;
                let target = znode.inline_target(dnode.bonus()).filter(|_| is_link);
                row = Row::of_znode(&*numbers, &znode, target).map_err(wrong)?;
            }
            _ => return Err(FileError::Stale { object: id }),
        }
        Ok(Node { id, object, row, numbers, spilled })
    }

    /// A file that was just made and has no attributes yet.
    pub(super) fn fresh_node(&self, object: Arc<Object>) -> Node {
        Node { id: object.id, object, row: Row::with_room(), numbers: self.numbers(), spilled: Vec::new() }
    }

    /// Writes the attributes of a file back.
    pub(super) async fn store(&self, rq: &Request, tx: &Tx, node: &Node) -> Result<(), FileError> {
        let failed = |e| FileError::of(e, &node.object);
        let set = self.objects();
        let endian = node.object.dnode.endian;
        let parts = node.row.parts(&*node.numbers, room(&node.object.dnode)).ok_or(FileError::NoSpace)?;
        let wrong = |e: DecodeError| lies(node.id, e);
        let bonus_layout = self.layout(rq, tx, row::layout(parts.bonus)).await?;
        let bonus = row::encode(&*node.numbers, parts.bonus, bonus_layout, endian).map_err(wrong)?;
        if parts.spill.is_empty() && !node.spilled.is_empty() {
            set.set_spill(rq, tx, node.id, None).await.map_err(failed)?;
        }
        set.set_bonus(rq, tx, node.id, ObjectType::SA, &bonus).await.map_err(failed)?;
        if !parts.spill.is_empty() && parts.spill != node.spilled {
            let layout = self.layout(rq, tx, row::layout(parts.spill)).await?;
            // A block says itself in which order it was written.
            let bytes = row::encode(&*node.numbers, parts.spill, layout, Endian::Little).map_err(wrong)?;
            set.set_spill(rq, tx, node.id, Some(row::spill_block(bytes))).await.map_err(failed)?;
        }
        Ok(())
    }

    /// The number of a layout, which is registered if there is none yet.
    async fn layout(&self, rq: &Request, tx: &Tx, attributes: Vec<u16>) -> Result<u16, FileError> {
        if let Some(number) = self.numbers().layout(&attributes) {
            return Ok(number);
        }
        let _alone = self.writing()?.shapes.lock().await;
        let mut table = self.numbers().table().clone();
        let failed = |e| FileError::at(e, ObjectId(weir_format::znode::master::OBJECT), 0);
        let number = table.register_layout(rq, self.objects(), tx, &attributes).await.map_err(failed)?;
        self.set_numbers(Numbers::new(table));
        Ok(number)
    }

    /// Sees that the attribute with this index in the list of known ones has a number.
    pub(super) async fn know(&self, rq: &Request, tx: &Tx, index: usize) -> Result<(), FileError> {
        if self.numbers().number(index).is_some() {
            return Ok(());
        }
        let _alone = self.writing()?.shapes.lock().await;
        let mut table: SaTable = self.numbers().table().clone();
        let failed = |e| FileError::at(e, ObjectId(weir_format::znode::master::OBJECT), 0);
        table.register_known(rq, self.objects(), tx).await.map_err(failed)?;
        self.set_numbers(Numbers::new(table));
        Ok(())
    }
}

/// What is not there any more was there when the caller got its number.
fn gone(error: FileError, id: ObjectId) -> FileError {
    if error == FileError::NotFound { FileError::Stale { object: id } } else { error }
}
