//! Quotas of users, groups and projects (OpenZFS `module/zfs/zfs_quota.c`).
//!
//! Limits are stored in ZAPs that the master node references; they are read once and cached. Usage is that of the
//! last synced txg ([`weir_dsl::QuotaPrincipal`]), so a limit can be exceeded by the writes of a few seconds, as in
//! OpenZFS. Quotas also apply to the superuser: space is accounted to the file's owner, not to the writer.
//!
//! Replay of the intent log bypasses quotas: its changes were permitted before.

use super::flags::project_of;
use super::make::NAME_BYTES;
use super::node::Node;
use crate::error::FileError;
use crate::handles::Quotas;
use crate::metadata::index;
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_dmu::live::SpaceReserve;
use weir_dmu::zap::{self, NewZap};
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_format::znode::master;
use weir_format::{ObjectId, ObjectType};
use weir_machine::Request;

/// Limits of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Kind {
    /// Default limit; 0: none.
    usual: u64,
    own: BTreeMap<u64, u64>,
}

/// All limits of a file system. Kinds without limits are absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Limits(BTreeMap<(QuotaPrincipal, QuotaKind), Kind>);

/// Owners of a file by kind.
pub(super) type Owners = [(QuotaPrincipal, u64); 3];

/// Owners of a file.
pub(super) fn owners(node: &Node) -> Owners {
    owners_of(node.word(index::UID), node.word(index::GID), project_of(node))
}

/// Owners by ID; project 0 means none.
pub(super) fn owners_of(user: u64, group: u64, project: u64) -> Owners {
    [(QuotaPrincipal::User, user), (QuotaPrincipal::Group, group), (QuotaPrincipal::Project, project)]
}

impl Quotas<'_> {
    async fn limits(self, rq: &Request) -> Result<Arc<Limits>, FileError> {
        let writing = self.files.writing()?;
        if let Some(quotas) = writing.quotas.lock().clone() {
            return Ok(quotas);
        }
        let failed = |e| FileError::at(e, ObjectId(master::OBJECT), 0);
        let mut read = Limits::default();
        for (who, what) in QuotaPrincipal::ALL.into_iter().flat_map(|who| QuotaKind::ALL.map(|what| (who, what))) {
            let name = who.default_name(what);
            let usual =
                zap::lookup_word(rq, self.files.objects(), ObjectId(master::OBJECT), name).await.map_err(failed)?;
            let own = self.files.objects().accounting().limits_of(rq, who, what).await.map_err(failed)?;
            let kind = Kind { usual: usual.unwrap_or(0), own };
            if kind != Kind::default() {
                read.0.insert((who, what), kind);
            }
        }
        let read = Arc::new(read);
        *writing.quotas.lock() = Some(read.clone());
        Ok(read)
    }

    async fn check(
        self,
        rq: &Request,
        owners: &[(QuotaPrincipal, u64)],
        counted: &[QuotaKind],
    ) -> Result<(), FileError> {
        let quotas = self.limits(rq).await?;
        if quotas.0.is_empty() {
            return Ok(());
        }
        for (who, id) in owners.iter().copied() {
            for what in counted.iter().filter(|_| who != QuotaPrincipal::Project || id != 0) {
                let Some(kind) = quotas.0.get(&(who, *what)) else { continue };
                let most = kind.own.get(&id).copied().unwrap_or(kind.usual);
                if most == 0 {
                    continue;
                }
                let used = self.files.objects().accounting().used_by(rq, who, *what, id).await;
                if used.map_err(|e| FileError::at(e, ObjectId(master::OBJECT), 0))? >= most {
                    return Err(FileError::Quota);
                }
            }
        }
        Ok(())
    }

    /// Checks whether a file of these owners may grow.
    ///
    /// # Errors
    /// [`FileError::Quota`].
    pub(super) async fn may_grow(self, rq: &Request, owners: &[(QuotaPrincipal, u64)]) -> Result<(), FileError> {
        self.check(rq, owners, &[QuotaKind::Bytes]).await
    }

    /// Checks whether these owners may have another file.
    ///
    /// # Errors
    /// [`FileError::Quota`].
    pub(super) async fn may_own(self, rq: &Request, owners: &[(QuotaPrincipal, u64)]) -> Result<(), FileError> {
        self.check(rq, owners, &QuotaKind::ALL).await
    }

    /// Sets the quota of a user, group or project in bytes or objects (without an ID: the default quota); 0 removes
    /// it. It is stable with its txg.
    ///
    /// # Errors
    /// [`FileError::ReadOnly`]; [`FileError::NoSpace`]; errors of reading the master node.
    pub async fn set(
        self,
        rq: &Request,
        who: QuotaPrincipal,
        what: QuotaKind,
        id: Option<u64>,
        limit: u64,
    ) -> Result<(), FileError> {
        let writing = self.files.writing()?;
        let master = ObjectId(master::OBJECT);
        let failed = |e| FileError::at(e, master, 0);
        let _alone = writing.locks.one(rq, master).await;
        let set = self.files.objects();
        let tx = self.files.begin(rq, NAME_BYTES, SpaceReserve::Half).await?;
        let Some(id) = id else {
            let name = who.default_name(what);
            match limit {
                0 => zap::remove_name(rq, set, &tx, master, name).await.map(drop).map_err(failed)?,
                limit => zap::put_word(rq, set, &tx, master, name, limit).await.map_err(failed)?,
            }
            *writing.quotas.lock() = None;
            return Ok(());
        };
        let name = who.quota_name(what);
        let zap = match zap::lookup_word(rq, set, master, name).await.map_err(failed)? {
            Some(id) => ObjectId(id),
            None if limit == 0 => return Ok(()),
            None => {
                let zap = zap::create(rq, set, &tx, &NewZap::new(ObjectType::USERGROUP_QUOTA)).await.map_err(failed)?;
                zap::put_word(rq, set, &tx, master, name, zap.0).await.map_err(failed)?;
                zap
            }
        };
        let key = format!("{id:x}");
        let known = zap::lookup_word(rq, set, zap, &key).await.map_err(failed)?;
        match (limit, known) {
            (0, Some(_)) => zap::remove_name(rq, set, &tx, zap, &key).await.map(drop).map_err(failed)?,
            (0, None) => {}
            (limit, _) => zap::put_word(rq, set, &tx, zap, &key, limit).await.map_err(failed)?,
        }
        *writing.quotas.lock() = None;
        Ok(())
    }
}
