//! Users with CHAP secrets: a small list of Weir's own, for iSCSI.
//!
//! ```text
//!   STATE/chap.key       32 random bytes, mode 0600
//!   STATE/chap-secrets   "weir chap 1", then per user: name, tab, hexadecimal digits of IV, ciphertext, MAC; mode 0600
//! ```
//!
//! CHAP needs the secret itself on both sides, so it cannot be stored as a hash. It is encrypted with the key in the other
//! file ([`SealingKey`]), with the user's name as context: a copy of the list alone (in a backup) discloses no secret, and
//! secrets cannot be exchanged between users. A reader of both files, root or the user that runs Weir, has all secrets.
//!
//! Files that other users can read are refused, not used. A change writes a new file and renames it; changes of several
//! processes are serialized by a lock on the folder.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;
use weir_codec::crypt::{IV_BYTES, SealingKey};
use weir_machine::Entropy;

const LIST: &str = "chap-secrets";
const KEY: &str = "chap.key";
const FIRST_LINE: &str = "weir chap 1";
/// Maximum size of the list in bytes.
const MAX_LIST_BYTES: u64 = 4 << 20;
/// Longest name in bytes.
const MAX_NAME_LEN: usize = 223;
/// Lengths of a secret in bytes: RFC 7143 demands 96 bits, and no initiator takes more.
const SECRET_LENS: std::ops::RangeInclusive<usize> = 12..=255;

/// Error of the list of users.
#[derive(Debug, Error)]
pub enum UserError {
    /// A file cannot be read or written.
    #[error("{}: {why}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        why: std::io::Error,
    },
    /// Other users can read the file, or own it.
    #[error("{} must belong to this user and have mode 0600: it holds secrets; run: chmod 600 {}", .path.display(), .path.display())]
    Unprotected {
        /// The file.
        path: PathBuf,
    },
    /// The file is not a list of users.
    #[error("{}, line {line}: not a user with a secret", .path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Number of the line.
        line: usize,
    },
    /// A secret was encrypted with another key, or changed.
    #[error("the secret of user '{name}' cannot be decrypted with {}: set it again", .key.display())]
    Damaged {
        /// The user.
        name: String,
        /// The file of the key.
        key: PathBuf,
    },
    /// There is no such user.
    #[error("no user '{name}'")]
    Missing {
        /// The user.
        name: String,
    },
    /// The name cannot be used.
    #[error("invalid user name '{name}': 1 to 223 bytes without white space, ',', '+', '=' and control characters")]
    Name {
        /// The name.
        name: String,
    },
    /// The secret has a length that initiators refuse.
    #[error("a CHAP secret has 12 to 255 bytes (Windows: 12 to 16), this one has {len}")]
    SecretLen {
        /// Length in bytes.
        len: usize,
    },
}

/// A secret: overwritten with zeros when it is dropped, and not printed.
pub struct ChapSecret(Vec<u8>);

impl ChapSecret {
    /// A secret of these bytes.
    ///
    /// # Errors
    /// [`UserError::SecretLen`].
    pub fn new(bytes: Vec<u8>) -> Result<Self, UserError> {
        let secret = ChapSecret(bytes);
        let len = secret.0.len();
        if SECRET_LENS.contains(&len) { Ok(secret) } else { Err(UserError::SecretLen { len }) }
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl Drop for ChapSecret {
    fn drop(&mut self) {
        self.0.fill(0);
        // Keeps the compiler from removing the dead store.
        std::hint::black_box(&self.0);
    }
}

impl fmt::Debug for ChapSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ChapSecret")
    }
}

/// The list in a state directory.
#[derive(Clone, Debug)]
pub struct ChapUsers {
    folder: PathBuf,
}

/// Encrypted secrets by user.
type Sealed = BTreeMap<String, Vec<u8>>;

impl ChapUsers {
    /// The list in this state directory.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        ChapUsers { folder: folder.into() }
    }

    /// The names.
    ///
    /// # Errors
    /// If the list cannot be read.
    pub fn names(&self) -> Result<Vec<String>, UserError> {
        Ok(self.read()?.into_keys().collect())
    }

    /// The secret of a user.
    ///
    /// # Errors
    /// [`UserError::Missing`], and errors of reading and decrypting.
    pub fn secret(&self, name: &str) -> Result<ChapSecret, UserError> {
        let sealed = self.read()?.remove(name).ok_or_else(|| UserError::Missing { name: name.to_owned() })?;
        let key = self.path(KEY);
        let damaged = || UserError::Damaged { name: name.to_owned(), key: key.clone() };
        let bytes = self.key()?.ok_or_else(damaged)?.open(name.as_bytes(), &sealed).map_err(|_| damaged())?;
        Ok(ChapSecret(bytes))
    }

    /// Adds a user, or sets another secret; returns whether the user is new.
    ///
    /// # Errors
    /// Errors of the name, and of reading and writing.
    pub fn set(&self, entropy: &Entropy, name: &str, secret: &ChapSecret) -> Result<bool, UserError> {
        let plain = |c: char| !c.is_control() && !c.is_whitespace() && !",+=".contains(c);
        if name.is_empty() || name.len() > MAX_NAME_LEN || !name.chars().all(plain) {
            return Err(UserError::Name { name: name.to_owned() });
        }
        let _lock = self.lock()?;
        let mut users = self.read()?;
        let key = match self.key()? {
            Some(key) => key,
            None => {
                let mut bytes = [0; SealingKey::BYTES];
                entropy.fill(&mut bytes);
                self.write(KEY, &bytes)?;
                SealingKey::new(bytes)
            }
        };
        let mut iv = [0; IV_BYTES];
        entropy.fill(&mut iv);
        let damaged = |_| UserError::Damaged { name: name.to_owned(), key: self.path(KEY) };
        let sealed = key.seal(iv, name.as_bytes(), secret.bytes()).map_err(damaged)?;
        let is_new = users.insert(name.to_owned(), sealed).is_none();
        self.write(LIST, text(&users).as_bytes())?;
        debug_assert!(users.contains_key(name), "the user is in the list that was written");
        Ok(is_new)
    }

    /// Removes a user.
    ///
    /// # Errors
    /// [`UserError::Missing`], and errors of reading and writing.
    pub fn remove(&self, name: &str) -> Result<(), UserError> {
        let _lock = self.lock()?;
        let mut users = self.read()?;
        users.remove(name).ok_or_else(|| UserError::Missing { name: name.to_owned() })?;
        self.write(LIST, text(&users).as_bytes())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Reads a private file; `None` if there is none.
    fn private(&self, name: &str) -> Result<Option<Vec<u8>>, UserError> {
        let path = self.path(name);
        let failed = |why| UserError::Io { path: path.clone(), why };
        let file = match std::fs::File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(why) => return Err(failed(why)),
        };
        let metadata = file.metadata().map_err(failed)?;
        if metadata.uid() != rustix::process::geteuid().as_raw() || metadata.mode() & 0o077 != 0 {
            return Err(UserError::Unprotected { path });
        }
        let mut bytes = Vec::new();
        file.take(MAX_LIST_BYTES).read_to_end(&mut bytes).map_err(failed)?;
        Ok(Some(bytes))
    }

    fn key(&self) -> Result<Option<SealingKey>, UserError> {
        let Some(bytes) = self.private(KEY)? else { return Ok(None) };
        let bytes: [u8; SealingKey::BYTES] =
            bytes.try_into().map_err(|_| UserError::Malformed { path: self.path(KEY), line: 1 })?;
        Ok(Some(SealingKey::new(bytes)))
    }

    fn read(&self) -> Result<Sealed, UserError> {
        let Some(bytes) = self.private(LIST)? else { return Ok(Sealed::new()) };
        parse(&bytes).map_err(|line| UserError::Malformed { path: self.path(LIST), line })
    }

    /// Replaces a file by one with this content, which is on stable storage before it has the name.
    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), UserError> {
        let path = self.path(name);
        let new = self.path(&format!("{name}.new"));
        let written = || -> std::io::Result<()> {
            // One that a killed process left has its mode.
            let _ = std::fs::remove_file(&new);
            let mut file = std::fs::File::options().write(true).create_new(true).mode(0o600).open(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            std::fs::File::open(&self.folder)?.sync_all()
        };
        written().map_err(|why| UserError::Io { path: path.clone(), why })
    }

    /// Creates the folder if it is missing, and locks it until the result is dropped.
    fn lock(&self) -> Result<std::fs::File, UserError> {
        let locked = || -> std::io::Result<std::fs::File> {
            std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
            let folder = std::fs::File::open(&self.folder)?;
            folder.lock()?;
            Ok(folder)
        };
        locked().map_err(|why| UserError::Io { path: self.folder.clone(), why })
    }
}

/// The state directory of this process: `STATE_DIRECTORY`, which systemd sets; `/var/lib/weir` for root;
/// `XDG_STATE_HOME/weir` or `~/.local/state/weir` for others. `None` without a home directory.
pub fn state_folder(variable: impl Fn(&str) -> Option<std::ffi::OsString>, is_root: bool) -> Option<PathBuf> {
    let path = |name: &str| {
        let value = variable(name)?;
        let first = value.to_str()?.split(':').next()?.to_owned();
        Some(PathBuf::from(first)).filter(|path| path.is_absolute())
    };
    if let Some(given) = path("STATE_DIRECTORY") {
        return Some(given);
    }
    if is_root {
        return Some(PathBuf::from("/var/lib/weir"));
    }
    let named = path("XDG_STATE_HOME").map(|folder| folder.join("weir"));
    named.or_else(|| path("HOME").map(|home| home.join(Path::new(".local/state/weir"))))
}

fn text(users: &Sealed) -> String {
    let mut out = format!("{FIRST_LINE}\n");
    for (name, sealed) in users {
        let digits: String = sealed.iter().map(|byte| format!("{byte:02x}")).collect();
        out.push_str(&format!("{name}\t{digits}\n"));
    }
    out
}

/// Parses the list; the error is the number of the line.
fn parse(bytes: &[u8]) -> Result<Sealed, usize> {
    let text = std::str::from_utf8(bytes).map_err(|_| 1usize)?;
    let mut lines = text.lines().enumerate();
    if lines.next().map(|(_, line)| line) != Some(FIRST_LINE) {
        return Err(1);
    }
    let mut out = Sealed::new();
    for (at, line) in lines {
        let entry = line.split_once('\t').and_then(|(name, digits)| Some((name.to_owned(), unhex(digits)?)));
        let (name, sealed) = entry.ok_or(at + 1)?;
        out.insert(name, sealed);
    }
    Ok(out)
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let byte = |pair: &[u8; 2]| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok();
    if rest.is_empty() { pairs.iter().map(byte).collect() } else { None }
}

/// Name and body of a fuzz target.
pub type Target = (&'static str, fn(&[u8]));

/// Fuzz target of the list.
pub const TARGETS: &[Target] = &[("chap_users", |data| {
    if let Ok(users) = parse(data) {
        assert_eq!(parse(text(&users).as_bytes()), Ok(users));
    }
})];

#[cfg(test)]
mod tests;
