//! Starts and stops the servers of one pool, and describes how to connect to them.

use crate::exports::{Exports, OpenPool};
use crate::locks::{self, LockServiceOptions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use thiserror::Error;
use tokio::sync::watch;
use weir_front::{BlockExports as _, ExportRules};
use weir_machine::accounts::{Content, Redundancy};
use weir_machine::net::Listener;
use weir_machine::{Accounts, JoinHandle, Machine, Request, RequestTotals, Source};
use weir_nbd::Tls;
use weir_nfs::rpcbind::Registration;
use weir_nfs::{Secrets, mount, nfs3, nlm};
use weir_pool::PoolError;

/// Default port of NFS.
pub const NFS_PORT: u16 = 2049;
/// Default port of NBD.
pub const NBD_PORT: u16 = 10_809;

/// Error of starting the servers.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The pool's datasets cannot be read.
    #[error("{0}")]
    Pool(#[from] PoolError),
    /// A port is unavailable.
    #[error("cannot listen on {address}: {why}; --nfs-port and --nbd-port choose others, 0 any free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The cause.
        why: io::Error,
    },
}

/// Options of the servers.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// The address to listen on.
    pub listen: IpAddr,
    /// Port of NFS and MOUNT; 0 selects a free one.
    pub nfs_port: u16,
    /// Port of NBD; 0 selects a free one.
    pub nbd_port: u16,
    /// Rules of the exports.
    pub rules: ExportRules,
    /// TLS of NBD; without it, NBD is in clear text.
    pub nbd_tls: Option<Tls>,
    /// Locks for NFS clients.
    pub locks: Option<LockServiceOptions>,
    /// Socket of the rpcbind that NFS is registered with.
    pub rpcbind: Option<PathBuf>,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        let listen = IpAddr::V4(Ipv4Addr::LOCALHOST);
        ServiceOptions {
            listen,
            nfs_port: NFS_PORT,
            nbd_port: NBD_PORT,
            rules: ExportRules::default(),
            nbd_tls: None,
            locks: None,
            rpcbind: None,
        }
    }
}

/// The servers of one pool, running.
pub struct Service {
    /// Address of NFS and MOUNT.
    pub nfs_address: SocketAddr,
    /// Address of NBD; `None` for a read-only pool without volumes.
    pub nbd_address: Option<SocketAddr>,
    exports: Arc<Exports>,
    nfs: Arc<weir_nfs::Server>,
    nbd: Arc<weir_nbd::Server>,
    stop: watch::Sender<bool>,
    running: Vec<JoinHandle<()>>,
    registration: Option<Registration>,
    notices: Vec<String>,
    is_encrypted: bool,
}

impl Service {
    /// Starts the servers. In production, call it inside a tokio runtime.
    pub async fn start(
        machine: &Machine,
        exports: &Arc<Exports>,
        options: &ServiceOptions,
    ) -> Result<Service, ServiceError> {
        let rq = Request::internal("serve");
        let pool = &exports.pool;
        let mut verifier = [0; 8];
        machine.entropy.fill(&mut verifier);
        let secrets = Secrets { handles: handle_key(&rq, pool).await?, verifier };
        let nfs = weir_nfs::Server::new(exports.files.clone(), pool.guid(), secrets, options.rules.clone());
        let mut nfs = nfs.with_clock(&machine.clock).with_accounts(pool.accounts());
        let mut notices = Vec::new();
        if let Some(options) = &options.locks
            && let Some(manager) = locks::manager(exports.files.clone(), machine, options, &mut notices).await
        {
            nfs = nfs.with_locks(manager);
        }
        let nfs = Arc::new(nfs);
        let nbd = weir_nbd::Server::new(exports.volumes.clone(), Arc::new(options.rules.clone()));
        let nbd = Arc::new(nbd.with_accounts(pool.accounts()).with_tls(options.nbd_tls.clone()));
        let (stop, stopped) = watch::channel(false);
        let tasks = &machine.tasks;
        let (listener, nfs_address) = listen(machine, options.listen, options.nfs_port).await?;
        let has_volumes = !exports.volumes.names().is_empty();
        let nbd_listener = match (has_volumes, pool.is_writable()) {
            (false, false) => None,
            (true, _) => Some(listen(machine, options.listen, options.nbd_port).await?),
            // Volumes may be created later.
            (false, true) => {
                listen(machine, options.listen, options.nbd_port).await.inspect_err(|e| tracing::warn!("{e}")).ok()
            }
        };
        // Clients announce their restart over UDP; they repeat it, and everything else works without.
        let datagrams = match nfs.has_locks() {
            true => machine.net.datagrams(nfs_address).await.inspect_err(|e| tracing::warn!("no UDP: {e}")).ok(),
            false => None,
        };
        let registration = match &options.rpcbind {
            Some(socket) => {
                let has_locks = nfs.has_locks();
                let socket = socket.clone();
                locks::register(machine, socket, nfs_address, datagrams.as_ref(), has_locks, &mut notices).await
            }
            None => None,
        };
        let serving = weir_nfs::serve(listener, Arc::clone(&nfs), machine.clone(), stopped.clone());
        let mut running = vec![tasks.spawn(serving)];
        if let Some(socket) = datagrams {
            let answering = weir_nfs::serve_datagrams(socket, Arc::clone(&nfs), machine.clone(), stopped.clone());
            running.push(tasks.spawn(answering));
        }
        let nbd_address = nbd_listener.as_ref().map(|(_, address)| *address);
        if let Some((listener, _)) = nbd_listener {
            running.push(tasks.spawn(weir_nbd::serve(listener, Arc::clone(&nbd), machine.clone(), stopped)));
        }
        let is_encrypted = options.nbd_tls.is_some();
        let exports = exports.clone();
        Ok(Service { nfs_address, nbd_address, exports, nfs, nbd, stop, running, registration, notices, is_encrypted })
    }

    /// Lines for the administrator, for example that there is no rpcbind.
    pub fn notices(&self) -> &[String] {
        &self.notices
    }

    /// The options of `mount` that NFS clients need: none if rpcbind tells them the ports.
    fn mount_options(&self) -> String {
        let port = self.nfs_address.port();
        let is_writable = self.exports.pool.is_writable();
        let has = |program| self.registration.as_ref().is_some_and(|registration| registration.has(program));
        let has_locks = has(nlm::PROGRAM);
        let mut options = Vec::new();
        if has(nfs3::PROGRAM) && has(mount::PROGRAM) {
            options.extend((!is_writable).then(|| "ro".to_owned()));
        } else {
            options.push(format!("{},vers=3,tcp", if is_writable { "rw" } else { "ro" }));
        }
        options.extend((!has_locks).then(|| "nolock".to_owned()));
        if !(has(nfs3::PROGRAM) && has(mount::PROGRAM)) {
            options.push(format!("port={port},mountport={port}"));
        }
        if options.is_empty() { String::new() } else { format!("-o {} ", options.join(",")) }
    }

    /// Shell commands that mount each file system and attach each volume.
    pub fn lines(&self) -> Vec<String> {
        let host = self.nfs_address.ip();
        let options = self.mount_options();
        let flag = if self.exports.pool.is_writable() { "" } else { "-readonly " };
        // qemu takes no URI for TLS.
        let (look, flags) = match self.is_encrypted {
            true => ("nbdinfo nbds", format!("-enable-tls {flag}")),
            false => ("qemu-img info nbd", flag.to_owned()),
        };
        let file_systems = self.exports.tree.exports().into_iter().map(|export| export.name);
        let mounts = file_systems.filter(|name| !name.contains('@')).map(|name| {
            let source = shell_quoted(&format!("{}:/{name}", bracketed(host)));
            format!("mount -t nfs {options}{source} /mnt")
        });
        let volumes = self.nbd_address.into_iter().flat_map(|address| {
            let port = address.port();
            let flags = flags.clone();
            self.exports.volumes.names().into_iter().filter(|name| !name.contains('@')).flat_map(move |name| {
                let uri = format!("{look}://{address}/{}", uri_escaped(&name));
                let attach = format!("nbd-client {flags}-N {} {} {port} /dev/nbd0", shell_quoted(&name), address.ip());
                [uri, attach]
            })
        });
        mounts.chain(volumes).collect()
    }

    /// Accounts of the pool.
    pub fn accounts(&self) -> &Accounts {
        self.exports.pool.accounts()
    }

    /// Request totals of NFS and NBD.
    pub fn served(&self) -> [(&'static str, RequestTotals); 2] {
        [("nfs3", self.nfs.served()), ("nbd", self.nbd.served())]
    }

    /// Stops accepting connections, answers the calls in progress, and closes.
    pub async fn stop(&mut self) {
        if let Some(mut registration) = self.registration.take() {
            registration.end().await;
        }
        let _ = self.stop.send(true);
        for server in self.running.drain(..) {
            // A failed server task needs no cleanup.
            let _ = server.await;
        }
    }
}

/// MAC key of NFS handles. It must be the same whenever and wherever this pool is served, so that clients' handles
/// survive a restart. It is derived from the GUID of the root dataset, which was chosen at random when the pool was
/// created and which no front end reveals.
async fn handle_key(rq: &Request, pool: &OpenPool) -> Result<[u8; 32], PoolError> {
    let root = pool.dsl(rq).await?.find(rq, &pool.name()).await?.phys.guid;
    let mut hasher = blake3::Hasher::new_derive_key("weir nfs file handles 1");
    for word in [pool.guid(), root] {
        hasher.update(&word.to_le_bytes());
    }
    Ok(*hasher.finalize().as_bytes())
}

/// One line of statistics: number of requests, bytes answered by source, bytes read beside them, bytes written.
pub fn summary(protocol: &str, served: &RequestTotals) -> String {
    let from = |sources: &[Source]| sources.iter().map(|source| served.answered_bytes(*source)).sum::<u64>();
    let support: u64 = Source::ALL.into_iter().map(|source| served.support_bytes(source)).sum();
    format!(
        "{protocol}: {} requests; bytes answered from arc {} (prefetched {}), dirty data {}, disk {}, holes {}; \
         metadata {support}; written {}",
        served.requests,
        from(&[Source::ArcDemand, Source::ArcPrefetch]),
        from(&[Source::ArcPrefetch]),
        from(&[Source::Dirty]),
        from(&[Source::Disk]),
        from(&[Source::Hole]),
        served.written_bytes,
    )
}

/// One line about the bytes written to the pool's devices since it was opened: by content, and what redundancy added.
pub fn device_summary(accounts: &Accounts) -> String {
    let written = accounts.device_bytes();
    let contents = Content::ALL.map(|content| format!("{} {}", content.name(), written.of_content(content)));
    let redundancy = Redundancy::ALL.map(|redundancy| {
        let bytes: u64 = Content::ALL.iter().map(|content| written.of(*content, redundancy)).sum();
        format!("{} {bytes}", redundancy.name())
    });
    format!("devices: {} bytes written: {}; of these {}", written.total(), contents.join(", "), redundancy.join(", "))
}

async fn listen(
    machine: &Machine,
    address: IpAddr,
    port: u16,
) -> Result<(Arc<dyn Listener>, SocketAddr), ServiceError> {
    let address = SocketAddr::new(address, port);
    let listener = machine.net.listen(address).await.map_err(|why| ServiceError::Listen { address, why })?;
    let bound = listener.address();
    Ok((listener, bound))
}

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
    fn the_summary_of_the_devices_names_every_cause() {
        let accounts = Accounts::default();
        accounts.write_cost(Content::Data, 1, 54, Default::default()).wrote(Redundancy::First, 4096, 96);
        accounts.write_cost(Content::Metadata, 1, 54, Default::default()).wrote(Redundancy::Parity, 512, 0);
        assert_eq!(
            device_summary(&accounts),
            "devices: 4608 bytes written: data 4096, metadata 512, intent log 0, labels 0, repair 0; \
             of these first copy 4000, copies 0, parity 512, padding 96"
        );
    }

    #[test]
    fn names_are_escaped_for_uris() {
        assert_eq!(uri_escaped("p/v-1.x"), "p/v-1.x");
        assert_eq!(uri_escaped("p/v@s %"), "p/v%40s%20%25");
        assert_eq!(bracketed("::1".parse().unwrap()), "[::1]");
    }
}
