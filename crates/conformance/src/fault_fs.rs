//! A FUSE file system of a few files on which reads, writes and flushes fail, hang or are slow on demand: devices below file
//! vdevs.
//!
//! The files are passed through to a folder. An operation that hangs is answered when its fault is lifted, and takes effect
//! only then, as with a disk that answers late. A slow one takes effect after its time.
#![allow(clippy::disallowed_methods, reason = "the answers of a file system in real time")]

use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, UNIX_EPOCH};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags, Generation, INodeNo,
    LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyDirectory, ReplyEmpty, ReplyEntry, ReplyOpen,
    ReplyWrite, Request, Session, WriteFlags,
};

use crate::JudgeError;

/// Inode of the first file; that of the directory is 1.
const FIRST_FILE: u64 = 2;
/// Time for which the kernel may cache attributes and names, which never change.
const TTL: Duration = Duration::from_secs(1);

/// Answer to reads, writes or flushes of one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FaultAnswer {
    /// Success.
    #[default]
    Success,
    /// This error number.
    Error(i32),
    /// None until the fault is lifted.
    Hang,
    /// Success after this time; operations do not wait for each other.
    Delay(Duration),
}

/// Operations that were not answered yet.
type Unanswered = Vec<Box<dyn FnOnce() + Send>>;

#[derive(Default)]
struct Faults {
    reads: FaultAnswer,
    writes: FaultAnswer,
    flushes: FaultAnswer,
    held: Unanswered,
}

struct FaultFile {
    name: String,
    file: Arc<File>,
    faults: Mutex<Faults>,
}

impl FaultFile {
    fn faults(&self) -> MutexGuard<'_, Faults> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does an operation as its fault says: `work` is called with the error that it answers, if any.
    fn answer(&self, fault: fn(&Faults) -> FaultAnswer, work: impl FnOnce(Option<Errno>) + Send + 'static) {
        let mut faults = self.faults();
        match fault(&faults) {
            FaultAnswer::Hang => faults.held.push(Box::new(move || work(None))),
            FaultAnswer::Success => {
                drop(faults);
                work(None);
            }
            FaultAnswer::Error(errno) => {
                drop(faults);
                work(Some(Errno::from_i32(errno)));
            }
            FaultAnswer::Delay(time) => {
                drop(faults);
                std::thread::spawn(move || {
                    std::thread::sleep(time);
                    work(None);
                });
            }
        }
    }

    fn attributes(&self, ino: INodeNo) -> FileAttr {
        let size = self.file.metadata().map_or(0, |about| about.len());
        attributes(ino, FileType::RegularFile, size)
    }
}

fn attributes(ino: INodeNo, kind: FileType, size: u64) -> FileAttr {
    FileAttr {
        ino,
        size,
        blocks: size / 512,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind,
        perm: 0o700,
        nlink: 1,
        uid: rustix::process::getuid().as_raw(),
        gid: rustix::process::getgid().as_raw(),
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// The operations of the file system.
struct FaultOps {
    files: Arc<Vec<FaultFile>>,
}

impl FaultOps {
    fn file(&self, ino: INodeNo) -> Option<&FaultFile> {
        self.files.get(usize::try_from(ino.0.checked_sub(FIRST_FILE)?).ok()?)
    }
}

impl Filesystem for FaultOps {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match self.files.iter().position(|file| OsStr::new(&file.name) == name) {
            Some(n) => {
                let ino = INodeNo(FIRST_FILE + n as u64);
                reply.entry(&TTL, &self.files[n].attributes(ino), Generation(0));
            }
            None => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        match self.file(ino) {
            Some(file) => reply.attr(&TTL, &file.attributes(ino)),
            None => reply.attr(&TTL, &attributes(ino, FileType::Directory, 0)),
        }
    }

    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        // A write that hangs must not lock the file: others could not even close it.
        let parallel = FopenFlags::FOPEN_PARALLEL_DIRECT_WRITES | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(FileHandle(0), FopenFlags::FOPEN_DIRECT_IO | parallel);
    }

    fn read(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let Some(file) = self.file(ino) else { return reply.error(Errno::EISDIR) };
        let disk = file.file.clone();
        file.answer(
            |faults| faults.reads,
            move |error| {
                let mut bytes = vec![0; size as usize];
                match (error, disk.read_at(&mut bytes, offset)) {
                    (Some(error), _) => reply.error(error),
                    (None, Ok(len)) => reply.data(&bytes[..len]),
                    (None, Err(_)) => reply.error(Errno::EIO),
                }
            },
        );
    }

    fn write(
        &self,
        _: &Request,
        ino: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let Some(file) = self.file(ino) else { return reply.error(Errno::EISDIR) };
        let disk = file.file.clone();
        let data = data.to_vec();
        file.answer(
            |faults| faults.writes,
            move |error| match error.map_or_else(|| disk.write_all_at(&data, offset).map_err(|_| Errno::EIO), Err) {
                Ok(()) => reply.written(data.len() as u32),
                Err(error) => reply.error(error),
            },
        );
    }

    fn fsync(&self, _: &Request, ino: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let Some(file) = self.file(ino) else { return reply.ok() };
        file.answer(
            |faults| faults.flushes,
            move |error| match error {
                None => reply.ok(),
                Some(error) => reply.error(error),
            },
        );
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, offset: u64, mut reply: ReplyDirectory) {
        for (n, file) in self.files.iter().enumerate().skip(offset as usize) {
            let ino = INodeNo(FIRST_FILE + n as u64);
            if reply.add(ino, n as u64 + 1, FileType::RegularFile, &file.name) {
                break;
            }
        }
        reply.ok();
    }
}

/// A mounted file system with faults.
pub struct FaultFs {
    files: Arc<Vec<FaultFile>>,
    /// Unmounted before the folders are removed: fields are dropped in order.
    _session: BackgroundSession,
    mountpoint: tempfile::TempDir,
    _backing: tempfile::TempDir,
}

impl FaultFs {
    /// Mounts a file system with `count` files `d0`, `d1`, … of `bytes` each.
    ///
    /// # Errors
    /// [`JudgeError::Missing`] if FUSE is not here.
    pub fn new(count: usize, bytes: u64) -> Result<FaultFs, JudgeError> {
        if !Path::new("/dev/fuse").exists() {
            return Err(JudgeError::Missing { what: "no /dev/fuse on this machine".to_string() });
        }
        let failed = |source| JudgeError::Io { what: "file system with faults".to_string(), source };
        let folder = |prefix| tempfile::Builder::new().prefix(prefix).tempdir().map_err(failed);
        let backing = folder("weir-faults-")?;
        let mountpoint = folder("weir-fault-fs-")?;
        let mut files = Vec::new();
        for n in 0..count {
            let name = format!("d{n}");
            let mut open = File::options();
            let file = open.read(true).write(true).create(true).truncate(true).open(backing.path().join(&name));
            let file = file.and_then(|file| file.set_len(bytes).map(|()| file)).map_err(failed)?;
            files.push(FaultFile { name, file: Arc::new(file), faults: Mutex::default() });
        }
        let files = Arc::new(files);
        let mut config = Config::default();
        config.mount_options = vec![MountOption::RW, MountOption::FSName("weir-faults".into())];
        let session = Session::new(FaultOps { files: files.clone() }, mountpoint.path(), &config).map_err(failed)?;
        let session = session.spawn().map_err(failed)?;
        Ok(FaultFs { files, _session: session, mountpoint, _backing: backing })
    }

    /// Folder in which the files are.
    pub fn path(&self) -> &Path {
        self.mountpoint.path()
    }

    /// Sets the answer to reads of file `n`.
    pub fn set_reads(&self, n: usize, answer: FaultAnswer) {
        self.files[n].faults().reads = answer;
    }

    /// Sets the answer to writes of file `n`.
    pub fn set_writes(&self, n: usize, answer: FaultAnswer) {
        self.files[n].faults().writes = answer;
    }

    /// Sets the answer to flushes of file `n`.
    pub fn set_flushes(&self, n: usize, answer: FaultAnswer) {
        self.files[n].faults().flushes = answer;
    }

    /// Lifts the faults of file `n`, and answers what hung. Returns the number of those operations.
    pub fn lift(&self, n: usize) -> usize {
        let held = {
            let mut faults = self.files[n].faults();
            std::mem::take(&mut *faults).held
        };
        let count = held.len();
        held.into_iter().for_each(|work| work());
        count
    }
}

impl Drop for FaultFs {
    fn drop(&mut self) {
        for n in 0..self.files.len() {
            self.lift(n);
        }
    }
}
