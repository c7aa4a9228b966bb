//! The accounts that logged on, by the client's address and port, from smbd's audit log (`auth_json_audit`).
//!
//! `smbstatus` names the account of a session by its number on this machine, which all SMB users share where smbd cannot change
//! its identity. The audit log names the SMB account. The table is kept in a file of the runtime directory, so that other
//! processes of Weir can name the users of a server, too.

use crate::directories::write_private;
use crate::status::Status;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use weir_machine::lock::Mutex;

/// Maximum number of rows; a full table is emptied.
const MAX_ROWS: usize = 4096;
/// Maximum length of a name or an address, in bytes.
const MAX_LEN: usize = 256;

/// An attempt to log on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Logon {
    /// Address and port, as smbd writes them: `ipv4:127.0.0.1:54996`.
    pub(crate) address: String,
    /// The account.
    pub(crate) user: String,
    /// Whether it succeeded; if not, the status.
    pub(crate) refused: Option<String>,
}

impl Logon {
    /// Decodes a line of the audit log; `None` for other lines.
    pub(crate) fn decode(line: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(line).ok()?;
        let event = value.get("Authentication")?;
        let text = |name| {
            let text = event.get(name)?.as_str()?;
            let is_plain = !text.is_empty() && text.len() <= MAX_LEN && !text.contains(char::is_control);
            is_plain.then(|| text.to_owned())
        };
        let status = text("status")?;
        let user = text("becameAccount").or_else(|| text("mappedAccount")).or_else(|| text("clientAccount"))?;
        Some(Logon { address: text("remoteAddress")?, user, refused: (status != "NT_STATUS_OK").then_some(status) })
    }
}

/// Parses the file: address, tab, account in each line.
pub(crate) fn parse(text: &str) -> BTreeMap<String, String> {
    let rows = text.lines().filter_map(|line| line.split_once('\t'));
    rows.take(MAX_ROWS).map(|(address, user)| (address.to_owned(), user.to_owned())).collect()
}

/// The logons of one server.
pub(crate) struct Logons {
    file: PathBuf,
    rows: Mutex<BTreeMap<String, String>>,
}

impl Logons {
    /// An empty table, and an empty file.
    pub(crate) fn new(file: PathBuf) -> Self {
        // A missing file is an empty table.
        let _ = std::fs::remove_file(&file);
        Logons { file, rows: Mutex::default() }
    }

    /// Takes a line of the server, if it is about a logon. Returns whether it is.
    pub(crate) fn take(&self, line: &str) -> bool {
        let Some(logon) = Logon::decode(line) else { return false };
        let Logon { address, user, refused } = &logon;
        if let Some(status) = refused {
            tracing::warn!(%address, %user, %status, "SMB logon refused");
            return true;
        }
        tracing::info!(%address, %user, "SMB logon");
        let mut rows = self.rows.lock();
        if rows.len() >= MAX_ROWS {
            rows.clear();
        }
        rows.insert(address.clone(), user.clone());
        debug_assert!(rows.len() <= MAX_ROWS, "the table is bounded");
        let text: String = rows.iter().map(|(address, user)| format!("{address}\t{user}\n")).collect();
        if let Err(error) = write_private(&self.file, text.as_bytes()) {
            tracing::debug!(%error, "other processes do not learn the users' names");
        }
        true
    }
}

/// Names the users of connections as they logged on.
pub(crate) fn name_users(status: &mut Status, file: &Path) {
    let rows = parse(&std::fs::read_to_string(file).unwrap_or_default());
    for connection in &mut status.connections {
        if let Some(user) = rows.get(&connection.endpoint) {
            user.clone_into(&mut connection.user);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Connection;

    const LINE: &str = r#"{"timestamp": "2026-11-24T09:49:15.756666+0000", "type": "Authentication", "Authentication":
        {"version": {"major": 1, "minor": 2}, "eventId": 4624, "status": "NT_STATUS_OK", "remoteAddress":
        "ipv4:127.0.0.1:34430", "clientAccount": "Ann", "mappedAccount": "Ann", "becameAccount": "ann"}}"#;

    #[test]
    fn logons_are_decoded() {
        let logon = Logon::decode(LINE).unwrap();
        let wanted = Logon { address: "ipv4:127.0.0.1:34430".into(), user: "ann".into(), refused: None };
        assert_eq!(logon, wanted);
        let refused = LINE.replace("NT_STATUS_OK", "NT_STATUS_WRONG_PASSWORD").replace("becameAccount", "x");
        let refused = Logon::decode(&refused).unwrap();
        assert_eq!((refused.user.as_str(), refused.refused.as_deref()), ("Ann", Some("NT_STATUS_WRONG_PASSWORD")));
        for other in
            ["", "{}", "[]", r#"{"Authentication": {"status": 5}}"#, &LINE.replace("ann", "a\\nb").replace("Ann", "")]
        {
            assert_eq!(Logon::decode(other), None, "{other}");
        }
    }

    #[test]
    fn connections_have_the_names_of_their_logons() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("logons");
        let logons = Logons::new(file.clone());
        assert!(logons.take(LINE) && !logons.take("smbd version 4.17"));
        let connection = |port: u16| Connection {
            user: "runner".into(),
            endpoint: format!("ipv4:127.0.0.1:{port}"),
            ..Connection::default()
        };
        let mut status = Status { connections: vec![connection(34_430), connection(1)] };
        name_users(&mut status, &file);
        let users: Vec<&str> = status.connections.iter().map(|connection| connection.user.as_str()).collect();
        assert_eq!(users, ["ann", "runner"]);
        assert!(parse("no tab\n").is_empty());
    }
}
