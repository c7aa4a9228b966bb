//! Starts and stops the servers of all protocols, adds and removes pools, and describes how to connect.

use crate::exports::Exports;
use crate::locks::LockServiceOptions;
use crate::pool_table::PoolTable;
use crate::protocols::{PROTOCOLS, ProtocolContext, ProtocolServer, start, start_all};
use crate::shares::{ShareState, Sharing};
use crate::users::ChapUsers;
use futures_util::future::{Either, pending, select};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use thiserror::Error;
use tokio::sync::watch;
use weir_front::ExportRules;
use weir_machine::accounts::{Content, Redundancy};
use weir_machine::lock::{Mutex, MutexGuard, RwLock, order};
use weir_machine::{Accounts, Machine, Protocol, Request, RequestTotals, Source};
use weir_nbd::Tls;
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
    #[error("cannot listen on {address}: {why}; {setting} chooses another port, 0 any free one")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The option or key that sets the port.
        setting: String,
        /// The cause.
        why: io::Error,
    },
    /// SMB was demanded and is not available.
    #[error("SMB: {why}")]
    Smb {
        /// The cause.
        why: String,
    },
}

/// How messages name the settings of ports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum PortSettings {
    /// Options of a command line: `--nfs-port`.
    #[default]
    Options,
    /// Keys of the daemon's configuration: `nfs_port`.
    Keys,
}

impl PortSettings {
    /// The setting of a protocol's port.
    pub fn of(self, protocol: Protocol) -> String {
        let name = if protocol == Protocol::Nfs3 { "nfs" } else { protocol.name() };
        match self {
            PortSettings::Options => format!("--{name}-port"),
            PortSettings::Keys => format!("{name}_port"),
        }
    }
}

/// Options of the servers.
#[derive(Clone, Debug)]
pub struct ServiceOptions {
    /// The address to listen on.
    pub listen: IpAddr,
    /// How messages name the settings of ports.
    pub port_settings: PortSettings,
    /// Port of NFS and MOUNT; 0 selects a free one.
    pub nfs_port: u16,
    /// Port of NBD; 0 selects a free one.
    pub nbd_port: u16,
    /// Port of iSCSI; 0 selects a free one; `None`: iSCSI is not served.
    pub iscsi_port: Option<u16>,
    /// Whether the port of iSCSI must be available.
    pub needs_iscsi: bool,
    /// CHAP secrets of iSCSI.
    pub chap_users: Option<ChapUsers>,
    /// SMB as the properties say: address, port and directories; `None`: it is not served.
    pub smb: Option<weir_smb::Options>,
    /// Whether SMB must be available, as soon as something is shared.
    pub needs_smb: bool,
    /// Whether the port of NBD must be available although there are no volumes yet.
    pub needs_nbd: bool,
    /// Policy of sharing.
    pub sharing: Sharing,
    /// TLS of NBD; without it, NBD is in clear text.
    pub nbd_tls: Option<Tls>,
    /// Locks for NFS clients.
    pub locks: Option<LockServiceOptions>,
    /// Socket of the rpcbind that NFS is registered with.
    pub rpcbind: Option<PathBuf>,
}

impl ServiceOptions {
    /// Address and port of a protocol; `None` if it is not served.
    fn address(&self, protocol: Protocol) -> Option<SocketAddr> {
        let port = match protocol {
            Protocol::Nfs3 => Some(self.nfs_port),
            Protocol::Nbd => Some(self.nbd_port),
            Protocol::Iscsi => self.iscsi_port,
            Protocol::Smb => return self.smb.as_ref().map(|smb| SocketAddr::new(smb.listen, smb.port)),
            Protocol::Internal | Protocol::Fuse => None,
        };
        port.map(|port| SocketAddr::new(self.listen, port))
    }
}

impl Default for ServiceOptions {
    /// Everything is shared, by the default rules.
    fn default() -> Self {
        let listen = IpAddr::V4(Ipv4Addr::LOCALHOST);
        ServiceOptions {
            listen,
            port_settings: PortSettings::default(),
            nfs_port: NFS_PORT,
            nbd_port: NBD_PORT,
            iscsi_port: None,
            needs_iscsi: false,
            chap_users: None,
            smb: None,
            needs_smb: false,
            needs_nbd: false,
            sharing: Sharing::Everything(ExportRules::default()),
            nbd_tls: None,
            locks: None,
            rpcbind: None,
        }
    }
}

/// The servers of all protocols, running.
pub struct Service {
    /// Address of NFS and MOUNT.
    pub nfs_address: SocketAddr,
    /// Address of NBD; `None` if all pools are read-only and without volumes.
    pub nbd_address: Option<SocketAddr>,
    pools: Arc<PoolTable>,
    protocols: RwLock<Vec<Arc<dyn ProtocolServer>>>,
    machine: Machine,
    sharing: Sharing,
    /// The options with which each protocol was started, by its name.
    started_with: Mutex<BTreeMap<&'static str, ServiceOptions>>,
    /// The pools that will be added later.
    expected: Mutex<BTreeSet<u64>>,
    /// The tasks that look up host names, by GUID of their pool: each ends when its sender is dropped.
    resolving: Mutex<BTreeMap<u64, watch::Sender<bool>>, { order::RESOLVING }>,
}

impl Service {
    /// Starts the servers for one pool. In production, call it inside a tokio runtime.
    pub async fn start(
        machine: &Machine,
        exports: &Arc<Exports>,
        options: &ServiceOptions,
    ) -> Result<Service, ServiceError> {
        Self::start_with(machine, std::slice::from_ref(exports), options, &BTreeSet::new()).await
    }

    /// Starts the servers for these pools; more can be added. Clients of the pools with the GUIDs `expected` wait for those.
    pub async fn start_with(
        machine: &Machine,
        exports: &[Arc<Exports>],
        options: &ServiceOptions,
        expected: &BTreeSet<u64>,
    ) -> Result<Service, ServiceError> {
        let pools = Arc::new(PoolTable::default());
        exports.iter().for_each(|exports| pools.add(exports));
        let (may_begin, begin) = watch::channel(false);
        let context = ProtocolContext { machine, pools: &pools, options, begin: &begin };
        let protocols = start_all(&context).await?;
        let address = |protocol| protocols.iter().find(|server| server.protocol() == protocol).map(|s| s.address());
        let nfs_address = address(Protocol::Nfs3).unwrap_or(SocketAddr::new(options.listen, options.nfs_port));
        let nbd_address = address(Protocol::Nbd);
        let machine = machine.clone();
        let protocols = RwLock::new(protocols);
        let service = Service {
            nfs_address,
            nbd_address,
            pools,
            protocols,
            machine,
            sharing: options.sharing.clone(),
            started_with: Mutex::new(PROTOCOLS.map(|protocol| (protocol.name(), options.clone())).into()),
            expected: Mutex::default(),
            resolving: Mutex::default(),
        };
        service.expect(expected);
        for exports in exports {
            service.share(exports).await?;
            service.announce(exports).await?;
        }
        may_begin.send_replace(true);
        Ok(service)
    }

    /// Serves one more pool.
    ///
    /// # Errors
    /// If the pool's datasets cannot be read; then it is not served.
    pub async fn add(&self, exports: &Arc<Exports>) -> Result<(), ServiceError> {
        // Before clients see the pool.
        self.share(exports).await?;
        self.pools.add(exports);
        let added = self.announce(exports).await;
        if added.is_err() {
            self.remove(exports.pool.guid());
        }
        added
    }

    /// Applies the policy of sharing to a pool, and looks up the hosts that it names, for a bounded time.
    async fn share(&self, exports: &Exports) -> Result<(), ServiceError> {
        exports.share(&Request::internal("share"), self.sharing.clone()).await?;
        if !exports.shares.host_names().borrow().is_empty() {
            let looked_up = pin!(exports.resolve_names(&self.machine));
            let timeout = pin!(self.machine.clock.sleep(FIRST_RESOLVE_TIME));
            // What takes longer goes on in a task of its own.
            let _first = select(looked_up, timeout).await;
        }
        Ok(())
    }

    /// Tells the protocols of a pool.
    async fn announce(&self, exports: &Arc<Exports>) -> Result<(), ServiceError> {
        let (stop, stopped) = watch::channel(false);
        let resolving = resolve_names(self.machine.clone(), exports.clone(), stopped);
        // The task ends when the sender is dropped.
        drop(self.machine.tasks.spawn(resolving));
        self.resolving().insert(exports.pool.guid(), stop);
        for protocol in self.protocols() {
            protocol.add(exports).await?;
        }
        Ok(())
    }

    /// Moves the protocols whose address or port changed: their listeners are closed and opened again, and their clients
    /// connect again. The others keep their connections, and use other new options, such as certificates, for the next ones. Returns a line for each that was moved, and as an error for each that could not be
    /// and stays where it was.
    pub async fn rebind(&self, new: &ServiceOptions) -> Vec<Result<String, String>> {
        let mut lines = Vec::new();
        for protocol in PROTOCOLS {
            let old = self.started_with().get(protocol.name()).cloned().unwrap_or_default();
            if old.address(protocol) != new.address(protocol) {
                lines.push(self.restart(protocol, &old, new).await);
            } else {
                self.started_with().insert(protocol.name(), new.clone());
                self.protocols().iter().filter(|one| one.protocol() == protocol).for_each(|one| one.set_options(new));
            }
        }
        lines
    }

    /// Stops the server of a protocol and starts it with other options, or, if that fails, as it was.
    async fn restart(&self, protocol: Protocol, old: &ServiceOptions, new: &ServiceOptions) -> Result<String, String> {
        let name = protocol.name();
        let before = self.protocols().into_iter().find(|server| server.protocol() == protocol);
        if let Some(before) = &before {
            before.stop().await;
        }
        let (started, failed) = match self.start_one(protocol, new).await {
            Ok(started) => {
                self.started_with().insert(name, new.clone());
                (started, None)
            }
            Err(error) => {
                let again = self.start_one(protocol, old).await;
                let lost = again.as_ref().err().map(|error| format!("; nor where it was: {error}")).unwrap_or_default();
                (again.ok().flatten(), Some(format!("{name} cannot be moved: {error}{lost}")))
            }
        };
        let line = match (failed, &started) {
            (Some(failed), _) => Err(failed),
            (None, Some(server)) => Ok(format!("{name} listens on {} now", server.address())),
            (None, None) => Ok(format!("{name} is not served any more")),
        };
        let mut servers = self.protocols.write();
        servers.retain(|server| server.protocol() != protocol);
        servers.extend(started);
        servers.sort_by_key(|server| PROTOCOLS.iter().position(|protocol| *protocol == server.protocol()));
        line
    }

    /// Starts the server of one protocol: it serves the pools that are open, and expects those that will be opened.
    async fn start_one(
        &self,
        protocol: Protocol,
        options: &ServiceOptions,
    ) -> Result<Option<Arc<dyn ProtocolServer>>, ServiceError> {
        let (may_begin, begin) = watch::channel(false);
        let context = ProtocolContext { machine: &self.machine, pools: &self.pools, options, begin: &begin };
        let Some(server) = start(protocol, &context).await? else { return Ok(None) };
        let expected = self.expected.lock().clone();
        server.expect(&expected);
        for exports in self.pools.all().values() {
            if let Err(error) = server.add(exports).await {
                server.stop().await;
                return Err(error);
            }
        }
        may_begin.send_replace(true);
        Ok(Some(server))
    }

    /// Stops serving a pool, by the GUID that it had when it was added: its clients get errors, or are disconnected. Other pools are served as before.
    pub fn remove(&self, guid: u64) {
        self.resolving().remove(&guid);
        if let Some(exports) = self.pools.remove(guid) {
            self.protocols().iter().for_each(|protocol| protocol.remove(&exports));
        }
        debug_assert!(self.pools.get(guid).is_none(), "the pool is not served");
    }

    /// Sets the pools that will be added later, by GUID.
    pub fn expect(&self, pools: &BTreeSet<u64>) {
        self.expected.lock().clone_from(pools);
        self.protocols().iter().for_each(|protocol| protocol.expect(pools));
    }

    /// Reads the users with secrets again, after one was added, changed or removed.
    pub fn renew_users(&self) {
        self.protocols().iter().for_each(|protocol| protocol.renew_users());
    }

    /// Waits until every protocol serves what is shared now, and nothing else.
    pub async fn settle(&self) {
        let protocols = self.protocols();
        futures_util::future::join_all(protocols.iter().map(|protocol| protocol.settle())).await;
    }

    /// Reads the connections that other processes have, for [`Service::users`] and the tables.
    pub async fn refresh(&self) {
        let protocols = self.protocols();
        futures_util::future::join_all(protocols.iter().map(|protocol| protocol.refresh())).await;
    }

    fn started_with(&self) -> MutexGuard<'_, BTreeMap<&'static str, ServiceOptions>> {
        self.started_with.lock()
    }

    fn resolving(&self) -> MutexGuard<'_, BTreeMap<u64, watch::Sender<bool>>> {
        self.resolving.lock()
    }

    /// The servers.
    pub fn protocols(&self) -> Vec<Arc<dyn ProtocolServer>> {
        self.protocols.read().clone()
    }

    /// The pools.
    pub fn pools(&self) -> &PoolTable {
        &self.pools
    }

    /// Clients that use a pool: protocol and address.
    pub fn users(&self, guid: u64) -> Vec<(Protocol, String)> {
        let Some(exports) = self.pools.get(guid) else { return Vec::new() };
        let of = |server: &Arc<dyn ProtocolServer>| {
            let protocol = server.protocol();
            server.users(&exports).into_iter().map(move |host| (protocol, host)).collect::<Vec<_>>()
        };
        self.protocols().iter().flat_map(of).collect()
    }

    /// How the datasets of a pool are shared, and why not.
    ///
    /// # Errors
    /// If the datasets cannot be read.
    pub async fn share_states(&self, rq: &Request, exports: &Exports) -> Result<Vec<ShareState>, PoolError> {
        let protocols = self.protocols();
        let locked = exports.pool.without_key(rq).await?;
        let mut states = exports.shares.states(exports.pool.guid());
        for state in &mut states {
            if let Some(why) = exports.damaged.reason(&state.dataset) {
                state.refuse(format!("it is damaged: {why}"));
            }
            if locked.contains(&state.dataset) {
                state.refuse("its key is not loaded: zfs load-key");
            }
            match protocols.iter().find(|server| server.protocol() == state.protocol) {
                None => state
                    .refuse(format!("no server of {} runs: its port is not free, or not set", state.protocol.name())),
                Some(server) => {
                    let obstacles = server.problem().into_iter().chain(server.obstacle(exports, state));
                    obstacles.collect::<Vec<_>>().into_iter().for_each(|why| state.refuse(why));
                }
            }
        }
        Ok(states)
    }

    /// Facts that an administrator may not expect, for example that there is no rpcbind.
    pub fn notices(&self) -> Vec<String> {
        self.protocols().iter().flat_map(|protocol| protocol.notices()).collect()
    }

    /// Shell commands that mount file systems and attach volumes: for each pool and protocol the first [`MAX_LINES`], and
    /// how many more there are.
    pub fn lines(&self) -> Vec<String> {
        let pools = self.pools.all();
        let protocols = self.protocols();
        let of = |exports: &Arc<Exports>, server: &Arc<dyn ProtocolServer>| {
            limited(server.lines(exports), server.protocol().name())
        };
        pools.values().flat_map(|exports| protocols.iter().flat_map(|server| of(exports, server))).collect()
    }

    /// Request totals of each protocol, of the pools that are served.
    pub fn served(&self) -> Vec<(&'static str, RequestTotals)> {
        let pools = self.pools.all();
        let of = |server: &Arc<dyn ProtocolServer>| {
            let protocol = server.protocol();
            let of_pools = pools.values().map(|exports| exports.pool.accounts().protocol(protocol));
            (protocol.name(), of_pools.fold(server.served_beside_pools(), |sum, totals| sum + totals))
        };
        self.protocols().iter().map(of).collect()
    }

    /// Stops accepting connections, answers the calls in progress, and closes.
    pub async fn stop(&self) {
        let protocols = self.protocols();
        futures_util::future::join_all(protocols.iter().map(|protocol| protocol.stop())).await;
    }
}

/// Names of the file systems that a pool exports over NFS or SMB, and of the volumes that it exports over NBD or iSCSI, without
/// snapshots.
pub fn exported_names(exports: &Exports) -> Vec<String> {
    let targets = exports.shares.iscsi_targets(exports.pool.guid()).shares;
    let units = targets.into_iter().flat_map(|target| target.luns).map(|lun| lun.dataset);
    let shares = exports.shares.smb_shares().shares.into_iter().map(|share| share.dataset);
    let files = exports.file_system_names().into_iter().chain(shares);
    let all = files.chain(exports.volumes.shared_names()).chain(units);
    all.filter(|name| !name.contains('@')).collect::<BTreeSet<_>>().into_iter().collect()
}

/// Commands for clients that are printed at the start, for each pool and protocol.
const MAX_LINES: usize = 32;
/// Maximum time that a pool waits for the first look-up of the hosts that it names.
const FIRST_RESOLVE_TIME: Duration = Duration::from_secs(3);
/// Interval at which host names are looked up again: their addresses may change.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(60);

/// Looks up the host names in properties, whenever they change and at intervals, until `stop` becomes true or its sender is
/// dropped.
async fn resolve_names(machine: Machine, exports: Arc<Exports>, mut stop: watch::Receiver<bool>) {
    let mut wanted = exports.shares.host_names();
    loop {
        let has_names = !wanted.borrow_and_update().is_empty();
        if has_names {
            exports.resolve_names(&machine).await;
        }
        let interval = async { if has_names { machine.clock.sleep(RESOLVE_INTERVAL).await } else { pending().await } };
        let interval = pin!(interval);
        let changed = pin!(wanted.changed());
        let stopped = pin!(async { drop(stop.wait_for(|stop| *stop).await) });
        if let Either::Left(_) = select(stopped, select(interval, changed)).await {
            return;
        }
    }
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

/// The first lines, and how many more there are.
fn limited(mut lines: Vec<String>, protocol: &str) -> Vec<String> {
    let more = lines.len().saturating_sub(MAX_LINES);
    lines.truncate(MAX_LINES);
    if more > 0 {
        lines.push(format!("... and {more} more by {protocol}, likewise by their names (`zfs list`)"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_of_the_devices_names_every_cause() {
        let accounts = Accounts::default();
        accounts.write_cost(Content::Data, 1, 54, Default::default()).wrote(Redundancy::First, 4096, 96);
        accounts.write_cost(Content::Metadata, 1, 54, Default::default()).wrote(Redundancy::Parity, 512, 0);
        assert_eq!(
            device_summary(&accounts),
            "devices: 4608 bytes written: data 4096, metadata 512, intent log 0, labels 0, repair 0, removal 0, \
             expansion 0; of these first copy 4000, copies 0, parity 512, padding 96"
        );
    }

    #[test]
    fn long_lists_of_commands_are_cut() {
        let lines = |count: usize| (0..count).map(|n| format!("mount {n}")).collect::<Vec<_>>();
        assert_eq!(limited(lines(MAX_LINES), "nfs3"), lines(MAX_LINES));
        let cut = limited(lines(10_000), "nfs3");
        assert_eq!(cut[..MAX_LINES], lines(MAX_LINES));
        assert_eq!(
            cut[MAX_LINES..],
            [format!("... and {} more by nfs3, likewise by their names (`zfs list`)", 10_000 - MAX_LINES)]
        );
    }
}
