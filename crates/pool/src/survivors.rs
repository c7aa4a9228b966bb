//! States of a pool, each opened as far as it can be read: for a rescue of a pool that cannot be imported.
//!
//! ```text
//!   uberblocks, the newest first ─► vdev tree of the MOS, else of the labels ─► MOS ─► datasets by name
//!                                                                                  └─► datasets by number, where names are lost
//! ```
//!
//! [`Pool::open`] refuses a pool with missing top-level vdevs, unreadable space maps or an unreadable configuration, because it
//! could not be used. Here each of these is a line in [`View::problems`], and the blocks that can be read are readable. Nothing is
//! written: the devices are open for reading only.
//!
//! Failures: a state whose MOS has no readable root is an error; the caller tries the next one.
//!
//! [`Pool::open`]: crate::Pool::open

use crate::assemble::{FoundPool, assemble};
use crate::config::{PoolConfig, VdevConfig, VdevKind};
use crate::dtls::{self, Dtls};
use crate::error::PoolError;
use crate::mos::Mos;
use crate::open::{Candidate, LABEL_ARC_BYTES, OpenOptions, choose, load_keys};
use crate::scan::scan;
use crate::{indirect, uberblocks};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use weir_blocks::Blocks;
use weir_cache::Cache;
use weir_codec::Salt;
use weir_dmu::{ErrorLocation, Object, ObjectError, ObjectSet, Opening};
use weir_dsl::{Dataset, Dsl, SetKey};
use weir_format::dsl::pool as names;
use weir_format::{DslDataset, ObjectId, ObjectType, Uberblock};
use weir_machine::{Machine, Request};

/// The devices of a pool, and its states.
pub struct Survivors {
    machine: Machine,
    found: FoundPool,
    arc_bytes: u64,
    keys: Vec<(String, Vec<u8>)>,
}

/// One state of a pool, as far as it can be read.
pub struct View {
    /// The uberblock.
    pub uberblock: Uberblock,
    /// Reader of blocks.
    pub blocks: Arc<Blocks>,
    /// The cache above it.
    pub cache: Arc<Cache>,
    /// The datasets and snapshots, a head before its snapshots.
    pub datasets: Vec<Survivor>,
    /// Lines about what could not be read of the pool as a whole.
    pub problems: Vec<String>,
    mos: Mos,
    loaded: BTreeMap<ObjectId, SetKey>,
}

/// A dataset or snapshot of a state.
#[derive(Clone, Debug)]
pub struct Survivor {
    /// Full name; of one whose name is lost, the pool's with `%` and the number.
    pub name: String,
    /// Object in the MOS.
    pub dataset: Dataset,
}

impl Survivors {
    /// Finds the devices of a pool.
    ///
    /// # Errors
    /// Errors of the scan; [`PoolError::NothingFound`], [`PoolError::NoSuchPool`], [`PoolError::Ambiguous`].
    pub async fn find(machine: &Machine, options: &OpenOptions) -> Result<Self, PoolError> {
        let scanned = scan(machine, &options.search).await?;
        let looked_at = scanned.looked_at;
        let found = choose(&mut assemble(scanned), options, looked_at)?;
        let (arc_bytes, keys) = (options.arc_bytes, options.keys.clone());
        Ok(Survivors { machine: machine.clone(), found, arc_bytes, keys })
    }

    /// The pool's name.
    pub fn name(&self) -> &str {
        &self.found.config.name
    }

    /// The uberblocks, the best one first.
    pub fn uberblocks(&self) -> Vec<Uberblock> {
        uberblocks::ranked(&self.found, None)
    }

    /// Opens the state of an uberblock.
    ///
    /// # Errors
    /// [`PoolError::Mos`] if its MOS has no readable root; [`PoolError::Config`] for labels that contradict each other.
    pub async fn view(&self, uberblock: &Uberblock) -> Result<View, PoolError> {
        let rq = &Request::internal("rescue");
        let candidate = Candidate {
            machine: &self.machine,
            found: &self.found,
            arc_bytes: self.arc_bytes,
            forger: None,
            writing: false,
            rewinds: true,
        };
        let mut problems = Vec::new();
        let by_labels = self.found.label_tree()?;
        let tree = candidate.tree(&by_labels, &Dtls::new(), uberblock)?;
        let (_, by_labels_only) = candidate.mos(rq, tree, Salt::none(), uberblock, LABEL_ARC_BYTES).await?;
        let trusted = configuration(rq, &by_labels_only).await.unwrap_or_else(|why| {
            problems.push(format!("the configuration in the MOS is lost ({why}): the labels' is used"));
            by_labels.clone()
        });
        // What cannot be read is named below.
        let whole = candidate.mos_of_removed(rq, by_labels_only.clone(), &trusted, uberblock).await;
        let first = whole.unwrap_or(by_labels_only);
        let salt = match first.named_bytes(rq, names::CHECKSUM_SALT).await {
            Ok(salt) => salt.and_then(|b| <[u8; Salt::BYTES]>::try_from(b).ok()).map_or_else(Salt::none, Salt::new),
            Err(why) => {
                problems.push(format!("the salt of checksums is lost: {why}"));
                Salt::none()
            }
        };
        let on_disk = dtls::read_all(rq, &first, &trusted, uberblock.txg).await;
        let tree = match candidate.tree(&trusted, &on_disk, uberblock) {
            Ok(tree) => tree,
            Err(why) => {
                problems.push(format!("the vdev tree in the MOS cannot be used: {why}"));
                candidate.tree(&by_labels, &Dtls::new(), uberblock)?
            }
        };
        if let Err(why) = indirect::load(rq, &first, &trusted, &tree).await {
            problems.push(format!("the mapping of a removed vdev is lost: {why}"));
        }
        let has_device = |leaf: &&VdevConfig| leaf.kind != VdevKind::DraidSpare;
        let absent = trusted.leaves().into_iter().filter(has_device);
        let absent = absent.filter(|leaf| !self.found.devices.contains_key(&leaf.guid));
        problems.extend(absent.map(|leaf| format!("device {} ({}) is missing", leaf.guid, leaf.name())));
        let (cache, mos) = candidate.mos(rq, tree, salt, uberblock, self.arc_bytes).await?;
        let blocks = cache.blocks().clone();
        let (uberblock, loaded) = (uberblock.clone(), BTreeMap::new());
        let mut view = View { uberblock, blocks, cache, datasets: Vec::new(), problems, mos, loaded };
        view.list(rq, self.name(), &self.keys).await;
        debug_assert!(!view.blocks.tree().is_writable(), "a rescue writes nothing");
        Ok(view)
    }
}

/// The vdev tree in the MOS.
async fn configuration(rq: &Request, mos: &Mos) -> Result<VdevConfig, String> {
    let text = |error: &dyn std::fmt::Display| error.to_string();
    let config = mos.named(rq, names::CONFIG).await.map_err(|e| text(&e))?.ok_or("it has none")?;
    let list = mos.list(rq, config).await.map_err(|e| text(&e))?;
    let config = PoolConfig::parse(list).map_err(|e| text(&e))?;
    config.vdev_tree().map_err(|e| text(&e))
}

impl View {
    /// Lists the datasets: by name as far as the directories can be read, the others by number.
    async fn list(&mut self, rq: &Request, pool: &str, keys: &[(String, Vec<u8>)]) {
        let mut is_whole = false;
        match Dsl::open(rq, self.mos.set.clone(), pool).await {
            Ok(dsl) => {
                is_whole = self.list_named(rq, &dsl).await;
                match load_keys(rq, &dsl, keys).await {
                    Ok((_, loaded)) => self.loaded = loaded,
                    Err(why) => self.problems.push(format!("keys: {why}")),
                }
            }
            Err(why) => self.problems.push(format!("the names of datasets are lost: {why}")),
        }
        if !is_whole {
            self.list_numbered(rq, pool).await;
        }
    }

    /// Lists the datasets with names. Returns whether none is lost.
    async fn list_named(&mut self, rq: &Request, dsl: &Dsl) -> bool {
        let mut is_whole = dsl.damaged().is_empty();
        self.problems.extend(dsl.damaged().iter().map(|(name, why)| format!("{name}: {why}")));
        for dir in dsl.visible_dirs() {
            match dsl.head(rq, dir).await {
                Ok(head) => self.datasets.push(Survivor { name: dir.name.clone(), dataset: head }),
                Err(why) => {
                    self.problems.push(format!("{}: {why}", dir.name));
                    is_whole = false;
                    continue;
                }
            }
            match dsl.snapshots(rq, dir).await {
                Ok(list) => {
                    is_whole &= list.damaged.is_empty();
                    let all = list.snapshots.iter().cloned();
                    self.datasets.extend(all.map(|dataset| Survivor { name: dataset.name.clone(), dataset }));
                }
                Err(why) => {
                    self.problems.push(format!("the snapshots of {}: {why}", dir.name));
                    is_whole = false;
                }
            }
        }
        is_whole
    }

    /// Lists the datasets among the objects of the MOS that have no name here.
    async fn list_numbered(&mut self, rq: &Request, pool: &str) {
        let known: BTreeSet<ObjectId> = self.datasets.iter().map(|one| one.dataset.id).collect();
        let Some(meta) = self.mos.set.meta() else { return };
        let mut listing = BlockListing::default();
        loop {
            let block = match listing.next(rq, &self.mos.set, &meta).await {
                Listed::Block(block) => block,
                Listed::Lost(..) => continue,
                Listed::End => return,
            };
            let Ok(dnodes) = self.mos.set.dnodes().in_block(rq, block).await else { continue };
            for (id, dnode) in dnodes {
                let Ok(dnode) = dnode else { continue };
                if dnode.bonus_type != ObjectType::DSL_DATASET || known.contains(&id) {
                    continue;
                }
                let Ok(phys) = DslDataset::decode(dnode.bonus(), dnode.endian) else { continue };
                if phys.pointer.is_hole() {
                    continue;
                }
                let name = format!("{pool}%{id}");
                let extensible = dnode.object_type.is_zap();
                let dataset = Dataset { id, name: name.clone(), dir: phys.dir, phys, extensible };
                self.datasets.push(Survivor { name, dataset });
            }
        }
    }

    /// Opens the object set of a dataset, with its key if that is loaded.
    ///
    /// # Errors
    /// Errors of reading its header.
    pub async fn open(&self, rq: &Request, dataset: &Dataset) -> Result<Arc<ObjectSet>, ObjectError> {
        let key = self.loaded.get(&dataset.dir).cloned();
        let opening = Opening { id: dataset.objset(), key, ..Opening::default() };
        ObjectSet::open(rq, self.cache.clone(), dataset.phys.pointer, opening).await
    }
}

/// Lists the data blocks of an object, over indirect blocks that cannot be read.
#[derive(Debug, Default)]
pub struct BlockListing {
    next: u64,
}

/// One step of a [`BlockListing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listed {
    /// The number of a block that is not a hole.
    Block(u64),
    /// These blocks are below an indirect block that cannot be read.
    Lost(Range<u64>, ObjectError),
    /// There are no more blocks.
    End,
}

impl BlockListing {
    /// A listing from a block on.
    pub fn from(block: u64) -> Self {
        BlockListing { next: block }
    }

    /// Returns the next block that is not a hole, or the next ones that are lost. Each call goes on by at least one block.
    pub async fn next(&mut self, rq: &Request, set: &Arc<ObjectSet>, object: &Arc<Object>) -> Listed {
        let last = object.dnode.max_block_id;
        if self.next > last {
            return Listed::End;
        }
        match set.pointers().next_data_block(rq, object, self.next).await {
            Ok(Some(block)) if block <= last => {
                debug_assert!(block >= self.next, "a listing goes on");
                self.next = block.saturating_add(1);
                Listed::Block(block)
            }
            Ok(_) => Listed::End,
            Err(error) => {
                let range = lost_range(object, error.place(), self.next);
                self.next = range.end;
                Listed::Lost(range.start..range.end.min(last.saturating_add(1)), error)
            }
        }
    }
}

/// The blocks from `next` on that an unreadable block at `place` hides: at least one.
fn lost_range(object: &Object, place: Option<ErrorLocation>, next: u64) -> Range<u64> {
    let hidden = match place.filter(|place| place.object == object.id && place.level > 0) {
        Some(place) => object.tree().blocks_below(place.level, place.block),
        None => next..next.saturating_add(1),
    };
    let start = hidden.start.max(next);
    start..hidden.end.max(start.saturating_add(1))
}
