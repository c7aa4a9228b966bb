//! Which volumes a host may use over NBD, under which names; and the devices of clients, which end with the permission.

use super::Volumes;
use crate::shares::{Applied, Sharing};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, ready, select};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use tokio::sync::watch;
use weir_front::{BlockDevice, BlockError, BlockExport, BlockExports, BlockFuture, ExportRules, Extent, Hosts, Pieces};
use weir_machine::lock::RwLock;
use weir_machine::{Accounts, Request};

/// A volume or snapshot that is shared under a name.
#[derive(Clone, Debug)]
struct SharedName {
    dataset: String,
    id: u64,
    hosts: Hosts,
    read_only: bool,
}

#[derive(Default)]
struct Rules {
    /// Everything is shared under dataset names.
    everything: Option<ExportRules>,
    by_name: BTreeMap<String, SharedName>,
}

/// Shared devices. At first there are none.
pub(super) struct SharedDevices {
    rules: RwLock<Rules>,
    /// Counts the replacements.
    version: watch::Sender<u64>,
}

impl Default for SharedDevices {
    fn default() -> Self {
        SharedDevices { rules: RwLock::default(), version: watch::Sender::new(0) }
    }
}

/// Permission of a host on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    None,
    Read,
    Write,
}

impl SharedDevices {
    pub(super) fn set(&self, applied: Applied) {
        let by_name = applied.nbd.into_iter().map(|export| {
            let hosts = export.hosts.resolve(&applied.names);
            (export.name, SharedName { dataset: export.dataset, id: export.id, hosts, read_only: export.read_only })
        });
        let everything = match applied.sharing {
            Sharing::Everything(rules) => Some(rules),
            Sharing::Nothing | Sharing::ByProperties => None,
        };
        let rules = Rules { everything, by_name: by_name.collect() };
        debug_assert!(rules.everything.is_none() || rules.by_name.is_empty(), "two policies");
        *self.rules.write() = rules;
        self.version.send_modify(|version| *version += 1);
    }

    fn with<T>(&self, look: impl FnOnce(&Rules) -> T) -> T {
        look(&self.rules.read())
    }

    /// All names.
    pub(super) fn names(&self, volumes: &Volumes) -> Vec<String> {
        let shared = self.with(|rules| rules.everything.is_none().then(|| rules.by_name.keys().cloned().collect()));
        shared.unwrap_or_else(|| volumes.names())
    }

    /// Permission of a host on the device of this ID.
    fn access(&self, id: u64, host: IpAddr) -> Access {
        let access = |may_write: bool| if may_write { Access::Write } else { Access::Read };
        self.with(|rules| match &rules.everything {
            Some(everything) => access(everything.may_write(host)),
            None => {
                let own = rules.by_name.values().find(|shared| shared.id == id && shared.hosts.has(host));
                own.map_or(Access::None, |shared| access(!shared.read_only))
            }
        })
    }

    /// Waits until a host may not use a device any more.
    async fn ended(&self, id: u64, host: IpAddr) {
        let mut version = self.version.subscribe();
        while self.access(id, host) != Access::None {
            // The sender is in `self`.
            let _ = version.changed().await;
        }
    }
}

/// The devices that a host may use.
pub(super) struct HostVolumes {
    volumes: Volumes,
    host: IpAddr,
}

impl HostVolumes {
    pub(super) fn new(volumes: Volumes, host: IpAddr) -> Self {
        HostVolumes { volumes, host }
    }

    /// Names with their datasets; `None` if everything is shared under dataset names.
    fn visible(&self) -> Option<Vec<(String, String)>> {
        self.volumes.shared.with(|rules| {
            let visible = rules.by_name.iter().filter(|(_, shared)| shared.hosts.has(self.host));
            let names = || visible.map(|(name, shared)| (name.clone(), shared.dataset.clone())).collect();
            rules.everything.is_none().then(names)
        })
    }

    /// The name of an export and its dataset; the empty name selects the only export, if there is exactly one.
    fn named(&self, name: &str) -> Option<(String, String)> {
        let Some(visible) = self.visible() else {
            let found = self.volumes.find(name)?;
            return Some((found.name.clone(), found.name));
        };
        match (name, visible.as_slice()) {
            ("", [only]) => Some(only.clone()),
            _ => visible.into_iter().find(|(known, _)| known == name),
        }
    }
}

impl BlockExports for HostVolumes {
    fn names(&self) -> Vec<String> {
        match self.visible() {
            None => self.volumes.names(),
            Some(visible) => {
                let open = |(_, dataset): &(String, String)| self.volumes.find(dataset).is_some();
                visible.into_iter().filter(open).map(|(name, _)| name).collect()
            }
        }
    }

    fn find(&self, name: &str) -> Option<BlockExport> {
        let (name, dataset) = self.named(name)?;
        let found = self.volumes.find(&dataset).filter(|_| !dataset.is_empty())?;
        let id = self.volumes.id_of(&dataset)?;
        let writable = found.writable && self.volumes.shared.access(id, self.host) == Access::Write;
        Some(BlockExport { name, writable, ..found })
    }

    fn open<'a>(&'a self, rq: &'a Request, name: &'a str) -> BlockFuture<'a, Arc<dyn BlockDevice>> {
        async move {
            let (_, dataset) = self.named(name).ok_or(BlockError::NotFound)?;
            let device = self.volumes.open(rq, &dataset).await?;
            let shared = SharedDevice { device, devices: self.volumes.shared.clone(), host: self.host };
            Ok(Arc::new(shared) as Arc<dyn BlockDevice>)
        }
        .boxed()
    }
}

/// A device of a client, as long as it is shared with the client's host.
struct SharedDevice {
    device: Arc<dyn BlockDevice>,
    devices: Arc<SharedDevices>,
    host: IpAddr,
}

impl SharedDevice {
    fn access(&self) -> Access {
        self.devices.access(self.device.id(), self.host)
    }

    /// Fails unless the host may read or write now.
    fn require(&self, access: Access) -> Result<(), BlockError> {
        match (self.access(), access) {
            (Access::None, _) => Err(BlockError::io("it is not shared any more")),
            (Access::Read, Access::Write) => Err(BlockError::ReadOnly),
            _ => Ok(()),
        }
    }

    /// The result of an operation that needs `access`.
    fn checked<'a, T: Send + 'a>(
        &'a self,
        access: Access,
        operation: impl FnOnce() -> BlockFuture<'a, T>,
    ) -> BlockFuture<'a, T> {
        match self.require(access) {
            Ok(()) => operation(),
            Err(error) => ready(Err(error)).boxed(),
        }
    }
}

impl BlockDevice for SharedDevice {
    fn id(&self) -> u64 {
        self.device.id()
    }

    fn size_bytes(&self) -> u64 {
        self.device.size_bytes()
    }

    fn resized(&self, known_bytes: u64) -> BoxFuture<'_, u64> {
        self.device.resized(known_bytes)
    }

    fn block_bytes(&self) -> u32 {
        self.device.block_bytes()
    }

    fn is_writable(&self) -> bool {
        self.device.is_writable() && self.access() == Access::Write
    }

    fn read<'a>(&'a self, rq: &'a Request, offset: u64, len: usize) -> BlockFuture<'a, Bytes> {
        self.checked(Access::Read, || self.device.read(rq, offset, len))
    }

    fn read_pieces<'a>(&'a self, rq: &'a Request, offset: u64, len: usize) -> BlockFuture<'a, Pieces> {
        self.checked(Access::Read, || self.device.read_pieces(rq, offset, len))
    }

    fn extents<'a>(&'a self, rq: &'a Request, offset: u64, len: u64, max: usize) -> BlockFuture<'a, Vec<Extent>> {
        self.checked(Access::Read, || self.device.extents(rq, offset, len, max))
    }

    fn write<'a>(&'a self, rq: &'a Request, offset: u64, bytes: Bytes, fua: bool) -> BlockFuture<'a, ()> {
        self.checked(Access::Write, || self.device.write(rq, offset, bytes, fua))
    }

    fn write_zeroes<'a>(&'a self, rq: &'a Request, offset: u64, len: u64, fua: bool) -> BlockFuture<'a, ()> {
        self.checked(Access::Write, || self.device.write_zeroes(rq, offset, len, fua))
    }

    fn unmap<'a>(&'a self, rq: &'a Request, offset: u64, len: u64, fua: bool) -> BlockFuture<'a, ()> {
        self.checked(Access::Write, || self.device.unmap(rq, offset, len, fua))
    }

    /// Also after the permission to write ended: what was written is made stable.
    fn flush<'a>(&'a self, rq: &'a Request) -> BlockFuture<'a, ()> {
        self.checked(Access::Read, || self.device.flush(rq))
    }

    fn accounts(&self) -> Option<Arc<Accounts>> {
        self.device.accounts()
    }

    fn withdrawn(&self) -> BoxFuture<'_, ()> {
        async move {
            let unshared = pin!(self.devices.ended(self.device.id(), self.host));
            select(unshared, self.device.withdrawn()).await;
        }
        .boxed()
    }
}
