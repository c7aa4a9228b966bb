//! Space and objects of each user, group or project of a file system, with the limits that apply to them.

use super::{Row, Rows};
use crate::properties::JsonPrincipal;
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use weir_dsl::QuotaPrincipal;
use weir_machine::Request;
use weir_pool::{Pool, PoolError};

/// Which accounts of which file system are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserspaceQuery {
    /// Full name of the file system or snapshot.
    pub dataset: String,
    /// Users, groups or projects.
    #[serde(with = "JsonPrincipal")]
    pub principal: QuotaPrincipal,
}

/// Use and limits of a user, group or project. A limit of 0 is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UserspaceRow {
    /// FUID: the number, and in the upper 32 bits the index of its domain, which is 0 except for identities of SMB.
    pub fuid: u64,
    /// Space in bytes.
    pub used_bytes: u64,
    /// Limit of the space in bytes: its own, or else the default limit of the file system.
    pub quota_bytes: u64,
    /// Number of objects; `None` in a file system that does not count them.
    pub used_objects: Option<u64>,
    /// Limit of the objects, as of the space.
    pub quota_objects: u64,
}

impl UserspaceQuery {
    /// Reads the accounts in the order of their FUIDs: [`Row::Userspace`].
    ///
    /// # Errors
    /// If the file system does not exist, cannot be opened, or its accounts cannot be read.
    pub(super) async fn run(&self, pool: &Pool, rows: &mut Rows) -> Result<(), Refusal> {
        for row in self.accounts(pool).await.map_err(refused)? {
            rows.add(Row::Userspace(row)).await?;
        }
        Ok(())
    }

    async fn accounts(&self, pool: &Pool) -> Result<Vec<UserspaceRow>, PoolError> {
        let rq = &Request::internal("userspace");
        let files = pool.file_system(rq, &self.dataset).await?;
        let accounting = files.objects().accounting();
        let counts_objects = accounting.counts_objects();
        let accounts = accounting.bound_accounts(rq, self.principal).await?;
        let row = |(fuid, account): (weir_format::znode::Fuid, weir_dsl::Account)| UserspaceRow {
            fuid: fuid.0,
            used_bytes: account.used_bytes,
            quota_bytes: account.quota_bytes,
            used_objects: counts_objects.then_some(account.used_objects),
            quota_objects: account.quota_objects,
        };
        Ok(accounts.into_iter().map(row).collect())
    }
}

/// The refusal for an error, whose text names the dataset or the device.
fn refused(error: PoolError) -> Refusal {
    let why = error.to_string();
    Refusal { why, ..Refusal::from(error) }
}
