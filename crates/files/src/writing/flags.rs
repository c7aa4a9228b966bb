//! File flags and project IDs (`chattr(1)`, `zfs project`; OpenZFS `zfs_setattr`, `sa_add_projid` in
//! `module/zfs/zfs_sa.c`).
//!
//! A *project* is an ID of files and directories to which space is accounted, like owner and group. New files in a
//! directory with the project-inherit flag get its project and the flag; only files of the same project may be linked
//! or moved into it ([`enters`]), so that a directory tree belongs to one project.
//!
//! *Layout.* Space accounting reads owner, group and project at fixed offsets ([`super::owner`]): so a project added
//! later is not appended, but inserted after the link count, and the following attributes move.

use super::access_checks;
use super::make::NAME_BYTES;
use super::node::Node;
use crate::attributes::{Attributes, FileKind};
use crate::change::{Cred, SetFlags};
use crate::error::FileError;
use crate::handles::Attrs;
use crate::metadata::index;
use weir_dmu::live::SpaceReserve;
use weir_dmu::txg::Tx;
use weir_dmu::zap::Zap;
use weir_dsl::QuotaPrincipal;
use weir_format::ObjectId;
use weir_format::zil::Xvattr;
use weir_format::znode::{DirEntry as StoredEntry, FileFlags};
use weir_machine::Request;

/// Bits of a record for the flags and the project (`XAT0_*` in OpenZFS `include/sys/xvattr.h`).
const IMMUTABLE: u32 = 0x40;
const APPEND_ONLY: u32 = 0x80;
const NO_DUMP: u32 = 0x100;
const INHERIT: u32 = 0x2_0000;
pub(super) const PROJECT: u32 = 0x4_0000;
/// Number of words of a record's bit map (`XVA_MAPSIZE`).
const MAP_WORDS: usize = 3;
/// Number of extended attribute files read at a time.
const BATCH: usize = 256;

/// Project of a file; 0 if it has none.
pub(super) fn project_of(node: &Node) -> u64 {
    if node.has_flag(FileFlags::PROJID) { node.word(index::PROJID) } else { 0 }
}

/// Checks whether a file may be linked into a directory with project inheritance: not with another project.
///
/// # Errors
/// [`FileError::CrossDevice`].
pub(super) fn enters(node: &Node, dir: &Node) -> Result<(), FileError> {
    let passes_on = dir.has_flag(FileFlags::PROJINHERIT);
    if passes_on && project_of(dir) != project_of(node) { Err(FileError::CrossDevice) } else { Ok(()) }
}

/// Sets the inherit flag of a directory moved into such a directory.
pub(super) fn inherit(node: &mut Node, dir: &Node) -> Result<(), FileError> {
    match dir.has_flag(FileFlags::PROJINHERIT) {
        true => node.set_word(index::FLAGS, node.flags() | FileFlags::PROJINHERIT),
        false => Ok(()),
    }
}

/// The flags to set: bit in a record, flag of the file, value.
fn flag_changes(set: &SetFlags) -> impl Iterator<Item = (u32, u64, bool)> {
    let all = [
        (IMMUTABLE, FileFlags::IMMUTABLE, set.immutable),
        (APPEND_ONLY, FileFlags::APPENDONLY, set.append_only),
        (NO_DUMP, FileFlags::NODUMP, set.no_dump),
        (INHERIT, FileFlags::PROJINHERIT, set.inherit_project),
    ];
    all.into_iter().filter_map(|(bit, flag, to)| Some((bit, flag, to?)))
}

impl Attrs<'_> {
    /// Sets flags and project of a file and returns the resulting attributes. From the next txg on, its space is
    /// accounted to the new project; its extended attributes get the project too.
    ///
    /// # Errors
    /// [`FileError::Unsupported`] for projects in a pool without project accounting, and for files of other kinds;
    /// [`FileError::Quota`]; [`FileError::NotPermitted`] if only the owner or the superuser may.
    pub async fn set_flags(
        self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        set: &SetFlags,
    ) -> Result<Attributes, FileError> {
        self.set_flags_locked(rq, cred, object, set).await?;
        self.files.commit_if_sync_always(rq, Some(object)).await?;
        self.get(rq, object).await
    }

    async fn set_flags_locked(
        self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        set: &SetFlags,
    ) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        let _held = writing.locks.one(rq, object).await;
        let mut node = self.files.nodes().load(rq, object).await?;
        let changes: Vec<_> = flag_changes(set).filter(|(_, flag, to)| node.has_flag(*flag) != *to).collect();
        let project = set.project.map(u64::from);
        let inherits = changes.iter().any(|(bit, _, _)| *bit == INHERIT);
        if project.is_some() || inherits {
            self.may_have_project(&node)?;
        }
        let project = project.filter(|new| !node.has_flag(FileFlags::PROJID) || project_of(&node) != *new);
        if changes.is_empty() && project.is_none() {
            return Ok(());
        }
        let guarded = changes.iter().any(|(bit, _, _)| matches!(*bit, IMMUTABLE | APPEND_ONLY));
        access_checks::set_flags(cred, &node, guarded)?;
        if let Some(project) = project {
            self.files.quotas().may_own(rq, &[(QuotaPrincipal::Project, project)]).await?;
        }
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Half).await?;
        for (_, flag, to) in &changes {
            let flags = if *to { node.flags() | flag } else { node.flags() & !flag };
            node.set_word(index::FLAGS, flags)?;
        }
        if let Some(project) = project {
            self.put_project(rq, &tx, &mut node, project).await?;
        }
        node.touch(writing.now())?;
        self.files.nodes().store(rq, &tx, &node).await?;
        self.files.log().optional(&tx, &node, &record(&changes, project));
        drop(tx);
        match project {
            Some(project) => self.put_projects_of_xattrs(rq, &node, project).await,
            None => Ok(()),
        }
    }

    /// Checks whether a file can have a project.
    fn may_have_project(self, node: &Node) -> Result<(), FileError> {
        let counted = self.files.writing()?.settings().projects && self.files.objects().accounting().counts_projects();
        if counted && matches!(node.kind(), FileKind::Regular | FileKind::Directory) {
            return Ok(());
        }
        Err(FileError::Unsupported { what: "a project in a pool without project accounting".into() })
    }

    /// Sets the project of a file. The caller stores the node.
    pub(super) async fn put_project(
        self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        project: u64,
    ) -> Result<(), FileError> {
        self.files.nodes().register_attribute(rq, tx, index::PROJID).await?;
        node.numbers = self.files.numbers();
        node.set_word(index::PROJID, project)?;
        if !node.has_flag(FileFlags::PROJID) {
            node.set_word(index::FLAGS, node.flags() | FileFlags::PROJID)?;
            node.row.move_leading_first(&*node.numbers);
        }
        Ok(())
    }

    /// Sets the project of a file's extended attribute directory and all files in it, each in its own transaction.
    async fn put_projects_of_xattrs(self, rq: &Request, node: &Node, project: u64) -> Result<(), FileError> {
        let dir = ObjectId(node.word(index::XATTR));
        if dir.0 == 0 {
            return Ok(());
        }
        self.put_project_of(rq, dir, project).await?;
        let failed = |e| FileError::at(e, dir, 0);
        let opened = Zap::open(rq, self.files.objects(), dir).await.map_err(failed)?;
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

    async fn put_project_of(self, rq: &Request, object: ObjectId, project: u64) -> Result<(), FileError> {
        let mut node = self.files.nodes().load(rq, object).await?;
        if node.has_flag(FileFlags::PROJID) && project_of(&node) == project {
            return Ok(());
        }
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Half).await?;
        self.put_project(rq, &tx, &mut node, project).await?;
        self.files.nodes().store(rq, &tx, &node).await
    }
}

/// Encodes a change of flags for the log.
fn record(changes: &[(u32, u64, bool)], project: Option<u64>) -> Xvattr {
    let mut bitmap = vec![0; MAP_WORDS];
    let project_bit = if project.is_some() { PROJECT } else { 0 };
    if let Some(map) = bitmap.first_mut() {
        *map = changes.iter().map(|(bit, _, _)| bit).sum::<u32>() | project_bit;
    }
    let attributes = changes.iter().filter(|(_, _, to)| *to).map(|(bit, _, _)| u64::from(*bit)).sum();
    // The virus scan stamp and the project share a field.
    let mut scan_stamp = [0; 32];
    scan_stamp.iter_mut().zip(project.unwrap_or(0).to_le_bytes()).for_each(|(to, from)| *to = from);
    Xvattr { bitmap, attributes, crtime: [0; 2], scan_stamp }
}

/// Project set by a record, if any.
pub(super) fn project_in(optional: &Xvattr, endian: weir_format::Endian) -> Option<u64> {
    optional.bitmap.first().filter(|map| *map & PROJECT != 0)?;
    let mut cursor = weir_format::Cursor::new(&optional.scan_stamp, endian, "intent log");
    cursor.u64().ok()
}
