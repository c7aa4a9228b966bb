//! Disks of any size that keep only the pages that were written: a file with the pages, and one with their places.
//!
//! ```text
//!   disk, page 0x7f000  ─► index in memory ─► slot 12 of `d0.pages`     `d0.index`: page numbers in the order of the slots
//!   a page without slot ─► zeros
//! ```
//!
//! So a pool of 32 disks of 32 TiB with metadata only fits into a folder, and its pages do not count as memory of the process
//! that is measured. Operations block the calling thread; a flush writes the index.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use weir_machine::{Access, Disk, DiskError, Disks, Geometry, Io, Op};

/// Size of a page and of a sector in bytes.
const PAGE: u64 = 4096;
const EIO: i32 = 5;

/// The disks of a folder, all of one size.
pub struct SparseDisks {
    folder: PathBuf,
    size_bytes: u64,
    open: Mutex<BTreeMap<PathBuf, Arc<SparseDisk>>>,
}

impl SparseDisks {
    /// Disks of `size_bytes` in a folder.
    pub fn new(folder: &Path, size_bytes: u64) -> Self {
        SparseDisks { folder: folder.to_owned(), size_bytes, open: Mutex::default() }
    }

    /// Path of a disk.
    pub fn path(&self, number: usize) -> PathBuf {
        self.folder.join(format!("d{number}.disk"))
    }

    /// Creates an empty disk.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn create(&self, number: usize) -> std::io::Result<()> {
        let path = self.path(number);
        [path.clone(), path.with_extension("pages"), path.with_extension("index")]
            .iter()
            .try_for_each(|path| File::create(path).map(drop))
    }
}

impl Disks for SparseDisks {
    fn scan(&self, dir: &Path) -> Result<Vec<PathBuf>, DiskError> {
        let entries = std::fs::read_dir(dir).map_err(|error| unopened(dir, &error))?;
        let paths = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut disks: Vec<PathBuf> = paths.filter(|path| path.extension().is_some_and(|e| e == "disk")).collect();
        disks.sort();
        Ok(disks)
    }

    fn open(&self, path: &Path, _access: Access) -> Result<Arc<dyn Disk>, DiskError> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(disk) = open.get(path) {
            return Ok(disk.clone());
        }
        let disk = SparseDisk::open(path, self.size_bytes).map_err(|error| unopened(path, &error))?;
        Ok(open.entry(path.to_owned()).or_insert(Arc::new(disk)).clone())
    }
}

fn unopened(path: &Path, error: &std::io::Error) -> DiskError {
    DiskError::Open { path: path.to_owned(), errno: error.raw_os_error().unwrap_or(EIO) }
}

/// A disk.
struct SparseDisk {
    size_bytes: u64,
    pages: File,
    index: File,
    state: Mutex<Index>,
}

/// Slots of the written pages.
#[derive(Default)]
struct Index {
    slots: BTreeMap<u64, u64>,
    /// Number of entries that the index file has.
    stored: u64,
    /// Page numbers of the slots that it does not have.
    new: Vec<u8>,
}

impl SparseDisk {
    fn open(path: &Path, size_bytes: u64) -> std::io::Result<Self> {
        let file = |name: &str| OpenOptions::new().read(true).write(true).open(path.with_extension(name));
        let known = std::fs::read(path.with_extension("index"))?;
        let (words, _) = known.as_chunks::<8>();
        let slots: BTreeMap<u64, u64> = words.iter().map(|word| u64::from_le_bytes(*word)).zip(0..).collect();
        let state = Index { stored: slots.len() as u64, slots, new: Vec::new() };
        Ok(SparseDisk { size_bytes, pages: file("pages")?, index: file("index")?, state: Mutex::new(state) })
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (page, part) in (offset / PAGE..).zip(into.chunks_mut(PAGE as usize)) {
            match state.slots.get(&page) {
                Some(slot) => self.pages.read_exact_at(part, slot * PAGE)?,
                None => part.fill(0),
            }
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        for (page, part) in (offset / PAGE..).zip(bytes.chunks(PAGE as usize)) {
            let next = state.slots.len() as u64;
            let slot = *state.slots.entry(page).or_insert(next);
            if slot == next {
                state.new.extend(page.to_le_bytes());
            }
            self.pages.write_all_at(part, slot * PAGE)?;
        }
        Ok(())
    }

    fn flush(&self) -> std::io::Result<()> {
        let state = &mut *self.state.lock().unwrap_or_else(PoisonError::into_inner);
        self.index.write_all_at(&state.new, state.stored * 8)?;
        state.stored += state.new.len() as u64 / 8;
        state.new.clear();
        Ok(())
    }
}

impl Disk for SparseDisk {
    fn geometry(&self) -> Geometry {
        Geometry { size_bytes: self.size_bytes, sector_bytes: PAGE as u32, rotational: false }
    }

    fn submit(&self, mut io: Io) {
        if let Err(error) = io.check(&self.geometry(), Access::ReadWrite) {
            return io.fail(error);
        }
        let mut at = io.offset;
        let done = match io.op {
            Op::Read => io.bufs.iter_mut().try_for_each(|buf| {
                let from = at;
                at += buf.len() as u64;
                self.read(from, buf.as_mut())
            }),
            Op::Write => {
                // A part need not be whole pages.
                let bytes: Vec<u8> = io.parts.iter().flat_map(|part| part.iter().copied()).collect();
                self.write(at, &bytes)
            }
            Op::Flush => self.flush(),
            Op::Discard => Ok(()),
        };
        match done {
            Ok(()) => io.succeed(),
            Err(error) => io.fail_errno(error.raw_os_error().unwrap_or(EIO)),
        }
    }
}
