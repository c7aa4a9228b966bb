//! Setting extended attributes (OpenZFS `module/os/linux/zfs/zpl_xattr.c`, `zfs_sa_set_xattr`, `zfs_make_xattrdir`).
//!
//! With `xattr=sa` a small one goes into the list among the file's system attributes, where it costs no object; else, or
//! if it is too large, it becomes a file in the file's hidden directory. What is set in the one place is taken out of the
//! other. A hidden directory and its files are changed under the lock of the file that they belong to.

use super::acls::Listed;
use super::make::{Birth, NAME_BYTES};
use super::node::Node;
use super::set::put_list;
use super::{acls, may, posix_acl};
use crate::change::{Cred, XattrMode};
use crate::error::FileError;
use crate::file_system::FileSystem;
use crate::metadata::{index, lies};
use crate::xattr::{stored_names, value_of};
use bytes::Bytes;
use weir_dmu::live::Purpose;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{Match, Zap};
use weir_format::znode::DirEntry as StoredEntry;
use weir_format::{NvList, NvValue, ObjectId};
use weir_machine::Request;

/// Longest name, as Linux has it.
const NAME_MAX_BYTES: usize = 255;
/// Longest value, as Linux has it.
const VALUE_MAX_BYTES: usize = 64 << 10;
/// Longest value in the list (`DXATTR_MAX_ENTRY_SIZE`).
const LISTED_MAX_BYTES: usize = 32 << 10;
/// Longest list (`DXATTR_MAX_SA_SIZE`).
const LIST_MAX_BYTES: usize = 64 << 10;
/// What a program gives to who runs it.
const CAPABILITIES: &[u8] = b"security.capability";
const SPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];

fn list_of(node: &Node) -> Result<NvList, FileError> {
    match node.get(index::DXATTR).filter(|packed| !packed.is_empty()) {
        Some(packed) => NvList::decode(packed).map_err(|e| lies(node.id, e)),
        None => Ok(NvList::new()),
    }
}

/// The value of an attribute in the list of a loaded file.
pub(super) fn listed(node: &Node, name: &[u8]) -> Result<Option<Bytes>, FileError> {
    let list = list_of(node)?;
    Ok(stored_names(name).find_map(|stored| list.get_bytes_name(stored).and_then(value_of)))
}

/// Sets an attribute in the list of a loaded file, or takes it out.
pub(super) fn put_listed(node: &mut Node, name: &[u8], value: Option<&[u8]>) -> Result<(), FileError> {
    let mut list = list_of(node)?;
    for stored in stored_names(name) {
        list.remove_bytes_name(stored);
    }
    if let Some(value) = value {
        list.set_bytes_name(name, NvValue::ByteArray(value.to_vec()));
    }
    if list.is_empty() {
        node.unset(index::DXATTR);
        return Ok(());
    }
    node.set(index::DXATTR, &list.encode_xdr())
}

/// Where attributes of a file are.
struct Places {
    listed: bool,
    /// Its file in the hidden directory, and the name that it has there.
    file: Option<(ObjectId, Vec<u8>)>,
}

impl FileSystem {
    /// Sets an extended attribute by its Linux name. POSIX access control lists are set so, too
    /// (`system.posix_acl_access` and `…_default`): the file's mode follows.
    ///
    /// # Errors
    /// [`FileError::Exists`] and [`FileError::NoAttribute`] as the mode says; [`FileError::Unsupported`] if the properties
    /// have none, or for a name space that is not known; [`FileError::AttributeTooLarge`]; permissions.
    pub async fn set_xattr(
        &self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), FileError> {
        if name.len() > NAME_MAX_BYTES {
            return Err(FileError::NameTooLong { len: name.len() });
        }
        if value.len() > VALUE_MAX_BYTES {
            return Err(FileError::AttributeTooLarge { len: value.len() });
        }
        if name.contains(&0) || SPACES.contains(&name) {
            return Err(FileError::Invalid { why: "no name of an attribute" });
        }
        self.change_xattr(rq, cred, object, name, Some(value), mode).await?;
        self.settle(rq, Some(object)).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FileError::NoAttribute`]; permissions.
    pub async fn remove_xattr(
        &self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        name: &[u8],
    ) -> Result<(), FileError> {
        self.change_xattr(rq, cred, object, name, None, XattrMode::Replace).await?;
        self.settle(rq, Some(object)).await
    }

    pub(super) async fn change_xattr(
        &self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), FileError> {
        let writing = self.writing()?;
        let settings = writing.settings();
        if !settings.xattrs || !SPACES.iter().any(|space| name.starts_with(space)) {
            return Err(FileError::Unsupported { what: "this extended attribute".into() });
        }
        let _held = writing.locks.one(object).await;
        let mut node = self.node(rq, object).await?;
        may::set_xattr(cred, &node, name)?;
        let places = self.places(rq, &node, name).await?;
        match (places.listed || places.file.is_some(), mode) {
            (true, XattrMode::Create) => return Err(FileError::Exists),
            (false, XattrMode::Replace) => return Err(FileError::NoAttribute),
            _ => {}
        }
        let changed_list = self.list_of_posix(cred, &node, name, value)?;
        // A list that says no more than the mode is not kept.
        let value = value.filter(|_| !changed_list.as_ref().is_some_and(|(_, is_mode)| *is_mode));
        let mut tx = self.begin(rq, NAME_BYTES + value.map_or(0, <[u8]>::len) as u64, Purpose::Names).await?;
        if node.links() == 0 {
            // Replay has removed the file, and with it the directory of its attributes, when it comes here.
            tx.leave_unlogged();
        }
        self.know(rq, &tx, index::DXATTR).await?;
        node.numbers = self.numbers();
        if let Some((listed, _)) = changed_list {
            put_list(&mut node, listed)?;
            self.log_mode(&tx, &node);
        }
        node.touch(writing.now())?;
        let fits = settings.xattr_in_sa && self.put_if_fits(&mut node, name, value)?;
        match value {
            Some(value) if !fits => {
                self.put_in_dir(rq, &tx, &mut node, &places, name, value).await?;
                if places.listed {
                    put_listed(&mut node, name, None)?;
                    self.log_xattr(&tx, &node, name, None);
                }
            }
            value => {
                if places.listed && !fits {
                    put_listed(&mut node, name, None)?;
                }
                self.drop_from_dir(rq, &tx, &node, &places).await?;
                if places.listed || value.is_some() {
                    self.log_xattr(&tx, &node, name, value);
                }
            }
        }
        self.store(rq, &tx, &node).await
    }

    /// Whether a loaded file gives capabilities to who runs it.
    pub(super) async fn has_capabilities(&self, rq: &Request, node: &Node) -> Result<bool, FileError> {
        if node.get(index::DXATTR).is_none() && node.word(index::XATTR) == 0 || !self.writing()?.settings().xattrs {
            return Ok(false);
        }
        let places = self.places(rq, node, CAPABILITIES).await?;
        Ok(places.listed || places.file.is_some())
    }

    /// Takes a file's capabilities, as Linux does before each write: who may write to a program must not gain by it.
    pub(super) async fn drop_capabilities(&self, rq: &Request, object: ObjectId) -> Result<(), FileError> {
        match self.change_xattr(rq, &Cred::root(), object, CAPABILITIES, None, XattrMode::Replace).await {
            Err(FileError::NoAttribute) => Ok(()),
            done => done,
        }
    }

    /// Puts an attribute into the list, if it and the file's attributes then still have room.
    fn put_if_fits(&self, node: &mut Node, name: &[u8], value: Option<&[u8]>) -> Result<bool, FileError> {
        if value.is_some_and(|value| value.len() > LISTED_MAX_BYTES) {
            return Ok(false);
        }
        let mut with = node.clone();
        put_listed(&mut with, name, value)?;
        if with.get(index::DXATTR).map_or(0, <[u8]>::len) > LIST_MAX_BYTES || !with.fits() {
            return Ok(false);
        }
        *node = with;
        Ok(true)
    }

    async fn find_exact(&self, rq: &Request, dir: ObjectId, name: &[u8]) -> Result<Option<ObjectId>, FileError> {
        let failed = |e| FileError::at(e, dir, 0);
        let zap = Zap::open(rq, self.objects(), dir).await.map_err(failed)?;
        let found = zap.lookup(rq, name, Match::Exact).await.map_err(failed)?;
        Ok(found.and_then(|value| value.first()).map(|word| StoredEntry::from_word(word).object))
    }

    async fn places(&self, rq: &Request, node: &Node, name: &[u8]) -> Result<Places, FileError> {
        let mut places = Places { listed: listed(node, name)?.is_some(), file: None };
        let dir = ObjectId(node.word(index::XATTR));
        if dir.0 != 0 {
            for stored in stored_names(name) {
                if let Some(found) = self.find_exact(rq, dir, stored).await? {
                    places.file = Some((found, stored.to_vec()));
                    break;
                }
            }
        }
        Ok(places)
    }

    /// The list and mode that follow from a POSIX list, and whether the list says no more than the mode; `None` for
    /// other attributes and for default lists.
    fn list_of_posix(
        &self,
        cred: &Cred,
        node: &Node,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Option<(Listed, bool)>, FileError> {
        if name != posix_acl::ACCESS && name != posix_acl::DEFAULT {
            return Ok(None);
        }
        if self.writing()?.settings().acl_type != super::AclType::Posix {
            return Err(FileError::Unsupported { what: "a POSIX list where acltype is not posix".into() });
        }
        let Some(value) = value else { return Ok(None) };
        let list = posix_acl::List::decode(value).ok_or(FileError::Invalid { why: "no access control list" })?;
        if name == posix_acl::DEFAULT {
            return if node.is_dir() { Ok(None) } else { Err(FileError::Denied { object: node.id }) };
        }
        const SET_GID: u64 = 0o2000;
        let mut mode = node.mode() & !0o777 | list.mode();
        if !cred.checked && cred.uid != 0 && !cred.in_group(node.owner().1) {
            mode &= !SET_GID;
        }
        let acl_mode = self.writing()?.settings().acl_mode;
        let listed = acls::chmod(&node.aces()?, mode, node.is_dir(), node.flags(), acl_mode);
        Ok(Some((listed, list.is_mode())))
    }

    /// Puts an attribute into the hidden directory, which is made if there is none.
    async fn put_in_dir(
        &self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        places: &Places,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), FileError> {
        let dir = match node.word(index::XATTR) {
            0 => self.make_xattr_dir(rq, tx, node, None).await?,
            dir => self.node(rq, ObjectId(dir)).await?,
        };
        let mut file = match &places.file {
            Some((file, _)) => self.node(rq, *file).await?,
            None => {
                let birth = self.xattr_birth(node, 0o100_644)?;
                self.make_in(rq, tx, dir, name, birth, |_| Ok(())).await?
            }
        };
        self.resize(rq, tx, &mut file, 0).await?;
        self.log_truncate(tx, &file, 0, 0);
        let bytes = Bytes::copy_from_slice(value);
        self.grow_block(rq, tx, &mut file, value.len() as u64).await?;
        self.write_piece(rq, tx, &file, 0, &bytes).await?;
        file.set_word(index::SIZE, value.len() as u64)?;
        file.touch_contents(self.writing()?.now())?;
        self.store(rq, tx, &file).await?;
        self.log_write(tx, &file, 0, &bytes);
        // Who makes the file stable that it belongs to, knows of no other.
        self.settle_in_log(file.id);
        Ok(())
    }

    fn xattr_birth(&self, node: &Node, mode: u64) -> Result<Birth, FileError> {
        let writing = self.writing()?;
        let settings = writing.settings();
        let is_dir = mode & 0o040_000 != 0;
        Ok(Birth {
            id: None,
            listed: acls::of_new(mode, is_dir, None, settings.acl_inherit, settings.acl_mode),
            uid: node.word(index::UID),
            gid: node.word(index::GID),
            rdev: 0,
            target: None,
            generation: None,
            time: writing.now(),
            slots: settings.dnode_slots,
            xattr_dir: is_dir,
        })
    }

    /// Makes the hidden directory of a file; the caller stores the file.
    pub(super) async fn make_xattr_dir(
        &self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        birth: Option<Birth>,
    ) -> Result<Node, FileError> {
        const STICKY_FOR_ALL: u64 = 0o041_777;
        let birth = match birth {
            Some(birth) => birth,
            None => self.xattr_birth(node, STICKY_FOR_ALL)?,
        };
        let dir = self.make(rq, tx, node, &birth).await?;
        self.store(rq, tx, &dir).await?;
        node.set_word(index::XATTR, dir.id.0)?;
        self.log_create(tx, node, &dir, b"", &birth);
        Ok(dir)
    }

    async fn drop_from_dir(&self, rq: &Request, tx: &Tx, node: &Node, places: &Places) -> Result<(), FileError> {
        let Some((file, stored)) = &places.file else { return Ok(()) };
        let mut dir = self.node(rq, ObjectId(node.word(index::XATTR))).await?;
        self.leave(rq, tx, &mut dir, stored, false, self.writing()?.now()).await?;
        self.forget_in_log(*file);
        self.objects().remove(rq, tx, *file).await.map_err(|e| FileError::at(e, *file, 0))?;
        self.store(rq, tx, &dir).await?;
        self.log_remove(tx, &dir, *file, stored, false);
        Ok(())
    }
}
