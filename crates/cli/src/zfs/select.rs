//! Which datasets a command shows: names, depth, types; and how their properties look.

use super::identity;
use super::target::pool_of;
use crate::args::CommandLine;
use crate::call::{Call, errln};
use crate::failure::{FAILED, Failure};
use crate::options::{JsonOptions, Places};
use crate::reading::{PoolReader, refused};
use crate::times;
use clap::Args;
use serde_json::{Map, Value as Json, json};
use std::cmp::Ordering;
use std::ffi::OsString;
use std::path::Path;
use weir_admin::{AccountProperty, DatasetRow, DatasetsQuery, PoolQuery, Row};
use weir_daemon::fuse::DATASET_XATTR;
use weir_dsl::props::{DatasetKind, Property, Shape, Value, native_named};

/// Datasets to show: where to look for pools, which types, and to which depth.
pub struct Selection<'a> {
    call: &'a Call,
    reader: PoolReader<'a>,
    names: Vec<String>,
    /// Query about each pool, without names.
    query: DatasetsQuery,
}

/// Types that are selected if the command line names none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UsualTypes {
    /// File systems and volumes, and snapshots of pools with `listsnapshots=on` (`zfs list`).
    Datasets,
    /// All, bookmarks too (`zfs get`).
    All,
}

/// Maximum length of the name of a dataset or snapshot, in bytes (`ZFS_MAX_DATASET_NAME_LEN`).
const MAX_NAME_BYTES: usize = 256;
const ALL_KINDS: [DatasetKind; 4] =
    [DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot, DatasetKind::Bookmark];

/// Options that select datasets.
#[derive(Args, Debug)]
pub struct SelectionOptions {
    /// Select also all datasets below
    #[arg(short)]
    recursive: bool,
    /// Select also the datasets below up to this depth. A value that is no number is a place to look for pools, like
    /// --dir
    #[arg(short = 'd', value_name = "DEPTH")]
    depth_or_dir: Vec<OsString>,
    /// Types: filesystem, volume, snapshot, bookmark, all
    #[arg(short, value_name = "TYPE,…")]
    types: Option<String>,
    /// Directory under which mount points are shown
    #[arg(long = "altroot", value_name = "ROOT")]
    altroot: Option<String>,
    #[command(flatten)]
    pub json: JsonOptions,
    #[command(flatten)]
    places: Places,
}

/// Depth and places to look for pools: `-d` gives a depth if its value is a number, otherwise a place, which must exist.
fn depth_and_dirs<C: CommandLine>(
    call: &Call,
    args: &SelectionOptions,
) -> Result<(Option<usize>, Vec<OsString>), Failure> {
    let mut depth = None;
    let mut dirs = args.places.dirs.clone();
    for value in &args.depth_or_dir {
        match value.to_str().and_then(|v| v.parse::<i64>().ok()) {
            Some(n) => depth = Some(usize::try_from(n).map_err(|_| C::misused("Depth can not be negative."))?),
            None if call.path(Path::new(value)).exists() => dirs.push(value.clone()),
            None => return Err(C::misused(&format!("{} is not an integer", value.to_string_lossy()))),
        }
    }
    Ok((depth, dirs))
}

/// Datasets that were found.
#[derive(Default)]
pub struct FoundDatasets {
    /// The datasets, pool by pool.
    pub datasets: Vec<DatasetRow>,
    /// Datasets whose properties cannot be read: names and reasons.
    pub unread: Vec<(String, String)>,
    /// Exit code: 1 if a pool could not be read, or a dataset that was named does not exist.
    pub code: u8,
}

impl<'a> Selection<'a> {
    /// Selection by the options of the command `C` and the names given to it; `usual` tells the types if the command line
    /// names none.
    pub fn new<C: CommandLine>(
        call: &'a Call,
        args: &SelectionOptions,
        names: &[String],
        usual: UsualTypes,
    ) -> Result<Self, Failure> {
        args.json.numbers::<C>()?;
        let (depth, dirs) = depth_and_dirs::<C>(call, args)?;
        let snapshots_named = names.iter().any(|n| n.contains('@'));
        let mut kinds = match args.types {
            None if usual == UsualTypes::All => ALL_KINDS.to_vec(),
            None if snapshots_named => {
                vec![DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot]
            }
            None => vec![DatasetKind::Filesystem, DatasetKind::Volume],
            Some(_) => Vec::new(),
        };
        for word in args.types.as_deref().unwrap_or_default().split(',').filter(|w| !w.is_empty()) {
            kinds.extend(match word {
                "filesystem" | "fs" => vec![DatasetKind::Filesystem],
                "volume" | "vol" => vec![DatasetKind::Volume],
                "snapshot" | "snap" => vec![DatasetKind::Snapshot],
                "bookmark" => vec![DatasetKind::Bookmark],
                "all" => ALL_KINDS.to_vec(),
                other => return Err(C::misused(&format!("invalid type '{other}'"))),
            });
        }
        let depth = match depth {
            Some(n) => Some(n),
            None if args.recursive || names.is_empty() => None,
            // The depth of a snapshot is one more than that of its dataset.
            None if kinds.iter().all(|k| matches!(k, DatasetKind::Snapshot | DatasetKind::Bookmark)) => Some(1),
            None => Some(0),
        };
        let query = DatasetsQuery {
            names: Vec::new(),
            kinds,
            depth,
            follows_pool: usual == UsualTypes::Datasets && args.types.is_none(),
            altroot: args.altroot.clone().unwrap_or_default(),
            properties: None,
            sort_keys: Vec::new(),
        };
        let reader = PoolReader::with_keys(call, &dirs, &args.places.keys)?;
        Ok(Selection { call, reader, names: names.to_vec(), query })
    }

    /// Reads the datasets with these properties, all if `None`, and with those to sort by. Prints a line on standard error for
    /// each name that does not exist, and for each pool that cannot be read, and goes on with the others.
    pub fn read(&self, properties: Option<&[String]>, sort_keys: &[String]) -> Result<FoundDatasets, Failure> {
        let numeric = |names: &[String]| names.iter().map(|name| identity::numeric(name)).collect();
        let query =
            DatasetsQuery { properties: properties.map(numeric), sort_keys: numeric(sort_keys), ..self.query.clone() };
        let mut by_pool: Vec<(String, Vec<String>)> = Vec::new();
        if self.names.is_empty() {
            by_pool = self.reader.names()?.into_iter().map(|name| (name, Vec::new())).collect();
        }
        let mut out = FoundDatasets::default();
        let mut named = Vec::new();
        for name in &self.names {
            match self.by_path(name) {
                Ok(dataset) => named.push(dataset.unwrap_or_else(|| name.clone())),
                Err(failure) => {
                    errln!(self.call, "{failure}");
                    out.code = FAILED;
                }
            }
        }
        for name in &named {
            let pool = pool_of(name);
            match by_pool.iter_mut().find(|(known, _)| known == pool) {
                Some((_, names)) => names.push(name.clone()),
                None => by_pool.push((pool.to_owned(), vec![name.clone()])),
            }
        }
        for (pool, names) in by_pool {
            let is_named = !names.is_empty();
            match self.of_pool(&pool, DatasetsQuery { names, ..query.clone() }) {
                Ok(found) => {
                    out.datasets.extend(found.datasets);
                    out.unread.extend(found.unread);
                    out.code = out.code.max(found.code);
                }
                Err(failure) if failure.is_busy() => return Err(failure),
                Err(failure) => {
                    match is_named {
                        true => errln!(self.call, "{failure}"),
                        false => errln!(self.call, "cannot open '{pool}': {failure}"),
                    }
                    out.code = FAILED;
                }
            }
        }
        // As `zfs_compare` sorts, in whose tree a dataset that is named twice is once.
        out.datasets.sort_by(compare);
        out.datasets.dedup_by(|a, b| a.name == b.name);
        Ok(out)
    }

    /// The file system that a path belongs to, as its mount says, if the word is one: it begins with `/` or `./` (`zfs_path_to_zhandle`).
    fn by_path(&self, word: &str) -> Result<Option<String>, Failure> {
        if !["/", "./", "../"].iter().any(|front| word.starts_with(front)) {
            return Ok(None);
        }
        let failed = |why: &str| Failure::failed(format!("cannot open '{word}': {why}"));
        if !self.call.path(word).exists() {
            return Err(failed("No such file or directory"));
        }
        let mut name = vec![0; MAX_NAME_BYTES];
        let read = rustix::fs::getxattr(self.call.path(word), DATASET_XATTR, &mut name);
        let length = read.map_err(|_| failed("not a ZFS filesystem"))?;
        name.truncate(length);
        let name = String::from_utf8_lossy(&name).into_owned();
        Ok(Some(name.split('@').next().unwrap_or_default().to_owned()))
    }

    fn of_pool(&self, pool: &str, query: DatasetsQuery) -> Result<FoundDatasets, Failure> {
        let names = query.names.clone();
        let call = self.call;
        let mut out = FoundDatasets::default();
        let mut take = |row| match row {
            Row::Dataset(dataset) => out.datasets.push(dataset),
            Row::Unread { name, why } => out.unread.push((name, why)),
            Row::Warning { name, why } => errln!(call, "{name}: {why}"),
            Row::Unopened { name, why } => {
                errln!(call, "cannot open '{name}': {why}");
                // One below a dataset that was named, or that no name selects, is only left out, as in OpenZFS.
                out.code = if names.contains(&name) { FAILED } else { out.code };
            }
            Row::Missing { name, why } => {
                errln!(call, "cannot open '{name}': {why}");
                out.code = FAILED;
            }
            // Rows of other queries do not occur.
            _ => {}
        };
        match (self.reader.read(pool, PoolQuery::Datasets(query), &mut take), names.first()) {
            (Ok(answer), _) => answer.map_err(refused)?,
            (Err(failure), Some(name)) if !failure.is_busy() && !self.reader.names()?.iter().any(|n| n == pool) => {
                return Err(Failure::failed(format!("cannot open '{name}': dataset does not exist")));
            }
            (Err(failure), _) => return Err(failure),
        }
        Ok(out)
    }
}

/// Order of datasets by name, where the snapshots of a dataset follow it in the order of their creation.
fn compare(a: &DatasetRow, b: &DatasetRow) -> Ordering {
    let (of_a, snapshot_a) = a.name.split_once('@').map_or((a.name.as_str(), None), |(of, name)| (of, Some(name)));
    let (of_b, snapshot_b) = b.name.split_once('@').map_or((b.name.as_str(), None), |(of, name)| (of, Some(name)));
    let created = |row: &DatasetRow, snapshot: Option<&str>| snapshot.map(|_| row.created_txg);
    of_a.cmp(of_b)
        .then_with(|| created(a, snapshot_a).cmp(&created(b, snapshot_b)))
        .then_with(|| snapshot_a.cmp(&snapshot_b))
}

/// Whether the values of a property are times.
fn is_time(name: &str) -> bool {
    native_named(name).is_some_and(|native| matches!(native.shape, Shape::Time))
}

/// A property as text; `-` for one that the dataset does not have.
pub fn shown(property: Option<&Property>, exact: bool) -> String {
    let text = |p: &Property| match (AccountProperty::parse(&p.name), &p.value) {
        (Some(of), Value::Number(n)) => identity::text(*n, of.what, of.is_quota, exact),
        // `Property::text` prints times in UTC: the engine does not know the time zone.
        (None, Value::Number(n)) if !exact && is_time(&p.name) => times::property(*n),
        _ => p.text(exact),
    };
    property.map_or_else(|| "-".to_owned(), text)
}

/// A dataset's frame in the JSON answer, without its properties.
pub fn json_frame(of: &DatasetRow, numbers: crate::json::Numbers) -> Map<String, Json> {
    let name = of.name.as_str();
    let (head, snapshot) = name.split_once('@').map_or((name, None), |(h, s)| (h, Some(s)));
    let mut out = Map::new();
    out.insert("name".into(), json!(name));
    out.insert("type".into(), json!(of.kind.name().to_uppercase()));
    out.insert("pool".into(), json!(pool_of(name)));
    out.insert("createtxg".into(), crate::json::number(of.created_txg, numbers));
    if let Some(snapshot) = snapshot {
        out.insert("dataset".into(), json!(head));
        out.insert("snapshot_name".into(), json!(snapshot));
    }
    out
}
