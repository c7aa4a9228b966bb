//! The SMB client on whose behalf a process of smbd acts: `user@address`.
//!
//! smbd serves each connection in a process of its own. The process of a request to the mount is found in the table of
//! sessions, which is read from `smbstatus` when a process is not in it, at most once in 200 ms, and again when it is older
//! than 10 s, since users may log on later over the same connection. A process that stays unknown (the server itself, a tool)
//! is the client `smbd`. The table has at most as many rows as `smbstatus` lists sessions.

use crate::directories::Directories;
use crate::programs::Programs;
use crate::status::{self, Connection};
use futures_util::lock::Mutex as AsyncMutex;
use weir_machine::lock::Mutex;

use std::time::Duration;
use weir_machine::{Clock, Nanos};

/// Client of processes that serve no session.
pub const UNKNOWN: &str = "smbd";
/// Shortest time between two reads of the sessions.
const READ_INTERVAL: Duration = Duration::from_millis(200);
/// Time after which the table is read again.
const TABLE_TTL: Duration = Duration::from_secs(10);

/// The sessions at a time.
#[derive(Debug, Default)]
struct Table {
    read_at: Option<Nanos>,
    sessions: Vec<Connection>,
}

impl Table {
    /// Client of a process that acts as `uid`: the session of that user, or the only other one of the connection.
    fn client(&self, pid: u32, uid: u32) -> Option<String> {
        let of_process = || self.sessions.iter().filter(|session| session.pid == pid && !session.user.is_empty());
        let session = of_process().find(|session| session.uid == Some(uid)).or_else(|| of_process().next())?;
        Some(format!("{}@{}", session.user, session.address))
    }
}

/// The clients of one server.
pub struct Clients {
    clock: Clock,
    programs: Programs,
    directories: Directories,
    table: Mutex<Table>,
    /// Held while the sessions are read, so that one read answers all that wait.
    reading: AsyncMutex<()>,
}

impl Clients {
    pub(crate) fn new(clock: &Clock, programs: &Programs, directories: &Directories) -> Self {
        Clients {
            clock: clock.clone(),
            programs: programs.clone(),
            directories: directories.clone(),
            table: Mutex::default(),
            reading: AsyncMutex::new(()),
        }
    }

    /// Client on whose behalf thread `tid` acts as user `uid`.
    pub async fn client(&self, tid: u32, uid: u32) -> String {
        let pid = process_of(tid).unwrap_or(tid);
        let asked_at = self.clock.now();
        if let Some(known) = self.known(pid, uid, TABLE_TTL) {
            return known;
        }
        let _reading = self.reading.lock().await;
        // Another request may have read them meanwhile.
        if !self.is_read_since(asked_at) && self.age().is_none_or(|age| age >= READ_INTERVAL) {
            self.read().await;
        }
        self.known(pid, uid, Duration::MAX).unwrap_or_else(|| UNKNOWN.into())
    }

    fn known(&self, pid: u32, uid: u32, ttl: Duration) -> Option<String> {
        if self.age()? > ttl {
            return None;
        }
        self.table.lock().client(pid, uid)
    }

    fn age(&self) -> Option<Duration> {
        let read_at = self.table.lock().read_at;
        read_at.map(|read_at| self.clock.now().since(read_at))
    }

    fn is_read_since(&self, when: Nanos) -> bool {
        let read_at = self.table.lock().read_at;
        read_at.is_some_and(|read_at| read_at > when)
    }

    async fn read(&self) {
        let found = status::sessions(&self.clock, &self.programs, &self.directories).await;
        let mut table = self.table.lock();
        table.read_at = Some(self.clock.now());
        match found {
            Ok(found) => table.sessions = found.connections,
            Err(error) => tracing::debug!(%error, "operations are accounted to smbd"),
        }
    }
}

/// Process of a thread.
fn process_of(tid: u32) -> Option<u32> {
    let status = std::fs::read_to_string(format!("/proc/{tid}/status")).ok()?;
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_of_the_user_has_precedence() {
        let session = |pid, uid, user: &str| Connection {
            pid,
            uid: Some(uid),
            user: user.into(),
            address: "10.0.0.1".into(),
            ..Connection::default()
        };
        let sessions = vec![session(7, 0, ""), session(7, 1, "ann"), session(7, 2, "bob"), session(8, 1, "ann")];
        let table = Table { read_at: None, sessions };
        assert_eq!(table.client(7, 2).as_deref(), Some("bob@10.0.0.1"));
        assert_eq!(table.client(7, 0).as_deref(), Some("ann@10.0.0.1"), "smbd acts as itself for a connection");
        assert_eq!(table.client(9, 1), None);
        assert_eq!(process_of(std::process::id()), Some(std::process::id()));
    }
}
