//! Directories: ZAPs whose values are an object number and, in the top four bits, the kind of the file.

use crate::CaseSensitivity;
use crate::attributes::FileKind;
use crate::error::FileError;
use crate::file_system::LONG_NAME_MAX;
use crate::handles::Directories;
use crate::metadata::MetadataScope;
use weir_dmu::zap::name::differ_in_case_alone;
use weir_dmu::zap::{Entry, Key, Match, Zap};
use weir_format::ObjectId;
use weir_format::ObjectType;
use weir_format::znode::DirEntry as StoredEntry;
use weir_machine::Request;

/// Entries per step of a search without regard to case.
const SPELLING_PAGE: usize = 256;

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

impl Directories<'_> {
    /// Looks up `name` in directory `dir`, with the file system's case sensitivity and normalization. `.` and `..`
    /// are not handled here.
    pub async fn lookup(self, rq: &Request, dir: ObjectId, name: &[u8]) -> Result<ObjectId, FileError> {
        // Long names may exist although the property is off now.
        if name.len() > LONG_NAME_MAX {
            return Err(FileError::NameTooLong { len: name.len() });
        }
        let zap = self.zap(rq, dir).await?;
        let found = zap.lookup(rq, name, self.files.matching()).await.map_err(|e| FileError::at(e, dir, 0))?;
        match found.and_then(|v| v.first()) {
            Some(word) => Ok(StoredEntry::from_word(word).object),
            None if name.len() > self.files.name_max() => Err(FileError::NameTooLong { len: name.len() }),
            None => Err(FileError::NotFound),
        }
    }

    /// The name in directory `dir` that differs from `name` in case alone, or `name` itself if it exists. With
    /// `casesensitivity=sensitive`, whose hashes depend on the case, the whole directory is searched.
    pub async fn spelling(self, rq: &Request, dir: ObjectId, name: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        let zap = self.zap(rq, dir).await?;
        let failed = |error| FileError::at(error, dir, 0);
        if self.files.case_sensitivity() != CaseSensitivity::Sensitive {
            return zap.stored_name(rq, name, Match::Normalized).await.map_err(failed);
        }
        if zap.lookup(rq, name, self.files.matching()).await.map_err(failed)?.is_some() {
            return Ok(Some(name.to_vec()));
        }
        let mut cookie = 0;
        loop {
            let page = zap.entries(rq, cookie, SPELLING_PAGE).await.map_err(failed)?;
            let is_last = page.len() < SPELLING_PAGE;
            for stored in page {
                debug_assert!(stored.cookie > cookie, "a search goes on");
                cookie = stored.cookie;
                if let Key::Name(stored) = stored.key
                    && differ_in_case_alone(&stored, name)
                {
                    return Ok(Some(stored));
                }
            }
            if is_last {
                return Ok(None);
            }
        }
    }

    /// Reads up to `max` entries of directory `dir` after `cookie` (0: from the start), without `.` and `..`. Fewer
    /// than `max` entries mean the end. The order is that of the names' hashes, which is stable.
    pub async fn read_dir(
        self,
        rq: &Request,
        dir: ObjectId,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<DirEntry>, FileError> {
        let entries = self.search(rq, dir, cookie, max).await?;
        if cookie == 0 && self.files.writing.is_some() {
            let (_, metadata) = self.files.load(rq, dir, MetadataScope::Basics).await?;
            self.files.atimes().note(dir, &metadata);
        }
        Ok(entries)
    }

    /// Reads entries as [`Directories::read_dir`] does, for the server itself: the directory keeps its access time.
    pub(crate) async fn search(
        self,
        rq: &Request,
        dir: ObjectId,
        cookie: u64,
        max: usize,
    ) -> Result<Vec<DirEntry>, FileError> {
        let zap = self.zap(rq, dir).await?;
        let entries = zap.entries(rq, cookie, max).await.map_err(|e| FileError::at(e, dir, 0))?;
        entries.into_iter().map(|stored| entry(dir, stored)).collect()
    }

    async fn zap(self, rq: &Request, id: ObjectId) -> Result<Zap, FileError> {
        let object = self.files.object(rq, id).await?;
        if object.dnode.object_type != ObjectType::DIRECTORY_CONTENTS {
            return Err(FileError::NotDirectory { object: id });
        }
        Zap::of(rq, self.files.objects(), object).await.map_err(|e| FileError::at(e, id, 0))
    }
}
