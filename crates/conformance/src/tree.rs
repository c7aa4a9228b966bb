//! A tree of files, seen through any front end: the engine itself, a mount, NFS.
//!
//! The comparison with a manifest is written once, against this trait. A front end does not show every fact (NFSv3 has
//! no birth times, a mount of several file systems has its own object numbers), so each says in [`Carries`] what it
//! shows, and the comparison leaves out only the rest.

use crate::manifest::FileKind;

/// Error of reading a tree.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The contents are lost: POSIX's EIO.
    #[error("EIO: {0}")]
    Input(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// Facts that a front end shows beyond kind, size, mode, owner, links and modification time.
#[derive(Debug, Clone, Copy)]
pub struct Carries {
    /// Object numbers.
    pub ino: bool,
    /// Birth times.
    pub crtime: bool,
    /// Extended attributes, including ACLs.
    pub xattrs: bool,
    /// Ranges of data and holes.
    pub holes: bool,
    /// Preferred I/O size.
    pub blksize: bool,
    /// Width of its times.
    pub times: Times,
}

/// Width in which a front end writes seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// 64 bits, signed: all times of ZFS.
    Signed64,
    /// 32 bits, unsigned, as in NFSv3: a time beyond may be clamped or wrapped around.
    Unsigned32,
}

impl Times {
    /// Whether a front end with this width may show `found` for a file whose time is `expected`.
    pub fn shows(self, found: i64, expected: i64) -> bool {
        const SECOND: i64 = 1_000_000_000;
        let seconds = expected.div_euclid(SECOND);
        let nanos = expected.rem_euclid(SECOND);
        let fits = u32::try_from(seconds).is_ok();
        if found == expected || self == Times::Signed64 || fits {
            return found == expected;
        }
        let nearest = if seconds < 0 { 0 } else { i64::from(u32::MAX) };
        let wrapped = seconds.rem_euclid(1 << 32) * SECOND + nanos;
        found == wrapped || found.div_euclid(SECOND) == nearest
    }
}

/// Attributes of one file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attributes {
    /// Kind of the file.
    pub kind: FileKind,
    /// Permission bits, with set-user-id, set-group-id and sticky.
    pub mode: u32,
    /// Owner.
    pub uid: u64,
    /// Group.
    pub gid: u64,
    /// Links.
    pub nlink: u64,
    /// Object number.
    pub ino: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time.
    pub mtime_ns: i64,
    /// Change time.
    pub ctime_ns: i64,
    /// Access time.
    pub atime_ns: i64,
    /// Birth time, if shown.
    pub crtime_ns: Option<i64>,
    /// Space in units of 512 bytes.
    pub blocks512: u64,
    /// Preferred I/O size, if shown.
    pub blksize: Option<u64>,
    /// Device number, for devices.
    pub rdev: (u64, u64),
}

/// Entries of a directory: each name with its file's handle.
pub type Listing<Node> = Vec<(Vec<u8>, Node)>;

/// A tree of files.
pub trait Tree {
    /// A file's handle.
    type Node: Clone;

    /// Facts that this front end shows.
    fn carries(&self) -> Carries;
    /// The root directory.
    ///
    /// # Errors
    /// If the tree cannot be reached.
    fn root(&mut self) -> Result<Self::Node, TreeError>;
    /// A file's attributes.
    ///
    /// # Errors
    /// If they cannot be read.
    fn attributes(&mut self, node: &Self::Node) -> Result<Attributes, TreeError>;
    /// A directory's entries, without `.` and `..`.
    ///
    /// # Errors
    /// If the directory cannot be read.
    fn read_dir(&mut self, node: &Self::Node) -> Result<Listing<Self::Node>, TreeError>;
    /// Reads bytes of a file; fewer than requested only at its end.
    ///
    /// # Errors
    /// [`TreeError::Input`] if the bytes are lost.
    fn read(&mut self, node: &Self::Node, offset: u64, length: usize) -> Result<Vec<u8>, TreeError>;
    /// Target of a symbolic link.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read_link(&mut self, node: &Self::Node) -> Result<Vec<u8>, TreeError>;
    /// Returns the extended attributes by name; only called if shown.
    ///
    /// # Errors
    /// If they cannot be read.
    fn xattrs(&mut self, node: &Self::Node) -> Result<Vec<(String, Vec<u8>)>, TreeError>;
    /// Returns runs of data as (offset, length); only called if shown.
    ///
    /// # Errors
    /// If they cannot be found.
    fn data_runs(&mut self, node: &Self::Node, size: u64) -> Result<Vec<(u64, u64)>, TreeError>;
}

/// A block device, seen through any front end.
pub trait BlockDevice {
    /// Size in bytes.
    fn size_bytes(&self) -> u64;
    /// Reads exactly `len` bytes.
    ///
    /// # Errors
    /// [`TreeError::Input`] if the bytes are lost.
    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, TreeError>;
}

/// Result of reading a whole tree.
#[derive(Debug, Default)]
pub struct FileCount {
    /// Number of files of every kind.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Failures with their paths.
    pub errors: Vec<String>,
}

/// Reads everything in a tree, without a comparison.
pub fn count_all<T: Tree>(tree: &mut T, count: &mut FileCount) {
    let mut waiting = match tree.root() {
        Ok(root) => vec![(String::new(), root)],
        Err(error) => return count.errors.push(format!("/: {error}")),
    };
    while let Some((path, node)) = waiting.pop() {
        count.files += 1;
        if let Err(error) = read_one(tree, &path, &node, &mut waiting, &mut count.bytes) {
            count.errors.push(format!("{path}: {error}"));
        }
    }
}

fn read_one<T: Tree>(
    tree: &mut T,
    path: &str,
    node: &T::Node,
    waiting: &mut Vec<(String, T::Node)>,
    bytes: &mut u64,
) -> Result<(), TreeError> {
    let attributes = tree.attributes(node)?;
    if tree.carries().xattrs {
        tree.xattrs(node)?;
    }
    match attributes.kind {
        FileKind::Dir => {
            let children = tree.read_dir(node)?;
            waiting.extend(
                children.into_iter().map(|(name, child)| (format!("{path}/{}", String::from_utf8_lossy(&name)), child)),
            );
        }
        FileKind::Symlink => *bytes += tree.read_link(node)?.len() as u64,
        FileKind::File => {
            let mut offset = 0;
            while offset < attributes.size {
                let read = tree.read(node, offset, 1 << 20)?.len() as u64;
                if read == 0 {
                    return Err(TreeError::Other(format!("ends at {offset} of {}", attributes.size)));
                }
                offset += read;
            }
            *bytes += offset;
        }
        _ => {}
    }
    Ok(())
}
