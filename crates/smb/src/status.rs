//! Connections of the server, from `smbstatus --json` (Samba 4.17 and later).
//!
//! ```text
//!   sessions.ID: server_id.pid, username, remote_machine, hostname, session_dialect, encryption.cipher, signing.cipher
//!   tcons.ID:    service, session_id, encryption, signing
//! ```
//!
//! The decoder takes what it knows and ignores the rest; a value of another type is absent. Lists are bounded.

use crate::directories::Directories;
use crate::error::SmbError;
use crate::logons;
use crate::programs::Programs;
use crate::run;
use serde_json::Value;
use std::time::Duration;
use weir_machine::Clock;

/// Maximum number of sessions and of connections to shares that are shown.
const MAX_LISTED: usize = 10_000;
/// Time for `smbstatus`.
const STATUS_TIME: Duration = Duration::from_secs(10);

/// A session of a user on a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Connection {
    /// Process of smbd that serves it.
    pub pid: u32,
    /// Number of the user on this machine.
    pub uid: Option<u32>,
    /// User; empty until the session is authenticated.
    pub user: String,
    /// Address of the client, without its port.
    pub address: String,
    /// Address and port, as smbd writes them.
    pub endpoint: String,
    /// Dialect: `SMB3_11`.
    pub dialect: String,
    /// Cipher of the signatures; empty if messages are not signed.
    pub signing: String,
    /// Cipher of the encryption; empty if messages are not encrypted.
    pub encryption: String,
    /// Shares that are open, in alphabetical order.
    pub shares: Vec<String>,
}

/// The connections of a server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// Sessions, by process and user.
    pub connections: Vec<Connection>,
}

impl Status {
    /// Decodes the output of `smbstatus --json`.
    ///
    /// # Errors
    /// If it is not a JSON object.
    pub fn decode(text: &str) -> Result<Self, SmbError> {
        let bad = |why: String| SmbError::Status { why };
        let value: Value = serde_json::from_str(text).map_err(|e| bad(e.to_string()))?;
        if !value.is_object() {
            return Err(bad("no object".into()));
        }
        let mut connections: Vec<(String, Connection)> = members(&value, "sessions").map(session).collect();
        for tcon in members(&value, "tcons") {
            let session = text_at(tcon, &["session_id"]);
            if let Some((_, connection)) = connections.iter_mut().find(|(id, _)| *id == session) {
                connection.shares.push(text_at(tcon, &["service"]));
            }
        }
        let mut connections: Vec<Connection> = connections.into_iter().map(|(_, connection)| connection).collect();
        for connection in &mut connections {
            connection.shares.sort();
            connection.shares.dedup();
        }
        connections.sort_by(|a, b| (a.pid, &a.user).cmp(&(b.pid, &b.user)));
        debug_assert!(connections.len() <= MAX_LISTED, "lists are bounded");
        Ok(Status { connections })
    }
}

fn members<'a>(value: &'a Value, name: &str) -> impl Iterator<Item = &'a Value> {
    value.get(name).and_then(Value::as_object).into_iter().flat_map(|members| members.values()).take(MAX_LISTED)
}

fn at<'a>(value: &'a Value, path: &[&str]) -> Option<&'a Value> {
    path.iter().try_fold(value, |value, name| value.get(name))
}

fn text_at(value: &Value, path: &[&str]) -> String {
    at(value, path).and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// The session's ID and the connection.
fn session(session: &Value) -> (String, Connection) {
    // A cipher's name is `-` or empty, and its degree `none`, where there is none.
    let cipher = |of: &str| match text_at(session, &[of, "degree"]).as_str() {
        "none" => String::new(),
        _ => Some(text_at(session, &[of, "cipher"])).filter(|cipher| cipher != "-").unwrap_or_default(),
    };
    let pid = text_at(session, &["server_id", "pid"]).parse().ok();
    let connection = Connection {
        pid: pid.unwrap_or(0),
        uid: at(session, &["uid"]).and_then(Value::as_u64).and_then(|uid| u32::try_from(uid).ok()),
        user: text_at(session, &["username"]),
        address: address_of(&text_at(session, &["hostname"])),
        endpoint: text_at(session, &["hostname"]),
        dialect: text_at(session, &["session_dialect"]),
        signing: cipher("signing"),
        encryption: cipher("encryption"),
        shares: Vec::new(),
    };
    (text_at(session, &["session_id"]), connection)
}

/// Address in `ipv4:127.0.0.1:54996` or `ipv6:::1:54996`.
fn address_of(hostname: &str) -> String {
    let rest = hostname.strip_prefix("ipv4:").or_else(|| hostname.strip_prefix("ipv6:"));
    match rest.and_then(|rest| rest.rsplit_once(':')) {
        Some((address, port)) if port.chars().all(|c| c.is_ascii_digit()) => address.to_owned(),
        _ => hostname.to_owned(),
    }
}

/// The connections of the server of a runtime directory. `smbstatus` insists on the user ID 0, so an ordinary user's runs
/// with a library that shows it one, or in a user namespace.
///
/// # Errors
/// If `smbstatus` is not installed, fails, or neither of the two is available.
pub(crate) async fn read(clock: &Clock, programs: &Programs, directories: &Directories) -> Result<Status, SmbError> {
    decode_named(&run_smbstatus(clock, programs, directories, &[]).await?, directories)
}

/// The sessions, without their shares.
///
/// # Errors
/// As [`read`].
pub(crate) async fn sessions(
    clock: &Clock,
    programs: &Programs,
    directories: &Directories,
) -> Result<Status, SmbError> {
    decode_named(&run_smbstatus(clock, programs, directories, &["--processes", "--fast"]).await?, directories)
}

/// Decodes the connections, with the users' names as they logged on.
fn decode_named(said: &str, directories: &Directories) -> Result<Status, SmbError> {
    let mut status = Status::decode(said)?;
    logons::name_users(&mut status, &directories.logons());
    Ok(status)
}

/// Runs `smbstatus` with the libraries that show it the user ID 0 and the accounts of smbd.
async fn run_smbstatus(
    clock: &Clock,
    programs: &Programs,
    directories: &Directories,
    flags: &[&str],
) -> Result<String, SmbError> {
    let program = programs.smbstatus.as_ref().ok_or(SmbError::NoProgram { program: "smbstatus" })?;
    let root = rustix::process::geteuid().is_root();
    let uid_wrapper = programs.uid_wrapper.as_ref().filter(|_| !root);
    let mut command = match uid_wrapper {
        None if !root => {
            let mut command = run::command(std::path::Path::new("unshare"));
            command.arg("--map-root-user").arg(program);
            command
        }
        _ => run::command(program),
    };
    if uid_wrapper.is_some() {
        command.env("UID_WRAPPER", "1").env("UID_WRAPPER_ROOT", "1");
    }
    let [passwd, group] = directories.accounts();
    let nss_wrapper = programs.nss_wrapper.as_ref().filter(|_| passwd.is_file() && group.is_file());
    if nss_wrapper.is_some() {
        command.env("NSS_WRAPPER_PASSWD", passwd).env("NSS_WRAPPER_GROUP", group);
    }
    let libraries: Vec<String> =
        uid_wrapper.into_iter().chain(nss_wrapper).map(|library| library.display().to_string()).collect();
    if !libraries.is_empty() {
        command.env("LD_PRELOAD", libraries.join(":"));
    }
    command.arg("--configfile").arg(directories.configuration()).args(["--json", "--resolve-uids"]).args(flags);
    run::output(clock, &mut command, None, STATUS_TIME).await.map_err(|error| match error {
        SmbError::Run { .. } | SmbError::Failed { .. } if !root && uid_wrapper.is_none() => SmbError::NoLibrary {
            library: "libuid_wrapper.so",
            why: "smbstatus works for root alone".into(),
            package: "libuid-wrapper",
        },
        other => other,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of 4.17.12, shortened.
    const OUTPUT: &str = r#"{"timestamp": "2026-11-24T09:48:57+0000", "version": "4.17.12-Debian", "sessions": {
        "2203": {"session_id": "2203", "server_id": {"pid": "31939", "task_id": "0", "vnn": "4294967295"}, "uid": 65534,
            "username": "ann", "groupname": "nogroup", "remote_machine": "127.0.0.1", "hostname": "ipv4:127.0.0.1:54996",
            "session_dialect": "SMB3_11", "encryption": {"cipher": "", "degree": "none"},
            "signing": {"cipher": "AES-128-GMAC", "degree": "partial"}},
        "7": {"session_id": "7", "server_id": {"pid": "40"}, "username": "bob", "hostname": "ipv6:fe80::1:445",
            "session_dialect": "SMB2_10", "encryption": {"cipher": "AES-128-GCM", "degree": "full"},
            "signing": {"cipher": "-", "degree": "full"}}},
        "tcons": {"1": {"service": "tank", "session_id": "2203"}, "2": {"service": "IPC$", "session_id": "2203"},
            "3": {"service": "tank", "session_id": "none"}}, "open_files": {}}"#;

    #[test]
    fn sessions_are_decoded() {
        let status = Status::decode(OUTPUT).unwrap();
        let ann = Connection {
            pid: 31_939,
            uid: Some(65_534),
            user: "ann".into(),
            address: "127.0.0.1".into(),
            endpoint: "ipv4:127.0.0.1:54996".into(),
            dialect: "SMB3_11".into(),
            signing: "AES-128-GMAC".into(),
            encryption: String::new(),
            shares: vec!["IPC$".into(), "tank".into()],
        };
        let bob = Connection {
            pid: 40,
            uid: None,
            user: "bob".into(),
            address: "fe80::1".into(),
            endpoint: "ipv6:fe80::1:445".into(),
            dialect: "SMB2_10".into(),
            signing: String::new(),
            encryption: "AES-128-GCM".into(),
            shares: Vec::new(),
        };
        assert_eq!(status.connections, [bob, ann]);
    }

    #[test]
    fn other_values_are_absent_or_refused() {
        assert_eq!(Status::decode("{}").unwrap(), Status::default());
        let odd = r#"{"sessions": {"a": 5, "b": {"server_id": {"pid": 7}, "username": ["x"]}}, "tcons": []}"#;
        assert_eq!(Status::decode(odd).unwrap().connections, [Connection::default(), Connection::default()]);
        for bad in ["", "[]", "smbstatus only works as root!", "{"] {
            assert!(Status::decode(bad).is_err(), "{bad:?}");
        }
    }
}
