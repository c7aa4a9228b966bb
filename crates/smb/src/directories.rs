//! The state and the runtime directory, and the places in them.

use crate::error::SmbError;
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Mode of directories and files: hashes, keys and sockets are for their owner alone.
const DIRECTORY_MODE: u32 = 0o700;
const FILE_MODE: u32 = 0o600;
/// Mode of root's two directories: smbd enters the mount and reads the accounts under the identity of each SMB user.
const PASSABLE_MODE: u32 = 0o711;
/// Mode of root's directories of locks and sockets. The processes of connections look for each other there under the identity
/// of an SMB user; what must not be read has a mode of its own.
const SEARCHABLE_MODE: u32 = 0o755;
/// Mode of the lists of accounts, which smbd reads again under the identity of an SMB user.
const READABLE_MODE: u32 = 0o644;

/// The two directories of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Directories {
    /// Directory that must survive: password hashes, users, the server's identity.
    pub state: PathBuf,
    /// Directory of one server while it runs.
    pub runtime: PathBuf,
}

impl Directories {
    /// The configuration of the server.
    pub fn configuration(&self) -> PathBuf {
        self.runtime.join("smb.conf")
    }

    /// The configuration of `pdbedit`, which has no shares.
    pub(crate) fn tools_configuration(&self) -> PathBuf {
        self.runtime.join("tools.conf")
    }

    /// The pid file that smbd writes.
    pub(crate) fn pid_file(&self) -> PathBuf {
        self.runtime.join("pid/smbd.pid")
    }

    /// The users of the server's connections, by address.
    pub(crate) fn logons(&self) -> PathBuf {
        self.runtime.join("logons")
    }

    /// The mount that smbd serves.
    pub fn mount(&self) -> PathBuf {
        self.runtime.join("mnt")
    }

    /// Samba's database of users.
    pub(crate) fn passdb(&self) -> PathBuf {
        self.state.join("private/passdb.tdb")
    }

    /// Weir's list of users.
    pub(crate) fn users(&self) -> PathBuf {
        self.state.join("users")
    }

    /// Lists of accounts and groups that smbd sees through the wrapper.
    pub(crate) fn accounts(&self) -> [PathBuf; 2] {
        [self.state.join("passwd"), self.state.join("group")]
    }

    /// Reserves the runtime directory for this process until the file is closed.
    ///
    /// # Errors
    /// If another process has it.
    pub(crate) fn reserve(&self) -> Result<std::fs::File, SmbError> {
        let path = self.runtime.join("in-use");
        let failed = |why| SmbError::file(&path, why);
        let file = std::fs::File::options().write(true).create(true).truncate(false).mode(FILE_MODE).open(&path);
        let file = file.map_err(failed)?;
        match rustix::fs::flock(&file, rustix::fs::FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(SmbError::InUse { runtime: self.runtime.clone() }),
            Err(errno) => Err(failed(errno.into())),
        }
    }

    /// Makes the directories. `mnt` is left alone: it may be a mount.
    pub fn create(&self) -> Result<(), SmbError> {
        let is_root = rustix::process::geteuid().is_root();
        for path in [&self.state, &self.runtime] {
            make_private(path, if is_root { PASSABLE_MODE } else { DIRECTORY_MODE })?;
        }
        make_private(&self.state.join("private"), DIRECTORY_MODE)?;
        for name in ["lock", "state", "cache", "pid", "ncalrpc", "log"] {
            make_private(&self.runtime.join(name), if is_root { SEARCHABLE_MODE } else { DIRECTORY_MODE })?;
        }
        Ok(())
    }
}

/// Makes a directory, or checks that an existing one belongs to this user, and gives it this mode.
fn make_private(path: &Path, mode: u32) -> Result<(), SmbError> {
    let failed = |why| SmbError::file(path, why);
    std::fs::DirBuilder::new().recursive(true).mode(mode).create(path).map_err(failed)?;
    let found = std::fs::symlink_metadata(path).map_err(failed)?;
    if !found.is_dir() || found.uid() != rustix::process::geteuid().as_raw() {
        return Err(failed(std::io::Error::other("it must be a directory of the user that runs this program")));
    }
    if found.mode() & 0o777 != mode {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).map_err(failed)?;
    }
    Ok(())
}

/// Replaces a file atomically by one of mode 0600; returns whether its contents changed.
pub(crate) fn write_private(path: &Path, contents: &[u8]) -> Result<bool, SmbError> {
    replace(path, contents, FILE_MODE)
}

/// Like [`write_private`], with a mode that allows everyone to read it.
pub(crate) fn write_readable(path: &Path, contents: &[u8]) -> Result<bool, SmbError> {
    replace(path, contents, READABLE_MODE)
}

fn replace(path: &Path, contents: &[u8], mode: u32) -> Result<bool, SmbError> {
    let failed = |why| SmbError::file(path, why);
    if std::fs::read(path).is_ok_and(|old| old == contents) {
        return Ok(false);
    }
    let beside = path.with_extension("new");
    let _ = std::fs::remove_file(&beside);
    let mut file = std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(mode)
        .open(&beside)
        .map_err(|why| SmbError::file(&beside, why))?;
    file.write_all(contents).and_then(|()| file.sync_all()).map_err(failed)?;
    std::fs::rename(&beside, path).map_err(failed)?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_and_files_are_for_their_owner_alone() {
        let top = tempfile::tempdir().unwrap();
        let directories = Directories { state: top.path().join("s"), runtime: top.path().join("r") };
        std::fs::create_dir(top.path().join("s")).unwrap();
        directories.create().unwrap();
        directories.create().unwrap();
        let mode = |path: &Path| path.metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&directories.state.join("private")), 0o700);
        let searchable = if rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
        assert_eq!(mode(&directories.runtime.join("lock")), searchable);
        let passable = if rustix::process::geteuid().is_root() { 0o711 } else { 0o700 };
        assert_eq!([mode(&directories.state), mode(&directories.runtime)], [passable; 2]);
        let conf = directories.configuration();
        assert!(write_private(&conf, b"a").unwrap() && write_private(&conf, b"b").unwrap());
        assert!(!write_private(&conf, b"b").unwrap());
        assert_eq!((mode(&conf), std::fs::read(&conf).unwrap()), (0o600, b"b".to_vec()));
        let reserved = directories.reserve().unwrap();
        assert!(matches!(directories.reserve(), Err(SmbError::InUse { .. })));
        drop(reserved);
        directories.reserve().unwrap();
        std::fs::write(top.path().join("file"), "").unwrap();
        let wrong = Directories { state: top.path().join("file"), runtime: top.path().join("r") };
        assert!(wrong.create().is_err());
    }
}
