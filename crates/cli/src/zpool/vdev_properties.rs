//! Settings of vdevs: `zpool set … POOL VDEV`.

use super::target;
use crate::call::Call;
use crate::command_target::CommandTarget;
use crate::failure::Failure;
use crate::options::PoolDirs;
use weir_admin::{Action, PoolChange, vdev_setting};

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
    let change = PoolChange::SetVdev { names: target::names_of(call, vdev), property: property.to_owned(), setting };
    CommandTarget::of_pool(call, places, pool)?
        .with(|target| target.attempt(Action::Pool(change))?.map_err(|refusal| cannot(refusal.why)))?;
    Ok(0)
}
