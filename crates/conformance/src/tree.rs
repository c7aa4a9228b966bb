//! A tree of files, seen through whichever door: the engine itself, a mount, NFS.
//!
//! The comparison with a manifest is written once, against this trait. A door does not carry every fact (NFSv3 has no
//! birth times, a mount of several file systems numbers its files anew), so each says in [`Carries`] what it does, and
//! the comparison leaves out only that.

use crate::manifest::FileKind;

/// Why a tree did not answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TreeError {
    /// The contents are lost: what POSIX calls EIO.
    #[error("EIO: {0}")]
    Input(String),
    /// Anything else.
    #[error("{0}")]
    Other(String),
}

/// What a door tells of a file beyond kind, size, mode, owner, links and modification time.
#[derive(Debug, Clone, Copy)]
pub struct Carries {
    /// Object numbers.
    pub ino: bool,
    /// Birth times.
    pub crtime: bool,
    /// Extended attributes, ACLs among them.
    pub xattrs: bool,
    /// Where data and holes are.
    pub holes: bool,
    /// Preferred I/O size.
    pub blksize: bool,
    /// How wide its times are.
    pub times: Times,
}

/// How a door writes seconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Times {
    /// 64 bits, signed: every time that ZFS can hold.
    Signed64,
    /// 32 bits without sign, as in NFSv3: a time beyond may be clamped to the nearest, or wrapped around.
    Unsigned32,
}

impl Times {
    /// Whether a door with such times may show `found` for a file whose time is `expected`.
    pub fn shows(self, found: i64, expected: i64) -> bool {
        const SECOND: i64 = 1_000_000_000;
        let (seconds, nanos) = (expected.div_euclid(SECOND), expected.rem_euclid(SECOND));
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
    /// What it is.
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
    /// Birth time, if carried.
    pub crtime_ns: Option<i64>,
    /// Space in units of 512 bytes.
    pub blocks512: u64,
    /// Preferred I/O size, if carried.
    pub blksize: Option<u64>,
    /// Device number, for devices.
    pub rdev: (u64, u64),
}

/// A directory's entries: each name with its file's handle.
pub type Listing<Node> = Vec<(Vec<u8>, Node)>;

/// A tree of files.
pub trait Tree {
    /// A file's handle.
    type Node: Clone;

    /// What this door carries.
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
    /// Bytes of a file; shorter than asked only at its end.
    ///
    /// # Errors
    /// [`TreeError::Input`] if the bytes are lost.
    fn read(&mut self, node: &Self::Node, offset: u64, length: usize) -> Result<Vec<u8>, TreeError>;
    /// Target of a symbolic link.
    ///
    /// # Errors
    /// If it cannot be read.
    fn read_link(&mut self, node: &Self::Node) -> Result<Vec<u8>, TreeError>;
    /// Extended attributes by name; only called if carried.
    ///
    /// # Errors
    /// If they cannot be read.
    fn xattrs(&mut self, node: &Self::Node) -> Result<Vec<(String, Vec<u8>)>, TreeError>;
    /// Runs of data as (offset, length); only called if carried.
    ///
    /// # Errors
    /// If they cannot be found.
    fn data_runs(&mut self, node: &Self::Node, size: u64) -> Result<Vec<(u64, u64)>, TreeError>;
}

/// A block device, seen through whichever door.
pub trait BlockDevice {
    /// Its size in bytes.
    fn size_bytes(&self) -> u64;
    /// Bytes of it, exactly as many as asked.
    ///
    /// # Errors
    /// [`TreeError::Input`] if the bytes are lost.
    fn read(&mut self, offset: u64, length: usize) -> Result<Vec<u8>, TreeError>;
}

/// What reading a whole tree came to.
#[derive(Debug, Default)]
pub struct FileCount {
    /// Files of every kind.
    pub files: u64,
    /// Bytes read.
    pub bytes: u64,
    /// What failed, with its path.
    pub errors: Vec<String>,
}

/// Reads everything in a tree and compares it with nothing.
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
