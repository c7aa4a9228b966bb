//! Targets of a benchmark: a directory, a file or block device, or an NBD export.

use crate::environment::mount_of;
use crate::error::LabError;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Schemes for which fio has no client.
const MOUNTED_SCHEMES: [&str; 3] = ["nfs", "smb", "iscsi"];

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
}

impl Target {
    /// Finds out what a word of the command line names.
    ///
    /// # Errors
    /// If it names nothing that can be measured; the message says how to reach a share or a LUN.
    pub fn parse(word: &str) -> Result<Self, LabError> {
        if word.starts_with("nbd://") || word.starts_with("nbd+unix://") {
            return Ok(Self::Nbd(word.to_owned()));
        }
        if let Some((scheme, _)) = word.split_once("://") {
            let text = match MOUNTED_SCHEMES.contains(&scheme) {
                true => format!(
                    "{word}: fio has no client for {scheme}; mount or attach it with the system's client and give the \
                     directory or the device: the result then names that client"
                ),
                false => format!(
                    "{word}: unknown scheme {scheme}; a target is a directory, a file, a block device or nbd://…"
                ),
            };
            return Err(LabError::Target(text));
        }
        let path = std::fs::canonicalize(word).map_err(LabError::io(Path::new(word)))?;
        let kind = std::fs::metadata(&path).map_err(LabError::io(&path))?.file_type();
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
        !matches!(self, Self::Directory(_))
    }

    /// Path on this machine, if the target has one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Directory(path) | Self::File(path) | Self::Device(path) => Some(path),
            Self::Nbd(_) => None,
        }
    }

    /// Program and interface that carry the load.
    #[must_use]
    pub fn client(&self, fio: &str) -> String {
        match self {
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
    /// If the size cannot be read.
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
        assert!(text("nfs://host/tank").contains("mount"), "{}", text("nfs://host/tank"));
        assert!(text("ftp://host").contains("unknown scheme ftp"));
        assert!(text("/does/not/exist").contains("/does/not/exist: No such file"));
        assert!(text("/dev/null").contains("neither"));
    }
}
