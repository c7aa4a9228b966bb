//! Which datasets a command is about: names, depth, types; and their properties.

use super::identity;
use crate::args::CommandLine;
use crate::call::{Call, errln};
use crate::failure::{FAILED, Failure};
use crate::options::{JsonOptions, Places};
use crate::pools::{self, PoolHandle};
use clap::Args;
use serde_json::{Map, Value as Json, json};
use std::ffi::OsString;
use std::path::PathBuf;
use weir_dsl::props::{DatasetKind, Property, Source, Value, native_named};
use weir_dsl::{Dataset, Dir, MountedFileSystems, NamedBookmark, PoolFacts};
use weir_format::dsl::Bookmark;
use weir_machine::Request;
use weir_pool::{OpenOptions, Pool, PoolError};

/// Datasets to show: where to look for pools, which types, and to which depth.
pub struct Selection {
    search: Vec<PathBuf>,
    keys: Vec<(String, Vec<u8>)>,
    kinds: Vec<DatasetKind>,
    depth: usize,
    names: Vec<String>,
    altroot: String,
    mounted: MountedFileSystems,
    /// Whether pools with `listsnapshots=on` also show snapshots.
    follows_pools: bool,
}

/// A dataset that was selected.
pub struct Selected {
    /// The dataset.
    pub dataset: Dataset,
    /// Kind of the dataset.
    pub kind: DatasetKind,
    /// Of a bookmark: its record; the dataset is then its head.
    pub bookmark: Option<NamedBookmark>,
}

impl Selected {
    /// A file system, volume or snapshot.
    fn dataset(dataset: Dataset, kind: DatasetKind) -> Self {
        Selected { dataset, kind, bookmark: None }
    }

    /// Full name of the dataset.
    pub fn name(&self) -> &str {
        self.bookmark.as_ref().map_or(&self.dataset.name, |b| &b.name)
    }
}

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
    #[arg(short = 'R', value_name = "ROOT")]
    altroot: Option<String>,
    #[command(flatten)]
    pub json: JsonOptions,
    #[command(flatten)]
    places: Places,
}

/// Depth and places to look for pools: `-d` gives a depth if its value is a number, otherwise a place.
fn depth_and_dirs(args: &SelectionOptions) -> (Option<usize>, Vec<OsString>) {
    let mut depth = None;
    let mut dirs = args.places.dirs.clone();
    for value in &args.depth_or_dir {
        match value.to_str().and_then(|v| v.parse().ok()) {
            Some(n) => depth = Some(n),
            None => dirs.push(value.clone()),
        }
    }
    (depth, dirs)
}

/// Datasets selected in a pool, and the exit code: 1 if one that was named does not exist.
struct InPool {
    found: Vec<Selected>,
    code: u8,
}

/// The bookmark of that name.
async fn bookmark_named(rq: &Request, pool: &Pool, name: &str) -> Result<Option<Selected>, PoolError> {
    let of = name.split('#').next().unwrap_or(name);
    let Some(dir) = pool.dsl.dir_named(of) else { return Ok(None) };
    let dataset = pool.dsl.head(rq, dir).await?;
    let all = weir_dsl::bookmarks::bookmarks(&pool.dsl, rq, &dataset).await?;
    let found = all.into_iter().find(|bookmark| bookmark.name == name);
    Ok(found.map(|found| Selected { dataset, kind: DatasetKind::Bookmark, bookmark: Some(found) }))
}

/// Pools opened for a selection.
pub struct OpenedSelection {
    /// The pools, each with the datasets selected in it.
    pub pools: Vec<(PoolHandle, Vec<Selected>)>,
    /// Exit code: 1 if a pool could not be read.
    pub code: u8,
}

impl Selection {
    /// Selection by the options of the command `C` and the names given to it.
    pub fn new<C: CommandLine>(call: &Call, args: &SelectionOptions, names: &[String]) -> Result<Self, Failure> {
        args.json.numbers::<C>()?;
        let (depth, dirs) = depth_and_dirs(args);
        let snapshots_named = names.iter().any(|n| n.contains('@'));
        let mut kinds = match args.types {
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
                "all" => {
                    vec![DatasetKind::Filesystem, DatasetKind::Volume, DatasetKind::Snapshot, DatasetKind::Bookmark]
                }
                other => return Err(C::misused(&format!("invalid type '{other}'"))),
            });
        }
        let depth = match depth {
            Some(n) => n,
            None if args.recursive || names.is_empty() => usize::MAX,
            // The depth of a snapshot is one more than that of its dataset.
            None if kinds.iter().all(|k| matches!(k, DatasetKind::Snapshot | DatasetKind::Bookmark)) => 1,
            None => 0,
        };
        let search = pools::search(call, &dirs)?;
        let keys = pools::keys_of(call, &search, &args.places.keys)?;
        let altroot = args.altroot.clone().unwrap_or_default();
        let of_pools = call.served_pools().into_iter().map(|served_pool| served_pool.mounts.mounted());
        let mounted = of_pools.fold(MountedFileSystems::default(), MountedFileSystems::and);
        let names = names.to_vec();
        Ok(Selection { search, keys, kinds, depth, names, altroot, mounted, follows_pools: false })
    }

    /// Shows also the snapshots of pools with `listsnapshots=on`, if the command line names no types (`zfs list`).
    pub fn following_pools(mut self, args: &SelectionOptions) -> Self {
        self.follows_pools = args.types.is_none();
        self
    }

    /// Whether the snapshots of a pool are shown.
    async fn shows_snapshots(&self, rq: &Request, pool: &Pool) -> Result<bool, PoolError> {
        if self.kinds.contains(&DatasetKind::Snapshot) {
            return Ok(true);
        }
        Ok(self.follows_pools && weir_pool::properties::stored_word(rq, pool, "listsnapshots").await? == Some(1))
    }

    /// Facts about the pool and the command line that a dataset's properties need.
    pub fn facts(&self, pool: &Pool) -> PoolFacts {
        PoolFacts { altroot: self.altroot.clone(), mounted: self.mounted.clone(), ..pool.facts() }
    }

    /// Opens the pools and returns each with the datasets selected in it. Without names, prints one line on standard
    /// error for each pool that cannot be read, and goes on with the others.
    pub fn open(&self, call: &Call) -> Result<OpenedSelection, Failure> {
        let mut by_pool: Vec<(String, Vec<&str>)> = Vec::new();
        if self.names.is_empty() {
            by_pool = pools::names(call, &self.search)?.into_iter().map(|n| (n, Vec::new())).collect();
        }
        for name in &self.names {
            let pool = name.split(['/', '@', '#']).next().unwrap_or(name);
            match by_pool.iter_mut().find(|(p, _)| p == pool) {
                Some((_, names)) => names.push(name),
                None => by_pool.push((pool.to_owned(), vec![name])),
            }
        }
        let mut out = OpenedSelection { pools: Vec::new(), code: 0 };
        for (pool, names) in by_pool {
            match self.open_one(call, &pool, &names) {
                Ok((opened, selected)) => {
                    out.code = out.code.max(selected.code);
                    out.pools.push((opened, selected.found));
                }
                Err(failure) if !failure.is_busy() => {
                    match names.is_empty() {
                        true => errln!(call, "cannot open '{pool}': {failure}"),
                        false => errln!(call, "{failure}"),
                    }
                    out.code = FAILED;
                }
                Err(failure) => return Err(failure),
            }
        }
        Ok(out)
    }

    fn open_one(&self, call: &Call, pool: &str, names: &[&str]) -> Result<(PoolHandle, InPool), Failure> {
        let mut options = OpenOptions::new(self.search.clone(), pool);
        options.keys = self.keys.iter().filter(|(d, _)| d.split('/').next() == Some(pool)).cloned().collect();
        let opened = match pools::open(call, &options) {
            Err(ref failure) if !names.is_empty() && !failure.is_busy() && self.is_absent(call, pool)? => {
                let name = names.first().copied().unwrap_or_default();
                return Err(Failure::failed(format!("cannot open '{name}': dataset does not exist")));
            }
            other => other?,
        };
        let selected = call.machine()?.block_on(self.select(call, &opened, names))?;
        Ok((opened, selected))
    }

    fn is_absent(&self, call: &Call, pool: &str) -> Result<bool, Failure> {
        Ok(!pools::names(call, &self.search)?.iter().any(|n| n == pool))
    }

    async fn select(&self, call: &Call, pool: &Pool, names: &[&str]) -> Result<InPool, Failure> {
        let rq = &Request::internal("list");
        let mut out = Vec::new();
        let mut code = 0;
        if names.is_empty() {
            let root = pool.name().to_owned();
            self.below(call, pool, &root, &mut out).await?;
        }
        for name in names {
            if name.contains('#') {
                match bookmark_named(rq, pool, name).await? {
                    Some(found) => out.push(found),
                    None => {
                        errln!(call, "cannot open '{name}': bookmark does not exist");
                        code = FAILED;
                    }
                }
                continue;
            }
            match pool.dataset(rq, name).await {
                Ok(dataset) if dataset.is_snapshot() => out.push(Selected::dataset(dataset, DatasetKind::Snapshot)),
                Ok(_) => self.below(call, pool, name, &mut out).await?,
                // The others are shown.
                Err(_) => {
                    errln!(call, "cannot open '{name}': dataset does not exist");
                    code = FAILED;
                }
            }
        }
        Ok(InPool { found: out, code })
    }

    async fn below(&self, call: &Call, pool: &Pool, top: &str, out: &mut Vec<Selected>) -> Result<(), Failure> {
        let slashes = |name: &str| name.matches('/').count();
        let shows_snapshots = self.shows_snapshots(&Request::internal("list"), pool).await?;
        for dir in pool.dsl.visible_dirs() {
            let inside = dir.name == top || dir.name.strip_prefix(top).is_some_and(|rest| rest.starts_with('/'));
            let depth = slashes(&dir.name).saturating_sub(slashes(top));
            if !inside || depth > self.depth {
                continue;
            }
            self.of_dir(call, pool, dir, (depth, shows_snapshots), out).await.map_err(PoolError::from)?;
        }
        for (name, error) in pool.dsl.damaged() {
            errln!(call, "{name}: {error}");
        }
        Ok(())
    }

    async fn of_dir(
        &self,
        call: &Call,
        pool: &Pool,
        dir: &Dir,
        (depth, shows_snapshots): (usize, bool),
        out: &mut Vec<Selected>,
    ) -> Result<(), weir_dmu::ObjectError> {
        let rq = &Request::internal("list");
        let wants_heads = self.kinds.contains(&DatasetKind::Filesystem) || self.kinds.contains(&DatasetKind::Volume);
        if wants_heads {
            let kind = match pool.dsl.kind(rq, dir).await {
                Ok(weir_format::ObjsetKind::Zvol) => Some(DatasetKind::Volume),
                Ok(_) => Some(DatasetKind::Filesystem),
                // A damaged dataset must not hide the others.
                Err(error) => {
                    errln!(call, "cannot open '{}': {error}", dir.name);
                    None
                }
            };
            if let Some(kind) = kind.filter(|kind| self.kinds.contains(kind)) {
                out.push(Selected::dataset(pool.dsl.head(rq, dir).await?, kind));
            }
        }
        if shows_snapshots && depth < self.depth {
            let list = pool.dsl.snapshots(rq, dir).await?;
            for (name, error) in &list.damaged {
                errln!(call, "{name}: {error}");
            }
            out.extend(list.snapshots.iter().map(|s| Selected::dataset(s.clone(), DatasetKind::Snapshot)));
        }
        if self.kinds.contains(&DatasetKind::Bookmark) && depth < self.depth {
            let head = pool.dsl.head(rq, dir).await?;
            let bookmarks = weir_dsl::bookmarks::bookmarks(&pool.dsl, rq, &head).await?;
            out.extend(bookmarks.into_iter().map(|b| Selected {
                dataset: head.clone(),
                kind: DatasetKind::Bookmark,
                bookmark: Some(b),
            }));
        }
        Ok(())
    }
}

/// The properties `wanted` of a dataset, in their order; `None` for one that it does not have.
pub async fn properties(
    rq: &Request,
    pool: &Pool,
    of: &Selected,
    wanted: &[String],
    facts: &PoolFacts,
) -> Result<Vec<Option<Property>>, PoolError> {
    if of.kind == DatasetKind::Snapshot
        && let Some(quick) = wanted.iter().map(|w| at_hand(&of.dataset, w)).collect::<Option<Vec<_>>>()
    {
        return Ok(quick);
    }
    let all = all_properties(rq, pool, of, facts).await?;
    let mut out = Vec::with_capacity(wanted.len());
    for name in wanted {
        let full = native_named(name).map_or(name.as_str(), |n| n.prop.name());
        let is_of_files = matches!(of.kind, DatasetKind::Filesystem | DatasetKind::Snapshot);
        if is_of_files && let Some(Ok(identity)) = identity::parse(name) {
            let files = pool.file_system(rq, of.name()).await?;
            out.push(Some(identity::value(rq, files.objects(), name, identity).await?));
            continue;
        }
        let found = match name.as_str() {
            "name" => Some(text("name", of.name())),
            n if n.starts_with("written@") => pool.dsl.property(rq, &of.dataset, facts, n).await?,
            _ => all.iter().find(|p| p.name == full).cloned(),
        };
        out.push(found);
    }
    Ok(out)
}

/// A property as text; `-` for one that the dataset does not have.
pub fn shown(property: Option<&Property>, exact: bool) -> String {
    let text = |p: &Property| match (identity::parse(&p.name), &p.value) {
        (Some(Ok(of)), Value::Number(n)) => identity::text(*n, of.what, of.is_quota, exact),
        _ => p.text(exact),
    };
    property.map_or_else(|| "-".to_owned(), text)
}

/// All properties of a dataset or bookmark.
pub async fn all_properties(
    rq: &Request,
    pool: &Pool,
    of: &Selected,
    facts: &PoolFacts,
) -> Result<Vec<Property>, PoolError> {
    match &of.bookmark {
        None => Ok(pool.dsl.properties(rq, &of.dataset, facts).await?),
        Some(bookmark) => {
            let mut all = of_bookmark(bookmark);
            if let Some(guids) = weir_dsl::bookmarks::redaction_snapshots(&pool.dsl, rq, &bookmark.bookmark).await? {
                let guids: Vec<String> = guids.iter().map(u64::to_string).collect();
                all.push(text("redact_snaps", &guids.join(",")));
            }
            Ok(all)
        }
    }
}

/// Properties of a bookmark; one of an old form has no sizes.
fn of_bookmark(named: &NamedBookmark) -> Vec<Property> {
    let bookmark = &named.bookmark;
    let [referenced, _, uncompressed] = bookmark.referenced;
    let number = |name: &str, n| Property { name: name.into(), value: Value::Number(n), source: Source::None };
    let mut out = vec![text("type", DatasetKind::Bookmark.name()), number("creation", bookmark.creation_time_s)];
    let sized = bookmark.flags & Bookmark::HAS_FREED_BEFORE_NEXT != 0;
    if sized {
        out.push(number("referenced", referenced));
    }
    out.push(number("createtxg", bookmark.creation_txg.0));
    out.push(number("guid", bookmark.guid));
    if sized {
        out.push(number("logicalreferenced", uncompressed));
    }
    out
}

fn text(name: &str, value: &str) -> Property {
    Property { name: name.into(), value: Value::Text(value.into()), source: Source::None }
}

/// Properties that a snapshot's own object has, without opening it: enough for a list of ten thousand. The outer `None`
/// means that more must be read; the inner one that a snapshot has no such property.
fn at_hand(dataset: &Dataset, name: &str) -> Option<Option<Property>> {
    let phys = &dataset.phys;
    let number =
        |name: &str, n: u64| Some(Some(Property { name: name.into(), value: Value::Number(n), source: Source::None }));
    match native_named(name).map_or(name, |n| n.prop.name()) {
        "name" => Some(Some(text("name", &dataset.name))),
        "type" => Some(Some(text("type", "snapshot"))),
        "used" => number("used", phys.unique_bytes),
        "referenced" => number("referenced", phys.referenced_bytes),
        "creation" => number("creation", phys.creation_time_s),
        "createtxg" => number("createtxg", phys.creation_txg.0),
        "guid" => number("guid", phys.guid),
        "available" | "mountpoint" | "mounted" | "quota" | "reservation" => Some(None),
        _ => None,
    }
}

/// A dataset's frame in the JSON answer, without its properties.
pub fn json_frame(of: &Selected, numbers: crate::json::Numbers) -> Map<String, Json> {
    let name = of.name();
    let (head, snapshot) = name.split_once('@').map_or((name, None), |(h, s)| (h, Some(s)));
    let created = of.bookmark.as_ref().map_or(of.dataset.phys.creation_txg, |b| b.bookmark.creation_txg).0;
    let mut out = Map::new();
    out.insert("name".into(), json!(name));
    out.insert("type".into(), json!(of.kind.name().to_uppercase()));
    out.insert("pool".into(), json!(name.split(['/', '@', '#']).next()));
    out.insert("createtxg".into(), crate::json::number(created, numbers));
    if let Some(snapshot) = snapshot {
        out.insert("dataset".into(), json!(head));
        out.insert("snapshot_name".into(), json!(snapshot));
    }
    out
}
