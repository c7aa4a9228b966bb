//! The first objects of a file system (OpenZFS `zfs_create_fs` in `module/os/linux/zfs/zfs_znode_os.c`).
//!
//! ```text
//!   1 master node ─ VERSION, normalization, utf8only, casesensitivity
//!        ├ SA_ATTRS ─► SA master node ─ REGISTRY ─► attribute numbers
//!        │                            └ LAYOUTS  ─► layout 2: the root directory's row
//!        ├ DELETE_QUEUE ─► empty
//!        └ ROOT ─► root directory, its attributes in the bonus area
//! ```
//!
//! File systems of the versions 1 to 4 (`zfs create -o version=N`) have no SA_ATTRS: the bonus area of the root directory is a
//! znode, whose access control list has the FUID form from version 3 on. Pools count space by owner in them, too.

use crate::sync_tasks::DslError;
use std::sync::Arc;
use weir_dmu::object_set::ObjectSet;
use weir_dmu::txg::Tx;
use weir_dmu::zap::{self, Key, NewZap, Value};
use weir_format::acl::{Ace, EmbeddedAcl};
use weir_format::sa::{SaAttribute, SaHeader, ZPL_ATTRIBUTES, name};
use weir_format::zap::NormFlags;
use weir_format::znode::{FileFlags, Timestamp, Znode, master};
use weir_format::{Encoder, Endian, ObjectId, ObjectType};
use weir_machine::Request;

/// The ZPL's newest version: attributes are system attributes.
pub const ZPL_VERSION: u64 = 5;
/// The first version that identifies owners by FUIDs.
const VERSION_FUID: u64 = 3;
/// The layout of the first row; 0 and 1 are reserved for old znodes and for no layout.
const FIRST_LAYOUT: u16 = 2;
/// Number of registered attributes: those that every OpenZFS from 2.2 on knows.
const REGISTERED: usize = 22;
/// The root directory's mode.
const ROOT_MODE: u64 = 0o40755;

/// Properties fixed at the creation of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSystemSpec {
    /// Version of the ZPL, 1 to [`ZPL_VERSION`]; `None` for the newest.
    pub version: Option<u64>,
    /// Unicode normalization of names, as the property's number.
    pub normalization: u64,
    /// Whether names must be UTF-8.
    pub utf8only: bool,
    /// Value of `casesensitivity`: 0 sensitive, 1 insensitive, 2 mixed.
    pub casesensitivity: u64,
    /// Whether files carry a project id: the pool has `feature@project_quota`.
    pub projects: bool,
    /// Owner of the root directory.
    pub uid: u32,
    /// Group of the root directory.
    pub gid: u32,
    /// Time of creation.
    pub now: Timestamp,
    /// 512-byte slots of the root directory's dnode, from `dnodesize`; 0 means 1.
    pub slots: u8,
}

impl FileSystemSpec {
    /// How lookups in directories compare names.
    pub fn norm(&self) -> NormFlags {
        let folds = if self.casesensitivity == 0 { 0 } else { NormFlags::TO_UPPER };
        NormFlags(self.normalization | folds)
    }

    /// Creates the first objects of a file system in an empty set. Returns the root directory.
    pub async fn create(&self, rq: &Request, set: &Arc<ObjectSet>, tx: &Tx) -> Result<ObjectId, DslError> {
        let master = ObjectId(master::OBJECT);
        zap::create_at(rq, set, tx, master, &NewZap::new(ObjectType::MASTER_NODE)).await?;
        let version = self.version.unwrap_or(ZPL_VERSION);
        assert!((1..=ZPL_VERSION).contains(&version), "the version was checked when it was parsed");
        let words = [
            (master::VERSION, version),
            (master::NORMALIZATION, self.normalization),
            (master::UTF8ONLY, u64::from(self.utf8only)),
            (master::CASESENSITIVITY, self.casesensitivity),
        ];
        for (name, word) in words {
            zap::put_word(rq, set, tx, master, name, word).await?;
        }
        if version == ZPL_VERSION {
            let attributes = zap::create(rq, set, tx, &NewZap::new(ObjectType::SA_MASTER_NODE)).await?;
            zap::put_word(rq, set, tx, master, master::SA_ATTRS, attributes.0).await?;
            self.describe(rq, set, tx, attributes).await?;
        }
        let unlinked = zap::create(rq, set, tx, &NewZap::new(ObjectType::UNLINKED_SET)).await?;
        let root = self.root(rq, set, tx).await?;
        for (name, id) in [(master::UNLINKED_SET, unlinked), (master::ROOT, root)] {
            zap::put_word(rq, set, tx, master, name, id.0).await?;
        }
        Ok(root)
    }

    /// Registers the attributes, and the layout of the root directory's row.
    async fn describe(
        &self,
        rq: &Request,
        set: &Arc<ObjectSet>,
        tx: &Tx,
        attributes: ObjectId,
    ) -> Result<(), DslError> {
        let registry = zap::create(rq, set, tx, &NewZap::new(ObjectType::SA_ATTR_REGISTRATION)).await?;
        let layouts = zap::create(rq, set, tx, &NewZap::new(ObjectType::SA_ATTR_LAYOUTS)).await?;
        for (number, (name, length, swap)) in (0u16..).zip(ZPL_ATTRIBUTES.into_iter().take(REGISTERED)) {
            let word = SaAttribute { number, length, swap }.to_word();
            zap::put_word(rq, set, tx, registry, name, word).await?;
        }
        zap::put_word(rq, set, tx, attributes, name::REGISTRY, registry.0).await?;
        zap::put_word(rq, set, tx, attributes, name::LAYOUTS, layouts.0).await?;
        let words = self.row(ObjectId(0), 0).into_iter().filter_map(|(name, _)| number_of(name)).collect();
        let key = Key::Name(FIRST_LAYOUT.to_string().into_bytes());
        zap::put(rq, set, tx, layouts, &key, &Value { int_size: 2, words }).await?;
        Ok(())
    }

    async fn root(&self, rq: &Request, set: &Arc<ObjectSet>, tx: &Tx) -> Result<ObjectId, DslError> {
        let slots = self.slots.max(1);
        let (kind, bonus): (_, &(dyn Fn(ObjectId) -> Vec<u8> + Send + Sync)) =
            match self.version.filter(|version| *version < ZPL_VERSION) {
                Some(version) => (ObjectType::ZNODE, &move |id| self.znode(id, tx.txg().0, version)),
                None => (ObjectType::SA, &|id| self.bonus(id, tx.txg().0)),
            };
        let new = NewZap {
            norm: self.norm(),
            bonus_type: kind,
            bonus: bonus(ObjectId(0)),
            slots,
            ..NewZap::new(ObjectType::DIRECTORY_CONTENTS)
        };
        let id = zap::create(rq, set, tx, &new).await?;
        // The root directory is its own parent, so its row needs its number.
        set.changes().set_bonus(rq, tx, id, kind, &bonus(id)).await?;
        Ok(id)
    }

    /// The bonus area of the root directory `id`, created in `txg`.
    fn bonus(&self, id: ObjectId, txg: u64) -> Vec<u8> {
        let aces = self.acl().len() as u16;
        let header = SaHeader { layout: FIRST_LAYOUT, header_bytes: 8, lengths: vec![aces] };
        let mut e = Encoder::new(Endian::Little);
        e.bytes(&header.encode(Endian::Little));
        for (_, bytes) in self.row(id, txg) {
            e.bytes(&bytes);
        }
        e.finish()
    }

    /// The bonus area of the root directory `id`, created in `txg`, in a file system of an old version.
    fn znode(&self, id: ObjectId, txg: u64, version: u64) -> Vec<u8> {
        let with_fuids = version >= VERSION_FUID;
        let aces = Self::aces();
        let mut list = Encoder::new(Endian::Little);
        for ace in aces {
            match with_fuids {
                true => ace.encode(&mut list),
                // What has no id of its own has the id -1.
                false => Ace { who: u32::MAX.into(), ..ace }.encode_v0(&mut list),
            }
        }
        let list = list.finish();
        let mut data = [0; 72];
        data[..list.len()].copy_from_slice(&list);
        let acl = EmbeddedAcl {
            external: ObjectId(0),
            size_bytes: list.len() as u64,
            count: aces.len() as u64,
            version: u16::from(with_fuids),
            data,
        };
        let changed = if with_fuids { FileFlags::ARCHIVE | FileFlags::AV_MODIFIED } else { 0 };
        let znode = Znode {
            atime: self.now,
            mtime: self.now,
            ctime: self.now,
            crtime: self.now,
            generation: txg,
            mode: ROOT_MODE,
            size_bytes: 2,
            parent: id,
            links: 2,
            xattr: ObjectId(0),
            rdev: 0,
            flags: changed | FileFlags::NO_EXECS_DENIED | FileFlags::ACL_AUTO_INHERIT | FileFlags::ACL_TRIVIAL,
            uid: self.uid.into(),
            gid: self.gid.into(),
            zap: 0,
            acl,
        };
        let bytes = znode.encode(Endian::Little);
        assert_eq!(bytes.len(), Znode::SIZE, "a znode has one size");
        bytes
    }

    /// The attributes of the root directory in the order of its row.
    fn row(&self, id: ObjectId, txg: u64) -> Vec<(&'static str, Vec<u8>)> {
        let word = |n: u64| n.to_le_bytes().to_vec();
        let time: Vec<u8> = self.now.to_words().iter().flat_map(|w| w.to_le_bytes()).collect();
        let acl = self.acl();
        let projects = if self.projects { FileFlags::PROJID } else { 0 };
        let flags =
            FileFlags::ARCHIVE | FileFlags::AV_MODIFIED | FileFlags::NO_EXECS_DENIED | FileFlags::ACL_AUTO_INHERIT;
        let mut row = vec![
            ("ZPL_MODE", word(ROOT_MODE)),
            ("ZPL_SIZE", word(2)),
            ("ZPL_GEN", word(txg)),
            ("ZPL_UID", word(self.uid.into())),
            ("ZPL_GID", word(self.gid.into())),
            ("ZPL_PARENT", word(id.0)),
            ("ZPL_FLAGS", word(flags | FileFlags::ACL_TRIVIAL | projects)),
            ("ZPL_ATIME", time.clone()),
            ("ZPL_MTIME", time.clone()),
            ("ZPL_CTIME", time.clone()),
            ("ZPL_CRTIME", time),
            ("ZPL_LINKS", word(2)),
        ];
        if self.projects {
            row.push(("ZPL_PROJID", word(0)));
        }
        row.push(("ZPL_DACL_COUNT", word(3)));
        row.push(("ZPL_DACL_ACES", acl));
        row
    }

    /// The access control list equivalent to mode 0755: entries that allow owner, group, everyone.
    fn acl(&self) -> Vec<u8> {
        let mut e = Encoder::new(Endian::Little);
        Self::aces().iter().for_each(|ace| ace.encode(&mut e));
        e.finish()
    }

    /// The entries of this list.
    fn aces() -> [Ace; 3] {
        /// Read the list, attributes and named attributes; synchronize.
        const LOOK: u32 = 0x12_0088;
        /// Change the list, the owner, attributes and named attributes.
        const OWN: u32 = 0xc_0110;
        const READ: u32 = 0x1;
        const EXECUTE: u32 = 0x20;
        /// Add files and directories, delete children.
        const CHANGE: u32 = 0x46;
        let of = |flags, mask| Ace { kind: Ace::ALLOW, flags, mask, who: 0, object: None };
        [
            of(Ace::OWNER, LOOK | OWN | READ | CHANGE | EXECUTE),
            of(Ace::GROUP | Ace::IDENTIFIER_GROUP, LOOK | READ | EXECUTE),
            of(Ace::EVERYONE, LOOK | READ | EXECUTE),
        ]
    }
}

fn number_of(name: &str) -> Option<u64> {
    ZPL_ATTRIBUTES.iter().position(|(known, ..)| *known == name).map(|at| at as u64)
}
