//! Queries of users who do not administer: a second socket of root's daemon, which every user of the machine may use.
//!
//! ```text
//!   zpool list (user 1000) ─► /run/weir/readers.sock ─► 71.readers ─► queries of the names, properties and state of pools
//!   zfs create (user 1000) ─► its own pools only; those of root's daemon: permission denied
//! ```
//!
//! As with OpenZFS, whose `/dev/zfs` every user may open: lists, properties, states, counters and holds can be read, and nothing can be
//! changed. The history, events, differences between snapshots, names of damaged files and the usage of other users stay with
//! the administrator, as there. The socket knows queries only: whatever else arrives is refused before it is looked at.
//!
//! Bounds: administrators have a socket of their own, so that no user keeps them out. A user has at most
//! [`MAX_PER_USER`] connections, all together [`MAX_CONNECTIONS`]; of a user's queries two run at a time, of all
//! [`MAX_RUNNING`]; a query that does not go on ends after [`QUERY_TIMEOUT`].
#![allow(clippy::disallowed_methods, reason = "the socket of a real process, in real time")]

use super::queries;
use super::server::{ACCEPT_PAUSE, read_frame, write_frame};
use super::{READERS_LINK, own_readers_socket};
use crate::failure::Failure;
use crate::process::PoolProcess;
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use weir_admin::{AccountProperty, Answer, PoolQuery, Query, Refusal, RefusalKind};
use weir_daemon::admin::Frame;
use weir_dsl::QuotaPrincipal;
use weir_machine::lock::Mutex;

/// Maximum number of connections.
const MAX_CONNECTIONS: usize = 128;
/// Maximum number of connections of one user.
const MAX_PER_USER: usize = 8;
/// Maximum number of queries that run at a time, without those that go on.
const MAX_RUNNING: usize = 8;
/// Maximum number of queries of one user that run at a time, without those that go on.
const MAX_RUNNING_PER_USER: usize = 2;
/// Timeout for a query to arrive on a connection.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Time after which a query that does not go on is ended, with its client.
const QUERY_TIMEOUT: Duration = Duration::from_secs(120);
/// Refusal of what a user may not do, in OpenZFS's words.
pub const DENIED: &str = "permission denied";

/// The listening socket. Dropping it removes its files and ends the connections.
pub struct ReadersSocket {
    path: PathBuf,
    link: PathBuf,
    _stop: watch::Sender<bool>,
}

impl Drop for ReadersSocket {
    fn drop(&mut self) {
        // A socket that could not be removed refuses connections, and clients pass it over.
        for path in [&self.link, &self.path] {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl ReadersSocket {
    /// Listens for queries about the pools of this process. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// If there is no folder for the socket, or listening on it fails.
    pub fn open(process: &Arc<PoolProcess>) -> Result<Self, Failure> {
        let path = own_readers_socket()?;
        let failed = |error: io::Error| Failure::failed(format!("cannot listen on {}: {error}", path.display()));
        // Left behind by an earlier process with this process id.
        let _ = std::fs::remove_file(&path);
        let listener = UnixListener::bind(&path).map_err(failed)?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).map_err(failed)?;
        if let Some(folder) = path.parent() {
            let mode = std::fs::metadata(folder).map_err(failed)?.permissions().mode() & 0o7777;
            // Users may pass through the folder; they cannot list it.
            std::fs::set_permissions(folder, std::fs::Permissions::from_mode(mode | 0o011)).map_err(failed)?;
        }
        let link = path.with_file_name(READERS_LINK);
        let new = path.with_extension("readers-link");
        let _ = std::fs::remove_file(&new);
        std::os::unix::fs::symlink(path.file_name().unwrap_or_default(), &new)
            .and_then(|()| std::fs::rename(&new, &link))
            .map_err(failed)?;
        let (stop, stopped) = watch::channel(false);
        drop(process.machine.tasks.spawn(accept(listener, process.clone(), stopped)));
        Ok(ReadersSocket { path, link, _stop: stop })
    }
}

/// Shares of the bounds that users hold.
struct Bounds {
    users: Mutex<BTreeMap<u32, UserBounds>>,
    running: Semaphore,
}

/// Share of the bounds that one user holds.
struct UserBounds {
    connections: usize,
    running: Arc<Semaphore>,
}

impl Default for Bounds {
    fn default() -> Self {
        Bounds { users: Mutex::default(), running: Semaphore::new(MAX_RUNNING) }
    }
}

/// A connection that counts until it is dropped.
struct Counted {
    bounds: Arc<Bounds>,
    uid: u32,
    running: Arc<Semaphore>,
}

impl Counted {
    /// Counts a connection of a user; `None` if the user, or all together, have too many.
    fn new(bounds: &Arc<Bounds>, uid: u32) -> Option<Self> {
        let mut users = bounds.users.lock();
        let all: usize = users.values().map(|user| user.connections).sum();
        let none = || UserBounds { connections: 0, running: Arc::new(Semaphore::new(MAX_RUNNING_PER_USER)) };
        if all >= MAX_CONNECTIONS || users.get(&uid).is_some_and(|user| user.connections >= MAX_PER_USER) {
            return None;
        }
        let user = users.entry(uid).or_insert_with(none);
        user.connections += 1;
        debug_assert!(user.connections <= MAX_PER_USER && all < MAX_CONNECTIONS);
        Some(Counted { bounds: bounds.clone(), uid, running: user.running.clone() })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut users = self.bounds.users.lock();
        if let Some(user) = users.get_mut(&self.uid) {
            user.connections = user.connections.saturating_sub(1);
            if user.connections == 0 {
                users.remove(&self.uid);
            }
        }
    }
}

async fn accept(listener: UnixListener, process: Arc<PoolProcess>, mut stopped: watch::Receiver<bool>) {
    let bounds = Arc::new(Bounds::default());
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            // The sender is dropped with the socket.
            _ = stopped.changed() => return,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::warn!(%error, "cannot accept a user's connection");
                process.machine.clock.sleep(ACCEPT_PAUSE).await;
                continue;
            }
        };
        let Ok(peer) = stream.peer_cred() else { continue };
        let counted = Counted::new(&bounds, peer.uid());
        let mut stopped = stopped.clone();
        let process = process.clone();
        drop(process.machine.clone().tasks.spawn(async move {
            let served = async {
                match counted {
                    Some(counted) => connection(stream, process, &counted).await,
                    None => refuse(stream, RefusalKind::Busy, "too many queries of this user at the same time").await,
                }
            };
            tokio::select! {
                done = served => if let Err(error) = done {
                    tracing::debug!(%error, "a user's connection ended");
                },
                _ = stopped.changed() => {}
            }
        }));
    }
}

/// Answers a connection with a refusal.
async fn refuse(stream: UnixStream, kind: RefusalKind, why: &str) -> io::Result<()> {
    let (_read, mut write) = stream.into_split();
    let answer = Answer::Refused(Refusal::new(kind, why)).to_json().map_err(io::Error::other)?;
    write_frame(&mut write, &Frame::Begun).await?;
    write_frame(&mut write, &Frame::Answer(answer)).await
}

/// Answers the one query of a connection.
async fn connection(mut stream: UnixStream, process: Arc<PoolProcess>, counted: &Counted) -> io::Result<()> {
    let json = match timeout(CALL_TIMEOUT, read_frame(&mut stream)).await? {
        Ok(Frame::Query(json)) => json,
        Ok(Frame::Call(_)) => {
            write_frame(&mut stream, &Frame::Begun).await?;
            write_frame(&mut stream, &Frame::Err(format!("{DENIED}\n").into_bytes())).await?;
            return write_frame(&mut stream, &Frame::End(1)).await;
        }
        Ok(_) => return refuse(stream, RefusalKind::Denied, DENIED).await,
        Err(error) => return Err(error),
    };
    let Some(query) = Query::from_json(&json).ok().and_then(|query| allowed(query, counted.uid)) else {
        return refuse(stream, RefusalKind::Denied, DENIED).await;
    };
    let goes_on = queries::goes_on(&json);
    let json = query.to_json().map_err(io::Error::other)?;
    let (mut read, mut write) = stream.into_split();
    if goes_on {
        write_frame(&mut write, &Frame::Begun).await?;
        return queries::answer(&process, json, &mut read, &mut write).await;
    }
    let _own = counted.running.acquire().await.map_err(io::Error::other)?;
    let _of_all = counted.bounds.running.acquire().await.map_err(io::Error::other)?;
    write_frame(&mut write, &Frame::Begun).await?;
    timeout(QUERY_TIMEOUT, queries::answer(&process, json, &mut read, &mut write)).await?
}

/// The query as this user may make it; `None` if the user may not.
fn allowed(query: Query, uid: u32) -> Option<Query> {
    let Query::Pool { name, query } = query else {
        return match query {
            Query::Pools | Query::Opened { .. } | Query::Iostat(_) => Some(query),
            Query::Pool { .. } => None,
        };
    };
    let query = match query {
        PoolQuery::Holds(_)
        | PoolQuery::Permissions(_)
        | PoolQuery::PoolProperties(_)
        | PoolQuery::VdevProperties(_) => query,
        // Names of files are those of directories that the user may not read.
        PoolQuery::Status(status) => PoolQuery::Status(weir_admin::StatusQuery { damaged: false, ..status }),
        PoolQuery::Datasets(datasets) => {
            let named = datasets.properties.iter().flatten().chain(&datasets.sort_keys);
            if !named.map(String::as_str).all(|property| is_readable(property, uid)) {
                return None;
            }
            PoolQuery::Datasets(datasets)
        }
        PoolQuery::Userspace(_) | PoolQuery::History(_) | PoolQuery::Events(_) | PoolQuery::Diff(_) => return None,
    };
    Some(Query::Pool { name, query })
}

/// Whether a user may read a property: of users, groups and projects only what concerns the user.
fn is_readable(property: &str, uid: u32) -> bool {
    AccountProperty::parse(property).is_none_or(|of| of.who == QuotaPrincipal::User && of.id == u64::from(uid))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_admin::{
        DatasetsQuery, DiffQuery, EventsQuery, HistoryQuery, HoldsQuery, PermissionsQuery, StatusQuery, UserspaceQuery,
    };

    fn of(query: PoolQuery) -> Query {
        Query::Pool { name: "p".into(), query }
    }

    fn properties(property: &str) -> Query {
        of(PoolQuery::Datasets(DatasetsQuery {
            names: Vec::new(),
            kinds: Vec::new(),
            depth: None,
            follows_pool: false,
            altroot: String::new(),
            properties: Some(vec![property.to_owned()]),
            sort_keys: Vec::new(),
        }))
    }

    #[test]
    fn users_read_names_properties_and_state_and_nothing_that_openzfs_keeps_from_them() {
        for query in [
            Query::Pools,
            of(PoolQuery::Holds(HoldsQuery { snapshot: "p@a".into(), recursive: false })),
            of(PoolQuery::Permissions(PermissionsQuery { dataset: "p".into() })),
            properties("used"),
            properties("userused@7"),
            properties("written@a"),
        ] {
            assert_eq!(allowed(query.clone(), 7), Some(query));
        }
        for query in [
            of(PoolQuery::History(HistoryQuery { internal: false })),
            of(PoolQuery::Events(EventsQuery { follow: false })),
            of(PoolQuery::Diff(DiffQuery { older: "p@a".into(), newer: "p".into() })),
            of(PoolQuery::Userspace(UserspaceQuery { dataset: "p".into(), principal: QuotaPrincipal::User })),
            properties("userused@8"),
            properties("groupquota@7"),
        ] {
            assert_eq!(allowed(query, 7), None);
        }
        let status = |damaged| of(PoolQuery::Status(StatusQuery { damaged, dedup: false }));
        assert_eq!(allowed(status(true), 7), Some(status(false)), "no names of files");
    }

    #[test]
    fn a_user_with_many_connections_leaves_room_for_others() {
        let bounds = Arc::new(Bounds::default());
        let mut held = Vec::new();
        for uid in 0.. {
            let own: Vec<Counted> = std::iter::from_fn(|| Counted::new(&bounds, uid)).take(MAX_CONNECTIONS).collect();
            if own.is_empty() {
                break;
            }
            assert_eq!(own.len(), MAX_PER_USER);
            held.extend(own);
        }
        assert_eq!(held.len(), MAX_CONNECTIONS);
        held.pop();
        assert!(Counted::new(&bounds, 1000).is_some());
        held.clear();
        assert!(bounds.users.lock().is_empty(), "nothing is kept of users without connections");
    }
}
