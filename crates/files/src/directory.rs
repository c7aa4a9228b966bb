//! Directories: ZAPs whose values are an object number and, in the upper four bits, the kind of the file.

use crate::attributes::FileKind;
use crate::error::FileError;
use weir_dmu::zap::{Entry, Key};
use weir_format::ObjectId;
use weir_format::znode::DirEntry as StoredEntry;

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirEntry {
    /// The name, as bytes: ZFS does not ask for UTF-8 unless `utf8only` is set.
    pub name: Vec<u8>,
    /// The object it leads to.
    pub object: ObjectId,
    /// What the entry says the object is; `None` in old file systems, which do not say.
    pub kind: Option<FileKind>,
    /// Hand this to `read_dir` to go on after this entry. Never 0, below 2^62.
    pub cookie: u64,
}

/// An entry of directory `dir` as it stands in its ZAP.
pub(crate) fn entry(dir: ObjectId, entry: Entry) -> Result<DirEntry, FileError> {
    let lies = |why: &str| FileError::Corrupt { object: dir, offset: 0, why: why.to_owned() };
    let Key::Name(name) = entry.key else { return Err(lies("a directory with numbers for names")) };
    let stored = StoredEntry::from_word(entry.value.first().ok_or_else(|| lies("an entry that leads nowhere"))?);
    let kind = (stored.kind != 0).then(|| FileKind::from_dirent(stored.kind));
    Ok(DirEntry { name, object: stored.object, kind, cookie: entry.cookie })
}
