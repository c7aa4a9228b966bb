//! Manifest of a golden pool: OpenZFS's view of it as typed values.
//!
//! The JSON omits values that equal a default, so that most entries are one line; the accessors here return the
//! defaults (`uid` and `gid` 0, `nlink` 1, and the other times equal to the modification time). Names and link targets
//! that are not UTF-8 are `{"b64": …}`. Extended attributes are bytes if short, otherwise length and hash. A directory
//! with very many small entries is one `mass` record with hashes over all of its lines.

use std::collections::BTreeMap;
use std::path::Path;

use base64::Engine;
use serde::Deserialize;
use serde_json::Value;

use crate::JudgeError;

/// One golden pool.
#[derive(Debug, Deserialize)]
pub struct Golden {
    /// Name of the golden, which is also the stem of its files.
    pub golden: String,
    /// Name of the pool inside.
    pub pool: String,
    /// One sentence on the purpose of the pool.
    pub about: String,
    /// The images in the archive.
    pub devices: Vec<Device>,
    /// SHA-256 of each image as delivered; a read-only tool must not change it.
    pub image_sha256: BTreeMap<String, String>,
    /// Images of the pool that are not in the archive.
    #[serde(default)]
    pub missing_devices: Vec<String>,
    /// Wrapping keys by encryption root, named below the pool.
    #[serde(default)]
    pub keys: BTreeMap<String, Key>,
    /// Output of OpenZFS's zdb, by the name of the call.
    #[serde(default)]
    pub zdb: BTreeMap<String, Value>,
    /// The pool's state, if it was exported or reads the same with and without replay.
    pub manifest: Option<Manifest>,
    /// The state that a read-only open shows when intent logs wait for replay.
    pub manifest_before_replay: Option<Manifest>,
    /// The state after replay.
    pub manifest_after_replay: Option<Manifest>,
    /// The state that the pool's checkpoint keeps.
    pub manifest_checkpoint: Option<Manifest>,
}

/// One image file.
#[derive(Debug, Deserialize)]
pub struct Device {
    /// Name of the file in the archive.
    pub file: String,
    /// Size in bytes.
    pub size: u64,
}

/// A wrapping key in one of OpenZFS's key formats.
#[derive(Debug, Clone, Deserialize)]
#[serde(tag = "keyformat", rename_all = "lowercase")]
pub enum Key {
    /// Derived by PBKDF2.
    Passphrase {
        /// The passphrase.
        passphrase: String,
    },
    /// 32 bytes as 64 hexadecimal digits.
    Hex {
        /// The digits.
        hex: String,
    },
}

impl Key {
    /// Bytes that a user types or pipes into `load-key`.
    pub fn typed(&self) -> &str {
        match self {
            Key::Passphrase { passphrase } => passphrase,
            Key::Hex { hex } => hex,
        }
    }
}

/// One state of a pool.
#[derive(Debug, Deserialize)]
pub struct Manifest {
    /// File systems, volumes, snapshots and bookmarks.
    pub datasets: Vec<Dataset>,
    /// Pool properties with their sources.
    #[serde(default)]
    pub pool_props: BTreeMap<String, Value>,
    /// `zpool history`, line by line.
    #[serde(default)]
    pub history: Vec<String>,
}

/// One dataset.
#[derive(Debug, Deserialize)]
pub struct Dataset {
    /// Full name, with `@snapshot` where it is one.
    pub name: String,
    /// Kind of the dataset.
    #[serde(rename = "type")]
    pub kind: DatasetKind,
    /// Values of all properties.
    #[serde(default)]
    pub props: BTreeMap<String, Option<String>>,
    /// Sources of properties that are not default.
    #[serde(default)]
    pub prop_sources: BTreeMap<String, Option<String>>,
    /// All files of a file system or of a snapshot of one.
    #[serde(default)]
    pub files: Option<Vec<Entry>>,
    /// A volume's contents.
    #[serde(default)]
    pub volume: Option<VolumeContents>,
    /// Space by user: kind, number, bytes, quota, objects, quota. Absent if it was not recorded.
    #[serde(default)]
    pub userspace: Option<Vec<[String; 6]>>,
    /// Space by group, likewise.
    #[serde(default)]
    pub groupspace: Option<Vec<[String; 6]>>,
    /// Tags of a snapshot's holds.
    #[serde(default)]
    pub holds: Vec<String>,
}

/// The kinds of dataset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DatasetKind {
    /// A POSIX file system.
    Filesystem,
    /// A block device.
    Volume,
    /// A snapshot of either.
    Snapshot,
    /// A bookmark.
    Bookmark,
}

/// The kinds of file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Symlink,
    /// A character device.
    Chr,
    /// A block device.
    Blk,
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
}

impl FileKind {
    /// Word in the manifest.
    pub fn word(self) -> &'static str {
        match self {
            FileKind::File => "file",
            FileKind::Dir => "dir",
            FileKind::Symlink => "symlink",
            FileKind::Chr => "chr",
            FileKind::Blk => "blk",
            FileKind::Fifo => "fifo",
            FileKind::Socket => "socket",
        }
    }
}

/// A name that need not be UTF-8.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
#[serde(untagged)]
pub enum Bytes {
    /// The name.
    Text(String),
    /// Base64.
    Coded {
        /// The encoded name.
        b64: String,
    },
}

impl Bytes {
    /// The bytes themselves.
    pub fn bytes(&self) -> Vec<u8> {
        match self {
            Bytes::Text(text) => text.as_bytes().to_vec(),
            Bytes::Coded { b64 } => decode(b64),
        }
    }
}

fn decode(b64: &str) -> Vec<u8> {
    base64::engine::general_purpose::STANDARD.decode(b64).unwrap_or_default()
}

/// Value of an extended attribute: its bytes, or their length and hash.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum XattrValue {
    /// The bytes, in base64.
    Whole {
        /// The code.
        b64: String,
    },
    /// Length and SHA-256.
    Hashed {
        /// Length in bytes.
        len: u64,
        /// SHA-256 in hexadecimal.
        sha256: String,
    },
}

impl XattrValue {
    /// Whether these bytes are the value.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        match self {
            XattrValue::Whole { b64 } => decode(b64) == bytes,
            XattrValue::Hashed { len, sha256 } => bytes.len() as u64 == *len && crate::hash::hex_of(bytes) == *sha256,
        }
    }
}

/// One file of any kind.
#[derive(Debug, Clone, Deserialize)]
pub struct Entry {
    /// Path from the file system's root, beginning with `/`.
    pub path: Bytes,
    /// Kind of the file.
    #[serde(rename = "type")]
    pub kind: FileKind,
    /// Permission bits in octal.
    pub mode: String,
    /// Owner.
    #[serde(default)]
    pub uid: u64,
    /// Owning group.
    #[serde(default)]
    pub gid: u64,
    nlink: Option<u64>,
    /// Object number.
    pub ino: u64,
    /// Size in bytes (of a directory: its entries and two).
    pub size: u64,
    /// Modification time.
    pub mtime_ns: i64,
    ctime_ns: Option<i64>,
    atime_ns: Option<i64>,
    crtime_ns: Option<i64>,
    /// Space taken, in units of 512 bytes.
    pub blocks512: Option<u64>,
    /// Preferred I/O size in bytes.
    pub blksize: Option<u64>,
    /// SHA-256 of the contents.
    pub sha256: Option<String>,
    /// Target of a symbolic link.
    pub target: Option<Bytes>,
    /// Major and minor number of a device.
    pub rdev: Option<(u64, u64)>,
    /// Number of entries of a directory.
    pub entries: Option<u64>,
    /// Extended attributes.
    #[serde(default)]
    pub xattrs: BTreeMap<String, XattrValue>,
    /// The error that reading the contents must give.
    pub error: Option<String>,
    /// For files too sparse to hash whole: (offset, length, SHA-256) of each run of data; all else is zero.
    pub segments: Option<Vec<(u64, u64, String)>>,
    /// For directories of very many entries: hashes instead of a list.
    pub mass: Option<Mass>,
}

impl Entry {
    /// Number of links.
    pub fn nlink(&self) -> u64 {
        self.nlink.unwrap_or(1)
    }

    /// Change time.
    pub fn ctime_ns(&self) -> i64 {
        self.ctime_ns.unwrap_or(self.mtime_ns)
    }

    /// Access time.
    pub fn atime_ns(&self) -> i64 {
        self.atime_ns.unwrap_or(self.mtime_ns)
    }

    /// Birth time.
    pub fn crtime_ns(&self) -> i64 {
        self.crtime_ns.unwrap_or(self.mtime_ns)
    }

    /// Permission bits.
    pub fn mode_bits(&self) -> Option<u32> {
        u32::from_str_radix(&self.mode, 8).ok()
    }
}

/// A directory of very many entries.
#[derive(Debug, Clone, Deserialize)]
pub struct Mass {
    /// How many.
    pub count: u64,
    /// SHA-256 over each name and a newline, sorted by bytes.
    pub names_sha256: String,
    /// SHA-256 over one line per entry: name, type, mode, uid, gid, size, mtime_ns, ino, sha256 (or `-`), by tabs.
    pub lines_sha256: String,
    /// The first few in full.
    pub first: Vec<Entry>,
}

/// Contents of a volume.
#[derive(Debug, Clone, Deserialize)]
pub struct VolumeContents {
    /// Size in bytes; absent where the volume was not read.
    pub size: Option<u64>,
    /// SHA-256 of all of it.
    pub sha256: Option<String>,
    /// Each chunk that isn't zero: offset, length, the first 16 digits of its SHA-256.
    #[serde(default)]
    pub nonzero_chunks: Vec<(u64, u64, String)>,
}

impl Golden {
    /// Reads `NAME.json` of the goldens' folder.
    ///
    /// # Errors
    /// If the file cannot be read or is not a manifest.
    pub fn read(folder: &Path, name: &str) -> Result<Golden, JudgeError> {
        let path = folder.join(format!("{name}.json"));
        let text =
            std::fs::read(&path).map_err(|source| JudgeError::Io { what: path.display().to_string(), source })?;
        serde_json::from_slice(&text).map_err(|source| JudgeError::Manifest { golden: name.to_string(), source })
    }

    /// State that a read-only import shows.
    pub fn read_only_state(&self) -> Option<&Manifest> {
        self.manifest_before_replay.as_ref().or(self.manifest.as_ref())
    }

    /// State that an import for writing shows after all logs are replayed.
    pub fn final_state(&self) -> Option<&Manifest> {
        self.manifest_after_replay.as_ref().or(self.manifest.as_ref())
    }

    /// Figures that OpenZFS's `zdb -bcc` printed, if it was run.
    pub fn zdb_bcc(&self) -> Option<(i64, &str)> {
        let bcc = self.zdb.get("bcc")?;
        Some((bcc.get("rc")?.as_i64()?, bcc.get("stdout")?.as_str()?))
    }
}
