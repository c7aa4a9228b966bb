//! A folder as a store: each object is a file that replaces its predecessor as a whole.
//!
//! A PUT writes a new file, syncs it, and renames it under a lock (`flock` on `.lock` in the folder) after the condition was
//! looked at; then the folder is synced. So conditions hold between processes of one machine. On a network file system they
//! hold as far as its locks and renames do.

use crate::store::{Answer, Condition, Etag, Fetched, Store, StoreError};
use bytes::Bytes;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use weir_machine::Compute;

/// Name of the file whose lock guards the folder.
const LOCK: &str = ".lock";
/// Most bytes that are read of a file: more than an object has.
const MAX_READ_BYTES: u64 = 64 << 20;

/// A folder with objects.
pub struct FolderStore {
    inner: Arc<Folder>,
    threads: Compute,
}

struct Folder {
    path: PathBuf,
    next: AtomicU64,
}

impl FolderStore {
    /// The folder at an absolute path; calls that block run on `threads`.
    pub fn new(path: PathBuf, threads: Compute) -> Self {
        FolderStore { inner: Arc::new(Folder { path, next: AtomicU64::new(0) }), threads }
    }

    fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Folder) -> Result<T, StoreError> + Send + 'static,
    ) -> Answer<'_, T> {
        let folder = self.inner.clone();
        Box::pin(async move {
            let lost = |_| StoreError::Unknown("the call ended without a result".into());
            self.threads.run(move || call(&folder)).await.map_err(lost)?
        })
    }
}

fn failed(error: std::io::Error) -> StoreError {
    match error.kind() {
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotADirectory => {
            StoreError::Refused(error.to_string())
        }
        _ => StoreError::Unknown(error.to_string()),
    }
}

/// A file that is replaced as a whole has another inode, or at least another time.
fn etag(metadata: &std::fs::Metadata) -> Etag {
    let seconds = metadata.mtime();
    let ns = metadata.mtime_nsec();
    Etag::new(format!("\"{:x}-{seconds:x}-{ns:x}-{:x}\"", metadata.ino(), metadata.len()))
}

fn present<T>(result: std::io::Result<T>) -> Result<Option<T>, StoreError> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

impl Folder {
    fn file(&self, key: &str) -> PathBuf {
        self.path.join(key)
    }

    /// The lock of the folder, until it is dropped.
    fn lock(&self) -> Result<File, StoreError> {
        let file = File::options().create(true).truncate(false).write(true).open(self.file(LOCK)).map_err(failed)?;
        file.lock().map_err(failed)?;
        Ok(file)
    }

    /// Fails unless the condition is met. The lock is held.
    fn check(&self, path: &Path, condition: &Condition) -> Result<(), StoreError> {
        let now = present(std::fs::metadata(path))?.map(|metadata| etag(&metadata));
        let is_met = match condition {
            Condition::Missing => now.is_none(),
            Condition::Is(etag) => now.as_ref() == Some(etag),
            Condition::Any => true,
        };
        if is_met { Ok(()) } else { Err(StoreError::Precondition) }
    }

    fn sync(&self) -> Result<(), StoreError> {
        File::open(&self.path).and_then(|folder| folder.sync_all()).map_err(failed)
    }

    fn put(&self, key: &str, body: &[u8], condition: &Condition) -> Result<Etag, StoreError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let new = self.file(&format!(".new-{}-{number}", std::process::id()));
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(body)?;
            file.sync_all()?;
            file.metadata()
        };
        let path = self.file(key);
        let replace = |metadata: std::fs::Metadata| {
            let _lock = self.lock()?;
            self.check(&path, condition)?;
            std::fs::rename(&new, &path).map_err(failed)?;
            Ok(etag(&metadata))
        };
        let replaced = write().map_err(failed).and_then(replace);
        if replaced.is_err() {
            // It has no name that anything reads.
            let _ = std::fs::remove_file(&new);
        }
        let etag = replaced?;
        self.sync()?;
        Ok(etag)
    }

    fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Option<Fetched>, StoreError> {
        let Some(mut file) = present(File::open(self.file(key)))? else { return Ok(None) };
        let range = range.unwrap_or(0..MAX_READ_BYTES);
        let mut bytes = Vec::new();
        let mut read = || {
            let metadata = file.metadata()?;
            file.seek(SeekFrom::Start(range.start))?;
            (&file).take(range.end.saturating_sub(range.start)).read_to_end(&mut bytes)?;
            Ok(metadata)
        };
        let metadata = read().map_err(failed)?;
        Ok(Some(Fetched { bytes: bytes.into(), etag: etag(&metadata) }))
    }

    fn delete(&self, key: &str, expected: Etag) -> Result<(), StoreError> {
        let path = self.file(key);
        {
            let _lock = self.lock()?;
            self.check(&path, &Condition::Is(expected))?;
            std::fs::remove_file(&path).map_err(failed)?;
        }
        self.sync()
    }
}

impl Store for FolderStore {
    fn place(&self, key: &str) -> String {
        let place = if key.is_empty() { self.inner.path.clone() } else { self.inner.file(key) };
        format!("file://{}", place.display())
    }

    fn put(&self, key: String, body: Bytes, condition: Condition) -> Answer<'_, Etag> {
        self.run(move |folder| folder.put(&key, &body, &condition))
    }

    fn get(&self, key: String, range: Option<Range<u64>>) -> Answer<'_, Option<Fetched>> {
        self.run(move |folder| folder.get(&key, range))
    }

    fn head(&self, key: String) -> Answer<'_, Option<Etag>> {
        self.run(move |folder| Ok(present(std::fs::metadata(folder.file(&key)))?.map(|metadata| etag(&metadata))))
    }

    fn delete(&self, key: String, expected: Etag) -> Answer<'_, ()> {
        self.run(move |folder| folder.delete(&key, expected))
    }
}
