//! Reasons for which a command is refused, as data.

use serde::{Deserialize, Serialize};
use weir_dsl::sync_tasks::DslError;
use weir_pool::PoolError;

/// Why a command is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RefusalKind {
    /// There is no dataset, snapshot or bookmark of that name.
    Missing,
    /// The name is taken.
    Exists,
    /// The parent of a new dataset does not exist.
    NoParent,
    /// The name or the kind of dataset is wrong.
    Name,
    /// The dataset is in use.
    Busy,
    /// Snapshots have holds.
    Held,
    /// The dataset has children or snapshots.
    HasChildren,
    /// Snapshots of the dataset have clones elsewhere.
    HasClones,
    /// There are later snapshots or bookmarks.
    HasLater,
    /// No snapshot has one of the names.
    NoSnapshots,
    /// A quota, a reservation or the pool has no room.
    Space,
    /// A property cannot have this value, or the pool lacks a feature.
    Property,
    /// A key is missing or wrong.
    Key,
    /// A stream cannot be received into the dataset.
    Stream,
    /// The pool is another one than the command names.
    OtherPool,
    /// The pool cannot be opened.
    Unopened,
    /// Reading or writing the pool failed.
    Pool,
    /// The caller of a query has gone away.
    Stopped,
    /// The author canceled the change.
    Canceled,
    /// The user may not do it.
    Denied,
}

/// A command that was refused, or failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Refusal {
    /// Kind of the reason.
    pub kind: RefusalKind,
    /// The reason, without the command and the dataset that it names.
    pub why: String,
    /// Names of datasets, snapshots and bookmarks that stand in the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub names: Vec<String>,
}

impl Refusal {
    /// A refusal without names.
    pub fn new(kind: RefusalKind, why: impl Into<String>) -> Self {
        Refusal { kind, why: why.into(), names: Vec::new() }
    }

    /// A refusal because of these datasets.
    pub fn because_of(kind: RefusalKind, why: impl Into<String>, names: Vec<String>) -> Self {
        Refusal { names, ..Refusal::new(kind, why) }
    }

    /// A refusal because the dataset does not exist.
    pub fn missing() -> Self {
        Refusal::new(RefusalKind::Missing, "dataset does not exist")
    }
}

impl From<PoolError> for Refusal {
    fn from(error: PoolError) -> Self {
        match error {
            PoolError::Dsl(error) => error.into(),
            PoolError::Key(error) => Refusal::new(RefusalKind::Key, error.to_string()),
            other => Refusal::new(RefusalKind::Pool, other.to_string()),
        }
    }
}

impl From<DslError> for Refusal {
    fn from(error: DslError) -> Self {
        let of = |kind, why: &str| Refusal::new(kind, why);
        match error {
            DslError::Object(error) => of(RefusalKind::Pool, &error.to_string()),
            DslError::Missing { .. } => Refusal::missing(),
            DslError::Exists { .. } => of(RefusalKind::Exists, "dataset already exists"),
            DslError::NoParent { .. } => of(RefusalKind::NoParent, "parent does not exist"),
            DslError::Name { why, .. } => of(RefusalKind::Name, &format!("invalid name: {why}")),
            DslError::Kind { why, .. } => of(RefusalKind::Name, why),
            DslError::Space { why, .. } => of(RefusalKind::Space, why),
            DslError::Stream { why, .. } => of(RefusalKind::Stream, &why),
            DslError::Key { why, .. } => of(RefusalKind::Key, why),
            DslError::Busy { why, .. } => of(RefusalKind::Busy, &format!("dataset is busy: {why}")),
            DslError::Held { names } => Refusal::because_of(RefusalKind::Held, "dataset is busy: it is held", names),
            DslError::HasDependents { what: "clones", dependents, .. } => {
                Refusal::because_of(RefusalKind::HasClones, "snapshot has dependent clones", dependents)
            }
            DslError::HasDependents { what, dependents, .. } => {
                Refusal::because_of(RefusalKind::HasChildren, format!("{what} exist"), dependents)
            }
            DslError::Property { property, why, .. } => of(RefusalKind::Property, &format!("'{property}' {why}")),
            DslError::Feature { feature, .. } => {
                of(RefusalKind::Property, &format!("pool must be upgraded: feature@{feature} is not enabled"))
            }
        }
    }
}
