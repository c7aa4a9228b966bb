//! Paths of files that are shown.

use crate::files::FileTotals;
use std::collections::BTreeMap;
use weir_engine::Engine;
use weir_engine::open_datasets::OpenDataset;
use weir_format::{ObjectId, ObjsetId};
use weir_machine::Request;

/// Paths that are looked up at a time.
pub const MAX_PATHS: usize = 64;
/// Directory entries that one look-up of paths reads at most: those of some large directories.
const MAX_ENTRIES: usize = 1 << 18;
/// Text that is shown in place of the path of a volume.
const VOLUME: &str = "(volume)";

/// Paths of the first [`MAX_PATHS`] of these objects, given by object set and object; `None` for others, and for those whose path
/// is not found: the dataset is not open, the file was removed, or its directory is unreadable or larger than is searched.
pub async fn paths(engine: &Engine, objects: &[(u64, u64)]) -> Vec<Option<String>> {
    let mut by_set: BTreeMap<u64, Vec<ObjectId>> = BTreeMap::new();
    objects.iter().take(MAX_PATHS).for_each(|(set, object)| by_set.entry(*set).or_default().push(ObjectId(*object)));
    let mut found = BTreeMap::new();
    for (set, wanted) in by_set {
        match engine.sets.get(ObjsetId(set)).and_then(|open| open.contents) {
            None => {}
            Some(OpenDataset::Volume(_)) => {
                found.extend(wanted.iter().map(|object| ((set, object.0), VOLUME.to_owned())));
            }
            Some(OpenDataset::Files(files)) => {
                let rq = &Request::internal("paths");
                // Of a file system that is unreadable, or whose key was unloaded, objects are shown by their numbers.
                let paths = files.directories().paths(rq, &wanted, MAX_ENTRIES).await.unwrap_or_default();
                let text = |path: Vec<u8>| String::from_utf8_lossy(&path).into_owned();
                found.extend(paths.into_iter().map(|(object, path)| ((set, object.0), text(path))));
            }
        }
    }
    objects.iter().map(|of| found.get(of).cloned()).collect()
}

/// Paths that were looked up, by pool, object set and object; none for a file whose path was not found.
#[derive(Clone, Debug, Default)]
pub struct FilePaths(BTreeMap<(String, u64, u64), Option<String>>);

impl FilePaths {
    /// Looks up the paths of the first rows of a pool that were not looked up yet.
    pub async fn learn(&mut self, engine: &Engine, pool: &str, rows: &[FileTotals]) {
        let of = |row: &FileTotals| (pool.to_owned(), row.objset, row.object);
        let first = rows.iter().take(MAX_PATHS).filter(|row| !self.0.contains_key(&of(row)));
        let wanted: Vec<(u64, u64)> = first.map(|row| (row.objset, row.object)).collect();
        if wanted.is_empty() {
            return;
        }
        for ((set, object), path) in wanted.iter().zip(paths(engine, &wanted).await) {
            self.0.insert((pool.to_owned(), *set, *object), path);
        }
    }

    /// Gives the rows of a pool the paths that are known.
    pub fn apply(&self, pool: &str, rows: &mut [FileTotals]) {
        for row in rows {
            if let Some(path) = self.0.get(&(pool.to_owned(), row.objset, row.object)) {
                row.path.clone_from(path);
            }
        }
    }
}
