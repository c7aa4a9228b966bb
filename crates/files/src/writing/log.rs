//! Intent log records of changes as in OpenZFS (`module/zfs/zfs_log.c`), logged within the change's transaction and
//! under the locks of the modified objects.
//!
//! Changes of an unlinked file are not logged: after a crash it is freed.

use super::make::NewNodeAttrs;
use super::node::Node;
use super::{posix_acl, xattrs};
use crate::attributes::FileKind;
use crate::error::FileError;
use crate::handles::ChangeLog;
use crate::metadata::index;
use bytes::Bytes;
use std::sync::Arc;
use weir_dmu::txg::Tx;
use weir_format::acl::Ace;
use weir_format::zil::{AclBody, CreateBody, CreateKind, LogBody, RenameKind, Xvattr};
use weir_format::znode::{FileFlags, Timestamp};
use weir_format::{BlockPointer, Encoder, Endian, ObjectId};
use weir_zil::Zil;

/// Bits of a TX_SETATTR record for the attributes it sets, with Linux's values (`ATTR_MODE` …).
pub(super) mod mask {
    pub const MODE: u64 = 1;
    pub const UID: u64 = 1 << 1;
    pub const GID: u64 = 1 << 2;
    pub const SIZE: u64 = 1 << 3;
    pub const ATIME: u64 = 1 << 4;
    pub const MTIME: u64 = 1 << 5;
    pub const XVATTR: u64 = 1 << 31;
}

/// ACL flags: bit in the file's flags, and bit in a record (`ACL_AUTO_INHERIT` …).
pub(super) const LIST_FLAGS: [(u64, u64); 3] =
    [(FileFlags::ACL_AUTO_INHERIT, 1), (FileFlags::ACL_PROTECTED, 2), (FileFlags::ACL_DEFAULTED, 4)];

/// The attributes that were set.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LoggedAttributes {
    pub mode: Option<u64>,
    pub uid: Option<u64>,
    pub gid: Option<u64>,
    pub size: Option<u64>,
    pub atime: Option<Timestamp>,
    pub mtime: Option<Timestamp>,
}

impl<'a> ChangeLog<'a> {
    fn zil(self) -> Option<&'a Arc<Zil>> {
        self.files.writing.as_ref()?.zil.as_ref()
    }

    /// Logs a change of object `about`.
    fn record(self, tx: &Tx, about: ObjectId, body: &LogBody<'_>) {
        if let Some(zil) = self.zil() {
            zil.log_name(tx, about, body, self.files.directories().ignores_case());
        }
    }

    fn record_of(self, tx: &Tx, node: &Node, body: &LogBody<'_>) {
        if node.links() > 0
            && let Some(zil) = self.zil()
        {
            zil.log(tx, node.id, body);
        }
    }

    /// Drops pending records of an object that is about to be unlinked.
    pub(super) fn forget(self, object: ObjectId) {
        if let Some(zil) = self.zil() {
            zil.forget(object);
        }
    }

    pub(super) fn create(self, tx: &Tx, dir: &Node, node: &Node, name: &[u8], new_node_attrs: &NewNodeAttrs) {
        let kind = match new_node_attrs.kind() {
            FileKind::Directory if new_node_attrs.xattr_dir => CreateKind::XattrDirectory,
            FileKind::Directory => CreateKind::Directory,
            FileKind::Symlink => CreateKind::Symlink,
            _ => CreateKind::File,
        };
        let body = LogBody::Create(Box::new(CreateBody {
            kind,
            dir: dir.id,
            object: node.id,
            dnode_slots: new_node_attrs.slots.into(),
            mode: node.mode(),
            uid: new_node_attrs.uid,
            gid: new_node_attrs.gid,
            generation: node.word(index::GEN),
            crtime: new_node_attrs.time.to_words(),
            rdev: new_node_attrs.rdev,
            attributes: None,
            acl: None,
            domains: Vec::new(),
            name,
            link: new_node_attrs.target.as_deref(),
        }));
        self.record(tx, node.id, &body);
    }

    /// Logs the inherited ACL of a new file, which no create record contains.
    pub(super) fn inherited(self, tx: &Tx, node: &Node) -> Result<(), FileError> {
        if !node.has_flag(FileFlags::ACL_TRIVIAL) {
            self.acl(tx, node)?;
        }
        for name in [posix_acl::ACCESS, posix_acl::DEFAULT] {
            if let Some(value) = xattrs::nvlist_value(node, name)? {
                self.xattr(tx, node, name, Some(&value));
            }
        }
        self.settle(node.id);
        Ok(())
    }

    /// Makes pending records of an object commit with the log's synchronous records: for changes that are part of its
    /// creation.
    pub(super) fn settle(self, object: ObjectId) {
        if let Some(zil) = self.zil() {
            zil.settle(object);
        }
    }

    pub(super) fn link(self, tx: &Tx, dir: &Node, node: &Node, name: &[u8]) {
        self.record(tx, node.id, &LogBody::Link { dir: dir.id, object: node.id, name });
    }

    pub(super) fn remove(self, tx: &Tx, dir: &Node, object: ObjectId, name: &[u8], directory: bool) {
        self.record(tx, object, &LogBody::Remove { directory, dir: dir.id, name });
    }

    pub(super) fn rename(
        self,
        tx: &Tx,
        (from, source): (&Node, &[u8]),
        (to, target): (&Node, &[u8]),
        object: ObjectId,
        exchange: bool,
    ) {
        let how = if exchange { RenameKind::Exchange } else { RenameKind::Replace };
        self.record(tx, object, &LogBody::Rename { source_dir: from.id, target_dir: to.id, how, source, target });
    }

    pub(super) fn write(self, tx: &Tx, node: &Node, offset: u64, data: &Bytes) {
        if node.links() > 0
            && let Some(zil) = self.zil()
        {
            zil.log_write(tx, node.id, offset, data, node.object.block_bytes());
        }
    }

    /// Logs that a range, from `offset` on, was cloned from these blocks.
    pub(super) fn clone_blocks(self, tx: &Tx, node: &Node, (offset, length): (u64, u64), pointers: Vec<BlockPointer>) {
        let block_bytes = node.object.block_bytes();
        self.record_of(tx, node, &LogBody::CloneRange { object: node.id, offset, length, block_bytes, pointers });
    }

    /// Logs that a range was zeroed, or with a length of 0 that the file was truncated at `offset`.
    pub(super) fn truncate(self, tx: &Tx, node: &Node, offset: u64, length: u64) {
        self.record_of(tx, node, &LogBody::Truncate { object: node.id, offset, length });
    }

    pub(super) fn mode(self, tx: &Tx, node: &Node) {
        self.set(tx, node, &LoggedAttributes { mode: Some(node.mode()), ..LoggedAttributes::default() });
    }

    pub(super) fn set(self, tx: &Tx, node: &Node, set: &LoggedAttributes) {
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        let words = |time: Option<Timestamp>| time.unwrap_or_default().to_words();
        let body = LogBody::SetAttr {
            object: node.id,
            mask: bit(set.mode.is_some(), mask::MODE)
                | bit(set.uid.is_some(), mask::UID)
                | bit(set.gid.is_some(), mask::GID)
                | bit(set.size.is_some(), mask::SIZE)
                | bit(set.atime.is_some(), mask::ATIME)
                | bit(set.mtime.is_some(), mask::MTIME),
            mode: set.mode.unwrap_or(0),
            uid: set.uid.unwrap_or(0),
            gid: set.gid.unwrap_or(0),
            size: set.size.unwrap_or(0),
            atime: words(set.atime),
            mtime: words(set.mtime),
            extra: &[],
        };
        self.record_of(tx, node, &body);
    }

    /// Logs a change of flags or of the project.
    pub(super) fn optional(self, tx: &Tx, node: &Node, optional: &Xvattr) {
        let mut extra = Encoder::new(Endian::Little);
        optional.encode(&mut extra);
        let none = [0; 2];
        let body = LogBody::SetAttr {
            object: node.id,
            mask: mask::XVATTR,
            mode: 0,
            uid: 0,
            gid: 0,
            size: 0,
            atime: none,
            mtime: none,
            extra: &extra.finish(),
        };
        self.record_of(tx, node, &body);
        self.settle(node.id);
    }

    pub(super) fn xattr(self, tx: &Tx, node: &Node, name: &[u8], value: Option<&[u8]>) {
        // In the log, an empty value means removal.
        if value.is_some_and(<[u8]>::is_empty) {
            if let Some(zil) = self.zil() {
                zil.log_barrier_until_synced(tx, Some(node.id));
            }
            return;
        }
        self.record_of(tx, node, &LogBody::SetSaXattr { object: node.id, name, value: value.unwrap_or_default() });
    }

    /// Logs the file's current ACL in the encoding of OpenZFS's callers.
    pub(super) fn acl(self, tx: &Tx, node: &Node) -> Result<(), FileError> {
        let aces = node.aces()?;
        let mut bytes = Encoder::new(Endian::Little);
        for ace in &aces {
            let has_no_principal =
                matches!(ace.flags & Ace::WHO_FLAGS, Ace::OWNER | Ace::EVERYONE) || ace.flags & Ace::GROUP != 0;
            Ace { who: if has_no_principal { u32::MAX.into() } else { ace.who }, ..*ace }.encode_v0(&mut bytes);
        }
        let aces_bytes = bytes.finish();
        let flags = LIST_FLAGS.iter().filter(|(flag, _)| node.has_flag(*flag)).map(|(_, bit)| bit).sum();
        let acl = AclBody {
            count: aces.len() as u64,
            domain_count: 0,
            fuid_count: 0,
            bytes: aces_bytes.len() as u64,
            flags,
            aces: &aces_bytes,
            fuids: Vec::new(),
            domains: Vec::new(),
        };
        self.record_of(tx, node, &LogBody::Acl { object: node.id, acl });
        Ok(())
    }
}
