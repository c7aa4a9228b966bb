//! Named sets of values, and what was in force before one was applied.

use super::items::{is_valid, normal, path_of};
use crate::read::is_setting;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Most sets.
pub const MAX_SETS: usize = 10;
/// Longest name and comment, in bytes.
const NAME_BYTES: usize = 32;
const COMMENT_BYTES: usize = 256;
/// Largest file that is read.
const FILE_BYTES: u64 = 1 << 20;

/// Why a set could not be changed or applied.
#[derive(Debug, Error)]
pub enum TuneError {
    /// The name is no name for a set.
    #[error("'{name}' cannot be the name of a set: 1 to {NAME_BYTES} letters, digits, '-' or '_'")]
    Name {
        /// The name.
        name: String,
    },
    /// There is no such set.
    #[error("there is no set '{name}'; `weir tune list` shows the sets")]
    NoSet {
        /// The name.
        name: String,
    },
    /// There are as many sets as there may be.
    #[error("there are {MAX_SETS} sets already; `weir tune delete SET` removes one")]
    TooManySets,
    /// A key that cannot be applied.
    #[error("'{key}' cannot be applied; `weir tune` shows the settings of the kernel that can")]
    Key {
        /// The key.
        key: String,
    },
    /// A value that no setting takes.
    #[error("{key}: '{value}' is not a value: one word, or up to three numbers separated by single spaces")]
    Value {
        /// The key.
        key: String,
        /// The value.
        value: String,
    },
    /// The comment is too long.
    #[error("a comment has at most {COMMENT_BYTES} bytes and one line")]
    Comment,
    /// Nothing to roll back.
    #[error("no set is applied: there is nothing to roll back")]
    NothingApplied,
    /// The file of sets is damaged.
    #[error("{path}: {why}; it is not overwritten: repair or remove it")]
    Damaged {
        /// The file.
        path: String,
        /// The cause.
        why: String,
    },
    /// Text that is imported, and is no set.
    #[error("what is imported is no set as 'weir tune export' writes it: {0}")]
    Import(String),
    /// A file could not be read or written.
    #[error("{path}: {why}{undone}")]
    Io {
        /// The file.
        path: String,
        /// The cause.
        why: std::io::Error,
        /// The state of the settings that were written before.
        undone: &'static str,
    },
}

fn io_error(path: &Path) -> impl FnOnce(std::io::Error) -> TuneError {
    let path = path.display().to_string();
    move |why| TuneError::Io { path, why, undone: "" }
}

/// Values for some settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TuningSet {
    /// Purpose of the set.
    #[serde(default)]
    pub comment: String,
    /// Value of each key.
    pub values: BTreeMap<String, String>,
}

/// The set that is in force.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Applied {
    /// The set.
    pub set: String,
    /// Values from before.
    pub before: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    sets: BTreeMap<String, TuningSet>,
    applied: Option<Applied>,
}

/// The sets of a machine, in a file.
#[derive(Debug)]
pub struct Sets {
    path: PathBuf,
    /// `/`, or a folder in tests.
    root: PathBuf,
    stored: Stored,
}

impl Sets {
    /// Reads the sets; a file that does not exist holds none.
    ///
    /// # Errors
    /// If the file cannot be read or is damaged.
    pub fn open(path: &Path) -> Result<Sets, TuneError> {
        Self::open_below(path, Path::new("/"))
    }

    /// As [`Sets::open`], with the settings of the kernel below `root`.
    ///
    /// # Errors
    /// As [`Sets::open`].
    pub fn open_below(path: &Path, root: &Path) -> Result<Sets, TuneError> {
        let damaged = |why: String| TuneError::Damaged { path: path.display().to_string(), why };
        let stored = match std::fs::metadata(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Stored::default(),
            Err(error) => return Err(io_error(path)(error)),
            Ok(metadata) if metadata.len() > FILE_BYTES => return Err(damaged("the file is too large".into())),
            Ok(_) => {
                let text = std::fs::read_to_string(path).map_err(io_error(path))?;
                serde_json::from_str(&text).map_err(|error| damaged(error.to_string()))?
            }
        };
        for (name, set) in &stored.sets {
            check(name, set).map_err(|error| damaged(error.to_string()))?;
        }
        Ok(Sets { path: path.to_owned(), root: root.to_owned(), stored })
    }

    /// All sets by name.
    pub fn all(&self) -> &BTreeMap<String, TuningSet> {
        &self.stored.sets
    }

    /// One set.
    ///
    /// # Errors
    /// [`TuneError::NoSet`].
    pub fn get(&self, name: &str) -> Result<&TuningSet, TuneError> {
        self.stored.sets.get(name).ok_or_else(|| TuneError::NoSet { name: name.to_owned() })
    }

    /// The set that is in force.
    pub fn applied(&self) -> Option<&Applied> {
        self.stored.applied.as_ref()
    }

    /// Adds or replaces a set.
    ///
    /// # Errors
    /// If a name, key or value is not valid, there are too many sets, or the file cannot be written.
    pub fn put(&mut self, name: &str, set: TuningSet) -> Result<(), TuneError> {
        check(name, &set)?;
        if self.stored.sets.len() >= MAX_SETS && !self.stored.sets.contains_key(name) {
            return Err(TuneError::TooManySets);
        }
        let mut next = self.stored.clone();
        next.sets.insert(name.to_owned(), set);
        self.store(next)
    }

    /// Removes a set. What is in force stays so.
    ///
    /// # Errors
    /// [`TuneError::NoSet`]; if the file cannot be written.
    pub fn delete(&mut self, name: &str) -> Result<(), TuneError> {
        self.get(name)?;
        let mut next = self.stored.clone();
        next.sets.remove(name);
        self.store(next)
    }

    /// The sets of a text that [`Sets::export`] made are added, or replace those of the same name. All or none.
    ///
    /// # Errors
    /// If the text is not such a text; as [`Sets::put`].
    pub fn import(&mut self, text: &str) -> Result<Vec<String>, TuneError> {
        let damaged = |error: serde_json::Error| TuneError::Import(error.to_string());
        let sets: BTreeMap<String, TuningSet> = serde_json::from_str(text).map_err(damaged)?;
        let mut next = self.stored.clone();
        for (name, set) in &sets {
            check(name, set)?;
            next.sets.insert(name.clone(), set.clone());
        }
        if next.sets.len() > MAX_SETS {
            return Err(TuneError::TooManySets);
        }
        self.store(next)?;
        Ok(sets.into_keys().collect())
    }

    /// One set or all of them as text.
    ///
    /// # Errors
    /// [`TuneError::NoSet`].
    pub fn export(&self, name: Option<&str>) -> Result<String, TuneError> {
        let sets: BTreeMap<&str, &TuningSet> = match name {
            Some(name) => [(name, self.get(name)?)].into(),
            None => self.stored.sets.iter().map(|(name, set)| (name.as_str(), set)).collect(),
        };
        let damaged = |error: serde_json::Error| TuneError::Damaged { path: "export".into(), why: error.to_string() };
        serde_json::to_string_pretty(&sets).map_err(damaged)
    }

    /// Saves the state, then writes the values of a set. One that cannot be written undoes those before it.
    ///
    /// # Errors
    /// [`TuneError::NoSet`]; [`TuneError::Io`] names the setting.
    pub fn apply(&mut self, name: &str) -> Result<usize, TuneError> {
        let values = self.get(name)?.values.clone();
        let mut now = BTreeMap::new();
        for key in values.keys() {
            let path = self.file_of(key)?;
            let text = std::fs::read_to_string(&path).map_err(io_error(&path))?;
            now.insert(key.clone(), normal(&text));
        }
        let mut next = self.stored.clone();
        let mut before = now.clone();
        // What was in force before the first set is what a rollback restores.
        before.extend(next.applied.take().map(|applied| applied.before).unwrap_or_default());
        debug_assert!(values.keys().all(|key| before.contains_key(key)), "each changed setting can be rolled back");
        next.applied = Some(Applied { set: name.to_owned(), before });
        let previous = self.stored.clone();
        self.store(next)?;
        let mut written: Vec<&String> = Vec::new();
        for (key, value) in &values {
            if let Err(error) = self.write(key, value) {
                let mut is_undone = true;
                for key in written.into_iter().rev() {
                    is_undone &= now.get(key).is_some_and(|old| self.write(key, old).is_ok());
                }
                let undone = match is_undone {
                    true => "; the settings before it were set back",
                    false => "; not all settings before it could be set back: run `weir tune rollback`",
                };
                if is_undone {
                    self.store(previous)?;
                }
                return Err(match error {
                    TuneError::Io { path, why, .. } => TuneError::Io { path, why, undone },
                    other => other,
                });
            }
            written.push(key);
        }
        Ok(values.len())
    }

    /// Writes the values from before.
    ///
    /// # Errors
    /// [`TuneError::NothingApplied`]; if a value cannot be written, the rest is written and the saved values are kept.
    pub fn rollback(&mut self) -> Result<usize, TuneError> {
        let Applied { before, .. } = self.stored.applied.clone().ok_or(TuneError::NothingApplied)?;
        let mut failed = None;
        for (key, value) in &before {
            if let Err(error) = self.write(key, value) {
                failed.get_or_insert(error);
            }
        }
        if let Some(error) = failed {
            return Err(error);
        }
        let mut next = self.stored.clone();
        next.applied = None;
        self.store(next)?;
        Ok(before.len())
    }

    fn file_of(&self, key: &str) -> Result<PathBuf, TuneError> {
        let path = path_of(key).filter(|path| is_setting(Path::new(path)));
        let path = path.ok_or_else(|| TuneError::Key { key: key.to_owned() })?;
        Ok(self.root.join(path.trim_start_matches('/')))
    }

    fn write(&self, key: &str, value: &str) -> Result<(), TuneError> {
        let path = self.file_of(key)?;
        // Not created if absent: the kernel makes these files.
        let file = std::fs::OpenOptions::new().write(true).truncate(true).open(&path);
        file.and_then(|mut file| file.write_all(format!("{value}\n").as_bytes())).map_err(io_error(&path))
    }

    /// Replaces the file by a stable new one, then the state in memory.
    fn store(&mut self, next: Stored) -> Result<(), TuneError> {
        debug_assert!(next.sets.len() <= MAX_SETS, "the number of sets is bounded");
        let damaged = |error: serde_json::Error| TuneError::Damaged { path: "sets".into(), why: error.to_string() };
        let text = serde_json::to_string_pretty(&next).map_err(damaged)?;
        let folder = self.path.parent().unwrap_or(Path::new("."));
        std::fs::create_dir_all(folder).map_err(io_error(folder))?;
        let new = self.path.with_extension("new");
        let write = || {
            let mut file = std::fs::File::create(&new)?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            std::fs::rename(&new, &self.path)?;
            std::fs::File::open(folder)?.sync_all()
        };
        write().map_err(io_error(&self.path))?;
        self.stored = next;
        Ok(())
    }
}

fn check(name: &str, set: &TuningSet) -> Result<(), TuneError> {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || b == b'-' || b == b'_';
    if name.is_empty() || name.len() > NAME_BYTES || !name.bytes().all(is_plain) {
        return Err(TuneError::Name { name: name.to_owned() });
    }
    if set.comment.len() > COMMENT_BYTES || set.comment.contains('\n') {
        return Err(TuneError::Comment);
    }
    for (key, value) in &set.values {
        if path_of(key).is_none() {
            return Err(TuneError::Key { key: key.clone() });
        }
        if !is_valid(key, value) {
            return Err(TuneError::Value { key: key.clone(), value: value.clone() });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
