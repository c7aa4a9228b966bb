//! Settings of vdevs: `zpool set … POOL VDEV`.

use super::attach::opened;
use super::target;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use weir_admin::{find_vdevs, vdev_setting};
use weir_pool::VdevConfig;

/// `zpool set PROPERTY=VALUE POOL VDEV`.
pub fn set(
    call: &Call,
    places: &PoolDirs,
    (property, value): (&str, &str),
    pool: &str,
    vdev: &str,
) -> Result<u8, Failure> {
    let cannot = |why: String| Failure::failed(format!("cannot set property for '{vdev}' in '{pool}': {why}"));
    let setting = vdev_setting(property, value).map_err(cannot)?;
    opened(call, places, pool)?.with(async |engine| {
        let bad = |error: &dyn std::fmt::Display| cannot(error.to_string());
        let root = VdevConfig::parse(&engine.shown().config.root).map_err(|error| bad(&error))?;
        let found =
            target::names_of(call, vdev).iter().map(|name| find_vdevs(&root, name)).find(|found| !found.is_empty());
        let [guid] = found.unwrap_or_default()[..] else { return Err(cannot("no such vdev in pool".into())) };
        engine.vdev_properties().set(guid, property.to_owned(), setting).await.map_err(|error| bad(&error))?;
        Ok(engine.log_command(call.line(), call.caller.ids.0)?)
    })?;
    Ok(0)
}
