//! Actions of the page, each as the command line that does the same.
//!
//! An action is data with named fields. [`PageAction::line`] makes the words of a command line of it, which the process that has
//! the pools open parses as it parses those of a terminal: names, values and options are checked in one place. No shell is used.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Longest name, value or path that is taken, in bytes.
const MAX_WORD_BYTES: usize = 4096;
/// Maximum number of vdevs of a new pool, and of devices of one of them.
const MAX_DEVICES: usize = 1024;
/// Maximum number of properties of an action.
const MAX_PROPERTIES: usize = 64;
/// Longest time for which an alert is muted, in hours: a year.
const MAX_MUTE_HOURS: u32 = 8760;

/// Rights of a token; each includes those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Reads everything that the page shows, and changes nothing.
    View,
    /// Also takes snapshots, scrubs, clears errors, acknowledges and mutes alerts.
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

/// A command line without a shell: the program and its words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommandLine {
    /// `zfs`, `zpool` or `daemon`.
    pub program: &'static str,
    /// Words after it.
    pub words: Vec<String>,
}

impl CommandLine {
    /// A command line of these words.
    pub fn new<S: AsRef<str>>(program: &'static str, words: impl IntoIterator<Item = S>) -> Self {
        CommandLine { program, words: words.into_iter().map(|word| word.as_ref().to_owned()).collect() }
    }
}

/// The line for a shell: words with other characters than those of names and paths are quoted.
impl fmt::Display for CommandLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "weir {}", self.program)?;
        for word in &self.words {
            let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./@:=,+%#".contains(c);
            match !word.is_empty() && word.chars().all(is_plain) {
                true => write!(f, " {word}")?,
                false => write!(f, " '{}'", word.replace('\'', "'\\''"))?,
            }
        }
        Ok(())
    }
}

/// Kind of a vdev of a new pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VdevKind {
    /// Each device is a top-level vdev.
    Stripe,
    /// A mirror.
    Mirror,
    /// RAID-Z with one parity device.
    Raidz1,
    /// RAID-Z with two parity devices.
    Raidz2,
    /// RAID-Z with three parity devices.
    Raidz3,
    /// Log devices.
    Log,
    /// A mirror of log devices.
    LogMirror,
    /// Devices of the special class.
    Special,
    /// A mirror of the special class.
    SpecialMirror,
    /// Cache devices.
    Cache,
    /// Hot spares.
    Spare,
}

impl VdevKind {
    /// Keyword of the class, which a command line has once; none for data.
    fn class(self) -> Option<&'static str> {
        match self {
            VdevKind::Stripe | VdevKind::Mirror | VdevKind::Raidz1 | VdevKind::Raidz2 | VdevKind::Raidz3 => None,
            VdevKind::Log | VdevKind::LogMirror => Some("log"),
            VdevKind::Special | VdevKind::SpecialMirror => Some("special"),
            VdevKind::Cache => Some("cache"),
            VdevKind::Spare => Some("spare"),
        }
    }

    /// Keyword of the layout; none for single devices, which come first in their class.
    fn layout(self) -> Option<&'static str> {
        match self {
            VdevKind::Mirror | VdevKind::LogMirror | VdevKind::SpecialMirror => Some("mirror"),
            VdevKind::Raidz1 => Some("raidz1"),
            VdevKind::Raidz2 => Some("raidz2"),
            VdevKind::Raidz3 => Some("raidz3"),
            VdevKind::Stripe | VdevKind::Log | VdevKind::Special | VdevKind::Cache | VdevKind::Spare => None,
        }
    }
}

/// A vdev of a new pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct NewVdev {
    /// Kind.
    pub kind: VdevKind,
    /// Absolute paths.
    pub devices: Vec<String>,
}

/// A property and the value that is set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Setting {
    /// Name.
    pub property: String,
    /// Value.
    pub value: String,
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
}

/// Words of a command line as they are collected, checked.
struct Words {
    line: CommandLine,
    wrong: Option<String>,
}

impl Words {
    fn new(program: &'static str, command: &[&str]) -> Self {
        Words { line: CommandLine::new(program, command), wrong: None }
    }

    fn option_if(mut self, is_given: bool, option: &str) -> Self {
        if is_given {
            self.line.words.push(option.to_owned());
        }
        self
    }

    /// A name, value or path of the caller. None may look like an option.
    fn word(mut self, what: &str, text: &str) -> Self {
        if let Err(why) = check_word(what, text) {
            self.wrong.get_or_insert(why);
        }
        self.line.words.push(text.to_owned());
        self
    }

    /// A path that is no keyword and does not depend on a directory.
    fn path(mut self, what: &str, text: &str) -> Self {
        if !text.starts_with('/') {
            self.wrong.get_or_insert(format!("{what}: '{text}' is not an absolute path"));
        }
        self.word(what, text)
    }

    fn settings(mut self, option: &str, settings: &[Setting]) -> Self {
        if settings.len() > MAX_PROPERTIES {
            self.wrong.get_or_insert(format!("more than {MAX_PROPERTIES} properties"));
        }
        for setting in settings {
            self.line.words.push(option.to_owned());
            self = self.setting(&setting.property, &setting.value);
        }
        self
    }

    fn setting(mut self, property: &str, value: &str) -> Self {
        if property.is_empty() || property.contains('=') {
            self.wrong.get_or_insert(format!("'{property}' is no name of a property"));
        }
        self.word("property", &format!("{property}={value}"))
    }

    fn vdevs(mut self, vdevs: &[NewVdev]) -> Self {
        if vdevs.len() > MAX_DEVICES || vdevs.iter().any(|vdev| vdev.devices.len() > MAX_DEVICES) {
            self.wrong.get_or_insert(format!("more than {MAX_DEVICES} vdevs or devices"));
            return self;
        }
        // Devices after a keyword belong to it, so those without one come first, in the pool and in each class.
        let mut sorted: Vec<&NewVdev> = vdevs.iter().collect();
        sorted.sort_by_key(|vdev| (vdev.kind.class(), vdev.kind.layout().is_some()));
        let mut class = None;
        for vdev in sorted {
            if vdev.devices.is_empty() {
                self.wrong.get_or_insert("a vdev has no device".to_owned());
            }
            let begun = vdev.kind.class().filter(|begun| class != Some(*begun));
            class = vdev.kind.class();
            self.line.words.extend(begun.into_iter().chain(vdev.kind.layout()).map(str::to_owned));
            for device in &vdev.devices {
                self = self.path("device", device);
            }
        }
        self
    }

    fn done(self) -> Result<CommandLine, String> {
        self.wrong.map_or(Ok(self.line), Err)
    }
}

/// Refuses words that a command line cannot have, or that would be options.
fn check_word(what: &str, text: &str) -> Result<(), String> {
    match text {
        "" => Err(format!("{what}: it is empty")),
        text if text.len() > MAX_WORD_BYTES => Err(format!("{what}: it has more than {MAX_WORD_BYTES} bytes")),
        text if text.chars().any(char::is_control) => Err(format!("{what}: it has a control character")),
        text if text.starts_with('-') => Err(format!("{what}: '{text}' begins with '-'")),
        _ => Ok(()),
    }
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
            | PageAction::Acknowledge { .. }
            | PageAction::Mute { .. } => Role::Operate,
            _ => Role::Administer,
        }
    }

    /// Whether it cannot be undone, so that a dry run must precede it.
    pub fn needs_confirmation(&self) -> bool {
        match self {
            PageAction::Destroy { .. }
            | PageAction::Rollback { .. }
            | PageAction::Export { .. }
            | PageAction::DestroyPool { .. }
            | PageAction::Detach { .. }
            | PageAction::CreatePool { .. }
            | PageAction::Replace { .. }
            | PageAction::Attach { .. } => true,
            PageAction::Import { force, .. } => *force,
            _ => false,
        }
    }

    /// The command line that does it.
    ///
    /// # Errors
    /// The first field that no command line can have.
    pub fn line(&self) -> Result<CommandLine, String> {
        match self {
            PageAction::Snapshot { .. }
            | PageAction::CreateDataset { .. }
            | PageAction::Set { .. }
            | PageAction::Inherit { .. }
            | PageAction::Destroy { .. }
            | PageAction::Rollback { .. }
            | PageAction::Clone { .. } => self.of_dataset(),
            PageAction::Acknowledge { alert } => Words::new("daemon", &["alerts", "ack"]).word("alert", alert).done(),
            PageAction::Mute { alert, hours } => {
                if *hours > MAX_MUTE_HOURS {
                    return Err(format!("an alert is muted for at most {MAX_MUTE_HOURS} hours"));
                }
                let words = Words::new("daemon", &["alerts", "mute", "--hours", &hours.to_string()]);
                words.word("alert", alert).done()
            }
            _ => self.of_pool(),
        }
    }

    /// The command line of an action on datasets.
    fn of_dataset(&self) -> Result<CommandLine, String> {
        let zfs = |command: &str| Words::new("zfs", &[command]);
        let words = match self {
            PageAction::Snapshot { snapshot, recursive } => {
                zfs("snapshot").option_if(*recursive, "-r").word("snapshot", snapshot)
            }
            PageAction::CreateDataset { name, volume_size, sparse, properties } => {
                let words = zfs("create").option_if(volume_size.is_some() && *sparse, "-s");
                let words = words.settings("-o", properties);
                let words = match volume_size {
                    Some(size) => words.option_if(true, "-V").word("size", size),
                    None => words,
                };
                words.word("name", name)
            }
            PageAction::Set { dataset, property, value } => {
                zfs("set").setting(property, value).word("dataset", dataset)
            }
            PageAction::Inherit { dataset, property } => {
                zfs("inherit").word("property", property).word("dataset", dataset)
            }
            PageAction::Destroy { name, recursive, dependents } => {
                let words = zfs("destroy").option_if(*recursive && !dependents, "-r").option_if(*dependents, "-R");
                words.word("name", name)
            }
            PageAction::Rollback { snapshot, destroy_later } => {
                zfs("rollback").option_if(*destroy_later, "-r").word("snapshot", snapshot)
            }
            PageAction::Clone { snapshot, name } => zfs("clone").word("snapshot", snapshot).word("name", name),
            _ => return Err("no action on a dataset".to_owned()),
        };
        words.done()
    }

    /// The command line of an action on a pool.
    fn of_pool(&self) -> Result<CommandLine, String> {
        let zpool = |command: &str| Words::new("zpool", &[command]);
        let device_of =
            |command: &str, pool: &str, device: &str| zpool(command).word("pool", pool).word("device", device);
        let words = match self {
            PageAction::Scrub { pool, step } => {
                let words = zpool("scrub").option_if(*step == ScrubStep::Pause, "-p");
                words.option_if(*step == ScrubStep::Stop, "-s").word("pool", pool)
            }
            PageAction::Clear { pool, device: None } => zpool("clear").word("pool", pool),
            PageAction::Clear { pool, device: Some(device) } => device_of("clear", pool, device),
            PageAction::Offline { pool, device } => device_of("offline", pool, device),
            PageAction::Online { pool, device } => device_of("online", pool, device),
            PageAction::Detach { pool, device } => device_of("detach", pool, device),
            PageAction::Replace { pool, device, new_device, force } => {
                let words = zpool("replace").option_if(*force, "-f").word("pool", pool);
                words.word("device", device).path("new device", new_device)
            }
            PageAction::Attach { pool, device, new_device, force } => {
                let words = zpool("attach").option_if(*force, "-f").word("pool", pool);
                words.word("device", device).path("new device", new_device)
            }
            PageAction::CreatePool { name, vdevs, properties, root_properties, force } => {
                let words = zpool("create").option_if(*force, "-f").settings("-o", properties);
                words.settings("-O", root_properties).word("name", name).vdevs(vdevs)
            }
            PageAction::Import { pool, directory, force } => {
                let words = zpool("import").option_if(*force, "-f");
                let words = match directory {
                    Some(directory) => words.option_if(true, "-d").path("directory", directory),
                    None => words,
                };
                words.word("pool", pool)
            }
            PageAction::Export { pool, force } => zpool("export").option_if(*force, "-f").word("pool", pool),
            PageAction::DestroyPool { pool, force } => zpool("destroy").option_if(*force, "-f").word("pool", pool),
            _ => return Err("no action on a pool".to_owned()),
        };
        words.done()
    }
}
