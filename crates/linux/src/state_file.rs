//! State files: a file per state, replaced by renaming a new one over it.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::fs::{DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use weir_machine::StateFile;

/// A state file at a path. Its directory is made when it is first stored, for this user alone.
#[derive(Clone, Debug)]
pub struct DiskStateFile {
    path: PathBuf,
}

impl DiskStateFile {
    /// The state file at `path`.
    pub fn new(path: PathBuf) -> Self {
        DiskStateFile { path }
    }
}

impl StateFile for DiskStateFile {
    fn read(&self) -> BoxFuture<'_, io::Result<Option<Vec<u8>>>> {
        async move {
            match tokio::fs::read(&self.path).await {
                Ok(bytes) => Ok(Some(bytes)),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        }
        .boxed()
    }

    fn replace(&self, bytes: Vec<u8>) -> BoxFuture<'_, io::Result<()>> {
        let path = self.path.clone();
        async move {
            let replacing = tokio::task::spawn_blocking(move || replace(&path, &bytes));
            replacing.await.map_err(io::Error::other)?
        }
        .boxed()
    }
}

/// Replaces a file. It blocks: tokio's files report an error of a write at a later operation, and not at `sync_all`.
fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let dir = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let new = path.with_extension("new");
    let mut file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&new)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    // The rename is stable once the directory is.
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contents_are_replaced_as_a_whole() {
        let dir = std::env::temp_dir().join(format!("weir-state-file-{}", std::process::id()));
        let path = dir.join("below/locks");
        let file = DiskStateFile::new(path.clone());
        crate::machine().unwrap().block_on(async {
            assert_eq!(file.read().await.unwrap(), None);
            file.replace(b"one".to_vec()).await.unwrap();
            file.replace(b"2".to_vec()).await.unwrap();
            assert_eq!(file.read().await.unwrap().as_deref(), Some(&b"2"[..]));
        });
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "the new file was renamed");
        // Without room for new contents, the old ones stay.
        std::os::unix::fs::symlink("/dev/full", path.with_extension("new")).unwrap();
        crate::machine().unwrap().block_on(async {
            assert_eq!(file.replace(b"three".to_vec()).await.unwrap_err().kind(), io::ErrorKind::StorageFull);
            assert_eq!(file.read().await.unwrap().as_deref(), Some(&b"2"[..]));
        });
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
