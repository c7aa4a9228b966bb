//! The volumes of a pool as block devices for the front ends.
//!
//! [`Volumes`] as [`BlockExports`] has every volume under its dataset name, whatever is shared; as [`HostBlockExports`] it has
//! what a host may use over NBD, under the names that the properties give.

mod shared;

use crate::exports::OpenPool;
use crate::shares::Applied;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, pending, ready};
use shared::SharedDevices;
use std::any::Any;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use tokio::sync::watch;
use weir_dsl::Scope;
use weir_dsl::props::DatasetKind;
use weir_front::{
    BlockDevice, BlockError, BlockExport, BlockExports, BlockFuture, Extent, HostBlockExports, Pieces,
    copy_through_memory,
};
use weir_machine::lock::{Mutex, MutexGuard};
use weir_machine::{Accounts, Request};
use weir_pool::datasets::DatasetInfo;
use weir_volumes::{Attachment, Volume, VolumeError};

/// An exported volume.
#[derive(Clone)]
struct ExportedVolume {
    /// The dataset's `fsid_guid`.
    id: u64,
    volume: Arc<Volume>,
}

/// The volumes of a pool and their snapshots. They are opened in advance, because clients ask for sizes first.
#[derive(Clone, Default)]
pub struct Volumes {
    open: Arc<Mutex<BTreeMap<String, ExportedVolume>>>,
    shared: Arc<SharedDevices>,
    accounts: Arc<Accounts>,
    /// Becomes true when the pool is being closed.
    withdrawn: Arc<watch::Sender<bool>>,
}

impl Volumes {
    /// No volumes yet; their requests are recorded in these accounts.
    pub(crate) fn new(accounts: &Arc<Accounts>) -> Self {
        Volumes { accounts: accounts.clone(), ..Volumes::default() }
    }

    /// Disconnects the clients of all volumes, because the pool is being closed.
    pub fn withdraw(&self) {
        self.withdrawn.send_replace(true);
    }

    /// Replaces what is shared over NBD.
    pub(crate) fn share(&self, applied: Applied) {
        self.shared.set(applied);
    }

    /// Names of what is shared over NBD with any host.
    pub fn shared_names(&self) -> Vec<String> {
        self.shared.names(self)
    }

    fn volumes(&self) -> MutexGuard<'_, BTreeMap<String, ExportedVolume>> {
        self.open.lock()
    }

    /// Exports the volumes among `all`. A volume that cannot be opened (its key is not loaded, or it is damaged) is
    /// skipped and logged.
    pub(crate) async fn renew(&self, rq: &Request, pool: &OpenPool, all: &[DatasetInfo]) {
        let opened = self.opened(rq, pool, all).await;
        *self.volumes() = opened;
    }

    /// Exports the volumes among `found`, which are the datasets below `tops`, instead of those that were there before.
    pub(crate) async fn renew_below(&self, rq: &Request, pool: &OpenPool, tops: &[String], found: &[DatasetInfo]) {
        let opened = self.opened(rq, pool, found).await;
        let is_below = |name: &str| {
            let of = name.split('@').next().unwrap_or(name);
            tops.iter().any(|top| Scope::Subtree(top).contains(of))
        };
        let mut volumes = self.volumes();
        volumes.retain(|name, _| !is_below(name));
        volumes.extend(opened);
    }

    /// Opens the volumes in a list, except those that are open already.
    async fn opened(&self, rq: &Request, pool: &OpenPool, list: &[DatasetInfo]) -> BTreeMap<String, ExportedVolume> {
        let mut out = BTreeMap::new();
        for dataset in list.iter().filter(|dataset| dataset.kind == DatasetKind::Volume || dataset.of_volume) {
            let known = self.volumes().get(&dataset.name).cloned();
            let volume = match known.filter(|known| known.id == dataset.fsid && !known.volume.is_closed()) {
                Some(exported) => Ok(exported.volume),
                None => pool.volume(rq, &dataset.name).await,
            };
            match volume {
                Ok(volume) => drop(out.insert(dataset.name.clone(), ExportedVolume { id: dataset.fsid, volume })),
                Err(error) => tracing::warn!(name = dataset.name, %error, "volume is not exported"),
            }
        }
        out
    }

    /// Names and persistent IDs of the volumes, without snapshots.
    pub(crate) fn heads(&self) -> Vec<(String, u64)> {
        let volumes = self.volumes();
        let heads = volumes.iter().filter(|(name, _)| !name.contains('@'));
        heads.map(|(name, exported)| (name.clone(), exported.id)).collect()
    }

    /// Name of the volume or snapshot with this persistent ID.
    pub(crate) fn name_of(&self, id: u64) -> Option<String> {
        self.volumes().iter().find(|(_, exported)| exported.id == id).map(|(name, _)| name.clone())
    }

    /// Persistent ID of the open volume or snapshot of this name.
    fn id_of(&self, dataset: &str) -> Option<u64> {
        self.volumes().get(dataset).map(|exported| exported.id)
    }

    /// Finds a volume; the empty name selects the only volume, if there is exactly one.
    fn named(&self, name: &str) -> Option<(String, ExportedVolume)> {
        let all = self.volumes();
        let mut each = all.iter();
        let found = match (name, each.next(), each.next()) {
            ("", Some(only), None) => Some(only),
            (name, ..) => all.get_key_value(name),
        };
        found.map(|(name, exported)| (name.clone(), exported.clone()))
    }
}

impl HostBlockExports for Volumes {
    fn seen_by(&self, host: IpAddr) -> Arc<dyn BlockExports> {
        Arc::new(shared::HostVolumes::new(self.clone(), host))
    }
}

impl BlockExports for Volumes {
    fn names(&self) -> Vec<String> {
        self.volumes().keys().cloned().collect()
    }

    fn find(&self, name: &str) -> Option<BlockExport> {
        self.named(name).map(|(name, ExportedVolume { volume, .. })| BlockExport {
            name,
            size_bytes: volume.size_bytes(),
            block_bytes: volume.block_bytes(),
            writable: volume.is_writable(),
        })
    }

    fn open<'a>(&'a self, _: &'a Request, name: &'a str) -> BlockFuture<'a, Arc<dyn BlockDevice>> {
        let attached = self.named(name).map(|(_, ExportedVolume { id, volume })| (id, volume.attach()));
        let attached = attached.filter(|(_, attached)| !attached.volume().is_closed());
        let attached = attached.filter(|_| !*self.withdrawn.borrow());
        let found = attached.map(|(id, attached)| {
            let accounts = self.accounts.clone();
            let withdrawn = self.withdrawn.subscribe();
            Arc::new(AttachedVolume { id, attached, accounts, withdrawn }) as Arc<dyn BlockDevice>
        });
        ready(found.ok_or(BlockError::NotFound)).boxed()
    }
}

/// A volume with a connected client; the volume is busy meanwhile.
struct AttachedVolume {
    id: u64,
    attached: Attachment,
    accounts: Arc<Accounts>,
    withdrawn: watch::Receiver<bool>,
}

impl AttachedVolume {
    fn volume(&self) -> &Volume {
        self.attached.volume()
    }
}

fn block_error(error: VolumeError) -> BlockError {
    match error {
        VolumeError::ReadOnly { .. } => BlockError::ReadOnly,
        VolumeError::NoSpace { .. } => BlockError::Full(error.into()),
        _ => BlockError::io(error),
    }
}

impl BlockDevice for AttachedVolume {
    fn id(&self) -> u64 {
        self.id
    }

    fn size_bytes(&self) -> u64 {
        self.volume().size_bytes()
    }

    fn resized(&self, known_bytes: u64) -> BoxFuture<'_, u64> {
        self.volume().resized(known_bytes).boxed()
    }

    fn block_bytes(&self) -> u32 {
        self.volume().block_bytes()
    }

    fn is_writable(&self) -> bool {
        self.volume().is_writable()
    }

    fn read<'a>(&'a self, rq: &'a Request, offset: u64, len: usize) -> BlockFuture<'a, Bytes> {
        Box::pin(async move { self.volume().read(rq, offset, len).await.map_err(block_error) })
    }

    fn read_pieces<'a>(&'a self, rq: &'a Request, offset: u64, len: usize) -> BlockFuture<'a, Pieces> {
        Box::pin(async move { self.volume().read_segments(rq, offset, len).await.map_err(block_error) })
    }

    fn extents<'a>(&'a self, rq: &'a Request, offset: u64, len: u64, max: usize) -> BlockFuture<'a, Vec<Extent>> {
        Box::pin(async move {
            let extents = self.volume().extents(rq, offset, len, max).await.map_err(block_error)?;
            Ok(extents.into_iter().map(|e| Extent { len_bytes: e.len_bytes, data: e.data }).collect())
        })
    }

    fn write<'a>(&'a self, rq: &'a Request, offset: u64, bytes: Bytes, fua: bool) -> BlockFuture<'a, ()> {
        Box::pin(async move { self.volume().write(rq, offset, bytes, fua).await.map_err(block_error) })
    }

    fn write_zeroes<'a>(&'a self, rq: &'a Request, offset: u64, len: u64, fua: bool) -> BlockFuture<'a, ()> {
        Box::pin(async move { self.volume().zero(rq, offset, len, true, fua).await.map_err(block_error) })
    }

    /// Clones blocks of a volume of the same pool, and copies what cannot be cloned.
    fn copy_from<'a>(
        &'a self,
        rq: &'a Request,
        from: &'a dyn BlockDevice,
        from_offset: u64,
        offset: u64,
        len: u64,
    ) -> BlockFuture<'a, u64> {
        Box::pin(async move {
            let cloned = match from.as_any().and_then(|from| from.downcast_ref::<AttachedVolume>()) {
                Some(from) => self.volume().clone_range(rq, from.volume(), from_offset, offset, len).await,
                None => Ok(0),
            };
            match cloned.map_err(block_error)? {
                0 => copy_through_memory(self, rq, from, from_offset, offset, len).await,
                bytes => Ok(bytes),
            }
        })
    }

    fn as_any(&self) -> Option<&dyn Any> {
        Some(self)
    }

    fn flush<'a>(&'a self, rq: &'a Request) -> BlockFuture<'a, ()> {
        Box::pin(async move { self.volume().flush(rq).await.map_err(block_error) })
    }

    fn withdrawn(&self) -> BoxFuture<'_, ()> {
        let mut withdrawn = self.withdrawn.clone();
        async move {
            if withdrawn.wait_for(|withdrawn| *withdrawn).await.is_err() {
                // The exports were dropped without a request to disconnect.
                pending().await
            }
        }
        .boxed()
    }

    fn accounts(&self) -> Option<Arc<Accounts>> {
        Some(self.accounts.clone())
    }
}

#[cfg(test)]
mod tests;
