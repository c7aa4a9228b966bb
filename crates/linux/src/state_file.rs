//! State files: a file per state, replaced by renaming a new one over it.

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use std::io;
use std::path::{Path, PathBuf};
use tokio::io::AsyncWriteExt;
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
        async move {
            let dir = self.path.parent().unwrap_or(Path::new("."));
            tokio::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir).await?;
            let new = self.path.with_extension("new");
            let mut options = tokio::fs::OpenOptions::new();
            let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&new).await?;
            file.write_all(&bytes).await?;
            file.sync_all().await?;
            tokio::fs::rename(&new, &self.path).await?;
            // The rename is stable once the directory is.
            tokio::fs::File::open(dir).await?.sync_all().await
        }
        .boxed()
    }
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
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
