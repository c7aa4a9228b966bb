//! The servers of one pool: bound, started, described by lines to paste, stopped.

use crate::hosts::Hosts;
use crate::shown::{Front, Shown};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::watch;
use weir_machine::{JoinHandle, Machine, Request, Served, Source};
use weir_nbd::Directory as _;
use weir_nfs::Secrets;
use weir_pool::PoolError;

/// Where NFS listens by convention.
pub const NFS_PORT: u16 = 2049;
/// Where NBD listens by convention.
pub const NBD_PORT: u16 = 10_809;

/// Why there is no service.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The pool's data sets can't be read.
    #[error("{0}")]
    Pool(#[from] PoolError),
    /// A port can't be had.
    #[error("cannot listen on {address}: {why}; --nfs-port and --nbd-port choose others, 0 any free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why not.
        why: io::Error,
    },
}

/// How to serve.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// The address to listen on.
    pub listen: IpAddr,
    /// The port of NFS and MOUNT; 0 picks a free one.
    pub nfs_port: u16,
    /// The port of NBD; 0 picks a free one.
    pub nbd_port: u16,
    /// Who becomes nobody, and who nobody is.
    pub nfs: weir_nfs::Options,
    /// The hosts that may write.
    pub writers: Hosts,
}

impl Default for ServiceOptions {
    fn default() -> Self {
        let listen = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let (nfs, writers) = (weir_nfs::Options::default(), Hosts::loopback());
        ServiceOptions { listen, nfs_port: NFS_PORT, nbd_port: NBD_PORT, nfs, writers }
    }
}

/// The servers of one pool, running.
pub struct Service {
    /// Where NFS and MOUNT answer.
    pub nfs_address: SocketAddr,
    /// Where NBD answers, if the pool has volumes, or may have them later.
    pub nbd_address: Option<SocketAddr>,
    front: Arc<Front>,
    nfs: Arc<weir_nfs::Server>,
    nbd: Arc<weir_nbd::Server>,
    stop: watch::Sender<bool>,
    running: Vec<JoinHandle<()>>,
}

impl Service {
    /// Starts the servers. Inside a tokio runtime.
    pub async fn start(
        machine: &Machine,
        front: &Arc<Front>,
        options: &ServiceOptions,
    ) -> Result<Service, ServiceError> {
        let rq = Request::internal("serve");
        let pool = &front.pool;
        let mut verifier = [0; 8];
        machine.entropy.fill(&mut verifier);
        let secrets = Secrets { handles: handle_key(&rq, pool).await?, verifier };
        let nfs = Arc::new(weir_nfs::Server::new(front.tree.clone(), pool.guid(), secrets, options.nfs));
        let hosts = Arc::new(options.writers.clone());
        let writers: weir_nfs::Writers = Arc::new(move |address| hosts.has(address));
        let nbd = Arc::new(weir_nbd::Server::new(front.volumes.clone(), Arc::clone(&writers)));
        let (stop, stopped) = watch::channel(false);
        let tasks = &machine.tasks;
        let (listener, nfs_address) = listen(options.listen, options.nfs_port).await?;
        let has_volumes = !front.volumes.names().is_empty();
        let nbd_listener = match (has_volumes, pool.is_writable()) {
            (false, false) => None,
            (true, _) => Some(listen(options.listen, options.nbd_port).await?),
            // There may be volumes later.
            (false, true) => listen(options.listen, options.nbd_port).await.inspect_err(|e| tracing::warn!("{e}")).ok(),
        };
        let serving = weir_nfs::serve(listener, Arc::clone(&nfs), writers, tasks.clone(), stopped.clone());
        let mut running = vec![tasks.spawn(serving)];
        let nbd_address = nbd_listener.as_ref().map(|(_, address)| *address);
        if let Some((listener, _)) = nbd_listener {
            running.push(tasks.spawn(weir_nbd::serve(listener, Arc::clone(&nbd), tasks.clone(), stopped)));
        }
        Ok(Service { nfs_address, nbd_address, front: front.clone(), nfs, nbd, stop, running })
    }

    /// Lines ready to paste into a shell, for each file system and volume. `port=` and `mountport=` spare a client the
    /// question to a port mapper (port 111), which nobody answers here.
    pub fn lines(&self) -> Vec<String> {
        let (host, port) = (self.nfs_address.ip(), self.nfs_address.port());
        let (how, flag) = if self.front.pool.is_writable() { ("rw", "") } else { ("ro", "-readonly ") };
        let exports = self.front.tree.members().into_iter().map(|member| member.name);
        let mounts = exports.filter(|name| !name.contains('@')).map(|name| {
            let source = quoted(&format!("{}:/{name}", bracketed(host)));
            format!("mount -t nfs -o {how},vers=3,tcp,nolock,port={port},mountport={port} {source} /mnt")
        });
        let volumes = self.nbd_address.into_iter().flat_map(|address| {
            let port = address.port();
            self.front.volumes.names().into_iter().filter(|name| !name.contains('@')).flat_map(move |name| {
                let uri = format!("nbd://{address}/{}", escaped(&name));
                let attach = format!("nbd-client {flag}-N {} {} {port} /dev/nbd0", quoted(&name), address.ip());
                [format!("qemu-img info {uri}"), attach]
            })
        });
        mounts.chain(volumes).collect()
    }

    /// What was served: NFS, then NBD.
    pub fn served(&self) -> [(&'static str, &Served); 2] {
        [("nfs3", self.nfs.served()), ("nbd", self.nbd.served())]
    }

    /// Stops accepting, answers what is under way, closes.
    pub async fn stop(&mut self) {
        let _ = self.stop.send(true);
        for server in self.running.drain(..) {
            // A server whose task was lost has nothing left to close.
            let _ = server.await;
        }
    }
}

/// The key of NFS handles: the same whenever this pool is served, by whatever machine, so that clients' handles outlive
/// the server. It is made from a number that was drawn at random when the pool was made and that no door shows: the GUID
/// of the root dataset.
async fn handle_key(rq: &Request, pool: &Shown) -> Result<[u8; 32], PoolError> {
    let root = pool.dsl(rq).await?.find(rq, &pool.name()).await?.phys.guid;
    let mut hasher = blake3::Hasher::new_derive_key("weir nfs file handles 1");
    for word in [pool.guid(), root] {
        hasher.update(&word.to_le_bytes());
    }
    Ok(*hasher.finalize().as_bytes())
}

/// One line of statistics: how many requests, and how many bytes came from where.
pub fn summary(protocol: &str, served: &Served) -> String {
    let from = |sources: &[Source]| sources.iter().map(|source| served.bytes(*source)).sum::<u64>();
    format!(
        "{protocol}: {} requests; bytes from arc {} (prefetched {}), l2arc {}, log {}, disk {}",
        served.requests(),
        from(&[Source::ArcDemand, Source::ArcPrefetch]),
        from(&[Source::ArcPrefetch]),
        from(&[Source::L2arc]),
        from(&[Source::Log]),
        from(&[Source::Disk]),
    )
}

async fn listen(address: IpAddr, port: u16) -> Result<(TcpListener, SocketAddr), ServiceError> {
    let address = SocketAddr::new(address, port);
    let failed = |why| ServiceError::Listen { address, why };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

fn bracketed(host: IpAddr) -> String {
    match host {
        IpAddr::V4(host) => host.to_string(),
        IpAddr::V6(host) => format!("[{host}]"),
    }
}

/// A word of a shell's line: names of datasets may have spaces.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/-_.:".contains(c);
    if word.chars().all(plain) { word.to_owned() } else { format!("'{}'", word.replace('\'', "'\\''")) }
}

/// A name as a part of a URI: what has a meaning there is written as `%` and two digits.
fn escaped(name: &str) -> String {
    let keep = |byte: &u8| byte.is_ascii_alphanumeric() || b"/-_.:".contains(byte);
    name.bytes().map(|byte| if keep(&byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_words_of_a_shell() {
        assert_eq!(quoted("127.0.0.1:/p/v-1.x"), "127.0.0.1:/p/v-1.x");
        assert_eq!(quoted("[::1]:/p"), "'[::1]:/p'");
        assert_eq!(quoted("127.0.0.1:/p/a b"), "'127.0.0.1:/p/a b'");
        assert_eq!(quoted("it's"), r"'it'\''s'");
    }

    #[test]
    fn names_become_uris() {
        assert_eq!(escaped("p/v-1.x"), "p/v-1.x");
        assert_eq!(escaped("p/v@s %"), "p/v%40s%20%25");
        assert_eq!(bracketed("::1".parse().unwrap()), "[::1]");
    }
}
