//! Making files of every kind, and giving them further names (OpenZFS `zfs_mknode`, `zfs_create`, `zfs_mkdir`,
//! `zfs_symlink`, `zfs_link`).

use super::acls::{self, Listed};
use super::node::Node;
use super::quota::owners_of;
use super::{flags, may, posix_acl};
use crate::attributes::{Attributes, FileKind};
use crate::change::{Cred, New, NewKind};
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::metadata::index;
use weir_dmu::live::{NewObject, Purpose};
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, NewZap};
use weir_format::znode::{Timestamp, flag};
use weir_format::{ObjectId, ObjectType};
use weir_machine::Request;

/// About what a change of names writes: blocks of a directory and of dnodes.
pub(super) const NAME_BYTES: u64 = 16 << 10;
/// Longest target of a symbolic link: `PATH_MAX` without the NUL.
const TARGET_MAX_BYTES: usize = 4095;
const SET_GID: u64 = 0o2000;
const SET_IDS: u64 = 0o6000;

/// A file to be made, everything decided.
#[derive(Clone, Debug)]
pub(super) struct Birth {
    /// The number that it must get: replay.
    pub id: Option<ObjectId>,
    /// The mode with its kind, the list, and the flags that follow from it.
    pub listed: Listed,
    pub uid: u64,
    pub gid: u64,
    pub rdev: u64,
    /// Of a symbolic link.
    pub target: Option<Vec<u8>>,
    /// The group that makes it, unless replay says otherwise.
    pub generation: Option<u64>,
    pub time: Timestamp,
    pub slots: u8,
    /// It is the directory of a file's extended attributes.
    pub xattr_dir: bool,
}

impl Birth {
    pub fn kind(&self) -> FileKind {
        FileKind::from_mode(self.listed.mode as u32)
    }
}

/// Linux's number of a device, as it stands in a file.
fn rdev(kind: &NewKind) -> u64 {
    match kind {
        NewKind::BlockDevice(major, minor) | NewKind::CharDevice(major, minor) => {
            u64::from(*major) << 20 | u64::from(*minor & 0xf_ffff)
        }
        _ => 0,
    }
}

impl FileSystem {
    /// Makes a file in the directory `dir` and gives its attributes.
    ///
    /// Its owner is the caller; its group the caller's, or the directory's if that has the set-group-id bit. What it
    /// inherits of access control lists depends on the properties.
    ///
    /// # Errors
    /// [`FileError::Exists`] if the name is taken (unless [`New::exclusive`] is false and it is a plain file),
    /// [`FileError::NotFound`] if the directory was removed, and what permissions, names and space may be short of.
    pub async fn create(
        &self,
        rq: &Request,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        new: &New,
    ) -> Result<Attributes, FileError> {
        let made = self.create_locked(rq, cred, dir, name, new).await?;
        self.settle(rq, Some(made)).await?;
        self.attributes(rq, made).await
    }

    async fn create_locked(
        &self,
        rq: &Request,
        cred: &Cred,
        dir: ObjectId,
        name: &[u8],
        new: &New,
    ) -> Result<ObjectId, FileError> {
        let writing = self.writing()?;
        match new.set.size_bytes {
            Some(_) if new.kind != NewKind::Regular => {
                return Err(FileError::Invalid { why: "a size of what has none" });
            }
            Some(size_bytes) => Self::check_size(size_bytes)?,
            None => {}
        }
        let _held = writing.locks.one(dir).await;
        let parent = self.dir_node(rq, dir).await?;
        may::pass(cred, &parent)?;
        self.check_name(name)?;
        if let Some(found) = self.find(rq, dir, name).await? {
            let given = !new.exclusive
                && new.kind == NewKind::Regular
                && self.attributes(rq, found).await?.kind == FileKind::Regular;
            return if given { Ok(found) } else { Err(FileError::Exists) };
        }
        may::add(cred, &parent)?;
        let birth = self.birth(rq, cred, &parent, new).await?;
        let project = self.project_of_new(&parent)?.unwrap_or(0);
        self.may_own(rq, &owners_of(birth.uid, birth.gid, project)).await?;
        let heirloom = self.heirloom(&parent, new, &birth)?;
        let tx = self.begin(rq, NAME_BYTES, Purpose::Names).await?;
        let node = self.make_in(rq, &tx, parent, name, birth, |node| heirloom.give(node)).await?;
        let mut made = node;
        if !new.set.is_empty() {
            let set = crate::SetAttributes { mode: None, ..new.set };
            self.apply(rq, &tx, &Cred::root(), &mut made, &set, writing.now()).await?;
            self.store(rq, &tx, &made).await?;
            self.settle_in_log(made.id);
        }
        Ok(made.id)
    }

    /// Decides what the new file is like.
    async fn birth(&self, rq: &Request, cred: &Cred, parent: &Node, new: &New) -> Result<Birth, FileError> {
        let writing = self.writing()?;
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
        let from_parent = parent.has_flag(flag::INHERIT_ACE) && !parent.is_xattr();
        let aces = if from_parent { Some(parent.aces()?) } else { None };
        Ok(Birth {
            id: None,
            listed: acls::of_new(mode, is_dir, aces.as_deref(), settings.acl_inherit, settings.acl_mode),
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

    /// The default POSIX list of a directory.
    async fn default_list(&self, rq: &Request, parent: &Node) -> Result<Option<posix_acl::List>, FileError> {
        if self.writing()?.settings().acl_type != super::AclType::Posix {
            return Ok(None);
        }
        let value = self.xattr(rq, parent.id, posix_acl::DEFAULT).await?;
        Ok(value.and_then(|value| posix_acl::List::decode(&value)))
    }

    /// Makes a file, enters its name and logs that: `finish` sets what else it has from the first moment on.
    pub(super) async fn make_in(
        &self,
        rq: &Request,
        tx: &Tx,
        mut parent: Node,
        name: &[u8],
        birth: Birth,
        finish: impl FnOnce(&mut Node) -> Result<(), FileError>,
    ) -> Result<Node, FileError> {
        let now = birth.time;
        let mut node = self.make(rq, tx, &parent, &birth).await?;
        let done = async {
            finish(&mut node)?;
            self.enter(rq, tx, &mut parent, name, &mut node, now).await?;
            self.store(rq, tx, &node).await?;
            self.store(rq, tx, &parent).await
        };
        if let Err(error) = done.await {
            // It has no name yet: nobody misses it.
            let _ = self.objects().remove(rq, tx, node.id).await;
            return Err(error);
        }
        self.log_create(tx, &parent, &node, name, &birth);
        self.log_inherited(tx, &node)?;
        Ok(node)
    }

    /// Makes a file without a name; the caller stores it.
    pub(super) async fn make(&self, rq: &Request, tx: &Tx, parent: &Node, birth: &Birth) -> Result<Node, FileError> {
        let set = self.objects();
        let failed = |e| FileError::opening(e);
        let is_dir = birth.kind() == FileKind::Directory;
        let id = if is_dir {
            let mut new = NewZap::new(ObjectType::DIRECTORY_CONTENTS).bonus(ObjectType::SA, Vec::new());
            new.norm = self.norm_flags();
            new.slots = birth.slots;
            match birth.id {
                Some(id) => zap::claim(rq, set, tx, id, &new).await.map(|()| id).map_err(failed)?,
                None => zap::create(rq, set, tx, &new).await.map_err(failed)?,
            }
        } else {
            let mut new = NewObject::new(ObjectType::PLAIN_FILE_CONTENTS, 512).bonus(ObjectType::SA, Vec::new());
            new.slots = birth.slots;
            match birth.id {
                Some(id) => set.claim(rq, tx, id, &new).await.map(|()| id).map_err(failed)?,
                None => set.create(rq, tx, &new).await.map_err(failed)?,
            }
        };
        let mut node = self.fresh_node(self.object(rq, id).await?);
        self.dress(rq, tx, &mut node, parent, birth).await?;
        Ok(node)
    }

    /// The project of a new file in a directory; `None` if the pool does not count by project.
    fn project_of_new(&self, parent: &Node) -> Result<Option<u64>, FileError> {
        let project = if parent.has_flag(flag::PROJINHERIT) { flags::project_of(parent) } else { 0 };
        Ok(self.writing()?.settings().projects.then_some(project))
    }

    /// Gives a new file its attributes, in the order of `zfs_mknode`.
    pub(super) async fn dress(
        &self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        parent: &Node,
        birth: &Birth,
    ) -> Result<(), FileError> {
        let is_dir = birth.kind() == FileKind::Directory;
        let project = self.project_of_new(parent)?;
        let mut bits = flag::ARCHIVE | flag::AV_MODIFIED | birth.listed.flags;
        if birth.xattr_dir || parent.is_xattr() {
            bits |= flag::XATTR;
        }
        let heir = matches!(birth.kind(), FileKind::Regular | FileKind::Directory);
        if heir && parent.has_flag(flag::PROJINHERIT) {
            bits |= flag::PROJINHERIT;
        }
        if project.is_some() {
            bits |= flag::PROJID;
            self.know(rq, tx, index::PROJID).await?;
            node.numbers = self.numbers();
        }
        node.set_word(index::MODE, birth.listed.mode)?;
        node.set_word(index::SIZE, if is_dir { 2 } else { 0 })?;
        node.set_word(index::GEN, birth.generation.unwrap_or(tx.txg().0))?;
        node.set_word(index::UID, birth.uid)?;
        node.set_word(index::GID, birth.gid)?;
        node.set_word(index::PARENT, parent.id.0)?;
        node.set_word(index::FLAGS, bits)?;
        for time in [index::ATIME, index::MTIME, index::CTIME, index::CRTIME] {
            node.set_time(time, birth.time)?;
        }
        node.set_word(index::LINKS, if is_dir { 2 } else { 1 })?;
        if let Some(project) = project {
            node.set_word(index::PROJID, project)?;
        }
        if matches!(birth.kind(), FileKind::BlockDevice | FileKind::CharDevice) {
            node.set_word(index::RDEV, birth.rdev)?;
        }
        node.set_aces(&birth.listed.aces)?;
        if let Some(target) = &birth.target {
            node.set(index::SYMLINK, target)?;
            node.set_word(index::SIZE, target.len() as u64)?;
        }
        Ok(())
    }

    /// Gives a file another name and gives its attributes.
    ///
    /// # Errors
    /// [`FileError::Exists`]; [`FileError::NotPermitted`] for directories; [`FileError::NotFound`] if the file has lost
    /// its last name or the directory was removed.
    pub async fn link(
        &self,
        rq: &Request,
        cred: &Cred,
        file: ObjectId,
        dir: ObjectId,
        name: &[u8],
    ) -> Result<Attributes, FileError> {
        self.link_locked(rq, cred, file, dir, name).await?;
        self.settle(rq, Some(file)).await?;
        self.attributes(rq, file).await
    }

    async fn link_locked(
        &self,
        rq: &Request,
        cred: &Cred,
        file: ObjectId,
        dir: ObjectId,
        name: &[u8],
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let _held = writing.locks.all([file, dir]).await;
        let mut parent = self.dir_node(rq, dir).await?;
        may::pass(cred, &parent)?;
        self.check_name(name)?;
        let mut node = self.node(rq, file).await?;
        if self.find(rq, dir, name).await?.is_some() {
            return Err(FileError::Exists);
        }
        if node.links() == 0 || node.is_xattr() != parent.is_xattr() {
            return Err(FileError::NotFound);
        }
        may::link(&node)?;
        flags::enters(&node, &parent)?;
        may::add(cred, &parent)?;
        let now = writing.now();
        let tx = self.begin(rq, NAME_BYTES, Purpose::Names).await?;
        // The parent of a file of many names is the directory of its last one.
        self.enter(rq, &tx, &mut parent, name, &mut node, now).await?;
        node.set_word(index::LINKS, node.links().saturating_add(1))?;
        node.touch(now)?;
        self.store(rq, &tx, &node).await?;
        self.store(rq, &tx, &parent).await?;
        self.log_link(&tx, &parent, &node, name);
        Ok(())
    }

    /// What a new file gets of its directory's default POSIX list, and what that makes of its mode.
    fn heirloom(&self, parent: &Node, new: &New, birth: &Birth) -> Result<Heirloom, FileError> {
        if self.writing()?.settings().acl_type != super::AclType::Posix || birth.target.is_some() {
            return Ok(Heirloom::default());
        }
        let Some(list) = super::xattrs::listed(parent, posix_acl::DEFAULT)?.and_then(|v| posix_acl::List::decode(&v))
        else {
            return Ok(Heirloom::default());
        };
        let of_file = list.of_new(birth.listed.mode);
        Ok(Heirloom {
            mode: Some(birth.listed.mode & !0o777 | of_file.mode()),
            access: (!of_file.is_mode()).then(|| of_file.encode()),
            default: (new.kind == NewKind::Directory).then(|| list.encode()),
        })
    }

    /// The group and user bits that a write or a change of owner takes from a mode.
    pub(super) fn without_set_ids(mode: u64) -> u64 {
        mode & !SET_IDS
    }
}

/// What a new file gets of a default list.
#[derive(Clone, Debug, Default)]
struct Heirloom {
    mode: Option<u64>,
    access: Option<Vec<u8>>,
    default: Option<Vec<u8>>,
}

impl Heirloom {
    fn give(self, node: &mut Node) -> Result<(), FileError> {
        if let Some(mode) = self.mode {
            let is_dir = node.is_dir();
            let listed = acls::chmod(&[], mode, is_dir, node.flags(), acls::AclMode::Discard);
            super::set::put_list(node, listed)?;
        }
        for (name, value) in [(posix_acl::ACCESS, self.access), (posix_acl::DEFAULT, self.default)] {
            if let Some(value) = value {
                super::xattrs::put_listed(node, name, Some(&value))?;
            }
        }
        Ok(())
    }
}
