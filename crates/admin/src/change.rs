//! Changes of datasets, and who requests them.

use crate::create::CreateDataset;
use crate::destroy::Destruction;
use crate::monitor::ChangeMonitor;
use crate::properties::{JsonPrincipal, JsonQuotaKind, settings, values};
use crate::refusal::{Refusal, RefusalKind};
use crate::same_txg::Attempts;
use crate::selection::{below, named_below};
use crate::{reservation, rollback, sharing};
use serde::{Deserialize, Serialize};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::{DslError, Setting, ZPL_VERSION};
use weir_dsl::{QuotaKind, QuotaPrincipal, Scope};
use weir_engine::{Encryption, Engine};
use weir_format::znode::Timestamp;
use weir_machine::Request;
use weir_pool::PoolError;

/// User who requests a change, and the command line for the pool's history.
#[derive(Clone, Debug)]
pub struct Author {
    /// User ID, also the owner of a new file system's root directory.
    pub uid: u32,
    /// Group ID.
    pub gid: u32,
    /// Time of the request.
    pub now: Timestamp,
    /// Command line; empty after it was recorded.
    pub command: String,
    /// Progress of the change, and whether it is canceled.
    pub monitor: ChangeMonitor,
}

impl Author {
    /// A user with these user and group IDs, who requests a change at a time with a command line.
    pub fn new((uid, gid): (u32, u32), now: Timestamp, command: String) -> Self {
        Author { uid, gid, now, command, monitor: ChangeMonitor::default() }
    }

    /// Records the command line in the history, once.
    pub(crate) fn record(&mut self, engine: &Engine) -> Result<(), PoolError> {
        match std::mem::take(&mut self.command) {
            command if command.is_empty() => Ok(()),
            command => engine.log_command(command, self.uid),
        }
    }
}

/// A snapshot and the tag of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HeldSnapshot {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Tag.
    pub tag: String,
}

/// A new bookmark and its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourcedBookmark {
    /// Full name of the bookmark.
    pub bookmark: String,
    /// Full name of a snapshot or bookmark.
    pub source: String,
}

/// A change of datasets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Creates a file system or volume that has no key of its own.
    Create(CreateDataset),
    /// Creates snapshots, all in the same txg.
    Snapshot {
        /// Full names.
        snapshots: Vec<String>,
        /// User properties.
        #[serde(with = "values")]
        properties: Vec<(String, Value)>,
        /// Whether snapshots of the same names are created of the descendants.
        recursive: bool,
    },
    /// Creates a clone.
    Clone {
        /// Full name of a snapshot.
        origin: String,
        /// Full name of the clone.
        name: String,
        /// Properties of the clone.
        #[serde(with = "values")]
        properties: Vec<(String, Value)>,
        /// Whether missing parents are created.
        parents: bool,
    },
    /// Destroys datasets or snapshots.
    Destroy {
        /// Which ones.
        what: Destruction,
    },
    /// Destroys bookmarks.
    DestroyBookmarks {
        /// Full names.
        bookmarks: Vec<String>,
    },
    /// Rolls a dataset back to a snapshot.
    Rollback {
        /// Full name of the snapshot.
        snapshot: String,
        /// Whether later snapshots and bookmarks are destroyed.
        destroy_later: bool,
        /// Whether the clones of later snapshots, and what depends on them, are destroyed with them.
        #[serde(default)]
        dependents: bool,
    },
    /// Promotes a clone.
    Promote {
        /// Full name.
        name: String,
    },
    /// Renames a file system or volume.
    Rename {
        /// Full name.
        name: String,
        /// New full name.
        new_name: String,
        /// Whether file systems that are in use are unmounted all the same, to be mounted under the new name.
        force: bool,
        /// Whether missing parents of the new name are created.
        #[serde(default)]
        parents: bool,
    },
    /// Renames a snapshot.
    RenameSnapshot {
        /// Full name of the snapshot.
        snapshot: String,
        /// New name after the `@`.
        new_name: String,
        /// Whether the snapshots of the same name of the descendants are renamed with it, all or none.
        recursive: bool,
    },
    /// Holds snapshots.
    Hold {
        /// Snapshots and tags.
        holds: Vec<HeldSnapshot>,
        /// Whether the snapshots of the same names of the descendants are held with them.
        recursive: bool,
    },
    /// Releases holds.
    Release {
        /// Snapshots and tags.
        holds: Vec<HeldSnapshot>,
        /// Whether the holds of the snapshots of the same names of the descendants are released with them.
        recursive: bool,
    },
    /// Creates bookmarks.
    Bookmark {
        /// Bookmarks with their sources.
        bookmarks: Vec<SourcedBookmark>,
    },
    /// Creates a redaction bookmark: the list of the blocks of a snapshot that all of some later snapshots changed.
    Redact {
        /// Full name of the snapshot.
        snapshot: String,
        /// Name after the `#` of the bookmark.
        bookmark: String,
        /// Full names of the later snapshots.
        redaction_snapshots: Vec<String>,
    },
    /// Sets or clears properties.
    Set {
        /// Full name of the dataset.
        name: String,
        /// Settings by property.
        #[serde(with = "settings")]
        settings: Vec<(String, Setting)>,
        /// Whether they are set on the descendants, too, each by itself.
        recursive: bool,
    },
    /// Adds or removes delegated permissions.
    Delegate {
        /// Full name of the file system or volume.
        name: String,
        /// Permissions by the key of who has them; none of a key stands for all.
        grants: Vec<(String, Vec<String>)>,
        /// Whether they are removed.
        removes: bool,
        /// Whether those of the descendants are removed as well.
        recursive: bool,
    },
    /// Sets a quota in a file system.
    SetQuota {
        /// Full name of the file system.
        name: String,
        /// Kind of principal.
        #[serde(with = "JsonPrincipal")]
        principal: QuotaPrincipal,
        /// Quantity that the quota limits.
        #[serde(with = "JsonQuotaKind")]
        kind: QuotaKind,
        /// ID of the user, group or project; `None` for the default quota.
        id: Option<u64>,
        /// Limit; 0 for none.
        limit: u64,
    },
    /// Upgrades a file system to a version of the ZPL (`zfs upgrade`).
    Upgrade {
        /// Full name of the file system.
        name: String,
        /// The new version, at least the present one.
        version: u64,
    },
    /// Sets the refreservation of a volume to the maximum size of the volume (`refreservation=auto`).
    ReserveVolume {
        /// Full name of the volume.
        name: String,
    },
    /// Sets the size of a volume. A refreservation that equals the maximum size of the volume is changed with it.
    Resize {
        /// Full name of the volume.
        name: String,
        /// New size in bytes.
        size_bytes: u64,
        /// Whether the refreservation stays as it is.
        keep_reservation: bool,
    },
}

impl Change {
    /// Runs the change, and records the author's command line in the history. Returns when the change is on stable
    /// storage.
    ///
    /// # Errors
    /// Refusals of the checks, which each sync task makes before it changes anything.
    pub async fn run(self, engine: &Engine, author: &mut Author) -> Result<(), Refusal> {
        match self {
            Change::Create(new) => return Ok(new.run(engine, author, Encryption::default()).await?),
            Change::Clone { origin, name, properties, parents } => {
                return Ok(crate::create::clone(engine, author, (origin, name), properties, parents).await?);
            }
            Change::Resize { name, size_bytes, keep_reservation } => {
                return Ok(reservation::resize(engine, author, &name, size_bytes, keep_reservation).await?);
            }
            Change::ReserveVolume { name } => return Ok(reservation::reserve_all(engine, author, &name).await?),
            Change::Destroy { what } => return what.run(engine, author).await,
            Change::Rollback { snapshot, destroy_later, dependents } => {
                rollback::prepare(engine, author, &snapshot, destroy_later, dependents).await?;
                let name = snapshot.split('@').next().unwrap_or_default().to_owned();
                let mut attempts = Attempts::default();
                while let Err(error) = engine.rollback(name.clone(), Some(snapshot.clone())).await {
                    attempts.wait(engine, error).await?;
                }
            }
            Change::Snapshot { snapshots, properties, recursive } => {
                let snapshots = if recursive { every_below(engine, &snapshots).await? } else { snapshots };
                let mut attempts = Attempts::default();
                while let Err(error) = engine.snapshot(snapshots.clone(), properties.clone()).await {
                    attempts.wait(engine, error).await?;
                }
            }
            Change::RenameSnapshot { snapshot, new_name, recursive } => {
                let snapshots = if recursive { same_below(engine, &snapshot).await? } else { vec![snapshot] };
                engine.rename_snapshots(snapshots.into_iter().map(|old| (old, new_name.clone())).collect()).await?;
            }
            Change::DestroyBookmarks { bookmarks } => {
                // The sync task passes over a missing one.
                check_bookmarks(engine, &bookmarks).await?;
                engine.destroy_bookmarks(bookmarks).await?;
            }
            Change::Promote { name } => engine.promote(name).await?,
            Change::Rename { name, new_name, force: _, parents } => {
                if parents {
                    crate::create::make_parents(engine, author, &new_name).await?;
                }
                engine.rename(name, new_name).await?;
            }
            Change::Hold { holds, recursive } => {
                engine.hold(held(engine, holds, recursive).await?).await.map_err(tag_refused)?
            }
            Change::Release { holds, recursive } => {
                engine.release(held(engine, holds, recursive).await?).await.map_err(tag_refused)?
            }
            Change::Bookmark { bookmarks } => {
                let sourced = bookmarks.into_iter().map(|sourced| (sourced.bookmark, sourced.source));
                engine.bookmark(sourced.collect()).await?;
            }
            Change::Redact { snapshot, bookmark, redaction_snapshots } => {
                let rq = Request::internal("redact");
                engine.sends().redact(&rq, &snapshot, &bookmark, &redaction_snapshots).await?;
            }
            Change::Set { name, settings, recursive } => {
                sharing::check_settings(&name, &settings)?;
                let names = if recursive { datasets_below(engine, &name).await? } else { vec![name] };
                for name in names {
                    engine.properties().set_properties(name, settings.clone()).await?;
                    author.record(engine)?;
                }
            }
            Change::Delegate { name, grants, removes, recursive } => {
                let names = if recursive { datasets_below(engine, &name).await? } else { vec![name] };
                for name in names {
                    engine.properties().delegate(name, grants.clone(), removes).await?;
                }
            }
            Change::Upgrade { name, version } => {
                check_upgrade(engine, &name, version).await?;
                engine.properties().upgrade_file_system(name, version).await?;
            }
            Change::SetQuota { name, principal, kind, id, limit } => {
                engine.properties().set_quota(name, principal, kind, id, limit).await?;
            }
        }
        Ok(author.record(engine)?)
    }
}

/// Fails if a file system or snapshot has a newer version of the ZPL than this one, which must be known.
pub(crate) async fn check_upgrade(engine: &Engine, name: &str, version: u64) -> Result<(), Refusal> {
    let refused = |why: String| Err(Refusal::new(RefusalKind::Name, why));
    if !(1..=ZPL_VERSION).contains(&version) {
        return refused(format!("versions of file systems are 1 to {ZPL_VERSION}, not {version}"));
    }
    let rq = &Request::internal("upgrade");
    let of = name.split('@').next().unwrap_or(name);
    let dsl = engine.synced().dsl_in(rq, Scope::Path(of)).await?;
    let dataset = dsl.find(rq, name).await.map_err(|_| Refusal::missing())?;
    let found = dsl.property(rq, &dataset, &engine.facts(), "version").await.map_err(PoolError::from)?;
    match found.map(|property| property.value) {
        Some(Value::Number(present)) if present > version => {
            refused(format!("it can not be downgraded; it is already at version {present}"))
        }
        Some(Value::Number(_)) => Ok(()),
        _ => refused("only file systems have a version".to_owned()),
    }
}

/// Fails if one of these bookmarks does not exist.
async fn check_bookmarks(engine: &Engine, names: &[String]) -> Result<(), Refusal> {
    let rq = &Request::internal("destroy");
    for name in names {
        let of = name.split('#').next().unwrap_or(name);
        let dsl = engine.synced().dsl_in(rq, Scope::Path(of)).await?;
        let dir = dsl.dir_named(of).ok_or_else(Refusal::missing)?;
        let head = dsl.head(rq, dir).await.map_err(PoolError::from)?;
        let there = weir_dsl::bookmarks::bookmarks(&dsl, rq, &head).await.map_err(PoolError::from)?;
        if !there.iter().any(|bookmark| bookmark.name == *name) {
            return Err(Refusal::new(RefusalKind::Missing, "bookmark does not exist"));
        }
    }
    Ok(())
}

/// Names of a dataset and its descendants.
async fn datasets_below(engine: &Engine, top: &str) -> Result<Vec<String>, Refusal> {
    let rq = &Request::internal("select");
    let dsl = engine.synced().dsl_in(rq, Scope::Subtree(top)).await?;
    let found: Vec<String> = below(&dsl, top).iter().map(|dir| dir.name.clone()).collect();
    if found.is_empty() { Err(Refusal::missing()) } else { Ok(found) }
}

/// Snapshots of these names of their datasets and all descendants, to be created.
async fn every_below(engine: &Engine, snapshots: &[String]) -> Result<Vec<String>, Refusal> {
    let mut out = Vec::new();
    for name in snapshots {
        let (of, snapshot) = name.split_once('@').unwrap_or((name, ""));
        out.extend(datasets_below(engine, of).await?.into_iter().map(|dataset| format!("{dataset}@{snapshot}")));
    }
    Ok(out)
}

/// The snapshots of the same name of a dataset, which must have it, and of its descendants.
async fn same_below(engine: &Engine, snapshot: &str) -> Result<Vec<String>, Refusal> {
    let rq = &Request::internal("select");
    let (of, name) = snapshot.split_once('@').unwrap_or((snapshot, ""));
    let dsl = engine.synced().dsl_in(rq, Scope::Subtree(of)).await?;
    let found = named_below(rq, &dsl, of, name).await?;
    if found.iter().any(|found| found == snapshot) { Ok(found) } else { Err(Refusal::missing()) }
}

/// The refusal of a hold or its release: what exists or is missing is the tag, if the error names one.
fn tag_refused(error: PoolError) -> Refusal {
    match error {
        PoolError::Dsl(DslError::Exists { .. }) => {
            Refusal::new(RefusalKind::Exists, "tag already exists on this dataset")
        }
        PoolError::Dsl(DslError::Missing { name }) if name.contains(" (tag ") => {
            Refusal::new(RefusalKind::Missing, "no such tag on this dataset")
        }
        other => other.into(),
    }
}

async fn held(engine: &Engine, holds: Vec<HeldSnapshot>, recursive: bool) -> Result<Vec<(String, String)>, Refusal> {
    let mut out = Vec::new();
    for HeldSnapshot { snapshot, tag } in holds {
        let snapshots = if recursive { same_below(engine, &snapshot).await? } else { vec![snapshot] };
        out.extend(snapshots.into_iter().map(|snapshot| (snapshot, tag.clone())));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::create::NewKind;

    #[test]
    fn changes_convert_to_json_and_back() {
        let number = |name: &str, n| (name.to_owned(), Value::Number(n));
        let create = CreateDataset {
            name: "p/v".into(),
            kind: NewKind::Volume { size_bytes: 1 << 30, block_bytes: 16384, sparse: true },
            properties: vec![("a:b".into(), Value::Text("c".into())), number("compression", 15)],
            parents: true,
        };
        let json = serde_json::to_string(&Change::Create(create.clone())).unwrap();
        let expected = concat!(
            r#"{"change":"create","name":"p/v","kind":{"volume":{"size_bytes":1073741824,"block_bytes":16384,"#,
            r#""sparse":true}},"properties":{"a:b":"c","compression":15},"parents":true}"#
        );
        assert_eq!(json, expected);
        let settings = vec![("atime".into(), Setting::Inherit), ("quota".into(), Setting::Set(Value::Number(1 << 40)))];
        for change in [
            Change::Create(create),
            Change::Snapshot { snapshots: vec!["p@a".into()], properties: Vec::new(), recursive: true },
            Change::Set { name: "p".into(), settings, recursive: false },
            Change::SetQuota {
                name: "p".into(),
                principal: QuotaPrincipal::Group,
                kind: QuotaKind::Objects,
                id: None,
                limit: 3,
            },
        ] {
            let json = serde_json::to_string(&change).unwrap();
            assert_eq!(serde_json::from_str::<Change>(&json).unwrap(), change, "{json}");
        }
        assert!(serde_json::from_str::<Change>(r#"{"change":"promote"}"#).is_err());
    }
}
