//! A share, and the rules for names and values in smb.conf.
//!
//! Values are written into a file with a syntax of its own, so each is checked first: no control characters (a line feed
//! would begin another parameter), no `%` (smbd substitutes it), no `\` at the end of a line (it continues the line), no
//! space at either end (smbd removes it).

use crate::error::SmbError;
use std::path::PathBuf;

/// Maximum length of a share's name in characters.
const MAX_NAME_LEN: usize = 80;
/// Names with a meaning of their own in smb.conf or in the protocol.
const RESERVED: [&str; 6] = ["global", "homes", "printers", "ipc$", "print$", "admin$"];

/// Names that a directory of the dataset treats as equal (`casesensitivity`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaseSensitivity {
    /// Only identical names: smbd searches directories for other spellings.
    #[default]
    Sensitive,
    /// Names that differ in case: Weir finds them itself, and smbd need not search.
    Insensitive,
}

/// Backups of macOS on a share.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TimeMachine {
    /// Size that macOS is shown as the maximum, in bytes; `None`: the free space.
    pub max_bytes: Option<u64>,
}

/// A share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Share {
    /// Name, as clients see it.
    pub name: String,
    /// Directory below the mount.
    pub path: PathBuf,
    /// Whether clients may only read.
    pub read_only: bool,
    /// Whether unknown users are admitted as guests.
    pub guest: bool,
    /// Whether it takes backups of macOS.
    pub time_machine: Option<TimeMachine>,
    /// Case sensitivity of the dataset.
    pub case: CaseSensitivity,
    /// Whether "Previous Versions" shows the snapshots.
    pub snapshots: bool,
    /// Whether the dataset has NFSv4 ACLs (`acltype` other than `posix`), which are shown as Windows ACLs.
    pub nfs4_acls: bool,
    /// Hosts and networks that may connect; all if empty.
    pub hosts_allow: Vec<String>,
    /// Users that may connect; all if empty.
    pub users: Vec<String>,
}

impl Share {
    /// Checks name and values.
    pub fn check(&self) -> Result<(), SmbError> {
        check_name(&self.name)?;
        let path = self.path.to_str().ok_or_else(|| SmbError::Value {
            what: "path",
            value: self.path.display().to_string(),
            why: "must be UTF-8",
        })?;
        check_value("path", path)?;
        if !path.starts_with('/') {
            return refuse("path", path, "must be absolute");
        }
        for host in &self.hosts_allow {
            check_value("host", host)?;
            let plain = |c: char| c.is_ascii_alphanumeric() || ".:/-_@".contains(c);
            if host.is_empty() || !host.chars().all(plain) {
                return refuse("host", host, "must be a name, an address, or a network such as 10.0.0.0/8");
            }
        }
        self.users.iter().try_for_each(|user| crate::users::check_name(user))
    }
}

fn refuse<T>(what: &'static str, value: &str, why: &'static str) -> Result<T, SmbError> {
    Err(SmbError::Value { what, value: value.to_owned(), why })
}

/// Checks the name of a share.
pub fn check_name(name: &str) -> Result<(), SmbError> {
    check_value("share", name)?;
    if name.is_empty() || name.chars().count() > MAX_NAME_LEN {
        return refuse("share", name, "must have 1 to 80 characters");
    }
    if name.contains(|c: char| "\\/[]:;|=,+*?<>\"".contains(c)) {
        return refuse("share", name, "must contain none of \\ / [ ] : ; | = , + * ? < > \"");
    }
    if RESERVED.contains(&name.to_lowercase().as_str()) {
        return refuse("share", name, "is a name with a meaning of its own");
    }
    Ok(())
}

/// Checks that a value stays one value when it is written into smb.conf.
pub(crate) fn check_value(what: &'static str, value: &str) -> Result<(), SmbError> {
    if value.contains(char::is_control) {
        return refuse(what, value, "must contain no control characters");
    }
    if value.contains('%') {
        return refuse(what, value, "must not contain '%', which smbd substitutes");
    }
    if value.trim() != value || value.ends_with('\\') {
        return refuse(what, value, "must not begin or end with a space, or end with '\\'");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_cannot_add_parameters() {
        let share = |name: &str, path: &str| Share { name: name.into(), path: path.into(), ..Share::default() };
        for good in ["tank", "Tank Media", "übung", "a.b-c_d$", "home2"] {
            share(good, "/run/m/tank/a b").check().unwrap();
        }
        for bad in ["", "a\nb", "a]", "x/y", "GLOBAL", "homes", " a", "a%u", "IPC$", "a\\"] {
            assert!(share(bad, "/run/m").check().is_err(), "{bad:?}");
        }
        for bad in ["run", "/a\nroot preexec = x", "/a%U", "/a\\", "/a "] {
            assert!(share("s", bad).check().is_err(), "{bad:?}");
        }
        let hosts = |host: &str| Share { hosts_allow: vec![host.into()], ..share("s", "/a") };
        hosts("10.0.0.0/8").check().unwrap();
        hosts("fe80::/10").check().unwrap();
        for bad in ["", "a b", "a,b", "x\ny"] {
            assert!(hosts(bad).check().is_err(), "{bad:?}");
        }
        assert!(Share { users: vec!["+wheel".into()], ..share("s", "/a") }.check().is_err());
    }
}
