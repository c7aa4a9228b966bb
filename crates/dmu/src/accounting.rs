//! Space and objects by user, group and project, and their quotas (OpenZFS `module/zfs/zfs_quota.c`).
//!
//! ```text
//!   space    accounting objects of the object set: "3e8" → bytes, "obj-3e8" → objects    (hexadecimal FUID)
//!   quotas   ZAPs that the master node names: userquota@, groupquota@, …: "3e8" → limit
//! ```
//!
//! The upper half of a FUID is the index of a domain (a Windows SID) in the file system's FUID table; 0 is POSIX.

use crate::error::ObjectError;
use crate::handles::Accounting;
use crate::zap::{self, Match, Zap};
use std::collections::BTreeMap;
use weir_format::znode::{Fuid, decode_fuid_table, master};
use weir_format::{ObjectId, Objset};
use weir_machine::Request;

/// Maximum number of identities of a file system.
const MAX_IDENTITIES: usize = 1 << 24;
/// Maximum size of a FUID table.
const TABLE_BYTES: u64 = 16 << 20;

/// Kind of identity that space is accounted to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaPrincipal {
    /// By owner.
    User,
    /// By group.
    Group,
    /// By project.
    Project,
}

impl QuotaPrincipal {
    /// All kinds.
    pub const ALL: [QuotaPrincipal; 3] = [QuotaPrincipal::User, QuotaPrincipal::Group, QuotaPrincipal::Project];

    fn object(self) -> u64 {
        match self {
            QuotaPrincipal::User => Objset::USERUSED_OBJECT,
            QuotaPrincipal::Group => Objset::GROUPUSED_OBJECT,
            QuotaPrincipal::Project => Objset::PROJECTUSED_OBJECT,
        }
    }

    /// Name of the ZAP with the limits of this kind, as an entry of the master node.
    pub fn quota_name(self, what: QuotaKind) -> &'static str {
        match what {
            QuotaKind::Bytes => self.quota_names().0,
            QuotaKind::Objects => self.quota_names().1,
        }
    }

    /// Name of the default limit in the master node; it applies to identities without a limit of their own.
    pub fn default_name(self, what: QuotaKind) -> &'static str {
        match (self, what) {
            (QuotaPrincipal::User, QuotaKind::Bytes) => "defaultuserquota",
            (QuotaPrincipal::User, QuotaKind::Objects) => "defaultuserobjquota",
            (QuotaPrincipal::Group, QuotaKind::Bytes) => "defaultgroupquota",
            (QuotaPrincipal::Group, QuotaKind::Objects) => "defaultgroupobjquota",
            (QuotaPrincipal::Project, QuotaKind::Bytes) => "defaultprojectquota",
            (QuotaPrincipal::Project, QuotaKind::Objects) => "defaultprojectobjquota",
        }
    }

    fn quota_names(self) -> (&'static str, &'static str) {
        match self {
            QuotaPrincipal::User => ("userquota@", "userobjquota@"),
            QuotaPrincipal::Group => ("groupquota@", "groupobjquota@"),
            QuotaPrincipal::Project => ("projectquota@", "projectobjquota@"),
        }
    }
}

/// Accounted quantity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QuotaKind {
    /// Space in bytes.
    Bytes,
    /// Objects: files, directories and everything else with a dnode.
    Objects,
}

impl QuotaKind {
    /// Both quantities.
    pub const ALL: [QuotaKind; 2] = [QuotaKind::Bytes, QuotaKind::Objects];
}

/// Usage and limits of one user, group or project; a limit of 0 means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Bytes.
    pub used_bytes: u64,
    /// Limit of the bytes.
    pub quota_bytes: u64,
    /// Objects.
    pub used_objects: u64,
    /// Limit of the objects.
    pub quota_objects: u64,
}

/// Accounts by identity.
pub type Accounts = BTreeMap<Fuid, Account>;
/// Names of domains by index.
pub type Domains = BTreeMap<u64, String>;

impl Accounting<'_> {
    /// Returns the usage and the own limits of each user, group or project of a file system.
    pub async fn accounts(self, rq: &Request, who: QuotaPrincipal) -> Result<Accounts, ObjectError> {
        let mut out = Accounts::new();
        match self.set.object(rq, ObjectId(who.object())).await {
            Ok(object) => {
                for entry in Zap::of(rq, self.set, object).await?.all(rq, MAX_IDENTITIES).await? {
                    let (key, value) = (entry.key.text(), entry.value.first().unwrap_or(0));
                    match key.strip_prefix("obj-") {
                        Some(key) => account(&mut out, key, |a| a.used_objects = value),
                        None => account(&mut out, &key, |a| a.used_bytes = value),
                    }
                }
            }
            Err(error) if error.is_absent() => {}
            Err(error) => return Err(error),
        }
        let names = who.quota_names();
        for (name, value) in self.quotas(rq, names.0).await? {
            account(&mut out, &name, |a| a.quota_bytes = value);
        }
        for (name, value) in self.quotas(rq, names.1).await? {
            account(&mut out, &name, |a| a.quota_objects = value);
        }
        Ok(out)
    }

    /// Returns usage and effective limits: identities without a limit of their own get the default (`defaultuserquota`
    /// etc.).
    ///
    /// # Errors
    /// Errors of reading the accounts.
    pub async fn bound_accounts(self, rq: &Request, who: QuotaPrincipal) -> Result<Accounts, ObjectError> {
        let mut out = self.accounts(rq, who).await?;
        for what in QuotaKind::ALL {
            let default_quota =
                zap::lookup_word(rq, self.set, ObjectId(master::OBJECT), who.default_name(what)).await?;
            for account in out.values_mut() {
                let limit = match what {
                    QuotaKind::Bytes => &mut account.quota_bytes,
                    QuotaKind::Objects => &mut account.quota_objects,
                };
                *limit = if *limit == 0 { default_quota.unwrap_or(0) } else { *limit };
            }
        }
        Ok(out)
    }

    /// Whether objects are accounted; file systems that older software made account only bytes.
    pub fn counts_objects(self) -> bool {
        self.set.root().header.flags & Objset::OBJECT_ACCOUNTING != 0
    }

    /// Whether projects are accounted; file systems that older software made do not.
    pub fn counts_projects(self) -> bool {
        self.set.root().header.flags & Objset::PROJECT_ACCOUNTING != 0
    }

    /// Returns the usage of one user, group or project, as of the last synced txg.
    ///
    /// # Errors
    /// Errors of reading the accounting objects.
    pub async fn used_by(
        self,
        rq: &Request,
        who: QuotaPrincipal,
        what: QuotaKind,
        id: u64,
    ) -> Result<u64, ObjectError> {
        let name = match what {
            QuotaKind::Bytes => format!("{id:x}"),
            QuotaKind::Objects => format!("obj-{id:x}"),
        };
        match zap::lookup_word(rq, self.set, ObjectId(who.object()), &name).await {
            Ok(found) => Ok(found.unwrap_or(0)),
            Err(error) if error.is_absent() => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// Returns the limits of a file system by identity.
    ///
    /// # Errors
    /// Errors of reading the limits.
    pub async fn limits_of(
        self,
        rq: &Request,
        who: QuotaPrincipal,
        what: QuotaKind,
    ) -> Result<BTreeMap<u64, u64>, ObjectError> {
        let all = self.quotas(rq, who.quota_name(what)).await?;
        Ok(all.into_iter().filter_map(|(id, limit)| Some((u64::from_str_radix(&id, 16).ok()?, limit))).collect())
    }

    /// Returns the effective limit of one user, group or project: its own or the default; `None` without either.
    ///
    /// # Errors
    /// Errors of reading the limits.
    pub async fn limit_of(
        self,
        rq: &Request,
        who: QuotaPrincipal,
        what: QuotaKind,
        id: u64,
    ) -> Result<Option<u64>, ObjectError> {
        let master = ObjectId(master::OBJECT);
        let own = match zap::lookup_word(rq, self.set, master, who.quota_name(what)).await? {
            Some(zap) => zap::lookup_word(rq, self.set, ObjectId(zap), &format!("{id:x}")).await?,
            None => None,
        };
        let limit = match own {
            Some(own) => Some(own),
            None => zap::lookup_word(rq, self.set, master, who.default_name(what)).await?,
        };
        Ok(limit.filter(|limit| *limit != 0))
    }

    async fn quotas(self, rq: &Request, name: &str) -> Result<Vec<(String, u64)>, ObjectError> {
        let Some(id) = zap::lookup_word(rq, self.set, ObjectId(master::OBJECT), name).await? else {
            return Ok(Vec::new());
        };
        let entries = Zap::open(rq, self.set, ObjectId(id)).await?.all(rq, MAX_IDENTITIES).await?;
        Ok(entries.into_iter().map(|e| (e.key.text(), e.value.first().unwrap_or(0))).collect())
    }

    /// The domains of a file system's FUIDs.
    pub async fn domains(self, rq: &Request) -> Result<Domains, ObjectError> {
        let master = Zap::open(rq, self.set, ObjectId(master::OBJECT)).await?;
        let id = master.lookup(rq, master::FUID_TABLES.as_bytes(), Match::Exact).await?.and_then(|v| v.first());
        let Some(id) = id.filter(|id| *id != 0) else { return Ok(Domains::new()) };
        let object = self.set.object(rq, ObjectId(id)).await?;
        let place = self.set.place(object.id, 0, 0);
        // The bonus buffer holds the table's packed length.
        let bonus = object.dnode.bonus();
        let len = weir_format::Cursor::new(bonus, object.dnode.endian, "FUID table").u64();
        let len = len.map_err(|e| ObjectError::decode(place, e))?;
        if len > TABLE_BYTES {
            return Err(ObjectError::Corrupt { place, why: "FUID table is too long" });
        }
        let bytes = self.set.reader().read(rq, &object, 0, len as usize, len).await?;
        let table = decode_fuid_table(&bytes).map_err(|e| ObjectError::decode(place, e))?;
        Ok(table.into_iter().collect())
    }
}

fn account(accounts: &mut Accounts, key: &str, set: impl FnOnce(&mut Account)) {
    if let Ok(fuid) = u64::from_str_radix(key, 16) {
        set(accounts.entry(Fuid(fuid)).or_default());
    }
}
