//! Changes of datasets, and who requests them.

use crate::create::CreateDataset;
use crate::properties::{JsonPrincipal, JsonQuotaKind, settings, values};
use crate::reservation;
use serde::{Deserialize, Serialize};
use weir_dsl::props::Value;
use weir_dsl::sync_tasks::Setting;
use weir_dsl::{QuotaKind, QuotaPrincipal};
use weir_engine::{Encryption, Engine};
use weir_format::znode::Timestamp;
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
}

impl Author {
    /// Records the command line in the history, once.
    pub(crate) async fn record(&mut self, engine: &Engine) -> Result<(), PoolError> {
        match std::mem::take(&mut self.command) {
            command if command.is_empty() => Ok(()),
            command => engine.log_command(command, self.uid).await,
        }
    }
}

/// A snapshot and the tag of a hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldSnapshot {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// Tag.
    pub tag: String,
}

/// A snapshot and its new name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RenamedSnapshot {
    /// Full name of the snapshot.
    pub snapshot: String,
    /// New name after the `@`.
    pub new_name: String,
}

/// A new bookmark and its source.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourcedBookmark {
    /// Full name of the bookmark.
    pub bookmark: String,
    /// Full name of a snapshot or bookmark.
    pub source: String,
}

/// A change of datasets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case")]
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
    /// Destroys a file system or volume.
    Destroy {
        /// Full name.
        name: String,
    },
    /// Destroys snapshots, all in the same txg.
    DestroySnapshots {
        /// Full names.
        snapshots: Vec<String>,
        /// Whether the destruction of held and cloned ones is deferred.
        defer: bool,
    },
    /// Destroys bookmarks.
    DestroyBookmarks {
        /// Full names.
        bookmarks: Vec<String>,
    },
    /// Rolls a dataset back to its last snapshot.
    Rollback {
        /// Full name of the dataset.
        name: String,
        /// Full name of the snapshot.
        snapshot: String,
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
    },
    /// Renames snapshots, all or none.
    RenameSnapshots {
        /// Snapshots with their new names.
        snapshots: Vec<RenamedSnapshot>,
    },
    /// Holds snapshots.
    Hold {
        /// Snapshots and tags.
        holds: Vec<HeldSnapshot>,
    },
    /// Releases holds.
    Release {
        /// Snapshots and tags.
        holds: Vec<HeldSnapshot>,
    },
    /// Creates bookmarks.
    Bookmark {
        /// Bookmarks with their sources.
        bookmarks: Vec<SourcedBookmark>,
    },
    /// Sets or clears properties.
    Set {
        /// Full name of the dataset.
        name: String,
        /// Settings by property.
        #[serde(with = "settings")]
        settings: Vec<(String, Setting)>,
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
    /// Errors of the checks, which each sync task makes before it changes anything.
    pub async fn run(self, engine: &Engine, author: &mut Author) -> Result<(), PoolError> {
        match self {
            Change::Create(new) => return new.run(engine, author, Encryption::default()).await,
            Change::Clone { origin, name, properties, parents } => {
                return crate::create::clone(engine, author, (origin, name), properties, parents).await;
            }
            Change::Resize { name, size_bytes, keep_reservation } => {
                return reservation::resize(engine, author, &name, size_bytes, keep_reservation).await;
            }
            Change::Snapshot { snapshots, properties } => engine.snapshot(snapshots, properties).await?,
            Change::Destroy { name } => engine.destroy_dataset(name).await?,
            Change::DestroySnapshots { snapshots, defer } => engine.destroy_snapshots(snapshots, defer).await?,
            Change::DestroyBookmarks { bookmarks } => engine.destroy_bookmarks(bookmarks).await?,
            Change::Rollback { name, snapshot } => engine.rollback(name, Some(snapshot)).await?,
            Change::Promote { name } => engine.promote(name).await?,
            Change::Rename { name, new_name } => engine.rename(name, new_name).await?,
            Change::RenameSnapshots { snapshots } => {
                let renamed = snapshots.into_iter().map(|renamed| (renamed.snapshot, renamed.new_name));
                engine.rename_snapshots(renamed.collect()).await?;
            }
            Change::Hold { holds } => engine.hold(pairs(holds)).await?,
            Change::Release { holds } => engine.release(pairs(holds)).await?,
            Change::Bookmark { bookmarks } => {
                let sourced = bookmarks.into_iter().map(|sourced| (sourced.bookmark, sourced.source));
                engine.bookmark(sourced.collect()).await?;
            }
            Change::Set { name, settings } => engine.set_properties(name, settings).await?,
            Change::SetQuota { name, principal, kind, id, limit } => {
                engine.set_quota(name, principal, kind, id, limit).await?;
            }
        }
        author.record(engine).await
    }
}

fn pairs(holds: Vec<HeldSnapshot>) -> Vec<(String, String)> {
    holds.into_iter().map(|held| (held.snapshot, held.tag)).collect()
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
            Change::Snapshot { snapshots: vec!["p@a".into()], properties: Vec::new() },
            Change::Set { name: "p".into(), settings },
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
