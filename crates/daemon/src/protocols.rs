//! The protocols that serve the pools of this process: the one place where a protocol is added.
//!
//! ```text
//!   start_all ─▶ one ProtocolServer per protocol, with one listener each
//!   a pool is opened ─▶ PoolTable ─▶ ProtocolServer::add of each       a pool is closed ─▶ ProtocolServer::remove of each
//! ```
//!
//! A protocol is a [`ProtocolServer`] that [`start_all`] starts. It serves all pools of the [`PoolTable`]; the two calls tell
//! it of pools that come and go.

mod iscsi;
mod nbd;
mod nfs;
mod smb;

pub use iscsi::ISCSI_PORT;

use crate::exports::Exports;
use crate::pool_table::PoolTable;
use crate::service::{ServiceError, ServiceOptions};
use crate::shares::ShareState;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use weir_front::ClientConnection;
use weir_machine::lock::Mutex;
use weir_machine::net::Listener;
use weir_machine::{JoinHandle, Machine, Protocol, RequestTotals};

/// A server of one protocol for all pools.
pub trait ProtocolServer: Send + Sync {
    /// The protocol.
    fn protocol(&self) -> Protocol;
    /// Address on which it listens, or would.
    fn address(&self) -> SocketAddr;
    /// Whether clients can connect. The server of SMB is another process, which starts with the first share.
    fn is_listening(&self) -> bool {
        true
    }
    /// Why it does not serve what it should; the default is for protocols that always do.
    fn problem(&self) -> Option<String> {
        None
    }
    /// Serves one more pool, which is in the table already.
    fn add<'a>(&'a self, exports: &'a Exports) -> BoxFuture<'a, Result<(), ServiceError>>;
    /// Stops serving a pool, which is not in the table any more, and disconnects clients that use it alone.
    fn remove(&self, exports: &Exports);
    /// Sets the pools that will be added later, by GUID. The default is for protocols whose clients cannot wait for them.
    fn expect(&self, _pools: &BTreeSet<u64>) {}
    /// Why a share of this protocol is not served, beyond what the properties and [`ProtocolServer::problem`] say.
    fn obstacle(&self, _exports: &Exports, _share: &ShareState) -> Option<String> {
        None
    }
    /// Takes over those options that need no other listener, for clients that connect from now on. The default is for
    /// protocols without such options.
    fn set_options(&self, _options: &ServiceOptions) {}
    /// Reads the users with secrets again. The default is for protocols without such users.
    fn renew_users(&self) {}
    /// Waits until what is shared now is served, and nothing else. The default is for protocols where that is so at once.
    fn settle(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
    /// Reads the connections, if others have them: what the next three show holds for this time.
    fn refresh(&self) -> BoxFuture<'_, ()> {
        ready(()).boxed()
    }
    /// Addresses of the clients that use a pool, each once.
    fn users(&self, exports: &Exports) -> Vec<String>;
    /// All connections.
    fn connections(&self) -> Vec<ClientConnection>;
    /// All clients, for tables.
    fn clients(&self) -> Vec<ClientLine> {
        self.connections().into_iter().map(ClientLine::from).collect()
    }
    /// Totals of the requests that concern no pool.
    fn served_beside_pools(&self) -> RequestTotals;
    /// Facts that an administrator may not expect. The default is none.
    fn notices(&self) -> Vec<String> {
        Vec::new()
    }
    /// Shell commands with which a client uses what a pool exports.
    fn lines(&self, exports: &Exports) -> Vec<String>;
    /// Stops accepting connections, answers the calls in progress, and closes.
    fn stop(&self) -> BoxFuture<'_, ()>;
}

/// A client as tables show it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClientLine {
    /// Address and port, or user and address.
    pub peer: String,
    /// Export, target or shares that it uses.
    pub uses: String,
    /// Figures that this process counted; `None` if another process has it.
    pub counted: Option<Counted>,
}

/// Figures of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counted {
    /// Time since the connection was accepted.
    pub age: Duration,
    /// Bytes received from the client.
    pub received_bytes: u64,
    /// Bytes sent to the client.
    pub sent_bytes: u64,
}

impl From<ClientConnection> for ClientLine {
    fn from(connection: ClientConnection) -> Self {
        let ClientConnection { peer, used, age, received_bytes, sent_bytes } = connection;
        let counted = Some(Counted { age, received_bytes, sent_bytes });
        ClientLine { peer: peer.to_string(), uses: used, counted }
    }
}

/// Parameters of the start of the servers.
pub struct ProtocolContext<'a> {
    /// The machine.
    pub machine: &'a Machine,
    /// The pools.
    pub pools: &'a Arc<PoolTable>,
    /// Addresses, ports and rules.
    pub options: &'a ServiceOptions,
    /// Becomes true when the servers know the pools and what they share: no client is answered before. Until then connections wait
    /// in the kernel: a client to which an existing share is refused gives it up.
    pub begin: &'a watch::Receiver<bool>,
}

/// The protocols, in the order in which they are started.
pub const PROTOCOLS: [Protocol; 4] = [Protocol::Nfs3, Protocol::Nbd, Protocol::Iscsi, Protocol::Smb];

/// Starts the servers of all protocols.
///
/// # Errors
/// If a port is unavailable; the servers that were started by then stop.
pub async fn start_all(context: &ProtocolContext<'_>) -> Result<Vec<Arc<dyn ProtocolServer>>, ServiceError> {
    let mut servers: Vec<Arc<dyn ProtocolServer>> = Vec::new();
    for protocol in PROTOCOLS {
        servers.extend(start(protocol, context).await?);
    }
    Ok(servers)
}

/// Starts the server of one protocol; `None` if the options or the pools ask for none.
///
/// # Errors
/// If a port is unavailable.
pub async fn start(
    protocol: Protocol,
    context: &ProtocolContext<'_>,
) -> Result<Option<Arc<dyn ProtocolServer>>, ServiceError> {
    Ok(match protocol {
        Protocol::Nfs3 => Some(Arc::new(nfs::NfsServer::start(context).await?)),
        Protocol::Nbd => nbd::NbdServer::start(context).await?.map(|server| Arc::new(server) as _),
        Protocol::Iscsi => iscsi::IscsiServer::start(context).await?.map(|server| Arc::new(server) as _),
        Protocol::Smb => smb::SmbServer::start(context).map(|server| Arc::new(server) as _),
        Protocol::Internal | Protocol::Fuse => None,
    })
}

/// A task that serves an address until it is stopped.
struct ServingTask {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    task: Mutex<Option<JoinHandle<()>>>,
}

impl ServingTask {
    /// Starts a task that waits for [`ProtocolContext::begin`] and then serves. `serve` gets the signal to stop, and returns the
    /// future that serves.
    fn start<F>(
        context: &ProtocolContext<'_>,
        address: SocketAddr,
        serve: impl FnOnce(watch::Receiver<bool>) -> F,
    ) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let (stop, stopped) = watch::channel(false);
        let (mut begin, mut ended) = (context.begin.clone(), stopped.clone());
        let serving = serve(stopped);
        let task = context.machine.tasks.spawn(async move {
            let may_begin = tokio::select! {
                begun = begin.wait_for(|begin| *begin) => begun.is_ok(),
                _ = ended.wait_for(|stop| *stop) => false,
            };
            if may_begin {
                serving.await;
            }
        });
        ServingTask { address, stop, task: Mutex::new(Some(task)) }
    }

    /// Stops the task and waits for its end.
    async fn stop(&self) {
        self.stop.send_replace(true);
        let task = self.task.lock().take();
        if let Some(task) = task {
            // A failed server task needs no cleanup.
            let _ = task.await;
        }
    }
}

/// Opens the port of a protocol.
async fn listen(
    context: &ProtocolContext<'_>,
    protocol: Protocol,
    port: u16,
) -> Result<Arc<dyn Listener>, ServiceError> {
    let ProtocolContext { machine, options, .. } = context;
    let address = SocketAddr::new(options.listen, port);
    let setting = options.port_settings.of(protocol);
    machine.net.listen(address).await.map_err(|why| ServiceError::Listen { address, setting, why })
}

/// Calls `renew` whenever the shares of a pool change, until `stop` becomes true or its sender is dropped.
async fn at_changes(mut changes: watch::Receiver<u64>, mut stop: watch::Receiver<bool>, renew: impl Fn()) {
    loop {
        tokio::select! {
            changed = changes.changed() => if changed.is_err() { return },
            _ = stop.wait_for(|stop| *stop) => return,
        }
        renew();
    }
}

/// Addresses of the hosts with connections that use one of these names, each once.
fn hosts_that_use(names: &BTreeSet<String>, connections: Vec<ClientConnection>) -> Vec<String> {
    let using = connections.into_iter().filter(|connection| names.contains(&connection.used));
    using.map(|connection| connection.peer.ip().to_string()).collect::<BTreeSet<_>>().into_iter().collect()
}

/// How a client names this address in a path, with brackets around IPv6.
fn bracketed(host: IpAddr) -> String {
    match host {
        IpAddr::V4(host) => host.to_string(),
        IpAddr::V6(host) => format!("[{host}]"),
    }
}

/// Quotes a word for a shell, because dataset names may contain spaces.
fn shell_quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.:".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// Percent-encodes a name for a URI.
fn uri_escaped(name: &str) -> String {
    let keep = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-_.:".contains(byte);
    name.bytes().map(|byte| if keep(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_for_a_shell() {
        assert_eq!(shell_quoted("127.0.0.1:/p/v-1.x"), "127.0.0.1:/p/v-1.x");
        assert_eq!(shell_quoted("[::1]:/p"), "'[::1]:/p'");
        assert_eq!(shell_quoted("127.0.0.1:/p/a b"), "'127.0.0.1:/p/a b'");
        assert_eq!(shell_quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn names_are_escaped_for_uris() {
        assert_eq!(uri_escaped("p/v-1.x"), "p/v-1.x");
        assert_eq!(uri_escaped("p/v@s %"), "p/v%40s%20%25");
        assert_eq!(bracketed("::1".parse().unwrap()), "[::1]");
    }
}
