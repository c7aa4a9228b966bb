//! Samba's programs, modules and the wrapper libraries: where they are, and their version.

use crate::error::SmbError;
use crate::run;
use std::path::{Path, PathBuf};
use std::time::Duration;
use weir_machine::Clock;

/// Directories that are searched after those of PATH: servers are not on the PATH of ordinary users.
const MORE_DIRECTORIES: [&str; 4] = ["/usr/sbin", "/usr/local/sbin", "/usr/local/samba/sbin", "/usr/local/samba/bin"];
/// Directories of libraries. Those of Debian have a subdirectory for the architecture.
const LIBRARY_DIRECTORIES: [&str; 4] = ["/usr/lib64", "/usr/lib", "/lib", "/usr/local/lib"];
/// Time for a program to print its version.
const VERSION_TIME: Duration = Duration::from_secs(10);
/// Oldest version: `smbstatus --json` exists since 4.17.
const MIN_VERSION: Version = Version { major: 4, minor: 17, patch: 0 };

/// A version of Samba.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// 4.
    pub major: u32,
    /// The release.
    pub minor: u32,
    /// The bug-fix release.
    pub patch: u32,
}

impl Version {
    /// Parses the output of `smbd --version`: `Version 4.17.12-Debian`.
    pub fn parse(text: &str) -> Option<Self> {
        let word = text.split_whitespace().nth(1)?;
        let mut numbers = word.split(|c: char| !c.is_ascii_digit()).map(|digits| digits.parse::<u32>().ok());
        let mut next = || numbers.next().flatten();
        Some(Version { major: next()?, minor: next()?, patch: next().unwrap_or(0) })
    }
}

/// The installed programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The server.
    pub smbd: PathBuf,
    /// Editor of the database of users.
    pub pdbedit: PathBuf,
    /// Sends messages to the server.
    pub smbcontrol: PathBuf,
    /// Lists connections; `None` if it is not installed.
    pub smbstatus: Option<PathBuf>,
    /// Version of the server.
    pub version: Version,
    /// Names of the installed VFS modules.
    pub modules: Vec<String>,
    /// Library that shows a program other accounts.
    pub nss_wrapper: Option<PathBuf>,
    /// Library that shows a program the user ID 0.
    pub uid_wrapper: Option<PathBuf>,
}

impl Programs {
    /// Finds the programs of Samba.
    ///
    /// # Errors
    /// If `smbd`, `pdbedit` or `smbcontrol` is not installed, or older than 4.17.
    pub async fn find(clock: &Clock) -> Result<Self, SmbError> {
        let need = |program| find(program).ok_or(SmbError::NoProgram { program });
        let smbd = need("smbd")?;
        let said = run::output(clock, run::command(&smbd).arg("--version"), None, VERSION_TIME).await?;
        let version = Version::parse(&said).filter(|version| *version >= MIN_VERSION);
        let version = version.ok_or_else(|| SmbError::TooOld { found: said.trim().to_owned() })?;
        let built = run::output(clock, run::command(&smbd).arg("--build-options"), None, VERSION_TIME).await?;
        Ok(Programs {
            pdbedit: need("pdbedit")?,
            smbcontrol: need("smbcontrol")?,
            smbstatus: find("smbstatus"),
            version,
            modules: modules(&built),
            nss_wrapper: library("libnss_wrapper.so"),
            uid_wrapper: library("libuid_wrapper.so"),
            smbd,
        })
    }

    /// Whether a VFS module is installed.
    pub fn has_module(&self, name: &str) -> bool {
        self.modules.iter().any(|module| module == name)
    }
}

/// Path of a program.
fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = MORE_DIRECTORIES.iter().map(PathBuf::from);
    std::env::split_paths(&path).chain(more).map(|dir| dir.join(program)).find(|path| path.is_file())
}

/// Path of a library, with or without a version after its name.
fn library(name: &str) -> Option<PathBuf> {
    let below = |dir: &Path| {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).filter(|path| path.is_dir()).collect::<Vec<_>>()
    };
    let tops = LIBRARY_DIRECTORIES.iter().map(PathBuf::from);
    let directories = tops.flat_map(|top| std::iter::once(top.clone()).chain(below(&top)));
    let versions = ["", ".0", ".1"];
    directories.flat_map(|dir| versions.map(|version| dir.join(format!("{name}{version}")))).find(|path| path.is_file())
}

/// Names of the VFS modules in the directory that the server was built for.
fn modules(build_options: &str) -> Vec<String> {
    let line = build_options.lines().find_map(|line| line.trim().strip_prefix("MODULESDIR:"));
    let Some(dir) = line else { return Vec::new() };
    let entries = std::fs::read_dir(Path::new(dir.trim()).join("vfs")).into_iter().flatten().flatten();
    let names = entries.filter_map(|entry| entry.file_name().to_str()?.strip_suffix(".so").map(str::to_owned));
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_parsed_and_compared() {
        let of = |text| Version::parse(text).map(|v| (v.major, v.minor, v.patch));
        assert_eq!(of("Version 4.17.12-Debian\n"), Some((4, 17, 12)));
        assert_eq!(of("Version 4.22.6-Debian-4.22.6+dfsg-0~bpo12"), Some((4, 22, 6)));
        assert_eq!(of("Version 4.9"), Some((4, 9, 0)));
        assert_eq!((of("Version x"), of("")), (None, None));
        assert!(Version::parse("Version 4.9.5").unwrap() < MIN_VERSION);
    }
}
