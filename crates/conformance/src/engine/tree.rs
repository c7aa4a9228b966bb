//! A file system as a tree, through the engine's own calls without a front end.

use std::sync::Arc;

use weir_files::{FileError, FileKind as EngineKind, FileSystem, Seek};
use weir_format::ObjectId;
use weir_machine::{Machine, Request};

use crate::manifest::FileKind;
use crate::tree::{Attributes, Carries, Listing, Times, Tree, TreeError};

/// Number of entries per call: small, so that cookies are used in every large directory.
const LISTING: usize = 100;

/// One file system or snapshot.
pub struct EngineTree {
    machine: Machine,
    files: Arc<FileSystem>,
    request: Request,
}

impl EngineTree {
    /// The tree of an opened file system.
    pub fn new(machine: Machine, files: Arc<FileSystem>) -> EngineTree {
        EngineTree { machine, files, request: Request::internal("judge") }
    }
}

fn failure(error: FileError) -> TreeError {
    match error {
        FileError::Corrupt { .. } | FileError::Device { .. } => TreeError::Input(error.to_string()),
        other => TreeError::Other(other.to_string()),
    }
}

fn kind(kind: EngineKind) -> Result<FileKind, TreeError> {
    Ok(match kind {
        EngineKind::Regular => FileKind::File,
        EngineKind::Directory => FileKind::Dir,
        EngineKind::Symlink => FileKind::Symlink,
        EngineKind::BlockDevice => FileKind::Blk,
        EngineKind::CharDevice => FileKind::Chr,
        EngineKind::Fifo => FileKind::Fifo,
        EngineKind::Socket => FileKind::Socket,
        EngineKind::Other => return Err(TreeError::Other("a kind of file that Linux does not have".to_string())),
    })
}

fn time(time_ns: i128) -> Result<i64, TreeError> {
    i64::try_from(time_ns).map_err(|_| TreeError::Other(format!("time {time_ns} out of range")))
}

impl Tree for EngineTree {
    type Node = ObjectId;

    fn carries(&self) -> Carries {
        Carries { ino: true, crtime: true, xattrs: true, holes: true, blksize: true, times: Times::Signed64 }
    }

    fn root(&mut self) -> Result<ObjectId, TreeError> {
        Ok(self.files.root())
    }

    fn attributes(&mut self, object: &ObjectId) -> Result<Attributes, TreeError> {
        let found = self.machine.block_on(self.files.attrs().get(&self.request, *object)).map_err(failure)?;
        let (major, minor) = found.device.unwrap_or_default();
        Ok(Attributes {
            kind: kind(found.kind)?,
            mode: found.mode,
            uid: found.uid.into(),
            gid: found.gid.into(),
            nlink: found.links,
            ino: found.object.0,
            size: found.size_bytes,
            mtime_ns: time(found.mtime_ns)?,
            ctime_ns: time(found.ctime_ns)?,
            atime_ns: time(found.atime_ns)?,
            crtime_ns: Some(time(found.crtime_ns)?),
            blocks512: found.blocks512,
            blksize: Some(found.block_bytes.into()),
            rdev: (major.into(), minor.into()),
        })
    }

    fn read_dir(&mut self, object: &ObjectId) -> Result<Listing<ObjectId>, TreeError> {
        let mut listing = Vec::new();
        let mut cookie = 0;
        loop {
            let page = self.files.directories().read_dir(&self.request, *object, cookie, LISTING);
            let page = self.machine.block_on(page).map_err(failure)?;
            let last = page.len() < LISTING;
            for entry in page {
                cookie = entry.cookie;
                // A listed name must also be found by a look-up.
                let found = self.files.directories().lookup(&self.request, *object, &entry.name);
                let found = self.machine.block_on(found).map_err(failure)?;
                if found != entry.object {
                    let name = String::from_utf8_lossy(&entry.name).into_owned();
                    return Err(TreeError::Other(format!("{name} lists as {} and is found as {found}", entry.object)));
                }
                listing.push((entry.name, entry.object));
            }
            if last {
                return Ok(listing);
            }
        }
    }

    fn read(&mut self, object: &ObjectId, offset: u64, length: usize) -> Result<Vec<u8>, TreeError> {
        let bytes = self.files.contents().read(&self.request, *object, offset, length);
        Ok(self.machine.block_on(bytes).map_err(failure)?.to_vec())
    }

    fn read_link(&mut self, object: &ObjectId) -> Result<Vec<u8>, TreeError> {
        Ok(self.machine.block_on(self.files.contents().read_link(&self.request, *object)).map_err(failure)?.to_vec())
    }

    fn xattrs(&mut self, object: &ObjectId) -> Result<Vec<(String, Vec<u8>)>, TreeError> {
        let names = self.machine.block_on(self.files.xattrs().names(&self.request, *object)).map_err(failure)?;
        let mut all = Vec::new();
        for name in names {
            let value =
                self.machine.block_on(self.files.xattrs().get(&self.request, *object, &name)).map_err(failure)?;
            let name = String::from_utf8_lossy(&name).into_owned();
            match value {
                Some(value) => all.push((name, value.to_vec())),
                None => return Err(TreeError::Other(format!("{name} lists and is not found"))),
            }
        }
        Ok(all)
    }

    fn data_runs(&mut self, object: &ObjectId, size: u64) -> Result<Vec<(u64, u64)>, TreeError> {
        let mut runs = Vec::new();
        let mut at = 0;
        while at < size {
            let data = self.files.contents().seek(&self.request, *object, at, Seek::Data);
            let Some(start) = self.machine.block_on(data).map_err(failure)? else { break };
            let hole = self.files.contents().seek(&self.request, *object, start, Seek::Hole);
            let end = self.machine.block_on(hole).map_err(failure)?.unwrap_or(size);
            if end <= start || start < at {
                return Err(TreeError::Other(format!("data at {start}, hole at {end}, sought from {at}")));
            }
            runs.push((start, end - start));
            at = end;
        }
        Ok(runs)
    }
}
