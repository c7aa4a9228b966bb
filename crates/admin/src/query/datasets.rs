//! Datasets, snapshots and bookmarks with their properties.

use super::accounts::AccountProperty;
use super::{Row, Rows, unreadable};
use crate::properties::{JsonKind, found_properties, kinds};
use crate::refusal::Refusal;
use serde::{Deserialize, Serialize};
use weir_dmu::ObjectError;
use weir_dsl::props::{DatasetKind, Property, Source, Value, native_named};
use weir_dsl::{Dataset, Dir, MountedFileSystems, NamedBookmark, PoolFacts, Scope};
use weir_format::ObjsetKind;
use weir_format::dsl::Bookmark;
use weir_machine::Request;
use weir_pool::{Pool, PoolError};

/// Which datasets are read, and which properties of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetsQuery {
    /// Full names of datasets, snapshots and bookmarks; all datasets of the pool if there is none.
    pub names: Vec<String>,
    /// Kinds to which the datasets at and below the names are restricted. A snapshot or bookmark that is named is read in any
    /// case.
    #[serde(with = "kinds")]
    pub kinds: Vec<DatasetKind>,
    /// How far below the names; snapshots and bookmarks are one below their dataset. `None`: no limit.
    pub depth: Option<usize>,
    /// Whether snapshots are read as well if the pool has `listsnapshots=on`.
    pub follows_pool: bool,
    /// Directory under which mount points are shown; empty for none.
    pub altroot: String,
    /// Names of the properties, those of users and groups with numbers (`userused@1000`); `None` for all that a dataset has.
    pub properties: Option<Vec<String>>,
    /// Names of the properties by which the caller sorts.
    pub sort_keys: Vec<String>,
}

/// A dataset, snapshot or bookmark.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DatasetRow {
    /// Full name.
    pub name: String,
    /// Kind.
    #[serde(with = "JsonKind")]
    pub kind: DatasetKind,
    /// Txg in which it was created.
    pub created_txg: u64,
    /// The properties in the order of the query, `None` for one that it does not have; or all that it has.
    #[serde(with = "found_properties")]
    pub properties: Vec<Option<Property>>,
    /// The properties by which the caller sorts, in the order of the query.
    #[serde(with = "found_properties")]
    pub sort_keys: Vec<Option<Property>>,
}

/// A dataset that is read.
struct Selected {
    /// The dataset; of a bookmark, its head.
    dataset: Dataset,
    kind: DatasetKind,
    bookmark: Option<NamedBookmark>,
}

impl Selected {
    /// A file system, volume or snapshot.
    fn dataset(dataset: Dataset, kind: DatasetKind) -> Self {
        Selected { dataset, kind, bookmark: None }
    }

    fn name(&self) -> &str {
        self.bookmark.as_ref().map_or(&self.dataset.name, |bookmark| &bookmark.name)
    }

    fn created_txg(&self) -> u64 {
        self.bookmark.as_ref().map_or(self.dataset.phys.creation_txg, |b| b.bookmark.creation_txg).0
    }
}

impl DatasetsQuery {
    /// Finds the datasets, then reads their properties. Names that do not exist are rows: [`Row::Missing`].
    ///
    /// # Errors
    /// If the datasets cannot be found.
    pub(super) async fn run(&self, pool: &Pool, mounted: &MountedFileSystems, rows: &mut Rows) -> Result<(), Refusal> {
        let rq = &Request::internal("datasets");
        let selected = self.select(rq, pool, rows).await?;
        let mut facts = PoolFacts { mounted: mounted.clone(), ..pool.facts() };
        if !self.altroot.is_empty() {
            facts.altroot.clone_from(&self.altroot);
        }
        for of in selected {
            rows.check()?;
            let row = match self.row(rq, pool, &of, &facts).await {
                Ok(row) => Row::Dataset(row),
                Err(error) => Row::Unread { name: of.name().to_owned(), why: error.to_string() },
            };
            rows.add(row).await?;
        }
        Ok(())
    }

    async fn row(&self, rq: &Request, pool: &Pool, of: &Selected, facts: &PoolFacts) -> Result<DatasetRow, PoolError> {
        let properties = match &self.properties {
            None => all_properties(rq, pool, of, facts).await?.into_iter().map(Some).collect(),
            Some(wanted) => wanted_properties(rq, pool, of, wanted, facts).await?,
        };
        let sort_keys = match self.sort_keys.as_slice() {
            [] => Vec::new(),
            keys => wanted_properties(rq, pool, of, keys, facts).await?,
        };
        Ok(DatasetRow {
            name: of.name().to_owned(),
            kind: of.kind,
            created_txg: of.created_txg(),
            properties,
            sort_keys,
        })
    }

    async fn select(&self, rq: &Request, pool: &Pool, rows: &mut Rows) -> Result<Vec<Selected>, Refusal> {
        let mut out = Vec::new();
        if self.names.is_empty() {
            self.below(rq, pool, pool.name(), rows, &mut out).await?;
        }
        for name in &self.names {
            let missing = |why: &str| Row::Missing { name: name.clone(), why: why.to_owned() };
            if name.contains('#') {
                match bookmark_named(rq, pool, name).await.map_err(unreadable)? {
                    Some(found) => out.push(found),
                    None => rows.add(missing("bookmark does not exist")).await?,
                }
                continue;
            }
            match pool.dataset(rq, name).await {
                Ok(dataset) if dataset.is_snapshot() => out.push(Selected::dataset(dataset, DatasetKind::Snapshot)),
                Ok(_) => self.below(rq, pool, name, rows, &mut out).await?,
                // The others are read.
                Err(_) => rows.add(missing("dataset does not exist")).await?,
            }
        }
        Ok(out)
    }

    /// Whether the snapshots of the pool are read.
    async fn has_snapshots(&self, rq: &Request, pool: &Pool) -> Result<bool, PoolError> {
        if self.kinds.contains(&DatasetKind::Snapshot) {
            return Ok(true);
        }
        Ok(self.follows_pool && weir_pool::properties::stored_word(rq, pool, "listsnapshots").await? == Some(1))
    }

    async fn below(
        &self,
        rq: &Request,
        pool: &Pool,
        top: &str,
        rows: &mut Rows,
        out: &mut Vec<Selected>,
    ) -> Result<(), Refusal> {
        let slashes = |name: &str| name.matches('/').count();
        let has_snapshots = self.has_snapshots(rq, pool).await.map_err(unreadable)?;
        for dir in pool.dsl.visible_dirs() {
            rows.check()?;
            let depth = slashes(&dir.name).saturating_sub(slashes(top));
            if Scope::Subtree(top).contains(&dir.name) && self.depth.is_none_or(|most| depth <= most) {
                let has_more = self.depth.is_none_or(|most| depth < most);
                self.of_dir(rq, pool, dir, (has_more && has_snapshots, has_more), rows, out).await?;
            }
        }
        for (name, error) in pool.dsl.damaged() {
            rows.add(Row::Warning { name: name.clone(), why: error.to_string() }).await?;
        }
        Ok(())
    }

    async fn of_dir(
        &self,
        rq: &Request,
        pool: &Pool,
        dir: &Dir,
        (has_snapshots, has_bookmarks): (bool, bool),
        rows: &mut Rows,
        out: &mut Vec<Selected>,
    ) -> Result<(), Refusal> {
        let failed = |error| unreadable(PoolError::from(error));
        if self.kinds.contains(&DatasetKind::Filesystem) || self.kinds.contains(&DatasetKind::Volume) {
            let kind = match pool.dsl.kind(rq, dir).await {
                Ok(ObjsetKind::Zvol) => Some(DatasetKind::Volume),
                Ok(_) => Some(DatasetKind::Filesystem),
                // A damaged dataset must not hide the others.
                Err(error) => {
                    rows.add(Row::Unopened { name: dir.name.clone(), why: error.to_string() }).await?;
                    None
                }
            };
            if let Some(kind) = kind.filter(|kind| self.kinds.contains(kind)) {
                out.push(Selected::dataset(pool.dsl.head(rq, dir).await.map_err(failed)?, kind));
            }
        }
        if has_snapshots {
            let list = pool.dsl.snapshots(rq, dir).await.map_err(failed)?;
            for (name, error) in &list.damaged {
                rows.add(Row::Warning { name: name.clone(), why: error.to_string() }).await?;
            }
            out.extend(list.snapshots.iter().map(|s| Selected::dataset(s.clone(), DatasetKind::Snapshot)));
        }
        if has_bookmarks && self.kinds.contains(&DatasetKind::Bookmark) {
            let head = pool.dsl.head(rq, dir).await.map_err(failed)?;
            let bookmarks = weir_dsl::bookmarks::bookmarks(&pool.dsl, rq, &head).await.map_err(failed)?;
            out.extend(bookmarks.into_iter().map(|bookmark| Selected {
                dataset: head.clone(),
                kind: DatasetKind::Bookmark,
                bookmark: Some(bookmark),
            }));
        }
        Ok(())
    }
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

/// The properties `wanted` of a dataset, in their order; `None` for one that it does not have.
async fn wanted_properties(
    rq: &Request,
    pool: &Pool,
    of: &Selected,
    wanted: &[String],
    facts: &PoolFacts,
) -> Result<Vec<Option<Property>>, PoolError> {
    if of.kind == DatasetKind::Snapshot
        && let Some(quick) = wanted.iter().map(|name| at_hand(&of.dataset, name)).collect::<Option<Vec<_>>>()
    {
        return Ok(quick);
    }
    let all = all_properties(rq, pool, of, facts).await?;
    let mut out = Vec::with_capacity(wanted.len());
    for name in wanted {
        let full = native_named(name).map_or(name.as_str(), |native| native.prop.name());
        let has_files = matches!(of.kind, DatasetKind::Filesystem | DatasetKind::Snapshot);
        if has_files && let Some(account) = AccountProperty::parse(name) {
            let files = pool.file_system(rq, of.name()).await?;
            out.push(Some(account.value(rq, files.objects(), name).await?));
            continue;
        }
        out.push(match name.as_str() {
            "name" => Some(text("name", of.name())),
            name if name.starts_with("written@") => match pool.dsl.property(rq, &of.dataset, facts, name).await {
                // There is no such snapshot, as of some of the datasets that are read.
                Err(ObjectError::NoName { .. }) => None,
                found => found?,
            },
            _ => all.iter().find(|property| property.name == full).cloned(),
        });
    }
    Ok(out)
}

/// All properties of a dataset or bookmark.
async fn all_properties(
    rq: &Request,
    pool: &Pool,
    of: &Selected,
    facts: &PoolFacts,
) -> Result<Vec<Property>, PoolError> {
    let Some(bookmark) = &of.bookmark else { return Ok(pool.dsl.properties(rq, &of.dataset, facts).await?) };
    let mut all = of_bookmark(bookmark);
    if let Some(guids) = weir_dsl::redaction::redaction_snapshots(&pool.dsl, rq, &bookmark.bookmark).await? {
        all.push(text("redact_snaps", &weir_dsl::redaction::redaction_text(&guids)));
    }
    Ok(all)
}

/// Properties of a bookmark; one of an old form has no sizes.
fn of_bookmark(named: &NamedBookmark) -> Vec<Property> {
    let bookmark = &named.bookmark;
    let [referenced, _, uncompressed] = bookmark.referenced;
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
    Property { name: name.into(), value: Value::Text(value.into()), source: Source::None, received: None }
}

fn number(name: &str, value: u64) -> Property {
    Property { name: name.into(), value: Value::Number(value), source: Source::None, received: None }
}

/// Properties that a snapshot's own object has, without opening it: enough for a list of ten thousand. The outer `None`
/// means that more must be read; the inner one that a snapshot has no such property.
fn at_hand(dataset: &Dataset, name: &str) -> Option<Option<Property>> {
    let phys = &dataset.phys;
    Some(Some(match native_named(name).map_or(name, |native| native.prop.name()) {
        "name" => text("name", &dataset.name),
        "type" => text("type", "snapshot"),
        "used" => number("used", phys.unique_bytes),
        "referenced" => number("referenced", phys.referenced_bytes),
        "creation" => number("creation", phys.creation_time_s),
        "createtxg" => number("createtxg", phys.creation_txg.0),
        "guid" => number("guid", phys.guid),
        "available" | "mountpoint" | "mounted" | "quota" | "reservation" => return Some(None),
        _ => return None,
    }))
}
