//! Flags and projects of files (`chattr(1)`, `zfs project`; OpenZFS `zfs_setattr`, `sa_add_projid` in
//! `module/zfs/zfs_sa.c`).
//!
//! A *project* is a number that files and directories carry besides their owner and group; space is counted for it as for
//! them. A directory with the flag to pass its project on gives it, and the flag, to what is made in it; only files of
//! the same project may be linked or moved there ([`enters`]), so that a tree stays one project's.
//!
//! *Where it stands.* Whom space is counted for is read at fixed places ([`super::owner`]): so the project of a file that
//! had none does not go to the end of its attributes, but behind the number of links, and the others move.

use super::make::NAME_BYTES;
use super::may;
use super::node::Node;
use crate::attributes::{Attributes, FileKind};
use crate::change::{Cred, SetFlags};
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::metadata::index;
use weir_dmu::live::Purpose;
use weir_dmu::txg::Tx;
use weir_dmu::zap::Zap;
use weir_dsl::Who;
use weir_format::ObjectId;
use weir_format::zil::Xvattr;
use weir_format::znode::{DirEntry as StoredEntry, flag};
use weir_machine::Request;

/// Bits of a record for the flags (`XAT0_*` in OpenZFS `include/sys/xvattr.h`), and that of the project.
const IMMUTABLE: u32 = 0x40;
const APPEND_ONLY: u32 = 0x80;
const NO_DUMP: u32 = 0x100;
const INHERIT: u32 = 0x2_0000;
pub(super) const PROJECT: u32 = 0x4_0000;
/// Words of a record's bit map (`XVA_MAPSIZE`).
const MAP_WORDS: usize = 3;
/// Files of extended attributes that are read at a time.
const BATCH: usize = 256;

/// A file's project; 0 if it has none.
pub(super) fn project_of(node: &Node) -> u64 {
    if node.has_flag(flag::PROJID) { node.word(index::PROJID) } else { 0 }
}

/// Whether a file may get a name in a directory that passes its project on: not one of another project.
///
/// # Errors
/// [`FileError::CrossDevice`].
pub(super) fn enters(node: &Node, dir: &Node) -> Result<(), FileError> {
    let passes_on = dir.has_flag(flag::PROJINHERIT);
    if passes_on && project_of(dir) != project_of(node) { Err(FileError::CrossDevice) } else { Ok(()) }
}

/// What was moved into such a directory passes its project on as well.
pub(super) fn inherit(node: &mut Node, dir: &Node) -> Result<(), FileError> {
    match dir.has_flag(flag::PROJINHERIT) {
        true => node.set_word(index::FLAGS, node.flags() | flag::PROJINHERIT),
        false => Ok(()),
    }
}

/// Each flag that is asked for: its bit in a record, and in a file.
fn asked(set: &SetFlags) -> impl Iterator<Item = (u32, u64, bool)> {
    let all = [
        (IMMUTABLE, flag::IMMUTABLE, set.immutable),
        (APPEND_ONLY, flag::APPENDONLY, set.append_only),
        (NO_DUMP, flag::NODUMP, set.no_dump),
        (INHERIT, flag::PROJINHERIT, set.inherit_project),
    ];
    all.into_iter().filter_map(|(bit, flag, to)| Some((bit, flag, to?)))
}

impl FileSystem {
    /// Sets flags and the project of a file, and gives the attributes that it has then. The space that it takes is
    /// counted for its new project from the next group on; its extended attributes follow.
    ///
    /// # Errors
    /// [`FileError::Unsupported`] for projects where they are not counted, and of what is neither file nor directory;
    /// [`FileError::Quota`]; [`FileError::NotPermitted`] if only the owner or the superuser may.
    pub async fn set_flags(
        &self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        set: &SetFlags,
    ) -> Result<Attributes, FileError> {
        self.set_flags_locked(rq, cred, object, set).await?;
        self.settle(rq, Some(object)).await?;
        self.attributes(rq, object).await
    }

    async fn set_flags_locked(
        &self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        set: &SetFlags,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let _held = writing.locks.one(object).await;
        let mut node = self.node(rq, object).await?;
        let changes: Vec<_> = asked(set).filter(|(_, flag, to)| node.has_flag(*flag) != *to).collect();
        let project = set.project.map(u64::from);
        let inherits = changes.iter().any(|(bit, _, _)| *bit == INHERIT);
        if project.is_some() || inherits {
            self.may_have_project(&node)?;
        }
        let project = project.filter(|new| !node.has_flag(flag::PROJID) || project_of(&node) != *new);
        if changes.is_empty() && project.is_none() {
            return Ok(());
        }
        let guarded = changes.iter().any(|(bit, _, _)| matches!(*bit, IMMUTABLE | APPEND_ONLY));
        may::set_flags(cred, &node, guarded)?;
        if let Some(project) = project {
            self.may_own(rq, &[(Who::Project, project)]).await?;
        }
        let tx = self.begin(rq, NAME_BYTES, Purpose::Names).await?;
        for (_, flag, to) in &changes {
            let flags = if *to { node.flags() | flag } else { node.flags() & !flag };
            node.set_word(index::FLAGS, flags)?;
        }
        if let Some(project) = project {
            self.put_project(rq, &tx, &mut node, project).await?;
        }
        node.touch(writing.now())?;
        self.store(rq, &tx, &node).await?;
        self.log_optional(&tx, &node, &record(&changes, project));
        drop(tx);
        match project {
            Some(project) => self.put_projects_of_xattrs(rq, &node, project).await,
            None => Ok(()),
        }
    }

    /// Whether a file can have a project here.
    fn may_have_project(&self, node: &Node) -> Result<(), FileError> {
        let counted = self.writing()?.settings().projects && self.objects().counts_projects();
        if counted && matches!(node.kind(), FileKind::Regular | FileKind::Directory) {
            return Ok(());
        }
        Err(FileError::Unsupported { what: "a project where projects are not counted".into() })
    }

    /// Gives a file a project. The caller stores the node.
    pub(super) async fn put_project(
        &self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        project: u64,
    ) -> Result<(), FileError> {
        self.know(rq, tx, index::PROJID).await?;
        node.numbers = self.numbers();
        node.set_word(index::PROJID, project)?;
        if !node.has_flag(flag::PROJID) {
            node.set_word(index::FLAGS, node.flags() | flag::PROJID)?;
            node.row.put_in_order(&*node.numbers);
        }
        Ok(())
    }

    /// Gives the directory of a file's extended attributes, and all in it, its project: each in a transaction of its own.
    async fn put_projects_of_xattrs(&self, rq: &Request, node: &Node, project: u64) -> Result<(), FileError> {
        let dir = ObjectId(node.word(index::XATTR));
        if dir.0 == 0 {
            return Ok(());
        }
        self.put_project_of(rq, dir, project).await?;
        let failed = |e| FileError::at(e, dir, 0);
        let opened = Zap::open(rq, self.objects(), dir).await.map_err(failed)?;
        let mut cookie = 0;
        loop {
            let entries = opened.entries(rq, cookie, BATCH).await.map_err(failed)?;
            let Some(last) = entries.last() else { return Ok(()) };
            cookie = last.cookie;
            for word in entries.iter().filter_map(|entry| entry.value.first()) {
                self.put_project_of(rq, StoredEntry::from_word(word).object, project).await?;
            }
        }
    }

    async fn put_project_of(&self, rq: &Request, object: ObjectId, project: u64) -> Result<(), FileError> {
        let mut node = self.node(rq, object).await?;
        if node.has_flag(flag::PROJID) && project_of(&node) == project {
            return Ok(());
        }
        let tx = self.begin(rq, NAME_BYTES, Purpose::Names).await?;
        self.put_project(rq, &tx, &mut node, project).await?;
        self.store(rq, &tx, &node).await
    }
}

/// What the log says of a change.
fn record(changes: &[(u32, u64, bool)], project: Option<u64>) -> Xvattr {
    let mut bitmap = vec![0; MAP_WORDS];
    let project_bit = if project.is_some() { PROJECT } else { 0 };
    if let Some(map) = bitmap.first_mut() {
        *map = changes.iter().map(|(bit, _, _)| bit).sum::<u32>() | project_bit;
    }
    let attributes = changes.iter().filter(|(_, _, to)| *to).map(|(bit, _, _)| u64::from(*bit)).sum();
    // The stamp of a virus scanner and the project share a place.
    let mut scan_stamp = [0; 32];
    scan_stamp.iter_mut().zip(project.unwrap_or(0).to_le_bytes()).for_each(|(to, from)| *to = from);
    Xvattr { bitmap, attributes, crtime: [0; 2], scan_stamp }
}

/// The project that a record gives a file, if it does.
pub(super) fn project_in(optional: &Xvattr, endian: weir_format::Endian) -> Option<u64> {
    optional.bitmap.first().filter(|map| *map & PROJECT != 0)?;
    let mut cursor = weir_format::Cursor::new(&optional.scan_stamp, endian, "intent log");
    cursor.u64().ok()
}
