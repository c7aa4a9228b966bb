//! An NFSv3 client (RFC 1813) for judging the server: MOUNT, GETATTR, LOOKUP, READLINK, READ, READDIRPLUS, and CREATE,
//! WRITE, COMMIT.
//!
//! Listings are read in small pieces, so that cookies are used many times in every large directory.

use std::net::{IpAddr, SocketAddr};

use crate::manifest::FileKind;
use crate::rpc::{Reader, Rpc, Writer};
use crate::tree::{Attributes, Carries, Listing, Times, Tree, TreeError};

const MOUNT: u32 = 100_005;
const NFS: u32 = 100_003;
const READ_BYTES: u32 = 256 << 10;
const LISTING_BYTES: u32 = 32 << 10;

/// A file's handle on the server.
pub type Handle = Vec<u8>;

/// One exported tree.
pub struct NfsTree {
    rpc: Rpc,
    root: Handle,
}

fn status(code: u32, what: &str) -> Result<(), TreeError> {
    match code {
        0 => Ok(()),
        5 => Err(TreeError::Input(format!("{what}: NFS3ERR_IO"))),
        2 => Err(TreeError::Other(format!("{what}: NFS3ERR_NOENT"))),
        other => Err(TreeError::Other(format!("{what}: NFS status {other}"))),
    }
}

impl NfsTree {
    /// Mounts an export.
    ///
    /// # Errors
    /// If the server is not there or does not export this path.
    pub fn mount(nfs: SocketAddr, mount: SocketAddr, path: &str) -> Result<NfsTree, TreeError> {
        Self::mount_over(Rpc::connect(mount)?, Rpc::connect(nfs)?, path)
    }

    /// Mounts an export from a host of this machine, such as 127.0.0.7.
    ///
    /// # Errors
    /// As [`NfsTree::mount`]; if the address is not one of this machine.
    pub fn mount_from(host: IpAddr, nfs: SocketAddr, mount: SocketAddr, path: &str) -> Result<NfsTree, TreeError> {
        Self::mount_over(Rpc::connect_from(host, mount)?, Rpc::connect_from(host, nfs)?, path)
    }

    fn mount_over(mut mount: Rpc, nfs: Rpc, path: &str) -> Result<NfsTree, TreeError> {
        let mut arguments = Writer::default();
        arguments.opaque(path.as_bytes());
        let mut answer = mount.call(MOUNT, 3, 1, &arguments)?;
        status(answer.u32()?, &format!("mount {path}"))?;
        let root = answer.opaque()?;
        Ok(NfsTree { rpc: nfs, root })
    }

    /// The paths that a server exports.
    ///
    /// # Errors
    /// If the server is not there.
    pub fn exports(mount: SocketAddr) -> Result<Vec<String>, TreeError> {
        let mut answer = Rpc::connect(mount)?.call(MOUNT, 3, 5, &Writer::default())?;
        let mut paths = Vec::new();
        while answer.u32()? != 0 {
            paths.push(String::from_utf8_lossy(&answer.opaque()?).into_owned());
            while answer.u32()? != 0 {
                answer.opaque()?;
            }
        }
        Ok(paths)
    }

    /// Returns the same export with a directory below its root as root.
    ///
    /// # Errors
    /// If a part of the path is not there.
    pub fn below(mut self, parts: &[&[u8]]) -> Result<NfsTree, TreeError> {
        for part in parts {
            self.root = self.lookup(&self.root.clone(), part)?;
        }
        Ok(self)
    }

    /// The handle of a name in the root, made as an empty file if it is not there.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn made(&mut self, name: &[u8]) -> Result<Handle, TreeError> {
        let root = self.root.clone();
        let mut answer = self.call(8, &root, |arguments| {
            // Unchecked; mode 0644, nothing else set.
            arguments.opaque(name).u32(0).u32(1).u32(0o644).u32(0).u32(0).u32(0).u32(0).u32(0);
        })?;
        status(answer.u32()?, &format!("create {}", String::from_utf8_lossy(name)))?;
        if answer.u32()? == 0 { self.lookup(&root, name) } else { answer.opaque() }
    }

    /// The handle of a name in the root, if it is there.
    ///
    /// # Errors
    /// If the server does not answer.
    pub fn named(&mut self, name: &[u8]) -> Result<Option<Handle>, TreeError> {
        let mut arguments = Writer::default();
        arguments.opaque(&self.root).opaque(name);
        let mut answer = self.rpc.call(NFS, 3, 3, &arguments)?;
        match answer.u32()? {
            2 => Ok(None),
            code => status(code, "lookup").and_then(|()| answer.opaque()).map(Some),
        }
    }

    /// Writes bytes, stable at once or after a commit. Returns the server's write verifier.
    ///
    /// # Errors
    /// If the server refuses, writes a part only, or promises less than it was asked for.
    pub fn write(&mut self, handle: &Handle, offset: u64, data: &[u8], stable: bool) -> Result<u64, TreeError> {
        let count = u32::try_from(data.len()).map_err(|e| TreeError::Other(e.to_string()))?;
        let mut answer = self.call(7, handle, |arguments| {
            arguments.u64(offset).u32(count).u32(if stable { 2 } else { 0 }).opaque(data);
        })?;
        status(answer.u32()?, "write")?;
        wcc_data(&mut answer)?;
        let written = answer.u32()?;
        let committed = answer.u32()?;
        if written != count || (stable && committed != 2) {
            return Err(TreeError::Other(format!("write of {count}: {written} written, committed {committed}")));
        }
        answer.u64()
    }

    /// Reads with one READ, and returns the number of bytes that the server answered.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn read_once(&mut self, handle: &Handle, offset: u64, count: u32) -> Result<usize, TreeError> {
        let mut answer = self.call(6, handle, |arguments| {
            arguments.u64(offset).u32(count);
        })?;
        status(answer.u32()?, "read")?;
        maybe_attributes(&mut answer)?;
        let _count_and_end = (answer.u32()?, answer.u32()?);
        Ok(answer.opaque()?.len())
    }

    /// Makes all of a file stable. Returns the server's write verifier.
    ///
    /// # Errors
    /// If the server refuses.
    pub fn commit(&mut self, handle: &Handle) -> Result<u64, TreeError> {
        let mut answer = self.call(21, handle, |arguments| {
            arguments.u64(0).u32(0);
        })?;
        status(answer.u32()?, "commit")?;
        wcc_data(&mut answer)?;
        answer.u64()
    }

    fn lookup(&mut self, directory: &Handle, name: &[u8]) -> Result<Handle, TreeError> {
        let mut arguments = Writer::default();
        arguments.opaque(directory).opaque(name);
        let mut answer = self.rpc.call(NFS, 3, 3, &arguments)?;
        status(answer.u32()?, &format!("lookup {}", String::from_utf8_lossy(name)))?;
        answer.opaque()
    }

    fn call(&mut self, procedure: u32, handle: &Handle, rest: impl FnOnce(&mut Writer)) -> Result<Reader, TreeError> {
        let mut arguments = Writer::default();
        arguments.opaque(handle);
        rest(&mut arguments);
        self.rpc.call(NFS, 3, procedure, &arguments)
    }
}

fn attributes(answer: &mut Reader) -> Result<Attributes, TreeError> {
    let kind = match answer.u32()? {
        1 => FileKind::File,
        2 => FileKind::Dir,
        3 => FileKind::Blk,
        4 => FileKind::Chr,
        5 => FileKind::Symlink,
        6 => FileKind::Socket,
        7 => FileKind::Fifo,
        other => return Err(TreeError::Other(format!("file type {other}"))),
    };
    let mode = answer.u32()?;
    let nlink = answer.u32()?;
    let uid = answer.u32()?;
    let gid = answer.u32()?;
    let size = answer.u64()?;
    let used = answer.u64()?;
    let rdev = (answer.u32()?.into(), answer.u32()?.into());
    let _file_system = answer.u64()?;
    let ino = answer.u64()?;
    let mut time = || -> Result<i64, TreeError> {
        let seconds = answer.u32()?;
        let nanos = answer.u32()?;
        Ok(i64::from(seconds) * 1_000_000_000 + i64::from(nanos))
    };
    let atime_ns = time()?;
    let mtime_ns = time()?;
    let ctime_ns = time()?;
    Ok(Attributes {
        kind,
        mode,
        uid: uid.into(),
        gid: gid.into(),
        nlink: nlink.into(),
        ino,
        size,
        mtime_ns,
        ctime_ns,
        atime_ns,
        crtime_ns: None,
        blocks512: used.div_ceil(512),
        blksize: None,
        rdev,
    })
}

/// Attributes before and after a change, each of which is optional in a reply.
fn wcc_data(answer: &mut Reader) -> Result<(), TreeError> {
    if answer.u32()? != 0 {
        answer.fixed(24)?;
    }
    maybe_attributes(answer).map(|_| ())
}

/// Attributes, which are optional in a reply.
fn maybe_attributes(answer: &mut Reader) -> Result<Option<Attributes>, TreeError> {
    if answer.u32()? == 0 { Ok(None) } else { attributes(answer).map(Some) }
}

impl Tree for NfsTree {
    type Node = Handle;

    fn carries(&self) -> Carries {
        Carries { ino: true, crtime: false, xattrs: false, holes: false, blksize: false, times: Times::Unsigned32 }
    }

    fn root(&mut self) -> Result<Handle, TreeError> {
        Ok(self.root.clone())
    }

    fn attributes(&mut self, handle: &Handle) -> Result<Attributes, TreeError> {
        let mut answer = self.call(1, handle, |_| {})?;
        status(answer.u32()?, "getattr")?;
        attributes(&mut answer)
    }

    fn read_dir(&mut self, handle: &Handle) -> Result<Listing<Handle>, TreeError> {
        let mut listing = Vec::new();
        let mut cookie = 0;
        let mut verifier = 0;
        loop {
            let mut answer = self.call(17, handle, |arguments| {
                arguments.u64(cookie).u64(verifier).u32(LISTING_BYTES / 4).u32(LISTING_BYTES);
            })?;
            status(answer.u32()?, "readdirplus")?;
            maybe_attributes(&mut answer)?;
            verifier = answer.u64()?;
            let mut more = false;
            while answer.u32()? != 0 {
                more = true;
                let _ino = answer.u64()?;
                let name = answer.opaque()?;
                cookie = answer.u64()?;
                maybe_attributes(&mut answer)?;
                let child = if answer.u32()? == 0 { None } else { Some(answer.opaque()?) };
                if name == b"." || name == b".." {
                    continue;
                }
                let child = match child {
                    Some(child) => child,
                    None => self.lookup(handle, &name)?,
                };
                listing.push((name, child));
            }
            if answer.u32()? != 0 {
                return Ok(listing);
            }
            if !more {
                return Err(TreeError::Other("readdirplus: no entries and no end".to_string()));
            }
        }
    }

    fn read(&mut self, handle: &Handle, offset: u64, length: usize) -> Result<Vec<u8>, TreeError> {
        let mut bytes = Vec::new();
        while bytes.len() < length {
            let count = u32::try_from(length - bytes.len()).unwrap_or(u32::MAX).min(READ_BYTES);
            let mut answer = self.call(6, handle, |arguments| {
                arguments.u64(offset + bytes.len() as u64).u32(count);
            })?;
            status(answer.u32()?, "read")?;
            maybe_attributes(&mut answer)?;
            let count = answer.u32()?;
            let end = answer.u32()? != 0;
            let data = answer.opaque()?;
            if data.len() != count as usize {
                return Err(TreeError::Other(format!("read: count {count} with {} bytes", data.len())));
            }
            bytes.extend_from_slice(&data);
            if end || data.is_empty() {
                break;
            }
        }
        Ok(bytes)
    }

    fn read_link(&mut self, handle: &Handle) -> Result<Vec<u8>, TreeError> {
        let mut answer = self.call(5, handle, |_| {})?;
        status(answer.u32()?, "readlink")?;
        maybe_attributes(&mut answer)?;
        answer.opaque()
    }

    fn xattrs(&mut self, _: &Handle) -> Result<Vec<(String, Vec<u8>)>, TreeError> {
        Ok(Vec::new())
    }

    fn data_runs(&mut self, _: &Handle, size: u64) -> Result<Vec<(u64, u64)>, TreeError> {
        Ok(vec![(0, size)])
    }
}
