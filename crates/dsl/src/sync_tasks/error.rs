//! Why a change of a dataset was refused. Each variant is one answer of `zfs(8)`; the doors word it for their users.

use thiserror::Error;
use weir_dmu::error::ObjectError;

/// Why a change was refused, or did not go through.
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
    /// The dataset above does not exist.
    #[error("{name}: parent does not exist")]
    NoParent {
        /// The name asked for.
        name: String,
    },
    /// The name is no name.
    #[error("{name}: invalid name: {why}")]
    Name {
        /// The name.
        name: String,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The dataset is not of the kind that the operation needs.
    #[error("{name}: {why}")]
    Kind {
        /// The name.
        name: String,
        /// What is wrong.
        why: &'static str,
    },
    /// Something else still needs the dataset.
    #[error("{name}: dataset is busy: {why}")]
    Busy {
        /// The name.
        name: String,
        /// What needs it.
        why: &'static str,
    },
    /// File systems, volumes or snapshots stand below.
    #[error("{name}: {what} exist")]
    HasDependents {
        /// The name.
        name: String,
        /// `children`, `snapshots`, `clones`.
        what: &'static str,
        /// Some of their names.
        dependents: Vec<String>,
    },
    /// A limit of space forbids it.
    #[error("{name}: {why}")]
    Space {
        /// The name.
        name: String,
        /// Which limit.
        why: &'static str,
    },
    /// A property cannot be set so.
    #[error("{name}: cannot set property {property:?}: {why}")]
    Property {
        /// The dataset.
        name: String,
        /// The property.
        property: String,
        /// Why not.
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
    /// A key is missing or does not fit.
    #[error("{name}: {why}")]
    Key {
        /// The dataset.
        name: String,
        /// What is wrong.
        why: &'static str,
    },
}

impl DslError {
    /// There is no dataset of that name.
    pub fn missing(name: &str) -> Self {
        DslError::Missing { name: name.to_owned() }
    }

    pub(crate) fn exists(name: &str) -> Self {
        DslError::Exists { name: name.to_owned() }
    }

    /// Something still needs it.
    pub fn busy(name: &str, why: &'static str) -> Self {
        DslError::Busy { name: name.to_owned(), why }
    }

    pub(crate) fn kind(name: &str, why: &'static str) -> Self {
        DslError::Kind { name: name.to_owned(), why }
    }

    pub(crate) fn space(name: &str, why: &'static str) -> Self {
        DslError::Space { name: name.to_owned(), why }
    }

    pub(crate) fn property(name: &str, property: &str, why: impl Into<String>) -> Self {
        DslError::Property { name: name.to_owned(), property: property.to_owned(), why: why.into() }
    }
}
