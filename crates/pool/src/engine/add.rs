//! Adding vdevs to a pool, as part of opening it.
//!
//! The tree of devices is fixed while a pool is open. So what is added joins between reading the pool and writing it: the
//! new devices get blank labels, which say by txg 0 that they belong to nobody yet; the tree is built again with them; the
//! first group makes their objects in the MOS, and its uberblock makes it true.
//!
//! Source: OpenZFS `module/zfs/spa.c` (`spa_vdev_add`).

use super::config::Config;
use super::labels::{self, Leaf};
use super::syncing::Syncing;
use crate::assemble::state;
use crate::config::VdevConfig;
use crate::create::devices::{self, Opened};
use crate::create::{NewLeaf, NewTop, contents, layout};
use crate::dtl;
use crate::error::PoolError;
use crate::mos::Mos;
use crate::open::Pool;
use crate::spec::{Facts, specs};
use std::sync::Arc;
use weir_blocks::{Blocks, Tree};
use weir_cache::Cache;
use weir_codec::Salt;
use weir_format::dsl::pool as names;
use weir_format::{NvList, ObjectId, Txg};
use weir_machine::{Machine, Request};

/// What is added.
#[derive(Clone, Debug, Default)]
pub struct Additions {
    /// Top-level vdevs.
    pub tops: Vec<NewTop>,
    /// Cache devices.
    pub caches: Vec<NewLeaf>,
    /// Hot spares.
    pub spares: Vec<NewLeaf>,
    /// log2 of the sector size, if it was said; else that of the pool's first vdev.
    pub ashift: Option<u64>,
    /// Take devices that seem to be in use.
    pub force: bool,
}

/// What is to be written into the MOS for it.
#[derive(Default)]
pub(super) struct Added {
    tops: Vec<NewTop>,
    /// The index of the first of them.
    first: usize,
    caches: Vec<NvList>,
    spares: Vec<NvList>,
}

impl Additions {
    fn leaves(&self) -> impl Iterator<Item = &NewLeaf> {
        self.tops.iter().flat_map(|t| &t.leaves).chain(&self.caches).chain(&self.spares)
    }

    /// Labels the devices and puts them into the pool that was read.
    pub(super) async fn join(
        &self,
        machine: &Machine,
        pool: &mut Pool,
        config: &mut Config,
    ) -> Result<Added, PoolError> {
        for top in &self.tops {
            top.check()?;
        }
        let opened = devices::open_leaves(machine, self.leaves(), self.force).await?;
        let first = pool.tree.children.len();
        let txg = pool.newest_txg.max(pool.uberblock.txg).0 + 1;
        let ashift = self.ashift.or(pool.tree.children.first().map(|t| t.ashift)).unwrap_or(12);
        let mut rest = opened.as_slice();
        let mut lists = config.tops().to_vec();
        for (index, top) in self.tops.iter().enumerate() {
            let (own, others) = rest.split_at(top.leaves.len().min(rest.len()));
            let sizes: Vec<layout::Size> = own.iter().map(Opened::size).collect();
            let list = top.list((first + index) as u64, &sizes, ashift, txg, &machine.entropy)?;
            lists.push(list.clone());
            config.set_tops(lists.clone());
            self.join_top(pool, config, &list, top, own, txg).await?;
            rest = others;
        }
        let mut added = Added { tops: self.tops.clone(), first, ..Added::default() };
        for (index, (leaf, opened)) in self.caches.iter().chain(&self.spares).zip(rest).enumerate() {
            let is_cache = index < self.caches.len();
            let list = leaf.aux_list(opened.size(), is_cache.then_some(ashift), &machine.entropy)?;
            let kind = if is_cache { state::L2CACHE } else { state::SPARE };
            let device = opened.leaf(list.get_u64("guid").unwrap_or(0), 0, ashift, false);
            labels::initialize_aux(&device, config.version, &list, kind).await?;
            if is_cache { added.caches.push(list) } else { added.spares.push(list) }
        }
        if !self.tops.is_empty() {
            rebuild(machine, pool).await?;
        }
        Ok(added)
    }

    async fn join_top(
        &self,
        pool: &mut Pool,
        config: &Config,
        list: &NvList,
        top: &NewTop,
        opened: &[Opened],
        txg: u64,
    ) -> Result<(), PoolError> {
        let bad = |source| PoolError::Decode { what: "the new vdev".into(), source };
        let mut vdev = VdevConfig::parse(list).map_err(bad)?;
        vdev.class = top.class;
        for (leaf, opened) in vdev.leaves().into_iter().zip(opened) {
            let device: Leaf = opened.leaf(leaf.guid, vdev.id as usize, vdev.ashift, false);
            let own = labels::find(list, leaf.guid).cloned().unwrap_or_default();
            let mut label = config.label_list(list, &own, Txg(0));
            label.set("create_txg", txg);
            labels::initialize(&device, &label).await?;
            pool.devices.insert(leaf.guid, devices::blank(&device));
        }
        pool.tree.children.push(vdev);
        Ok(())
    }
}

/// Builds the tree of devices and what stands on it again.
async fn rebuild(machine: &Machine, pool: &mut Pool) -> Result<(), PoolError> {
    let rq = &Request::internal("add");
    let dtls = dtl::read_all(rq, &pool.mos, &pool.tree).await;
    let facts = Facts { devices: &pool.devices, dtls: &dtls, uberblock: &pool.uberblock };
    let bad = |e: weir_blocks::TreeError| PoolError::Config { pool: pool.name().to_owned(), what: e.to_string() };
    let tree = Tree::new(specs(&pool.tree, &facts)).map_err(bad)?;
    let salt = pool.mos.named_bytes(rq, names::CHECKSUM_SALT).await?;
    let salt = salt.and_then(|b| <[u8; Salt::BYTES]>::try_from(b).ok()).map_or_else(Salt::none, Salt::new);
    pool.blocks = Arc::new(Blocks::new(machine, tree, salt));
    pool.cache = Cache::new(machine.clone(), pool.blocks.clone(), crate::OpenOptions::ARC_BYTES);
    Ok(())
}

impl Added {
    /// Makes the objects of the new vdevs, in syncing context.
    pub(super) async fn make(&self, syncing: &mut Syncing<'_>) -> Result<(), PoolError> {
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
        for (name, vdevs) in [(names::SPARES, &self.spares), (names::L2CACHE, &self.caches)] {
            self.add_aux(syncing, &mos, name, vdevs).await?;
        }
        syncing.core.config_dirty = true;
        Ok(())
    }

    async fn add_aux(
        &self,
        syncing: &mut Syncing<'_>,
        mos: &Mos,
        name: &str,
        vdevs: &[NvList],
    ) -> Result<(), PoolError> {
        if vdevs.is_empty() {
            return Ok(());
        }
        let rq = syncing.change.rq;
        let (id, mut all) = match mos.named(rq, name).await? {
            Some(id) => (id, mos.list(rq, id).await?.get_list_array(name).unwrap_or_default().to_vec()),
            None => (contents::new_list(&syncing.change, ObjectId(names::DIRECTORY_OBJECT), name).await?, Vec::new()),
        };
        all.extend(vdevs.iter().cloned());
        let mut list = NvList::new();
        list.set(name, all);
        syncing.write_list(id, &list).await
    }
}
