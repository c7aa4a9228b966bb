//! Modification of files in memory: the semantics of each operation without permission checks.

use super::{EPOCH_NS, Entry, MemoryFiles, ROOT, State};
use crate::change::DirName;
use crate::change::{NewKind, SetTime};
use crate::{Attributes, Cred, FileError, FileKind, New, RenameMode, SetAttributes, Space, WriteAt, XattrMode};
use bytes::Bytes;
use std::ops::Range;
use weir_format::ObjectId;

/// Maximum file size in bytes.
const MAX_FILE_BYTES: u64 = 1 << 30;
const SET_GID: u32 = 0o2000;

impl MemoryFiles {
    /// Applies a change atomically.
    pub(super) fn changing<T>(&self, change: impl FnOnce(&mut State) -> Result<T, FileError>) -> Result<T, FileError> {
        if !self.writable {
            return Err(FileError::ReadOnly);
        }
        let mut state = self.state();
        state.changes += 1;
        change(&mut state)
    }
}

impl State {
    fn now_ns(&self) -> i128 {
        EPOCH_NS + i128::from(self.changes) * 1_000_000_000
    }

    fn get(&mut self, object: ObjectId) -> Result<&mut Entry, FileError> {
        self.entries.get_mut(&object.0).ok_or(FileError::Stale { object })
    }

    fn touch(&mut self, object: ObjectId, contents: bool) -> Result<Attributes, FileError> {
        let now_ns = self.now_ns();
        let entry = self.get(object)?;
        entry.attributes.ctime_ns = now_ns;
        if contents {
            entry.attributes.mtime_ns = now_ns;
        }
        Ok(entry.attributes.clone())
    }

    fn find(&self, dir: ObjectId, name: &[u8]) -> Result<Option<ObjectId>, FileError> {
        let dir = self.directory(dir)?;
        // A removed directory that is still held accepts no new entries.
        if dir.attributes.links == 0 {
            return Err(FileError::NotFound);
        }
        Ok(dir.names.get(name).copied().map(ObjectId))
    }

    /// Adds or removes a directory entry.
    fn name(&mut self, dir: ObjectId, name: &[u8], object: Option<ObjectId>) -> Result<(), FileError> {
        let entry = self.get(dir)?;
        match object {
            Some(object) => entry.names.insert(name.to_vec(), object.0),
            None => entry.names.remove(name),
        };
        entry.attributes.size_bytes = 2 + entry.names.len() as u64;
        self.touch(dir, true).map(drop)
    }

    pub(super) fn create(
        &mut self,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        new: &New,
    ) -> Result<Attributes, FileError> {
        if name.is_empty() || name.contains(&b'/') {
            return Err(FileError::Invalid { why: "invalid file name" });
        }
        if name.len() > 255 {
            return Err(FileError::NameTooLong { len: name.len() });
        }
        if let Some(found) = self.find(dir, name)? {
            let attributes = self.entry(found)?.attributes.clone();
            let given = !new.exclusive && new.kind == NewKind::Regular && attributes.kind == FileKind::Regular;
            return if given { Ok(attributes) } else { Err(FileError::Exists) };
        }
        let object = ObjectId(self.entries.keys().next_back().map_or(ROOT, |last| last + 1));
        let content =
            if let NewKind::Symlink(target) = &new.kind { Bytes::copy_from_slice(target) } else { Bytes::new() };
        let parent = self.entry(dir)?.attributes.clone();
        let inherits_group = parent.mode & SET_GID != 0;
        let mode = match new.kind.kind() {
            FileKind::Symlink => 0o777,
            FileKind::Directory if inherits_group => new.mode & !new.umask | SET_GID,
            _ => new.mode & !new.umask,
        };
        self.insert(object.0, dir.0, new.kind.kind(), mode, content);
        let now_ns = self.now_ns();
        let attributes = &mut self.get(object)?.attributes;
        attributes.uid = cred.uid;
        attributes.gid = if inherits_group { parent.gid } else { cred.gid };
        (attributes.atime_ns, attributes.crtime_ns, attributes.mtime_ns) = (now_ns, now_ns, now_ns);
        if let NewKind::BlockDevice(major, minor) | NewKind::CharDevice(major, minor) = new.kind {
            attributes.device = Some((major, minor));
        }
        self.name(dir, name, Some(object))?;
        if new.kind == NewKind::Directory {
            self.get(object)?.attributes.links = 2;
            self.get(dir)?.attributes.links += 1;
        }
        self.set(object, &new.set)
    }

    pub(super) fn link(&mut self, file: ObjectId, dir: ObjectId, name: &[u8]) -> Result<Attributes, FileError> {
        if self.find(dir, name)?.is_some() {
            return Err(FileError::Exists);
        }
        let entry = self.get(file)?;
        if entry.attributes.links == 0 {
            return Err(FileError::NotFound);
        }
        if entry.attributes.kind == FileKind::Directory {
            return Err(FileError::NotPermitted { object: file });
        }
        entry.attributes.links += 1;
        self.name(dir, name, Some(file))?;
        self.touch(file, false)
    }

    pub(super) fn remove(&mut self, dir: ObjectId, name: &[u8], is_dir: bool) -> Result<(), FileError> {
        let object = self.find(dir, name)?.ok_or(FileError::NotFound)?;
        let entry = self.entry(object)?;
        match (is_dir, entry.attributes.kind == FileKind::Directory) {
            (true, false) => return Err(FileError::NotDirectory { object }),
            (false, true) => return Err(FileError::IsDirectory { object }),
            (true, true) if !entry.names.is_empty() => return Err(FileError::NotEmpty { object }),
            _ => {}
        }
        self.name(dir, name, None)?;
        self.unlink(object, dir)
    }

    /// Updates link counts after removal of an entry of `object` in `dir`.
    fn unlink(&mut self, object: ObjectId, dir: ObjectId) -> Result<(), FileError> {
        let attributes = &mut self.get(object)?.attributes;
        if attributes.kind == FileKind::Directory {
            attributes.links = 0;
            let dir = self.get(dir)?;
            dir.attributes.links = dir.attributes.links.saturating_sub(1);
        } else {
            attributes.links = attributes.links.saturating_sub(1);
        }
        self.touch(object, false)?;
        self.forget(object);
        Ok(())
    }

    fn forget(&mut self, object: ObjectId) {
        let nameless = self.entries.get(&object.0).is_some_and(|entry| entry.attributes.links == 0);
        if nameless && !self.holds.contains_key(&object.0) {
            self.entries.remove(&object.0);
        }
    }

    pub(super) fn release(&mut self, object: ObjectId) {
        if let Some(holds) = self.holds.get_mut(&object.0) {
            *holds -= 1;
            if *holds == 0 {
                self.holds.remove(&object.0);
                self.forget(object);
            }
        }
    }

    /// Whether `below` is `above` or one of its descendants.
    fn is_in(&self, below: ObjectId, above: ObjectId) -> bool {
        let mut at = below.0;
        while at != above.0 && at != ROOT {
            at = self.entries.get(&at).map_or(ROOT, |entry| entry.attributes.parent.0);
        }
        at == above.0
    }

    pub(super) fn rename(
        &mut self,
        DirName { dir: from, name }: DirName<'_, ObjectId>,
        DirName { dir: to, name: new_name }: DirName<'_, ObjectId>,
        mode: RenameMode,
    ) -> Result<(), FileError> {
        let object = self.find(from, name)?.ok_or(FileError::NotFound)?;
        let there = self.find(to, new_name)?;
        let is_dir = |state: &State, id| state.entry(id).map(|entry| entry.attributes.kind == FileKind::Directory);
        let moved_dir = is_dir(self, object)?;
        let into_itself = Err(FileError::Invalid { why: "a directory cannot move into itself" });
        if moved_dir && self.is_in(to, object) {
            return into_itself;
        }
        match (there, mode) {
            (Some(_), RenameMode::NoReplace) => return Err(FileError::Exists),
            (None, RenameMode::Exchange) => return Err(FileError::NotFound),
            (Some(other), _) if other == object => return Ok(()),
            (Some(other), RenameMode::Exchange) => {
                let other_dir = is_dir(self, other)?;
                if other_dir && self.is_in(from, other) {
                    return into_itself;
                }
                self.name(from, name, Some(other))?;
                self.moved(other, to, from, other_dir)?;
            }
            (Some(other), _) => {
                if moved_dir && !is_dir(self, other)? {
                    return Err(FileError::NotDirectory { object: other });
                }
                if !moved_dir && is_dir(self, other)? {
                    return Err(FileError::IsDirectory { object: other });
                }
                self.remove(to, new_name, moved_dir)?;
                self.name(from, name, None)?;
            }
            (None, _) => self.name(from, name, None)?,
        }
        self.name(to, new_name, Some(object))?;
        self.moved(object, from, to, moved_dir)
    }

    fn moved(&mut self, object: ObjectId, from: ObjectId, to: ObjectId, is_dir: bool) -> Result<(), FileError> {
        self.get(object)?.attributes.parent = to;
        self.touch(object, false)?;
        if is_dir {
            let old = &mut self.get(from)?.attributes;
            old.links = old.links.saturating_sub(1);
            self.get(to)?.attributes.links += 1;
        }
        Ok(())
    }

    fn file(&mut self, object: ObjectId) -> Result<&mut Entry, FileError> {
        let entry = self.get(object)?;
        match entry.attributes.kind {
            FileKind::Regular => Ok(entry),
            FileKind::Directory => Err(FileError::IsDirectory { object }),
            _ => Err(FileError::Invalid { why: "not a regular file" }),
        }
    }

    fn resize(entry: &mut Entry, size_bytes: u64) -> Result<Vec<u8>, FileError> {
        if size_bytes > MAX_FILE_BYTES {
            return Err(FileError::TooLarge);
        }
        let mut content = entry.content.to_vec();
        content.resize(size_bytes as usize, 0);
        entry.attributes.size_bytes = size_bytes;
        entry.attributes.blocks512 = size_bytes.div_ceil(512);
        Ok(content)
    }

    pub(super) fn write(&mut self, file: ObjectId, at: WriteAt, data: &[u8]) -> Result<Attributes, FileError> {
        self.note_use(file);
        let entry = self.file(file)?;
        let size_bytes = entry.attributes.size_bytes;
        let offset = if let WriteAt::Offset(offset) = at { offset } else { size_bytes };
        let end = offset.saturating_add(data.len() as u64);
        let mut content = Self::resize(entry, size_bytes.max(end))?;
        if let Some(part) = content.get_mut(offset as usize..end as usize) {
            part.copy_from_slice(data);
        }
        entry.content = content.into();
        self.touch(file, true)
    }

    pub(super) fn set(&mut self, object: ObjectId, set: &SetAttributes) -> Result<Attributes, FileError> {
        self.note_use(object);
        if let Some(size_bytes) = set.size_bytes {
            let entry = self.file(object)?;
            entry.content = Self::resize(entry, size_bytes)?.into();
            self.touch(object, true)?;
        }
        let now_ns = self.now_ns();
        let time = |time: SetTime| if let SetTime::At(ns) = time { ns } else { now_ns };
        let attributes = &mut self.get(object)?.attributes;
        attributes.mode = set.mode.map_or(attributes.mode, |mode| mode & 0o7777);
        attributes.uid = set.uid.unwrap_or(attributes.uid);
        attributes.gid = set.gid.unwrap_or(attributes.gid);
        attributes.atime_ns = set.atime.map_or(attributes.atime_ns, time);
        attributes.mtime_ns = set.mtime.map_or(attributes.mtime_ns, time);
        self.touch(object, false)
    }

    pub(super) fn allocate(
        &mut self,
        file: ObjectId,
        range: Range<u64>,
        space: Space,
    ) -> Result<Attributes, FileError> {
        let entry = self.file(file)?;
        if space == Space::Rewrite {
            return Ok(entry.attributes.clone());
        }
        let size_bytes = entry.attributes.size_bytes;
        let keep_size =
            matches!(space, Space::Punch | Space::Reserve { keep_size: true } | Space::Zero { keep_size: true });
        let mut content = Self::resize(entry, if keep_size { size_bytes } else { size_bytes.max(range.end) })?;
        if !matches!(space, Space::Reserve { .. }) {
            let end = range.end.min(content.len() as u64);
            if let Some(part) = content.get_mut(range.start.min(end) as usize..end as usize) {
                part.fill(0);
            }
        }
        entry.content = content.into();
        self.touch(file, true)
    }

    pub(super) fn set_xattr(
        &mut self,
        object: ObjectId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FileError> {
        let entry = self.get(object)?;
        match (mode, entry.xattrs.contains_key(name)) {
            (XattrMode::Create, true) => return Err(FileError::Exists),
            (XattrMode::Replace, false) => return Err(FileError::NoAttribute),
            _ => {}
        }
        entry.xattrs.insert(name.to_vec(), Bytes::copy_from_slice(value));
        self.touch(object, false).map(drop)
    }
}
