//! Directories of Weir: runtime (sockets), state (cache file) and configuration, by one rule for root and for ordinary users.
//!
//! | directory | set by systemd | root | ordinary user |
//! |---|---|---|---|
//! | runtime | `RUNTIME_DIRECTORY` | `/run/weir` | `XDG_RUNTIME_DIR/weir`, else `/run/user/UID/weir`, else `/tmp/weir-UID` |
//! | state | `STATE_DIRECTORY` | `/var/lib/weir` | `XDG_STATE_HOME/weir`, else `~/.local/state/weir` |
//! | configuration | `CONFIGURATION_DIRECTORY` | `/etc/weir` | `XDG_CONFIG_HOME/weir`, else `~/.config/weir` |
//!
//! A variable that systemd sets decides alone; it may hold several paths, of which the first counts. Relative paths count as
//! not set. Several daemons of one user run side by side if each has its own runtime and state directory.

use crate::failure::Failure;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

/// Where the rule looks: the environment and the user.
struct Surroundings<'a> {
    variable: &'a dyn Fn(&str) -> Option<OsString>,
    uid: u32,
}

/// The surroundings of this process.
fn own() -> Surroundings<'static> {
    Surroundings { variable: &|name| std::env::var_os(name), uid: rustix::process::geteuid().as_raw() }
}

impl Surroundings<'_> {
    /// The first absolute path in a variable, which may hold several separated by colons.
    fn path(&self, name: &str) -> Option<PathBuf> {
        let value = (self.variable)(name)?;
        let first = value.as_bytes().split(|byte| *byte == b':').next().unwrap_or_default().to_vec();
        Some(PathBuf::from(OsString::from_vec(first))).filter(|path| path.is_absolute())
    }

    /// Candidates for the runtime directory, in order of preference.
    fn runtime(&self) -> Vec<PathBuf> {
        if let Some(given) = self.path("RUNTIME_DIRECTORY") {
            return vec![given];
        }
        let last = PathBuf::from(format!("/tmp/weir-{}", self.uid));
        if self.uid == 0 {
            return vec![PathBuf::from("/run/weir"), last];
        }
        let of_session = self.path("XDG_RUNTIME_DIR").map(|dir| dir.join("weir"));
        let of_user = PathBuf::from(format!("/run/user/{}/weir", self.uid));
        of_session.into_iter().chain([of_user, last]).collect()
    }

    /// A directory that has one place.
    fn fixed(&self, of_systemd: &str, of_root: &str, of_user: &str, in_home: &str) -> Option<PathBuf> {
        if let Some(given) = self.path(of_systemd) {
            return Some(given);
        }
        if self.uid == 0 {
            return Some(PathBuf::from(of_root));
        }
        let named = self.path(of_user).map(|dir| dir.join("weir"));
        named.or_else(|| self.path("HOME").map(|home| home.join(in_home).join("weir")))
    }

    fn state(&self) -> Option<PathBuf> {
        self.fixed("STATE_DIRECTORY", "/var/lib/weir", "XDG_STATE_HOME", ".local/state")
    }

    fn configuration(&self) -> Option<PathBuf> {
        self.fixed("CONFIGURATION_DIRECTORY", "/etc/weir", "XDG_CONFIG_HOME", ".config")
    }
}

/// Candidates for this process's runtime directory, in order of preference.
pub fn runtime() -> Vec<PathBuf> {
    own().runtime()
}

/// Directories in which a process of that user may have its socket.
pub fn runtime_of(uid: u32) -> Vec<PathBuf> {
    let mut all = runtime();
    let none = |_: &str| None;
    all.extend(Surroundings { variable: &none, uid }.runtime());
    // A service of an ordinary user has the directory that systemd made for it.
    all.push(PathBuf::from("/run/weir"));
    all.dedup();
    all
}

/// State directory; `None` for a user without a home directory.
pub fn state() -> Option<PathBuf> {
    own().state()
}

/// Configuration directory; `None` for a user without a home directory.
pub fn configuration() -> Option<PathBuf> {
    own().configuration()
}

/// Whether a path is a directory, not a symbolic link, that this user (and root) alone can write to.
pub fn belongs_to(folder: &Path, uid: u32) -> bool {
    fault_of(folder, uid).is_none()
}

/// The reason why a path is not a directory that this user alone can write to; `None` if it is. Other users may list it, because
/// systemd makes runtime directories with mode 0755: the socket in it has mode 0600, and its process asks the kernel for the
/// peer's user.
fn fault_of(folder: &Path, uid: u32) -> Option<String> {
    let found = match std::fs::symlink_metadata(folder) {
        Ok(found) => found,
        Err(error) => return Some(error.to_string()),
    };
    let mode = found.mode() & 0o7777;
    if found.is_symlink() {
        Some("it is a symbolic link".into())
    } else if !found.is_dir() {
        Some("it is no directory".into())
    } else if found.uid() != uid {
        Some(format!("it belongs to user {}, and this is user {uid}", found.uid()))
    } else if mode & 0o022 != 0 {
        Some(format!("its mode is {mode:04o}, so that other users can change it: chmod go-w"))
    } else {
        None
    }
}

/// Creates a directory that only its user can access, with its parents.
///
/// # Errors
/// If it is missing and cannot be created.
pub fn create(folder: &Path) -> Result<(), Failure> {
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(folder);
    made.map_err(|error| Failure::failed(format!("cannot create the directory {}: {error}", folder.display())))
}

/// This process's runtime directory: the first that exists, or can be created, and that only its user can change.
///
/// # Errors
/// What is wrong with each candidate.
pub fn own_runtime() -> Result<PathBuf, Failure> {
    let uid = rustix::process::geteuid().as_raw();
    let mut faults = Vec::new();
    for folder in runtime() {
        let made = std::fs::DirBuilder::new().mode(0o700).create(&folder);
        match (made, fault_of(&folder, uid)) {
            (_, None) => return Ok(folder),
            (Err(error), Some(_)) if error.kind() != ErrorKind::AlreadyExists => {
                faults.push(format!("{}: cannot create it: {error}", folder.display()));
            }
            (_, Some(fault)) => faults.push(format!("{}: {fault}", folder.display())),
        }
    }
    let how = "correct that, or name another directory with RUNTIME_DIRECTORY or XDG_RUNTIME_DIR";
    Err(Failure::failed(format!("there is no runtime directory for the socket\n{}\n{how}", faults.join("\n"))))
}

/// The runtime directories of this process, each with the reason why it is not used if there is one.
pub fn described_runtime() -> Vec<String> {
    let uid = rustix::process::geteuid().as_raw();
    let describe = |folder: PathBuf| match fault_of(&folder, uid) {
        Some(fault) if folder.exists() => format!("{} ({fault})", folder.display()),
        _ => folder.display().to_string(),
    };
    runtime().into_iter().map(describe).collect()
}

/// A file's path in the state directory; `None` for a user without a home directory.
pub fn in_state(name: impl AsRef<OsStr>) -> Option<PathBuf> {
    state().map(|folder| folder.join(name.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn one_rule_gives_the_directories_of_root_users_and_services() {
        let of = |uid: u32, set: &[(&str, &str)]| {
            let set: Vec<(String, OsString)> = set.iter().map(|(n, v)| ((*n).to_owned(), v.into())).collect();
            let variable = move |name: &str| set.iter().find(|(n, _)| n == name).map(|(_, value)| value.clone());
            let around = Surroundings { variable: &variable, uid };
            let text = |path: Option<PathBuf>| path.map(|path| path.display().to_string()).unwrap_or_default();
            [text(around.runtime().into_iter().next()), text(around.state()), text(around.configuration())]
        };
        let session = [("HOME", "/h/u"), ("XDG_RUNTIME_DIR", "/run/user/7")];
        assert_eq!(of(0, &session), ["/run/weir", "/var/lib/weir", "/etc/weir"]);
        assert_eq!(of(7, &session), ["/run/user/7/weir", "/h/u/.local/state/weir", "/h/u/.config/weir"]);
        assert_eq!(of(7, &[]), ["/run/user/7/weir", "", ""]);
        let named = [("XDG_STATE_HOME", "/s"), ("XDG_CONFIG_HOME", "not/absolute"), ("HOME", "/h")];
        assert_eq!(of(7, &named), ["/run/user/7/weir", "/s/weir", "/h/.config/weir"]);
        let service = [
            ("RUNTIME_DIRECTORY", "/run/a:/run/b"),
            ("STATE_DIRECTORY", "/var/lib/a"),
            ("CONFIGURATION_DIRECTORY", "/etc/a"),
            ("HOME", "/h"),
        ];
        for uid in [0, 7] {
            assert_eq!(of(uid, &service), ["/run/a", "/var/lib/a", "/etc/a"]);
        }
    }

    #[test]
    fn folders_that_other_users_can_change_are_not_used() {
        let dir = tempfile::tempdir().unwrap();
        let uid = rustix::process::geteuid().as_raw();
        let set = |mode| std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        for mode in [0o700, 0o750, 0o755] {
            set(mode);
            assert!(belongs_to(dir.path(), uid) && !belongs_to(dir.path(), uid + 1), "{mode:o}");
        }
        for mode in [0o770, 0o702, 0o1777] {
            set(mode);
            let fault = fault_of(dir.path(), uid).unwrap();
            assert!(fault.contains(&format!("{mode:04o}")) && fault.contains("chmod go-w"), "{fault}");
        }
        set(0o700);
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        assert!(!belongs_to(&link, uid));
    }
}
