//! iSCSI for the volumes of all pools.
//!
//! ```text
//!   shares of each pool ─ changed ─▶ targets of all pools ─▶ weir_iscsi::Server::set_targets
//!   persistent reservations ─▶ property weir:iscsi-reservations of the volume
//! ```
//!
//! With [`Sharing::Everything`], each volume is a target of its own, for the hosts that may write. A target whose CHAP secret
//! cannot be read is not served at all.

use super::{ProtocolContext, ProtocolServer, ServingTask, at_changes, hosts_that_use, listen};
use crate::exports::{Exports, OpenPool};
use crate::pool_table::PoolTable;
use crate::service::ServiceError;
use crate::shares::{ShareState, Sharing};
use crate::users::{ChapUsers, UserError};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::watch;
use weir_dsl::props::{Source, Value};
use weir_dsl::sync_tasks::Setting;
use weir_front::shares::{HostList, Iqn, IscsiLun, IscsiTarget};
use weir_front::{
    BlockDevice, BlockError, BlockExport, BlockExports, BlockFuture, ClientConnection, Extent, Hosts, Pieces,
};
use weir_iscsi::{ChapConfig, Credentials, LunConfig, ReservationStore, Secret, TargetConfig};
use weir_machine::lock::{Mutex, MutexGuard, RwLock, order};
use weir_machine::{Accounts, Machine, Protocol, Request, RequestTotals};

/// Default port of iSCSI.
pub const ISCSI_PORT: u16 = 3260;
/// Property of a volume that holds its persistent reservations.
const RESERVATIONS: &str = "weir:iscsi-reservations";

/// The iSCSI server.
pub(super) struct IscsiServer {
    targets: Arc<Targets>,
    serving: ServingTask,
    machine: Machine,
    /// The tasks that follow the shares of each pool, by its GUID: each ends when its sender is dropped.
    following: Mutex<BTreeMap<u64, watch::Sender<bool>>, { order::FOLLOWING }>,
}

impl IscsiServer {
    /// Starts the server; `None` if no port is given, or the default one is unavailable.
    pub(super) async fn start(context: &ProtocolContext<'_>) -> Result<Option<Self>, ServiceError> {
        let ProtocolContext { machine, pools, options, .. } = context;
        let Some(port) = options.iscsi_port else { return Ok(None) };
        let listener = match listen(context, Protocol::Iscsi, port).await {
            Ok(listener) => listener,
            Err(error) if options.needs_iscsi => return Err(error),
            Err(error) => {
                tracing::warn!("{error}");
                return Ok(None);
            }
        };
        let devices = Arc::new(Devices { pools: PoolTable::clone(pools), read_only: RwLock::default() });
        let store = Arc::new(Reservations(PoolTable::clone(pools)));
        let server = Arc::new(weir_iscsi::Server::new(devices.clone() as _, store));
        let users = options.chap_users.clone();
        let pools = PoolTable::clone(pools);
        let targets = Arc::new(Targets { pools, devices, server: server.clone(), users, logged: Mutex::default() });
        let address = listener.address();
        let serving = ServingTask::start(context, address, |stopped| {
            weir_iscsi::serve(listener, server, (*machine).clone(), stopped)
        });
        Ok(Some(IscsiServer { targets, serving, machine: (*machine).clone(), following: Mutex::default() }))
    }

    fn following(&self) -> MutexGuard<'_, BTreeMap<u64, watch::Sender<bool>>> {
        self.following.lock()
    }
}

impl ProtocolServer for IscsiServer {
    fn protocol(&self) -> Protocol {
        Protocol::Iscsi
    }

    fn address(&self) -> SocketAddr {
        self.serving.address
    }

    fn add<'a>(&'a self, exports: &'a Exports) -> BoxFuture<'a, Result<(), ServiceError>> {
        let (stop, stopped) = watch::channel(false);
        let targets = self.targets.clone();
        let following = at_changes(exports.shares.changes(), stopped, move || targets.renew());
        // The task ends when the sender is dropped.
        drop(self.machine.tasks.spawn(following));
        self.following().insert(exports.pool.guid(), stop);
        self.targets.renew();
        ready(Ok(())).boxed()
    }

    fn remove(&self, exports: &Exports) {
        self.following().remove(&exports.pool.guid());
        // The pool is not in the table any more: its sessions end.
        self.targets.renew();
        self.targets.server.forget_units(|device| exports.volumes.name_of(device).is_some());
    }

    fn expect(&self, pools: &BTreeSet<u64>) {
        self.targets.server.expect_targets(!pools.is_empty());
    }

    fn obstacle(&self, exports: &Exports, share: &ShareState) -> Option<String> {
        let targets = self.targets.of(exports).into_iter();
        let own = |target: &IscsiTarget| target.luns.iter().any(|lun| lun.dataset == share.dataset);
        let mut targets = targets.filter(own);
        targets.find_map(|target| self.targets.config(exports, &target).err()).map(|error| unusable_secret(&error))
    }

    /// A target whose user is gone is not served any more, and its sessions end.
    fn renew_users(&self) {
        self.targets.renew();
    }

    fn users(&self, exports: &Exports) -> Vec<String> {
        let names: BTreeSet<String> =
            self.targets.of(exports).into_iter().map(|target| target.iqn.to_string()).collect();
        hosts_that_use(&names, self.connections())
    }

    fn connections(&self) -> Vec<ClientConnection> {
        self.targets.server.connections()
    }

    fn served_beside_pools(&self) -> RequestTotals {
        self.targets.server.served()
    }

    fn lines(&self, exports: &Exports) -> Vec<String> {
        let address = self.address();
        let lines = self.targets.of(exports).into_iter().flat_map(|target| {
            let login = format!(
                "iscsiadm -m discovery -t sendtargets -p {address}; iscsiadm -m node -T {} --login",
                target.iqn
            );
            let look = target.luns.into_iter().map(move |lun| {
                format!("qemu-img info iscsi://{address}/{}/{}   # {}", target.iqn, lun.lun, lun.dataset)
            });
            look.chain([login]).collect::<Vec<_>>()
        });
        lines.collect()
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        self.following().clear();
        self.serving.stop().boxed()
    }
}

/// The targets of all pools.
struct Targets {
    pools: PoolTable,
    devices: Arc<Devices>,
    server: Arc<weir_iscsi::Server>,
    users: Option<ChapUsers>,
    /// Lines about targets that are not served, which were logged.
    logged: Mutex<BTreeSet<String>>,
}

impl Targets {
    /// Brings the targets up to date with the shares.
    fn renew(&self) {
        let mut configs = Vec::new();
        let mut read_only = BTreeSet::new();
        let mut problems = BTreeSet::new();
        for exports in self.pools.all().values() {
            for target in self.of(exports) {
                read_only.extend(target.luns.iter().filter(|lun| lun.read_only).map(|lun| lun.dataset.clone()));
                match self.config(exports, &target) {
                    Ok(config) => configs.push(config),
                    Err(error) => {
                        let datasets: Vec<&str> = target.luns.iter().map(|lun| lun.dataset.as_str()).collect();
                        let why = unusable_secret(&error);
                        problems.insert(format!("{}: {}: {why}", datasets.join(", "), target.iqn));
                    }
                }
            }
        }
        let mut logged = self.logged.lock();
        problems.difference(&logged).for_each(|line| tracing::warn!("not shared: {line}"));
        *logged = problems;
        drop(logged);
        *self.devices.read_only.write() = read_only;
        self.server.set_targets(configs);
    }

    /// Targets of a pool.
    fn of(&self, exports: &Exports) -> Vec<IscsiTarget> {
        let guid = exports.pool.guid();
        match exports.shares.sharing() {
            Sharing::Nothing => Vec::new(),
            Sharing::ByProperties => exports.shares.iscsi_targets(guid).shares,
            Sharing::Everything(_) => {
                exports.volumes.heads().into_iter().map(|(dataset, id)| of_volume(guid, dataset, id)).collect()
            }
        }
    }

    fn config(&self, exports: &Exports, target: &IscsiTarget) -> Result<TargetConfig, UserError> {
        let hosts = match exports.shares.sharing() {
            Sharing::Everything(rules) => rules.writers,
            Sharing::ByProperties => target.hosts.resolve(&exports.shares.names()),
            Sharing::Nothing => Hosts::none(),
        };
        let credentials = |user: &String| -> Result<Credentials, UserError> {
            let missing = || UserError::Missing { name: user.clone() };
            let secret = self.users.as_ref().ok_or_else(missing)?.secret(user)?;
            Ok(Credentials { user: user.clone(), secret: Secret::new(secret.bytes()) })
        };
        let chap = match &target.chap {
            Some(user) => {
                let mutual = target.mutual.as_ref().map(credentials).transpose()?;
                Some(ChapConfig { initiator: credentials(user)?, mutual })
            }
            None => None,
        };
        debug_assert_eq!(chap.is_some(), target.chap.is_some(), "a target with CHAP is never served without");
        let lun = |lun: &IscsiLun| LunConfig {
            lun: lun.lun,
            export: lun.dataset.clone(),
            write_cache: lun.write_cache,
            read_only: lun.read_only,
        };
        Ok(TargetConfig {
            iqn: target.iqn.to_string(),
            luns: target.luns.iter().map(lun).collect(),
            initiators: target.initiators.iter().map(Iqn::to_string).collect(),
            hosts,
            chap,
        })
    }
}

/// Why a target with CHAP is not served, and what helps.
fn unusable_secret(error: &UserError) -> String {
    match error {
        UserError::Missing { name } => format!("there is no CHAP user '{name}'; 'weir user add {name}' adds it"),
        other => format!("its CHAP secret cannot be read: {other}"),
    }
}

/// The target of a volume of which no property says anything.
fn of_volume(pool: u64, dataset: String, id: u64) -> IscsiTarget {
    IscsiTarget {
        iqn: Iqn::of_volume(pool, id),
        luns: vec![IscsiLun { lun: 0, dataset, id, write_cache: true, read_only: false }],
        initiators: Vec::new(),
        hosts: HostList::default(),
        chap: None,
        mutual: None,
    }
}

/// The volumes of all pools, whatever host asks: the targets decide who may use them.
struct Devices {
    pools: PoolTable,
    /// Datasets that initiators may only read.
    read_only: RwLock<BTreeSet<String>>,
}

impl Devices {
    fn is_read_only(&self, name: &str) -> bool {
        self.read_only.read().contains(name)
    }
}

impl BlockExports for Devices {
    fn names(&self) -> Vec<String> {
        self.pools.all().values().flat_map(|exports| exports.volumes.names()).collect()
    }

    fn find(&self, name: &str) -> Option<BlockExport> {
        let found = self.pools.named(name)?.volumes.find(name)?;
        let writable = found.writable && !self.is_read_only(name);
        Some(BlockExport { writable, ..found })
    }

    fn open<'a>(&'a self, rq: &'a Request, name: &'a str) -> BlockFuture<'a, Arc<dyn BlockDevice>> {
        async move {
            let exports = self.pools.named(name).ok_or(BlockError::NotFound)?;
            let device = exports.volumes.open(rq, name).await?;
            Ok(if self.is_read_only(name) { Arc::new(ReadOnlyDevice(device)) } else { device })
        }
        .boxed()
    }
}

/// A device that may only be read.
struct ReadOnlyDevice(Arc<dyn BlockDevice>);

impl BlockDevice for ReadOnlyDevice {
    fn id(&self) -> u64 {
        self.0.id()
    }

    fn size_bytes(&self) -> u64 {
        self.0.size_bytes()
    }

    fn resized(&self, known_bytes: u64) -> BoxFuture<'_, u64> {
        self.0.resized(known_bytes)
    }

    fn block_bytes(&self) -> u32 {
        self.0.block_bytes()
    }

    fn is_writable(&self) -> bool {
        false
    }

    fn read<'a>(&'a self, rq: &'a Request, offset: u64, len: usize) -> BlockFuture<'a, Bytes> {
        self.0.read(rq, offset, len)
    }

    fn read_pieces<'a>(&'a self, rq: &'a Request, offset: u64, len: usize) -> BlockFuture<'a, Pieces> {
        self.0.read_pieces(rq, offset, len)
    }

    fn extents<'a>(&'a self, rq: &'a Request, offset: u64, len: u64, max: usize) -> BlockFuture<'a, Vec<Extent>> {
        self.0.extents(rq, offset, len, max)
    }

    fn write<'a>(&'a self, _: &'a Request, _: u64, _: Bytes, _: bool) -> BlockFuture<'a, ()> {
        ready(Err(BlockError::ReadOnly)).boxed()
    }

    fn write_zeroes<'a>(&'a self, _: &'a Request, _: u64, _: u64, _: bool) -> BlockFuture<'a, ()> {
        ready(Err(BlockError::ReadOnly)).boxed()
    }

    fn as_any(&self) -> Option<&dyn Any> {
        self.0.as_any()
    }

    fn flush<'a>(&'a self, rq: &'a Request) -> BlockFuture<'a, ()> {
        self.0.flush(rq)
    }

    fn withdrawn(&self) -> BoxFuture<'_, ()> {
        async move { self.0.withdrawn().await }.boxed()
    }

    fn accounts(&self) -> Option<Arc<Accounts>> {
        self.0.accounts()
    }
}

/// Persistent reservations as properties of the volumes.
struct Reservations(PoolTable);

impl Reservations {
    /// The pool and the name of a volume.
    fn volume(&self, device: u64) -> Option<(Arc<Exports>, String)> {
        let pools = self.0.all();
        let found = pools.values().find_map(|exports| Some((exports.clone(), exports.volumes.name_of(device)?)));
        // Snapshots take no properties.
        found.filter(|(_, name)| !name.contains('@'))
    }
}

impl ReservationStore for Reservations {
    fn load(&self, device: u64) -> BoxFuture<'_, io::Result<Vec<u8>>> {
        async move {
            let Some((exports, name)) = self.volume(device) else { return Ok(Vec::new()) };
            let rq = &Request::internal("iscsi");
            let dsl = exports.pool.dsl(rq).await.map_err(io::Error::other)?;
            let dataset = dsl.find(rq, &name).await.map_err(io::Error::other)?;
            let found =
                dsl.property(rq, &dataset, &exports.pool.facts(), RESERVATIONS).await.map_err(io::Error::other)?;
            // Only what was set on this volume concerns its ports: not what a parent has, nor what a stream brought along.
            let own = found.filter(|property| property.source == Source::Local).map(|property| property.value);
            let text = if let Some(Value::Text(text)) = own { text } else { String::new() };
            Ok(text.into_bytes())
        }
        .boxed()
    }

    fn store(&self, device: u64, bytes: Vec<u8>) -> BoxFuture<'_, io::Result<()>> {
        async move {
            let gone = || io::Error::from(io::ErrorKind::NotFound);
            let (exports, name) = self.volume(device).ok_or_else(gone)?;
            let OpenPool::Engine(engine) = &exports.pool else {
                return Err(io::ErrorKind::ReadOnlyFilesystem.into());
            };
            let text = String::from_utf8(bytes).map_err(io::Error::other)?;
            let setting = if text.is_empty() { Setting::Inherit } else { Setting::Set(Value::Text(text)) };
            engine
                .properties()
                .set_properties(name, vec![(RESERVATIONS.to_owned(), setting)])
                .await
                .map_err(io::Error::other)
        }
        .boxed()
    }
}
