//! A small file with state that must survive a restart of the process, and whose contents are replaced as a whole.

use crate::lock::Mutex;
use futures_util::future::BoxFuture;
use std::io;
use std::sync::Arc;

/// A file that is read once and replaced often.
pub trait StateFile: Send + Sync {
    /// The contents; `None` if they were never stored.
    ///
    /// # Errors
    /// If the file cannot be read.
    fn read(&self) -> BoxFuture<'_, io::Result<Option<Vec<u8>>>>;

    /// Replaces the contents: after a crash, the file has the old or the new ones. The new ones are on stable storage when this
    /// completes.
    ///
    /// # Errors
    /// If they cannot be stored; then the old ones stay.
    fn replace(&self, bytes: Vec<u8>) -> BoxFuture<'_, io::Result<()>>;
}

/// A state file in memory, for the simulator and for servers without a state directory. Clones have the same contents.
#[derive(Clone, Debug, Default)]
pub struct MemoryStateFile(Arc<Mutex<Option<Vec<u8>>>>);

impl StateFile for MemoryStateFile {
    fn read(&self) -> BoxFuture<'_, io::Result<Option<Vec<u8>>>> {
        let bytes = self.0.lock().clone();
        Box::pin(std::future::ready(Ok(bytes)))
    }

    fn replace(&self, bytes: Vec<u8>) -> BoxFuture<'_, io::Result<()>> {
        *self.0.lock() = Some(bytes);
        Box::pin(std::future::ready(Ok(())))
    }
}
