//! Encoding of log records (OpenZFS `module/zfs/zfs_log.c`).
//!
//! A record is padded with zeros to a multiple of eight bytes. Its type is derived from its body, so the two cannot
//! contradict each other.

use super::record::{AclBody, CreateBody, CreateKind, LogBody, LogRecord, RenameKind, TxType, WriteBody, Xvattr};
use crate::cursor::Endian;
use crate::encoder::Encoder;
use crate::ids::Txg;

/// Bit of the type: names are compared case-insensitively (`TX_CI`).
const IGNORE_CASE: u64 = 1 << 63;
/// Byte offset of a record's length.
const LENGTH_AT: usize = 8;
/// Initial capacity in bytes; few records without data are longer.
const INITIAL_CAPACITY_BYTES: usize = 256;
/// Byte offset of a record's sequence number.
const SEQUENCE_AT: usize = 24;

/// A log record to be encoded.
#[derive(Clone, Copy, Debug)]
pub struct NewRecord<'a, 'b> {
    /// The body; it determines the record type.
    pub body: &'a LogBody<'b>,
    /// Names are compared case-insensitively.
    pub ignore_case: bool,
    /// The txg that will sync the change.
    pub txg: Txg,
    /// Sequence number in the log.
    pub seq: u64,
}

impl NewRecord<'_, '_> {
    /// Encodes header, body and zeros up to a multiple of eight bytes.
    pub fn encode(&self, endian: Endian) -> Vec<u8> {
        let kind = self.body.tx_type();
        let mut e = Encoder::with_capacity(endian, INITIAL_CAPACITY_BYTES);
        e.words(&[kind.to_u64() | if self.ignore_case { IGNORE_CASE } else { 0 }, 0, self.txg.0, self.seq]);
        body(&mut e, self.body, kind);
        e.pad_to(e.position().next_multiple_of(8));
        let length = e.position() as u64;
        let mut bytes = e.finish();
        put(&mut bytes, LENGTH_AT, length, endian);
        bytes
    }
}

/// Sets the sequence number of an encoded record.
pub fn set_sequence(record: &mut [u8], seq: u64, endian: Endian) {
    put(record, SEQUENCE_AT, seq, endian);
}

fn put(record: &mut [u8], at: usize, value: u64, endian: Endian) {
    if let Some(slot) = record.get_mut(at..at + 8) {
        slot.copy_from_slice(&match endian {
            Endian::Little => value.to_le_bytes(),
            Endian::Big => value.to_be_bytes(),
        });
    }
}

impl LogBody<'_> {
    /// The record type of this body.
    pub fn tx_type(&self) -> TxType {
        match self {
            LogBody::Commit => TxType::Commit,
            LogBody::Create(create) => create.tx_type(),
            LogBody::Remove { directory: true, .. } => TxType::Rmdir,
            LogBody::Remove { .. } => TxType::Remove,
            LogBody::Link { .. } => TxType::Link,
            LogBody::Rename { how: RenameKind::Replace, .. } => TxType::Rename,
            LogBody::Rename { how: RenameKind::Exchange, .. } => TxType::RenameExchange,
            LogBody::Rename { how: RenameKind::Whiteout(_), .. } => TxType::RenameWhiteout,
            LogBody::Write(_) => TxType::Write,
            LogBody::Write2(_) => TxType::Write2,
            LogBody::Truncate { .. } => TxType::Truncate,
            LogBody::SetAttr { .. } => TxType::SetAttr,
            LogBody::AclV0 { .. } => TxType::AclV0,
            LogBody::Acl { .. } => TxType::Acl,
            LogBody::SetSaXattr { .. } => TxType::SetSaXattr,
            LogBody::CloneRange { .. } => TxType::CloneRange,
        }
    }
}

impl CreateBody<'_> {
    /// The record type; extended attribute directories and symbolic links have neither ACL nor optional attributes.
    fn tx_type(&self) -> TxType {
        match (self.kind, self.acl.is_some(), self.attributes.is_some()) {
            (CreateKind::XattrDirectory, ..) => TxType::MkXattr,
            (CreateKind::Symlink, ..) => TxType::Symlink,
            (CreateKind::File, false, false) => TxType::Create,
            (CreateKind::File, true, false) => TxType::CreateAcl,
            (CreateKind::File, false, true) => TxType::CreateAttr,
            (CreateKind::File, true, true) => TxType::CreateAclAttr,
            (CreateKind::Directory, false, false) => TxType::Mkdir,
            (CreateKind::Directory, true, false) => TxType::MkdirAcl,
            (CreateKind::Directory, false, true) => TxType::MkdirAttr,
            (CreateKind::Directory, true, true) => TxType::MkdirAclAttr,
        }
    }
}

fn body(e: &mut Encoder, body: &LogBody<'_>, kind: TxType) {
    match body {
        LogBody::Commit => {}
        LogBody::Create(b) => create(e, b, kind),
        LogBody::Remove { dir, name, .. } => {
            e.u64(dir.0);
            c_string(e, name);
        }
        LogBody::Link { dir, object, name } => {
            e.words(&[dir.0, object.0]);
            c_string(e, name);
        }
        LogBody::Rename { source_dir, target_dir, how, source, target } => {
            e.words(&[source_dir.0, target_dir.0]);
            if let RenameKind::Whiteout(words) = how {
                e.words(words);
            }
            c_string(e, source);
            c_string(e, target);
        }
        LogBody::Write(b) | LogBody::Write2(b) => write(e, b),
        LogBody::Truncate { object, offset, length } => e.words(&[object.0, *offset, *length]),
        LogBody::SetAttr { object, mask, mode, uid, gid, size, atime, mtime, extra } => {
            e.words(&[object.0, *mask, *mode, *uid, *gid, *size]);
            e.words(atime);
            e.words(mtime);
            e.bytes(extra);
        }
        LogBody::AclV0 { object, count, aces } => {
            e.words(&[object.0, *count]);
            e.bytes(aces);
        }
        LogBody::Acl { object, acl } => {
            e.u64(object.0);
            acl.head_to(e);
            acl.tail_to(e);
        }
        LogBody::SetSaXattr { object, name, value } => {
            e.words(&[object.0, value.len() as u64]);
            c_string(e, name);
            e.bytes(value);
        }
        LogBody::CloneRange { object, offset, length, block_bytes, pointers } => {
            e.words(&[object.0, *offset, *length, *block_bytes, pointers.len() as u64]);
            pointers.iter().for_each(|p| e.words(p.words()));
        }
    }
}

fn c_string(e: &mut Encoder, name: &[u8]) {
    e.bytes(name);
    e.u8(0);
}

fn create(e: &mut Encoder, b: &CreateBody<'_>, kind: TxType) {
    let object = b.object.0 & ((1 << 48) - 1) | u64::from(b.dnode_slots.wrapping_sub(1) & 0xff) << 56;
    e.words(&[b.dir.0, object, b.mode, b.uid, b.gid, b.generation, b.crtime[0], b.crtime[1], b.rdev]);
    let acl = b.acl.as_ref().filter(|_| kind.has_acl());
    if let Some(acl) = acl {
        acl.head_to(e);
    }
    if let Some(attributes) = b.attributes.as_ref().filter(|_| kind.has_attr()) {
        attributes.encode(e);
    }
    match acl {
        Some(acl) => acl.tail_to(e),
        None => b.domains.iter().for_each(|d| c_string(e, d)),
    }
    c_string(e, b.name);
    if let Some(link) = b.link {
        c_string(e, link);
    }
}

fn write(e: &mut Encoder, b: &WriteBody<'_>) {
    e.words(&[b.object.0, b.offset, b.length, b.block_offset]);
    e.words(b.pointer.words());
    e.bytes(b.data.unwrap_or_default());
}

impl Xvattr {
    /// Appends the encoded attributes.
    pub fn encode(&self, e: &mut Encoder) {
        e.u32(self.bitmap.len() as u32);
        self.bitmap.iter().for_each(|word| e.u32(*word));
        e.u64(self.attributes);
        e.words(&self.crtime);
        e.bytes(&self.scan_stamp);
    }
}

impl AclBody<'_> {
    fn head_to(&self, e: &mut Encoder) {
        let lengths = [self.domains.len(), self.fuids.len(), self.aces.len()].map(|n| n as u64);
        e.u64(self.count);
        e.words(&lengths);
        e.u64(self.flags);
    }

    fn tail_to(&self, e: &mut Encoder) {
        e.bytes(self.aces);
        e.zeros(self.aces.len().wrapping_neg() & 7);
        e.words(&self.fuids);
        self.domains.iter().for_each(|d| c_string(e, d));
    }
}

impl WriteBody<'_> {
    /// Size in bytes of a write record before its data.
    pub const RECORD_BYTES: usize = LogRecord::HEADER + 4 * 8 + crate::blkptr::BlockPointer::SIZE;
}
