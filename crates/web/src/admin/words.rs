//! Words of a command line, checked.

use serde::{Deserialize, Serialize};
use std::fmt;
use utoipa::ToSchema;

/// Longest name, value or path that is taken, in bytes.
const MAX_WORD_BYTES: usize = 4096;
/// Maximum number of vdevs of a new pool, of devices of one of them, and of names.
const MAX_DEVICES: usize = 1024;
/// Maximum number of properties of an action.
const MAX_PROPERTIES: usize = 64;

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

/// Words of a command line as they are collected, checked.
pub(super) struct Words {
    line: CommandLine,
    wrong: Option<String>,
}

impl Words {
    /// The words of a command, without those of the caller.
    pub fn new(program: &'static str, command: &[&str]) -> Self {
        Words { line: CommandLine::new(program, command), wrong: None }
    }

    /// An option of this program, if it is given.
    pub fn option_if(mut self, is_given: bool, option: &str) -> Self {
        if is_given {
            self.line.words.push(option.to_owned());
        }
        self
    }

    /// A name, value or path of the caller. None may look like an option.
    pub fn word(mut self, what: &str, text: &str) -> Self {
        if let Err(why) = check_word(what, text) {
            self.wrong.get_or_insert(why);
        }
        self.line.words.push(text.to_owned());
        self
    }

    /// A path that is no keyword and does not depend on a directory.
    pub fn path(mut self, what: &str, text: &str) -> Self {
        if !text.starts_with('/') {
            self.wrong.get_or_insert(format!("{what}: '{text}' is not an absolute path"));
        }
        self.word(what, text)
    }

    /// An option with a value of the caller, if there is one.
    pub fn option_word(self, option: &str, what: &str, text: Option<&str>) -> Self {
        match text {
            Some(text) => self.option_if(true, option).word(what, text),
            None => self,
        }
    }

    /// An option with a number, if there is one.
    pub fn option_number(self, option: &str, number: Option<u32>) -> Self {
        let text = number.map(|number| number.to_string());
        self.option_word(option, "number", text.as_deref())
    }

    /// Values of the caller, each after the option.
    pub fn option_words(mut self, option: &str, what: &str, texts: &[String]) -> Self {
        if texts.is_empty() {
            self.wrong.get_or_insert(format!("{what}: no name is given"));
            return self;
        }
        if texts.len() > MAX_DEVICES {
            self.wrong.get_or_insert(format!("{what}: more than {MAX_DEVICES} names"));
            return self;
        }
        texts.iter().fold(self, |words, text| words.option_word(option, what, Some(text)))
    }

    /// Properties, each after the option.
    pub fn settings(mut self, option: &str, settings: &[Setting]) -> Self {
        if settings.len() > MAX_PROPERTIES {
            self.wrong.get_or_insert(format!("more than {MAX_PROPERTIES} properties"));
        }
        for setting in settings {
            self.line.words.push(option.to_owned());
            self = self.setting(&setting.property, &setting.value);
        }
        self
    }

    /// A property and its value as one word.
    pub fn setting(mut self, property: &str, value: &str) -> Self {
        if property.is_empty() || property.contains('=') {
            self.wrong.get_or_insert(format!("'{property}' is no name of a property"));
        }
        self.word("property", &format!("{property}={value}"))
    }

    /// Vdevs, as `zpool create` and `zpool add` take them.
    pub fn vdevs(mut self, vdevs: &[NewVdev]) -> Self {
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

    /// The line.
    ///
    /// # Errors
    /// The first word that no command line can have.
    pub fn done(self) -> Result<CommandLine, String> {
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
