//! Passwords for targets: from a file or the environment, never from a command line, which every process of the machine may read.

use crate::error::LabError;
use std::fmt;
use std::path::{Path, PathBuf};

/// Variable of the environment with the password of a target that names a user.
pub const PASSWORD_VARIABLE: &str = "WEIR_BENCH_PASSWORD";

/// Largest password in bytes, more than any protocol allows.
const MAX_BYTES: u64 = 4096;

/// A password: neither printed nor logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Password(Vec<u8>);

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

impl Password {
    /// The bytes.
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// Reads the password: the first line of a file, or the environment.
    ///
    /// # Errors
    /// If the file cannot be read, or there is no password.
    pub fn find(file: Option<&Path>) -> Result<Self, LabError> {
        let bytes = match file {
            Some(path) => read(path)?,
            None => {
                std::env::var_os(PASSWORD_VARIABLE).map(std::os::unix::ffi::OsStringExt::into_vec).unwrap_or_default()
            }
        };
        let line = bytes.split(|byte| *byte == b'\n').next().unwrap_or_default();
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            let text = match file {
                Some(path) => format!("{}: no password in the first line", path.display()),
                None => format!(
                    "the target names a user: put the password into a file, with ?password-file=FILE after the target, or into {PASSWORD_VARIABLE}"
                ),
            };
            return Err(LabError::Target(text));
        }
        Ok(Self(line.to_vec()))
    }
}

fn read(path: &Path) -> Result<Vec<u8>, LabError> {
    let length = std::fs::metadata(path).map_err(LabError::io(path))?.len();
    if length > MAX_BYTES {
        return Err(LabError::Target(format!("{}: {length} bytes are too many for a password", path.display())));
    }
    std::fs::read(path).map_err(LabError::io(path))
}

/// User of a target, and where the password is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// Name.
    pub name: String,
    /// File with the password; without one it is in [`PASSWORD_VARIABLE`].
    pub password_file: Option<PathBuf>,
}

impl User {
    /// Reads the password.
    ///
    /// # Errors
    /// As [`Password::find`].
    pub fn password(&self) -> Result<Password, LabError> {
        Password::find(self.password_file.as_deref())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_of_a_file_is_the_password() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("secret");
        std::fs::write(&file, "open sesame\r\nmore").unwrap();
        let password = Password::find(Some(&file)).unwrap();
        assert_eq!(password.bytes(), b"open sesame");
        assert_eq!(format!("{password:?}"), "Password");
        std::fs::write(&file, "\n").unwrap();
        assert!(Password::find(Some(&file)).unwrap_err().to_string().contains("no password"));
        std::fs::write(&file, vec![b'x'; 5000]).unwrap();
        assert!(Password::find(Some(&file)).unwrap_err().to_string().contains("too many"));
    }
}
