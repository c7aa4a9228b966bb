//! Directories of files that are replaced as a whole: where segments of histories are.

use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Maximum length of a file that is read: more than a segment can have.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// End of the name of a file that does not have its name yet.
const NEW: &str = ".new";

/// Name of a file, and of the directory that it is in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileName {
    pub directory: String,
    pub file: String,
}

/// Files in directories of one level. Calls wait for the disk.
pub(crate) trait Files: Send + Sync {
    /// All files and their lengths in bytes. Removes files that were not completed.
    fn list(&self) -> io::Result<Vec<(FileName, u64)>>;

    /// Contents of a file; of one that is longer than a segment can be, its first part.
    fn read(&self, name: &FileName) -> io::Result<Vec<u8>>;

    /// Replaces the contents: after a crash, the file has the old or the new ones. The new ones are on stable storage when this
    /// returns.
    fn replace(&self, name: &FileName, bytes: &[u8]) -> io::Result<()>;

    /// Removes a file, and its directory if it is empty then. A file that is absent is no error.
    fn remove(&self, name: &FileName) -> io::Result<()>;
}

/// Files below a directory, for this user alone.
pub(crate) struct Directories {
    top: PathBuf,
}

impl Directories {
    pub fn new(top: PathBuf) -> Self {
        Directories { top }
    }

    fn path(&self, name: &FileName) -> PathBuf {
        self.top.join(&name.directory).join(&name.file)
    }
}

/// Makes a directory that is absent, for this user alone.
fn make(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        // Its name is stable once the directory above it is.
        Ok(()) => path.parent().map_or(Ok(()), |above| File::open(above)?.sync_all()),
    }
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))?;
    file.write_all(bytes)?;
    file.sync_all()
}

impl Files for Directories {
    fn list(&self) -> io::Result<Vec<(FileName, u64)>> {
        make(&self.top)?;
        let mut found = Vec::new();
        for directory in std::fs::read_dir(&self.top)? {
            let directory = directory?;
            if !directory.file_type()?.is_dir() {
                continue;
            }
            for entry in std::fs::read_dir(directory.path())? {
                let entry = entry?;
                // Names of ours are ASCII.
                let names = (directory.file_name().into_string(), entry.file_name().into_string());
                let (Ok(directory), Ok(file)) = names else { continue };
                let metadata = entry.metadata()?;
                if !metadata.is_file() {
                    continue;
                }
                if file.ends_with(NEW) {
                    std::fs::remove_file(entry.path())?;
                    continue;
                }
                found.push((FileName { directory, file }, metadata.len()));
            }
        }
        Ok(found)
    }

    fn read(&self, name: &FileName) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        File::open(self.path(name))?.take(MAX_FILE_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    }

    fn replace(&self, name: &FileName, bytes: &[u8]) -> io::Result<()> {
        let path = self.path(name);
        let directory = self.top.join(&name.directory);
        make(&self.top)?;
        make(&directory)?;
        let new = directory.join(format!("{}{NEW}", name.file));
        let written = write(&new, bytes).and_then(|()| std::fs::rename(&new, &path));
        if written.is_err() {
            // A disk that is full gets its space back. If that fails, too, the next list removes it.
            let _removed = std::fs::remove_file(&new);
        }
        written?;
        // The new name is stable once the directory is.
        File::open(&directory)?.sync_all()
    }

    fn remove(&self, name: &FileName) -> io::Result<()> {
        match std::fs::remove_file(self.path(name)) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        // Fails if it is not empty.
        let _removed = std::fs::remove_dir(self.top.join(&name.directory));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_replaced_listed_and_removed() {
        let top = tempfile::tempdir().unwrap();
        let files = Directories::new(top.path().join("history"));
        assert_eq!(files.list().unwrap(), []);
        let name = |file: &str| FileName { directory: "7".into(), file: file.into() };
        files.replace(&name("a"), b"one").unwrap();
        files.replace(&name("a"), b"other").unwrap();
        files.replace(&name("b"), b"2").unwrap();
        assert_eq!(files.read(&name("a")).unwrap(), b"other");
        // A crash before the rename.
        std::fs::write(top.path().join("history/7/b.new"), b"half").unwrap();
        std::fs::write(top.path().join("history/stray"), b"").unwrap();
        let mut found = files.list().unwrap();
        found.sort();
        assert_eq!(found, [(name("a"), 5), (name("b"), 1)]);
        assert!(!top.path().join("history/7/b.new").exists());
        let mode = |path: &str| std::fs::metadata(top.path().join(path)).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode("history"), mode("history/7"), mode("history/7/a")), (0o700, 0o700, 0o600));
        for file in ["a", "b", "b"] {
            files.remove(&name(file)).unwrap();
        }
        assert!(!top.path().join("history/7").exists());
        assert_eq!(files.read(&name("a")).unwrap_err().kind(), ErrorKind::NotFound);
    }
}
