//! Directory entries: lookup under locks, insertion, removal.
//!
//! A directory's size is its number of entries plus two, its link count two plus its number of subdirectories. An
//! entry's value is the object number with the file's kind in the top four bits.

use super::locks::ObjectLocks;
use super::node::Node;
use crate::attributes::FileKind;
use crate::error::FileError;
use crate::handles::Directories;
use crate::metadata::index;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, Key, Match, Value};
use weir_format::ObjectId;
use weir_format::znode::{DirEntry as StoredEntry, FileFlags, Timestamp};
use weir_machine::Request;

/// An entry with its directory and its file locked and loaded.
pub(super) struct LockedEntry {
    pub held: ObjectLocks,
    pub dir: Node,
    pub node: Node,
}

fn kind_bits(kind: FileKind) -> u8 {
    (kind.mode_bits() >> 12) as u8
}

impl Directories<'_> {
    /// Checks whether a file may have this name.
    pub(super) fn check_name(self, name: &[u8]) -> Result<(), FileError> {
        if name.len() > self.files.name_max() {
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
        // Names that are normalized must be UTF-8.
        let must_be_text = self.files.utf8_only() || self.files.normalization() != 0;
        if must_be_text && std::str::from_utf8(name).is_err() {
            return Err(FileError::BadName);
        }
        Ok(())
    }

    /// Object of a name, if it exists.
    pub(super) async fn find(self, rq: &Request, dir: ObjectId, name: &[u8]) -> Result<Option<ObjectId>, FileError> {
        match self.lookup(rq, dir, name).await {
            Ok(found) => Ok(Some(found)),
            Err(FileError::NotFound) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Loads a directory to which a name will be added; under its lock.
    pub(super) async fn dir_node(self, rq: &Request, dir: ObjectId) -> Result<Node, FileError> {
        let node = self.files.nodes().load(rq, dir).await?.require_dir()?;
        // A removed directory that is still open accepts no new names.
        if node.links() == 0 { Err(FileError::NotFound) } else { Ok(node) }
    }

    /// Locks a directory and the object of one of its names.
    ///
    /// # Errors
    /// [`FileError::NotFound`] if the name does not exist.
    pub(super) async fn lock_name(self, rq: &Request, dir: ObjectId, name: &[u8]) -> Result<LockedEntry, FileError> {
        let locks = &self.files.writing()?.locks;
        loop {
            let found = self.lookup(rq, dir, name).await?;
            let held = locks.all(rq, [dir, found]).await;
            let dir_node = self.dir_node(rq, dir).await?;
            if self.find(rq, dir, name).await? == Some(found) {
                return Ok(LockedEntry { held, dir: dir_node, node: self.files.nodes().load(rq, found).await? });
            }
        }
    }

    /// Adds a name to a directory. The caller stores both nodes.
    pub(super) async fn insert_name(
        self,
        rq: &Request,
        tx: &Tx,
        dir: &mut Node,
        name: &[u8],
        node: &mut Node,
        now: Timestamp,
    ) -> Result<(), FileError> {
        let word = StoredEntry { object: node.id, kind: kind_bits(node.kind()) }.to_word();
        let key = Key::Name(name.to_vec());
        let entered = zap::insert(rq, self.files.objects(), tx, dir.id, &key, &Value::word(word)).await;
        entered.map_err(|e| FileError::at(e, dir.id, 0))?;
        node.set_word(index::PARENT, dir.id.0)?;
        dir.set_word(index::SIZE, dir.size_bytes().saturating_add(1))?;
        if node.is_dir() {
            dir.set_word(index::LINKS, dir.links().saturating_add(1))?;
        }
        dir.touch_contents(now)
    }

    /// Removes a name from a directory. The caller stores both nodes.
    pub(super) async fn remove_name(
        self,
        rq: &Request,
        tx: &Tx,
        dir: &mut Node,
        name: &[u8],
        is_dir: bool,
        now: Timestamp,
    ) -> Result<(), FileError> {
        let how = self.files.matching();
        let left = zap::remove_match(rq, self.files.objects(), tx, dir.id, name, how).await;
        if !left.map_err(|e| FileError::at(e, dir.id, 0))? {
            return Err(FileError::NotFound);
        }
        dir.set_word(index::SIZE, dir.size_bytes().saturating_sub(1))?;
        if is_dir {
            dir.set_word(index::LINKS, dir.links().saturating_sub(1))?;
        }
        dir.touch_contents(now)
    }

    /// Whether a directory is empty, by its size and by its ZAP.
    pub(super) async fn is_empty_dir(self, rq: &Request, dir: &Node) -> Result<bool, FileError> {
        Ok(dir.size_bytes() <= 2 && self.read_dir(rq, dir.id, 0, 1).await?.is_empty())
    }

    /// Whether names are case-insensitive; otherwise the log contains the caller's spelling and matches are
    /// [`Match::Exact`].
    pub(super) fn ignores_case(self) -> bool {
        self.files.matching() == Match::Normalized
            && self.files.case_sensitivity() == crate::CaseSensitivity::Insensitive
    }
}

/// Decrements the link count. Returns whether it was the last link.
pub(super) fn unlink(node: &mut Node, now: Timestamp) -> Result<bool, FileError> {
    let links = if node.is_dir() { 0 } else { node.links().saturating_sub(1) };
    node.set_word(index::LINKS, links)?;
    node.set_word(index::FLAGS, node.flags() | FileFlags::ARCHIVE)?;
    node.set_time(index::CTIME, now)?;
    Ok(links == 0)
}
