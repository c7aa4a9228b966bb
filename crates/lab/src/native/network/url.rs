//! URLs of targets behind a network protocol.
//!
//! ```text
//!   iscsi://[USER@]HOST[:3260]/IQN/LUN[?password-file=FILE&initiator=IQN]
//!   nfs://HOST[:PORT]/EXPORT[/DIRECTORY][?nfsport=PORT&mountport=PORT]
//!   smb://[USER@]HOST[:445]/SHARE[/DIRECTORY][?password-file=FILE]
//! ```
//!
//! They are those of libiscsi, libnfs and smbclient's `smbget`, but without passwords.

use super::secret::User;
use crate::error::LabError;
use std::fmt;
use std::path::PathBuf;

/// Ports of the protocols.
const ISCSI_PORT: u16 = 3260;
const SMB_PORT: u16 = 445;
/// Longest iSCSI name in bytes (RFC 7143, 4.2.7.1).
const MAX_NAME_BYTES: usize = 223;
/// Largest number of a logical unit that the flat and the peripheral form of a LUN hold.
const MAX_LUN: u16 = 16_383;

/// Target behind a network protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkTarget {
    /// Name or address of the server.
    pub host: String,
    /// Place at the server.
    pub place: Place,
    /// User with a password; without one, iSCSI logs in without authentication, and SMB as guest.
    pub user: Option<User>,
}

/// Place at a server, by protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// Logical unit.
    Iscsi {
        /// TCP port.
        port: u16,
        /// Name of the target.
        iqn: String,
        /// Number of the unit.
        lun: u16,
        /// Name of the initiator, for targets that admit some only.
        initiator: Option<String>,
    },
    /// Directory of an export; NFS version 3.
    Nfs {
        /// Port of NFS; without one, rpcbind is asked, and 2049 is the last resort.
        nfs_port: Option<u16>,
        /// Port of MOUNT; without one, that of NFS if it is given, else rpcbind is asked.
        mount_port: Option<u16>,
        /// Path, such as `/tank/films`.
        path: String,
    },
    /// Directory of a share.
    Smb {
        /// TCP port.
        port: u16,
        /// Share.
        share: String,
        /// Directory in it; empty for its root.
        directory: String,
    },
}

/// Schemes of the protocols.
pub const SCHEMES: [&str; 3] = ["iscsi", "nfs", "smb"];

impl NetworkTarget {
    /// Parses a URL. `None` if its scheme is none of [`SCHEMES`].
    ///
    /// # Errors
    /// If the URL is incomplete or malformed, or holds a password; the message shows the form.
    pub fn parse(url: &str) -> Option<Result<Self, LabError>> {
        let (scheme, rest) = url.split_once("://").filter(|(scheme, _)| SCHEMES.contains(scheme))?;
        let form = match scheme {
            "iscsi" => "iscsi://[USER@]HOST[:PORT]/IQN/LUN",
            "nfs" => "nfs://HOST[:PORT]/EXPORT",
            _ => "smb://[USER@]HOST[:PORT]/SHARE[/DIRECTORY]",
        };
        // A URL with a password is not repeated.
        let shown = rest.rsplit_once('@').map_or(url.to_owned(), |(_, rest)| format!("{scheme}://…@{rest}"));
        let parsed = parse(scheme, rest);
        Some(parsed.map_err(|what| LabError::Target(format!("{shown}: {what}; the form is {form}"))))
    }

    /// Scheme of the URL.
    #[must_use]
    pub fn scheme(&self) -> &'static str {
        match self.place {
            Place::Iscsi { .. } => "iscsi",
            Place::Nfs { .. } => "nfs",
            Place::Smb { .. } => "smb",
        }
    }

    /// Whether the server is this machine, by its loopback address or name.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.host == "localhost" || self.host == "::1" || self.host.starts_with("127.")
    }
}

impl fmt::Display for NetworkTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let host = if self.host.contains(':') { format!("[{}]", self.host) } else { self.host.clone() };
        match &self.place {
            Place::Iscsi { port, iqn, lun, .. } => write!(f, "iscsi://{host}:{port}/{iqn}/{lun}"),
            Place::Nfs { nfs_port: Some(port), path, .. } => write!(f, "nfs://{host}:{port}{path}"),
            Place::Nfs { path, .. } => write!(f, "nfs://{host}{path}"),
            Place::Smb { port, share, directory } if directory.is_empty() => write!(f, "smb://{host}:{port}/{share}"),
            Place::Smb { port, share, directory } => write!(f, "smb://{host}:{port}/{share}/{directory}"),
        }
    }
}

fn parse(scheme: &str, rest: &str) -> Result<NetworkTarget, String> {
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (authority, path) = rest.split_once('/').ok_or("there is no path")?;
    let (user, address) = match authority.rsplit_once('@') {
        Some((user, address)) => (Some(user), address),
        None => (None, authority),
    };
    if user.is_some_and(|user| user.contains([':', '%'])) {
        let text = "a password on a command line is readable for every process of this machine: use ?password-file=FILE or the environment";
        return Err(text.to_owned());
    }
    let (host, port) = host_and_port(address)?;
    let path = path.trim_end_matches('/');
    let mut password_file = None;
    let mut initiator = None;
    let mut nfs_port = port;
    let mut mount_port = None;
    for word in query.split('&').filter(|word| !word.is_empty()) {
        match (scheme, word.split_once('=').unwrap_or((word, ""))) {
            ("iscsi" | "smb", ("password-file", file)) if !file.is_empty() => password_file = Some(PathBuf::from(file)),
            ("iscsi", ("initiator", name)) if is_iscsi_name(name) => initiator = Some(name.to_owned()),
            ("nfs", ("nfsport", port)) => nfs_port = Some(port_number(port)?),
            ("nfs", ("mountport", port)) => mount_port = Some(port_number(port)?),
            // libnfs's URLs name the version.
            ("nfs", ("version", "3")) => {}
            ("nfs", ("version", _)) => return Err("only version 3 of NFS can be measured".to_owned()),
            (_, (key, _)) => return Err(format!("unknown option '{key}'")),
        }
    }
    let user = match (user, scheme) {
        (Some(_), "nfs") => return Err("NFS knows users by number, not by name".to_owned()),
        (Some(""), _) => return Err("the user has no name".to_owned()),
        (Some(name), _) => Some(User { name: name.to_owned(), password_file }),
        (None, _) if password_file.is_some() => return Err("a password needs a user".to_owned()),
        (None, _) => None,
    };
    let place = match scheme {
        "iscsi" => iscsi(path, port, initiator)?,
        "nfs" if path.is_empty() => return Err("no export is named".to_owned()),
        "nfs" => Place::Nfs { nfs_port, mount_port, path: format!("/{path}") },
        _ => smb(path, port)?,
    };
    Ok(NetworkTarget { host, place, user })
}

fn iscsi(path: &str, port: Option<u16>, initiator: Option<String>) -> Result<Place, String> {
    let (iqn, lun) = path.split_once('/').ok_or("target and unit are not both named")?;
    if !is_iscsi_name(iqn) {
        return Err(format!("'{iqn}' is no name of an iSCSI target"));
    }
    let lun = lun.parse().ok().filter(|lun| *lun <= MAX_LUN);
    let lun = lun.ok_or_else(|| format!("a unit is a number from 0 to {MAX_LUN}"))?;
    Ok(Place::Iscsi { port: port.unwrap_or(ISCSI_PORT), iqn: iqn.to_owned(), lun, initiator })
}

fn is_iscsi_name(name: &str) -> bool {
    let has_form = ["iqn.", "eui.", "naa."].iter().any(|start| name.starts_with(start));
    has_form && name.len() <= MAX_NAME_BYTES && !name.contains(|c: char| c.is_control() || c.is_whitespace())
}

fn smb(path: &str, port: Option<u16>) -> Result<Place, String> {
    let (share, directory) = path.split_once('/').unwrap_or((path, ""));
    // smbclient takes commands as text: quotes and separators cannot be part of a name in them.
    let is_name = |name: &str| !name.contains(|c: char| c.is_control() || "\"\\;".contains(c));
    if share.is_empty() || !is_name(share) || !is_name(directory) {
        return Err("the share is not named, or its name holds quotes, semicolons or control characters".to_owned());
    }
    Ok(Place::Smb { port: port.unwrap_or(SMB_PORT), share: share.to_owned(), directory: directory.to_owned() })
}

fn host_and_port(address: &str) -> Result<(String, Option<u16>), String> {
    let (host, port) = match address.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((host, rest)) => (host, rest.strip_prefix(':')),
        None => address.split_once(':').map_or((address, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.starts_with('-') || host.contains(|c: char| c.is_control() || c.is_whitespace()) {
        return Err("no host is named".to_owned());
    }
    Ok((host.to_owned(), port.map(port_number).transpose()?))
}

fn port_number(text: &str) -> Result<u16, String> {
    text.parse().ok().filter(|port| *port > 0).ok_or_else(|| format!("'{text}' is no port"))
}

/// Fuzz body of the parser.
pub fn fuzz(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    if let Some(Ok(target)) = NetworkTarget::parse(&text) {
        let again = NetworkTarget::parse(&target.to_string()).and_then(Result::ok);
        assert_eq!(again.map(|again| again.host), Some(target.host), "what was parsed can be written and parsed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(url: &str) -> NetworkTarget {
        NetworkTarget::parse(url).unwrap().unwrap()
    }

    #[test]
    fn urls_name_hosts_ports_and_places() {
        let unit = parsed("iscsi://anna@[::1]:3261/iqn.2000-01.org.example:a/7?password-file=/etc/secret");
        let iqn = "iqn.2000-01.org.example:a".to_owned();
        assert_eq!((unit.host.as_str(), unit.is_local()), ("::1", true));
        assert_eq!(unit.place, Place::Iscsi { port: 3261, iqn, lun: 7, initiator: None });
        assert_eq!(unit.user, Some(User { name: "anna".into(), password_file: Some("/etc/secret".into()) }));
        assert_eq!(unit.to_string(), "iscsi://[::1]:3261/iqn.2000-01.org.example:a/7");
        let place = |nfs_port, mount_port| Place::Nfs { nfs_port, mount_port, path: "/tank/films".into() };
        assert_eq!(parsed("nfs://nas/tank/films/").place, place(None, None));
        assert_eq!(parsed("nfs://nas:2050/tank/films").place, place(Some(2050), None));
        assert_eq!(parsed("nfs://nas/tank/films?version=3&nfsport=7&mountport=8").place, place(Some(7), Some(8)));
        let share = parsed("smb://nas/films/4k/raw");
        let place = Place::Smb { port: 445, share: "films".into(), directory: "4k/raw".into() };
        assert_eq!((share.place, share.user), (place, None));
        assert!(NetworkTarget::parse("ftp://host/x").is_none() && NetworkTarget::parse("/tank").is_none());
    }

    #[test]
    fn malformed_urls_show_the_form_and_never_a_password() {
        for (url, says) in [
            ("iscsi://host", "no path"),
            ("iscsi://host/iqn.2000-01.org.example:a", "not both named"),
            ("iscsi://host/disk/0", "'disk' is no name of an iSCSI target"),
            ("iscsi://host/iqn.a/x", "a unit is a number"),
            ("iscsi://host:0/iqn.a/0", "'0' is no port"),
            ("iscsi:///iqn.a/0", "no host"),
            ("iscsi://a:hunter2@host/iqn.a/0", "every process"),
            ("smb://a%hunter2@host/share", "every process"),
            ("iscsi://host/iqn.a/0?password-file=f", "needs a user"),
            ("nfs://root@host/tank", "by number"),
            ("nfs://host/", "no export"),
            ("nfs://host/a?version=4", "only version 3"),
            ("nfs://host/a?uid=0", "unknown option 'uid'"),
            ("smb://host/", "not named"),
            ("smb://host/a\";ls", "quotes"),
        ] {
            let text = NetworkTarget::parse(url).unwrap().unwrap_err().to_string();
            assert!(text.contains(says) && text.contains("the form is "), "{url}: {text}");
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
