//! Tokens and the roles that they give: the daemon's own token, and named ones that an administrator makes and revokes.
//!
//! Of a named token, the file keeps a hash only. It is a random number of 32 bytes, so that a plain hash cannot be inverted by
//! guessing.

use super::action::Role;
use crate::access::{Token, TokenError};
use blake3::Hash;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use weir_machine::Machine;
use weir_machine::lock::Mutex;

/// Name of the identity that the process's own token gives.
pub const OWN_NAME: &str = "own";
/// Maximum number of named tokens.
const MAX_TOKENS: usize = 64;
/// Longest name of a token, in bytes.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of bytes of the file that are read.
const MAX_FILE_BYTES: u64 = 64 << 10;

/// A named token, without its secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NamedToken {
    /// Name.
    pub name: String,
    /// Rights.
    pub role: Role,
    /// BLAKE3 of the secret, in hexadecimal digits.
    pub hash: String,
    /// Time at which it was made, in seconds since 1970.
    pub made: i64,
}

/// Owner of the token of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of the token.
    pub name: String,
    /// Rights.
    pub role: Role,
}

/// The tokens of a process.
pub struct Access {
    own: Token,
    named: Mutex<Vec<NamedToken>>,
    file: Option<PathBuf>,
}

impl Access {
    /// The process's own token alone, which administers.
    pub fn of_token(own: Token) -> Self {
        Access { own, named: Mutex::default(), file: None }
    }

    /// The process's own token, and the named ones in a file.
    ///
    /// # Errors
    /// [`TokenError`] if the file cannot be read or is damaged.
    pub fn with_file(own: Token, file: PathBuf) -> Result<Self, TokenError> {
        let named = read(&file)?;
        Ok(Access { own, named: Mutex::new(named), file: Some(file) })
    }

    /// The process's own token.
    pub fn own(&self) -> &Token {
        &self.own
    }

    /// The owner of this secret.
    pub fn identify(&self, secret: &str) -> Option<Identity> {
        if self.own.is(secret) {
            return Some(Identity { name: OWN_NAME.to_owned(), role: Role::Administer });
        }
        let hash = blake3::hash(secret.as_bytes());
        let named = self.named.lock();
        // `Hash` compares in constant time.
        let found = named.iter().find(|token| Hash::from_hex(&token.hash).is_ok_and(|of_token| of_token == hash));
        found.map(|token| Identity { name: token.name.clone(), role: token.role })
    }

    /// Whether a token with these rights is still valid.
    pub fn knows(&self, identity: &Identity) -> bool {
        let is_named = |token: &NamedToken| token.name == identity.name && token.role == identity.role;
        identity.name == OWN_NAME || self.named.lock().iter().any(is_named)
    }

    /// The named tokens.
    pub fn all(&self) -> Vec<NamedToken> {
        self.named.lock().clone()
    }

    /// Makes a token. Its secret is not kept.
    ///
    /// # Errors
    /// If the name is taken or not one of a token, there are too many, or the file cannot be written.
    pub fn add(&self, machine: &Machine, name: &str, role: Role, now: i64) -> Result<Token, String> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_name) || name.starts_with('-') {
            return Err(format!("'{name}': a name has 1 to {MAX_NAME_BYTES} letters, digits, '-', '_' and '.'"));
        }
        let token = Token::new(machine);
        let mut named = self.named.lock();
        if name == OWN_NAME || named.iter().any(|other| other.name == name) {
            return Err(format!("there is a token '{name}': choose another name, or revoke it first"));
        }
        if named.len() >= MAX_TOKENS {
            return Err(format!("there are {MAX_TOKENS} tokens: revoke one first"));
        }
        let mut new = named.clone();
        let hash = blake3::hash(token.secret().as_bytes()).to_hex().to_string();
        new.push(NamedToken { name: name.to_owned(), role, hash, made: now });
        self.store(&new)?;
        *named = new;
        Ok(token)
    }

    /// Ends a token: the next request with it is refused, and its live stream ends.
    ///
    /// # Errors
    /// There is no token of this name, or the file of tokens cannot be written.
    pub fn revoke(&self, name: &str) -> Result<(), String> {
        let mut named = self.named.lock();
        let mut new = named.clone();
        new.retain(|token| token.name != name);
        if new.len() == named.len() {
            return Err(format!("there is no token '{name}': 'weir daemon token list' shows them"));
        }
        self.store(&new)?;
        debug_assert!(new.len() < named.len(), "one token less");
        *named = new;
        Ok(())
    }

    /// Writes a new file, which takes the place of the old one.
    fn store(&self, named: &[NamedToken]) -> Result<(), String> {
        let Some(file) = &self.file else {
            return Err("this process keeps no tokens: only the daemon does".to_owned());
        };
        let write = || -> io::Result<()> {
            let new = file.with_extension("new");
            // A file that was left behind may have another mode.
            let _left_behind = std::fs::remove_file(&new);
            let mut to = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
            to.write_all(&serde_json::to_vec(named)?)?;
            to.sync_all()?;
            std::fs::rename(&new, file)
        };
        write().map_err(|error| format!("{}: {error}", file.display()))
    }
}

fn read(path: &Path) -> Result<Vec<NamedToken>, TokenError> {
    let failed = |source| TokenError::File { path: path.to_owned(), source };
    let mut bytes = Vec::new();
    match File::open(path) {
        Ok(file) => file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).map_err(failed)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    parse(&bytes).ok_or_else(|| TokenError::Table { path: path.to_owned() })
}

/// The tokens in a file; `None` if it is damaged.
pub(crate) fn parse(bytes: &[u8]) -> Option<Vec<NamedToken>> {
    let named: Vec<NamedToken> = serde_json::from_slice(bytes).ok()?;
    let is_valid = named.len() <= MAX_TOKENS && named.iter().all(|token| Hash::from_hex(&token.hash).is_ok());
    is_valid.then_some(named)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn machine() -> Machine {
        weir_linux::machine().unwrap()
    }

    #[test]
    fn tokens_are_stored_hashed_and_give_their_roles_until_they_are_revoked() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("web.tokens");
        let machine = machine();
        let own = Token::new(&machine);
        let access = Access::with_file(own.clone(), file.clone()).unwrap();
        let viewer = access.add(&machine, "viewer", Role::View, 7).unwrap();
        let operator = access.add(&machine, "op.1", Role::Operate, 8).unwrap();
        for wrong in ["", "-x", "a b", "ä", &"x".repeat(65), "own", "viewer"] {
            assert!(access.add(&machine, wrong, Role::View, 0).is_err(), "{wrong}");
        }
        let text = std::fs::read_to_string(&file).unwrap();
        assert!(!text.contains(viewer.secret()) && !text.contains(operator.secret()), "{text}");
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        let again = Access::with_file(own.clone(), file.clone()).unwrap();
        let role = |access: &Access, token: &Token| access.identify(token.secret()).map(|identity| identity.role);
        assert_eq!(role(&again, &viewer), Some(Role::View));
        assert_eq!(role(&again, &operator), Some(Role::Operate));
        assert_eq!(role(&again, &own), Some(Role::Administer));
        assert_eq!(again.identify(""), None);
        // The hash is no secret that opens anything.
        assert_eq!(again.identify(&again.all()[0].hash), None);
        let identity = again.identify(viewer.secret()).unwrap();
        again.revoke("viewer").unwrap();
        assert!(again.revoke("viewer").is_err() && again.revoke("own").is_err());
        assert!(!again.knows(&identity) && role(&again, &viewer).is_none());
        assert_eq!(role(&Access::with_file(own.clone(), file.clone()).unwrap(), &viewer), None);
        std::fs::write(&file, b"[{").unwrap();
        assert!(Access::with_file(own.clone(), file).is_err());
        assert!(Access::of_token(own).add(&machine, "x", Role::View, 0).is_err());
    }

    #[test]
    fn the_number_of_tokens_is_bounded() {
        let folder = tempfile::tempdir().unwrap();
        let machine = machine();
        let access = Access::with_file(Token::new(&machine), folder.path().join("t")).unwrap();
        for n in 0..MAX_TOKENS {
            access.add(&machine, &format!("t{n}"), Role::View, 0).unwrap();
        }
        assert!(access.add(&machine, "more", Role::View, 0).unwrap_err().contains("revoke one"));
    }
}
