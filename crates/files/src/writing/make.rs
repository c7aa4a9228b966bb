//! Creation of files of every kind, and hard links (OpenZFS `zfs_mknode`, `zfs_create`, `zfs_mkdir`, `zfs_symlink`,
//! `zfs_link`).

use super::acls::{self, AclAndMode};
use super::node::Node;
use super::quota::owners_of;
use super::{access_checks, flags, posix_acl};
use crate::attributes::{Attributes, FileKind};
use crate::change::{Cred, New, NewKind};
use crate::error::FileError;
use crate::handles::{Contents, Names};
use crate::metadata::index;
use weir_dmu::live::{NewObject, SpaceReserve};
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, NewZap};
use weir_format::znode::{FileFlags, Timestamp};
use weir_format::{ObjectId, ObjectType};
use weir_machine::Request;

/// Estimated bytes written by a change of names: blocks of a directory and of dnodes.
pub(super) const NAME_BYTES: u64 = 16 << 10;
/// Maximum length of a symbolic link's target in bytes: `PATH_MAX` without the NUL.
const TARGET_MAX_BYTES: usize = 4095;
const SET_GID: u64 = 0o2000;
const SET_IDS: u64 = 0o6000;

/// All attributes of a new file.
#[derive(Clone, Debug)]
pub(super) struct NewNodeAttrs {
    /// Required object number, in replay.
    pub id: Option<ObjectId>,
    /// Mode with kind bits, ACL, and the flags that follow from it.
    pub acl: AclAndMode,
    pub uid: u64,
    pub gid: u64,
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// Generation; `None` for the current txg, `Some` in replay.
    pub generation: Option<u64>,
    pub time: Timestamp,
    pub slots: u8,
    /// Whether it is the directory of a file's extended attributes.
    pub xattr_dir: bool,
}

impl NewNodeAttrs {
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.acl.mode as u32)
    }
}

/// Linux device number as stored in a file.
fn rdev(kind: &NewKind) -> u64 {
    match kind {
        NewKind::BlockDevice(major, minor) | NewKind::CharDevice(major, minor) => {
            u64::from(*major) << 20 | u64::from(*minor & 0xf_ffff)
        }
        _ => 0,
    }
}

impl Names<'_> {
    /// Creates a file in directory `dir` and returns its attributes.
    ///
    /// The owner is the caller; the group is that of the caller, or of the directory if it has the set-group-id bit.
    /// ACL inheritance depends on the properties.
    ///
    /// # Errors
    /// [`FileError::Exists`] if the name exists (unless [`New::exclusive`] is false and it is a regular file),
    /// [`FileError::NotFound`] if the directory was removed, and errors of permissions, names and space.
    pub async fn create(
        self,
        rq: &Request,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        new: &New,
    ) -> Result<Attributes, FileError> {
        let made = self.create_locked(rq, cred, dir, name, new).await?;
        self.files.commit_if_sync_always(rq, Some(made)).await?;
        self.files.attrs().get(rq, made).await
    }

    async fn create_locked(
        self,
        rq: &Request,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        new: &New,
    ) -> Result<ObjectId, FileError> {
        let writing = self.files.writing()?;
        match new.set.size_bytes {
            Some(_) if new.kind != NewKind::Regular => {
                return Err(FileError::Invalid { why: "size of a file without contents" });
            }
            Some(size_bytes) => Contents::check_size(size_bytes)?,
            None => {}
        }
        let _held = writing.locks.one(rq, dir).await;
        let parent = self.files.directories().dir_node(rq, dir).await?;
        access_checks::pass(cred, &parent)?;
        self.files.directories().check_name(name)?;
        if let Some(found) = self.files.directories().find(rq, dir, name).await? {
            let given = !new.exclusive
                && new.kind == NewKind::Regular
                && self.files.attrs().get(rq, found).await?.kind == FileKind::Regular;
            return if given { Ok(found) } else { Err(FileError::Exists) };
        }
        access_checks::add(cred, &parent)?;
        let new_node_attrs = self.new_node_attrs(rq, cred, &parent, new).await?;
        let project = self.project_of_new(&parent)?.unwrap_or(0);
        self.files.quotas().may_own(rq, &owners_of(new_node_attrs.uid, new_node_attrs.gid, project)).await?;
        let inherited_acl = self.inherited_acl(&parent, new, &new_node_attrs)?;
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Half).await?;
        let node = self.create_in(rq, &tx, parent, name, new_node_attrs, |node| inherited_acl.apply(node)).await?;
        let mut made = node;
        if !new.set.is_empty() {
            let set = crate::SetAttributes { mode: None, ..new.set };
            self.files.attrs().apply(rq, &tx, &Cred::root(), &mut made, &set, writing.now()).await?;
            self.files.nodes().store(rq, &tx, &made).await?;
            self.files.log().settle(made.id);
        }
        Ok(made.id)
    }

    /// Determines the attributes of the new file.
    async fn new_node_attrs(
        self,
        rq: &Request,
        cred: &Cred,
        parent: &Node,
        new: &New,
    ) -> Result<NewNodeAttrs, FileError> {
        let writing = self.files.writing()?;
        let settings = writing.settings();
        let target = match &new.kind {
            NewKind::Symlink(target) if target.is_empty() => return Err(FileError::NotFound),
            NewKind::Symlink(target) if target.len() > TARGET_MAX_BYTES => {
                return Err(FileError::NameTooLong { len: target.len() });
            }
            NewKind::Symlink(target) => Some(target.clone()),
            _ => None,
        };
        let is_dir = new.kind == NewKind::Directory;
        let inherits_group = parent.mode() & SET_GID != 0;
        let gid = if inherits_group { parent.word(index::GID) } else { cred.gid.into() };
        let mut mode = u64::from(new.mode) & 0o7777;
        if target.is_some() {
            mode = 0o777;
        } else if inherits_group && is_dir {
            mode |= SET_GID;
        } else if cred.uid != 0 && !u32::try_from(gid).is_ok_and(|gid| cred.in_group(gid)) {
            mode &= !SET_GID;
        }
        if target.is_none() && self.default_list(rq, parent).await?.is_none() {
            mode &= !u64::from(new.umask & 0o777);
        }
        mode |= u64::from(new.kind.kind().mode_bits());
        let from_parent = parent.has_flag(FileFlags::INHERIT_ACE) && !parent.is_xattr();
        let aces = if from_parent { Some(parent.aces()?) } else { None };
        let mut acl = acls::of_new(mode, is_dir, aces.as_deref(), settings.acl_inherit, settings.acl_mode);
        if new.kind == NewKind::Regular && settings.acl_type != super::AclType::Posix {
            acls::give_owner(&mut acl, new.owner_rights);
        }
        Ok(NewNodeAttrs {
            id: None,
            acl,
            uid: cred.uid.into(),
            gid,
            rdev: rdev(&new.kind),
            target,
            generation: None,
            time: writing.now(),
            slots: settings.dnode_slots,
            xattr_dir: false,
        })
    }

    /// Default POSIX ACL of a directory.
    async fn default_list(self, rq: &Request, parent: &Node) -> Result<Option<posix_acl::List>, FileError> {
        if self.files.writing()?.settings().acl_type != super::AclType::Posix {
            return Ok(None);
        }
        let value = self.files.xattrs().get(rq, parent.id, posix_acl::DEFAULT).await?;
        Ok(value.and_then(|value| posix_acl::List::decode(&value)))
    }

    /// Creates a file, adds its name and logs both; `finish` sets further attributes in the same transaction.
    pub(super) async fn create_in(
        self,
        rq: &Request,
        tx: &Tx,
        mut parent: Node,
        name: &[u8],
        new_node_attrs: NewNodeAttrs,
        finish: impl FnOnce(&mut Node) -> Result<(), FileError>,
    ) -> Result<Node, FileError> {
        let now = new_node_attrs.time;
        let mut node = self.create_node(rq, tx, &parent, &new_node_attrs).await?;
        let done = async {
            finish(&mut node)?;
            self.files.directories().insert_name(rq, tx, &mut parent, name, &mut node, now).await?;
            self.files.nodes().store(rq, tx, &node).await?;
            self.files.nodes().store(rq, tx, &parent).await
        };
        if let Err(error) = done.await {
            // The file has no name yet, so removing it is safe.
            let _ = self.files.objects().frees().remove(rq, tx, node.id).await;
            return Err(error);
        }
        self.files.log().create(tx, &parent, &node, name, &new_node_attrs);
        self.files.log().inherited(tx, &node)?;
        Ok(node)
    }

    /// Creates a file without a name; the caller stores it.
    pub(super) async fn create_node(
        self,
        rq: &Request,
        tx: &Tx,
        parent: &Node,
        new_node_attrs: &NewNodeAttrs,
    ) -> Result<Node, FileError> {
        let set = self.files.objects();
        let failed = |e| FileError::opening(e);
        let is_dir = new_node_attrs.kind() == FileKind::Directory;
        let id = if is_dir {
            let mut new = NewZap::new(ObjectType::DIRECTORY_CONTENTS).bonus(ObjectType::SA, Vec::new());
            new.norm = self.files.norm_flags();
            new.slots = new_node_attrs.slots;
            match new_node_attrs.id {
                Some(id) => zap::create_at(rq, set, tx, id, &new).await.map(|()| id).map_err(failed)?,
                None => zap::create(rq, set, tx, &new).await.map_err(failed)?,
            }
        } else {
            let mut new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 512).bonus(ObjectType::SA, Vec::new());
            new.slots = new_node_attrs.slots;
            match new_node_attrs.id {
                Some(id) => set.changes().create_at(rq, tx, id, &new).await.map(|()| id).map_err(failed)?,
                None => set.changes().create(rq, tx, &new).await.map_err(failed)?,
            }
        };
        let mut node = self.files.nodes().of(self.files.object(rq, id).await?);
        self.init_attributes(rq, tx, &mut node, parent, new_node_attrs).await?;
        Ok(node)
    }

    /// Project of a new file in a directory; `None` if the pool does not account by project.
    fn project_of_new(self, parent: &Node) -> Result<Option<u64>, FileError> {
        let project = if parent.has_flag(FileFlags::PROJINHERIT) { flags::project_of(parent) } else { 0 };
        Ok(self.files.writing()?.settings().projects.then_some(project))
    }

    /// Sets the attributes of a new file, in the order of `zfs_mknode`.
    pub(super) async fn init_attributes(
        self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        parent: &Node,
        new_node_attrs: &NewNodeAttrs,
    ) -> Result<(), FileError> {
        let is_dir = new_node_attrs.kind() == FileKind::Directory;
        let project = self.project_of_new(parent)?;
        let mut bits = FileFlags::ARCHIVE | FileFlags::AV_MODIFIED | new_node_attrs.acl.flags;
        if new_node_attrs.xattr_dir || parent.is_xattr() {
            bits |= FileFlags::XATTR;
        }
        let heir = matches!(new_node_attrs.kind(), FileKind::Regular | FileKind::Directory);
        if heir && parent.has_flag(FileFlags::PROJINHERIT) {
            bits |= FileFlags::PROJINHERIT;
        }
        if project.is_some() {
            bits |= FileFlags::PROJID;
            self.files.nodes().register_attribute(rq, tx, index::PROJID).await?;
            node.numbers = self.files.numbers();
        }
        node.set_word(index::MODE, new_node_attrs.acl.mode)?;
        node.set_word(index::SIZE, if is_dir { 2 } else { 0 })?;
        node.set_word(index::GEN, new_node_attrs.generation.unwrap_or(tx.txg().0))?;
        node.set_word(index::UID, new_node_attrs.uid)?;
        node.set_word(index::GID, new_node_attrs.gid)?;
        node.set_word(index::PARENT, parent.id.0)?;
        node.set_word(index::FLAGS, bits)?;
        for time in [index::ATIME, index::MTIME, index::CTIME, index::CRTIME] {
            node.set_time(time, new_node_attrs.time)?;
        }
        node.set_word(index::LINKS, if is_dir { 2 } else { 1 })?;
        if let Some(project) = project {
            node.set_word(index::PROJID, project)?;
        }
        if matches!(new_node_attrs.kind(), FileKind::BlockDevice | FileKind::CharDevice) {
            node.set_word(index::RDEV, new_node_attrs.rdev)?;
        }
        node.set_aces(&new_node_attrs.acl.aces)?;
        if let Some(target) = &new_node_attrs.target {
            node.set(index::SYMLINK, target)?;
            node.set_word(index::SIZE, target.len() as u64)?;
        }
        Ok(())
    }

    /// Creates a hard link and returns the file's attributes.
    ///
    /// # Errors
    /// [`FileError::Exists`]; [`FileError::NotPermitted`] for directories; [`FileError::NotFound`] if the file is
    /// unlinked or the directory was removed.
    pub async fn link(
        self,
        rq: &Request,
        cred: &Cred,
        file: ObjectId,
        dir: ObjectId,
        name: &[u8],
    ) -> Result<Attributes, FileError> {
        self.link_locked(rq, cred, file, dir, name).await?;
        self.files.commit_if_sync_always(rq, Some(file)).await?;
        self.files.attrs().get(rq, file).await
    }

    async fn link_locked(
        self,
        rq: &Request,
        cred: &Cred,
        file: ObjectId,
        dir: ObjectId,
        name: &[u8],
    ) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        let _held = writing.locks.all(rq, [file, dir]).await;
        let mut parent = self.files.directories().dir_node(rq, dir).await?;
        access_checks::pass(cred, &parent)?;
        self.files.directories().check_name(name)?;
        let mut node = self.files.nodes().load(rq, file).await?;
        if self.files.directories().find(rq, dir, name).await?.is_some() {
            return Err(FileError::Exists);
        }
        if node.links() == 0 || node.is_xattr() != parent.is_xattr() {
            return Err(FileError::NotFound);
        }
        access_checks::link(&node)?;
        flags::enters(&node, &parent)?;
        access_checks::add(cred, &parent)?;
        let now = writing.now();
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Half).await?;
        // The parent of a file with several links is the directory of the newest one.
        self.files.directories().insert_name(rq, &tx, &mut parent, name, &mut node, now).await?;
        node.set_word(index::LINKS, node.links().saturating_add(1))?;
        node.touch(now)?;
        self.files.nodes().store(rq, &tx, &node).await?;
        self.files.nodes().store(rq, &tx, &parent).await?;
        self.files.log().link(&tx, &parent, &node, name);
        Ok(())
    }

    /// ACLs that a new file inherits from its directory's default POSIX ACL, and the resulting mode.
    fn inherited_acl(self, parent: &Node, new: &New, new_node_attrs: &NewNodeAttrs) -> Result<InheritedAcl, FileError> {
        if self.files.writing()?.settings().acl_type != super::AclType::Posix || new_node_attrs.target.is_some() {
            return Ok(InheritedAcl::default());
        }
        let Some(list) =
            super::xattrs::nvlist_value(parent, posix_acl::DEFAULT)?.and_then(|v| posix_acl::List::decode(&v))
        else {
            return Ok(InheritedAcl::default());
        };
        let of_file = list.of_new(new_node_attrs.acl.mode);
        Ok(InheritedAcl {
            mode: Some(new_node_attrs.acl.mode & !0o777 | of_file.mode()),
            access: (!of_file.is_mode()).then(|| of_file.encode()),
            default: (new.kind == NewKind::Directory).then(|| list.encode()),
        })
    }

    /// Clears the set-user-id and set-group-id bits, as a write or a change of owner does.
    pub(super) fn clear_setid_bits(mode: u64) -> u64 {
        mode & !SET_IDS
    }
}

/// ACLs inherited from a default POSIX ACL.
#[derive(Clone, Debug, Default)]
struct InheritedAcl {
    mode: Option<u64>,
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

impl InheritedAcl {
    fn apply(self, node: &mut Node) -> Result<(), FileError> {
        if let Some(mode) = self.mode {
            let is_dir = node.is_dir();
            let acl = acls::chmod(&[], mode, is_dir, node.flags(), acls::AclMode::Discard);
            super::set::put_acl(node, acl)?;
        }
        for (name, value) in [(posix_acl::ACCESS, self.access), (posix_acl::DEFAULT, self.default)] {
            if let Some(value) = value {
                super::xattrs::put_in_nvlist(node, name, Some(&value))?;
            }
        }
        Ok(())
    }
}
