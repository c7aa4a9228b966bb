//! Errors of finding, opening and walking a pool.

use std::path::PathBuf;
use thiserror::Error;
use weir_format::{DecodeError, Txg};
use weir_machine::DiskError;

/// Error of finding, opening or walking a pool.
#[derive(Debug, Error)]
pub enum PoolError {
    /// No device has a label of a pool.
    #[error("no pool found in {}; looked at {devices} file(s) or device(s)", list_paths(.searched))]
    NothingFound {
        /// Searched directories and devices.
        searched: Vec<PathBuf>,
        /// Number of devices that were read.
        devices: usize,
    },
    /// There are pools, but not the requested one.
    #[error("no pool '{wanted}' in {}; there is: {}", list_paths(.searched), if .found.is_empty() { "nothing".to_owned() } else { .found.join(", ") })]
    NoSuchPool {
        /// Requested name or GUID.
        wanted: String,
        /// Searched directories and devices.
        searched: Vec<PathBuf>,
        /// Names and GUIDs of the pools that were found.
        found: Vec<String>,
    },
    /// Several pools have the name.
    #[error("several pools are called '{name}': name one by its GUID: {}", list_numbers(.guids))]
    Ambiguous {
        /// The name.
        name: String,
        /// Their GUIDs.
        guids: Vec<u64>,
    },
    /// The labels do not describe a pool.
    #[error("pool '{pool}': {what}")]
    Config {
        /// The pool.
        pool: String,
        /// Description of the error.
        what: String,
    },
    /// Devices are missing beyond redundancy.
    #[error("pool '{pool}' cannot be opened: {}", .missing.join("; "))]
    MissingDevices {
        /// The pool.
        pool: String,
        /// One line for each top-level vdev without enough children.
        missing: Vec<String>,
    },
    /// There is no valid uberblock (of at most the requested txg).
    #[error("pool '{pool}': no valid uberblock{} on {devices} device(s)", .at_most.map(|t| format!(" at or before txg {t}")).unwrap_or_default())]
    NoUberblock {
        /// The pool.
        pool: String,
        /// Maximum txg.
        at_most: Option<Txg>,
        /// Number of devices that were read.
        devices: usize,
    },
    /// The pool has no checkpoint.
    #[error("pool '{pool}' has no checkpoint")]
    NoCheckpoint {
        /// The pool.
        pool: String,
    },
    /// The version does not exist.
    #[error("pool '{pool}' has version {version}, which this program cannot read (1 to 28 and 5000 it can)")]
    Version {
        /// The pool.
        pool: String,
        /// Version of the pool.
        version: u64,
    },
    /// The pool uses features that are unsupported and required for reading.
    #[error("pool '{pool}' uses features that this program cannot read: {}", .features.join(", "))]
    UnsupportedFeatures {
        /// The pool.
        pool: String,
        /// Their full names.
        features: Vec<String>,
    },
    /// An object of the MOS cannot be read.
    #[error("pool '{pool}': {what} cannot be read: {source}{}", older_state(.source))]
    Mos {
        /// The pool.
        pool: String,
        /// Description of the object.
        what: String,
        /// Cause.
        source: Box<weir_dmu::ObjectError>,
    },
    /// An object cannot be read.
    #[error("{0}")]
    Object(#[from] weir_dmu::ObjectError),
    /// A change of a dataset was refused, or failed.
    #[error("{0}")]
    Dsl(#[from] weir_dsl::sync_tasks::DslError),
    /// A file system cannot be opened.
    #[error("{name}: {source}")]
    File {
        /// Name of the file system.
        name: String,
        /// Cause.
        source: Box<weir_files::FileError>,
    },
    /// A volume cannot be opened or changed.
    #[error("{name}: {source}")]
    Volume {
        /// Name of the volume.
        name: String,
        /// Cause.
        source: Box<weir_volumes::VolumeError>,
    },
    /// A key is missing, wrong or in use.
    #[error(transparent)]
    Key(#[from] KeyError),
    /// The operation was refused, and nothing was changed.
    #[error("{what}")]
    Refused {
        /// Reason.
        what: String,
    },
    /// A device is in use.
    #[error("{} {what}; use -f to take it nevertheless", .path.display())]
    InUse {
        /// The device.
        path: PathBuf,
        /// Description of the user.
        what: String,
    },
    /// Writes failed beyond redundancy; the pool is suspended.
    #[error("pool '{pool}' is suspended: {why}")]
    Suspended {
        /// The pool.
        pool: String,
        /// The first error.
        why: String,
    },
    /// A device failed.
    #[error("{}", at_path(.path, .source))]
    Disk {
        /// The device.
        path: PathBuf,
        /// Cause.
        source: DiskError,
    },
    /// A structure on disk is malformed.
    #[error("{what}: {source}")]
    Decode {
        /// Description of the structure.
        what: String,
        /// Cause.
        source: DecodeError,
    },
}

/// Errors of opening a device have the path already.
/// What may help if the MOS cannot be read: an older state does not need devices less.
fn older_state(source: &weir_dmu::ObjectError) -> &'static str {
    match source {
        weir_dmu::ObjectError::Block { error: weir_blocks::BlockError::Missing { .. }, .. } => {
            "; make the devices available, or copy what can be read with 'weir rescue'"
        }
        _ => "; 'zpool import -F' or '-T TXG' goes back to an older state",
    }
}

fn at_path(path: &std::path::Path, error: &DiskError) -> String {
    match error {
        DiskError::Open { .. } | DiskError::OwnMount { .. } => error.to_string(),
        _ => format!("{}: {error}", path.display()),
    }
}

fn list_paths(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

fn list_numbers(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Error of loading, unloading, changing or making a key, in OpenZFS's words.
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
    /// The secret cannot be a key, because of its length or format.
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

#[cfg(test)]
mod tests {
    use super::*;
    use weir_blocks::BlockError;
    use weir_dmu::{ErrorLocation, ObjectError};

    #[test]
    fn an_older_state_is_no_advice_for_missing_devices() {
        let devices = vec!["sda".to_owned()];
        let missing = BlockError::Missing { vdev: 0, offset: 0x1000, devices };
        let text = |error| {
            let source = Box::new(ObjectError::Block { place: ErrorLocation::default(), error });
            PoolError::Mos { pool: "p".into(), what: "the MOS".into(), source }.to_string()
        };
        let said = text(missing);
        assert!(said.ends_with("make the devices available, or copy what can be read with 'weir rescue'"), "{said}");
        assert!(text(BlockError::Redacted).ends_with("'-T TXG' goes back to an older state"));
    }
}
