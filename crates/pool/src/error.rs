//! What can go wrong between a folder of images and an open pool.

use std::path::PathBuf;
use thiserror::Error;
use weir_format::{DecodeError, Txg};
use weir_machine::DiskError;

/// Why a pool could not be found, opened or walked.
#[derive(Debug, Error)]
pub enum PoolError {
    /// No label of any pool on the devices looked at.
    #[error("no pool found in {}; looked at {devices} file(s) or device(s)", list_paths(.searched))]
    NothingFound {
        /// Where was looked.
        searched: Vec<PathBuf>,
        /// How many devices were looked at.
        devices: usize,
    },
    /// There are pools, but not this one.
    #[error("no pool '{wanted}' in {}; there is: {}", list_paths(.searched), if .found.is_empty() { "nothing".to_owned() } else { .found.join(", ") })]
    NoSuchPool {
        /// Name or GUID asked for.
        wanted: String,
        /// Where was looked.
        searched: Vec<PathBuf>,
        /// What is there.
        found: Vec<String>,
    },
    /// Two pools of that name.
    #[error("several pools are called '{name}': name one by its GUID: {}", list_numbers(.guids))]
    Ambiguous {
        /// The name.
        name: String,
        /// Their GUIDs.
        guids: Vec<u64>,
    },
    /// The labels do not make a pool.
    #[error("pool '{pool}': {what}")]
    Config {
        /// The pool.
        pool: String,
        /// What is wrong.
        what: String,
    },
    /// Devices are missing beyond redundancy.
    #[error("pool '{pool}' cannot be opened: {}", .missing.join("; "))]
    MissingDevices {
        /// The pool.
        pool: String,
        /// One line for each top-level vdev that lacks too much.
        missing: Vec<String>,
    },
    /// No uberblock (at or before the asked txg) is left.
    #[error("pool '{pool}': no valid uberblock{} on {devices} device(s)", .at_most.map(|t| format!(" at or before txg {t}")).unwrap_or_default())]
    NoUberblock {
        /// The pool.
        pool: String,
        /// The highest txg allowed.
        at_most: Option<Txg>,
        /// Devices looked at.
        devices: usize,
    },
    /// The pool has no checkpoint.
    #[error("pool '{pool}' has no checkpoint")]
    NoCheckpoint {
        /// The pool.
        pool: String,
    },
    /// The version is none that exists.
    #[error("pool '{pool}' has version {version}, which this program cannot read (1 to 28 and 5000 it can)")]
    Version {
        /// The pool.
        pool: String,
        /// Its version.
        version: u64,
    },
    /// Features that must be known to read the pool are not.
    #[error("pool '{pool}' uses features that this program cannot read: {}", .features.join(", "))]
    UnsupportedFeatures {
        /// The pool.
        pool: String,
        /// Their full names.
        features: Vec<String>,
    },
    /// Something in the MOS cannot be read.
    #[error("pool '{pool}': {what} cannot be read: {source}; older states can be tried with -F or -T TXG")]
    Mos {
        /// The pool.
        pool: String,
        /// What was read.
        what: String,
        /// Why not.
        source: Box<weir_dmu::ObjectError>,
    },
    /// An object cannot be read.
    #[error("{0}")]
    Object(#[from] weir_dmu::ObjectError),
    /// A change of a dataset was refused, or did not go through.
    #[error("{0}")]
    Dsl(#[from] weir_dsl::sync_tasks::DslError),
    /// A file system cannot be opened.
    #[error("{name}: {source}")]
    File {
        /// Its name.
        name: String,
        /// Why not.
        source: Box<weir_files::FileError>,
    },
    /// A volume cannot be opened or changed.
    #[error("{name}: {source}")]
    Volume {
        /// Its name.
        name: String,
        /// Why not.
        source: Box<weir_volumes::VolumeError>,
    },
    /// A key is missing, wrong or in use.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// It is not done, and nothing was changed.
    #[error("{what}")]
    Refused {
        /// Why not.
        what: String,
    },
    /// A device is in use.
    #[error("{} {what}; use -f to take it nevertheless", .path.display())]
    InUse {
        /// The device.
        path: PathBuf,
        /// By whom.
        what: String,
    },
    /// Writing failed beyond redundancy: nothing is written any more.
    #[error("pool '{pool}' is suspended: {why}")]
    Suspended {
        /// The pool.
        pool: String,
        /// What failed.
        why: String,
    },
    /// A disk failed.
    #[error("{}", at_path(.path, .source))]
    Disk {
        /// The device.
        path: PathBuf,
        /// What it said.
        source: DiskError,
    },
    /// Bytes are not what they should be.
    #[error("{what}: {source}")]
    Decode {
        /// Where.
        what: String,
        /// Why.
        source: DecodeError,
    },
}

/// Errors of opening name the path themselves.
fn at_path(path: &std::path::Path, error: &DiskError) -> String {
    match error {
        DiskError::Open { .. } => error.to_string(),
        _ => format!("{}: {error}", path.display()),
    }
}

fn list_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn list_numbers(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Why a key is not loaded, unloaded, changed or made. Worded as OpenZFS does.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[allow(missing_docs)]
pub enum KeyError {
    #[error("'{name}' is not encrypted.")]
    NotEncrypted { name: String },
    #[error("Keys must be loaded for encryption root of '{name}' ({root}).")]
    NotRoot { name: String, root: String },
    #[error("Key already loaded for '{name}'.")]
    Loaded { name: String },
    #[error("Key already unloaded for '{name}'.")]
    Unloaded { name: String },
    #[error("Incorrect key provided for '{name}'.")]
    Wrong { name: String },
    /// The secret cannot be a key: its length, its digits.
    #[error("Key of '{name}': {error}")]
    Material { name: String, error: weir_codec::CodecError },
    #[error("'{name}' is busy.")]
    Busy { name: String },
    #[error("Key must be loaded.")]
    NotLoaded,
    #[error("Keys cannot be changed on clones.")]
    Clone,
    #[error("Key inheriting can only be performed on encryption roots.")]
    InheritsAlready,
    #[error("Root dataset cannot inherit key.")]
    NoParent,
    #[error("Parent must be encrypted.")]
    PlainParent,
    #[error("Parent key must be loaded.")]
    ParentNotLoaded,
    #[error("Encryption root's key is not loaded or provided.")]
    RootNotLoaded,
    #[error("Encryption must be turned on to set encryption properties.")]
    Off,
    #[error("Keyformat required for new encryption root.")]
    NoFormat,
    #[error("Encryption feature not enabled.")]
    NoFeature,
}
