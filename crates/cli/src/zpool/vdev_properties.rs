//! Properties of vdevs: the thresholds of errors from which on a device is degraded or faulted.
//!
//! Source: OpenZFS `man/man7/vdevprops.7`.

use super::attach::opened;
use crate::call::Call;
use crate::failure::Failure;
use crate::options::PoolDirs;
use weir_engine::diagnosis::thresholds;
use weir_machine::Request;
use weir_pool::{Pool, VdevConfig};

/// Whether there is such a property.
pub fn is_known(name: &str) -> bool {
    thresholds::names().any(|known| known == name)
}

/// `zpool set PROPERTY=VALUE POOL VDEV`.
pub fn set(
    call: &Call,
    places: &PoolDirs,
    (property, value): (&str, &str),
    pool: &str,
    vdev: &str,
) -> Result<u8, Failure> {
    let cannot = |why: String| Failure::failed(format!("cannot set property for '{vdev}' in '{pool}': {why}"));
    if !is_known(property) {
        let known = thresholds::names().collect::<Vec<_>>().join(", ");
        return Err(cannot(format!("invalid property '{property}' (there are {known})")));
    }
    let number = match value {
        "none" | "-" => None,
        digits => match digits.parse::<u32>() {
            Ok(number) => Some(u64::from(number)),
            Err(_) => return Err(cannot(format!("'{property}' must be a number or 'none'"))),
        },
    };
    opened(call, places, pool)?.with(async |engine| {
        let bad = |error: &dyn std::fmt::Display| cannot(error.to_string());
        let root = VdevConfig::parse(&engine.shown().config.root).map_err(|error| bad(&error))?;
        let guid = find(&root, vdev).ok_or_else(|| cannot("no such vdev in pool".into()))?;
        engine.diagnosis_thresholds().set(guid, property, number).await.map_err(|error| bad(&error))?;
        Ok(engine.log_command(call.line(), call.caller.ids.0)?)
    })?;
    Ok(0)
}

/// The properties of a vdev: name, value, source.
pub async fn get(pool: &Pool, vdev: &str) -> Result<Vec<(&'static str, String, &'static str)>, Failure> {
    let cannot =
        |why: String| Failure::failed(format!("cannot get properties of '{vdev}' in '{}': {why}", pool.name()));
    let guid = find(&pool.tree, vdev).ok_or_else(|| cannot("no such vdev in pool".into()))?;
    let root = pool.config.list.get_list("vdev_tree").cloned().unwrap_or_default();
    let own = thresholds::own(&Request::internal("get"), &pool.mos.set, &root, guid).await;
    let own = own.map_err(|error| cannot(error.to_string()))?;
    let shown = |(name, value): (&'static str, Option<u64>)| match value {
        Some(value) => (name, value.to_string(), "local"),
        None => (name, "-".to_owned(), "default"),
    };
    Ok(own.into_iter().map(shown).collect())
}

/// The vdev with that GUID, path or name.
fn find(root: &VdevConfig, text: &str) -> Option<u64> {
    let ends_so = |path: &str| path == text || path.rsplit('/').next() == Some(text);
    let is_it = |vdev: &&VdevConfig| {
        vdev.guid.to_string() == text || vdev.name() == text || vdev.path.as_deref().is_some_and(ends_so)
    };
    root.walk().into_iter().find(is_it).map(|vdev| vdev.guid)
}
