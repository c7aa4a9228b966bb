//! Directories.

use crate::attributes::FileKind;
use weir_format::ObjectId;

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
