//! Reasons for which a change of a dataset is refused. Each variant is one answer of `zfs(8)`; the front ends word it
//! for their users.

use thiserror::Error;
use weir_dmu::error::ObjectError;

/// Error of a change of a dataset.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum DslError {
    /// Reading or changing an object of the pool failed.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// There is no dataset, snapshot or bookmark of that name.
    #[error("{name}: dataset does not exist")]
    Missing {
        /// The name.
        name: String,
    },
    /// The name is taken.
    #[error("{name}: dataset already exists")]
    Exists {
        /// The name.
        name: String,
    },
    /// The parent dataset does not exist.
    #[error("{name}: parent does not exist")]
    NoParent {
        /// The requested name.
        name: String,
    },
    /// The name is malformed.
    #[error("{name}: invalid name: {why}")]
    Name {
        /// The name.
        name: String,
        /// Reason.
        why: &'static str,
    },
    /// The dataset is not of the kind that the operation needs.
    #[error("{name}: {why}")]
    Kind {
        /// The name.
        name: String,
        /// Reason.
        why: &'static str,
    },
    /// Something else still needs the dataset.
    #[error("{name}: dataset is busy: {why}")]
    Busy {
        /// The name.
        name: String,
        /// The user of the dataset.
        why: &'static str,
    },
    /// Snapshots have holds.
    #[error("{}: dataset is busy: it is held", names.join(", "))]
    Held {
        /// The names.
        names: Vec<String>,
    },
    /// File systems, volumes or snapshots depend on the dataset.
    #[error("{name}: {what} exist")]
    HasDependents {
        /// The name.
        name: String,
        /// `children`, `snapshots`, `clones`.
        what: &'static str,
        /// Some of their names.
        dependents: Vec<String>,
    },
    /// The change exceeds a limit of space.
    #[error("{name}: {why}")]
    Space {
        /// The name.
        name: String,
        /// The limit.
        why: &'static str,
    },
    /// The property cannot have this value on this dataset.
    #[error("{name}: cannot set property {property:?}: {why}")]
    Property {
        /// The dataset.
        name: String,
        /// The property.
        property: String,
        /// Reason.
        why: String,
    },
    /// The pool lacks a feature.
    #[error("{name}: the pool feature {feature:?} must be enabled")]
    Feature {
        /// The dataset.
        name: String,
        /// The feature's short name.
        feature: &'static str,
    },
    /// A stream cannot be received into the dataset; the message is OpenZFS's.
    #[error("{why}")]
    Stream {
        /// The dataset.
        name: String,
        /// Reason.
        why: String,
    },
    /// A key is missing or wrong.
    #[error("{name}: {why}")]
    Key {
        /// The dataset.
        name: String,
        /// Reason.
        why: &'static str,
    },
}

impl DslError {
    /// A [`DslError::Missing`] of a name.
    pub fn missing(name: &str) -> Self {
        DslError::Missing { name: name.to_owned() }
    }

    /// Whether the change is impossible only in the txg in which another one has just changed the dataset: a second snapshot, a
    /// clone of a new snapshot, a rollback to one (EAGAIN of OpenZFS's sync tasks).
    pub fn is_too_early(&self) -> bool {
        matches!(self, DslError::Busy { why, .. } if why.ends_with("created in this txg"))
    }

    pub(crate) fn exists(name: &str) -> Self {
        DslError::Exists { name: name.to_owned() }
    }

    /// A [`DslError::Busy`] of a name.
    pub fn busy(name: &str, why: &'static str) -> Self {
        DslError::Busy { name: name.to_owned(), why }
    }

    pub(crate) fn kind(name: &str, why: &'static str) -> Self {
        DslError::Kind { name: name.to_owned(), why }
    }

    /// A [`DslError::Stream`] about a dataset.
    pub fn stream(name: &str, why: String) -> Self {
        DslError::Stream { name: name.to_owned(), why }
    }

    pub(crate) fn space(name: &str, why: &'static str) -> Self {
        DslError::Space { name: name.to_owned(), why }
    }

    pub(crate) fn property(name: &str, property: &str, why: impl Into<String>) -> Self {
        DslError::Property { name: name.to_owned(), property: property.to_owned(), why: why.into() }
    }
}
