//! The volumes and snapshots of the plugin as they are in the pools.

use crate::names::{self, MARK, Mark, NODES, Protocol, Publication};
use crate::storage::{Storage, status_of, unreachable};
use std::sync::Arc;
use tonic::Status;
use weir_admin::{Change, Command, DatasetRow, DatasetsQuery, Outcome, PoolQuery, Query, RefusalKind, Row};
use weir_dsl::props::{DatasetKind, Property, Source, Value};

/// Properties that are read of each dataset, in the order of [`Found::of`].
const WANTED: [&str; 10] = [
    MARK,
    NODES,
    "volsize",
    "refquota",
    "creation",
    "defer_destroy",
    "clones",
    "mountpoint",
    "volblocksize",
    "mounted",
];

/// A dataset or snapshot of a pool.
#[derive(Clone, Debug)]
pub struct Found {
    /// Full name.
    pub name: String,
    /// Kind.
    pub kind: DatasetKind,
    /// The request that created it; `None` for one that is not the plugin's.
    pub mark: Option<Mark>,
    /// Nodes to which it is published.
    pub nodes: Vec<Publication>,
    /// Size of a volume, or quota of a file system, in bytes; 0 without one.
    pub bytes: u64,
    /// Seconds since 1970 at which it was created.
    pub creation_s: u64,
    /// Whether a snapshot is destroyed when its last clone is.
    pub is_deferred: bool,
    /// Full names of the clones of a snapshot.
    pub clones: Vec<String>,
    /// Mount point of a file system.
    pub mountpoint: String,
    /// Block size of a volume in bytes.
    pub block_bytes: u64,
    /// Whether the daemon has a file system mounted on its machine.
    pub is_mounted: bool,
}

/// The value of a property that the dataset has of its own: children and snapshots inherit user properties.
fn own(property: Option<&Property>) -> Option<&str> {
    let property = property.filter(|property| matches!(property.source, Source::Local | Source::Received))?;
    match &property.value {
        Value::Text(text) => Some(text),
        Value::Number(_) => None,
    }
}

fn number(property: Option<&Property>) -> u64 {
    match property.map(|property| &property.value) {
        Some(Value::Number(number)) => *number,
        _ => 0,
    }
}

fn text(property: Option<&Property>) -> String {
    property.map(|property| property.text(true)).unwrap_or_default()
}

impl Found {
    fn of(row: &DatasetRow) -> Self {
        let at = |index: usize| row.properties.get(index).and_then(Option::as_ref);
        let size = number(at(2));
        Found {
            name: row.name.clone(),
            kind: row.kind,
            mark: own(at(0)).and_then(Mark::decode),
            nodes: own(at(1)).map(names::publications).unwrap_or_default(),
            bytes: if size == 0 { number(at(3)) } else { size },
            creation_s: number(at(4)),
            is_deferred: text(at(5)) == "on",
            clones: text(at(6)).split(',').filter(|name| !name.is_empty() && *name != "-").map(str::to_owned).collect(),
            mountpoint: text(at(7)),
            block_bytes: number(at(8)),
            is_mounted: text(at(9)) == "yes",
        }
    }

    /// How nodes reach it.
    pub fn protocol(&self) -> Protocol {
        match self.kind {
            DatasetKind::Volume => Protocol::Iscsi,
            _ => Protocol::Nfs,
        }
    }
}

/// The pools as the controller uses them.
#[derive(Clone)]
pub struct Volumes {
    storage: Arc<dyn Storage>,
    /// The dataset below which all volumes of this controller are; `None`: anywhere.
    top: Option<String>,
}

impl Volumes {
    /// The volumes below a dataset, or all.
    pub fn new(storage: Arc<dyn Storage>, top: Option<String>) -> Self {
        Volumes { storage, top }
    }

    /// The process that has the pools open.
    pub fn storage(&self) -> &dyn Storage {
        &*self.storage
    }

    /// Whether a dataset is where volumes of this controller may be.
    pub fn is_allowed(&self, name: &str) -> bool {
        self.top.as_deref().is_none_or(|top| names::is_below(name, top))
    }

    /// Names of the open pools.
    ///
    /// # Errors
    /// UNAVAILABLE if no process answers.
    pub async fn pools(&self) -> Result<Vec<String>, Status> {
        let rows = self.storage.query(Query::Pools).await.map_err(unreachable)?;
        let rows = rows.map_err(|refusal| status_of("pools", &refusal))?;
        Ok(rows.into_iter().filter_map(|row| if let Row::Pool(pool) = row { Some(pool.name) } else { None }).collect())
    }

    /// Reads datasets of a pool at and below the names: `depth` levels.
    async fn read(
        &self,
        pool: &str,
        names: Vec<String>,
        kinds: &[DatasetKind],
        depth: Option<usize>,
    ) -> Result<Vec<Found>, Status> {
        let query = DatasetsQuery {
            names,
            kinds: kinds.to_vec(),
            depth,
            follows_pool: false,
            altroot: String::new(),
            properties: Some(WANTED.map(str::to_owned).to_vec()),
            sort_keys: Vec::new(),
        };
        let query = Query::Pool { name: pool.to_owned(), query: PoolQuery::Datasets(query) };
        match self.storage.query(query).await.map_err(unreachable)? {
            Ok(rows) => {
                let found =
                    rows.into_iter().filter_map(|row| if let Row::Dataset(row) = row { Some(row) } else { None });
                Ok(found.map(|row| Found::of(&row)).collect())
            }
            // A pool that is not open has no volumes that could be named; whether it has them at all is not known.
            Err(refusal) if refusal.kind == RefusalKind::OtherPool => {
                Err(Status::unavailable(format!("pool '{pool}' is not open: {}", refusal.why)))
            }
            Err(refusal) => Err(status_of(pool, &refusal)),
        }
    }

    /// The dataset of that name, be it the plugin's or not.
    ///
    /// # Errors
    /// UNAVAILABLE if the pool is not open.
    pub async fn dataset(&self, name: &str) -> Result<Option<Found>, Status> {
        let kinds = [DatasetKind::Filesystem, DatasetKind::Volume];
        let found = self.read(names::pool_of(name), vec![name.to_owned()], &kinds, Some(0)).await?;
        Ok(found.into_iter().find(|found| found.name == name))
    }

    /// The snapshot of that name, be it the plugin's or not.
    ///
    /// # Errors
    /// As [`Volumes::dataset`].
    pub async fn snapshot(&self, name: &str) -> Result<Option<Found>, Status> {
        let found = self.read(names::pool_of(name), vec![name.to_owned()], &[DatasetKind::Snapshot], Some(0)).await?;
        Ok(found.into_iter().find(|found| found.name == name))
    }

    /// The volume with a handle and the request that created it; `None` if there is none.
    ///
    /// # Errors
    /// As [`Volumes::dataset`]; a pool that is not open is no error if no open pool could have the handle.
    pub async fn volume(&self, handle: &str) -> Result<Option<(Found, Mark)>, Status> {
        if !names::is_volume(handle) || !self.is_allowed(handle) {
            return Ok(None);
        }
        let found = self.dataset(handle).await?;
        Ok(found.and_then(|found| found.mark.clone().map(|mark| (found, mark))))
    }

    /// The volume with a handle.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an empty handle, NOT_FOUND if there is no such volume.
    pub async fn existing(&self, handle: &str) -> Result<(Found, Mark), Status> {
        if handle.is_empty() {
            return Err(Status::invalid_argument("volume_id is missing"));
        }
        self.volume(handle).await?.ok_or_else(|| Status::not_found(format!("there is no volume '{handle}'")))
    }

    /// Snapshots of a dataset, be they the plugin's or not.
    ///
    /// # Errors
    /// As [`Volumes::dataset`].
    pub async fn snapshots_of(&self, dataset: &str) -> Result<Vec<Found>, Status> {
        let found =
            self.read(names::pool_of(dataset), vec![dataset.to_owned()], &[DatasetKind::Snapshot], Some(1)).await?;
        Ok(found.into_iter().filter(|found| found.name.split('@').next() == Some(dataset)).collect())
    }

    /// All datasets or snapshots of the plugin, sorted by name.
    ///
    /// # Errors
    /// UNAVAILABLE if no process answers.
    pub async fn all(&self, kinds: &[DatasetKind]) -> Result<Vec<(Found, Mark)>, Status> {
        let tops = match &self.top {
            Some(top) => vec![top.clone()],
            None => self.pools().await?,
        };
        let mut out = Vec::new();
        for top in tops {
            let found = self.read(names::pool_of(&top), vec![top.clone()], kinds, None).await?;
            out.extend(found.into_iter().filter_map(|found| found.mark.clone().map(|mark| (found, mark))));
        }
        out.sort_by(|(a, _), (b, _)| a.name.cmp(&b.name));
        Ok(out)
    }

    /// Carries a change out. `line` is recorded in the pool's history.
    ///
    /// # Errors
    /// The status of the refusal: [`status_of`].
    pub async fn change(&self, name: &str, line: &str, change: Change) -> Result<(), Status> {
        self.try_change(name, line, change).await?.map_err(|refusal| status_of(name, &refusal))
    }

    /// Like [`Volumes::change`], with the refusal as it is.
    ///
    /// # Errors
    /// UNAVAILABLE if no process answers.
    pub async fn try_change(
        &self,
        name: &str,
        line: &str,
        change: Change,
    ) -> Result<Result<(), weir_admin::Refusal>, Status> {
        debug_assert!(names::is_dataset(name.split('@').next().unwrap_or(name)), "names are checked before");
        let line = format!("weir csi {line} {name}");
        let command = Command { pool: names::pool_of(name).to_owned(), line, action: change.into() };
        let done = self.storage.command(command).await.map_err(unreachable)?;
        Ok(done.map(|outcome| debug_assert!(outcome == Outcome::Changed, "a change changes")))
    }

    /// Space that new datasets below a parent can use, in bytes.
    ///
    /// # Errors
    /// NOT_FOUND if there is no such dataset.
    pub async fn available(&self, parent: &str) -> Result<u64, Status> {
        let query = DatasetsQuery {
            names: vec![parent.to_owned()],
            kinds: vec![DatasetKind::Filesystem],
            depth: Some(0),
            follows_pool: false,
            altroot: String::new(),
            properties: Some(vec!["available".to_owned()]),
            sort_keys: Vec::new(),
        };
        let query = Query::Pool { name: names::pool_of(parent).to_owned(), query: PoolQuery::Datasets(query) };
        let rows = self.storage.query(query).await.map_err(unreachable)?;
        let rows = rows.map_err(|refusal| status_of(parent, &refusal))?;
        let available = rows.iter().find_map(|row| match row {
            Row::Dataset(row) => Some(number(row.properties.first().and_then(Option::as_ref))),
            _ => None,
        });
        available.ok_or_else(|| Status::not_found(format!("there is no file system '{parent}'")))
    }
}
