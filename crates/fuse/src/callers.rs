//! The processes that use a mount: their supplementary groups, and on a mount for a file server, the client that each acts
//! for.
//!
//! ```text
//!   FUSE request: thread, user, group ─▶ /proc/THREAD/status: groups, if it still has this user and group
//!                                     └▶ Clients: name of the client ─▶ accounts
//! ```
//!
//! A thread waits for its request, so that its file in `/proc` shows what it was when it sent the request. Both answers are
//! kept for one second and five seconds, for at most 4,096 threads.

use fuser::Request as KernelRequest;
use futures_util::future::BoxFuture;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use weir_files::Cred;
use weir_machine::lock::{Mutex, MutexGuard};
use weir_machine::{Client, Clock, Nanos};

/// Maximum number of groups that are read (`NGROUPS_MAX` is 65,536; NFS and smbd use fewer).
const MAX_GROUPS: usize = 1024;
/// Maximum number of rows of a table; a full table is emptied.
const MAX_ROWS: usize = 4096;
const GROUPS_TTL: Duration = Duration::from_secs(1);
const CLIENT_TTL: Duration = Duration::from_secs(5);

/// Names the clients of a file server that uses a mount.
pub trait Clients: Send + Sync {
    /// Name of the client for which thread `tid` acts as user `uid`.
    fn client(&self, tid: u32, uid: u32) -> BoxFuture<'_, String>;
}

/// A thread and its identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Caller {
    tid: u32,
    uid: u32,
    gid: u32,
}

impl Caller {
    pub(crate) fn of(from: &KernelRequest) -> Self {
        Caller { tid: from.pid(), uid: from.uid(), gid: from.gid() }
    }

    /// Credentials whose permissions were checked before: by the kernel, or when the file was opened.
    pub(crate) fn opened_cred(self) -> Cred {
        Cred::new(self.uid, self.gid, &[]).checked()
    }

    /// The user.
    pub(crate) fn uid(self) -> u32 {
        self.uid
    }

    /// Credentials with the supplementary groups that the thread has now.
    pub(crate) fn cred(self) -> Cred {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.tid)).unwrap_or_default();
        Cred::new(self.uid, self.gid, &groups(&status, self.uid, self.gid))
    }
}

/// Supplementary groups in `/proc/PID/status`; none if the thread has another user or group for file access.
fn groups(status: &str, uid: u32, gid: u32) -> Vec<u32> {
    let numbers = |name| {
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap_or_default();
        line.split_whitespace().filter_map(|word| word.parse::<u32>().ok()).take(MAX_GROUPS).collect::<Vec<_>>()
    };
    // Real, effective, saved, for file access.
    match (numbers("Uid:").get(3), numbers("Gid:").get(3)) {
        (Some(fs_uid), Some(fs_gid)) if (*fs_uid, *fs_gid) == (uid, gid) => numbers("Groups:"),
        _ => Vec::new(),
    }
}

/// A bounded table whose rows expire.
struct Rows<K, V>(Mutex<BTreeMap<K, (Nanos, V)>>);

impl<K: Ord, V: Clone> Rows<K, V> {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<K, (Nanos, V)>> {
        self.0.lock()
    }

    fn get(&self, key: &K, now: Nanos, ttl: Duration) -> Option<V> {
        self.lock().get(key).filter(|(at, _)| now.since(*at) < ttl).map(|(_, value)| value.clone())
    }

    fn put(&self, key: K, now: Nanos, value: V) {
        let mut rows = self.lock();
        if rows.len() >= MAX_ROWS {
            rows.clear();
        }
        rows.insert(key, (now, value));
        debug_assert!(rows.len() <= MAX_ROWS, "the table is bounded");
    }
}

/// The file server that uses a mount.
pub(crate) struct FileServer {
    clock: Clock,
    clients: Arc<dyn Clients>,
    creds: Rows<Caller, Cred>,
    known: Rows<(u32, u32), Client>,
}

impl FileServer {
    pub(crate) fn new(clock: Clock, clients: Arc<dyn Clients>) -> Self {
        FileServer { clock, clients, creds: Rows(Mutex::default()), known: Rows(Mutex::default()) }
    }

    /// Credentials of a caller.
    pub(crate) fn cred(&self, caller: Caller) -> Cred {
        let now = self.clock.now();
        self.creds.get(&caller, now, GROUPS_TTL).unwrap_or_else(|| {
            let cred = caller.cred();
            self.creds.put(caller, now, cred.clone());
            cred
        })
    }

    /// The client of a caller, if it is known.
    pub(crate) fn known_client(&self, caller: Caller) -> Option<Client> {
        self.known.get(&(caller.tid, caller.uid), self.clock.now(), CLIENT_TTL)
    }

    /// Name of the client of a caller.
    pub(crate) async fn client_name(&self, caller: Caller) -> String {
        self.clients.client(caller.tid, caller.uid).await
    }

    /// Keeps the client of a caller.
    pub(crate) fn keep_client(&self, caller: Caller, client: Client) {
        self.known.put((caller.tid, caller.uid), self.clock.now(), client);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_those_of_a_thread_with_this_identity() {
        let status = "Name:\tsmbd\nUid:\t0\t7\t0\t7\nGid:\t0\t8\t0\t8\nGroups:\t8 20 30 \n";
        assert_eq!(groups(status, 7, 8), [8, 20, 30]);
        assert_eq!((groups(status, 0, 8), groups(status, 7, 9), groups("", 7, 8)), (vec![], vec![], vec![]));
        let own = Caller {
            tid: std::process::id(),
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
        };
        let mut kernel: Vec<u32> = rustix::process::getgroups().unwrap().into_iter().map(|gid| gid.as_raw()).collect();
        let mut found = own.cred().groups.to_vec();
        kernel.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, kernel);
    }

    #[test]
    fn rows_expire_and_are_bounded() {
        let rows = Rows(Mutex::default());
        let at = |s| Nanos::default() + Duration::from_secs(s);
        for key in 0..5000u32 {
            rows.put(key, at(1), key);
        }
        assert!(rows.lock().len() <= MAX_ROWS);
        assert_eq!((rows.get(&4999, at(1), CLIENT_TTL), rows.get(&4999, at(7), CLIENT_TTL)), (Some(4999), None));
    }
}
