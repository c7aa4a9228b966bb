//! The accept loop, and the loop that closes connections beyond their deadlines.

use crate::budget::HostBudget;
use crate::connection::{ClientConnection, Connection, ConnectionHandle};
use futures_util::future::{Either, select};
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use weir_machine::lock::{Mutex, MutexGuard, order};
use weir_machine::net::Listener;
use weir_machine::{Clock, Nanos, Tasks};

/// Time between two lines of the log about connections that cannot be accepted.
const ACCEPT_LOG_INTERVAL: Duration = Duration::from_secs(60);
/// Delay before the next `accept` after one failed, most likely for lack of file descriptors.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);
/// Interval at which connections are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);
/// Interval at which shutdown checks whether all connections have ended.
const SHUTDOWN_POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Limits of a front end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of connections.
    pub connections: usize,
    /// Maximum number of connections of one host.
    pub per_host: usize,
    /// Time without a byte after which a connection without calls is closed.
    pub idle: Duration,
    /// Time without a byte after which a client is closed that has sent a part of a message or does not take its replies.
    pub stalled: Duration,
    /// Time without a byte after which such a client is closed while another client waits for memory.
    pub stalled_under_pressure: Duration,
    /// Maximum time in which a message must arrive completely.
    pub message: Duration,
    /// Maximum time that shutdown waits for calls in progress and unread replies.
    pub shutdown: Duration,
}

impl Limits {
    /// Limits for `connections` in total, half of them of one host, with the usual deadlines. Idle connections are closed
    /// after six minutes, as Linux's NFS server does.
    pub const fn new(connections: usize) -> Self {
        Limits {
            connections,
            per_host: connections / 2,
            idle: Duration::from_secs(360),
            stalled: Duration::from_secs(30),
            stalled_under_pressure: Duration::from_secs(2),
            message: Duration::from_secs(60),
            shutdown: Duration::from_secs(5),
        }
    }
}

/// The connections of a front end.
pub struct FrontEnd {
    /// Name of the protocol in the log; `None` if the log has no line for each connection.
    protocol: Option<&'static str>,
    clock: Clock,
    tasks: Tasks,
    limits: Limits,
    /// Budgets whose waiters put clients that stalled under pressure.
    budgets: Vec<Arc<HostBudget>>,
    connections: Mutex<BTreeMap<u64, ConnectionHandle>, { order::CONNECTIONS }>,
}

/// Removes a connection from the table when its session ends.
struct Registration {
    front: Arc<FrontEnd>,
    id: u64,
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.front.connections().remove(&self.id);
    }
}

impl FrontEnd {
    /// A front end without connections.
    pub fn new(clock: Clock, tasks: Tasks, limits: Limits, budgets: Vec<Arc<HostBudget>>) -> Arc<Self> {
        Self::of_protocol("", clock, tasks, limits, budgets)
    }

    /// A front end without connections, whose clients connect for each request: the log has no lines about them.
    pub fn of_brief_connections(clock: Clock, tasks: Tasks, limits: Limits) -> Arc<Self> {
        Self::logging(None, clock, tasks, limits, Vec::new())
    }

    /// A front end without connections, whose log lines name the protocol.
    pub fn of_protocol(
        protocol: &'static str,
        clock: Clock,
        tasks: Tasks,
        limits: Limits,
        budgets: Vec<Arc<HostBudget>>,
    ) -> Arc<Self> {
        Self::logging(Some(protocol), clock, tasks, limits, budgets)
    }

    fn logging(
        protocol: Option<&'static str>,
        clock: Clock,
        tasks: Tasks,
        limits: Limits,
        budgets: Vec<Arc<HostBudget>>,
    ) -> Arc<Self> {
        assert!(limits.per_host > 0 && limits.per_host <= limits.connections, "{limits:?}");
        Arc::new(FrontEnd { protocol, clock, tasks, limits, budgets, connections: Mutex::default() })
    }

    /// The limits.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Number of connections.
    pub fn len(&self) -> usize {
        self.connections().len()
    }

    /// Whether there are no connections.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The open connections, as tables show them.
    pub fn shown(&self) -> Vec<ClientConnection> {
        self.connections().values().map(ConnectionHandle::shown).collect()
    }

    /// Locks the table; the lock is held for a pass over it, never across an await.
    fn connections(&self) -> MutexGuard<'_, BTreeMap<u64, ConnectionHandle>> {
        self.connections.lock()
    }

    /// Adds a connection; closes another one if there is no room.
    fn register(self: &Arc<Self>, id: u64, new: &ConnectionHandle) -> Registration {
        let mut connections = self.connections();
        let host = new.peer().ip();
        let open = |c: &&ConnectionHandle| !c.is_closed();
        let of_host = connections.values().filter(open).filter(|c| c.peer().ip() == host).count();
        let total = connections.values().filter(open).count();
        let crowded = if of_host >= self.limits.per_host {
            Some(host)
        } else if total >= self.limits.connections {
            busiest_host(&connections)
        } else {
            None
        };
        if let Some(host) = crowded {
            let now = self.clock.now();
            let candidates = connections.values().filter(open).filter(|c| c.peer().ip() == host);
            // One without calls in progress, if there is any; among those, the one that was quiet longest.
            let victim = candidates.max_by_key(|c| (c.calls() == 0, c.quiet(now)));
            if let Some(victim) = victim {
                victim.close_because("its host has too many connections");
            }
        }
        connections.insert(id, new.clone());
        debug_assert!(connections.values().filter(open).count() <= self.limits.connections);
        Registration { front: self.clone(), id }
    }

    /// Closes the connections that are beyond their deadlines.
    fn check(&self) {
        let now = self.clock.now();
        for connection in self.connections().values().filter(|c| !c.is_closed()) {
            let host = connection.peer().ip();
            let is_pressed = self.budgets.iter().any(|budget| budget.has_waiters(host));
            let stalled = if is_pressed { self.limits.stalled_under_pressure } else { self.limits.stalled };
            let quiet = connection.quiet(now);
            let in_message = connection.in_message(now);
            let why = if connection.is_write_blocked() && quiet >= stalled {
                "it does not read its replies"
            } else if in_message.is_some() && quiet >= stalled {
                "it stopped in the middle of a message"
            } else if in_message.is_some_and(|since| since >= self.limits.message) {
                "a message took too long"
            } else if connection.calls() == 0 && quiet >= self.limits.idle {
                "it was idle"
            } else {
                continue;
            };
            connection.close_because(why);
        }
    }
}

/// Logs the end of a connection, its reason and the bytes received and sent: one line for a client that never sent a valid
/// message, the second line for any other.
fn log_end(protocol: &str, connection: &ConnectionHandle, ended: &io::Result<()>) {
    let ClientConnection { peer, received_bytes, sent_bytes, .. } = connection.shown();
    let why = match (connection.closed_because(), ended) {
        (Some(why), _) => format!("closed by the server, because {why}"),
        (None, Ok(())) => "closed".to_owned(),
        (None, Err(error)) => error.to_string(),
    };
    tracing::info!(protocol, %peer, "disconnected: {why}; received {received_bytes} bytes, sent {sent_bytes} bytes");
}

/// The host with the most open connections.
fn busiest_host(connections: &BTreeMap<u64, ConnectionHandle>) -> Option<IpAddr> {
    let mut hosts: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for connection in connections.values().filter(|c| !c.is_closed()) {
        *hosts.entry(connection.peer().ip()).or_default() += 1;
    }
    hosts.into_iter().max_by_key(|(_, count)| *count).map(|(host, _)| host)
}

/// Accepts connections and runs a session for each, until `stop` becomes true or its sender is dropped; then waits for the
/// sessions, at most [`Limits::shutdown`].
pub async fn serve<F>(
    front: Arc<FrontEnd>,
    listener: Arc<dyn Listener>,
    mut stop: watch::Receiver<bool>,
    session: impl Fn(Connection) -> F + Send,
) where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let checking = front.tasks.spawn({
        let front = front.clone();
        let mut stop = stop.clone();
        async move {
            loop {
                let stopped = pin!(stop.wait_for(|stop| *stop));
                if let Either::Left(_) = select(stopped, pin!(front.clock.sleep(CHECK_INTERVAL))).await {
                    return;
                }
                front.check();
            }
        }
    });
    let mut next = 0;
    let mut logged: Option<Nanos> = None;
    loop {
        let accepted = {
            let stopped = pin!(stop.wait_for(|stop| *stop));
            match select(listener.accept(), stopped).await {
                Either::Left((accepted, _)) => accepted,
                Either::Right(_) => break,
            }
        };
        let connection = match accepted {
            Ok(accepted) => Connection::new(accepted, &front.clock),
            Err(error) => {
                // The peer closed the connection before it was accepted, or the process is out of file descriptors; both
                // are temporary.
                let now = front.clock.now();
                if logged.is_none_or(|last| now.since(last) >= ACCEPT_LOG_INTERVAL) {
                    tracing::warn!(%error, "cannot accept connections; this is logged once a minute");
                    logged = Some(now);
                }
                front.clock.sleep(ACCEPT_RETRY_DELAY).await;
                continue;
            }
        };
        next += 1;
        let handle = connection.handle.clone();
        let registration = front.register(next, &connection.handle);
        let running = session(connection);
        drop(front.tasks.spawn(async move {
            let ended = running.await;
            if let Some(protocol) = registration.front.protocol {
                log_end(protocol, &handle, &ended);
            }
            drop(registration);
        }));
    }
    let until = front.clock.now() + front.limits.shutdown;
    while !front.is_empty() && front.clock.now() < until {
        front.clock.sleep(SHUTDOWN_POLL_INTERVAL).await;
    }
    // A task that failed needs no cleanup.
    let _ = checking.await;
}
