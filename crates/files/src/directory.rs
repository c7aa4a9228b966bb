//! Directories: ZAPs whose values are an object number and, in the top four bits, the kind of the file.

use crate::attributes::FileKind;
use crate::error::FileError;
use weir_dmu::zap::{Entry, Key};
use weir_format::ObjectId;
use weir_format::znode::DirEntry as StoredEntry;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// Name as bytes; ZFS requires UTF-8 only if `utf8only` is set.
    pub name: Vec<u8>,
    /// Object number.
    pub object: ObjectId,
    /// Kind of the object; `None` in old file systems, which do not store it in directories.
    pub kind: Option<FileKind>,
    /// Cookie to continue a listing after this entry. Never 0, below 2^62.
    pub cookie: u64,
}

/// Decodes an entry of the ZAP of directory `dir`.
pub(crate) fn entry(dir: ObjectId, entry: Entry) -> Result<DirEntry, FileError> {
    let corrupt = |why: &str| FileError::Corrupt { object: dir, offset: 0, why: why.to_owned() };
    let Key::Name(name) = entry.key else { return Err(corrupt("directory with a non-string key")) };
    let stored = StoredEntry::from_word(entry.value.first().ok_or_else(|| corrupt("directory entry without a value"))?);
    let kind = (stored.kind != 0).then(|| FileKind::from_dirent(stored.kind));
    Ok(DirEntry { name, object: stored.object, kind, cookie: entry.cookie })
}
