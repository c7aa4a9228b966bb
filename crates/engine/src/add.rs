//! Adding vdevs to a pool: while it is open, or as part of opening it.
//!
//! The new devices get labels with txg 0, which mark them as not yet in use, and join the vdev tree without allocatable
//! space. A txg creates their objects in the MOS and commits the addition with its uberblock. Only then does their space
//! become allocatable. Otherwise an intent log block could be on a vdev that does not exist after a crash.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_vdev_add`).

use super::attach::members;
use super::aux_devices::{self, AuxKind};
use super::config::Config;
use super::events::PoolEvent;
use super::labels::{self, Leaf};
use super::syncing::TxgSync;
use super::{Devices, allocation};
use crate::create::devices::{self, Opened};
use crate::create::{NewLeaf, NewTopLevelVdev, contents, draid, layout};
use std::collections::BTreeMap;
use std::sync::Arc;
use weir_blocks::{Blocks, Tree};
use weir_cache::Cache;
use weir_codec::Salt;
use weir_dsl::Scope;
use weir_format::dsl::pool as names;
use weir_format::{NvList, Txg};
use weir_machine::{Machine, Request};
use weir_pool::assemble::state;
use weir_pool::config::{Class, VdevConfig};
use weir_pool::error::PoolError;
use weir_pool::mos::Mos;
use weir_pool::open::Pool;
use weir_pool::scan::Device;
use weir_pool::vdev_builder::{Facts, specs};
use weir_pool::{dtls, indirect};

/// Vdevs to add to a pool.
#[derive(Clone, Debug, Default)]
pub struct VdevAddRequest {
    /// Top-level vdevs.
    pub tops: Vec<NewTopLevelVdev>,
    /// Cache devices.
    pub caches: Vec<NewLeaf>,
    /// Hot spares.
    pub spares: Vec<NewLeaf>,
    /// log2 of the sector size; `None` for that of the pool's first vdev.
    pub ashift: Option<u64>,
    /// Use devices even if they appear to be in use.
    pub force: bool,
}

/// Added vdevs whose MOS objects a sync task must create.
#[derive(Default)]
pub(super) struct Added {
    tops: Vec<NewTopLevelVdev>,
    /// Index of the first added top-level vdev.
    first: usize,
    caches: Vec<NvList>,
    spares: Vec<NvList>,
}

/// New top-level vdevs with their devices and labels.
#[derive(Default)]
struct Joined {
    tops: Vec<VdevConfig>,
    devices: BTreeMap<u64, Device>,
    leaves: Vec<Leaf>,
}

impl Devices<'_> {
    /// Adds vdevs to the pool. When this returns, they are part of the pool and allocatable.
    ///
    /// # Errors
    /// Errors of [`Engine::create`] for the devices; [`PoolError::Suspended`].
    pub async fn add(&self, more: &VdevAddRequest) -> Result<(), PoolError> {
        let _one_at_a_time = self.engine.adding.lock().await;
        let mut config = self.engine.shown().config;
        let blocks = self.engine.cache.blocks().clone();
        let first = blocks.tree().len();
        let ashift = more.ashift.or_else(|| ashift_of(config.tops())).unwrap_or(12);
        let place = NewPlace { first, ashift, txg: self.engine.txgs().open().0 };
        let mut joined = Joined::default();
        let added = more.prepare(&self.engine.machine, &mut config, place, &mut joined).await?;
        let uberblock = self.engine.shown().uberblock;
        let facts = Facts { devices: &joined.devices, dtls: &BTreeMap::new(), uberblock: &uberblock, writing: true };
        let bad = |e: weir_blocks::TreeError| PoolError::Config { pool: self.engine.name(), what: e.to_string() };
        let unreadable = |source| PoolError::Decode { what: "the vdevs".into(), source };
        let mut root = VdevConfig::parse(&config.root).map_err(unreadable)?;
        root.children.truncate(first);
        root.children.extend(joined.tops.iter().cloned());
        // The operations in progress are on the present vdevs, which stay.
        let _replaced = blocks.tree().replace(specs(&root, &facts)).map_err(bad)?;
        let new = config.tops().get(first..).unwrap_or_default().to_vec();
        let leaves = joined.leaves;
        self.engine
            .sync_task(move |syncing: &mut TxgSync<'_>| {
                Box::pin(async move {
                    let tops = syncing.core.config.tops().iter().cloned().chain(new).collect();
                    syncing.core.config.set_tops(tops);
                    syncing.core.leaves.extend(leaves);
                    added.make(syncing).await
                })
            })
            .await?;
        for top in &joined.tops {
            allocation::set_empty_top(&blocks, top)?;
        }
        self.engine.tops.add(&joined.tops);
        self.engine.cache_devices().open(&mut BTreeMap::new()).await;
        self.engine.events.post(PoolEvent::VdevAdd, |_| {});
        self.engine.growth().renew_capacity().await?;
        // The policy of intent logs depends on whether the pool has log devices.
        self.engine.properties().renew(&Request::internal("add"), Scope::All).await
    }
}

/// log2 of the sector size of the first of these top-level vdevs that is no hole.
fn ashift_of(tops: &[NvList]) -> Option<u64> {
    tops.iter().filter_map(|top| top.get_u64("ashift")).find(|ashift| *ashift != 0)
}

/// Position of new vdevs: index of the first, log2 of the sector size, and the txg that creates them.
#[derive(Clone, Copy)]
struct NewPlace {
    first: usize,
    ashift: u64,
    txg: u64,
}

impl VdevAddRequest {
    fn leaves(&self) -> impl Iterator<Item = &NewLeaf> {
        self.tops.iter().flat_map(|t| &t.leaves).chain(&self.caches).chain(&self.spares)
    }

    /// Labels the devices and adds them to a pool that is being imported.
    pub(super) async fn join(
        &self,
        machine: &Machine,
        pool: &mut Pool,
        config: &mut Config,
    ) -> Result<Added, PoolError> {
        let place = NewPlace {
            first: pool.tree.children.len(),
            ashift: self.ashift.or_else(|| ashift_of(config.tops())).unwrap_or(12),
            txg: pool.newest_txg.max(pool.uberblock.txg).0 + 1,
        };
        let mut joined = Joined::default();
        let added = self.prepare(machine, config, place, &mut joined).await?;
        pool.devices.extend(joined.devices);
        pool.tree.children.extend(joined.tops);
        if !self.tops.is_empty() {
            rebuild(machine, pool).await?;
        }
        Ok(added)
    }

    /// Labels the devices and adds the new vdevs to the configuration.
    async fn prepare(
        &self,
        machine: &Machine,
        config: &mut Config,
        place: NewPlace,
        joined: &mut Joined,
    ) -> Result<Added, PoolError> {
        // As `spa_vdev_add` has it: a removal copies without regard to blocks.
        let is_removed = |top: &NvList| top.get_str("type") == Some("indirect") || top.get_u64("removing") == Some(1);
        let has_removed = config.tops().iter().any(is_removed);
        for top in &self.tops {
            top.check()?;
            if has_removed && !matches!(top.layout, super::Layout::Single | super::Layout::Mirror) {
                return Err(PoolError::Refused {
                    what: "RAID-Z and dRAID vdevs cannot be added to a pool with removed vdevs".into(),
                });
            }
        }
        let NewPlace { first, ashift, txg } = place;
        let opened = devices::open_leaves(machine, self.leaves(), self.force, &members(config)).await?;
        let mut rest = opened.as_slice();
        let mut lists = config.tops().to_vec();
        for (index, top) in self.tops.iter().enumerate() {
            let (own, others) = rest.split_at(top.leaves.len().min(rest.len()));
            let sizes: Vec<layout::Size> = own.iter().map(Opened::size).collect();
            let list = top.list((first + index) as u64, &sizes, ashift, txg, &machine.entropy)?;
            if lists
                .iter()
                .any(|old| old.get_u64("removing") == Some(1) && old.get_u64("ashift") != list.get_u64("ashift"))
            {
                let what = "while a device is being removed, only vdevs of the same sector size can be added".into();
                return Err(PoolError::Refused { what });
            }
            lists.push(list.clone());
            config.set_tops(lists.clone());
            join_top(joined, config, &list, top, own, txg).await?;
            rest = others;
        }
        let distributed = lists.iter().skip(first).flat_map(|top| draid::spares_of(top, &machine.entropy)).collect();
        let mut added = Added { tops: self.tops.clone(), first, spares: distributed, ..Added::default() };
        for (index, (leaf, opened)) in self.caches.iter().chain(&self.spares).zip(rest).enumerate() {
            let is_cache = index < self.caches.len();
            let list = leaf.aux_list(opened.size(), is_cache.then_some(ashift), &machine.entropy)?;
            let kind = if is_cache { state::L2CACHE } else { state::SPARE };
            let device = opened.leaf(list.get_u64("guid").unwrap_or(0), 0, ashift, false);
            labels::initialize_aux(&device, config.version, &list, kind).await?;
            if is_cache { added.caches.push(list) } else { added.spares.push(list) }
        }
        Ok(added)
    }
}

async fn join_top(
    joined: &mut Joined,
    config: &Config,
    list: &NvList,
    top: &NewTopLevelVdev,
    opened: &[Opened],
    txg: u64,
) -> Result<(), PoolError> {
    let bad = |source| PoolError::Decode { what: "the new vdev".into(), source };
    let mut vdev = VdevConfig::parse(list).map_err(bad)?;
    vdev.class = top.class;
    for (leaf, opened) in vdev.leaves().into_iter().zip(opened) {
        let device: Leaf = opened.leaf(leaf.guid, vdev.id as usize, vdev.ashift, top.class == Class::Log);
        let own = labels::find(list, leaf.guid).cloned().unwrap_or_default();
        let mut label = config.label_list(list, &own, Txg(0));
        label.set("create_txg", txg);
        labels::initialize(&device, &label).await?;
        joined.devices.insert(leaf.guid, devices::blank(&device));
        joined.leaves.push(device);
    }
    joined.tops.push(vdev);
    Ok(())
}

/// Rebuilds the vdev tree, the block layer and the cache of a pool that is being imported.
pub(super) async fn rebuild(machine: &Machine, pool: &mut Pool) -> Result<(), PoolError> {
    let rq = &Request::internal("add");
    let dtls = dtls::read_all(rq, &pool.mos, &pool.tree, pool.uberblock.txg).await;
    let facts = Facts { devices: &pool.devices, dtls: &dtls, uberblock: &pool.uberblock, writing: true };
    let bad = |e: weir_blocks::TreeError| PoolError::Config { pool: pool.name().to_owned(), what: e.to_string() };
    let tree = Tree::new(specs(&pool.tree, &facts), &machine.clock).map_err(bad)?;
    indirect::load(rq, &pool.mos, &pool.tree, &tree).await?;
    let salt = pool.mos.named_bytes(rq, names::CHECKSUM_SALT).await?;
    let salt = salt.and_then(|b| <[u8; Salt::BYTES]>::try_from(b).ok()).map_or_else(Salt::none, Salt::new);
    pool.blocks = Arc::new(Blocks::new(machine, tree, salt));
    let arc_bytes = pool.cache.stats().sizes.budget_bytes;
    pool.cache = Cache::new(machine.clone(), pool.blocks.clone(), arc_bytes);
    Ok(())
}

impl Added {
    /// Creates the MOS objects of the new vdevs, in syncing context.
    pub(super) async fn make(&self, syncing: &mut TxgSync<'_>) -> Result<(), PoolError> {
        let mos = Mos { set: syncing.engine.mos.clone() };
        let rq = syncing.change.rq;
        let all = mos.named(rq, names::VDEV_ZAP_MAP).await?;
        let mut tops = syncing.core.config.tops().to_vec();
        for (index, new) in self.tops.iter().enumerate() {
            let id = self.first + index;
            if let (Some(top), Some(all)) = (tops.get_mut(id), all) {
                contents::zaps_of_top(syncing, top, new.class, all).await?;
            }
        }
        syncing.core.config.set_tops(tops);
        let bad = |source| PoolError::Decode { what: "the new vdevs".into(), source };
        let tree = VdevConfig::parse(&syncing.core.config.root).map_err(bad)?;
        for (id, top) in tree.children.iter().enumerate().skip(self.first) {
            let array = syncing.core.maps.add_top(&mut syncing.change, top).await?;
            syncing.core.config.set_top_number(id, "metaslab_array", array.0);
        }
        aux_devices::add(syncing, AuxKind::Spare, &self.spares).await?;
        aux_devices::add(syncing, AuxKind::Cache, &self.caches).await?;
        syncing.core.config_dirty = true;
        Ok(())
    }
}
