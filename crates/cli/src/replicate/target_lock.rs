//! One replication to a target at a time: a second one would continue, or destroy, what the first one sends.
//!
//! The lock is of a file in the runtime directory (`flock`) and ends with the process. Replications of other users and machines are
//! not kept out.

use crate::directories::own_runtime;
use crate::failure::Failure;
use std::fs::{File, TryLockError};
use std::path::Path;

/// Maximum length of the name of a lock file; targets whose names begin alike so far exclude each other.
const MAX_NAME: usize = 200;

/// The lock of a target, until it is dropped.
#[derive(Debug)]
pub struct TargetLock {
    /// `None` if there is no directory for it.
    _file: Option<File>,
}

impl TargetLock {
    /// Locks a target, as the command line names it.
    ///
    /// # Errors
    /// If another process replicates to it.
    pub fn of(target: &str) -> Result<Self, Failure> {
        // Without a runtime directory there is no place for the lock: the replication goes on without it.
        own_runtime().map_or(Ok(TargetLock { _file: None }), |folder| TargetLock::within(&folder, target))
    }

    fn within(folder: &Path, target: &str) -> Result<Self, Failure> {
        let path = folder.join(format!("replicate-{}.lock", file_name(target)));
        let Ok(file) = File::options().create(true).truncate(false).write(true).open(&path) else {
            return Ok(TargetLock { _file: None });
        };
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                Err(Failure::failed(format!("another replication to {target} is in progress: nothing was sent")))
            }
            Ok(()) | Err(TryLockError::Error(_)) => Ok(TargetLock { _file: Some(file) }),
        }
    }
}

/// A target as a part of a file name: other characters than letters, digits, `-`, `_` and `.` are hexadecimal.
fn file_name(target: &str) -> String {
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_.".contains(byte);
    let shown = |byte: u8| if is_plain(&byte) { char::from(byte).to_string() } else { format!("%{byte:02x}") };
    let mut name: String = target.bytes().map(shown).collect();
    name.truncate(MAX_NAME);
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_has_one_replication_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let first = TargetLock::within(folder.path(), "nas:backup/home").unwrap();
        let error = TargetLock::within(folder.path(), "nas:backup/home").unwrap_err();
        assert!(error.line.contains("another replication to nas:backup/home is in progress"), "{}", error.line);
        let _other = TargetLock::within(folder.path(), "nas:backup/home2").unwrap();
        drop(first);
        TargetLock::within(folder.path(), "nas:backup/home").unwrap();
        assert_eq!(file_name("nas:a/b ä"), "nas%3aa%2fb%20%c3%a4");
        assert_eq!(file_name(&"x".repeat(300)).len(), MAX_NAME);
    }
}
