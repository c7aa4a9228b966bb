//! The vdev that an argument of a command names.
//!
//! Source of the messages: OpenZFS `lib/libzfs/libzfs_pool.c` (`zpool_find_vdev`, `zpool_vdev_offline`, …),
//! `lib/libzfs/libzfs_util.c` (`libzfs_error_description`).

use crate::call::Call;
use std::path::{Path, PathBuf};
use weir_engine::Engine;
use weir_format::NvList;
use weir_object_store::is_url;
use weir_pool::VdevConfig;

/// A vdev of a pool.
pub enum Target {
    /// A device in the vdev tree, which an active hot spare is too.
    Leaf(VdevConfig),
    /// A vdev above devices.
    Parent(VdevConfig),
    /// An available hot spare.
    Spare(NvList),
    /// A cache device.
    Cache(NvList),
}

/// The texts by which a vdev may be called that an argument names: the argument itself, and if it has the form of a path, the
/// path as seen from the caller's folder, and that of the file there.
pub fn names_of(call: &Call, text: &str) -> Vec<String> {
    let mut names = vec![text.to_owned()];
    if text.contains('/') && !is_url(text) {
        let here: PathBuf = call.path(text).components().collect();
        names.extend(
            [Some(here.clone()), here.canonicalize().ok()].into_iter().flatten().map(|path| path.display().to_string()),
        );
    }
    names
}

/// The vdev with that GUID, path or name, or whose path ends in that name; devices of the tree come first. A relative path is
/// one below the caller's folder.
///
/// # Errors
/// `no such device in pool`.
pub fn find(call: &Call, engine: &Engine, text: &str) -> Result<Target, String> {
    let config = engine.shown().config;
    let root = VdevConfig::parse(&config.root).map_err(|error| error.to_string())?;
    let file_name = |path: &str| Path::new(path).file_name().map(|name| name.to_string_lossy().into_owned());
    let here = call.path(text);
    let real = here.canonicalize().ok();
    let is_path = |path: &str| path == text || Path::new(path) == here || Some(Path::new(path)) == real.as_deref();
    let exact = |vdev: &VdevConfig| vdev.guid.to_string() == text || vdev.path.as_deref().is_some_and(is_path);
    let by_name =
        |vdev: &VdevConfig| vdev.name() == text || vdev.path.as_deref().and_then(file_name).as_deref() == Some(text);
    // The root is not a vdev that a command can name.
    let all: Vec<&VdevConfig> = root.walk().into_iter().filter(|vdev| vdev.guid != root.guid).collect();
    if let Some(found) = all.iter().find(|vdev| exact(vdev)).or(all.iter().find(|vdev| by_name(vdev))) {
        let found = (*found).clone();
        return Ok(if found.is_leaf() { Target::Leaf(found) } else { Target::Parent(found) });
    }
    let is_called = |vdev: &&NvList| {
        let path = vdev.get_str("path").unwrap_or_default();
        vdev.get_u64("guid").is_some_and(|guid| guid.to_string() == text)
            || is_path(path)
            || file_name(path).as_deref() == Some(text)
    };
    let spare = config.aux.spares.iter().find(is_called).map(|spare| Target::Spare(spare.clone()));
    let cache = || config.aux.caches.iter().find(is_called).map(|cache| Target::Cache(cache.clone()));
    spare.or_else(cache).ok_or_else(|| "no such device in pool".to_owned())
}

/// The GUID of the device in the vdev tree, or of the cache device, that a command names.
///
/// # Errors
/// As of [`leaf`].
pub fn leaf_or_cache(call: &Call, engine: &Engine, text: &str, not_a_leaf: &str) -> Result<u64, String> {
    if let Target::Cache(cache) = find(call, engine, text)? {
        return cache.get_u64("guid").ok_or_else(|| "no such device in pool".to_owned());
    }
    Ok(leaf(call, engine, text, not_a_leaf)?.guid)
}

/// The device in the vdev tree that a command names.
///
/// # Errors
/// Why there is none: OpenZFS's messages, and `not_a_leaf` for a vdev above devices.
pub fn leaf(call: &Call, engine: &Engine, text: &str, not_a_leaf: &str) -> Result<VdevConfig, String> {
    match find(call, engine, text)? {
        Target::Leaf(leaf) => Ok(leaf),
        Target::Parent(_) => Err(not_a_leaf.to_owned()),
        Target::Spare(_) => Err("device is reserved as a hot spare".to_owned()),
        Target::Cache(_) => Err("device is in use as a cache".to_owned()),
    }
}
