//! Setting extended attributes (OpenZFS `module/os/linux/zfs/zpl_xattr.c`, `zfs_sa_set_xattr`, `zfs_make_xattrdir`).
//!
//! With `xattr=sa`, a small attribute is stored in the nvlist in the file's system attributes, where it needs no
//! object; otherwise, or if it is too large, it becomes a file in the file's hidden directory. An attribute set in
//! one place is removed from the other. The hidden directory and its files are modified under the lock of the file
//! that they belong to.

use super::acls::AclAndMode;
use super::make::{NAME_BYTES, NewNodeAttrs};
use super::node::Node;
use super::set::put_acl;
use super::{access_checks, acls, posix_acl};
use crate::change::{Cred, XattrMode};
use crate::error::FileError;
use crate::handles::Xattrs;
use crate::metadata::{corrupt, index};
use crate::xattr::{stored_names, value_of};
use bytes::Bytes;
use weir_dmu::live::SpaceReserve;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{Match, Zap};
use weir_format::znode::DirEntry as StoredEntry;
use weir_format::{NvList, NvValue, ObjectId};
use weir_machine::Request;

/// Maximum length of a name in bytes, as in Linux.
const NAME_MAX_BYTES: usize = 255;
/// Maximum size of a value in bytes, as in Linux.
const VALUE_MAX_BYTES: usize = 64 << 10;
/// Maximum size of a value in the nvlist in bytes (`DXATTR_MAX_ENTRY_SIZE`).
const LISTED_MAX_BYTES: usize = 32 << 10;
/// Maximum size of the nvlist in bytes (`DXATTR_MAX_SA_SIZE`).
const LIST_MAX_BYTES: usize = 64 << 10;
/// File capabilities of an executable.
const CAPABILITIES: &[u8] = b"security.capability";
const SPACES: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system."];

fn list_of(node: &Node) -> Result<NvList, FileError> {
    match node.get(index::DXATTR).filter(|packed| !packed.is_empty()) {
        Some(packed) => NvList::decode(packed).map_err(|e| corrupt(node.id, e)),
        None => Ok(NvList::new()),
    }
}

/// Value of an attribute in the nvlist of a loaded file.
pub(super) fn nvlist_value(node: &Node, name: &[u8]) -> Result<Option<Bytes>, FileError> {
    let list = list_of(node)?;
    Ok(stored_names(name).find_map(|stored| list.get_bytes_name(stored).and_then(value_of)))
}

/// Sets or removes an attribute in the nvlist of a loaded file.
pub(super) fn put_in_nvlist(node: &mut Node, name: &[u8], value: Option<&[u8]>) -> Result<(), FileError> {
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

/// Locations of an attribute.
struct Places {
    nvlist_value: bool,
    /// File in the hidden directory, and its stored name.
    file: Option<(ObjectId, Vec<u8>)>,
}

impl Xattrs<'_> {
    /// Sets an extended attribute by its Linux name, including POSIX ACLs (`system.posix_acl_access` and
    /// `…_default`), which also change the file's mode.
    ///
    /// # Errors
    /// [`FileError::Exists`] and [`FileError::NoAttribute`] according to the mode; [`FileError::Unsupported`] if
    /// extended attributes are off or the namespace is unknown; [`FileError::AttributeTooLarge`]; permission errors.
    pub async fn set(
        self,
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
            return Err(FileError::Invalid { why: "invalid attribute name" });
        }
        self.change(rq, cred, object, name, Some(value), mode).await?;
        self.files.commit_if_sync_always(rq, Some(object)).await
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// [`FileError::NoAttribute`]; permission errors.
    pub async fn remove(self, rq: &Request, cred: &Cred, object: ObjectId, name: &[u8]) -> Result<(), FileError> {
        self.change(rq, cred, object, name, None, XattrMode::Replace).await?;
        self.files.commit_if_sync_always(rq, Some(object)).await
    }

    pub(super) async fn change(
        self,
        rq: &Request,
        cred: &Cred,
        object: ObjectId,
        name: &[u8],
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        let settings = writing.settings();
        if !settings.xattrs || !SPACES.iter().any(|space| name.starts_with(space)) {
            return Err(FileError::Unsupported { what: "this extended attribute".into() });
        }
        let _held = writing.locks.one(rq, object).await;
        let mut node = self.files.nodes().load(rq, object).await?;
        access_checks::set_xattr(cred, &node, name)?;
        let places = self.places(rq, &node, name).await?;
        match (places.nvlist_value || places.file.is_some(), mode) {
            (true, XattrMode::Create) => return Err(FileError::Exists),
            (false, XattrMode::Replace) => return Err(FileError::NoAttribute),
            _ => {}
        }
        let changed_list = self.list_of_posix(cred, &node, name, value)?;
        // An ACL equivalent to the mode is not stored.
        let value = value.filter(|_| !changed_list.as_ref().is_some_and(|(_, is_mode)| *is_mode));
        let mut tx = self.files.begin(rq, NAME_BYTES + value.map_or(0, <[u8]>::len) as u64, SpaceReserve::Half).await?;
        if node.links() == 0 {
            // Replay has already removed the file, and with it the directory of its attributes.
            tx.mark_unlogged();
        }
        self.files.nodes().register_attribute(rq, &tx, index::DXATTR).await?;
        node.numbers = self.files.numbers();
        if let Some((nvlist_value, _)) = changed_list {
            put_acl(&mut node, nvlist_value)?;
            self.files.log().mode(&tx, &node);
        }
        node.touch(writing.now())?;
        let fits = settings.xattr_in_sa && self.put_if_fits(&mut node, name, value)?;
        match value {
            Some(value) if !fits => {
                self.put_in_xattr_dir(rq, &tx, &mut node, &places, name, value).await?;
                if places.nvlist_value {
                    put_in_nvlist(&mut node, name, None)?;
                    self.files.log().xattr(&tx, &node, name, None);
                }
            }
            value => {
                if places.nvlist_value && !fits {
                    put_in_nvlist(&mut node, name, None)?;
                }
                self.remove_from_xattr_dir(rq, &tx, &node, &places).await?;
                if places.nvlist_value || value.is_some() {
                    self.files.log().xattr(&tx, &node, name, value);
                }
            }
        }
        self.files.nodes().store(rq, &tx, &node).await
    }

    /// Whether a loaded file has capabilities.
    pub(super) async fn has_capabilities(self, rq: &Request, node: &Node) -> Result<bool, FileError> {
        if node.get(index::DXATTR).is_none() && node.word(index::XATTR) == 0 || !self.files.writing()?.settings().xattrs
        {
            return Ok(false);
        }
        let places = self.places(rq, node, CAPABILITIES).await?;
        Ok(places.nvlist_value || places.file.is_some())
    }

    /// Removes a file's capabilities before a write, as Linux does: a user who may write to a program must not gain
    /// its capabilities.
    pub(super) async fn clear_capabilities(self, rq: &Request, object: ObjectId) -> Result<(), FileError> {
        match self.change(rq, &Cred::root(), object, CAPABILITIES, None, XattrMode::Replace).await {
            Err(FileError::NoAttribute) => Ok(()),
            done => done,
        }
    }

    /// Stores an attribute in the nvlist if the file's system attributes still fit afterwards.
    fn put_if_fits(self, node: &mut Node, name: &[u8], value: Option<&[u8]>) -> Result<bool, FileError> {
        if value.is_some_and(|value| value.len() > LISTED_MAX_BYTES) {
            return Ok(false);
        }
        let mut with = node.clone();
        put_in_nvlist(&mut with, name, value)?;
        if with.get(index::DXATTR).map_or(0, <[u8]>::len) > LIST_MAX_BYTES || !with.fits() {
            return Ok(false);
        }
        *node = with;
        Ok(true)
    }

    async fn find_exact(self, rq: &Request, dir: ObjectId, name: &[u8]) -> Result<Option<ObjectId>, FileError> {
        let failed = |e| FileError::at(e, dir, 0);
        let zap = Zap::open(rq, self.files.objects(), dir).await.map_err(failed)?;
        let found = zap.lookup(rq, name, Match::Exact).await.map_err(failed)?;
        Ok(found.and_then(|value| value.first()).map(|word| StoredEntry::from_word(word).object))
    }

    async fn places(self, rq: &Request, node: &Node, name: &[u8]) -> Result<Places, FileError> {
        let mut places = Places { nvlist_value: nvlist_value(node, name)?.is_some(), file: None };
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

    /// The ACL and mode that follow from a POSIX ACL, and whether it is equivalent to the mode; `None` for other
    /// attributes and for default ACLs.
    fn list_of_posix(
        self,
        cred: &Cred,
        node: &Node,
        name: &[u8],
        value: Option<&[u8]>,
    ) -> Result<Option<(AclAndMode, bool)>, FileError> {
        if name != posix_acl::ACCESS && name != posix_acl::DEFAULT {
            return Ok(None);
        }
        if self.files.writing()?.settings().acl_type != super::AclType::Posix {
            return Err(FileError::Unsupported { what: "a POSIX ACL with acltype other than posix".into() });
        }
        let Some(value) = value else { return Ok(None) };
        let list = posix_acl::List::decode(value).ok_or(FileError::Invalid { why: "invalid access control list" })?;
        if name == posix_acl::DEFAULT {
            return if node.is_dir() { Ok(None) } else { Err(FileError::Denied { object: node.id }) };
        }
        const SET_GID: u64 = 0o2000;
        let mut mode = node.mode() & !0o777 | list.mode();
        if !cred.checked && cred.uid != 0 && !cred.in_group(node.owner().1) {
            mode &= !SET_GID;
        }
        let acl_mode = self.files.writing()?.settings().acl_mode;
        let nvlist_value = acls::chmod(&node.aces()?, mode, node.is_dir(), node.flags(), acl_mode);
        Ok(Some((nvlist_value, list.is_mode())))
    }

    /// Stores an attribute in the hidden directory, which is created if necessary.
    async fn put_in_xattr_dir(
        self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        places: &Places,
        name: &[u8],
        value: &[u8],
    ) -> Result<(), FileError> {
        let dir = match node.word(index::XATTR) {
            0 => self.make_xattr_dir(rq, tx, node, None).await?,
            dir => self.files.nodes().load(rq, ObjectId(dir)).await?,
        };
        let mut file = match &places.file {
            Some((file, _)) => self.files.nodes().load(rq, *file).await?,
            None => {
                let birth = self.new_xattr_attrs(node, 0o100_644)?;
                self.files.names().create_in(rq, tx, dir, name, birth, |_| Ok(())).await?
            }
        };
        self.files.contents().resize(rq, tx, &mut file, 0).await?;
        self.files.log().truncate(tx, &file, 0, 0);
        let bytes = Bytes::copy_from_slice(value);
        self.files.contents().grow_block(rq, tx, &mut file, value.len() as u64).await?;
        self.files.contents().write_piece(rq, tx, &file, 0, &bytes).await?;
        file.set_word(index::SIZE, value.len() as u64)?;
        file.touch_contents(self.files.writing()?.now())?;
        self.files.nodes().store(rq, tx, &file).await?;
        self.files.log().write(tx, &file, 0, &bytes);
        // A sync of the file does not cover the attribute's own object.
        self.files.log().settle(file.id);
        Ok(())
    }

    fn new_xattr_attrs(self, node: &Node, mode: u64) -> Result<NewNodeAttrs, FileError> {
        let writing = self.files.writing()?;
        let settings = writing.settings();
        let is_dir = mode & 0o040_000 != 0;
        Ok(NewNodeAttrs {
            id: None,
            acl: acls::of_new(mode, is_dir, None, settings.acl_inherit, settings.acl_mode),
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

    /// Creates the hidden directory of a file; the caller stores the file.
    pub(super) async fn make_xattr_dir(
        self,
        rq: &Request,
        tx: &Tx,
        node: &mut Node,
        birth: Option<NewNodeAttrs>,
    ) -> Result<Node, FileError> {
        const STICKY_FOR_ALL: u64 = 0o041_777;
        let birth = match birth {
            Some(birth) => birth,
            None => self.new_xattr_attrs(node, STICKY_FOR_ALL)?,
        };
        let dir = self.files.names().create_node(rq, tx, node, &birth).await?;
        self.files.nodes().store(rq, tx, &dir).await?;
        node.set_word(index::XATTR, dir.id.0)?;
        self.files.log().create(tx, node, &dir, b"", &birth);
        Ok(dir)
    }

    async fn remove_from_xattr_dir(self, rq: &Request, tx: &Tx, node: &Node, places: &Places) -> Result<(), FileError> {
        let Some((file, stored)) = &places.file else { return Ok(()) };
        let mut dir = self.files.nodes().load(rq, ObjectId(node.word(index::XATTR))).await?;
        self.files.directories().remove_name(rq, tx, &mut dir, stored, false, self.files.writing()?.now()).await?;
        self.files.log().forget(*file);
        self.files.objects().frees().remove(rq, tx, *file).await.map_err(|e| FileError::at(e, *file, 0))?;
        self.files.nodes().store(rq, tx, &dir).await?;
        self.files.log().remove(tx, &dir, *file, stored, false);
        Ok(())
    }
}
