//! Names in directories: finding them under locks, entering them, taking them out.
//!
//! A directory's size is the number of its entries plus two, its links two plus its subdirectories. An entry's value is
//! the object's number with the file's kind in the upper four bits.

use super::locks::HeldSet;
use super::node::Node;
use crate::attributes::FileKind;
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::metadata::index;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, Key, Match, Value};
use weir_format::ObjectId;
use weir_format::znode::{DirEntry as StoredEntry, Timestamp, flag};
use weir_machine::Request;

/// A name, found, with its directory and its file locked and loaded.
pub(super) struct Found {
    pub held: HeldSet,
    pub dir: Node,
    pub node: Node,
}

fn kind_bits(kind: FileKind) -> u8 {
    (kind.mode_bits() >> 12) as u8
}

impl FileSystem {
    /// Whether a file may have that name.
    pub(super) fn check_name(&self, name: &[u8]) -> Result<(), FileError> {
        if name.len() > self.name_max() {
            return Err(FileError::NameTooLong { len: name.len() });
        }
        match name {
            b"" => return Err(FileError::NotFound),
            b"." | b".." => return Err(FileError::Exists),
            _ if name.iter().any(|b| matches!(b, 0 | b'/')) => {
                return Err(FileError::Invalid { why: "a name with a slash or a NUL" });
            }
            _ => {}
        }
        // What is compared in normal form has to be UTF-8.
        let must_be_text = self.utf8_only() || self.normalization() != 0;
        if must_be_text && std::str::from_utf8(name).is_err() {
            return Err(FileError::BadName);
        }
        Ok(())
    }

    /// What a name leads to, if to anything.
    pub(super) async fn find(&self, rq: &Request, dir: ObjectId, name: &[u8]) -> Result<Option<ObjectId>, FileError> {
        match self.lookup(rq, dir, name).await {
            Ok(found) => Ok(Some(found)),
            Err(FileError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Locks and loads a directory that a name is to be entered into.
    pub(super) async fn dir_node(&self, rq: &Request, dir: ObjectId) -> Result<Node, FileError> {
        let node = self.node(rq, dir).await?.require_dir()?;
        // A removed directory that somebody still has open takes no names.
        if node.links() == 0 { Err(FileError::NotFound) } else { Ok(node) }
    }

    /// Locks a directory and what a name in it leads to.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if it leads nowhere.
    pub(super) async fn lock_name(&self, rq: &Request, dir: ObjectId, name: &[u8]) -> Result<Found, FileError> {
        let locks = &self.writing()?.locks;
        loop {
            let found = self.lookup(rq, dir, name).await?;
            let held = locks.all([dir, found]).await;
            let dir_node = self.dir_node(rq, dir).await?;
            if self.find(rq, dir, name).await? == Some(found) {
                return Ok(Found { held, dir: dir_node, node: self.node(rq, found).await? });
            }
        }
    }

    /// Enters a name into a directory. The caller stores both nodes.
    pub(super) async fn enter(
        &self,
        rq: &Request,
        tx: &Tx,
        dir: &mut Node,
        name: &[u8],
        node: &mut Node,
        now: Timestamp,
    ) -> Result<(), FileError> {
        let word = StoredEntry { object: node.id, kind: kind_bits(node.kind()) }.to_word();
        let key = Key::Name(name.to_vec());
        let entered = zap::insert(rq, self.objects(), tx, dir.id, &key, &Value::word(word)).await;
        entered.map_err(|e| FileError::at(e, dir.id, 0))?;
        node.set_word(index::PARENT, dir.id.0)?;
        dir.set_word(index::SIZE, dir.size_bytes().saturating_add(1))?;
        if node.is_dir() {
            dir.set_word(index::LINKS, dir.links().saturating_add(1))?;
        }
        dir.touch_contents(now)
    }

    /// Takes a name out of a directory. The caller stores both nodes.
    pub(super) async fn leave(
        &self,
        rq: &Request,
        tx: &Tx,
        dir: &mut Node,
        name: &[u8],
        is_dir: bool,
        now: Timestamp,
    ) -> Result<(), FileError> {
        let how = self.matching();
        let left = zap::remove_match(rq, self.objects(), tx, dir.id, name, how).await;
        if !left.map_err(|e| FileError::at(e, dir.id, 0))? {
            return Err(FileError::NotFound);
        }
        dir.set_word(index::SIZE, dir.size_bytes().saturating_sub(1))?;
        if is_dir {
            dir.set_word(index::LINKS, dir.links().saturating_sub(1))?;
        }
        dir.touch_contents(now)
    }

    /// Whether a directory has no entries: neither by its size nor in fact.
    pub(super) async fn is_empty_dir(&self, rq: &Request, dir: &Node) -> Result<bool, FileError> {
        Ok(dir.size_bytes() <= 2 && self.read_dir(rq, dir.id, 0, 1).await?.is_empty())
    }

    /// The name as the log has it is that which the caller gave: [`Match::Exact`] unless the file system folds case.
    pub(super) fn ignores_case(&self) -> bool {
        self.matching() == Match::Normalized && self.case_sensitivity() == crate::CaseSensitivity::Insensitive
    }
}

/// One name less leads to the file. Gives whether that was the last.
pub(super) fn unlink(node: &mut Node, now: Timestamp) -> Result<bool, FileError> {
    let links = if node.is_dir() { 0 } else { node.links().saturating_sub(1) };
    node.set_word(index::LINKS, links)?;
    node.set_word(index::FLAGS, node.flags() | flag::ARCHIVE)?;
    node.set_time(index::CTIME, now)?;
    Ok(links == 0)
}
