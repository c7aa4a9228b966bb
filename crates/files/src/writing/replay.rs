//! Replay of the intent log (OpenZFS `module/zfs/zfs_replay.c`), for logs of Weir and of OpenZFS.
//!
//! A record is replayed by the operation that logged it, as the superuser; new objects get the number, generation and
//! time of the record. Existing results are kept: a record may be replayed twice if replay was interrupted before it
//! was marked as done. A missing file is not an error for records that may follow its removal.

use super::log::{LIST_FLAGS, mask};
use super::make::{NAME_BYTES, NewNodeAttrs};
use super::{acls, flags, xattrs};
use crate::change::DirName;
use crate::change::{Cred, RenameMode, SetAttributes, SetTime};
use crate::error::FileError;
use crate::handles::{Contents, Replay};
use crate::metadata::{corrupt, index};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use weir_dmu::live::SpaceReserve;
use weir_dmu::{ErrorLocation, ObjectError};
use weir_format::acl::{Ace, decode_aces};
use weir_format::zil::{AclBody, CreateBody, CreateKind, LogBody, LogRecord, RenameKind, WriteBody, Xvattr};
use weir_format::znode::{FileFlags, Timestamp};
use weir_format::{BlockPointer, Cursor, Endian, ObjectId};
use weir_machine::Request;
use weir_zil::Replayer;

const NS_PER_S: i128 = 1_000_000_000;
/// Maximum block size in bytes.
const MAX_BLOCK_BYTES: u64 = 16 << 20;

/// Bits of the optional attributes of a record, and the corresponding file flags (`XAT0_…`, `ZFS_…`; OpenZFS
/// `include/sys/xvattr.h`, `zfs_xvattr_set`).
const OPTIONAL: [(u32, u64); 15] = [
    (0x2, FileFlags::ARCHIVE),
    (0x4, FileFlags::SYSTEM),
    (0x8, FileFlags::READONLY),
    (0x10, FileFlags::HIDDEN),
    (0x20, FileFlags::NOUNLINK),
    (0x40, FileFlags::IMMUTABLE),
    (0x80, FileFlags::APPENDONLY),
    (0x100, FileFlags::NODUMP),
    (0x200, FileFlags::OPAQUE),
    (0x400, FileFlags::AV_QUARANTINED),
    (0x800, FileFlags::AV_MODIFIED),
    (0x2000, FileFlags::REPARSE),
    (0x8000, FileFlags::OFFLINE),
    (0x1_0000, FileFlags::SPARSE),
    (0x2_0000, FileFlags::PROJINHERIT),
];
/// Bit of the creation time.
const CREATION_TIME: u32 = 0x1;

fn root() -> Cred {
    Cred::root().checked()
}

/// Rejects identities of a Windows domain, whose index in the log is not valid here.
fn check_ids(ids: &[u64]) -> Result<(), FileError> {
    if ids.iter().any(|id| id >> 32 != 0) {
        return Err(FileError::Unsupported { what: "replay of identities of a Windows domain".into() });
    }
    Ok(())
}

fn nanoseconds(time: [u64; 2]) -> SetTime {
    let time = Timestamp::from_words(time);
    SetTime::At(i128::from(time.sec) * NS_PER_S + i128::from(time.nsec))
}

/// Decodes the ACL of a record: entries of 12 bytes.
fn aces_of(object: ObjectId, bytes: &[u8], count: u64, endian: Endian) -> Result<Vec<Ace>, FileError> {
    const OWNING_GROUP: u16 = Ace::GROUP | Ace::IDENTIFIER_GROUP;
    let mut aces = decode_aces(bytes, endian, count, false).map_err(|e| corrupt(object, e))?;
    for ace in &mut aces {
        if matches!(ace.flags & Ace::WHO_FLAGS, Ace::OWNER | OWNING_GROUP | Ace::EVERYONE) {
            ace.who = 0;
        }
    }
    Ok(aces)
}

impl Replayer for Replay<'_> {
    fn replay<'a>(
        &'a self,
        rq: &'a Request,
        record: &'a LogRecord<'a>,
        body: &'a LogBody<'a>,
        data: Option<Bytes>,
    ) -> BoxFuture<'a, Result<(), ObjectError>> {
        async move {
            match self.record(rq, body, data, record.endian).await {
                Ok(()) => Ok(()),
                Err(error) => Err(self.error(rq, body, error).await),
            }
        }
        .boxed()
    }
}

impl Replay<'_> {
    /// The error of a record, by which the log is kept or given up.
    async fn error(self, rq: &Request, body: &LogBody<'_>, error: FileError) -> ObjectError {
        let objset = self.files.objects().id();
        let why = error.to_string();
        let (object, offset, unreadable) = match error {
            FileError::Corrupt { object, offset, .. } | FileError::Device { object, offset, .. } => {
                (object, offset, true)
            }
            FileError::NoKey => return ObjectError::NoKey { objset },
            FileError::ReadOnly => return ObjectError::ReadOnly { objset },
            FileError::NoSpace => return ObjectError::NoSpace { bytes: 0 },
            FileError::Quota => return ObjectError::Quota { objset, bytes: 0 },
            FileError::Unsupported { .. } => return ObjectError::Unsupported { what: "replay of this record" },
            _ => (weir_zil::object_of(body).unwrap_or_default(), 0, false),
        };
        let block_bytes = match self.files.object(rq, object).await {
            Ok(found) => found.block_bytes(),
            Err(_) => 0,
        };
        let block = offset.checked_div(block_bytes).unwrap_or(0);
        ObjectError::Replay { place: ErrorLocation { objset, object, level: 0, block }, unreadable, why }
    }

    async fn record(
        self,
        rq: &Request,
        body: &LogBody<'_>,
        data: Option<Bytes>,
        endian: Endian,
    ) -> Result<(), FileError> {
        match body {
            LogBody::Commit => Ok(()),
            LogBody::Create(create) => self.replay_create(rq, create, endian).await,
            LogBody::Remove { directory, dir, name } => self.replay_remove(rq, *dir, name, *directory).await,
            LogBody::Link { dir, object, name } => {
                if self.files.directories().find(rq, *dir, name).await? == Some(*object) {
                    return Ok(());
                }
                self.files.names().link(rq, &root(), *object, *dir, name).await.map(drop)
            }
            LogBody::Rename { source_dir, target_dir, how, source, target } => {
                self.replay_rename(
                    rq,
                    DirName { dir: *source_dir, name: source },
                    DirName { dir: *target_dir, name: target },
                    how,
                )
                .await
            }
            LogBody::Write(write) => ignore_missing(self.replay_write(rq, write, data).await),
            LogBody::Write2(write) => {
                let end = write.offset.saturating_add(write.length);
                ignore_missing(self.replay_end(rq, write.object, end).await)
            }
            LogBody::Truncate { object, offset, length } => {
                ignore_missing(self.replay_truncate(rq, *object, *offset, *length).await)
            }
            LogBody::SetAttr { .. } => ignore_missing(self.replay_set(rq, body, endian).await),
            LogBody::AclV0 { object, count, aces } => {
                let aces = aces_of(*object, aces, *count, endian)?;
                ignore_missing(self.files.acls().set_locked(rq, &root(), *object, aces, None).await)
            }
            LogBody::Acl { object, acl } => ignore_missing(self.replay_acl(rq, *object, acl, endian).await),
            LogBody::SetSaXattr { object, name, value } => {
                let value = Some(*value).filter(|value| !value.is_empty());
                ignore_missing(self.replay_xattr(rq, *object, name, value).await)
            }
            LogBody::CloneRange { object, offset, length, block_bytes, pointers } => {
                ignore_missing(self.replay_clone(rq, *object, (*offset, *length), *block_bytes, pointers).await)
            }
        }
    }

    async fn replay_create(self, rq: &Request, body: &CreateBody<'_>, endian: Endian) -> Result<(), FileError> {
        check_ids(&[body.uid, body.gid])?;
        let writing = self.files.writing()?;
        let _held = writing.locks.one(rq, body.dir).await;
        let mut parent = self.files.nodes().load(rq, body.dir).await?;
        let is_dir = matches!(body.kind, CreateKind::Directory | CreateKind::XattrDirectory);
        let from_parent = parent.has_flag(FileFlags::INHERIT_ACE) && !parent.is_xattr();
        let aces = if from_parent { Some(parent.aces()?) } else { None };
        let settings = writing.settings();
        let new_node_attrs = NewNodeAttrs {
            id: Some(body.object),
            acl: acls::of_new(body.mode, is_dir, aces.as_deref(), settings.acl_inherit, settings.acl_mode),
            uid: body.uid,
            gid: body.gid,
            rdev: body.rdev,
            target: body.link.map(<[u8]>::to_vec),
            generation: Some(body.generation),
            time: Timestamp::from_words(body.crtime),
            slots: body.dnode_slots.clamp(1, 32) as u8,
            xattr_dir: body.kind == CreateKind::XattrDirectory,
        };
        if body.kind == CreateKind::XattrDirectory {
            if parent.word(index::XATTR) == body.object.0 {
                return Ok(());
            }
            let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Half).await?;
            self.files.xattrs().make_xattr_dir(rq, &tx, &mut parent, Some(new_node_attrs)).await?;
            return self.files.nodes().store(rq, &tx, &parent).await;
        }
        if self.files.directories().find(rq, body.dir, body.name).await? == Some(body.object) {
            return Ok(());
        }
        let list = match &body.acl {
            Some(acl) => Some(aces_of(body.object, acl.aces, acl.count, endian)?),
            None => None,
        };
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Half).await?;
        let finish = |node: &mut super::node::Node| {
            if let Some(aces) = list {
                let acl = acls::set(aces, node.mode(), is_dir, 0, body.uid, body.gid);
                super::set::put_acl(node, acl)?;
            }
            match &body.attributes {
                Some(attributes) => set_optional_flags(node, attributes),
                None => Ok(()),
            }
        };
        self.files.names().create_in(rq, &tx, parent, body.name, new_node_attrs, finish).await.map(drop)
    }

    async fn replay_remove(self, rq: &Request, dir: ObjectId, name: &[u8], is_dir: bool) -> Result<(), FileError> {
        match self.files.names().remove_locked(rq, &root(), dir, name, is_dir).await {
            Ok(gone) => self.files.names().after_removal(rq, gone).await,
            Err(FileError::NotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn replay_rename(
        self,
        rq: &Request,
        from: DirName<'_, ObjectId>,
        to: DirName<'_, ObjectId>,
        how: &RenameKind,
    ) -> Result<(), FileError> {
        let mode = match how {
            RenameKind::Replace => RenameMode::Replace,
            RenameKind::Exchange => RenameMode::Exchange,
            RenameKind::Whiteout(_) => {
                return Err(FileError::Unsupported { what: "replay of a rename with a whiteout".into() });
            }
        };
        let gone = match self.files.names().rename_locked(rq, &root(), from, to, mode).await {
            Ok(gone) => gone,
            // Already replayed: the old name is missing and the new one exists.
            Err(FileError::NotFound) if self.files.directories().find(rq, to.dir, to.name).await?.is_some() => None,
            Err(error) => return Err(error),
        };
        self.files.names().after_removal(rq, gone).await
    }

    /// A record with a block pointer references the whole block, including data beyond the file's end at that time.
    async fn replay_write(self, rq: &Request, body: &WriteBody<'_>, block: Option<Bytes>) -> Result<(), FileError> {
        let end = body.offset.checked_add(body.length).ok_or(FileError::TooLarge)?;
        let (offset, bytes) = match (body.data, block) {
            (Some(data), _) => (body.offset, Bytes::copy_from_slice(data)),
            (None, Some(block)) if body.length < block.len() as u64 => {
                (body.offset - body.offset % block.len() as u64, block)
            }
            (None, Some(block)) => (body.offset, block.slice(..(body.length as usize).min(block.len()))),
            (None, None) => (body.offset, Bytes::from(vec![0; body.length as usize])),
        };
        let writing = self.files.writing()?;
        let _held = writing.locks.one(rq, body.object).await;
        let mut node = self.files.nodes().load(rq, body.object).await?.require_file()?;
        let tx = self.files.begin(rq, bytes.len() as u64, SpaceReserve::Normal).await?;
        self.files.contents().grow_block(rq, &tx, &mut node, offset + bytes.len() as u64).await?;
        self.files.contents().write_piece(rq, &tx, &node, offset, &bytes).await?;
        node.set_word(index::SIZE, node.size_bytes().max(end))?;
        node.touch_contents(writing.now())?;
        self.files.nodes().store(rq, &tx, &node).await?;
        self.files.log().write(&tx, &node, offset, &bytes);
        Ok(())
    }

    /// The blocks that the log references were claimed with it.
    async fn replay_clone(
        self,
        rq: &Request,
        object: ObjectId,
        (offset, length): (u64, u64),
        block_bytes: u64,
        pointers: &[BlockPointer],
    ) -> Result<(), FileError> {
        let end = offset.checked_add(length).ok_or(FileError::TooLarge)?;
        Contents::check_size(end)?;
        let writing = self.files.writing()?;
        let _held = writing.locks.one(rq, object).await;
        let mut node = self.files.nodes().load(rq, object).await?.require_file()?;
        let tx = self.files.begin(rq, length, SpaceReserve::Normal).await?;
        let fits = (512..=MAX_BLOCK_BYTES).contains(&block_bytes) && block_bytes.is_multiple_of(512);
        if !fits
            || !offset.is_multiple_of(block_bytes)
            || !self.files.contents().fit_block(rq, &tx, &mut node, block_bytes).await?
        {
            return Err(FileError::Unsupported {
                what: "replay of cloned blocks of another size than the file's".into(),
            });
        }
        self.files.contents().put_cloned(rq, &tx, &mut node, offset, pointers).await?;
        node.set_word(index::SIZE, node.size_bytes().max(end))?;
        node.touch_contents(writing.now())?;
        self.files.nodes().store(rq, &tx, &node).await?;
        self.files.log().clone_blocks(&tx, &node, (offset, length), pointers.to_vec());
        Ok(())
    }

    async fn replay_end(self, rq: &Request, object: ObjectId, end: u64) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        let _held = writing.locks.one(rq, object).await;
        let mut node = self.files.nodes().load(rq, object).await?.require_file()?;
        if end <= node.size_bytes() {
            return Ok(());
        }
        Contents::check_size(end)?;
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Normal).await?;
        node.set_word(index::SIZE, end)?;
        self.files.nodes().store(rq, &tx, &node).await?;
        self.files.log().truncate(&tx, &node, end, 0);
        Ok(())
    }

    /// As `zfs_freesp`: with length 0 the file is truncated at `offset`; else the range is zeroed, and a shorter file
    /// grows to its end.
    async fn replay_truncate(self, rq: &Request, object: ObjectId, offset: u64, length: u64) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        let _held = writing.locks.one(rq, object).await;
        let mut node = self.files.nodes().load(rq, object).await?.require_file()?;
        let size_bytes = node.size_bytes();
        let end = offset.saturating_add(length);
        Contents::check_size(end)?;
        self.files.contents().free_long_range(rq, &node, offset..if length == 0 { u64::MAX } else { end }).await?;
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::NetFree).await?;
        if length == 0 {
            self.files.contents().resize(rq, &tx, &mut node, offset).await?;
        } else {
            if offset < size_bytes {
                let punched =
                    self.files.objects().frees().punch(rq, &tx, object, offset, end.min(size_bytes) - offset).await;
                punched.map_err(|e| FileError::of(e, &node.object))?;
                node.object = self.files.object(rq, object).await?;
            }
            if end > size_bytes {
                self.files.contents().resize(rq, &tx, &mut node, end).await?;
            }
        }
        node.touch_contents(writing.now())?;
        self.files.nodes().store(rq, &tx, &node).await?;
        self.files.log().truncate(&tx, &node, offset, length);
        Ok(())
    }

    async fn replay_set(self, rq: &Request, body: &LogBody<'_>, endian: Endian) -> Result<(), FileError> {
        let LogBody::SetAttr { object, mask, mode, uid, gid, size, atime, mtime, extra } = body else { return Ok(()) };
        let has = |bit: u64| mask & bit != 0;
        let uid = has(mask::UID).then_some(*uid);
        let gid = has(mask::GID).then_some(*gid);
        check_ids(&[uid.unwrap_or(0), gid.unwrap_or(0)])?;
        let set = SetAttributes {
            mode: has(mask::MODE).then_some((mode & 0o7777) as u32),
            uid: uid.map(|id| id as u32),
            gid: gid.map(|id| id as u32),
            size_bytes: has(mask::SIZE).then_some(*size),
            atime: has(mask::ATIME).then(|| nanoseconds(*atime)),
            mtime: has(mask::MTIME).then(|| nanoseconds(*mtime)),
        };
        let writing = self.files.writing()?;
        let _held = writing.locks.one(rq, *object).await;
        let mut node = self.files.nodes().load(rq, *object).await?;
        if let Some(size_bytes) = set.size_bytes {
            node = node.require_file()?;
            Contents::check_size(size_bytes)?;
            self.files.contents().free_long_range(rq, &node, size_bytes..u64::MAX).await?;
        }
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::NetFree).await?;
        self.files.attrs().apply(rq, &tx, &root(), &mut node, &set, writing.now()).await?;
        if has(mask::XVATTR) {
            let optional = Xvattr::decode(&mut Cursor::new(extra, endian, "intent log"));
            let optional = optional.map_err(|e| corrupt(*object, e))?;
            set_optional_flags(&mut node, &optional)?;
            if let Some(project) = flags::project_in(&optional, endian) {
                self.files.attrs().put_project(rq, &tx, &mut node, project).await?;
            }
        }
        self.files.nodes().store(rq, &tx, &node).await
    }

    async fn replay_acl(
        self,
        rq: &Request,
        object: ObjectId,
        acl: &AclBody<'_>,
        endian: Endian,
    ) -> Result<(), FileError> {
        check_ids(&acl.fuids)?;
        let flags = LIST_FLAGS.iter().filter(|(_, bit)| acl.flags & bit != 0).map(|(flag, _)| flag).sum();
        let aces = aces_of(object, acl.aces, acl.count, endian)?;
        self.files.acls().set_locked(rq, &root(), object, aces, Some(flags)).await
    }

    async fn replay_xattr(
        self,
        rq: &Request,
        object: ObjectId,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        let _held = writing.locks.one(rq, object).await;
        let mut node = self.files.nodes().load(rq, object).await?;
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Half).await?;
        self.files.nodes().register_attribute(rq, &tx, index::DXATTR).await?;
        node.numbers = self.files.numbers();
        xattrs::put_in_nvlist(&mut node, name, value)?;
        node.touch(writing.now())?;
        self.files.nodes().store(rq, &tx, &node).await?;
        self.files.log().xattr(&tx, &node, name, value);
        Ok(())
    }
}

/// Ignores a missing file: its records may follow its removal in the log.
fn ignore_missing(done: Result<(), FileError>) -> Result<(), FileError> {
    if matches!(done, Err(FileError::Stale { .. })) { Ok(()) } else { done }
}

fn set_optional_flags(node: &mut super::node::Node, optional: &Xvattr) -> Result<(), FileError> {
    let asked = optional.bitmap.first().copied().unwrap_or(0);
    let mut flags = node.flags();
    for (bit, flag) in OPTIONAL {
        if asked & bit != 0 {
            flags = if optional.attributes & u64::from(bit) != 0 { flags | flag } else { flags & !flag };
        }
    }
    node.set_word(index::FLAGS, flags)?;
    if asked & CREATION_TIME != 0 {
        node.set_time(index::CRTIME, Timestamp::from_words(optional.crtime))?;
    }
    Ok(())
}
