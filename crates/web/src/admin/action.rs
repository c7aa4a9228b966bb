//! Actions of the page, each as the command line that does the same.
//!
//! An action is data with named fields. [`PageAction::line`] makes the words of a command line of it, which the process that has
//! the pools open parses as it parses those of a terminal: names, values and options are checked in one place. No shell is used.

use super::words::{CommandLine, NewVdev, Setting, Words};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Longest time for which an alert is muted, in hours: a year.
const MAX_MUTE_HOURS: u32 = 8760;

/// Rights of a token; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads everything that the page shows, and changes nothing.
    View,
    /// Also takes snapshots, scrubs, trims, clears errors, runs jobs, acknowledges and mutes alerts.
    Operate,
    /// Does everything.
    Administer,
}

impl Role {
    /// The name, as commands take it.
    pub fn name(self) -> &'static str {
        match self {
            Role::View => "view",
            Role::Operate => "operate",
            Role::Administer => "administer",
        }
    }

    /// The role of a name.
    pub fn named(name: &str) -> Option<Self> {
        [Role::View, Role::Operate, Role::Administer].into_iter().find(|role| role.name() == name)
    }
}

/// Step of a scrub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScrubStep {
    /// Starts one, or continues a paused one.
    Start,
    /// Pauses it.
    Pause,
    /// Stops it.
    Stop,
}

/// Step of work on the free space of devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WorkStep {
    /// Starts it, or continues it.
    Start,
    /// Suspends it.
    Suspend,
    /// Cancels it.
    Cancel,
}

/// Work of a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum JobWork {
    /// Takes snapshots of these datasets, and destroys the oldest that it took.
    Snapshot(Vec<String>),
    /// Starts scrubs of these pools.
    Scrub(Vec<String>),
    /// Replicates a dataset to a target, as `weir replicate` takes them.
    Replicate {
        /// Source.
        source: String,
        /// Target: a dataset, or `HOST:DATASET`.
        target: String,
        /// Bytes per second at most, such as `50M`.
        #[serde(default)]
        limit: Option<String>,
        /// Snapshots that stay at the target.
        #[serde(default)]
        keep_target: Option<u32>,
        /// Age of the target's last snapshot, in seconds, beyond which an alert is sent.
        #[serde(default)]
        lag_seconds: Option<u32>,
    },
}

/// An action of the page.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "do", rename_all = "snake_case", deny_unknown_fields)]
pub enum PageAction {
    /// Takes a snapshot.
    Snapshot {
        /// `DATASET@NAME`.
        snapshot: String,
        /// Also of all datasets below.
        #[serde(default)]
        recursive: bool,
    },
    /// Starts, pauses or stops a scrub.
    Scrub {
        /// Pool.
        pool: String,
        /// Step.
        step: ScrubStep,
    },
    /// Sets error counters to zero, and continues after errors.
    Clear {
        /// Pool.
        pool: String,
        /// Device [default: all].
        #[serde(default)]
        device: Option<String>,
    },
    /// Ends the reminders of an alert.
    Acknowledge {
        /// Name of the alert.
        alert: String,
    },
    /// Sends nothing about an alert.
    Mute {
        /// Name of the alert.
        alert: String,
        /// Hours; 0 ends it.
        hours: u32,
    },
    /// Creates a file system, or a volume if it has a size.
    CreateDataset {
        /// Full name.
        name: String,
        /// Size of a volume, such as `10G`.
        #[serde(default)]
        volume_size: Option<String>,
        /// Whether a volume reserves no space.
        #[serde(default)]
        sparse: bool,
        /// Properties.
        #[serde(default)]
        properties: Vec<Setting>,
    },
    /// Sets a property of a dataset.
    Set {
        /// Dataset.
        dataset: String,
        /// Property.
        property: String,
        /// Value.
        value: String,
    },
    /// Removes the dataset's own value of a property.
    Inherit {
        /// Dataset.
        dataset: String,
        /// Property.
        property: String,
    },
    /// Destroys a dataset or snapshots.
    Destroy {
        /// Dataset, or `DATASET@SNAPSHOT[%SNAPSHOT][,…]`.
        name: String,
        /// Also what is below.
        #[serde(default)]
        recursive: bool,
        /// Also clones elsewhere.
        #[serde(default)]
        dependents: bool,
    },
    /// Sets a dataset back to a snapshot.
    Rollback {
        /// `DATASET@NAME`.
        snapshot: String,
        /// Destroys the later snapshots and bookmarks.
        #[serde(default)]
        destroy_later: bool,
    },
    /// Makes a dataset of a snapshot.
    Clone {
        /// `DATASET@NAME`.
        snapshot: String,
        /// Full name of the new dataset.
        name: String,
    },
    /// Takes a device out of service.
    Offline {
        /// Pool.
        pool: String,
        /// Device.
        device: String,
    },
    /// Puts a device into service.
    Online {
        /// Pool.
        pool: String,
        /// Device.
        device: String,
    },
    /// Replaces a device; what is on the new one is overwritten.
    Replace {
        /// Pool.
        pool: String,
        /// Device.
        device: String,
        /// Absolute path of the new one.
        new_device: String,
        /// Takes a device with data.
        #[serde(default)]
        force: bool,
    },
    /// Makes a device a mirror, or one of more sides; what is on the new one is overwritten.
    Attach {
        /// Pool.
        pool: String,
        /// Device.
        device: String,
        /// Absolute path of the new one.
        new_device: String,
        /// Takes a device with data.
        #[serde(default)]
        force: bool,
    },
    /// Takes a device out of a mirror for good.
    Detach {
        /// Pool.
        pool: String,
        /// Device.
        device: String,
    },
    /// Creates a pool; what is on the devices is overwritten.
    CreatePool {
        /// Name.
        name: String,
        /// Vdevs.
        vdevs: Vec<NewVdev>,
        /// Properties of the pool.
        #[serde(default)]
        properties: Vec<Setting>,
        /// Properties of the root file system.
        #[serde(default)]
        root_properties: Vec<Setting>,
        /// Takes devices with data.
        #[serde(default)]
        force: bool,
    },
    /// Imports a pool.
    Import {
        /// Name or GUID.
        pool: String,
        /// Directory or device in which it is found.
        #[serde(default)]
        directory: Option<String>,
        /// Takes a pool that another host used.
        #[serde(default)]
        force: bool,
    },
    /// Exports a pool: its clients lose it.
    Export {
        /// Pool.
        pool: String,
        /// Also if clients use it.
        #[serde(default)]
        force: bool,
    },
    /// Destroys a pool.
    DestroyPool {
        /// Pool.
        pool: String,
        /// Also if clients use it.
        #[serde(default)]
        force: bool,
    },
    /// Adds vdevs to a pool; what is on the devices is overwritten.
    AddVdevs {
        /// Pool.
        pool: String,
        /// Vdevs.
        vdevs: Vec<NewVdev>,
        /// Takes devices with data, and vdevs of another redundancy.
        #[serde(default)]
        force: bool,
    },
    /// Takes a vdev out of a pool: its data moves to the others.
    Remove {
        /// Pool.
        pool: String,
        /// Vdev or device.
        device: String,
    },
    /// Ends a removal in progress: the vdev stays.
    StopRemoval {
        /// Pool.
        pool: String,
    },
    /// Makes an exported pool of the last side of each mirror.
    Split {
        /// Pool.
        pool: String,
        /// Name of the new pool.
        name: String,
    },
    /// Writes to all free space of devices.
    Initialize {
        /// Pool.
        pool: String,
        /// Device [default: all].
        #[serde(default)]
        device: Option<String>,
        /// Step.
        step: WorkStep,
    },
    /// Discards the free space of devices.
    Trim {
        /// Pool.
        pool: String,
        /// Device [default: all].
        #[serde(default)]
        device: Option<String>,
        /// Step.
        step: WorkStep,
    },
    /// Keeps the state of a pool, to which an import can go back.
    Checkpoint {
        /// Pool.
        pool: String,
    },
    /// Gives up the checkpoint of a pool.
    DiscardCheckpoint {
        /// Pool.
        pool: String,
    },
    /// Enables all features that a pool can have.
    Upgrade {
        /// Pool.
        pool: String,
    },
    /// Overwrites the labels of a device that no pool uses.
    Wipe {
        /// Absolute path.
        device: String,
        /// Also those of a pool that is not exported.
        #[serde(default)]
        force: bool,
    },
    /// Renames a dataset or snapshot.
    Rename {
        /// Name.
        name: String,
        /// New name.
        new_name: String,
    },
    /// Makes a clone independent of its origin.
    Promote {
        /// Clone.
        dataset: String,
    },
    /// Keeps a snapshot from being destroyed.
    Hold {
        /// Snapshot.
        snapshot: String,
        /// Tag.
        tag: String,
    },
    /// Ends a hold.
    Release {
        /// Snapshot.
        snapshot: String,
        /// Tag.
        tag: String,
    },
    /// Mounts a file system.
    Mount {
        /// File system.
        dataset: String,
    },
    /// Unmounts a file system.
    Unmount {
        /// File system.
        dataset: String,
        /// Also if it is in use.
        #[serde(default)]
        force: bool,
    },
    /// Loads the key of an encryption root; a passphrase or hexadecimal key is the request's secret.
    LoadKey {
        /// Encryption root.
        dataset: String,
    },
    /// Unloads the key of an encryption root.
    UnloadKey {
        /// Encryption root.
        dataset: String,
    },
    /// Wraps the keys of a dataset with a new passphrase, the request's secret.
    ChangeKey {
        /// Dataset.
        dataset: String,
    },
    /// Sends the stream of a snapshot as a file: a download, which takes the confirmation of its dry run.
    Send {
        /// Snapshot.
        snapshot: String,
        /// Earlier snapshot or bookmark: only the changes since then.
        #[serde(default)]
        from: Option<String>,
        /// Also all datasets below, with their snapshots and properties.
        #[serde(default)]
        recursive: bool,
        /// Encrypted blocks as they are, without their keys.
        #[serde(default)]
        raw: bool,
        /// Large, embedded and compressed blocks as they are.
        #[serde(default)]
        as_stored: bool,
    },
    /// Receives a stream from a file: an upload.
    Receive {
        /// Full name of the dataset.
        dataset: String,
        /// Leaves it unmounted.
        #[serde(default)]
        no_mount: bool,
    },
    /// Adds a job.
    AddJob {
        /// Name.
        name: String,
        /// Work.
        work: JobWork,
        /// Also of all datasets below.
        #[serde(default)]
        recursive: bool,
        /// Snapshots that stay.
        #[serde(default)]
        keep: Option<u32>,
        /// Schedule, such as `daily 02:30`.
        schedule: String,
        /// Time zone, such as `Europe/Berlin` [default: the machine's].
        #[serde(default)]
        time_zone: Option<String>,
        /// Replaces the job of this name.
        #[serde(default)]
        replace: bool,
    },
    /// Removes a job that `AddJob` added.
    RemoveJob {
        /// Name.
        job: String,
    },
    /// Runs a job now.
    RunJob {
        /// Name.
        job: String,
    },
}

impl PageAction {
    /// Decodes an action. An unknown field or action is an error, so that no part of one is ignored.
    ///
    /// # Errors
    /// The reason why the text is no action.
    pub fn from_json(bytes: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// The least role that may do it.
    pub fn role(&self) -> Role {
        match self {
            PageAction::Snapshot { .. }
            | PageAction::Scrub { .. }
            | PageAction::Clear { .. }
            | PageAction::Trim { .. }
            | PageAction::RunJob { .. }
            | PageAction::Acknowledge { .. }
            | PageAction::Mute { .. } => Role::Operate,
            _ => Role::Administer,
        }
    }

    /// Whether it cannot be undone or is a download, so that a dry run must precede it.
    pub fn needs_confirmation(&self) -> bool {
        match self {
            PageAction::Destroy { .. }
            | PageAction::Rollback { .. }
            | PageAction::Export { .. }
            | PageAction::DestroyPool { .. }
            | PageAction::Detach { .. }
            | PageAction::CreatePool { .. }
            | PageAction::Replace { .. }
            | PageAction::Attach { .. }
            | PageAction::AddVdevs { .. }
            | PageAction::Remove { .. }
            | PageAction::Split { .. }
            | PageAction::DiscardCheckpoint { .. }
            | PageAction::Upgrade { .. }
            | PageAction::Send { .. }
            | PageAction::Wipe { .. } => true,
            PageAction::Import { force, .. } => *force,
            _ => false,
        }
    }

    /// Whether the command writes or reads a stream, which has a request of its own.
    pub fn is_stream(&self) -> bool {
        matches!(self, PageAction::Send { .. } | PageAction::Receive { .. })
    }

    /// Whether the command asks for a key or passphrase.
    pub fn takes_secret(&self) -> bool {
        match self {
            PageAction::LoadKey { .. } | PageAction::ChangeKey { .. } => true,
            PageAction::CreateDataset { properties, .. } => properties.iter().any(|one| one.property == "keyformat"),
            _ => false,
        }
    }

    /// The command line that does it.
    ///
    /// # Errors
    /// The first field that no command line can have.
    pub fn line(&self) -> Result<CommandLine, String> {
        match self {
            PageAction::Acknowledge { alert } => Words::new("daemon", &["alerts", "ack"]).word("alert", alert).done(),
            PageAction::Mute { alert, hours } => {
                if *hours > MAX_MUTE_HOURS {
                    return Err(format!("an alert is muted for at most {MAX_MUTE_HOURS} hours"));
                }
                let words = Words::new("daemon", &["alerts", "mute", "--hours", &hours.to_string()]);
                words.word("alert", alert).done()
            }
            _ => self
                .of_dataset()
                .or_else(|| self.of_pool())
                .or_else(|| self.of_devices())
                .or_else(|| self.of_job())
                .unwrap_or_else(|| Err("no action".to_owned())),
        }
    }
}
