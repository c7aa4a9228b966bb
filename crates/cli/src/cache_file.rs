//! The cache file: which pools this host has imported, and the paths of their devices.
//!
//! The format is that of OpenZFS's `zpool.cache`: an nvlist in XDR encoding with one pair for each pool, its name and its
//! configuration (`module/zfs/spa_config.c`, `spa_write_cachefile`). The file is replaced as a whole: a new file is written,
//! synced and renamed. Writers take turns by a lock on a second file beside it.
//!
//! A file that cannot be decoded is an error for writers, which would lose what it says, and empty for readers.

use crate::call::{Call, errln};
use crate::directories;
use crate::failure::Failure;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use weir_engine::Engine;
use weir_format::{NvList, NvValue};
use weir_pool::VdevConfig;

/// Name of the file in the state directory.
const NAME: &str = "zpool.cache";
/// Maximum size that is read, in bytes: some ten thousand pools.
const MAX_BYTES: u64 = 64 << 20;

/// A cache file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheFile(PathBuf);

/// A pool in the cache file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachedPool {
    /// Name.
    pub name: String,
    /// GUID.
    pub guid: u64,
    /// Paths of its devices, as they were when it was last open.
    pub paths: Vec<PathBuf>,
    /// GUIDs of the leaves of its vdev tree.
    pub leaves: Vec<u64>,
}

/// Where a pool is remembered: the property `cachefile`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum CachePlace {
    /// In the cache file of the state directory.
    #[default]
    Usual,
    /// Nowhere.
    None,
    /// In this file.
    File(PathBuf),
}

impl CachePlace {
    /// The place of a pool for which none is given: as in OpenZFS, none if it has an alternate root.
    pub fn usual_with(altroot: Option<&str>) -> Self {
        if altroot.is_some() { CachePlace::None } else { CachePlace::Usual }
    }

    /// Parses a value of the property.
    ///
    /// # Errors
    /// The reason why the value is invalid.
    pub fn parse(value: &str) -> Result<Self, String> {
        match value {
            "" => Ok(CachePlace::Usual),
            "none" => Ok(CachePlace::None),
            path if path.starts_with('/') && !path.ends_with('/') => Ok(CachePlace::File(path.into())),
            path => Err(format!("cachefile '{path}' is neither 'none' nor an absolute path of a file")),
        }
    }

    /// The place as the property's value.
    pub fn value(&self) -> String {
        match self {
            CachePlace::Usual => String::new(),
            CachePlace::None => "none".to_owned(),
            CachePlace::File(path) => path.display().to_string(),
        }
    }

    /// The cache file, if there is one.
    pub fn file(&self) -> Option<CacheFile> {
        match self {
            CachePlace::Usual => CacheFile::usual(),
            CachePlace::None => None,
            CachePlace::File(path) => Some(CacheFile(path.clone())),
        }
    }
}

impl CacheFile {
    /// The cache file in the state directory; `None` for a user without one.
    pub fn usual() -> Option<Self> {
        directories::in_state(NAME).map(CacheFile)
    }

    fn read(&self) -> Result<NvList, String> {
        let file = match File::open(&self.0) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(NvList::new()),
            Err(error) => return Err(error.to_string()),
        };
        let mut bytes = Vec::new();
        file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
        if bytes.len() as u64 > MAX_BYTES {
            return Err(format!("larger than {MAX_BYTES} bytes"));
        }
        NvList::decode(&bytes).map_err(|error| error.to_string())
    }

    /// The pools in the file.
    ///
    /// # Errors
    /// If the file cannot be read or decoded. A missing file has no pools.
    pub fn pools(&self) -> Result<Vec<CachedPool>, Failure> {
        let list = self.read().map_err(|why| Failure::failed(format!("cache file {}: {why}", self.0.display())))?;
        Ok(list.pairs().iter().filter_map(|pair| pool(&pair.name_lossy(), &pair.value)).collect())
    }

    /// The cache file at this path.
    pub fn at(path: PathBuf) -> Self {
        CacheFile(path)
    }

    /// Names and configurations of the pools in the file.
    ///
    /// # Errors
    /// If the file cannot be read or decoded.
    pub fn configurations(&self) -> Result<Vec<(String, NvList)>, Failure> {
        let list = self.read().map_err(|why| Failure::failed(format!("cache file {}: {why}", self.0.display())))?;
        let lists =
            list.pairs().iter().filter_map(|pair| Some((pair.name_lossy().to_string(), pair.value.as_list()?.clone())));
        Ok(lists.collect())
    }

    /// Paths of the devices of all pools; none if the file cannot be read.
    pub fn device_paths(&self) -> Vec<PathBuf> {
        self.pools().unwrap_or_default().into_iter().flat_map(|pool| pool.paths).collect()
    }

    /// Records a pool that is open.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn put(&self, engine: &Engine) -> Result<(), Failure> {
        self.put_instead(None, engine)
    }

    /// Records a pool that is open and had another GUID, if one is given. At no time the file has neither.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn put_instead(&self, former: Option<u64>, engine: &Engine) -> Result<(), Failure> {
        let shown = engine.shown();
        let mut config = shown.config.mos_list(shown.uberblock.txg);
        config.set("vdev_tree", vdev_tree(engine));
        self.update(|list| {
            former.into_iter().chain([shown.config.guid]).for_each(|guid| remove(list, guid));
            list.set(&shown.config.name, config);
        })
    }

    /// Records an open pool again if the file has it with other vdevs: devices were added or replaced.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn renew(&self, engine: &Engine) -> Result<(), Failure> {
        let guid = engine.shown().config.guid;
        // A file that cannot be read has no pool to renew; the search for pools reports it.
        let list = self.read().unwrap_or_default();
        let mut known = list.pairs().iter().filter_map(|pair| pair.value.as_list());
        let known = known.find(|config| config.get_u64("pool_guid") == Some(guid));
        match known.and_then(|config| config.get_list("vdev_tree")) {
            Some(tree) if *tree != vdev_tree(engine) => self.put(engine),
            _ => Ok(()),
        }
    }

    /// Removes a pool.
    ///
    /// # Errors
    /// If the file cannot be read or written.
    pub fn remove(&self, guid: u64) -> Result<(), Failure> {
        if !self.0.exists() {
            return Ok(());
        }
        self.update(|list| remove(list, guid))
    }

    fn update(&self, change: impl FnOnce(&mut NvList)) -> Result<(), Failure> {
        let failed = |why: String| Failure::failed(format!("cannot update the cache file {}: {why}", self.0.display()));
        let folder = self.0.parent().unwrap_or(Path::new("/"));
        directories::create(folder)?;
        let by = |name: &str| {
            let mut path = self.0.clone().into_os_string();
            path.push(name);
            PathBuf::from(path)
        };
        let io = |error: std::io::Error| failed(error.to_string());
        let turn =
            File::options().create(true).truncate(false).write(true).mode(0o600).open(by(".lock")).map_err(io)?;
        turn.lock().map_err(io)?;
        let mut list = self.read().map_err(failed)?;
        let before = list.encode_xdr();
        change(&mut list);
        let after = list.encode_xdr();
        if before == after {
            return Ok(());
        }
        let new = by(".new");
        let write = || {
            // Not writable for others, whatever the umask: the daemon imports what is in it.
            let mut file = File::options().create(true).truncate(true).write(true).mode(0o644).open(&new)?;
            file.write_all(&after)?;
            file.sync_all()?;
            std::fs::rename(&new, &self.0)?;
            File::open(folder)?.sync_all()
        };
        write().map_err(io)
    }
}

/// Records a pool that a command has created or imported while no daemon runs. Without a place in the environment
/// (`WEIR_POOL_DIRS`), the next command finds the pool by the cache file.
pub fn remember(call: &Call, place: &CachePlace, engine: &Engine) {
    let is_usual = *place == CachePlace::Usual;
    let Some(file) = place.file().filter(|_| !is_usual || call.caller.dirs.is_none()) else { return };
    if let Err(failure) = file.put(engine) {
        errln!(call, "{failure}\nname the pool's place with -d");
    }
}

/// Removes a pool, given by name or GUID, that a command has exported or destroyed while no daemon runs.
pub fn forget(call: &Call, pool: &str) {
    let Some(file) = CacheFile::usual().filter(|_| call.caller.dirs.is_none()) else { return };
    let is_it = |cached: &CachedPool| cached.name == pool || cached.guid.to_string() == pool;
    let guids: Vec<u64> = file.pools().unwrap_or_default().iter().filter(|c| is_it(c)).map(|c| c.guid).collect();
    for failure in guids.into_iter().filter_map(|guid| file.remove(guid).err()) {
        errln!(call, "{failure}");
    }
}

/// Records the vdevs of a pool again that is in the usual cache file, after a command without a daemon.
///
/// # Errors
/// If the file cannot be written.
pub fn renew(engine: &Engine) -> Result<(), Failure> {
    CacheFile::usual().map_or(Ok(()), |file| file.renew(engine))
}

/// The vdevs of an open pool, with its hot spares and cache devices.
fn vdev_tree(engine: &Engine) -> NvList {
    let shown = engine.shown();
    let mut root = shown.config.root.clone();
    for (name, aux) in [("spares", &shown.config.aux.spares), ("l2cache", &shown.config.aux.caches)] {
        if !aux.is_empty() {
            root.set(name, aux.clone());
        }
    }
    root
}

fn remove(list: &mut NvList, guid: u64) {
    let is_it = |value: &NvValue| value.as_list().and_then(|config| config.get_u64("pool_guid")) == Some(guid);
    let names: Vec<String> =
        list.pairs().iter().filter(|pair| is_it(&pair.value)).map(|pair| pair.name_lossy().into_owned()).collect();
    names.iter().for_each(|name| drop(list.remove(name)));
}

/// A pair of the file as a pool; `None` if it is none.
fn pool(name: &str, value: &NvValue) -> Option<CachedPool> {
    let config = value.as_list()?;
    let guid = config.get_u64("pool_guid")?;
    let root = config.get_list("vdev_tree")?;
    let tree = VdevConfig::parse(root).ok()?;
    let mut paths: Vec<PathBuf> =
        tree.leaves().iter().filter_map(|leaf| leaf.path.as_ref().map(PathBuf::from)).collect();
    for aux in ["spares", "l2cache"] {
        let list = root.get_list_array(aux).unwrap_or_default();
        paths.extend(list.iter().filter_map(|vdev| vdev.get_str("path").map(PathBuf::from)));
    }
    let leaves = tree.leaves().iter().map(|leaf| leaf.guid).collect();
    Some(CachedPool { name: name.to_owned(), guid, paths, leaves })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(guid: u64, paths: &[&str]) -> NvList {
        let leaf = |(id, path): (usize, &&str)| {
            let mut leaf = NvList::new();
            leaf.set("type", "file");
            leaf.set("id", id as u64);
            leaf.set("guid", guid + 1 + id as u64);
            leaf.set("path", *path);
            leaf
        };
        let mut root = NvList::new();
        root.set("type", "root");
        root.set("id", 0u64);
        root.set("guid", guid);
        root.set("children", paths.iter().enumerate().map(leaf).collect::<Vec<_>>());
        let mut config = NvList::new();
        config.set("pool_guid", guid);
        config.set("vdev_tree", root);
        config
    }

    #[test]
    fn pools_are_remembered_by_guid_and_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = CacheFile(dir.path().join("below/zpool.cache"));
        assert_eq!(file.pools().unwrap(), []);
        file.remove(7).unwrap();
        assert!(!file.0.exists());
        let put = |guid, name: &str, paths: &[&str]| {
            file.update(|list| {
                remove(list, guid);
                list.set(name, config(guid, paths));
            })
        };
        put(70, "tank", &["/a", "/b"]).unwrap();
        put(80, "backup", &["/c"]).unwrap();
        // Renamed, and on another device.
        put(70, "pond", &["/d"]).unwrap();
        let of = |name: &str, guid, path: &str| CachedPool {
            name: name.into(),
            guid,
            paths: vec![path.into()],
            leaves: vec![guid + 1],
        };
        assert_eq!(file.pools().unwrap(), [of("backup", 80, "/c"), of("pond", 70, "/d")]);
        file.remove(80).unwrap();
        assert_eq!(file.device_paths(), [PathBuf::from("/d")]);
    }

    #[test]
    fn a_damaged_file_is_empty_for_readers_and_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let file = CacheFile(dir.path().join("zpool.cache"));
        std::fs::write(&file.0, b"\x01\x01\0\0damaged").unwrap();
        assert!(file.device_paths().is_empty());
        assert!(file.pools().unwrap_err().line.contains("zpool.cache"));
        assert!(file.update(|list| remove(list, 1)).is_err());
        assert_eq!(std::fs::read(&file.0).unwrap(), b"\x01\x01\0\0damaged");
    }

    #[test]
    fn the_property_names_a_file_or_none() {
        assert_eq!(CachePlace::parse("none"), Ok(CachePlace::None));
        assert!(["none", "", "/a/b"].iter().all(|text| CachePlace::parse(text).unwrap().value() == *text));
        assert_eq!(CachePlace::parse(""), Ok(CachePlace::Usual));
        assert_eq!(CachePlace::parse("/a/b"), Ok(CachePlace::File("/a/b".into())));
        assert!(CachePlace::parse("b").is_err() && CachePlace::parse("/a/").is_err());
    }
}
