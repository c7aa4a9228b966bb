//! Targets of a benchmark: a directory, a file or block device, what a server offers over a network protocol, or a dataset in this
//! process.

use crate::environment::mount_of;
use crate::error::LabError;
use crate::native::carrier::Carrier;
use crate::native::in_process::InProcess;
use crate::native::network::url::NetworkTarget;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Target of a benchmark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// Directory, in which files are made and removed.
    Directory(PathBuf),
    /// One existing file, whose content is overwritten by writing workloads.
    File(PathBuf),
    /// Block device, likewise.
    Device(PathBuf),
    /// NBD export, likewise: `nbd://HOST[:PORT]/EXPORT`, or `nbd+unix:///EXPORT?socket=PATH`.
    Nbd(String),
    /// Logical unit, directory of an NFS export, or directory of an SMB share: `iscsi://`, `nfs://`, `smb://`.
    Network(NetworkTarget),
    /// Dataset of a pool that this process has open.
    InProcess(InProcess),
}

/// Whether an NBD server is on this machine: behind a socket in the file system, or at its loopback address or name.
#[must_use]
pub fn is_local_nbd(uri: &str) -> bool {
    let is_loopback = |beginning: &&str| uri.starts_with(*beginning);
    !uri.starts_with("nbd://") || ["nbd://localhost", "nbd://127.", "nbd://[::1]"].iter().any(is_loopback)
}

impl Target {
    /// Finds out what a word of the command line names, other than a dataset: those exist only in a pool that is open.
    ///
    /// # Errors
    /// If it names nothing that can be measured. No server is asked.
    pub fn parse(word: &str) -> Result<Self, LabError> {
        if word.starts_with("nbd://") || word.starts_with("nbd+unix://") {
            return Ok(Self::Nbd(word.to_owned()));
        }
        if let Some(network) = NetworkTarget::parse(word) {
            return network.map(Self::Network);
        }
        if let Some((scheme, _)) = word.split_once("://") {
            let text = format!(
                "{word}: unknown scheme {scheme}; a target is a directory, a file, a block device, nbd://, iscsi://, nfs:// or smb://"
            );
            return Err(LabError::Target(text));
        }
        let path = std::fs::canonicalize(word).map_err(LabError::io(Path::new(word)))?;
        let metadata = std::fs::metadata(&path).map_err(LabError::io(&path))?;
        let kind = metadata.file_type();
        if kind.is_file() && metadata.len() == 0 {
            let text = format!("{word}: the file is empty; give it the size to measure: truncate -s 4G {word}");
            return Err(LabError::Target(text));
        }
        match (kind.is_dir(), kind.is_file(), kind.is_block_device()) {
            (true, ..) => Ok(Self::Directory(path)),
            (_, true, _) => Ok(Self::File(path)),
            (.., true) => Ok(Self::Device(path)),
            _ => Err(LabError::Target(format!("{word}: neither a directory, a file nor a block device"))),
        }
    }

    /// Whether a writing workload destroys data that is on the target now.
    #[must_use]
    pub fn holds_data(&self) -> bool {
        match self {
            Self::Directory(_) => false,
            Self::File(_) | Self::Device(_) | Self::Nbd(_) => true,
            Self::Network(network) => network.holds_data(),
            Self::InProcess(dataset) => dataset.holds_data(),
        }
    }

    /// Path on this machine, if the target has one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) | Self::File(path) | Self::Device(path) => Some(path),
            Self::Nbd(_) | Self::Network(_) | Self::InProcess(_) => None,
        }
    }

    /// Client of Weir's own that carries the loads; `None` if fio does.
    #[must_use]
    pub fn carrier(&self) -> Option<&dyn Carrier> {
        match self {
            Self::Network(network) => Some(network),
            Self::InProcess(dataset) => Some(dataset),
            _ => None,
        }
    }

    /// Target behind a network that is measured without fio.
    #[must_use]
    pub fn network(&self) -> Option<&NetworkTarget> {
        match self {
            Self::Network(network) => Some(network),
            _ => None,
        }
    }

    /// Program and interface that carry the load.
    #[must_use]
    pub fn client(&self, fio: &str) -> String {
        match self {
            Self::Network(network) => network.client(),
            Self::InProcess(dataset) => dataset.client(),
            Self::Nbd(_) => format!("{fio}, engine nbd (libnbd), no kernel in between"),
            _ => match self.path().and_then(mount_of) {
                Some(mount) if !matches!(self, Self::Device(_)) => format!("{fio} on {} of the kernel", mount.kind),
                _ => format!("{fio} on the kernel's block device"),
            },
        }
    }

    /// Bytes that can be read or written: of a directory the room for new files, else the size. `None` if only the client knows.
    ///
    /// # Errors
    /// If the size cannot be read, or the server does not answer.
    pub fn room_bytes(&self) -> Result<Option<u64>, LabError> {
        match self {
            Self::Directory(path) => {
                let room = rustix::fs::statvfs(path).map_err(|error| LabError::io(path)(error.into()))?;
                Ok(Some(room.f_bavail.saturating_mul(room.f_frsize)))
            }
            Self::File(path) => Ok(Some(std::fs::metadata(path).map_err(LabError::io(path))?.size())),
            Self::Device(path) => {
                let mut file = std::fs::File::open(path).map_err(LabError::io(path))?;
                let end = std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).map_err(LabError::io(path))?;
                Ok(Some(end))
            }
            Self::Nbd(_) => Ok(None),
            Self::Network(network) => network.room_bytes(),
            Self::InProcess(dataset) => dataset.room_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_targets_or_say_how_to_reach_them() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("disk.img");
        std::fs::write(&file, [0; 4096]).unwrap();
        let parsed = Target::parse(file.to_str().unwrap()).unwrap();
        assert!(matches!(parsed, Target::File(_)) && parsed.holds_data());
        assert_eq!(parsed.room_bytes().unwrap(), Some(4096));
        let parsed = Target::parse(dir.path().to_str().unwrap()).unwrap();
        assert!(matches!(parsed, Target::Directory(_)) && !parsed.holds_data());
        assert!(parsed.room_bytes().unwrap() > Some(0));
        assert_eq!(Target::parse("nbd://localhost/tank/vol").unwrap(), Target::Nbd("nbd://localhost/tank/vol".into()));
        let text = |word| Target::parse(word).unwrap_err().to_string();
        let unit = Target::parse("iscsi://host/iqn.2000-01.org.example:a/0").unwrap();
        assert!(unit.holds_data() && unit.path().is_none() && unit.network().is_some());
        assert!(!Target::parse("nfs://host/tank").unwrap().holds_data());
        assert!(text("nfs://host").contains("no path"));
        assert!(text("ftp://host").contains("unknown scheme ftp"));
        assert!(text("/does/not/exist").contains("/does/not/exist: No such file"));
        assert!(text("/dev/null").contains("neither"));
    }
}
