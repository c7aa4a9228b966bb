//! Decoding of the records in log blocks.

use super::WHAT;
use crate::blkptr::BlockPointer;
use crate::cursor::{Cursor, DecodeError, Endian};
use crate::ids::{ObjectId, Txg};

type Result<T> = std::result::Result<T, DecodeError>;

/// Type of a record (`TX_*`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[allow(missing_docs)]
pub enum TxType {
    Commit,
    Create,
    Mkdir,
    MkXattr,
    Symlink,
    Remove,
    Rmdir,
    Link,
    Rename,
    Write,
    Truncate,
    SetAttr,
    AclV0,
    Acl,
    CreateAcl,
    CreateAttr,
    CreateAclAttr,
    MkdirAcl,
    MkdirAttr,
    MkdirAclAttr,
    Write2,
    SetSaXattr,
    RenameExchange,
    RenameWhiteout,
    CloneRange,
}

impl TxType {
    const ALL: [(TxType, &'static str); 25] = {
        use TxType::*;
        [
            (Commit, "TX_COMMIT"),
            (Create, "TX_CREATE"),
            (Mkdir, "TX_MKDIR"),
            (MkXattr, "TX_MKXATTR"),
            (Symlink, "TX_SYMLINK"),
            (Remove, "TX_REMOVE"),
            (Rmdir, "TX_RMDIR"),
            (Link, "TX_LINK"),
            (Rename, "TX_RENAME"),
            (Write, "TX_WRITE"),
            (Truncate, "TX_TRUNCATE"),
            (SetAttr, "TX_SETATTR"),
            (AclV0, "TX_ACL_V0"),
            (Acl, "TX_ACL_ACL"),
            (CreateAcl, "TX_CREATE_ACL"),
            (CreateAttr, "TX_CREATE_ATTR"),
            (CreateAclAttr, "TX_CREATE_ACL_ATTR"),
            (MkdirAcl, "TX_MKDIR_ACL"),
            (MkdirAttr, "TX_MKDIR_ATTR"),
            (MkdirAclAttr, "TX_MKDIR_ACL_ATTR"),
            (Write2, "TX_WRITE2"),
            (SetSaXattr, "TX_SETSAXATTR"),
            (RenameExchange, "TX_RENAME_EXCHANGE"),
            (RenameWhiteout, "TX_RENAME_WHITEOUT"),
            (CloneRange, "TX_CLONE_RANGE"),
        ]
    };

    /// From the number on disk without the case-insensitivity bit.
    pub fn from_u64(n: u64) -> Option<Self> {
        Self::ALL.get(usize::try_from(n).ok()?).map(|t| t.0)
    }

    /// The number on disk.
    pub fn to_u64(self) -> u64 {
        self as u64
    }

    /// The name that zdb shows.
    pub fn name(self) -> &'static str {
        Self::ALL.get(self as usize).map_or("", |t| t.1)
    }

    /// Whether records of this type change one object only, whose number is their first field. They may be logged out
    /// of order relative to records of other objects (`TX_OOO`).
    pub fn is_out_of_order(self) -> bool {
        use TxType::*;
        matches!(self, Write | Truncate | SetAttr | AclV0 | Acl | Write2 | SetSaXattr | CloneRange)
    }

    pub(super) fn has_acl(self) -> bool {
        use TxType::*;
        matches!(self, CreateAcl | CreateAclAttr | MkdirAcl | MkdirAclAttr)
    }

    pub(super) fn has_attr(self) -> bool {
        use TxType::*;
        matches!(self, CreateAttr | CreateAclAttr | MkdirAttr | MkdirAclAttr)
    }

    fn create_kind(self) -> CreateKind {
        use TxType::*;
        match self {
            Mkdir | MkdirAcl | MkdirAttr | MkdirAclAttr => CreateKind::Directory,
            MkXattr => CreateKind::XattrDirectory,
            Symlink => CreateKind::Symlink,
            _ => CreateKind::File,
        }
    }
}

/// Kind of file that a creation record makes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateKind {
    /// A file, device or socket.
    File,
    /// A directory.
    Directory,
    /// The directory of a file's extended attributes.
    XattrDirectory,
    /// A symbolic link.
    Symlink,
}

/// How a rename treats the names of target and source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameKind {
    /// An existing target is replaced.
    Replace,
    /// Source and target are exchanged.
    Exchange,
    /// The source's name becomes a whiteout: object (with dnode slots), mode, uid, gid, generation, creation time
    /// (2), device.
    Whiteout([u64; 8]),
}

/// A log record with its undecoded body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord<'a> {
    /// Type of the record.
    pub tx_type: TxType,
    /// Names are compared case-insensitively.
    pub ignore_case: bool,
    /// Size of the record in bytes.
    pub length: usize,
    /// The txg that was to sync the change.
    pub txg: Txg,
    /// Sequence number in the log.
    pub seq: u64,
    /// The bytes of the whole record.
    pub raw: &'a [u8],
    /// Byte order of the record.
    pub endian: Endian,
}

impl<'a> LogRecord<'a> {
    /// Size of the header before the body, in bytes.
    pub const HEADER: usize = 32;

    fn decode(c: &mut Cursor<'a>) -> Result<Self> {
        let endian = c.endian();
        let mut peek = c.clone();
        let [kind, length, txg, seq] = peek.words()?;
        let bad = |field, value| DecodeError::Field { what: WHAT, field, value };
        let tx_type = TxType::from_u64(kind & !(1 << 63)).ok_or(bad("record type", kind))?;
        let length_bytes =
            usize::try_from(length).ok().filter(|l| *l >= Self::HEADER).ok_or(bad("record length", length))?;
        let raw = c.bytes(length_bytes)?;
        Ok(LogRecord { tx_type, ignore_case: kind >> 63 != 0, length: length_bytes, txg: Txg(txg), seq, raw, endian })
    }

    /// The block pointers in the record: that of a write's data (a hole if the record carries the data), or those of
    /// a cloned range. They are not encrypted, even in encrypted object sets.
    ///
    /// # Errors
    /// [`DecodeError`] if the record is too short.
    pub fn pointers(&self) -> Result<Vec<BlockPointer>> {
        /// Bytes before the pointer or count: object, offset, length, and block offset or block size.
        const WORDS: usize = 4 * 8;
        let mut c = Cursor::new(self.raw, self.endian, WHAT);
        match self.tx_type {
            TxType::Write => {
                c.skip(Self::HEADER + WORDS)?;
                Ok(vec![BlockPointer::decode(&mut c)?])
            }
            TxType::CloneRange => {
                c.skip(Self::HEADER + WORDS)?;
                let count = c.u64()?;
                (0..count).map(|_| BlockPointer::decode(&mut c)).collect()
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Decodes the body. In an encrypted object set the caller must decrypt the record first.
    pub fn body(&self) -> Result<LogBody<'a>> {
        use TxType::*;
        let mut c = Cursor::new(self.raw, self.endian, WHAT);
        c.skip(Self::HEADER)?;
        Ok(match self.tx_type {
            Commit => LogBody::Commit,
            Create | Mkdir | MkXattr | Symlink | CreateAcl | CreateAttr | CreateAclAttr | MkdirAcl | MkdirAttr
            | MkdirAclAttr => LogBody::Create(Box::new(create(&mut c, self.tx_type)?)),
            Remove | Rmdir => {
                LogBody::Remove { directory: self.tx_type == Rmdir, dir: ObjectId(c.u64()?), name: c_string(&mut c)? }
            }
            Link => LogBody::Link { dir: ObjectId(c.u64()?), object: ObjectId(c.u64()?), name: c_string(&mut c)? },
            Rename | RenameExchange | RenameWhiteout => LogBody::Rename {
                source_dir: ObjectId(c.u64()?),
                target_dir: ObjectId(c.u64()?),
                how: match self.tx_type {
                    RenameExchange => RenameKind::Exchange,
                    RenameWhiteout => RenameKind::Whiteout(c.words()?),
                    _ => RenameKind::Replace,
                },
                source: c_string(&mut c)?,
                target: c_string(&mut c)?,
            },
            Write => LogBody::Write(write(&mut c)?),
            Write2 => LogBody::Write2(write(&mut c)?),
            Truncate => LogBody::Truncate { object: ObjectId(c.u64()?), offset: c.u64()?, length: c.u64()? },
            SetAttr => LogBody::SetAttr {
                object: ObjectId(c.u64()?),
                mask: c.u64()?,
                mode: c.u64()?,
                uid: c.u64()?,
                gid: c.u64()?,
                size: c.u64()?,
                atime: c.words()?,
                mtime: c.words()?,
                extra: c.bytes(c.remaining())?,
            },
            AclV0 => LogBody::AclV0 { object: ObjectId(c.u64()?), count: c.u64()?, aces: c.bytes(c.remaining())? },
            Acl => {
                let object = ObjectId(c.u64()?);
                let acl = AclBody::head(&mut c)?;
                LogBody::Acl { object, acl: acl.tail(&mut c)? }
            }
            SetSaXattr => {
                let object = ObjectId(c.u64()?);
                let size = c.u64()?;
                let name = c_string(&mut c)?;
                LogBody::SetSaXattr { object, name, value: c.bytes(length(size)?)? }
            }
            CloneRange => clone_range(&mut c)?,
        })
    }
}

/// The body of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum LogBody<'a> {
    Commit,
    Create(Box<CreateBody<'a>>),
    /// `directory`: the removed file is a directory.
    Remove {
        directory: bool,
        dir: ObjectId,
        name: &'a [u8],
    },
    Link {
        dir: ObjectId,
        object: ObjectId,
        name: &'a [u8],
    },
    Rename {
        source_dir: ObjectId,
        target_dir: ObjectId,
        how: RenameKind,
        source: &'a [u8],
        target: &'a [u8],
    },
    Write(WriteBody<'a>),
    /// Old logs: the data was already synced, replay only sets the file's size.
    Write2(WriteBody<'a>),
    Truncate {
        object: ObjectId,
        offset: u64,
        length: u64,
    },
    /// `extra` holds optional attributes ([`Xvattr`]) and identity domains, if any.
    SetAttr {
        object: ObjectId,
        mask: u64,
        mode: u64,
        uid: u64,
        gid: u64,
        size: u64,
        atime: [u64; 2],
        mtime: [u64; 2],
        extra: &'a [u8],
    },
    AclV0 {
        object: ObjectId,
        count: u64,
        aces: &'a [u8],
    },
    Acl {
        object: ObjectId,
        acl: AclBody<'a>,
    },
    /// An empty value removes the attribute.
    SetSaXattr {
        object: ObjectId,
        name: &'a [u8],
        value: &'a [u8],
    },
    CloneRange {
        object: ObjectId,
        offset: u64,
        length: u64,
        block_bytes: u64,
        pointers: Vec<BlockPointer>,
    },
}

/// The body of a creation: file, directory or symbolic link.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct CreateBody<'a> {
    pub kind: CreateKind,
    pub dir: ObjectId,
    pub object: ObjectId,
    /// 512-byte slots of the new dnode.
    pub dnode_slots: u16,
    pub mode: u64,
    pub uid: u64,
    pub gid: u64,
    pub generation: u64,
    /// Seconds, nanoseconds.
    pub crtime: [u64; 2],
    pub rdev: u64,
    pub attributes: Option<Xvattr>,
    pub acl: Option<AclBody<'a>>,
    /// Identity domains that the owner's and group's FUIDs refer to.
    pub domains: Vec<&'a [u8]>,
    pub name: &'a [u8],
    /// The target of a symbolic link.
    pub link: Option<&'a [u8]>,
}

/// Optional attributes of a creation (`lr_attr_t`).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct Xvattr {
    pub bitmap: Vec<u32>,
    pub attributes: u64,
    pub crtime: [u64; 2],
    pub scan_stamp: [u8; 32],
}

/// An access control list in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct AclBody<'a> {
    pub count: u64,
    pub domain_count: u64,
    pub fuid_count: u64,
    pub bytes: u64,
    pub flags: u64,
    /// The entries, as in the ACL of a file.
    pub aces: &'a [u8],
    pub fuids: Vec<u64>,
    pub domains: Vec<&'a [u8]>,
}

/// The body of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct WriteBody<'a> {
    pub object: ObjectId,
    pub offset: u64,
    pub length: u64,
    pub block_offset: u64,
    /// The block with the data, if the record does not carry it.
    pub pointer: BlockPointer,
    /// The data, `length` bytes, if the record carries it.
    pub data: Option<&'a [u8]>,
}

fn length(n: u64) -> Result<usize> {
    usize::try_from(n).map_err(|_| DecodeError::Field { what: WHAT, field: "length", value: n })
}

fn c_string<'a>(c: &mut Cursor<'a>) -> Result<&'a [u8]> {
    let rest = c.clone().bytes(c.remaining())?;
    let len = rest.iter().position(|b| *b == 0).ok_or(DecodeError::Field {
        what: WHAT,
        field: "unterminated name",
        value: rest.len() as u64,
    })?;
    let name = c.bytes(len)?;
    c.skip(1)?;
    Ok(name)
}

impl<'a> AclBody<'a> {
    fn head(c: &mut Cursor<'a>) -> Result<Self> {
        let [count, domain_count, fuid_count, bytes, flags] = c.words()?;
        Ok(AclBody { count, domain_count, fuid_count, bytes, flags, aces: &[], fuids: vec![], domains: vec![] })
    }

    fn tail(mut self, c: &mut Cursor<'a>) -> Result<Self> {
        let len = length(self.bytes)?;
        self.aces = c.bytes(len)?;
        c.skip((len.wrapping_neg() & 7).min(c.remaining()))?;
        for _ in 0..self.fuid_count {
            self.fuids.push(c.u64()?);
        }
        for _ in 0..self.domain_count {
            self.domains.push(c_string(c)?);
        }
        Ok(self)
    }
}

impl Xvattr {
    /// Decodes the attributes in a creation or at the start of a [`LogBody::SetAttr`]'s `extra`.
    pub fn decode(c: &mut Cursor<'_>) -> Result<Self> {
        let words = c.u32()?;
        let mut bitmap = Vec::new();
        for _ in 0..words {
            bitmap.push(c.u32()?);
        }
        Ok(Xvattr { bitmap, attributes: c.u64()?, crtime: c.words()?, scan_stamp: c.array()? })
    }
}

/// Number of domain strings before the name: one for each distinct domain index of owner and group.
fn owner_domains(uid: u64, gid: u64) -> usize {
    match (uid >> 32, gid >> 32) {
        (0, 0) => 0,
        (u, g) if u != 0 && g != 0 && u != g => 2,
        _ => 1,
    }
}

fn create<'a>(c: &mut Cursor<'a>, tx: TxType) -> Result<CreateBody<'a>> {
    let [dir, object, mode, uid, gid, generation, sec, nsec, rdev] = c.words()?;
    let acl = if tx.has_acl() { Some(AclBody::head(c)?) } else { None };
    let attributes = if tx.has_attr() { Some(Xvattr::decode(c)?) } else { None };
    let acl = acl.map(|a| a.tail(c)).transpose()?;
    let mut domains = Vec::new();
    if acl.is_none() && !matches!(tx, TxType::MkXattr | TxType::Symlink) {
        for _ in 0..owner_domains(uid, gid) {
            domains.push(c_string(c)?);
        }
    }
    let name = c_string(c)?;
    let link = if tx == TxType::Symlink { Some(c_string(c)?) } else { None };
    Ok(CreateBody {
        kind: tx.create_kind(),
        dir: ObjectId(dir),
        object: ObjectId(object & ((1 << 48) - 1)),
        dnode_slots: (object >> 56) as u16 + 1,
        mode,
        uid,
        gid,
        generation,
        crtime: [sec, nsec],
        rdev,
        attributes,
        acl,
        domains,
        name,
        link,
    })
}

fn write<'a>(c: &mut Cursor<'a>) -> Result<WriteBody<'a>> {
    let [object, offset, len, block_offset] = c.words()?;
    let pointer = BlockPointer::decode(c)?;
    let data = if c.remaining() > 0 && len > 0 { Some(c.bytes(length(len)?)?) } else { None };
    Ok(WriteBody { object: ObjectId(object), offset, length: len, block_offset, pointer, data })
}

fn clone_range<'a>(c: &mut Cursor<'a>) -> Result<LogBody<'a>> {
    let [object, offset, length, block_bytes, count] = c.words()?;
    let mut pointers = Vec::new();
    for _ in 0..count {
        pointers.push(BlockPointer::decode(c)?);
    }
    Ok(LogBody::CloneRange { object: ObjectId(object), offset, length, block_bytes, pointers })
}

/// Iterates over the records of a block; ends after the first error.
#[derive(Clone, Debug)]
pub struct LogRecords<'a> {
    cursor: Cursor<'a>,
    failed: bool,
}

impl<'a> LogRecords<'a> {
    /// Iterates over the bytes of a block's records.
    pub fn new(bytes: &'a [u8], endian: Endian) -> Self {
        LogRecords { cursor: Cursor::new(bytes, endian, WHAT), failed: false }
    }
}

impl<'a> Iterator for LogRecords<'a> {
    type Item = Result<LogRecord<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.cursor.remaining() == 0 {
            return None;
        }
        let record = LogRecord::decode(&mut self.cursor);
        self.failed = record.is_err();
        Some(record)
    }
}
