//! Questions of a script to the pool, and the answers: the boundary between the interpreter's thread and the txg.

use weir_engine::ProgramChange;

/// A question of a script.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ask {
    /// Whether a dataset exists.
    Exists {
        /// Full name.
        name: String,
    },
    /// A property.
    Property {
        /// Full name of the dataset.
        name: String,
        /// Name of the property.
        property: String,
    },
    /// A list.
    List {
        /// Kind of the list.
        list: List,
        /// Full name of the dataset.
        name: String,
    },
    /// A change.
    Change {
        /// The change.
        change: ProgramChange,
        /// Whether it is only checked.
        only_checks: bool,
    },
    /// A message for the log.
    Debug {
        /// The message.
        text: String,
    },
}

/// The lists of `zfs.list`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum List {
    /// Children of a file system or volume.
    Children,
    /// Snapshots of a file system or volume.
    Snapshots,
    /// Clones of a snapshot.
    Clones,
    /// Bookmarks of a file system or volume.
    Bookmarks,
    /// Holds of a snapshot, with their times.
    Holds,
    /// User properties of a dataset, with their values and sources.
    UserProperties,
    /// Names of the native properties that a dataset has.
    SystemProperties,
}

/// A value in an answer of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Word {
    /// A text.
    Text(String),
    /// A number; unsigned ones wrap around.
    Number(i64),
    /// A list of texts.
    List(Vec<String>),
}

/// An answer of the pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// Nothing to say.
    Done,
    /// Whether it is so.
    Is(bool),
    /// The value of a property and its source, if it has one; `None` if the dataset does not have the property.
    Property(Option<(Word, Option<String>)>),
    /// The rows of a list.
    Rows(Vec<Vec<Word>>),
    /// The number of a refusal, 0 for none, and what it names.
    Number(i32, Vec<String>),
    /// An error that ends the script.
    Failed(Failure),
}

/// An error that ends a script, unless a coroutine catches it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// There is no such dataset.
    Missing(String),
    /// The dataset is in another pool.
    OtherPool(String),
    /// The dataset cannot be read.
    Unreadable(String),
    /// The list is one of snapshots, and the dataset is none.
    NoSnapshot(String),
    /// The list is one of heads, and the dataset is a snapshot.
    IsSnapshot(String),
    /// There is no such property.
    NoProperty(String),
    /// The property cannot be read of this dataset.
    InvalidProperty {
        /// Full name of the dataset.
        name: String,
        /// Name of the property.
        property: String,
    },
}
