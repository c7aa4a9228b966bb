//! Delegated permissions of a dataset and of those above it.

use super::{Row, Rows, unreadable};
use crate::refusal::{Refusal, RefusalKind};
use serde::{Deserialize, Serialize};
use weir_machine::Request;
use weir_pool::{Pool, PoolError};

/// Whose permissions are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermissionsQuery {
    /// Full name of a file system or volume, or of a snapshot of one.
    pub dataset: String,
}

/// The permissions that are delegated on a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PermissionsRow {
    /// Full name of the dataset.
    pub dataset: String,
    /// Keys as they are stored (`ul$1000` and so on; OpenZFS `include/sys/dsl_deleg.h`), each with its permissions.
    pub granted: Vec<(String, Vec<String>)>,
}

impl PermissionsQuery {
    /// Reads the permissions of the dataset and of those above it, in this order. Datasets without any have no row.
    ///
    /// # Errors
    /// [`RefusalKind::Missing`] if the dataset does not exist.
    pub(super) async fn run(&self, pool: &Pool, rows: &mut Rows) -> Result<(), Refusal> {
        let rq = &Request::internal("permissions");
        let mut name = self.dataset.split('@').next().unwrap_or_default();
        if pool.dsl.dir_named(name).is_none() {
            return Err(Refusal::because_of(
                RefusalKind::Missing,
                "dataset does not exist",
                vec![self.dataset.clone()],
            ));
        }
        while let Some(dir) = pool.dsl.dir_named(name) {
            let granted = pool.dsl.permissions(rq, dir).await.map_err(|error| unreadable(PoolError::from(error)))?;
            if !granted.is_empty() {
                rows.add(Row::Permissions(PermissionsRow { dataset: name.to_owned(), granted })).await?;
            }
            let Some((above, _)) = name.rsplit_once('/') else { break };
            name = above;
        }
        Ok(())
    }
}
