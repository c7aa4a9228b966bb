//! A dataset of the pool that `weir bench` has open, as the laboratory measures it.

use bytes::Bytes;
use std::fmt;
use std::io;
use std::sync::Arc;
use weir_engine::Engine;
use weir_files::{Cred, FileError, FileSystem, New, NewKind, WriteAt};
use weir_format::ObjectId;
use weir_lab::native::in_process::{Answer, Content, Dataset};
use weir_machine::accounts::{Accounts, Client};
use weir_machine::{Machine, Operation, Protocol, Request};
use weir_pool::PoolError;
use weir_volumes::{Attachment, VolumeError};

/// Name of the client in the pool's accounts.
const CLIENT: &str = "bench";

/// Entries of a directory that are read at a time.
const ENTRIES: usize = 1_000;

/// A file system or volume.
pub struct OpenDataset {
    name: String,
    engine: Arc<Engine>,
    data: Data,
}

enum Data {
    Files(Arc<FileSystem>),
    Volume(Arc<Attachment>),
}

/// Account of the operations.
#[derive(Clone)]
struct Booked {
    accounts: Arc<Accounts>,
    client: Client,
}

impl Booked {
    /// Runs an operation and books it.
    async fn run<T>(&self, operation: Operation, work: impl AsyncFnOnce(&Request) -> io::Result<T>) -> io::Result<T> {
        let rq = self.accounts.begin(&self.client, operation);
        let done = work(&rq).await;
        self.accounts.record(&rq);
        done
    }
}

fn of_file(error: FileError) -> io::Error {
    io::Error::other(error.to_string())
}

fn of_volume(error: VolumeError) -> io::Error {
    io::Error::other(error.to_string())
}

impl fmt::Debug for OpenDataset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenDataset({})", self.name)
    }
}

impl OpenDataset {
    /// Opens a file system, or a volume.
    ///
    /// # Errors
    /// If the pool has no such dataset, or it cannot be written: a snapshot, or one without its key.
    pub async fn open(engine: &Arc<Engine>, name: &str) -> Result<Self, PoolError> {
        let rq = &Request::internal(CLIENT);
        let data = match engine.volume(rq, name).await {
            Ok(volume) => Data::Volume(Arc::new(volume.attach())),
            Err(of_volume) => match engine.file_system(rq, name).await {
                Ok(files) => Data::Files(files),
                // Of two errors, that of a volume is the one that says more about a volume.
                Err(PoolError::Volume { .. }) => return Err(of_volume),
                Err(error) => return Err(error),
            },
        };
        Ok(Self { name: name.to_owned(), engine: engine.clone(), data })
    }

    /// Whether loads may write.
    pub fn is_writable(&self) -> bool {
        match &self.data {
            Data::Files(files) => !files.is_snapshot(),
            Data::Volume(attached) => attached.volume().is_writable(),
        }
    }

    fn booked(&self) -> Booked {
        let accounts = self.engine.cache.accounts().clone();
        let client = accounts.client(Protocol::Internal, CLIENT);
        Booked { accounts, client }
    }

    /// Finds a file of the root directory, and makes it if it is missing and `creates`.
    async fn file(&self, files: &Arc<FileSystem>, name: &str, creates: bool) -> io::Result<ObjectId> {
        let rq = &Request::internal(CLIENT);
        let named = |error: FileError| io::Error::other(format!("{name}: {error}"));
        match files.directories().lookup(rq, files.root(), name.as_bytes()).await {
            Ok(object) => Ok(object),
            Err(FileError::NotFound) if creates => {
                let new = New::of(NewKind::Regular, 0o644);
                let made = files.names().create(rq, &Cred::root(), files.root(), name.as_bytes(), &new).await;
                Ok(made.map_err(named)?.object)
            }
            Err(error) => Err(named(error)),
        }
    }
}

impl Dataset for OpenDataset {
    fn name(&self) -> &str {
        &self.name
    }

    fn machine(&self) -> &Machine {
        &self.engine.machine
    }

    fn is_volume(&self) -> bool {
        matches!(self.data, Data::Volume(_))
    }

    fn room_bytes(&self) -> io::Result<u64> {
        match &self.data {
            Data::Volume(attached) => Ok(attached.volume().size_bytes()),
            Data::Files(files) => {
                let rq = &Request::internal(CLIENT);
                let usage = self.machine().block_on(files.quotas().usage(rq, files.root())).map_err(of_file)?;
                Ok(usage.available_bytes)
            }
        }
    }

    fn open(&self, file: &str, creates: bool) -> io::Result<Arc<dyn Content>> {
        let booked = self.booked();
        match &self.data {
            Data::Volume(attached) => Ok(Arc::new(VolumeContent { attached: attached.clone(), booked })),
            Data::Files(files) => {
                let object = self.machine().block_on(self.file(files, file, creates))?;
                Ok(Arc::new(FileContent { files: files.clone(), object, booked }))
            }
        }
    }

    fn remove_files(&self, prefix: &str) -> io::Result<()> {
        let Data::Files(files) = &self.data else { return Ok(()) };
        let rq = &Request::internal(CLIENT);
        self.machine().block_on(async {
            let mut cookie = 0;
            let mut found = Vec::new();
            loop {
                let entries = files.directories().read_dir(rq, files.root(), cookie, ENTRIES).await.map_err(of_file)?;
                let is_end = entries.len() < ENTRIES;
                cookie = entries.last().map_or(cookie, |last| last.cookie);
                found.extend(entries.into_iter().map(|entry| entry.name).filter(|n| n.starts_with(prefix.as_bytes())));
                if is_end {
                    break;
                }
            }
            for name in found {
                files.names().remove(rq, &Cred::root(), files.root(), &name).await.map_err(of_file)?;
            }
            Ok(())
        })
    }
}

/// A file of a worker.
struct FileContent {
    files: Arc<FileSystem>,
    object: ObjectId,
    booked: Booked,
}

impl Content for FileContent {
    fn read(&self, offset: u64, len: usize) -> Answer<Bytes> {
        let (files, object, booked) = (self.files.clone(), self.object, self.booked.clone());
        Box::pin(async move {
            let read = async |rq: &Request| files.contents().read(rq, object, offset, len).await.map_err(of_file);
            booked.run(Operation::Read, read).await
        })
    }

    fn write(&self, offset: u64, data: Bytes, is_stable: bool) -> Answer<()> {
        let (files, object, booked) = (self.files.clone(), self.object, self.booked.clone());
        Box::pin(async move {
            let write = async |rq: &Request| {
                let at = WriteAt::Offset(offset);
                files.contents().write(rq, &Cred::root(), object, at, data).await.map_err(of_file)?;
                if is_stable { files.sync(rq, Some(object)).await.map_err(of_file) } else { Ok(()) }
            };
            booked.run(Operation::Write, write).await
        })
    }

    fn flush(&self) -> Answer<()> {
        let (files, object, booked) = (self.files.clone(), self.object, self.booked.clone());
        Box::pin(async move {
            let flush = async |rq: &Request| files.sync(rq, Some(object)).await.map_err(of_file);
            booked.run(Operation::Flush, flush).await
        })
    }
}

/// The volume of all workers.
struct VolumeContent {
    attached: Arc<Attachment>,
    booked: Booked,
}

impl Content for VolumeContent {
    fn read(&self, offset: u64, len: usize) -> Answer<Bytes> {
        let (attached, booked) = (self.attached.clone(), self.booked.clone());
        Box::pin(async move {
            let read = async |rq: &Request| attached.volume().read(rq, offset, len).await.map_err(of_volume);
            booked.run(Operation::Read, read).await
        })
    }

    fn write(&self, offset: u64, data: Bytes, is_stable: bool) -> Answer<()> {
        let (attached, booked) = (self.attached.clone(), self.booked.clone());
        Box::pin(async move {
            let write =
                async |rq: &Request| attached.volume().write(rq, offset, data, is_stable).await.map_err(of_volume);
            booked.run(Operation::Write, write).await
        })
    }

    fn flush(&self) -> Answer<()> {
        let (attached, booked) = (self.attached.clone(), self.booked.clone());
        Box::pin(async move {
            let flush = async |rq: &Request| attached.volume().flush(rq).await.map_err(of_volume);
            booked.run(Operation::Flush, flush).await
        })
    }
}
