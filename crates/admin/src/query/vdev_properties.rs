//! Properties of vdevs.
//!
//! Source: OpenZFS `man/man7/vdevprops.7`.

use super::pool_properties::chosen;
use super::{Row, Rows};
use crate::properties::pool_properties;
use crate::refusal::{Refusal, RefusalKind};
use serde::{Deserialize, Serialize};
use weir_machine::Request;
use weir_pool::properties::PoolProperty;
use weir_pool::vdev_properties::properties;
use weir_pool::{Pool, VdevConfig};

/// Operand that means all vdevs of a pool but the root.
const ALL: &str = "all-vdevs";

/// Which properties of which vdevs are read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdevPropertiesQuery {
    /// Vdevs by GUID, path or name; `root` for the root vdev, `all-vdevs` for all others.
    pub vdevs: Vec<String>,
    /// Full names of the properties; `None` for all.
    pub properties: Option<Vec<String>>,
}

/// A vdev with its properties.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VdevPropertiesRow {
    /// Name of the vdev.
    pub name: String,
    /// GUID of the vdev.
    pub guid: u64,
    /// Type of the vdev as in its label, for example `mirror` or `file`.
    pub kind: String,
    /// Whether it is the root vdev.
    pub is_root: bool,
    /// The properties that were asked for and that the vdev has, in the order of the query; or all that it has.
    #[serde(with = "pool_properties")]
    pub properties: Vec<PoolProperty>,
}

impl VdevPropertiesQuery {
    /// Reads the properties of the vdevs that each operand names: [`Row::VdevProperties`].
    ///
    /// # Errors
    /// With the name of the first operand that names no vdev ([`RefusalKind::Missing`]) or one whose properties cannot be read.
    pub(super) async fn run(&self, pool: &Pool, rows: &mut Rows) -> Result<(), Refusal> {
        let rq = &Request::internal("properties");
        for operand in &self.vdevs {
            let refused = |kind, why: String| Refusal::because_of(kind, why, vec![operand.clone()]);
            let guids = find_vdevs(&pool.tree, operand);
            if guids.is_empty() {
                return Err(refused(RefusalKind::Missing, "no such vdev in pool".into()));
            }
            for vdev in pool.tree.walk().into_iter().filter(|vdev| guids.contains(&vdev.guid)) {
                let all = properties(rq, pool, vdev.guid).await;
                let all = all.map_err(|error| refused(RefusalKind::Pool, error.to_string()))?;
                let row = VdevPropertiesRow {
                    name: vdev.name(),
                    guid: vdev.guid,
                    kind: vdev.kind.type_name().to_owned(),
                    is_root: vdev.guid == pool.tree.guid,
                    properties: chosen(all, self.properties.as_deref()),
                };
                rows.add(Row::VdevProperties(row)).await?;
            }
        }
        Ok(())
    }
}

/// GUIDs of the vdevs with that GUID, path or name; of all but the root for `all-vdevs`.
pub fn find_vdevs(root: &VdevConfig, text: &str) -> Vec<u64> {
    let all = root.walk().into_iter().filter(|vdev| vdev.is_leaf() || !vdev.children.is_empty());
    if text == ALL {
        return all.map(|vdev| vdev.guid).filter(|guid| *guid != root.guid).collect();
    }
    let ends_so = |path: &str| path == text || path.rsplit('/').next() == Some(text);
    let is_it = |vdev: &&VdevConfig| {
        let is_root = vdev.guid == root.guid && matches!(text, "root" | "root-0");
        is_root
            || vdev.guid.to_string() == text
            || vdev.guid != root.guid && (vdev.name() == text || vdev.path.as_deref().is_some_and(ends_so))
    };
    all.into_iter().find(is_it).map(|vdev| vdev.guid).into_iter().collect()
}
